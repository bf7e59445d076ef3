//! `crcr oidc configure`: decides whether the job can have credentials, gets them, and exports the
//! result to later steps.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use aws_credential_types::Credentials as SigningCredentials;
use crcr_aws::sts::SessionCredentials;
use crcr_github::oidc::TokenEndpoint;
use jiff::Timestamp;
use secrecy::ExposeSecret as _;

use crate::cli::oidc::{Ambient, ConfigureArgs, OnUnavailable};
use crate::commands::oidc::compiler_cache::CompilerCache;
use crate::commands::oidc::decide::{
    ActionOutputs, AuthMode, AuthPlan, AuthReason, AuthResult, JobFacts, LogLevel, TARGET,
    action_outputs,
};
use crate::commands::oidc::env_file::{self, Export};
use crate::commands::oidc::exchange::{AuthFailure, Exchange, token_endpoint};
use crate::commands::oidc::inputs::{self, RoleInputs};
use crate::commands::oidc::job_facts::job_facts;
use crate::commands::oidc::{
    ambient, earlier_credentials, explain, messages, runner_identity, sccache,
};
use crate::env_vars::{self, Env};
use crate::escape::escape_markdown;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::runner::Runner;

struct AuthOutcome {
    result: AuthResult,
    credentials: Option<JobCredentials>,
    failure: Option<Failure>,
}

/// From STS, from an earlier step, or from the machine.
#[derive(Default)]
struct JobCredentials {
    account: String,
    role: String,
    expiration: String,
    region: Option<String>,
    /// Signs the probe of the cache.
    signing: Option<SigningCredentials>,
    /// For the environment of later steps; empty if an earlier step has exported them.
    exports: Vec<Export>,
    kept: bool,
}

pub async fn run(args: &ConfigureArgs, env: &Env, printer: &Printer) -> Outcome {
    let runner = Runner::new(env, printer);
    let checked =
        args.env_file.as_deref().map_or(Ok(()), |name| env_file::path(name, &runner).map(drop));
    let outcome = match checked.and_then(|()| facts(args, &runner)) {
        Ok(facts) if args.explain => return explain::run(args, &facts, &runner, printer),
        Ok(facts) => authenticate(args, &facts, &runner, printer).await,
        Err(failure) if args.explain => return Err(failure),
        Err(failure) if failure.code() == AuthReason::InvalidInput.word() => {
            not_authenticated(AuthReason::InvalidInput, failure)
        }
        Err(failure) => not_authenticated(AuthReason::EventPayload, failure),
    };
    let outputs = action_outputs(outcome.result, args.on_unavailable);
    if outputs.mode == AuthMode::Anonymous {
        warn_of_defined_keys(env, printer);
    }
    // The job may go on after a failure, too: `continue-on-error`, or a step with `always()`.
    let overrides = match has_no_credentials(outputs) {
        true => runner_identity::overrides(&runner),
        false => Ok(vec![]),
    };
    let (overrides, unwritable) =
        overrides.map_or_else(|failure| (vec![], Some(failure)), |overrides| (overrides, None));
    runner_identity::warn(&overrides, printer);
    let credentials = outcome.credentials.as_ref();
    warn_of_profile(outputs, credentials, env, printer);
    let signing = credentials.and_then(|credentials| credentials.signing.as_ref());
    let facts = facts(args, &runner).unwrap_or_default();
    let cache = CompilerCache::set_up(args, &facts, outputs, signing, &runner, printer).await;
    let step = StepOutputs { args: Some(args), outputs, credentials, cache: &cache, overrides };
    step.write(&runner)?;
    // Without the overrides later steps would use the machine's identity, so the job must not go on.
    match unwritable.filter(|_| outputs.mode != AuthMode::Error) {
        Some(failure) => Err(failure),
        None => print_outcome(outputs, outcome, printer),
    }
}

fn has_no_credentials(outputs: ActionOutputs) -> bool {
    matches!(outputs.mode, AuthMode::Anonymous | AuthMode::Error)
}

/// Writes the outputs of a step whose inputs can't be parsed. Returns whether the job goes on, because
/// `on-unavailable` is `degrade`.
pub fn handle_usage_error(
    args: &[OsString],
    env: &Env,
    printer: &Printer,
) -> Result<bool, Failure> {
    let degrade = env.get(env_vars::INPUT_ON_UNAVAILABLE).map(str::trim) == Some("degrade")
        || args.iter().any(|arg| arg == "--on-unavailable=degrade")
        || args.windows(2).any(|pair| pair[0] == "--on-unavailable" && pair[1] == "degrade");
    let policy = if degrade { OnUnavailable::Degrade } else { OnUnavailable::Auto };
    let outputs = action_outputs(AuthResult::Broken(AuthReason::InvalidInput), policy);
    let runner = Runner::new(env, printer);
    let overrides = runner_identity::overrides(&runner)?;
    let cache = CompilerCache::without_credentials(None, &runner, printer);
    StepOutputs { args: None, outputs, credentials: None, cache: &cache, overrides }
        .write(&runner)?;
    Ok(degrade)
}

fn facts(args: &ConfigureArgs, runner: &Runner) -> Result<JobFacts, Failure> {
    Ok(JobFacts {
        owners: inputs::list(&args.owners),
        ambient: args.ambient == Ambient::Allow,
        role: args.role_to_assume.is_some(),
        ..job_facts(runner)?
    })
}

async fn authenticate(
    args: &ConfigureArgs,
    facts: &JobFacts,
    runner: &Runner,
    printer: &Printer,
) -> AuthOutcome {
    let mut why_not_ambient = None;
    let plan = match facts.plan() {
        AuthPlan::Ambient => match ambient::find(args).await {
            Ok(found) => {
                if args.mask_aws_account_id {
                    printer.mask(&found.account);
                }
                return authenticated(
                    AuthResult::Ambient,
                    ambient_credentials(args, found, printer),
                );
            }
            Err(failure) => {
                why_not_ambient = Some(failure.with_causes());
                facts.without_ambient()
            }
        },
        plan => plan,
    };
    let outcome = match plan {
        AuthPlan::Anonymous(reason) => AuthOutcome {
            result: AuthResult::Anonymous(reason),
            credentials: None,
            failure: Some(messages::no_credentials(reason, facts)),
        },
        AuthPlan::Broken(reason) => {
            not_authenticated(reason, messages::broken_setup(reason, facts, runner))
        }
        AuthPlan::Token | AuthPlan::Ambient => match assume(args, facts, runner, printer).await {
            Ok(credentials) => authenticated(AuthResult::Oidc, credentials),
            Err((reason, failure)) if facts.may_be_a_copy() && !trusts_this(reason, args) => {
                AuthOutcome {
                    result: AuthResult::Anonymous(AuthReason::ForeignRepo),
                    credentials: None,
                    failure: Some(messages::no_credentials_in_a_copy(facts, &failure)),
                }
            }
            Err((reason, failure)) => not_authenticated(reason, failure),
        },
    };
    match (why_not_ambient, outcome.failure) {
        (Some(why), Some(failure)) => {
            AuthOutcome { failure: Some(failure.because(anyhow::anyhow!(why))), ..outcome }
        }
        (_, failure) => AuthOutcome { failure, ..outcome },
    }
}

/// Whether there is a role, and it let this repository in or wasn't asked.
fn trusts_this(reason: AuthReason, args: &ConfigureArgs) -> bool {
    reason != AuthReason::StsDenied && args.role_to_assume.is_some()
}

fn not_authenticated(reason: AuthReason, failure: Failure) -> AuthOutcome {
    AuthOutcome { result: AuthResult::Broken(reason), credentials: None, failure: Some(failure) }
}

fn authenticated(result: AuthResult, credentials: JobCredentials) -> AuthOutcome {
    AuthOutcome { result, credentials: Some(credentials), failure: None }
}

/// Checks the inputs, then reuses the credentials of an earlier step or assumes the role.
async fn assume(
    args: &ConfigureArgs,
    facts: &JobFacts,
    runner: &Runner,
    printer: &Printer,
) -> Result<JobCredentials, AuthFailure> {
    let wrong = |failure| (AuthReason::InvalidInput, failure);
    let env = runner.env();
    let inputs = inputs::check(args, runner).map_err(wrong)?;
    if args.mask_aws_account_id {
        printer.mask(&inputs.role.account);
    }
    warn_of_session_name(args, &inputs.request.session_name, printer);
    if facts.event == TARGET && facts.is_fork() && !runner.base_is_checked_out() {
        warn_of_target(facts, printer);
    }
    let existing = earlier_credentials::reusable_until(&inputs.request, env, Timestamp::now());
    if let Some(expiration) = existing.filter(|_| args.use_existing) {
        return Ok(earlier_credentials(&inputs, expiration, env));
    }
    let text = |name| env.get(name).unwrap_or_default();
    let endpoint = TokenEndpoint::new(
        text(env_vars::ACTIONS_ID_TOKEN_REQUEST_URL),
        text(env_vars::ACTIONS_ID_TOKEN_REQUEST_TOKEN),
    )
    .map_err(|error| token_endpoint(&error))?;
    let client = crcr_github::http::client().map_err(|e| {
        let failure =
            Failure::unexpected(AuthReason::TokenEndpoint.word(), "no HTTP client can be made");
        (AuthReason::TokenEndpoint, failure.because(e))
    })?;
    let exchange = Exchange {
        client: &client,
        endpoint: &endpoint,
        audience: &args.audience,
        request: &inputs.request,
        timeout: Duration::from_secs(args.timeout),
        printer,
    };
    let credentials = exchange.run().await?;
    printer.mask(&credentials.access_key_id);
    printer.mask(credentials.secret_access_key.expose_secret());
    printer.mask(credentials.session_token.expose_secret());
    let account = credentials.assumed_role_arn.split(':').nth(4).unwrap_or_default();
    inputs::allow_account(account, &args.allowed_account_ids).map_err(wrong)?;
    Ok(new_credentials(&inputs, &args.audience, account, &credentials))
}

fn new_credentials(
    inputs: &RoleInputs,
    audience: &str,
    account: &str,
    credentials: &SessionCredentials,
) -> JobCredentials {
    let id = &credentials.access_key_id;
    let secret = credentials.secret_access_key.expose_secret();
    let token = credentials.session_token.expose_secret();
    let expiration = credentials.expiration.to_string();
    JobCredentials {
        account: account.to_owned(),
        role: inputs.role.text.clone(),
        region: Some(inputs.region.clone()),
        signing: Some(SigningCredentials::new(id, secret, Some(token.to_owned()), None, "crcr")),
        exports: vec![
            (env_vars::AWS_ACCESS_KEY_ID, id.clone()),
            (env_vars::AWS_SECRET_ACCESS_KEY, secret.to_owned()),
            (env_vars::AWS_SESSION_TOKEN, token.to_owned()),
            (env_vars::CRCR_AUTH_ROLE_ARN, inputs.role.text.clone()),
            (env_vars::CRCR_AUTH_AUDIENCE, audience.to_owned()),
            (env_vars::CRCR_AUTH_STS_ENDPOINT, inputs.request.endpoint.to_string()),
            (env_vars::CRCR_AUTH_EXPIRATION, expiration.clone()),
            (
                env_vars::CRCR_AUTH_FINGERPRINT,
                earlier_credentials::fingerprint(&inputs.request, id),
            ),
        ],
        expiration,
        kept: false,
    }
}

fn earlier_credentials(inputs: &RoleInputs, expiration: Timestamp, env: &Env) -> JobCredentials {
    let text = |name| env.get(name).unwrap_or_default();
    let token = text(env_vars::AWS_SESSION_TOKEN).to_owned();
    let signing = SigningCredentials::new(
        text(env_vars::AWS_ACCESS_KEY_ID),
        text(env_vars::AWS_SECRET_ACCESS_KEY),
        Some(token),
        None,
        "crcr",
    );
    JobCredentials {
        account: inputs.role.account.clone(),
        role: inputs.role.text.clone(),
        expiration: expiration.to_string(),
        region: Some(inputs.region.clone()),
        signing: Some(signing),
        exports: vec![],
        kept: true,
    }
}

fn ambient_credentials(
    args: &ConfigureArgs,
    found: ambient::AmbientCredentials,
    printer: &Printer,
) -> JobCredentials {
    if args.output_credentials || args.env_file.is_some() {
        let keys = &found.credentials;
        let token = keys.session_token().unwrap_or_default();
        for secret in [keys.access_key_id(), keys.secret_access_key(), token] {
            printer.mask(secret);
        }
    }
    let expiry = found.credentials.expiry().and_then(|at| Timestamp::try_from(at).ok());
    JobCredentials {
        account: found.account,
        role: found.arn,
        expiration: expiry.map(|at| at.to_string()).unwrap_or_default(),
        region: args.aws_region.clone(),
        signing: Some(found.credentials),
        ..JobCredentials::default()
    }
}

/// The results for later steps.
struct StepOutputs<'a> {
    /// `None` if they can't be parsed.
    args: Option<&'a ConfigureArgs>,
    outputs: ActionOutputs,
    credentials: Option<&'a JobCredentials>,
    cache: &'a CompilerCache,
    /// Variables that hide the machine's own identity.
    overrides: Vec<Export>,
}

impl StepOutputs<'_> {
    fn write(&self, runner: &Runner) -> Result<(), Failure> {
        let Self { args, outputs, cache, .. } = self;
        let empty = JobCredentials::default();
        let credentials = self.credentials.unwrap_or(&empty);
        let to_env = args.is_none_or(|args| args.output_env_credentials) || !outputs.can_write;
        let for_containers = self.for_containers(credentials);
        let (env_file, unwritten) = match self.write_env_file(&for_containers, runner) {
            Ok(path) => (path, None),
            Err(failure) => (String::new(), Some(failure)),
        };
        let mut exports = if to_env { self.exports(credentials) } else { vec![] };
        if !env_file.is_empty() {
            exports.push((env_vars::CRCR_AUTH_ENV_FILE, env_file.clone()));
        }
        let options = match to_env {
            true => container_options(&for_containers, &exports, &cache.for_containers),
            false => String::new(),
        };
        let exports: Vec<_> = exports.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let exported = runner.export(&exports);
        let flag = |value: bool| if value { "true" } else { "false" };
        let keys =
            credentials.signing.as_ref().filter(|_| args.is_some_and(|a| a.output_credentials));
        runner.set_outputs(&[
            ("mode", outputs.mode.word()),
            ("reason", outputs.reason.word()),
            ("expected", flag(outputs.expected)),
            ("degraded", flag(outputs.degraded)),
            ("can-write", flag(outputs.can_write)),
            ("sccache-mode", cache.word),
            ("env-file", &env_file),
            ("container-options", &options),
            ("aws-account-id", &credentials.account),
            ("role-arn", &credentials.role),
            ("expiration", &credentials.expiration),
            ("aws-access-key-id", keys.map_or("", |keys| keys.access_key_id())),
            ("aws-secret-access-key", keys.map_or("", |keys| keys.secret_access_key())),
            ("aws-session-token", keys.and_then(|keys| keys.session_token()).unwrap_or_default()),
            ("aws-expiration", keys.map_or("", |_| &credentials.expiration)),
        ])?;
        exported?;
        runner.append_summary(&summary(*outputs, credentials, cache.word))?;
        unwritten.map_or(Ok(()), Err)
    }

    /// What a container needs that a step starts: the same, without what is only true on this machine.
    fn for_containers(&self, credentials: &JobCredentials) -> Vec<Export> {
        if self.outputs.mode == AuthMode::Error {
            return vec![];
        }
        let keys = credentials.signing.as_ref().map(|keys| {
            let token = keys.session_token().unwrap_or_default();
            [
                (env_vars::AWS_ACCESS_KEY_ID, keys.access_key_id().to_owned()),
                (env_vars::AWS_SECRET_ACCESS_KEY, keys.secret_access_key().to_owned()),
                (env_vars::AWS_SESSION_TOKEN, token.to_owned()),
            ]
        });
        let mut variables: Vec<Export> = keys.into_iter().flatten().collect();
        variables.extend(self.region().into_iter().flatten());
        variables.extend(self.decision());
        variables.retain(|(_, value)| !value.is_empty());
        variables.extend(self.cache.for_containers.iter().cloned());
        variables
    }

    /// Writes the file of the input `env-file`. Returns its path, or nothing.
    fn write_env_file(&self, variables: &[Export], runner: &Runner) -> Result<String, Failure> {
        let Some(given) = self.args.and_then(|args| args.env_file.as_deref()) else {
            return Ok(String::new());
        };
        // A wrong name is the reason for which there are no credentials.
        let Ok(path) = env_file::path(given, runner) else { return Ok(String::new()) };
        if self.outputs.mode == AuthMode::Error {
            env_file::remove(&path)?;
            return Ok(String::new());
        }
        env_file::write(&path, variables)?;
        Ok(path.to_string_lossy().into_owned())
    }

    fn region(&self) -> Option<[Export; 2]> {
        let input = self.args.and_then(|args| args.aws_region.as_deref());
        let region = self.credentials.and_then(|found| found.region.as_deref()).or(input)?.trim();
        let region = Some(region).filter(|_| self.outputs.mode != AuthMode::Error)?.to_owned();
        Some([(env_vars::AWS_REGION, region.clone()), (env_vars::AWS_DEFAULT_REGION, region)])
    }

    fn decision(&self) -> Vec<Export> {
        let mut exports = vec![
            (env_vars::CRCR_AUTH_MODE, self.outputs.mode.word().to_owned()),
            (env_vars::CRCR_AUTH_REASON, self.outputs.reason.word().to_owned()),
        ];
        if has_no_credentials(self.outputs) {
            exports.push((env_vars::AWS_EC2_METADATA_DISABLED, "true".to_owned()));
        }
        exports
    }

    fn exports(&self, credentials: &JobCredentials) -> Vec<Export> {
        let Self { cache, overrides, .. } = self;
        let mut exports = credentials.exports.clone();
        exports.extend(self.region().into_iter().flatten());
        exports.extend(self.decision());
        // An empty value can't be unset, and tools would use it.
        exports.retain(|(_, value)| !value.is_empty());
        exports.extend(cache.exports.iter().cloned());
        exports.extend(overrides.iter().cloned());
        exports
    }
}

/// `--env NAME` for each variable, whose value docker takes from its own environment. What later steps don't have,
/// because only the image of a container may need it, is there with its value. `of_cache` has no secrets.
fn container_options(variables: &[Export], exports: &[Export], of_cache: &[Export]) -> String {
    let option = |variable: &Export| {
        let (name, value) = variable;
        match of_cache.contains(variable) && !exports.contains(variable) {
            true => format!("--env {name}={value}"),
            false => format!("--env {name}"),
        }
    };
    variables.iter().map(option).collect::<Vec<_>>().join(" ")
}

fn summary(outputs: ActionOutputs, credentials: &JobCredentials, cache: &str) -> String {
    let mut line = format!("**AWS credentials**: {} ({})", outputs.mode.word(), outputs.reason);
    if !credentials.role.is_empty() {
        line.push_str(&format!(" · {}", escape_markdown(&credentials.role)));
    }
    if !credentials.expiration.is_empty() {
        line.push_str(&format!(" · until {}", credentials.expiration));
    }
    if outputs.mode == AuthMode::Anonymous && outputs.exit == 0 {
        line.push_str(" · read-only, the job goes on without them");
    }
    if cache != "off" {
        line.push_str(&format!(" · sccache {cache}"));
    }
    line
}

/// Prints the outcome at its level and returns the exit code.
fn print_outcome(outputs: ActionOutputs, outcome: AuthOutcome, printer: &Printer) -> Outcome {
    let Some(failure) = outcome.failure else {
        let credentials = outcome.credentials.unwrap_or_default();
        let until = match credentials.expiration.as_str() {
            "" => String::new(),
            at => format!(", until {at}"),
        };
        let how = if credentials.kept { "kept from an earlier step" } else { outputs.mode.word() };
        printer.line(&format!("AWS credentials ({how}): `{}`{until}", credentials.role));
        return Ok(ExitCode::SUCCESS);
    };
    match outputs.level {
        LogLevel::Error => return Err(failure),
        LogLevel::Warning => {
            let mut text =
                format!("no AWS credentials, the job goes on without: {}", failure.message());
            for cause in failure.causes() {
                text.push_str(&format!("\n  because: {cause}"));
            }
            printer.warning(&text, failure.help());
        }
        LogLevel::Notice => {
            printer.notice(&format!("{}, so the job goes on without", failure.message()));
        }
        LogLevel::Line => printer.line(failure.message()),
    }
    Ok(ExitCode::from(outputs.exit))
}

fn warn_of_defined_keys(env: &Env, printer: &Printer) {
    let defined_key_variables = sccache::defined_key_variables(env);
    if defined_key_variables.is_empty() {
        return;
    }
    printer.warning(
        &format!(
            "{} defined already and can't be unset: AWS tools of later steps will use what is \
             there, and sccache refuses to start without credentials beside it",
            messages::are(&defined_key_variables)
        ),
        Some(messages::REMOVE_VARIABLE),
    );
}

/// With a profile in the environment, some AWS tools don't look at the keys, and others refuse to start.
fn warn_of_profile(
    outputs: ActionOutputs,
    credentials: Option<&JobCredentials>,
    env: &Env,
    printer: &Printer,
) {
    let Some(credentials) = credentials.filter(|_| outputs.mode == AuthMode::Oidc) else { return };
    for name in [env_vars::AWS_PROFILE, env_vars::AWS_DEFAULT_PROFILE] {
        let Some(profile) = env.get(name) else { continue };
        printer.warning(
            &format!(
                "`{name}` is `{profile}`, and the credentials are those of `{}`: AWS tools of later \
                 steps take the profile instead, or fail if it doesn't exist",
                credentials.role
            ),
            Some(messages::REMOVE_VARIABLE),
        );
    }
}

fn warn_of_session_name(args: &ConfigureArgs, used: &str, printer: &Printer) {
    if let Some(given) = args.role_session_name.as_deref().filter(|given| given.trim() != used) {
        printer.warning(
            &format!("the session is called `{used}`, since STS doesn't take `{given}`"),
            Some("2 to 64 letters, digits and characters of `_+=,.@-`"),
        );
    }
}

fn warn_of_target(facts: &JobFacts, printer: &Printer) {
    let head = facts.pull_request.as_ref().and_then(|p| p.head.as_deref());
    let head = head.unwrap_or("a deleted fork");
    printer.warning(
        &format!(
            "this `pull_request_target` run gets AWS credentials for a pull request from `{head}`: \
             code of the fork that this job checks out and runs can use them"
        ),
        Some("build the fork's code under `pull_request`, which gets none, or check out the base only"),
    );
}
