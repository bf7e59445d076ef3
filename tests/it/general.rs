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
