//! Reads zip archives of any writer, and writes them as a stream.

mod fast_deflate;
mod format;
pub mod read;
pub mod write;
