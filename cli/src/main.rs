//! The `crcr` binary. Modules depend on each other in one direction only: `commands` use `render`,
//! `runner` and `printer`; `cli`, `env_vars`, `escape` and `failure` use none of these.

mod cli;
mod commands;
#[cfg_attr(
    not(feature = "relay"),
    expect(dead_code, reason = "the variables of the server are documented with all others")
)]
mod env_vars;
mod escape;
mod extra_roots;
mod failure;
mod no_proxy;
mod printer;
mod render;
mod runner;

use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::env_vars::Env;
use crate::printer::Printer;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let env = Env::from_process();
    no_proxy::spell_out();
    let roots = extra_roots::add(&env);
    let args: Vec<_> = std::env::args_os().collect();
    let cli = match cli::parse(args.clone(), &env) {
        Ok(cli) => cli,
        Err(error) => {
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                    commands::print_help(&env, &error)
                }
                _ => commands::report_usage_error(&args, &env, &error),
            };
        }
    };
    let printer = Printer::new(&cli.global, &env);
    printer::init_logging(&cli.global, &env, cli.command.is_server());
    for fault in &roots.faults {
        printer.warning(fault, None);
    }
    let waiting = printer.clone();
    crcr_github::http::print_waiting(move |line| waiting.line(line));
    // Fails only if a TLS provider is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            printer.failure(&failure::Failure::unexpected("runtime", error.to_string()));
            return ExitCode::from(2);
        }
    };
    let is_server = cli.command.is_server();
    let outcome = runtime.block_on(commands::run(cli, &env, &printer));
    // A server has done its work, whether or not its address could be printed.
    let lost = printer.stdout_failure().filter(|_| !is_server);
    match outcome.and_then(|code| lost.map_or(Ok(code), Err)) {
        Ok(code) => code,
        Err(failure) => {
            printer.failure(&failure);
            failure.exit_code()
        }
    }
}
