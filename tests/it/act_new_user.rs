//! A new user's walk: `crcr init aws`, `crcr init fork-build`, and the workflow that they wrote in a real workflow
//! runner, for a branch, a fork and Dependabot. AWS is moto, which has the shapes of AWS's own service model.

use std::fs;
use std::process::Command;

use crcr_standin::StandIn;
use crcr_standin::runs::Run;

use crate::act::{BUILD, Outside, Ran, adapted, root};
use crate::oidc_configure::Moto;
use crate::support::Crcr;

const SHA: &str = "0123456789abcdef0123456789abcdef01234567";
const CACHE: &str = "acme-cache";
const ARTIFACTS: &str = "acme-artifacts";

/// Does with the files of `crcr init aws --format json` what docs/aws.md does with the AWS CLI.
const SET_UP: &str = r#"
import json, sys, pathlib, boto3
folder, endpoint = pathlib.Path(sys.argv[1]), sys.argv[2]
client = lambda name: boto3.client(name, region_name="us-east-1", endpoint_url=endpoint,
                                   aws_access_key_id="key", aws_secret_access_key="secret")
text = lambda name: (folder / name).read_text()
iam, s3 = client("iam"), client("s3")
iam.create_open_id_connect_provider(Url="https://token.actions.githubusercontent.com",
                                    ClientIDList=["sts.amazonaws.com"])
for name in ["default-branch", "pull-requests"]:
    iam.create_role(RoleName=f"crcr-acme.upstream-{name}", AssumeRolePolicyDocument=text(f"{name}-trust.json"))
    iam.put_role_policy(RoleName=f"crcr-acme.upstream-{name}", PolicyName="cache-and-artifacts",
                        PolicyDocument=text(f"{name}-role.json"))
for bucket, name in zip(sys.argv[3:], ["cache-bucket", "artifact-bucket"]):
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_policy(Bucket=bucket, Policy=text(f"{name}.json"))
    # moto speaks plain HTTP, which the policy refuses; it would be right to refuse all that follows.
    policy = json.loads(text(f"{name}.json"))
    policy["Statement"] = [one for one in policy["Statement"] if one["Sid"] != "OnlyOverTls"]
    if policy["Statement"]:
        s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    else:
        s3.delete_bucket_policy(Bucket=bucket)
for bucket, name in zip(sys.argv[3:], ["cache-lifecycle", "artifact-lifecycle"]):
    s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration=json.loads(text(f"{name}.json")))
rules = s3.get_bucket_lifecycle_configuration(Bucket=sys.argv[4])["Rules"]
print(sorted(rule["ID"] for rule in rules))
"#;

const KEYS: &str = r#"
import sys, boto3
s3 = boto3.client("s3", region_name="us-east-1", endpoint_url=sys.argv[1],
                  aws_access_key_id="key", aws_secret_access_key="secret")
print(*[found["Key"] for found in s3.list_objects_v2(Bucket=sys.argv[2]).get("Contents", [])], sep="\n")
"#;

fn python(script: &str, args: &[&str]) -> String {
    let python = root().join("target/tools/venv/bin/python");
    let output = Command::new(python).args(["-c", script]).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
#[ignore = "needs act and node and moto_server"]
fn new_user_sets_up_aws_and_builds_a_branch_a_fork_and_dependabot() {
    let moto = Moto::start();
    let github = StandIn::start().unwrap();
    github.state().world.add_repo("acme/upstream");
    github.state().world.use_immutable_subject("acme/upstream");
    let token = github.state().world.reader_token(false);
    let clone = tempfile::tempdir().unwrap();
    let crcr = |args: &[&str]| {
        let run = Crcr::new(args).dir(clone.path()).env("GITHUB_TOKEN", &token);
        let ran = run.env("GITHUB_API_URL", github.state().origin()).run().expect_code(0);
        ran.stderr
    };
    let names =
        ["--cache-bucket", CACHE, "--artifact-bucket", ARTIFACTS, "--aws-region", "us-east-1"];
    let init = ["init", "aws", "--repository", "acme/upstream", "--format", "json"];
    let steps = crcr(&[&init[..], &["--account-id", "123456789012"], &names].concat());
    let files = clone.path().join("deploy/aws-ci");
    let rules = python(SET_UP, &[files.to_str().unwrap(), &moto.1, CACHE, ARTIFACTS]);
    assert!(rules.contains("retention-days-7"), "{rules}");

    // The command that the list of steps names, as it stands there.
    let line = steps.lines().find_map(|line| line.split_once("`crcr init fork-build")).unwrap().1;
    let line = line.split('`').next().unwrap();
    let actions = format!("pytorch/crcr@{SHA}");
    let mut args: Vec<_> =
        ["init", "fork-build"].into_iter().chain(line.split_whitespace()).collect();
    args.extend(["--actions", &actions, "--default-branch", "main", "--stdout"]);
    let written = Crcr::new(&args).dir(clone.path()).run().expect_code(0).stdout;
    fs::write(clone.path().join("build.yml"), &written).unwrap();
    assert!(!written.contains("example-") && !written.contains("OWNER/REPO"), "{written}");

    for (run, mode, store) in [
        (Run::same_repository(), "oidc", "s3"),
        (Run::fork(), "anonymous", "github"),
        (Run::dependabot(), "anonymous", "github"),
    ] {
        let who = run.actor.clone();
        let mut outside = Outside::new(run);
        let source = outside.path("crcr").display().to_string();
        let local = format!("pytorch/crcr@{SHA}={source}");
        outside.options = vec!["--local-repository".to_owned(), local];
        let mut workflow = adapted(&written, &moto.1, &moto.1, BUILD);
        workflow["on"] = "pull_request".into();
        outside.write("build.yml", &serde_yaml::to_string(&workflow).unwrap());
        let Ran { succeeded, log } = outside.run(&outside.runner_variables(), true);
        assert!(succeeded, "{who}: {log}");
        for line in [
            &format!("::set-output:: mode={mode}"),
            &format!("::set-output:: store={store}"),
            &format!("build: mode={mode}"),
            "test: built",
        ] {
            assert!(log.contains(line), "{who}: {line}\n{log}");
        }
        let keys = python(KEYS, &[&moto.1, ARTIFACTS]);
        let own = keys
            .lines()
            .all(|key| key.is_empty() || key.starts_with("pull-requests/acme/upstream/"));
        assert!(own, "{who}: {keys}");
        assert!(keys.contains("/build/artifacts.zip"), "the branch's artifact is there: {keys}");
    }
    assert_eq!(python(KEYS, &[&moto.1, CACHE]).trim(), "", "no build here writes the cache");
}
