//! How fast the archive of 64 MiB of three kinds of text is made at each level, and how large it is.
//!
//! `taskset --cpu-list 0` gives the figures of one core.

use std::path::Path;

use crcr_artifacts::blocks::BlobBlocks;
use crcr_artifacts::blocks::GrownFiles;
use crcr_artifacts::collect::FileEntry;
use crcr_artifacts::digest::DigestAlgorithm;
use crcr_artifacts::zip::write::{DeflateLevel, FileSet, write};
use divan::Bencher;
use divan::counter::BytesCount;

const LEN: usize = 64 << 20;
const LEVELS: [DeflateLevel; 5] = [
    DeflateLevel::Auto,
    DeflateLevel::Fixed(1),
    DeflateLevel::Fixed(2),
    DeflateLevel::Fixed(5),
    DeflateLevel::Fixed(6),
];
const CORPORA: [&str; 3] = ["log", "build", "code"];
const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");

#[expect(clippy::print_stdout, reason = "divan shows times, not sizes")]
fn main() {
    let appenders: [fn(&mut Vec<u8>, u64); 3] = [log_line, build_line, sources];
    for (name, append) in CORPORA.iter().zip(appenders) {
        let (mut bytes, mut n) = (Vec::new(), 0);
        while bytes.len() < LEN {
            append(&mut bytes, n);
            n += 1;
        }
        bytes.truncate(LEN);
        std::fs::write(Path::new(FOLDER).join(name), bytes).expect("the file can be written");
        let sizes = LEVELS.map(|level| archive(name, level) as f64);
        println!("{name}: {LEVELS:?} {:.3?} times level 6", sizes.map(|size| size / sizes[4]));
    }
    divan::main();
}

/// A log line with a time and eight random words.
fn log_line(bytes: &mut Vec<u8>, n: u64) {
    bytes.extend(format!("2026-11-22T23:{:02}:{:02}Z", n / 600 % 60, n / 10 % 60).bytes());
    for _ in 0..8 {
        bytes.extend(format!(" {:010x}", rand::random::<u64>() >> 24).bytes());
    }
    bytes.push(b'\n');
}

/// A line of a build, with the only words that differ in it.
fn build_line(bytes: &mut Vec<u8>, n: u64) {
    let (part, unit, hash) = (n % 97, n % 8191, n * 2_654_435_761 % (1 << 32));
    let line = format!(
        "[{n}/1024] Building CXX object src/part{part}/CMakeFiles/unit{unit}.o ({hash:x})\n"
    );
    bytes.extend(line.bytes());
}

/// The sources of this workspace.
fn sources(bytes: &mut Vec<u8>, _: u64) {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the folder can be read") {
            let path = entry.expect("the folder can be read").path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                bytes.extend(std::fs::read(path).expect("the file can be read"));
            } else if path.is_dir() {
                folders.push(path);
            }
        }
    }
}

/// The size of the archive.
fn archive(name: &str, level: DeflateLevel) -> u64 {
    let entry = FileEntry { path: name.to_owned(), size: LEN as u64, mode: None, link: None };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let make = move |sink: &mut _| {
        let (root, entries, grown) = (Path::new(FOLDER), [entry], GrownFiles::default());
        write(sink, FileSet { root, entries: &entries, grown: &grown }, level, true, &|_| ())
    };
    runtime
        .block_on(BlobBlocks::start(4 << 20, DigestAlgorithm::Sha256, make).digest())
        .expect("the file can be read")
        .size
}

#[divan::bench(args = LEVELS, consts = [0, 1, 2], sample_count = 5, sample_size = 1)]
fn level<const N: usize>(bencher: Bencher<'_, '_>, level: DeflateLevel) {
    bencher.counter(BytesCount::new(LEN)).bench_local(|| archive(CORPORA[N], level));
}
