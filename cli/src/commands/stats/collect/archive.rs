//! The zips that reports are in: what is in them, within limits.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write as _};

use crcr_artifacts::zip::read::{EntryKind, ReadBuffers, ZipEntry, ZipReadError, ZipReader};
use crcr_cidata::junit::{
    JunitError, MAX_OF_ONE_CLASS, TestReport, attempt_of, has_extension, last_attempt_of,
    outermost_class_report,
};

/// Files of one artifact, those in zips in it included.
const MAX_MEMBERS: u64 = 200_000;
const MAX_UNPACKED_BYTES: u64 = 4 << 30;
/// Unpacked size to packed size, of an artifact that a fork may have made.
const MAX_RATIO: u64 = 1_000;
/// Larger files are unpacked on a thread of their own while they are read.
const SMALL_FILE_BYTES: u64 = 1 << 20;
/// The name of Bazel's report. Beside it, and beside one in TRX, those of earlier attempts can be.
pub const LAST_ATTEMPT: &str = "test.xml";

#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("cap `{0}`: {1}")]
    Cap(&'static str, &'static str),
    #[error(transparent)]
    Zip(#[from] ZipReadError),
}

pub fn attempt_number(path: &str) -> Option<u32> {
    attempt_of(path).map(|(_, number)| number)
}

/// Reads a zip's directory. No entry gives more than that announces, so whether it is too much is decided before
/// anything is unpacked.
pub fn survey(
    zip: &ZipReader,
    packed: u64,
    is_fork: bool,
    archive: &mut ArchiveUsage,
) -> Result<ReportAttempts, ArchiveError> {
    let before = archive.unpacked;
    let mut attempts = ReportAttempts::default();
    zip.entries(|entry| {
        archive.members += 1;
        archive.unpacked = archive.unpacked.saturating_add(entry.size);
        if archive.members > MAX_MEMBERS {
            return Err(ArchiveError::Cap("members", "more than 200,000 files"));
        }
        if archive.unpacked > MAX_UNPACKED_BYTES {
            return Err(ArchiveError::Cap("unpacked-size", "more than 4 GiB unpacked"));
        }
        match last_attempt_of(&entry.path) {
            _ if entry.kind != EntryKind::File => {}
            Some(last) => attempts.earlier.entry(last).or_default().push(entry),
            None if entry.path.ends_with(LAST_ATTEMPT) || has_extension(&entry.path, "trx") => {
                attempts.last.insert(entry.path);
            }
            None => {
                if let Some(class) = outermost_class_report(&entry.path) {
                    attempts.of_class.entry(class.to_owned()).or_default().push(entry);
                }
            }
        }
        Ok(())
    })?;
    attempts.of_class.retain(|_, group| (2..=MAX_OF_ONE_CLASS).contains(&group.len()));
    attempts.earlier.retain(|last, _| attempts.last.contains(last));
    for earlier in attempts.earlier.values_mut() {
        earlier.sort_by_key(|entry| Reverse(attempt_number(&entry.path)));
    }
    if is_fork && (archive.unpacked - before) / packed.max(1) > MAX_RATIO {
        return Err(ArchiveError::Cap("ratio", "it grows more than 1,000 times"));
    }
    Ok(attempts)
}

/// The report in a zip, with what the reports of its earlier attempts say.
pub fn read_with_attempts(
    zip: &ZipReader,
    entry: &ZipEntry,
    attempts: &mut ReportAttempts,
    buffers: &mut ReadBuffers,
) -> Result<Option<TestReport>, String> {
    let Some(mut report) = read_member(zip, entry, buffers)? else { return Ok(None) };
    for attempt in attempts.earlier.remove(&entry.path).unwrap_or_default() {
        if let Ok(Some(earlier)) = read_member(zip, &attempt, buffers) {
            report.add_earlier_attempt(earlier);
        }
    }
    Ok(Some(report))
}

/// The report in a zip; `None` for other data, such as JSON without tests.
fn read_member(
    zip: &ZipReader,
    entry: &ZipEntry,
    buffers: &mut ReadBuffers,
) -> Result<Option<TestReport>, String> {
    let told = |report: Result<TestReport, JunitError>| match report {
        Ok(report) => Ok(Some(report)),
        Err(error) if is_other_data(&entry.path, &error) => Ok(None),
        Err(error) => Err(error.to_string()),
    };
    if entry.size <= SMALL_FILE_BYTES {
        let mut bytes = Vec::with_capacity(entry.size as usize);
        zip.read_content(entry, buffers, |part| bytes.write_all(part))
            .map_err(|error| error.to_string())?;
        return told(TestReport::read(&*bytes));
    }
    let (reader, mut writer) = io::pipe().map_err(|error| error.to_string())?;
    std::thread::scope(|scope| {
        let unpacking =
            scope.spawn(move || zip.read_content(entry, buffers, |part| writer.write_all(part)));
        // A file that turns out to be broken at its end hasn't given rows by then.
        let report = told(TestReport::read(reader));
        if matches!(report, Ok(None)) {
            return report;
        }
        let unpacked = match unpacking.join() {
            Ok(Err(ZipReadError::Io(_))) | Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it can't be unpacked".to_owned()),
        };
        unpacked.and(report)
    })
}

/// What has been read of an artifact, with the zips in it.
pub struct ArchiveUsage {
    pub members: u64,
    pub unpacked: u64,
    pub buffers: ReadBuffers,
}

/// Reports in a zip of which there may be several attempts.
#[derive(Default)]
pub struct ReportAttempts {
    /// The reports of earlier attempts, by the path of the last one, the newest first.
    pub earlier: HashMap<String, Vec<ZipEntry>>,
    pub last: HashSet<String>,
    /// Surefire's reports of a class and of those nested in it, until they are read.
    pub of_class: HashMap<String, Vec<ZipEntry>>,
}

/// Unpacks a zip in a zip into a file without a name.
pub fn unpack(
    zip: &ZipReader,
    entry: &ZipEntry,
    archive: &mut ArchiveUsage,
) -> Result<File, ZipReadError> {
    let mut file = tempfile::tempfile()?;
    zip.read_content(entry, &mut archive.buffers, |part| file.write_all(part))?;
    Ok(file)
}

/// Whether a file, such as JSON, is known to have no tests. Results of a tool whose JSON or TAP isn't read are named.
pub fn is_other_data(name: &str, error: &JunitError) -> bool {
    matches!(error, JunitError::OtherFile(other) if other.has_no_tests())
        && !has_extension(name, "xml")
        && !has_extension(name, "trx")
}
