//! `crcr levels …`: one file per command, and the evidence that `crcr allowlist diff` shows as well.

pub mod evidence;
pub mod review;
