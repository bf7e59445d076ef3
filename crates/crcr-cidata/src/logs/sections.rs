//! Where the steps and commands of a log start and end, as runners write it.

/// What a line that may start a section is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SectionStart {
    /// The echo of a step's script and environment follows, up to `##[endgroup]`.
    Echo,
    EchoEnd,
    Group,
}

pub(super) fn section_start(line: &[u8]) -> Option<SectionStart> {
    if line.starts_with(b"##[group]Run ") {
        Some(SectionStart::Echo)
    } else if line.starts_with(b"##[endgroup]") {
        Some(SectionStart::EchoEnd)
    } else if [&b"##[group]"[..], b"travis_fold:start", b"$ "].iter().any(|s| line.starts_with(s)) {
        Some(SectionStart::Group)
    } else {
        None
    }
}

/// Whether the section that ends with this line failed; `None` if no section ends here.
pub(super) fn section_failed(line: &[u8]) -> Option<bool> {
    const FAILED: [&[u8]; 9] = [
        b"##[error]Process completed with exit code",
        b"Error: Process completed with exit code",
        b"##[error]The operation was cancel",
        b"##[error]The runner has received",
        b"No output has been received",
        b"The build has been terminated",
        b"Your build has been stopped",
        b"The job exceeded the maximum",
        b"Finished: FAILURE",
    ];
    if FAILED.iter().any(|start| line.starts_with(start)) {
        return Some(true);
    }
    if line.starts_with(b"The command \"") {
        return command_failed(line);
    }
    let is_marked = line.starts_with(b"Build step ") && contains(line, b"marked build as failure");
    let is_cut = line.starts_with(b"The log length has exceeded");
    (is_marked || is_cut).then_some(true)
}

/// Travis: `The command "make test" exited with 2.`, or `… failed and exited with 128 during .`.
fn command_failed(line: &[u8]) -> Option<bool> {
    let end = &line[line.len().saturating_sub(60)..];
    if contains(end, b"\" exited with 0") {
        return Some(false);
    }
    let says_failed = contains(end, b"exited with ") || contains(end, b"\" failed");
    says_failed.then_some(true)
}

fn contains(line: &[u8], text: &[u8]) -> bool {
    memchr::memmem::find(line, text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_github_travis_and_jenkins_are_known() {
        for (line, failed) in [
            ("##[error]Process completed with exit code 2.", Some(true)),
            ("The command \"make test\" exited with 2.", Some(true)),
            ("The command \"git fetch\" failed and exited with 128 during .", Some(true)),
            ("The command \"make\" exited with 0.", Some(false)),
            ("The command \"make\" is deprecated", None),
            ("Build step 'Execute shell' marked build as failure", Some(true)),
            ("##[error]src/a.c:1: broken", None),
        ] {
            assert_eq!(section_failed(line.as_bytes()), failed, "{line}");
        }
    }
}
