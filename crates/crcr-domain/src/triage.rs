//! The triage verdict on a failed job: whose fault it is, and why (schema version 1).
//!
//! A downstream repository's analyzer sends one with its report. The relay computes another from stored
//! facts ([`crate::results::BlameContext`]). A verdict never changes a conclusion and never blocks anything.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// In bytes of JSON.
pub const MAX_VERDICT: usize = 16 * 1024;
/// Further pieces of evidence are dropped.
pub const MAX_EVIDENCE: usize = 10;
/// In characters. Longer texts are cut.
pub const MAX_TEXT: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TriageCategory {
    /// A change upstream: this pull request, or one that has landed.
    Upstream,
    /// The downstream repository's own code or tests.
    Backend,
    /// Machines, network, or the environment of the job.
    Infra,
    /// The same commit failed and passed.
    Flake,
    Unknown,
}

impl TriageCategory {
    pub const ALL: [Self; 5] =
        [Self::Upstream, Self::Backend, Self::Infra, Self::Flake, Self::Unknown];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Upstream => "upstream",
            Self::Backend => "backend",
            Self::Infra => "infra",
            Self::Flake => "flake",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TriageConfidence {
    High,
    Medium,
    Low,
}

impl TriageConfidence {
    pub const ALL: [Self; 3] = [Self::High, Self::Medium, Self::Low];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Medium => "medium",
            Self::Low => "low",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriageVerdict {
    pub schema_version: u32,
    pub category: TriageCategory,
    pub confidence: TriageConfidence,
    pub summary: String,
    /// Only with [`TriageCategory::Upstream`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspected_upstream: Option<SuspectedUpstream>,
    /// At most [`MAX_EVIDENCE`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<TriageEvidence>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reproduced_on_retry: Option<bool>,
    /// The program or person that made the verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analyzer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analyzed_at: Option<Timestamp>,
    /// Whether something was too long and was cut.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// The upstream change that is suspected. It can be another pull request than the tested one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspectedUpstream {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pr: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriageEvidence {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<String>,
    /// An https address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_url: Option<String>,
}

/// Why a whole verdict is dropped: the field and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: {problem}")]
pub struct TriageFault {
    field: &'static str,
    problem: String,
}

impl TriageVerdict {
    /// Validates a verdict as a report contains it. Unknown keys are ignored. What is too long is cut and
    /// marked; anything else that is wrong is a fault.
    pub fn read(value: &Value) -> Result<Self, TriageFault> {
        let Value::Object(_) = value else { return Err(fault("triage_verdict", "not an object")) };
        let mut cut = TextCutter { truncated: false };
        match &value["schema_version"] {
            Value::Number(number) if number.as_u64() == Some(1) => {}
            Value::String(text) if text == "1" => {}
            other => return Err(fault("schema_version", format!("{other}, expected 1"))),
        }
        let category = one_of(value, "category", TriageCategory::ALL, TriageCategory::as_str)?;
        let confidence = one_of(value, "confidence", TriageConfidence::ALL, |it| it.as_str())?;
        let summary =
            cut.text(value, "summary")?.ok_or_else(|| fault("summary", "missing or empty"))?;
        let suspected_upstream = match &value["suspected_upstream"] {
            Value::Null => None,
            Value::Object(_) if category != TriageCategory::Upstream => {
                return Err(fault("suspected_upstream", "only allowed with category `upstream`"));
            }
            suspect @ Value::Object(_) => Some(SuspectedUpstream {
                pr: match &suspect["pr"] {
                    Value::Null => None,
                    pr => Some(pr.as_u64().filter(|number| *number > 0).ok_or_else(|| {
                        fault("suspected_upstream.pr", "not the number of a pull request")
                    })?),
                },
                commit: match cut.text(suspect, "commit")? {
                    Some(commit) if !is_commit(&commit) => {
                        return Err(fault("suspected_upstream.commit", "not a commit's SHA"));
                    }
                    commit => commit,
                },
                reason: cut.text(suspect, "reason")?,
            }),
            _ => return Err(fault("suspected_upstream", "not an object")),
        };
        let evidence = match &value["evidence"] {
            Value::Null => vec![],
            Value::Array(list) => {
                cut.truncated |= list.len() > MAX_EVIDENCE;
                let evidence = list.iter().take(MAX_EVIDENCE).map(|item| cut.evidence(item));
                evidence.collect::<Result<_, _>>()?
            }
            _ => return Err(fault("evidence", "not a list")),
        };
        let mut verdict = Self {
            schema_version: 1,
            category,
            confidence,
            summary,
            suspected_upstream,
            evidence,
            reproduced_on_retry: match &value["reproduced_on_retry"] {
                Value::Null => None,
                Value::Bool(reproduced) => Some(*reproduced),
                _ => return Err(fault("reproduced_on_retry", "not a boolean")),
            },
            analyzer: cut.text(value, "analyzer")?,
            analyzed_at: match cut.text(value, "analyzed_at")? {
                None => None,
                Some(time) => {
                    let time = time.parse();
                    Some(time.map_err(|_| fault("analyzed_at", "not a time with its zone"))?)
                }
            },
            truncated: cut.truncated,
        };
        while verdict.json_len() > MAX_VERDICT && verdict.evidence.pop().is_some() {
            verdict.truncated = true;
        }
        Ok(verdict)
    }

    fn json_len(&self) -> usize {
        serde_json::to_vec(self).map_or(usize::MAX, |json| json.len())
    }
}

struct TextCutter {
    truncated: bool,
}

impl TextCutter {
    /// An optional text. Control characters become spaces, except line breaks.
    fn text(&mut self, object: &Value, field: &'static str) -> Result<Option<String>, TriageFault> {
        let text = match &object[field] {
            Value::Null => return Ok(None),
            Value::String(text) if text.trim().is_empty() => return Ok(None),
            Value::String(text) => text,
            _ => return Err(fault(field, "not a string")),
        };
        self.truncated |= text.chars().count() > MAX_TEXT;
        let shown = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
        Ok(Some(text.chars().take(MAX_TEXT).map(shown).collect()))
    }

    fn evidence(&mut self, item: &Value) -> Result<TriageEvidence, TriageFault> {
        if !item.is_object() {
            return Err(fault("evidence", "not a list of objects"));
        }
        let log_url = crate::callback::url(&item["log_url"], "log_url")
            .map_err(|_| fault("evidence.log_url", "not an https URL"))?;
        Ok(TriageEvidence {
            job: self.text(item, "job")?,
            test: self.text(item, "test")?,
            excerpt: self.text(item, "excerpt")?,
            log_url,
        })
    }
}

fn one_of<T: Copy, const N: usize>(
    object: &Value,
    field: &'static str,
    all: [T; N],
    name: impl Fn(T) -> &'static str,
) -> Result<T, TriageFault> {
    let text = object[field].as_str().unwrap_or_default();
    all.into_iter().find(|item| name(*item) == text).ok_or_else(|| {
        let names = all.map(&name).join("`, `");
        fault(field, format!("expected one of `{names}`"))
    })
}

/// 7 to 40 hexadecimal digits.
fn is_commit(text: &str) -> bool {
    (7..=40).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn fault(field: &'static str, problem: impl Into<String>) -> TriageFault {
    TriageFault { field, problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn verdict() -> Value {
        json!({
            "schema_version": 1, "category": "upstream", "confidence": "high",
            "summary": "`aten::foo` lost an argument",
            "suspected_upstream": {"pr": 17, "commit": "0123abc", "reason": "it changed the schema"},
            "evidence": [{"job": "test (1)", "test": "test_foo", "excerpt": "TypeError",
                          "log_url": "https://logs.acme.test/1"}],
            "reproduced_on_retry": true, "analyzer": "acme-triage 2",
            "analyzed_at": "2026-09-01T10:00:00Z", "future": {"a": 1}
        })
    }

    fn with(field: &str, value: Value) -> Result<TriageVerdict, TriageFault> {
        let mut verdict = verdict();
        verdict[field] = value;
        TriageVerdict::read(&verdict)
    }

    #[test]
    fn complete_verdict_is_read_and_unknown_keys_are_ignored() {
        let read = TriageVerdict::read(&verdict()).unwrap();
        assert_eq!(read.category, TriageCategory::Upstream);
        assert_eq!(read.suspected_upstream.as_ref().unwrap().pr, Some(17));
        assert_eq!(read.evidence[0].test.as_deref(), Some("test_foo"));
        assert!(!read.truncated);
        let stored: TriageVerdict =
            serde_json::from_str(&serde_json::to_string(&read).unwrap()).unwrap();
        assert_eq!(stored, read);
    }

    #[test]
    fn structural_fault_drops_the_whole_verdict_and_is_named() {
        let faults: Vec<String> = [
            ("schema_version", json!(2)),
            ("category", json!("gremlins")),
            ("category", json!("backend")),
            ("confidence", Value::Null),
            ("summary", json!("  ")),
            ("summary", json!(["a"])),
            ("suspected_upstream", json!("17")),
            ("suspected_upstream", json!({"pr": "17"})),
            ("suspected_upstream", json!({"commit": "HEAD"})),
            ("evidence", json!({"job": "a"})),
            ("evidence", json!(["a"])),
            ("evidence", json!([{"log_url": "javascript:alert(1)"}])),
            ("reproduced_on_retry", json!("yes")),
            ("analyzed_at", json!("yesterday")),
        ]
        .into_iter()
        .map(|(field, value)| with(field, value).unwrap_err().to_string())
        .chain([TriageVerdict::read(&json!([])).unwrap_err().to_string()])
        .collect();
        insta::assert_snapshot!(faults.join("\n"));
    }

    #[test]
    fn too_long_verdict_is_cut_and_marked() {
        let item = json!({"job": "j".repeat(3000), "excerpt": "\u{1F600}\u{7}".repeat(2000)});
        let read = with("evidence", Value::Array(vec![item; 30])).unwrap();
        assert!(read.truncated);
        assert!(read.json_len() <= MAX_VERDICT && !read.evidence.is_empty());
        assert!(!read.evidence[0].excerpt.as_ref().unwrap().contains('\u{7}'));
        assert_eq!(with("summary", json!("s".repeat(5000))).unwrap().summary.len(), MAX_TEXT);
    }
}
