//! Failing tests in a file, where a variable is too small for them.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::printer::Printer;

const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// Like faulty details, a file that can't be read is a warning, and the result is still reported.
pub fn read(path: &Path, printer: &Printer) -> Option<String> {
    let why = match text(path) {
        Ok(text) if text.len() as u64 <= MAX_BYTES => return Some(text),
        Ok(_) => "it is larger than 16 MiB".to_owned(),
        Err(error) => error.to_string(),
    };
    printer.warning(
        &format!("`failed-tests-detail-file` (`{}`) is left out: {why}", path.display()),
        Some("name a file with a JSON array of failing tests; the rest of the report is sent"),
    );
    None
}

fn text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    Ok(text)
}
