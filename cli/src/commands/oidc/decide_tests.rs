use super::*;
use Plan::{Ambient, Anonymous, Broken, Token};

fn facts(event: &str) -> Facts {
    Facts {
        event: event.to_owned(),
        repository: Some("acme/upstream".to_owned()),
        actor: Some("octocat".to_owned()),
        role: true,
        ..Facts::default()
    }
}

fn pull_request(head: Option<&str>) -> PullRequestFacts {
    PullRequestFacts {
        head: head.map(str::to_owned),
        base: Some("acme/upstream".to_owned()),
        author: Some("octocat".to_owned()),
    }
}

fn from(event: &str, head: Option<&str>) -> Facts {
    Facts { pull_request: Some(pull_request(head)), ..facts(event) }
}

fn with_token(facts: Facts) -> Facts {
    Facts { token_url: true, token_bearer: true, ..facts }
}

#[test]
fn every_situation_has_its_row() {
    let fork = || from("pull_request", Some("stranger/upstream"));
    let same = || from("pull_request", Some("acme/upstream"));
    let bot = || Facts { actor: Some("dependabot[bot]".to_owned()), ..same() };
    let bots_pull = || {
        let mut facts = same();
        facts.pull_request.as_mut().unwrap().author = Some("dependabot[bot]".to_owned());
        facts
    };
    let foreign = |facts: Facts| Facts { owners: vec!["pytorch".to_owned()], ..facts };
    let url_only = |facts: Facts| Facts { token_url: true, ..facts };
    let bearer_only = |facts: Facts| Facts { token_bearer: true, ..facts };
    let ambient = |facts: Facts| Facts { ambient: true, ..facts };
    let no_role = |facts: Facts| Facts { role: false, ..facts };

    let table = [
        // The event gives a token, or not.
        ("same repository, token", with_token(same()), Token),
        ("push, token", with_token(facts("push")), Token),
        ("fork, no token", fork(), Anonymous(Reason::Fork)),
        ("deleted fork", from("pull_request", None), Anonymous(Reason::Fork)),
        (
            "review of a fork's pull request",
            from("pull_request_review", Some("stranger/upstream")),
            Anonymous(Reason::Fork),
        ),
        ("fork with a token", with_token(fork()), Token),
        (
            "fork of a fork: only names count",
            from("pull_request", Some("ACME/Upstream")),
            Broken(Reason::NoPermission),
        ),
        (
            "a payload with a pull request, another event",
            from("issue_comment", Some("stranger/upstream")),
            Broken(Reason::NoPermission),
        ),
        ("dependabot starts", bot(), Anonymous(Reason::Dependabot)),
        ("dependabot's pull request", bots_pull(), Anonymous(Reason::Dependabot)),
        (
            "dependabot pushes",
            Facts { pull_request: None, event: "push".to_owned(), ..bot() },
            Anonymous(Reason::Dependabot),
        ),
        ("dependabot with a token", with_token(bot()), Token),
        // A run for the base branch can always have a token.
        (
            "pull_request_target of a fork",
            from("pull_request_target", Some("stranger/upstream")),
            Broken(Reason::NoPermission),
        ),
        (
            "pull_request_target of dependabot",
            Facts { event: "pull_request_target".to_owned(), ..bot() },
            Broken(Reason::NoPermission),
        ),
        ("foreign repository", foreign(facts("push")), Anonymous(Reason::ForeignRepo)),
        (
            "own repository by owner",
            Facts { owners: vec!["ACME".into()], ..same() },
            Broken(Reason::NoPermission),
        ),
        ("half a token: URL", url_only(same()), Broken(Reason::PartialToken)),
        ("half a token: bearer", bearer_only(same()), Broken(Reason::PartialToken)),
        ("no token", same(), Broken(Reason::NoPermission)),
        ("no token on push", facts("push"), Broken(Reason::NoPermission)),
        ("outside of Actions", Facts::default(), Broken(Reason::NoPermission)),
        // Credentials of the machine, only when asked for.
        ("ambient, no token", ambient(same()), Ambient),
        ("ambient, token and role", ambient(with_token(same())), Token),
        ("ambient, token, no role", no_role(ambient(with_token(same()))), Ambient),
        ("ambient, half a token", ambient(url_only(same())), Broken(Reason::PartialToken)),
        ("ambient never serves a fork", ambient(fork()), Anonymous(Reason::Fork)),
        ("ambient never serves dependabot", ambient(bot()), Anonymous(Reason::Dependabot)),
        // The order.
        ("foreign before token", foreign(with_token(same())), Anonymous(Reason::ForeignRepo)),
        ("foreign before dependabot", foreign(bot()), Anonymous(Reason::ForeignRepo)),
        ("foreign before fork", foreign(fork()), Anonymous(Reason::ForeignRepo)),
        ("foreign before half a token", foreign(url_only(same())), Anonymous(Reason::ForeignRepo)),
        (
            "fork before dependabot",
            Facts { actor: Some("dependabot[bot]".to_owned()), ..fork() },
            Anonymous(Reason::Fork),
        ),
        ("half a token before fork", url_only(fork()), Broken(Reason::PartialToken)),
    ];
    for (name, facts, plan) in table {
        assert_eq!(facts.plan(), plan, "{name}");
    }
}

#[test]
fn without_ambient_credentials_the_rest_of_the_table_decides() {
    let ambient = Facts { ambient: true, ..facts("push") };
    assert_eq!(ambient.without_ambient(), Broken(Reason::NoPermission));
    assert_eq!(with_token(ambient).without_ambient(), Token);
}

/// Every reason after another; a new one has to find its place here.
fn next(reason: Reason) -> Option<Reason> {
    Some(match reason {
        Reason::Ok => Reason::Fork,
        Reason::Fork => Reason::Dependabot,
        Reason::Dependabot => Reason::ForeignRepo,
        Reason::ForeignRepo => Reason::NoPermission,
        Reason::NoPermission => Reason::PartialToken,
        Reason::PartialToken => Reason::StsDenied,
        Reason::StsDenied => Reason::TokenEndpoint,
        Reason::TokenEndpoint => Reason::StsUnreachable,
        Reason::StsUnreachable => Reason::InvalidInput,
        Reason::InvalidInput => Reason::EventPayload,
        Reason::EventPayload => return None,
    })
}

#[test]
fn the_action_describes_every_reason() {
    let action = include_str!("../../../../actions/configure-oidc-fallback/action.yml");
    let readme = include_str!("../../../../actions/configure-oidc-fallback/README.md");
    let described = action.split("\n  reason:\n").nth(1).unwrap().split("value:").next().unwrap();
    for reason in std::iter::successors(Some(Reason::Ok), |reason| next(*reason)) {
        let word = format!("`{reason}`");
        assert!(described.contains(&word), "{word} is not in action.yml");
        assert!(readme.contains(&word), "{word} is not in the README");
    }
}

#[test]
fn every_ending_has_its_outputs() {
    use Mode as M;
    use OnUnavailable::{Auto, Degrade, Fail};
    let expected = [Reason::Fork, Reason::ForeignRepo];
    let fixable = [Reason::NoPermission, Reason::PartialToken, Reason::StsDenied];
    let services =
        [Reason::TokenEndpoint, Reason::StsUnreachable, Reason::InvalidInput, Reason::EventPayload];
    let seen =
        |row: Row| (row.mode, row.expected, row.degraded, row.can_write, row.exit, row.voice);

    for policy in [Auto, Degrade, Fail] {
        for (ended, mode) in [(Ended::Oidc, M::Oidc), (Ended::Ambient, M::Ambient)] {
            let row = row(ended, policy);
            assert_eq!(row.reason, Reason::Ok);
            assert_eq!(seen(row), (mode, true, false, true, 0, Voice::Line), "{policy:?}");
        }
        for reason in expected {
            let row = row(Ended::Anonymous(reason), policy);
            let (exit, voice) = if policy == Fail { (1, Voice::Error) } else { (0, Voice::Notice) };
            assert_eq!(row.reason, reason);
            assert_eq!(seen(row), (M::Anonymous, true, true, false, exit, voice), "{policy:?}");
        }
        let row = row(Ended::Anonymous(Reason::Dependabot), policy);
        let (exit, voice) = if policy == Fail { (1, Voice::Error) } else { (0, Voice::Warning) };
        assert_eq!(seen(row), (M::Anonymous, false, true, false, exit, voice), "{policy:?}");
        for (reasons, exit) in [(&fixable[..], 1), (&services[..], 2)] {
            for &reason in reasons {
                let row = super::row(Ended::Broken(reason), policy);
                assert_eq!(row.reason, reason);
                if policy == Degrade {
                    assert_eq!(
                        seen(row),
                        (M::Anonymous, false, true, false, 0, Voice::Warning),
                        "{reason}"
                    );
                } else {
                    assert_eq!(seen(row), (M::Error, false, false, false, exit, Voice::Error));
                }
            }
        }
    }
}
