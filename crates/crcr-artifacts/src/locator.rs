//! The locator: a small JSON document that says where an artifact is and what it holds.
//!
//! The uploader writes it, so it is untrusted: a reader checks the place against its own
//! configuration and only displays `trust`. The digest proves that the bytes are complete, not who
//! made them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::digest::{Digest, DigestAlgorithm, DigestHasher};

/// The version that this program writes, and the only one it reads.
pub const VERSION: u32 = 1;
pub const MAX_BYTES: usize = 1024 * 1024;
/// The limit for a step output: the next step gets it as one environment variable, and Linux allows
/// 128 KiB for that.
pub const MAX_OUTPUT_BYTES: usize = 64 * 1024;
/// Names of GitHub artifacts that hold a locator start with this. Lists and patterns hide them.
pub(crate) const ARTIFACT_PREFIX: &str = "crcr-locator-";
/// Keys of locators in a bucket end with this.
pub(crate) const KEY_SUFFIX: &str = ".crcr.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locator {
    pub version: u32,
    pub name: String,
    /// `owner/repo` of the run.
    pub repository: String,
    pub run_id: u64,
    /// The attempt of the run, from 1.
    pub run_attempt: u64,
    /// The key of the job in the workflow file.
    pub job: String,
    /// The leg of the job's matrix; absent without a matrix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leg: Option<String>,
    /// The job's own check run, if the runner provides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check_run_id: Option<u64>,
    #[serde(flatten)]
    pub place: StoredPlace,
    pub archive: ArchiveFormat,
    /// SHA-256 of the stored blob, or of the list of files ([`files_digest`]) when each file is an object.
    pub digest: Digest,
    /// Bytes as they are stored, which may be compressed.
    pub size: u64,
    pub file_count: u64,
    /// Left out when the document would become too large.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<LocatedFile>,
    pub created: Timestamp,
    /// What the uploader claims: for display only.
    pub trust: ArtifactTrust,
}

/// The store and the place in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "store", rename_all = "lowercase")]
pub enum StoredPlace {
    S3 {
        bucket: String,
        /// The key of the archive, or the common prefix of the files' keys with its final slash.
        key: String,
        /// Set when the server isn't Amazon's.
        #[serde(skip_serializing_if = "Option::is_none")]
        endpoint: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        region: Option<String>,
    },
    GitHub {
        artifact_id: u64,
    },
}

impl StoredPlace {
    pub fn store(&self) -> &'static str {
        match self {
            Self::S3 { .. } => "s3",
            Self::GitHub { .. } => "github",
        }
    }
}

/// How the files of an artifact are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArchiveFormat {
    Zip,
    /// On S3 an object for each file, on GitHub the one file as it is.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocatedFile {
    /// Relative to the artifact's root, with `/` between its parts.
    pub path: String,
    pub size: u64,
    /// BLAKE3 of its content; for a symbolic link, of its target.
    pub digest: Digest,
    /// The Unix permission bits as a number; absent on Windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// The target, if it is a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

/// Whose code made the artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArtifactTrust {
    /// A pull request from another repository.
    Fork,
    SameRepo,
}

#[derive(Debug, thiserror::Error)]
pub enum LocatorError {
    #[error("a locator has at most {MAX_BYTES} bytes, this one {0}")]
    TooLarge(usize),
    #[error("it isn't the JSON of a locator: {0}")]
    Malformed(String),
    #[error("it has version {0}, and this `crcr` reads version {VERSION}")]
    Version(u64),
}

impl Locator {
    /// Refuses more than [`MAX_BYTES`] and other versions; ignores unknown fields.
    pub fn parse(json: &[u8]) -> Result<Self, LocatorError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u64,
        }
        if json.len() > MAX_BYTES {
            return Err(LocatorError::TooLarge(json.len()));
        }
        let malformed = |e: serde_json::Error| LocatorError::Malformed(e.to_string());
        let Versioned { version } = serde_json::from_slice(json).map_err(malformed)?;
        if version != u64::from(VERSION) {
            return Err(LocatorError::Version(version));
        }
        serde_json::from_slice(json).map_err(malformed)
    }

    /// The JSON on one line. If it has more than `limit` bytes, the list of files is left out.
    pub fn to_json(&self, limit: usize) -> String {
        let json = |locator: &Self| serde_json::json!(locator).to_string();
        let whole = json(self);
        if whole.len() <= limit {
            return whole;
        }
        json(&Self { files: vec![], ..self.clone() })
    }
}

pub(crate) fn is_locator_artifact(name: &str) -> bool {
    name.starts_with(ARTIFACT_PREFIX)
}

pub(crate) fn is_locator_key(key: &str) -> bool {
    key.ends_with(KEY_SUFFIX)
}

/// The digest of an artifact that has an object for each file. It is computed over the lines
/// `<64 digits> <mode in octal, or -> <path>`, sorted by path, each ended by a NUL.
pub fn files_digest(files: &[LocatedFile]) -> Digest {
    let mut sorted: Vec<_> = files.iter().collect();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    let mut hasher = DigestHasher::new(DigestAlgorithm::Sha256);
    for file in sorted {
        let mode = file.mode.map_or_else(|| "-".to_owned(), |mode| format!("{mode:o}"));
        hasher.update(format!("{} {mode} {}\0", file.digest.hex(), file.path).as_bytes());
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locator() -> Locator {
        Locator {
            version: VERSION,
            name: "linux-build".to_owned(),
            repository: "acme/upstream".to_owned(),
            run_id: 4242,
            run_attempt: 2,
            job: "build".to_owned(),
            leg: None,
            check_run_id: None,
            place: StoredPlace::S3 {
                bucket: "artifacts".to_owned(),
                key: "acme/upstream/4242/linux-build/artifacts.zip".to_owned(),
                endpoint: None,
                region: Some("us-east-1".to_owned()),
            },
            archive: ArchiveFormat::Zip,
            digest: Digest::of(b"zip"),
            size: 3,
            file_count: 1,
            files: vec![LocatedFile {
                path: "bin/tool".to_owned(),
                size: 1,
                digest: Digest::of_file(b"x"),
                mode: Some(0o755),
                link: None,
            }],
            created: "2026-01-02T03:04:05Z".parse().unwrap(),
            trust: ArtifactTrust::Fork,
        }
    }

    #[test]
    fn locator_round_trips_with_its_store_as_a_top_level_field() {
        let json = locator().to_json(MAX_BYTES);
        assert_eq!(Locator::parse(json.as_bytes()).unwrap(), locator());
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["store"], "s3");
        assert_eq!(value["trust"], "fork");
        let github = Locator { place: StoredPlace::GitHub { artifact_id: 7 }, ..locator() };
        let json = github.to_json(MAX_BYTES);
        assert!(json.contains(r#""store":"github","artifact_id":7"#), "{json}");
        assert_eq!(Locator::parse(json.as_bytes()).unwrap(), github);
    }

    #[test]
    fn unknown_version_is_refused_and_unknown_field_is_ignored() {
        let mut value = serde_json::json!(locator());
        value["later"] = serde_json::json!(true);
        assert!(Locator::parse(value.to_string().as_bytes()).is_ok());
        value["version"] = serde_json::json!(2);
        let error = Locator::parse(value.to_string().as_bytes()).unwrap_err();
        assert!(matches!(error, LocatorError::Version(2)), "{error}");
    }

    #[test]
    fn too_large_or_malformed_locator_is_refused() {
        let huge = format!("{}{}", locator().to_json(MAX_BYTES), " ".repeat(MAX_BYTES));
        assert!(matches!(Locator::parse(huge.as_bytes()), Err(LocatorError::TooLarge(_))));
        for bad in ["", "[]", "{}", r#"{"version":1}"#, r#"{"version":"1"}"#] {
            assert!(
                matches!(Locator::parse(bad.as_bytes()), Err(LocatorError::Malformed(_))),
                "{bad}"
            );
        }
    }

    #[test]
    fn locator_with_too_many_files_omits_the_list() {
        let mut many = locator();
        let file = many.files[0].clone();
        many.files = vec![file; 10_000];
        let json = many.to_json(MAX_BYTES);
        assert!(json.len() < 1000);
        assert!(Locator::parse(json.as_bytes()).unwrap().files.is_empty());
    }

    #[test]
    fn files_digest_depends_on_path_content_and_mode_but_not_on_order() {
        let one = locator().files[0].clone();
        let two = LocatedFile { path: "a".to_owned(), ..one.clone() };
        let digest = files_digest(&[one.clone(), two.clone()]);
        assert_eq!(digest, files_digest(&[two.clone(), one.clone()]));
        assert_ne!(digest, files_digest(&[one.clone(), LocatedFile { mode: None, ..two.clone() }]));
        assert_ne!(digest, files_digest(&[one, LocatedFile { path: "b".to_owned(), ..two }]));
    }
}
