//! A SHA-256 as artifacts write it: `sha256:` and 64 hexadecimal digits.

#[cfg(target_arch = "x86_64")]
mod lanes;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The SHA-256 of a stored blob, or of the list of files of an artifact without an archive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest([u8; 32]);

/// A text that isn't `sha256:` and 64 hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("a digest is `sha256:` and 64 hexadecimal digits")]
pub struct NotADigest;

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The 64 hexadecimal digits alone.
    #[must_use]
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

/// Computes a [`Digest`] piece by piece.
pub struct Hasher(aws_lc_rs::digest::Context);

impl Default for Hasher {
    fn default() -> Self {
        Self(aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256))
    }
}

impl Hasher {
    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all pieces.
    #[must_use]
    pub fn finish(self) -> Digest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.finish().as_ref());
        Digest(bytes)
    }
}

/// Two digests that are made on one thread: that of all bytes, and one after the other those of
/// parts of them.
pub(crate) struct Nested(Kind);

enum Kind {
    /// Where one instruction helps both.
    #[cfg(target_arch = "x86_64")]
    Lanes(lanes::Lane, lanes::Lane),
    Plain(Hasher, Hasher),
}

impl Default for Nested {
    fn default() -> Self {
        // Without the optimizer the library's own assembly is faster.
        #[cfg(target_arch = "x86_64")]
        if !cfg!(debug_assertions) && lanes::is_there() {
            return Self(Kind::Lanes(lanes::Lane::new(), lanes::Lane::new()));
        }
        Self(Kind::Plain(Hasher::default(), Hasher::default()))
    }
}

impl Nested {
    /// Adds bytes of no part.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Lanes(all, _) => all.update(bytes),
            Kind::Plain(all, _) => all.update(bytes),
        }
    }

    /// Adds bytes of the part.
    pub(crate) fn update_part(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Lanes(all, part) => lanes::Lane::update_both(all, part, bytes),
            Kind::Plain(all, part) => {
                all.update(bytes);
                part.update(bytes);
            }
        }
    }

    /// The digest of the part, which ends here; the next one begins.
    pub(crate) fn end_part(&mut self) -> Digest {
        match &mut self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Lanes(_, part) => Digest(std::mem::replace(part, lanes::Lane::new()).finish()),
            Kind::Plain(_, part) => std::mem::take(part).finish(),
        }
    }

    /// The digest of all bytes.
    pub(crate) fn finish(self) -> Digest {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Lanes(all, _) => Digest(all.finish()),
            Kind::Plain(all, _) => all.finish(),
        }
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
    type Err = NotADigest;

    /// Takes `sha256:` in any case and the digits with or without it (S3 metadata hold the digits).
    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let digits = match text.split_once(':') {
            Some((kind, digits)) if kind.eq_ignore_ascii_case("sha256") => digits,
            Some(_) => return Err(NotADigest),
            None => text,
        };
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| NotADigest)?;
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = NotADigest;

    fn try_from(text: String) -> Result<Self, NotADigest> {
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

    /// Against the other implementation, with parts that begin and end anywhere in a block.
    #[test]
    fn nested_digests_are_those_of_the_bytes() {
        let mut bytes = vec![0; 5000];
        aws_lc_rs::rand::fill(&mut bytes).unwrap();
        let plain = || Nested(Kind::Plain(Hasher::default(), Hasher::default()));
        let mut kinds: Vec<fn() -> Nested> = vec![plain];
        #[cfg(target_arch = "x86_64")]
        if lanes::is_there() {
            kinds.push(|| Nested(Kind::Lanes(lanes::Lane::new(), lanes::Lane::new())));
        }
        for make in kinds {
            for before in [0, 1, 30, 63, 64, 65, 100] {
                for len in [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 1000, 4096] {
                    let mut nested = make();
                    nested.update(&bytes[..before]);
                    let part = &bytes[before..before + len];
                    for piece in part.chunks(777) {
                        nested.update_part(piece);
                    }
                    assert_eq!(nested.end_part(), Digest::of(part), "{before} {len}");
                    nested.update_part(&bytes[before + len..]);
                    assert_eq!(nested.end_part(), Digest::of(&bytes[before + len..]));
                    assert_eq!(nested.finish(), Digest::of(&bytes), "{before} {len}");
                }
            }
        }
    }

    #[test]
    fn a_digest_reads_what_it_writes_and_nothing_shorter() {
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
