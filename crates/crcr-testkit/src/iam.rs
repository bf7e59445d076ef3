//! Decides requests by policies as IAM does: a deny wins, and what nothing allows is refused.
//!
//! It knows what our policies use, and panics at anything else, so that no policy passes because a part of it was
//! not understood. <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html>

use std::collections::BTreeMap;

use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    Anonymous,
    Role(String),
    /// A web identity, by the ARN of its OIDC provider.
    Federated(String),
}

#[derive(Debug, Clone)]
pub struct Request {
    pub caller: Caller,
    pub action: String,
    pub resource: String,
    /// Condition keys, such as `aws:SecureTransport`. A key that isn't here isn't in the request.
    pub context: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Allowed,
    Refused,
    /// A statement denies it.
    Denied,
}

/// Decides by the caller's own policies and those of the resource. In one account, either may allow.
pub fn decide(identity: &[&Value], resource: &[&Value], request: &Request) -> Decision {
    let own = identity.iter().flat_map(|policy| statements(policy)).map(|one| (one, false));
    let others = resource.iter().flat_map(|policy| statements(policy)).map(|one| (one, true));
    let mut decision = Decision::Refused;
    for (statement, has_principal) in own.chain(others) {
        check_keys(statement, has_principal);
        if !applies(statement, has_principal, request) {
            continue;
        }
        match statement["Effect"].as_str() {
            Some("Deny") => return Decision::Denied,
            Some("Allow") => decision = Decision::Allowed,
            other => panic!("the effect {other:?}"),
        }
    }
    decision
}

fn statements(policy: &Value) -> Vec<&Value> {
    assert_eq!(policy["Version"], "2012-10-17", "older versions know no policy variables");
    match &policy["Statement"] {
        Value::Array(all) => all.iter().collect(),
        one @ Value::Object(_) => vec![one],
        other => panic!("the statements {other}"),
    }
}

fn check_keys(statement: &Value, has_principal: bool) {
    let known = ["Sid", "Effect", "Principal", "Action", "Resource", "Condition"];
    for key in statement.as_object().expect("a statement is an object").keys() {
        assert!(known.contains(&&**key), "the key `{key}`");
    }
    assert_eq!(statement.get("Principal").is_some(), has_principal, "{statement}");
}

fn applies(statement: &Value, has_principal: bool, request: &Request) -> bool {
    let action = texts(&statement["Action"]);
    // A trust policy names no resource: it is about its role.
    let resource = statement.get("Resource").map_or(vec!["*"], texts);
    (!has_principal || is_principal(&statement["Principal"], &request.caller))
        && action
            .iter()
            .any(|pattern| matches(&pattern.to_lowercase(), &request.action.to_lowercase()))
        && resource.iter().any(|pattern| matches(pattern, &request.resource))
        && conditions_hold(statement.get("Condition"), &request.context)
}

fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(one) => vec![one],
        Value::Array(all) => all.iter().map(|one| one.as_str().expect("a text")).collect(),
        other => panic!("not a text or a list: {other}"),
    }
}

fn is_principal(principal: &Value, caller: &Caller) -> bool {
    match principal {
        Value::String(all) => {
            assert_eq!(all, "*", "a principal that is a text is everybody");
            true
        }
        Value::Object(kinds) => kinds.iter().any(|(kind, names)| {
            let names = texts(names);
            match (&**kind, caller) {
                ("AWS", _) if names.contains(&"*") => true,
                ("AWS", Caller::Role(arn)) => names.contains(&&**arn),
                ("Federated", Caller::Federated(arn)) => names.contains(&&**arn),
                ("AWS" | "Federated", _) => false,
                (other, _) => panic!("principals of the kind `{other}`"),
            }
        }),
        other => panic!("the principal {other}"),
    }
}

fn conditions_hold(conditions: Option<&Value>, context: &BTreeMap<String, String>) -> bool {
    let Some(conditions) = conditions else { return true };
    let operators = conditions.as_object().expect("conditions are an object");
    operators.iter().all(|(operator, keys)| {
        keys.as_object().expect("keys are an object").iter().all(|(key, wanted)| {
            // Keys are compared without case, values with it.
            let mut known = context.iter();
            let found = known.find(|(name, _)| name.eq_ignore_ascii_case(key));
            holds(operator, found.map(|(_, value)| &**value), &texts(wanted))
        })
    })
}

fn holds(operator: &str, found: Option<&str>, wanted: &[&str]) -> bool {
    let (operator, if_exists) = match operator.strip_suffix("IfExists") {
        Some(operator) => (operator, true),
        None => (operator, false),
    };
    let any = |is: &dyn Fn(&str, &str) -> bool| match found {
        None => if_exists,
        Some(found) => wanted.iter().any(|wanted| is(wanted, found)),
    };
    // A negated operator holds where the key is absent.
    let none = |is: &dyn Fn(&str, &str) -> bool| {
        found.is_none_or(|found| !wanted.iter().any(|wanted| is(wanted, found)))
    };
    match operator {
        "StringEquals" | "ArnEquals" => any(&|wanted, found| wanted == found),
        "StringLike" | "ArnLike" => any(&matches),
        "StringNotEquals" => none(&|wanted, found| wanted == found),
        "StringNotLike" => none(&matches),
        "Bool" => any(&|wanted, found| wanted.eq_ignore_ascii_case(found)),
        other => panic!("the condition operator `{other}`"),
    }
}

/// `*` stands for any text and `?` for one character.
fn matches(pattern: &str, text: &str) -> bool {
    assert!(!pattern.contains("${"), "policy variables: {pattern}");
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    // `reached[n]`: the first n characters of the text match the pattern so far.
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for wanted in pattern {
        if wanted == '*' {
            let first = reached.iter().position(|reached| *reached).unwrap_or(reached.len());
            reached.iter_mut().skip(first).for_each(|reached| *reached = true);
            continue;
        }
        for n in (0..text.len()).rev() {
            reached[n + 1] = reached[n] && (wanted == '?' || wanted == text[n]);
        }
        reached[0] = false;
    }
    reached[text.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(action: &str, resource: &str, context: &[(&str, &str)]) -> Request {
        let context = context.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        Request {
            caller: Caller::Anonymous,
            action: action.to_owned(),
            resource: resource.to_owned(),
            context: context.collect(),
        }
    }

    fn statement(extra: Value) -> Value {
        let mut statement = json!({
            "Effect": "Allow", "Action": ["s3:Get*", "s3:PutObject"], "Resource": "arn:aws:s3:::b/x/*",
        });
        statement.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({ "Version": "2012-10-17", "Statement": [statement] })
    }

    #[test]
    fn wildcards_match_over_slashes_and_actions_without_case() {
        let policy = statement(json!({}));
        for (action, resource, decision) in [
            ("s3:GetObject", "arn:aws:s3:::b/x/y/z", Decision::Allowed),
            ("S3:getobject", "arn:aws:s3:::b/x/", Decision::Allowed),
            ("s3:GetObject", "arn:aws:s3:::b/x", Decision::Refused),
            ("s3:GetObject", "arn:aws:s3:::b/X/y", Decision::Refused),
            ("s3:PutObjectTagging", "arn:aws:s3:::b/x/y", Decision::Refused),
        ] {
            assert_eq!(
                decide(&[&policy], &[], &request(action, resource, &[])),
                decision,
                "{action}"
            );
        }
        for (pattern, text, is) in
            [("a*b*c", "aXbYbZc", true), ("a*b", "ab", true), ("?", "", false), ("*", "", true)]
        {
            assert_eq!(matches(pattern, text), is, "{pattern} {text}");
        }
    }

    #[test]
    fn deny_wins_and_conditions_decide() {
        let get = |context: &[(&str, &str)]| request("s3:GetObject", "arn:aws:s3:::b/x/y", context);
        let tls = json!({ "Effect": "Deny", "Principal": "*", "Action": "s3:*",
            "Condition": { "Bool": { "aws:SecureTransport": "false" } } });
        let (allow, deny) = (statement(json!({})), statement(tls));
        let plain = get(&[("aws:SecureTransport", "false")]);
        assert_eq!(decide(&[&allow], &[&deny], &plain), Decision::Denied);
        let secure = get(&[("aws:securetransport", "true")]);
        assert_eq!(decide(&[&allow], &[&deny], &secure), Decision::Allowed);
        for (operator, wanted, allowed, without_key) in [
            ("StringEquals", json!(["p/1", "p/2"]), true, false),
            ("StringEquals", json!("p/*"), false, false),
            ("StringLike", json!("p/*"), true, false),
            ("StringLikeIfExists", json!("q/*"), false, true),
            ("StringNotEquals", json!("p/1"), false, true),
            ("StringNotLike", json!("q/*"), true, true),
        ] {
            let policy = statement(json!({ "Condition": { operator: { "s3:prefix": wanted } } }));
            let decided = |context| decide(&[&policy], &[], &get(context)) == Decision::Allowed;
            assert_eq!(decided(&[("s3:prefix", "p/1")]), allowed, "{operator}");
            assert_eq!(decided(&[]), without_key, "{operator} without the key");
        }
    }

    #[test]
    #[should_panic(expected = "the condition operator `IpAddress`")]
    fn what_it_does_not_know_is_a_panic() {
        let policy =
            statement(json!({ "Condition": { "IpAddress": { "aws:SourceIp": "1.2.3.4" } } }));
        decide(
            &[&policy],
            &[],
            &request("s3:GetObject", "arn:aws:s3:::b/x/y", &[("aws:SourceIp", "1.2.3.4")]),
        );
    }
}
