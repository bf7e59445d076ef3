use serde_json::{Value, json};

use super::*;

const SHA: &str = "0123456789abcdef0123456789abcdef01234567";
const BASE: &str = "89abcdef0123456789abcdef0123456789abcdef";

fn filter() -> EventFilter {
    EventFilter {
        upstream: "acme/upstream".to_owned(),
        push_refs: vec![],
        label_prefix: "ciflow/crcr/".to_owned(),
        landed_label: "Merged".to_owned(),
    }
}

fn pull(action: &str) -> Value {
    json!({
        "action": action, "number": 7, "repository": {"full_name": "Acme/Upstream"},
        "label": {"name": "ciflow/crcr/npu"},
        "pull_request": {
            "number": 7, "updated_at": "2026-08-01T10:00:00Z", "head": {"sha": SHA},
            "base": {"sha": BASE},
            "labels": [{"name": "bug"}, {"name": "ciflow/crcr/npu"}]
        }
    })
}

fn push(git_ref: &str) -> Value {
    json!({
        "ref": git_ref, "after": SHA, "deleted": false,
        "repository": {"full_name": "acme/upstream", "default_branch": "main"}
    })
}

fn read_value(event: &str, value: &Value) -> Result<Option<UpstreamEvent>, EventError> {
    read(event, value.to_string().as_bytes(), &filter())
}

#[test]
fn event_names_convert_from_and_to_text() {
    for name in ["pull_request", "push", "merge_group", "landed", "nightly", "periodic", "probe"] {
        let event = EventName::from(name);
        assert!(!matches!(event, EventName::Other(_)), "{name}");
        assert_eq!(serde_json::to_value(&event).unwrap(), name);
        assert_eq!(event.to_string(), name);
        let sent_as = if name == "probe" { "push" } else { name };
        assert_eq!(event.event_type(), sent_as);
        assert_eq!(event.is_self_reported(), ["nightly", "periodic"].contains(&name));
    }
    assert_eq!(EventName::from("Push").as_str(), "Push");
    assert_ne!(EventName::from("Push"), EventName::Push);
}

#[test]
fn texts_of_an_author_include_the_name_of_the_fork_unless_that_was_deleted() {
    let texts = |fork: Value| {
        let mut event = pull("opened");
        let pull = &mut event["pull_request"];
        (pull["title"], pull["user"]) = ("push".into(), json!({"login": "mallory"}));
        (pull["head"]["ref"], pull["head"]["repo"]) = ("topic".into(), fork);
        match read_value("pull_request", &event).unwrap().unwrap() {
            UpstreamEvent::PullRequest(pull) => pull.author_texts,
            other => panic!("{other:?}"),
        }
    };
    let fork = json!({"full_name": "mallory/72d3162e-cc79"});
    assert_eq!(texts(fork), "push\ntopic\nmallory\nmallory/72d3162e-cc79");
    assert_eq!(texts(Value::Null), "push\ntopic\nmallory");
}

#[test]
fn only_relevant_pull_request_actions_are_accepted() {
    for (action, ours) in [
        ("opened", true),
        ("reopened", true),
        ("synchronize", true),
        ("closed", true),
        ("labeled", true),
        ("unlabeled", true),
        ("edited", false),
        ("assigned", false),
        ("ready_for_review", true),
        ("converted_to_draft", false),
    ] {
        let read = read_value("pull_request", &pull(action)).unwrap();
        assert_eq!(read.is_some(), ours, "{action}");
        if let Some(UpstreamEvent::PullRequest(pull)) = read {
            let is_label = action.ends_with("labeled");
            assert_eq!(pull.action.dispatches(), !is_label, "a label asks for no build");
        }
    }
    let Some(UpstreamEvent::PullRequest(read)) =
        read_value("pull_request", &pull("opened")).unwrap()
    else {
        panic!("a pull request")
    };
    assert_eq!((read.number, read.head_sha.as_str()), (7, SHA));
    assert_eq!(read.base_sha.as_deref(), Some(BASE));
    assert_eq!(read.labels, ["bug", "ciflow/crcr/npu"]);
    assert_eq!(read.label.as_deref(), Some("ciflow/crcr/npu"));
}

#[test]
fn another_title_changes_nothing_and_another_base_does() {
    let mut event = pull("edited");
    event["changes"] = json!({ "title": { "from": "Old" } });
    assert_eq!(read_value("pull_request", &event).unwrap(), None);
    event["changes"] = json!({ "base": { "ref": { "from": "other" }, "sha": { "from": SHA } } });
    let Some(UpstreamEvent::PullRequest(read)) = read_value("pull_request", &event).unwrap() else {
        panic!("a pull request")
    };
    assert_eq!(read.action, PullRequestAction::BaseChanged);
    event["pull_request"]["state"] = json!("closed");
    assert_eq!(read_value("pull_request", &event).unwrap(), None, "nothing of it is merged");
}

#[test]
fn null_means_that_nothing_is_said() {
    let mut event = pull("opened");
    for field in ["labels", "state", "merged", "draft", "user", "base", "author_association"] {
        event["pull_request"][field] = Value::Null;
    }
    event["label"] = Value::Null;
    let Some(UpstreamEvent::PullRequest(read)) = read_value("pull_request", &event).unwrap() else {
        panic!("a pull request")
    };
    assert!(!read.has_landed && !read.is_draft && read.labels.is_empty());
    let push = json!({
        "ref": "refs/heads/main", "after": SHA, "deleted": null,
        "repository": { "full_name": "acme/upstream", "default_branch": "main" },
    });
    assert!(read_value("push", &push).unwrap().is_some());
}

#[test]
fn author_is_known_who_has_contributed_or_may_write() {
    for (association, is_known) in [
        ("OWNER", true),
        ("MEMBER", true),
        ("COLLABORATOR", true),
        ("CONTRIBUTOR", true),
        ("FIRST_TIME_CONTRIBUTOR", false),
        ("NONE", false),
    ] {
        let mut event = pull("opened");
        event["pull_request"]["author_association"] = json!(association);
        let read = read_value("pull_request", &event).unwrap();
        let Some(UpstreamEvent::PullRequest(pull)) = read else { panic!("a pull request") };
        assert_eq!(pull.is_known_author, is_known, "{association}");
    }
}

#[test]
fn event_that_the_relay_does_not_act_on_only_has_to_be_json() {
    let read = |body: &[u8]| read("star", body, &filter());
    assert_eq!(read(b"{\"action\": \"created\"}"), Ok(None));
    assert_eq!(read(b"{\"action\": "), Err(EventError::NotJson));
}

#[test]
fn only_labels_with_the_prefix_are_accepted() {
    let mut event = pull("labeled");
    event["label"]["name"] = json!("CIFLOW/crcr/npu");
    assert!(read_value("pull_request", &event).unwrap().is_some());
    event["label"]["name"] = json!("bug");
    assert_eq!(read_value("pull_request", &event).unwrap(), None);
    event["action"] = json!("unlabeled");
    assert_eq!(read_value("pull_request", &event).unwrap(), None);
}

#[test]
fn pull_request_has_landed_if_merged_or_closed_with_the_label() {
    let landed = |action: &str, label: &str, state: &str, merged: bool, labels: &[&str]| {
        let mut event = pull(action);
        event["label"]["name"] = json!(label);
        event["pull_request"]["state"] = json!(state);
        event["pull_request"]["merged"] = json!(merged);
        event["pull_request"]["labels"] =
            labels.iter().map(|name| json!({ "name": name })).collect();
        match read_value("pull_request", &event).unwrap() {
            Some(UpstreamEvent::PullRequest(pull)) => Some(pull.has_landed),
            _ => None,
        }
    };
    assert_eq!(landed("closed", "", "closed", false, &["bug"]), Some(false));
    assert_eq!(landed("closed", "", "closed", true, &[]), Some(true));
    assert_eq!(landed("closed", "", "closed", false, &["merged"]), Some(true));
    assert_eq!(landed("labeled", "Merged", "closed", false, &["Merged"]), Some(true));
    assert_eq!(landed("labeled", "Merged", "open", false, &["Merged"]), None, "not yet");
    assert_eq!(landed("labeled", "bug", "closed", true, &[]), None, "it landed before");
    assert_eq!(landed("labeled", "ciflow/crcr/npu", "open", false, &["Merged"]), Some(false));
}

#[test]
fn merge_group_is_accepted_when_checks_are_requested() {
    let group = |action: &str, repo: &str, sha: &str| {
        let event = json!({
            "action": action, "repository": {"full_name": repo},
            "merge_group": {
                "head_sha": sha, "base_sha": BASE, "head_ref": "refs/heads/x",
                "head_commit": {"message": "Merge pull request #7\n\npush\n\nmore"},
            },
        });
        read_value("merge_group", &event)
    };
    let expected = MergeGroup {
        head_sha: SHA.to_owned(),
        base_sha: Some(BASE.to_owned()),
        author_texts: "Merge pull request #7\n\npush".to_owned(),
    };
    let asked = group("checks_requested", "acme/upstream", SHA).unwrap();
    assert_eq!(asked, Some(UpstreamEvent::MergeGroup(expected)));
    assert_eq!(group("destroyed", "acme/upstream", SHA).unwrap(), None);
    assert_eq!(group("checks_requested", "acme/other", SHA).unwrap(), None);
    assert!(group("checks_requested", "acme/upstream", "main").is_err());
    assert_eq!(group("destroyed", "acme/upstream", "main").unwrap(), None);
}

#[test]
fn commit_id_is_a_whole_sha1_or_sha256() {
    for (text, is_id) in [
        (SHA.to_owned(), true),
        ("F".repeat(64), true),
        ("a".repeat(39), false),
        ("a".repeat(41), false),
        ("g".repeat(40), false),
        (String::new(), false),
    ] {
        assert_eq!(is_sha(&text), is_id, "{text}");
    }
}

#[test]
fn events_of_other_repositories_are_ignored() {
    let mut event = pull("opened");
    event["repository"]["full_name"] = json!("acme/other");
    assert_eq!(read_value("pull_request", &event).unwrap(), None);
}

#[test]
fn message_of_a_push_is_text_of_an_author() {
    let mut event = push("refs/heads/main");
    event["head_commit"] = json!({ "message": "Merge pull request #7\n\npull_request\n\nmore" });
    let read = read_value("push", &event).unwrap();
    let author_texts = "Merge pull request #7\n\npull_request".to_owned();
    let (git_ref, head_sha) = ("refs/heads/main".to_owned(), SHA.to_owned());
    assert_eq!(read, Some(UpstreamEvent::Push(Push { git_ref, head_sha, author_texts })));
    event["head_commit"] = Value::Null;
    assert!(read_value("push", &event).unwrap().is_some(), "GitHub calls it nullable");
}

#[test]
fn pushes_to_the_default_branch_or_configured_refs_are_accepted() {
    assert!(read_value("push", &push("refs/heads/main")).unwrap().is_some());
    for other in ["refs/heads/topic", "refs/tags/main", "refs/heads/gh/x/1/base"] {
        assert_eq!(read_value("push", &push(other)).unwrap(), None, "{other}");
    }
    let mut deleted = push("refs/heads/main");
    deleted["deleted"] = json!(true);
    assert_eq!(read_value("push", &deleted).unwrap(), None);
    let mut odd = push("refs/heads/main");
    odd["after"] = json!("main");
    assert_eq!(read_value("push", &odd).unwrap(), None, "no commit");
    let mut tag = push("refs/tags/v2.9.0");
    tag["repository"]["default_branch"] = Value::Null;
    assert_eq!(read_value("push", &tag).unwrap(), None, "no branch, and so not the default one");
    let chosen = EventFilter {
        push_refs: vec!["release/*".to_owned(), "refs/tags/v*".to_owned()],
        ..filter()
    };
    for (name, ours) in [
        ("refs/heads/release/2.9", true),
        ("refs/tags/v2.9.0", true),
        ("refs/heads/main", false),
        ("refs/tags/ciflow/trunk/1", false),
    ] {
        let read = read("push", push(name).to_string().as_bytes(), &chosen).unwrap();
        assert_eq!(read.is_some(), ours, "{name}");
    }
}

/// Otherwise its results belong to the tag's own object, which no page shows.
#[test]
fn push_of_an_annotated_tag_is_about_the_commit_that_it_names() {
    let chosen = EventFilter { push_refs: vec!["*".to_owned()], ..filter() };
    for (git_ref, head, expected) in [
        ("refs/tags/v2.9.0", json!({ "id": BASE }), BASE),
        ("refs/tags/v2.9.0", Value::Null, SHA),
        ("refs/tags/v2.9.0", json!({ "id": "v2.9.0" }), SHA),
        ("refs/heads/main", json!({ "id": BASE }), SHA),
    ] {
        let mut event = push(git_ref);
        event["head_commit"] = head;
        let read = read("push", event.to_string().as_bytes(), &chosen).unwrap();
        let Some(UpstreamEvent::Push(push)) = read else { panic!("{git_ref}") };
        assert_eq!(push.head_sha, expected, "{git_ref}");
    }
}

/// The same commit comes as a merge group, whose run that of a push would replace.
#[test]
fn wide_pattern_does_not_match_the_branches_of_the_merge_queue() {
    let queue = "refs/heads/gh-readonly-queue/main/pr-7-0a1b";
    for (pattern, git_ref, ours) in [
        ("*", queue, false),
        ("refs/heads/*", queue, false),
        ("gh*", queue, false),
        ("*", "refs/heads/topic", true),
        ("*", "refs/tags/gh-readonly-queue/1", true),
        ("gh-readonly-queue/main/*", queue, true),
        ("refs/heads/gh-readonly-queue/*", queue, true),
    ] {
        let chosen = EventFilter { push_refs: vec![pattern.to_owned()], ..filter() };
        let read = read("push", push(git_ref).to_string().as_bytes(), &chosen).unwrap();
        assert_eq!(read.is_some(), ours, "{pattern} {git_ref}");
    }
}

#[test]
fn star_matches_any_text() {
    for (pattern, text, matches) in [
        ("main", "main", true),
        ("main", "main2", false),
        ("*", "", true),
        ("a*b*c", "a--b--c", true),
        ("a*b*c", "a--c--b", false),
        ("a*a", "a", false),
    ] {
        assert_eq!(matches_wildcard(pattern, text), matches, "{pattern} {text}");
    }
}

#[test]
fn invalid_bodies_are_rejected() {
    let read = |body: &[u8]| read("pull_request", body, &filter());
    assert_eq!(read(b""), Err(EventError::NotJson));
    assert_eq!(read(b"payload=%7B%7D"), Err(EventError::Form));
    assert_eq!(read(b"[]"), Err(EventError::NotAnObject));
    assert_eq!(read(b"{"), Err(EventError::NotJson));
    assert!(matches!(read(b"{}"), Err(EventError::Shape { .. })));
    let mut event = pull("opened");
    event["pull_request"]["head"]["sha"] = json!("../../etc");
    assert!(read(event.to_string().as_bytes()).unwrap_err().to_string().contains("head.sha"));
    let unread =
        [&b"{\"title\":\"\xff\","[..], &pull("opened").to_string().as_bytes()[1..]].concat();
    assert_eq!(read(&unread), Err(EventError::NotJson), "it couldn't be dispatched");
}

#[test]
fn only_rerequested_check_runs_are_accepted() {
    let run = json!({
        "action": "rerequested", "repository": {"full_name": "acme/upstream"},
        "check_run": {"name": "crcr/o/r/w/j", "external_id": "12:7", "head_sha": SHA}
    });
    assert!(matches!(
        read_value("check_run", &run).unwrap(),
        Some(UpstreamEvent::CheckRunRerequested(run)) if run.external_id == "12:7"
    ));
    for event in ["check_run", "check_suite"] {
        for (action, repo, ours) in [
            ("rerequested", "acme/upstream", true),
            ("completed", "acme/upstream", false),
            ("rerequested", "acme/other", false),
        ] {
            let suite = json!({"id": 5, "head_sha": SHA});
            let asked = json!({
                "action": action, "repository": {"full_name": repo},
                "check_run": run["check_run"], "check_suite": suite
            });
            let read = read_value(event, &asked).unwrap();
            assert_eq!(read.is_some(), ours, "{event} {action} {repo}");
        }
    }
}
