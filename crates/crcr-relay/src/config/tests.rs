use secrecy::ExposeSecret as _;

use super::*;

fn read(pairs: &[(&str, &str)]) -> Result<Config, Vec<SettingProblem>> {
    let map: BTreeMap<String, String> =
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Config::read(&|name| map.get(name).cloned(), BTreeMap::new())
}

const NEEDED: [(&str, &str); 4] = [
    ("GITHUB_APP_ID", "1"),
    ("GITHUB_APP_SECRET", "s"),
    ("GITHUB_APP_PRIVATE_KEY", "k"),
    ("ALLOWLIST_URL", "https://github.com/acme/upstream/blob/main/.github/allowlist.yml"),
];

#[test]
fn all_missing_and_invalid_settings_are_reported_together() {
    let problems = read(&[
        ("GITHUB_APP_ID", "1"),
        ("CRCR_STORE", "mongodb://x"),
        ("RATE_LIMIT_PER_MIN", "0"),
        ("GITHUB_API_URL", "http://ghe.test/api/v3"),
        ("CRCR_SILENT_L4", "success"),
        ("ZOMBIE_TIMEOUT_SECONDS", "soon"),
        ("CRCR_CRITERIA", "job-pass-share: 90"),
    ])
    .unwrap_err();
    let names: Vec<_> = problems.iter().map(|problem| problem.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "GITHUB_APP_SECRET",
            "GITHUB_APP_PRIVATE_KEY",
            "ALLOWLIST_URL",
            "GITHUB_API_URL",
            "CRCR_STORE",
            "RATE_LIMIT_PER_MIN",
            "ZOMBIE_TIMEOUT_SECONDS",
            "CRCR_SILENT_L4",
            "CRCR_CRITERIA",
        ]
    );
}

#[test]
fn no_invalid_setting_hides_another_one_and_each_is_told_once() {
    for (given, expected) in [
        (
            &[("CRCR_SEVERAL_MACHINES", "yes"), ("CRCR_STORE", "mongodb://x")][..],
            &["CRCR_SEVERAL_MACHINES", "CRCR_STORE"][..],
        ),
        (
            &[("CRCR_HUD_DISPATCHES", "yes"), ("HUD_API_URL", "hud")],
            &["CRCR_HUD_DISPATCHES", "HUD_API_URL", "HUD_BOT_KEY"],
        ),
        (
            &[("CRCR_BREAKER_FAILURES_FILE", "/absent"), ("CRCR_SEVERAL_MACHINES_FILE", "/absent")],
            &["CRCR_SEVERAL_MACHINES_FILE", "CRCR_BREAKER_FAILURES_FILE"],
        ),
        (&[("HUD_API_URL_FILE", "/absent"), ("HUD_BOT_KEY", "k")], &["HUD_API_URL_FILE"]),
    ] {
        let problems = read(&[&NEEDED[..], given].concat()).unwrap_err();
        let names: Vec<_> = problems.iter().map(|problem| problem.name.as_str()).collect();
        assert_eq!(names, expected);
    }
}

/// As a variable has them that is the content of a file.
#[test]
fn blanks_and_line_feeds_around_a_value_are_not_part_of_it() {
    let more = [
        ("UPSTREAM_REPO", " acme/up\n"),
        ("CRCR_ONCALL_COMMENTS", "on\n"),
        ("CRCR_STORE", "sqlite:a.db\r\n"),
        ("CRCR_RUN_WINDOW", "5s\n"),
        ("CRCR_BREAKER_FAILURES", "off\n"),
        ("CRCR_CRITERIA", "  job-pass-share: 0.95\n  end-to-end-seconds: 7200\n"),
    ];
    let config = read(&[&NEEDED[1..], &[("GITHUB_APP_ID", "1\n")], &more].concat()).unwrap();
    assert_eq!((config.app_id.as_str(), config.upstream.as_str()), ("1", "acme/up"));
    assert_eq!(config.store, StoreUrl::Sqlite("a.db".into()));
    assert!(config.oncall_comments && config.breaker_failures.is_none());
}

/// Else a relay whose secret was emptied would keep its state in a file that is gone with its container, or serve
/// operators without a token.
#[test]
fn file_of_a_setting_without_a_value_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let path = path.to_str().unwrap();
    for empty in ["", " \n"] {
        std::fs::write(path, empty).unwrap();
        for name in ["CRCR_STORE_FILE", "CRCR_RESULTS_FILE", "CRCR_ADMIN_TOKEN_FILE"] {
            let problems = read(&[&NEEDED[..], &[(name, path)]].concat()).unwrap_err();
            assert_eq!((problems.len(), problems[0].name.as_str()), (1, name));
            assert!(problems[0].what.ends_with("is empty"), "{problems:?}");
        }
        let lookup = |name: &str| (name == "CRCR_STORE_FILE").then(|| path.to_owned());
        assert_eq!(store(&lookup).unwrap_err().name, "CRCR_STORE_FILE", "for a command");
    }
}

#[test]
fn operators_address_that_other_machines_reach_without_a_token_is_told() {
    let token = ("CRCR_ADMIN_TOKEN", "sixteen letters!");
    for (address, is_open) in [
        ("127.0.0.1:8081", false),
        ("[::1]:8081", false),
        ("localhost:8081", false),
        ("off", false),
        ("0.0.0.0:8081", true),
        ("[::]:8081", true),
        ("relay.internal:8081", true),
    ] {
        let listen = ("CRCR_ADMIN_LISTEN", address);
        let open = read(&[&NEEDED[..], &[listen]].concat()).unwrap();
        assert_eq!(open.open_admin_address(), is_open.then_some(address));
        let closed = read(&[&NEEDED[..], &[listen, token]].concat()).unwrap();
        assert_eq!(closed.open_admin_address(), None, "{address}");
    }
}

/// GitHub refuses a check run whose link isn't an address.
#[test]
fn links_lead_to_the_github_of_the_api_and_an_address_without_https_is_refused() {
    let links = |more: &[(&str, &str)]| read(&[&NEEDED[..], more].concat()).map(|it| it.server_url);
    assert_eq!(links(&[]).unwrap(), "https://github.com");
    let enterprise = ("GITHUB_API_URL", "https://ghe.test/api/v3");
    assert_eq!(links(&[enterprise]).unwrap(), "https://ghe.test");
    let pages = ("GITHUB_SERVER_URL", "https://pages.ghe.test/");
    assert_eq!(links(&[enterprise, pages]).unwrap(), "https://pages.ghe.test");
    let problems = links(&[enterprise, ("GITHUB_SERVER_URL", "ghe.test")]).unwrap_err();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].what.contains("`ghe.test` isn't a URL"), "{}", problems[0].what);
}

#[test]
fn issuer_with_a_slash_that_its_tokens_dont_have_is_refused() {
    let issuers = |text: &str| read(&[&NEEDED[..], &[("CRCR_OIDC_ISSUERS", text)]].concat());
    for usual in USUAL_ISSUERS {
        assert!(issuers(usual).is_ok(), "{usual}");
        let problems = issuers(&format!("https://other.test/,{usual}/")).unwrap_err();
        assert_eq!(problems.len(), 1, "{usual}");
        assert!(problems[0].what.contains("ends in `/`"), "{}", problems[0].what);
    }
}

#[test]
fn relays_on_several_machines_share_no_file() {
    let refused = |more: &[(&str, &str)]| -> Vec<String> {
        let several = [("CRCR_SEVERAL_MACHINES", "on")];
        let problems = read(&[&NEEDED[..], &several, more].concat()).err().unwrap_or_default();
        problems.into_iter().map(|problem| problem.name).collect()
    };
    let redis = ("CRCR_STORE", "rediss://redis.test");
    assert_eq!(refused(&[]), ["CRCR_STORE"], "the default is a file");
    assert_eq!(refused(&[("CRCR_STORE", "sqlite:/data/crcr.db")]), ["CRCR_STORE"]);
    assert_eq!(refused(&[redis, ("CRCR_RESULTS", "sqlite:/data/r.db")]), ["CRCR_RESULTS"]);
    let results = ("CRCR_RESULTS", "clickhouse+https://u:p@ch.test:8443/crcr");
    assert_eq!(refused(&[redis, results]), [""; 0]);
    let folder = ("CRCR_ARCHIVE", "file:/data/archive");
    assert_eq!(refused(&[redis, results, folder]), ["CRCR_ARCHIVE"]);
    let bucket = ("CRCR_ARCHIVE", "s3://bucket/archive");
    assert_eq!(refused(&[redis, results, bucket]), [""; 0]);
    assert!(read(&[&NEEDED[..], &[folder]].concat()).is_ok(), "one machine has the whole folder");
    let odd = read(&[&NEEDED[..], &[redis, results, ("CRCR_SEVERAL_MACHINES", "yes")]].concat());
    assert_eq!(odd.unwrap_err().len(), 1);
}

#[test]
fn short_admin_token_or_callback_key_is_rejected() {
    for name in ["CRCR_ADMIN_TOKEN", "CRCR_CALLBACK_KEY"] {
        let with = |token| read(&[&NEEDED[..], &[(name, token)]].concat());
        let problems = with("fifteen letters").unwrap_err();
        assert_eq!((problems.len(), problems[0].name.as_str()), (1, name));
        assert!(problems[0].what.contains("fewer than 16") && !problems[0].what.contains("fift"));
        assert!(with("sixteen letters!").is_ok());
    }
    let old_is_short = ("CRCR_CALLBACK_KEY", "sixteen letters!,x");
    assert!(read(&[&NEEDED[..], &[old_is_short]].concat()).is_err());
}

#[test]
fn listeners_on_one_port_are_rejected() {
    for (listen, admin, is_valid) in [
        ("127.0.0.1:8080", "127.0.0.1:8080", false),
        ("0.0.0.0:8080", "127.0.0.1:8080", false),
        ("localhost:8080", "localhost:8080", false),
        ("127.0.0.2:8080", "127.0.0.1:8080", true),
        ("0.0.0.0:8080", "127.0.0.1:8081", true),
        ("127.0.0.1:0", "127.0.0.1:0", true),
        ("127.0.0.1:8080", "off", true),
    ] {
        let both = [("CRCR_LISTEN", listen), ("CRCR_ADMIN_LISTEN", admin)];
        let names: Vec<_> = read(&[&NEEDED[..], &both].concat())
            .err()
            .unwrap_or_default()
            .into_iter()
            .map(|problem| problem.name)
            .collect();
        let expected = if is_valid { vec![] } else { vec!["CRCR_ADMIN_LISTEN".to_owned()] };
        assert_eq!(names, expected, "{listen} {admin}");
    }
}

#[test]
fn settings_without_effect_are_reported() {
    let lookup = |name: &str| {
        ["MAX_CLEANUP_WORKERS", "MAX_DISPATCH_WORKERS"].contains(&name).then(|| "7".to_owned())
    };
    let told = settings_without_effect(&lookup);
    assert!(told.len() == 1 && told[0].name == "MAX_CLEANUP_WORKERS", "{told:?}");
    let mut pairs = NEEDED.to_vec();
    pairs.push(("MAX_DISPATCH_WORKERS", "7"));
    assert_eq!(read(&pairs).unwrap().workers, 7);
}

#[test]
fn settings_of_the_deployed_relay_are_used_or_rejected() {
    let with = |more: &[(&str, &str)]| read(&[&NEEDED[..], more].concat());
    let asked = |more: &[(&str, &str)]| {
        let problems = with(more).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].name.clone()
    };
    let hud = [("HUD_API_URL", "https://hud.test/api"), ("HUD_BOT_KEY", "k")];
    let results = ("CRCR_RESULTS", "clickhouse+https://u:p@house.test/crcr");
    let known = with(&hud).unwrap();
    assert_eq!(known.hud.unwrap().retries, None);
    assert_eq!((known.status_ttl, known.warn_open), (limits::RECORD_RETENTION, None));
    let more = [
        ("HUD_MAX_RETRIES", "0"),
        ("CRCR_STATUS_TTL", "259200"),
        ("IN_PROGRESS_WARN_THRESHOLD", "9"),
    ];
    let config = with(&[&hud[..], &more].concat()).unwrap();
    assert_eq!(config.hud.unwrap().retries, Some(0));
    assert_eq!(config.status_ttl, Duration::from_secs(3 * 86_400));
    assert_eq!(config.warn_open, Some(9));
    // The deployed relay had a default for the one, and no need of the other.
    assert_eq!(asked(&[hud[1]]), "HUD_API_URL");
    assert_eq!(asked(&[hud[0]]), "HUD_BOT_KEY");
    assert_eq!(asked(&[("REDIS_ENDPOINT", "redis.test:6379")]), "CRCR_RESULTS");
    assert_eq!(asked(&[("REDIS_ENDPOINT", "redis://r"), results]), "REDIS_ENDPOINT");
    assert!(with(&[("HUD_API_URL", "off"), hud[1]]).unwrap().hud.is_none());
    assert!(with(&[("REDIS_ENDPOINT", "r"), ("CRCR_STORE", "sqlite:a.db")]).is_ok());
    // What is waited for has to be known for as long.
    assert_eq!(asked(&[("CRCR_STATUS_TTL", "1h")]), "CRCR_STATUS_TTL");
    assert_eq!(asked(&[("HUD_MAX_RETRIES", "-1")]), "HUD_MAX_RETRIES");
    assert_eq!(asked(&[("IN_PROGRESS_WARN_THRESHOLD", "0")]), "IN_PROGRESS_WARN_THRESHOLD");
}

/// A number or a time that is one, and out of its bounds, isn't called none.
#[test]
fn value_out_of_bounds_is_told_the_bounds() {
    for (name, values, bounds) in [
        ("RATE_LIMIT_PER_MIN", ["0", "5000000000"], "from 1 to 4294967295"),
        ("HUD_MAX_RETRIES", ["-1", "5000000000"], "from 0 to 4294967295"),
        ("CRCR_RESULTS_RETENTION", ["0s", "4000d"], "from 1s to 3660d"),
    ] {
        for value in values {
            let problems = read(&[&NEEDED[..], &[(name, value)]].concat()).unwrap_err();
            let told = format!("{problems:?}");
            assert!(problems.len() == 1 && told.contains(bounds) && told.contains(value), "{told}");
        }
    }
}

#[test]
fn four_settings_are_required() {
    let config = read(&NEEDED).unwrap();
    assert_eq!((config.workers, config.allowlist_ttl), (32, Duration::from_secs(60)));
    assert_eq!(config.upstream.as_str(), "pytorch/pytorch");
    assert_eq!(config.store, StoreUrl::Sqlite("crcr.db".into()));
    assert!(config.hud.is_none() && config.admin_token.is_none());
    assert_eq!(config.lost_after, Duration::from_secs(21_600));
    let FileUrl::GitHub { reference, path, .. } = config.allowlist else { panic!("on GitHub") };
    assert_eq!((reference.as_str(), path.as_str()), ("main", ".github/allowlist.yml"));
}

#[test]
fn secret_is_read_from_a_file_and_never_printed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, "hush\n").unwrap();
    let mut pairs = NEEDED.to_vec();
    pairs[1] = ("GITHUB_APP_SECRET_FILE", path.to_str().unwrap());
    let config = read(&pairs).unwrap();
    assert_eq!(config.webhook_secret.first().expose_secret(), "hush");
    assert!(!format!("{config:?}").contains("hush"));
    // As Windows' Notepad saves it.
    std::fs::write(&path, "\u{feff}hush\r\n").unwrap();
    assert_eq!(read(&pairs).unwrap().webhook_secret.first().expose_secret(), "hush");
}

#[test]
fn headers_for_the_collector_of_traces_are_never_printed() {
    let name = "OTEL_EXPORTER_OTLP_HEADERS";
    let with = |text: &str| read(&[&NEEDED[..], &[(name, text)]].concat());
    let config = with("authorization=Bearer hush==, x-team = ci,\n").unwrap();
    let headers = config.trace_headers.iter();
    let headers: Vec<_> = headers.map(|(name, value)| (&**name, value.expose_secret())).collect();
    assert_eq!(headers, [("authorization", "Bearer hush=="), ("x-team", "ci")]);
    assert!(!format!("{config:?}").contains("hush"));
    let problems = with("authorization: hush").unwrap_err();
    assert_eq!((problems.len(), problems[0].name.as_str()), (1, name));
    assert!(!problems[0].what.contains("hush"), "{problems:?}");
}

#[test]
fn flag_or_variable_overrides_the_secret_store() {
    let stored = [("GITHUB_APP_SECRET", "stored"), ("GITHUB_APP_PRIVATE_KEY", "stored")];
    let stored = stored.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let lookup = |name: &str| match name {
        "GITHUB_APP_SECRET" => Some("own".to_owned()),
        "GITHUB_APP_ID" => Some("1".to_owned()),
        "ALLOWLIST_URL" => Some("file:allow.yml".to_owned()),
        _ => None,
    };
    let config = Config::read(&lookup, stored).unwrap();
    assert_eq!(config.webhook_secret.first().expose_secret(), "own");
    assert_eq!(config.private_key.first().expose_secret(), "stored");
}

#[test]
fn public_url_must_be_a_plain_https_or_loopback_url() {
    let with = |url: &str| read(&[&NEEDED[..], &[("CRCR_PUBLIC_URL", url)]].concat());
    for (given, kept) in [
        ("https://relay.test", "https://relay.test"),
        ("https://relay.test/", "https://relay.test"),
        ("https://relay.test/ci//", "https://relay.test/ci"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
    ] {
        let config = with(given).unwrap();
        assert_eq!(config.public_url.as_deref(), Some(kept));
        assert_eq!(config.callback_url().unwrap(), format!("{kept}/github/callback"));
        assert_eq!(config.pull_request_page(7).unwrap(), format!("{kept}/pr/7"));
    }
    for odd in [
        "http://relay.test",
        "relay.test",
        "https://relay.test/?x=1",
        "https://relay.test/#x",
        "https://me:secret@relay.test",
        "javascript:alert(1)",
    ] {
        let problems = with(odd).unwrap_err();
        assert_eq!(problems[0].name, "CRCR_PUBLIC_URL", "{odd}");
        assert!(!problems[0].what.contains("secret"), "{}", problems[0].what);
    }
    assert!(read(&NEEDED).unwrap().callback_url().is_none());
}

#[test]
fn feeds_of_alerts_are_addresses_and_need_a_webhook() {
    let url = ("CRCR_ALERT_URL", "https://alerts.test/x");
    let with = |pairs: &[(&str, &str)]| read(&[&NEEDED[..], pairs].concat());
    let feeds = "/feeds/acme/up/main,\n/test/acme/up/feed.atom?id=abc";
    let config = with(&[url, ("CRCR_ALERT_FEEDS", feeds)]).unwrap();
    let events: Vec<_> = config.alert_feeds.iter().map(|feed| feed.event(true)).collect();
    assert_eq!(events, ["branch_turned_red", "test_turned_red"]);
    let many = vec!["/feeds/acme/up/main"; 21].join(",");
    for wrong in [
        &[("CRCR_ALERT_FEEDS", feeds)][..],
        &[url, ("CRCR_ALERT_FEEDS", "main")],
        &[url, ("CRCR_ALERT_FEEDS", &many)],
    ] {
        let problems = with(wrong).unwrap_err();
        assert_eq!(problems[0].name, "CRCR_ALERT_FEEDS", "{problems:?}");
    }
}

#[test]
fn redis_is_set_by_its_address_or_by_the_deployed_relays_settings_and_no_password_is_shown() {
    let results = ("CRCR_RESULTS", "clickhouse+https://u:p@house.test/crcr");
    let store = |pairs: &[(&str, &str)]| {
        let config = read(&[&NEEDED[..], &[results], pairs].concat()).unwrap();
        let shown = format!("{config:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
        match config.store {
            StoreUrl::Redis(url) => url.to_string(),
            StoreUrl::Sqlite(path) => path.display().to_string(),
        }
    };
    let url = ("CRCR_STORE", "rediss://relay:s3cret@redis.test/1?prefix=ci");
    assert_eq!(store(&[url]), "rediss://redis.test:6379/1");
    let endpoint = ("REDIS_ENDPOINT", "cache.test:7000");
    let login = ("REDIS_LOGIN", "relay:s3cret");
    assert_eq!(store(&[endpoint, login]), "redis://cache.test:7000");
    let lambda = ("AWS_LAMBDA_FUNCTION_NAME", "relay");
    assert_eq!(store(&[endpoint, login, lambda]), "rediss://cache.test:7000");
    assert_eq!(store(&[endpoint, ("CRCR_STORE", "sqlite:a.db")]), "a.db");
    let names = |pairs: &[(&str, &str)]| -> Vec<String> {
        let lookup = |name: &str| {
            pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        settings_without_effect(&lookup).into_iter().map(|problem| problem.name).collect()
    };
    assert_eq!(names(&[endpoint, login]), Vec::<String>::new());
    assert_eq!(names(&[endpoint, login, url]), ["REDIS_ENDPOINT", "REDIS_LOGIN"]);
    let wrong = read(&[&NEEDED[..], &[("CRCR_STORE", "redis://:s3cret@r.test/x")]].concat());
    let problems = wrong.unwrap_err();
    assert_eq!(problems[0].name, "CRCR_STORE");
    assert!(!problems[0].what.contains("s3cret"), "{}", problems[0].what);
}
