//! Facts as rows of tables, and back: the fact's own JSON, with times as numbers, lists as texts
//! and the columns that make keys and versions.

use crcr_domain::facts::Fact;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::results::callback_id;

/// A table.
pub(super) struct Table {
    pub(super) name: &'static str,
    /// The column that windows ask for.
    pub(super) time: &'static str,
    /// What makes two rows the same one.
    key: &'static str,
    /// Every column that is a field of the fact.
    columns: &'static str,
    /// Fields that are empty in the table where the fact has none.
    never_null: &'static [&'static str],
    /// The newest row has the greatest.
    version: &'static str,
}

pub(super) static DISPATCH: Table = Table {
    name: "crcr_dispatch",
    time: "enqueued_at",
    key: "repo_key, delivery",
    columns: "at, delivery, upstream, pull_request, head_sha, event, repo, level, labels, \
              enqueued_at, sent_at, status, superseded_by, tries, last_error, base_sha",
    never_null: &[],
    version: "version",
};

pub(super) static ATTEMPT: Table = Table {
    name: "crcr_attempt",
    time: "dispatched_at",
    key: "repo_key, delivery, workflow, job, run_id, run_attempt, check_run_id",
    columns: "received_at, dispatched_at, repo, delivery, workflow, job, run_id, run_attempt, \
              check_run_id, state, start_unknown, phase, queue_ms, execution_ms, started_at, \
              completed_at, tests, failed_tests, url, artifact_url, environment, level, event, \
              upstream, pull_request, head_sha",
    never_null: &["job", "check_run_id"],
    version: "version",
};

pub(super) static CALLBACK: Table = Table {
    name: "crcr_callback",
    time: "at",
    key: "at, id",
    columns: "at, repo, delivery, run_id, job, status, conclusion, outcome, answer, detail, \
              latency_us",
    never_null: &[],
    version: "id",
};

pub(super) static TABLES: [&Table; 3] = [&DISPATCH, &ATTEMPT, &CALLBACK];

/// Fields that are times, in either table.
const TIMES: [&str; 7] =
    ["at", "enqueued_at", "sent_at", "received_at", "dispatched_at", "started_at", "completed_at"];
/// Fields that are lists or objects: texts of JSON in the table.
const NESTED: [&str; 4] = ["labels", "state", "tests", "failed_tests"];
/// Fields in seconds or milliseconds, and their columns in thousandths of that: old servers read
/// fractions inexactly.
const THOUSANDTHS: [(&str, &str); 3] = [
    ("queue_seconds", "queue_ms"),
    ("execution_seconds", "execution_ms"),
    ("latency_ms", "latency_us"),
];

impl Table {
    /// The query for the rows that hold, of those that `condition` names.
    ///
    /// The condition may only name columns that are the same in every version of a row.
    pub(super) fn select(&self, condition: &str) -> String {
        let Self { name, columns, key, version, .. } = self;
        format!(
            "SELECT {columns} FROM {name} WHERE {condition} \
             ORDER BY {version} DESC LIMIT 1 BY {key} FORMAT JSONEachRow"
        )
    }

    /// The rows of those of `facts` that belong here, one a line.
    pub(super) fn write(&self, facts: &[Fact]) -> Vec<u8> {
        let mut lines = Vec::new();
        for fact in facts {
            let row = match fact {
                Fact::Dispatch(fact) if self.name == DISPATCH.name => {
                    let mut row = self.row(fact);
                    let (at, rank) = fact.version();
                    row.insert("repo_key".to_owned(), json!(fact.repo.to_ascii_lowercase()));
                    row.insert(
                        "upstream_key".to_owned(),
                        json!(fact.upstream.to_ascii_lowercase()),
                    );
                    row.insert("version".to_owned(), json!((at.max(0) << 3) | i64::from(rank)));
                    row
                }
                Fact::Attempt(fact) if self.name == ATTEMPT.name => {
                    let mut row = self.row(fact);
                    let (_, rank, received) = fact.version();
                    let version = (i64::from(rank) << 48) | received.as_millisecond().max(0);
                    row.insert("repo_key".to_owned(), json!(fact.repo.to_ascii_lowercase()));
                    row.insert(
                        "upstream_key".to_owned(),
                        json!(fact.upstream.to_ascii_lowercase()),
                    );
                    row.insert("version".to_owned(), json!(version));
                    row.insert("status".to_owned(), json!(fact.state.status()));
                    row.insert(
                        "conclusion".to_owned(),
                        json!(fact.state.conclusion().map(|conclusion| conclusion.as_str())),
                    );
                    row
                }
                Fact::Callback(fact) if self.name == CALLBACK.name => {
                    let mut row = self.row(fact);
                    let repo = fact.repo.as_deref().unwrap_or_default().to_ascii_lowercase();
                    row.insert("repo_key".to_owned(), json!(repo));
                    row.insert("id".to_owned(), json!(callback_id(fact)));
                    row
                }
                _ => continue,
            };
            serde_json::to_writer(&mut lines, &row).expect("a Vec takes all bytes");
            lines.push(b'\n');
        }
        lines
    }

    fn row<T: Serialize>(&self, fact: &T) -> Map<String, Value> {
        let Value::Object(fields) = serde_json::to_value(fact).expect("facts are always JSON")
        else {
            return Map::new();
        };
        fields
            .into_iter()
            .map(|(name, value)| {
                let name = name.as_str();
                if TIMES.contains(&name) {
                    let time = value.as_str().and_then(|text| text.parse::<Timestamp>().ok());
                    (name.to_owned(), json!(time.map(Timestamp::as_millisecond)))
                } else if NESTED.contains(&name) {
                    let text = (!value.is_null()).then(|| value.to_string());
                    (name.to_owned(), json!(text))
                } else if let Some((_, column)) = THOUSANDTHS.iter().find(|(of, _)| *of == name) {
                    let number = value.as_f64().map(|number| (number * 1000.0).round() as i64);
                    ((*column).to_owned(), json!(number))
                } else if self.never_null.contains(&name) && value.is_null() {
                    (name.to_owned(), json!(""))
                } else {
                    (name.to_owned(), value)
                }
            })
            .collect()
    }

    /// The facts of an answer; the error says what can't be read.
    pub(super) fn read<T: DeserializeOwned>(&self, answer: &[u8]) -> Result<Vec<T>, String> {
        serde_json::Deserializer::from_slice(answer)
            .into_iter::<Map<String, Value>>()
            .map(|row| {
                let fact = row.and_then(|row| serde_json::from_value(self.fact(row)));
                fact.map_err(|error| error.to_string())
            })
            .collect()
    }

    fn fact(&self, row: Map<String, Value>) -> Value {
        let fields = row.into_iter().map(|(name, value)| {
            if TIMES.contains(&name.as_str()) {
                let time = value.as_i64().and_then(|at| Timestamp::from_millisecond(at).ok());
                return (name, json!(time));
            }
            if NESTED.contains(&name.as_str()) {
                let nested = value.as_str().and_then(|text| serde_json::from_str(text).ok());
                return (name, nested.unwrap_or(Value::Null));
            }
            if let Some((field, _)) = THOUSANDTHS.iter().find(|(_, column)| *column == name) {
                return ((*field).to_owned(), json!(value.as_i64().map(|n| n as f64 / 1000.0)));
            }
            if name == "start_unknown" {
                return (name, json!(value.as_u64() == Some(1)));
            }
            if self.never_null.contains(&name.as_str()) && value == "" {
                return (name, Value::Null);
            }
            (name, value)
        });
        Value::Object(fields.collect())
    }
}
