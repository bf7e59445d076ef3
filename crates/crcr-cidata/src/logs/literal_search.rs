//! Finds the literals of all rules in a text.

use std::sync::Arc;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, BuildError, MatchKind, dfa::DFA};

/// A larger sum of literals is searched with an automaton that is smaller and takes three times as long for a log. The
/// fast one has 300 bytes for each of theirs: 7 MB for the starter rules.
const MAX_DFA_LITERALS_BYTES: usize = 32 * 1024;
/// Parts of a text that are searched at the same time. Each step of an automaton waits for the one before it, so a
/// core takes a step in each of eight parts while it would wait: 100 MB take a third of the time.
const LANES: usize = 8;

#[derive(Debug, Clone)]
pub(crate) enum LiteralSearch {
    Fast(Arc<DFA>),
    Small(Arc<NFA>),
}

/// A place in the text where at least one literal ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LiteralHit {
    /// The place of their last byte.
    pub(crate) last: u32,
    state: StateID,
}

/// Hits of each part. Buffers are used again for the next text.
#[derive(Debug, Default)]
pub(crate) struct LiteralHits([Vec<LiteralHit>; LANES]);

impl LiteralHits {
    /// In the order of the text.
    pub(crate) fn iter(&self) -> impl Iterator<Item = LiteralHit> {
        self.0.iter().flatten().copied()
    }
}

impl LiteralSearch {
    /// The literals are in lower case, and ASCII case doesn't matter. In them, a line feed can only be the first or
    /// the last byte.
    pub(crate) fn new(literals: &[&[u8]]) -> Result<Self, BuildError> {
        let size: usize = literals.iter().map(|literal| literal.len()).sum();
        if size > MAX_DFA_LITERALS_BYTES {
            let mut builder = NFA::builder();
            builder.ascii_case_insensitive(true).match_kind(MatchKind::Standard).prefilter(false);
            return Ok(Self::Small(Arc::new(builder.build(literals)?)));
        }
        let mut builder = DFA::builder();
        builder.ascii_case_insensitive(true).match_kind(MatchKind::Standard).prefilter(false);
        Ok(Self::Fast(Arc::new(builder.build(literals)?)))
    }

    /// Replaces `hits` by those in a text that starts and ends with a line feed.
    pub(crate) fn search(&self, text: &[u8], hits: &mut LiteralHits) {
        match self {
            Self::Fast(automaton) => search_lanes(&**automaton, text, hits),
            Self::Small(automaton) => search_lanes(&**automaton, text, hits),
        }
    }

    /// The numbers of the literals that end there.
    pub(crate) fn literals_of(&self, hit: LiteralHit) -> impl Iterator<Item = usize> {
        let count = match self {
            Self::Fast(automaton) => automaton.match_len(hit.state),
            Self::Small(automaton) => automaton.match_len(hit.state),
        };
        (0..count).map(move |index| match self {
            Self::Fast(automaton) => automaton.match_pattern(hit.state, index).as_usize(),
            Self::Small(automaton) => automaton.match_pattern(hit.state, index).as_usize(),
        })
    }
}

/// The parts begin and end with a line feed, which two neighbours share: no literal goes on after one.
fn split(text: &[u8]) -> [&[u8]; LANES] {
    let mut rest_from = 0;
    std::array::from_fn(|lane| {
        let from = rest_from;
        let aim = (text.len() / LANES * (lane + 1)).max(from);
        let feed = match lane + 1 {
            LANES => None,
            _ => memchr::memchr(b'\n', &text[aim..]).map(|at| aim + at),
        };
        rest_from = feed.unwrap_or(text.len());
        &text[from..feed.map_or(text.len(), |feed| feed + 1)]
    })
}

fn search_lanes(automaton: &impl Automaton, text: &[u8], hits: &mut LiteralHits) {
    hits.0.iter_mut().for_each(Vec::clear);
    let start = automaton.start_state(Anchored::No).expect("it searches without an anchor");
    let lanes = split(text);
    let starts = lanes.map(|lane| lane.as_ptr().addr() - text.as_ptr().addr());
    let together = lanes.iter().map(|lane| lane.len()).min().unwrap_or_default();
    let mut lane_hits = hits.0.each_mut();
    let mut step = |lane: usize, state: StateID, at: usize, byte: u8| {
        let state = automaton.next_state(Anchored::No, state, byte);
        if automaton.is_special(state) && automaton.is_match(state) {
            #[expect(clippy::cast_possible_truncation, reason = "a text is far below 4 GiB")]
            let last = (starts[lane] + at) as u32;
            lane_hits[lane].push(LiteralHit { last, state });
        }
        state
    };
    let heads = lanes.map(|lane| &lane[..together]);
    let mut states = [start; LANES];
    #[expect(clippy::needless_range_loop, reason = "it is a place in all parts")]
    for at in 0..together {
        for (lane, state) in states.iter_mut().enumerate() {
            *state = step(lane, *state, at, heads[lane][at]);
        }
    }
    for (lane, mut state) in states.into_iter().enumerate() {
        for (at, &byte) in lanes[lane].iter().enumerate().skip(together) {
            state = step(lane, state, at, byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(literals: &[&[u8]], text: &[u8]) -> Vec<(u32, usize)> {
        let search = LiteralSearch::new(literals).unwrap();
        let mut hits = LiteralHits::default();
        search.search(text, &mut hits);
        hits.iter()
            .flat_map(|hit| search.literals_of(hit).map(move |literal| (hit.last, literal)))
            .collect()
    }

    #[test]
    fn literals_are_found_once_wherever_the_text_is_split() {
        let literals: [&[u8]; 4] = [b"\nerror", b"error\n", b"error", b"an error o"];
        for lines in 0..40 {
            for length in [0, 3, 11, 29] {
                let mut text = vec![b'\n'];
                for line in 0..lines {
                    text.extend_from_slice(
                        ["error", "an ERROR occurred", "no", ""][line % 4].as_bytes(),
                    );
                    text.extend(std::iter::repeat_n(b'x', (line * 7 + length) % 30));
                    text.push(b'\n');
                }
                let found = hits(&literals, &text);
                let mut expected = vec![];
                let lower = text.to_ascii_lowercase();
                for last in 0..text.len() {
                    for (literal, bytes) in literals.iter().enumerate() {
                        if lower[..=last].ends_with(bytes) {
                            expected.push((u32::try_from(last).unwrap(), literal));
                        }
                    }
                }
                let mut sorted = found.clone();
                sorted.sort_unstable();
                expected.sort_unstable();
                assert_eq!(sorted, expected);
                assert!(found.is_sorted_by_key(|(last, _)| *last));
            }
        }
        assert!(hits(&literals, b"").is_empty());
    }
}
