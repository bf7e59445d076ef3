//! `crcr relay serve` on AWS Lambda.

use crate::relay_process::Place;

#[test]
fn sqlite_is_refused_on_lambda() {
    let place = Place::new(&["acme/one"], "L1: [acme/one]\n");
    let place = place.set("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9");
    let (code, _, stderr) = place.run(&["relay", "serve"]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("SQLite can't be the relay's store on AWS Lambda"), "{stderr}");
    assert!(!place.database().exists());
}
