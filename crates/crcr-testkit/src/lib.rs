//! Servers that only tests need: STS, S3, ClickHouse, Redis, a fault proxy.

pub mod clickhouse;
pub mod fault;
pub mod iam;
pub mod policed_s3;
pub mod redis;
pub mod s3;
pub mod sts;
