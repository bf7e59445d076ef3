//! `crcr demo`

use std::path::PathBuf;

use clap::Args;

pub const EXAMPLES: &str = "\
Examples:
  crcr demo                              the built-in allowlist and pull request
  crcr demo --exit                       for scripts: stop at the end
  crcr demo --allowlist allowlist.yml --event pull_request.json
  crcr demo --history 30d                pages with a month of generated results
  crcr demo --listen 0.0.0.0:8080        in a container, or for a colleague

A stand-in on this machine replaces GitHub; everything else is the shipped code. Nothing leaves the
machine, and no account is needed.";

#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Stop at the end instead of leaving the pages open
    #[arg(long)]
    pub exit: bool,
    /// Allowlist to read [default: one with invented names]
    #[arg(long, value_name = "FILE")]
    pub allowlist: Option<PathBuf>,
    /// Webhook payload of a pull request to deliver [default: one of a fork]
    #[arg(long, value_name = "FILE")]
    pub event: Option<PathBuf>,
    /// Where the pages listen; on another address than this machine's own, everybody who reaches it sees them
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: String,
    /// Fill the pages with generated results of the last days, for the repositories of the built-in
    /// allowlist
    #[arg(long, value_name = "DAYS", value_parser = parse_days, conflicts_with = "allowlist")]
    pub history: Option<u32>,
}

/// The longest period that a page shows.
const MAX_DAYS: u32 = 366;

/// Accepts `30d` and `30`.
fn parse_days(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('d').unwrap_or(text).parse().ok();
    let days = number.filter(|days| (1..=MAX_DAYS).contains(days));
    days.ok_or_else(|| format!("expected days between `1d` and `{MAX_DAYS}d`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_accepts_1_to_366_days() {
        assert_eq!((parse_days("30d"), parse_days("7")), (Ok(30), Ok(7)));
        for bad in ["", "d", "0d", "367d", "-1d", "30h", "99999999999d"] {
            assert!(parse_days(bad).is_err(), "{bad}");
        }
    }
}
