use std::fs;
use std::io::{Cursor, Read as _};

use super::*;
use crate::blocks::BlobBlocks;
use crate::digest::DigestAlgorithm;

/// Bytes that don't shrink, the same in every run.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&next());
    }
    bytes.truncate(len);
    bytes
}

fn text(len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 64);
    for n in 0_u64.. {
        if bytes.len() >= len {
            break;
        }
        bytes
            .extend_from_slice(format!("line {n}: {}\n", n.wrapping_mul(2_654_435_761)).as_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn deflated(compress: &mut Compress, input: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    deflate(compress, input, true, &mut out);
    out
}

fn tree(files: &[(&str, Vec<u8>, u32)]) -> (tempfile::TempDir, Vec<FileEntry>) {
    let folder = tempfile::tempdir().unwrap();
    let mut entries = Vec::new();
    for (path, bytes, mode) in files {
        let at = folder.path().join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(&at, bytes).unwrap();
        entries.push(FileEntry {
            path: (*path).to_owned(),
            size: bytes.len() as u64,
            mode: Some(*mode),
            link: None,
        });
    }
    (folder, entries)
}

async fn zipped(
    folder: &Path,
    entries: &[FileEntry],
    level: DeflateLevel,
) -> (Vec<u8>, Vec<Digest>) {
    let (folder, entries) = (folder.to_path_buf(), entries.to_vec());
    let mut blocks = BlobBlocks::start(64 * 1024, DigestAlgorithm::Sha256, move |sink| {
        let grown = GrownFiles::default();
        let files = FileSet { root: &folder, entries: &entries, grown: &grown };
        write(sink, files, level, true, &|_| ())
    });
    let mut bytes = Vec::new();
    while let Some(block) = blocks.next().await {
        bytes.extend_from_slice(&block);
    }
    let made = blocks.finish().await.unwrap();
    assert_eq!((made.size, made.digest), (bytes.len() as u64, Digest::of(&bytes)));
    (bytes, made.files)
}

#[tokio::test]
async fn another_reader_reads_every_file_with_its_mode() {
    let files = [
        ("bin/tool", text(3_500_000), 0o755),
        ("data/noise.bin", noise(2_100_000), 0o600),
        ("empty", vec![], 0o644),
        ("exact", text(PIECE_BYTES), 0o644),
        ("exact2", text(2 * PIECE_BYTES), 0o644),
        ("small.txt", text(100), 0o640),
        ("tiny noise", noise(100_000), 0o644),
        ("ünïcode/名前", text(10), 0o444),
    ];
    let (folder, entries) = tree(&files);
    for level in
        [DeflateLevel::Auto, DeflateLevel::Fixed(0), DeflateLevel::Fixed(1), DeflateLevel::Fixed(9)]
    {
        let (bytes, digests) = zipped(folder.path(), &entries, level).await;
        let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
        assert_eq!(archive.len(), files.len());
        for (n, (path, content, mode)) in files.iter().enumerate() {
            let mut entry = archive.by_index(n).unwrap();
            assert_eq!(entry.name(), *path);
            assert_eq!(entry.unix_mode(), Some(0o100_000 | mode), "{path}");
            let mut read = Vec::new();
            entry.read_to_end(&mut read).unwrap();
            assert!(read == *content, "{path} at {level:?}");
            assert_eq!(digests[n], Digest::of_file(content), "{path}");
            let stored = entry.compression() == zip::CompressionMethod::Stored;
            let shrinks =
                !path.contains("noise") && level != DeflateLevel::Fixed(0) && content.len() > 10;
            if level == DeflateLevel::Auto {
                assert_eq!(stored, !shrinks, "{path}");
            }
        }
    }
}

#[test]
fn only_incompressible_bytes_count_as_noise() {
    for len in [1024, 4096, 60_000] {
        assert!(is_noise(&noise(len)), "{len}");
        assert!(!is_noise(&text(len)), "{len}");
        let mut compress = Compress::new(Compression::new(2), false);
        // Random values from ever smaller ranges: data that deflate shrinks never counts as noise.
        for most in (100..=255_u64).rev() {
            let skewed: Vec<u8> =
                noise(len * 8).chunks(8).map(|n| (n[0] as u64 * most / 255) as u8).collect();
            let packed = deflated(&mut compress, &skewed).len();
            assert!(!shrinks(packed, len) || !is_noise(&skewed), "{len} {most} {packed}");
        }
    }
    assert!(!is_noise(&noise(100)), "too few to tell");
}

/// Log lines of random words, and text with many long matches.
fn corpora(len: usize) -> [(&'static str, Vec<u8>); 2] {
    let (mut log, mut prose) = (Vec::new(), Vec::new());
    let random = noise(len);
    let mut random = random.as_chunks::<8>().0.iter().cycle().map(|n| u64::from_le_bytes(*n));
    let mut next = || random.next().unwrap();
    for n in 0_u64.. {
        if log.len() >= len && prose.len() >= len {
            break;
        }
        log.extend(format!("2026-11-22T23:{:02}:{:02}Z", n / 600 % 60, n / 10 % 60).bytes());
        for _ in 0..8 {
            log.extend(format!(" {:010x}", next() >> 24).bytes());
        }
        log.push(b'\n');
        for _ in 0..8 {
            // The lower a word's number, the more frequent it is.
            let word = (next() % 4000) * (next() % 4000) / 4000;
            prose.extend(
                format!("{}{} ", ["con", "pre", "un", "re"][word as usize % 4], word * word)
                    .bytes(),
            );
        }
    }
    log.truncate(len);
    prose.truncate(len);
    [("log", log), ("prose", prose)]
}

#[tokio::test]
async fn auto_is_at_most_five_per_cent_larger_than_level_6() {
    for (name, bytes) in corpora(3_000_000) {
        for len in [50_000, 900_000, bytes.len()] {
            let (folder, entries) = tree(&[(name, bytes[..len].to_vec(), 0o644)]);
            let auto = zipped(folder.path(), &entries, DeflateLevel::Auto).await.0.len();
            let mut six = Compress::new(Compression::new(6), false);
            let six = deflated(&mut six, &bytes[..len]).len();
            assert!(auto as f64 <= six as f64 * 1.05 + 300.0, "{name} {len}: {auto} and {six}");
        }
    }
}

/// A log with parts, between the samples, that libdeflate stores or can't flush.
#[tokio::test]
async fn another_reader_reads_a_fast_deflated_file_with_mixed_content() {
    let [(_, mut log), _] = corpora(3_500_000);
    log[300_000..600_000].copy_from_slice(&noise(300_000));
    log[700_000..900_000].fill(0);
    log[1_500_000..1_900_000].copy_from_slice(&text(400_000));
    let (folder, entries) = tree(&[("log", log.clone(), 0o644)]);
    let source =
        FilePrefix::open(folder.path().join("log"), log.len() as u64, &GrownFiles::default())
            .unwrap();
    let mut packer = EntryPacker::new(DeflateLevel::Auto);
    assert_eq!(packer.effort_for(&source, log.len() as u64).unwrap(), Some(DeflateEffort::Fast));
    let (bytes, _) = zipped(folder.path(), &entries, DeflateLevel::Auto).await;
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
    let mut read = Vec::new();
    archive.by_index(0).unwrap().read_to_end(&mut read).unwrap();
    assert!(read == log);
}

#[tokio::test]
async fn same_files_give_the_same_archive() {
    let (folder, entries) = tree(&[("a", text(3_000_000), 0o644), ("b", noise(9), 0o644)]);
    let first = zipped(folder.path(), &entries, DeflateLevel::Auto).await.0;
    for file in ["a", "b"] {
        let path = folder.path().join(file);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    }
    assert!(zipped(folder.path(), &entries, DeflateLevel::Auto).await.0 == first);
}

#[tokio::test]
async fn archive_with_more_than_65535_files_is_complete() {
    let (folder, _) = tree(&[("f0", b"x".to_vec(), 0o644), ("f1", b"x".to_vec(), 0o644)]);
    for n in 0..70_000 {
        // File systems limit the number of links to one file.
        let file = folder.path().join(format!("f{}", n % 2));
        fs::hard_link(file, folder.path().join(format!("{n:05}"))).unwrap();
    }
    let entries: Vec<_> = (0..70_000)
        .map(|n| FileEntry { path: format!("{n:05}"), size: 1, mode: Some(0o644), link: None })
        .collect();
    let (bytes, _) = zipped(folder.path(), &entries, DeflateLevel::Auto).await;
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
    assert_eq!(archive.len(), 70_000);
    let mut last = String::new();
    archive.by_name("69999").unwrap().read_to_string(&mut last).unwrap();
    assert_eq!(last, "x");
}

#[test]
fn sizes_over_four_gigabytes_are_in_the_64_bit_fields() {
    let size = 5 * 1024 * 1024 * 1024;
    let record = EntryRecord {
        method: CompressionMethod::Stored,
        crc: 1,
        packed: size,
        size,
        offset: size,
        has_descriptor: true,
        mode: None,
        is_link: false,
    };
    let (mut local, mut central, mut descriptor) = (vec![], vec![], vec![]);
    record.put_local("big", &mut local);
    record.put_central("big", &mut central);
    record.put_descriptor(&mut descriptor);
    assert_eq!(&local[18..26], &[0xFF; 8], "the 32-bit sizes point to the extra field");
    assert_eq!(&local[30 + 3..30 + 3 + 4], &[1, 0, 16, 0]);
    assert_eq!(descriptor.len(), 24);
    assert_eq!(&central[46 + 3..46 + 3 + 4], &[1, 0, 24, 0]);
    assert_eq!(&central[46 + 7..46 + 7 + 8], size.to_le_bytes());
}

#[tokio::test]
async fn file_that_shrank_or_vanished_is_an_error_and_file_that_grew_is_not() {
    for (len, change) in [(10, "grow"), (10, "gone"), (3_000_000, "shrink"), (3_000_000, "gone")] {
        let (folder, entries) = tree(&[("f", noise(len), 0o644)]);
        let path = folder.path().join("f");
        match change {
            "gone" => fs::remove_file(&path).unwrap(),
            "grow" => fs::write(&path, noise(len + 1)).unwrap(),
            _ => fs::write(&path, noise(len - 1)).unwrap(),
        }
        let root = folder.path().to_path_buf();
        let made = BlobBlocks::start(1024 * 1024, DigestAlgorithm::Sha256, move |sink| {
            let grown = GrownFiles::default();
            let files = FileSet { root: &root, entries: &entries, grown: &grown };
            write(sink, files, DeflateLevel::Auto, true, &|_| ())
        })
        .digest()
        .await;
        match change {
            "gone" => assert!(matches!(made, Err(BlobSourceError::Read { .. })), "{made:?}"),
            "grow" => assert!(made.is_ok(), "{made:?}"),
            _ => assert!(matches!(made, Err(BlobSourceError::Changed(_))), "{made:?}"),
        }
    }
}
