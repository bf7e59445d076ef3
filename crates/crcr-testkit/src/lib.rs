//! Servers that only tests need: STS, S3, ClickHouse, Redis, a fault proxy.

pub mod clickhouse;
pub mod fault;
pub mod iam;
pub mod policed_s3;
pub mod redis;
pub mod s3;
pub mod sts;

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

/// A port for a server that starts soon. Nobody else gets it meanwhile: the ports that the system chooses by itself
/// begin at 32,768.
pub fn unused_port() -> u16 {
    static ASKED: AtomicU16 = AtomicU16::new(0);
    // Tests of another process begin elsewhere.
    let first = process::id().wrapping_mul(101);
    loop {
        let offset = first.wrapping_add(ASKED.fetch_add(1, Ordering::Relaxed).into()) % 12_000;
        let port = 20_000 + u16::try_from(offset).expect("it is less than 12,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
