//! Webhooks in the archive and as rows.

use axum::http::StatusCode;
use crcr_aws::object_store::ObjectStore;
use crcr_cidata::webhook_archive::WebhookArchive;
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use serde_json::{Value, json};

use super::support::World;

struct Archived {
    world: World,
    folder: tempfile::TempDir,
}

impl Archived {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file:{}", folder.path().join("kept").display());
        Self { world: World::with(&[("CRCR_ARCHIVE", &url)]).await, folder }
    }

    fn archive(&self) -> WebhookArchive {
        WebhookArchive::new(ObjectStore::Folder(self.folder.path().join("kept")))
    }

    async fn keys(&self) -> Vec<String> {
        let mut keys = vec![];
        let today = self.world.relay.now().to_zoned(jiff::tz::TimeZone::UTC).date();
        for event in self.archive().events().await.unwrap() {
            // It may have been midnight since.
            for day in [today.yesterday().unwrap(), today] {
                keys.extend(self.archive().keys(&event, day).await.unwrap());
            }
        }
        keys
    }

    fn waiting(&self) -> i64 {
        let waiting = "SELECT count(*) FROM record WHERE key LIKE '%\"pending\"%' AND value <> x''";
        self.world.value(waiting)
    }
}

#[tokio::test]
async fn every_verified_webhook_is_archived_as_it_came() {
    let here = Archived::new().await;
    let github = here.world.github.state();
    let opened = here.world.pull_request("opened");
    let unknown = github.world.delivery("sub_issues", &json!({ "action": "parent_added" }));
    let elsewhere =
        github.world.delivery("workflow_job", &json!({ "repository": { "full_name": "a/b" } }));
    let ping = github.world.delivery("ping", &json!({ "zen": "Design for failure." }));
    let sent = [&opened, &unknown, &elsewhere, &ping];
    for delivery in sent {
        assert!(here.world.send(delivery).await.0.is_success());
    }
    // The same again, and one that isn't GitHub's.
    here.world.send(&opened).await;
    here.world.send(&unknown).await;
    let mut forged = unknown.clone();
    forged.id = "forged".to_owned();
    forged.body.push(b' ');
    assert_eq!(here.world.send(&forged).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(here.world.work().await, Vec::<String>::new());
    assert_eq!(here.waiting(), 0, "what is archived is no longer in the store");
    let keys = here.keys().await;
    assert_eq!(keys.len(), sent.len(), "{keys:?}");
    for delivery in sent {
        let key = keys.iter().find(|key| key.contains(&delivery.id)).unwrap();
        assert!(key.starts_with(&format!("{}/", delivery.event)), "{key}");
        let kept = here.archive().read(key).await.unwrap();
        assert_eq!(kept.body, delivery.body, "byte by byte");
        assert_eq!(kept.head.headers["x-github-event"], delivery.event);
        assert!(kept.head.headers.values().all(|value| *value != delivery.signature));
    }
}

#[tokio::test]
async fn outage_of_the_object_store_leaves_no_gap_in_the_archive() {
    let here = Archived::new().await;
    // A file where the folder has to be.
    std::fs::write(here.folder.path().join("kept"), "").unwrap();
    assert!(here.world.send(&here.world.pull_request("opened")).await.0.is_success());
    let errors = here.world.work().await;
    assert!(errors.iter().any(|error| error.contains("can't be used")), "{errors:?}");
    assert_eq!(here.waiting(), 1);
    std::fs::remove_file(here.folder.path().join("kept")).unwrap();
    here.world.later(std::time::Duration::from_secs(3600));
    assert_eq!(here.world.work().await, Vec::<String>::new());
    assert_eq!((here.keys().await.len(), here.waiting()), (1, 0));
}

#[tokio::test]
async fn without_an_archive_nothing_of_an_ignored_webhook_is_stored() {
    let world = World::new().await;
    let ignored = world.github.state().world.delivery("issues", &json!({ "action": "opened" }));
    let before = (world.rows("record"), world.rows("task"));
    assert_eq!(world.send(&ignored).await, (StatusCode::OK, json!({ "ignored": true })));
    assert_eq!((world.rows("record"), world.rows("task")), before);
}

#[tokio::test]
async fn jobs_of_any_repository_are_rows_and_a_late_start_undoes_no_end() {
    let world = World::new().await;
    let job = |status: &str| {
        json!({
            "action": status, "repository": { "full_name": "somebody/else" },
            "workflow_job": {
                "id": 5, "run_attempt": 1, "status": status, "head_sha": "abc",
                "head_branch": "main", "created_at": "2026-08-01T10:00:00Z",
            },
        })
    };
    for status in ["queued", "completed", "in_progress"] {
        let delivery = world.github.state().world.delivery("workflow_job", &job(status));
        assert_eq!(world.send(&delivery).await, (StatusCode::OK, json!({ "ignored": true })));
        world.settle().await;
    }
    let query = ThingQuery {
        event: "workflow_job",
        repository: "somebody/else",
        selection: ThingSelection::Id("5"),
    };
    let found = world.relay.results.current_things(&query).await.unwrap();
    assert_eq!(found.len(), 1);
    let document: Value = serde_json::from_str(&found[0].document).unwrap();
    assert_eq!(document["workflow_job"]["status"], "completed");
}

#[tokio::test]
async fn webhooks_of_private_repositories_are_no_rows_that_everybody_reads_except_of_upstream() {
    let world = World::new().await;
    let job = |name: &str, id: u64| {
        json!({
            "action": "completed", "repository": { "full_name": name, "private": true },
            "workflow_job": {
                "id": id, "name": "secret project", "status": "completed", "conclusion": "success",
                "head_sha": "abc", "head_branch": "main",
            },
        })
    };
    let rows = async |world: &World, name: &str| {
        let query = ThingQuery {
            event: "workflow_job",
            repository: name,
            selection: ThingSelection::Newest { before: jiff::Timestamp::MAX, limit: 9 },
        };
        world.relay.results.current_things(&query).await.unwrap().len()
    };
    let send = async |world: &World, name: &str, id: u64| {
        let delivery = world.github.state().world.delivery("workflow_job", &job(name, id));
        assert!(world.send(&delivery).await.0.is_success());
        world.settle().await;
    };
    send(&world, "somebody/private", 5).await;
    assert_eq!(rows(&world, "somebody/private").await, 0);
    let upstream = world.relay.config.upstream.to_string();
    send(&world, &upstream, 6).await;
    assert_eq!(rows(&world, &upstream).await, 1, "an enterprise's upstream is private, too");
    let world = world.restart(&[("CRCR_JOB_LOGS", "all")]).await;
    send(&world, "somebody/private", 7).await;
    assert_eq!(rows(&world, "somebody/private").await, 1);
}
