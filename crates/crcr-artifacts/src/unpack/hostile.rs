//! Malicious archives: each is refused, and nothing of it is left at the destination.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use rawzip::{CompressionMethod, ZipArchiveWriter};

use super::{OnCollision, StagedFiles, UnpackCounts, UnpackError, UnpackLimits, UnpackPolicy};
use crate::paths::PathRefusal;
use crate::publish::StagingFolder;
use crate::zip::read::ZipReadError as ZipError;

/// One entry of an archive: name, Unix mode with its type (0 for none), content.
struct Item<'a>(&'a [u8], u32, &'a [u8]);

fn zip(items: &[Item<'_>]) -> Vec<u8> {
    let mut archive = ZipArchiveWriter::new(vec![]);
    for Item(name, mode, content) in items {
        let path = rawzip::path::EntryPath::verbatim(*name);
        let (entry, config) = archive.new_file(path).unix_permissions(*mode).start().unwrap();
        let mut writer = config.wrap(entry);
        writer.write_all(content).unwrap();
        let (entry, descriptor) = writer.finish().unwrap();
        entry.finish(descriptor).unwrap();
    }
    archive.finish().unwrap()
}

fn deflated(name: &str, content: &[u8]) -> Vec<u8> {
    let mut archive = ZipArchiveWriter::new(vec![]);
    let file = archive.new_file(name).compression_method(CompressionMethod::DEFLATE);
    let (mut entry, config) = file.start().unwrap();
    let encoder = flate2::write::DeflateEncoder::new(&mut entry, flate2::Compression::best());
    let mut writer = config.wrap(encoder);
    writer.write_all(content).unwrap();
    let (encoder, descriptor) = writer.finish().unwrap();
    encoder.finish().unwrap();
    entry.finish(descriptor).unwrap();
    archive.finish().unwrap()
}

const POLICY: UnpackPolicy = UnpackPolicy {
    privileged: false,
    limits: UnpackLimits { entries: 1000, total: 64 << 20, ratio: 200, small: 1 << 20 },
    on_collision: OnCollision::Error,
    folds_case: true,
};
const PRIVILEGED: UnpackPolicy = UnpackPolicy { privileged: true, ..POLICY };

/// Unpacks the archives into one folder, each below its folder, and publishes them to `out`.
fn unpack(
    world: &Path,
    policy: UnpackPolicy,
    archives: &[(&str, &[u8])],
) -> Result<UnpackCounts, UnpackError> {
    let staging = StagingFolder::new(&world.join("out")).unwrap();
    let mut stage = StagedFiles::new(staging.subfolder("stage").unwrap(), policy);
    let mut sum = UnpackCounts::default();
    for (folder, bytes) in archives {
        let blob = staging.path().join("blob");
        fs::write(&blob, bytes).unwrap();
        let one = stage.unpack(File::open(&blob).unwrap(), folder, &AtomicBool::new(false))?;
        sum = UnpackCounts { files: sum.files + one.files, bytes: sum.bytes + one.bytes };
    }
    staging.publish(&stage.finish()?).unwrap();
    Ok(sum)
}

/// The error of one archive, after making sure that nothing is left.
fn refused(policy: UnpackPolicy, bytes: &[u8]) -> UnpackError {
    let world = tempfile::tempdir().unwrap();
    fs::write(world.path().join("neighbour"), "safe").unwrap();
    let error = unpack(world.path(), policy, &[("", bytes)]).unwrap_err();
    let left = fs::read_dir(world.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["neighbour"], "{error}");
    assert_eq!(fs::read_to_string(world.path().join("neighbour")).unwrap(), "safe");
    error
}

#[track_caller]
fn refuses_path(policy: UnpackPolicy, items: &[Item<'_>], why: PathRefusal) {
    match refused(policy, &zip(items)) {
        UnpackError::Path { why: given, .. } => assert_eq!(given, why),
        other => panic!("{other}"),
    }
}

const LINK: u32 = 0o120_777;
const PLAIN: u32 = 0o100_644;

#[test]
fn an_absolute_path_is_refused() {
    refuses_path(POLICY, &[Item(b"/tmp/evil", PLAIN, b"x")], PathRefusal::Absolute);
}

#[test]
fn a_path_with_dot_dot_is_refused_before_earlier_entries_are_visible() {
    let items = [Item(b"good", PLAIN, b"x"), Item(b"a/../../evil", PLAIN, b"x")];
    refuses_path(POLICY, &items, PathRefusal::Parent);
}

#[test]
fn a_drive_letter_is_refused() {
    refuses_path(POLICY, &[Item(b"C:evil", PLAIN, b"x")], PathRefusal::Drive);
}

#[test]
fn a_nul_in_a_name_is_refused() {
    refuses_path(POLICY, &[Item(b"evil\0.txt", PLAIN, b"x")], PathRefusal::Nul);
}

#[test]
fn a_backslash_is_refused() {
    refuses_path(POLICY, &[Item(b"..\\evil", PLAIN, b"x")], PathRefusal::Backslash);
}

#[test]
fn an_empty_name_is_refused() {
    refuses_path(POLICY, &[Item(b"", PLAIN, b"x")], PathRefusal::Empty);
}

#[test]
fn a_name_longer_than_any_path_is_refused() {
    refuses_path(POLICY, &[Item(&[b'a'; 5000], PLAIN, b"x")], PathRefusal::TooLong);
}

#[test]
fn a_link_out_of_the_artifact_is_refused() {
    refuses_path(POLICY, &[Item(b"link", LINK, b"../evil")], PathRefusal::Escape);
    refuses_path(POLICY, &[Item(b"link", LINK, b"/etc/passwd")], PathRefusal::Absolute);
    refuses_path(
        POLICY,
        &[Item(b"a/link", LINK, b"x/../../../evil")],
        PathRefusal::ParentAfterName,
    );
}

#[test]
fn a_file_below_a_link_is_refused() {
    for items in [
        [Item(b"link", LINK, b"elsewhere"), Item(b"link/evil", PLAIN, b"x")],
        [Item(b"link/evil", PLAIN, b"x"), Item(b"link", LINK, b"elsewhere")],
    ] {
        assert!(
            matches!(refused(POLICY, &zip(&items)), UnpackError::Collision(path) if path == "link")
        );
    }
}

#[test]
fn a_file_below_a_link_that_differs_in_case_is_refused() {
    let items = [Item(b"link", LINK, b"elsewhere"), Item(b"LINK/evil", PLAIN, b"x")];
    assert!(matches!(refused(POLICY, &zip(&items)), UnpackError::Case(..)));
}

#[test]
fn two_entries_of_one_path_are_refused() {
    let items = [Item(b"a", PLAIN, b"x"), Item(b"./a", PLAIN, b"y")];
    assert!(matches!(refused(POLICY, &zip(&items)), UnpackError::Collision(path) if path == "a"));
}

#[test]
fn two_paths_that_differ_in_case_only_are_refused() {
    for (one, two) in [("d/Read", "d/rEAD"), ("Ö", "ö")] {
        let items = [Item(one.as_bytes(), PLAIN, b"x"), Item(two.as_bytes(), PLAIN, b"y")];
        match refused(POLICY, &zip(&items)) {
            UnpackError::Case(a, b) => assert_eq!((a.as_str(), b.as_str()), (one, two)),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn paths_that_differ_in_case_only_are_unpacked_on_a_case_sensitive_file_system() {
    let exact = UnpackPolicy { folds_case: false, ..POLICY };
    let items =
        [Item(b"d/Read", PLAIN, b"1"), Item(b"d/read", PLAIN, b"2"), Item(b"D", LINK, b"d")];
    let world = tempfile::tempdir().unwrap();
    unpack(world.path(), exact, &[("", &zip(&items))]).unwrap();
    let read = |name: &str| fs::read(world.path().join("out").join(name)).unwrap();
    assert_eq!((read("d/Read"), read("D/read")), (b"1".to_vec(), b"2".to_vec()));
}

#[cfg(unix)]
#[test]
fn files_that_need_more_than_the_free_disk_space_are_refused_before_any_is_written() {
    let names: Vec<_> = (0..50_000).map(|n| format!("f{n}")).collect();
    let items: Vec<_> = names.iter().map(|name| Item(name.as_bytes(), PLAIN, b"")).collect();
    let mut bytes = zip(&items);
    // Each of them announces 4 GiB, which is 200 TiB together.
    let records: Vec<_> =
        bytes.windows(4).enumerate().filter(|(_, w)| *w == b"PK\x01\x02").collect();
    let records: Vec<_> = records.into_iter().map(|(at, _)| at).collect();
    for at in records {
        bytes[at + 24..at + 28].copy_from_slice(&(u32::MAX - 1).to_le_bytes());
    }
    let limits =
        UnpackLimits { entries: 100_000, total: u64::MAX, ratio: u64::MAX, ..POLICY.limits };
    let error = refused(UnpackPolicy { limits, ..POLICY }, &bytes);
    assert!(matches!(error, UnpackError::NoSpace { need, have } if need > have), "{error}");
    assert!(error.is_disk_full());
}

#[test]
fn a_path_that_is_a_file_and_a_folder_is_refused() {
    let items = [Item(b"a", PLAIN, b"x"), Item(b"a/b", PLAIN, b"y")];
    assert!(matches!(refused(POLICY, &zip(&items)), UnpackError::Collision(path) if path == "a"));
}

#[test]
fn zip_bomb_by_ratio_is_refused() {
    let bytes = deflated("zeros", &vec![0; 32 << 20]);
    assert!(matches!(refused(POLICY, &bytes), UnpackError::Bomb { .. }));
}

#[test]
fn zip_bomb_by_total_size_is_refused() {
    let bytes = deflated("zeros", &vec![0; 65 << 20]);
    assert!(matches!(refused(POLICY, &bytes), UnpackError::TooBig(_)));
}

#[test]
fn entries_that_share_bytes_are_refused_as_a_bomb() {
    // Both records of the directory point at one body: a bomb without a nested archive.
    let single = zip(&[Item(b"a", PLAIN, &[7; 5000])]);
    let directory = single.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    let end = single.windows(4).position(|w| w == b"PK\x05\x06").unwrap();
    let mut record = single[directory..end].to_vec();
    let mut bytes = single[..end].to_vec();
    record[46] = b'b';
    bytes.extend_from_slice(&record);
    let mut tail = single[end..].to_vec();
    tail[8..10].copy_from_slice(&2_u16.to_le_bytes());
    tail[10..12].copy_from_slice(&2_u16.to_le_bytes());
    tail[12..16].copy_from_slice(&u32::try_from(record.len() * 2).unwrap().to_le_bytes());
    bytes.extend_from_slice(&tail);
    assert!(matches!(refused(POLICY, &bytes), UnpackError::Bomb { .. }));
}

#[test]
fn a_file_larger_than_announced_is_refused() {
    let mut bytes = deflated("a", &[1; 5000]);
    let directory = bytes.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    bytes[directory + 24..directory + 28].copy_from_slice(&4000_u32.to_le_bytes());
    assert!(matches!(refused(POLICY, &bytes), UnpackError::Zip(ZipError::Mismatch(_))));
}

#[test]
fn too_many_entries_are_refused() {
    let names: Vec<_> = (0..1001).map(|n| format!("f{n}")).collect();
    let items: Vec<_> = names.iter().map(|name| Item(name.as_bytes(), PLAIN, b"")).collect();
    assert!(matches!(refused(POLICY, &zip(&items)), UnpackError::TooMany(1000)));
}

#[test]
fn too_many_folders_in_few_entries_are_refused() {
    let names: Vec<_> = (0..10).map(|n| format!("{n}/") + &"d/".repeat(150) + "f").collect();
    let items: Vec<_> = names.iter().map(|name| Item(name.as_bytes(), PLAIN, b"")).collect();
    assert!(matches!(refused(POLICY, &zip(&items)), UnpackError::TooMany(1000)));
}

#[test]
fn a_device_or_pipe_is_refused() {
    for mode in [0o010_644, 0o020_644, 0o060_644, 0o140_644] {
        let bytes = zip(&[Item(b"evil", mode, b"")]);
        assert!(matches!(refused(POLICY, &bytes), UnpackError::Zip(ZipError::Kind(_))), "{mode:o}");
    }
}

#[test]
fn an_encrypted_entry_is_refused() {
    let mut bytes = zip(&[Item(b"a", PLAIN, b"x")]);
    let directory = bytes.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    bytes[directory + 8] |= 1;
    assert!(matches!(refused(POLICY, &bytes), UnpackError::Zip(ZipError::Encrypted(_))));
}

#[test]
fn a_truncated_archive_is_refused() {
    let whole = zip(&[Item(b"a", PLAIN, &[1; 1000]), Item(b"b", PLAIN, &[2; 1000])]);
    for keep in [0, 10, 1000, whole.len() - 30, whole.len() - 1] {
        assert!(matches!(refused(POLICY, &whole[..keep]), UnpackError::Zip(_)), "{keep}");
    }
}

#[cfg(unix)]
#[test]
fn a_setuid_bit_is_refused_in_a_privileged_event_and_dropped_elsewhere() {
    use std::os::unix::fs::PermissionsExt as _;
    let bytes = zip(&[Item(b"su", 0o104_755, b"x")]);
    assert!(matches!(refused(PRIVILEGED, &bytes), UnpackError::Setuid(_)));
    let world = tempfile::tempdir().unwrap();
    unpack(world.path(), POLICY, &[("", &bytes)]).unwrap();
    let mode = fs::metadata(world.path().join("out/su")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
}

#[test]
fn git_and_github_folders_are_refused_in_a_privileged_event() {
    for name in [".git/hooks/post-checkout", "a/.Git/config", ".github/workflows/x.yml"] {
        let items = [Item(name.as_bytes(), PLAIN, b"x")];
        refuses_path(PRIVILEGED, &items, PathRefusal::GitFolder);
        let world = tempfile::tempdir().unwrap();
        unpack(world.path(), POLICY, &[("", &zip(&items))]).unwrap();
        assert!(world.path().join("out").join(name).is_file());
    }
    refuses_path(PRIVILEGED, &[Item(b"x", LINK, b".git/hooks")], PathRefusal::GitFolder);
}

#[cfg(unix)]
#[test]
fn harmless_archive_is_unpacked_with_modes_links_and_folders() {
    use std::os::unix::fs::PermissionsExt as _;
    let items = [
        Item(b"bin/tool", 0o100_775, b"run"),
        Item(b"bin/again", LINK, b"../lib/x"),
        Item(b"lib/x", 0o100_400, b"library"),
        Item(b"plain", 0, b""),
        Item(b"empty/", 0o040_755, b""),
        Item(b"./", 0o040_755, b""),
    ];
    let world = tempfile::tempdir().unwrap();
    let unpacked = unpack(world.path(), PRIVILEGED, &[("", &zip(&items))]).unwrap();
    assert_eq!(unpacked, UnpackCounts { files: 4, bytes: 3 + 8 + 7 });
    let out = world.path().join("out");
    let mode = |name: &str| fs::metadata(out.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("bin/tool"), mode("lib/x")), (0o775, 0o400));
    assert_eq!(fs::read(out.join("bin/again")).unwrap(), b"library");
    assert!(out.join("empty").is_dir() && out.join("plain").is_file());
}

#[test]
fn later_artifact_replaces_the_file_of_an_earlier_one_only_if_allowed() {
    let (one, two) = (zip(&[Item(b"d/a", PLAIN, b"1")]), zip(&[Item(b"d/a", PLAIN, b"2")]));
    let both: [(&str, &[u8]); 2] = [("", &one), ("", &two)];
    let world = tempfile::tempdir().unwrap();
    let error = unpack(world.path(), POLICY, &both).unwrap_err();
    assert!(matches!(error, UnpackError::Taken { path, earlier: 0 } if path == "d/a"));
    assert!(!world.path().join("out").exists());
    let last = UnpackPolicy { on_collision: OnCollision::Last, ..POLICY };
    unpack(world.path(), last, &both).unwrap();
    assert_eq!(fs::read(world.path().join("out/d/a")).unwrap(), b"2");
}

#[test]
fn collision_names_the_earlier_artifact_that_holds_the_path() {
    let of = |name: &str| zip(&[Item(name.as_bytes(), PLAIN, b"x"), Item(b"d/", 0o040_755, b"")]);
    let (a, b, c) = (of("a"), of("d/b"), of("c"));
    for (last, holder) in [("a", 0), ("d/b", 1), ("c", 2)] {
        let again = of(last);
        let world = tempfile::tempdir().unwrap();
        let all = [("", &*a), ("", &*b), ("", &*c), ("", &*again)];
        let error = unpack(world.path(), POLICY, &all).unwrap_err();
        assert!(
            matches!(&error, UnpackError::Taken { path, earlier } if path == last && *earlier == holder),
            "{last}: {error:?}"
        );
    }
}

#[test]
fn a_later_artifact_cannot_write_through_an_earlier_ones_link() {
    let one = zip(&[Item(b"link", LINK, b"elsewhere"), Item(b"elsewhere/x", PLAIN, b"1")]);
    let two = zip(&[Item(b"link/x", PLAIN, b"2")]);
    let last = UnpackPolicy { on_collision: OnCollision::Last, ..POLICY };
    let world = tempfile::tempdir().unwrap();
    let error = unpack(world.path(), last, &[("", &one), ("", &two)]).unwrap_err();
    assert!(matches!(&error, UnpackError::Collision(path) if path == "link"), "{error}");
}

#[test]
fn same_path_in_different_artifact_folders_does_not_collide() {
    let one = zip(&[Item(b"a", PLAIN, b"1"), Item(b"link", LINK, b"a")]);
    let world = tempfile::tempdir().unwrap();
    unpack(world.path(), POLICY, &[("x", &one), ("y", &one)]).unwrap();
    if cfg!(unix) {
        assert_eq!(fs::read(world.path().join("out/y/link")).unwrap(), b"1");
    }
    let out = zip(&[Item(b"link", LINK, b"../x/a")]);
    let error = unpack(world.path(), POLICY, &[("y", &out)]).unwrap_err();
    assert!(matches!(error, UnpackError::Path { why: PathRefusal::Escape, .. }));
}

#[test]
fn cancelled_unpacking_leaves_nothing() {
    let world = tempfile::tempdir().unwrap();
    let staging = StagingFolder::new(&world.path().join("out")).unwrap();
    let mut stage = StagedFiles::new(staging.subfolder("stage").unwrap(), POLICY);
    let blob = staging.path().join("blob");
    fs::write(&blob, zip(&[Item(b"a", PLAIN, b"1")])).unwrap();
    let error = stage.unpack(File::open(&blob).unwrap(), "", &AtomicBool::new(true)).unwrap_err();
    assert!(matches!(error, UnpackError::Cancelled));
    drop(staging);
    assert_eq!(fs::read_dir(world.path()).unwrap().count(), 0);
}
