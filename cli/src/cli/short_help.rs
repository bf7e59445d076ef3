//! `-h` fits a screen: the flags that are needed first, and the examples. `--help` has everything, also the flags that
//! every command takes.
//! A command that only has subcommands prints the same for both, so its list of subcommands is on a screen.

use clap::{Arg, ArgAction, Command};

/// The flags of `-h`, for commands whose flags don't all fit. The paths are separated by spaces.
const FIRST_FLAGS: &[(&str, &[&str])] = &[
    ("allowlist diff", &["upstream", "reason", "strict", "results", "format"]),
    ("allowlist validate", &["file", "upstream", "format", "strict", "base", "reason", "online"]),
    (
        "artifact download",
        &["name", "path", "pattern", "merge-multiple", "repository", "run-id", "s3-bucket"],
    ),
    ("artifact list", &["pattern", "repository", "run-id", "s3-bucket", "format"]),
    (
        "artifact merge",
        &[
            "name",
            "pattern",
            "separate-directories",
            "delete-merged",
            "retention-days",
            "s3-bucket",
        ],
    ),
    ("artifact upload", &["name", "path", "if-no-files-found", "required", "s3-bucket"]),
    ("doctor aws", &["role", "bucket", "region", "artifact-bucket", "private"]),
    ("init aws", &["aws-region", "cache-bucket", "artifact-bucket", "account-id", "format"]),
    ("init downstream", &["upstream", "nightly", "runner", "force", "stdout"]),
    (
        "checkout",
        &["repository", "sha", "path", "fetch-depth", "submodules", "merge", "sparse-checkout"],
    ),
    (
        "init fork-build",
        &["role-to-assume", "pull-request-role", "aws-region", "sccache-bucket", "s3-bucket"],
    ),
    ("levels review", &["results", "allowlist", "propose", "from", "to", "format"]),
    ("levels sync", &["results", "upstream", "promotions", "dry-run", "format"]),
    (
        "oidc configure",
        &["role-to-assume", "aws-region", "owners", "on-unavailable", "sccache-bucket", "explain"],
    ),
    (
        "relay serve",
        &["check", "listen", "store", "results", "allowlist-url", "public-url", "upstream-repo"],
    ),
    ("quarantine propose", &["repo", "results", "owner", "days"]),
    ("report", &["status", "conclusion", "job-name", "junit", "environment"]),
    ("reproduce", &["backend", "hud", "job", "act"]),
    ("stats collect", &["dir", "repo", "run-id", "run-attempt", "rows", "results", "dry-run"]),
];

/// How many examples `-h` has.
const SHORT_EXAMPLES: usize = 2;

/// Makes `-h` of `command` and of everything below it short.
pub fn shorten(command: Command) -> Command {
    shorten_below(command.disable_help_flag(true), "")
}

fn shorten_below(mut command: Command, path: &str) -> Command {
    let first = FIRST_FLAGS.iter().find(|(of, _)| *of == path).map(|(_, flags)| *flags);
    command = command.mut_args(|arg| {
        let is_later = |flags: &[&str]| arg.get_long().is_some_and(|flag| !flags.contains(&flag));
        let hide =
            arg.is_hide_short_help_set() || arg.is_global_set() || first.is_some_and(is_later);
        arg.hide_short_help(hide)
    });
    // clap's own flag would print the long help of a group. Disabling it also disables it for all subcommands.
    let help = Arg::new("help").short('h').long("help").help_heading(None::<&str>);
    if command.is_subcommand_required_set() {
        command = command.arg(help.action(ArgAction::HelpShort).help("Print help"));
        // The template of the first page keeps its lines.
        if let Some(text) = command.get_after_help().filter(|_| !path.is_empty()) {
            let text = one_line_paragraphs(&text.to_string());
            command = command.after_help(text);
        }
    } else {
        let (short, long) = ("(see more with '--help')", "(see a summary with '-h')");
        let help = help.help(format!("Print help {short}")).long_help(format!("Print help {long}"));
        command = command.arg(help.action(ArgAction::Help));
        if let Some(text) = command.get_after_help().map(ToString::to_string) {
            let short = first_examples(examples(&text).unwrap_or(&text));
            command = command.after_help(short).after_long_help(one_line_paragraphs(&text));
        }
    }
    let names: Vec<_> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        let path = format!("{path} {name}").trim_start().to_owned();
        command = command.mut_subcommand(name, |sub| shorten_below(sub, &path));
    }
    command
}

/// The paragraph with the examples, after a line that says so.
fn examples(help: &str) -> Option<&str> {
    help.split("\n\n").find(|paragraph| paragraph.starts_with("Example"))
}

/// The heading and the first examples, each of them whole.
fn first_examples(examples: &str) -> String {
    let mut whole = 0;
    let of_the_first = examples.lines().take_while(|line| {
        let is_taken = whole <= SHORT_EXAMPLES;
        whole += usize::from(!line.ends_with(['\\', '|']));
        is_taken
    });
    of_the_first.collect::<Vec<_>>().join("\n")
}

/// Joins the lines of each paragraph, so that clap breaks it where the terminal ends and nowhere else. Commands and
/// tables are indented and stay as they are.
fn one_line_paragraphs(help: &str) -> String {
    let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
    let (mut text, mut before) = (String::new(), "");
    for line in help.lines() {
        let continues = is_prose(before) && is_prose(line) && !line.starts_with("Exit code");
        text += if text.is_empty() {
            ""
        } else if continues {
            " "
        } else {
            "\n"
        };
        text += line;
        before = line;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// clap's width without a terminal, and the width of a small terminal, in which lists of subcommands fit too.
    const COLUMNS: [usize; 2] = [100, 80];
    const LINES: usize = 24;

    /// Lines of the screen. A usage or an address without a space is broken by the terminal.
    fn screen_lines(text: &str, columns: usize) -> usize {
        text.lines().map(|line| line.chars().count().div_ceil(columns).max(1)).sum()
    }

    fn check(command: &mut Command, path: &str, found: &mut Vec<String>) {
        let columns = COLUMNS[usize::from(command.is_subcommand_required_set())];
        let short = command.clone().term_width(columns).render_help().to_string();
        let long = command.clone().term_width(columns).render_long_help().to_string();
        let lines = screen_lines(&short, columns);
        if lines > LINES {
            found.push(format!("`{path} -h` has {lines} lines"));
        }
        let usage = command.clone().render_usage().to_string();
        if usage.lines().any(|line| line.chars().count() > COLUMNS[0]) {
            found.push(format!("`{path}` has a usage of over {} columns: {usage}", COLUMNS[0]));
        }
        for (flag, text) in [("-h", &short), ("--help", &long)] {
            if !text.contains("Example") {
                found.push(format!("`{path} {flag}` has no example"));
            }
        }
        let text = command.get_after_long_help().or(command.get_after_help());
        let text = text.map(ToString::to_string).unwrap_or_default();
        let is_example = |line: &&str| examples(&text).is_some_and(|all| all.contains(*line));
        for line in text.lines().filter(|line| line.starts_with(' ')) {
            // A command that clap has broken would be copied and run by halves.
            let columns = COLUMNS[usize::from(is_example(&line))];
            if line.chars().count() > columns {
                found.push(format!("`{path} --help` breaks a line at {columns} columns: {line}"));
            }
        }
        if short.lines().last().is_some_and(|line| line.ends_with(['\\', '|'])) {
            found.push(format!("`{path} -h` has a half of an example"));
        }
        if command.is_subcommand_required_set() {
            let said = |flag| {
                let line = path.split(' ').chain([flag]);
                crate::cli::definition().try_get_matches_from(line).unwrap_err().to_string()
            };
            if said("--help") != said("-h") {
                found.push(format!("`{path} --help` isn't the same as `-h`"));
            }
        }
        for sub in command.get_subcommands_mut() {
            let path = format!("{path} {}", sub.get_name());
            check(sub, &path, found);
        }
    }

    #[test]
    fn help_of_every_command_fits_a_screen_and_has_an_example() {
        let mut command = crate::cli::definition();
        command.build();
        let mut found = vec![];
        check(&mut command, "crcr", &mut found);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn paragraphs_of_the_help_are_broken_by_the_terminal_only() {
        let text = "Examples:\n  crcr a\n  crcr b\n\nIt reads\nand writes.\nExit codes: 0 or\n1. Of these:\n  x  one";
        let whole = "Examples:\n  crcr a\n  crcr b\n\nIt reads and writes.\nExit codes: 0 or 1. Of these:\n  x  one";
        assert_eq!(one_line_paragraphs(text), whole);
    }

    #[test]
    fn every_first_flag_exists() {
        let root = crate::cli::definition();
        for (path, flags) in FIRST_FLAGS {
            // `relay` and `demo` exist only with the relay.
            let command = path.split(' ').try_fold(&root, |at, name| at.find_subcommand(name));
            if command.is_none() && !cfg!(feature = "relay") {
                continue;
            }
            let command = command.unwrap_or_else(|| panic!("there is no command `{path}`"));
            for flag in *flags {
                let exists = command.get_arguments().any(|arg| arg.get_long() == Some(flag));
                assert!(exists, "`{path}` has no flag `--{flag}`");
            }
        }
    }
}
