//! `crcr relay import`: rows of the deployed system's table, as facts of this one.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::ExitCode;

use crcr_domain::facts::Fact;
use crcr_results::{Results, ResultsError, ResultsUrl, deployed};
use crcr_store::StoreRole;

use crate::cli::relay::ImportArgs;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::{Printer, Progress};

/// The longest line that is read, in bytes.
const LINE: usize = 1024 * 1024;
/// Facts that are written at a time.
const PART: usize = 5000;
/// Lines that are told of; of more only the number.
const TOLD: u64 = 100;

/// Reads every file once, in order. Exit code 1 when a line can't be taken; the others are kept.
pub async fn run(args: &ImportArgs, env: &Env, printer: &Printer) -> Outcome {
    let results = open(args, env).await?;
    let mut import = Import { results: &*results, part: vec![], rows: 0, bad: 0, printer };
    for path in &args.files {
        let name = path.display().to_string();
        if path == Path::new("-") {
            import.all(&mut BufReader::new(io::stdin()), "-", 0).await?;
            continue;
        }
        let unreadable = |error: io::Error| {
            Failure::user("file", format!("`{name}` can't be read")).because(error)
        };
        let file = File::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        import.all(&mut BufReader::new(file), &name, bytes).await?;
    }
    import.write().await?;
    let Import { rows, bad, .. } = import;
    printer.data_line(&format!("{rows} rows are in the results, {bad} lines could not be taken"));
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

async fn open(args: &ImportArgs, env: &Env) -> Result<std::sync::Arc<dyn Results>, Failure> {
    let named = args.results.as_deref().or(env.get(env_vars::CRCR_RESULTS));
    let url = named.or(env.get(env_vars::CRCR_STORE)).unwrap_or("sqlite:crcr.db");
    let url = ResultsUrl::parse(url).map_err(|what| {
        Failure::user("results", format!("`--results`: {what}"))
            .hint("name what the relay's `--results` or `--store` names")
    })?;
    let results = crcr_results::open(&url, StoreRole::Tool).await.map_err(unusable)?;
    results.prepare().await.map_err(unusable)?;
    Ok(results)
}

fn unusable(error: ResultsError) -> Failure {
    Failure::unexpected("results", "the results can't be written")
        .because(error)
        .hint("import the same files again once they can: rows that are there are not doubled")
}

struct Import<'a> {
    results: &'a dyn Results,
    part: Vec<Fact>,
    rows: u64,
    bad: u64,
    printer: &'a Printer,
}

impl Import<'_> {
    async fn all(
        &mut self,
        input: &mut (dyn BufRead + Send),
        name: &str,
        bytes: u64,
    ) -> Result<(), Failure> {
        let progress: Progress = self.printer.progress(&format!("importing {name}"), bytes);
        let (mut line, mut number) = (vec![], 0_u64);
        loop {
            line.clear();
            let read = read_line(input, &mut line).map_err(|error| {
                Failure::user("file", format!("`{name}` can't be read further")).because(error)
            })?;
            if read == 0 {
                break;
            }
            number += 1;
            progress.advance(read);
            let row = if line.len() > LINE {
                Err(("too-long", format!("longer than {LINE} bytes")))
            } else if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            } else {
                deployed::row(&line).map_err(|why| (why.code, why.what))
            };
            match row {
                Ok(facts) => {
                    self.rows += 1;
                    self.part.extend(facts);
                }
                Err((code, what)) => self.tell(name, number, code, &what),
            }
            if self.part.len() >= PART {
                self.write().await?;
            }
        }
        progress.finish();
        Ok(())
    }

    fn tell(&mut self, name: &str, number: u64, code: &str, what: &str) {
        self.bad += 1;
        if self.bad <= TOLD {
            self.printer.warning(&format!("{name}:{number}: [{code}] {what}"), None);
        } else if self.bad == TOLD + 1 {
            self.printer.warning("more lines could not be taken; the end says how many", None);
        }
    }

    async fn write(&mut self) -> Result<(), Failure> {
        self.results.append(std::mem::take(&mut self.part)).await.map_err(unusable)
    }
}

/// Reads a line; of one that is longer than [`LINE`] so much that it shows. Returns the bytes that
/// were passed, 0 at the end.
fn read_line(input: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    let mut passed = 0;
    loop {
        let chunk = input.fill_buf()?;
        if chunk.is_empty() {
            return Ok(passed);
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(chunk.len(), |end| end + 1);
        let room = (LINE + 1).saturating_sub(line.len());
        line.extend_from_slice(&chunk[..end.unwrap_or(taken).min(room)]);
        input.consume(taken);
        passed += taken as u64;
        if end.is_some() {
            return Ok(passed);
        }
    }
}
