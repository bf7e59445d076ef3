//! `crcr oidc configure`: decide, get credentials or step down, tell every later step.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use aws_credential_types::Credentials as SigningCredentials;
use crcr_github::oidc::TokenEndpoint;
use crcr_github::sts::SessionCredentials;
use jiff::Timestamp;
use secrecy::ExposeSecret as _;

use crate::cli::oidc::{Ambient, ConfigureArgs, OnUnavailable};
use crate::commands::oidc::acquire::{Exchange, Refusal, token_endpoint};
use crate::commands::oidc::decide::{
    Ended, Facts, Mode, Plan, PullRequestFacts, Reason, Row, TARGET, Voice, row,
};
use crate::commands::oidc::inputs::{self, RoleInputs};
use crate::commands::oidc::sccache::{self, Cache, Off};
use crate::commands::oidc::{ambient, existing, explain, machine, words};
use crate::env_vars::{self, Env};
use crate::escape::escape_markdown;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::runner::Runner;

/// How it ended, with what there is to tell.
struct Ending {
    ended: Ended,
    grant: Option<Grant>,
    told: Option<Failure>,
}

/// The credentials of the job, whoever made them.
#[derive(Default)]
struct Grant {
    account: String,
    role: String,
    expiration: String,
    region: Option<String>,
    /// To sign the probe of the cache.
    signing: Option<SigningCredentials>,
    /// For the environment of the later steps; nothing when they are there already.
    exports: Vec<(&'static str, String)>,
    kept: bool,
}

/// What became of the cache.
struct CacheEnding {
    word: &'static str,
    exports: Vec<(&'static str, String)>,
}

impl CacheEnding {
    fn off() -> Self {
        Self { word: "off", exports: vec![] }
    }
}

pub async fn run(args: &ConfigureArgs, env: &Env, printer: &Printer) -> Outcome {
    let runner = Runner::new(env, printer);
    let ending = match facts(args, &runner) {
        Ok(facts) if args.explain => return explain::run(args, &facts, &runner, printer),
        Ok(facts) => end(args, &facts, &runner, printer).await,
        Err(failure) if args.explain => return Err(failure),
        Err(failure) => broken(Reason::EventPayload, failure),
    };
    let row = row(ending.ended, args.on_unavailable);
    let mut overrides = Ok(vec![]);
    if row.mode == Mode::Anonymous {
        warn_of_leftovers(env, printer);
        overrides = machine::overrides(&runner);
    }
    let (overrides, unwritable) =
        overrides.map_or_else(|failure| (vec![], Some(failure)), |overrides| (overrides, None));
    machine::warn(&overrides, printer);
    let cache = cache(args, row, ending.grant.as_ref(), env, printer).await;
    let told =
        Told { args: Some(args), row, grant: ending.grant.as_ref(), cache: &cache, overrides };
    told.write(&runner)?;
    // The machine's identity would stay in force, so the job doesn't go on.
    unwritable.map_or_else(|| tell(row, ending, printer), Err)
}

/// Tells the later steps of a job that the inputs made no sense, before that ends the step; whether
/// the job goes on all the same, because `on-unavailable` is `degrade`.
pub fn misused(args: &[OsString], env: &Env, printer: &Printer) -> Result<bool, Failure> {
    let degrade = env.get(env_vars::INPUT_ON_UNAVAILABLE) == Some("degrade")
        || args.iter().any(|arg| arg == "--on-unavailable=degrade")
        || args.windows(2).any(|pair| pair[0] == "--on-unavailable" && pair[1] == "degrade");
    let policy = if degrade { OnUnavailable::Degrade } else { OnUnavailable::Auto };
    let row = row(Ended::Broken(Reason::InvalidInput), policy);
    let runner = Runner::new(env, printer);
    let overrides = if degrade { machine::overrides(&runner)? } else { vec![] };
    Told { args: None, row, grant: None, cache: &CacheEnding::off(), overrides }.write(&runner)?;
    Ok(degrade)
}

/// What the runner and the event say.
fn facts(args: &ConfigureArgs, runner: &Runner) -> Result<Facts, Failure> {
    let env = runner.env();
    let text = |name: &str| env.get(name).map(str::to_owned);
    let pull_request = runner.event()?.pull_request.map(|pull_request| PullRequestFacts {
        head: pull_request.head.repo.map(|repo| repo.full_name),
        base: pull_request.base.repo.map(|repo| repo.full_name),
        author: pull_request.user.map(|user| user.login),
    });
    Ok(Facts {
        event: runner.event_name().to_owned(),
        repository: runner.repository().map(str::to_owned),
        owners: inputs::list(&args.owners),
        actor: text(env_vars::GITHUB_ACTOR),
        pull_request,
        token_url: env.get(env_vars::ACTIONS_ID_TOKEN_REQUEST_URL).is_some(),
        token_bearer: env.get(env_vars::ACTIONS_ID_TOKEN_REQUEST_TOKEN).is_some(),
        ambient: args.ambient == Ambient::Allow,
        role: args.role_to_assume.is_some(),
    })
}

async fn end(args: &ConfigureArgs, facts: &Facts, runner: &Runner, printer: &Printer) -> Ending {
    let mut why_not_ambient = None;
    let plan = match facts.plan() {
        Plan::Ambient => match ambient::find(args).await {
            Ok(found) => {
                if args.mask_aws_account_id {
                    printer.mask(&found.account);
                }
                return with(Ended::Ambient, ambient_grant(args, found, printer));
            }
            Err(failure) => {
                why_not_ambient = Some(failure.message().to_owned());
                facts.without_ambient()
            }
        },
        plan => plan,
    };
    let ending = match plan {
        Plan::Anonymous(reason) => Ending {
            ended: Ended::Anonymous(reason),
            grant: None,
            told: Some(words::anonymous(reason, facts)),
        },
        Plan::Broken(reason) => broken(reason, words::broken(reason, facts, runner)),
        Plan::Token | Plan::Ambient => match assume(args, facts, runner, printer).await {
            Ok(grant) => with(Ended::Oidc, grant),
            Err((reason, failure)) => broken(reason, failure),
        },
    };
    match (why_not_ambient, ending.told) {
        (Some(why), Some(told)) => {
            Ending { told: Some(told.because(anyhow::anyhow!(why))), ..ending }
        }
        (_, told) => Ending { told, ..ending },
    }
}

fn broken(reason: Reason, failure: Failure) -> Ending {
    Ending { ended: Ended::Broken(reason), grant: None, told: Some(failure) }
}

fn with(ended: Ended, grant: Grant) -> Ending {
    Ending { ended, grant: Some(grant), told: None }
}

/// Checks the inputs, then keeps what an earlier step got, or mints a token and assumes the role.
async fn assume(
    args: &ConfigureArgs,
    facts: &Facts,
    runner: &Runner,
    printer: &Printer,
) -> Result<Grant, Refusal> {
    let wrong = |failure| (Reason::InvalidInput, failure);
    let env = runner.env();
    let inputs = inputs::check(args, runner).map_err(wrong)?;
    if args.mask_aws_account_id {
        printer.mask(&inputs.role.account);
    }
    if facts.event == TARGET && facts.is_fork() && !runner.base_is_checked_out() {
        warn_of_target(facts, printer);
    }
    let existing = existing::still_good(&inputs.request, env, Timestamp::now());
    if let Some(expiration) = existing.filter(|_| args.use_existing) {
        return Ok(kept_grant(&inputs, expiration, env));
    }
    let text = |name| env.get(name).unwrap_or_default();
    let endpoint = TokenEndpoint::new(
        text(env_vars::ACTIONS_ID_TOKEN_REQUEST_URL),
        text(env_vars::ACTIONS_ID_TOKEN_REQUEST_TOKEN),
    )
    .map_err(|error| token_endpoint(&error))?;
    let client = crcr_github::http::client().map_err(|e| {
        let failure =
            Failure::unexpected(Reason::TokenEndpoint.word(), "no HTTP client can be made");
        (Reason::TokenEndpoint, failure.because(e))
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
    Ok(fresh_grant(&inputs, &args.audience, account, &credentials))
}

fn fresh_grant(
    inputs: &RoleInputs,
    audience: &str,
    account: &str,
    credentials: &SessionCredentials,
) -> Grant {
    let id = &credentials.access_key_id;
    let secret = credentials.secret_access_key.expose_secret();
    let token = credentials.session_token.expose_secret();
    let expiration = credentials.expiration.to_string();
    Grant {
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
            (env_vars::CRCR_AUTH_FINGERPRINT, existing::fingerprint(&inputs.request, id)),
        ],
        expiration,
        kept: false,
    }
}

fn kept_grant(inputs: &RoleInputs, expiration: Timestamp, env: &Env) -> Grant {
    let text = |name| env.get(name).unwrap_or_default();
    let token = text(env_vars::AWS_SESSION_TOKEN).to_owned();
    let signing = SigningCredentials::new(
        text(env_vars::AWS_ACCESS_KEY_ID),
        text(env_vars::AWS_SECRET_ACCESS_KEY),
        Some(token),
        None,
        "crcr",
    );
    Grant {
        account: inputs.role.account.clone(),
        role: inputs.role.text.clone(),
        expiration: expiration.to_string(),
        region: Some(inputs.region.clone()),
        signing: Some(signing),
        exports: vec![],
        kept: true,
    }
}

fn ambient_grant(args: &ConfigureArgs, found: ambient::Found, printer: &Printer) -> Grant {
    if args.output_credentials {
        let keys = &found.credentials;
        let token = keys.session_token().unwrap_or_default();
        for secret in [keys.access_key_id(), keys.secret_access_key(), token] {
            printer.mask(secret);
        }
    }
    let expiry = found.credentials.expiry().and_then(|at| Timestamp::try_from(at).ok());
    Grant {
        account: found.account,
        role: found.arn,
        expiration: expiry.map(|at| at.to_string()).unwrap_or_default(),
        region: args.aws_region.clone(),
        signing: Some(found.credentials),
        ..Grant::default()
    }
}

/// Wires the cache, where the job goes on.
async fn cache(
    args: &ConfigureArgs,
    row: Row,
    grant: Option<&Grant>,
    env: &Env,
    printer: &Printer,
) -> CacheEnding {
    // sccache finds credentials in the environment alone.
    let serves = row.mode != Mode::Error && (args.output_env_credentials || !row.can_write);
    let Some(cache) = Cache::from_inputs(args).filter(|_| serves) else {
        return CacheEnding::off();
    };
    let signing = grant.and_then(|grant| grant.signing.as_ref());
    match wire(cache, row.can_write, signing, env).await {
        Ok(exports) => CacheEnding { word: if row.can_write { "rw" } else { "ro" }, exports },
        Err(Off { why, hint }) => {
            printer.warning(&format!("sccache is off: {why}"), Some(&hint));
            CacheEnding::off()
        }
    }
}

async fn wire(
    cache: Result<Cache, Off>,
    write: bool,
    signing: Option<&SigningCredentials>,
    env: &Env,
) -> Result<Vec<(&'static str, String)>, Off> {
    let cache = cache?;
    sccache::starts(write, env)?;
    let client = crcr_github::http::client()
        .map_err(|e| Off { why: e.to_string(), hint: "look at the TLS set-up".to_owned() })?;
    cache.probe(&client, signing).await?;
    Ok(cache.exports(write))
}

/// What later steps are told.
struct Told<'a> {
    /// `None` where the inputs made no sense.
    args: Option<&'a ConfigureArgs>,
    row: Row,
    grant: Option<&'a Grant>,
    cache: &'a CacheEnding,
    /// What keeps later steps from the machine's own identity.
    overrides: Vec<(&'static str, String)>,
}

impl Told<'_> {
    /// Tells every later step: environment, outputs, summary.
    fn write(&self, runner: &Runner) -> Result<(), Failure> {
        let Self { args, row, cache, .. } = self;
        let empty = Grant::default();
        let grant = self.grant.unwrap_or(&empty);
        let to_env = args.is_none_or(|args| args.output_env_credentials) || !row.can_write;
        let exports = if to_env { self.exports(grant) } else { vec![] };
        let exports: Vec<_> = exports.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let exported = runner.export(&exports);
        let flag = |value: bool| if value { "true" } else { "false" };
        let keys = grant.signing.as_ref().filter(|_| args.is_some_and(|a| a.output_credentials));
        runner.set_outputs(&[
            ("mode", row.mode.word()),
            ("reason", row.reason.word()),
            ("expected", flag(row.expected)),
            ("degraded", flag(row.degraded)),
            ("can-write", flag(row.can_write)),
            ("sccache-mode", cache.word),
            ("aws-account-id", &grant.account),
            ("role-arn", &grant.role),
            ("expiration", &grant.expiration),
            ("aws-access-key-id", keys.map_or("", |keys| keys.access_key_id())),
            ("aws-secret-access-key", keys.map_or("", |keys| keys.secret_access_key())),
            ("aws-session-token", keys.and_then(|keys| keys.session_token()).unwrap_or_default()),
            ("aws-expiration", keys.map_or("", |_| &grant.expiration)),
        ])?;
        exported?;
        runner.append_summary(&summary(*row, grant, cache.word))
    }

    fn exports(&self, grant: &Grant) -> Vec<(&'static str, String)> {
        let Self { args, row, cache, overrides, .. } = self;
        let mut exports = grant.exports.clone();
        let region = grant.region.as_deref().or(args.and_then(|args| args.aws_region.as_deref()));
        if let Some(region) = region.filter(|_| row.mode != Mode::Error) {
            let region = region.trim().to_owned();
            exports.push((env_vars::AWS_REGION, region.clone()));
            exports.push((env_vars::AWS_DEFAULT_REGION, region));
        }
        exports.push((env_vars::CRCR_AUTH_MODE, row.mode.word().to_owned()));
        exports.push((env_vars::CRCR_AUTH_REASON, row.reason.word().to_owned()));
        exports.extend(cache.exports.iter().cloned());
        // An empty value would be worse than none: it can't be unset, and tools take it for one.
        exports.retain(|(_, value)| !value.is_empty());
        if row.mode == Mode::Anonymous {
            exports.push((env_vars::AWS_EC2_METADATA_DISABLED, "true".to_owned()));
            exports.extend(overrides.iter().cloned());
        }
        exports
    }
}

fn summary(row: Row, grant: &Grant, cache: &str) -> String {
    let mut line = format!("**AWS credentials**: {} ({})", row.mode.word(), row.reason);
    if !grant.role.is_empty() {
        line.push_str(&format!(" · {}", escape_markdown(&grant.role)));
    }
    if !grant.expiration.is_empty() {
        line.push_str(&format!(" · until {}", grant.expiration));
    }
    if row.mode == Mode::Anonymous && row.exit == 0 {
        line.push_str(" · read-only, the job goes on without them");
    }
    if cache != "off" {
        line.push_str(&format!(" · sccache {cache}"));
    }
    line
}

/// Says how it ended, as loudly as it deserves, and gives the exit code.
fn tell(row: Row, ending: Ending, printer: &Printer) -> Outcome {
    let Some(told) = ending.told else {
        let grant = ending.grant.unwrap_or_default();
        let until = match grant.expiration.as_str() {
            "" => String::new(),
            at => format!(", until {at}"),
        };
        let how = if grant.kept { "kept from an earlier step" } else { row.mode.word() };
        printer.line(&format!("AWS credentials ({how}): `{}`{until}", grant.role));
        return Ok(ExitCode::SUCCESS);
    };
    match row.voice {
        Voice::Error => return Err(told),
        Voice::Warning => {
            let mut text =
                format!("no AWS credentials, the job goes on without: {}", told.message());
            for cause in told.causes() {
                text.push_str(&format!("\n  because: {cause}"));
            }
            printer.warning(&text, told.help());
        }
        Voice::Notice => {
            printer.notice(&format!("{}, so the job goes on without", told.message()));
        }
        Voice::Line => printer.line(told.message()),
    }
    Ok(ExitCode::from(row.exit))
}

fn warn_of_leftovers(env: &Env, printer: &Printer) {
    let leftovers = sccache::leftovers(env);
    if leftovers.is_empty() {
        return;
    }
    printer.warning(
        &format!(
            "{} is defined already and can't be unset: AWS tools of later steps will use it, and \
             sccache refuses to start without credentials beside it",
            words::quoted(&leftovers)
        ),
        Some(words::REMOVE),
    );
}

fn warn_of_target(facts: &Facts, printer: &Printer) {
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
