//! Charts as SVG: an axis that is fitted to the data, lines that are told apart by shape, and the same as a table.

use jiff::Timestamp;
use maud::{Markup, html};
use serde::Serialize;

use crate::layout::{duration, in_unit, percent};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 10.0;
const BOTTOM: f64 = 28.0;
const TOP: f64 = 10.0;
/// How an hour is written.
pub(crate) const HOUR: &str = "%m-%d %H:00 UTC";
/// With more times, only values that stand alone have a mark.
const MAX_MARKED_POINTS: usize = 70;

/// What the numbers of a chart are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    /// From 0 to 1.
    Share,
    Seconds,
    Count,
}

impl Unit {
    fn text(self, value: f64) -> String {
        match self {
            Self::Share => percent(value),
            Self::Seconds => duration(value),
            Self::Count if value.fract().abs() > 0.01 => format!("{value:.1}"),
            Self::Count => format!("{value:.0}"),
        }
    }

    /// A value of the axis, which isn't rounded to whole seconds or minutes: half-way between 13 s and 16 s is 14.5 s.
    fn tick(self, value: f64) -> String {
        if self != Self::Seconds {
            return self.text(value);
        }
        let is_short = value > 0.0 && value < 1.0;
        let (value, unit) = if is_short { (value * 1000.0, "ms") } else { in_unit(value) };
        let text = format!("{value:.2}");
        format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// A line of a chart, with a value for each of its times, or none.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct PlotLine {
    pub(crate) name: String,
    pub(crate) values: Vec<Option<f64>>,
}

#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) unit: Unit,
    /// Hours, days or weeks, as people read them.
    pub(crate) times: Vec<String>,
    /// When each of them begins, if they are hours: a script shows those in the reader's time. Days are those of UTC.
    pub(crate) hours: Vec<Timestamp>,
    /// Up to four, each with a colour, a dash and a mark of its own.
    pub(crate) lines: Vec<PlotLine>,
}

/// From where to where an axis goes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Axis {
    low: f64,
    high: f64,
}

const CLASSES: [&str; 4] = ["a", "b", "c", "d"];

impl Plot {
    fn known(&self) -> impl Iterator<Item = f64> + '_ {
        self.lines.iter().flat_map(|line| &line.values).filter_map(|value| *value)
    }

    /// From zero, unless all values are far from it.
    fn axis(&self) -> Option<Axis> {
        let low = self.known().reduce(f64::min)?;
        let high = self.known().reduce(f64::max)?;
        let step = step(self.unit, (high - low).max(high / 4.0));
        let low = if low < high / 2.0 { 0.0 } else { (low / step).floor() * step };
        let mut high = (high / step).ceil() * step;
        if high <= low {
            high = low + step;
        }
        if self.unit == Unit::Share {
            Some(Axis { low: low.min(0.9), high: high.min(1.0) })
        } else {
            Some(Axis { low, high })
        }
    }

    /// The chart, and its numbers in a table that is folded.
    pub(crate) fn markup(&self) -> Markup {
        let Some(axis) = self.axis() else {
            return html! { figure.chart { figcaption { bdi { (self.title) } " " span.muted { "no data in this span" } } } };
        };
        html! {
            figure.chart {
                figcaption {
                    span { bdi { (self.title) } }
                    @for (line, class) in self.lines.iter().zip(CLASSES) {
                        span.key.(class) { svg.mark viewBox="0 0 24 12" aria-hidden="true" {
                            polyline.(class) points="0,6 24,6" {} (mark(class, 12.0, 6.0))
                        } bdi { (line.name) } }
                    }
                    span.detail { (self.unit.tick(axis.low)) " to " (self.unit.tick(axis.high)) }
                }
                (self.drawing(axis))
                output.at hidden {}
                details { summary { "As a table" } (self.table()) }
            }
        }
    }

    fn drawing(&self, axis: Axis) -> Markup {
        let count = self.times.len().max(1);
        let width = (WIDTH - LEFT - RIGHT) / count as f64;
        let x = |n: usize| round(LEFT + width * (n as f64 + 0.5));
        let share = |value: f64| (value - axis.low) / (axis.high - axis.low);
        let y = |value: f64| round(TOP + (1.0 - share(value)) * (HEIGHT - TOP - BOTTOM));
        let ticks = [axis.low, f64::midpoint(axis.low, axis.high), axis.high];
        html! {
            svg.plot viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" tabindex="0" aria-label=(self.in_words()) {
                @for tick in ticks {
                    line.grid x1=(LEFT) x2=(WIDTH - RIGHT) y1=(y(tick)) y2=(y(tick)) {}
                    text.axis x=(LEFT - 6.0) y=(y(tick) + 5.0) text-anchor="end" { (self.unit.tick(tick)) }
                }
                @if let (Some(first), Some(last)) = (self.times.first(), self.times.last()) {
                    text.axis x=(LEFT) y=(HEIGHT - 5.0) data-hour=[self.hours.first()] { (first) (self.zone()) }
                    @if count > 1 { text.axis x=(WIDTH - RIGHT) y=(HEIGHT - 5.0) text-anchor="end" data-hour=[self.hours.last()] { (last) (self.zone()) } }
                }
                @for (line, class) in self.lines.iter().zip(CLASSES) {
                    @for part in parts(&line.values) {
                        polyline.(class) points=(points(&part, &x, &y)) {}
                    }
                    @for (n, value) in line.values.iter().enumerate() {
                        @if let Some(value) = value.filter(|_| count <= MAX_MARKED_POINTS || is_alone(&line.values, n)) {
                            (mark(class, x(n), y(value)))
                        }
                    }
                }
                @for (n, time) in self.times.iter().enumerate() {
                    rect.time x=(round(LEFT + width * n as f64)) y=(TOP) width=(round(width)) height=(HEIGHT - TOP - BOTTOM) {
                        title data-hour=[self.hours.get(n)] { (self.at(n, time)) }
                    }
                }
            }
        }
    }

    /// Follows a day. An hour has its zone in its text.
    fn zone(&self) -> &'static str {
        if self.hours.is_empty() { " UTC" } else { "" }
    }

    /// What the chart says about one time.
    fn at(&self, n: usize, time: &str) -> String {
        let values = self.lines.iter().map(|line| match line.values.get(n).copied().flatten() {
            Some(value) => format!("{} {}", line.name, self.unit.text(value)),
            None => format!("{} no data", line.name),
        });
        format!("{time}{}: {}", self.zone(), values.collect::<Vec<_>>().join(", "))
    }

    fn in_words(&self) -> String {
        let parts = self.lines.iter().filter_map(|line| {
            let last = line.values.iter().rev().flatten().next()?;
            Some(format!("{} last {}", line.name, self.unit.text(*last)))
        });
        format!("{}: {}", self.title, parts.collect::<Vec<_>>().join(", "))
    }

    fn table(&self) -> Markup {
        html! {
            div.scroll { table.numbers {
                thead { tr { th scope="col" { @if self.hours.is_empty() { "Day (UTC)" } @else { "Hour" } } @for line in &self.lines { th scope="col" { bdi { (line.name) } } } } }
                tbody { @for (n, time) in self.times.iter().enumerate().rev() { tr {
                    th scope="row" data-hour=[self.hours.get(n)] { (time) }
                    @for line in &self.lines { td { @match line.values.get(n).copied().flatten() {
                        Some(value) => (self.unit.text(value)), None => span.muted { "no data" },
                    } } }
                } } }
            } }
        }
    }
}

/// A round step, of which three to eight make up `span`.
fn step(unit: Unit, span: f64) -> f64 {
    const SECONDS: [f64; 14] = [
        1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 10_800.0, 21_600.0,
        43_200.0, 86_400.0,
    ];
    let wanted = (span / 4.0).max(1e-9);
    let round = || {
        let ten = 10f64.powf(wanted.log10().floor());
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * ten).find(|step| *step >= wanted)
    };
    let fitting = match unit {
        // Most tests take milliseconds. A line at zero has a step of 1 s.
        Unit::Seconds if (1e-6..=0.5).contains(&wanted) => round().map(|step| step.max(0.001)),
        Unit::Seconds => SECONDS.into_iter().find(|step| *step >= wanted).or_else(round),
        Unit::Share => round().map(|step| step.max(0.01)),
        Unit::Count => round().map(|step| step.max(1.0)),
    };
    fitting.unwrap_or(wanted)
}

fn mark(class: &str, x: f64, y: f64) -> Markup {
    html! {
        @match class {
            "a" => circle.a cx=(x) cy=(y) r="3" {},
            "b" => rect.b x=(round(x - 3.0)) y=(round(y - 3.0)) width="6" height="6" {},
            "c" => polygon.c points=(format!("{x},{} {},{} {},{}", round(y - 4.0), round(x - 4.0), round(y + 3.0), round(x + 4.0), round(y + 3.0))) {},
            _ => polygon.d points=(format!("{x},{} {},{y} {x},{} {},{y}", round(y - 4.0), round(x + 4.0), round(y + 4.0), round(x - 4.0))) {},
        }
    }
}

/// Whether no line leads to a value.
fn is_alone(values: &[Option<f64>], n: usize) -> bool {
    let known = |at: usize| values.get(at).copied().flatten().is_some();
    !known(n + 1) && !n.checked_sub(1).is_some_and(known)
}

/// Consecutive times with a value. One without is a gap, not a zero.
fn parts(values: &[Option<f64>]) -> Vec<Vec<(usize, f64)>> {
    let mut parts = vec![vec![]];
    for (n, value) in values.iter().enumerate() {
        match (value, parts.last_mut()) {
            (Some(value), Some(part)) => part.push((n, *value)),
            _ => parts.push(vec![]),
        }
    }
    parts.retain(|part| part.len() > 1);
    parts
}

fn points(part: &[(usize, f64)], x: &dyn Fn(usize) -> f64, y: &dyn Fn(f64) -> f64) -> String {
    let points = part.iter().map(|(n, value)| format!("{},{}", x(*n), y(*value)));
    points.collect::<Vec<_>>().join(" ")
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(unit: Unit, values: &[f64]) -> Plot {
        let lines = vec![PlotLine {
            name: "P50 <b>".to_owned(),
            values: values.iter().copied().map(Some).collect(),
        }];
        let times = (0..values.len()).map(|n| format!("day {n}")).collect();
        Plot { title: "Queue".to_owned(), unit, times, hours: vec![], lines }
    }

    #[test]
    fn axis_is_fitted_to_the_data_and_its_range_is_written() {
        for (unit, values, range) in [
            (Unit::Share, vec![0.91, 0.97], "90 % to 100 %"),
            (Unit::Share, vec![0.0, 0.02], "0 % to 2 %"),
            (Unit::Share, vec![1.0, 1.0], "90 % to 100 %"),
            (Unit::Seconds, vec![30.0, 4000.0], "0 s to 90 min"),
            (Unit::Seconds, vec![3000.0, 3300.0], "50 min to 55 min"),
            (Unit::Seconds, vec![0.004, 0.011], "0 s to 12 ms"),
            (Unit::Seconds, vec![2.1, 2.4], "2 s to 2.4 s"),
            (Unit::Seconds, vec![0.0, 0.0], "0 s to 1 s"),
            (Unit::Count, vec![3.0], "3 to 4"),
            (Unit::Count, vec![0.0, 0.0], "0 to 1"),
        ] {
            let page = plot(unit, &values).markup().into_string();
            let found = page.split("class=\"detail\">").nth(1).unwrap().split('<').next().unwrap();
            assert_eq!(found, range, "{values:?}");
            assert!(page.contains("P50 &lt;b&gt;") && !page.contains("NaN"), "{page}");
        }
    }

    #[test]
    fn each_line_of_the_axis_has_its_own_value() {
        for (seconds, middle) in [(vec![13.5, 15.9], "14.5 s"), (vec![0.004, 0.011], "6 ms")] {
            let page = plot(Unit::Seconds, &seconds).markup().into_string();
            let ticks: Vec<_> = page.split("text-anchor=\"end\">").skip(1).collect();
            assert!(ticks[1].starts_with(middle), "{middle}: {ticks:?}");
        }
    }

    #[test]
    fn a_single_value_has_a_mark_and_a_gap_is_no_zero() {
        let one = plot(Unit::Count, &[3.0]).markup().into_string();
        assert!(one.contains("<circle") && one.contains("day 0 UTC: P50"), "{one}");
        let mut gap = plot(Unit::Count, &[1.0, 2.0, 3.0, 4.0, 5.0]);
        gap.lines[0].values[2] = None;
        let page = gap.markup().into_string();
        assert_eq!(page.matches("<polyline").count(), 3, "the key, and a line on each side");
        assert!(page.contains("day 2 UTC: P50 &lt;b&gt; no data"), "{page}");
        gap.lines[0].values = vec![None; 5];
        assert!(gap.markup().into_string().contains("no data in this span"));
    }
}
