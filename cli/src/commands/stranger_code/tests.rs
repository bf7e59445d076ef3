use super::*;

pub const DOWNSTREAM: &str = include_str!("../../../../workflows-templates/downstream-ci.yml");
const NIGHTLY: &str = include_str!("../../../../workflows-templates/downstream-nightly.yml");

const TEMPLATES: [&str; 9] = [
    DOWNSTREAM,
    NIGHTLY,
    include_str!("../../../../workflows-templates/allowlist-review-comment.yml"),
    include_str!("../../../../workflows-templates/allowlist-review.yml"),
    include_str!("../../../../workflows-templates/fork-build-arc.yml"),
    include_str!("../../../../workflows-templates/fork-build.yml"),
    include_str!("../../../../workflows-templates/levels-sync.yml"),
    include_str!("../../../../workflows-templates/terraform-plan.yml"),
    include_str!("../../../../workflows-templates/test-stats.yml"),
];

pub fn judge(files: &[(&str, &str)]) -> WorkflowJudgement {
    let mut set = WorkflowSet::new(None, "pytorch/pytorch");
    set.expect_dispatches();
    for (path, text) in files {
        match path.starts_with(".github/workflows/") {
            true => set.add_workflow(path, text),
            false => set.add_action(path, Some(text)),
        }
    }
    set.judge()
}

pub fn codes_of(files: &[(&str, &str)]) -> Vec<&'static str> {
    let mut codes: Vec<_> =
        judge(files).found.into_iter().map(|(exposure, _)| exposure.as_str()).collect();
    codes.dedup();
    codes
}

pub fn codes(text: &str) -> Vec<&'static str> {
    codes_of(&[(".github/workflows/w.yml", text)])
}

/// Findings and doubts alike.
pub fn all(text: &str) -> (Vec<&'static str>, Vec<String>) {
    (codes(text), judge(&[(".github/workflows/w.yml", text)]).unknown)
}

#[test]
fn workflow_of_each_template_has_no_finding_and_no_doubt() {
    for template in TEMPLATES {
        assert_eq!(all(template), (vec![], vec![]));
    }
    let named: Vec<_> =
        (0..TEMPLATES.len()).map(|at| format!(".github/workflows/{at}.yml")).collect();
    let together: Vec<_> = named.iter().map(String::as_str).zip(TEMPLATES).collect();
    let judged = judge(&together);
    assert_eq!((judged.found, judged.unknown), (vec![], vec![]));
}

/// Each is a way out for code that the job `test` runs; the test `hostile_run…` tries them on the template.
#[test]
fn each_escape_is_named_in_a_copy_of_the_template_that_allows_it() {
    let read = "contents: read # and nothing else, ever: this job runs a stranger's code";
    let download = "      - name: Fetch what the job left\n";
    let report = "      - name: Report the end\n";
    let upload = "      - name: Hand it to the last job\n";
    for (code, from, to) in [
        ("cache-mode", "    cache-mode: none", "    # no cache-mode"),
        ("cache-mode", "    cache-mode: none", "    cache-mode: write"),
        ("token-exposed", read, "id-token: write"),
        ("write-permission", read, "contents: write"),
        ("secret-exposed", "        id: build\n", "        env: {KEY: \"${{ secrets.KEY }}\"}\n"),
        (
            "secret-exposed",
            "permissions: {}\n",
            "permissions: {}\nenv: {KEY: \"${{ secrets['KEY'] }}\"}\n",
        ),
        (
            "git-credentials",
            "      - name: Build\n",
            "      - uses: actions/checkout@v7\n      - name: Build\n",
        ),
        ("shared-runner", "runs-on: ubuntu-latest", "runs-on: [self-hosted, npu]"),
        ("shared-runner", "runs-on: ubuntu-latest", "runs-on: {group: npu}"),
        (
            "artifact-name",
            "          name: test-reports-${{ matrix.python }}\n          path: test-reports\n",
            "          pattern: test-reports-*\n          path: test-reports\n",
        ),
        ("artifact-path", "          path: test-reports\n", "          path: .\n"),
        ("artifact-path", "          path: test-reports\n", "          path: ${{ runner.temp }}\n"),
        (
            "reported-conclusion",
            "conclusion: ${{ needs.test.result }}",
            "conclusion: ${{ needs.test.outputs.conclusion }}",
        ),
        ("reported-conclusion", "conclusion: ${{ needs.test.result }}", "conclusion: ${{ env.C }}"),
        ("reported-conclusion", "conclusion: ${{ needs.test.result }}", "conclusion: success"),
        ("artifact-path", "          path: test-reports\n", "          path: test-reports/..\n"),
        (
            "artifact-path",
            "          path: test-reports\n",
            "          path: ${{ env.RUNNER_TEMP }}\n",
        ),
        (
            "artifact-name",
            "          name: test-reports-${{ matrix.python }}\n          path: test-reports\n",
            "          name: ${{ needs.test.outputs.artifact }}\n          path: test-reports\n",
        ),
        ("shared-runner", "runs-on: ubuntu-latest", "runs-on: ubuntu-npu-own"),
        ("shared-runner", "runs-on: ubuntu-latest", "runs-on: ${{ matrix.runner }}"),
    ] {
        for part in [download, report, upload, from] {
            assert!(DOWNSTREAM.contains(part), "{part}");
        }
        let broken = DOWNSTREAM.replace(from, to);
        assert!(codes(&broken).contains(&code), "{code}: {:?}", codes(&broken));
    }
    // A step of the last job, before its report.
    for (code, step) in [
        (
            "artifact-to-environment",
            "uses: actions/github-script@v8\n        with: {script: \"core.exportVariable('X', \
             require('fs').readFileSync('test-reports/x'))\"}",
        ),
        (
            "artifact-in-script",
            "uses: actions/github-script@v8\n        with: {script: \"require('./test-reports/x.js')\"}",
        ),
        ("role-environment", "uses: aws-actions/configure-aws-credentials@v6"),
        ("artifact-to-environment", "run: cat reports/env >> \"$GITHUB_ENV\""),
        ("artifact-to-environment", "run: cat reports/path >> \"$GITHUB_PATH\""),
        (
            "artifact-in-script",
            "uses: actions/github-script@v8\n        with: {script: \"core.info('Got ' + \
             require('fs').readFileSync('test-reports/x'))\"}",
        ),
        (
            "artifact-in-script",
            "uses: actions/github-script@v8\n        with: {script: \
             \"core.info('::add-matcher::test-reports/x.json')\"}",
        ),
        (
            "artifact-in-script",
            "uses: actions/github-script@v8\n        with: {script: \"const a = core; a['in' + \
             'fo'](require('fs').readFileSync('test-reports/x'))\"}",
        ),
        ("artifact-in-script", "run: cat test-reports/log.txt"),
        ("artifact-in-script", "run: cat log.txt\n        working-directory: test-reports"),
        ("artifact-in-script", "run: cat test-*/log.txt"),
        ("artifact-in-script", "run: echo '::add-matcher::test-reports/matcher.json'"),
        ("artifact-in-script", "run: bash */run.sh"),
        ("artifact-in-script", "run: find . -name '*.txt' -exec cat {} +"),
        ("artifact-in-script", "run: echo $(< \"$FILE\")"),
        ("artifact-in-script", "run: gh run download \"$GITHUB_RUN_ID\""),
        ("artifact-in-script", "uses: ./test-reports/action"),
        ("output-in-script", "run: echo ${{ needs.test.outputs.title }}"),
        ("output-in-script", "run: echo ${{ needs['test'].outputs.title }}"),
        ("output-in-script", "run: echo '${{ toJSON(needs) }}'"),
        ("output-in-script", "run: echo '${{ NEEDS.Test.Outputs[matrix.python] }}'"),
        (
            "output-in-script",
            "uses: actions/github-script@v8\n        with: {script: 'x(`${{ needs.test.outputs.title }}`)'}",
        ),
        (
            "output-in-script",
            "run: echo ${{ env.T }}\n        env: {T: '${{ needs.test.outputs.title }}'}",
        ),
        (
            "untrusted-expression",
            "run: echo ${{ github.event.client_payload.payload.pull_request.title }}",
        ),
        (
            "untrusted-expression",
            "run: echo ${{ env.T }}\n        env: {T: '${{ github.event.client_payload.payload.title }}'}",
        ),
    ] {
        let broken = DOWNSTREAM.replace(report, &format!("      - {step}\n{report}"));
        assert!(codes(&broken).contains(&code), "{code} {step}: {:?}", codes(&broken));
    }
    let own = "run: echo '::add-matcher::.github/matcher.json'";
    let note =
        "uses: actions/github-script@v8\n        with: {script: \"core.info('Nothing to say.')\"}";
    let link = "uses: actions/github-script@v8\n        with: {script: \"say(`[run](${process.env.URL}) \
                [docs](https://a.b)`)\"}";
    for step in ["run: echo done", own, note, link, "run: crcr report --status completed"] {
        let right = DOWNSTREAM.replace(report, &format!("      - {step}\n{report}"));
        assert_eq!(codes(&right), [""; 0], "{step}");
    }
    let own = format!("    permissions:\n      {read}\n");
    assert!(DOWNSTREAM.contains(&own));
    let unlimited = DOWNSTREAM.replacen("permissions: {}\n", "", 1).replace(&own, "");
    assert!(codes(&unlimited).contains(&"write-permission"), "{:?}", codes(&unlimited));
}

#[test]
fn each_exposure_has_a_code_of_its_own() {
    let mut codes: Vec<_> = Exposure::ALL.iter().map(|exposure| exposure.as_str()).collect();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), Exposure::ALL.len());
}

/// A workflow of one job that may write and request tokens.
pub fn with_rights(event: &str, steps: &str) -> String {
    format!(
        "on: {event}\npermissions: {{contents: write, id-token: write}}\njobs:\n  b:\n    runs-on: \
         ubuntu-latest\n    steps:\n{steps}"
    )
}

#[test]
fn cache_counts_where_github_lets_the_event_write_it() {
    let steps = "      - uses: x/y/actions/checkout-pr@v1\n";
    let saves = |event: &str, mode: &str| {
        let text = with_rights(event, steps).replace("    steps:", &format!("{mode}    steps:"));
        codes(&text).contains(&"cache-mode")
    };
    for event in ["repository_dispatch", "schedule", "workflow_dispatch", "[issues, schedule]"] {
        assert!(saves(event, ""), "{event}");
        assert!(!saves(event, "    cache-mode: read\n"), "{event}");
    }
    for event in ["pull_request_target", "issue_comment", "{workflow_run: {workflows: [ci]}}"] {
        assert!(!saves(event, ""), "{event}");
        for mode in ["write", "write-only", "\"${{ vars.MODE }}\""] {
            assert!(saves(event, &format!("    cache-mode: {mode}\n")), "{event} {mode}");
        }
    }
    let calls = |mode: &str| {
        let caller = format!(
            "on: repository_dispatch\njobs: {{b: {{cache-mode: {mode}, uses: $/.github/workflows/x.yml}}}}"
        );
        let called = "on: workflow_call\ncache-mode: write\njobs: {t: {steps: [{uses: \
                      x/y/actions/checkout-pr@v1}]}}";
        codes_of(&[(".github/workflows/w.yml", &*caller), (".github/workflows/x.yml", called)])
            .contains(&"cache-mode")
    };
    assert!(calls("write") && !calls("none"), "a called workflow gets no more than its caller");
}

/// `$/` is the repository at the commit of the workflow, and steps of `parallel` run beside each other.
#[test]
fn workflows_in_newer_forms_are_read_like_others() {
    let caller = "on: issues\njobs: {a: {uses: $/.github/workflows/x.yml}, b: {permissions: {contents: write}, steps: [{uses: \
                  $/Say, with: {text: '${{ github.event.issue.title }}'}}]}}";
    let called = "on: workflow_call\njobs: {t: {permissions: {}, steps: [{parallel: [{run: make}, {run: 'echo ${{ \
                  github.event.issue.title }}'}]}]}}";
    let say =
        "runs: {using: composite, steps: [{run: 'echo ${{ inputs.text }}'}]}\ninputs: {text: {}}";
    let files = [
        (".github/workflows/w.yml", caller),
        (".github/workflows/x.yml", called),
        ("Say/action.yml", say),
    ];
    let judged = judge(&files);
    let named = |job: &str| (Exposure::EventInScript, job.to_owned());
    let expected = [
        named("`a` in `.github/workflows/w.yml`: `t` in `.github/workflows/x.yml`"),
        named("`b` in `.github/workflows/w.yml`"),
    ];
    assert_eq!((judged.found.as_slice(), judged.unknown.len()), (&expected[..], 0));
    let gone = judge(&files[..2]).unknown;
    assert_eq!(gone, ["`b` in `.github/workflows/w.yml` uses `$/Say`, which can't be read here"]);
}

#[test]
fn upstreams_code_counts_however_the_job_of_a_dispatch_gets_it() {
    let start = DOWNSTREAM.find("      - name: Check out the upstream commit").unwrap();
    let end = DOWNSTREAM.find("      - name: Build").unwrap();
    let read = "contents: read # and nothing else, ever: this job runs a stranger's code";
    let payload = "github.event.client_payload.payload";
    for step in [
        format!(
            "      - env:\n          REPO: ${{{{ {payload}.repository.full_name }}}}\n          SHA: ${{{{ \
             {payload}.pull_request.head.sha }}}}\n        run: git clone https://github.com/$REPO upstream && \
             git -C upstream checkout $SHA\n"
        ),
        "      - uses: actions/checkout@v7\n        with: {repository: pytorch/pytorch, \
         persist-credentials: false}\n"
            .to_owned(),
        "      - uses: actions/checkout@v7\n        with: {repository: pytorch/pytorch, ref: '${{ \
         env.SHA }}', persist-credentials: false}\n"
            .to_owned(),
        "      - uses: ./.github/actions/checkout-upstream\n".to_owned(),
    ] {
        let text = format!("{}{step}{}", &DOWNSTREAM[..start], &DOWNSTREAM[end..]);
        let text = text.replace(read, "id-token: write");
        let action = "inputs: {sha: {default: x}}\nruns:\n  using: composite\n  steps: [{uses: \
                      pytorch/crcr/actions/checkout-pr@v1, with: {sha: '${{ inputs.sha }}'}}]\n";
        let files = [
            (".github/workflows/w.yml", text.as_str()),
            (".github/actions/checkout-upstream/action.yml", action),
        ];
        assert!(codes_of(&files).contains(&"token-exposed"), "{step}: {:?}", codes_of(&files));
    }
}

#[test]
fn called_workflows_and_actions_are_judged_with_what_they_are_given() {
    let head = "${{ github.event.client_payload.payload.pull_request.head.sha }}";
    let caller = format!(
        "on: repository_dispatch\njobs: {{b: {{uses: ./.github/workflows/x.yml, secrets: inherit, \
         permissions: {{id-token: write}}, with: {{sha: '{head}'}}}}}}"
    );
    let callee = "on: {workflow_call: {inputs: {sha: {type: string}}}}\njobs: {t: {steps: [{uses: \
                  actions/checkout@v7, with: {ref: '${{ inputs.sha }}'}}, {run: make, env: {K: '${{ \
                  secrets.K }}'}}]}}";
    let files = [(".github/workflows/w.yml", &*caller), (".github/workflows/x.yml", callee)];
    let found = codes_of(&files);
    assert!(found.contains(&"token-exposed") && found.contains(&"secret-exposed"), "{found:?}");
    // A called workflow may take rights away.
    let narrow = callee.replace("{steps", "{permissions: {contents: read}, steps");
    let files = [(".github/workflows/w.yml", &*caller), (".github/workflows/x.yml", &*narrow)];
    assert!(!codes_of(&files).contains(&"token-exposed"), "{:?}", codes_of(&files));
    let (found, unknown) = all(&caller);
    assert_eq!(found, [""; 0]);
    assert_eq!(
        unknown,
        [
            "`b` in `.github/workflows/w.yml` calls `./.github/workflows/x.yml`, which isn't read here"
        ]
    );

    let title = "on: issues\njobs: {a: {permissions: {}, steps: [{uses: ./say, with: {text: '${{ \
                 github.event.issue.title }}'}}]}}";
    let say = "runs: {using: composite, steps: [{run: 'echo ${{ inputs.text }}', shell: bash}]}";
    let files = [(".github/workflows/w.yml", title), ("say/action.yml", say)];
    assert_eq!(codes_of(&files), ["untrusted-expression"]);
}

#[test]
fn what_is_not_understood_is_told_and_never_safe() {
    for (text, why) in [
        ("on: pull_request_target\njobs: {a: {steps: [\n", "isn't YAML"),
        ("not a mapping", "isn't YAML (not a mapping)"),
        ("on: pull_request_target\njobs:\n  b:\n\t runs-on: x\n", "line 4"),
        (
            "on: pull_request_target\njobs: {a: {uses: x/y/.github/workflows/z.yml@v1, secrets: inherit}}",
            "calls `x/y/.github/workflows/z.yml@v1`",
        ),
        ("on: issue_comment\njobs: {a: {steps: [{uses: ./gone}]}}", "uses `./gone`"),
        (
            "on: issue_comment\njobs: {a: {steps: [{id: b, uses: x/branch@v1}, {uses: actions/checkout@v7, \
             with: {ref: '${{ steps.b.outputs.ref }}'}}]}}",
            "checks out `steps.b.outputs.ref`",
        ),
        (
            "on: pull_request_target\njobs: {a: {steps: [{uses: x/clone@v1, with: {ref: '${{ \
             github.head_ref }}'}}]}}",
            "gives `x/clone` a commit",
        ),
        (
            "on: pull_request_target\njobs: {a: {steps: [{uses: docker/build-push-action@v6, with: {context: '${{ \
             github.event.pull_request.head.repo.clone_url }}'}}]}}",
            "gives `docker/build-push-action` a commit",
        ),
        (
            "on: pull_request_target\njobs: {a: {steps: [{uses: x/checkout-pull@v1, with: {number: '${{ \
             github.event.number }}'}}]}}",
            "gives `x/checkout-pull` a commit",
        ),
        (
            "on: pull_request\njobs: {a: {runs-on: '${{ vars.RUNNER }}'}}",
            "runs on `${{ vars.RUNNER }}`",
        ),
    ] {
        let (found, unknown) = all(text);
        assert!(
            found.is_empty() && unknown.len() == 1 && unknown[0].contains(why),
            "{text}: {found:?} {unknown:?}"
        );
    }
}

#[test]
fn workflow_that_begins_with_a_byte_order_mark_is_read() {
    let workflow =
        "on: pull_request_target\njobs: {b: {steps: [{run: 'echo ${{ github.head_ref }}'}]}}";
    let marked = format!("\u{feff}{workflow}");
    assert_eq!(all(&marked), all(workflow));
    assert_eq!(codes(&marked), ["untrusted-expression"]);
}

/// The workflow with another runner of the job.
fn on_runner(text: &str, job: &str, runner: &str) -> String {
    let at = text.find(&format!("  {job}:\n")).unwrap();
    let (before, rest) = text.split_at(at);
    before.to_owned() + &rest.replacen("runs-on: ubuntu-latest", &format!("runs-on: {runner}"), 1)
}

#[test]
fn image_that_strangers_code_chooses_is_its_code() {
    let image = "ubuntu-latest\n    container: ${{ needs.test.outputs.image }}";
    let codes = codes(&on_runner(DOWNSTREAM, "end", image));
    assert!(codes.contains(&"token-exposed"), "{codes:?}");
}

#[test]
fn runner_that_an_expression_chooses_may_be_the_one_of_a_job_with_a_token() {
    let chosen = on_runner(DOWNSTREAM, "test", "${{ github.event.client_payload.runner }}");
    assert_eq!(all(&chosen), (vec![], vec![]));
    let (found, unknown) = all(&on_runner(&chosen, "end", "[self-hosted, npu]"));
    assert_eq!(found, [""; 0]);
    let told = "`test` in `.github/workflows/w.yml` may run on the runners of `end` in `.github/workflows/w.yml`";
    assert_eq!(unknown, [told]);
}

/// GitHub takes what is around an expression for a text, and every text for true: also the line break that YAML leaves
/// at the end of a block.
#[test]
fn condition_that_is_always_true_keeps_nobody_away() {
    let gate = "github.event.pull_request.head.repo.full_name == github.repository";
    let with_ref = |name: &str, condition: &str| {
        let with = format!("{{persist-credentials: false, ref: '${{{{ {name} }}}}'}}");
        let steps =
            format!("      - uses: actions/checkout@v7\n        with: {with}\n      - run: make\n");
        let text = with_rights("pull_request_target", &steps);
        let codes =
            codes(&text.replace("    runs-on", &format!("    if: {condition}\n    runs-on")));
        codes.contains(&"token-exposed")
    };
    let with = |condition: &str| with_ref("github.event.pull_request.head.sha", condition);
    assert!(with_ref("github.head_ref", "github.event.pull_request.merged"), "a branch moves on");
    for true_for_all in [
        format!("|\n      ${{{{ {gate} }}}}"),
        format!(">\n      ${{{{ {gate} }}}}"),
        format!("\" ${{{{ {gate} }}}}\""),
        format!("${{{{ {gate} }}}} && ${{{{ github.event.action == 'opened' }}}}"),
        format!("${{{{ github.event.action == 'opened' }}}} && {gate}"),
        format!("false == (github.event.action == 'opened' && {gate})"),
        format!("toJSON(github.event.action == 'opened' && {gate})"),
        format!("\"'a && {gate} && b' != ''\""),
        format!("github.event.action == 'opened' || {gate}"),
        format!("\"!({gate})\""),
        "github.event.pull_request.merged || github.event.action == 'labeled'".to_owned(),
        "github.event.pull_request.merged && true || github.event.action == 'opened'".to_owned(),
        "github.event.pull_request.merged == false".to_owned(),
    ] {
        assert!(with(&true_for_all), "{true_for_all}");
    }
    for condition in [
        gate.to_owned(),
        format!("${{{{ {gate} }}}}"),
        format!("|\n      {gate}"),
        format!(">-\n      ${{{{ {gate} }}}}"),
        format!("|-\n      ${{{{ {gate}\n      && github.event.action == 'opened' }}}}"),
        format!("always() && (github.event.action == 'opened' && ({gate}))"),
        format!("github.event_name == 'push' || {gate}"),
        format!("github.event_name != 'pull_request_target' || {gate}"),
        "github.event.action == 'closed' && github.event.pull_request.merged == true".to_owned(),
        "${{ github.event.pull_request.merged }}".to_owned(),
        "\"!(github.event.pull_request.head.repo.full_name != github.repository)\"".to_owned(),
    ] {
        assert!(!with(&condition), "{condition}");
    }
}

/// Of a repository that somebody else wrote, too.
#[test]
fn workflow_that_grows_without_end_is_not_understood() {
    let calls: String =
        (0..20).map(|n| format!("  j{n}: {{uses: ./.github/workflows/w.yml}}\n")).collect();
    let circle = format!("on: [workflow_call, repository_dispatch]\njobs:\n{calls}");
    let step = "      - uses: ./again\n".repeat(20);
    let steps = format!("on: issues\njobs:\n  a:\n    steps:\n{step}");
    let again = format!("runs:\n  using: composite\n  steps:\n{}", step.replace("      ", "    "));
    for workflow in [&circle, &steps] {
        let files = [(".github/workflows/w.yml", &**workflow), ("again/action.yml", &*again)];
        let told = ["`.github/workflows/w.yml` has too many jobs and steps"];
        assert_eq!(judge(&files).unknown, told);
    }
    let chain: String = (1..1000)
        .map(|n| {
            format!("      - {{id: s{n}, env: {{A: '${{{{ steps.s{}.outputs.x }}}}'}}}}\n", n - 1)
        })
        .collect();
    let env: String = (0..5000).map(|n| format!("A{n}: 'x', ")).collect();
    let chain = format!("on: issues\nenv: {{{env}}}\njobs:\n  a:\n    steps:\n{chain}");
    assert_eq!(codes(&chain), [""; 0]);
}

#[test]
fn text_of_strangers_in_a_script_is_found_in_every_privileged_event() {
    let run = |script: &str| with_rights("EVENT", &format!("      - run: {script}\n"));
    for (event, text) in [
        ("pull_request_target", run("echo \"${{ github.event.pull_request.title }}\"")),
        ("pull_request_target", run("echo \"${{ github.head_ref }}\"")),
        ("pull_request_target", run("echo '${{ toJSON(github.event) }}'")),
        (
            "pull_request_target",
            run("echo ${{ format('{0}', github.event['pull_request'].body) }}"),
        ),
        ("issue_comment", run("echo ${{ github.event.comment.body }}")),
        ("{workflow_run: {}}", run("echo ${{ github.event.workflow_run.head_branch }}")),
        ("{workflow_run: {}}", run("echo ${{ github.event.workflow_run.display_title }}")),
        ("push", run("echo ${{ github.event.head_commit.message }}")),
        ("discussion", run("echo ${{ github.event.discussion.title }}")),
        // A file's name, and the address of a page that is called so.
        ("pull_request_review_comment", run("echo ${{ github.event.comment.path }}")),
        ("gollum", run("echo ${{ github.event.pages[0].html_url }}")),
        ("release", run("echo \"${{ github.event.release.body }}\"")),
        (
            "issue_comment",
            with_rights(
                "EVENT",
                "      - uses: docker://alpine:3\n        with: {entrypoint: sh, args: '-c \"echo ${{ \
                 github.event.comment.body }}\"'}\n",
            ),
        ),
        // Many wikis can be edited by anybody.
        ("gollum", run("echo ${{ github.event.pages[0].title }}")),
        // Anybody may review a pull request of a branch.
        ("pull_request_review", run("echo \"${{ github.event.review.body }}\"")),
        ("pull_request_review_comment", run("echo \"${{ github.event.comment.body }}\"")),
        ("merge_group", run("echo \"${{ github.event.merge_group.head_commit.message }}\"")),
        (
            "pull_request_target",
            with_rights(
                "EVENT",
                "      - uses: devcontainers/ci@v0.3\n        with: {runCmd: 'echo ${{ \
                 github.event.pull_request.title }}'}\n",
            ),
        ),
        ("gollum", run("echo ${{ join(github.event.pages.*.page_name) }}")),
        (
            "pull_request_target",
            with_rights(
                "EVENT",
                "      - uses: actions/github-script@v8\n        with: {script: 'x(`${{ \
                 github.event.pull_request.body }}`)'}\n",
            ),
        ),
    ] {
        let text = text.replace("EVENT", event);
        assert_eq!(codes(&text), ["untrusted-expression"], "{text}");
    }
    for (event, script) in [
        ("pull_request_target", "echo ${{ github.event.pull_request.number }}"),
        (
            "pull_request_target",
            "echo ${{ github.event.pull_request.head.sha }} ${{ github.actor }}",
        ),
        ("pull_request_target", "echo ${{ github.event.pull_request.base.ref }}"),
        ("pull_request_target", "echo ${{ contains(github.event.pull_request.title, 'x') }}"),
        ("pull_request_target", "echo \"$TITLE\" # ${{ github.event_name }}"),
        ("pull_request", "echo ${{ github.event.pull_request.title }}"),
        ("[pull_request, workflow_dispatch]", "echo ${{ github.event.pull_request.title }}"),
        ("workflow_dispatch", "echo ${{ github.event.inputs.version }}"),
    ] {
        let text = run(script).replace("EVENT", event);
        assert_eq!(codes(&text), [""; 0], "{text}");
    }
}

#[test]
fn artifact_of_a_run_that_a_stranger_caused_is_a_strangers() {
    let run = "on: {workflow_run: {workflows: [ci], types: [completed]}}\njobs:\n  b:\n    permissions: \
               {actions: read}\n    steps:\n";
    let download = "      - uses: actions/download-artifact@v8\n        with: {run-id: '${{ \
                    github.event.workflow_run.id }}', name: b, path: left}\n";
    let build = "      - run: ./left/build.sh\n        env: {K: '${{ secrets.KEY }}'}\n";
    let with_secret = format!("{run}{download}{build}");
    assert_eq!(codes(&with_secret), ["artifact-in-script"]);
    let writes =
        "      - run: cat left/env >> \"$GITHUB_ENV\"\n        env: {K: '${{ secrets.KEY }}'}\n";
    let found = codes(&format!("{run}{download}{writes}"));
    assert!(found.contains(&"artifact-to-environment"), "{found:?}");
    for script in [
        "gh run download ${{ github.event.workflow_run.id }} && ./build.sh",
        "gh api repos/a/b/actions/runs/1/artifacts && ./build.sh",
    ] {
        let text =
            format!("{run}      - run: {script}\n        env: {{K: '${{{{ secrets.KEY }}}}'}}\n");
        assert_eq!(codes(&text), ["artifact-in-script"], "{script}");
    }
    let by_script = "      - uses: actions/github-script@v8\n        with: {script: \
                     'github.rest.actions.downloadArtifact({})'}\n      - run: unzip x.zip && ./run\n        \
                     env: {K: '${{ secrets.KEY }}'}\n";
    assert_eq!(codes(&format!("{run}{by_script}")), ["artifact-in-script"]);
    let by_address = "      - run: curl -L \"$URL\" | jq -r '.artifacts[0].id' && unzip x.zip && ./run\n        env: \
                      {URL: '${{ github.event.workflow_run.artifacts_url }}', K: '${{ secrets.KEY }}'}\n";
    assert_eq!(codes(&format!("{run}{by_address}")), ["artifact-in-script"]);
    // The whole event of an issue names no artifacts.
    let whole = "      - run: jq .number <<< \"$EVENT\"\n        env: {EVENT: '${{ toJSON(github.event) }}'}\n";
    assert_eq!(codes(&with_rights("issues", whole)), [""; 0]);
    assert_eq!(codes(&with_rights("workflow_run", whole)), ["artifact-in-script"]);
    // A job that takes it and uploads it again makes it no safer.
    let upload = "      - uses: actions/upload-artifact@v5\n        with: {name: again, path: left}\n  c:\n    \
                  needs: b\n    steps:\n      - uses: actions/download-artifact@v8\n        with: {name: again, \
                  path: left}\n";
    assert_eq!(codes(&format!("{run}{download}{upload}{build}")), ["artifact-in-script"]);
    let own = upload.replace("name: again, path: left}\n  c", "name: again, path: own}\n  c");
    assert_eq!(codes(&format!("{run}{own}{build}")), [""; 0]);
    // Without rights there is nothing to take; a run of a push is the repository's own.
    assert_eq!(codes(&format!("{run}{download}      - run: ./left/build.sh\n")), [""; 0]);
    let on = |condition: &str| {
        codes(&with_secret.replace("permissions", &format!("if: {condition}\n    permissions")))
    };
    for event in ["push", "release", "schedule", "merge_group"] {
        let condition = format!("github.event.workflow_run.event == '{event}'");
        assert_eq!(on(&condition), [""; 0], "{event}");
    }
    for event in ["pull_request", "pull_request_review", "workflow_dispatch"] {
        let condition = format!("github.event.workflow_run.event == '{event}'");
        assert_eq!(on(&condition), ["artifact-in-script"], "{event}");
    }
}

#[test]
fn forks_pull_request_on_a_self_hosted_runner_is_told() {
    let on = |runner: &str| {
        codes(&format!(
            "on: [push, pull_request]\njobs: {{b: {{runs-on: {runner}, strategy: {{matrix: \
            {{os: [ubuntu-24.04, macos-15], own: [ubuntu-latest, npu]}}}}, steps: [{{run: make}}]}}}}"
        ))
    };
    for own in [
        "self-hosted",
        "[self-hosted, npu]",
        "{group: npu}",
        "ubuntu-npu-own",
        "'${{ matrix.own }}'",
        "\"${{ github.event_name == 'push' && 'ubuntu-latest' || 'npu' }}\"",
        "\"${{ github.repository == 'a/b' && 'npu' || 'ubuntu-latest' }}\"",
    ] {
        assert_eq!(on(own), ["fork-runner"], "{own}");
    }
    for hosted in [
        "ubuntu-latest",
        "Windows-2025",
        "blacksmith-4vcpu-ubuntu-2404",
        "Depot-ubuntu-24.04-16",
        "'${{ matrix.os }}'",
        "\"${{ github.event_name == 'push' && 'ubuntu-latest' || 'macos-15' }}\"",
        "\"${{ github.event.pull_request.head.repo.fork && 'forks' || 'own' }}\"",
        "\"${{ (github.event_name == 'push' && 'npu') || 'ubuntu-latest' }}\"",
        "\"${{ github.event_name == 'pull_request' && 'ubuntu-latest' || 'npu' }}\"",
        "\"${{ github.ref == 'refs/heads/main' && 'npu' || 'ubuntu-latest' }}\"",
    ] {
        assert_eq!(on(hosted), [""; 0], "{hosted}");
    }
    for gate in [
        "github.event_name == 'push'",
        "github.event_name != 'pull_request'",
        "github.event_name == 'push' || github.event_name == 'schedule'",
        "github.event_name != 'pull_request' || !github.event.pull_request.head.repo.fork",
        "github.event.pull_request.head.repo.full_name == github.repository",
        "github.ref_name == 'main'",
        "startsWith(github.ref, 'refs/tags/')",
    ] {
        let text = format!(
            "on: [push, pull_request]\njobs: {{b: {{if: \"{gate}\", runs-on: self-hosted}}}}"
        );
        assert_eq!(codes(&text), [""; 0], "{gate}");
    }
    let either = "on: [pull_request]\njobs: {b: {if: \"github.event_name == 'push' || true\", runs-on: npu}}";
    assert_eq!(codes(either), ["fork-runner"]);
}

#[test]
fn workflows_without_strangers_are_left_alone() {
    let deploy = |on: &str, action: &str| {
        format!(
            "on: {on}\njobs: {{d: {{runs-on: ubuntu-latest, permissions: {{id-token: write, contents: read}}, \
             steps: [{{uses: {action}}}]}}}}"
        )
    };
    for text in [
        "on: push\njobs: {a: {steps: [{uses: x/y/actions/checkout-pr@v1}]}}".to_owned(),
        "on: pull_request\njobs: {a: {steps: [{uses: actions/checkout@v7}]}}".to_owned(),
        "on: schedule\njobs: []".to_owned(),
        "on: pull_request_target\npermissions: {pull-requests: write}\njobs: {b: {runs-on: ubuntu-latest, \
         steps: [{uses: actions/labeler@v6}, {run: 'gh pr comment \"$N\" -b hello', env: {N: '${{ \
         github.event.number }}', GH_TOKEN: '${{ github.token }}'}}]}}"
            .to_owned(),
        "on: [pull_request, workflow_dispatch]\njobs: {b: {permissions: {contents: read}, steps: [{uses: \
         actions/checkout@v7, with: {ref: '${{ github.event.pull_request.head.sha }}'}}]}}"
            .to_owned(),
        "on: {pull_request: {}, push: {}, schedule: []}\npermissions: {contents: read}\njobs: {b: {steps: \
         [{uses: actions/checkout@v7, with: {ref: '${{ github.head_ref || github.ref }}'}}]}}"
            .to_owned(),
        "on: [pull_request, workflow_dispatch]\njobs: {b: {steps: [{run: 'git fetch origin pull/${{ \
         github.event.number }}/head'}]}}"
            .to_owned(),
        "on: pull_request_target\njobs: {b: {steps: [{run: 'curl https://x/install | sh && git apply own.patch && gh \
         api -X PATCH repos/a/b/issues/1', env: {A: b}}, {run: 'gh api -X PATCH repos/a/b/issues/$N', env: {N: '${{ \
         github.event.number }}'}}, {run: \"curl https://x/install | sh\\nlabel $N\", env: {N: '${{ \
         github.event.number }}'}}]}}"
            .to_owned(),
        "on: pull_request_target\njobs: {b: {if: github.event.pull_request.head.repo.full_name == \
         github.repository, steps: [{uses: actions/checkout@v7, with: {ref: '${{ github.head_ref }}'}}]}}"
            .to_owned(),
        "on: schedule\njobs: {b: {steps: [{uses: ./actions/checkout-pr, with: {repository: '${{ \
         github.repository }}', sha: '${{ github.sha }}'}}]}}"
            .to_owned(),
        deploy("{push: {branches: [main]}, workflow_dispatch: {}}", "aws-actions/configure-aws-credentials@v6"),
        deploy("{schedule: []}", "azure/login@v2"),
        deploy("{release: {types: [published]}, workflow_dispatch: {}}", "google-github-actions/auth@v3"),
    ] {
        assert_eq!(all(&text), (vec![], vec![]), "{text}");
    }
}

#[test]
fn job_that_reads_a_strangers_artifact_hands_its_text_on() {
    let workflow = "on: {workflow_run: {workflows: [ci]}}\njobs:\n  read:\n    permissions: {actions: read}\n    \
                    outputs: {n: '${{ steps.r.outputs.n }}'}\n    steps:\n      - uses: \
                    actions/download-artifact@v8\n        with: {run-id: '${{ github.event.workflow_run.id }}', \
                    name: n, path: left}\n      - {id: r, run: 'echo \"n=$(cat left/n)\" >> $GITHUB_OUTPUT'}\n  \
                    comment:\n    needs: read\n    permissions: {pull-requests: write}\n    steps:\n      - run: gh \
                    pr comment ${{ needs.read.outputs.n }}\n";
    assert_eq!(codes(workflow), ["output-in-script"]);
    let by_variable = workflow.replace(
        "gh pr comment ${{ needs.read.outputs.n }}",
        "gh pr comment \"$N\"\n        env: {N: '${{ needs.read.outputs.n }}'}",
    );
    assert_eq!(codes(&by_variable), [""; 0]);
}
