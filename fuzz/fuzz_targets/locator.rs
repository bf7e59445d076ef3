//! Any bytes as a locator: what is read is written and read back equal.
#![no_main]

use crcr_artifacts::locator::{Locator, MAX_BYTES};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(locator) = Locator::parse(bytes) else { return };
    let json = locator.to_json(MAX_BYTES);
    let again = Locator::parse(json.as_bytes()).expect("it was written just now");
    assert_eq!(again.to_json(MAX_BYTES), json);
});
