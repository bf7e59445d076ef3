//! `crcr logs import-rules`: rules of PyTorch's log classifier as rules for `crcr`.

use std::process::ExitCode;

use crcr_cidata::logs::import_rules;

use super::read_text;
use crate::cli::logs::ImportRulesArgs;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

pub fn run(args: &ImportRulesArgs, printer: &Printer) -> Outcome {
    let imported = import_rules(&read_text(&args.file)?).map_err(|error| {
        Failure::user("log-rules", format!("`{}` isn't a file of rules", args.file))
            .because(anyhow::Error::msg(error))
            .hint("each rule is a `[[rule]]` with a `name` and a `pattern`")
    })?;
    printer.data(&imported.text);
    if imported.left_out > 0 {
        let text = format!("{} of {} rules are left out", imported.left_out, imported.rules);
        printer.warning(&text, Some("comments in the output name them and say why"));
    }
    Ok(ExitCode::from(u8::from(imported.left_out > 0)))
}
