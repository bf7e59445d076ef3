//! Where the steps and commands of a log start and end, as runners write it.

use std::sync::LazyLock;

use regex_automata::meta::Regex;

use super::features::line_regex;

/// What a line that may start a section is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SectionStart {
    /// The echo of a step's script and environment follows, up to `##[endgroup]`.
    Echo,
    EchoEnd,
    Group,
    /// The steps are over, and actions clean up.
    Cleanup,
}

pub(crate) fn section_start(line: &[u8]) -> Option<SectionStart> {
    if line.starts_with(b"##[group]Run ") {
        Some(SectionStart::Echo)
    } else if line.starts_with(b"##[endgroup]") {
        Some(SectionStart::EchoEnd)
    } else if line.starts_with(b"Post job cleanup.") {
        Some(SectionStart::Cleanup)
    } else if [&b"##[group]"[..], b"travis_fold:start", b"$ "].iter().any(|s| line.starts_with(s)) {
        Some(SectionStart::Group)
    } else {
        None
    }
}

/// Whether the command or action of a step is one that people have run also after a failure (`if: always()`).
///
/// It shows logs, uploads what is there, cleans up or looks at what earlier steps did, and may itself fail for lack of
/// what the failed step would have made.
pub(crate) fn runs_whatever_happened(step: &[u8]) -> bool {
    let start_of = |regex: &Regex| regex.find(step).map(|found| found.start());
    let comes_first = |at: usize| start_of(&JOB_WORK).is_none_or(|tests| at < tests);
    SHOWS_STATE.is_match(step) || start_of(&ENDS_A_JOB).is_some_and(comes_first)
}

/// Whether a line of a script tests, builds or releases, and doesn't only speak of it.
pub(crate) fn is_job_work(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    let others = [&b"#"[..], b"[", b"cat ", b"echo ", b"grep ", b"if ", b"printf ", b"test "];
    let command = line.split(|byte| b"'\"".contains(byte)).next().unwrap_or_default();
    !others.iter().any(|start| line.starts_with(start)) && JOB_WORK.is_match(command)
}

/// Whether the echo of a step goes on with what isn't its script.
pub(crate) fn is_after_script(line: &[u8]) -> bool {
    [&b"shell: "[..], b"with:", b"env:"].iter().any(|start| line.starts_with(start))
}

/// Commands that look at what is there, and actions that publish reports. In a command, `--cov-report` and `--junitxml` are
/// options of tests.
static SHOWS_STATE: LazyLock<Regex> = LazyLock::new(|| {
    line_regex(
        r"(?i)^##\[group\]Run (?:(?:cat|df|dmesg|echo|exit|head|if|journalctl|kill|ls|tail|test|\[+)(?:\s|$)|find [^|]*$|[\w.-]+/\S*(?:-report|junit)\S*@)",
    )
});

/// What uploads, notifies or cleans up.
static ENDS_A_JOB: LazyLock<Regex> = LazyLock::new(|| {
    line_regex(
        r"(?i)annotat|artifact|cache/save|clean[-_]?up|codecov|comment|coveralls|create-an-issue|github-script|kubectl get|notify|prune|publish-unit|slack|summary|tear[-_]?down|upload|\blogs\b| (?:describe|down|stop)(?:\s|$)",
    )
});

/// What a job is for: tests, builds and releases. Such a command may have a word of the others behind it, as `twine upload`
/// and `cargo build -p uploader`.
static JOB_WORK: LazyLock<Regex> = LazyLock::new(|| {
    line_regex(
        r"(?i)(?:^|[ /])(?:\w*test|tests|tox|nox|jest|mocha|rspec|phpunit|twine|gh release|(?:cargo|docker|go|gradlew?|make|run) (?:build|check))(?:[ :]|$)",
    )
});

/// Whether an action says that it lacks files or an artifact: those that an earlier step or job would have made.
pub(crate) fn lacks_artifact(line: &[u8]) -> bool {
    const TEXTS: [&str; 3] = [
        "No files were found with the provided path",
        "Unable to download artifact",
        "Artifact not found for name",
    ];
    TEXTS.iter().any(|text| contains(line, text.as_bytes()))
}

/// How a section ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SectionEnd {
    Passed,
    Failed,
    /// It was stopped from outside, so its last lines say nothing about the cause.
    Stopped,
}

/// How the section ends that ends with this line; `None` if no section ends here.
pub(crate) fn section_end(line: &[u8]) -> Option<SectionEnd> {
    const ENDS: [(&[u8], SectionEnd); 13] = [
        (b"##[error]Process completed with exit code", SectionEnd::Failed),
        (b"Error: Process completed with exit code", SectionEnd::Failed),
        (b"##[error]The operation was cancel", SectionEnd::Stopped),
        (b"##[error]The runner has received", SectionEnd::Stopped),
        (b"No output has been received", SectionEnd::Failed),
        (b"The build has been terminated", SectionEnd::Failed),
        (b"Your build has been stopped", SectionEnd::Failed),
        (b"The job exceeded the maximum", SectionEnd::Failed),
        (b"Finished: FAILURE", SectionEnd::Failed),
        (b"ERROR: Job failed: exit code", SectionEnd::Failed),
        (b"ERROR: Job failed: exit status", SectionEnd::Failed),
        // CircleCI.
        (b"Exited with code exit status ", SectionEnd::Failed),
        ("🚨 Error: The command exited with status".as_bytes(), SectionEnd::Failed),
    ];
    if let Some((_, end)) = ENDS.iter().find(|(start, _)| line.starts_with(start)) {
        return Some(*end);
    }
    if line.starts_with(b"The command \"") {
        return command_end(line);
    }
    let is_marked = line.starts_with(b"Build step ") && contains(line, b"marked build as failure");
    let is_cut = line.starts_with(b"The log length has exceeded");
    // Forgejo, Gitea and act, maybe behind the name of the job.
    let is_of_act = contains(line, b"exitcode '") && line.ends_with(b"': failure");
    let is_of_azure = line.starts_with(b"##[error]") && contains(line, b" exited with code '");
    (is_marked || is_cut || is_of_act || is_of_azure).then_some(SectionEnd::Failed)
}

/// Travis: `The command "make test" exited with 2.`, or `… failed and exited with 128 during .`.
fn command_end(line: &[u8]) -> Option<SectionEnd> {
    let end = &line[line.len().saturating_sub(60)..];
    if contains(end, b"\" exited with 0") {
        return Some(SectionEnd::Passed);
    }
    let says_failed = contains(end, b"exited with ") || contains(end, b"\" failed");
    says_failed.then_some(SectionEnd::Failed)
}

/// How a command of Travis has ended of which this is the last quoted line, such as `fi" exited with 1.`
pub(crate) fn end_of_quote(line: &[u8]) -> Option<SectionEnd> {
    const END: &[u8] = b"\" exited with ";
    let at = memchr::memmem::rfind(line, END)?;
    let code = line[at + END.len()..].strip_suffix(b".")?;
    let is_code = !code.is_empty() && code.iter().all(u8::is_ascii_digit);
    let how = if code == b"0" { SectionEnd::Passed } else { SectionEnd::Failed };
    is_code.then_some(how)
}

fn contains(line: &[u8], text: &[u8]) -> bool {
    memchr::memmem::find(line, text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_after_a_failure_are_told_from_those_that_fail_themselves() {
        for step in [
            "actions/upload-artifact@v4",
            "codecov/codecov-action@v5",
            "dorny/test-reporter@v2",
            "actions/github-script@v7",
            "mikepenz/action-junit-report@v5",
            "docker compose logs > all.txt",
            "docker compose logs test",
            "find . -name '*.log'",
            "cat build/config.log",
            "docker compose down",
            "if [ \"$OUTCOME\" != success ]; then",
            "[[ \"$RESULT\" == success ]]",
        ] {
            assert!(runs_whatever_happened(format!("##[group]Run {step}").as_bytes()), "{step}");
        }
        for step in [
            "pytest tests",
            "make -C docs html",
            "golangci/golangci-lint-action@v6",
            "pytest --cov=app --cov-report=xml --junitxml=out.xml",
            "npx playwright test --reporter=junit",
            "go test ./upload/...",
            "cargo build -p uploader",
            "twine upload dist/*",
            "gh release upload v1 app.zip",
            "find . -name '*.sh' | xargs shellcheck",
        ] {
            assert!(!runs_whatever_happened(format!("##[group]Run {step}").as_bytes()), "{step}");
        }
    }

    #[test]
    fn lines_of_a_script_that_test_build_or_release_are_told_from_those_that_speak_of_it() {
        for line in ["pytest", "  xvfb-run -a npm test", "cd app && cargo build --release"] {
            assert!(is_job_work(line.as_bytes()), "{line}");
        }
        for line in
            ["echo the tests failed", "# all tests", "test -f a", "notify 'the test failed'"]
        {
            assert!(!is_job_work(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn last_line_of_a_quoted_command_says_how_it_ended() {
        for (line, end) in [
            ("fi\" exited with 1.", Some(SectionEnd::Failed)),
            ("esac\" exited with 0.", Some(SectionEnd::Passed)),
            ("\" exited with an error.", None),
            ("the process exited with 1.", None),
        ] {
            assert_eq!(end_of_quote(line.as_bytes()), end, "{line}");
        }
    }

    #[test]
    fn ends_of_steps_are_known_as_github_and_other_ci_write_them() {
        for (line, end) in [
            ("##[error]Process completed with exit code 2.", Some(SectionEnd::Failed)),
            ("The command \"make test\" exited with 2.", Some(SectionEnd::Failed)),
            (
                "The command \"git fetch\" failed and exited with 128 during .",
                Some(SectionEnd::Failed),
            ),
            ("The command \"make\" exited with 0.", Some(SectionEnd::Passed)),
            ("The command \"make\" is deprecated", None),
            ("Build step 'Execute shell' marked build as failure", Some(SectionEnd::Failed)),
            ("ERROR: Job failed: exit code 1", Some(SectionEnd::Failed)),
            ("Exited with code exit status 137", Some(SectionEnd::Failed)),
            ("ERROR: Job failed: failed to pull image \"a\"", None),
            ("🚨 Error: The command exited with status 2", Some(SectionEnd::Failed)),
            ("[CI/build] exitcode '1': failure", Some(SectionEnd::Failed)),
            ("##[error]Bash exited with code '1'.", Some(SectionEnd::Failed)),
            ("##[error]src/a.c:1: broken", None),
        ] {
            assert_eq!(section_end(line.as_bytes()), end, "{line}");
        }
    }
}
