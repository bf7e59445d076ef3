//! What is looked at in a line and around it, and how much each of it counts.
//!
//! The weights are in `weights.toml`, which says where they are from and how to make them again.

use std::sync::LazyLock;

use regex_automata::meta::Regex;
use regex_automata::util::syntax;

use super::line_marks::{LINE_MARKS, LineMarks};

/// Forms of lines, tried on the lines that are worth it.
const FORMS: [(&str, &str); 22] = [
    (
        "error at the start",
        r"(?i)^\s*(?:##\[error\]|\[?(?:error(?:\[[\w-]+\])?|fatal|fail(?:ed|ure)?|severe|err!?|exception)\]?)(?:[:\s!\]]|$)",
    ),
    (
        "error in the middle",
        r"(?i)[\s:\])](?:fatal |internal compiler |parse |syntax )?error(?:\[\w+\]| \w{1,4}\d{3,5})?: ",
    ),
    ("exception", r"\b[A-Za-z_.$]*[a-z](?:Error|Exception|Failure)\b(?::|$| \()"),
    ("error in capitals", r"\b(?:FAIL|FAILED|FAILURE|ERROR|ERRORS)\b"),
    (
        "failed test",
        r"^\s*(?:--- FAIL|not ok |FAIL[: ]|✖|✗|✘|✕|⨯|×|☒|❌|● |\d+\) |_{5,} .* _{5,}|E   |\[  FAILED|\[(?:FAIL|✘|-)\] |\(fail\) |!! )",
    ),
    (
        "crash",
        r"(?i)panicked|panic:|uncaught|segmentation|abort(?:ed|ing)|core dumped|assert(?:ion)? ?(?:failed|error)|failed asserting",
    ),
    (
        "negation",
        r"(?i)\b(?:not found|no such|cannot|can't|could not|couldn't|unable|undefined|unexpected|invalid|missing|denied|refused|timed out|timeout|mismatch|unknown|unrecognized|unresolved|illegal|doesn't|does not|don't|isn't|is not|aren't|must|should)\b",
    ),
    ("place in a file", r#"(?:^|[\s('"`\[])[\w./\\@+~-]+\.[A-Za-z]\w{0,6}(?::\d+|\(\d+)"#),
    (
        "warning",
        r"(?i)^\s*(?:\S+ )?(?:\[?warn(?:ing)?\]?[:\s]|npm warn|deprecat)|: warning|\bwarning:|\bdeprecat",
    ),
    (
        "package or progress",
        r"(?i)^\s*(?:Get:|Selecting|Unpacking|Setting up|Preparing|Downloading|Downloaded|Installing|Using|Fetching|Collecting|Requirement|Receiving|Resolving|remote:|Compiling|Building|Installed|Processing|copying|creating|gem install|Successfully|inflating|extracting|(?:[-+~|` ]|├|└)+[\w@/-]+@\d|added|Adding)|^\s*\S+-error\S*$|^-- |^checking |\bok$|^ok |PASS",
    ),
    (
        "summary",
        r"(?i)^\W*(?:\[\w+\]\s*)?(?:\d+ (?:of \d+ )?\w* ?(?:errors?|failures?|failed|failing|problems?|tests?|examples?|specs?|offenses?)\b|(?:tests|failures|errors|total|suites|test suites|snapshots|time|ran|result|summary|test result)\b ?[:=]|=+ .*(?:failed|passed|error).* =+|(?:\d+\) )?(?:failure|error)s?\s*:?\s*$|(?:\S+ )?found \d+ |build finished with|subprocess failed\.?$|(?:error: )?abort(?:ed|ing) (?:with|due)\b.*|error: could not compile `|issues\b|(?:error: )?(?:one or more|some) (?:\S+ )?tests? |(?:error: )?\[[A-Z][\w-]+\]$|(?:error: )?package \S+ errored|failure reason|error: the following \w*? ?command failed|failed in:|rsync error|FAILURES|(?:failed tests|tests in error)\s*:\s*$|FAILED \(|Failed: |build fail(?:ed|ure)|there (?:was|were) \d+|rake aborted|exit status|.*exit(?:ed)? (?:with )?(?:error )?(?:code|status)|make(?:\[\d+\])?: \*\*\*|npm err!|npm error|error command failed|lerna|gmake|ninja: build|##\[error\]Process|error: test failed|.*returned (?:a )?non-?zero|.*errors? (?:found|generated|occurred)|.*(?:is not recoverable|exiting now|exiting due to|child returned status)|error report$)",
    ),
    ("head of a traceback", r"^\s*(?:E   )?Traceback \(most recent"),
    (
        "source code",
        r"^\s+(?:raise|return|throw|assert|def|if|for|with|import|from|self|const|let|var)\b|[;{]$",
    ),
    // `##[error]` isn't one: an action tells its error in it.
    ("command", r"^(?:\$ |\+{1,4} |##\[(?:[^e]|e[^r])|travis_|>\s)"),
    (
        "nothing failed",
        r#"(?i)\b(?:0|no(?: [a-z]+)?) (?:[a-z]+(?:\(s\))? )?(?:errors?|failures?|failed|problems|warnings|issues|offenses|vulnerabilities)\b|\berror[ =]\d+\.\d|(?:errors?|failures?|failed)"?\s*[:=]\s*(?:0|null|none|n/a|false|\[\])(?:\W|$)"#,
    ),
    (
        "success",
        r"(?i)\b(?:pass(?:ed|es|ing)?|succeeded|success(?:ful|fully)?|handled|handling|enabled|ignored|skipped|retry(?:ing)?|continuing)\b",
    ),
    ("advice", r"(?i)\bplease\b|\bre-?run\b|\brun '|^run |you (?:may|might|should|need)"),
    (
        "help of the tool",
        r"(?i)\[Help \d\]|for more information|to see the full|--stacktrace|--debug|FullyQualifiedErrorId|CategoryInfo|^see |this is probably not a problem|log of this run|complete log|giving up|to see a list|npm (?:ERR!|error)$|To install the missing|get more log output|https://docs\.|https://cwiki",
    ),
    ("address", r"https?://"),
    ("expected and got", r"(?i)\bexpected\b.*\b(?:but|got|to|actual|received|equal|instead)\b"),
    ("no letters", r"^[^A-Za-z]*$"),
    ("colon at the end", r":\s*$"),
];

/// The first ones, in which tools tell an error.
const ERROR_FORMS: usize = 6;
const NEGATION: usize = 6;
const WARNING: usize = 8;

/// What isn't a form of the line.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trait {
    FailureWord,
    Red,
    SpecificRule,
    HintRule,
    LastResortRule,
    Ignored,
    FailingSection,
    LastFailingSection,
    DistanceToEnd,
    DistanceToStart,
    FirstOfCluster,
    FirstWord,
    StrongBefore,
    StrongAfter,
    Repeated,
    FirstOfItsShape,
    BlankBefore,
    FrameAfter,
    DeeperAfter,
    DeeperBefore,
    Indent,
    Short,
    Long,
    InGreenRun,
    NotInGreenRun,
    InEarlierLogs,
    NotInEarlierLogs,
    NearTheEnd,
    EndOfTraceback,
    FileOfDiff,
    OtherStep,
}

const TRAITS: [(Trait, &str); 31] = [
    (Trait::FailureWord, "word of failure"),
    (Trait::Red, "printed in red"),
    (Trait::SpecificRule, "specific rule"),
    (Trait::HintRule, "general rule"),
    (Trait::LastResortRule, "rule of last resort"),
    (Trait::Ignored, "rule that ignores it"),
    (Trait::FailingSection, "in a failing section"),
    (Trait::LastFailingSection, "in the last failing section"),
    (Trait::DistanceToEnd, "distance to the end"),
    (Trait::DistanceToStart, "distance to the start"),
    (Trait::FirstOfCluster, "first of its cluster"),
    (Trait::FirstWord, "first word of failure for some lines"),
    (Trait::StrongBefore, "errors before it"),
    (Trait::StrongAfter, "errors after it"),
    (Trait::Repeated, "repeated"),
    (Trait::FirstOfItsShape, "first of its shape"),
    (Trait::BlankBefore, "after an empty line"),
    (Trait::FrameAfter, "before a stack frame"),
    (Trait::DeeperAfter, "before deeper lines"),
    (Trait::DeeperBefore, "after deeper lines"),
    (Trait::Indent, "indented"),
    (Trait::Short, "short"),
    (Trait::Long, "long"),
    (Trait::InGreenRun, "in the green run, too"),
    (Trait::NotInGreenRun, "not in the green run"),
    (Trait::InEarlierLogs, "in earlier logs, too"),
    (Trait::NotInEarlierLogs, "in no earlier log"),
    (Trait::NearTheEnd, "near the end"),
    (Trait::EndOfTraceback, "end of a traceback"),
    (Trait::FileOfDiff, "file of a diff"),
    (Trait::OtherStep, "in another step"),
];

pub(crate) const COUNT: usize = FORMS.len() + TRAITS.len();

/// The value of each feature of a line, in the order of [`names`].
#[derive(Debug, Clone)]
pub(crate) struct Features(pub(crate) [f32; COUNT]);

/// What each value of a line's features is.
pub fn names() -> impl Iterator<Item = &'static str> {
    FORMS.iter().map(|(name, _)| *name).chain(TRAITS.iter().map(|(_, name)| *name))
}

static FORM_REGEXES: LazyLock<Vec<Regex>> =
    LazyLock::new(|| FORMS.iter().map(|(_, pattern)| line_regex(pattern)).collect());

/// A frame of a stack, the environment that Meson echoes, marks below source code, and rules between parts: they only
/// surround the line that explains the failure. A test that begins or passes, a new branch and an option in a help text
/// say nothing, whatever they are called. Nor does a count of zero, a sum of Vitest, how long a failed build took, an
/// attribute of a plan of Terraform, a metric of k6, a level without a text, a step that BuildKit begins, a file that MSBuild
/// has built, what other CI than GitHub's writes below a failed step, or Travis's marks and its last line, what `make`, SCons
/// and `R CMD check` say at the end, or the place in Node.js itself that an exception was thrown from. A head without a text,
/// such as `Expected:` or `1) Failure:`, is only above what it is about.
static NEVER_THE_CAUSE: LazyLock<Regex> = LazyLock::new(|| {
    line_regex(
        r"^(?:\[error\])?\s*(?:at (?:async |new )?(?:[\w.$<>/@`#~\[\]-]+(?:\(| (?:\[as \S+\] )?\((?:\S+:\d+|<anonymous>|index \d+|native|eval at ))|<anonymous>|\S+:\d+)|from \S+:\d+:in |#\d+ +(?:0x|\{main\}|\S+\(\d+\): |\S+ \()|\.\.\. \d+ more|\S+@\S+:\d+:\d+$)|^>>> \w+=|^[^A-Za-z\x80-\xff]*\^[^A-Za-z\x80-\xff]*$|^[^A-Za-z0-9\x80-\xff]*$|^\s*(?:✓|√|✔|✅|☑|\[PASS\] |PASS(?:ED)?:? |ok(?: \d+ |: [^\[]| - )|--- PASS: |=== (?:RUN|PAUSE|CONT|NAME) |\[ +(?:OK|RUN) +\] )|^test .+ \.\.\. ok$| PASSED\s*(?:\[ *\d+%\])?$|^ [*+=t] \[new (?:branch|tag|ref)\]|^(?:Previous HEAD position was|HEAD is now at) |^\s+(?:-\w, )?--[a-z][\w-]+(?:[ =<\[].*)?\s{2,}\S|\bERROR SUMMARY: 0 errors\b|^(?i:\W*(?:failed|failures?|errors?|violations?|problems?)\W*0\W*)$|^\s+[-+~] [\w.\x22]+\s+= |^\s+[a-z_]+\.{3,}: |^\[(?:ERROR|error)\]\W*$|^user command error: exit status|^FAILURE: Build failed with an exception\.$|^\s*● (?:Console|Deprecation Warning|Validation Warning)$|^\s*(?:Test Files|Tests|Type Errors|Errors|Snapshots) {2,}\d+ |^Failed to compile\.$|^\s*(?:x|✗|✖|✕|×) (?:Build failed in )?\d[\d.]*m?s$|^\s*[\w.-]+: FAIL code \d+ \(|^\s*evaluation failed :\(|^error during build:$|^\W*[A-Za-z][A-Za-z ]*: 0$|^(?:[0-9a-f]{6}[a-f]|[0-9a-f]{5}[a-f][0-9a-f]|[0-9a-f]{4}[a-f][0-9a-f]{2}|[0-9a-f]{3}[a-f][0-9a-f]{3})[0-9a-f]{0,33} [A-Z\x22]|^[-dlcbps][r-][w-][xsS-][r-][w-][xsS-][r-][w-][xtT-][ .+]|^[\w.-]+\s{2,}\d+(?:\.\d+)+\S*$|^OK \(\d+ tests?\b|^Requirement already satisfied: |^Successfully installed |^\s*Expectedly Failed\b|^XFAIL\b|^(?i:\s*(?:[a-z/%#-]+\s{2,}){2,}(?:errors|failures)(?:\s{2,}[a-z/%#-]+)*\s*)$|^ [a-z_]+(?:\s+\| [a-z_]+)+\s*$|^(?:\[[^\]/]+/[^\]]+\] +)?\s*(?:❌ +Failure - (?:Main|Pre|Post)\b|🏁 +Job failed)|^Error: Job '.+' failed$|^#\d+ (?:\[[^\]]*\d/\d+\] |\[internal\] |DONE \d|CACHED$|sha256:|transferring )|^\s+\S+ -> \S.*\.(?:dll|exe)$|^_{5,} summary _{5,}$|^\s*(?:\d+\) (?:Failure|Error)|Expected|Actual|Received|Got|Caught|Passed in|Failed (?:projects|tasks|targets)):$|^\S+:\d+: recipe for target '.+' failed$|^\[error\] (?:stack trace is suppressed; run |Total time: )|^\[ERROR\] (?:To see the full stack trace of the errors|Re-run Maven using|For more information about the errors|After correcting the problems)|^\s*Error: Failed expectation$|^No (?:broken|dead|duplicate|known|leaked|unused) [\w ]*(?:found|detected)\W*$|^\W*\d+ ?/ ?\d+ \w+ passed\W*$|^ in .+ at \S+\.jl:\d+$|^Done\. Your build exited with \d+|^travis_(?:fold|time):|^g?make(?:\[\d+\])?: Target .+ not remade because of errors\.$|^scons: building terminated because of errors\.$|^node:[\w/]+:\d+$|^(?:assert|events|fs|module|util|internal/[\w/-]+)\.js:\d+$|^Found warnings, treating as errors\b|^(?:[\w.]+: )?An error occurred while executing the following cell:$|^\w+ {2,}Traceback \(most recent call last\)$|^\s*<unknown> at |Exception handlers complete$|^Did not generate, due to fatal errors",
    )
});

pub(crate) fn is_never_the_cause(line: &[u8]) -> bool {
    NEVER_THE_CAUSE.is_match(line)
}

/// Whether a line sums up tests of which none failed.
pub(crate) fn is_success_of_all(line: &[u8]) -> bool {
    ALL_PASSED.is_match(line) && !SOME_FAILED.is_match(line)
}

static ALL_PASSED: LazyLock<Regex> = LazyLock::new(|| {
    line_regex(
        r"(?i)\b\d+ (?:tests?|examples?|specs?|runs?|assertions?|passed|passing|scenarios?)\b.*\b0 (?:failures?|failed|failing)\b|^OK \(\d+ tests?\b|^\W*all (?:\d+ )?tests? (?:passed|successful)|^ok\s+\S+\s+[\d.]+s|^test run successful|^(?:\[INFO\] )?BUILD SUCCESS|^\s*\d+ passing \(|^result: pass$|^test result: ok\.|\b100% tests passed|^\[  PASSED  \] \d+ tests?|^tests: +(?:\d+ skipped, )?\d+ passed, \d+ total$|^=+ (?:\d+ skipped, )?\d+ passed\b.* in [\d.]+",
    )
});

/// Whether a line says that a tool failed for its warnings, as `-Werror` makes it.
pub(crate) fn fails_for_warnings(line: &[u8]) -> bool {
    WARNINGS_FAIL.is_match(line)
}

static WARNINGS_FAIL: LazyLock<Regex> = LazyLock::new(|| {
    line_regex(
        r"(?i)^\s*(?:\[?error\]?:? )?(?:failing due to -Werror|warnings? found and -Werror|no warnings can be incurred under|(?:\w+: )?(?:all )?warnings being treated as errors)",
    )
});

static SOME_FAILED: LazyLock<Regex> = LazyLock::new(|| {
    line_regex(r"(?i)\b[1-9]\d* (?:\w+ )?(?:fail|error)|(?:fail\w*|errors?): *[1-9]")
});

/// A level below errors, such as INFO, or the status of a request that succeeded: such a line is about no failure.
static QUIET_LEVEL: LazyLock<Regex> = LazyLock::new(|| {
    line_regex(
        r#"^(?:\S+[ \t]+){0,5}[\[<(]?(?:INFO|DEBUG|TRACE|NOTICE|WARN|WARNING)[\])>]?(?:[:\s]|$)|^\[(?:info|debug|notice|warn|warning)\]|^[IW]\d{4} \d\d:\d\d:\d\d|^[\d-]+ [\d:.]+: [IW] \S+:\d+\]|"(?:level|severity)": ?"(?:info|debug|trace|notice|warn|warning)"|\blevel=(?:info|debug|warn|warning)\b|"(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) \S+ HTTP/[\d.]+" [1-4]\d\d "#,
    )
});

/// The words of a line in lower case without names: not `error-pages.html`, `ON_ERROR`, `libgpg-error0`, `TestFailure`,
/// `exceptiongroup` or `--fail`.
fn words_without_names(line: &[u8]) -> String {
    let is_word = |word: &&str| {
        if word.len() > 1 && word.starts_with('-') {
            return false;
        }
        let word = word.trim_matches(|c: char| !c.is_alphanumeric());
        let is_inner_capital = |(a, b): (char, char)| a.is_lowercase() && b.is_uppercase();
        word.chars().all(|c| c.is_alphabetic() || matches!(c, '\'' | '’'))
            && !word.chars().zip(word.chars().skip(1)).any(is_inner_capital)
            && !is_joined_name(word)
    };
    let line = String::from_utf8_lossy(line);
    let words: Vec<_> = line
        .split_whitespace()
        .filter(|word| !word.contains("::"))
        .flat_map(|word| word.split([':', '(', ')', '[', ']', ',', ';', '"', '=', '<', '>']))
        .filter(is_word)
        .collect();
    words.join(" ").to_lowercase()
}

/// Whether an error is only a part of the word: packages such as `exceptiongroup` and `multierror` are named so, in small
/// letters, and errors such as `IOException` aren't.
fn is_joined_name(word: &str) -> bool {
    ["error", "exception"].into_iter().any(|failure| {
        word.contains(failure)
            && !matches!(word.strip_prefix(failure), Some("" | "s" | "ed" | "ing" | "'s" | "’s"))
    })
}

/// A pattern of this crate, for bytes of one line.
pub(crate) fn line_regex(pattern: &str) -> Regex {
    let syntax = syntax::Config::new().unicode(false).utf8(false);
    let built = Regex::builder().syntax(syntax).build(pattern);
    built.unwrap_or_else(|error| unreachable!("the pattern `{pattern}` is tested: {error}"))
}

struct Weights {
    of_features: [f32; COUNT],
    /// The score of the case that no line of the log explains the failure.
    of_no_line: f32,
    /// In how many of 100 labelled logs a specific rule was right.
    rule_certainty_percent: u8,
}

static WEIGHTS: LazyLock<Weights> = LazyLock::new(|| {
    let table: toml::Table = toml::from_str(include_str!("weights.toml")).expect("it is tested");
    #[expect(clippy::cast_possible_truncation, reason = "weights have three digits")]
    let weight = |name: &str| table["weights"][name].as_float().expect("it is tested") as f32;
    let mut of_features = [0.0; COUNT];
    for (value, name) in of_features.iter_mut().zip(names()) {
        *value = weight(name);
    }
    let rules = table["specific_rules"]["right_percent"].as_integer();
    let rule_certainty_percent =
        rules.and_then(|percent| u8::try_from(percent).ok()).expect("it is tested");
    Weights { of_features, of_no_line: weight(NO_LINE), rule_certainty_percent }
});

const NO_LINE: &str = "none of the lines";

/// The score of the case that no line of the log explains the failure.
pub(crate) fn score_of_no_line() -> f32 {
    WEIGHTS.of_no_line
}

/// How certain a line is that a specific rule found.
pub(crate) fn rule_certainty_percent() -> u8 {
    WEIGHTS.rule_certainty_percent
}

impl Features {
    /// What the line alone shows.
    pub(crate) fn of_line(line: &[u8]) -> Self {
        let mut values = [0.0; COUNT];
        for (value, regex) in values.iter_mut().zip(FORM_REGEXES.iter()) {
            *value = f32::from(regex.is_match(line));
        }
        Self(values)
    }

    pub(crate) fn set(&mut self, which: Trait, value: f32) {
        self.0[FORMS.len() + which as usize] = value;
    }

    pub(crate) fn flag(&mut self, which: Trait, is_so: bool) {
        self.set(which, f32::from(is_so));
    }

    pub(crate) fn get(&self, which: Trait) -> f32 {
        self.0[FORMS.len() + which as usize]
    }

    /// Whether the line has one of the forms in which tools tell an error.
    pub(crate) fn is_strong(&self) -> bool {
        let traits = [Trait::SpecificRule, Trait::EndOfTraceback, Trait::FileOfDiff];
        self.has_error_form() || traits.into_iter().any(|which| self.get(which) > 0.0)
    }

    /// Lets a warning with a place in a file count like the match of a specific rule.
    pub(crate) fn promote_warning(&mut self) {
        if self.has_form(&["warning"]) && self.has_form(&["place in a file"]) {
            self.0[WARNING] = 0.0;
            self.flag(Trait::Ignored, false);
            self.flag(Trait::SpecificRule, true);
        }
    }

    /// Whether the line has one of these forms.
    pub(crate) fn has_form(&self, names: &[&str]) -> bool {
        let forms = FORMS.iter().zip(&self.0);
        forms.into_iter().any(|((name, _), value)| *value > 0.0 && names.contains(name))
    }

    fn has_error_form(&self) -> bool {
        self.0[..ERROR_FORMS].iter().any(|value| *value > 0.0)
    }

    /// Whether it has a form that tests which pass don't print, unlike the name of an exception or a word such as `panic`.
    pub(crate) fn is_of_a_tool(&self) -> bool {
        let may_be_expected = ["exception", "crash"];
        let forms = FORMS[..ERROR_FORMS].iter().zip(&self.0);
        let of_forms = |((name, _), value): (&(&str, &str), &f32)| {
            *value > 0.0 && !may_be_expected.contains(name)
        };
        forms.into_iter().any(of_forms) || self.get(Trait::SpecificRule) > 0.0
    }

    /// Whether more than its place in the log speaks for the line: its form or its words, its colour, a rule, or that
    /// the green run hasn't got it. Advice speaks for it only if it `is_likeliest`, and a warning never does.
    pub(crate) fn tells_of_failure(&self, line: &[u8], is_likeliest: bool) -> bool {
        use Trait::{
            EndOfTraceback, FailureWord, FileOfDiff, HintRule, Ignored, NotInGreenRun, Red,
            SpecificRule,
        };
        let traits = [Red, SpecificRule, HintRule, NotInGreenRun, EndOfTraceback, FileOfDiff];
        if traits.into_iter().any(|which| self.get(which) > 0.0) {
            return true;
        }
        let is_error = self.has_error_form();
        if is_error || self.has_form(&["warning"]) || QUIET_LEVEL.is_match(line) {
            return is_error;
        }
        let says_failure = || {
            let words = words_without_names(line);
            let has_word = || {
                let mut failures = LINE_MARKS.iter().filter(|(_, of)| of.has(LineMarks::FAILURE));
                self.get(FailureWord) > 0.0 && failures.any(|(word, _)| words.contains(word))
            };
            self.get(Ignored) == 0.0
                && !self.has_form(&["nothing failed", "success"])
                && (has_word() || FORM_REGEXES[NEGATION].is_match(&words))
        };
        self.has_form(&["place in a file"])
            || says_failure()
            || (is_likeliest && self.has_form(&["advice", "expected and got"]))
    }

    pub(crate) fn score(&self) -> f32 {
        self.0.iter().zip(&WEIGHTS.of_features).map(|(value, weight)| value * weight).sum()
    }

    /// Each feature that counts, with its share of the score, the largest first.
    pub(crate) fn terms(&self) -> Vec<(&'static str, f32)> {
        let shares = self.0.iter().zip(&WEIGHTS.of_features).map(|(value, weight)| value * weight);
        let mut terms: Vec<_> =
            names().zip(shares).filter(|(_, share)| share.abs() >= 0.05).collect();
        terms.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
        terms
    }
}

pub(crate) fn log_count(count: usize) -> f32 {
    log_count_u64(count as u64)
}

#[expect(clippy::cast_precision_loss, reason = "a logarithm needs no more")]
pub(crate) fn log_count_u64(count: u64) -> f32 {
    (1.0 + count as f32).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_line_are_read_without_names() {
        for (line, words) in [
            ("built error-pages.html", "built"),
            ("ON_ERROR=continue, status=failed", "continue status failed"),
            ("Setting up libgpg-error0:amd64", "setting up"),
            ("* cannot-reproduce -> TypeError", "* -"),
            ("test errors::panics ... ok", "test ... ok"),
            ("✗ index.html: cannot be read", "✗  cannot be read"),
            ("Benchmark 1: app --fail", "benchmark app"),
            (" + exceptiongroup==1.2.0", "+ "),
            ("an IOException while reading", "an ioexception while reading"),
            ("Fetching multierror, errors: Erroring", "fetching  errors  erroring"),
        ] {
            let found = words_without_names(line.as_bytes());
            assert_eq!(
                found.split_whitespace().collect::<Vec<_>>(),
                words.split_whitespace().collect::<Vec<_>>(),
                "{line}"
            );
        }
    }

    #[test]
    fn what_passes_begins_or_lists_is_never_the_cause() {
        for line in [
            "    ✓ testThatMovingThrowsError (0.110 seconds)",
            "✅ error budget within limits",
            "=== RUN   TestFailure",
            "ok 12 - not found is handled",
            "ok: make: *** [all] Error 2 is shown",
            "tests/test_errors.py::test_fatal PASSED     [ 33%]",
            " * [new branch]      cannot-reproduce -> origin/cannot-reproduce",
            "  --fail-on-error  exit with an error if a file is missing",
            "HEAD is now at abc1234 Fix error when the file is missing",
            "==2210== ERROR SUMMARY: 0 errors from 0 contexts (suppressed: 0 from 0)",
            "  Errors               0",
            "      + metric_name         = \"Errors\"",
            "     http_req_failed......: 0.00%   ✓ 0        ✗ 200",
            "[ERROR] ",
            "[CI/build]   ❌  Failure - Main pytest",
            "OK (12 tests, 30 assertions)",
            "Requirement already satisfied: exceptiongroup in /opt/venv (1.2.0)",
            "  Expectedly Failed: 1",
            "* Missing licenses: 0",
            "  ● Console",
            "     Errors  1 error",
            "      Tests  1 failed | 11 passed (12)",
            "Failed to compile.",
            "x Build failed in 812ms",
            "                  ✕ 2.10s",
            "  lint: FAIL code 1 (1.00=setup[0.5]+cmd[0.5] seconds)",
            "0123abc Revert \"Fail on unknown fields\"",
            "drwxr-xr-x 2 runner docker 4096 Nov 26 05:00 exceptions",
            "exceptiongroup    1.2.0",
            "FAILURE: Build failed with an exception.",
            "benchmark           time      ops/s   errors",
            " id | error ",
            "#8 [2/3] RUN ./fail-on-error.sh",
            "#3 [internal] load metadata for docker.io/library/error:1",
            "  App.Errors -> /src/App.Errors/bin/Release/net8.0/App.Errors.dll",
            "___________________________________ summary ____________________________________",
            "  1) Failure:",
            "Expected:",
            "Failed tasks:",
            "rules.mk:4: recipe for target 'errors' failed",
            "[error] stack trace is suppressed; run 'last core / mimaReportBinaryIssues' for the full output",
            "[error] Total time: 31 s, completed Jan 20, 2026, 9:14:40 AM",
            "[ERROR] To see the full stack trace of the errors, re-run Maven with the -e switch.",
            "    Error: Failed expectation",
            "No broken file links found",
            "✘ 11/12 URLs passed",
            " in record(::Base.Test.DefaultTestSet, ::Base.Test.Fail) at ./test.jl:397",
            "Done. Your build exited with 1.",
            "travis_time:end:0a474408:start=1,finish=2,duration=1",
            "make[1]: Target 'all' not remade because of errors.",
            "scons: building terminated because of errors.",
            "node:internal/modules/esm/resolve:854",
            "events.js:160",
            "Found warnings, treating as errors (as requested).",
            "nbclient.exceptions.CellExecutionError: An error occurred while executing the following cell:",
            "AttributeError                            Traceback (most recent call last)",
        ] {
            assert!(is_never_the_cause(line.as_bytes()), "{line}");
        }
        for line in [
            "not ok 2 - adds",
            "✗ adds",
            "✕ 2 tests of adds",
            "  ● adds › two numbers",
            "Failed to compile: core.c",
            "FAIL src/a.test.js",
            "  --fail-on-error: no such option",
            "Errors: 2",
            "lint      app       error",
            "#8 ERROR: process \"/bin/sh -c make\" did not complete successfully: exit code: 2",
            "#8 0.412 error: bad flag",
            "_______________________________ test_summary _______________________________",
            "Failure: test_parse(ParserTest)",
            "Expected: 4",
            "No tests found",
            "make: *** [all] Error 2",
            "src/events.js:160: broken",
        ] {
            assert!(!is_never_the_cause(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn warning_counts_where_a_tool_fails_for_it() {
        for line in [
            "Failing due to -Werror.",
            "error: warnings found and -Werror specified",
            "[error] No warnings can be incurred under -Werror.",
            "cc1: all warnings being treated as errors",
        ] {
            assert!(fails_for_warnings(line.as_bytes()), "{line}");
        }
        assert!(!fails_for_warnings(b"gcc -Wall -Werror -c a.c"));
        let mut warning = Features::of_line(b"src/App.hs:12:5: Warning: Defined but not used");
        assert!(warning.has_form(&["warning"]));
        warning.promote_warning();
        assert!(!warning.has_form(&["warning"]) && warning.is_strong());
    }

    #[test]
    fn sum_of_tests_says_whether_none_failed() {
        for (line, is_success) in [
            ("2 examples, 0 failures", true),
            ("12 runs, 30 assertions, 0 failures, 0 errors, 0 skips", true),
            ("test result: ok. 2 passed; 0 failed; 0 ignored", true),
            ("Tests:       2 passed, 2 total", true),
            ("ok  \texample.com/app\t0.004s", true),
            ("BUILD SUCCESSFUL in 5s", true),
            ("# All tests passed", true),
            ("ok 3 - fails without a file", false),
            (
                "============================== 4 passed in 0.12s ===============================",
                true,
            ),
            ("100% tests passed, 0 tests failed out of 2", true),
            ("12 runs, 30 assertions, 1 failures, 0 errors, 0 skips", false),
            ("12 runs, 30 assertions, 0 failures, 2 errors, 0 skips", false),
            ("Tests:       1 failed, 2 passed, 3 total", false),
            ("50% tests passed, 1 tests failed out of 2", false),
            ("=================== 1 passed, 1 error in 0.12s ===================", false),
        ] {
            assert_eq!(is_success_of_all(line.as_bytes()), is_success, "{line}");
        }
    }

    #[test]
    fn traits_stand_at_their_place_and_every_feature_has_a_weight() {
        for (place, (which, _)) in TRAITS.iter().enumerate() {
            assert_eq!(*which as usize, place);
        }
        let table: toml::Table = toml::from_str(include_str!("weights.toml")).unwrap();
        let weights = table["weights"].as_table().unwrap();
        assert_eq!(weights.len(), COUNT + 1);
        assert!(names().chain([NO_LINE]).all(|name| weights[name].is_float()));
        assert!((50..100).contains(&rule_certainty_percent()));
        assert!(include_str!("weights.toml").len() < 64 * 1024);
    }
}
