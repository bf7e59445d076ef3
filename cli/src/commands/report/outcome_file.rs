//! What the job that ran the tests outcome_file for the job that reports: data of the code under test.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crcr_domain::lifecycle::Conclusion;
use serde::Deserialize;

use crate::printer::Printer;

/// The most bytes of the file that are read.
const MAX_BYTES: u64 = 4096;

/// How the job says that it ended.
#[derive(Debug, Default)]
pub struct OutcomeFile {
    conclusion: Option<Conclusion>,
    pub phase: Option<String>,
}

impl OutcomeFile {
    /// The job's conclusion, where `github` is what `needs.JOB.result` says of all legs of a matrix.
    ///
    /// A leg may have passed where another one failed; none failed where GitHub says `success`.
    pub fn conclusion(&self, github: Conclusion) -> Conclusion {
        match github {
            Conclusion::Failure | Conclusion::Cancelled => self.conclusion.unwrap_or(github),
            _ => github,
        }
    }
}

/// Reads the file; a warning, and nothing, where it isn't there or isn't what it should be.
pub fn read(path: Option<&Path>, printer: &Printer) -> OutcomeFile {
    let Some(path) = path else { return OutcomeFile::default() };
    parse(path).unwrap_or_else(|why| {
        printer.warning(
            &format!("`outcome-file` can't be read, so the input `conclusion` decides: {why}"),
            Some("the job may have ended before it wrote the file, or its artifact is missing"),
        );
        OutcomeFile::default()
    })
}

fn parse(path: &Path) -> Result<OutcomeFile, String> {
    #[derive(Deserialize)]
    struct OutcomeJson {
        conclusion: Option<String>,
        phase: Option<String>,
    }
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let written: OutcomeJson = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let conclusion = match written.conclusion.as_deref() {
        None => None,
        Some("success") => Some(Conclusion::Success),
        Some("failure") => Some(Conclusion::Failure),
        Some("cancelled") => Some(Conclusion::Cancelled),
        Some(_) => return Err("`conclusion` isn't `success`, `failure` or `cancelled`".to_owned()),
    };
    Ok(OutcomeFile { conclusion, phase: written.phase.filter(|phase| is_word(phase)) })
}

/// Whether a phase is one short word: anything else would make the relay refuse the report.
fn is_word(phase: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=40).contains(&phase.len()) && phase.bytes().all(letters)
}
