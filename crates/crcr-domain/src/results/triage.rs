//! The triage verdict on a failed job: whose fault it is, and why (schema version 1).
//!
//! A downstream repository's analyzer sends one with its report. The relay computes another from stored
//! facts ([`crate::results::BlameContext`]). A verdict never changes a conclusion and never blocks anything.

use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::text::{breaks_text, utc_time};

/// In bytes of JSON as Python's `json.dumps` writes it, which is how the published schema measures: with
/// blanks after separators, and other characters than ASCII as `\uXXXX`.
const MAX_VERDICT: usize = 16 * 1024;
/// Further pieces of evidence are dropped.
pub(crate) const MAX_EVIDENCE: usize = 10;
/// Characters of a summary or an excerpt. Longer texts are cut.
pub const MAX_TEXT: usize = 1000;
/// The same for the reason of a suspicion.
const MAX_REASON: usize = 300;
/// The same for names.
const MAX_NAME: usize = 200;
const MAX_URL_CHARS: usize = 500;

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
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

names! {
    TriageCategory {
        Upstream "upstream", Backend "backend", Infra "infra", Flake "flake", Unknown "unknown",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TriageConfidence {
    High,
    Medium,
    Low,
}

names! { TriageConfidence { High "high", Medium "medium", Low "low" } }

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct TriageVerdict {
    pub schema_version: u32,
    pub category: TriageCategory,
    pub confidence: TriageConfidence,
    pub summary: String,
    /// `None` in every category but [`TriageCategory::Upstream`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspected_upstream: Option<SuspectedUpstream>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<TriageEvidence>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reproduced_on_retry: Option<bool>,
    /// The program or person that made the verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analyzer: Option<TriageAnalyzer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analyzed_at: Option<Timestamp>,
    /// Whether something was too long and was cut.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct TriageAnalyzer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_version: Option<String>,
}

impl fmt::Display for TriageAnalyzer {
    /// `name version (model, prompt 3)`, without what is unknown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_deref().unwrap_or("The backend's analyzer"))?;
        if let Some(version) = &self.version {
            write!(f, " {version}")?;
        }
        let prompt = self.prompt_version.as_ref().map(|version| format!("prompt {version}"));
        let made_with: Vec<String> = self.model.clone().into_iter().chain(prompt).collect();
        if made_with.is_empty() { Ok(()) } else { write!(f, " ({})", made_with.join(", ")) }
    }
}

/// The upstream change that is suspected: a pull request, a commit or both. It can be another pull request
/// than the tested one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SuspectedUpstream {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pr: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct TriageEvidence {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<String>,
    /// An http or https address without a user name.
    #[serde(skip_serializing_if = "Option::is_none")]
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
    /// Whether upstream was broken without the change that was tested. Blame then names the commit on which it was; when
    /// it accuses the change, it names none.
    pub fn was_broken_before(&self) -> bool {
        self.suspected_upstream.as_ref().is_some_and(|suspect| suspect.commit.is_some())
    }

    /// Validates a verdict as a report contains it, by the rules of the published schema. Unknown keys are
    /// ignored. What is too long is cut and marked; anything else that is wrong is a fault.
    pub fn read(value: &Value) -> Result<Self, TriageFault> {
        let Value::Object(_) = value else { return Err(fault("triage_verdict", "not an object")) };
        let bytes = published_len(value);
        if bytes > MAX_VERDICT {
            let problem = format!("{bytes} bytes of JSON, and at most {MAX_VERDICT} are allowed");
            return Err(fault("triage_verdict", problem));
        }
        let mut cut = TextCutter { truncated: false };
        match &value["schema_version"] {
            Value::Number(number) if number.as_u64() == Some(1) => {}
            Value::String(text) if text.trim() == "1" => {}
            other => return Err(fault("schema_version", format!("{other}, expected 1"))),
        }
        let category = one_of(value, "category", TriageCategory::ALL, TriageCategory::as_str)?;
        let confidence = one_of(value, "confidence", TriageConfidence::ALL, |it| it.as_str())?;
        let summary = cut
            .text(value, "summary", MAX_TEXT)?
            .ok_or_else(|| fault("summary", "missing or empty"))?;
        Ok(Self {
            schema_version: 1,
            category,
            confidence,
            summary,
            suspected_upstream: cut.suspect(&value["suspected_upstream"], category)?,
            evidence: match &value["evidence"] {
                Value::Null => vec![],
                Value::Array(list) => {
                    cut.truncated |= list.len() > MAX_EVIDENCE;
                    let evidence = list.iter().take(MAX_EVIDENCE).map(|item| cut.evidence(item));
                    evidence.collect::<Result<_, _>>()?
                }
                _ => return Err(fault("evidence", "not a list")),
            },
            reproduced_on_retry: match &value["reproduced_on_retry"] {
                Value::Null => None,
                Value::Bool(reproduced) => Some(*reproduced),
                _ => return Err(fault("reproduced_on_retry", "not a boolean")),
            },
            analyzer: cut.analyzer(value)?,
            analyzed_at: match cut.text(value, "analyzed_at", MAX_NAME)? {
                None => None,
                Some(time) => Some(utc_time(&time).ok_or_else(|| {
                    fault("analyzed_at", "not a time such as 2026-08-01T10:00:00Z")
                })?),
            },
            truncated: cut.truncated,
        })
    }
}

fn published_len(value: &Value) -> usize {
    fn text(text: &str) -> usize {
        let json = serde_json::to_string(text).unwrap_or_default();
        json.chars().map(|c| if c.is_ascii() { 1 } else { 6 * c.len_utf16() }).sum()
    }
    // A separator has two bytes, and so have the brackets.
    match value {
        Value::String(string) => text(string),
        Value::Array(list) => {
            let items: usize = list.iter().map(|item| published_len(item) + 2).sum();
            items.max(2)
        }
        Value::Object(map) => {
            let items: usize =
                map.iter().map(|(key, item)| text(key) + 2 + published_len(item) + 2).sum();
            items.max(2)
        }
        other => other.to_string().len(),
    }
}

struct TextCutter {
    truncated: bool,
}

impl TextCutter {
    /// An optional text, which isn't empty if it is there. What breaks lines becomes a space, except line
    /// breaks themselves.
    fn text(
        &mut self,
        object: &Value,
        field: &'static str,
        most_chars: usize,
    ) -> Result<Option<String>, TriageFault> {
        let text = match &object[field] {
            Value::Null => return Ok(None),
            Value::String(text) => text.trim(),
            _ => return Err(fault(field, "not a string")),
        };
        if text.is_empty() {
            return Err(fault(field, "missing or empty"));
        }
        self.truncated |= text.chars().count() > most_chars;
        let shown = |c: char| if breaks_text(c) && c != '\n' { ' ' } else { c };
        Ok(Some(text.chars().take(most_chars).map(shown).collect()))
    }

    fn suspect(
        &mut self,
        value: &Value,
        category: TriageCategory,
    ) -> Result<Option<SuspectedUpstream>, TriageFault> {
        match value {
            Value::Null => return Ok(None),
            Value::Object(_) if category == TriageCategory::Upstream => {}
            Value::Object(_) => {
                return Err(fault("suspected_upstream", "only allowed with category `upstream`"));
            }
            _ => return Err(fault("suspected_upstream", "not an object")),
        }
        let pr = match &value["pr"] {
            Value::Null => None,
            pr => Some(pr.as_u64().filter(|number| *number > 0).ok_or_else(|| {
                fault("suspected_upstream.pr", "not the number of a pull request")
            })?),
        };
        let commit = self.text(value, "commit", MAX_NAME)?;
        if commit.as_deref().is_some_and(|commit| !is_commit(commit)) {
            return Err(fault("suspected_upstream.commit", "not a commit's SHA"));
        }
        if pr.is_none() && commit.is_none() {
            return Err(fault("suspected_upstream", "names neither a `pr` nor a `commit`"));
        }
        let reason = self.text(value, "reason", MAX_REASON)?;
        Ok(Some(SuspectedUpstream { pr, commit, reason }))
    }

    fn evidence(&mut self, item: &Value) -> Result<TriageEvidence, TriageFault> {
        if !item.is_object() {
            return Err(fault("evidence", "not a list of objects"));
        }
        Ok(TriageEvidence {
            job: self.text(item, "job", MAX_NAME)?,
            test: self.text(item, "test", MAX_NAME)?,
            excerpt: self.text(item, "excerpt", MAX_TEXT)?,
            log_url: self.log_url(&item["log_url"])?,
        })
    }

    /// An address is shown as a link, so it must not look like one of another host.
    fn log_url(&mut self, value: &Value) -> Result<Option<String>, TriageFault> {
        let is_wrong = || fault("evidence.log_url", "not an http or https URL without a user name");
        let text = match value {
            Value::Null => return Ok(None),
            Value::String(text) => text.trim(),
            _ => return Err(is_wrong()),
        };
        self.truncated |= text.chars().count() > MAX_URL_CHARS;
        let text: String = text.chars().take(MAX_URL_CHARS).collect();
        let lower = text.to_ascii_lowercase();
        let rest = ["https://", "http://"].iter().find_map(|scheme| lower.strip_prefix(scheme));
        let host = rest.unwrap_or_default().split(['/', '?', '#']).next().unwrap_or_default();
        if host.is_empty()
            || host.contains('@')
            || text.contains(|c| breaks_text(c) || c.is_whitespace())
        {
            return Err(is_wrong());
        }
        // These end an address in HTML or Markdown, or are read as `/`.
        let escape = |c: char| match c {
            '<' | '>' | '"' | '`' | '\\' => format!("%{:02X}", u32::from(c)),
            c => c.to_string(),
        };
        Ok(Some(text.chars().map(escape).collect()))
    }

    /// As published an object; older analyzers send a name.
    fn analyzer(&mut self, verdict: &Value) -> Result<Option<TriageAnalyzer>, TriageFault> {
        let analyzer = match &verdict["analyzer"] {
            Value::Null => return Ok(None),
            Value::String(_) => {
                let name = self.text(verdict, "analyzer", MAX_NAME)?;
                return Ok(Some(TriageAnalyzer { name, ..TriageAnalyzer::default() }));
            }
            object @ Value::Object(_) => object,
            _ => return Err(fault("analyzer", "not an object")),
        };
        let read = TriageAnalyzer {
            name: self.text(analyzer, "name", MAX_NAME)?,
            version: self.text(analyzer, "version", MAX_NAME)?,
            model: self.text(analyzer, "model", MAX_NAME)?,
            prompt_version: self.text(analyzer, "prompt_version", MAX_NAME)?,
        };
        Ok((read != TriageAnalyzer::default()).then_some(read))
    }
}

fn one_of<T: Copy, const N: usize>(
    object: &Value,
    field: &'static str,
    all: [T; N],
    name: impl Fn(T) -> &'static str,
) -> Result<T, TriageFault> {
    let text = object[field].as_str().unwrap_or_default().trim();
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
            "reproduced_on_retry": true, "analyzer": {"name": "acme-triage", "version": "2"},
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
            ("suspected_upstream", json!({"reason": "a feeling"})),
            ("evidence", json!({"job": "a"})),
            ("evidence", json!(["a"])),
            ("evidence", json!([{"log_url": "javascript:alert(1)"}])),
            ("evidence", json!([{"log_url": "https://github.com@evil.test/"}])),
            ("evidence", json!([{"log_url": "https:///path"}])),
            ("evidence", json!([{"log_url": "https://a.test/ [b](https://c.test)"}])),
            ("evidence", json!([{"job": ""}])),
            ("analyzer", json!(["acme"])),
            ("analyzer", json!({"name": 7})),
            ("future", json!("f".repeat(16 * 1024))),
            ("future", json!("é".repeat(2731))),
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
    fn published_example_is_read_with_its_analyzer() {
        // The example of the deployed relay's README.
        let example = json!({
            "schema_version": 1, "category": "upstream", "confidence": "high",
            "summary": "aten::foo lost its out= overload in #194610.",
            "suspected_upstream": {"pr": 194610, "commit": "0e797b5a6acf", "reason": "signature change"},
            "evidence": [{"job": "build-npu", "test": "test_foo_out_variant",
                          "log_url": "https://example.org/job/123#step:5:2007",
                          "excerpt": "error: no matching function ..."}],
            "reproduced_on_retry": false,
            "analyzer": {"name": "ascend-ci-triage", "version": "0.3.1", "model": "m", "prompt_version": "4"},
            "analyzed_at": "2026-08-24T14:22:10Z"
        });
        let read = TriageVerdict::read(&example).unwrap();
        assert_eq!(read.analyzer.unwrap().to_string(), "ascend-ci-triage 0.3.1 (m, prompt 4)");
        assert_eq!(read.evidence[0].log_url.as_deref(), example["evidence"][0]["log_url"].as_str());
    }

    #[test]
    fn time_without_a_zone_is_utc_and_http_logs_and_a_named_analyzer_are_accepted() {
        for (text, expected) in [
            ("2026-08-24T14:22:10", "2026-08-24T14:22:10Z"),
            ("2026-08-24 14:22:10.5", "2026-08-24T14:22:10.5Z"),
            ("2026-08-24T14:22:10+02:00", "2026-08-24T12:22:10Z"),
            ("2026-08-24", "2026-08-24T00:00:00Z"),
        ] {
            let read = with("analyzed_at", json!(text)).unwrap();
            assert_eq!(read.analyzed_at.unwrap().to_string(), expected);
        }
        let logs = json!([{"log_url": "http://ci.test/\"><b>(x)"}]);
        let read = with("evidence", logs).unwrap();
        assert_eq!(read.evidence[0].log_url.as_deref(), Some("http://ci.test/%22%3E%3Cb%3E(x)"));
        let read = with("analyzer", json!("acme-triage 2")).unwrap();
        assert_eq!(read.analyzer.unwrap().to_string(), "acme-triage 2");
    }

    #[test]
    fn too_long_verdict_is_cut_and_marked() {
        let item = json!({"job": "j".repeat(300), "excerpt": "e\u{7}".repeat(100)});
        let read = with("evidence", Value::Array(vec![item; 11])).unwrap();
        assert!(read.truncated);
        assert_eq!((read.evidence.len(), read.evidence[0].job.as_ref().unwrap().len()), (10, 200));
        assert!(!read.evidence[0].excerpt.as_ref().unwrap().contains('\u{7}'));
        assert_eq!(with("summary", json!("s".repeat(5000))).unwrap().summary.len(), MAX_TEXT);
    }

    #[test]
    fn verdict_at_a_bound_is_whole_and_above_it_marked_as_cut() {
        let is_cut = |field, value| with(field, value).unwrap().truncated;
        assert!(!is_cut("summary", json!("s".repeat(MAX_TEXT))));
        assert!(is_cut("summary", json!("s".repeat(MAX_TEXT + 1))));
        let items = |count| Value::Array(vec![json!({"job": "j"}); count]);
        assert!(
            !is_cut("evidence", items(MAX_EVIDENCE)) && is_cut("evidence", items(MAX_EVIDENCE + 1))
        );
        let link = |chars: usize| {
            let url = format!("https://a.test/{}", "u".repeat(chars - 15));
            json!([{"log_url": url, "job": "j"}])
        };
        assert!(
            !is_cut("evidence", link(MAX_URL_CHARS)) && is_cut("evidence", link(MAX_URL_CHARS + 1))
        );
        // A later part that fits doesn't take the mark away.
        let long_first = json!([{"job": "j".repeat(201), "log_url": "https://a.test/"}]);
        assert!(is_cut("evidence", long_first));
        let mut long_summary = verdict();
        long_summary["summary"] = json!("s".repeat(MAX_TEXT + 1));
        assert!(TriageVerdict::read(&long_summary).unwrap().truncated);
        let of_length = |length: usize| {
            let mut verdict = verdict();
            verdict["future"] = json!("");
            let rest = published_len(&verdict);
            with("future", json!("f".repeat(length - rest)))
        };
        assert!(of_length(MAX_VERDICT).is_ok() && of_length(MAX_VERDICT + 1).is_err());
    }

    #[test]
    fn version_may_be_a_text_and_a_suspect_has_a_number_or_a_commit() {
        assert!(with("schema_version", json!(" 1 ")).is_ok());
        assert!(with("schema_version", json!("2")).is_err());
        for (suspect, is_good) in [
            (json!({"pr": 1}), true),
            (json!({"pr": 0}), false),
            (json!({"commit": "a".repeat(7)}), true),
            (json!({"commit": "A".repeat(40)}), true),
            (json!({"commit": "a".repeat(6)}), false),
            (json!({"commit": "a".repeat(41)}), false),
            (json!({"commit": "g".repeat(7)}), false),
        ] {
            assert_eq!(with("suspected_upstream", suspect.clone()).is_ok(), is_good, "{suspect}");
        }
    }

    #[test]
    fn size_is_measured_as_the_published_schema_does() {
        // By Python's `len(json.dumps(value))`.
        for (value, expected) in [
            (json!({"a": [1, "é", null], "b": {}}), 35),
            (json!([]), 2),
            (json!("\u{1F600}\n"), 16),
        ] {
            assert_eq!(published_len(&value), expected, "{value}");
        }
    }
}
