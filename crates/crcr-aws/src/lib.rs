//! AWS: the names that it accepts, credentials from STS, roles of IAM, and objects in a bucket or a folder.

pub mod credentials;
pub mod iam;
pub mod names;
pub mod object_store;
pub mod sdk_error;
pub mod sts;
