//! Metrics of the server itself: its build, its requests and its process.

use std::time::{Duration, Instant, SystemTime};

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::metrics::NamedLabels;
use crate::relay::Relay;

pub(crate) struct ServerMetrics {
    requests: Family<NamedLabels, Counter>,
    seconds: Family<NamedLabels, Histogram, fn() -> Histogram>,
}

impl ServerMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let build = vec![
            ("version", env!("CARGO_PKG_VERSION")),
            ("os", std::env::consts::OS),
            ("arch", std::env::consts::ARCH),
        ];
        registry.register("build", "Which crcr this is", Info::new(build));
        let requests = Family::<NamedLabels, Counter>::default();
        let help = "Requests that were answered, by route, method and status";
        registry.register("http_requests", help, requests.clone());
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 4.0, 8));
        let seconds = Family::new_with_constructor(histogram);
        registry.register("http_request_seconds", "Seconds to answer a request", seconds.clone());
        Self { requests, seconds }
    }

    pub(crate) fn answered(&self, route: &str, method: &Method, status: u16, took: Duration) {
        // Strangers choose method and path, and must not make new series.
        let method = match *method {
            Method::GET | Method::HEAD | Method::POST | Method::OPTIONS => method.as_str(),
            _ => "other",
        };
        let route = ("route", route.to_owned());
        self.seconds.get_or_create(&vec![route.clone()]).observe(took.as_secs_f64());
        let labels = vec![route, ("method", method.to_owned()), ("status", status.to_string())];
        self.requests.get_or_create(&labels).inc();
    }
}

/// Middleware that counts every request. What matches no route is `other`.
pub(crate) async fn count_request(
    State(relay): State<std::sync::Arc<Relay>>,
    request: Request,
    next: Next,
) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let (method, began) = (request.method().clone(), Instant::now());
    let response = next.run(request).await;
    let route = route.as_ref().map_or("other", MatchedPath::as_str);
    let status = response.status().as_u16();
    relay.metrics.server.answered(route, &method, status, began.elapsed());
    response
}

/// The metrics that Prometheus's own libraries have of every process, by the same names.
#[derive(Debug)]
pub(crate) struct ProcessMetrics {
    started_at: SystemTime,
}

impl ProcessMetrics {
    pub(crate) fn new() -> Self {
        Self { started_at: SystemTime::now() }
    }
}

/// What the system says of this process. A value that it doesn't tell is left out.
#[derive(Debug, Default)]
struct ProcessState {
    cpu_seconds: Option<f64>,
    resident_bytes: Option<u64>,
    open_files: Option<u64>,
    max_files: Option<u64>,
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut gauge = |name: &str, help: &str, value: Option<f64>| match value {
            None => Ok(()),
            Some(value) => {
                let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(metric)
            }
        };
        let state = process_state();
        let started = self.started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let bytes = |value: Option<u64>| value.map(|value| value as f64);
        gauge(
            "process_start_time_seconds",
            "Unix time at which the process started",
            Some(started.as_secs_f64()),
        )?;
        gauge("process_resident_memory_bytes", "Memory in use", bytes(state.resident_bytes))?;
        gauge("process_open_fds", "Open files and connections", bytes(state.open_files))?;
        gauge("process_max_fds", "How many may be open", bytes(state.max_files))?;
        if let Some(cpu) = state.cpu_seconds {
            let help = "Processor time used";
            let metric = encoder.encode_descriptor(
                "process_cpu_seconds",
                help,
                None,
                MetricType::Counter,
            )?;
            ConstCounter::new(cpu).encode(metric)?;
        }
        Ok(())
    }
}

/// From `/proc/self`, which a service with `ProcSubset=pid` has, too.
#[cfg(target_os = "linux")]
fn process_state() -> ProcessState {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).ok();
    let max_files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    ProcessState {
        cpu_seconds: read("stat").as_deref().and_then(cpu_seconds),
        resident_bytes: read("status").as_deref().and_then(resident_bytes),
        open_files: std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as u64),
        max_files,
    }
}

#[cfg(not(target_os = "linux"))]
fn process_state() -> ProcessState {
    ProcessState::default()
}

/// User and system time, fields 14 and 15 of `/proc/PID/stat`, in hundredths of a second. The second field
/// is the program's name in parentheses and can contain spaces.
#[cfg(any(target_os = "linux", test))]
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / 100.0)
}

#[cfg(any(target_os = "linux", test))]
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_files_of_linux_are_understood() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 9 0 5 1 2 3";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(resident_bytes("Name:\tcrcr\nVmRSS:\t   2048 kB\n"), Some(2 << 20));
        assert_eq!((cpu_seconds(""), resident_bytes("")), (None, None));
    }
}
