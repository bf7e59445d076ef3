//! The locator: a small JSON document that says where an artifact is and what it holds.
//!
//! It is written by whoever uploads, so it is a hint: a reader checks the place against its own
//! configuration, and takes `trust` for display only. The digest proves that the bytes are whole,
//! not who made them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::digest::{Digest, DigestHasher};

/// The version that this program writes, and the only one it reads.
pub const VERSION: u32 = 1;
/// The largest locator that is read, in bytes.
pub const MAX_BYTES: usize = 1024 * 1024;
/// The largest locator for a step output, in bytes: the next step gets it as one environment
/// variable, of which Linux takes 128 KiB.
pub const MAX_OUTPUT_BYTES: usize = 64 * 1024;
/// The start of the name of a GitHub artifact that holds a locator; such names are hidden from
/// lists and patterns.
pub const ARTIFACT_PREFIX: &str = "crcr-locator-";
/// The end of the key of a locator beside the objects that it describes.
pub const KEY_SUFFIX: &str = ".crcr.json";

/// Where an artifact is and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locator {
    /// Always [`VERSION`].
    pub version: u32,
    pub name: String,
    /// `owner/repo` of the run.
    pub repository: String,
    pub run_id: u64,
    /// The attempt of the run, from 1.
    pub run_attempt: u64,
    /// The key of the job in the workflow file.
    pub job: String,
    /// Which leg of the job's matrix; absent without a matrix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leg: Option<String>,
    /// The job's own check run, where the runner tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_run_id: Option<u64>,
    /// The store and the place in it; in JSON the fields of it stand among the others.
    #[serde(flatten)]
    pub place: StoredPlace,
    /// How the files are stored.
    pub archive: ArchiveFormat,
    /// Of the stored blob; of the list of files ([`files_digest`]) where each file is an object.
    pub digest: Digest,
    /// What is stored, in bytes.
    pub size: u64,
    /// How many files the artifact holds.
    pub file_count: u64,
    /// The files; left out where the document would become too large.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<LocatedFile>,
    pub created: Timestamp,
    /// Who uploaded, as the uploader says it: for display only.
    pub trust: ArtifactTrust,
}

/// The store and the place in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "store", rename_all = "lowercase")]
pub enum StoredPlace {
    /// An S3 bucket.
    S3 {
        bucket: String,
        /// The object (an archive), or the common start of the objects' keys with its final slash.
        key: String,
        /// The server, where it isn't Amazon's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        endpoint: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        region: Option<String>,
    },
    GitHub {
        artifact_id: u64,
    },
}

impl StoredPlace {
    /// `s3` or `github`.
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
    /// All files in one zip.
    Zip,
    /// An object per file on S3; the one file as it is on GitHub.
    None,
}

/// A file of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocatedFile {
    /// Path below the artifact's root, with `/` between its parts.
    pub path: String,
    /// The content's length in bytes.
    pub size: u64,
    pub digest: Digest,
    /// The permission bits, such as `0o755`, as a number; absent where the system has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
}

/// Whose code made the artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArtifactTrust {
    /// A pull request from another repository.
    Fork,
    SameRepo,
}

/// A document that is no locator this program reads.
#[derive(Debug, thiserror::Error)]
pub enum LocatorError {
    /// Over [`MAX_BYTES`].
    #[error("a locator has at most {MAX_BYTES} bytes, this one {0}")]
    TooLarge(usize),
    /// No JSON, or a field is missing or wrong.
    #[error("it isn't the JSON of a locator: {0}")]
    Malformed(String),
    /// Another version than [`VERSION`].
    #[error("it has version {0}, and this `crcr` reads version {VERSION}")]
    Version(u64),
}

impl Locator {
    /// Reads a locator of at most [`MAX_BYTES`], refusing other versions.
    ///
    /// Fields that this version doesn't know are ignored.
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

    /// The JSON on one line, of at most `limit` bytes: the list of files is left out where it
    /// doesn't fit.
    pub fn to_json(&self, limit: usize) -> String {
        let json = |locator: &Self| serde_json::json!(locator).to_string();
        let whole = json(self);
        if whole.len() <= limit {
            return whole;
        }
        json(&Self { files: vec![], ..self.clone() })
    }
}

/// Whether a GitHub artifact of this name holds a locator.
pub fn is_locator_artifact(name: &str) -> bool {
    name.starts_with(ARTIFACT_PREFIX)
}

/// Whether an object of this key is a locator.
pub fn is_locator_key(key: &str) -> bool {
    key.ends_with(KEY_SUFFIX)
}

/// The digest of an artifact whose files are objects of their own: of the lines
/// `<64 digits> <mode in octal, or -> <path>`, sorted by path, each ended by a NUL.
pub fn files_digest(files: &[LocatedFile]) -> Digest {
    let mut sorted: Vec<_> = files.iter().collect();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    let mut hasher = DigestHasher::default();
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
                digest: Digest::of(b"x"),
                mode: Some(0o755),
            }],
            created: "2026-01-02T03:04:05Z".parse().unwrap(),
            trust: ArtifactTrust::Fork,
        }
    }

    #[test]
    fn a_locator_reads_back_and_says_its_store_among_its_fields() {
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
    fn an_unknown_version_is_refused_and_an_unknown_field_is_not() {
        let mut value = serde_json::json!(locator());
        value["later"] = serde_json::json!(true);
        assert!(Locator::parse(value.to_string().as_bytes()).is_ok());
        value["version"] = serde_json::json!(2);
        let error = Locator::parse(value.to_string().as_bytes()).unwrap_err();
        assert!(matches!(error, LocatorError::Version(2)), "{error}");
    }

    #[test]
    fn a_large_or_broken_locator_is_refused() {
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
    fn a_locator_with_too_many_files_leaves_them_out() {
        let mut many = locator();
        let file = many.files[0].clone();
        many.files = vec![file; 10_000];
        let json = many.to_json(MAX_BYTES);
        assert!(json.len() < 1000);
        assert!(Locator::parse(json.as_bytes()).unwrap().files.is_empty());
    }

    #[test]
    fn the_digest_of_files_knows_path_content_and_mode_but_not_their_order() {
        let one = locator().files[0].clone();
        let two = LocatedFile { path: "a".to_owned(), ..one.clone() };
        let digest = files_digest(&[one.clone(), two.clone()]);
        assert_eq!(digest, files_digest(&[two.clone(), one.clone()]));
        assert_ne!(digest, files_digest(&[one.clone(), LocatedFile { mode: None, ..two.clone() }]));
        assert_ne!(digest, files_digest(&[one, LocatedFile { path: "b".to_owned(), ..two }]));
    }
}
