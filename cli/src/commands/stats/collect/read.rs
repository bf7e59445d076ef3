//! Reads reports from artifacts and folders. All of it is untrusted: what can't be read is
//! quarantined with its reason, and the rest goes on.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crcr_artifacts::blob_file::BlobFile;
use crcr_artifacts::paths;
use crcr_artifacts::zip::read::{EntryKind, ReadBuffers, ZipEntry, ZipReadError, ZipReader};
use crcr_cidata::job_manifest::{JobManifest, MANIFEST_FILE, MAX_MANIFEST_BYTES};
use crcr_cidata::junit::{
    JunitError, TestReport, has_extension, is_report_file, join_spread_attempts, last_attempt_of,
    of_one_class, outermost_class_report, unread_file,
};
use crcr_cidata::test_rows::{self, ReportArtifact, invoking_file, lost_case, report_path};
use crcr_domain::ci_data::test_row::{JobIdCheck, ReportRows, ReportSource, TestedRun};
use crcr_domain::ci_data::test_run::{TestCase, TestRowKind, TestTally};
use crcr_github::runs::WorkflowJob;
use jiff::SignedDuration;
use serde::Serialize;
use tokio::sync::mpsc::Sender;

use super::archive::{
    ArchiveError, ArchiveUsage, LAST_ATTEMPT, ReportAttempts, attempt_number, is_other_data,
    read_with_attempts, survey, unpack,
};
use super::known_reports::{KnownReports, ReportLocation, content_of, hash_of};

const MAX_ROWS_PER_RUN: u64 = 10_000_000;
/// How many unreadable files of one artifact are listed; more are only counted.
const MAX_LISTED: u64 = 100;
const MAX_MISSING_PER_ARTIFACT: usize = 1_000;
const MAX_LABEL_CHARS: usize = 300;
/// Timestamps in reports often lack a zone, and zones are up to 14 hours apart.
const MAX_ZONE_OFFSET: SignedDuration = SignedDuration::from_hours(14);

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
    /// How many unreadable files of the artifact that is being read aren't listed.
    unlisted: u64,
    listed: u64,
    /// Jobs with a row that failed.
    failed_jobs: HashSet<u64>,
    known: KnownReports,
    /// Jobs that failed as they say themselves, and artifacts with a row that failed.
    told_failed: Vec<ReportSource>,
    failed_artifacts: HashSet<Arc<str>>,
    /// The job of reports whose artifact doesn't name one.
    pub job: Option<String>,
    /// Whether somebody said which attempt is collected. Artifacts of others aren't named then.
    pub is_attempt_chosen: bool,
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
            known: KnownReports::default(),
            told_failed: vec![],
            failed_artifacts: HashSet::new(),
            job: None,
            is_attempt_chosen: false,
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
            self.listed = 0;
            let is_zip = has_extension(&name, "zip");
            if (kind.is_dir() || is_zip) && self.is_of_other_attempt(&display(&path), &name) {
                continue;
            }
            let own = ReportArtifact::parse(&name, self.run.run_attempt);
            if kind.is_dir() {
                self.read_subfolder(root, &path, own.as_ref().unwrap_or(artifact))?;
            } else if kind.is_file() && is_zip {
                let artifact = own.as_ref().unwrap_or(artifact);
                match File::open(&path) {
                    Ok(file) => self.read_archive(&display(&path), artifact, file.into())?,
                    Err(error) => self.quarantine(&display(&path), &error),
                }
            } else if kind.is_file() && name == MANIFEST_FILE {
                let shown = display(&path).replace('\\', "/");
                self.read_manifest_file(&shown, &path, artifact)?;
            } else if kind.is_file() && is_report_file(&name) {
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
            } else if let Some(why) = unread_member(&name, kind.is_symlink())
                && (!kind.is_symlink() || leads_elsewhere(root, &path))
            {
                self.quarantine(&display(&path), &why);
            }
        }
        for group in of_one_class(of_surefire.into_iter(), |(shown, _)| shown.as_str()) {
            self.listed = 0;
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
        let mut archive = ArchiveUsage { members: 0, unpacked: 0, buffers: ReadBuffers::default() };
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
        archive: &mut ArchiveUsage,
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
        archive: &mut ArchiveUsage,
    ) -> Result<(), ReadError> {
        let OpenedZip { zip, name, artifact, is_outer } = *from;
        if last_attempt_of(&entry.path).is_some_and(|last| attempts.last.contains(&last)) {
            return Ok(());
        }
        let shown = format!("{name}/{}", entry.path);
        let kind = match (file_name(&entry.path), entry.kind) {
            (_, EntryKind::Folder) => return Ok(()),
            (MANIFEST_FILE, EntryKind::File) => MemberKind::Manifest,
            (name, EntryKind::File) if is_report_file(name) => MemberKind::Report,
            (name, EntryKind::File) if has_extension(name, "zip") && is_outer => {
                if self.is_of_other_attempt(&shown, name) {
                    return Ok(());
                }
                MemberKind::Zip
            }
            (name, kind) => {
                if let Some(why) = unread_member(name, kind == EntryKind::Symlink) {
                    self.quarantine(&shown, &why);
                }
                return Ok(());
            }
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
                    let own = ReportArtifact::parse(file_name(&path), self.run.run_attempt);
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
        archive: &mut ArchiveUsage,
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

    /// Whether an artifact is of another attempt, as its name says.
    fn is_of_other_attempt(&mut self, shown: &str, name: &str) -> bool {
        let collected = self.run.run_attempt;
        let attempt = ReportArtifact::attempt(name).filter(|attempt| *attempt != collected);
        let Some(attempt) = attempt else { return false };
        if !self.is_attempt_chosen {
            let why = format!(
                "it is of attempt {attempt}, and attempt {collected} is collected: choose one by `--run-attempt`"
            );
            self.quarantine(shown, &why);
        }
        true
    }

    fn add_report(
        &mut self,
        shown: &str,
        artifact: &ReportArtifact,
        path: &str,
        report: TestReport,
    ) -> Result<(), ReceiverGone> {
        let mut source = self.source(artifact, path);
        let content = content_of(&report);
        if let Err(why) = self.known.claim(&mut source, shown, content) {
            self.quarantine(shown, &why);
            return Ok(());
        }
        // What is in a zip is shown with the name of the zip.
        let location =
            ReportLocation { is_in_zip: shown != path, is_in_artifact: !artifact.label.is_empty() };
        let has_tests = !report.cases.is_empty();
        if self.jobs.is_none() && has_tests && self.known.is_repeated(path, location, content) {
            self.quarantine(shown, &"the same report is there twice, in a folder and in a zip");
            return Ok(());
        }
        let job = source.job_id.and_then(|id| self.jobs.as_ref()?.get(&id));
        let started = job.and_then(|job| job.started_at);
        if let (Some((ran, _)), Some(started)) = (report.summary.earliest, started)
            && ran < started - MAX_ZONE_OFFSET
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
        archive: &mut ArchiveUsage,
    ) -> Result<(), ReceiverGone> {
        let mut json = vec![];
        let read = zip.read_content(entry, &mut archive.buffers, |part| {
            if json.len() + part.len() > MAX_MANIFEST_BYTES {
                return Err(io::Error::other("it is larger than 16 MiB"));
            }
            json.write_all(part)
        });
        match read {
            Ok(()) => self.add_manifest(shown, artifact, &json),
            Err(error) => {
                self.quarantine(shown, &error);
                Ok(())
            }
        }
    }

    /// Reads that of a pack that was unpacked.
    fn read_manifest_file(
        &mut self,
        shown: &str,
        path: &Path,
        artifact: &ReportArtifact,
    ) -> Result<(), ReceiverGone> {
        let mut json = vec![];
        let read = File::open(path)
            .and_then(|file| file.take(MAX_MANIFEST_BYTES as u64 + 1).read_to_end(&mut json));
        match read {
            Ok(_) => self.add_manifest(shown, artifact, &json),
            Err(error) => {
                self.quarantine(shown, &error);
                Ok(())
            }
        }
    }

    fn add_manifest(
        &mut self,
        shown: &str,
        artifact: &ReportArtifact,
        json: &[u8],
    ) -> Result<(), ReceiverGone> {
        let mut source = self.source(artifact, MANIFEST_FILE);
        let parsed = JobManifest::parse(json).map_err(|error| error.to_string());
        let content = hash_of(json);
        let claimed = parsed.and_then(|manifest| {
            self.known.claim(&mut source, shown, content).map_err(str::to_owned)?;
            Ok(manifest)
        });
        let manifest = match claimed {
            Ok(manifest) => manifest,
            Err(why) => {
                self.quarantine(shown, &why);
                return Ok(());
            }
        };
        if self.jobs.is_none() && manifest.job_status.as_deref() == Some("failure") {
            let mut source = self.source(artifact, &format!("{MANIFEST_FILE}/job"));
            if let Some(job) = manifest.job.as_deref().filter(|_| artifact.label.is_empty()) {
                source.job = limited(job).into();
            }
            // The manifest wasn't known before, so this row isn't either.
            if self.known.claim(&mut source, &format!("{shown}/job"), content).is_ok() {
                self.told_failed.push(source);
            }
        }
        let missing = manifest.missing.into_iter().take(MAX_MISSING_PER_ARTIFACT).map(|pattern| {
            let why = "this report is expected, and the job didn't write it".to_owned();
            lost_case(TestRowKind::Crashed, "".into(), limited(&pattern), why)
        });
        let missing: Vec<_> = missing.collect();
        if missing.is_empty() {
            return Ok(());
        }
        self.send(source, missing)
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

/// Why a file isn't read that looks like a report or an archive.
fn unread_member(name: &str, is_link: bool) -> Option<&'static str> {
    if is_link && (is_report_file(name) || has_extension(name, "zip")) {
        return Some("it is a symbolic link, which isn't followed");
    }
    let is_zip = has_extension(name, "zip");
    is_zip.then_some("a zip in a zip in a zip isn't read: unpack it first").or(unread_file(name))
}

/// Whether a link leads to a file that isn't read in its own place.
fn leads_elsewhere(root: &Path, link: &Path) -> bool {
    let (Ok(target), Ok(root)) = (link.canonicalize(), root.canonicalize()) else { return true };
    target.is_file() && !target.starts_with(root)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The start of a text that a stranger may have written.
fn limited(text: &str) -> String {
    text.chars().take(MAX_LABEL_CHARS).collect()
}
