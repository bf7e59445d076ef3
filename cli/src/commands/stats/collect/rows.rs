//! Where collected rows go: NDJSON in an object store, and the results database.

use std::collections::HashSet;
use std::io::Write as _;
use std::sync::Arc;

use crcr_aws::object_store::ObjectStore;
use crcr_cidata::test_rows::{RowLines, summaries};
use crcr_domain::ci_data::quarantine::Quarantine;
use crcr_domain::ci_data::test_row::{ReportRows, TestedRun};
use crcr_results::{Results, ResultsError};
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;
use zstd::stream::write::Encoder;

use super::summary::CollectedTests;
use crate::failure::Failure;

/// In bytes of memory, roughly: rows are loaded when there are more.
const LOADED_AT_ONCE: usize = 8 << 20;
/// Besides its texts, in bytes.
const ROW_SIZE: usize = 200;
/// Compressed: an object is finished once it is larger.
const OBJECT_BYTES: usize = 2 << 20;
/// Tests that are looked up, to tell which are new.
const MAX_LOOKED_UP: usize = 200_000;

pub struct RowWriter {
    pub run: Arc<TestedRun>,
    pub files: Option<RowFiles>,
    pub results: Option<Arc<dyn Results>>,
    pub collected: CollectedTests,
    pending: Vec<ReportRows>,
    pending_size: usize,
    /// The load of the rows before, which goes on while more are read.
    loading: Option<AbortOnDropHandle<Result<(), ResultsError>>>,
    looked_up: HashSet<u64>,
}

impl RowWriter {
    pub fn new(
        run: Arc<TestedRun>,
        files: Option<RowFiles>,
        results: Option<Arc<dyn Results>>,
        quarantine: Quarantine,
    ) -> Self {
        Self {
            run,
            files,
            results,
            collected: CollectedTests::new(quarantine),
            pending: vec![],
            pending_size: 0,
            loading: None,
            looked_up: HashSet::new(),
        }
    }

    pub async fn add(&mut self, report: ReportRows) -> Result<(), Failure> {
        self.collected.add(&report);
        if let Some(files) = &mut self.files {
            files.add(&self.run, &report).await?;
        }
        if self.results.is_some() {
            let details = report.rows.iter().flat_map(|row| &row.case.details);
            let texts = details.flat_map(|detail| [&detail.message, &detail.text]);
            let texts: usize = texts.flatten().map(String::len).sum();
            self.pending_size += texts + report.rows.len() * ROW_SIZE;
            self.pending.push(report);
            if self.pending_size >= LOADED_AT_ONCE {
                self.load().await?;
            }
        }
        Ok(())
    }

    /// To be called after the last report.
    pub async fn finish(&mut self) -> Result<(), Failure> {
        if let Some(files) = self.files.take() {
            files.finish(&self.run).await?;
        }
        self.load().await?;
        self.end_load().await?;
        if let Some(results) = &self.results {
            results.finish_test_runs(&self.run).await.map_err(not_loaded)?;
        }
        Ok(())
    }

    async fn load(&mut self) -> Result<(), Failure> {
        let Some(results) = self.results.clone() else { return Ok(()) };
        let rows = std::mem::take(&mut self.pending);
        self.pending_size = 0;
        // Before the load, which makes them known.
        let ids = rows.iter().flat_map(|report| &report.rows).map(|row| row.test_id);
        let new_ids: Vec<u64> = ids
            .filter(|id| self.looked_up.len() < MAX_LOOKED_UP && self.looked_up.insert(*id))
            .collect();
        let known = results.known_tests(&self.run.repository, &new_ids).await;
        let known = known.map_err(not_loaded)?;
        let unknown: HashSet<u64> = new_ids.into_iter().filter(|id| !known.contains(id)).collect();
        self.collected.add_new(&rows, unknown);
        self.end_load().await?;
        let run = Arc::clone(&self.run);
        let load = async move { results.append_test_runs(&run, rows).await };
        self.loading = Some(AbortOnDropHandle::new(tokio::spawn(load)));
        Ok(())
    }

    async fn end_load(&mut self) -> Result<(), Failure> {
        let Some(loading) = self.loading.take() else { return Ok(()) };
        let stopped = |error: JoinError| ResultsError::Unavailable(error.to_string());
        loading.await.map_err(stopped).and_then(|loaded| loaded).map_err(not_loaded)
    }
}

fn not_loaded(error: ResultsError) -> Failure {
    Failure::unexpected("results-unwritable", "the rows can't be loaded")
        .because(error)
        .hint("collect the run again later: rows that are loaded already aren't duplicated")
}

/// NDJSON of each kind of row, in objects of a few MiB. The same rows give the same objects.
pub struct RowFiles {
    store: ObjectStore,
    kinds: [RowFile; 3],
    lines: Vec<u8>,
}

struct RowFile {
    kind: &'static str,
    encoder: Encoder<'static, Vec<u8>>,
    objects: u32,
    is_empty: bool,
}

impl RowFiles {
    pub fn new(store: ObjectStore) -> Result<Self, Failure> {
        let file = |kind| -> Result<_, Failure> {
            Ok(RowFile { kind, encoder: encoder()?, objects: 0, is_empty: true })
        };
        let kinds = [file("test_run")?, file("failed_test_runs")?, file("test_run_summary")?];
        Ok(Self { store, kinds, lines: vec![] })
    }

    async fn add(&mut self, run: &TestedRun, report: &ReportRows) -> Result<(), Failure> {
        let lines = RowLines::new(run, &report.source);
        // A report can have millions of rows.
        for rows in report.rows.chunks(1_000) {
            for kind in 0..2 {
                self.lines.clear();
                let rows = rows.iter().filter(|row| kind == 0 || row.case.result.is_failed());
                for row in rows {
                    lines.test_run(row, &mut self.lines).map_err(not_written)?;
                }
                self.kinds[kind].write(&self.lines)?;
                self.kinds[kind].store(&self.store, run, OBJECT_BYTES).await?;
            }
        }
        self.lines.clear();
        for row in summaries(report) {
            lines.summary(&row, &mut self.lines).map_err(not_written)?;
        }
        self.kinds[2].write(&self.lines)?;
        self.kinds[2].store(&self.store, run, OBJECT_BYTES).await
    }

    async fn finish(mut self, run: &TestedRun) -> Result<(), Failure> {
        for file in &mut self.kinds {
            file.store(&self.store, run, 0).await?;
        }
        Ok(())
    }
}

impl RowFile {
    fn write(&mut self, lines: &[u8]) -> Result<(), Failure> {
        self.is_empty &= lines.is_empty();
        self.encoder.write_all(lines).map_err(not_written)
    }

    /// Stores what there is, if it is at least `size`.
    async fn store(
        &mut self,
        store: &ObjectStore,
        run: &TestedRun,
        size: usize,
    ) -> Result<(), Failure> {
        if self.is_empty || self.encoder.get_ref().len() < size {
            return Ok(());
        }
        let full = std::mem::replace(&mut self.encoder, encoder()?);
        let body = full.finish().map_err(not_written)?;
        // With their names before them, no part of the key starts with a dot.
        let (owner, repo) = run.repository.split_once('/').unwrap_or((&run.repository, ""));
        let key = format!(
            "{}/owner={owner}/repo={repo}/run={}/attempt={}/{:05}.ndjson.zst",
            self.kind, run.run_id, run.run_attempt, self.objects
        );
        self.objects += 1;
        self.is_empty = true;
        store.put(&key, body.into()).await.map_err(|error| {
            Failure::unexpected("results-unwritable", "the rows can't be written")
                .because(error)
                .hint("check `rows`, and collect the run again: the same objects are replaced")
        })
    }
}

fn encoder() -> Result<Encoder<'static, Vec<u8>>, Failure> {
    Encoder::new(vec![], 1).map_err(not_written)
}

fn not_written(error: std::io::Error) -> Failure {
    Failure::unexpected("results-unwritable", "the rows can't be written").because(error)
}
