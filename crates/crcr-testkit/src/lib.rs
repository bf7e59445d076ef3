//! Servers and keys that only tests need: STS, S3, a fault proxy, an environment scrubber.

pub mod fault;
pub mod s3;
pub mod sts;
