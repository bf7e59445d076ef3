//! Rules of PyTorch's log classifier, whose file has a name and a pattern for each.
//! Format: `aws/lambda/log-classifier/ruleset.toml` of pytorch/test-infra.

use std::fmt::Write as _;

use serde::Deserialize;

use super::rules::{LAST_RESORT, RuleSet};

/// What the runner says whenever a step fails: a rule that matches it says no more than that.
const EXIT_CODE: &str = "##[error]Process completed with exit code 1.";

/// A file of rules for `crcr`.
pub struct ImportedRules {
    pub text: String,
    pub rules: usize,
    /// Rules that can't be used, which the text names in comments.
    pub left_out: usize,
}

#[derive(Deserialize)]
struct ClassifierRules {
    rule: Vec<ClassifierRule>,
}

#[derive(Deserialize)]
struct ClassifierRule {
    name: String,
    pattern: String,
}

/// Turns upstream's rules into ours, in their order; they count in the section that failed. Fails with the line where the
/// text isn't a file of such rules.
pub fn import_rules(text: &str) -> Result<ImportedRules, String> {
    let ClassifierRules { rule: rules } = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        format!("line {}: {}", before.matches('\n').count() + 1, error.message())
    })?;
    let mut imported = ImportedRules {
        text: "extends = \"starter\"\n".to_owned(),
        rules: rules.len(),
        left_out: 0,
    };
    let mut names: Vec<&str> = vec![];
    for ClassifierRule { name, pattern } in &rules {
        let is_known = names.contains(&name.as_str());
        let usable = if is_known {
            Err("another rule has its name".to_owned())
        } else {
            category(name, pattern)
        };
        match usable {
            Ok(category) => {
                names.push(name);
                let _ = write!(imported.text, "\n{}", entry(name, category, pattern));
            }
            Err(problem) => {
                imported.left_out += 1;
                let comment = format!("`{name}` is left out: {problem}");
                let _ = write!(imported.text, "\n# {}\n", comment.replace(['\n', '\r'], " "));
            }
        }
    }
    Ok(imported)
}

/// The category of a rule, or why it can't be used.
fn category(name: &str, pattern: &str) -> Result<&'static str, String> {
    match RuleSet::parse(&entry(name, "imported", pattern)) {
        Ok(set) if set.rules()[0].is_match(EXIT_CODE) => Ok(LAST_RESORT),
        Ok(_) => Ok("imported"),
        Err(findings) => {
            let problems: Vec<&str> =
                findings.iter().map(|finding| finding.message.as_str()).collect();
            Err(problems.join("; "))
        }
    }
}

fn entry(name: &str, category: &str, pattern: &str) -> String {
    // A string of JSON is one of TOML, too.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    // The exit code counts wherever it stands.
    let scope = if category == LAST_RESORT { "" } else { "scope = \"failing-section\"\n" };
    format!(
        "[[rule]]\nname = {}\ncategory = {}\n{scope}pattern = {}\n",
        quoted(name),
        quoted(category),
        quoted(pattern)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_keep_their_order_and_unusable_ones_are_named() {
        let text = "[[rule]]\nname = 'tests'\npattern = '''FAIL(?: \\[.*\\])?: (test.*) \\((?:__main__\\.)?(.*)\\)'''\n\
            [[rule]]\nname = 'look-ahead'\npattern = '(?=x)y'\n\
            [[rule]]\nname = 'tests'\npattern = 'again'\n\
            [[rule]]\nname = 'GHA error'\npattern = '^##\\[error\\](.*)'\n";
        let imported = import_rules(text).unwrap();
        assert_eq!((imported.rules, imported.left_out), (4, 2));
        let comments: Vec<&str> =
            imported.text.lines().filter(|line| line.starts_with('#')).collect();
        assert!(
            comments[0].starts_with("# `look-ahead` is left out: the pattern isn't"),
            "{comments:?}"
        );
        assert_eq!(comments[1], "# `tests` is left out: another rule has its name");
        let set = RuleSet::parse(&imported.text).unwrap();
        let rules: Vec<(&str, &str)> = set.rules()[..2]
            .iter()
            .map(|rule| (rule.name.as_str(), rule.category.as_str()))
            .collect();
        assert_eq!(rules, [("tests", "imported"), ("GHA error", LAST_RESORT)]);
        assert!(set.rules()[0].is_match("FAIL [1.2s]: test_foo (__main__.TestFoo)"));
        // On one line, as every reason is.
        for (broken, why) in [
            ("rules = 1", "line 1: missing field `rule`"),
            ("[[rule]]\nname = 'a'\n", "line 1: missing field `pattern`"),
        ] {
            assert_eq!(import_rules(broken).err().as_deref(), Some(why));
        }
    }
}
