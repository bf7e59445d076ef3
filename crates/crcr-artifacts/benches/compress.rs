//! How fast the archive of 64 MiB of log lines, whose words are random, is made at each level.

use std::path::Path;

use crcr_artifacts::blocks::Blocks;
use crcr_artifacts::collect::Entry;
use crcr_artifacts::zip::write::{Level, write};
use divan::Bencher;
use divan::counter::BytesCount;

const LEN: usize = 64 << 20;
const LEVELS: [Level; 5] =
    [Level::Auto, Level::Fixed(1), Level::Fixed(2), Level::Fixed(5), Level::Fixed(6)];

fn main() {
    divan::main();
}

fn log_lines() -> Vec<u8> {
    let mut lines = Vec::with_capacity(LEN + 200);
    for n in 0_u64.. {
        if lines.len() >= LEN {
            break;
        }
        lines.extend(format!("2026-11-22T23:{:02}:{:02}Z", n / 600 % 60, n / 10 % 60).bytes());
        for _ in 0..8 {
            lines.extend(format!(" {:010x}", rand::random::<u64>() >> 24).bytes());
        }
        lines.push(b'\n');
    }
    lines.truncate(LEN);
    lines
}

#[divan::bench(args = LEVELS, sample_count = 5, sample_size = 1)]
fn archive(bencher: Bencher<'_, '_>, level: Level) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(folder.join("log"), log_lines()).expect("the file can be written");
    let entry = Entry { path: "log".to_owned(), size: LEN as u64, mode: None };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    bencher.counter(BytesCount::new(LEN)).bench_local(|| {
        let entry = entry.clone();
        let make = move |sink: &mut _| write(sink, folder, &[entry], level, true, &|_| ());
        runtime.block_on(Blocks::start(4 << 20, make).digest()).expect("the file can be read").size
    });
}
