//! The allowlist as upstream has it, and since when. The relay reads it later.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use rand::Rng as _;
use rand::rngs::StdRng;

use crate::names::BACKENDS;
use crate::truth::HANDLER;

/// The one that may have an open demotion.
pub(crate) const DEMOTED: &str = "lab/three";
/// Those whose entry may change.
const CHANGING: [&str; 3] = ["lab/three", "acme/four", "lab/five"];
/// By then every replica has read a change, also if its requests failed a few times.
const CHANGE_KNOWN: SignedDuration = SignedDuration::from_mins(60);

#[derive(Debug, Clone)]
pub(crate) struct SimulatedEntry {
    /// From 1; 0 for a backend that isn't listed.
    pub(crate) level: u8,
    spelling: String,
    pub(crate) since: Option<Timestamp>,
    /// The lowest level that it ever had.
    pub(crate) lowest: u8,
    before: u8,
}

#[derive(Debug)]
pub(crate) struct AllowlistModel {
    entries: BTreeMap<&'static str, SimulatedEntry>,
    /// Since when the demotion of [`DEMOTED`] is open.
    demoted_since: Option<Timestamp>,
    was_demoted: bool,
}

impl Default for AllowlistModel {
    fn default() -> Self {
        let entry = |repo: &'static str, level| {
            let spelling = repo.to_owned();
            (repo, SimulatedEntry { level, spelling, since: None, lowest: level, before: level })
        };
        Self {
            entries: BACKENDS.into_iter().zip([1, 2, 3, 4, 4]).map(|(r, l)| entry(r, l)).collect(),
            demoted_since: None,
            was_demoted: false,
        }
    }
}

impl AllowlistModel {
    /// The level now; 0 for a backend that isn't listed.
    pub(crate) fn level(&self, repo: &str) -> u8 {
        self.entries.get(repo).map_or(0, |entry| entry.level)
    }

    /// The level now, if the relay must know it.
    pub(crate) fn settled_level(&self, repo: &str, now: Timestamp) -> Option<u8> {
        let entry = self.entries.get(repo)?;
        let is_known = entry.since.is_none_or(|since| since + CHANGE_KNOWN < now);
        is_known.then_some(entry.level)
    }

    pub(crate) fn entry(&self, repo: &str) -> Option<&SimulatedEntry> {
        self.entries.get(repo)
    }

    /// The backends that get an event for which `lowest` is the lowest level.
    pub(crate) fn targets(&self, lowest: u8) -> Vec<&'static str> {
        let listed = self.entries.iter().filter(|(_, entry)| entry.level >= lowest);
        listed.map(|(repo, _)| *repo).collect()
    }

    /// Changes one entry; returns what was changed.
    pub(crate) fn change(&mut self, now: Timestamp, random: &mut StdRng) -> String {
        let repo = CHANGING[random.random_range(0..CHANGING.len())];
        let entry = self.entries.get_mut(repo).expect("it is listed from the start");
        if random.random_ratio(1, 5) {
            entry.spelling =
                if entry.spelling == repo { repo.to_uppercase() } else { repo.to_owned() };
            return format!("the allowlist spells {}", entry.spelling);
        }
        let has_returned = entry.level != entry.before && random.random_ratio(1, 2);
        let level =
            if has_returned { entry.before } else { [0, 2, 3, 4, 4][random.random_range(0..5)] };
        (entry.before, entry.level) = (entry.level, level);
        entry.lowest = entry.lowest.min(level);
        entry.since = Some(now);
        format!("{repo} is at L{level} now, no longer at L{}", entry.before)
    }

    /// Opens the demotion, or closes it; returns whether it is open now.
    pub(crate) fn toggle_demotion(&mut self, now: Timestamp) -> bool {
        self.was_demoted = true;
        self.demoted_since = self.demoted_since.is_none().then_some(now);
        self.demoted_since.is_some()
    }

    /// Whether the backend may lack check runs at L3.
    pub(crate) fn was_demoted(&self, repo: &str) -> bool {
        repo == DEMOTED && self.was_demoted
    }

    /// Whether the relay must know that the backend gets no new check runs. `read_at`: when the replica that knows least
    /// last read which demotions are open.
    pub(crate) fn is_settled_demotion(
        &self,
        repo: &str,
        now: Timestamp,
        read_at: Timestamp,
    ) -> bool {
        let is_old = self.demoted_since.is_some_and(|since| {
            since + CHANGE_KNOWN < now && since < read_at && read_at.duration_until(now) > HANDLER
        });
        repo == DEMOTED && is_old && self.settled_level(repo, now) == Some(3)
    }

    /// The allowlist's file as upstream has it.
    pub(crate) fn text(&self) -> String {
        let of_level = |level: u8| {
            let listed = self.entries.values().filter(move |entry| entry.level == level);
            listed.map(|entry| format!("  - {}: [dave]\n", entry.spelling)).collect::<String>()
        };
        let mut text = String::new();
        for level in [1, 2, 4] {
            let entries = of_level(level);
            if !entries.is_empty() {
                text += &format!("L{level}:\n{entries}");
            }
        }
        let with_label = of_level(3).replace("  - ", "    ");
        if !with_label.is_empty() {
            text += &format!("L3:\n  npu:\n{with_label}");
        }
        text
    }
}
