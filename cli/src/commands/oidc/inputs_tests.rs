use clap::Parser as _;

use super::*;
use crate::cli::oidc::OidcCommand;
use crate::cli::{Cli, CliCommand, ColorChoice, GlobalArgs};
use crate::env_vars::Env;
use crate::printer::Printer;

const ROLE: &str = "arn:aws:iam::123456789012:role/ci";

fn runner() -> Runner {
    let env: Env = [
        ("GITHUB_REPOSITORY", "acme/upstream"),
        ("GITHUB_RUN_ID", "4242"),
        ("GITHUB_RUN_ATTEMPT", "2"),
    ]
    .into_iter()
    .collect();
    let global = GlobalArgs { color: ColorChoice::Never, quiet: false, verbose: 0 };
    Runner::new(&env, &Printer::new(&global, &env))
}

fn args(flags: &[&str]) -> ConfigureArgs {
    let start = ["crcr", "oidc", "configure"];
    let cli = Cli::try_parse_from(start.iter().chain(flags)).unwrap();
    match cli.command {
        CliCommand::Oidc(OidcCommand::Configure(args)) => *args,
        other => panic!("{other:?}"),
    }
}

fn checked(flags: &[&str]) -> Result<RoleInputs, String> {
    let usual = ["--role-to-assume", ROLE, "--aws-region", "us-east-1"];
    // The last value of a flag can't win in clap, so a test's own flags replace the usual ones.
    let usual = usual.chunks(2).filter(|pair| !flags.contains(&pair[0])).flatten();
    let all: Vec<_> = usual.copied().chain(flags.iter().copied()).collect();
    check(&args(&all), &runner()).map_err(|failure| {
        assert_eq!(failure.code(), "invalid-input");
        assert_eq!(failure.exit_code(), std::process::ExitCode::from(2));
        failure.message().to_owned()
    })
}

#[test]
fn error_for_a_wrong_input_names_it() {
    for (flags, names) in [
        (vec!["--role-to-assume", "ci"], "`role-to-assume`"),
        (vec!["--role-to-assume", "arn:aws:iam::12345:role/ci"], "`role-to-assume`"),
        (vec!["--role-to-assume", "arn:aws:iam::123456789012:user/ci"], "`role-to-assume`"),
        (vec!["--role-to-assume", "arn:aws-cn:iam::123456789012:role/ci"], "`role-to-assume`"),
        (vec!["--aws-region", "us-esat-1"], "`aws-region`"),
        (vec!["--aws-region", "us-east-1a"], "`aws-region`"),
        (vec!["--s3-scope", "My_Bucket"], "`s3-scope`"),
        (vec!["--role-to-assume", " "], "`role-to-assume` is empty"),
        (vec!["--aws-region", "us-east-1.evil.com/"], "`aws-region`"),
        (vec!["--role-duration-seconds", "899"], "`role-duration-seconds`"),
        (vec!["--role-duration-seconds", "43201"], "`role-duration-seconds`"),
        (vec!["--role-duration-seconds", "1h"], "`role-duration-seconds`"),
        (vec!["--sts-endpoint", "http://sts.example.com"], "`sts-endpoint`"),
        (vec!["--sts-endpoint", "sts"], "`sts-endpoint`"),
        (vec!["--allowed-account-ids", "111111111111\n222222222222"], "`allowed-account-ids`"),
        (vec!["--managed-session-policies", "ReadOnlyAccess"], "`managed-session-policies`"),
        (vec!["--inline-session-policy", "{"], "`inline-session-policy`"),
        (vec!["--inline-session-policy", "{}"], "`inline-session-policy`"),
        (vec!["--s3-scope", "s3://bucket"], "`s3-scope`"),
        (vec!["--s3-scope", "bucket/*"], "`s3-scope`"),
        (vec!["--s3-scope", "bucket/${aws:username}"], "`s3-scope`"),
    ] {
        let message = checked(&flags).unwrap_err();
        assert!(message.contains(names), "{flags:?}: {message}");
    }
    let empty = check(&args(&[]), &runner()).unwrap_err();
    assert!(empty.message().contains("`role-to-assume` is empty"));
    let empty = check(&args(&["--role-to-assume", ROLE]), &runner()).unwrap_err();
    assert!(empty.message().contains("`aws-region` is empty"));
    let long = format!(r#"{{"Statement":[],"Id":"{}"}}"#, "x".repeat(2048));
    assert!(checked(&["--inline-session-policy", &long]).unwrap_err().contains("2048"));
    let many = "arn:aws:iam::aws:policy/A\n".repeat(11);
    assert!(checked(&["--managed-session-policies", &many]).unwrap_err().contains("11 policies"));
}

#[test]
fn unsupported_input_of_configure_aws_credentials_is_refused_by_name() {
    for name in [
        "aws-access-key-id",
        "aws-secret-access-key",
        "aws-session-token",
        "aws-profile",
        "web-identity-token-file",
        "role-chaining",
        "role-external-id",
        "unset-current-credentials",
        "special-characters-workaround",
        "retry-max-attempts",
    ] {
        let message = checked(&[&format!("--{name}"), "true"]).unwrap_err();
        assert_eq!(message, format!("the input `{name}` isn't supported"));
    }
    checked(&["--role-chaining", "false"]).unwrap();
}

#[test]
fn valid_inputs_become_an_assume_role_request() {
    let got = checked(&[
        "--role-to-assume",
        "arn:aws-cn:iam::123456789012:role/path/ci",
        "--aws-region",
        "cn-north-1",
        "--allowed-account-ids",
        "111111111111, 123456789012",
        "--managed-session-policies",
        "arn:aws-cn:iam::aws:policy/A\narn:aws-cn:iam::aws:policy/B\n",
        "--role-duration-seconds",
        "900",
    ])
    .unwrap();
    assert_eq!(
        (got.role.partition.as_str(), got.role.account.as_str()),
        ("aws-cn", "123456789012")
    );
    assert_eq!(got.request.endpoint.as_str(), "https://sts.cn-north-1.amazonaws.com.cn/");
    assert_eq!(got.request.duration_seconds, 900);
    assert_eq!(got.request.policy, None);
    assert_eq!(got.request.policy_arns.len(), 2);
    for endpoint in ["http://127.0.0.1:4566", "http://[::1]:1", "https://vpce.example.com"] {
        let got = checked(&["--sts-endpoint", endpoint]).unwrap();
        assert!(got.request.endpoint.as_str().starts_with(endpoint));
    }
}

#[test]
fn sts_is_asked_where_the_environment_sends_every_program_with_an_aws_sdk() {
    let inputs = args(&["--role-to-assume", ROLE, "--aws-region", "us-east-1"]);
    for (variables, expected) in [
        (&[("AWS_USE_FIPS_ENDPOINT", "true")][..], "https://sts-fips.us-east-1.amazonaws.com/"),
        (&[("AWS_USE_DUALSTACK_ENDPOINT", "true")], "https://sts.us-east-1.api.aws/"),
        (&[("AWS_ENDPOINT_URL_STS", "https://vpce.example.com")], "https://vpce.example.com/"),
        // That is mostly a server of S3.
        (&[("AWS_ENDPOINT_URL", "https://s3.example.com")], "https://sts.us-east-1.amazonaws.com/"),
        (
            &[
                ("AWS_ENDPOINT_URL_STS", "https://vpce.example.com"),
                ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"),
            ],
            "https://sts.us-east-1.amazonaws.com/",
        ),
    ] {
        let env: Env = variables.iter().copied().collect();
        let global = GlobalArgs { color: ColorChoice::Never, quiet: false, verbose: 0 };
        let got = check(&inputs, &Runner::new(&env, &Printer::new(&global, &env)));
        let endpoint =
            got.map_err(|failure| failure.message().to_owned()).unwrap().request.endpoint;
        assert_eq!(endpoint.as_str(), expected, "{variables:?}");
    }
}

#[test]
fn session_name_is_valid_and_keeps_run_and_attempt() {
    assert_eq!(session_name(None, &runner()), "acme-upstream-4242-2");
    assert_eq!(session_name(Some("build #7 (ü)"), &runner()), "build--7----");
    assert_eq!(session_name(Some("x"), &runner()), "x-");
    let long = session_name(Some(&"y".repeat(80)), &runner());
    assert_eq!(long.len(), 64);
    let name = format!("acme/{}", "long".repeat(30));
    let env: Env = [
        ("GITHUB_REPOSITORY", name.as_str()),
        ("GITHUB_RUN_ID", "4242"),
        ("GITHUB_RUN_ATTEMPT", "1"),
    ]
    .into_iter()
    .collect();
    let global = GlobalArgs { color: ColorChoice::Never, quiet: false, verbose: 0 };
    let name = session_name(None, &Runner::new(&env, &Printer::new(&global, &env)));
    assert!(name.len() == 64 && name.ends_with("-4242-1"), "{name}");
}

#[test]
fn s3_scope_allows_only_this_run_and_the_cache() {
    let policy = |flags: &[&str]| -> Value {
        serde_json::from_str(&checked(flags).unwrap().request.policy.unwrap()).unwrap()
    };
    let run = json!([
        {
            "Effect": "Allow",
            "Action": ["s3:PutObject", "s3:PutObjectTagging", "s3:GetObject", "s3:DeleteObject",
                "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"],
            "Resource": "arn:aws:s3:::artifacts/ci/acme/upstream/4242/*",
        },
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket", "s3:ListBucketMultipartUploads"],
            "Resource": "arn:aws:s3:::artifacts",
            "Condition": {"StringLike": {"s3:prefix": "ci/acme/upstream/4242/*"}},
        },
        {
            "Effect": "Allow",
            "Action": ["kms:GenerateDataKey", "kms:Decrypt"],
            "Resource": "*",
            "Condition": {"StringLike": {"kms:ViaService": "s3.*"}},
        },
    ]);
    let scoped = policy(&["--s3-scope", "artifacts/ci/"]);
    assert_eq!(scoped, json!({"Version": "2012-10-17", "Statement": run}));

    let bare = policy(&["--s3-scope", "artifacts"]);
    assert_eq!(bare["Statement"][0]["Resource"], "arn:aws:s3:::artifacts/acme/upstream/4242/*");

    let cached = policy(&["--s3-scope", "artifacts/ci", "--sccache-bucket", "cache"]);
    assert_eq!(cached["Statement"][2]["Action"], json!(["s3:GetObject", "s3:PutObject"]));
    assert_eq!(cached["Statement"][2]["Resource"], "arn:aws:s3:::cache/pull-requests/*");

    let own = r#"{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"ecr:*","Resource":"*"}}"#;
    let both = policy(&["--s3-scope", "artifacts/ci", "--inline-session-policy", own]);
    assert_eq!(both["Statement"][0]["Action"], "ecr:*");
    assert_eq!(both["Statement"].as_array().unwrap().len(), 4);
}
