//! `crcr demo`: the whole loop on this machine.

use std::path::PathBuf;

use clap::Args;

/// Examples of the command.
pub const EXAMPLES: &str = "\
Examples:
  crcr demo                                the built-in allowlist and pull request
  crcr demo --exit                         for scripts: ends when everything has been shown
  crcr demo --allowlist allowlist.yml --event pull_request.json
  crcr demo --history 30d                  pages that show a month of invented results

A stand-in for GitHub on this machine takes GitHub's place; everything else is what ships. Nothing
leaves the machine, and no account is needed.";

/// What the demo starts from.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// End when everything has been shown, instead of leaving the pages open
    #[arg(long)]
    pub exit: bool,
    /// Allowlist to read [default: one with invented names]
    #[arg(long, value_name = "FILE")]
    pub allowlist: Option<PathBuf>,
    /// Webhook payload of a pull request to deliver [default: one of a fork]
    #[arg(long, value_name = "FILE")]
    pub event: Option<PathBuf>,
    /// Fill the pages with generated results of the last days; they are of the built-in allowlist's
    /// invented repositories
    #[arg(long, value_name = "DAYS", value_parser = days, conflicts_with = "allowlist")]
    pub history: Option<u32>,
}

/// The longest history: what a page shows at most.
const MAX_DAYS: u32 = 366;

/// `30d`, or `30`.
fn days(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('d').unwrap_or(text).parse().ok();
    let days = number.filter(|days| (1..=MAX_DAYS).contains(days));
    days.ok_or_else(|| format!("days between `1d` and `{MAX_DAYS}d` are expected"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_some_days_long() {
        assert_eq!((days("30d"), days("7")), (Ok(30), Ok(7)));
        for bad in ["", "d", "0d", "367d", "-1d", "30h", "99999999999d"] {
            assert!(days(bad).is_err(), "{bad}");
        }
    }
}
