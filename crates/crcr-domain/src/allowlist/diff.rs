//! The effect of a change to the allowlist, regardless of how the text changed.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use super::{Allowlist, AllowlistEntry, ParseOutcome};
use crate::allowlist::level::{CheckRunPolicy, Level};
use crate::diagnostic::{Diagnostic, Rule, SourceSpan};
use crate::repo::RepoName;

/// A removed and an added entry that are one repository, as GitHub proves: it was renamed or transferred.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryRename {
    pub from: RepoName,
    pub to: RepoName,
    /// GitHub's number of the repository, which a rename keeps.
    pub id: u64,
}

/// The entry of a repository before and after. At least one is set, and they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryChange<'a> {
    pub before: Option<&'a AllowlistEntry>,
    pub after: Option<&'a AllowlistEntry>,
    /// Set if both entries are and have different names.
    pub rename: Option<&'a RepositoryRename>,
}

/// The most important effect of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    Added,
    Promoted,
    Demoted,
    Removed,
    /// Same level, another name.
    Renamed,
    /// Same name and level, but other device, oncalls, events or spelling.
    Changed,
}

impl EntryChange<'_> {
    pub fn kind(&self) -> ChangeKind {
        match (self.before, self.after) {
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Removed,
            (Some(before), Some(after)) => match after.level.cmp(&before.level) {
                Ordering::Greater => ChangeKind::Promoted,
                Ordering::Less => ChangeKind::Demoted,
                Ordering::Equal if self.rename.is_some() => ChangeKind::Renamed,
                Ordering::Equal => ChangeKind::Changed,
            },
        }
    }

    /// The name as it is spelled after the change.
    pub fn repo(&self) -> &RepoName {
        match (self.after, self.before) {
            (Some(entry), _) | (None, Some(entry)) => &entry.repo,
            (None, None) => unreachable!("a change has a side"),
        }
    }

    /// Whether pull requests get check runs of the repository only after the change. At L3 and L4 its `events` decide
    /// about that, too.
    pub fn gains_check_runs(&self) -> bool {
        !has_check_runs(self.before) && has_check_runs(self.after)
    }
}

fn has_check_runs(entry: Option<&AllowlistEntry>) -> bool {
    entry.is_some_and(|entry| entry.check_run() != CheckRunPolicy::Never)
}

/// Whether both entries of a repository do the same, in whatever order they list who is on call.
fn has_same_effect(one: &AllowlistEntry, other: &AllowlistEntry) -> bool {
    let rest = |entry: &AllowlistEntry| AllowlistEntry { oncalls: vec![], ..entry.clone() };
    calls_the_same(one, other) && rest(one) == rest(other)
}

/// Whether the same people and teams are on call for both.
pub fn calls_the_same(one: &AllowlistEntry, other: &AllowlistEntry) -> bool {
    let names = |entry: &AllowlistEntry| entry.oncalls.iter().cloned().collect::<HashSet<_>>();
    names(one) == names(other)
}

/// All changed repositories, sorted by kind and name. Ignores order, comments and layout of the file.
pub fn changes<'a>(
    base: &'a Allowlist,
    head: &'a Allowlist,
    renames: &'a [RepositoryRename],
) -> Vec<EntryChange<'a>> {
    // Two old names can lead to one repository; the other one is removed.
    let renames: HashMap<_, _> = renames.iter().map(|rename| (&rename.to, rename)).collect();
    let of_head = head.iter().filter_map(|after| {
        let rename = renames.get(&after.repo).copied();
        let before = base.get(rename.map_or(&after.repo, |rename| &rename.from));
        let is_same = |before: &AllowlistEntry| {
            has_same_effect(before, after) && before.repo.as_str() == after.repo.as_str()
        };
        let same = before.is_some_and(is_same);
        (!same).then_some(EntryChange { before, after: Some(after), rename })
    });
    let is_gone = |entry: &&AllowlistEntry| {
        head.get(&entry.repo).is_none() && renames.values().all(|one| one.from != entry.repo)
    };
    let gone = base.iter().filter(is_gone);
    let gone = gone.map(|entry| EntryChange { before: Some(entry), after: None, rename: None });
    let mut changes: Vec<_> = of_head.chain(gone).collect();
    changes.sort_by(|a, b| (a.kind(), a.repo()).cmp(&(b.kind(), b.repo())));
    changes
}

/// The changes that both files show. A file with errors may have entries that weren't read: nothing is known to be missing
/// from it.
pub fn visible_changes<'a>(
    base: &'a ParseOutcome,
    head: &'a ParseOutcome,
    renames: &'a [RepositoryRename],
) -> Vec<EntryChange<'a>> {
    let mut visible = changes(&base.policy, &head.policy, renames);
    visible.retain(|change| match change.kind() {
        ChangeKind::Added => base.findings.errors() == 0,
        ChangeKind::Removed => head.findings.errors() == 0,
        _ => true,
    });
    visible
}

/// Findings for a reviewer, located in the new file. `reason` is the description by the author; a line that
/// names a repository and has more words is the reason for this repository. `renames` is `None` if GitHub
/// wasn't asked.
pub fn review(
    base: &ParseOutcome,
    head: &ParseOutcome,
    renames: Option<&[RepositoryRename]>,
    reason: &str,
) -> Vec<Diagnostic> {
    let place = |repo: &RepoName| {
        let at = head.policy.position(repo);
        at.map_or_else(|| head.source.span(0..0), |at| head.places[at].repo.clone())
    };
    let old_name = |added: &AllowlistEntry| match renames {
        None => possible_old_name(&base.policy, &head.policy, added),
        Some(_) => None,
    };
    visible_changes(base, head, renames.unwrap_or_default())
        .iter()
        .filter_map(|change| {
            let span = place(change.repo());
            match (change.before, change.after) {
                (before, Some(after)) if change.kind() <= ChangeKind::Promoted => {
                    find_skipped_level(before.map(|entry| entry.level), after, span, old_name)
                }
                (Some(before), after) => {
                    find_unexplained_demotion(before, after, reason, span.clone())
                        .or_else(|| find_device_change(before, after?, span))
                }
                _ => None,
            }
        })
        .collect()
}

/// A removed entry that an added one may be under a new name: of the same level, and of the same device or
/// with another owner only.
fn possible_old_name<'a>(
    base: &'a Allowlist,
    head: &Allowlist,
    added: &AllowlistEntry,
) -> Option<&'a RepoName> {
    let is_alike = |old: &&AllowlistEntry| {
        old.level == added.level
            && head.get(&old.repo).is_none()
            && (old.repo.name().eq_ignore_ascii_case(added.repo.name())
                || (old.device.is_some() && old.device == added.device))
    };
    base.iter().find(is_alike).map(|old| &old.repo)
}

/// Repositories must not skip a level.
fn find_skipped_level<'a>(
    before: Option<Level>,
    after: &AllowlistEntry,
    span: SourceSpan,
    old_name: impl Fn(&AllowlistEntry) -> Option<&'a RepoName>,
) -> Option<Diagnostic> {
    let steps = after.level as usize - before.map_or(0, |level| level as usize);
    let message = match before {
        None if after.level > Level::L1 => {
            format!("`{}` is added at {}, above L1", after.repo, after.level)
        }
        Some(before) if steps > 1 => {
            format!("`{}` skips levels from {before} to {}", after.repo, after.level)
        }
        _ => return None,
    };
    let mut help = "promote it one level at a time, starting at L1".to_owned();
    if let Some(old) = old_name(after).filter(|_| before.is_none()) {
        help += &format!(
            "; if it is `{old}` under a new name, `crcr allowlist validate --base … --online` proves that"
        );
    }
    let found = Diagnostic::new(Rule::LevelSkipped, span, message).label("a level is skipped");
    Some(found.help(help))
}

fn find_unexplained_demotion(
    before: &AllowlistEntry,
    after: Option<&AllowlistEntry>,
    reason: &str,
    span: SourceSpan,
) -> Option<Diagnostic> {
    let name = after.map_or(&before.repo, |after| &after.repo);
    let (rule, message) = match after {
        None => {
            let message = format!("`{name}` is removed from {} without a reason", before.level);
            (Rule::RemovalWithoutReason, message)
        }
        Some(after) if after.level < before.level => {
            let (from, to) = (before.level, after.level);
            let message = format!("`{name}` is demoted from {from} to {to} without a reason");
            (Rule::DemotionWithoutReason, message)
        }
        Some(_) if has_check_runs(Some(before)) && !has_check_runs(after) => {
            let level = before.level;
            let message = format!(
                "`{name}` stays at {level}, but its `events` end its check runs without a reason"
            );
            (Rule::DemotionWithoutReason, message)
        }
        Some(_) => return None,
    };
    if gives_reason(reason, name) || gives_reason(reason, &before.repo) {
        return None;
    }
    let help = format!("add a line with the reason to the description: `{name}: …`");
    Some(Diagnostic::new(rule, span, message).help(help))
}

fn find_device_change(
    before: &AllowlistEntry,
    after: &AllowlistEntry,
    span: SourceSpan,
) -> Option<Diagnostic> {
    let (old, new) = (before.device.as_ref()?, after.device.as_ref()?);
    if old == new {
        return None;
    }
    let message = format!("`{}` moves from the device `{old}` to `{new}`", after.repo);
    Some(Diagnostic::new(Rule::DeviceRenamed, span, message).label("another device").help(format!(
        "pull requests that carry `{}` no longer get its check run; the label is now `{}`",
        old.label(),
        new.label()
    )))
}

/// Whether a line contains the repository as a word, and other words.
fn gives_reason(reason: &str, repo: &RepoName) -> bool {
    let part = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    reason.lines().any(|line| {
        let mut words = line.split(|c| !part(c)).map(|word| word.trim_end_matches('.'));
        let named = words.clone().any(|word| word.eq_ignore_ascii_case(repo.as_str()));
        named && words.any(|word| word.len() > 1 && !word.eq_ignore_ascii_case(repo.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ParseOutcome {
        let outcome = Allowlist::parse(text.as_bytes(), &RepoName::new("up/stream").unwrap());
        assert_eq!(outcome.findings.errors(), 0, "{text}");
        outcome
    }

    fn codes(base: &str, head: &str, reason: &str) -> Vec<String> {
        let head = parse(head);
        rules(&review(&parse(base), &head, None, reason))
    }

    /// `rule line:column` of each finding.
    fn rules(found: &[Diagnostic]) -> Vec<String> {
        let rule = |found: &Diagnostic| {
            let start = found.span.start;
            format!("{} {}:{}", found.rule.code(), start.line, start.column)
        };
        found.iter().map(rule).collect()
    }

    fn rename(from: &str, to: &str) -> RepositoryRename {
        let name = |text| RepoName::new(text).unwrap();
        RepositoryRename { from: name(from), to: name(to), id: 7 }
    }

    #[test]
    fn reordering_and_comments_are_no_changes() {
        let base = parse("L1: [a/b, c/d]\nL3: {x: {e/f: [p]}, w: {g/h: [q]}}\n");
        let head = parse(
            "# note\nL3:\n  w:\n    g/h: q\n  x:\n    e/f: [p]\nL1:\n  - c/d # why\n  - a/b\n",
        );
        assert_eq!(changes(&base.policy, &head.policy, &[]), []);
        assert_eq!(base.policy, head.policy);
    }

    #[test]
    fn order_of_oncalls_is_no_change_and_who_is_on_call_is() {
        let base = parse("L4: [{a/b: [p, org/q]}]");
        for (head, count) in [
            ("L4: [{a/b: 'Org/q, p'}]", 0),
            ("L4: [{a/b: [p]}]", 1),
            ("L4: [{a/b: [p, org/r]}]", 1),
            ("L4: [{a/b: [p, org/q, r]}]", 1),
        ] {
            assert_eq!(changes(&base.policy, &parse(head).policy, &[]).len(), count, "{head}");
        }
    }

    /// A level that stays the same can hide that pull requests get other check runs.
    #[test]
    fn events_that_end_check_runs_need_a_reason_and_those_that_begin_them_are_told() {
        let (whole, nightly) =
            ("L4: [{a/b: [p]}]", "L4: [{a/b: {oncalls: [p], events: [nightly]}}]");
        assert_eq!(codes(whole, nightly, ""), ["demotion-without-reason 1:7"]);
        assert_eq!(codes(whole, nightly, "a/b: its machines are gone"), [""; 0]);
        assert_eq!(codes(nightly, whole, ""), [""; 0]);
        let gains = |base: &str, head: &str| {
            let (base, head) = (parse(base), parse(head));
            let all = changes(&base.policy, &head.policy, &[]);
            all.iter().map(EntryChange::gains_check_runs).collect::<Vec<_>>()
        };
        assert_eq!(gains(nightly, whole), [true]);
        assert_eq!(gains(whole, nightly), [false]);
        assert_eq!(gains(whole, "L4: [{a/b: [q]}]"), [false]);
        let observed = "L2: [{a/b: {events: [nightly]}}]";
        assert_eq!(codes("L2: [a/b]", observed, ""), [""; 0], "L2 has no check runs");
        assert_eq!(gains(observed, "L2: [a/b]"), [false]);
    }

    #[test]
    fn repository_is_added_promoted_demoted_removed_or_changed_by_its_two_levels() {
        let base = parse("L1: [a/a, b/b]\nL2: [c/c, d/d, f/f]\n");
        let head = parse("L1: [B/b, c/c, e/e]\nL2: [a/a, d/d]\n");
        let kinds: Vec<_> = changes(&base.policy, &head.policy, &[])
            .iter()
            .map(|change| (change.kind(), change.repo().to_string()))
            .collect();
        use ChangeKind as K;
        assert_eq!(
            kinds,
            [
                (K::Added, "e/e".to_owned()),
                (K::Promoted, "a/a".to_owned()),
                (K::Demoted, "c/c".to_owned()),
                (K::Removed, "f/f".to_owned()),
                (K::Changed, "B/b".to_owned()),
            ]
        );
    }

    #[test]
    fn skipped_levels_are_found() {
        assert_eq!(codes("", "L1: [a/b]", ""), [""; 0]);
        assert_eq!(codes("", "L2: [a/b]", ""), ["level-skipped 1:6"]);
        assert_eq!(codes("L1: [a/b]", "L2: [a/b]", ""), [""; 0]);
        assert_eq!(codes("L2: [a/b]", "L3: {x: {a/b: [p]}}", ""), [""; 0]);
        assert_eq!(codes("L1: [a/b]", "L3: {x: {A/b: [p]}}", ""), ["level-skipped 1:10"]);
        assert_eq!(codes("L2: [a/b]", "L4: [{a/b: p}]", ""), ["level-skipped 1:7"]);
    }

    #[test]
    fn demotion_needs_a_reason_that_names_the_repository() {
        let (base, head) = ("L2: [a/b, c/d]", "L1: [a/b]");
        let both = ["demotion-without-reason 1:6", "removal-without-reason 1:1"];
        assert_eq!(codes(base, head, ""), both);
        assert_eq!(codes(base, head, "tidy up\na/b\nxa/b: slow"), both);
        assert_eq!(codes(base, head, "A/B: no runs for a month"), both[1..]);
        assert_eq!(codes(base, head, "a/b: x"), both, "one letter isn't a reason");
        assert_eq!(codes(base, head, "a/b: slow"), both[1..]);
        assert_eq!(codes(base, head, "- a/b and c/d were given up by their owners."), [""; 0]);
    }

    #[test]
    fn device_change_is_found() {
        let (base, head) = ("L3: {x: {a/b: [p]}}", "L3: {w: {a/b: [p]}}");
        assert_eq!(codes(base, head, ""), ["device-renamed 1:10"]);
        assert_eq!(codes(base, "L3: {X: {a/b: [p]}}", ""), [""; 0]);
    }

    #[test]
    fn proven_rename_is_neither_an_addition_nor_a_removal() {
        let (base, head) =
            (parse("L4: [{a/b: p}]\nL1: [c/d]\n"), parse("L4: [{x/y: p}]\nL1: [c/d]\n"));
        let renames = [rename("a/b", "X/y")];
        let all = changes(&base.policy, &head.policy, &renames);
        let [change] = all[..] else { panic!("{all:?}") };
        assert_eq!((change.kind(), change.repo().as_str()), (ChangeKind::Renamed, "x/y"));
        assert_eq!(change.before.unwrap().repo.as_str(), "a/b");
        assert_eq!(change.rename, Some(&renames[0]));
        assert_eq!(review(&base, &head, Some(&renames), ""), []);
        let unproven = ["level-skipped 1:7", "removal-without-reason 1:1"];
        assert_eq!(rules(&review(&base, &head, Some(&[]), "")), unproven);
    }

    #[test]
    fn other_changes_of_a_renamed_repository_are_judged_between_both_entries() {
        let renames = [rename("a/b", "x/y")];
        let found = |base: &str, head: &str, reason: &str| {
            rules(&review(&parse(base), &parse(head), Some(&renames), reason))
        };
        assert_eq!(found("L1: [a/b]", "L2: [x/y]", ""), [""; 0]);
        assert_eq!(found("L1: [a/b]", "L4: [{x/y: p}]", ""), ["level-skipped 1:7"]);
        assert_eq!(found("L2: [a/b]", "L1: [x/y]", ""), ["demotion-without-reason 1:6"]);
        for reason in ["a/b: no runs", "x/y: no runs"] {
            assert_eq!(found("L2: [a/b]", "L1: [x/y]", reason), [""; 0]);
        }
        let moved = found("L3: {x: {a/b: [p]}}", "L3: {w: {x/y: [p]}}", "");
        assert_eq!(moved, ["device-renamed 1:10"]);
    }

    #[test]
    fn entries_that_could_not_be_read_are_neither_removed_nor_added() {
        let read =
            |text: &str| Allowlist::parse(text.as_bytes(), &RepoName::new("up/stream").unwrap());
        let whole = "L1: [a/b]\nL2:\n  - c/d\nL4:\n  - e/f: p\n";
        for broken in ["L1: [a/b]\nL2:\n\t- c/d\nL4:\n  - e/f: p\n", "L1: [a/b]\nL2: {c/d: }\n"] {
            assert!(read(broken).findings.errors() > 0, "{broken}");
            for (base, head) in [(whole, broken), (broken, whole)] {
                assert_eq!(review(&read(base), &read(head), None, ""), [], "{base} {head}");
                assert_eq!(visible_changes(&read(base), &read(head), &[]), [], "{base} {head}");
            }
        }
        let moved = read("L1: [c/d]\nL5: [x/y]\n");
        let found = rules(&review(&read(whole), &moved, None, ""));
        assert_eq!(found, ["demotion-without-reason 1:6"], "what both files show is judged");
    }

    #[test]
    fn second_old_name_of_one_repository_is_removed() {
        let (base, head) = (parse("L2: [a/b, c/d]"), parse("L2: [x/y]"));
        let renames = [rename("a/b", "x/y"), rename("c/d", "x/y")];
        let all = changes(&base.policy, &head.policy, &renames);
        let kinds: Vec<_> = all.iter().map(EntryChange::kind).collect();
        assert_eq!(kinds, [ChangeKind::Removed, ChangeKind::Renamed]);
    }

    #[test]
    fn addition_that_may_be_a_rename_names_the_old_name_unless_github_was_asked() {
        let help = |base: &str, head: &str, renames: Option<&[RepositoryRename]>| {
            let found = review(&parse(base), &parse(head), renames, "");
            let skipped = found.into_iter().find(|one| one.rule == Rule::LevelSkipped);
            skipped.and_then(|one| one.help).unwrap()
        };
        let hint = "if it is `a/b` under a new name";
        for (base, head) in [
            ("L4: [{a/b: p}]", "L4: [{x/B: q}]"),
            ("L3: {gpu: {a/b: [p]}}", "L3: {gpu: {x/y: [p]}}"),
        ] {
            assert!(help(base, head, None).contains(hint), "{head}");
            assert!(!help(base, head, Some(&[])).contains("new name"), "{head}");
        }
        for (base, head) in [
            ("L4: [{a/b: p}]", "L4: [{x/y: p}]"),
            ("L2: [a/b]", "L4: [{x/b: p}]"),
            ("L3: {gpu: {a/b: [p]}}", "L3: {npu: {x/y: [p]}}"),
            ("L4: [{a/b: p}]", "L4: [{a/b: p}, {x/b: p}]"),
        ] {
            assert!(!help(base, head, None).contains("new name"), "{head}");
        }
    }
}
