//! Any bytes as a callback's body: reading doesn't panic, and what is taken is within its limits.
#![no_main]

use crcr_domain::protocol::callback;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    match callback::read(body) {
        Ok(report) => {
            assert!(!report.delivery.is_empty() && !report.job.workflow.is_empty());
            assert!(report.delivery.chars().count() <= callback::NAME_CHARS);
            assert!(report.claimed_commit.as_deref().is_none_or(crcr_domain::protocol::event::is_sha));
        }
        // Goes into a response.
        Err(error) => assert!(error.to_string().len() < 2000),
    }
});
