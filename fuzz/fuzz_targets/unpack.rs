//! Any bytes as an artifact: unpacking never writes outside of its folder nor more than its limits, and
//! no link in the folder points out of it.
#![no_main]

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use crcr_artifacts::unpack::{OnCollision, StagedFiles, UnpackLimits, UnpackPolicy};
use libfuzzer_sys::fuzz_target;

const LIMITS: UnpackLimits = UnpackLimits { entries: 20, total: 1 << 16, ratio: 50, small: 1 << 12 };

fuzz_target!(|input: (bool, bool, &[u8])| {
    let (privileged, folds_case, bytes) = input;
    let world = tempfile::tempdir().expect("a temporary folder");
    let world = world.path();
    let inside = world.join("a/inside");
    fs::create_dir_all(&inside).expect("the folder is made");
    fs::write(world.join("blob"), bytes).expect("the archive is written");
    let archive = fs::File::open(world.join("blob")).expect("the archive is there");
    let policy =
        UnpackPolicy { privileged, limits: LIMITS, on_collision: OnCollision::Error, folds_case };
    let mut staged = StagedFiles::new(inside.clone(), policy);
    let counts = staged.unpack(archive, "", &AtomicBool::new(false));
    if let Ok(counts) = counts
        && staged.finish().is_ok()
    {
        assert!(counts.files <= LIMITS.entries && counts.bytes <= LIMITS.total);
        check(&inside, &inside.canonicalize().expect("it is there"));
    }
    let names = |folder: &Path| -> Vec<_> {
        let mut names: Vec<_> =
            fs::read_dir(folder).expect("it is there").map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(world), ["a", "blob"]);
    assert_eq!(names(&world.join("a")), ["inside"]);
});

/// No link leads out of `root`.
fn check(folder: &Path, root: &Path) {
    for entry in fs::read_dir(folder).expect("it is a folder") {
        let path = entry.expect("it is there").path();
        let kind = path.symlink_metadata().expect("it is there").file_type();
        if kind.is_symlink() {
            if let Ok(target) = path.canonicalize() {
                assert!(target.starts_with(root), "{} leads to {}", path.display(), target.display());
            }
        } else if kind.is_dir() {
            check(&path, root);
        }
    }
}
