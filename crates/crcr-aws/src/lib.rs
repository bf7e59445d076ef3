//! AWS: the names that it accepts, credentials from STS, and objects in a bucket or a folder.

pub mod names;
pub mod object_store;
pub mod sts;
