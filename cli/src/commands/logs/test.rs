//! `crcr logs test`: rules against their examples and against labelled logs.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use crcr_cidata::logs::{
    FixtureOutcome, FixtureResult, LabelledLines, LogRule, RuleKind, RuleSet, feature_names,
    labelled_lines, matching_rules, read_labels, try_fixture,
};
use serde::Serialize;
use serde_json::json;

use super::{rules, unreadable};
use crate::cli::DataFormat;
use crate::cli::logs::TestArgs;
use crate::escape::neutralize;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::plural;

#[derive(Serialize, Default)]
struct RuleTest {
    rules: usize,
    examples: usize,
    logs: usize,
    right: usize,
    wrong: usize,
    nothing: usize,
    /// Logs of which one of the lines offered is right.
    offered: usize,
    /// Examples and logs that aren't as expected.
    unexpected: Vec<String>,
    /// Rules for which the whole log has to be searched.
    without_literal: Vec<String>,
    /// Rules that no example or log is matched by.
    never_matched: Vec<String>,
    /// Rules that match, but always after another one, which is named.
    shadowed: BTreeMap<String, String>,
}

pub fn run(args: &TestArgs, printer: &Printer) -> Outcome {
    let set = rules(args.rules.as_deref())?;
    let mut test = RuleTest { rules: set.rules().len(), ..RuleTest::default() };
    let mut winners = HashSet::new();
    let mut hidden_by: BTreeMap<String, String> = BTreeMap::new();
    try_examples(&set, &mut test, &mut winners, &mut hidden_by);
    if let Some(folder) = &args.fixtures {
        let failed = |error: io::Error| unreadable(&folder.display().to_string(), error);
        try_logs(folder, &set, !args.without_baseline, &mut test, &mut winners).map_err(failed)?;
        if let Some(file) = &args.features {
            write_features(folder, &set, !args.without_baseline, file)
                .map_err(|error| unreadable(&file.display().to_string(), error))?;
        }
    }
    let names = |wanted: &dyn Fn(&LogRule) -> bool| -> Vec<String> {
        set.rules().iter().filter(|rule| wanted(rule)).map(|rule| rule.name.clone()).collect()
    };
    test.without_literal = names(&LogRule::is_without_literal);
    hidden_by.retain(|name, _| !winners.contains(name));
    test.never_matched =
        names(&|rule| !winners.contains(&rule.name) && !hidden_by.contains_key(&rule.name));
    test.shadowed = hidden_by;
    let text = match args.format {
        DataFormat::Text => neutralize(&text(&test)).into_owned(),
        DataFormat::Json => {
            let json = serde_json::to_value(&test)
                .map_err(|error| Failure::unexpected("json", "no JSON").because(error))?;
            format!("{json:#}\n")
        }
    };
    printer.data_as(args.format, &text);
    Ok(ExitCode::from(u8::from(!test.unexpected.is_empty())))
}

/// Every example has to be found by its own rule.
fn try_examples(
    set: &RuleSet,
    test: &mut RuleTest,
    winners: &mut HashSet<String>,
    hidden_by: &mut BTreeMap<String, String>,
) {
    for rule in set.rules() {
        for example in &rule.examples {
            test.examples += 1;
            let matching = matching_rules(set, example);
            let told = match (rule.kind, matching.first()) {
                (RuleKind::Ignore, None) if rule.is_match(example) => {
                    winners.insert(rule.name.clone());
                    continue;
                }
                (RuleKind::Match, Some(first)) if first.name == rule.name => {
                    winners.insert(rule.name.clone());
                    continue;
                }
                (RuleKind::Match, Some(first)) if rule.is_match(example) => {
                    hidden_by.insert(rule.name.clone(), first.name.clone());
                    format!("`{}` wins", first.name)
                }
                (RuleKind::Match, None) if rule.is_match(example) => "it is ignored".to_owned(),
                _ => "the rule doesn't match it".to_owned(),
            };
            test.unexpected.push(format!("example of `{}`: {told}: {example}", rule.name));
        }
    }
}

fn try_logs(
    folder: &Path,
    set: &RuleSet,
    with_baseline: bool,
    test: &mut RuleTest,
    winners: &mut HashSet<String>,
) -> io::Result<()> {
    for log in read_labels(folder)? {
        let FixtureResult { outcome, is_offered, classification } =
            try_fixture(folder, &log, set, with_baseline)?;
        test.logs += 1;
        test.offered += usize::from(is_offered);
        winners.extend(classification.found.as_ref().and_then(|found| found.rule.clone()));
        let told = match (outcome, classification.found) {
            (FixtureOutcome::Right, _) => {
                test.right += 1;
                continue;
            }
            (_, Some(found)) => {
                test.wrong += 1;
                let by = found.rule.as_deref().unwrap_or("the evidence");
                format!("{by} found line {}: {}", found.line_number, found.line)
            }
            (_, None) => {
                test.nothing += 1;
                "no line was found".to_owned()
            }
        };
        test.unexpected.push(format!("{}: {told}", log.file));
    }
    Ok(())
}

/// One line of JSON for the names of the features, then one for each log.
fn write_features(
    folder: &Path,
    set: &RuleSet,
    with_baseline: bool,
    file: &Path,
) -> io::Result<()> {
    let mut out = io::BufWriter::new(std::fs::File::create(file)?);
    let names: Vec<&str> = feature_names().collect();
    writeln!(out, "{}", json!({ "names": names }))?;
    for log in read_labels(folder)? {
        let LabelledLines { lines, by_rule } = labelled_lines(folder, &log, set, with_baseline)?;
        let lines: Vec<_> = lines
            .iter()
            .map(|(line, is_right)| {
                json!({
                    "line": line.line_number,
                    "right": is_right,
                    "values": &line.values[..],
                    "tells": line.tells_of_failure,
                    "tells_if_likeliest": line.tells_if_likeliest,
                })
            })
            .collect();
        let by_rule = by_rule.map(|(line, is_right)| json!({ "line": line, "right": is_right }));
        writeln!(out, "{}", json!({ "file": log.file, "by_rule": by_rule, "lines": lines }))?;
    }
    out.flush()
}

fn text(test: &RuleTest) -> String {
    let mut text = [
        plural(test.rules, "rule", "rules"),
        plural(test.examples, "example", "examples"),
        plural(test.logs, "log", "logs"),
    ]
    .join(", ");
    if test.logs > 0 {
        let RuleTest { right, wrong, nothing, offered, .. } = test;
        let _ = write!(text, ": {right} right, {wrong} wrong, {nothing} without a line; ");
        let _ = write!(text, "{offered} right among three");
    }
    text.push('\n');
    let mut list = |title: &str, entries: &[String]| {
        if !entries.is_empty() {
            let _ = writeln!(text, "\n{title}:");
            for entry in entries {
                let _ = writeln!(text, "  {entry}");
            }
        }
    };
    list("not as expected", &test.unexpected);
    list("without a literal, so that the whole log is searched for them", &test.without_literal);
    list("no example or log is found by", &test.never_matched);
    let shadowed: Vec<String> =
        test.shadowed.iter().map(|(rule, by)| format!("`{rule}`, by `{by}`")).collect();
    list("shadowed", &shadowed);
    text
}
