//! stdout, stderr, colour and progress: decided once, from the flags, the terminal and the runner.
//!
//! Data goes to stdout and everything else to stderr. Under GitHub Actions the same facts become
//! workflow commands, escaped; plain lines are neutralised so that no text of a stranger (a file
//! name, a server's answer) can act as one.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::{ColorChoice, GlobalArgs};
use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::runner::command;

/// Writes for people and for programs.
#[derive(Clone)]
pub struct Printer {
    actions: bool,
    color_out: bool,
    color_err: bool,
    bars: bool,
    quiet: bool,
}

/// How loud a message is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Notice,
    Warning,
    Error,
}

impl Level {
    fn word(self) -> &'static str {
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
    /// Decides once: colour by flag, then `NO_COLOR`, `CLICOLOR_FORCE`, then the terminal.
    pub fn new(args: &GlobalArgs, env: &Env) -> Self {
        let actions = env.is_true(env_vars::GITHUB_ACTIONS);
        let dumb = env.get(env_vars::TERM) == Some("dumb");
        let color = |terminal: bool| match args.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                let forced = env.get(env_vars::CLICOLOR_FORCE).is_some_and(|v| v != "0");
                env.get(env_vars::NO_COLOR).is_none() && (forced || actions || (terminal && !dumb))
            }
        };
        let terminal = std::io::stderr().is_terminal();
        Self {
            actions,
            // Data is often captured: under Actions only the log, which is stderr, has colour.
            color_out: color(std::io::stdout().is_terminal())
                && (!actions || args.color == ColorChoice::Always),
            color_err: color(terminal),
            bars: terminal && !dumb && !actions && env.get(env_vars::CI).is_none() && !args.quiet,
            quiet: args.quiet,
        }
    }

    /// Whether data on stdout may be coloured.
    pub fn color_out(&self) -> bool {
        self.color_out
    }

    /// Whether a workflow of GitHub Actions reads what is printed.
    pub fn actions(&self) -> bool {
        self.actions
    }

    /// Data for stdout, as it is. A reader that has gone away (`| head`) is no error.
    pub fn data(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// A line of data for stdout.
    pub fn data_line(&self, text: &str) {
        self.data(&format!("{text}\n"));
    }

    /// A line that tells what goes on; not with `--quiet`.
    pub fn line(&self, text: &str) {
        if !self.quiet {
            self.err(&neutral(text));
        }
    }

    /// Something worth a note that needs no action.
    pub fn notice(&self, text: &str) {
        self.message(Level::Notice, None, text, None);
    }

    /// Something that needs attention and stops nothing; `hint` says what to do.
    pub fn warning(&self, text: &str, hint: Option<&str>) {
        self.message(Level::Warning, None, text, hint);
    }

    /// The failure that ends a command.
    pub fn failure(&self, failure: &Failure) {
        let mut text = failure.message().to_owned();
        for cause in failure.causes() {
            let _ = write!(text, "\n  because: {cause}");
        }
        self.message(Level::Error, Some(failure.code()), &text, failure.help());
    }

    /// Opens a folded group of lines in the log of a workflow; elsewhere a heading.
    pub fn group(&self, title: &str) {
        if self.actions {
            self.err(&command("group", &[], title));
        } else {
            self.line(title);
        }
    }

    /// Closes the group that [`Printer::group`] opened.
    pub fn end_group(&self) {
        if self.actions {
            self.err(&command("endgroup", &[], ""));
        }
    }

    /// Tells the runner to hide `secret` in the log; nothing outside a workflow.
    ///
    /// Every line of the secret is masked on its own, since the runner looks at lines.
    pub fn mask(&self, secret: &str) {
        if self.actions {
            for line in secret.lines().filter(|line| !line.trim().is_empty()) {
                self.err(&command("add-mask", &[], line));
            }
        }
    }

    /// A bar of `total` bytes on a terminal, a line every ten seconds elsewhere.
    pub fn progress(&self, label: &str, total: u64) -> Progress {
        let bar = ProgressBar::new(total);
        if self.bars {
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
        Progress { bar, printer: self.clone(), told: std::sync::Mutex::new(Instant::now()) }
    }

    fn message(&self, level: Level, code: Option<&str>, text: &str, hint: Option<&str>) {
        let code = code.map(|code| format!("[{code}]")).unwrap_or_default();
        if self.actions {
            let mut body = text.to_owned();
            if let Some(hint) = hint {
                let _ = write!(body, "\nhint: {hint}");
            }
            let title = format!("crcr{code}");
            let properties: &[(&str, &str)] =
                if code.is_empty() { &[] } else { &[("title", &title)] };
            self.err(&command(level.word(), properties, &body));
            return;
        }
        if self.quiet && level == Level::Notice {
            return;
        }
        let (style, bold) = if self.color_err {
            (level.style(), Style::new().bold())
        } else {
            (Style::new(), Style::new())
        };
        let word = level.word();
        self.err(&format!("{style}{word}{code}{style:#}: {bold}{}{bold:#}", neutral(text)));
        if let Some(hint) = hint {
            self.err(&format!("{bold}hint{bold:#}: {}", neutral(hint)));
        }
    }

    fn err(&self, text: &str) {
        let mut err = std::io::stderr().lock();
        let _ = writeln!(err, "{text}");
    }
}

/// A running count of bytes. Cheap to advance from any thread.
pub struct Progress {
    bar: ProgressBar,
    printer: Printer,
    told: std::sync::Mutex<Instant>,
}

impl Progress {
    /// How often a quiet log hears of it.
    const EVERY: Duration = Duration::from_secs(10);

    /// Sets how many bytes there are, where that is known late.
    pub fn set_total(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// Adds `bytes` to what is done.
    pub fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
        if self.printer.bars {
            return;
        }
        let Ok(mut told) = self.told.try_lock() else { return };
        if told.elapsed() >= Self::EVERY {
            *told = Instant::now();
            let (done, total) = (self.bar.position(), self.bar.length().unwrap_or(0));
            let (label, done, total) = (self.bar.message(), human_bytes(done), human_bytes(total));
            self.printer.line(&format!("{label}: {done} of {total}"));
        }
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Bytes as people read them: `1.5 MiB`.
pub fn human_bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// Text as a log line that the runner takes for text.
///
/// The runner acts on a line that starts with `::` (after white space) and on `##[` anywhere;
/// control characters other than a line feed or tab are shown escaped, as are those that change the
/// direction of writing.
pub fn neutral(text: &str) -> Cow<'_, str> {
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let clean = |c: char| !(c.is_control() || turns(c)) || c == '\n' || c == '\t';
    let acts = |line: &str| line.trim_start().starts_with("::") || line.contains("##[");
    if text.chars().all(clean) && !text.lines().any(acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for (n, line) in text.split('\n').enumerate() {
        if n > 0 {
            out.push('\n');
        }
        if line.trim_start().starts_with("::") {
            out.push_str("| ");
        }
        for c in line.replace("##[", "## [").chars() {
            if clean(c) {
                out.push(c);
            } else {
                out.extend(c.escape_default());
            }
        }
    }
    Cow::Owned(out)
}

/// Sends the libraries' logs to stderr: `CRCR_LOG` or `-v`; silent otherwise.
pub fn init_logging(args: &GlobalArgs, env: &Env) {
    let filter = match (env.get(env_vars::CRCR_LOG), args.verbose) {
        (Some(filter), _) => filter,
        (None, 0) if env.is_true(env_vars::RUNNER_DEBUG) => "crcr=debug",
        (None, 0) => return,
        (None, 1) => {
            "crcr=debug,crcr_github=debug,crcr_artifacts=debug,crcr_relay=debug,crcr_store=debug,\
             crcr_results=debug,crcr_hud=debug"
        }
        (None, _) => "debug",
    };
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
}

/// Sends a server's logs to stderr as JSON lines, unless `CRCR_LOG` or `-v` asked for text.
#[cfg(feature = "relay")]
pub fn init_server_logging() {
    let filter = tracing_subscriber::EnvFilter::new(
        "warn,crcr=info,crcr_relay=info,crcr_store=info,crcr_results=info",
    );
    // It fails when logging was set up already, and then that one holds.
    let _ = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_text_never_acts_as_a_command() {
        assert_eq!(neutral("plain"), "plain");
        assert_eq!(neutral("::add-path::/tmp"), "| ::add-path::/tmp");
        assert_eq!(neutral("a\n  ::set-env name=A::b"), "a\n|   ::set-env name=A::b");
        assert_eq!(neutral("x ##[add-path]/tmp"), "x ## [add-path]/tmp");
        assert_eq!(neutral("bell\u{7} and\rreturn"), "bell\\u{7} and\\rreturn");
        assert_eq!(neutral("exe\u{202e}gnp"), "exe\\u{202e}gnp");
    }
}
