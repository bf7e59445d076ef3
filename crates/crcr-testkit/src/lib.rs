//! Servers that only tests need: STS, S3, ClickHouse, a fault proxy.

pub mod clickhouse;
pub mod fault;
pub mod s3;
pub mod sts;
