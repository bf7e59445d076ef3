use clap::Parser as _;

use super::*;
use crate::cli::oidc::OidcCommand;
use crate::cli::{Cli, CliCommand};

fn cache(flags: &[&str]) -> Result<SccacheBucket, SccacheOff> {
    let start = ["crcr", "oidc", "configure", "--sccache-bucket", "cache"];
    match Cli::try_parse_from(start.iter().chain(flags)).unwrap().command {
        CliCommand::Oidc(OidcCommand::Configure(args)) => {
            SccacheBucket::from_inputs(&args, TrustClass::DefaultBranch).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn probe_requests_the_same_url_as_sccache() {
    for (flags, url) in [
        (
            vec!["--aws-region", "us-east-2"],
            "https://s3.us-east-2.amazonaws.com/cache/default-branch/.sccache_check",
        ),
        (
            vec![
                "--aws-region",
                "us-east-2",
                "--sccache-region",
                "eu-west-1",
                "--sccache-key-prefix",
                "/a/b/",
            ],
            "https://s3.eu-west-1.amazonaws.com/cache/a/b/default-branch/.sccache_check",
        ),
        (
            vec!["--sccache-region", "cn-north-1"],
            "https://s3.cn-north-1.amazonaws.com.cn/cache/default-branch/.sccache_check",
        ),
        (
            vec!["--sccache-region", "us-east-1", "--sccache-endpoint", "minio.example.com:9000"],
            "https://minio.example.com:9000/cache/default-branch/.sccache_check",
        ),
        (
            vec!["--sccache-region", "us-east-1", "--sccache-endpoint", "http://127.0.0.1:9000/"],
            "http://127.0.0.1:9000/cache/default-branch/.sccache_check",
        ),
    ] {
        assert_eq!(cache(&flags).unwrap().check_url().unwrap().as_str(), url);
    }
}

#[test]
fn wrong_inputs_turn_the_cache_off_with_a_reason() {
    for (flags, names) in [
        (vec![], "`sccache-region`"),
        (vec!["--sccache-region", "evil.com/"], "`sccache-region`"),
        (
            vec!["--sccache-region", "us-east-1", "--sccache-endpoint", "http://s3.example.com"],
            "`sccache-endpoint`",
        ),
        (vec!["--sccache-region", "us-east-1", "--sccache-key-prefix", "a*"], "`sccache-bucket`"),
    ] {
        let off = cache(&flags).unwrap_err();
        assert!(off.why.contains(names), "{off:?}");
    }
}

#[test]
fn response_to_the_probe_turns_the_cache_on_or_off() {
    let cache = cache(&["--sccache-region", "us-east-1", "--sccache-key-prefix", "p"]).unwrap();
    let headers = |date: &str| -> HeaderMap {
        [("x-amz-bucket-region", "eu-west-1"), ("date", date)]
            .into_iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    };
    let at = |date: &str, status: u16, signed| {
        let status = StatusCode::from_u16(status).unwrap();
        cache.check_response(
            status,
            &headers(date),
            signed,
            "2026-11-20T12:00:00Z".parse().unwrap(),
        )
    };
    let check_response = |status, signed| at("Fri, 20 Nov 2026 12:00:00 GMT", status, signed);
    for signed in [true, false] {
        for on in [200, 404, 503] {
            assert_eq!(check_response(on, signed), Ok(()), "{on}");
        }
        for off in [204, 301, 302, 307, 400, 401, 403, 500, 502] {
            assert!(check_response(off, signed).is_err(), "{off}");
        }
    }
    let anonymous = check_response(403, false).unwrap_err().hint;
    for text in [
        "bucket policy of `cache`",
        "s3:GetObject",
        "arn:aws:s3:::cache/p/default-branch/*",
        "s3:ListBucket",
    ] {
        assert!(anonymous.contains(text), "{anonymous}");
    }
    assert!(check_response(403, true).unwrap_err().hint.starts_with("the role's policy"));
    for (region, arn) in [
        ("cn-north-1", "`arn:aws-cn:s3:::cache/default-branch/*`"),
        ("us-gov-west-1", "`arn:aws-us-gov:s3:::cache`"),
    ] {
        let cache = self::cache(&["--sccache-region", region]).unwrap();
        let refused = cache.check_response(
            StatusCode::FORBIDDEN,
            &HeaderMap::new(),
            true,
            "2026-11-20T12:00:00Z".parse().unwrap(),
        );
        assert!(refused.unwrap_err().hint.contains(arn), "{region}");
    }
    assert!(check_response(301, true).unwrap_err().hint.contains("`eu-west-1`"));
    let late = "Fri, 20 Nov 2026 12:20:00 GMT";
    assert!(at(late, 403, true).unwrap_err().why.contains("20 minutes slow"));
    assert!(!at(late, 403, false).unwrap_err().why.contains("minutes"), "nothing was signed");
}

#[test]
fn sccache_gets_all_settings_and_no_empty_ones() {
    let nothing = |_: &str| false;
    let exports = cache(&["--sccache-region", "us-east-1"]).unwrap().exports(false, &nothing);
    assert_eq!(
        exports,
        [
            ("SCCACHE_BUCKET", "cache".to_owned()),
            ("SCCACHE_REGION", "us-east-1".to_owned()),
            ("SCCACHE_S3_KEY_PREFIX", "default-branch".to_owned()),
            ("SCCACHE_S3_NO_CREDENTIALS", "true".to_owned()),
            ("SCCACHE_S3_RW_MODE", "READ_ONLY".to_owned()),
            ("SCCACHE_IGNORE_SERVER_IO_ERROR", "1".to_owned()),
        ]
    );
    let flags = ["--sccache-region", "cn-north-1", "--sccache-key-prefix", "p/"];
    let exports = cache(&flags).unwrap().exports(true, &nothing);
    assert!(exports.contains(&("SCCACHE_S3_KEY_PREFIX", "p/default-branch".to_owned())));
    assert!(
        exports
            .contains(&("SCCACHE_ENDPOINT", "https://s3.cn-north-1.amazonaws.com.cn".to_owned()))
    );
    assert!(exports.contains(&("SCCACHE_S3_NO_CREDENTIALS", "false".to_owned())));
    assert!(exports.contains(&("SCCACHE_S3_RW_MODE", "READ_WRITE".to_owned())));
}

#[test]
fn settings_that_are_defined_already_are_replaced_by_those_of_the_probed_bucket() {
    let exports = cache(&["--sccache-region", "us-east-1"]).unwrap().exports(false, &|_| true);
    for (name, value) in [
        ("SCCACHE_ENDPOINT", "https://s3.us-east-1.amazonaws.com"),
        ("SCCACHE_S3_USE_SSL", "true"),
        ("SCCACHE_S3_ENABLE_VIRTUAL_HOST_STYLE", "false"),
    ] {
        assert!(exports.contains(&(name, value.to_owned())), "{exports:?}");
    }
    let of_all = cache(&["--sccache-region", "us-east-1"]).unwrap();
    let of_all = of_all.exports(true, &|name| name == "AWS_ENDPOINT_URL");
    assert!(
        of_all.contains(&("SCCACHE_ENDPOINT", "https://s3.us-east-1.amazonaws.com".to_owned()))
    );
    let env: Env =
        [("SCCACHE_BUCKET", "own"), ("SCCACHE_REGION", "eu-west-1")].into_iter().collect();
    let start = ["crcr", "oidc", "configure"];
    let CliCommand::Oidc(OidcCommand::Configure(args)) =
        Cli::try_parse_from(start).unwrap().command
    else {
        panic!("another command");
    };
    let own = SccacheBucket::from_env(&args, &env).unwrap().unwrap();
    assert_eq!(
        own.check_url().unwrap().as_str(),
        "https://s3.eu-west-1.amazonaws.com/own/.sccache_check"
    );
    assert!(own.exports(false, &|_| true).contains(&("SCCACHE_S3_KEY_PREFIX", "/".to_owned())));
}
