//! A digest, written as its algorithm, a colon and 64 hexadecimal digits.
//!
//! What a service wants to know is digested by SHA-256: GitHub's blobs, archives and lists of files.
//! The single files are digested by BLAKE3, which takes a fifth of the time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DigestAlgorithm {
    Sha256,
    Blake3,
}

impl DigestAlgorithm {
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Blake3 => "blake3",
        }
    }
}

/// The digest of a stored blob, of a file, or of the list of files of an artifact without an archive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest {
    algorithm: DigestAlgorithm,
    bytes: [u8; 32],
}

#[derive(Debug, thiserror::Error)]
#[error("a digest is `sha256:` or `blake3:` and 64 hexadecimal digits")]
pub struct DigestParseError;

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        DigestHasher::digest(DigestAlgorithm::Sha256, bytes)
    }

    /// The digest of a file's content: its BLAKE3.
    pub fn of_file(content: &[u8]) -> Self {
        DigestHasher::digest(DigestAlgorithm::Blake3, content)
    }

    pub fn algorithm(&self) -> DigestAlgorithm {
        self.algorithm
    }

    /// The 64 hexadecimal digits without the algorithm.
    pub fn hex(&self) -> String {
        hex::encode(self.bytes)
    }
}

/// Computes a [`Digest`] piece by piece.
pub struct DigestHasher(HasherState);

enum HasherState {
    Sha256(aws_lc_rs::digest::Context),
    Blake3(Box<blake3::Hasher>),
}

impl DigestHasher {
    pub fn new(algorithm: DigestAlgorithm) -> Self {
        Self(match algorithm {
            DigestAlgorithm::Sha256 => {
                HasherState::Sha256(aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256))
            }
            DigestAlgorithm::Blake3 => HasherState::Blake3(Box::default()),
        })
    }

    fn digest(algorithm: DigestAlgorithm, bytes: &[u8]) -> Digest {
        let mut hasher = Self::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            HasherState::Sha256(context) => context.update(bytes),
            HasherState::Blake3(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    pub fn finish(self) -> Digest {
        let mut bytes = [0; 32];
        let algorithm = match self.0 {
            HasherState::Sha256(context) => {
                bytes.copy_from_slice(context.finish().as_ref());
                DigestAlgorithm::Sha256
            }
            HasherState::Blake3(hasher) => {
                bytes = *hasher.finalize().as_bytes();
                DigestAlgorithm::Blake3
            }
        };
        Digest { algorithm, bytes }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestParseError;

    /// Without an algorithm the digits are a SHA-256, as in the metadata of S3 objects.
    fn from_str(text: &str) -> Result<Self, DigestParseError> {
        let (algorithm, digits) = match text.split_once(':') {
            Some((name, digits)) if name.eq_ignore_ascii_case("sha256") => {
                (DigestAlgorithm::Sha256, digits)
            }
            Some((name, digits)) if name.eq_ignore_ascii_case("blake3") => {
                (DigestAlgorithm::Blake3, digits)
            }
            Some(_) => return Err(DigestParseError),
            None => (DigestAlgorithm::Sha256, text),
        };
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| DigestParseError)?;
        Ok(Self { algorithm, bytes })
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
        let text = "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        let file = Digest::of_file(b"");
        assert_eq!((file.to_string(), text.parse::<Digest>().unwrap()), (text.to_owned(), file));
        assert_ne!(file.hex().parse::<Digest>().unwrap(), file, "other algorithm, same digits");
        for bad in ["", "sha256:", "sha1:e3b0", &text[..70], "sha512:e3b0c442"] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
