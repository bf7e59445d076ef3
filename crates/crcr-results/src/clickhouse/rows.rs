//! Rows of the tables of facts: what identifies, selects and orders a fact, and the whole of it as JSON.

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::results::facts::{CallbackOutcome, Fact};
use crcr_store::callback_id;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::ReportOutcome;
use crate::retention::day_of;

/// A table whose rows are facts.
pub(crate) struct FactTable {
    pub(crate) name: &'static str,
    /// The time by which a window selects rows.
    pub(crate) time: &'static str,
    /// The columns that identify a fact: two rows with the same key are versions of one fact.
    pub(crate) key: &'static str,
    /// Among rows with one key, the one with the highest value in this column wins.
    version: &'static str,
}

pub(crate) static DISPATCH: FactTable = FactTable {
    name: "crcr_dispatch",
    time: "enqueued_at",
    key: "repo_key, delivery",
    version: "version",
};

pub(crate) static ATTEMPT: FactTable = FactTable {
    name: "crcr_attempt",
    time: "dispatched_at",
    key: "repo_key, delivery, workflow, job, run_id, run_attempt, check_run_id",
    version: "version",
};

pub(crate) static CALLBACK: FactTable =
    FactTable { name: "crcr_callback", time: "at", key: "at, id", version: "id" };

pub(crate) static MERGE_BASE: FactTable = FactTable {
    name: "crcr_merge_base",
    time: "at",
    key: "upstream_key, pull_request, head_sha",
    version: "version",
};

pub(crate) static CHECK: FactTable = FactTable {
    name: "crcr_check",
    time: "at",
    key: "upstream_key, head_sha, repo_key",
    version: "version",
};

pub(crate) fn report_outcome(row: &mut RowReader<'_>) -> Result<ReportOutcome, String> {
    let (at, outcome) = (row.time()?, row.parsed("an outcome", CallbackOutcome::from_name)?);
    Ok(ReportOutcome { at, outcome, latency_ms: row.f64()? })
}

impl FactTable {
    /// A query for the documents of the winning rows that meet `condition`.
    ///
    /// The condition may only use columns that are equal in all versions of a fact.
    pub(crate) fn select(&self, condition: &str) -> String {
        let Self { name, key, version, .. } = self;
        format!(
            "SELECT document FROM {name} WHERE {condition} \
             ORDER BY {version} DESC LIMIT 1 BY {key}"
        )
    }
}

/// Reads the fields of a response in `RowBinary`, in order. Text formats take several times as long. <https://clickhouse.com/docs/interfaces/formats/RowBinary>
pub(crate) struct RowReader<'a>(&'a [u8]);

impl<'a> RowReader<'a> {
    /// All rows of a response. The error describes the value that can't be read.
    pub(crate) fn rows<T>(
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

    pub(crate) fn u8(&mut self) -> Result<u8, String> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn integer(&mut self) -> Result<i64, String> {
        self.array().map(i64::from_le_bytes)
    }

    pub(crate) fn f64(&mut self) -> Result<f64, String> {
        self.array().map(f64::from_le_bytes)
    }

    pub(crate) fn parsed<T>(
        &mut self,
        what: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, String> {
        let text = self.str()?;
        parse(text).ok_or_else(|| format!("{text:?} as {what}"))
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, String> {
        let at = self.integer()?;
        Timestamp::from_millisecond(at).map_err(|_| format!("{at} as a time"))
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

    pub(crate) fn text(&mut self) -> Result<String, String> {
        self.str().map(str::to_owned)
    }

    /// An optional text of a key column, where an empty text stands for none.
    pub(crate) fn non_empty_text(&mut self) -> Result<Option<String>, String> {
        Ok(Some(self.text()?).filter(|text| !text.is_empty()))
    }

    pub(crate) fn json<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        let text = self.str()?;
        serde_json::from_str(text).map_err(|error| format!("{text:?}: {error}"))
    }
}

/// The rows of `facts` for each table, as lines of JSON.
pub(crate) fn fact_rows(facts: &[Fact]) -> [(&'static str, Vec<u8>); 5] {
    let (mut dispatches, mut attempts, mut callbacks) = (vec![], vec![], vec![]);
    let (mut merge_bases, mut checks) = (vec![], vec![]);
    for fact in facts {
        match fact {
            Fact::Dispatch(fact) => {
                let (at, rank) = fact.version();
                let row = json!({
                    "repo_key": fact.repo.to_ascii_lowercase(),
                    "upstream_key": fact.upstream.to_ascii_lowercase(),
                    "version": (at.max(0) << 3) | i64::from(rank),
                    "delivery": fact.delivery, "enqueued_at": fact.enqueued_at.as_millisecond(),
                    "level": fact.level, "pull_request": fact.pull_request,
                    "document": document(fact),
                });
                line(&mut dispatches, &row);
            }
            Fact::Attempt(fact) => {
                let (_, rank, received) = fact.version();
                let row = json!({
                    "repo_key": fact.repo.to_ascii_lowercase(),
                    "upstream_key": fact.upstream.to_ascii_lowercase(),
                    "version": (i64::from(rank) << 48) | received.as_millisecond().max(0),
                    "delivery": fact.delivery, "workflow": fact.workflow,
                    "job": fact.job.as_deref().unwrap_or_default(), "run_id": fact.run_id,
                    "run_attempt": fact.run_attempt,
                    "check_run_id": fact.details.check_run_id.as_deref().unwrap_or_default(),
                    "dispatched_at": fact.dispatched_at.as_millisecond(), "level": fact.level,
                    "event": fact.event.as_str(), "status": fact.state.status(),
                    "conclusion": fact.state.conclusion().map(|conclusion| conclusion.as_str()),
                    "pull_request": fact.pull_request, "head_sha": fact.head_sha,
                    "document": document(fact),
                });
                line(&mut attempts, &row);
            }
            Fact::Callback(fact) => {
                let row = json!({
                    "repo_key": fact.repo.as_deref().unwrap_or_default().to_ascii_lowercase(),
                    "id": callback_id(fact), "at": fact.at.as_millisecond(),
                    "outcome": fact.outcome.as_str(), "answer": fact.answer,
                    "latency_ms": fact.latency_ms, "document": document(fact),
                });
                line(&mut callbacks, &row);
            }
            Fact::MergeBase(fact) => {
                let row = json!({
                    "upstream_key": fact.upstream.to_ascii_lowercase(),
                    "version": fact.at.as_millisecond().max(0), "at": fact.at.as_millisecond(),
                    "pull_request": fact.pull_request, "head_sha": fact.head_sha,
                    "document": document(fact),
                });
                line(&mut merge_bases, &row);
            }
            Fact::Check(fact) => {
                let row = json!({
                    "upstream_key": fact.upstream.to_ascii_lowercase(),
                    "version": fact.at.as_millisecond().max(0), "at": fact.at.as_millisecond(),
                    "head_sha": fact.head_sha, "repo_key": fact.repo.to_ascii_lowercase(),
                    "document": document(fact),
                });
                line(&mut checks, &row);
            }
        }
    }
    [
        (DISPATCH.name, dispatches),
        (ATTEMPT.name, attempts),
        (CALLBACK.name, callbacks),
        (MERGE_BASE.name, merge_bases),
        (CHECK.name, checks),
    ]
}

fn document(fact: &impl Serialize) -> String {
    serde_json::to_string(fact).expect("facts are always JSON")
}

/// On which days there are facts about which pull request, as lines of JSON.
pub(crate) fn pull_request_days(facts: &[Fact]) -> Vec<u8> {
    let pull_request_day = |fact: &Fact| {
        let (upstream, number, at) = match fact {
            Fact::Dispatch(fact) => (&fact.upstream, fact.pull_request?, fact.enqueued_at),
            Fact::Attempt(fact) => (&fact.upstream, fact.pull_request?, fact.dispatched_at),
            Fact::Callback(_) | Fact::MergeBase(_) | Fact::Check(_) => return None,
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
pub(crate) fn day_changes(facts: &[Fact]) -> Vec<u8> {
    let mut changes: BTreeMap<(String, i64), u64> = BTreeMap::new();
    for fact in facts {
        let (repo, at) = match fact {
            Fact::Dispatch(fact) => (&*fact.repo, fact.enqueued_at),
            Fact::Attempt(fact) => (&*fact.repo, fact.dispatched_at),
            Fact::Callback(fact) => ("", fact.at),
            // No number of a day depends on these.
            Fact::MergeBase(_) | Fact::Check(_) => continue,
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

pub(crate) fn line(lines: &mut Vec<u8>, row: &impl Serialize) {
    serde_json::to_writer(&mut *lines, row).expect("a Vec takes all bytes");
    lines.push(b'\n');
}
