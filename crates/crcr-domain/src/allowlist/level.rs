//! Levels, devices and event subscriptions of downstream repositories.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::protocol::event::EventName;

/// How deeply a downstream repository takes part. Each level includes the rights of the lower ones.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Level {
    /// Onboarding: receives events; its results aren't stored.
    L1,
    /// Observation: results on the HUD.
    L2,
    /// Stable: check runs on upstream pull requests that have the device's label.
    L3,
    /// Mature: check runs on all upstream pull requests, which block the merge.
    L4,
}

/// When a level's results become a check run on the upstream pull request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckRunPolicy {
    Never,
    /// Only if the pull request has the label of the repository's device.
    WhenLabelled,
    Always,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` isn't a level: L1, L2, L3 or L4")]
pub struct NotALevel(pub String);

names! { Level { L1 "L1", L2 "L2", L3 "L3", L4 "L4" } }

impl Level {
    pub fn title(self) -> &'static str {
        match self {
            Self::L1 => "onboarding",
            Self::L2 => "observation",
            Self::L3 => "stable",
            Self::L4 => "mature",
        }
    }

    pub(crate) fn receives_events(self) -> bool {
        self >= Self::L1
    }

    /// Whether results are stored and shown on the HUD.
    pub fn shows_results(self) -> bool {
        self >= Self::L2
    }

    pub fn check_run(self) -> CheckRunPolicy {
        match self {
            Self::L1 | Self::L2 => CheckRunPolicy::Never,
            Self::L3 => CheckRunPolicy::WhenLabelled,
            Self::L4 => CheckRunPolicy::Always,
        }
    }

    pub fn blocks_merge(self) -> bool {
        self == Self::L4
    }
}

impl CheckRunPolicy {
    /// Whether a pull request gets a check run; `labelled`: it has the device's label.
    pub fn applies(self, labelled: bool) -> bool {
        match self {
            Self::Never => false,
            Self::WhenLabelled => labelled,
            Self::Always => true,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Level {
    type Err = NotALevel;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::from_name(text).ok_or_else(|| NotALevel(text.to_owned()))
    }
}

/// A pull request asks for check runs of a device with the label `ciflow/crcr/<device>`.
pub const LABEL_PREFIX: &str = "ciflow/crcr/";
/// A GitHub label has at most 50 characters, of which [`LABEL_PREFIX`] takes 12.
const MAX_DEVICE_CHARS: usize = 38;

/// The kind of hardware that L3 repositories are grouped by. Compares ignoring case, as labels do.
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Device(Box<str>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error("it is empty")]
    Empty,
    #[error(
        "it has {0} characters, and {MAX_DEVICE_CHARS} fit: a GitHub label holds 50 and \
         `{LABEL_PREFIX}` takes 12"
    )]
    Long(usize),
    #[error(
        "it must begin with a letter or digit, and continue with letters, digits, `.`, `_` or `-`"
    )]
    Chars,
}

impl Device {
    /// Reads `[A-Za-z0-9][A-Za-z0-9._-]*` of at most 38 characters.
    pub fn new(text: &str) -> Result<Self, DeviceError> {
        if text.is_empty() {
            return Err(DeviceError::Empty);
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !text.chars().all(allowed) || !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return Err(DeviceError::Chars);
        }
        if text.len() > MAX_DEVICE_CHARS {
            return Err(DeviceError::Long(text.len()));
        }
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The label that asks for check runs of this device.
    pub fn label(&self) -> String {
        format!("{LABEL_PREFIX}{}", self.0)
    }
}

text_ignoring_case!(Device.0, DeviceError);

/// A kind of event that a repository can subscribe to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    PullRequest,
    /// Nightly and periodic runs, which the repository starts itself.
    Nightly,
    /// Groups of a merge queue. L4 always gets them, because its checks are required.
    MergeGroup,
}

names! { EventKind { PullRequest "pull_request", Nightly "nightly", MergeGroup "merge_group" } }

impl EventKind {
    /// The kind that an event is counted as: `push` and `merge_group` count as `pull_request`,
    /// `periodic` as `nightly`.
    pub fn from_event_name(event: &EventName) -> Option<Self> {
        match event {
            EventName::PullRequest | EventName::Push | EventName::MergeGroup => {
                Some(Self::PullRequest)
            }
            EventName::Nightly | EventName::Periodic => Some(Self::Nightly),
            EventName::Landed | EventName::Probe | EventName::Other(_) => None,
        }
    }

    /// Whether the event is counted as this kind.
    pub fn includes(self, event: &EventName) -> bool {
        Self::from_event_name(event) == Some(self)
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The kinds of events that a repository subscribes to: at least one. The default is pull requests and
/// nightly runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "Vec<EventKind>", try_from = "Vec<EventKind>")]
pub struct EventSet([bool; EventKind::ALL.len()]);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no event is listed")]
pub struct NoEvents;

impl EventSet {
    /// What a repository gets that lists no events.
    pub const DEFAULT: Self = Self([true, true, false]);

    /// The kinds listed, in any order and number; none at all is an error.
    pub fn new(kinds: impl IntoIterator<Item = EventKind>) -> Result<Self, NoEvents> {
        let mut set = Self([false; EventKind::ALL.len()]);
        for kind in kinds {
            set.0[kind as usize] = true;
        }
        if set.iter().next().is_none() { Err(NoEvents) } else { Ok(set) }
    }

    /// Whether this kind is among them.
    pub fn contains(self, kind: EventKind) -> bool {
        self.0[kind as usize]
    }

    /// The kinds, in the order of [`EventKind::ALL`].
    pub fn iter(self) -> impl Iterator<Item = EventKind> {
        EventKind::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }
}

impl TryFrom<Vec<EventKind>> for EventSet {
    type Error = NoEvents;

    fn try_from(kinds: Vec<EventKind>) -> Result<Self, Self::Error> {
        Self::new(kinds)
    }
}

impl From<EventSet> for Vec<EventKind> {
    fn from(set: EventSet) -> Self {
        set.iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_grow_with_the_level_and_only_the_last_blocks_merges() {
        let rights = |level: Level| {
            (
                level.receives_events(),
                level.shows_results(),
                level.check_run().applies(false),
                level.check_run().applies(true),
                level.blocks_merge(),
            )
        };
        assert_eq!(rights(Level::L1), (true, false, false, false, false));
        assert_eq!(rights(Level::L2), (true, true, false, false, false));
        assert_eq!(rights(Level::L3), (true, true, false, true, false));
        assert_eq!(rights(Level::L4), (true, true, true, true, true));
    }

    #[test]
    fn level_parses_its_own_name_only() {
        for level in Level::ALL {
            assert_eq!(level.as_str().parse(), Ok(level));
        }
        assert!("l1".parse::<Level>().is_err() && "L5".parse::<Level>().is_err());
        let titles = Level::ALL.map(Level::title);
        assert_eq!(titles, ["onboarding", "observation", "stable", "mature"]);
    }

    #[test]
    fn device_names_fit_into_a_label() {
        assert_eq!(Device::new("xpu").unwrap().label(), "ciflow/crcr/xpu");
        assert_eq!(Device::new("NPU").unwrap(), Device::new("npu").unwrap());
        let devices = ["NPU", "npu", "xpu"].map(|name| Device::new(name).unwrap());
        assert_eq!(std::collections::HashSet::from(devices).len(), 2);
        let device = Device::new("NPU").unwrap();
        assert_eq!(format!("{device:>4} {device:?}"), " NPU \"NPU\"");
        assert_eq!(serde_json::to_value(&device).unwrap(), "NPU");
        assert!(Device::new(&"d".repeat(38)).unwrap().label().len() <= 50);
        assert_eq!(Device::new(&"d".repeat(39)), Err(DeviceError::Long(39)));
        assert_eq!(Device::new(""), Err(DeviceError::Empty));
        for bad in ["-a", ".a", "_a", "a b", "a/b", "é", "a,b"] {
            assert_eq!(Device::new(bad), Err(DeviceError::Chars), "{bad}");
        }
    }

    #[test]
    fn push_counts_as_pull_request_and_periodic_as_nightly() {
        assert_eq!(EventKind::from_event_name(&"push".into()), Some(EventKind::PullRequest));
        assert_eq!(EventKind::from_event_name(&"periodic".into()), Some(EventKind::Nightly));
        assert_eq!(EventKind::from_event_name(&"issues".into()), None);
    }

    #[test]
    fn event_set_needs_at_least_one_kind() {
        use EventKind::{Nightly, PullRequest};
        assert_eq!(EventSet::new([]), Err(NoEvents));
        let nightly = EventSet::new([Nightly, Nightly]).unwrap();
        assert!(nightly.iter().eq([Nightly]));
        assert_eq!(EventSet::new([Nightly, PullRequest, Nightly]), Ok(EventSet::DEFAULT));
        assert!(EventSet::new(EventKind::ALL).unwrap().iter().eq(EventKind::ALL));
        assert!(!nightly.contains(PullRequest));
        let stored = serde_json::to_value(EventSet::DEFAULT).unwrap();
        assert_eq!(stored, serde_json::json!(["pull_request", "nightly"]));
        assert_eq!(
            EventKind::ALL.map(|kind| kind.to_string()),
            EventKind::ALL.map(EventKind::as_str)
        );
    }
}
