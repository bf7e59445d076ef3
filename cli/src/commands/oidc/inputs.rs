//! Checks the role and its settings. This happens only if the job can get a token, because on a fork the
//! inputs are empty.

use crcr_aws::names::{AwsNameError, AwsRegion, BucketName, RoleArn};
use crcr_aws::sts::{self, AssumeRole, EndpointVariant};
use crcr_github::SecureUrl;
use serde_json::{Value, json};

use crate::cli::oidc::ConfigureArgs;
use crate::commands::oidc::decide::TrustClass;
use crate::commands::oidc::job_facts::job_facts;
use crate::commands::oidc::unsupported_inputs::{self, invalid};
use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::runner::Runner;

// Limits of STS.
const MAX_POLICY_CHARS: usize = 2048;
const MAX_MANAGED_POLICIES: usize = 10;

#[derive(Debug, Clone)]
pub struct RoleInputs {
    pub role: RoleArn,
    pub region: String,
    pub request: AssumeRole,
}

/// Splits a list input at line ends and commas; empty entries are dropped.
pub fn list(values: &[String]) -> Vec<String> {
    values
        .iter()
        .flat_map(|value| value.split(['\n', ',']))
        .map(|entry| entry.trim().to_owned())
        .filter(|entry| !entry.is_empty())
        .collect()
}

/// Each error names its input; all of them are usage errors (exit code 2).
pub fn check(args: &ConfigureArgs, runner: &Runner) -> Result<RoleInputs, Failure> {
    unsupported_inputs::refuse(&args.peer)?;
    let role = role_arn(args.role_to_assume.as_deref())?;
    allow_account(&role.account, &args.allowed_account_ids)?;
    let region = args.aws_region.as_deref().ok_or_else(|| {
        invalid("the input `aws-region` is empty").hint(
            "give the region of the credentials, such as `us-east-1`; if it comes from a variable \
             or secret, check that the repository defines it",
        )
    })?;
    let region = region.trim().to_owned();
    let env = runner.env();
    let endpoint = match sts_endpoint(args.sts_endpoint.as_deref(), env)? {
        // Other services than AWS name their regions as they like.
        Some(endpoint) => endpoint,
        None => {
            let known = aws_name("aws-region", AwsRegion::new(&region))?;
            aws_name("role-to-assume", role.check_region(&known))?;
            let unknown = || invalid(format!("`aws-region` (`{region}`) has no STS"));
            sts::regional_endpoint(&region, endpoint_variant(env)).ok_or_else(unknown)?
        }
    };
    let policy_arns = list(&args.managed_session_policies);
    if policy_arns.len() > MAX_MANAGED_POLICIES {
        let n = policy_arns.len();
        return Err(invalid(format!(
            "`managed-session-policies` has {n} policies, STS takes {MAX_MANAGED_POLICIES}"
        )));
    }
    if let Some(odd) = policy_arns.iter().find(|arn| !arn.starts_with("arn:")) {
        return Err(invalid(format!(
            "`managed-session-policies` has an entry that isn't an ARN: `{odd}`"
        )));
    }
    let request = AssumeRole {
        endpoint,
        role_arn: role.text.clone(),
        session_name: session_name(args.role_session_name.as_deref(), runner),
        duration_seconds: duration(&args.role_duration_seconds)?,
        policy: policy(args, &role.partition, runner)?,
        policy_arns,
    };
    Ok(RoleInputs { role, region, request })
}

/// The STS that an input or the environment names, as for every program with AWS's SDKs.
pub fn sts_endpoint(given: Option<&str>, env: &Env) -> Result<Option<SecureUrl>, Failure> {
    let by_input = given.map(|text| ("sts-endpoint", text));
    let by_env = || {
        let name = env_vars::AWS_ENDPOINT_URL_STS;
        let is_ignored = env.is_switched_on(env_vars::AWS_IGNORE_CONFIGURED_ENDPOINT_URLS);
        Some((name, env.get(name).filter(|_| !is_ignored)?))
    };
    by_input.or_else(by_env).map(|(name, text)| endpoint(name, text)).transpose()
}

pub fn endpoint_variant(env: &Env) -> EndpointVariant {
    EndpointVariant {
        fips: env.is_switched_on(env_vars::AWS_USE_FIPS_ENDPOINT),
        dual_stack: env.is_switched_on(env_vars::AWS_USE_DUALSTACK_ENDPOINT),
    }
}

fn role_arn(input: Option<&str>) -> Result<RoleArn, Failure> {
    let text = input.unwrap_or_default().trim();
    if text.is_empty() {
        return Err(invalid("the input `role-to-assume` is empty").hint(
            "give the role's ARN; if it comes from a secret or variable, check that the repository \
             defines it and that this event may read it",
        ));
    }
    aws_name("role-to-assume", RoleArn::new(text))
}

/// Names the input of a name that AWS can't have given.
fn aws_name<T>(input: &str, name: Result<T, AwsNameError>) -> Result<T, Failure> {
    name.map_err(|error| invalid(format!("`{input}`: {error}")).hint(error.rule))
}

/// Refuses an account that isn't in `allowed-account-ids`, if that is set.
pub fn allow_account(account: &str, allowed: &[String]) -> Result<(), Failure> {
    let allowed = list(allowed);
    if allowed.is_empty() || allowed.iter().any(|id| id == account) {
        return Ok(());
    }
    Err(invalid(format!(
        "the account `{account}` is not among `allowed-account-ids`: {}",
        allowed.join(", ")
    ))
    .hint("correct `role-to-assume`, or add the account to `allowed-account-ids`"))
}

/// The URL of a service to which a token or credentials are sent.
pub fn endpoint(input: &str, text: &str) -> Result<SecureUrl, Failure> {
    text.parse().map_err(|error| {
        invalid(format!("`{input}` {error}"))
            .hint("give the whole address, such as `https://sts.us-east-1.amazonaws.com`")
    })
}

fn duration(text: &str) -> Result<u32, Failure> {
    text.trim().parse().ok().filter(|n| (900..=43_200).contains(n)).ok_or_else(|| {
        invalid(format!("`role-duration-seconds` must be a number from 900 to 43200, not `{text}`"))
    })
}

/// The name of the session, `[\w+=,.@-]{2,64}`. By default it consists of the repository, the run and
/// the attempt; a long repository name is cut.
pub fn session_name(given: Option<&str>, runner: &Runner) -> String {
    let clean = |text: &str| -> String {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_+=,.@-".contains(c);
        text.trim().chars().map(|c| if allowed(c) { c } else { '-' }).collect()
    };
    let env = runner.env();
    let mut name = match given {
        Some(name) => clean(name),
        None => {
            let mut name = clean(runner.repository().unwrap_or("crcr"));
            let mut tail = String::new();
            for variable in [env_vars::GITHUB_RUN_ID, env_vars::GITHUB_RUN_ATTEMPT] {
                if let Some(number) = env.get(variable) {
                    tail = format!("{tail}-{}", clean(number));
                }
            }
            name.truncate(64_usize.saturating_sub(tail.len()));
            name + &tail
        }
    };
    name.truncate(64);
    while name.len() < 2 {
        name.push('-');
    }
    name
}

/// The inline policy of the session: the user's own merged with the one for `s3-scope`.
fn policy(
    args: &ConfigureArgs,
    partition: &str,
    runner: &Runner,
) -> Result<Option<String>, Failure> {
    let own = args.inline_session_policy.as_deref().map(parse_policy).transpose()?;
    let scope = match args.s3_scope.as_deref() {
        Some(scope) => scope_statements(scope, args, partition, runner)?,
        None => vec![],
    };
    let policy = match (own, scope.is_empty()) {
        (None, true) => return Ok(None),
        (Some(own), true) => own,
        (None, false) => json!({"Version": "2012-10-17", "Statement": scope}),
        (Some(mut own), false) => {
            let statements = match own["Statement"].take() {
                Value::Array(statements) => statements,
                one => vec![one],
            };
            own["Statement"] = statements.into_iter().chain(scope).collect();
            own
        }
    };
    let text = policy.to_string();
    let length = text.chars().count();
    if length > MAX_POLICY_CHARS {
        return Err(invalid(format!(
            "the inline session policy has {length} characters, STS takes {MAX_POLICY_CHARS}"
        ))
        .hint("shorten `inline-session-policy`, or move it to `managed-session-policies`"));
    }
    Ok(Some(text))
}

fn parse_policy(text: &str) -> Result<Value, Failure> {
    let policy: Value = serde_json::from_str(text)
        .map_err(|e| invalid("`inline-session-policy` is not JSON").because(e))?;
    match &policy["Statement"] {
        Value::Array(_) | Value::Object(_) => Ok(policy),
        _ => Err(invalid("`inline-session-policy` has no `Statement`")),
    }
}

/// The rights that a run needs for its own artifacts, but not for those of other runs.
fn scope_statements(
    scope: &str,
    args: &ConfigureArgs,
    partition: &str,
    runner: &Runner,
) -> Result<Vec<Value>, Failure> {
    let (bucket, prefix) = scope.trim().split_once('/').unwrap_or((scope.trim(), ""));
    check_resource("s3-scope", bucket, prefix)?;
    let run_id = runner.env().get(env_vars::GITHUB_RUN_ID);
    let (Some(repository), Some(run_id)) = (runner.repository(), run_id) else {
        return Err(invalid(
            "`s3-scope` needs `GITHUB_REPOSITORY` and `GITHUB_RUN_ID`, which a workflow run has",
        ));
    };
    let run = format!("{}{repository}/{run_id}/*", folder(prefix));
    check_resource("s3-scope", bucket, run.trim_end_matches('*'))?;
    let mut statements = statements(
        partition,
        bucket,
        &run,
        &[
            "s3:PutObject",
            "s3:PutObjectTagging",
            "s3:GetObject",
            "s3:DeleteObject",
            "s3:AbortMultipartUpload",
            "s3:ListMultipartUploadParts",
        ],
        &["s3:ListBucket", "s3:ListBucketMultipartUploads"],
    );
    // A session policy removes all rights that it doesn't name, so it has to name the cache.
    if let Some(bucket) = args.sccache_bucket.as_deref() {
        let prefix = cache_prefix(args, job_facts(runner)?.trust_class());
        check_resource("sccache-bucket", bucket, &prefix)?;
        let keys = format!("{prefix}*");
        let objects = ["s3:GetObject", "s3:PutObject"];
        statements.extend(self::statements(partition, bucket, &keys, &objects, &["s3:ListBucket"]));
    }
    // For buckets that encrypt with KMS, and only through S3. The role's policy says which keys.
    statements.push(json!({
        "Effect": "Allow",
        "Action": ["kms:GenerateDataKey", "kms:Decrypt"],
        "Resource": "*",
        "Condition": {"StringLike": {"kms:ViaService": "s3.*"}},
    }));
    Ok(statements)
}

fn statements(
    partition: &str,
    bucket: &str,
    keys: &str,
    on_objects: &[&str],
    on_bucket: &[&str],
) -> Vec<Value> {
    let bucket = format!("arn:{partition}:s3:::{bucket}");
    vec![
        json!({"Effect": "Allow", "Action": on_objects, "Resource": format!("{bucket}/{keys}")}),
        json!({
            "Effect": "Allow",
            "Action": on_bucket,
            "Resource": bucket,
            "Condition": {"StringLike": {"s3:prefix": keys}},
        }),
    ]
}

/// The prefix of sccache's keys for a class, with a final slash.
pub fn cache_prefix(args: &ConfigureArgs, class: TrustClass) -> String {
    let prefix = folder(args.sccache_key_prefix.as_deref().unwrap_or_default());
    format!("{prefix}{}/", class.folder())
}

/// A key prefix with exactly one final slash, or empty.
pub fn folder(prefix: &str) -> String {
    match prefix.trim().trim_matches('/') {
        "" => String::new(),
        prefix => format!("{prefix}/"),
    }
}

/// Refuses invalid bucket names, and prefixes that IAM would read as a pattern or a variable.
pub fn check_resource(input: &str, bucket: &str, prefix: &str) -> Result<(), Failure> {
    aws_name(input, BucketName::new(bucket))?;
    if prefix.contains(['*', '?', '$', '"', '\\']) || prefix.chars().any(char::is_control) {
        return Err(invalid(format!("the prefix in `{input}` has a `*`, `?`, `$`, `\"` or `\\`")));
    }
    Ok(())
}

#[cfg(test)]
#[path = "inputs_tests.rs"]
mod tests;
