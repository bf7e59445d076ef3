//! Dead letters as operators read them: one entry for each cause at each backend, however many tasks there are.

use std::collections::BTreeMap;

use crcr_domain::RepoName;
use crcr_domain::checks::check_run::repo_of;
use crcr_store::{StateStore, StoreError, TaskState, TaskView};
use jiff::Timestamp;
use serde::Serialize;

use crate::limits;

/// Tasks of one kind for one repository that were given up for the same reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeadLetterGroup {
    pub kind: String,
    /// `None` when its tasks aren't of one repository.
    pub repository: Option<String>,
    /// The error of the newest one.
    pub cause: String,
    pub count: usize,
    pub oldest: Timestamp,
    pub newest: Timestamp,
    /// The key of the newest one.
    pub key: String,
}

/// All dead letters, those with most tasks first.
pub async fn groups(store: &dyn StateStore) -> Result<Vec<DeadLetterGroup>, StoreError> {
    Ok(grouped(store.tasks(Some(TaskState::Dead), limits::MAX_DEAD_TASKS).await?))
}

fn grouped(tasks: Vec<TaskView>) -> Vec<DeadLetterGroup> {
    let mut groups: BTreeMap<(String, Option<String>, String), DeadLetterGroup> = BTreeMap::new();
    for task in tasks {
        let cause = task.last_error.clone().unwrap_or_default();
        let (kind, repository) = (task.kind(), repository_of(&task.key));
        let group = groups.entry((kind.clone(), repository.clone(), without_numbers(&cause)));
        let group = group.or_insert_with(|| DeadLetterGroup {
            kind,
            repository,
            cause: cause.clone(),
            count: 0,
            oldest: task.created_at,
            newest: task.created_at,
            key: task.key.clone(),
        });
        group.count += 1;
        group.oldest = group.oldest.min(task.created_at);
        if task.created_at >= group.newest {
            (group.newest, group.cause, group.key) = (task.created_at, cause, task.key);
        }
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    groups
}

/// Removes the dead letters of a repository; returns how many there were.
pub async fn discard_of_repository(
    store: &dyn StateStore,
    repo: &RepoName,
) -> Result<usize, StoreError> {
    let mut count = 0;
    for task in store.tasks(Some(TaskState::Dead), limits::MAX_DEAD_TASKS).await? {
        let is_of_repo =
            repository_of(&task.key).is_some_and(|of| of.eq_ignore_ascii_case(repo.as_str()));
        if is_of_repo && store.discard_dead_task(&task.key).await? {
            count += 1;
        }
    }
    Ok(count)
}

/// The downstream repository that a task's key names.
fn repository_of(key: &str) -> Option<String> {
    let parts: Vec<String> = serde_json::from_str(key).ok()?;
    let named = |part: &String| {
        let name = repo_of(part).unwrap_or(part);
        RepoName::new(name).ok().map(|repo| repo.key())
    };
    // The first part is the kind of the task.
    parts.iter().skip(1).find_map(|part| match serde_json::from_str::<Vec<String>>(part) {
        // A record's key begins with its kind and its delivery, which is any text in a self-report.
        Ok(record) => record.iter().skip(2).find_map(named),
        Err(_) => named(part),
    })
}

/// The text with `0` for each number, id, commit and encoded name, to compare two errors.
fn without_numbers(text: &str) -> String {
    let words = text.split_inclusive(|char: char| !char.is_ascii_alphanumeric());
    let same = words.map(|word| {
        let id = word.trim_end_matches(|char: char| !char.is_ascii_alphanumeric());
        // A group of a UUID may have no digit. In an address, `2Ftest` is `/test`.
        let is_id = id.bytes().any(|byte| byte.is_ascii_digit())
            || (id.len() >= 4 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if is_id { word.replacen(id, "0", 1) } else { word.to_owned() }
    });
    same.collect()
}

#[cfg(test)]
mod tests {
    use crcr_store::TaskState;

    use super::*;

    fn dead(key: &[&str], error: &str, created: i64) -> TaskView {
        TaskView {
            key: serde_json::to_string(key).unwrap(),
            lane: String::new(),
            state: TaskState::Dead,
            failed: 15,
            due_at: Timestamp::UNIX_EPOCH,
            created_at: Timestamp::from_second(created).unwrap(),
            last_error: Some(error.to_owned()),
        }
    }

    #[test]
    fn many_dead_letters_of_one_backend_and_cause_are_one_entry() {
        let sha = "0123456789abcdef0123456789abcdef01234567";
        let record = r#"["delivery","d1","job","acme/two","9","1","CI/x","test"]"#.to_owned();
        let mut tasks: Vec<_> = (0..84)
            .map(|n| dead(&["comment", &n.to_string(), "acme/one"], &format!("pull {n}: no"), n))
            .collect();
        tasks.push(dead(&["forward", &record], "the HUD: 422", 5));
        tasks.push(dead(&["dispatch", "d2", "acme/one"], &format!("commit {sha} is gone"), 5));
        let groups = grouped(tasks);
        let found: Vec<_> = groups
            .iter()
            .map(|group| (group.kind.as_str(), group.repository.as_deref(), group.count))
            .collect();
        let (one, two) = (Some("acme/one"), Some("acme/two"));
        assert_eq!(found, [("comment", one, 84), ("dispatch", one, 1), ("forward", two, 1)]);
        assert_eq!(groups[0].cause, "pull 83: no", "the newest");
    }

    #[test]
    fn ids_and_jobs_in_an_error_are_no_cause_of_their_own() {
        let refused = |job: &str, id: &str| {
            without_numbers(&format!("`GET /check-runs?check_name=crcr%2Fa%2F{job}`: 422 ({id})"))
        };
        assert_eq!(refused("test", "7f3a-1b2c-x9"), refused("build", "0e11-beef-q1"));
        assert_ne!(without_numbers("the HUD: 400 bad"), without_numbers("the HUD: 400 gone"));
    }

    #[test]
    fn repository_of_a_check_run_or_none() {
        assert_eq!(
            repository_of(r#"["check_run","abc","crcr/acme/One/CI/t"]"#).unwrap(),
            "acme/one"
        );
        let record = r#"["self_report","acme/one","acme/two","9","1","ci","test"]"#;
        let forward = serde_json::to_string(&["forward", record]).unwrap();
        assert_eq!(repository_of(&forward).unwrap(), "acme/two", "not the delivery");
        assert_eq!(repository_of(r#"["reconcile"]"#), None);
        assert_eq!(repository_of("no list"), None);
    }
}
