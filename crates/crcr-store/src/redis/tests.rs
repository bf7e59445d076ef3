use std::sync::atomic::{AtomicU32, Ordering};

use crcr_testkit::redis::{RedisServer, RedisSettings};

use super::*;
use crate::conformance;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs redis-server"]
async fn redis_store_conforms() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let count = AtomicU32::new(0);
    conformance::check_all(async || {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let url = RedisUrl::parse(&format!("{}?prefix=n{number}", server.url())).unwrap();
        RedisStore::open(&url).await.unwrap()
    })
    .await;
}
