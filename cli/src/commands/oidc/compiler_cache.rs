//! Decides what sccache uses: a bucket, or only the disk.
//!
//! What the job or the image has set already is part of the decision. A step can't unset a variable for
//! later steps, so "off" has to be said in a way that wins over every setting: the chain of caches is then
//! the disk alone. sccache 0.15 and newer know the chain; 0.16 and newer also take an empty value as none.

use std::path::Path;
use std::time::Duration;

use aws_credential_types::Credentials;
use tokio::process::Command;

use crate::cli::oidc::ConfigureArgs;
use crate::commands::oidc::decide::{ActionOutputs, AuthMode, JobFacts, TrustClass};
use crate::commands::oidc::env_file::Export;
use crate::commands::oidc::messages;
use crate::commands::oidc::sccache::{self, SccacheBucket, SccacheOff};
use crate::env_vars::{self, Env};
use crate::printer::Printer;
use crate::runner::Runner;

/// The first release that writes its disk while the bucket behind it is read-only:
/// <https://github.com/mozilla/sccache/issues/2773>
const WRITES_DISK_BESIDE_READ_ONLY_BUCKET: (u32, u32) = (0, 18);

#[derive(Debug)]
pub struct CompilerCache {
    /// The value of the output `sccache-mode`.
    pub word: &'static str,
    /// For later steps of the job.
    pub exports: Vec<Export>,
    /// For containers that a step starts, whose image may set anything.
    pub for_containers: Vec<Export>,
}

impl CompilerCache {
    /// sccache is left as it is.
    pub fn untouched(word: &'static str) -> Self {
        Self { word, exports: vec![], for_containers: vec![] }
    }

    /// Only the disk, whatever else is set.
    fn disk_only(word: &'static str, args: Option<&ConfigureArgs>, runner: &Runner) -> Self {
        let exports = |container| disk_only(args, runner, container);
        Self { word, exports: exports(false), for_containers: exports(true) }
    }

    /// For a step that fails, whose job may go on all the same. `args` is `None` if they can't be parsed.
    pub fn without_credentials(
        args: Option<&ConfigureArgs>,
        runner: &Runner,
        printer: &Printer,
    ) -> Self {
        // Credentials of an earlier step, or of the job itself, are still there.
        match runner.env().get(env_vars::AWS_ACCESS_KEY_ID) {
            Some(_) => Self::untouched("off"),
            None => without_bucket(args, runner, printer),
        }
    }

    /// Sets up sccache for the later steps of the job, which may go on after a failure.
    pub async fn set_up(
        args: &ConfigureArgs,
        facts: &JobFacts,
        outputs: ActionOutputs,
        signing: Option<&Credentials>,
        runner: &Runner,
        printer: &Printer,
    ) -> Self {
        let (env, write) = (runner.env(), outputs.can_write);
        // sccache reads credentials only from the environment.
        let serves = args.output_env_credentials || args.env_file.is_some() || !write;
        if outputs.mode == AuthMode::Error {
            return Self::without_credentials(Some(args), runner, printer);
        }
        if !serves {
            return Self::untouched("off");
        }
        // Without credentials a job reads what the default branch wrote.
        let class = if write { facts.trust_class() } else { TrustClass::DefaultBranch };
        let bucket = match SccacheBucket::from_inputs(args, class) {
            None if write => return own_settings(env),
            None => SccacheBucket::from_env(args, env),
            given => given,
        };
        let Some(bucket) = bucket else { return without_bucket(Some(args), runner, printer) };
        match probed(bucket, write, signing, env).await {
            Ok(bucket) => with_bucket(args, &bucket, write, runner, printer).await,
            Err(SccacheOff { why, hint }) => {
                printer.warning(&format!("sccache is off: {why}"), Some(&hint));
                Self::disk_only("off", Some(args), runner)
            }
        }
    }
}

async fn probed(
    bucket: Result<SccacheBucket, SccacheOff>,
    write: bool,
    signing: Option<&Credentials>,
    env: &Env,
) -> Result<SccacheBucket, SccacheOff> {
    let bucket = bucket?;
    sccache::check_key_variables(write, env)?;
    let client = crcr_github::http::client().map_err(|e| SccacheOff {
        why: e.to_string(),
        hint: "look at the TLS set-up".to_owned(),
    })?;
    bucket.probe(&client, signing).await?;
    Ok(bucket)
}

async fn with_bucket(
    args: &ConfigureArgs,
    bucket: &SccacheBucket,
    write: bool,
    runner: &Runner,
    printer: &Printer,
) -> CompilerCache {
    let env = runner.env();
    let chain = match &args.sccache_dir {
        Some(_) if write => Some("disk,s3"),
        Some(_) => {
            let version = installed_version().await;
            if version.is_none_or(|version| version < WRITES_DISK_BESIDE_READ_ONLY_BUCKET) {
                printer.line(
                    "sccache uses its disk alone: before 0.18 it doesn't write to the disk while \
                     the bucket behind it is read-only",
                );
                return CompilerCache::disk_only("disk", Some(args), runner);
            }
            Some("disk,s3")
        }
        None => None,
    };
    let exports = |container: bool| {
        let is_defined = |name: &str| container || env.get(name).is_some();
        let mut exports = bucket.exports(write, &is_defined);
        // sccache asks some other caches before a bucket on S3.
        let others = container
            || is_defined(env_vars::SCCACHE_MULTILEVEL_CHAIN)
            || remote_caches(env).iter().any(|name| *name != env_vars::SCCACHE_BUCKET);
        let chain = chain.or_else(|| others.then_some("s3"));
        exports.extend(chain.map(|chain| (env_vars::SCCACHE_MULTILEVEL_CHAIN, chain.to_owned())));
        if chain.is_some_and(|chain| chain.starts_with("disk")) {
            exports.extend(disk_settings(Some(args), runner, container));
        }
        let others = &env_vars::SCCACHE_REMOTE_CACHES[1..];
        debug_assert!(!others.contains(&env_vars::SCCACHE_BUCKET));
        exports.extend(without_caches(env, container, others));
        exports
    };
    CompilerCache {
        word: if write { "rw" } else { "ro" },
        exports: exports(false),
        for_containers: exports(true),
    }
}

/// With credentials and without `sccache-bucket`, the job's own settings may be as they should.
fn own_settings(env: &Env) -> CompilerCache {
    let own = remote_caches(env);
    let mut cache = CompilerCache::untouched(if own.is_empty() { "off" } else { "own" });
    // sccache refuses credentials beside it.
    let anonymous = env.is_switched_on(env_vars::SCCACHE_S3_NO_CREDENTIALS)
        || env.is_true(env_vars::SCCACHE_S3_NO_CREDENTIALS);
    if anonymous && env.get(env_vars::SCCACHE_BUCKET).is_some() {
        cache.exports.push((env_vars::SCCACHE_S3_NO_CREDENTIALS, "false".to_owned()));
    }
    cache
}

/// Without credentials and without a bucket, other caches that need credentials would stop sccache.
fn without_bucket(
    args: Option<&ConfigureArgs>,
    runner: &Runner,
    printer: &Printer,
) -> CompilerCache {
    let env = runner.env();
    let names = remote_caches(env);
    let gha = [env_vars::SCCACHE_GHA_ENABLED, env_vars::SCCACHE_GHA_VERSION];
    let service = [env_vars::ACTIONS_RESULTS_URL, env_vars::ACTIONS_CACHE_URL];
    let gha_works = env.get(env_vars::ACTIONS_RUNTIME_TOKEN).is_some()
        && service.iter().any(|name| env.get(name).is_some());
    if names.is_empty() {
        let for_containers = disk_only(args, runner, true);
        let exports = args.and_then(|args| disk_folder(args, runner)).into_iter().collect();
        return CompilerCache { word: "off", exports, for_containers };
    }
    // GitHub gives every job its cache service, and a fork's a part of it.
    if gha_works && names.iter().all(|name| gha.contains(name)) {
        return CompilerCache::untouched("own");
    }
    printer.warning(
        &format!(
            "sccache is off: without credentials it could fail every compilation with {}, which \
             the job or the image sets",
            messages::quoted(&names)
        ),
        Some(
            "for a cache that forks can read, give `sccache-bucket`; this needs sccache 0.15 or \
             newer, so for an older one set the variables only where there are credentials",
        ),
    );
    CompilerCache::disk_only("off", args, runner)
}

/// The variables with which sccache uses its disk alone, whatever else is set.
pub fn disk_only(args: Option<&ConfigureArgs>, runner: &Runner, container: bool) -> Vec<Export> {
    let env = runner.env();
    let mut exports = vec![(env_vars::SCCACHE_MULTILEVEL_CHAIN, "disk".to_owned())];
    exports.extend(disk_settings(args, runner, container));
    exports.extend(without_caches(env, container, &env_vars::SCCACHE_REMOTE_CACHES));
    if container || env.is_defined(env_vars::SCCACHE_S3_NO_CREDENTIALS) {
        exports.push((env_vars::SCCACHE_S3_NO_CREDENTIALS, "false".to_owned()));
    }
    exports
}

/// Empty values for those of `names` that have one. Some of them keep sccache from starting, even if the
/// chain doesn't name their cache.
fn without_caches(env: &Env, container: bool, names: &[&'static str]) -> Vec<Export> {
    let set = names.iter().filter(|name| env.get(name).is_some());
    let mut exports: Vec<Export> = set.map(|name| (*name, String::new())).collect();
    // Releases before 0.16 fail with an empty switch.
    if container || env.is_defined(env_vars::SCCACHE_GHA_ENABLED) {
        exports.push((env_vars::SCCACHE_GHA_ENABLED, "false".to_owned()));
    }
    exports
}

/// Without any setting of the disk sccache refuses a chain with it. A container has the folder at another path, if at
/// all, and sccache couldn't create this machine's path there.
fn disk_settings(
    args: Option<&ConfigureArgs>,
    runner: &Runner,
    container: bool,
) -> impl Iterator<Item = Export> {
    let own = runner.env().get(env_vars::SCCACHE_LOCAL_RW_MODE);
    let mode = own.is_none().then_some("READ_WRITE").or(own.filter(|_| container));
    let folder = args.filter(|_| !container).and_then(|args| disk_folder(args, runner));
    let mode = mode.map(|mode| (env_vars::SCCACHE_LOCAL_RW_MODE, mode.to_owned()));
    folder.into_iter().chain(mode)
}

fn disk_folder(args: &ConfigureArgs, runner: &Runner) -> Option<Export> {
    let folder = args.sccache_dir.as_ref()?;
    let workspace = runner.env().get(env_vars::GITHUB_WORKSPACE).unwrap_or_default();
    let folder = Path::new(workspace).join(folder);
    Some((env_vars::SCCACHE_DIR, folder.to_string_lossy().into_owned()))
}

/// The settings with which sccache uses another cache than its disk.
fn remote_caches(env: &Env) -> Vec<&'static str> {
    let mut names: Vec<_> = env_vars::SCCACHE_REMOTE_CACHES
        .into_iter()
        .filter(|name| env.get(name).is_some())
        .collect();
    let off = ["false", "off", "0"];
    let gha = env.get(env_vars::SCCACHE_GHA_ENABLED);
    if gha.is_some_and(|value| !off.contains(&&*value.to_ascii_lowercase())) {
        names.push(env_vars::SCCACHE_GHA_ENABLED);
    }
    if env.get(env_vars::SCCACHE_MULTILEVEL_CHAIN).is_some_and(|chain| chain != "disk") {
        names.push(env_vars::SCCACHE_MULTILEVEL_CHAIN);
    }
    let conf = env.get(env_vars::SCCACHE_CONF).is_some();
    let folder = |name: &str, rest: &str| env.get(name).map(|base| Path::new(base).join(rest));
    let files = [
        folder(env_vars::XDG_CONFIG_HOME, "sccache/config")
            .or_else(|| folder(env_vars::HOME, ".config/sccache/config")),
        // On macOS.
        folder(env_vars::HOME, "Library/Application Support/Mozilla.sccache/config"),
    ];
    if conf || files.iter().flatten().any(|file| file.exists()) {
        names.push(env_vars::SCCACHE_CONF);
    }
    names
}

/// The major and minor version of the sccache on `PATH`.
async fn installed_version() -> Option<(u32, u32)> {
    let output = Command::new("sccache").arg("--version").kill_on_drop(true).output();
    let output = tokio::time::timeout(Duration::from_secs(5), output).await.ok()?.ok()?;
    parse_version(&String::from_utf8_lossy(&output.stdout))
}

/// Reads what `sccache --version` prints: `sccache 0.16.0`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().strip_prefix("sccache ")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_in_a_file_are_found_where_sccache_looks_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let named =
            |name: &str| remote_caches(&Env::from_iter([(name, folder.path().to_str().unwrap())]));
        for (variable, file) in [
            (env_vars::XDG_CONFIG_HOME, "sccache/config"),
            (env_vars::HOME, ".config/sccache/config"),
            (env_vars::HOME, "Library/Application Support/Mozilla.sccache/config"),
        ] {
            assert_eq!(named(variable), [""; 0], "{file}");
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            assert_eq!(named(variable), [env_vars::SCCACHE_CONF], "{file}");
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn version_is_read_from_what_sccache_prints() {
        assert_eq!(parse_version("sccache 0.16.0\n"), Some((0, 16)));
        assert_eq!(parse_version("sccache 1.2.3-pre"), Some((1, 2)));
        for text in ["", "sccache", "ccache 4.8", "sccache x.y"] {
            assert_eq!(parse_version(text), None, "{text}");
        }
        assert!((0, 16) < WRITES_DISK_BESIDE_READ_ONLY_BUCKET);
    }
}
