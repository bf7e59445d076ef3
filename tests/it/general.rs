//! Behaviour of all commands.

use crate::support::Crcr;

#[test]
fn version_and_help_are_data() {
    let ran = Crcr::new(&["--version"]).run().expect_code(0);
    assert!(ran.stdout.starts_with("crcr "), "{}", ran.report());
    let ran = Crcr::new(&["--help"]).run().expect_code(0);
    assert!(ran.stdout.contains("Exit codes:"), "{}", ran.report());
}

#[test]
fn wrong_usage_is_exit_2_with_nothing_on_stdout() {
    let ran = Crcr::new(&["no-such-command"]).run().expect_code(2);
    assert!(ran.stdout.is_empty() && ran.stderr.contains("no-such-command"), "{}", ran.report());
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let ran = Crcr::new(&["completions", shell]).run().expect_code(0);
        assert!(ran.stdout.contains("crcr"), "{shell}");
    }
}

#[test]
fn help_and_version_are_words_too() {
    let said = |args: &[&str]| Crcr::new(args).run().expect_code(0).stdout;
    assert_eq!(said(&["version"]), said(&["--version"]));
    assert_eq!(said(&["help"]), said(&["--help"]));
    assert_eq!(said(&["help", "init", "aws"]), said(&["init", "aws", "--help"]));
    assert!(said(&["help"]).contains("  man "), "the manual pages aren't listed");
}

#[test]
fn number_that_is_none_is_said_in_plain_words() {
    let args = ["reproduce", "x", "--backend", "a/b", "--hud", "https://hud.example.org"];
    let ran = Crcr::new(&args).run().expect_code(2);
    assert!(ran.stderr.contains("it isn't a whole number"), "{}", ran.report());
    assert!(!ran.stderr.contains("invalid digit"), "{}", ran.report());
}
