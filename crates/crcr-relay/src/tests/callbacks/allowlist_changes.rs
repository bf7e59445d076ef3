//! What open pull requests and merge groups get when an entry of the allowlist changes.

use crcr_store::{SetInsert, WriteBatch};

use super::verdicts::{MINUTE, of};
use super::*;
use crate::{limits, state_records};

const THREE: &str = "crcr/acme/three/relay/dispatch";

/// An event of a pull request makes it the most recently changed one while the heads are evaluated part by part.
#[tokio::test]
async fn head_that_gets_a_label_while_many_are_evaluated_has_its_required_check() {
    let world = World::new().await;
    let _ = open(&world).await;
    let set = state_records::open_heads_key(&world.relay.config.upstream);
    let score = world.relay.now().as_millisecond() + 1;
    let newer = |number: usize| SetInsert {
        set: set.clone(),
        member: (1000 + number).to_string(),
        score,
        expires_at: world.relay.expiry(),
    };
    let set_inserts = (0..limits::HEADS_PER_TASK).map(newer).collect();
    world.relay.commit(WriteBatch { set_inserts, ..WriteBatch::default() }).await.unwrap();
    world.enforce("L4:\n  - acme/three: [carol]\n").await;
    world.work_once().await;
    world.later(MINUTE);
    world.change(|pull| pull.labels.extend(["ciflow/crcr/gpu".to_owned()]));
    let state = world.github.state();
    let payload = state.label_payload(UPSTREAM, 7, "ciflow/crcr/gpu", true);
    world.send(&state.world.delivery("pull_request", &payload)).await;
    world.settle().await;
    assert_eq!(of(&world, THREE), Some(("queued".to_owned(), None)));
}
