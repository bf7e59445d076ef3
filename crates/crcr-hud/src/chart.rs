//! Charts as SVG. The style sheet has the colours; the `aria-label` says the same in words.

use maud::{Markup, html};

use crate::model::TrendDay;
use crate::pages::repository::BackendModel;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 190.0;
const LEFT: f64 = 74.0;
const BOTTOM: f64 = 28.0;
const TOP: f64 = 8.0;

pub(super) struct ChartLine {
    pub(super) name: &'static str,
    /// CSS class: `a` or `b`.
    pub(super) class: &'static str,
    pub(super) values: Vec<Option<f64>>,
}

/// Shares over days, 0 to 100 %.
pub(super) fn shares(title: &str, days: &[TrendDay]) -> Markup {
    let lines = [
        ChartLine {
            name: "CI job pass",
            class: "a",
            values: days.iter().map(|day| day.job_pass.value()).collect(),
        },
        ChartLine {
            name: "availability",
            class: "b",
            values: days.iter().map(|day| day.availability.value()).collect(),
        },
    ];
    chart(title, days, &lines, 1.0, |share| format!("{:.0} %", share * 100.0))
}

/// Durations over days, in seconds.
pub(super) fn durations(
    title: &str,
    days: &[TrendDay],
    p50: impl Fn(&TrendDay) -> Option<f64>,
    p95: impl Fn(&TrendDay) -> Option<f64>,
) -> Markup {
    let lines = [
        ChartLine { name: "P50", class: "a", values: days.iter().map(p50).collect() },
        ChartLine { name: "P95", class: "b", values: days.iter().map(p95).collect() },
    ];
    let top = lines.iter().flat_map(|line| &line.values).flatten().fold(0.0_f64, |a, b| a.max(*b));
    chart(title, days, &lines, round_up(top), crate::layout::duration)
}

/// The next round duration for the top of an axis, in seconds.
fn round_up(seconds: f64) -> f64 {
    const STEPS: [f64; 12] = [
        10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 10_800.0, 21_600.0, 43_200.0,
        86_400.0,
    ];
    STEPS
        .into_iter()
        .find(|step| *step >= seconds)
        .unwrap_or_else(|| (seconds / 86_400.0).ceil() * 86_400.0)
}

fn chart(
    title: &str,
    days: &[TrendDay],
    lines: &[ChartLine],
    top: f64,
    label: impl Fn(f64) -> String,
) -> Markup {
    let step = (WIDTH - LEFT - 8.0) / (days.len().max(2) - 1) as f64;
    let x = |n: usize| LEFT + step * n as f64;
    let y = |value: f64| TOP + (1.0 - value / top) * (HEIGHT - TOP - BOTTOM);
    let known = lines.iter().any(|line| line.values.iter().any(Option::is_some));
    html! {
        figure.chart {
            figcaption {
                (title)
                @if known {
                    @for line in lines { span.key.(line.class) { (line.name) } }
                } @else { span.muted { "no data in this span" } }
            }
            @if known {
                svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(describe(title, lines, &label)) {
                    @for share in [0.0, 0.5, 1.0] {
                        line.grid x1=(LEFT) x2=(WIDTH - 8.0) y1=(y(share * top)) y2=(y(share * top)) {}
                        text.axis x=(LEFT - 6.0) y=(y(share * top) + 6.0) text-anchor="end" { (label(share * top)) }
                    }
                    @if let (Some(first), Some(last)) = (days.first(), days.last()) {
                        text.axis x=(LEFT) y=(HEIGHT - 4.0) { (first.date) }
                        text.axis x=(WIDTH - 8.0) y=(HEIGHT - 4.0) text-anchor="end" { (last.date) }
                    }
                    @for line in lines {
                        @for segment in segments(&line.values) {
                            polyline.(line.class) points=(points(&segment, &x, &y)) {}
                        }
                        @for (n, value) in line.values.iter().enumerate() {
                            @if let Some(value) = value {
                                circle.(line.class) cx=(round(x(n))) cy=(round(y(*value))) r="2.5" {
                                    title { (days[n].date) ": " (line.name) " " (label(*value)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A small line without axes, for a table.
pub(super) fn sparkline(days: &[TrendDay]) -> Markup {
    let values: Vec<_> = days.iter().map(|day| day.job_pass.value()).collect();
    let step = 100.0 / (days.len().max(2) - 1) as f64;
    html! {
        svg.spark viewBox="0 0 104 24" aria-hidden="true" {
            @for segment in segments(&values) {
                polyline.a points=(points(&segment, &|n| 2.0 + step * n as f64, &|v| 2.0 + (1.0 - v) * 20.0)) {}
            }
        }
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

fn describe(title: &str, lines: &[ChartLine], label: &impl Fn(f64) -> String) -> String {
    let parts: Vec<_> = lines
        .iter()
        .filter_map(|line| {
            let last = line.values.iter().rev().flatten().next()?;
            Some(format!("{} last {}", line.name, label(*last)))
        })
        .collect();
    format!("{title}: {}", parts.join(", "))
}

/// A badge for a README: level and pass rate.
pub(super) fn badge(model: &BackendModel) -> Markup {
    let level = model.level.map_or("not listed", |level| level.as_str());
    let rate = model.worth.job_pass;
    let text = match rate.value.filter(|_| rate.known) {
        Some(share) => format!("{level} · {:.0} % pass", share * 100.0),
        None => format!("{level} · unknown"),
    };
    let color = match rate.value.filter(|_| rate.known) {
        Some(share) if share > 0.9 => "#1a7f37",
        Some(_) => "#cf222e",
        None => "#6e7781",
    };
    let width = 40 + 7 * text.chars().count();
    html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(width) height="20" role="img" aria-label=(format!("crcr: {text}")) {
            title { "crcr: " (text) }
            rect width="36" height="20" fill="#444" {}
            rect x="36" width=(width - 36) height="20" fill=(color) {}
            g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" {
                text x="6" y="14" { "crcr" }
                text x="42" y="14" { (text) }
            }
        }
    }
}
