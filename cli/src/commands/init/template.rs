//! The workflow templates, and how values are filled in.

use crcr_aws::names::AwsNameError;
use crcr_github::artifact::is_enterprise_server;

use crate::failure::Failure;

pub const DOWNSTREAM: WorkflowTemplate = WorkflowTemplate {
    file: "downstream-ci.yml",
    text: include_str!("../../../../workflows-templates/downstream-ci.yml"),
};
pub const DOWNSTREAM_NIGHTLY: WorkflowTemplate = WorkflowTemplate {
    file: "downstream-nightly.yml",
    text: include_str!("../../../../workflows-templates/downstream-nightly.yml"),
};
pub const FORK_BUILD: WorkflowTemplate = WorkflowTemplate {
    file: "fork-build.yml",
    text: include_str!("../../../../workflows-templates/fork-build.yml"),
};
pub const ALLOWLIST_REVIEW: WorkflowTemplate = WorkflowTemplate {
    file: "allowlist-review.yml",
    text: include_str!("../../../../workflows-templates/allowlist-review.yml"),
};
pub const ALLOWLIST_REVIEW_COMMENT: WorkflowTemplate = WorkflowTemplate {
    file: "allowlist-review-comment.yml",
    text: include_str!("../../../../workflows-templates/allowlist-review-comment.yml"),
};
pub const TEST_STATS: WorkflowTemplate = WorkflowTemplate {
    file: "test-stats.yml",
    text: include_str!("../../../../workflows-templates/test-stats.yml"),
};

/// How templates refer to crcr's own actions.
const OWN_ACTIONS: (&str, &str) = ("pytorch/crcr/actions/", "@v1");

pub struct WorkflowTemplate {
    pub file: &'static str,
    text: &'static str,
}

/// The repository of the actions and the commit that pins them.
#[derive(Debug, Clone)]
pub struct ActionsPin {
    pub repository: String,
    pub commit: String,
    /// The tag or branch that the commit was resolved from, for a comment.
    pub name: Option<String>,
}

/// A template whose placeholders are replaced one by one.
#[derive(Debug, Clone)]
pub struct FilledWorkflow {
    pub file: &'static str,
    pub text: String,
}

impl WorkflowTemplate {
    pub fn pinned(&self, pin: &ActionsPin) -> FilledWorkflow {
        let ActionsPin { repository, commit, name } = pin;
        let name = name.as_ref().map(|name| format!(" # {name}")).unwrap_or_default();
        let (path, version) = OWN_ACTIONS;
        let line = |line: &str| match line.split_once(path) {
            Some((before, action)) if before.ends_with("uses: ") => {
                let action = action.strip_suffix(version).unwrap_or(action);
                format!("{before}{repository}/actions/{action}@{commit}{name}\n")
            }
            _ => format!("{line}\n"),
        };
        FilledWorkflow { file: self.file, text: self.text.lines().map(line).collect() }
    }
}

impl FilledWorkflow {
    /// Leaves out what GitHub Enterprise Server doesn't know, and would refuse the workflow for.
    pub fn for_server(mut self, server_url: &str) -> Self {
        if is_enterprise_server(server_url) {
            let own = ["cache-mode:", "deployment:", "# Without this, GitHub lets"];
            let known = |line: &&str| !own.iter().any(|start| line.trim_start().starts_with(start));
            self.text = self.text.lines().filter(known).map(|line| format!("{line}\n")).collect();
            self.text = without_anchor(&self.text);
        }
        self
    }

    /// Replaces every `placeholder`, which the template must have.
    pub fn fill(mut self, placeholder: &str, value: &str) -> Self {
        debug_assert!(self.text.contains(placeholder), "{}: no `{placeholder}`", self.file);
        self.text = self.text.replace(placeholder, value);
        self
    }
}

/// Repeats the strategy of the jobs, because older servers know no anchors of YAML.
fn without_anchor(text: &str) -> String {
    let (anchor, alias) = ("    strategy: &matrix", "    strategy: *matrix\n");
    let Some((before, (_, rest))) =
        text.split_once(anchor).and_then(|(before, rest)| Some((before, rest.split_once('\n')?)))
    else {
        return text.to_owned();
    };
    let lines = rest.split_inclusive('\n').take_while(|line| line.starts_with("      "));
    let inner: String = lines.collect();
    let strategy = format!("    strategy:\n{inner}");
    format!("{before}{strategy}{}", rest[inner.len()..].replace(alias, &strategy))
}

/// Refuses what no workflow value needs: control characters and GitHub's expressions, which would be
/// evaluated where the value ends up.
pub fn check_value(flag: &str, value: &str) -> Result<(), Failure> {
    if value.is_empty() || value.chars().any(char::is_control) || value.contains("${{") {
        let message = format!("`--{flag}` is `{}`, which can't be used", value.escape_debug());
        return Err(Failure::unexpected("init-value", message)
            .hint("leave out line breaks, control characters and `${{`"));
    }
    Ok(())
}

/// A path below this repository, as GitHub's filters compare it: without `./` and a final slash.
pub fn path_below(flag: &str, text: &str, example: &str) -> Result<String, Failure> {
    check_value(flag, text)?;
    let path = text.trim_start_matches("./").trim_end_matches('/');
    let leaves = path.split('/').any(|part| matches!(part, "" | "." | ".."));
    if leaves || path.contains('\\') {
        let message = format!("`--{flag}`: `{text}` isn't a path below this repository");
        return Err(Failure::unexpected("usage", message).hint(format!("such as `{example}`")));
    }
    Ok(path.to_owned())
}

/// Names the flag of a name that AWS can't have given.
pub fn aws_name<T>(flag: &str, name: Result<T, AwsNameError>) -> Result<T, Failure> {
    name.map_err(|error| Failure::user("aws-name", format!("`--{flag}`: {error}")).hint(error.rule))
}

/// A string in YAML, in quotes unless it is a plain word.
pub fn yaml_string(value: &str) -> String {
    let is_plain = value.starts_with(|c: char| c.is_ascii_alphabetic())
        && value.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    let is_keyword = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word));
    if is_plain && !is_keyword {
        return value.to_owned();
    }
    // A JSON string is a YAML string.
    serde_json::Value::from(value).to_string()
}

pub fn yaml_list(values: &[String]) -> String {
    format!("[{}]", values.iter().map(|value| yaml_string(value)).collect::<Vec<_>>().join(", "))
}

/// A branch or path as a filter of `on:`, where `*`, `?`, `[`, `!` and `+` are special.
pub fn filter_pattern(name: &str) -> String {
    let mut pattern = String::new();
    for c in name.chars() {
        if "*?[]!+\\".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    yaml_string(&pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_strings_mean_the_same_text_after_parsing() {
        for value in
            ["main", "3.11", "on", "No", "a b", "a: b", "# c", "\"q\"", "*x", "-", "ä", "0x1"]
        {
            let parsed: serde_yaml::Value = serde_yaml::from_str(&yaml_string(value)).unwrap();
            assert_eq!(parsed.as_str(), Some(value), "{}", yaml_string(value));
        }
        assert_eq!(filter_pattern("release/2+1"), r#""release/2\\+1""#);
    }

    #[test]
    fn path_is_written_as_githubs_filters_compare_it_or_refused() {
        let read = |text: &str| path_below("file", text, "ci/a.yml").ok();
        for text in ["ci/a.yml", "./ci/a.yml", "././ci/a.yml/"] {
            assert_eq!(read(text).as_deref(), Some("ci/a.yml"), "{text}");
        }
        for text in
            ["", ".", "./", "/ci/a.yml", "../a.yml", "ci/../a.yml", "ci//a.yml", "ci\\a.yml"]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn expressions_and_line_breaks_are_refused() {
        assert!(check_value("runner", "${{ github.token }}").is_err());
        assert!(check_value("runner", "a\n  b").is_err());
        assert!(check_value("runner", "ubuntu-24.04").is_ok());
    }

    #[test]
    fn workflow_for_enterprise_server_has_no_anchor_and_means_the_same() {
        let pin = ActionsPin { repository: "a/b".to_owned(), commit: "c".repeat(40), name: None };
        for template in [DOWNSTREAM, DOWNSTREAM_NIGHTLY] {
            let text = template.pinned(&pin).for_server("https://ghe.acme.example").text;
            assert!(!text.contains("&matrix") && !text.contains("*matrix"), "{text}");
            let read = |text: &str| serde_yaml::from_str::<serde_yaml::Value>(text).unwrap();
            let (ours, there) = (read(&template.pinned(&pin).text), read(&text));
            for (name, job) in ours["jobs"].as_mapping().unwrap() {
                assert_eq!(there["jobs"][name].get("strategy"), job.get("strategy"), "{name:?}");
            }
        }
    }

    #[test]
    fn every_action_of_ours_is_pinned() {
        let pin = ActionsPin {
            repository: "acme/crcr".to_owned(),
            commit: "c".repeat(40),
            name: Some("v1.2.3".to_owned()),
        };
        for template in [DOWNSTREAM, DOWNSTREAM_NIGHTLY, FORK_BUILD, ALLOWLIST_REVIEW, TEST_STATS] {
            let text = template.pinned(&pin).text;
            assert!(!text.contains("pytorch/crcr"), "{text}");
            assert_eq!(text.lines().count(), template.text.lines().count());
            let used = text.lines().filter(|line| line.contains("uses: acme/crcr/actions/"));
            let mut used = used.peekable();
            assert!(used.peek().is_some(), "{}", template.file);
            for line in used {
                assert!(line.ends_with(&format!("@{} # v1.2.3", pin.commit)), "{line}");
            }
        }
    }
}
