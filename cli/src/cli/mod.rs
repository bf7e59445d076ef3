//! The command line as clap types, and nothing else. One submodule per command family.

/// The help of a command that prints the schema of a file.
macro_rules! schema_help {
    ($command:literal, $file:literal) => {
        concat!(
            "Example:\n  crcr ",
            $command,
            " schema > ",
            $file,
            ".schema.json\n\nAn editor with the YAML language server checks a file whose first line is ",
            "`# yaml-language-server: $schema=ADDRESS`. The schema's own address is\n",
            "  https://raw.githubusercontent.com/pytorch/crcr/main/schemas/",
            $file,
            ".json"
        )
    };
}

pub mod allowlist;
pub mod artifact;
pub mod checkout;
#[cfg(feature = "relay")]
pub mod demo;
pub mod doctor;
pub mod downstream;
pub mod init;
pub mod levels;
pub mod logs;
pub mod oidc;
pub mod quarantine;
#[cfg(feature = "relay")]
pub mod relay;
pub mod report;
pub mod reproduce;
mod short_help;
pub mod stats;

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::{
    ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum,
};
use clap_complete::Shell;

use crate::env_vars::Env;

#[cfg(feature = "relay")]
const EXAMPLES: &str = "\
Examples: crcr init downstream · crcr doctor · crcr demo --exit
`crcr help init aws` has every flag of a command; `crcr --version` the version.
Exit codes: 0 done · 1 something you can fix · 2 usage, network or a service";
#[cfg(not(feature = "relay"))]
const EXAMPLES: &str = "\
Examples: crcr init downstream · crcr doctor
`crcr help init aws` has every flag of a command; `crcr --version` the version.
Built from source without `crcr relay` and `crcr demo`; a release has them.
Exit codes: 0 done · 1 something you can fix · 2 usage, network or a service";
/// Without most empty lines and without clap's own flags, so that all of it is on one screen.
const TEMPLATE: &str = "{about}\n{usage-heading} {usage}\nCommands:\n{subcommands}{after-help}";

#[derive(Debug, Parser)]
#[command(
    name = "crcr",
    version,
    about = "Cross-repository CI: credentials, artifacts with fallback, allowlist, relay",
    after_help = EXAMPLES,
    help_template = TEMPLATE,
    disable_help_subcommand = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub command: CliCommand,
}

/// Flags that every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// When to use colour
    #[arg(long, global = true, value_enum, default_value_t = ColorChoice::Auto, value_name = "WHEN")]
    pub color: ColorChoice,
    /// Print data, warnings and errors only
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Log what happens to stderr; twice for the libraries too
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DataFormat {
    /// Sentences and tables, for people
    Text,
    /// JSON, for programs to read
    Json,
}

#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Check the list of repositories that take part, and its changes
    #[command(subcommand, after_help = "Example:\n  crcr allowlist validate .github/allowlist.yml")]
    Allowlist(allowlist::AllowlistCommand),
    /// Store, fetch and list artifacts of a workflow run
    #[command(
        subcommand,
        after_help = "Example:\n  crcr artifact upload --name wheels --path dist"
    )]
    Artifact(artifact::ArtifactCommand),
    /// Credentials from the job's OIDC token
    #[command(
        subcommand,
        after_help = "Example:\n  crcr oidc configure --role-to-assume \"$ROLE\" --aws-region us-east-1"
    )]
    Oidc(oidc::OidcCommand),
    /// The relay server, and tools beside it
    #[cfg(feature = "relay")]
    #[command(subcommand, after_help = "Example:\n  crcr relay serve --check")]
    Relay(relay::RelayCommand),
    /// Compare recorded results with the criteria of each level
    #[command(
        subcommand,
        after_help = "Example:\n  crcr levels review --results https://hud.example.org"
    )]
    Levels(levels::LevelsCommand),
    /// Show the whole loop on this machine, without an account
    #[cfg(feature = "relay")]
    #[command(after_help = demo::EXAMPLES)]
    Demo(demo::DemoArgs),
    /// Tell the relay that a downstream job has started or ended
    #[command(after_help = report::EXAMPLES)]
    Report(Box<report::ReportArgs>),
    /// Test reports, and what they show: flaky, slow and failing tests
    #[command(subcommand, after_help = "Example:\n  crcr stats explain test-reports/report.xml")]
    Stats(stats::StatsCommand),
    /// Tests that may fail for a while without failing their job
    #[command(subcommand, after_help = "Example:\n  crcr quarantine validate")]
    Quarantine(quarantine::QuarantineCommand),
    /// What a backend takes: its `.github/crcr.yml`
    #[command(subcommand, after_help = "Example:\n  crcr downstream validate")]
    Downstream(downstream::DownstreamCommand),
    /// Logs of failed jobs: which line explains the failure
    #[command(subcommand, after_help = "Example:\n  crcr logs classify job.log")]
    Logs(logs::LogsCommand),
    /// Check out the exact commit that the relay dispatched
    #[command(after_help = checkout::EXAMPLES)]
    Checkout(Box<checkout::CheckoutArgs>),
    /// Check what CI needs here, or in a downstream repository
    #[command(after_help = doctor::EXAMPLES, args_conflicts_with_subcommands = true)]
    Doctor(Box<doctor::DoctorArgs>),
    /// Write down what a developer needs to repeat a backend's failure
    #[command(after_help = reproduce::EXAMPLES)]
    Reproduce(Box<reproduce::ReproduceArgs>),
    /// Write a workflow for this repository from a template
    #[command(subcommand, after_help = "Example:\n  crcr init downstream --dry-run")]
    Init(init::InitCommand),
    /// Print the completion script of a shell
    #[command(
        after_help = "Example:\n  crcr completions bash > ~/.local/share/bash-completion/completions/crcr"
    )]
    Completions {
        /// The shell to complete for
        shell: Shell,
    },
    /// Write the manual pages of all commands
    #[command(after_help = "Example:\n  crcr man --out man/man1")]
    Man {
        /// Folder to write them to
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

impl CliCommand {
    /// Whether its stderr is read by programs that collect logs.
    pub fn is_server(&self) -> bool {
        match self {
            #[cfg(feature = "relay")]
            Self::Relay(relay::RelayCommand::Serve(_)) => true,
            _ => false,
        }
    }
}

/// Parses the command line. `INPUT_*` variables supply flags that are absent.
///
/// A composite action hands each of its inputs over as `INPUT_<NAME>`, dashes as underscores, and
/// each is a flag of the same name. A flag on the command line wins; an empty value, in the
/// environment or on the command line, counts as absent. So does an input of white space only. A
/// boolean input may be `True` or `TRUE`, too, as in GitHub's own library.
pub fn parse(args: Vec<OsString>, env: &Env) -> Result<Cli, clap::Error> {
    let args = with_inputs(without_help_and_version(args), env);
    Cli::from_arg_matches(&definition().try_get_matches_from(args)?)
}

/// `crcr help COMMAND` is `crcr COMMAND --help`, and `crcr version` is `crcr --version`.
fn without_help_and_version(mut args: Vec<OsString>) -> Vec<OsString> {
    let word = args.get(1).and_then(|word| word.to_str());
    match word {
        Some("help") => {
            args.remove(1);
            args.push("--help".into());
        }
        Some("version") if args.len() == 2 => args[1] = "--version".into(),
        _ => {}
    }
    args
}

/// Takes a number of this range. What clap says of other numbers is `0 is not in 1..18446744073709551615`.
fn number<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text: &str| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match *range.end() {
            u64::MAX => format!("expected a number from {} up", range.start()),
            most => format!("expected a number from {} to {}", range.start(), thousands(most)),
        })
    }
}

/// `10,000`
fn thousands(number: u64) -> String {
    if number < 1000 {
        return number.to_string();
    }
    format!("{},{:03}", thousands(number / 1000), number % 1000)
}

/// A time, or what one looks like.
fn time(text: &str) -> Result<jiff::Timestamp, String> {
    text.parse().map_err(|_| "expected a time such as 2026-11-25T09:00Z".to_owned())
}

/// A repository on whichever server its jobs run.
fn owner_and_name(text: &str) -> Result<String, String> {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    match text.split_once('/') {
        Some((owner, name)) if is_part(owner) && is_part(name) => Ok(text.to_owned()),
        _ => Err("expected `owner/repo`".to_owned()),
    }
}

pub fn definition() -> clap::Command {
    short_help::shorten(Cli::command())
}

fn with_inputs(args: Vec<OsString>, env: &Env) -> Vec<OsString> {
    let root = Cli::command();
    let command = named_command(&root, &args);
    let valued = command.get_arguments().filter(|arg| arg.get_action().takes_values());
    let valued: Vec<_> = valued.filter_map(|arg| Some((arg.get_long()?, arg))).collect();
    let names: Vec<&str> = valued.iter().map(|(name, _)| *name).collect();
    let GivenArgs { mut args, flags, separator } = GivenArgs::of(args, &names);
    if std::ptr::eq(command, &root) {
        return args;
    }
    let inputs = valued.iter().filter_map(|(name, arg)| {
        let variable = format!("INPUT_{}", name.to_uppercase().replace('-', "_"));
        let value = env.get(&variable).filter(|_| !flags.iter().any(|flag| flag == name))?;
        // As GitHub's own library does: a value from a block of YAML or a secret may end with a line break.
        let value = Some(value.trim()).filter(|value| !value.is_empty())?;
        let is_boolean = ["True", "TRUE", "False", "FALSE"].contains(&value)
            && arg.get_possible_values().iter().any(|possible| possible.get_name() == "true");
        let value = if is_boolean { value.to_lowercase() } else { value.to_owned() };
        Some(OsString::from(format!("--{name}={value}")))
    });
    let end = separator.unwrap_or(args.len());
    drop(args.splice(end..end, inputs));
    args
}

/// The command that the arguments name.
fn named_command<'a>(root: &'a clap::Command, args: &[OsString]) -> &'a clap::Command {
    args.iter().skip(1).fold(root, |command, arg| {
        arg.to_str().and_then(|name| command.find_subcommand(name)).unwrap_or(command)
    })
}

struct GivenArgs {
    /// Without flags whose value is empty.
    args: Vec<OsString>,
    /// The names of flags that have a value.
    flags: Vec<String>,
    /// Where `--` is in `args`.
    separator: Option<usize>,
}

impl GivenArgs {
    /// `valued` has the names of all flags that take a value.
    fn of(args: Vec<OsString>, valued: &[&str]) -> Self {
        let mut given =
            Self { args: Vec::with_capacity(args.len()), flags: vec![], separator: None };
        let mut rest = args.into_iter().peekable();
        while let Some(arg) = rest.next() {
            if arg == "--" {
                given.separator = Some(given.args.len());
                given.args.push(arg);
                given.args.extend(rest);
                break;
            }
            if let Some(flag) = arg.to_str().and_then(|text| text.strip_prefix("--")) {
                let (name, value) = match flag.split_once('=') {
                    Some((name, value)) => (name, Some(value)),
                    None => (flag, None),
                };
                if valued.contains(&name) {
                    let next_is_empty =
                        value.is_none() && rest.peek().is_some_and(|next| next.is_empty());
                    if next_is_empty {
                        rest.next();
                    }
                    if next_is_empty || value == Some("") {
                        continue;
                    }
                    given.flags.push(name.to_owned());
                }
            }
            given.args.push(arg);
        }
        given
    }
}
