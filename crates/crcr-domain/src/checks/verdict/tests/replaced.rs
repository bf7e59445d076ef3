//! Dispatches that say nothing any more.

use super::*;

#[test]
fn dispatch_is_replaced_once_its_pull_request_has_run_all_of_it_again() {
    let [first, own, next] = ["4", "5", "6"].map(|run| id(run, 1, "CI", "test"));
    let others = [run("4", "ci.yml", 1, RunState::Over(BAD))];
    let others = dispatch(&SENT, &others, vec![ended(&first, BAD)]);
    let others = HeadDispatch { pull_request: Some(2), ..others };
    let failed =
        [run("5", "ci.yml", 1, RunState::Over(BAD)), run("7", "lint.yml", 1, RunState::Over(BAD))];
    let replaced = |failed: &[DownstreamRun], state, file: &str| {
        let newer = [run("6", file, 1, state)];
        let end = if state == RunState::Over(GOOD) { GOOD } else { BAD };
        let own = dispatch(&SENT, failed, vec![ended(&own, BAD)]);
        let next = dispatch(&SENT, &newer, vec![ended(&next, end)]);
        replaced_dispatches(&[others.clone(), own, next])
    };
    for end in [GOOD, BAD] {
        assert_eq!(replaced(&failed[..1], RunState::Over(end), "ci.yml"), [1], "{end}");
        assert!(replaced(&failed, RunState::Over(end), "ci.yml").is_empty(), "lint counts");
        assert!(replaced(&failed[..1], RunState::Over(end), "lint.yml").is_empty());
    }
    for state in [RunState::Open, RunState::OverUnknown] {
        assert!(replaced(&failed[..1], state, "ci.yml").is_empty(), "{state:?}");
    }
    // Beside another pull request's, a cancelled run says nothing.
    let cancelled = [run("6", "ci.yml", 1, RunState::Over(Conclusion::Cancelled))];
    let own = dispatch(&SENT, &failed[..1], vec![ended(&own, BAD)]);
    let next = dispatch(&SENT, &cancelled, vec![ended(&next, Conclusion::Cancelled)]);
    assert!(replaced_dispatches(&[others.clone(), own, next]).is_empty());
}
