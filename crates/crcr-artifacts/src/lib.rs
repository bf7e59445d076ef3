//! Artifacts: collect files, stream a zip, store it in S3 or GitHub, find, verify and unpack it.

pub mod blob;
pub mod blob_file;
pub mod blocks;
mod byte_range;
pub mod choose;
pub mod collect;
pub mod digest;
pub mod download;
pub mod fetch;
pub mod find;
pub mod layout;
pub mod locator;
pub mod name;
pub mod objects;
pub mod paths;
pub mod publish;
pub mod source;
pub mod store;
pub mod trust;
pub mod unpack;
pub mod upload;
pub mod zip;
