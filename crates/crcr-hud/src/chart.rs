//! Charts as SVG. The style sheet has the colours; the `aria-label` says the same in words.

use maud::{Markup, html};

use crate::layout::percent;
use crate::model::TrendDay;
use crate::plot::{HOUR, Plot, PlotLine, Unit};

/// A chart of how many jobs passed and how available the backend was, by day.
pub(crate) fn shares(title: &str, days: &[TrendDay]) -> Markup {
    let line = |name: &str, of: fn(&TrendDay) -> Option<f64>| PlotLine {
        name: name.to_owned(),
        values: days.iter().map(of).collect(),
    };
    let lines = vec![
        line("CI job pass", |day| day.job_pass.value()),
        line("availability", |day| day.availability.value()),
    ];
    plot(title, Unit::Share, days, lines)
}

/// Durations over days, in seconds.
pub(crate) fn durations(
    title: &str,
    days: &[TrendDay],
    p50: impl Fn(&TrendDay) -> Option<f64>,
    p95: impl Fn(&TrendDay) -> Option<f64>,
) -> Markup {
    let lines = vec![
        PlotLine { name: "P50".to_owned(), values: days.iter().map(p50).collect() },
        PlotLine { name: "P95".to_owned(), values: days.iter().map(p95).collect() },
    ];
    plot(title, Unit::Seconds, days, lines)
}

fn plot(title: &str, unit: Unit, days: &[TrendDay], lines: Vec<PlotLine>) -> Markup {
    let time = |day: &TrendDay| match day.hour {
        Some(hour) => hour.strftime(HOUR).to_string(),
        None => day.date.to_string(),
    };
    let (times, hours) =
        (days.iter().map(time).collect(), days.iter().filter_map(|day| day.hour).collect());
    Plot { title: title.to_owned(), unit, times, hours, lines }.markup()
}

/// A small line for a table, with its range beside it.
pub(crate) fn sparkline(days: &[TrendDay]) -> Markup {
    let values: Vec<_> = days.iter().map(|day| day.job_pass.value()).collect();
    let step = 100.0 / (days.len().max(2) - 1) as f64;
    let lowest = values.iter().copied().flatten().reduce(f64::min);
    let (Some(lowest), Some(last)) = (lowest, values.iter().copied().flatten().last()) else {
        return html! { span.muted { "no data" } };
    };
    let low = ((lowest * 10.0).floor() / 10.0).min(0.9);
    let range = format!("{} to 100 %", percent(low));
    let words = format!("{range}, last {}", percent(last));
    html! {
        svg.spark viewBox="0 0 104 24" role="img" aria-label=(words) {
            title { (words) }
            @for segment in segments(&values) {
                polyline.a points=(points(&segment, &|n| 2.0 + step * n as f64, &|v| 2.0 + (1.0 - v) / (1.0 - low) * 20.0)) {}
            }
        }
        span.detail { (range) }
    }
}

/// Consecutive days with a value. A day without one is a gap, not a zero.
fn segments(values: &[Option<f64>]) -> Vec<Vec<(usize, f64)>> {
    let mut segments = vec![vec![]];
    for (n, value) in values.iter().enumerate() {
        match value {
            Some(value) => segments.last_mut().expect("never empty").push((n, *value)),
            None => segments.push(vec![]),
        }
    }
    segments.retain(|segment| !segment.is_empty());
    // A line needs two points, so a single day is drawn twice.
    for segment in &mut segments {
        if let [only] = segment[..] {
            segment.push(only);
        }
    }
    segments
}

fn points(segment: &[(usize, f64)], x: &dyn Fn(usize) -> f64, y: &dyn Fn(f64) -> f64) -> String {
    segment
        .iter()
        .map(|(n, value)| format!("{},{}", round(x(*n)), round(y(*value))))
        .collect::<Vec<_>>()
        .join(" ")
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
