//! Any text as the map of pipelines: reading neither panics nor hangs.
#![no_main]

use crcr_relay::callback::auth::ProviderMap;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = ProviderMap::parse(text) {
        assert!(!error.to_string().is_empty());
    }
});
