//! Reuses the credentials that an earlier step of the job got with this command.

use aws_lc_rs::digest::{SHA256, digest};
use crcr_aws::sts::AssumeRole;
use jiff::{SignedDuration, Timestamp};

use crate::env_vars::{self, Env};

/// Identifies an exported key and its session: role, name and policies. It contains the id of the key,
/// so that other credentials aren't taken for ours, and no secret.
pub fn fingerprint(request: &AssumeRole, access_key_id: &str) -> String {
    let arns = request.policy_arns.join(",");
    let policy = request.policy.as_deref().unwrap_or_default();
    let parts = [access_key_id, &request.role_arn, &request.session_name, policy, &arns];
    let text = parts.map(|part| format!("{}:{part}", part.len())).concat();
    let hash = digest(&SHA256, text.as_bytes());
    hex::encode(&hash.as_ref()[..16])
}

/// When the credentials in the environment expire, if they can be reused: they are ours, complete, for
/// the same session, and valid for more than half of the requested duration.
pub fn reusable_until(request: &AssumeRole, env: &Env, now: Timestamp) -> Option<Timestamp> {
    let id = env.get(env_vars::AWS_ACCESS_KEY_ID)?;
    env.get(env_vars::AWS_SECRET_ACCESS_KEY)?;
    env.get(env_vars::AWS_SESSION_TOKEN)?;
    let ours = env.get(env_vars::CRCR_AUTH_MODE) == Some("oidc")
        && env.get(env_vars::CRCR_AUTH_FINGERPRINT) == Some(&fingerprint(request, id));
    let expiration: Timestamp = env.get(env_vars::CRCR_AUTH_EXPIRATION)?.parse().ok()?;
    let half = SignedDuration::from_secs(i64::from(request.duration_seconds) / 2);
    (ours && expiration.duration_since(now) > half).then_some(expiration)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> AssumeRole {
        AssumeRole {
            endpoint: "https://sts.us-east-1.amazonaws.com".parse().unwrap(),
            role_arn: "arn:aws:iam::123456789012:role/ci".to_owned(),
            session_name: "s".to_owned(),
            duration_seconds: 3600,
            policy: None,
            policy_arns: vec![],
        }
    }

    #[test]
    fn only_our_own_complete_and_fresh_credentials_of_the_same_session_are_reused() {
        let now: Timestamp = "2026-11-20T12:00:00Z".parse().unwrap();
        let fingerprint = fingerprint(&request(), "ASIA1");
        let good = [
            ("AWS_ACCESS_KEY_ID", "ASIA1"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("AWS_SESSION_TOKEN", "t"),
            ("CRCR_AUTH_MODE", "oidc"),
            ("CRCR_AUTH_FINGERPRINT", &fingerprint),
            ("CRCR_AUTH_EXPIRATION", "2026-11-20T12:31:00Z"),
        ];
        let env: Env = good.into_iter().collect();
        assert!(reusable_until(&request(), &env, now).is_some());
        let late = "2026-11-20T12:01:00Z".parse().unwrap();
        assert_eq!(reusable_until(&request(), &env, late), None, "half of the hour is left");
        let gone = "2026-11-20T13:00:00Z".parse().unwrap();
        assert_eq!(reusable_until(&request(), &env, gone), None, "expired");
        for (name, _) in good {
            for value in ["", "another"] {
                if value == "another"
                    && ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"].contains(&name)
                {
                    continue;
                }
                let env: Env =
                    good.into_iter().map(|(n, v)| (n, if n == name { value } else { v })).collect();
                assert_eq!(reusable_until(&request(), &env, now), None, "{name}={value}");
            }
        }
        let env: Env = good.into_iter().collect();
        for other in [
            AssumeRole { role_arn: "arn:aws:iam::123456789012:role/other".into(), ..request() },
            AssumeRole { policy: Some("{}".to_owned()), ..request() },
            AssumeRole { policy_arns: vec!["arn:aws:iam::aws:policy/X".into()], ..request() },
            AssumeRole { session_name: "t".to_owned(), ..request() },
        ] {
            assert_eq!(reusable_until(&other, &env, now), None);
        }
    }
}
