//! Text of strangers that goes through a file of the job.

use super::tests::{codes, with_rights};

/// A step with the text of a comment, and one without.
fn two_steps(writes: &str, runs: &str) -> Vec<&'static str> {
    let step = |script: &str| {
        let lines: String = script.lines().map(|line| format!("          {line}\n")).collect();
        format!("      - run: |\n{lines}")
    };
    let env = "        env: {BODY: '${{ github.event.comment.body }}', TITLE: '${{ github.event.issue.title }}', \
               ID: '${{ github.event.comment.id }}'}\n";
    codes(&with_rights("issue_comment", &format!("{}{env}{}", step(writes), step(runs))))
}

#[test]
fn file_with_text_of_a_stranger_that_a_later_step_runs_is_told() {
    let mut wrong = vec![];
    for (writes, runs) in [
        ("echo \"$BODY\" > f", "bash f"),
        ("echo \"$TITLE\" > \"$RUNNER_TEMP/f\"", "bash -e \"${{ runner.temp }}/f\""),
        ("printf '%s' \"$BODY\" >> out/f.sh", "cd out && sh ./f.sh"),
        ("echo \"$BODY\" > f", "chmod +x f\n./f --all"),
        ("echo \"$BODY\" > f", "sudo bash f"),
        ("echo \"$BODY\" > f", "timeout 60 python3 -u f"),
        ("echo \"$BODY\" > f", "docker run --rm -v \"$PWD:/w\" alpine sh /w/f"),
        ("echo \"$BODY\" > f", "cat f | sh"),
        ("echo \"$BODY\" > f", "cat f | tr -d '\\r' | sudo bash -s"),
        ("echo \"$BODY\" > f", "bash < f"),
        ("echo \"$BODY\" > f", "source f"),
        ("echo \"$BODY\" > f", "set -a; . ./f; set +a"),
        ("echo \"$BODY\" > f", "xargs < f sh -c"),
        ("echo \"$BODY\" > f", "xargs -a f -I{} sh -c '{}'"),
        ("echo \"$BODY\" > f", "xargs -I% bash -c 'echo %' < f"),
        ("echo \"$BODY\" > f", "parallel < f"),
        ("echo \"$BODY\" > f", "eval \"$(cat f)\""),
        ("echo \"$BODY\" > f", "eval \"$(<f)\""),
        ("echo \"$BODY\" > f", "eval \"run `head -1 f`\""),
        ("echo \"$BODY\" > f", "bash -c \"$(cat f)\""),
        ("echo \"$BODY\" > f", "$(cat f)"),
        ("echo \"$BODY\" > f", "command=$(cat f)\n$command"),
        ("echo \"$BODY\" > f", "while read -r line; do eval \"$line\"; done < f"),
        ("echo \"$BODY\" > f", "while read -r line; do\n  eval \"$line\"\ndone < <(cat f)"),
        (
            "echo \"$BODY\" > f",
            "mapfile -t all < f\nfor one in \"${all[@]}\"; do eval \"$one\"; done",
        ),
        ("echo \"$BODY\" > f", "python - <<EOF\nprint('$(cat f)')\nEOF"),
        ("echo \"$BODY\" > f", "node f"),
        ("echo \"$BODY\" > f", "make -f f all"),
        ("echo \"$BODY\" > f", "sed -i -f f page.html"),
        ("echo \"$BODY\" > f", "export $(grep -v '^#' f | xargs)"),
        ("echo \"$BODY\" > f", "env $(cat f) make"),
        ("echo \"$BODY\" > f", "ssh host \"$(cat f)\""),
        ("echo \"$BODY\" > f", "claude -p < f"),
        ("echo \"$BODY\" | tee f", "bash f"),
        ("echo \"$BODY\" | sed 's/a/b/' | tee -a f > /dev/null", "bash f"),
        ("cat <<EOF > f\nrun $BODY\nEOF", "bash f"),
        ("cat > f <<EOF\n#!/bin/sh\n$BODY\nEOF", "bash f"),
        ("{\n  echo '#!/bin/sh'\n  echo \"$BODY\"\n} > f", "bash f"),
        ("(cd x; echo \"$BODY\") > f", "bash f"),
        ("for word in $BODY; do echo \"$word\"; done > f", "bash f"),
        ("if true; then echo \"$BODY\"; fi > f", "bash f"),
        ("text=${BODY#/run}\necho \"$text\" > f", "bash f"),
        ("echo \"$BODY\" > a\ncp a b\nmv b c", "bash c"),
        ("echo \"$BODY\" > a\ncat head a > f", "bash f"),
        ("gh pr view 1 --json body -q .body > f", "bash f"),
        ("jq -r .comment.body \"$GITHUB_EVENT_PATH\" > f", "cat f | bash"),
        ("f=$(mktemp)\necho \"$BODY\" > \"$f\"\nbash \"$f\"", "true"),
        ("run() { bash f; }\necho \"$BODY\" > f\nrun", "true"),
        ("echo \"$BODY\" > f\necho \"$BODY\" >> f", "bash f"),
        ("echo make > f\necho \"$BODY\" >> f", "bash f"),
    ] {
        if two_steps(writes, runs) != ["event-as-code"] {
            wrong.push(format!("{writes} / {runs}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn file_with_text_of_a_stranger_that_sets_variables_is_told() {
    let mut wrong = vec![];
    for (writes, sets) in [
        ("echo \"$BODY\" > f", "cat f >> \"$GITHUB_ENV\""),
        ("echo \"$TITLE\" > f", "cat f >> $GITHUB_PATH"),
        ("printf '%s\\n' \"$TITLE\" > f", "cat f | tee -a \"$GITHUB_ENV\""),
        ("echo \"TEXT=$BODY\" > f", "cat f >> \"$GITHUB_ENV\""),
        ("cat > f <<EOF\nA=1\n$TITLE\nEOF", "cat < f >> \"$GITHUB_ENV\""),
        ("echo \"$TITLE\" > f", "{ echo A=1; cat f; } >> \"$GITHUB_ENV\""),
        ("gh pr view 1 --json title -q .title > f", "cat f >> \"$GITHUB_ENV\""),
        ("text=$BODY\necho \"TEXT=$text\" > f", "cat f >> \"$GITHUB_ENV\""),
        ("echo \"$TITLE\" > f", "cat f >> $GITHUB_OUTPUT\necho allowed=no >> $GITHUB_OUTPUT"),
        ("echo \"$TITLE\" >> \"$GITHUB_PATH\"", "true"),
        ("echo \"$BODY\" > f", "echo \"TEXT=$(cat f)\" >> \"$GITHUB_ENV\""),
    ] {
        if two_steps(writes, sets) != ["event-to-environment"] {
            wrong.push(format!("{writes} / {sets}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn file_of_other_shells_and_interpreters_is_told() {
    let env = "        env: {BODY: '${{ github.event.comment.body }}'}\n";
    let step = |shell: &str, script: &str| {
        let lines: String = script.lines().map(|line| format!("          {line}\n")).collect();
        match shell {
            "javascript" => format!(
                "      - uses: actions/github-script@v8\n{env}        with:\n          script: |\n{}",
                lines.replace("          ", "            ")
            ),
            _ => format!("      - run: |\n{lines}        shell: {shell}\n{env}"),
        }
    };
    let bash = |script: &str| format!("      - run: {script}\n");
    let mut wrong = vec![];
    for steps in [
        step("pwsh", "$env:BODY | Out-File -FilePath run.ps1\n. ./run.ps1"),
        step(
            "pwsh",
            "Set-Content -Path run.txt -Value $env:BODY\nInvoke-Expression (Get-Content run.txt -Raw)",
        ),
        step("pwsh", "$env:BODY > Run.ps1\n& ./run.ps1"),
        step("python", "import os\nwith open('f', 'w') as f:\n  f.write(os.environ['BODY'])")
            + &bash("bash f"),
        step("python", "import os, pathlib\npathlib.Path('f').write_text(os.getenv('BODY'))")
            + &bash("bash f"),
        step("bash", "echo \"$BODY\" > f") + &step("python", "exec(open('f').read())"),
        step("bash", "echo \"$BODY\" > f") + &step("python", "import os\nos.system('bash f')"),
        step("bash", "echo \"$BODY\" > f")
            + &step("python", "import subprocess\nsubprocess.run(['bash', 'f'])"),
        step("javascript", "require('fs').writeFileSync('f.sh', context.payload.comment.body)")
            + &bash("bash f.sh"),
        step(
            "javascript",
            "fs.writeFileSync('f', process.env.BODY)\nawait exec.exec('bash', ['f'])",
        ),
        step("bash", "echo \"$BODY\" > f.js") + &step("javascript", "require('./f.js')"),
    ] {
        if codes(&with_rights("issue_comment", &steps)) != ["event-as-code"] {
            wrong.push(steps);
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn ordinary_files_with_text_of_a_stranger_are_left_alone() {
    let mut wrong = vec![];
    for (writes, uses) in [
        ("echo \"$BODY\" > body.md", "gh pr comment \"$ID\" --body-file body.md"),
        ("printf '%s' \"$BODY\" > message", "git commit -F message"),
        ("echo \"$BODY\" > f", "grep -q '^/test' f && echo yes"),
        ("echo \"$BODY\" > f", "grep -i bash f; grep python f | head -1"),
        ("echo \"$BODY\" > f", "python check.py f"),
        ("echo \"$BODY\" > f", "python check.py < f"),
        ("echo \"$BODY\" > f", "bash check.sh --file f"),
        ("echo \"$BODY\" > f", "npx commitlint < f"),
        ("echo \"$BODY\" > f", "cat f >> \"$GITHUB_STEP_SUMMARY\""),
        ("echo \"$BODY\" > f", "cat f"),
        ("echo \"$BODY\" > f", "if [[ $(wc -l < f) -gt 3 ]]; then echo long; fi"),
        ("echo \"$BODY\" > f", "[[ $(cat f | wc -c) -gt 3 ]] && exit 1"),
        ("echo \"$BODY\" > f", "n=$(grep -c x f)\n[[ $n -gt 3 ]] && exit 1"),
        ("echo \"$BODY\" > f", "jq -Rs '{text: .}' f > f.json\ncurl -d @f.json https://x"),
        ("cat > f.json <<EOF\n{\"text\": \"$BODY\"}\nEOF", "curl -d @f.json https://x"),
        ("jq -n --arg text \"$BODY\" '{$text}' > f.json", "gh api -X POST x --input f.json"),
        ("gh pr view 1 --json title,body > f.json", "jq -r .title f.json"),
        ("gh pr view 1 --json body -q .body > body.md", "./check-links body.md"),
        ("echo \"$BODY\" > f", "bash run.sh\nsource env.sh\n./configure"),
        ("echo \"ID=$ID\" > f", "source f; cat f >> $GITHUB_ENV"),
        ("echo \"TITLE=$TITLE\" > f", "cat f >> \"$GITHUB_ENV\""),
        ("echo \"- $BODY\" > f", "{ echo \"N<<$END\"; cat f; echo $END; } >> $GITHUB_ENV"),
        ("echo \"$BODY\" > f", "tr -d '\\n' < f >> $GITHUB_ENV"),
        ("echo \"$BODY\" > f", "sed -n 's/^version: \\([0-9.]*\\)$/V=\\1/p' f >> $GITHUB_ENV"),
        ("echo \"$BODY\" | grep -oE 'v[0-9]+' | sed 's/^/V=/' | tee -a \"$GITHUB_ENV\"", "true"),
        ("echo \"$BODY\" > f\necho make > f", "bash f"),
        ("f=$(mktemp)\necho \"$BODY\" > \"$f\"", "for f in *.sh; do bash \"$f\"; done"),
        ("echo \"$BODY\" > /dev/stderr; echo \"$BODY\" >&2", "bash stderr"),
        ("echo \"$BODY\"\n{ echo '#!/bin/sh'; echo make; } > f", "bash f"),
        ("(echo make) > f; echo \"$BODY\"", "bash f"),
        ("echo \"title=$TITLE\" >> \"$GITHUB_OUTPUT\"", "export TITLE=x; make"),
        ("echo \"$BODY\" > f", "while read -r line; do echo \"$line\"; done < f"),
        ("echo \"$BODY\" > f", "xargs -n1 echo < f"),
        ("echo \"$BODY\" > f", "docker run --rm -v \"$PWD:/w\" lint f"),
    ] {
        if !two_steps(writes, uses).is_empty() {
            wrong.push(format!("{writes} / {uses}: {:?}", two_steps(writes, uses)));
        }
    }
    assert_eq!(wrong, [""; 0]);
    // What a maintainer's push brings was read.
    let pushed = "      - run: |\n          echo \"$MESSAGE\" > f\n          cat f >> \"$GITHUB_ENV\"\n        env: \
                  {MESSAGE: '${{ github.event.head_commit.message }}'}\n";
    assert_eq!(codes(&with_rights("push", pushed)), [""; 0]);
    let released = "      - run: |\n          echo \"version=$VERSION\" >> $GITHUB_OUTPUT\n          echo 'notes<<EOF' >> \
                    $GITHUB_OUTPUT\n          echo \"$NOTES\" >> $GITHUB_OUTPUT\n          echo EOF >> $GITHUB_OUTPUT\n  \
                    \x20     env: {NOTES: '${{ github.event.inputs.notes || github.event.release.body }}'}\n";
    assert_eq!(codes(&with_rights("[release, workflow_dispatch]", released)), [""; 0]);
}

#[test]
fn changes_of_a_stranger_that_a_later_step_applies_are_its_code() {
    let is_strangers = |gets: &str, applies: &str| {
        let env = "        env: {N: '${{ github.event.number }}', URL: '${{ github.event.pull_request.diff_url }}'}\n";
        let steps = format!("      - run: {gets}\n{env}      - run: {applies}\n");
        codes(&with_rights("pull_request_target", &steps)).contains(&"token-exposed")
    };
    for (gets, applies) in [
        ("gh pr diff \"$N\" > pr.patch", "git apply pr.patch && make"),
        ("gh pr diff \"$N\" > \"$RUNNER_TEMP/pr.diff\"", "patch -p1 < \"$RUNNER_TEMP/pr.diff\""),
        ("curl -sL \"$URL\" -o pr.diff", "git am pr.diff"),
    ] {
        assert!(is_strangers(gets, applies), "{gets} / {applies}");
    }
    for (gets, applies) in [
        ("gh pr diff \"$N\" > pr.patch", "grep -c '^+' pr.patch"),
        ("gh pr diff \"$N\" > pr.patch", "git apply ci/own.diff"),
    ] {
        assert!(!is_strangers(gets, applies), "{gets} / {applies}");
    }
}

#[test]
fn variable_with_text_of_a_stranger_that_a_later_step_runs_is_told() {
    for (writes, runs) in [
        ("echo \"CMD=$TITLE\" >> $GITHUB_ENV", "eval \"$CMD\""),
        ("printf 'CMD=%s\\n' \"$TITLE\" | tee -a \"$GITHUB_ENV\"", "bash -c \"make $CMD\""),
        ("{ echo A=1; echo \"CMD=$TITLE\"; } >> \"$GITHUB_ENV\"", "$CMD"),
        ("cat >> \"$GITHUB_ENV\" <<EOF\nA=1\nCMD=$TITLE\nEOF", "eval \"$CMD\""),
        ("jq -rn '\"CMD=\\(env.TITLE)\"' >> $GITHUB_ENV", "eval \"$CMD\""),
        (
            "python3 -c \"import os; print('CMD=' + os.environ['TITLE'])\" >> $GITHUB_ENV",
            "eval \"$CMD\"",
        ),
        (
            "python3 - <<'EOF'\nimport os\nopen(os.environ['GITHUB_ENV'], 'a').write(f\"CMD={os.environ['TITLE']}\")\nEOF",
            "eval \"$CMD\"",
        ),
        (
            "node -e 'require(\"fs\").appendFileSync(process.env.GITHUB_ENV, `CMD=${process.env.TITLE}`)'",
            "eval \"$CMD\"",
        ),
    ] {
        assert_eq!(two_steps(writes, runs), ["event-as-code"], "{writes} {runs}");
    }
    for (writes, runs) in [
        ("echo \"CMD=$ID\" >> $GITHUB_ENV", "eval \"$CMD\""),
        ("echo \"CMD=$TITLE\" >> $GITHUB_ENV", "echo \"$CMD\""),
        ("echo \"CMD=$TITLE\"", "eval \"$CMD\""),
        ("echo \"CMD=$TITLE\" >> $GITHUB_OUTPUT", "eval \"$CMD\""),
        ("cat >> \"$GITHUB_ENV\" <<EOF\nCMD=make\nNOTE=$TITLE\nEOF", "eval \"$CMD\""),
        ("jq -rn '\"CMD=\\(env.TITLE)\"'", "eval \"$CMD\""),
    ] {
        assert_eq!(two_steps(writes, runs), [""; 0], "{writes} {runs}");
    }
    let env = "        env: {TITLE: '${{ github.event.issue.title }}'}\n";
    for (shell, script) in [
        ("python", "open(os.environ['GITHUB_ENV'], 'a').write('CMD=' + os.environ['TITLE'])"),
        (
            "python",
            "print(f\"CMD={os.environ['TITLE']}\", file=open(os.environ['GITHUB_ENV'], 'a'))",
        ),
        ("pwsh", "\"CMD=$env:TITLE\" | Out-File -FilePath $env:GITHUB_ENV -Append"),
        ("pwsh", "Add-Content $env:GITHUB_ENV \"CMD=$env:TITLE\""),
    ] {
        let step = format!("      - run: |\n          {script}\n        shell: {shell}\n{env}");
        let later = "      - run: eval \"$CMD\"\n";
        let found = codes(&with_rights("issue_comment", &(step + later)));
        assert_eq!(found, ["event-as-code"], "{script}");
    }
    let appends = "      - uses: actions/github-script@v8\n        with:\n          script: \
                   require('fs').appendFileSync(process.env.GITHUB_ENV, `CMD=${context.payload.issue.title}`)\n      - run: \
                   eval \"$CMD\"\n";
    assert_eq!(codes(&with_rights("issue_comment", appends)), ["event-as-code"]);
    let exports = "      - uses: actions/github-script@v8\n        with: {script: \"core.exportVariable('CMD', \
                   context.payload.issue.title)\"}\n      - run: eval \"$CMD\"\n";
    assert_eq!(codes(&with_rights("issue_comment", exports)), ["event-as-code"]);
}

/// It reads files and variables as it reads its prompt.
#[test]
fn agent_that_is_told_where_a_strangers_text_is_obeys_it() {
    let found = |before: &str, agent: &str| {
        let steps =
            format!("{before}      - uses: google-github-actions/run-gemini-cli@v1\n{agent}");
        codes(&with_rights("issues", &steps))
    };
    let title = "TITLE: '${{ github.event.issue.title }}'";
    let by_variable = format!(
        "        env: {{{title}}}\n        with: {{prompt: 'Give the issue \"${{TITLE}}\" a label'}}\n"
    );
    assert_eq!(found("", &by_variable), ["event-as-code"]);
    let writes = format!(
        "      - run: echo \"Title - $TITLE\" > issue_context.md\n        env: {{{title}}}\n"
    );
    for prompt in ["Read \"issue_context.md\" and answer", "Answer ./issue_context.md."] {
        let by_file = format!("        with: {{prompt: '{prompt}'}}\n");
        assert_eq!(found(&writes, &by_file), ["event-as-code"], "{prompt}");
        assert_eq!(found("", &by_file), [""; 0], "{prompt}");
    }
    let by_number = "        env: {N: '${{ github.event.issue.number }}'}\n        with: {prompt: 'Look at ${{ \
                     github.event.issue.number }}, not at notes.md'}\n";
    assert_eq!(found(&writes, by_number), [""; 0]);
}
