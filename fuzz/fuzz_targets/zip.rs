//! Any bytes as a zip archive: an entry gives exactly the bytes that it announces, or an error.
#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crcr_artifacts::zip::read::{ReadBuffers, ZipReadError, ZipReader};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static FILE: File = tempfile::tempfile().expect("a temporary file");
}

fuzz_target!(|bytes: &[u8]| {
    let file = FILE.with(|file| file.try_clone().expect("another handle"));
    file.set_len(0).and_then(|()| file.write_all_at(bytes, 0)).expect("the file is written");
    let Ok(archive) = ZipReader::open(file) else { return };
    let mut buffers = ReadBuffers::default();
    let mut entries = 0;
    let _ = archive.entries(|entry| {
        entries += 1;
        if entries > 100 {
            return Err(ZipReadError::Mismatch(entry.path));
        }
        let mut got = 0;
        let outcome = archive.read_content(&entry, &mut buffers, |piece| {
            got += piece.len() as u64;
            assert!(got <= entry.size);
            // A megabyte is enough to look at.
            if got > 1 << 20 { Err(std::io::ErrorKind::FileTooLarge.into()) } else { Ok(()) }
        });
        assert!(outcome.is_err() || got == entry.size);
        Ok::<_, ZipReadError>(())
    });
});
