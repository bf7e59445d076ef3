//! Reads stored logs page by page. A page unpacks few frames, so that neither its memory nor its time depends on how
//! long the log is.

use std::io::Read as _;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{OnceCell, mpsc};

use super::cleaner::clean_line;
use super::packed::{FRAME_BYTES, FramePlace, MAX_INDEX, unpack_log};
use super::{LogIndex, MAX_PACKED_LOG};
use crcr_aws::object_store::{ObjectStore, ObjectStoreError};

/// A longer line is cut.
const MAX_LINE_CHARS: usize = 2_000;
/// In bytes of text; a page with longer lines has fewer.
const MAX_PAGE_BYTES: usize = 512 * 1024;
/// Bytes of a line that can matter: timestamps and escape sequences are left out.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// The object store of a relay's logs, opened when the first log is asked for.
#[derive(Debug, Default)]
pub struct StoredLogs {
    url: Option<String>,
    store: OnceCell<ObjectStore>,
}

/// A log and what is where in it.
#[derive(Debug)]
pub struct StoredLog {
    pub index: LogIndex,
    store: ObjectStore,
    key: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct LogLine {
    /// Counted from 1.
    pub number: u64,
    /// Without timestamp and escape sequences; a longer one is cut and ends with `…`.
    pub text: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct LogPage {
    pub lines: Vec<LogLine>,
    /// The first line of the next page.
    pub next: Option<u64>,
}

/// Why the text of a log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogTextEnd {
    Whole,
    /// Nobody reads any more.
    Abandoned,
}

impl StoredLogs {
    /// `url` as for [`ObjectStore::open`]; without one no logs are kept.
    pub fn new(url: Option<String>) -> Self {
        Self { url, store: OnceCell::new() }
    }

    /// `None` if there is no such log.
    pub async fn open(&self, key: &str) -> Result<Option<StoredLog>, ObjectStoreError> {
        let Some(url) = &self.url else { return Ok(None) };
        let store = self.store.get_or_try_init(|| ObjectStore::open(url)).await?;
        let Some((tail, _)) = store.tail(key, MAX_INDEX).await? else { return Ok(None) };
        let index = LogIndex::read(&tail).ok_or_else(|| ObjectStoreError::Unavailable {
            place: key.to_owned(),
            reason: "the log has no index".to_owned(),
        })?;
        Ok(Some(StoredLog { index, store: store.clone(), key: key.to_owned() }))
    }
}

impl StoredLog {
    /// At most `count` lines, and at most [`MAX_PAGE_BYTES`] of text, from a line on.
    pub async fn page(&self, first: u64, count: usize) -> Result<LogPage, ObjectStoreError> {
        let mut page = LogPage::default();
        let (mut bytes, mut next) = (0, first.max(1));
        while let Some(frame) = self.index.frame_of(next) {
            let text = self.unpack(frame).await?;
            let (before, mut number) = (next, frame.line);
            // What comes after the last line feed is the start of the next frame's first line.
            for line in text.strip_suffix(b"\n").unwrap_or(&text).split(|byte| *byte == b'\n') {
                if number == next {
                    if page.lines.len() >= count || bytes >= MAX_PAGE_BYTES {
                        page.next = Some(next);
                        return Ok(page);
                    }
                    let line = shown(line);
                    bytes += line.len();
                    page.lines.push(LogLine { number, text: line });
                    next += 1;
                }
                number += 1;
            }
            if next == before {
                return Err(self.unavailable("its index isn't of this log"));
            }
        }
        Ok(page)
    }

    /// Sends the text piece by piece, as it was received, and no faster than it is taken.
    pub async fn send_text(
        &self,
        pieces: &mpsc::Sender<Bytes>,
    ) -> Result<LogTextEnd, ObjectStoreError> {
        for at in 0.. {
            let Some(frame) = self.index.frame(at) else { break };
            let text = self.unpack(frame).await?;
            if pieces.send(text.into()).await.is_err() {
                return Ok(LogTextEnd::Abandoned);
            }
        }
        Ok(LogTextEnd::Whole)
    }

    async fn unpack(&self, frame: FramePlace) -> Result<Vec<u8>, ObjectStoreError> {
        // Even what can't be compressed has about the size of its text.
        let length = frame.end.map_or(3 * FRAME_BYTES, |end| (end - frame.start) as usize);
        let length = length.min(MAX_PACKED_LOG);
        let packed = self.store.range(&self.key, frame.start, length).await?;
        let packed = packed.ok_or_else(|| self.unavailable("it is gone"))?;
        let unpack = move || {
            let mut text = vec![];
            unpack_log(packed)?.take(3 * FRAME_BYTES as u64).read_to_end(&mut text)?;
            Ok::<_, std::io::Error>(text)
        };
        let text = tokio::task::spawn_blocking(unpack).await;
        let text = text.map_err(|error| self.unavailable(&error.to_string()))?;
        text.map_err(|error| self.unavailable(&error.to_string()))
    }

    fn unavailable(&self, reason: &str) -> ObjectStoreError {
        ObjectStoreError::Unavailable { place: self.key.clone(), reason: reason.to_owned() }
    }
}

fn shown(line: &[u8]) -> String {
    let start = &line[..line.len().min(MAX_LINE_BYTES)];
    let clean = clean_line(start);
    let mut chars = clean.chars();
    let mut text: String = chars.by_ref().take(MAX_LINE_CHARS).collect();
    if chars.next().is_some() || line.len() > MAX_LINE_BYTES {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::LogPacker;
    use super::*;

    async fn stored(text: impl Iterator<Item = Vec<u8>>) -> (tempfile::TempDir, StoredLog) {
        let folder = tempfile::tempdir().unwrap();
        let mut packer = LogPacker::new().unwrap();
        for piece in text {
            packer.add(&piece).unwrap();
        }
        let url = format!("file:{}", folder.path().display());
        let store = ObjectStore::open(&url).await.unwrap();
        store.put("logs/a/b/7.txt.zst", packer.finish().unwrap()).await.unwrap();
        let logs = StoredLogs::new(Some(url));
        assert!(logs.open("logs/a/b/8.txt.zst").await.unwrap().is_none());
        let log = logs.open("logs/a/b/7.txt.zst").await.unwrap().unwrap();
        (folder, log)
    }

    #[tokio::test]
    async fn every_page_has_its_lines_wherever_frames_end() {
        let line = |n: u64| match n % 5 {
            0 => String::new(),
            n => format!(
                "2026-11-23T06:17:44.1234567Z \u{1b}[31mline\u{1b}[0m {n} {}",
                "y".repeat(90)
            ),
        };
        let lines = 100_000;
        let (_folder, log) =
            stored((1..=lines).map(|n| format!("{n}{}\n", line(n)).into_bytes())).await;
        assert_eq!(log.index.lines, lines);
        let mut seen = 0;
        let mut first = Some(1);
        while let Some(next) = first {
            let page = log.page(next, 997).await.unwrap();
            for line in &page.lines {
                seen += 1;
                assert_eq!(line.number, seen);
                assert!(line.text.starts_with(&seen.to_string()), "{line:?}");
            }
            first = page.next;
        }
        assert_eq!(seen, lines);
        assert_eq!(log.page(lines + 1, 9).await.unwrap(), LogPage::default());
        let (pieces, mut text) = mpsc::channel(1);
        let sent = tokio::spawn(async move { log.send_text(&pieces).await });
        let mut bytes = 0;
        while let Some(piece) = text.recv().await {
            bytes += piece.len() as u64;
        }
        assert_eq!(sent.await.unwrap().unwrap(), LogTextEnd::Whole);
        assert_eq!(
            bytes,
            (1..=lines).map(|n| format!("{n}{}\n", line(n)).len() as u64).sum::<u64>()
        );
    }

    #[tokio::test]
    async fn empty_lines_and_lines_longer_than_frames_are_numbered_as_they_are() {
        let text = [b"\n\nthree\n".to_vec(), vec![b'x'; 9 * FRAME_BYTES], b"\n\nsix\n\n".to_vec()];
        let (_folder, log) = stored(text.into_iter()).await;
        let page = log.page(1, 99).await.unwrap();
        let found: Vec<_> = page
            .lines
            .iter()
            .map(|line| (line.number, line.text.chars().take(6).collect::<String>()))
            .collect();
        let expected =
            [(1, ""), (2, ""), (3, "three"), (4, "xxxxxx"), (5, ""), (6, "six"), (7, "")];
        assert_eq!(found, expected.map(|(n, text)| (n, text.to_owned())));
        assert_eq!(page.lines[3].text.chars().count(), MAX_LINE_CHARS + 1);
        assert_eq!(log.page(6, 1).await.unwrap().next, Some(7));
    }
}
