//! Upstream's branch: some of its commits break a test of the backends, and later ones repair it.

use crcr_standin::State;
use rand::Rng as _;
use rand::rngs::StdRng;

use crate::names::UPSTREAM;

/// Commits of one push at most. A search between two pushes has this many candidates.
const COMMITS: u32 = 64;

/// The commits in their order, each with whether the test is broken there.
pub(crate) struct MainBranch {
    commits: Vec<(String, bool)>,
}

impl MainBranch {
    /// `root` is the commit that every pull request branched off.
    pub(crate) fn new(root: &str) -> Self {
        Self { commits: vec![(root.to_owned(), false)] }
    }

    /// Adds the commits of a push; returns the newest one.
    pub(crate) fn grow(&mut self, github: &State, seed: u64, random: &mut StdRng) -> String {
        let count = random.random_range(1..=COMMITS);
        let was_broken = self.commits.last().is_some_and(|(_, is_broken)| *is_broken);
        // A push that repairs the test breaks it no second time, so that the answer is a single commit.
        let changes_at = random.random_ratio(1, 2).then(|| random.random_range(0..count));
        for number in 0..count {
            let has_changed = changes_at.is_some_and(|at| at <= number);
            let (parent, _) = self.commits.last().expect("it has a root");
            let sha = format!("ba5e{seed:028x}{:08x}", self.commits.len());
            github.world.add_commit_on(UPSTREAM, &sha, parent, github.clock.now());
            self.commits.push((sha, was_broken != has_changed));
        }
        let (newest, _) = self.commits.last().expect("a commit was added");
        newest.clone()
    }

    /// Whether the test is broken at a commit; `None` if the commit isn't on the branch.
    pub(crate) fn is_broken(&self, sha: &str) -> Option<bool> {
        self.commits.iter().find(|(of, _)| of == sha).map(|(_, is_broken)| *is_broken)
    }

    /// Whether the commit that an answer names has broken the test.
    pub(crate) fn has_broken(&self, culprit: &str) -> bool {
        let breaks = |pair: &[(String, bool)]| !pair[0].1 && pair[1].1 && pair[1].0 == culprit;
        self.commits.windows(2).any(breaks)
    }
}
