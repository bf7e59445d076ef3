//! `crcr oidc …`: AWS credentials for the job's OIDC token, or, on purpose, none.

mod ambient;
mod compiler_cache;
mod configure;
mod decide;
mod drop;
mod earlier_credentials;
mod env_file;
mod exchange;
mod explain;
pub mod inputs;
mod job_facts;
mod messages;
mod renew;
mod runner_identity;
mod sccache;
mod unsupported_inputs;

use std::ffi::OsString;

pub use decide::{AuthPlan, AuthReason, builds_default_branch};
pub use job_facts::job_facts;
pub use messages::broken_setup;
pub use renew::RenewingCredentials;

use crate::cli::oidc::OidcCommand;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// Called when the command line can't be parsed: still writes the outputs that later steps read.
/// Returns whether the job goes on.
pub fn handle_usage_error(
    args: &[OsString],
    env: &Env,
    printer: &Printer,
) -> Result<bool, Failure> {
    let configure = args.windows(2).any(|pair| pair[0] == "oidc" && pair[1] == "configure");
    if !configure || env.get(env_vars::GITHUB_OUTPUT).is_none() {
        return Ok(false);
    }
    configure::handle_usage_error(args, env, printer)
}

pub async fn run(command: OidcCommand, env: &Env, printer: &Printer) -> Outcome {
    match command {
        OidcCommand::Configure(args) => configure::run(&args, env, printer).await,
        OidcCommand::Drop => drop::run(env, printer).await,
    }
}
