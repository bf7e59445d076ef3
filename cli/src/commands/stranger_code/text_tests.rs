//! Text of strangers that a step runs or hands on.

use super::tests::{all, codes, codes_of, judge, with_rights};

/// Of the event's text in a variable; `BODY` is a comment's, `ID` a number.
#[test]
fn text_of_strangers_that_a_script_runs_is_told() {
    let found = |steps: &str| {
        let env = "        env: {BODY: '${{ github.event.comment.body }}', ID: '${{ github.event.comment.id \
                   }}'}\n";
        codes(&with_rights("issue_comment", &format!("{steps}{env}")))
    };
    let run = |script: &str| {
        let lines: String = script.lines().map(|line| format!("          {line}\n")).collect();
        format!("      - run: |\n{lines}")
    };
    let mut wrong = vec![];
    for script in [
        "eval \"$BODY\"",
        "eval \"run ${BODY#/test}\"",
        "bash -c \"$BODY\"",
        "sudo -u ci bash -euo pipefail -c \"make $BODY\"",
        "docker run --rm alpine sh -lc \"echo $BODY\"",
        "timeout 60 su ci -c \"$BODY\"",
        "echo \"$BODY\" | bash",
        "printf '%s' \"$BODY\" | tr -d '\\r' | sh -s",
        "echo \"$BODY\" | docker exec -i c bash",
        "echo \"$BODY\" | xargs -I{} sh -c 'echo {}'",
        "bash <<< \"$BODY\"",
        "bash <(echo \"$BODY\")",
        "source <(echo \"$BODY\")",
        "python3 - <<EOF\nprint('$BODY')\nEOF",
        "python3 - <<'EOF'\nimport os\nos.system('make ' + os.environ['BODY'])\nEOF",
        "node <<'EOF'\nrequire('child_process').execSync(`make ${process.env.BODY}`)\nEOF",
        "sudo -E bash -s <<'EOF'\neval \"$BODY\"\nEOF",
        "python -c \"print('$BODY')\"",
        "node -e \"console.log('$BODY')\"",
        "perl -pi -e \"s/x/$BODY/\" file",
        "$BODY",
        "if true; then \"$BODY\"; fi",
        "command=${BODY#/run }\n$command --all",
        "echo \"$BODY\" | while read -r line; do eval \"$line\"; done",
        "for word in $BODY; do\n  eval \"$word\"\ndone",
        "x=\"$(eval \"$BODY\")\"",
        "[[ \"$BODY\" -eq 3 ]] && echo three",
        "echo $((BODY + 1))",
        "((BODY > 1)) && echo many",
        "sed -i \"s/TITLE/$BODY/\" page.html",
        "awk \"{print \\\"$BODY\\\"}\" file",
        "jq \".text = \\\"$BODY\\\"\" a.json",
        "ssh host \"deploy $BODY\"",
        "ssh -i key host bash -s <<EOF\ndeploy $BODY\nEOF",
        "ssh -T host <<EOF\ndeploy $BODY\nEOF",
        "for ((i = 0; i < BODY; i++)); do make; done",
        "if ((BODY > 1)); then make; fi",
        "make release NOTES=\"$BODY\"",
        "make \"${BODY#/run }\"",
        "declare -i count=\"$BODY\"",
        "claude -p \"Answer: $BODY\"",
        "gh issue view 1 --json body | npx gemini --yolo",
        "gh pr view 1 --json body -q .body | bash",
        "jq -r .comment.body \"$GITHUB_EVENT_PATH\" | sh",
        "text=$(gh api repos/a/b/issues/1 --jq .title)\neval \"echo $text\"",
    ] {
        if found(&run(script)) != ["event-as-code"] {
            wrong.push(script.to_owned());
        }
    }
    let with_shell = |shell: &str, script: &str| format!("{}        shell: {shell}\n", run(script));
    let javascript = |script: &str| {
        format!(
            "      - uses: actions/github-script@v8\n        with:\n          script: |\n            {script}\n"
        )
    };
    for steps in [
        with_shell("pwsh", "Invoke-Expression $env:BODY"),
        with_shell("pwsh", "$text = $env:BODY\niex \"echo $text\""),
        with_shell("cmd", "echo %BODY%"),
        with_shell("python", "import os\nos.system('echo ' + os.environ['BODY'])"),
        with_shell(
            "python",
            "import os, subprocess\nbody = os.getenv('BODY')\nsubprocess.run(\n  f'echo {body}',\n  shell=True)",
        ),
        "      - uses: anthropics/claude-code-action@v1\n        with: {prompt: 'Answer ${{ \
         github.event.comment.body }}'}\n"
            .to_owned(),
        "      - uses: anthropics/claude-code-action@v1\n        with: {allowed_non_write_users: '*'}\n"
            .to_owned(),
        javascript("eval(process.env.BODY)"),
        javascript("await exec.exec(context.payload.comment.body)"),
        javascript("const { comment } = context.payload; execSync(`echo ${comment.body}`)"),
        javascript("await exec.exec('bash', ['-c', `echo ${context.payload.comment.body}`])"),
        javascript("new Function(context.payload?.comment?.body)()"),
        javascript("const { comment: { body } } = context.payload; execSync(`make ${body}`)"),
        javascript(
            "const m = context.payload.comment.body.match(/^.test (.+)$/); execSync(`make ${m[1]}`)",
        ),
        javascript(
            "const [, name] = context.payload.comment.body.split(' '); execSync(`make ${name}`)",
        ),
        javascript(
            "const { data: pr } = await github.rest.pulls.get({}); execSync(`git push x ${pr.head.ref}`)",
        ),
        with_shell(
            "python",
            "import os, subprocess\nsubprocess.run(f\"make {os.environ['BODY']}\", shell=True)",
        ),
    ] {
        if found(&steps) != ["event-as-code"] {
            wrong.push(steps);
        }
    }
    let options =
        "      - run: make\n        env: {NODE_OPTIONS: '${{ github.event.comment.body }}'}\n";
    assert_eq!(codes(&with_rights("issue_comment", options)), ["event-as-code"]);
    for script in [
        "echo \"$BODY\"",
        "eval \"echo $ID\"",
        "eval \"$(ssh-agent -s)\"; echo \"$BODY\"",
        "bash -c 'echo \"$BODY\"'",
        "bash -c 'echo \"$1\"' _ \"$BODY\"",
        "bash -c \"echo $(printf %q \"$BODY\")\"",
        "bash run.sh \"$BODY\"",
        "python3 - \"$BODY\" <<'EOF'\nimport sys; print(sys.argv[1], '$BODY')\nEOF",
        "python3 - <<'EOF'\nimport os, subprocess\nsubprocess.run(['gh', os.environ['BODY']])\nEOF",
        "python3 send.py <<'EOF'\nos.system(os.environ['BODY'])\nEOF",
        "[[ -n \"$BODY\" && \"$BODY\" == \"/test\" && $ID -gt 3 ]]",
        "if [[ \"$ID\" -eq 3 ]]; then echo \"$BODY\"; fi",
        "echo \"$((ID + 1)) $BODY\"",
        "words=(\n  \"$BODY\"\n)",
        "declare text=\"$BODY\"; make \"test-$BODY\"",
        "case \"$BODY\" in /test*) echo yes;; esac",
        "jq --arg text \"$BODY\" '.text = $text' a.json",
        "jq -n --arg text \"$BODY\" '{$text}' | curl -d @- https://x",
        "awk -v text=\"$BODY\" '{print text}' file",
        "sed 's/x/$BODY/' file",
        "gh pr comment \"$ID\" --body \"$BODY\"",
        "git commit -m \"$BODY\"",
        "curl https://x/install | sh\necho \"$BODY\"",
        "ssh -i key host 'cat > notes.md' <<< \"$BODY\"",
        "for ((i = 0; i < ID; i++)); do make; done",
        "cat <<EOF > notes.md\n$BODY\nEOF",
        "# eval \"$BODY\"",
        "jq -r .issue.number \"$GITHUB_EVENT_PATH\" | sh",
    ] {
        if !found(&run(script)).is_empty() {
            wrong.push(script.to_owned());
        }
    }
    for steps in [
        with_shell("cmd", "echo !BODY! %ID%"),
        with_shell("pwsh", "Write-Output $env:BODY"),
        with_shell("pwsh", "$text = \"${env:BODY}!\"\n$api.Dispatch($text)"),
        with_shell("python", "import os, subprocess\nsubprocess.run(['echo', os.environ['BODY']])"),
        javascript("core.info(context.payload.comment.body)"),
        javascript("await exec.exec('git', ['commit', '-m', context.payload.comment.body])"),
        javascript(
            "const issue = context.payload.issue; await exec.exec(`gh pr checks ${issue.number}`)",
        ),
        javascript("/x/.exec(context.payload.comment.body)"),
        javascript(
            "const m = context.payload.comment.body.match(/^.test ([0-9]+)$/); execSync(`make ${m[1]}`)",
        ),
        javascript(
            "const { data: pr } = await github.rest.pulls.get({}); execSync(`git log ${pr.head.sha}`)",
        ),
        javascript(
            "const { data: pr } = await github.rest.pulls.get({}); execSync(`git log ${pr.base.ref}`)",
        ),
        javascript("execSync(`gh pr checks ${context.payload.comment.pull_requests[0].number}`)"),
    ] {
        if !found(&steps).is_empty() {
            wrong.push(steps);
        }
    }
    assert_eq!(wrong, [""; 0]);
    let fork = "      - run: eval \"$TITLE\"\n        env: {TITLE: '${{ github.event.pull_request.title }}'}\n";
    assert_eq!(codes(&with_rights("pull_request", fork)), [""; 0]);
    let head = "      - run: eval \"git log $GITHUB_HEAD_REF\"\n";
    assert!(codes(&with_rights("pull_request_target", head)).contains(&"event-as-code"));
}

/// Code that no shell fills anything in, and that reads the variable itself.
#[test]
fn code_given_to_an_interpreter_that_runs_a_variable_of_strangers_is_told() {
    let found = |script: &str| {
        let step = format!(
            "      - run: |\n          {script}\n        env: {{T: '${{{{ github.event.pull_request.title }}}}'}}\n"
        );
        all(&with_rights("pull_request_target", &step))
    };
    for script in [
        "python3 -c 'import os; exec(os.environ[\"T\"])'",
        "python3 -c 'import os; t = os.environ[\"T\"]; os.system(t)'",
        "node -e \"eval(process.env.T)\"",
        "node -e 'require(\"child_process\").execSync(process.env.T)'",
        "perl -e 'eval $ENV{T}'",
        "perl -e 'print `$ENV{T}`'",
        "ruby -e 'eval ENV[\"T\"]'",
        "php -r 'eval(getenv(\"T\"));'",
        "bash -c 'eval \"$T\"'",
        "sudo -E sh -c 'exec $T'",
        "pwsh -c 'iex $env:T'",
    ] {
        assert_eq!(found(script), (vec!["event-as-code"], vec![]), "{script}");
    }
    for script in [
        "deno eval 'eval(Deno.env.get(\"T\"))'",
        "node -e 'const t = process.env.T; eval(t)'",
        "python3 -c 'from os import *; system(environ[\"T\"])'",
    ] {
        let (found, unknown) = found(script);
        assert!(
            found.is_empty() && unknown.len() == 1 && unknown[0].contains("may run it"),
            "{script}: {found:?} {unknown:?}"
        );
    }
    for script in [
        "python3 -c 'import os; print(os.environ[\"T\"])'",
        "node -e 'console.log(process.env.T)'",
        "perl -e 'print $ENV{T}'",
        "ruby -e 'puts ENV[\"OTHER\"]; eval ENV[\"CODE\"]'",
        "bash -c 'echo \"$T\"'",
    ] {
        assert_eq!(found(script), (vec![], vec![]), "{script}");
    }
}

#[test]
fn text_of_strangers_that_an_action_gets_is_found_or_not_understood() {
    let workflow = |uses: &str| {
        let title = "${{ github.event.pull_request.title }}";
        let step = format!("      - uses: {uses}\n        with: {{t: '{title}'}}\n");
        with_rights("pull_request_target", &step)
    };
    let local = workflow("./x");
    let with = |action: &str| {
        let files = [(".github/workflows/w.yml", &*local), ("x/action.yml", action)];
        (codes_of(&files), judge(&files).unknown)
    };
    for runs in [
        "{using: composite, steps: [{shell: 'bash -c \"${{ inputs.t }}\" {0}', run: echo}]}",
        "{using: docker, image: a, entrypoint: sh, args: ['-c', 'echo ${{ inputs.t }}']}",
        "{using: docker, image: a, pre-entrypoint: '${{ inputs.t }}'}",
    ] {
        let (found, _) = with(&format!("inputs: {{t: {{}}}}\nruns: {runs}"));
        assert_eq!(found, ["untrusted-expression"], "{runs}");
    }
    let by_variable = "inputs: {t: {}}\nruns: {using: docker, image: a, entrypoint: sh, args: ['-c', 'eval \
                       \"$T\"'], env: {T: '${{ inputs.t }}'}}";
    assert_eq!(with(by_variable).0, ["event-as-code"]);
    let named = "`b` in `.github/workflows/w.yml`";
    for runs in ["{using: node24, main: x.js}", "{using: docker, image: Dockerfile}"] {
        let (found, unknown) = with(&format!("inputs: {{t: {{}}}}\nruns: {runs}"));
        assert_eq!(found, [""; 0], "{runs}");
        assert_eq!(unknown, [format!("{named} uses `./x`, whose code isn't read")]);
    }
    let (found, unknown) = all(&workflow("x/y@v1"));
    assert_eq!(found, [""; 0]);
    let why = "gives `x/y` text of a stranger, and its code isn't read";
    assert_eq!(unknown, [format!("{named} {why}")]);
    let read_only =
        workflow("x/y@v1").replace("{contents: write, id-token: write}", "{contents: read}");
    assert_eq!(all(&read_only), (vec![], vec![]));
    let shell = "on: issues\ndefaults: {run: {shell: 'bash -c \"${{ github.event.issue.title }}\" {0}'}}\njobs: \
                 {b: {steps: [{run: make}]}}";
    assert_eq!(codes(shell), ["untrusted-expression"]);
}

/// Beside a stranger's checkout, a repository's own actions come from a second one.
#[test]
fn action_of_the_repository_in_the_folder_of_a_checkout_is_read() {
    let with = |checkout: &str, action: &str| {
        let title = "${{ github.event.pull_request.title }}";
        let steps = format!(
            "      - uses: actions/checkout@v7\n        with: {{{checkout}}}\n      - uses: \
             ./base/.github/actions/x\n        with: {{t: '{title}'}}\n"
        );
        let workflow = with_rights("pull_request_target", &steps);
        let files =
            [(".github/workflows/w.yml", &*workflow), (".github/actions/x/action.yml", action)];
        (codes_of(&files), judge(&files).unknown.len())
    };
    let wrong = "inputs: {t: {}}\nruns: {using: composite, steps: [{run: 'echo ${{ inputs.t }}'}]}";
    let right = "inputs: {t: {}}\nruns: {using: composite, steps: [{run: 'echo \"$T\"', env: {T: '${{ inputs.t \
                 }}'}}]}";
    for checkout in
        ["path: base", "path: ./base/", "path: base, repository: '${{ github.repository }}'"]
    {
        assert_eq!(with(checkout, wrong), (vec!["untrusted-expression"], 0), "{checkout}");
        assert_eq!(with(checkout, right), (vec![], 0), "{checkout}");
    }
    for checkout in ["path: other", "path: base, repository: acme/tools"] {
        assert_eq!(with(checkout, wrong), (vec![], 1), "{checkout}");
    }
    let mut set = super::WorkflowSet::new(None, "acme/app");
    let steps = "steps: [{uses: actions/checkout@v7, with: {path: base}}, {uses: ./base/x}]";
    set.add_workflow(".github/workflows/w.yml", &format!("on: push\njobs: {{a: {{{steps}}}}}"));
    assert_eq!(set.wanted_actions(), ["base/x/action.yml", "x/action.yml"]);
}

#[test]
fn text_of_strangers_that_a_step_hands_on_is_found_in_a_script() {
    let with = |step: &str, output: &str| {
        let steps = format!(
            "      - {{id: a, {step}}}\n      - run: echo ${{{{ steps.a.outputs.{output} }}}}\n"
        );
        codes(&with_rights("pull_request_target", &steps))
    };
    let title = "run: 'echo \"t=$(gh pr view 1 --json title -q .title)\" >> $GITHUB_OUTPUT'";
    let script =
        |script: &str| format!("uses: actions/github-script@v8, with: {{script: \"{script}\"}}");
    for (step, output) in [
        ("uses: tj-actions/changed-files@v46", "all_changed_files"),
        ("uses: dorny/paths-filter@v3, with: {list-files: csv}", "src_files"),
        ("uses: peter-evans/find-comment@v3", "comment-body"),
        (title, "t"),
        (&script("return context.payload.pull_request.title"), "result"),
        (&script("core.setOutput('t', context.payload.pull_request.body)"), "t"),
        (&script("return context.payload.pull_request.title.trim().split(' ')[1]"), "result"),
        (&script("return testNumber(context.payload.pull_request.title)"), "result"),
        (&script("return context.payload.pull_request.title.trim().match(/a (.+)/)[1]"), "result"),
        (&script("const pr = await github.rest.pulls.get(x); return pr.data.head.ref"), "result"),
        (
            &script(
                "const files = await github.paginate(github.rest.pulls.listFiles, x); const all = files.map(f => \
                 f.filename); core.setOutput('all', all.join(' '))",
            ),
            "all",
        ),
        (
            &script(
                "const re = /a (.{1,9})/; const m = context.payload.pull_request.title.match(re); return m[1]",
            ),
            "result",
        ),
        (
            &script(
                "const re = /a (.+)/; const m = re.exec(context.payload.pull_request.title); return m[1]",
            ),
            "result",
        ),
    ] {
        assert_eq!(with(step, output), ["untrusted-expression"], "{step}");
    }
    for (step, output) in [
        ("uses: tj-actions/changed-files@v46", "any_changed"),
        ("uses: dorny/paths-filter@v3", "src"),
        ("uses: peter-evans/find-comment@v3", "comment-id"),
        (&script("return context.payload.pull_request.number"), "result"),
        (&script("return context.payload.pull_request.title.startsWith('a')"), "result"),
        (&script("return context.payload.pull_request.title === 'a'"), "result"),
        (&script("return context.payload.pull_request.title.trim() === 'a'"), "result"),
        (&script("return /a/.test(context.payload.pull_request.title.toLowerCase())"), "result"),
        (&script("return parseInt(context.payload.pull_request.title.split(' ')[1])"), "result"),
        (
            &script(
                "const title = context.payload.pull_request.title; core.setOutput('title', title.length > 9)",
            ),
            "title",
        ),
        (
            &script(
                "const { data } = await github.rest.repos.getCollaboratorPermissionLevel({ username: \
                 context.payload.pull_request.user.login }); return data.permission",
            ),
            "result",
        ),
        (
            &script(
                "const pr = await github.rest.pulls.get(x); return pr.data.labels.map(l => l.name).join()",
            ),
            "result",
        ),
        (
            &script(
                "const m = context.payload.pull_request.title.match(/a (.+)/); core.setOutput('t', m ? 'yes' : 'no')",
            ),
            "t",
        ),
        (
            &script(
                "const re = /^a ([a-z]+)$/; const m = re.exec(context.payload.pull_request.title); return m[1]",
            ),
            "result",
        ),
        (
            &script(
                "const m = /^a ([a-z]+)$/.exec(context.payload.pull_request.title); return m[1]",
            ),
            "result",
        ),
        (&script("const pr = await github.rest.pulls.get(x); return pr.data.head.sha"), "result"),
        (&script("const pr = await github.rest.pulls.get(x); return pr.data.draft"), "result"),
        (
            &script(
                "const files = await github.rest.pulls.listFiles(x); return files.data.map(f => \
                 f.filename).some(f => f.endsWith('.md'))",
            ),
            "result",
        ),
    ] {
        assert_eq!(with(step, output), [""; 0], "{step}");
    }
    let own = "      - {id: a, uses: tj-actions/changed-files@v46}\n      - run: echo ${{ \
               steps.a.outputs.all_changed_files }}\n";
    assert_eq!(codes(&with_rights("push", own)), [""; 0]);
}

/// Doctor also reads workflows that somebody else wrote. What grows with the square of these would take many minutes.
#[test]
fn script_of_twenty_thousand_commands_is_read_in_bounded_time() {
    let start = std::time::Instant::now();
    for (shell, part) in [
        ("bash", "a=$BODY; "),
        ("bash", "echo \"$BODY\" | "),
        ("bash", "$("),
        ("bash", "x <<E "),
        ("bash", "for i in $a; do "),
        ("python", "a = eval("),
        ("pwsh", "iex ($x); "),
    ] {
        let script = part.repeat(20_000);
        let step = format!(
            "      - run: '{script}'\n        shell: {shell}\n        env: {{BODY: '${{{{ github.event.comment.body \
             }}}}'}}\n"
        );
        let _ = codes(&with_rights("issue_comment", &step));
    }
    assert!(start.elapsed().as_secs() < 120, "{:?}", start.elapsed());
}

#[test]
fn lines_of_strangers_in_an_environment_file_are_told() {
    let code = "event-to-environment";
    let with = |event: &str, value: &str, script: &str| {
        let env = format!("        env: {{TEXT: '${{{{ {value} }}}}'}}\n");
        codes(&with_rights(event, &format!("      - run: |\n          {script}\n{env}")))
    };
    let echo = "echo \"TEXT=$TEXT\" >> \"$GITHUB_ENV\"";
    for (event, value, script) in [
        ("issue_comment", "github.event.comment.body", echo),
        ("issues", "github.event.issue", "echo \"${TEXT}\" >> $GITHUB_ENV"),
        ("pull_request_target", "github.event.pull_request.body", "echo \"$TEXT\" >> $GITHUB_PATH"),
        ("repository_dispatch", "github.event.client_payload.title", echo),
        ("pull_request_review", "github.event.review.body", echo),
        (
            "issue_comment",
            "github.event.comment.body",
            "{ echo 'A<<EOF'; echo \"$TEXT\"; echo EOF; } >> $GITHUB_ENV",
        ),
        (
            "issue_comment",
            "github.event.comment.body",
            "echo \"text=$TEXT\" >> $GITHUB_OUTPUT\n          echo allowed=no >> $GITHUB_OUTPUT",
        ),
        (
            "issue_comment",
            "github.event.comment.body",
            "text=$(echo \"$TEXT\" | head -10)\n          echo \"TEXT=$text\" >> \"$GITHUB_ENV\"",
        ),
        (
            "issue_comment",
            "github.event.comment.body",
            "text=$(echo \"$TEXT\" | head -1)\n          echo \"A=$text\" >> $GITHUB_ENV\n          echo \"B=$TEXT\" >> \
             $GITHUB_ENV",
        ),
        ("issue_comment", "github.run_id", "jq -r .comment.body $GITHUB_EVENT_PATH >> $GITHUB_ENV"),
        ("issue_comment", "github.run_id", "gh pr view 1 --json body -q .body >> $GITHUB_ENV"),
        ("issue_comment", "github.event.comment.body", "\"TEXT=$env:TEXT\" >> $env:GITHUB_ENV"),
        (
            "issue_comment",
            "github.event.comment.body",
            "{ echo allowed=no; echo 'A<<EOF'; echo \"$TEXT\"; echo EOF; } >> $GITHUB_OUTPUT",
        ),
        (
            "issue_comment",
            "github.event.comment.body",
            "END=EOF; { echo \"A<<$END\"; echo \"$TEXT\"; echo $END; } >> $GITHUB_ENV",
        ),
        (
            "issue_comment",
            "github.event.comment.body",
            "grep -q x <<<\"$TEXT\" && echo \"TEXT=$TEXT\" >> $GITHUB_ENV",
        ),
        (
            "issue_comment",
            "github.event.comment.body",
            "open(os.environ['GITHUB_ENV'], 'a').write('A=' + os.environ['TEXT'])\n        shell: python",
        ),
    ] {
        assert_eq!(with(event, value, script), [code], "{event} {value} {script}");
    }
    for (event, value, script) in [
        ("pull_request_target", "github.head_ref", echo),
        ("repository_dispatch", "github.event.client_payload.slash_command.args.all", echo),
        (
            "issue_comment",
            "github.event.comment.body",
            "first=$(echo \"$TEXT\" | head -n 1)\n          echo \"TEXT=$first\" >> \"$GITHUB_ENV\"",
        ),
        (
            "issue_comment",
            "github.event.comment.body",
            "TEXT=$(echo \"$TEXT\" | xargs)\n          echo a=1 >> $GITHUB_OUTPUT\n          echo \"text=$TEXT\" >> \
             $GITHUB_OUTPUT",
        ),
        ("pull_request_target", "github.event.pull_request.title", echo),
        ("pull_request", "github.event.pull_request.body", echo),
        ("push", "github.event.head_commit.message", echo),
        (
            "issue_comment",
            "github.event.comment.body",
            "echo \"$TEXT\" > text; echo A=1 >> \"$GITHUB_OUTPUT\"",
        ),
        ("issue_comment", "github.event.comment.body", "echo \"text=$TEXT\" >> $GITHUB_OUTPUT"),
        ("issue_comment", "github.run_id", "jq -r .issue.number $GITHUB_EVENT_PATH >> $GITHUB_ENV"),
        ("issue_comment", "github.event.comment.body", "echo \"A=$TEXT_FILE\" >> $GITHUB_ENV"),
        (
            "issue_comment",
            "github.event.comment.body",
            "{ echo \"A<<$END\"; echo \"$TEXT\"; echo $END; } >> $GITHUB_ENV",
        ),
        (
            "issue_comment",
            "github.event.comment.body",
            "END=$(uuidgen); { echo \"A<<$END\"; echo \"$TEXT\"; echo $END; } >> $GITHUB_ENV",
        ),
        (
            "issue_comment",
            "github.event.comment.body",
            "{ echo 'A<<EOF'; echo \"$TEXT\"; echo EOF; } >> $GITHUB_OUTPUT",
        ),
    ] {
        assert_eq!(with(event, value, script), [""; 0], "{event} {value} {script}");
    }
    let javascript = |text: &str| {
        codes(&with_rights(
            "issue_comment",
            &format!(
                "      - uses: actions/github-script@v8\n        with:\n          script: \
                 require('fs').appendFileSync(process.env.GITHUB_ENV, 'A=' + {text})\n"
            ),
        ))
    };
    assert_eq!(javascript("context.payload.comment.body"), [code]);
    assert_eq!(javascript("context.payload.comment.id"), [""; 0]);
    assert_eq!(javascript("JSON.stringify(context.payload.comment.body)"), [""; 0]);
}

#[test]
fn runner_that_takes_variables_from_what_a_step_prints_is_told() {
    let with = |event: &str| {
        let env = "jobs:\n  b:\n    env: {ACTIONS_ALLOW_UNSECURE_COMMANDS: true}\n";
        codes(&with_rights(event, "      - run: echo hello\n").replace("jobs:\n  b:\n", env))
    };
    assert_eq!(with("issue_comment"), ["event-to-environment"]);
    assert_eq!(with("push"), [""; 0]);
}

/// A token that only reads still reads a private repository.
#[test]
fn token_that_a_script_leaves_to_git_beside_strangers_code_is_told() {
    let found = |script: &str| {
        codes(&format!(
            "on: pull_request_target\njobs:\n  a:\n    runs-on: ubuntu-latest\n    permissions: {{contents: read}}\n    \
             steps:\n      - uses: actions/checkout@v7\n        with: {{persist-credentials: false, ref: '${{{{ \
             github.event.pull_request.head.sha }}}}'}}\n      - run: |\n          {script}\n        env: {{TOKEN: \
             '${{{{ github.token }}}}'}}\n"
        ))
    };
    for script in [
        "git clone \"https://x-access-token:$TOKEN@github.com/acme/tools\"",
        "git config --global url.\"https://x:${TOKEN}@github.com/\".insteadOf https://github.com/",
        "git config http.https://github.com/.extraheader \"AUTHORIZATION: bearer $TOKEN\"",
        "git remote set-url origin https://x:${{ secrets.GITHUB_TOKEN }}@github.com/acme/app",
        "echo \"$TOKEN\" | gh auth login --with-token",
    ] {
        assert_eq!(found(script), ["git-credentials"], "{script}");
    }
    for script in [
        "git clone https://github.com/acme/tools",
        "git config --global user.email bot@example.org",
        "git -c http.extraheader=\"AUTHORIZATION: bearer $TOKEN\" clone https://github.com/acme/tools",
        "GH_TOKEN=$TOKEN gh pr view 1",
    ] {
        assert_eq!(found(script), [""; 0], "{script}");
    }
}
