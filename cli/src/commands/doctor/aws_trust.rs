//! Whom a role trusts, as IAM tells those who may read it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use aws_credential_types::Credentials;
use crcr_artifacts::digest::Digest;
use crcr_artifacts::store::s3::{SigningScope, signature};
use crcr_aws::iam::{self, RoleRecord, TokenTrust, TrustPolicy};
use crcr_aws::names::RoleArn;
use crcr_aws::sts::AwsError;
use crcr_github::http::{self, RetryPolicy};
use reqwest::Client;
use url::Url;

use super::machine;
use super::report::CheckResult;

const CHECK: &str = "role-trust";
const FORMS: &str = "role-sub-forms";
const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// Reads the trust policy with the credentials of this machine, if there are any.
pub async fn check(
    role: &RoleArn,
    client: &Client,
    retry: RetryPolicy,
    endpoint: Option<&Url>,
) -> Vec<CheckResult> {
    let not_seen = |why: &str| {
        let name = &role.name;
        let message = format!(
            "whom the role trusts: {why}. `aws iam get-role --role-name {name} --query \
             Role.AssumeRolePolicyDocument` shows it to whoever may; docs/aws.md has what it should be"
        );
        vec![CheckResult::not_checked(CHECK, message)]
    };
    let Ok(credentials) = machine::default_credentials().await else {
        return not_seen(
            "there are no AWS credentials here; with some that may `iam:GetRole` this command reads it",
        );
    };
    match get_role(role, client, retry, endpoint, credentials).await {
        Ok(record) if record.arn == role.text => judge(&record.trust),
        Ok(record) if record.arn.contains(&format!("::{}:", role.account)) => {
            let message = format!("the role's ARN is `{}`", record.arn);
            let mut results =
                vec![CheckResult::error("role-name", message, "write it so, with its path")];
            results.extend(judge(&record.trust));
            results
        }
        Ok(_) => not_seen("the AWS credentials here are those of another account"),
        Err(RoleError::Missing) => vec![CheckResult::warning(
            CHECK,
            format!("the account of the AWS credentials here has no role `{}`", role.name),
            "create the role, or use credentials of its account",
        )],
        Err(RoleError::Denied(why)) => {
            not_seen(&format!("the AWS credentials here need `iam:GetRole` on it ({why})"))
        }
        Err(RoleError::Other(why)) => not_seen(&format!("IAM can't be asked ({why})")),
    }
}

enum RoleError {
    Missing,
    Denied(String),
    Other(String),
}

async fn get_role(
    role: &RoleArn,
    client: &Client,
    retry: RetryPolicy,
    endpoint: Option<&Url>,
    credentials: Credentials,
) -> Result<RoleRecord, RoleError> {
    let other = |error: &dyn std::fmt::Display| RoleError::Other(error.to_string());
    let (address, region) = iam::endpoint(&role.partition);
    let mut url = match endpoint {
        Some(endpoint) => endpoint.clone(),
        None => Url::parse(address).map_err(|error| other(&error))?,
    };
    url.query_pairs_mut()
        .append_pair("Action", "GetRole")
        .append_pair("RoleName", &role.name)
        .append_pair("Version", "2010-05-08");
    let (scope, now) = (SigningScope { service: "iam", region }, SystemTime::now());
    let nothing = Some(Digest::of(b""));
    let signed = signature("GET", url.as_str(), &[], nothing, scope, credentials, now);
    let signed = signed.map_err(|error| other(&error))?;
    let request = || {
        let request = client.get(url.clone()).timeout(machine::TIMEOUT);
        signed.iter().fold(request, |request, (name, value)| request.header(*name, value))
    };
    match http::send(retry, request).await {
        Ok(answer) => {
            let body = http::read(answer, MAX_ANSWER_BYTES).await.map_err(|error| other(&error))?;
            RoleRecord::read(&body).ok_or(RoleError::Other("its answer names no role".to_owned()))
        }
        Err(error) => {
            let body = match error.last() {
                http::HttpError::Status { body, .. } => AwsError::read(body),
                _ => None,
            };
            Err(match body {
                Some(AwsError { code, .. }) if code == "NoSuchEntity" => RoleError::Missing,
                Some(AwsError { code, message, .. }) if code.starts_with("AccessDenied") => {
                    RoleError::Denied(message)
                }
                Some(AwsError { code, message, .. }) => {
                    RoleError::Other(format!("{code}: {message}"))
                }
                None => other(&error),
            })
        }
    }
}

fn judge(trust: &TrustPolicy) -> Vec<CheckResult> {
    let mut results = vec![];
    if trust.tokens.is_empty() {
        results.push(CheckResult::error(
            CHECK,
            "the role trusts no token of GitHub's",
            "give it the trust policy that `crcr init aws` writes",
        ));
    }
    let problems: Vec<_> = trust.tokens.iter().flat_map(problems).collect();
    let subjects: Vec<_> = trust.tokens.iter().flat_map(exact_subjects).collect();
    if !problems.is_empty() {
        let fix = "name each `sub` as a whole with `StringEquals`, such as \
                   `repo:OWNER/REPO:environment:ci`: `crcr init aws` writes such a policy";
        results.push(CheckResult::error(CHECK, problems.join("; "), fix));
    } else if !subjects.is_empty() {
        results.push(CheckResult::ok(CHECK, format!("the role trusts {}", quoted(&subjects))));
    }
    for token in trust.tokens.iter().filter(|token| !token.more.is_empty()) {
        for what in wide(token) {
            let message = format!("{what} if it fits {}", quoted(&token.more));
            results.push(CheckResult::not_checked(CHECK, message));
        }
    }
    if trust.tokens.iter().any(|token| !token.has_audience) {
        results.push(CheckResult::warning(
            "role-audience",
            "the trust policy demands no `aud`",
            "demand `sts.amazonaws.com`: else a token that a job sends to another service may get the role",
        ));
    }
    if !trust.others.is_empty() {
        results.push(CheckResult::warning(
            "role-others",
            format!("the role also trusts {}", quoted(&trust.others)),
            "remove them if nothing needs them: whoever takes the role can write what builds read",
        ));
    }
    results.extend(several_repositories(&subjects));
    results.extend(forms(&subjects));
    results
}

/// The repository and the environment of a `sub`, without the numbers of owner and repository.
fn parts_of_subject(subject: &str) -> Option<(String, &str)> {
    let (name, environment) = subject.strip_prefix("repo:")?.split_once(":environment:")?;
    let plain = name.split('/').map(|part| part.split('@').next().unwrap_or_default());
    Some((plain.collect::<Vec<_>>().join("/"), environment))
}

fn several_repositories(subjects: &[String]) -> Option<CheckResult> {
    let names = subjects.iter().filter_map(|subject| Some(parts_of_subject(subject)?.0));
    let names: BTreeSet<_> = names.map(|name| name.to_lowercase()).collect();
    if names.len() < 2 {
        return None;
    }
    let names: Vec<_> = names.into_iter().collect();
    Some(CheckResult::warning(
        "role-others",
        format!("the role trusts several repositories: {}", quoted(&names)),
        "give each roles and buckets of its own, as `crcr init aws` does: now each writes what the others' builds read",
    ))
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

fn exact_subjects(token: &TokenTrust) -> Vec<String> {
    let patterns = token.patterns.iter().filter(|pattern| !is_pattern(pattern));
    token.subjects.iter().chain(patterns).cloned().collect()
}

/// Who gets the role if no other condition keeps them away. A token has to fit all conditions, so exact subjects
/// leave nothing to patterns.
fn wide(token: &TokenTrust) -> Vec<String> {
    match (token.subjects.is_empty(), token.patterns.is_empty()) {
        (true, true) => vec!["every repository at GitHub gets the role".to_owned()],
        (true, false) => {
            let patterns = token.patterns.iter().filter(|pattern| is_pattern(pattern));
            patterns
                .map(|pattern| format!("each job whose `sub` fits `{pattern}` gets the role"))
                .collect()
        }
        (false, _) => vec![],
    }
}

fn problems(token: &TokenTrust) -> Vec<String> {
    let mut found = if token.more.is_empty() { wide(token) } else { vec![] };
    for subject in exact_subjects(token) {
        if is_pattern(&subject) {
            found.push(format!(
                "no `sub` is `{subject}`: `StringEquals` takes its `*` and `?` as they are"
            ));
        } else if !subject.contains(":environment:") {
            found.push(format!(
                "each job with the `sub` `{subject}` gets the role, whatever it runs"
            ));
        }
    }
    found
}

/// Whether each `sub` of an environment is there with and without the numbers of owner and repository.
fn forms(subjects: &[String]) -> Option<CheckResult> {
    let mut known = BTreeMap::<(String, &str), [bool; 2]>::new();
    for subject in subjects.iter().filter(|subject| !is_pattern(subject)) {
        if let Some(parts) = parts_of_subject(subject) {
            let has_numbers =
                subject.split(":environment:").next().is_some_and(|s| s.contains('@'));
            known.entry(parts).or_default()[usize::from(has_numbers)] = true;
        }
    }
    let lone: Vec<_> = known
        .iter()
        .filter(|(_, forms)| !forms[1])
        .map(|((name, environment), _)| format!("repo:{name}:environment:{environment}"))
        .collect();
    if known.is_empty() {
        return None;
    }
    if lone.is_empty() {
        let message = "the role knows the form of `sub` with the numbers of owner and repository";
        return Some(CheckResult::ok(FORMS, message));
    }
    Some(CheckResult::warning(
        FORMS,
        format!("the role knows {} in the form without numbers alone", quoted(&lone)),
        "add `repo:OWNER@ID/REPO@ID:environment:NAME`, which GitHub sends for repositories that were created, \
         renamed or transferred since 2026-07-15; `crcr init aws` writes both",
    ))
}

fn quoted(texts: &[String]) -> String {
    texts.iter().map(|text| format!("`{text}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(trust: &TrustPolicy) -> String {
        let line = |result: &CheckResult| {
            format!("{:?} {}: {}\n", result.status, result.check, result.message)
        };
        judge(trust).iter().map(line).collect()
    }

    fn of_token(subjects: &[&str], patterns: &[&str]) -> TrustPolicy {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let (subjects, patterns) = (owned(subjects), owned(patterns));
        let token = TokenTrust { subjects, patterns, has_audience: true, more: vec![] };
        TrustPolicy { tokens: vec![token], others: vec![] }
    }

    #[test]
    fn role_of_one_environment_in_both_forms_is_right() {
        let both = ["repo:acme/app:environment:ci", "repo:acme@501/app@1001:environment:ci"];
        let text = found(&of_token(&both, &[]));
        assert!(
            text.starts_with("Ok role-trust: the role trusts `repo:acme/app:environment:ci`, `"),
            "{text}"
        );
        assert!(text.contains("Ok role-sub-forms") && text.lines().count() == 2, "{text}");
        assert!(found(&of_token(&both[1..], &[])).contains("Ok role-sub-forms"));
        let other = "repo:acme/other:environment:ci";
        let text = found(&of_token(&[both[0], both[1], other], &[]));
        let expected =
            "Warning role-others: the role trusts several repositories: `acme/app`, `acme/other`";
        assert!(text.contains(expected), "{text}");
        let text = found(&of_token(&both[..1], &[]));
        assert!(
            text.contains("Warning role-sub-forms: the role knows `repo:acme/app:environment:ci`"),
            "{text}"
        );
    }

    #[test]
    fn trust_that_is_too_wide_or_matches_nothing_is_named() {
        for (trust, expected) in [
            (
                of_token(&[], &["repo:acme/app:*"]),
                "Error role-trust: each job whose `sub` fits `repo:acme/app:*`",
            ),
            (
                of_token(&["repo:acme/app:*"], &[]),
                "Error role-trust: no `sub` is `repo:acme/app:*`",
            ),
            (
                of_token(&["repo:acme/app:ref:refs/heads/main"], &[]),
                "`sub` `repo:acme/app:ref:refs/heads/main`",
            ),
            (of_token(&[], &[]), "Error role-trust: every repository at GitHub"),
            (TrustPolicy::default(), "Error role-trust: the role trusts no token"),
        ] {
            let text = found(&trust);
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let both = of_token(&["repo:acme/app:environment:ci"], &["repo:acme/*"]);
        assert!(found(&both).contains("Ok role-trust"), "a token has to fit both");
        let mut trust = of_token(&[], &["repo:acme/*"]);
        trust.tokens[0].more.push("StringEquals x:job_workflow_ref".to_owned());
        let text = found(&trust);
        let expected = "NotChecked role-trust: each job whose `sub` fits `repo:acme/*` gets the role if it fits \
                        `StringEquals x:job_workflow_ref`";
        assert!(text.contains(expected) && !text.contains("Error"), "{text}");
        let mut trust = of_token(&[], &[]);
        trust.tokens[0].more.push("StringEquals x:repository_id".to_owned());
        trust.tokens[0].has_audience = false;
        trust.others.push("arn:aws:iam::1:root".to_owned());
        let text = found(&trust);
        for part in [
            "NotChecked role-trust: every repository",
            "Warning role-audience",
            "Warning role-others",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
