//! Reads reports from artifacts and folders. All of it is untrusted: what can't be read is
//! quarantined with its reason, and the rest goes on.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crcr_artifacts::blob_file::BlobFile;
use crcr_artifacts::paths;
use crcr_artifacts::zip::read::{EntryKind, ReadBuffers, ZipEntry, ZipReadError, ZipReader};
use crcr_cidata::job_manifest::{JobManifest, MANIFEST_FILE, MAX_MANIFEST_BYTES};
use crcr_cidata::junit::{
    COMPRESSED_REPORT, JunitError, MAX_OF_ONE_CLASS, REPORT_EXTENSIONS, TestReport, attempt_of,
    is_compressed_report, join_spread_attempts, last_attempt_of, of_one_class,
    outermost_class_report,
};
use crcr_cidata::test_rows::{self, ReportArtifact, invoking_file, lost_case, report_path};
use crcr_domain::ci_data::test_row::{JobIdCheck, ReportRows, ReportSource, TestedRun};
use crcr_domain::ci_data::test_run::{TestCase, TestRowKind, TestTally};
use crcr_github::runs::WorkflowJob;
use jiff::SignedDuration;
use serde::Serialize;
use tokio::sync::mpsc::Sender;

/// Files of one artifact, those in zips in it included.
const MAX_MEMBERS: u64 = 200_000;
const MAX_UNPACKED_BYTES: u64 = 4 << 30;
/// Unpacked size to packed size, of an artifact that a fork may have made.
const MAX_RATIO: u64 = 1_000;
const MAX_ROWS_PER_RUN: u64 = 10_000_000;
/// Of one artifact. More files are only counted.
const MAX_LISTED: u64 = 100;
const MAX_MISSING_PER_ARTIFACT: usize = 1_000;
/// Larger files are unpacked on a thread of their own while they are read.
const SMALL_FILE_BYTES: u64 = 1 << 20;
/// The name of Bazel's report. Beside it, and beside one in TRX, those of earlier attempts can be.
const LAST_ATTEMPT: &str = "test.xml";
const MAX_LABEL_CHARS: usize = 300;
/// Timestamps in reports often lack a zone, and zones are up to 14 hours apart.
const ZONES: SignedDuration = SignedDuration::from_hours(14);

#[derive(Debug, Clone, Serialize)]
pub struct QuarantinedFile {
    pub file: String,
    pub reason: String,
}

pub struct ReportReader {
    pub run: Arc<TestedRun>,
    /// Whether a fork's code may have made the reports.
    pub is_fork: bool,
    /// `None` if the API wasn't asked.
    pub jobs: Option<HashMap<u64, WorkflowJob>>,
    /// Where the rows of each report go.
    pub rows: Sender<ReportRows>,
    pub counts: ReadCounts,
    pub quarantined: Vec<QuarantinedFile>,
    /// Of the artifact that is being read.
    unlisted: u64,
    listed: u64,
    /// Jobs with a row that failed.
    failed_jobs: HashSet<u64>,
    /// Of reports in folders and artifacts; the same report can be in two of them.
    reports: HashSet<u64>,
    /// Hashes of the tests of reports, by the name of their file, and where the first one is.
    contents: HashMap<(String, u64), ReportLocation>,
    /// Jobs that failed as they say themselves, and artifacts with a row that failed.
    told_failed: Vec<ReportSource>,
    failed_artifacts: HashSet<Arc<str>>,
    /// Of reports whose artifact doesn't name one.
    pub job: Option<String>,
}

#[derive(Clone, Copy)]
struct ReportLocation {
    is_in_zip: bool,
    is_in_artifact: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct ReadCounts {
    pub tally: TestTally,
    /// Reports that were read.
    pub files: u64,
    pub rows: u64,
    pub quarantined: u64,
}

/// The receiver of the rows has failed, and knows why.
#[derive(Debug)]
pub struct ReceiverGone;

impl ReportReader {
    pub fn new(
        run: Arc<TestedRun>,
        is_fork: bool,
        jobs: Option<HashMap<u64, WorkflowJob>>,
        rows: Sender<ReportRows>,
    ) -> Self {
        Self {
            run,
            is_fork,
            jobs,
            rows,
            counts: ReadCounts::default(),
            quarantined: vec![],
            unlisted: 0,
            listed: 0,
            failed_jobs: HashSet::new(),
            reports: HashSet::new(),
            contents: HashMap::new(),
            told_failed: vec![],
            failed_artifacts: HashSet::new(),
            job: None,
        }
    }

    /// Reads the reports and zips below `folder`, ordered by name. Symbolic links aren't followed.
    pub fn read_folder(&mut self, folder: &Path) -> Result<(), ReceiverGone> {
        let mut none = ReportArtifact::none();
        if let Some(job) = &self.job {
            none.job = limited(job).into();
        }
        self.read_subfolder(folder, folder, &none)?;
        self.add_failed_jobs()
    }

    /// A row for each job that says that it failed and has no row which failed.
    fn add_failed_jobs(&mut self) -> Result<(), ReceiverGone> {
        for source in std::mem::take(&mut self.told_failed) {
            if !self.failed_artifacts.contains(&source.artifact) {
                let name = source.job.to_string();
                let why = "the job failed, and no report of it has a failure".to_owned();
                self.send(source, vec![lost_case(TestRowKind::NoReport, "".into(), name, why)])?;
            }
        }
        Ok(())
    }

    fn read_subfolder(
        &mut self,
        root: &Path,
        folder: &Path,
        artifact: &ReportArtifact,
    ) -> Result<(), ReceiverGone> {
        let display = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
        let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(error) => {
                self.quarantine(&display(folder), &error);
                return Ok(());
            }
        };
        entries.sort_by_key(std::fs::DirEntry::file_name);
        let mut of_surefire = vec![];
        for entry in entries {
            let path = entry.path();
            let Ok(kind) = entry.file_type() else { continue };
            let name = entry.file_name().to_string_lossy().into_owned();
            let own = ReportArtifact::parse(&name, self.run.run_attempt);
            if kind.is_dir() {
                self.read_subfolder(root, &path, own.as_ref().unwrap_or(artifact))?;
            } else if kind.is_file() && has_extension(&name, "zip") {
                let artifact = own.as_ref().unwrap_or(artifact);
                match File::open(&path) {
                    Ok(file) => self.read_archive(&display(&path), artifact, file.into())?,
                    Err(error) => self.quarantine(&display(&path), &error),
                }
            } else if kind.is_file() && is_report(&name) && name != MANIFEST_FILE {
                self.listed = 0;
                let shown = display(&path).replace('\\', "/");
                let is_file = |path: &Path| path.symlink_metadata().is_ok_and(|of| of.is_file());
                if last_attempt_of(&shown).is_some_and(|last| is_file(&root.join(last))) {
                    continue;
                }
                if outermost_class_report(&name).is_some() {
                    of_surefire.push((shown, path));
                    continue;
                }
                self.read_files(&[(shown, path)], artifact)?;
            } else if kind.is_file() && is_compressed_report(&name) {
                self.listed = 0;
                self.quarantine(&display(&path), &COMPRESSED_REPORT);
            }
        }
        for group in of_one_class(of_surefire.into_iter(), |(shown, _)| shown.as_str()) {
            self.read_files(&group, artifact)?;
        }
        Ok(())
    }

    /// Reads the reports in a zip that is called `name`.
    pub fn read_archive(
        &mut self,
        name: &str,
        artifact: &ReportArtifact,
        disk: BlobFile,
    ) -> Result<(), ReceiverGone> {
        let mut archive = Archive { members: 0, unpacked: 0, buffers: ReadBuffers::default() };
        (self.listed, self.unlisted) = (0, 0);
        let read = self.read_zip(name, artifact, disk, &mut archive, true);
        // One artifact's files must not hide those of others.
        self.listed = 0;
        if self.unlisted > 0 {
            let reason = format!("{} more files can't be read", self.unlisted);
            self.quarantined.push(QuarantinedFile { file: limited(name), reason });
        }
        read
    }

    fn read_zip(
        &mut self,
        name: &str,
        artifact: &ReportArtifact,
        disk: BlobFile,
        archive: &mut Archive,
        is_outer: bool,
    ) -> Result<(), ReceiverGone> {
        let opened = disk.len().map_err(ZipReadError::from).and_then(|packed| {
            let zip = ZipReader::open(disk)?;
            Ok((packed, zip))
        });
        let (packed, zip) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.quarantine(name, &error);
                return Ok(());
            }
        };
        let mut attempts = match survey(&zip, packed, self.is_fork, archive) {
            Ok(attempts) => attempts,
            Err(error) => {
                self.quarantine(name, &error);
                return Ok(());
            }
        };
        let opened = OpenedZip { zip: &zip, name, artifact, is_outer };
        let read =
            zip.entries(|entry| self.read_zip_entry(&opened, &entry, &mut attempts, archive));
        match read {
            Ok(()) => Ok(()),
            Err(ReadError::Receiver) => Err(ReceiverGone),
            Err(ReadError::Zip(error)) => {
                self.quarantine(name, &error);
                Ok(())
            }
        }
    }

    fn read_zip_entry(
        &mut self,
        from: &OpenedZip<'_>,
        entry: &ZipEntry,
        attempts: &mut ReportAttempts,
        archive: &mut Archive,
    ) -> Result<(), ReadError> {
        let OpenedZip { zip, name, artifact, is_outer } = *from;
        if last_attempt_of(&entry.path).is_some_and(|last| attempts.last.contains(&last)) {
            return Ok(());
        }
        let shown = format!("{name}/{}", entry.path);
        let kind = match (&*entry.path, entry.kind) {
            (MANIFEST_FILE, EntryKind::File) => MemberKind::Manifest,
            (path, EntryKind::File) if is_report(path) => MemberKind::Report,
            (path, EntryKind::File) if has_extension(path, "zip") && is_outer => MemberKind::Zip,
            (path, EntryKind::File) if is_compressed_report(path) => {
                self.quarantine(&shown, &COMPRESSED_REPORT);
                return Ok(());
            }
            _ => return Ok(()),
        };
        // No file of this name is written, but a name that points outside its folder is an attack or damage.
        let path = match paths::check(&entry.path) {
            Ok(path) => path,
            Err(error) => {
                self.quarantine(&shown, &error);
                return Ok(());
            }
        };
        match kind {
            MemberKind::Report => self.read_zipped(from, entry, attempts, archive)?,
            MemberKind::Manifest => self.read_manifest(zip, entry, &shown, artifact, archive)?,
            MemberKind::Zip => match unpack(zip, entry, archive) {
                Ok(file) => {
                    let base = path.rsplit('/').next().unwrap_or(&path);
                    let own = ReportArtifact::parse(base, self.run.run_attempt);
                    let artifact = match artifact.label.is_empty() {
                        true => own.as_ref().unwrap_or(artifact),
                        false => artifact,
                    };
                    self.read_zip(&shown, artifact, file.into(), archive, false)?;
                }
                Err(error) => self.quarantine(&shown, &error),
            },
        }
        Ok(())
    }

    /// Reads a report, or with the first one of Surefire's of a class and of those nested in it all of these.
    fn read_zipped(
        &mut self,
        from: &OpenedZip<'_>,
        entry: &ZipEntry,
        attempts: &mut ReportAttempts,
        archive: &mut Archive,
    ) -> Result<(), ReceiverGone> {
        let class = outermost_class_report(&entry.path);
        let group = match class.and_then(|class| attempts.of_class.get_mut(class)) {
            None => vec![entry.clone()],
            Some(group) => std::mem::take(group),
        };
        let mut reports = vec![];
        for entry in &group {
            reports.push(read_with_attempts(from.zip, entry, attempts, &mut archive.buffers));
        }
        join_spread_attempts(reports.iter_mut().flatten().flatten());
        for (entry, report) in group.iter().zip(reports) {
            let shown = format!("{}/{}", from.name, entry.path);
            let path = paths::check(&entry.path).map_err(|error| error.to_string());
            match report.and_then(|report| Ok((report, path?))) {
                Ok((Some(report), path)) => {
                    self.add_report(&shown, from.artifact, &path, report)?;
                }
                Ok((None, _)) => {}
                Err(error) => self.quarantine(&shown, &error),
            }
        }
        Ok(())
    }

    /// Reads a report, or Surefire's of a class and of those nested in it.
    fn read_files(
        &mut self,
        files: &[(String, PathBuf)],
        artifact: &ReportArtifact,
    ) -> Result<(), ReceiverGone> {
        let read = |(_, path): &(String, PathBuf)| -> Result<TestReport, JunitError> {
            let mut report = TestReport::read(File::open(path).map_err(JunitError::Read)?)?;
            for earlier in earlier_attempts(path) {
                report.add_earlier_attempt(earlier);
            }
            Ok(report)
        };
        let mut reports: Vec<_> = files.iter().map(read).collect();
        join_spread_attempts(reports.iter_mut().flatten());
        for ((shown, _), report) in files.iter().zip(reports) {
            match report {
                Ok(report) => self.add_report(shown, artifact, shown, report)?,
                Err(error) if is_other_data(shown, &error) => {}
                Err(error) => self.quarantine(shown, &error),
            }
        }
        Ok(())
    }

    /// Whether a report beside the zips is one of those in them. Two in folders are of two jobs, although tests that take
    /// no time look the same in both.
    fn is_repeated(&mut self, path: &str, at: ReportLocation, cases: &[TestCase]) -> bool {
        let mut hasher = DefaultHasher::new();
        for case in cases {
            (&*case.suite, &*case.classname, &case.name, case.result).hash(&mut hasher);
            case.time.map(f64::to_bits).hash(&mut hasher);
        }
        let name = path.rsplit('/').next().unwrap_or(path).to_owned();
        let first = *self.contents.entry((name, hasher.finish())).or_insert(at);
        first.is_in_zip != at.is_in_zip
            && !(first.is_in_artifact && at.is_in_artifact)
            && !cases.is_empty()
    }

    fn add_report(
        &mut self,
        shown: &str,
        artifact: &ReportArtifact,
        path: &str,
        report: TestReport,
    ) -> Result<(), ReceiverGone> {
        let source = self.source(artifact, path);
        if !self.reports.insert(source.report_id) {
            self.quarantine(shown, &"the same report was read already");
            return Ok(());
        }
        // What is in a zip is shown with the name of the zip.
        let location =
            ReportLocation { is_in_zip: shown != path, is_in_artifact: !artifact.label.is_empty() };
        if self.jobs.is_none() && self.is_repeated(path, location, &report.cases) {
            self.quarantine(shown, &"the same report is there twice, in a folder and in a zip");
            return Ok(());
        }
        let job = source.job_id.and_then(|id| self.jobs.as_ref()?.get(&id));
        let started = job.and_then(|job| job.started_at);
        if let (Some((ran, _)), Some(started)) = (report.summary.earliest, started)
            && ran < started - ZONES
        {
            let why = format!("stale: a suite ran at {ran}, and the job started at {started}");
            self.quarantine(shown, &why);
            return Ok(());
        }
        let mut cases = report.cases;
        if report.summary.is_truncated {
            let suite = report.summary.open_suites.last().cloned();
            let why = "the report ends within this suite: it crashed, or was stopped".to_owned();
            cases.push(lost_case(
                TestRowKind::Crashed,
                suite.unwrap_or_else(|| "".into()),
                report_path(path).to_owned(),
                why,
            ));
        }
        if self.counts.rows + cases.len() as u64 > MAX_ROWS_PER_RUN {
            self.quarantine(shown, &ArchiveError::Cap("rows", "more than 10,000,000 in this run"));
            return Ok(());
        }
        self.counts.files += 1;
        self.counts.tally.add(&report.tally);
        self.send(source, cases)
    }

    fn read_manifest(
        &mut self,
        zip: &ZipReader,
        entry: &ZipEntry,
        shown: &str,
        artifact: &ReportArtifact,
        archive: &mut Archive,
    ) -> Result<(), ReceiverGone> {
        let mut json = vec![];
        let read = zip.read_content(entry, &mut archive.buffers, |part| {
            if json.len() + part.len() > MAX_MANIFEST_BYTES {
                return Err(io::Error::other("it is larger than 16 MiB"));
            }
            json.write_all(part)
        });
        let manifest = read.map_err(|error| error.to_string());
        let manifest =
            manifest.and_then(|()| JobManifest::parse(&json).map_err(|error| error.to_string()));
        match manifest {
            Ok(manifest) => {
                if self.jobs.is_none() && manifest.job_status.as_deref() == Some("failure") {
                    let mut source = self.source(artifact, &format!("{MANIFEST_FILE}/job"));
                    if let Some(job) = manifest.job.as_deref().filter(|_| artifact.label.is_empty())
                    {
                        source.job = limited(job).into();
                    }
                    self.told_failed.push(source);
                }
                let missing =
                    manifest.missing.into_iter().take(MAX_MISSING_PER_ARTIFACT).map(|pattern| {
                        let why = "this report is expected, and the job didn't write it".to_owned();
                        lost_case(TestRowKind::Crashed, "".into(), limited(&pattern), why)
                    });
                let missing: Vec<_> = missing.collect();
                if missing.is_empty() {
                    return Ok(());
                }
                let source = self.source(artifact, MANIFEST_FILE);
                self.send(source, missing)
            }
            Err(error) => {
                self.quarantine(shown, &error);
                Ok(())
            }
        }
    }

    /// A row for each failed job that has no row which failed. To be called at the end.
    pub fn add_jobs_without_report(&mut self) -> Result<(), ReceiverGone> {
        let mut jobs: Vec<_> = self.jobs.iter().flat_map(HashMap::values).cloned().collect();
        jobs.sort_by_key(|job| job.id);
        for job in jobs {
            let has_failed = matches!(job.conclusion.as_deref(), Some("failure" | "timed_out"));
            // A job of an earlier attempt was counted then.
            let is_own = job.run_attempt == 0 || job.run_attempt == u64::from(self.run.run_attempt);
            if !has_failed || !is_own || self.failed_jobs.contains(&job.id) {
                continue;
            }
            let source = ReportSource {
                report_id: test_rows::report_id(&self.run, "", &format!("job {}", job.id)),
                job_id: Some(job.id),
                job_id_check: JobIdCheck::Verified,
                job: limited(&job.name).into(),
                artifact: "".into(),
                path: String::new(),
                invoking_file: None,
            };
            let why = "the job failed, and no report of it has a failure".to_owned();
            let name = limited(&job.name);
            self.send(source, vec![lost_case(TestRowKind::NoReport, "".into(), name, why)])?;
        }
        Ok(())
    }

    fn source(&self, artifact: &ReportArtifact, path: &str) -> ReportSource {
        let known = |id| self.jobs.as_ref().map(|jobs| jobs.get(&id));
        let (job_id, job_id_check, job) = match artifact.job_id {
            Ok(id) => match known(id) {
                None => (Some(id), JobIdCheck::Unverified, None),
                Some(Some(job)) => (Some(id), JobIdCheck::Verified, Some(limited(&job.name))),
                Some(None) => (None, JobIdCheck::OtherRun, None),
            },
            Err(check) => (None, check, None),
        };
        ReportSource {
            report_id: test_rows::report_id(&self.run, &artifact.label, path),
            job_id,
            job_id_check,
            job: job.map_or_else(|| artifact.job.clone(), Into::into),
            artifact: artifact.label.clone(),
            path: report_path(path).to_owned(),
            invoking_file: invoking_file(path).map(Into::into),
        }
    }

    fn send(&mut self, source: ReportSource, cases: Vec<TestCase>) -> Result<(), ReceiverGone> {
        if cases.iter().any(|case| case.result.is_failed()) {
            self.failed_jobs.extend(source.job_id);
            self.failed_artifacts.insert(Arc::clone(&source.artifact));
        }
        self.counts.rows += cases.len() as u64;
        let rows = test_rows::rows(&self.run.repository, cases);
        self.rows.blocking_send(ReportRows { source, rows }).map_err(|_| ReceiverGone)
    }

    pub fn quarantine(&mut self, file: &str, reason: &dyn std::fmt::Display) {
        self.counts.quarantined += 1;
        self.listed += 1;
        if self.listed > MAX_LISTED {
            self.unlisted += 1;
            return;
        }
        let (file, reason) = (limited(file), limited(&reason.to_string()));
        self.quarantined.push(QuarantinedFile { file, reason });
    }
}

/// The earlier attempts of the report at `last`, the newest first.
fn earlier_attempts(last: &Path) -> Vec<TestReport> {
    let Some((folder, name)) = last.parent().zip(last.file_name().and_then(|name| name.to_str()))
    else {
        return vec![];
    };
    let names = |within: &str| -> Vec<String> {
        let entries = std::fs::read_dir(folder.join(within)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    let mut paths = vec![];
    if name == LAST_ATTEMPT {
        paths.extend(names("test_attempts").iter().map(|file| format!("test_attempts/{file}")));
    } else if has_extension(name, "trx") {
        for run in names("Retries") {
            let attempts = names(&format!("Retries/{run}"));
            paths.extend(attempts.iter().map(|attempt| format!("Retries/{run}/{attempt}/{name}")));
        }
    }
    paths.retain(|path| last_attempt_of(path).is_some_and(|of| of == name));
    paths.sort_by_key(|path| Reverse(attempt_number(path)));
    let is_link = |path: &Path| folder.join(path).is_symlink();
    let paths = paths
        .iter()
        .map(Path::new)
        .filter(|path| path.ancestors().all(|part| part.as_os_str().is_empty() || !is_link(part)));
    paths.filter_map(|path| TestReport::read(File::open(folder.join(path)).ok()?).ok()).collect()
}

fn attempt_number(path: &str) -> Option<u32> {
    attempt_of(path).map(|(_, number)| number)
}

/// Reads a zip's directory. No entry gives more than that announces, so whether it is too much is decided before
/// anything is unpacked.
fn survey(
    zip: &ZipReader,
    packed: u64,
    is_fork: bool,
    archive: &mut Archive,
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
fn read_with_attempts(
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
struct Archive {
    members: u64,
    unpacked: u64,
    buffers: ReadBuffers,
}

/// Reports in a zip of which there may be several attempts.
#[derive(Default)]
struct ReportAttempts {
    /// The reports of earlier attempts, by the path of the last one, the newest first.
    earlier: HashMap<String, Vec<ZipEntry>>,
    last: HashSet<String>,
    /// Surefire's reports of a class and of those nested in it, until they are read.
    of_class: HashMap<String, Vec<ZipEntry>>,
}

/// A zip whose directory was read.
#[derive(Clone, Copy)]
struct OpenedZip<'a> {
    zip: &'a ZipReader,
    name: &'a str,
    artifact: &'a ReportArtifact,
    /// Whether zips in it are read, too.
    is_outer: bool,
}

enum MemberKind {
    Report,
    Manifest,
    Zip,
}

#[derive(Debug, thiserror::Error)]
enum ArchiveError {
    #[error("cap `{0}`: {1}")]
    Cap(&'static str, &'static str),
    #[error(transparent)]
    Zip(#[from] ZipReadError),
}

enum ReadError {
    Zip(ZipReadError),
    Receiver,
}

impl From<ZipReadError> for ReadError {
    fn from(error: ZipReadError) -> Self {
        Self::Zip(error)
    }
}

impl From<ReceiverGone> for ReadError {
    fn from(ReceiverGone: ReceiverGone) -> Self {
        Self::Receiver
    }
}

/// Unpacks a zip in a zip into a file without a name.
fn unpack(zip: &ZipReader, entry: &ZipEntry, archive: &mut Archive) -> Result<File, ZipReadError> {
    let mut file = tempfile::tempfile()?;
    zip.read_content(entry, &mut archive.buffers, |part| file.write_all(part))?;
    Ok(file)
}

fn is_report(name: &str) -> bool {
    REPORT_EXTENSIONS.iter().any(|extension| has_extension(name, extension))
}

/// Whether a file, such as JSON, is known to have no tests. Results of a tool whose JSON or TAP isn't read are named.
fn is_other_data(name: &str, error: &JunitError) -> bool {
    matches!(error, JunitError::OtherFile(other) if other.has_no_tests())
        && !has_extension(name, "xml")
        && !has_extension(name, "trx")
}

fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name).extension().is_some_and(|own| own.eq_ignore_ascii_case(extension))
}

/// The start of a text that a stranger may have written.
fn limited(text: &str) -> String {
    text.chars().take(MAX_LABEL_CHARS).collect()
}
