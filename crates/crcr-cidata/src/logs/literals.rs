//! The text that every match of a pattern contains.
//!
//! `regex-syntax` extracts literals from the start or the end of a pattern. Rules for logs often
//! have theirs in the middle (`^\S+:\d+: error: `), and many ignore case, so the pattern is walked
//! here and all literals are in lower case. A line feed in a literal is the start or the end of a
//! line: `^E: ` is selective, although `E: ` isn't.

use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// How many literals may stand for one pattern.
const MAX_SET: usize = 24;
/// More of a literal makes the automaton larger and hardly more selective.
const MAX_LITERAL_BYTES: usize = 16;
/// In bytes other than white space, an end of a line being worth two. Shorter literals occur in nearly
/// every line.
const MIN_LITERAL: usize = 3;

/// Words that are in many lines of any log, so that another literal is preferred to them.
const FREQUENT_WORDS: [&[u8]; 6] = [b"error", b"fail", b"failed", b"failure", b"warning", b"test"];

type LiteralSet = Vec<Vec<u8>>;

/// Literals in lower case of which every match contains at least one, ignoring ASCII case. `None` if
/// there are none that are worth searching for.
pub(crate) fn required_literals(hir: &Hir) -> Option<LiteralSet> {
    let parts = LiteralParts::of(hir);
    let best = better(parts.exact, parts.required)?;
    let mut best: LiteralSet = best
        .into_iter()
        .map(|mut literal| {
            literal.truncate(MAX_LITERAL_BYTES);
            ascii_part(literal)
        })
        .collect();
    best.sort();
    best.dedup();
    Some(best)
}

/// The longest part in ASCII, if it is selective enough. Each byte that literals have is a class of its own, and from 129
/// classes on the automaton of all literals takes twice the memory.
fn ascii_part(literal: Vec<u8>) -> Vec<u8> {
    let longest = literal.split(|byte| !byte.is_ascii()).max_by_key(|part| worth(part));
    match longest {
        Some(part) if worth(part) > MIN_LITERAL => part.to_vec(),
        _ => literal,
    }
}

#[derive(Default)]
struct LiteralParts {
    /// Everything that the part matches, if that is little.
    exact: Option<LiteralSet>,
    /// Without `exact`: every match of the part starts with one of these.
    prefix: Option<LiteralSet>,
    /// Every match of the part contains one of these.
    required: Option<LiteralSet>,
}

impl LiteralParts {
    fn exact(set: LiteralSet) -> Self {
        Self { exact: Some(set), ..Self::default() }
    }

    fn start(&self) -> Option<&LiteralSet> {
        self.exact.as_ref().or(self.prefix.as_ref())
    }

    fn of(hir: &Hir) -> Self {
        match hir.kind() {
            HirKind::Look(Look::StartLF | Look::EndLF) => Self::exact(vec![vec![b'\n']]),
            HirKind::Empty | HirKind::Look(_) => Self::exact(vec![vec![]]),
            HirKind::Literal(literal) => Self::exact(vec![literal.0.to_ascii_lowercase()]),
            HirKind::Class(class) => Self { exact: members(class), ..Self::default() },
            HirKind::Capture(capture) => Self::of(&capture.sub),
            HirKind::Repetition(repetition) => {
                let sub = Self::of(&repetition.sub);
                match (repetition.min, repetition.max) {
                    (1, Some(1)) => sub,
                    (0, Some(1)) => {
                        let exact = sub.exact.filter(|set| set.len() < MAX_SET).map(|mut set| {
                            set.push(vec![]);
                            set
                        });
                        Self { exact, ..Self::default() }
                    }
                    (0, _) => Self::default(),
                    _ => Self {
                        exact: None,
                        prefix: sub.start().cloned(),
                        required: better(sub.exact, sub.required),
                    },
                }
            }
            HirKind::Concat(parts) => Self::of_sequence(parts),
            HirKind::Alternation(parts) => {
                let parts: Vec<Self> = parts.iter().map(Self::of).collect();
                let exact = union(parts.iter().map(|part| part.exact.clone()));
                let prefix = union(parts.iter().map(|part| part.start().cloned()));
                let required =
                    union(parts.into_iter().map(|part| better(part.exact, part.required)));
                Self { exact, prefix, required }
            }
        }
    }

    fn of_sequence(parts: &[Hir]) -> Self {
        let (mut best, mut prefix) = (None, None);
        let mut current: LiteralSet = vec![vec![]];
        let mut is_exact = true;
        for part in parts {
            let part = Self::of(part);
            let joined = part.exact.as_ref().and_then(|set| product(&current, set));
            if let Some(joined) = joined {
                current = joined;
                continue;
            }
            let longer = part.start().and_then(|start| product(&current, start));
            if is_exact {
                prefix = longer.clone().or_else(|| Some(current.clone()));
            }
            is_exact = false;
            best = better(better(best, Some(std::mem::take(&mut current))), longer);
            best = better(best, part.required);
            current = part.exact.unwrap_or_else(|| vec![vec![]]);
        }
        if is_exact {
            return Self::exact(current);
        }
        Self { exact: None, prefix, required: better(best, Some(current)) }
    }
}

/// The members of a small class in lower case, so that `[eE]` is one.
fn members(class: &Class) -> Option<LiteralSet> {
    let count: usize = match class {
        Class::Unicode(class) => class.iter().map(|range| range.len()).sum(),
        Class::Bytes(class) => class.iter().map(|range| range.len()).sum(),
    };
    if count > 2 * MAX_SET {
        return None;
    }
    let mut set: LiteralSet = match class {
        Class::Unicode(class) => {
            let chars = class.iter().flat_map(|range| range.start()..=range.end());
            chars.map(|c| c.to_ascii_lowercase().to_string().into_bytes()).collect()
        }
        Class::Bytes(class) => {
            let bytes = class.iter().flat_map(|range| range.start()..=range.end());
            bytes.map(|byte| vec![byte.to_ascii_lowercase()]).collect()
        }
    };
    set.sort();
    set.dedup();
    (set.len() <= MAX_SET).then_some(set)
}

fn product(starts: &LiteralSet, ends: &LiteralSet) -> Option<LiteralSet> {
    let longest = |set: &LiteralSet| set.iter().map(Vec::len).max().unwrap_or_default();
    let fits = starts.len() * ends.len() <= MAX_SET && longest(starts) + longest(ends) <= 256;
    fits.then(|| {
        // `^^` is the start of one line.
        let joined = |start: &[u8], end: &[u8]| match (start, end) {
            ([.., b'\n'], [b'\n', rest @ ..]) => [start, rest].concat(),
            _ => [start, end].concat(),
        };
        let with = |start: &Vec<u8>| ends.iter().map(|end| joined(start, end)).collect();
        let mut set: LiteralSet =
            starts.iter().flat_map(|start| -> LiteralSet { with(start) }).collect();
        set.sort();
        set.dedup();
        set
    })
}

fn union(sets: impl Iterator<Item = Option<LiteralSet>>) -> Option<LiteralSet> {
    let mut all = LiteralSet::new();
    for set in sets {
        all.extend(set?);
        if all.len() > MAX_SET {
            return None;
        }
    }
    Some(all)
}

fn better(a: Option<LiteralSet>, b: Option<LiteralSet>) -> Option<LiteralSet> {
    [a, b].into_iter().flatten().filter(|set| selectivity(set) > 0).max_by_key(selectivity)
}

/// How many of its bytes make a literal rare.
fn worth(literal: &[u8]) -> usize {
    let worth_of_byte = |byte: &u8| match byte {
        b'\n' => 2,
        byte => usize::from(!byte.is_ascii_whitespace()),
    };
    let is_edge = |byte: &u8| !byte.is_ascii_alphanumeric() && *byte != b'\n';
    let start = literal.iter().position(|byte| !is_edge(byte)).unwrap_or_default();
    let word = literal[start..].trim_ascii_end();
    let word = word.strip_suffix(b":").unwrap_or(word);
    let sum = literal.iter().map(worth_of_byte).sum::<usize>();
    if FREQUENT_WORDS.contains(&word) { sum.min(MIN_LITERAL) } else { sum }
}

/// 0 if a set isn't worth searching for.
fn selectivity(set: &LiteralSet) -> usize {
    let shortest = set.iter().map(|literal| worth(literal)).min().unwrap_or_default();
    if shortest < MIN_LITERAL {
        return 0;
    }
    // Each byte more is worth as much as eight literals fewer.
    shortest.min(MAX_LITERAL_BYTES) * 8 + MAX_SET - set.len().min(MAX_SET)
}

/// The pattern as it is used on text of many lines: no match goes past a line feed, and `^` and `$`
/// are the ends of a line. `None` if it can't match within a line.
pub(crate) fn within_line(hir: Hir) -> Option<Hir> {
    Some(match hir.into_kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) if literal.0.contains(&b'\n') => return None,
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Class(Class::Unicode(mut class)) => {
            class.difference(&regex_syntax::hir::ClassUnicode::new([
                regex_syntax::hir::ClassUnicodeRange::new('\n', '\n'),
            ]));
            Hir::class(Class::Unicode(class))
        }
        HirKind::Class(Class::Bytes(mut class)) => {
            class.difference(&regex_syntax::hir::ClassBytes::new([
                regex_syntax::hir::ClassBytesRange::new(b'\n', b'\n'),
            ]));
            Hir::class(Class::Bytes(class))
        }
        HirKind::Look(Look::Start | Look::StartCRLF) => Hir::look(Look::StartLF),
        HirKind::Look(Look::End | Look::EndCRLF) => Hir::look(Look::EndLF),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Repetition(mut repetition) => {
            repetition.sub = Box::new(within_line(*repetition.sub)?);
            Hir::repetition(repetition)
        }
        HirKind::Capture(mut capture) => {
            capture.sub = Box::new(within_line(*capture.sub)?);
            Hir::capture(capture)
        }
        HirKind::Concat(parts) => {
            Hir::concat(parts.into_iter().map(within_line).collect::<Option<_>>()?)
        }
        // A branch that can't match is left out.
        HirKind::Alternation(parts) => {
            let parts: Vec<Hir> = parts.into_iter().filter_map(within_line).collect();
            if parts.is_empty() {
                return None;
            }
            Hir::alternation(parts)
        }
    })
}
