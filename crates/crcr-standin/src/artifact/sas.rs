//! Signed URLs, which allow anybody to write or read one blob until they expire.
//!
//! The parameters are those of Azure's shared access signatures (SAS,
//! <https://learn.microsoft.com/rest/api/storageservices/create-service-sas>). The signature covers
//! other text than Azure's, because only the stand-in checks it.

use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use url::Url;
use url::form_urlencoded::{Serializer, parse};

const UPLOAD_URL_LIFE: Duration = Duration::from_secs(3600);
const DOWNLOAD_URL_LIFE: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SasPermission {
    Write,
    Read,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SasError {
    /// No signature, a wrong one, or an expired one.
    Signature,
    Permission,
}

/// Headers of the answer to a read, from the signed URL.
#[derive(Debug, Default)]
pub(crate) struct ResponseOverrides {
    pub(crate) disposition: Option<String>,
    pub(crate) content_type: Option<String>,
}

#[derive(Debug)]
pub(crate) struct SasSigner(hmac::Key);

impl SasSigner {
    pub(crate) fn new() -> Self {
        let mut secret = [0; 32];
        aws_lc_rs::rand::fill(&mut secret).expect("the system gives random bytes");
        Self(hmac::Key::new(hmac::HMAC_SHA256, &secret))
    }

    /// A URL to write the blob at `url`, for about an hour.
    pub(crate) fn upload(&self, url: Url, now: Timestamp) -> Url {
        self.sign(url, "cw", now + UPLOAD_URL_LIFE, &[])
    }

    /// A URL to read the blob at `url`, for about ten minutes, as a file of this name and type.
    pub(crate) fn download(&self, url: Url, file: &str, mime: &str, now: Timestamp) -> Url {
        let quoted = file.replace(|c: char| !c.is_ascii() || c == '"' || c.is_control(), "_");
        let encoded: String = url::form_urlencoded::byte_serialize(file.as_bytes()).collect();
        let encoded = encoded.replace('+', "%20");
        let disposition = format!("attachment; filename=\"{quoted}\"; filename*=UTF-8''{encoded}");
        self.sign(url, "r", now + DOWNLOAD_URL_LIFE, &[("rscd", &disposition), ("rsct", mime)])
    }

    fn sign(&self, mut url: Url, allowed: &str, until: Timestamp, more: &[(&str, &str)]) -> Url {
        let until = until.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut query = Serializer::new(String::new());
        query.append_pair("se", &until).append_pair("sp", allowed);
        query.append_pair("sr", "b").append_pair("sv", "2025-11-05");
        query.extend_pairs(more);
        let signature = self.signature(url.path(), &query.finish());
        query = Serializer::new(String::new());
        query.append_pair("se", &until).append_pair("sig", &signature);
        query.append_pair("sp", allowed).append_pair("sr", "b").append_pair("sv", "2025-11-05");
        query.extend_pairs(more);
        url.set_query(Some(&query.finish()));
        url
    }

    fn signature(&self, path: &str, query: &str) -> String {
        STANDARD.encode(hmac::sign(&self.0, format!("{path}\n{query}").as_bytes()))
    }

    /// Checks the query of a request for `path`. Parameters such as `comp` and `blockid` aren't
    /// signed.
    pub(crate) fn check(
        &self,
        path: &str,
        query: &str,
        wanted: SasPermission,
        now: Timestamp,
    ) -> Result<ResponseOverrides, SasError> {
        let mut signed = Serializer::new(String::new());
        let (mut signature, mut until, mut allowed) = (None, None, None);
        let mut answer = ResponseOverrides::default();
        for (name, value) in parse(query.as_bytes()) {
            match name.as_ref() {
                "sig" => {
                    signature = Some(value.into_owned());
                    continue;
                }
                "se" => until = value.parse::<Timestamp>().ok(),
                "sp" => allowed = Some(value.clone().into_owned()),
                "rscd" => answer.disposition = Some(value.clone().into_owned()),
                "rsct" => answer.content_type = Some(value.clone().into_owned()),
                "sr" | "sv" => {}
                _ => continue,
            }
            signed.append_pair(&name, &value);
        }
        let expected = self.signature(path, &signed.finish());
        if signature != Some(expected) || until.is_none_or(|until| until <= now) {
            return Err(SasError::Signature);
        }
        let wanted = match wanted {
            SasPermission::Write => 'w',
            SasPermission::Read => 'r',
        };
        if allowed.is_some_and(|allowed| allowed.contains(wanted)) {
            Ok(answer)
        } else {
            Err(SasError::Permission)
        }
    }
}
