//! The file in which the job that ran the tests says how it ended, for the job that reports. It is
//! written by the code under test, so it is untrusted.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crcr_domain::checks::lifecycle::Conclusion;
use serde::Deserialize;

use crate::printer::Printer;

const MAX_BYTES: u64 = 4096;

#[derive(Debug, Default)]
pub struct OutcomeFile {
    conclusion: Option<Conclusion>,
    pub phase: Option<String>,
}

impl OutcomeFile {
    /// The conclusion of this leg of a matrix; `github` is `needs.JOB.result`, which covers all legs.
    ///
    /// If GitHub says `failure`, this leg may still have passed. If it says `success`, no leg failed.
    pub fn conclusion(&self, github: Conclusion) -> Conclusion {
        match github {
            Conclusion::Failure | Conclusion::Cancelled => self.conclusion.unwrap_or(github),
            _ => github,
        }
    }
}

/// Reads the file. A missing or malformed file is only a warning.
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

/// Whether the phase is one short word; the relay would refuse anything else.
fn is_word(phase: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=40).contains(&phase.len()) && phase.bytes().all(letters)
}
