//! A file that a setting names: on this machine, or in a repository on GitHub.

use std::path::PathBuf;

use crcr_domain::RepoName;
use crcr_github::GithubApp;
use crcr_github::contents::FileContents;
use percent_encoding::percent_decode_str;

use super::settings::secure_url;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileUrl {
    /// `file:PATH`.
    File(PathBuf),
    /// `https://github.com/OWNER/REPO/blob/REF/PATH`.
    GitHub { repo: RepoName, reference: String, path: String },
}

impl std::fmt::Display for FileUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::GitHub { repo, reference, path } => {
                write!(f, "https://github.com/{repo}/blob/{reference}/{path}")
            }
        }
    }
}

impl FileUrl {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("file:") {
            return Ok(Self::File(path.trim_start_matches("//").into()));
        }
        Self::parse_github(text).ok_or_else(|| {
            format!("`{text}` is neither https://github.com/OWNER/REPO/blob/REF/PATH nor file:PATH")
        })
    }

    fn parse_github(text: &str) -> Option<Self> {
        let url = secure_url(text).ok()?;
        let segments: Vec<&str> = url.path_segments()?.collect();
        let [owner, repo, "blob", reference, path @ ..] = &segments[..] else { return None };
        if path.is_empty() {
            return None;
        }
        let decode = |text: &str| Some(percent_decode_str(text).decode_utf8().ok()?.into_owned());
        Some(Self::GitHub {
            repo: RepoName::new(&format!("{owner}/{repo}")).ok()?,
            reference: decode(reference)?,
            path: decode(&path.join("/"))?,
        })
    }
}

/// The content of a file, with its ETag.
pub(crate) type FileVersion = (Vec<u8>, Option<String>);

/// Reads the file, at most `limit` bytes, with its ETag. `None` when `etag` is still that of the file.
pub(crate) async fn fetch(
    url: &FileUrl,
    app: &GithubApp,
    etag: Option<&str>,
    limit: usize,
) -> Result<Option<FileVersion>, String> {
    match url {
        FileUrl::File(path) => {
            let unreadable = |error: std::io::Error| format!("`{}`: {error}", path.display());
            let metadata = tokio::fs::metadata(path).await.map_err(unreadable)?;
            if !metadata.is_file() {
                // It would be waited for without end.
                return Err(format!(
                    "`{}` isn't a file, and is read every few seconds",
                    path.display()
                ));
            }
            let size = metadata.len();
            if size > limit as u64 {
                return Err(format!("`{}` has {size} bytes, and {limit} are read", path.display()));
            }
            let text = tokio::fs::read(path).await.map_err(unreadable)?;
            Ok(Some((text, None)))
        }
        FileUrl::GitHub { repo, reference, path } => {
            let found = app
                .contents(repo.as_str(), path, Some(reference), etag, limit)
                .await
                .map_err(|error| error.with_cause())?;
            Ok(match found {
                FileContents::NotModified => None,
                FileContents::File { bytes, etag } => Some((bytes.to_vec(), etag)),
            })
        }
    }
}
