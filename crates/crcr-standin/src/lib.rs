//! A stateful stand-in for GitHub on loopback: repositories, apps, OIDC issuer, artifact service.
//!
//! It is one HTTP server ([`server`]) with one [`State`]. The code under test is the shipped code;
//! only its base URLs differ. To make a call fail, queue a [`traffic::Fault`] under the operation's
//! name.
//!
//! ```
//! let github = crcr_standin::StandIn::start()?;
//! let run = github.state().runs.add(crcr_standin::runs::Run::same_repository());
//! let job = github.state().runs.add_job(run, "build");
//! let environment = github.state().job_environment(&job);
//! assert!(environment.contains_key("ACTIONS_ID_TOKEN_REQUEST_URL"));
//! # Ok::<(), std::io::Error>(())
//! ```

#![expect(clippy::result_large_err, reason = "a handler's error is a whole HTTP response")]

pub mod artifact;
pub mod cache;
pub mod clock;
pub mod generate;
pub mod oidc;
pub mod redis;
pub mod runs;
pub mod server;
pub mod traffic;
pub mod world;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use url::Url;

/// The state of the stand-in. Each part has its own lock, which isn't held across an `.await`.
#[derive(Debug)]
pub struct State {
    pub url: Url,
    pub clock: clock::Clock,
    pub traffic: traffic::Traffic,
    pub runs: runs::Runs,
    pub oidc: oidc::Issuer,
    /// Repositories, the App, pull requests and checks.
    pub world: world::World,
    pub artifacts: artifact::Artifacts,
    pub caches: cache::CacheEntries,
}

impl State {
    /// The empty state of a server at `url`. Fails when no temporary folder can be made.
    pub fn new(url: Url) -> io::Result<Self> {
        Ok(Self {
            url,
            clock: clock::Clock::default(),
            traffic: traffic::Traffic::default(),
            runs: runs::Runs::default(),
            oidc: oidc::Issuer::default(),
            world: world::World::default(),
            artifacts: artifact::Artifacts::new()?,
            caches: cache::CacheEntries::default(),
        })
    }

    /// [`State::url`] without the last slash, as GitHub's variables write it.
    pub fn origin(&self) -> &str {
        self.url.as_str().trim_end_matches('/')
    }

    /// The variables that GitHub sets for `job`: `GITHUB_*`, `ACTIONS_RUNTIME_TOKEN`,
    /// `ACTIONS_RESULTS_URL`, and the OIDC pair when the job may mint (`id-token: write`).
    ///
    /// The caller writes the event file, from [`runs::Run::payload`].
    pub fn job_environment(&self, job: &runs::Job) -> BTreeMap<&'static str, String> {
        let mut environment = job.environment();
        let origin = self.origin();
        environment.insert("GITHUB_API_URL", origin.to_owned());
        // With any other host, clients expect GitHub Enterprise Server, which has no artifacts v4.
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
    /// Starts on a free loopback port, with its own threads, so that it also serves synchronous
    /// tests.
    pub fn start() -> io::Result<Self> {
        let bound = server::Bound::loopback()?;
        let state = Arc::new(State::new(bound.url().clone())?);
        let server = bound.serve(server::router(state.clone()))?;
        Ok(Self { server, state })
    }

    pub fn url(&self) -> &Url {
        self.server.url()
    }

    /// The state, for tests to set up and to assert on.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }
}
