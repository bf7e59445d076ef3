//! Logs as people have them: compressed, in UTF-16, or as the archive of all jobs of a run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use encoding_rs::{Decoder, Encoding, UTF_16BE, UTF_16LE};
use flate2::read::{DeflateDecoder, MultiGzDecoder};
use rawzip::{CompressionMethod, RECOMMENDED_BUFFER_SIZE, ZipArchive, ZipArchiveEntryWayfinder};

/// As a power of two, in bytes: the most memory that a frame of zstd may ask for.
const MAX_ZSTD_WINDOW: u32 = 25;
/// Bytes that are looked at to tell a log's form.
const START_BYTES: u64 = 64;
const UTF_16_PIECE_BYTES: usize = 16 * 1024;
/// A run has at most 256 jobs of a matrix for each job; this is far more.
const MAX_ARCHIVE_ENTRIES: usize = 20_000;
const MAX_NAME_BYTES: usize = 1000;

/// The text of a log that may be compressed with gzip or zstd, or be UTF-16 as PowerShell's `>` writes it, which its
/// first bytes tell.
pub fn unpacked<'r>(mut input: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    let mut start = Vec::new();
    input.by_ref().take(START_BYTES).read_to_end(&mut start)?;
    let is_gzip = start.starts_with(&[0x1f, 0x8b]);
    let is_zstd = start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    let encoding = utf_16(&start);
    let input = Cursor::new(start).chain(input);
    if is_gzip {
        unpacked_text(MultiGzDecoder::new(BufReader::new(input)))
    } else if is_zstd {
        let mut decoder = zstd::Decoder::new(input)?;
        decoder.window_log_max(MAX_ZSTD_WINDOW)?;
        unpacked_text(decoder)
    } else {
        Ok(decoded(input, encoding))
    }
}

/// What was compressed may be UTF-16.
fn unpacked_text<'r>(mut input: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    let mut start = Vec::new();
    input.by_ref().take(START_BYTES).read_to_end(&mut start)?;
    let encoding = utf_16(&start);
    Ok(decoded(Cursor::new(start).chain(input), encoding))
}

fn decoded<'r>(input: impl Read + 'r, encoding: Option<&'static Encoding>) -> Box<dyn Read + 'r> {
    match encoding {
        Some(encoding) => Box::new(Utf16Reader {
            input,
            decoder: encoding.new_decoder_with_bom_removal(),
            text: vec![],
            at: 0,
            is_at_end: false,
        }),
        None => Box::new(input),
    }
}

/// A byte order mark, or text whose every other byte is zero.
fn utf_16(start: &[u8]) -> Option<&'static Encoding> {
    match start {
        [0xff, 0xfe, ..] => return Some(UTF_16LE),
        [0xfe, 0xff, ..] => return Some(UTF_16BE),
        _ if start.len() < 16 => return None,
        _ => {}
    }
    let pairs = || start.chunks_exact(2);
    let is_ascii = |byte: u8| byte != 0 && byte.is_ascii();
    if pairs().all(|pair| is_ascii(pair[0]) && pair[1] == 0) {
        Some(UTF_16LE)
    } else if pairs().all(|pair| pair[0] == 0 && is_ascii(pair[1])) {
        Some(UTF_16BE)
    } else {
        None
    }
}

struct Utf16Reader<R> {
    input: R,
    decoder: Decoder,
    text: Vec<u8>,
    at: usize,
    is_at_end: bool,
}

impl<R: Read> Read for Utf16Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.text.len() && !self.is_at_end {
            let mut piece = vec![0; UTF_16_PIECE_BYTES];
            let count = self.input.read(&mut piece)?;
            self.is_at_end = count == 0;
            // Three bytes of UTF-8 for two of UTF-16, and what the decoder held back.
            self.text.resize(count * 3 / 2 + 16, 0);
            let (_, _, written, _) =
                self.decoder.decode_to_utf8(&piece[..count], &mut self.text, self.is_at_end);
            self.text.truncate(written);
            self.at = 0;
        }
        let count = (self.text.len() - self.at).min(buffer.len());
        buffer[..count].copy_from_slice(&self.text[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// One log of a folder or an archive. GitHub's archive has a file for each job, and a folder with a file for each step.
pub struct LogSource {
    /// Its name inside, as it is shown.
    pub name: String,
    place: LogPlace,
}

type ArchiveEntry = (ZipArchiveEntryWayfinder, CompressionMethod);

enum LogPlace {
    File(PathBuf),
    /// Entries of an archive, one after the other.
    Entries(PathBuf, Vec<ArchiveEntry>),
}

/// The logs of a folder, of GitHub's archive of a run, or the one log of a file.
pub fn log_sources(path: &Path) -> io::Result<Vec<LogSource>> {
    if path.is_dir() {
        return folder_sources(path);
    }
    let mut start = [0; 4];
    let count = File::open(path)?.read(&mut start)?;
    if start[..count] == *b"PK\x03\x04" {
        return archive_sources(path);
    }
    let place = LogPlace::File(path.to_owned());
    Ok(vec![LogSource { name: path.display().to_string(), place }])
}

impl LogSource {
    /// The text of the log.
    pub fn open(&self) -> io::Result<Box<dyn Read>> {
        match &self.place {
            LogPlace::File(path) => unpacked(File::open(path)?),
            LogPlace::Entries(path, entries) => {
                let mut text: Box<dyn Read> = Box::new(io::empty());
                for entry in entries {
                    text = Box::new(text.chain(open_entry(path, *entry)?));
                }
                unpacked(text)
            }
        }
    }
}

fn folder_sources(folder: &Path) -> io::Result<Vec<LogSource>> {
    let mut names: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            // A link may lead anywhere.
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy();
                names.insert(name.replace('\\', "/"), path.clone());
            }
            if names.len() > MAX_ARCHIVE_ENTRIES {
                return Err(too_many());
            }
        }
    }
    let jobs = jobs_of(names.keys().map(String::as_str));
    let place = |steps: &[String]| match steps {
        [name] => Some(LogPlace::File(names[name].clone())),
        _ => None,
    };
    Ok(jobs
        .into_iter()
        .flat_map(|(name, steps)| match place(&steps) {
            Some(place) => vec![LogSource { name, place }],
            // In a folder, each file is a log of its own.
            None => steps
                .into_iter()
                .map(|step| LogSource { place: LogPlace::File(names[&step].clone()), name: step })
                .collect(),
        })
        .collect())
}

fn archive_sources(path: &Path) -> io::Result<Vec<LogSource>> {
    let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
    let archive =
        ZipArchive::from_file(File::open(path)?, &mut buffer).map_err(io::Error::other)?;
    let mut entries = archive.entries(&mut buffer);
    let mut places: BTreeMap<String, ArchiveEntry> = BTreeMap::new();
    while let Some(entry) = entries.next_entry().map_err(io::Error::other)? {
        let raw = entry.file_path();
        let name = String::from_utf8_lossy(raw.as_ref()).into_owned();
        if !entry.is_dir() && name.len() <= MAX_NAME_BYTES {
            places.insert(name, (entry.wayfinder(), entry.compression_method()));
        }
        if places.len() > MAX_ARCHIVE_ENTRIES {
            return Err(too_many());
        }
    }
    let jobs = jobs_of(places.keys().map(String::as_str));
    let source = |(name, steps): (String, Vec<String>)| {
        let entries = steps.iter().map(|step| places[step]).collect();
        LogSource { name, place: LogPlace::Entries(path.to_owned(), entries) }
    };
    Ok(jobs.into_iter().map(source).collect())
}

fn open_entry(path: &Path, (place, method): ArchiveEntry) -> io::Result<Box<dyn Read>> {
    let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
    let archive =
        ZipArchive::from_file(File::open(path)?, &mut buffer).map_err(io::Error::other)?;
    let entry = archive.get_entry(place).map_err(io::Error::other)?;
    let (start, end) = entry.compressed_data_range();
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(start))?;
    let data = file.take(end.saturating_sub(start));
    match method {
        CompressionMethod::STORE => Ok(Box::new(data)),
        CompressionMethod::DEFLATE => Ok(Box::new(DeflateDecoder::new(BufReader::new(data)))),
        _ => Err(io::Error::other("the archive is packed in a way that GitHub doesn't use")),
    }
}

/// GitHub's archive has `0_build.txt` for a job, and `build/1_Set up job.txt` and so on for its steps, which are left
/// out where the whole job is there.
fn jobs_of<'n>(names: impl Iterator<Item = &'n str>) -> BTreeMap<String, Vec<String>> {
    let names: Vec<&str> = names.collect();
    let whole = |folder: &str| {
        names.iter().any(|name| {
            let job = name.strip_suffix(".txt").and_then(|name| name.split_once('_'));
            job.is_some_and(|(number, job)| {
                number.bytes().all(|b| b.is_ascii_digit()) && job == folder
            })
        })
    };
    let mut jobs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in &names {
        match name.split_once('/') {
            Some((folder, _)) if whole(folder) => {}
            Some((folder, step)) if step.starts_with(|c: char| c.is_ascii_digit()) => {
                jobs.entry(folder.to_owned()).or_default().push((*name).to_owned());
            }
            _ => jobs.entry((*name).to_owned()).or_default().push((*name).to_owned()),
        }
    }
    for steps in jobs.values_mut() {
        steps.sort_by_key(|name| {
            let step = name.rsplit('/').next().unwrap_or_default();
            let number = step.split('_').next().and_then(|number| number.parse::<u64>().ok());
            (number.unwrap_or(u64::MAX), name.clone())
        });
    }
    jobs
}

fn too_many() -> io::Error {
    io::Error::other(format!("there are more than {MAX_ARCHIVE_ENTRIES} logs in it"))
}
