//! The rules that explain the logs of failed jobs, reloaded when their file changes.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use crcr_cidata::logs::RuleSet;
use parking_lot::RwLock;

use crate::config::secrets::ReloadResult;
use crate::limits;

static STARTER: LazyLock<Arc<RuleSet>> = LazyLock::new(|| Arc::new(RuleSet::starter()));

/// The rules of a file, or those that crcr comes with.
#[derive(Debug, Default)]
pub struct LogRules(Option<RulesFile>);

#[derive(Debug)]
struct RulesFile {
    path: PathBuf,
    state: RwLock<RulesState>,
}

#[derive(Debug)]
struct RulesState {
    rules: Arc<RuleSet>,
    /// What was read last, also if it was unusable: each content is reported once.
    last_read: Result<String, String>,
}

impl LogRules {
    /// Fails if the file can't be used.
    pub fn open(path: PathBuf) -> Result<Self, String> {
        let text = read(&path)?;
        let rules = Arc::new(parse(&path, &text)?);
        let state = RwLock::new(RulesState { rules, last_read: Ok(text) });
        Ok(Self(Some(RulesFile { path, state })))
    }

    pub fn current(&self) -> Arc<RuleSet> {
        match &self.0 {
            Some(file) => Arc::clone(&file.state.read().rules),
            None => Arc::clone(&STARTER),
        }
    }

    /// Reads the file again. If it can't be used, the old rules stay. Blocks while it reads.
    pub(crate) fn reload(&self) -> ReloadResult {
        let Some(file) = &self.0 else { return ReloadResult::Unchanged };
        let text = read(&file.path);
        if file.state.read().last_read == text {
            return ReloadResult::Unchanged;
        }
        let parsed = text.as_ref().map_err(String::clone).and_then(|text| parse(&file.path, text));
        let mut state = file.state.write();
        state.last_read = text;
        match parsed {
            Ok(rules) => {
                state.rules = Arc::new(rules);
                ReloadResult::New
            }
            Err(problem) => ReloadResult::Broken(problem),
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        // A pipe would be waited for without end.
        return Err(format!("`{}` isn't a file", path.display()));
    }
    let mut text = String::new();
    let file = File::open(path);
    file.and_then(|file| file.take(limits::LOG_RULES_BYTES).read_to_string(&mut text))
        .map_err(|error| format!("`{}` can't be read: {error}", path.display()))?;
    Ok(text)
}

fn parse(path: &Path, text: &str) -> Result<RuleSet, String> {
    RuleSet::parse(text).map_err(|findings| {
        let more = match findings.len() {
            1 => String::new(),
            count => format!(", and {} more; `crcr logs test` shows them", count - 1),
        };
        let first = findings.first().map(ToString::to_string).unwrap_or_default();
        format!("`{}`: {first}{more}", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_rules_are_reported_once_and_the_old_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.toml");
        let rule = |name: &str| {
            format!("[[rule]]\nname = \"{name}\"\ncategory = \"c\"\npattern = 'boom'\n")
        };
        assert!(LogRules::open(path.clone()).unwrap_err().contains("can't be read"));
        #[cfg(unix)]
        {
            let pipe = folder.path().join("pipe");
            assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            assert!(LogRules::open(pipe).unwrap_err().ends_with("isn't a file"));
        }
        std::fs::write(&path, rule("first")).unwrap();
        let rules = LogRules::open(path.clone()).unwrap();
        let name = || rules.current().rules()[0].name.clone();
        assert!(matches!(rules.reload(), ReloadResult::Unchanged));
        std::fs::write(&path, "[[rule]]\nname = 'x'\ncategory = 'c'\npattern = '('\n").unwrap();
        let ReloadResult::Broken(problem) = rules.reload() else { panic!("it is broken") };
        assert!(problem.contains("rules.toml`: line 4"), "{problem}");
        assert!(matches!(rules.reload(), ReloadResult::Unchanged), "it is reported once");
        assert_eq!(name(), "first");
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(rules.reload(), ReloadResult::Broken(_)));
        assert_eq!(name(), "first");
        std::fs::write(&path, rule("second")).unwrap();
        assert!(matches!(rules.reload(), ReloadResult::New));
        assert_eq!(name(), "second");
    }
}
