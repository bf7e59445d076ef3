//! A file that a setting names, on this machine or in a repository: only its new versions.

use crcr_github::GithubApp;
use crcr_github::contents::FileContents;

use crate::config::AllowlistUrl;

/// Reads the file, at most `limit` bytes; `None` when it is what `etag` names.
pub(crate) async fn fetch(
    url: &AllowlistUrl,
    app: &GithubApp,
    etag: Option<&str>,
    limit: usize,
) -> Result<Option<(Vec<u8>, Option<String>)>, String> {
    match url {
        AllowlistUrl::File(path) => {
            let size = tokio::fs::metadata(path).await.map_err(|error| error.to_string())?.len();
            if size > limit as u64 {
                return Err(format!("it has {size} bytes"));
            }
            let text = tokio::fs::read(path).await.map_err(|error| error.to_string())?;
            Ok(Some((text, None)))
        }
        AllowlistUrl::GitHub { repo, reference, path } => {
            let found = app
                .contents(repo.as_str(), path, Some(reference), etag, limit)
                .await
                .map_err(|error| error.to_string())?;
            Ok(match found {
                FileContents::NotModified => None,
                FileContents::File { bytes, etag } => Some((bytes.to_vec(), etag)),
            })
        }
    }
}
