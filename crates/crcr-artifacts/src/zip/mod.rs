//! Zip archives: reading whatever writer made them, and writing them as a stream.

mod fast_deflate;
mod format;
pub mod read;
pub mod write;
