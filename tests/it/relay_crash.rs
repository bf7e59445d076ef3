//! `kill -9` at random moments under load: everything acknowledged is done afterwards.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crcr_domain::protocol::dispatch::DispatchStatus;
use crcr_relay::admin::deliveries;
use crcr_results::Window;
use crcr_results::sqlite::SqliteResults;
use crcr_standin::world::PullRequest;
use crcr_store::{SqliteStore, StateStore as _, StoreRole};
use jiff::Timestamp;
use rand::Rng as _;
use serde_json::Value;
use url::Url;

use crate::relay_process::{Place, Running, UPSTREAM, eventually};

const TARGETS: [&str; 4] = ["acme/one", "acme/two", "acme/three", "acme/four"];
const ALLOWLIST: &str = "L1: [acme/one]\nL2: [acme/two, acme/three]\nL4:\n  - acme/four: [dave]\n";

#[derive(Default)]
struct Promised {
    deliveries: Vec<String>,
    /// Delivery, repository and status of accepted reports.
    reports: Vec<(String, String, String)>,
}

struct Scene {
    place: Place,
    promised: Mutex<Promised>,
    client: reqwest::Client,
}

/// How often the relay is killed: `CRASH_KILLS`, or 20.
#[expect(clippy::disallowed_methods, reason = "the test's own setting, not the binary's")]
fn kills() -> u32 {
    std::env::vars()
        .find_map(|(name, value)| (name == "CRASH_KILLS").then(|| value.parse().unwrap()))
        .unwrap_or(20)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_and_nothing_recorded_is_sent_twice() {
    let scene = Arc::new(Scene::new());
    let mut sent: HashSet<(String, String)> = HashSet::new();
    let mut seen: HashMap<(String, String), usize> = HashMap::new();
    for _ in 0..kills() {
        let (mut relay, url) = scene.start();
        relay.ready().await;
        let load: Vec<_> = (0..3)
            .map(|_| {
                tokio::spawn({
                    let (scene, url) = (Arc::clone(&scene), url.clone());
                    async move { scene.load(&url).await }
                })
            })
            .collect();
        // By what it has acknowledged and not by time, of which a busy machine needs more. Then at any moment of the
        // next one.
        let wanted = scene.acknowledged() + rand::rng().random_range(1..20);
        eventually("there is load", async || scene.acknowledged() >= wanted).await;
        let pause = rand::rng().random_range(0..50);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        relay.kill();
        load.iter().for_each(tokio::task::JoinHandle::abort);
        scene.take(&sent, &mut seen);
        sent = scene.recorded().await;
    }
    let (mut relay, url) = scene.start();
    relay.ready().await;
    scene.drain().await;
    scene.take(&sent, &mut seen);
    // One more webhook and report, so that the last start is known to work.
    scene.deliver(&url, 1, None).await.expect("it serves");
    scene.drain().await;
    relay.kill();
    scene.take(&sent, &mut seen);
    scene.check(&seen).await;
}

impl Scene {
    fn new() -> Self {
        let place = Place::new(&TARGETS, ALLOWLIST)
            .set("CRCR_ADMIN_LISTEN", "off")
            .set("RATE_LIMIT_PER_MIN", "100000");
        Self { place, promised: Mutex::default(), client: reqwest::Client::new() }
    }

    fn acknowledged(&self) -> usize {
        let promised = self.promised.lock().unwrap();
        promised.deliveries.len() + promised.reports.len()
    }

    fn start(&self) -> (Running, Url) {
        let relay = self.place.serve();
        let url = relay.url.clone();
        (relay, url)
    }

    /// Sends webhooks and reports until the relay is killed.
    async fn load(&self, url: &Url) {
        loop {
            let number = rand::random_range(1..200);
            let head: String = format!("{:040x}", rand::random::<u128>());
            let Ok(Some((id, payload))) = self.deliver(url, number, Some(head)).await else {
                continue;
            };
            for repo in TARGETS {
                let run = rand::random_range(1..u64::from(u32::MAX));
                for conclusion in [None, Some("success")] {
                    self.report(url, repo, &id, &payload, run, conclusion).await;
                }
            }
        }
    }

    /// One delivery; remembered when it was acknowledged.
    async fn deliver(
        &self,
        url: &Url,
        number: u64,
        head: Option<String>,
    ) -> Result<Option<(String, Value)>, reqwest::Error> {
        let state = self.place.github.state();
        let head = head.unwrap_or_else(|| "f".repeat(40));
        let pull = PullRequest::from_fork(number, UPSTREAM, &head, Timestamp::now());
        state.world.put_pull(UPSTREAM, pull);
        let payload = state.pull_request_payload(UPSTREAM, number, "synchronize");
        let delivery = state.world.delivery("pull_request", &payload);
        let target = url.join("github/webhook").unwrap();
        let answer = delivery.send(&self.client, &target).await?;
        if answer.status != 202 {
            return Ok(None);
        }
        self.promised.lock().unwrap().deliveries.push(delivery.id.clone());
        Ok(Some((delivery.id, payload)))
    }

    async fn report(
        &self,
        url: &Url,
        repo: &str,
        delivery: &str,
        payload: &Value,
        run: u64,
        conclusion: Option<&str>,
    ) {
        let status = if conclusion.is_some() { "completed" } else { "in_progress" };
        let request =
            self.place.report(&self.client, url, repo, (delivery, payload), run, conclusion);
        let Ok(response) = request.send().await else { return };
        if response.status().is_success() && repo != "acme/one" {
            let report = (delivery.to_owned(), repo.to_owned(), status.to_owned());
            self.promised.lock().unwrap().reports.push(report);
        }
    }

    /// Takes what GitHub got; nothing of it may have been recorded as sent before.
    fn take(&self, sent: &HashSet<(String, String)>, seen: &mut HashMap<(String, String), usize>) {
        for dispatch in self.place.github.state().world.take_dispatches() {
            let id = dispatch.client_payload["delivery_id"].as_str().unwrap().to_owned();
            let key = (id, dispatch.repository);
            assert!(!sent.contains(&key), "{key:?} was sent again after it was recorded as sent");
            *seen.entry(key).or_default() += 1;
        }
    }

    /// The dispatches that are recorded as sent.
    async fn recorded(&self) -> HashSet<(String, String)> {
        let store = SqliteStore::open(&self.place.database(), StoreRole::Tool).unwrap();
        let mut sent = HashSet::new();
        for overview in deliveries::newest(&store, 1_000_000).await.unwrap() {
            for dispatch in overview.dispatches {
                if dispatch.sent_at().is_some() {
                    sent.insert((dispatch.delivery, dispatch.repo.as_str().to_owned()));
                }
            }
        }
        sent
    }

    /// Waits until no dispatch is waiting.
    async fn drain(&self) {
        let store = SqliteStore::open(&self.place.database(), StoreRole::Tool).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let waiting = store.tasks(None, 1_000_000).await.unwrap();
            let waiting =
                waiting.iter().filter(|task| task.key.starts_with("[\"dispatch\"")).count();
            if waiting == 0 {
                return;
            }
            assert!(Instant::now() < until, "{waiting} dispatches still wait");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn check(&self, seen: &HashMap<(String, String), usize>) {
        let store = Arc::new(SqliteStore::open(&self.place.database(), StoreRole::Tool).unwrap());
        let promised = std::mem::take(&mut *self.promised.lock().unwrap());
        assert!(promised.deliveries.len() > 20, "there was load");
        for id in &promised.deliveries {
            let overview = deliveries::delivery(&*store, id).await.unwrap();
            let overview = overview.unwrap_or_else(|| panic!("{id} was acknowledged and is gone"));
            assert_eq!(overview.dispatches.len(), TARGETS.len());
            for dispatch in overview.dispatches {
                let key = (id.clone(), dispatch.repo.as_str().to_owned());
                match &dispatch.status {
                    DispatchStatus::Sent { .. } => {
                        assert!(seen.contains_key(&key), "{key:?} never came");
                    }
                    DispatchStatus::Superseded { by } => {
                        let newer = deliveries::delivery(&*store, by).await.unwrap();
                        assert!(newer.is_some(), "{key:?} was superseded by the unknown {by}");
                    }
                    other => panic!("{key:?} is {other:?}"),
                }
            }
        }
        let window = Window::all(Timestamp::UNIX_EPOCH, Timestamp::MAX);
        let facts: HashSet<_> = SqliteResults::new(Arc::clone(&store))
            .attempts(&window)
            .unwrap()
            .into_iter()
            .map(|fact| (fact.delivery, fact.repo, fact.state.status().to_owned()))
            .collect();
        assert!(promised.reports.len() > 20, "there were reports");
        for report in &promised.reports {
            // An end replaces the row of its start.
            let ended = (report.0.clone(), report.1.clone(), "completed".to_owned());
            assert!(
                facts.contains(report) || facts.contains(&ended),
                "{report:?} was acknowledged and is not in the results"
            );
        }
        assert_eq!(deliveries::dead_letters(store.as_ref(), 10).await.unwrap(), []);
        #[expect(clippy::print_stderr, reason = "shows with --nocapture how much was at stake")]
        {
            eprintln!(
                "{} deliveries, {} dispatches ({} more than once), {} reports",
                promised.deliveries.len(),
                seen.len(),
                seen.values().filter(|count| **count > 1).count(),
                promised.reports.len()
            );
        }
    }
}
