//! Webhooks: payloads, signatures, and sending them to the App's URL.
//!
//! <https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries>

use aws_lc_rs::hmac;
use serde_json::{Value, json};
use url::Url;

use super::World;
use super::model::{WorldRepo, label, user};
use crate::State;

/// A signed webhook, which can be sent several times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub id: String,
    pub event: String,
    /// The exact bytes that the signature is over.
    pub body: Vec<u8>,
    pub signature: String,
}

/// The answer of the App's URL.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub status: u16,
    /// The JSON body; `null` for anything else.
    pub body: Value,
}

impl Delivery {
    /// The delivery's headers, as names and values.
    pub fn headers(&self) -> [(&'static str, &str); 5] {
        [
            ("content-type", "application/json"),
            ("user-agent", "GitHub-Hookshot/stand-in"),
            ("x-github-event", &self.event),
            ("x-github-delivery", &self.id),
            ("x-hub-signature-256", &self.signature),
        ]
    }

    /// Posts it to `url` once. Like GitHub, waits ten seconds for the answer.
    pub async fn send(&self, client: &reqwest::Client, url: &Url) -> reqwest::Result<Answer> {
        let mut request = client.post(url.clone()).timeout(std::time::Duration::from_secs(10));
        for (name, value) in self.headers() {
            request = request.header(name, value);
        }
        let response = request.body(self.body.clone()).send().await?;
        let status = response.status().as_u16();
        let body = serde_json::from_slice(&response.bytes().await?).unwrap_or_default();
        Ok(Answer { status, body })
    }
}

impl World {
    /// A signed webhook of `event` with a new delivery id.
    pub fn delivery(&self, event: &str, payload: &Value) -> Delivery {
        self.delivery_of_bytes(event, payload.to_string().into_bytes())
    }

    /// A signed webhook of any bytes, JSON or not.
    pub fn delivery_of_bytes(&self, event: &str, body: Vec<u8>) -> Delivery {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.app().webhook_secret.as_bytes());
        let signature = format!("sha256={}", hex::encode(hmac::sign(&key, &body)));
        Delivery { id: uuid::Uuid::new_v4().to_string(), event: event.to_owned(), body, signature }
    }
}

impl State {
    /// The payload of a `pull_request` event for the present state of the pull request.
    ///
    /// # Panics
    /// When the world has no such pull request.
    pub fn pull_request_payload(&self, repository: &str, number: u64, action: &str) -> Value {
        let mut author = String::new();
        let mut payload = self.payload(repository, |repo, origin| {
            let pull = repo.pulls.get(&number).expect("the pull request was opened before");
            author.clone_from(&pull.author);
            json!({ "action": action, "number": number, "pull_request": repo.pull_json(pull, origin) })
        });
        payload["sender"] = user(&author, self.origin());
        payload
    }

    /// The payload of an event, with what each says of the repository.
    fn payload(&self, repository: &str, event: impl FnOnce(&WorldRepo, &str) -> Value) -> Value {
        let origin = self.origin();
        let inner = self.world.lock();
        let repo = inner.repo(repository).expect("the repository was added before");
        let mut payload = event(repo, origin);
        payload["repository"] = repo.json(origin);
        payload["sender"] = user("octocat", origin);
        payload["installation"] = json!({ "id": repo.installation.unwrap_or_default() });
        payload
    }

    /// The payload of `labeled` or `unlabeled`. Change the pull request's labels first.
    pub fn label_payload(&self, repository: &str, number: u64, name: &str, on: bool) -> Value {
        let action = if on { "labeled" } else { "unlabeled" };
        let mut payload = self.pull_request_payload(repository, number, action);
        payload["label"] = label(name, self.origin());
        payload
    }

    /// The payload of a `push` of commit `sha` to `git_ref`.
    ///
    /// # Panics
    /// When the world has no such repository.
    pub fn push_payload(&self, repository: &str, git_ref: &str, sha: &str) -> Value {
        self.payload(repository, |_, origin| {
            json!({
                "ref": git_ref, "before": "0".repeat(40), "after": sha, "created": false,
                "deleted": false, "forced": false, "base_ref": null, "commits": [],
                "compare": format!("{origin}/{repository}/compare/{sha}"),
                "head_commit": { "id": sha, "message": "Change", "timestamp": self.clock.now() },
                "pusher": { "name": "octocat", "email": null },
            })
        })
    }

    /// The payload of `merge_group` `checks_requested` for a group whose commit is `sha`.
    ///
    /// # Panics
    /// When the world has no such repository.
    pub fn merge_group_payload(&self, repository: &str, sha: &str) -> Value {
        let queue = format!("refs/heads/gh-readonly-queue/main/pr-7-{sha}");
        self.payload(repository, |_, _| json!({
            "action": "checks_requested",
            "merge_group": {
                "head_sha": sha, "head_ref": queue, "base_sha": "b5".repeat(20),
                "base_ref": "refs/heads/main",
                "head_commit": { "id": sha, "message": "Change", "timestamp": self.clock.now() },
            },
        }))
    }

    /// The payload of `check_run` `rerequested` (or another action) for check run `id`.
    ///
    /// # Panics
    /// When the world has no such check run.
    pub fn check_run_payload(&self, repository: &str, id: u64, action: &str) -> Value {
        self.payload(repository, |repo, origin| {
            let run = repo.check_runs.get(&id).expect("the check run was created before");
            json!({ "action": action, "check_run": super::checks::show_run(repo, run, origin) })
        })
    }

    /// The payload of `workflow_run` for run `id` as it is now.
    ///
    /// # Panics
    /// When the run or its repository wasn't added before.
    pub fn workflow_run_payload(&self, id: u64, action: &str) -> Value {
        let run = self.runs.get(id).expect("the run was added before");
        self.payload(&run.repository, |_, origin| {
            json!({
                "action": action, "workflow_run": run.api(origin),
                "workflow": { "id": 11, "name": run.workflow, "path": run.workflow_path },
            })
        })
    }

    /// The payload of `check_suite` `rerequested` (or another action) for suite `id`.
    ///
    /// # Panics
    /// When the world has no such repository.
    pub fn check_suite_payload(&self, repository: &str, id: u64, action: &str) -> Value {
        self.payload(repository, |repo, _| {
            let first = repo.check_runs.values().find(|run| run.suite == id);
            let head_sha = first.map(|run| &run.head_sha);
            json!({ "action": action, "check_suite": { "id": id, "head_sha": head_sha } })
        })
    }
}
