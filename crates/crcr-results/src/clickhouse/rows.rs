//! Converts facts to rows of ClickHouse tables and back.
//!
//! A row is the fact's JSON with times as numbers and lists as JSON text, plus the columns of the key
//! and of the version.

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::Level;
use crcr_domain::facts::{
    AttemptFact, CallbackFact, CallbackOutcome, DispatchFact, DispatchFactStatus, Fact,
    MergeBaseFact,
};
use crcr_domain::proof::MissingProof;
use crcr_store::callback_id;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::ReportOutcome;
use crate::retention::day_of;

/// A table whose rows are facts.
pub(super) struct FactTable<T> {
    pub(super) name: &'static str,
    /// The time by which a window selects rows.
    pub(super) time: &'static str,
    /// The columns that identify a fact: two rows with the same key are versions of one fact.
    pub(super) key: &'static str,
    /// The columns that `read` expects, in this order.
    pub(super) columns: &'static str,
    /// Of the rows with one key, the row with the highest value in this column wins.
    version: &'static str,
    pub(super) read: fn(&mut RowReader<'_>) -> Result<T, String>,
}

pub(super) static DISPATCH: FactTable<DispatchFact> = FactTable {
    name: "crcr_dispatch",
    time: "enqueued_at",
    key: "repo_key, delivery",
    columns: "at, delivery, upstream, pull_request, head_sha, event, repo, level, labels, \
               enqueued_at, sent_at, status, superseded_by, tries, last_error",
    version: "version",
    read: |row| {
        Ok(DispatchFact {
            at: row.time()?,
            delivery: row.text()?,
            upstream: row.text()?,
            pull_request: row.nullable(RowReader::integer)?.map(i64::cast_unsigned),
            head_sha: row.text()?,
            event: row.text()?.into(),
            repo: row.text()?,
            level: row.level()?,
            labels: row.json()?,
            enqueued_at: row.time()?,
            sent_at: row.nullable(RowReader::time)?,
            status: row.dispatch_status()?,
            superseded_by: row.nullable(RowReader::text)?,
            tries: row.u32()?,
            last_error: row.nullable(RowReader::text)?,
        })
    },
};

pub(super) static ATTEMPT: FactTable<AttemptFact> = FactTable {
    name: "crcr_attempt",
    time: "dispatched_at",
    key: "repo_key, delivery, workflow, job, run_id, run_attempt, check_run_id",
    columns: "received_at, dispatched_at, repo, delivery, workflow, job, run_id, run_attempt, \
              check_run_id, state, start_unknown, phase, queue_ms, execution_ms, started_at, \
              completed_at, tests, failed_tests, url, artifact_url, environment, missing_proof, \
              level, event, upstream, pull_request, head_sha, triage, warnings",
    version: "version",
    read: |row| {
        Ok(AttemptFact {
            received_at: row.time()?,
            dispatched_at: row.time()?,
            repo: row.text()?,
            delivery: row.text()?,
            workflow: row.text()?,
            job: row.non_empty_text()?,
            run_id: row.text()?,
            run_attempt: row.u32()?,
            check_run_id: row.non_empty_text()?,
            state: row.json()?,
            start_unknown: row.u8()? == 1,
            phase: row.nullable(RowReader::text)?,
            queue_seconds: row.nullable(RowReader::thousandths)?,
            execution_seconds: row.nullable(RowReader::thousandths)?,
            started_at: row.nullable(RowReader::time)?,
            completed_at: row.nullable(RowReader::time)?,
            tests: row.nullable(RowReader::json)?,
            failed_tests: row.json()?,
            url: row.nullable(RowReader::text)?,
            artifact_url: row.nullable(RowReader::text)?,
            environment: row.nullable(RowReader::text)?,
            missing_proof: row
                .nullable(RowReader::text)?
                .and_then(|name: String| MissingProof::from_name(&name)),
            level: row.level()?,
            event: row.text()?.into(),
            upstream: row.text()?,
            pull_request: row.nullable(RowReader::integer)?.map(i64::cast_unsigned),
            head_sha: row.text()?,
            triage: row.nullable(RowReader::json)?,
            warnings: row.json()?,
        })
    },
};

pub(super) static CALLBACK: FactTable<CallbackFact> = FactTable {
    name: "crcr_callback",
    time: "at",
    key: "at, id",
    columns: "at, repo, delivery, run_id, job, status, conclusion, outcome, answer, detail, \
              latency_us",
    version: "id",
    read: |row| {
        Ok(CallbackFact {
            at: row.time()?,
            repo: row.nullable(RowReader::text)?,
            delivery: row.nullable(RowReader::text)?,
            run_id: row.nullable(RowReader::text)?,
            job: row.nullable(RowReader::text)?,
            status: row.nullable(RowReader::text)?,
            conclusion: row.nullable(RowReader::text)?,
            outcome: row.outcome()?,
            answer: row.u16()?,
            detail: row.nullable(RowReader::text)?,
            latency_ms: row.thousandths()?,
        })
    },
};

pub(super) static MERGE_BASE: FactTable<MergeBaseFact> = FactTable {
    name: "crcr_merge_base",
    time: "at",
    key: "upstream_key, pull_request, head_sha",
    columns: "at, upstream, pull_request, head_sha, merge_base, committed_at",
    version: "version",
    read: |row| {
        Ok(MergeBaseFact {
            at: row.time()?,
            upstream: row.text()?,
            pull_request: row.integer()?.cast_unsigned(),
            head_sha: row.text()?,
            merge_base: row.text()?,
            committed_at: row.time()?,
        })
    },
};

pub(super) fn report_outcome(row: &mut RowReader<'_>) -> Result<ReportOutcome, String> {
    Ok(ReportOutcome { at: row.time()?, outcome: row.outcome()?, latency_ms: row.thousandths()? })
}

impl<T> FactTable<T> {
    /// A query for the winning rows that meet `condition`.
    ///
    /// The condition may only use columns that are equal in all versions of a fact.
    pub(super) fn select(&self, condition: &str) -> String {
        let Self { name, columns, key, version, .. } = self;
        format!(
            "SELECT {columns} FROM {name} WHERE {condition} \
             ORDER BY {version} DESC LIMIT 1 BY {key}"
        )
    }
}

/// Reads the fields of a response in `RowBinary`, in order. Text formats take several times as long. <https://clickhouse.com/docs/interfaces/formats/RowBinary>
pub(super) struct RowReader<'a>(&'a [u8]);

impl<'a> RowReader<'a> {
    /// All rows of a response. The error describes the value that can't be read.
    pub(super) fn rows<T>(
        answer: &'a [u8],
        read: impl Fn(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let mut fields = Self(answer);
        let mut rows = Vec::new();
        while !fields.0.is_empty() {
            rows.push(read(&mut fields)?);
        }
        Ok(rows)
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or("a row that ends early")?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or("a row that ends early")?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, String> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, String> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn integer(&mut self) -> Result<i64, String> {
        self.array().map(i64::from_le_bytes)
    }

    pub(super) fn f64(&mut self) -> Result<f64, String> {
        self.array().map(f64::from_le_bytes)
    }

    pub(super) fn parsed<T>(
        &mut self,
        what: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, String> {
        let text = self.str()?;
        parse(text).ok_or_else(|| format!("{text:?} as {what}"))
    }

    pub(super) fn time(&mut self) -> Result<Timestamp, String> {
        let at = self.integer()?;
        Timestamp::from_millisecond(at).map_err(|_| format!("{at} as a time"))
    }

    fn thousandths(&mut self) -> Result<f64, String> {
        Ok(self.integer()? as f64 / 1000.0)
    }

    fn str(&mut self) -> Result<&'a str, String> {
        let mut length = 0_usize;
        for shift in (0..u32::BITS).step_by(7) {
            let byte = self.u8()?;
            length |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                let text = str::from_utf8(self.bytes(length)?);
                return text.map_err(|_| "a text that isn't UTF-8".to_owned());
            }
        }
        Err("a text with an invalid length".to_owned())
    }

    pub(super) fn text(&mut self) -> Result<String, String> {
        self.str().map(str::to_owned)
    }

    /// An optional text of a key column, where an empty text stands for none.
    pub(super) fn non_empty_text(&mut self) -> Result<Option<String>, String> {
        Ok(Some(self.text()?).filter(|text| !text.is_empty()))
    }

    fn nullable<T>(
        &mut self,
        read: fn(&mut Self) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        if self.u8()? == 1 { Ok(None) } else { read(self).map(Some) }
    }

    pub(super) fn json<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        let text = self.str()?;
        serde_json::from_str(text).map_err(|error| format!("{text:?}: {error}"))
    }

    fn level(&mut self) -> Result<Level, String> {
        let text = self.str()?;
        text.parse().map_err(|_| format!("{text:?} as a level"))
    }

    fn dispatch_status(&mut self) -> Result<DispatchFactStatus, String> {
        self.parsed("a status", DispatchFactStatus::from_name)
    }

    fn outcome(&mut self) -> Result<CallbackOutcome, String> {
        self.parsed("an outcome", CallbackOutcome::from_name)
    }
}

/// Columns that hold times, in any table.
const TIMES: [&str; 8] = [
    "at",
    "enqueued_at",
    "sent_at",
    "received_at",
    "dispatched_at",
    "started_at",
    "completed_at",
    "committed_at",
];
/// Columns that hold lists or objects, as JSON text.
const NESTED: [&str; 6] = ["labels", "state", "tests", "failed_tests", "triage", "warnings"];
/// Fields in seconds or milliseconds that are stored as integers of a thousandth of that unit, and
/// their columns. Version 18.16 reads fractions inexactly.
const THOUSANDTHS: [(&str, &str); 3] = [
    ("queue_seconds", "queue_ms"),
    ("execution_seconds", "execution_ms"),
    ("latency_ms", "latency_us"),
];

/// The rows of `facts` for each table, as lines of JSON.
pub(super) fn fact_rows(facts: &[Fact]) -> [(&'static str, Vec<u8>); 4] {
    let (mut dispatches, mut attempts, mut callbacks) = (vec![], vec![], vec![]);
    let mut merge_bases = vec![];
    for fact in facts {
        match fact {
            Fact::Dispatch(fact) => {
                let mut row = row(fact, &[]);
                let (at, rank) = fact.version();
                row.insert("repo_key".to_owned(), json!(fact.repo.to_ascii_lowercase()));
                row.insert("upstream_key".to_owned(), json!(fact.upstream.to_ascii_lowercase()));
                row.insert("version".to_owned(), json!((at.max(0) << 3) | i64::from(rank)));
                line(&mut dispatches, &row);
            }
            Fact::Attempt(fact) => {
                // Keys can't be null.
                let mut row = row(fact, &["job", "check_run_id"]);
                let (_, rank, received) = fact.version();
                let version = (i64::from(rank) << 48) | received.as_millisecond().max(0);
                row.insert("repo_key".to_owned(), json!(fact.repo.to_ascii_lowercase()));
                row.insert("upstream_key".to_owned(), json!(fact.upstream.to_ascii_lowercase()));
                row.insert("version".to_owned(), json!(version));
                row.insert("status".to_owned(), json!(fact.state.status()));
                row.insert(
                    "conclusion".to_owned(),
                    json!(fact.state.conclusion().map(|conclusion| conclusion.as_str())),
                );
                line(&mut attempts, &row);
            }
            Fact::Callback(fact) => {
                let mut row = row(fact, &[]);
                let repo = fact.repo.as_deref().unwrap_or_default().to_ascii_lowercase();
                row.insert("repo_key".to_owned(), json!(repo));
                row.insert("id".to_owned(), json!(callback_id(fact)));
                line(&mut callbacks, &row);
            }
            Fact::MergeBase(fact) => {
                let mut row = row(fact, &[]);
                row.insert("upstream_key".to_owned(), json!(fact.upstream.to_ascii_lowercase()));
                row.insert("version".to_owned(), json!(fact.at.as_millisecond().max(0)));
                line(&mut merge_bases, &row);
            }
        }
    }
    [
        (DISPATCH.name, dispatches),
        (ATTEMPT.name, attempts),
        (CALLBACK.name, callbacks),
        (MERGE_BASE.name, merge_bases),
    ]
}

/// On which days there are facts about which pull request, as lines of JSON.
pub(super) fn pull_request_days(facts: &[Fact]) -> Vec<u8> {
    let pull_request_day = |fact: &Fact| {
        let (upstream, number, at) = match fact {
            Fact::Dispatch(fact) => (&fact.upstream, fact.pull_request?, fact.enqueued_at),
            Fact::Attempt(fact) => (&fact.upstream, fact.pull_request?, fact.dispatched_at),
            Fact::Callback(_) | Fact::MergeBase(_) => return None,
        };
        Some((upstream.to_ascii_lowercase(), number.cast_signed(), day_of(at)))
    };
    let mut lines = vec![];
    for (upstream, number, day) in
        facts.iter().filter_map(pull_request_day).collect::<BTreeSet<_>>()
    {
        line(&mut lines, &json!({ "upstream": upstream, "number": number, "day": day }));
    }
    lines
}

/// How many of `facts` belong to each day of each repository, as lines of JSON.
pub(super) fn day_changes(facts: &[Fact]) -> Vec<u8> {
    let mut changes: BTreeMap<(String, i64), u64> = BTreeMap::new();
    for fact in facts {
        let (repo, at) = match fact {
            Fact::Dispatch(fact) => (&*fact.repo, fact.enqueued_at),
            Fact::Attempt(fact) => (&*fact.repo, fact.dispatched_at),
            Fact::Callback(fact) => ("", fact.at),
            // No number of a day depends on it.
            Fact::MergeBase(_) => continue,
        };
        *changes.entry((repo.to_ascii_lowercase(), day_of(at))).or_default() += 1;
    }
    // A replicated table ignores a block that it has already received, so each batch is made unique.
    let batch: u64 = rand::random();
    let mut lines = vec![];
    for ((repo, day), changes) in changes {
        let row = json!({ "repo": repo, "day": day, "changes": changes, "batch": batch });
        line(&mut lines, &row);
    }
    lines
}

pub(super) fn line(lines: &mut Vec<u8>, row: &impl Serialize) {
    serde_json::to_writer(&mut *lines, row).expect("a Vec takes all bytes");
    lines.push(b'\n');
}

/// The fact's fields as columns of its table. Fields in `never_null` become an empty text if absent.
fn row<T: Serialize>(fact: &T, never_null: &[&str]) -> Map<String, Value> {
    let Value::Object(fields) = serde_json::to_value(fact).expect("facts are always JSON") else {
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
            } else if never_null.contains(&name) && value.is_null() {
                (name.to_owned(), json!(""))
            } else {
                (name.to_owned(), value)
            }
        })
        .collect()
}
