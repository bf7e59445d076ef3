//! The stand-in as a process, for scripts: prints the environment of one job as `NAME=value` lines,
//! then an empty line, and serves until its standard input ends.
//!
//! usage: cargo run -p crcr-standin --example standin -- [push|same-repository|fork|dependabot]
//!        [drop-bodies]
//!
//! With `drop-bodies` what is uploaded is counted and forgotten. The runtime token is under the
//! names that `crcr` reads and the runner's own.
#![expect(clippy::print_stdout, reason = "what it prints is what it is for")]

use std::io::{self, Write as _};

use crcr_standin::StandIn;
use crcr_standin::runs::Run;

fn main() -> io::Result<()> {
    let mut run = Run::push();
    let github = StandIn::start()?;
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "push" => run = Run::push(),
            "same-repository" => run = Run::same_repository(),
            "fork" => run = Run::fork(),
            "dependabot" => run = Run::dependabot(),
            "drop-bodies" => github.state().artifacts.drop_bodies(),
            _ => return Err(io::Error::other(format!("`{arg}` is no run, and not `drop-bodies`"))),
        }
    }
    let runs = &github.state().runs;
    let job = runs.add_job(runs.add(run), "build");
    for (name, value) in github.state().job_environment(&job) {
        println!("{name}={value}");
        if let "ACTIONS_RUNTIME_TOKEN" | "ACTIONS_RESULTS_URL" = name {
            println!("{}={value}", name.replacen("ACTIONS", "CRCR", 1));
        }
    }
    println!();
    io::stdout().flush()?;
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}
