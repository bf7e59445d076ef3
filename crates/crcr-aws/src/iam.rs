//! A role as IAM describes it, and whom its trust policy lets take it with a token of GitHub's.
//!
//! <https://docs.aws.amazon.com/IAM/latest/APIReference/API_GetRole.html>

use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::Value;

const TAKES_WITH_TOKEN: &str = "sts:assumerolewithwebidentity";
/// Others, such as `sts:TagSession`, come beside one of these and give nobody the role.
const TAKES: [&str; 3] = ["sts:assumerole", "sts:assumerolewithsaml", TAKES_WITH_TOKEN];

/// The address of IAM in a partition, and the region that its requests are signed for.
pub fn endpoint(partition: &str) -> (&'static str, &'static str) {
    match partition {
        "aws-cn" => ("https://iam.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        "aws-us-gov" => ("https://iam.us-gov.amazonaws.com", "us-gov-west-1"),
        "aws-iso" => ("https://iam.us-iso-east-1.c2s.ic.gov", "us-iso-east-1"),
        "aws-iso-b" => ("https://iam.us-isob-east-1.sc2s.sgov.gov", "us-isob-east-1"),
        "aws-iso-e" => ("https://iam.eu-isoe-west-1.cloud.adc-e.uk", "eu-isoe-west-1"),
        "aws-iso-f" => ("https://iam.us-isof-south-1.csp.hci.ic.gov", "us-isof-south-1"),
        "aws-eusc" => ("https://iam.eusc-de-east-1.amazonaws.eu", "eusc-de-east-1"),
        _ => ("https://iam.amazonaws.com", "us-east-1"),
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct RoleRecord {
    /// With the role's path.
    pub arn: String,
    pub trust: TrustPolicy,
}

impl RoleRecord {
    /// `None` for what isn't such an answer.
    pub fn read(xml: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Response {
            get_role_result: RoleResult,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct RoleResult {
            role: Role,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Role {
            arn: String,
            assume_role_policy_document: String,
        }
        let Response { get_role_result: RoleResult { role } } =
            quick_xml::de::from_reader(xml).ok()?;
        let policy = percent_decode_str(&role.assume_role_policy_document).decode_utf8().ok()?;
        let policy: Value = serde_json::from_str(&policy).ok()?;
        Some(Self { arn: role.arn, trust: TrustPolicy::read(&policy) })
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustPolicy {
    /// For tokens of GitHub's, one for each statement.
    pub tokens: Vec<TokenTrust>,
    /// Everybody else: accounts, services, other issuers.
    pub others: Vec<String>,
}

/// What a statement demands of a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenTrust {
    /// Exact values of `sub`, in which `*` is an ordinary character.
    pub subjects: Vec<String>,
    /// Patterns for `sub`, in which `*` and `?` are wildcards.
    pub patterns: Vec<String>,
    /// Whether `aud` has to have a value.
    pub has_audience: bool,
    /// Other conditions, as they are written, such as `StringEquals …:repository_id`.
    pub more: Vec<String>,
}

impl TrustPolicy {
    /// Denying statements are left out: they only take away.
    fn read(policy: &Value) -> Self {
        let mut trust = Self::default();
        for statement in list(&policy["Statement"]) {
            let is_named = |list: &Value, action: &str| {
                texts(list).iter().any(|pattern| covers(&pattern.to_ascii_lowercase(), action))
            };
            let allows = |action: &str| match statement.get("NotAction") {
                Some(others) => !is_named(others, action),
                None => is_named(&statement["Action"], action),
            };
            if statement["Effect"] != "Allow" || !TAKES.into_iter().any(allows) {
                continue;
            }
            for (kind, principal) in principals(&statement["Principal"]) {
                let is_github = kind == "Federated" && is_github(&principal);
                if !is_github {
                    trust.others.push(principal);
                } else if allows(TAKES_WITH_TOKEN) {
                    trust.tokens.push(TokenTrust::read(&statement["Condition"]));
                }
            }
        }
        trust
    }
}

/// Whether a provider is of github.com (an enterprise may add its name), of a tenant of ghe.com or of an Enterprise
/// Server.
fn is_github(provider: &str) -> bool {
    let (_, issuer) = provider.split_once("/").unwrap_or_default();
    issuer.starts_with("token.actions.githubusercontent.com")
        || (issuer.starts_with("token.actions.") && issuer.ends_with(".ghe.com"))
        || issuer.ends_with("/_services/token")
}

impl TokenTrust {
    fn read(condition: &Value) -> Self {
        let mut trust = Self::default();
        for (operator, keys) in condition.as_object().into_iter().flatten() {
            // Every token has the claims that are read here, so it's all the same whether they may be absent.
            let plain = operator.rsplit(':').next().unwrap_or_default();
            let plain = plain.strip_suffix("IfExists").unwrap_or(plain);
            for (key, values) in keys.as_object().into_iter().flatten() {
                let claim = key.rsplit(':').next().unwrap_or_default().to_ascii_lowercase();
                match (claim.as_str(), plain) {
                    ("sub", "StringEquals") => trust.subjects.extend(texts(values)),
                    ("sub", "StringLike") => trust.patterns.extend(texts(values)),
                    ("aud", "StringEquals") => trust.has_audience = true,
                    ("aud", "StringLike") => {
                        trust.has_audience |=
                            texts(values).iter().all(|value| !value.contains('*'));
                    }
                    // The same for all repositories.
                    ("aud" | "iss", _) | ("sub", "Null") => {}
                    _ => trust.more.push(format!("{operator} {key}")),
                }
            }
        }
        trust
    }
}

/// Whether a pattern of actions covers `action`. Both are in lower case.
fn covers(pattern: &str, action: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == action,
        Some((start, rest)) => action
            .strip_prefix(start)
            .is_some_and(|left| (0..=left.len()).any(|skipped| covers(rest, &left[skipped..]))),
    }
}

fn principals(principal: &Value) -> Vec<(String, String)> {
    match principal {
        Value::Object(kinds) => kinds
            .iter()
            .flat_map(|(kind, names)| {
                texts(names).into_iter().map(move |name| (kind.clone(), name))
            })
            .collect(),
        other => texts(other).into_iter().map(|name| ("AWS".to_owned(), name)).collect(),
    }
}

fn list(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(all) => all.iter().collect(),
        Value::Null => vec![],
        one => vec![one],
    }
}

fn texts(value: &Value) -> Vec<String> {
    list(value).into_iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PROVIDER: &str =
        "arn:aws:iam::123456789012:oidc-provider/token.actions.githubusercontent.com";

    #[test]
    fn trust_policy_is_read_from_the_answer_of_iam() {
        let policy = json!({ "Statement": { "Effect": "Allow", "Principal": { "Federated": PROVIDER },
            "Action": "sts:AssumeRoleWithWebIdentity", "Condition": { "StringEquals": {
                "token.actions.githubusercontent.com:sub": "repo:a/b:environment:c d",
                "token.actions.githubusercontent.com:aud": ["sts.amazonaws.com"] } } } });
        let policy = policy.to_string();
        let encoded =
            percent_encoding::utf8_percent_encode(&policy, percent_encoding::NON_ALPHANUMERIC);
        let xml = format!(
            "<GetRoleResponse xmlns=\"u\"><GetRoleResult><Role><Path>/x/</Path><Arn>arn:x</Arn>\
             <AssumeRolePolicyDocument>{encoded}</AssumeRolePolicyDocument></Role></GetRoleResult>\
             </GetRoleResponse>"
        );
        let role = RoleRecord::read(xml.as_bytes()).unwrap();
        let token = TokenTrust {
            subjects: vec!["repo:a/b:environment:c d".to_owned()],
            has_audience: true,
            ..TokenTrust::default()
        };
        let trust = TrustPolicy { tokens: vec![token], others: vec![] };
        assert_eq!(role, RoleRecord { arn: "arn:x".to_owned(), trust });
        for other in ["", "<html>", "<GetRoleResponse/>", &xml.replace("%22", "%")] {
            assert_eq!(RoleRecord::read(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn every_principal_and_condition_of_allowing_statements_is_read() {
        let statement = |effect: &str, action: &str, principal: Value, condition: Value| {
            json!({ "Effect": effect, "Action": [action], "Principal": principal,
                "Condition": condition })
        };
        let github = || json!({ "Federated": PROVIDER });
        let sub = "token.actions.githubusercontent.com:Sub";
        let policy = json!({ "Statement": [
            statement("Allow", "sts:*", github(), json!({
                "ForAnyValue:StringLike": { (sub): ["repo:a/*", "repo:c/d:*"] },
                "StringEquals": { "token.actions.githubusercontent.com:repository_id": "7" } })),
            statement("Allow", "sts:AssumeRole", json!({ "AWS": ["arn:1", "arn:2"] }), json!({})),
            statement("Allow", "sts:AssumeRole", json!("*"), json!({})),
            statement("Allow", "sts:AssumeRoleWithWebIdentity", json!({
                "Federated": "arn:aws:iam::1:oidc-provider/ghes.example/_services/token" }), json!({})),
            statement("Allow", "sts:AssumeRoleWithWebIdentity", json!({
                "Federated": "arn:aws:iam::1:oidc-provider/token.actions.acme.ghe.com" }), json!({})),
            statement("Deny", "sts:*", json!("nobody"), json!({})),
        ] });
        let trust = TrustPolicy::read(&policy);
        assert_eq!(trust.others, ["arn:1", "arn:2", "*"]);
        assert_eq!(trust.tokens[0].patterns, ["repo:a/*", "repo:c/d:*"]);
        let more = "StringEquals token.actions.githubusercontent.com:repository_id";
        assert_eq!(trust.tokens[0].more, [more]);
        assert_eq!(trust.tokens[1], TokenTrust::default());
        assert_eq!(trust.tokens.len(), 3);
    }

    #[test]
    fn statement_that_gives_nobody_the_role_trusts_nobody() {
        let trust = |mut statement: Value| {
            statement["Effect"] = json!("Allow");
            statement["Principal"] = json!({ "Federated": PROVIDER, "AWS": "arn:1" });
            let TrustPolicy { tokens, others } =
                TrustPolicy::read(&json!({ "Statement": [statement] }));
            (tokens.len(), others.len())
        };
        assert_eq!(trust(json!({ "Action": ["sts:TagSession", "sts:SetSourceIdentity"] })), (0, 0));
        assert_eq!(trust(json!({ "Action": ["sts:AssumeRole", "sts:TagSession"] })), (0, 1));
        assert_eq!(trust(json!({ "Action": "sts:*Role*Identity" })), (1, 1));
        assert_eq!(trust(json!({ "NotAction": "sts:TagSession" })), (1, 1));
        assert_eq!(trust(json!({ "NotAction": "sts:*WithWeb*" })), (0, 1));
        assert_eq!(trust(json!({ "NotAction": "*" })), (0, 0));
    }

    #[test]
    fn audience_and_issuer_are_no_choice_of_repositories() {
        let read = |operator: &str, claim: &str, value: &str| {
            let key = format!("token.actions.githubusercontent.com:{claim}");
            TokenTrust::read(&json!({ (operator): { (key): value } }))
        };
        let with_audience = TokenTrust { has_audience: true, ..TokenTrust::default() };
        for operator in ["StringEquals", "StringLike", "ForAllValues:StringEqualsIfExists"] {
            assert_eq!(read(operator, "aud", "sts.amazonaws.com"), with_audience, "{operator}");
        }
        assert_eq!(read("StringLike", "aud", "*"), TokenTrust::default());
        let issuer = "https://token.actions.githubusercontent.com";
        assert_eq!(read("ForAllValues:StringEquals", "iss", issuer), TokenTrust::default());
        assert_eq!(read("Null", "sub", "false"), TokenTrust::default());
        assert_eq!(read("StringEqualsIfExists", "sub", "repo:a/b:c").subjects, ["repo:a/b:c"]);
    }
}
