//! What the failing step and the steps after it say.

use super::found_line;

/// A job with one failing step, after which a step prints the log of a database.
fn job(failing_step: &str) -> String {
    format!(
        "##[group]Run actions/setup-python@v5\n##[endgroup]\n{failing_step}\
         ##[group]Run docker compose logs\n##[endgroup]\n\
         db-1  | 2026-01-01 12:00:01.000 UTC [42] ERROR:  relation \"migrations\" does not exist at character 15\n\
         Post job cleanup.\n"
    )
}

#[test]
fn error_of_an_action_wins_over_what_a_later_step_prints() {
    let log = job("Installed versions\nVersion 3.6 was not found in the local cache\n\
         ##[error]The version '3.6' with architecture 'x64' was not found for Ubuntu 24.04.\n\
         The list of all available versions can be found here: https://example.com/versions.json\n");
    assert!(found_line(&log).contains("The version '3.6'"), "{}", found_line(&log));
}

#[test]
fn quiet_line_of_the_failed_script_wins_over_a_loud_one_of_a_later_step() {
    let log = job("Checking 14 pages\nThe page on costs is out of date\n\
         ##[error]Process completed with exit code 1.\n");
    assert_eq!(found_line(&log), "The page on costs is out of date");
}

#[test]
fn later_step_explains_the_failure_if_the_failed_one_says_nothing() {
    let log = job("Checking 14 pages\n##[error]Process completed with exit code 1.\n");
    assert!(found_line(&log).starts_with("db-1 "), "{}", found_line(&log));
}

#[test]
fn advice_gives_way_to_the_line_that_says_what_it_is_about() {
    let log = "##[group]Run ./check\n##[endgroup]\nBuilding the assets\n www/app.js | 2 +-\n www/site.css | 4 ++--\n\
               The assets don't match the sources.\nThe checksum of www/app.js is out of date.\n\
               Please rebuild them and commit the changes.\n##[error]Process completed with exit code 1.\n\
               Post job cleanup.\n";
    assert_eq!(found_line(log), "The assets don't match the sources.");
}

#[test]
fn error_of_one_task_of_turborepo_is_found_among_the_lines_of_others() {
    let log = "##[group]Run npx turbo run lint\n##[endgroup]\n\
               @acme/api:test:  ✓ src/errors.test.ts (14 tests) 21ms\n\
               @acme/web:lint: /home/runner/work/app/src/cart.tsx\n\
               @acme/web:lint:    1:10  error    'useMemo' is defined but never used  no-unused-vars\n\
               @acme/web:lint: ERROR: command finished with error: command (/w/apps/web) npm run lint exited (1)\n\
               \x20ERROR  run failed: command  exited (1)\n##[error]Process completed with exit code 1.\n";
    assert!(found_line(log).contains("'useMemo'"), "{}", found_line(log));
}

#[test]
fn head_or_hint_of_a_tool_gives_way_to_the_line_that_it_is_about() {
    let sbt = "##[group]Run sbt check\n##[endgroup]\n[info] 12 modules\n\
               [error]  * method total() in class acme.Cart does not have a correspondent in current version\n\
               [error] stack trace is suppressed; run 'last core / check' for the full output\n\
               ##[error]Process completed with exit code 1.\n";
    assert!(found_line(sbt).contains("method total()"), "{}", found_line(sbt));
    let tox = "##[group]Run tox -e flake8\n##[endgroup]\nflake8 run-test: commands[0] | flake8\n\
               ./app/server.py:90:20: F821 undefined name 'FileNotFoundError'\n\
               ERROR: InvocationError for command /w/.tox/flake8/bin/flake8 (exited with code 1)\n\
               ___________________________________ summary ____________________________________\n\
               ERROR:   flake8: commands failed\n##[error]Process completed with exit code 1.\n";
    assert!(found_line(tox).contains("F821"), "{}", found_line(tox));
}

/// A step of a job, with what it prints and its exit code, if it isn't 0.
fn step(command: &str, output: &str, exit_code: u8) -> String {
    let end = match exit_code {
        0 => String::new(),
        code => format!("##[error]Process completed with exit code {code}.\n"),
    };
    format!("##[group]Run {command}\n{command}\n##[endgroup]\n{output}\n{end}")
}

#[test]
fn step_that_was_allowed_to_fail_gives_way_to_the_one_that_ended_the_job() {
    let allowed = step(
        "mypy src",
        "src/old.py:10: error: Incompatible return value type  [return-value]\nFound 1 error in 1 file",
        1,
    );
    let late = "Error: context deadline exceeded";
    let of_script = step("helm upgrade --install app chart --wait", late, 1);
    assert_eq!(found_line(&format!("{allowed}{of_script}Post job cleanup.\n")), late);
    let failure = "FAILED tests/test_a.py::test_a - assert 1 == 2";
    for tests in ["pytest --cov=app --cov-report=xml", "pytest --junitxml=out.xml tests/upload"] {
        let tests = step(tests, failure, 1);
        assert_eq!(found_line(&format!("{allowed}{tests}Post job cleanup.\n")), failure);
    }
    for script in ["if [ \"$RUNNER_OS\" == Linux ]; then\n  pytest\nfi", "echo begin\npytest"] {
        let (first, _) = script.split_once('\n').unwrap();
        let tests = format!(
            "##[group]Run {first}\n{script}\nshell: bash -e {{0}}\n##[endgroup]\n{failure}\n\
             ##[error]Process completed with exit code 1.\n"
        );
        assert_eq!(found_line(&format!("{allowed}{tests}Post job cleanup.\n")), failure);
    }
    let missing = "##[error]The version '3.6' with architecture 'x64' was not found.";
    let of_action = step("actions/setup-python@v5", missing, 0);
    assert_eq!(found_line(&format!("{allowed}{of_action}Post job cleanup.\n")), missing);
}

#[test]
fn failure_of_a_step_that_runs_whatever_happened_does_not_hide_the_first_one() {
    let cause = "lint: failed with flake8 is not allowed, use allowlist_externals to allow it";
    let failed = step("tox -e lint", cause, 1);
    for after in [
        step("cat build/config.log", "configure:3201: error: no acceptable ld found in $PATH", 1),
        step("docker compose logs", "db-1  | ERROR:  relation \"old\" does not exist", 1),
        step("if [ \"$OUTCOME\" != success ]; then", "error: the tests have failed", 1),
    ] {
        assert_eq!(found_line(&format!("{failed}{after}Post job cleanup.\n")), cause, "{after}");
    }
}

#[test]
fn earlier_failure_counts_if_the_last_failed_step_says_nothing() {
    let error = "src/old.py:10: error: Incompatible return value type  [return-value]";
    let failed = step("mypy src", error, 1);
    let last = step("./check-results", "checked 2 results", 1);
    assert_eq!(found_line(&format!("{failed}{last}Post job cleanup.\n")), error);
}

#[test]
fn exit_code_of_the_failed_step_is_named_and_not_what_a_later_step_lacks() {
    let failed = step("./check", "checked 14 pages", 3);
    let report = step(
        "dorny/test-reporter@v1",
        "with:\n##[endgroup]\n##[error]Error: No test report files were found",
        0,
    );
    let found = found_line(&format!("{failed}{report}Post job cleanup.\n"));
    assert_eq!(found, "##[error]Process completed with exit code 3.");
}

/// Each looks like what a tool prints of a failure.
#[test]
fn harmless_line_above_the_error_of_its_step_is_not_named() {
    let error = "error: cannot read results.json";
    for line in [
        "- [ ] I ran the tests",
        "Warning: config: defaults:",
        "  * updating README",
        "warning: uncommitted changes are part of the version",
        "setuptools_scm: working directory contains untracked files",
        "suite                PASS    FAIL",
    ] {
        let log = step("./check", &format!("{line}\n{error}"), 1);
        assert_eq!(found_line(&format!("{log}Post job cleanup.\n")), error, "{line}");
    }
}

#[test]
fn warning_that_counts_as_an_error_is_named() {
    let log = step(
        "cabal build --ghc-options=-Werror",
        "[1 of 2] Compiling App.Error ( src/App/Error.hs, dist/App/Error.o )\n\n\
         src/App.hs:12:5: Warning: Defined but not used: 'spare'\n\n<no location info>:\n\
         Failing due to -Werror.",
        1,
    );
    assert!(found_line(&log).starts_with("src/App.hs:12:5"), "{}", found_line(&log));
}

#[test]
fn command_that_travis_quotes_on_several_lines_ends_its_section() {
    let found = found_line(
        "$ case \"$BUILD\" in\nsrc/a.md:12: heading level skips from 1 to 3\n\
         The command \"case \"$BUILD\" in\n  lint) ./lint || echo \"error: failed\" ;;\n\
         esac\" exited with 1.\n$ cat error.log\ncat: error.log: No such file or directory\n\
         Done. Your build exited with 1.\n",
    );
    assert_eq!(found, "src/a.md:12: heading level skips from 1 to 3");
}

#[test]
fn line_that_begins_like_the_end_of_a_command_of_travis_ends_no_later_one() {
    let error = "src/a.c:3:1: error: expected ';' before '}' token";
    let more: String = (0..70).map(|n| format!("step {n} is done\n")).collect();
    let found = found_line(&format!(
        "$ ./install\nThe command \"docker build x\nis deprecated\n$ ./test\n{error}\n\
         worker \"b\" exited with 1.\n{more}The command \"./test\" exited with 1.\n\
         Done. Your build exited with 1.\n",
    ));
    assert_eq!(found, error);
}

/// A job of Travis with an install command that passed and a script that failed.
fn travis_job(install: &str, script: &str) -> String {
    format!(
        "travis_fold:start:install\n$ npm install\n{install}travis_fold:end:install\n\
         $ npm test\n{script}The command \"npm test\" exited with 1.\n\
         Done. Your build exited with 1.\n"
    )
}

#[test]
fn compiler_error_that_an_install_command_overcame_gives_way_to_the_failed_script() {
    let install = "> (node-gyp rebuild 2> builderror.log) || (exit 0)\n  CXX(target) Release/obj.target/kerberos.o\n\
                   ../lib/kerberos.cc:848:43: error: no viable conversion from 'Handle<v8::Value>'\n\
                   make: *** [Release/obj.target/kerberos.o] Error 1\napp@1.2.0 /home/travis/build/acme/app\n";
    let script = "standard: Use JavaScript Standard Style (https://github.com/feross/standard)\n  \
                  /home/travis/build/acme/app/src/app.js:12:20: Extra semicolon.\n\
                  npm ERR! Test failed.  See above for more details.\n";
    assert!(found_line(&travis_job(install, script)).ends_with("Extra semicolon."));
    let found = found_line(&travis_job(install, "npm ERR! Test failed.\n"));
    assert!(found.starts_with("../lib/kerberos.cc"), "{found}");
}

#[test]
fn end_of_rustc_gives_way_to_the_error_above() {
    let log = "$ cargo clippy -- -D warnings\n   Compiling app v0.1.0\n\
               error: this argument is passed by value, but not consumed in the function body\n  \
               --> src/lib.rs:12:13\n   |\n12 | fn run(foo: String) {}\n   |             ^^^^^^ help: consider `&str`\n   |\n   \
               = note: `-D needless-pass-by-value` implied by `-D warnings`\n\n\
               error: aborting due to previous error\n\nerror: Could not compile `app`.\n\n\
               The command \"cargo clippy -- -D warnings\" exited with 101.\n";
    assert!(found_line(log).starts_with("error: this argument"), "{}", found_line(log));
}
