//! Whose code a checkout or a script brings.

use super::WorkflowSet;
use super::tests::{all, codes, codes_of, with_rights};

/// Such as of a bot that opens a branch for an issue.
#[test]
fn branch_with_an_issues_number_in_its_name_is_the_repositorys_own() {
    let found = |before: &str, script: &str, number: &str| {
        let lines: String = script.lines().map(|line| format!("          {line}\n")).collect();
        let env = format!("        env: {{N: '${{{{ {number} }}}}'}}\n");
        codes(&with_rights("issue_comment", &format!("{before}      - run: |\n{lines}{env}")))
    };
    let number = "github.event.issue.number";
    for script in [
        "git checkout -b \"fix-$N\" && git push origin \"fix-$N\"",
        "git pull --rebase\ngit switch -c \"fix-$N\"\ngh pr create --body 'A pull request'",
        "git fetch origin \"refs/heads/issue/$N\" && git checkout FETCH_HEAD",
        "git checkout -b fix-${{ github.event.issue.number }}",
    ] {
        assert_eq!(found("", script, number), [""; 0], "{script}");
    }
    let by_output = "      - {id: a, run: 'echo number=$N >> $GITHUB_OUTPUT', env: {N: '${{ \
                     github.event.issue.number }}'}}\n";
    let own = "git checkout -b \"fix-$N\"";
    assert_eq!(found(by_output, own, "steps.a.outputs.number"), [""; 0]);
    for script in [
        "git fetch origin \"pull/$N/head\" && git checkout FETCH_HEAD",
        "git pull origin \"refs/pull/$N/merge\"",
        "git checkout $(gh pr view \"$N\" --json headRefOid -q .headRefOid)",
        "git fetch origin $(gh api repos/a/b/pulls/$N -q .head.sha)",
        "git clone \"$(gh issue view $N --json body -q .body)\"",
    ] {
        assert!(found("", script, number).contains(&"token-exposed"), "{script}");
    }
    let commit = "git fetch origin \"$N\" && git checkout FETCH_HEAD";
    let of_pull = by_output.replace("echo number=$N", "echo \"ref=$(./ref $N)\"");
    assert!(found(&of_pull, commit, "steps.a.outputs.ref").contains(&"token-exposed"));
    let by_variable = of_pull.replace("GITHUB_OUTPUT", "GITHUB_ENV");
    let fetches = "git fetch origin \"$ref\" && git checkout FETCH_HEAD";
    assert!(found(&by_variable, fetches, "github.run_id").contains(&"token-exposed"));
}

/// Who merges there may change this repository as well.
#[test]
fn branch_of_an_upstream_of_the_same_owner_is_read_code() {
    let is_strangers = |own: &str, event: &str, given: &str| {
        let mut set = WorkflowSet::new(Some(own), "pytorch/pytorch");
        let with = format!("{{repository: pytorch/pytorch, {given}}}");
        let step = format!("      - uses: actions/checkout@v7\n        with: {with}\n");
        let env = "env: {BRANCH: nightly, PULL: refs/pull/7/head}\n";
        set.add_workflow(".github/workflows/w.yml", &format!("{env}{}", with_rights(event, &step)));
        !set.judge().found.is_empty()
    };
    let by_hand = "workflow_dispatch";
    for given in [
        "path: pytorch",
        "ref: nightly",
        "ref: 'release/${{ inputs.version }}'",
        "ref: refs/heads/viable/strict",
        "ref: '${{ env.BRANCH }}'",
    ] {
        assert!(!is_strangers("pytorch/tools", by_hand, given), "{given}");
        assert!(is_strangers("acme/backend", by_hand, given), "{given}");
    }
    for given in [
        "ref: '${{ inputs.sha }}'",
        "ref: 'refs/${{ inputs.ref }}'",
        "ref: pull/7/head",
        "ref: '${{ env.PULL }}'",
    ] {
        assert!(is_strangers("pytorch/tools", by_hand, given), "{given}");
    }
    assert!(is_strangers("pytorch/tools", "repository_dispatch", "path: pytorch"));
}

#[test]
fn action_that_sets_a_commits_status_brings_no_code() {
    let found = |action: &str| {
        let given = "{sha: '${{ github.event.pull_request.head.sha }}'}";
        let step = format!("      - {{uses: {action}, with: {given}}}\n");
        all(&with_rights("pull_request_target", &step))
    };
    for action in ["acme/set-commit-status-action@v2", "acme/find-comment@v3"] {
        assert_eq!(found(action), (vec![], vec![]), "{action}");
    }
    assert_eq!(found("acme/build@v1").1.len(), 1);
}

#[test]
fn every_way_to_a_forks_commit_counts_as_its_code() {
    let checkout = |reference: &str| {
        format!(
            "      - uses: actions/checkout@v7\n        with: {{persist-credentials: false, ref: \
             \"{reference}\"}}\n      - run: make test\n"
        )
    };
    let run = |script: &str| {
        format!("      - run: {script}\n        env: {{N: '${{{{ github.event.number }}}}'}}\n")
    };
    let target = "pull_request_target";
    for (event, steps) in [
        (target, checkout("refs/pull/${{ github.event.number }}/merge")),
        (target, checkout("refs/pull/${{ github.event.pull_request.number }}/head")),
        (target, checkout("${{ github.event.pull_request.merge_commit_sha }}")),
        (target, checkout("${{ github.event['pull_request']['head'].sha }}")),
        (target, checkout("${{ GITHUB.event.Pull_Request.Head.sha }}")),
        (target, checkout("${{ github.event.after }}")),
        (target, checkout("${{ inputs.x || github.head_ref }}")),
        (target, run("gh pr checkout \"$N\" && make")),
        (target, run("gh -R acme/app pr checkout \"$N\" && make")),
        (target, run("gh pr --repo acme/app co \"$N\" && make")),
        (target, run("git fetch origin \"pull/$N/head\" && git checkout FETCH_HEAD && make")),
        (target, run("git fetch origin \"$GITHUB_HEAD_REF\"; make")),
        (target, run("git -c x=y fetch origin ${{ github.event.pull_request.head.sha }}")),
        (target, run("curl -L https://codeload.github.com/a/b/zip/${{ github.head_ref }} | sh")),
        (target, run("curl -L ${{ github.event.pull_request.patch_url }} | git am && make")),
        (target, run("gh pr diff \"$N\" | git apply && make")),
        (target, run("gh pr diff ${{ github.event.number }} | patch -p1 && make")),
        (target, run("cargo install --git ${{ github.event.pull_request.head.repo.clone_url }} x")),
        (
            target,
            run(
                "docker build https://x/${{ github.event.pull_request.head.repo.full_name }}.git#main",
            ),
        ),
        (target, run("npm i github:${{ github.event.pull_request.head.repo.full_name }}")),
        (target, run("nix build github:${{ github.event.pull_request.head.repo.full_name }}")),
        (target, run("npx degit ${{ github.event.pull_request.head.repo.full_name }} x && make")),
        (
            target,
            run("go install github.com/${{ github.event.pull_request.head.repo.full_name }}@main"),
        ),
        (
            target,
            run(
                "svn export https://github.com/${{ github.event.pull_request.head.repo.full_name }}/trunk",
            ),
        ),
        (target, run("gh co \"$N\" && make")),
        ("issue_comment", run("docker run --rm -v a:b \"${{ github.event.comment.body }}\" make")),
        (
            target,
            run(
                "gh api repos/a/b/contents/x?ref=${{ github.head_ref }} --jq .content | base64 -d | sh",
            ),
        ),
        (
            target,
            "      - uses: actions/github-script@v8\n        with: {script: \"exec.exec('git', \
             ['checkout', context.payload.pull_request.head.sha])\"}\n"
                .to_owned(),
        ),
        (
            target,
            format!(
                "      - run: echo \"SHA=${{{{ github.event.pull_request.head.sha }}}}\" >> $GITHUB_ENV\n{}",
                checkout("${{ env.SHA }}")
            ),
        ),
        (
            target,
            format!(
                "      - id: h\n        run: echo sha=${{{{ github.event.pull_request.head.sha }}}} >> \
                 $GITHUB_OUTPUT\n{}",
                checkout("${{ steps.h.outputs.sha }}")
            ),
        ),
        ("issue_comment", checkout("refs/pull/${{ github.event.issue.number }}/head")),
        ("workflow_dispatch", checkout("refs/pull/${{ inputs.pr }}/head")),
        ("workflow_dispatch", run("gh pr checkout ${{ inputs.pr }}")),
        ("{workflow_run: {}}", checkout("${{ github.event.workflow_run.head_sha }}")),
        ("[pull_request, schedule]", "      - uses: x/y/actions/CHECKOUT-PR@v1\n".to_owned()),
    ] {
        let text = with_rights(event, &steps);
        let found = codes(&text);
        for code in ["token-exposed", "write-permission"] {
            assert!(found.contains(&code), "{code}: {found:?} in {text}");
        }
    }
    // The steps run in what the image brings.
    for (event, image) in [
        ("issue_comment", "container: 'x/${{ github.event.comment.body }}'"),
        (target, "container: {image: 'x/app:${{ github.event.pull_request.head.sha }}'}"),
        ("repository_dispatch", "container: {image: '${{ github.event.client_payload.image }}'}"),
        ("issue_comment", "container: {image: a, options: '${{ github.event.comment.body }}'}"),
        ("issue_comment", "services: {a: {image: '${{ github.event.comment.body }}'}}"),
    ] {
        let text = with_rights(event, &run("make"))
            .replace("    steps:", &format!("    {image}\n    steps:"));
        assert!(codes(&text).contains(&"token-exposed"), "{:?} in {text}", codes(&text));
    }
    let by_env = "on: pull_request_target\npermissions: {contents: write}\nenv: {SHA: '${{ \
                  github.event.pull_request.head.sha }}'}\njobs: {b: {steps: [{uses: actions/checkout@v7, \
                  with: {ref: '${{ env.SHA }}'}}]}}";
    assert!(codes(by_env).contains(&"write-permission"), "{:?}", codes(by_env));
}

/// It is skipped with the job that it needs.
#[test]
fn job_that_needs_a_job_for_read_code_runs_for_read_code() {
    let found = |gate: &str, condition: &str| {
        let text = format!(
            "on: pull_request_target\npermissions: {{contents: write}}\njobs:\n  gate: {{if: \"{gate}\", steps: []}}\n  \
             b: {{needs: gate, if: \"{condition}\", steps: [{{uses: actions/checkout@v7, with: {{ref: '${{{{ \
             github.event.pull_request.head.sha }}}}'}}}}]}}\n"
        );
        codes(&text).contains(&"write-permission")
    };
    let merged = "github.event.pull_request.merged == true && (github.event.action == 'closed')";
    let own = "github.event.pull_request.head.repo.full_name == github.repository";
    for gate in [merged, own] {
        assert!(!found(gate, "needs.gate.outputs.x != ''"), "{gate}");
        assert!(!found(gate, "success()"), "{gate}");
        for goes_on in ["always()", "${{ ! cancelled() }}", "!failure ()"] {
            assert!(found(gate, goes_on), "{gate} {goes_on}");
        }
    }
    assert!(found("github.event.action == 'closed'", "true"));
    let called = format!(
        "on: pull_request_target\njobs: {{gate: {{if: \"{merged}\", steps: []}}, b: {{needs: gate, permissions: \
         {{contents: write}}, uses: ./.github/workflows/x.yml, with: {{sha: '${{{{ \
         github.event.pull_request.head.sha }}}}'}}}}}}"
    );
    let callee = "on: {workflow_call: {inputs: {sha: {type: string}}}}\njobs: {t: {steps: [{uses: \
                  actions/checkout@v7, with: {ref: '${{ inputs.sha }}'}}]}}";
    let found = |caller: &str| {
        codes_of(&[(".github/workflows/w.yml", caller), (".github/workflows/x.yml", callee)])
    };
    assert_eq!(found(&called), [""; 0]);
    let open = called.replace(merged, "github.event.action == 'closed'");
    assert!(found(&open).contains(&"write-permission"));
}

/// Only those who may write to the repository can send one.
#[test]
fn payload_that_no_relay_sends_is_of_a_stranger_where_it_hands_on_a_strangers_words() {
    let found = |types: &str, steps: &str, more: &str| -> Vec<&'static str> {
        let mut set = WorkflowSet::new(Some("acme/app"), "pytorch/pytorch");
        let event = format!("{{repository_dispatch: {types}}}");
        set.add_workflow(".github/workflows/w.yml", &with_rights(&event, steps));
        set.add_workflow(".github/workflows/x.yml", more);
        let found = set.judge().found.into_iter().map(|(exposure, _)| exposure.as_str());
        found.filter(|code| *code != "cache-mode").collect()
    };
    let payload = "github.event.client_payload";
    let echo = |name: &str| format!("      - run: echo ${{{{ {payload}{name} }}}}\n");
    let checkout = |name: &str| {
        let with = format!("{{persist-credentials: false, ref: '${{{{ {payload}{name} }}}}'}}");
        format!("      - uses: actions/checkout@v7\n        with: {with}\n      - run: make\n")
    };
    let none = "on: push\njobs: {}";
    let other = "if: github.event_name == 'issue_comment'\n        run: echo ${{ github.event.client_payload.comment.body }}";
    for types in ["{}", "{types: [release]}"] {
        for own in [
            echo(".version"),
            echo(""),
            echo(".github.payload.repository.full_name"),
            checkout(".ref"),
            checkout(".pull_request.base.ref"),
            format!("      - {other}\n"),
        ] {
            assert_eq!(found(types, &own, none), [""; 0], "{types} {own}");
        }
        for words in [".slash_command.args.all", ".pull_request.title", ".comment.body"] {
            assert_eq!(found(types, &echo(words), none), ["untrusted-expression"], "{words}");
        }
        let head = checkout(".pull_request.head.sha");
        assert!(found(types, &head, none).contains(&"token-exposed"), "{types}");
    }
    let relay =
        "on: repository_dispatch\njobs: {a: {permissions: {}, steps: [{run: crcr report}]}}";
    assert_eq!(found("{}", &echo(".version"), relay), ["untrusted-expression"]);
    for of_relay in ["push", "merge_group"] {
        let types = format!("{{types: [{of_relay}]}}");
        assert_eq!(found(&types, &echo(".version"), relay), ["untrusted-expression"], "{of_relay}");
    }
    assert_eq!(found("{types: [release]}", &echo(".version"), relay), [""; 0]);
    let sends = |event: &str, with: &str| {
        let step = format!(
            "{{uses: peter-evans/repository-dispatch@v4, with: {{event-type: release, {with}}}}}"
        );
        format!("on: {event}\njobs: {{a: {{permissions: {{}}, steps: [{step}]}}}}")
    };
    let filled = |context: &str| format!("client-payload: '{{\"a\": \"${{{{ {context} }}}}\"}}'");
    let release = "{types: [release]}";
    for (event, context) in [
        ("issues", "github.event.issue.title"),
        ("pull_request_target", "github.head_ref"),
        ("repository_dispatch", "github.event.client_payload.slash_command.args.all"),
    ] {
        let sender = sends(event, &filled(context));
        assert_eq!(found(release, &echo(".a"), &sender), ["untrusted-expression"], "{context}");
        let elsewhere = sends(event, &format!("repository: acme/site, {}", filled(context)));
        assert_eq!(found(release, &echo(".a"), &elsewhere), [""; 0], "{context}");
    }
    let head = sends("pull_request_target", &filled("github.event.pull_request.head.sha"));
    assert!(found(release, &checkout(".a"), &head).contains(&"token-exposed"));
    for (event, context) in [
        ("issues", "github.event.issue.number"),
        ("release", "github.event.release.tag_name"),
        ("repository_dispatch", "github.event.client_payload.version"),
    ] {
        let sender = sends(event, &filled(context));
        assert_eq!(found(release, &echo(".a"), &sender), [""; 0], "{context}");
    }
    let script = "on: issues\nenv: {TITLE: '${{ github.event.issue.title }}'}\njobs: {a: {permissions: {}, steps: \
                  [{run: 'gh api repos/$GITHUB_REPOSITORY/dispatches -f event_type=release -f \
                  \"client_payload[a]=$TITLE\"'}]}}";
    assert_eq!(found(release, &echo(".a"), script), ["untrusted-expression"]);
    // Only what is sent under a type is heard there.
    let gh = "event_type=release -f";
    for (sent, is_heard) in [
        ("\"event_type=release\" -f", true),
        ("event_type=Release -f", true),
        ("event_type=other -f", false),
        ("event_type=release-notes -f", false),
        ("event_type=$KIND -f", true),
        ("event_type=o${KIND} -f", true),
        ("event_type=\"o-\"$KIND -f", true),
        ("other=1 -f", true),
    ] {
        let script = script.replace(gh, sent);
        let heard = found(release, &echo(".a"), &script);
        assert_eq!(heard == ["untrusted-expression"], is_heard, "{sent} {heard:?}");
        assert_eq!(found("{}", &echo(".a"), &script), ["untrusted-expression"], "{sent}");
    }
    for (data, expected) in [
        ("{\"event_type\": \"other\"}", &[][..]),
        ("{\"event_type\": \"o-\" + kind}", &["untrusted-expression"][..]),
    ] {
        let script = script.replace("-f event_type=release -f", &format!("-d {data} -f"));
        assert_eq!(found(release, &echo(".a"), &script), expected, "{data}");
    }
    let other = sends("issues", &filled("github.event.issue.title")).replace("release", "other");
    assert_eq!(found(release, &echo(".a"), &other), [""; 0]);
    let of_workflow = script.replace("/dispatches", "/actions/workflows/a.yml/dispatches");
    assert_eq!(found(release, &echo(".a"), &of_workflow), [""; 0]);
}

#[test]
fn words_of_a_stranger_are_followed_from_dispatch_to_dispatch() {
    let payload = "{\"a\": \"${{ github.event.client_payload.a }}\"}";
    let sender = |on: &str, kind: &str, payload: &str| {
        format!(
            "on: {on}\njobs: {{a: {{permissions: {{}}, steps: [{{uses: peter-evans/repository-dispatch@v4, with: \
             {{event-type: {kind}, client-payload: '{payload}'}}}}]}}}}"
        )
    };
    let first = sender("issues", "one", "{\"a\": \"${{ github.event.issue.title }}\"}");
    let second = sender("{repository_dispatch: {types: [one]}}", "two", payload);
    let found = |kind: &str| -> Vec<&'static str> {
        let mut set = WorkflowSet::new(Some("acme/app"), "pytorch/pytorch");
        let echo = "      - run: echo ${{ github.event.client_payload.a }}\n";
        let event = format!("{{repository_dispatch: {{types: [{kind}]}}}}");
        set.add_workflow(".github/workflows/w.yml", &with_rights(&event, echo));
        set.add_workflow(".github/workflows/x.yml", &first);
        set.add_workflow(".github/workflows/y.yml", &second);
        let found = set.judge().found.into_iter().map(|(exposure, _)| exposure.as_str());
        found.filter(|code| *code != "cache-mode").collect()
    };
    assert_eq!(found("two"), ["untrusted-expression"]);
    assert_eq!(found("three"), [""; 0]);
}

/// `--github-token` isn't the option of cargo.
#[test]
fn option_that_begins_as_one_for_git_fetches_nothing() {
    let found = |script: &str| {
        let env = "        env: {SHA: '${{ github.event.pull_request.head.sha }}'}\n";
        codes(&with_rights("pull_request_target", &format!("      - run: {script}\n{env}")))
    };
    assert_eq!(found("bench run --branch $SHA --github-actions x"), [""; 0]);
    let cargo = "cargo install --git=https://github.com/a/b --rev $SHA";
    assert!(found(cargo).contains(&"token-exposed"));
}
