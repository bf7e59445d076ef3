//! What a line is by its shape alone: the path of a file, a frame of a stack, a command that checks files.

/// Whether a command formats files or looks at their style or license, such as `zig fmt --check src`.
pub(crate) fn is_of_checker(command: &[u8]) -> bool {
    ["fmt", "format", "lint", "licens", "prettier", "style"]
        .iter()
        .any(|word| memchr::memmem::find(command, word.as_bytes()).is_some())
}

/// Whether a line is the path of a file with an extension and nothing else.
pub(crate) fn names_source_file(line: &[u8]) -> bool {
    let extension = line.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
    names_file(line)
        && extension.len() < line.len()
        && matches!(extension.len(), 1..=8)
        && extension.iter().all(u8::is_ascii_alphabetic)
}

/// Whether a line is a path and nothing else.
pub(crate) fn names_file(line: &[u8]) -> bool {
    let is_of_path = |byte: &u8| byte.is_ascii_alphanumeric() || b"./\\_-+@".contains(byte);
    line.iter().all(is_of_path) && line.iter().any(|byte| matches!(byte, b'.' | b'/'))
}

/// Whether it is a frame, or the place of an error below it, as rustc prints it.
pub(crate) fn is_stack_frame(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    let starts = [&b"at "[..], b"File \"", b"from ", b"#0 ", b"#1 ", b"--> "];
    starts.iter().any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_that_check_files_may_name_no_more_than_those() {
        for command in
            ["##[group]Run zig fmt --check src", "$ addlicense -check .", "$ npx prettier -l src"]
        {
            assert!(is_of_checker(command.as_bytes()), "{command}");
        }
        assert!(!is_of_checker(b"##[group]Run find . -name '*.c'"));
        assert!(names_source_file(b"src/main.zig") && names_source_file(b"Makefile.am"));
        for line in ["1.2.3", "src", "src/a.c: ok", "a.", "v1.0.123"] {
            assert!(!names_source_file(line.as_bytes()), "{line}");
        }
    }
}
