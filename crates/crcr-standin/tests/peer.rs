//! GitHub's own client against the stand-in, which shows that the stand-in is close enough to GitHub.
#![expect(clippy::unwrap_used, reason = "tests say what went wrong by stopping")]

#[path = "../../../tests/peers/client.rs"]
mod client;

use std::fs;

use client::{Peer, noise};
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;
use serde_json::Value;

#[test]
#[ignore = "needs @actions/artifact"]
fn githubs_client_uploads_lists_downloads_and_deletes() {
    let github = StandIn::start().unwrap();
    let peer = Peer::new(&github, Run::fork());
    let files = [
        ("empty", Vec::new()),
        ("deep/er/ünï cödé.txt", b"hello".to_vec()),
        ("noise.bin", noise(20 << 20)),
    ];
    let uploaded = peer.upload("my logs", "0", &files).unwrap();
    let stored = &github.state().artifacts.all()[0];
    assert!(stored.finalized);
    assert_eq!((&uploaded["id"], &uploaded["size"]), (&stored.id.into(), &stored.size.into()));
    let digest = stored.digest.clone().unwrap();
    assert_eq!(digest, format!("sha256:{}", uploaded["digest"].as_str().unwrap()));
    assert!(github.state().traffic.calls("PutBlock") >= 3, "20 MiB are several blocks");

    let listed = peer.call(&["list"]).unwrap();
    let entry = &listed["artifacts"][0];
    assert_eq!((&entry["name"], &entry["digest"]), (&"my logs".into(), &digest.clone().into()));
    assert_eq!(entry["size"], stored.size);
    assert!(entry["createdAt"].is_string(), "{entry}");

    let id = stored.id.to_string();
    let down = peer.path("down");
    let answer = peer.call(&["download", &id, down.to_str().unwrap(), &digest]).unwrap();
    assert_eq!(answer["digestMismatch"], false, "{answer}");
    for (file, bytes) in &files {
        assert!(fs::read(down.join(file)).unwrap() == *bytes, "{file}");
    }
    assert_eq!(peer.call(&["delete", "my logs"]).unwrap()["id"], stored.id);
    assert_eq!(peer.call(&["list"]).unwrap()["artifacts"], Value::Array(Vec::new()));
}

#[test]
#[ignore = "needs @actions/artifact"]
fn githubs_client_reads_another_run_with_a_token() {
    let github = StandIn::start().unwrap();
    let builder = Peer::new(&github, Run::same_repository());
    builder.upload("logs", "6", &[("a.txt", b"hello".to_vec())]).unwrap();
    let stored = &github.state().artifacts.all()[0];
    let reader = Peer::new(&github, Run { id: 5, ..Run::push() });
    let listed = reader.call(&["list-other", "ghs_x", "4242", "acme", "upstream"]).unwrap();
    assert_eq!(listed["artifacts"][0]["id"], stored.id, "{listed}");
    let (id, down) = (stored.id.to_string(), reader.path("down"));
    let (down_arg, digest) = (down.to_str().unwrap(), stored.digest.as_deref().unwrap());
    let args = ["download-other", "ghs_x", &id, "acme", "upstream", "4242", down_arg, digest];
    assert_eq!(reader.call(&args).unwrap()["digestMismatch"], false);
    assert_eq!(fs::read(down.join("a.txt")).unwrap(), b"hello");
}

#[test]
#[ignore = "needs @actions/artifact"]
fn githubs_client_understands_refusals_and_survives_a_503_at_a_block() {
    let github = StandIn::start().unwrap();
    let peer = Peer::new(&github, Run::push());
    let file = [("a.txt", b"hello".to_vec())];
    github.state().artifacts.spend_quota(true);
    let said = peer.upload("logs", "6", &file).unwrap_err();
    assert!(said.contains("Artifact storage quota has been hit"), "{said}");
    github.state().artifacts.spend_quota(false);
    github.state().traffic.fail("PutBlock", 1, Fault::status(503));
    peer.upload("logs", "6", &file).unwrap();
    assert_eq!(github.state().traffic.calls("PutBlock"), 2);
    let said = peer.upload("logs", "6", &file).unwrap_err();
    assert!(said.contains("(409) Conflict"), "{said}");
    github.state().traffic.fail("CreateArtifact", 1, Fault::Reset);
    let said = peer.upload("other", "6", &file).unwrap_err();
    assert!(said.contains("ECONNRESET"), "{said}");
    assert!(github.state().traffic.unmet().is_empty());
}
