//! A stateful stand-in for GitHub on loopback: repositories, apps, OIDC issuer, artifact service.
//!
//! One server carries everything, on one router ([`server`]), over one [`State`]. The code under
//! test is the shipped code: only its base URLs differ. Everything that the stand-in can do wrong
//! on purpose is a [`traffic::Fault`] queued under the operation's name.
//!
//! ```
//! let github = crcr_standin::StandIn::start()?;
//! let run = github.state().runs.add(crcr_standin::runs::Run::same_repository());
//! let job = github.state().runs.add_job(run, "build");
//! let environment = github.state().job_environment(&job);
//! assert!(environment.contains_key("ACTIONS_ID_TOKEN_REQUEST_URL"));
//! # Ok::<(), std::io::Error>(())
//! ```

#![expect(clippy::result_large_err, reason = "what a handler refuses with is its whole answer")]

pub mod artifact;
pub mod clock;
pub mod oidc;
pub mod runs;
pub mod server;
pub mod traffic;
pub mod world;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use url::Url;

/// Everything the stand-in knows. Each part has its own lock; no part holds one while it waits.
#[derive(Debug)]
pub struct State {
    /// Where the stand-in listens, without a path: `http://127.0.0.1:PORT/`.
    pub url: Url,
    /// The stand-in's time: the machine's, moved forward by whoever asks.
    pub clock: clock::Clock,
    /// Calls counted and faults queued, by operation.
    pub traffic: traffic::Traffic,
    /// Workflow runs and their jobs.
    pub runs: runs::Runs,
    pub oidc: oidc::Issuer,
    /// Repositories, the App, pull requests, checks: GitHub itself.
    pub world: world::World,
    /// The artifact service and its blob storage.
    pub artifacts: artifact::Artifacts,
}

impl State {
    /// An empty world for a server at `url`, which serves it by [`server::router`].
    ///
    /// Fails when no temporary folder is to be had.
    pub fn new(url: Url) -> io::Result<Self> {
        Ok(Self {
            url,
            clock: clock::Clock::default(),
            traffic: traffic::Traffic::default(),
            runs: runs::Runs::default(),
            oidc: oidc::Issuer::default(),
            world: world::World::default(),
            artifacts: artifact::Artifacts::new()?,
        })
    }

    /// [`State::url`] as GitHub's environment writes origins: without the last slash.
    pub fn origin(&self) -> &str {
        self.url.as_str().trim_end_matches('/')
    }

    /// The variables that GitHub sets for `job`: `GITHUB_*`, `ACTIONS_RUNTIME_TOKEN`,
    /// `ACTIONS_RESULTS_URL`, and the OIDC pair when the job may mint (`id-token: write`).
    ///
    /// The event payload is [`runs::Run::payload`]; its file is the caller's to write.
    pub fn job_environment(&self, job: &runs::Job) -> BTreeMap<&'static str, String> {
        let mut environment = job.environment();
        let origin = self.origin();
        environment.insert("GITHUB_API_URL", origin.to_owned());
        // Any other host means GitHub Enterprise Server to clients, which has no artifacts v4.
        environment.insert("GITHUB_SERVER_URL", "https://github.com".to_owned());
        environment.insert("ACTIONS_RESULTS_URL", self.url.to_string());
        environment.insert("ACTIONS_RUNTIME_TOKEN", self.oidc.runtime_token(job, self.clock.now()));
        if job.may_mint {
            let url = format!("{origin}/_oidc/{}/token?api-version=2.0", job.backend_id);
            environment.insert("ACTIONS_ID_TOKEN_REQUEST_URL", url);
            environment.insert("ACTIONS_ID_TOKEN_REQUEST_TOKEN", job.request_token.clone());
        }
        environment
    }
}

/// A running stand-in. Dropping it stops the server and removes what it stored.
#[derive(Debug)]
pub struct StandIn {
    server: server::Server,
    state: Arc<State>,
}

impl StandIn {
    /// Starts on a free loopback port, with threads of its own, so that callers may be
    /// synchronous or asynchronous.
    ///
    /// Fails when no port, thread or temporary folder is to be had.
    pub fn start() -> io::Result<Self> {
        let bound = server::Bound::loopback()?;
        let state = Arc::new(State::new(bound.url().clone())?);
        let server = bound.serve(server::router(state.clone()))?;
        Ok(Self { server, state })
    }

    /// Where it listens, without a path: `http://127.0.0.1:PORT/`.
    pub fn url(&self) -> &Url {
        self.server.url()
    }

    /// What it knows: read it in assertions, change it to arrange.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }
}
