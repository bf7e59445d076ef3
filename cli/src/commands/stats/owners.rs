//! Who owns a test: the owners of its file in CODEOWNERS.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crcr_domain::ci_data::codeowners::{Codeowners, MAX_BYTES, PLACES};

use crate::failure::Failure;

/// Reads `given`, else the file of the working folder. Without one nothing has an owner.
pub fn read(given: Option<&Path>) -> Result<Codeowners, Failure> {
    let path = match given {
        Some(path) => path,
        None => match PLACES.iter().map(Path::new).find(|path| path.is_file()) {
            Some(path) => path,
            None => return Ok(Codeowners::default()),
        },
    };
    let unreadable = |error: std::io::Error| {
        Failure::user("codeowners", format!("`{}` can't be read", path.display())).because(error)
    };
    let mut text = vec![];
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut text).map_err(unreadable)?;
    if text.len() > MAX_BYTES {
        return Err(unreadable(std::io::Error::other("it is larger than 3 MiB")));
    }
    Ok(Codeowners::parse(&String::from_utf8_lossy(&text)))
}
