//! Traces for OpenTelemetry: one for each delivery, with the webhook, its dispatches, their jobs and the
//! jobs' reports.
//!
//! The ids of traces and spans are computed from the delivery, so that every relay of a store adds to the
//! same trace, and nothing has to be kept. A span is sent when what it describes is over.
//!
//! Attributes: <https://opentelemetry.io/docs/specs/semconv/cicd/cicd-spans/>,
//! <https://opentelemetry.io/docs/specs/semconv/registry/attributes/vcs/>

use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use crcr_domain::RepoName;
use crcr_domain::checks::lifecycle::{Conclusion, JobState};
use crcr_domain::protocol::callback::JobId;
use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use jiff::Timestamp;
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanData, SpanProcessor as _};
use secrecy::{ExposeSecret as _, SecretString};

use crate::state_records::{DeliveryRecord, JobRecord};

/// Sends spans in batches, from a thread of its own. A collector that is away costs its spans only.
#[derive(Debug, Default)]
pub struct Traces(Option<BatchSpanProcessor>);

/// What a span describes; its id follows from it.
enum SpanSubject<'a> {
    Webhook,
    /// The dispatch that reached this backend, of which there is one.
    SentDispatch(&'a RepoName),
    /// A dispatch that ended otherwise. An operator may have it sent again.
    UnsentDispatch(&'a Dispatch),
    Job(&'a RepoName, &'a JobId),
    Report(&'a RepoName, &'a JobRecord),
}

impl SpanSubject<'_> {
    fn id(&self, delivery: &str) -> SpanId {
        let text = match self {
            Self::Webhook => "webhook".to_owned(),
            Self::SentDispatch(repo) => format!("dispatch\n{repo}"),
            Self::UnsentDispatch(Dispatch { repo, tries, .. }) => {
                format!("dispatch\n{repo}\n{tries}")
            }
            Self::Job(repo, job) => format!("job\n{repo}\n{job}"),
            Self::Report(repo, job) => {
                format!("report\n{repo}\n{}\n{}", job.id, job.state.status())
            }
        };
        SpanId::from_bytes(first_bytes(&format!("{delivery}\n{text}")))
    }

    fn parent(&self) -> Option<Self> {
        match self {
            Self::Webhook => None,
            Self::SentDispatch(_) | Self::UnsentDispatch(_) => Some(Self::Webhook),
            Self::Job(repo, _) => Some(Self::SentDispatch(repo)),
            Self::Report(repo, job) => Some(Self::Job(repo, &job.id)),
        }
    }
}

impl Traces {
    /// Sends to the collector that OpenTelemetry's environment variables name, which the library reads.
    /// It doesn't read the files and the secret store that `headers` may come from. `service_name` is the value of
    /// `OTEL_SERVICE_NAME`.
    pub fn from_env(
        service_name: Option<&str>,
        headers: &[(String, SecretString)],
    ) -> Result<Self, ExporterBuildError> {
        let exposed = |(name, value): &(String, SecretString)| {
            (name.clone(), value.expose_secret().to_owned())
        };
        let headers = headers.iter().map(exposed).collect();
        let exporter = SpanExporter::builder().with_http().with_headers(headers).build()?;
        let mut processor = BatchSpanProcessor::builder(exporter).build();
        let named = |name: &str| KeyValue::new("service.name", name.to_owned());
        let resource = Resource::builder_empty()
            .with_attributes([
                named("crcr-relay"),
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            ])
            .with_detector(Box::new(EnvResourceDetector::new()))
            .with_attributes(service_name.map(named));
        processor.set_resource(&resource.build());
        Ok(Self(Some(processor)))
    }

    /// Sends what is left. Blocks for at most five seconds.
    pub fn flush(&self) {
        if let Some(processor) = &self.0
            && let Err(error) = processor.force_flush()
        {
            tracing::warn!(%error, "spans couldn't be sent");
        }
    }

    pub(crate) fn webhook_accepted(&self, delivery: &DeliveryRecord, ended_at: Timestamp) {
        self.send(&delivery.id, &SpanSubject::Webhook, || SpanContent {
            name: format!("webhook {}", delivery.event),
            kind: SpanKind::Server,
            from: delivery.received_at,
            to: ended_at,
            status: Status::Unset,
            attributes: vec![
                KeyValue::new("vcs.provider.name", "github"),
                KeyValue::new("vcs.ref.head.revision", delivery.head_sha.clone()),
                KeyValue::new("crcr.dispatches", delivery.targets.len() as i64),
            ]
            .into_iter()
            .chain(delivery.pull_request.map(change_id))
            .collect(),
        });
    }

    /// `dispatch` was sent, or won't be unless an operator asks for it.
    pub(crate) fn dispatch_ended(&self, dispatch: &Dispatch, ended_at: Timestamp) {
        let subject = match dispatch.status {
            DispatchStatus::Sent { .. } => SpanSubject::SentDispatch(&dispatch.repo),
            _ => SpanSubject::UnsentDispatch(dispatch),
        };
        self.send(&dispatch.delivery, &subject, || SpanContent {
            name: format!("dispatch {}", dispatch.repo),
            kind: SpanKind::Client,
            from: dispatch.enqueued_at,
            to: ended_at,
            status: match dispatch.status {
                DispatchStatus::Sent { .. } | DispatchStatus::Superseded { .. } => Status::Unset,
                _ => Status::error(dispatch.last_error.clone().unwrap_or_default()),
            },
            attributes: vec![
                KeyValue::new("vcs.repository.name", dispatch.repo.to_string()),
                KeyValue::new("crcr.level", dispatch.level.to_string()),
                KeyValue::new("crcr.dispatch.status", dispatch.status.as_str()),
                KeyValue::new("crcr.dispatch.tries", i64::from(dispatch.tries)),
            ],
        });
    }

    /// The report of a job was recorded; with its last one, the job is over.
    pub(crate) fn report_recorded(
        &self,
        dispatch: &Dispatch,
        job: &JobRecord,
        received_at: Timestamp,
        ended_at: Timestamp,
    ) {
        self.send(&dispatch.delivery, &SpanSubject::Report(&dispatch.repo, job), || SpanContent {
            name: format!("report {}", job.state.status()),
            kind: SpanKind::Server,
            from: received_at,
            to: ended_at,
            status: Status::Unset,
            attributes: job_attributes(dispatch, job),
        });
        self.job_ended(dispatch, job);
    }

    /// Sends nothing while the job is running.
    pub(crate) fn job_ended(&self, dispatch: &Dispatch, job: &JobRecord) {
        let Some(ended_at) = job.ended_at else { return };
        let result = job_result(job.state);
        self.send(&dispatch.delivery, &SpanSubject::Job(&dispatch.repo, &job.id), || SpanContent {
            name: job.id.job.clone().unwrap_or_else(|| format!("RUN {}", job.id.workflow)),
            // As the conventions want it for a task, and for a whole run.
            kind: if job.id.job.is_some() { SpanKind::Internal } else { SpanKind::Server },
            from: job.started_at.or(job.details.started_at).unwrap_or(ended_at).min(ended_at),
            to: ended_at,
            status: match result {
                "failure" | "error" | "timeout" => Status::error(result),
                _ => Status::Unset,
            },
            attributes: job_attributes(dispatch, job),
        });
    }

    fn send(
        &self,
        delivery: &str,
        subject: &SpanSubject<'_>,
        content: impl FnOnce() -> SpanContent,
    ) {
        let Some(processor) = &self.0 else { return };
        let content = content();
        let parent = subject.parent().map_or(SpanId::INVALID, |parent| parent.id(delivery));
        processor.on_end(SpanData {
            span_context: SpanContext::new(
                TraceId::from_bytes(first_bytes(delivery)),
                subject.id(delivery),
                TraceFlags::SAMPLED,
                false,
                TraceState::default(),
            ),
            parent_span_id: parent,
            parent_span_is_remote: false,
            span_kind: content.kind,
            name: content.name.into(),
            start_time: SystemTime::from(content.from),
            end_time: SystemTime::from(content.to),
            attributes: content
                .attributes
                .into_iter()
                .chain([KeyValue::new("crcr.delivery", delivery.to_owned())])
                .collect(),
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: content.status,
            instrumentation_scope: InstrumentationScope::builder("crcr-relay").build(),
        });
    }
}

struct SpanContent {
    name: String,
    kind: SpanKind,
    from: Timestamp,
    to: Timestamp,
    status: Status,
    attributes: Vec<KeyValue>,
}

fn job_attributes(dispatch: &Dispatch, job: &JobRecord) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new("vcs.repository.name", dispatch.repo.to_string()),
        KeyValue::new("vcs.ref.head.revision", dispatch.head_sha.clone()),
        KeyValue::new("cicd.pipeline.name", job.id.workflow.clone()),
        KeyValue::new("cicd.pipeline.run.id", job.id.run_id.clone()),
        KeyValue::new("crcr.run.attempt", i64::from(job.id.run_attempt)),
    ];
    attributes.extend(dispatch.pull_request.map(change_id));
    attributes.extend(
        job.details.url.clone().map(|url| KeyValue::new("cicd.pipeline.run.url.full", url)),
    );
    let result = (!job.state.is_open()).then(|| job_result(job.state));
    let (name, key) = match &job.id.job {
        Some(name) => (Some(name.clone()), "cicd.pipeline.task.run.result"),
        None => (None, "cicd.pipeline.result"),
    };
    attributes.extend(name.map(|name| KeyValue::new("cicd.pipeline.task.name", name)));
    attributes.extend(result.map(|result| KeyValue::new(key, result)));
    attributes
}

fn change_id(pull_request: u64) -> KeyValue {
    KeyValue::new("vcs.change.id", pull_request.to_string())
}

/// As the conventions name it.
fn job_result(state: JobState) -> &'static str {
    match state {
        JobState::Completed(conclusion) => match conclusion {
            Conclusion::Success => "success",
            Conclusion::Failure => "failure",
            Conclusion::TimedOut => "timeout",
            Conclusion::Cancelled => "cancellation",
            Conclusion::Skipped => "skip",
            Conclusion::Neutral
            | Conclusion::ActionRequired
            | Conclusion::Stale
            | Conclusion::StartupFailure => "error",
        },
        JobState::Dispatched | JobState::InProgress | JobState::NeverStarted | JobState::Lost => {
            "timeout"
        }
    }
}

fn first_bytes<const N: usize>(text: &str) -> [u8; N] {
    let hash = digest(&SHA256, text.as_bytes());
    *hash.as_ref().first_chunk().expect("a hash has 32 bytes")
}
