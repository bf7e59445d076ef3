use super::*;
use AuthPlan::{Ambient, Anonymous, Broken, Token};

fn facts(event: &str) -> JobFacts {
    JobFacts {
        event: event.to_owned(),
        repository: Some("acme/upstream".to_owned()),
        actor: Some("octocat".to_owned()),
        role: true,
        ..JobFacts::default()
    }
}

fn pull_request(head: Option<&str>) -> PullRequestFacts {
    PullRequestFacts {
        head: head.map(str::to_owned),
        base: Some("acme/upstream".to_owned()),
        author: Some("octocat".to_owned()),
    }
}

fn from(event: &str, head: Option<&str>) -> JobFacts {
    JobFacts { pull_request: Some(pull_request(head)), ..facts(event) }
}

fn with_token(facts: JobFacts) -> JobFacts {
    JobFacts { token_url: true, token_bearer: true, ..facts }
}

#[test]
fn event_token_and_owner_decide_between_token_ambient_anonymous_and_broken() {
    let fork = || from("pull_request", Some("stranger/upstream"));
    let same = || from("pull_request", Some("acme/upstream"));
    let bot = || JobFacts { actor: Some("dependabot[bot]".to_owned()), ..same() };
    let bots_pull = || {
        let mut facts = same();
        facts.pull_request.as_mut().unwrap().author = Some("dependabot[bot]".to_owned());
        facts
    };
    let foreign = |facts: JobFacts| JobFacts { owners: vec!["pytorch".to_owned()], ..facts };
    let url_only = |facts: JobFacts| JobFacts { token_url: true, ..facts };
    let bearer_only = |facts: JobFacts| JobFacts { token_bearer: true, ..facts };
    let ambient = |facts: JobFacts| JobFacts { ambient: true, ..facts };
    let no_role = |facts: JobFacts| JobFacts { role: false, ..facts };

    let table = [
        // The event gives a token, or not.
        ("same repository, token", with_token(same()), Token),
        ("push, token", with_token(facts("push")), Token),
        ("fork, no token", fork(), Anonymous(AuthReason::Fork)),
        ("deleted fork", from("pull_request", None), Anonymous(AuthReason::Fork)),
        (
            "review of a fork's pull request",
            from("pull_request_review", Some("stranger/upstream")),
            Anonymous(AuthReason::Fork),
        ),
        ("fork with a token", with_token(fork()), Token),
        (
            "fork of a fork: only names count",
            from("pull_request", Some("ACME/Upstream")),
            Broken(AuthReason::NoPermission),
        ),
        (
            "a payload with a pull request, another event",
            from("issue_comment", Some("stranger/upstream")),
            Broken(AuthReason::NoPermission),
        ),
        ("dependabot starts", bot(), Anonymous(AuthReason::Dependabot)),
        ("dependabot's pull request", bots_pull(), Anonymous(AuthReason::Dependabot)),
        (
            "dependabot pushes",
            JobFacts { pull_request: None, event: "push".to_owned(), ..bot() },
            Anonymous(AuthReason::Dependabot),
        ),
        ("dependabot with a token", with_token(bot()), Token),
        // Their runs don't get the secret that the role is.
        ("dependabot, no role", no_role(with_token(bot())), Anonymous(AuthReason::Dependabot)),
        ("fork, token, no role", no_role(with_token(fork())), Anonymous(AuthReason::Fork)),
        ("same repository, no role", no_role(with_token(same())), Token),
        ("dependabot, the machine's credentials", ambient(no_role(with_token(bot()))), Ambient),
        // A run for the base branch can always have a token.
        (
            "pull_request_target of a fork",
            from("pull_request_target", Some("stranger/upstream")),
            Broken(AuthReason::NoPermission),
        ),
        (
            "pull_request_target of dependabot",
            JobFacts { event: "pull_request_target".to_owned(), ..bot() },
            Broken(AuthReason::NoPermission),
        ),
        ("foreign repository", foreign(facts("push")), Anonymous(AuthReason::ForeignRepo)),
        (
            "own repository by owner",
            JobFacts { owners: vec!["ACME".into()], ..same() },
            Broken(AuthReason::NoPermission),
        ),
        ("half a token: URL", url_only(same()), Broken(AuthReason::PartialToken)),
        ("half a token: bearer", bearer_only(same()), Broken(AuthReason::PartialToken)),
        ("no token", same(), Broken(AuthReason::NoPermission)),
        ("no token on push", facts("push"), Broken(AuthReason::NoPermission)),
        ("outside of Actions", JobFacts::default(), Broken(AuthReason::NoPermission)),
        // Credentials of the machine, only when asked for.
        ("ambient, no token", ambient(same()), Ambient),
        ("ambient, token and role", ambient(with_token(same())), Token),
        ("ambient, token, no role", no_role(ambient(with_token(same()))), Ambient),
        ("ambient, half a token", ambient(url_only(same())), Broken(AuthReason::PartialToken)),
        ("ambient never serves a fork", ambient(fork()), Anonymous(AuthReason::Fork)),
        ("ambient never serves dependabot", ambient(bot()), Anonymous(AuthReason::Dependabot)),
        // The order.
        ("foreign before token", foreign(with_token(same())), Anonymous(AuthReason::ForeignRepo)),
        ("foreign before dependabot", foreign(bot()), Anonymous(AuthReason::ForeignRepo)),
        ("foreign before fork", foreign(fork()), Anonymous(AuthReason::ForeignRepo)),
        (
            "foreign before half a token",
            foreign(url_only(same())),
            Anonymous(AuthReason::ForeignRepo),
        ),
        (
            "fork before dependabot",
            JobFacts { actor: Some("dependabot[bot]".to_owned()), ..fork() },
            Anonymous(AuthReason::Fork),
        ),
        ("half a token before fork", url_only(fork()), Broken(AuthReason::PartialToken)),
    ];
    for (name, facts, plan) in table {
        assert_eq!(facts.plan(), plan, "{name}");
    }
}

#[test]
fn without_ambient_credentials_the_other_rules_decide() {
    let ambient = JobFacts { ambient: true, ..facts("push") };
    assert_eq!(ambient.without_ambient(), Broken(AuthReason::NoPermission));
    assert_eq!(with_token(ambient).without_ambient(), Token);
}

/// Every reason after another; a new one has to find its place here.
fn next(reason: AuthReason) -> Option<AuthReason> {
    Some(match reason {
        AuthReason::Ok => AuthReason::Fork,
        AuthReason::Fork => AuthReason::Dependabot,
        AuthReason::Dependabot => AuthReason::ForeignRepo,
        AuthReason::ForeignRepo => AuthReason::NoPermission,
        AuthReason::NoPermission => AuthReason::PartialToken,
        AuthReason::PartialToken => AuthReason::StsDenied,
        AuthReason::StsDenied => AuthReason::TokenEndpoint,
        AuthReason::TokenEndpoint => AuthReason::StsUnreachable,
        AuthReason::StsUnreachable => AuthReason::InvalidInput,
        AuthReason::InvalidInput => AuthReason::EventPayload,
        AuthReason::EventPayload => return None,
    })
}

#[test]
fn the_action_describes_every_reason() {
    let action = include_str!("../../../../actions/configure-oidc-fallback/action.yml");
    let readme = include_str!("../../../../actions/configure-oidc-fallback/README.md");
    let described = action.split("\n  reason:\n").nth(1).unwrap().split("value:").next().unwrap();
    for reason in std::iter::successors(Some(AuthReason::Ok), |reason| next(*reason)) {
        let word = format!("`{reason}`");
        assert!(described.contains(&word), "{word} is not in action.yml");
        assert!(readme.contains(&word), "{word} is not in the README");
    }
}

#[test]
fn result_and_policy_decide_mode_exit_code_and_what_is_logged() {
    use AuthMode as M;
    use OnUnavailable::{Auto, Degrade, Fail};
    let expected = [AuthReason::Fork, AuthReason::ForeignRepo];
    let fixable = [AuthReason::NoPermission, AuthReason::PartialToken, AuthReason::StsDenied];
    let services = [
        AuthReason::TokenEndpoint,
        AuthReason::StsUnreachable,
        AuthReason::InvalidInput,
        AuthReason::EventPayload,
    ];
    let seen = |outputs: ActionOutputs| {
        (
            outputs.mode,
            outputs.expected,
            outputs.degraded,
            outputs.can_write,
            outputs.exit,
            outputs.level,
        )
    };

    for policy in [Auto, Degrade, Fail] {
        for (ended, mode) in [(AuthResult::Oidc, M::Oidc), (AuthResult::Ambient, M::Ambient)] {
            let outputs = action_outputs(ended, policy);
            assert_eq!(outputs.reason, AuthReason::Ok);
            assert_eq!(seen(outputs), (mode, true, false, true, 0, LogLevel::Line), "{policy:?}");
        }
        for reason in expected {
            let outputs = action_outputs(AuthResult::Anonymous(reason), policy);
            let (exit, level) =
                if policy == Fail { (1, LogLevel::Error) } else { (0, LogLevel::Notice) };
            assert_eq!(outputs.reason, reason);
            assert_eq!(seen(outputs), (M::Anonymous, true, true, false, exit, level), "{policy:?}");
        }
        let outputs = action_outputs(AuthResult::Anonymous(AuthReason::Dependabot), policy);
        let (exit, level) =
            if policy == Fail { (1, LogLevel::Error) } else { (0, LogLevel::Warning) };
        assert_eq!(seen(outputs), (M::Anonymous, false, true, false, exit, level), "{policy:?}");
        for (reasons, exit) in [(&fixable[..], 1), (&services[..], 2)] {
            for &reason in reasons {
                let outputs = action_outputs(AuthResult::Broken(reason), policy);
                assert_eq!(outputs.reason, reason);
                if policy == Degrade {
                    assert_eq!(
                        seen(outputs),
                        (M::Anonymous, false, true, false, 0, LogLevel::Warning),
                        "{reason}"
                    );
                } else {
                    assert_eq!(
                        seen(outputs),
                        (M::Error, false, false, false, exit, LogLevel::Error)
                    );
                }
            }
        }
    }
}

#[test]
fn only_runs_that_build_the_default_branch_itself_have_its_part_of_the_cache() {
    let class = |event: &str, git_ref: &str| {
        let facts = JobFacts {
            event: event.to_owned(),
            git_ref: Some(git_ref.to_owned()),
            default_branch: Some("main".to_owned()),
            ..JobFacts::default()
        };
        facts.trust_class()
    };
    for event in ["push", "workflow_dispatch", "schedule"] {
        assert_eq!(class(event, "refs/heads/main"), TrustClass::DefaultBranch, "{event}");
    }
    for (event, git_ref) in [
        ("push", "refs/heads/topic"),
        ("push", "refs/tags/main"),
        ("push", "main"),
        ("workflow_dispatch", "refs/heads/topic"),
        ("pull_request", "refs/pull/7/merge"),
        ("merge_group", "refs/heads/gh-readonly-queue/main/pr-7"),
        // They have the default branch's ref, and may build the code of a pull request.
        ("pull_request_target", "refs/heads/main"),
        ("workflow_run", "refs/heads/main"),
        ("repository_dispatch", "refs/heads/main"),
        ("issue_comment", "refs/heads/main"),
        ("", "refs/heads/main"),
    ] {
        assert_eq!(class(event, git_ref), TrustClass::PullRequests, "{event} {git_ref}");
    }
    let unknown = JobFacts { event: "push".into(), ..JobFacts::default() };
    assert_eq!(unknown.trust_class(), TrustClass::PullRequests);
}
