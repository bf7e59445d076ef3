//! Who owns a test, and which may fail: read from GitHub in the background, shown without asking it.

use super::support::{UPSTREAM, World};

#[tokio::test]
async fn pages_know_owners_and_quarantine_without_a_call_to_github() {
    let world = World::new().await;
    let github = &world.github.state().world;
    assert!((world.hud.files)(UPSTREAM).is_none(), "nothing is read yet");
    github.put_file(UPSTREAM, "CODEOWNERS", "*.py @dave");
    let end = (world.relay.now() + jiff::SignedDuration::from_hours(240)).strftime("%Y-%m-%d");
    let entry =
        format!("- pattern: TestA.test_a\n  owner: carol\n  reason: flaky\n  expiry: {end}\n");
    github.put_file(UPSTREAM, ".github/quarantine.yml", entry);
    world.relay.read_repository_files().await;
    let files = (world.hud.files)("Acme/UPSTREAM").unwrap();
    let owners = files.codeowners.as_ref().unwrap();
    assert_eq!(owners.owners_of_test(UPSTREAM, Some("a/b.py"), ""), ["@dave"]);
    assert_eq!(files.quarantine.as_ref().unwrap()[0].pattern, "TestA.test_a");

    // A file that can't be read for a while stays as it was known, and the page says so.
    github.uninstall(UPSTREAM);
    world.relay.read_repository_files().await;
    let files = (world.hud.files)(UPSTREAM).unwrap();
    assert!(files.quarantine.is_some() && files.codeowners.is_some());
    assert!(files.problem.as_ref().unwrap().contains("can't be read"), "{:?}", files.problem);
}
