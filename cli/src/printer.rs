//! What goes to stdout and stderr, in which colour, and whether progress bars are drawn. All of it is
//! decided once, from the flags, the terminal and the runner.
//!
//! Data goes to stdout and everything else to stderr. Under GitHub Actions messages become workflow
//! commands. Plain lines are neutralized, so that untrusted text in them (a file name, a server's
//! response) can't act as a workflow command.

use std::backtrace::Backtrace;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::panic::PanicHookInfo;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tracing_subscriber::filter::{Directive, LevelFilter};

use crate::cli::{ColorChoice, DataFormat, GlobalArgs};
use crate::env_vars::{self, Env};
use crate::escape::{neutralize, workflow_command};
use crate::failure::Failure;

#[derive(Clone)]
pub struct Printer {
    under_actions: bool,
    color_stdout: bool,
    color_stderr: bool,
    progress_bars: bool,
    quiet: bool,
    /// Why data couldn't be written to stdout.
    stdout_problem: Arc<OnceLock<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MessageLevel {
    Notice,
    Warning,
    Error,
}

impl MessageLevel {
    fn as_str(self) -> &'static str {
        match self {
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    fn style(self) -> Style {
        let color = match self {
            Self::Notice => AnsiColor::Cyan,
            Self::Warning => AnsiColor::Yellow,
            Self::Error => AnsiColor::Red,
        };
        Style::new().bold().fg_color(Some(color.into()))
    }
}

impl Printer {
    /// Decides about colour by the flag, then `NO_COLOR`, `CLICOLOR_FORCE`, then the terminal.
    pub fn new(args: &GlobalArgs, env: &Env) -> Self {
        let under_actions = env.is_true(env_vars::GITHUB_ACTIONS);
        let dumb = env.get(env_vars::TERM) == Some("dumb");
        let color = |terminal: bool| match args.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                let forced = env.get(env_vars::CLICOLOR_FORCE).is_some_and(|v| v != "0");
                env.get(env_vars::NO_COLOR).is_none()
                    && (forced || under_actions || (terminal && !dumb))
            }
        };
        let terminal = io::stderr().is_terminal();
        Self {
            under_actions,
            // Data is often captured: under Actions only the log, which is stderr, has colour.
            color_stdout: color(io::stdout().is_terminal())
                && (!under_actions || args.color == ColorChoice::Always),
            color_stderr: color(terminal),
            progress_bars: terminal
                && !dumb
                && !under_actions
                && env.get(env_vars::CI).is_none()
                && !args.quiet,
            quiet: args.quiet,
            stdout_problem: Arc::default(),
        }
    }

    pub fn color_stdout(&self) -> bool {
        self.color_stdout
    }

    pub fn is_under_actions(&self) -> bool {
        self.under_actions
    }

    /// Prints text to stdout. Under Actions no line of it is a command to the runner, whatever strangers wrote into it.
    pub fn data_text(&self, text: &str) {
        if !self.under_actions {
            return self.data(text);
        }
        // The runner acts on `##[` anywhere, and on `::` at the start of a line, which a carriage return ends, too.
        let guarded = text.replace("##[", "## [");
        let lines = guarded.split_inclusive(['\n', '\r']).map(|line| {
            let is_command = line.trim_start().starts_with("::");
            if is_command { format!("| {line}") } else { line.to_owned() }
        });
        self.data(&lines.collect::<String>());
    }

    /// Prints JSON in which no text is a command to the runner. Its meaning stays the same.
    pub fn data_json(&self, json: &str) {
        self.data(&json.replace("##[", "##\\u005b"));
    }

    pub fn data_as(&self, format: impl Into<DataFormat>, text: &str) {
        match format.into() {
            DataFormat::Text => self.data_text(text),
            DataFormat::Json => self.data_json(text),
        }
    }

    /// Prints data to stdout as it is: a file that somebody saves, or text without anything of strangers.
    pub fn data(&self, text: &str) {
        let mut out = io::stdout().lock();
        self.note_written(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    }

    /// Notes that stdout couldn't be written. A closed pipe (`| head`) isn't an error.
    pub fn note_written(&self, written: io::Result<()>) {
        if let Err(error) = written
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            let _ = self.stdout_problem.set(error.to_string());
        }
    }

    /// The failure of a command whose data wasn't written, such as to a full disk.
    pub fn stdout_failure(&self) -> Option<Failure> {
        let problem = self.stdout_problem.get()?;
        let failure = Failure::unexpected("file-unwritable", "stdout can't be written");
        Some(failure.because(anyhow::Error::msg(problem.clone())))
    }

    pub fn data_line(&self, text: &str) {
        self.data(&format!("{text}\n"));
    }

    /// Prints a line about progress to stderr, unless `--quiet` is given.
    pub fn line(&self, text: &str) {
        if !self.quiet {
            self.stderr_line(&neutralize(text));
        }
    }

    pub fn notice(&self, text: &str) {
        self.message(MessageLevel::Notice, None, text, None);
    }

    /// Prints a warning; `hint` says what to do.
    pub fn warning(&self, text: &str, hint: Option<&str>) {
        self.message(MessageLevel::Warning, None, text, hint);
    }

    pub fn failure(&self, failure: &Failure) {
        let mut text = failure.message().to_owned();
        for cause in failure.causes() {
            let _ = write!(text, "\n  because: {cause}");
        }
        self.message(MessageLevel::Error, Some(failure.code()), &text, failure.help());
    }

    /// Starts a collapsible group in a workflow log; elsewhere prints a heading.
    pub fn group(&self, title: &str) {
        if self.under_actions {
            self.stderr_line(&workflow_command("group", &[], title));
        } else {
            self.line(title);
        }
    }

    pub fn end_group(&self) {
        if self.under_actions {
            self.stderr_line(&workflow_command("endgroup", &[], ""));
        }
    }

    /// Tells the runner to hide `secret` in the log. Each line is masked on its own, because the runner
    /// compares lines.
    pub fn mask(&self, secret: &str) {
        if self.under_actions {
            for line in secret.lines().filter(|line| !line.trim().is_empty()) {
                self.stderr_line(&workflow_command("add-mask", &[], line));
            }
        }
    }

    /// A progress bar of `total` bytes on a terminal; elsewhere a log line every ten seconds.
    pub fn progress(&self, label: &str, total: u64) -> ByteProgress {
        let bar = ProgressBar::new(total);
        if self.progress_bars {
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            if let Ok(style) = ProgressStyle::with_template(
                "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            ) {
                bar.set_style(style.progress_chars("=> "));
            }
        } else {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        bar.set_message(label.to_owned());
        ByteProgress { bar, printer: self.clone(), last_line: Mutex::new(Instant::now()) }
    }

    fn message(&self, level: MessageLevel, code: Option<&str>, text: &str, hint: Option<&str>) {
        let code = code.map(|code| format!("[{code}]")).unwrap_or_default();
        if self.under_actions {
            let mut body = text.to_owned();
            if let Some(hint) = hint {
                let _ = write!(body, "\nhint: {hint}");
            }
            let title = format!("crcr{code}");
            let properties: &[(&str, &str)] =
                if code.is_empty() { &[] } else { &[("title", &title)] };
            self.stderr_line(&workflow_command(level.as_str(), properties, &body));
            return;
        }
        if self.quiet && level == MessageLevel::Notice {
            return;
        }
        let (style, bold) = if self.color_stderr {
            (level.style(), Style::new().bold())
        } else {
            (Style::new(), Style::new())
        };
        let name = level.as_str();
        self.stderr_line(&format!(
            "{style}{name}{code}{style:#}: {bold}{}{bold:#}",
            neutralize(text)
        ));
        if let Some(hint) = hint {
            self.stderr_line(&format!("{bold}hint{bold:#}: {}", neutralize(hint)));
        }
    }

    fn stderr_line(&self, text: &str) {
        let mut err = io::stderr().lock();
        let _ = writeln!(err, "{text}");
    }
}

/// Cheap to advance from any thread.
pub struct ByteProgress {
    bar: ProgressBar,
    printer: Printer,
    last_line: Mutex<Instant>,
}

impl ByteProgress {
    const LOG_INTERVAL: Duration = Duration::from_secs(10);

    pub fn set_total(&self, total: u64) {
        self.bar.set_length(total);
    }

    pub fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
        if self.printer.progress_bars {
            return;
        }
        let Ok(mut last_line) = self.last_line.try_lock() else { return };
        if last_line.elapsed() >= Self::LOG_INTERVAL {
            *last_line = Instant::now();
            let (done, total) = (self.bar.position(), self.bar.length().unwrap_or(0));
            let (label, done, total) = (self.bar.message(), human_bytes(done), human_bytes(total));
            self.printer.line(&format!("{label}: {done} of {total}"));
        }
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Formats bytes as `1.5 MiB`.
pub fn human_bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// What is wrong with the value of `CRCR_LOG`. A word that isn't a level would be the name of a program whose logs alone
/// are written.
pub fn log_filter_problem(env: &Env) -> Option<String> {
    // The values of a span's fields may have commas.
    let filter = env.get(env_vars::CRCR_LOG).filter(|filter| !filter.contains('{'))?;
    let is_wrong = |item: &&str| {
        let is_name = !item.contains(['=', '[']) && !item.starts_with("crcr");
        is_name && item.parse::<LevelFilter>().is_err() || item.parse::<Directive>().is_err()
    };
    let wrong = filter.split(',').map(str::trim).filter(|item| !item.is_empty()).find(is_wrong)?;
    Some(format!("`{wrong}` is neither one of off, error, warn, info and debug nor TARGET=LEVEL"))
}

/// Sends logs to stderr if `CRCR_LOG` or `-v` asks for them. A server always logs, as JSON lines, by default if `CRCR_LOG`
/// isn't valid.
pub fn init_logging(args: &GlobalArgs, env: &Env, is_server: bool) {
    let given = env.get(env_vars::CRCR_LOG).filter(|filter| !filter.trim().is_empty());
    let given = given.filter(|_| !is_server || log_filter_problem(env).is_none());
    let filter = match (given, args.verbose) {
        (Some(filter), _) => filter,
        (None, 0) if is_server => {
            "warn,crcr=info,crcr_relay=info,crcr_store=info,crcr_results=info"
        }
        (None, 0) if env.is_true(env_vars::RUNNER_DEBUG) => "crcr=debug",
        (None, 0) => return,
        (None, 1) => {
            "warn,crcr=debug,crcr_github=debug,crcr_artifacts=debug,crcr_relay=debug,\
             crcr_store=debug,crcr_results=debug,crcr_hud=debug"
        }
        (None, _) => "debug",
    };
    let logs = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
        .with_writer(io::stderr);
    if is_server {
        logs.json().flatten_event(true).init();
        std::panic::set_hook(Box::new(log_panic));
    } else {
        logs.with_ansi(false).init();
    }
}

/// Programs that collect a server's logs don't read the lines that Rust prints by itself.
fn log_panic(panic: &PanicHookInfo<'_>) {
    tracing::error!(%panic, backtrace = %Backtrace::capture(), "crcr panicked: please report it");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_that_would_turn_the_logs_off_is_not_a_log_filter() {
        let wrong = |filter: &str| log_filter_problem(&Env::from_iter([("CRCR_LOG", filter)]));
        for fine in
            ["", " ", "info", "INFO", "off", "warn, crcr_relay=debug", "crcr_relay", "crcr[x]=info"]
        {
            assert_eq!(wrong(fine), None, "{fine}");
        }
        for (filter, word) in
            [("verbose", "verbose"), ("crcr=info,debgu", "debgu"), ("crcr=loud", "crcr=loud")]
        {
            let told = wrong(filter).unwrap();
            assert!(told.starts_with(&format!("`{word}` is neither")), "{told}");
        }
    }

    #[test]
    fn panic_of_the_server_is_one_line_of_its_log() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = Arc::new(file.reopen().unwrap());
        let log = tracing_subscriber::fmt().json().flatten_event(true).with_writer(lines).finish();
        tracing::subscriber::with_default(log, || {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(log_panic));
            let panicked = std::panic::catch_unwind(|| panic!("two\nlines"));
            std::panic::set_hook(before);
            assert!(panicked.is_err());
        });
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(r"two\nlines") && text.contains("printer.rs"), "{text}");
    }
}
