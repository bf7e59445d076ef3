//! Artifacts in GitHub's own store: the artifact service and the blob storage behind it.

pub mod download;
pub(crate) mod upload;

use std::fmt;
use std::sync::Arc;

use crcr_github::artifact::{self, ArtifactService, ArtifactServiceError as ServiceError};
use crcr_github::http::UploadClient;
use secrecy::{ExposeSecret as _, SecretString};

use crate::store::ArtifactStoreError;

pub const STORE: &str = "GitHub";

/// Tells the runner to hide a secret in the log.
pub type SecretMask = Arc<dyn Fn(&str) + Send + Sync>;

/// The artifacts of the run that the runtime token belongs to.
#[derive(Clone)]
pub struct GitHubStore {
    service: ArtifactService,
    uploads: UploadClient,
    mask: SecretMask,
}

impl GitHubStore {
    /// `mask` gets the signature of every signed URL before the URL is used.
    pub fn new(service: ArtifactService, uploads: UploadClient, mask: SecretMask) -> Self {
        Self { service, uploads, mask }
    }

    pub fn service(&self) -> &ArtifactService {
        &self.service
    }

    /// Masks the signature of a URL, both raw and percent-encoded.
    pub(crate) fn mask_signature(&self, signed_url: &SecretString) {
        for signature in artifact::signatures(signed_url) {
            (self.mask)(signature.expose_secret());
        }
    }

    /// Converts an error of the service; `what` is what the call was about.
    pub fn error(&self, error: ServiceError, what: &str) -> ArtifactStoreError {
        let message = error.with_cause();
        match error {
            ServiceError::NotFound => {
                ArtifactStoreError::NotFound { store: STORE, what: format!("`{what}`") }
            }
            ServiceError::NameTaken { .. } => {
                ArtifactStoreError::Conflict { store: STORE, message }
            }
            ServiceError::Quota(message) => ArtifactStoreError::Quota { store: STORE, message },
            ServiceError::Token(_) | ServiceError::Denied { .. } => {
                ArtifactStoreError::Denied { store: STORE, message }
            }
            ServiceError::Http { ref source, .. } => match source.status() {
                Some(status) if matches!(status.as_u16(), 401 | 403) => {
                    ArtifactStoreError::Denied { store: STORE, message }
                }
                _ if source.is_transient() => {
                    ArtifactStoreError::Unreachable { store: STORE, message }
                }
                _ => ArtifactStoreError::Refused { store: STORE, message },
            },
            ServiceError::Refused { .. } | ServiceError::Address(_) => {
                ArtifactStoreError::Refused { store: STORE, message }
            }
        }
    }
}

impl fmt::Debug for GitHubStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GitHubStore").field("service", &self.service).finish_non_exhaustive()
    }
}
