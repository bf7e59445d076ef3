//! A SHA-256 digest, written as `sha256:` and 64 hexadecimal digits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The SHA-256 of a stored blob, or of the list of files of an artifact without an archive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest([u8; 32]);

#[derive(Debug, thiserror::Error)]
#[error("a digest is `sha256:` and 64 hexadecimal digits")]
pub struct DigestParseError;

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = DigestHasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The 64 hexadecimal digits without `sha256:`.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

/// Computes a [`Digest`] piece by piece.
pub struct DigestHasher(aws_lc_rs::digest::Context);

impl Default for DigestHasher {
    fn default() -> Self {
        Self(aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256))
    }
}

impl DigestHasher {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn finish(self) -> Digest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.finish().as_ref());
        Digest(bytes)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestParseError;

    /// Accepts the digits with or without `sha256:`, because S3 metadata hold the digits alone.
    fn from_str(text: &str) -> Result<Self, DigestParseError> {
        let digits = match text.split_once(':') {
            Some((kind, digits)) if kind.eq_ignore_ascii_case("sha256") => digits,
            Some(_) => return Err(DigestParseError),
            None => text,
        };
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| DigestParseError)?;
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestParseError;

    fn try_from(text: String) -> Result<Self, DigestParseError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_round_trips_and_other_texts_are_refused() {
        let digest = Digest::of(b"");
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse::<Digest>().unwrap(), digest);
        assert_eq!(digest.hex().parse::<Digest>().unwrap(), digest);
        for bad in ["", "sha256:", "sha1:e3b0", &text[..70], "sha512:e3b0c442"] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
