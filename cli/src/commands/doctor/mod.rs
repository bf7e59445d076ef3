//! `crcr doctor`: each finding with what to do about it. It changes nothing, unless `--dispatch` asks for a
//! dispatch.

mod aws;
mod aws_trust;
mod checkout;
mod downstream;
mod dry_dispatch;
mod machine;
mod report;
mod strangers;

use self::report::{CheckReport, CheckStatus};
use crate::cli::allowlist::ReviewFormat;
use crate::cli::doctor::{DoctorArgs, DoctorCommand};
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::runner::Runner;

pub async fn run(args: Box<DoctorArgs>, env: &Env, printer: &Printer) -> Outcome {
    let runner = Runner::new(env, printer);
    let (report, format) = match &args.command {
        Some(DoctorCommand::Downstream(args)) => {
            (downstream::check(args, env, printer).await?, args.format)
        }
        Some(DoctorCommand::Aws(args)) => (aws::check(args, env, printer).await?, args.format),
        None => (machine::check(&args, &runner).await?, args.format),
    };
    print(&report, format, &runner, printer)?;
    Ok(report.exit_code())
}

/// Prints the report; under Actions also into the step summary, with an annotation for each problem.
fn print(
    report: &CheckReport,
    format: ReviewFormat,
    runner: &Runner,
    printer: &Printer,
) -> Result<(), Failure> {
    printer.data_as(format, &report.render(format));
    if printer.is_under_actions() {
        for found in &report.results {
            let fix = found.fix.clone().unwrap_or_default();
            match found.status {
                CheckStatus::Error => {
                    printer.failure(&Failure::user(found.check, &*found.message).hint(fix));
                }
                CheckStatus::Warning => {
                    printer.warning(&format!("{}: {}", found.check, found.message), Some(&fix));
                }
                _ => {}
            }
        }
        runner.append_summary(&report.markdown())?;
    }
    Ok(())
}
