//! `crcr downstream …`: the file in which a backend says what it takes.

use clap::{Args, Subcommand};

use super::allowlist::FindingsFormat;

#[derive(Debug, Subcommand)]
pub enum DownstreamCommand {
    /// Report everything that is wrong with a backend's `.github/crcr.yml`
    #[command(after_help = VALIDATE_EXAMPLES)]
    Validate(ValidateDownstreamArgs),
    /// Print the JSON Schema of the file, for editors
    #[command(after_help = schema_help!("downstream", "downstream"))]
    Schema,
}

const VALIDATE_EXAMPLES: &str = "\
Examples:
  crcr downstream validate
  crcr downstream validate --format json crcr.yml

Every key may be left out; without the file everything is dispatched, and nothing is probed:

  dispatch:
    events: [pull_request, push, landed, merge_group]
    paths: [\"aten/**\", \"torch/csrc/**\", \"!**/*.md\"] # the last match decides
    drafts: skip             # or dispatch
    quiet-minutes: 10        # only the newest head, after so long without a push
    max-per-day: 200
  probes:
    reruns-per-day: 20       # failed jobs run once more
    commits-per-day: 30      # merge bases and midpoints

Exit codes: 0 valid; 1 findings of severity error; 2 the file can't be read.";

#[derive(Debug, Clone, Args)]
pub struct ValidateDownstreamArgs {
    /// File to check; `-` is standard input
    #[arg(value_name = "FILE", default_value = crcr_domain::probes::DOWNSTREAM_FILE)]
    pub file: String,
    /// How to print findings
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = FindingsFormat::Text)]
    pub format: FindingsFormat,
}
