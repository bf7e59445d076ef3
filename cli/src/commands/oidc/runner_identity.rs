//! Hides a self-hosted runner's own AWS identity from the later steps of a job without credentials.
//!
//! A step can't unset a variable for later steps, so each variable gets a value with which the AWS SDKs
//! find nothing. This stops tools from using the identity by default. It doesn't stop code that searches
//! for it, see `docs/self-hosted.md`.

use std::path::Path;

use crate::commands::oidc::messages;
use crate::env_vars;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::runner::Runner;

/// An empty profile, because SDKs refuse a profile that doesn't exist.
const EMPTY_CONFIG: &str = "[default]\n";
/// Variables that an empty value turns off in the SDKs for Python, Go and JavaScript. In the one for
/// Rust an empty value is an error, so it has no credentials either.
const EMPTIED_VARIABLES: [&str; 3] = [
    env_vars::AWS_WEB_IDENTITY_TOKEN_FILE,
    env_vars::AWS_CONTAINER_CREDENTIALS_RELATIVE_URI,
    env_vars::AWS_CONTAINER_CREDENTIALS_FULL_URI,
];
const PROFILES: [&str; 2] = [env_vars::AWS_PROFILE, env_vars::AWS_DEFAULT_PROFILE];
const FILES: [&str; 2] = [env_vars::AWS_CONFIG_FILE, env_vars::AWS_SHARED_CREDENTIALS_FILE];

/// The variables to export; none on a machine without an identity.
pub fn overrides(runner: &Runner) -> Result<Vec<(&'static str, String)>, Failure> {
    let env = runner.env();
    let defined = |names: &[&'static str]| -> Vec<_> {
        names.iter().copied().filter(|name| env.get(name).is_some()).collect()
    };
    let mut found: Vec<_> =
        defined(&EMPTIED_VARIABLES).into_iter().map(|name| (name, String::new())).collect();
    let home = env.get(env_vars::HOME).or_else(|| env.get(env_vars::USERPROFILE));
    let in_home =
        |name: &str| home.is_some_and(|home| Path::new(home).join(".aws").join(name).exists());
    let profiles = defined(&PROFILES);
    let files = in_home("config") || in_home("credentials") || !defined(&FILES).is_empty();
    let path = runner.temp_dir().join("crcr-no-aws-profile");
    let done = env.get(env_vars::AWS_CONFIG_FILE).is_some_and(|file| Path::new(file) == path);
    if !done && (files || !profiles.is_empty()) {
        std::fs::write(&path, EMPTY_CONFIG).map_err(|error| {
            Failure::unexpected("runner-file", format!("`{}` can't be written", path.display()))
                .because(error)
        })?;
        let path = path.to_string_lossy().into_owned();
        found.extend(FILES.map(|name| (name, path.clone())));
        found.extend(profiles.into_iter().map(|name| (name, "default".to_owned())));
    }
    Ok(found)
}

/// Warns that code of the job can still find the identity.
pub fn warn(overrides: &[(&'static str, String)], printer: &Printer) {
    if overrides.is_empty() {
        return;
    }
    let names: Vec<_> = overrides.iter().map(|(name, _)| *name).collect();
    printer.warning(
        &format!(
            "this runner has an AWS identity of its own; later steps don't use it by themselves, \
             since {} now lead nowhere",
            messages::quoted(&names)
        ),
        Some(
            "code that the job runs can still take it: run pull requests of forks on runners \
             without an identity",
        ),
    );
}
