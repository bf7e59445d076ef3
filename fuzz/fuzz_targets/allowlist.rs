//! Any bytes: the reader of the allowlist neither panics nor hangs, its places lie in the text, and
//! a policy without errors is printed and read back equal.
#![no_main]

use crcr_domain::{Allowlist, RepoName};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let upstream = RepoName::new("pytorch/pytorch").expect("a name");
    let outcome = Allowlist::parse(bytes, &upstream);
    let text = outcome.source.text();
    for found in outcome.findings.kept() {
        assert!(text.get(found.span.bytes.clone()).is_some());
        assert!(found.span.start <= found.span.end);
        for edit in found.fix.iter().flat_map(|fix| &fix.edits) {
            assert!(text.get(edit.span.bytes.clone()).is_some());
        }
    }
    assert_eq!(outcome.places.len(), outcome.policy.len());
    if let Ok(policy) = outcome.accepted() {
        let again = Allowlist::parse(policy.to_string().as_bytes(), &upstream);
        // A printed policy may be longer than its file, and so than the cap.
        if again.source.text().len() == policy.to_string().len() {
            assert_eq!(again.accepted().expect("no error"), policy);
        }
    }
});
