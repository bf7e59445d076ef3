//! `crcr relay import`: converts rows of the deployed system's table into facts.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::ExitCode;

use crcr_domain::results::facts::Fact;
use crcr_results::{Results, deployed};

use super::{open_results, results_failure};
use crate::cli::relay::ImportArgs;
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::{ByteProgress, Printer};
use crate::render::plural;

const MAX_LINE_BYTES: usize = 1024 * 1024;
const FACTS_PER_WRITE: usize = 5000;
/// Later bad lines are only counted.
const MAX_WARNINGS: u64 = 100;

/// Reads the files in order. Exit code 1 if a line can't be imported; the other lines are.
pub async fn run(args: &ImportArgs, env: &Env, printer: &Printer) -> Outcome {
    let results = open_results(args.results.as_deref(), env).await?;
    let mut import =
        ImportRun { results: &*results, facts: vec![], rows: 0, bad: 0, warnings: 0, printer };
    for path in &args.files {
        let name = path.display().to_string();
        if path == Path::new("-") {
            import.read_lines(&mut BufReader::new(io::stdin()), "-", 0).await?;
            continue;
        }
        let unreadable = |error: io::Error| {
            Failure::user("file", format!("`{name}` can't be read")).because(error)
        };
        let file = File::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        import.read_lines(&mut BufReader::new(file), &name, bytes).await?;
    }
    import.write().await?;
    let ImportRun { rows, bad, .. } = import;
    let rows = plural(rows, "row was imported", "rows were imported");
    let bad_lines = plural(bad, "line", "lines");
    printer.data_line(&format!("{rows}, {bad_lines} could not be imported"));
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

struct ImportRun<'a> {
    results: &'a dyn Results,
    facts: Vec<Fact>,
    rows: u64,
    bad: u64,
    warnings: u64,
    printer: &'a Printer,
}

impl ImportRun<'_> {
    async fn read_lines(
        &mut self,
        input: &mut (dyn BufRead + Send),
        name: &str,
        bytes: u64,
    ) -> Result<(), Failure> {
        let progress: ByteProgress = self.printer.progress(&format!("importing {name}"), bytes);
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
            let row = if line.len() > MAX_LINE_BYTES {
                Err(("too-long", format!("longer than {MAX_LINE_BYTES} bytes")))
            } else if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            } else {
                deployed::row(&line).map_err(|why| (why.code, why.what))
            };
            match row {
                Ok(facts) => {
                    self.rows += 1;
                    for warning in facts.iter().flat_map(warnings) {
                        self.warn(name, number, "detail", warning);
                    }
                    self.facts.extend(facts);
                }
                Err((code, what)) => {
                    self.bad += 1;
                    self.warn(name, number, code, &what);
                }
            }
            if self.facts.len() >= FACTS_PER_WRITE {
                self.write().await?;
            }
        }
        progress.finish();
        Ok(())
    }

    fn warn(&mut self, name: &str, number: u64, code: &str, what: &str) {
        self.warnings += 1;
        if self.warnings <= MAX_WARNINGS {
            self.printer.warning(&format!("{name}:{number}: [{code}] {what}"), None);
        } else if self.warnings == MAX_WARNINGS + 1 {
            self.printer.warning(
                "more lines have faults; the last line says how many could not be imported",
                None,
            );
        }
    }

    async fn write(&mut self) -> Result<(), Failure> {
        self.results.append(std::mem::take(&mut self.facts)).await.map_err(results_failure)
    }
}

/// What was dropped from a row that could be imported.
fn warnings(fact: &Fact) -> &[String] {
    match fact {
        Fact::Attempt(attempt) => &attempt.details.warnings,
        _ => &[],
    }
}

/// Reads one line, of which at most one byte more than [`MAX_LINE_BYTES`] is kept. Returns the number of
/// bytes read, 0 at the end of the input.
fn read_line(input: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    let mut consumed = 0;
    loop {
        let chunk = input.fill_buf()?;
        if chunk.is_empty() {
            return Ok(consumed);
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(chunk.len(), |end| end + 1);
        let room = (MAX_LINE_BYTES + 1).saturating_sub(line.len());
        line.extend_from_slice(&chunk[..end.unwrap_or(taken).min(room)]);
        input.consume(taken);
        consumed += taken as u64;
        if end.is_some() {
            return Ok(consumed);
        }
    }
}
