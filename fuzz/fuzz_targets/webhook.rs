//! Any bytes as the body of any event: reading doesn't panic, every value that is used later is valid,
//! and a body that is reduced has what downstream needs.
#![no_main]

use std::sync::LazyLock;

use crcr_domain::protocol::event::{self, EventFilter, UpstreamEvent, is_sha};
use crcr_relay::limits;
use crcr_relay::webhook::payload;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const EVENTS: [&str; 6] =
    ["pull_request", "push", "merge_group", "check_run", "check_suite", "issue_comment"];
static FILTER: LazyLock<EventFilter> = LazyLock::new(|| EventFilter {
    upstream: "pytorch/pytorch".to_owned(),
    push_refs: vec!["main".to_owned(), "release/*".to_owned()],
    label_prefix: "ciflow/crcr/".to_owned(),
    landed_label: "Merged".to_owned(),
});

fuzz_target!(|input: (u8, &[u8])| {
    let (choice, body) = input;
    let name = EVENTS[usize::from(choice) % EVENTS.len()];
    if let Ok(Some(event)) = event::read(name, body, &FILTER) {
        match event {
            UpstreamEvent::PullRequest(pull) => assert!(is_sha(&pull.head_sha)),
            UpstreamEvent::Push(push) => assert!(is_sha(&push.head_sha)),
            UpstreamEvent::MergeGroup(group) => assert!(is_sha(&group.head_sha)),
            UpstreamEvent::CheckRunRerequested(_) | UpstreamEvent::CheckSuiteRerequested(_) => {}
        }
    }
    // Long enough to be reduced, by a text that the first step cuts and by one that stays.
    let Ok(Value::Object(mut body)) = serde_json::from_slice(body) else { return };
    let key = if choice < 128 { "body" } else { "unknown" };
    body.insert(key.to_owned(), "<".repeat(limits::PAYLOAD_BYTES / 6 + 1).into());
    let body = serde_json::to_vec(&body).expect("it was read from JSON");
    let reduced = payload::reduce(&body).expect("it is JSON").expect("it is too large");
    assert!(reduced.len() <= body.len());
    let read: Value = serde_json::from_slice(&reduced).expect("what is stored is JSON");
    assert!(read.is_object());
});
