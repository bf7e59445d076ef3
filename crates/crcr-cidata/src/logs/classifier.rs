//! Finds the line of a log that explains a failure.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

use crcr_domain::ci_data::job_log::{LogClassification, LogMatch, LogMatchSource};
use parking_lot::Mutex;
use regex_automata::Input;

use super::cleaner::{CleanChunk, LogReader, RawChunk};
use super::diff::{Baseline, NovelLines};
use super::rules::{LAST_RESORT, LogRule, Pick, RuleKind, RuleSet};

/// Lines shown before and after the one that was found.
const CONTEXT_LINES: usize = 3;
/// In bytes.
const MAX_CONTEXT_LINE: usize = 500;
/// In bytes.
const MAX_LINE: usize = 4096;
/// In bytes.
const MAX_CAPTURE: usize = 500;
const MAX_CAPTURES: usize = 16;
/// Each has up to 2 MiB of buffers, and those of the rules that it tries.
const MAX_THREADS: usize = 4;

/// Reads a log to its end and finds the line that explains the failure: the one of the first rule that
/// matches anywhere, or of the comparison with a green run if there is none.
///
/// Threads scan chunks at the same time; this one reads them and puts the results in order.
pub fn classify(
    input: impl Read,
    rules: &RuleSet,
    baseline: Option<&Baseline>,
) -> io::Result<LogClassification> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let (jobs, queue) = sync_channel::<ScanJob>(threads);
    let queue = Mutex::new(queue);
    let settled = AtomicUsize::new(usize::MAX);
    let mut best = BestLine::new(rules, &settled);
    let mut novel = baseline.map(NovelLines::new);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| scan_chunks(&queue, rules, &settled));
        }
        // The threads end when `jobs` is dropped, also after an error.
        let jobs = jobs;
        let mut reader = LogReader::new(input);
        let mut spare = vec![];
        let mut pending = VecDeque::new();
        let mut is_at_end = false;
        while !is_at_end || !pending.is_empty() {
            if !is_at_end && pending.len() <= threads {
                let (mut raw, clean): (RawChunk, CleanChunk) = spare.pop().unwrap_or_default();
                is_at_end = !reader.read(&mut raw)?;
                let (done, scanned) = channel();
                if !is_at_end && jobs.send(ScanJob { raw, clean, done }).is_ok() {
                    pending.push_back(scanned);
                }
                continue;
            }
            let scanned: Option<Receiver<ScannedChunk>> = pending.pop_front();
            let ended = || io::Error::other("a thread that scans the log has ended");
            let ScannedChunk { raw, clean, found } =
                scanned.and_then(|scanned| scanned.recv().ok()).ok_or_else(ended)?;
            best.add(&clean, found);
            if let Some(novel) = &mut novel {
                novel.scan(&clean, |line| !is_noise(rules, line));
            }
            spare.push((raw, clean));
        }
        io::Result::Ok(())
    })?;
    let by_rule = best.best.map(|best| (best.rule, best.found));
    let Some(novel) = novel else {
        return Ok(LogClassification { found: by_rule.map(|(_, found)| found), novel: vec![] });
    };
    let is_telling =
        by_rule.as_ref().is_some_and(|(rule, _)| rules.rules[*rule].category != LAST_RESORT);
    let (by_diff, novel) = novel.finish();
    let by_rule = by_rule.map(|(_, found)| found);
    let found = if is_telling { by_rule } else { by_diff.or(by_rule) };
    Ok(LogClassification { found, novel })
}

/// A chunk to clean and to scan.
struct ScanJob {
    raw: RawChunk,
    clean: CleanChunk,
    done: Sender<ScannedChunk>,
}

struct ScannedChunk {
    raw: RawChunk,
    clean: CleanChunk,
    found: Option<FoundSegment>,
}

fn scan_chunks(queue: &Mutex<Receiver<ScanJob>>, rules: &RuleSet, settled: &AtomicUsize) {
    // A clone has buffers of its own for its regular expressions.
    let rules = rules.clone();
    let mut scanner = ChunkScanner::new(&rules);
    loop {
        let job = queue.lock().recv();
        let Ok(ScanJob { raw, mut clean, done }) = job else { return };
        clean.clean(&raw);
        let found = scanner.scan(&clean, settled.load(Ordering::Relaxed));
        // The receiver is gone after an error.
        let _ = done.send(ScannedChunk { raw, clean, found });
    }
}

/// All rules of kind `match` that match a line, by priority; none if it is to be ignored.
pub fn matching_rules<'r>(rules: &'r RuleSet, line: &str) -> Vec<&'r LogRule> {
    let matches = |rule: &&LogRule| rule.regex.is_match(line);
    if rules.rules.iter().filter(|rule| rule.kind == RuleKind::Ignore).any(|rule| matches(&rule)) {
        return vec![];
    }
    rules.rules.iter().filter(|rule| rule.kind == RuleKind::Match).filter(matches).collect()
}

/// Whether a line says nothing about the cause, as far as the rules know.
fn is_noise(rules: &RuleSet, line: &[u8]) -> bool {
    let says_nothing =
        |rule: &&LogRule| rule.kind == RuleKind::Ignore || rule.category == LAST_RESORT;
    rules.rules.iter().filter(says_nothing).any(|rule| rule.regex.is_match(line))
}

pub(super) fn cut_text(line: &[u8], max: usize) -> String {
    if line.len() <= max {
        return String::from_utf8_lossy(line).into_owned();
    }
    // A character may be cut in two at the end.
    let text = String::from_utf8_lossy(&line[..max]);
    format!("{}…", text.trim_end_matches(char::REPLACEMENT_CHARACTER))
}

/// The best segment of a chunk.
#[derive(Clone, Copy)]
struct FoundSegment {
    segment: usize,
    rule: usize,
}

struct ChunkScanner<'r> {
    set: &'r RuleSet,
    /// The best rule that matches before the chunk, as far as that is known; else `usize::MAX`.
    best_before: usize,
    /// In the chunk, so far.
    best: Option<FoundSegment>,
    /// Rules to try on the present segment.
    candidates: Vec<u16>,
    /// For each rule, the last segment that it was a candidate for.
    candidate_for: Vec<u64>,
    /// How many segments were looked at.
    serial: u64,
    /// Segments of the chunk where rules without a literal may match.
    without_literal: VecDeque<usize>,
}

impl<'r> ChunkScanner<'r> {
    fn new(set: &'r RuleSet) -> Self {
        Self {
            set,
            best_before: usize::MAX,
            best: None,
            candidates: vec![],
            candidate_for: vec![0; set.rules.len()],
            serial: 0,
            without_literal: VecDeque::new(),
        }
    }

    fn scan(&mut self, chunk: &CleanChunk, best_before: usize) -> Option<FoundSegment> {
        (self.best_before, self.best) = (best_before, None);
        self.find_without_literal(chunk);
        let mut segment = 0;
        for hit in self.set.literals.find_overlapping_iter(&chunk.text) {
            // A literal may start with the line feed before its line, or end with the one after it.
            let last = hit.end() - 1;
            if last > chunk.segment_end(segment) {
                self.try_candidates(chunk, segment);
                let rest = &chunk.segments[segment..];
                segment += rest.partition_point(|s| s.start() <= last) - 1;
                self.try_without_literal(chunk, segment);
            }
            for &rule in &self.set.rules_of_literal[hit.pattern().as_usize()] {
                self.add_candidate(rule);
            }
        }
        if !chunk.segments.is_empty() {
            self.try_candidates(chunk, segment);
            self.try_without_literal(chunk, usize::MAX);
        }
        self.best
    }

    /// Whether the rule can't become the result any more.
    fn is_settled(&self, rule: usize) -> bool {
        let best = self.best.map_or(self.best_before, |best| best.rule.min(self.best_before));
        rule > best || (rule == best && self.set.rules[rule].pick == Pick::First)
    }

    fn add_candidate(&mut self, rule: u16) {
        let index = usize::from(rule);
        let is_known =
            std::mem::replace(&mut self.candidate_for[index], self.serial + 1) == self.serial + 1;
        let can_win = || self.set.rules[index].kind == RuleKind::Ignore || !self.is_settled(index);
        if !is_known && can_win() {
            self.candidates.push(rule);
        }
    }

    /// Tries the candidates of a segment, with the rules without a literal if it may match them.
    fn try_candidates(&mut self, chunk: &CleanChunk, segment: usize) {
        if self.without_literal.front() == Some(&segment) {
            self.without_literal.pop_front();
            for place in 0..self.set.without_literal.len() {
                self.add_candidate(self.set.without_literal[place]);
            }
        }
        self.serial += 1;
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.sort_unstable();
        let line = chunk.segment(segment);
        let rules = || candidates.iter().map(|&index| usize::from(index));
        let wins = |&index: &usize| {
            let rule = &self.set.rules[index];
            rule.kind == RuleKind::Match && rule.regex.is_match(line)
        };
        let mut may_win = rules().take_while(|&rule| {
            self.set.rules[rule].kind == RuleKind::Ignore || !self.is_settled(rule)
        });
        if let Some(winner) = may_win.find(wins) {
            let without_literal = self.set.ignore_without_literal.iter().map(|&i| usize::from(i));
            let is_ignored = rules().chain(without_literal).any(|index| {
                let rule = &self.set.rules[index];
                rule.kind == RuleKind::Ignore && rule.regex.is_match(line)
            });
            if !is_ignored {
                self.best = Some(FoundSegment { segment, rule: winner });
            }
        }
        candidates.clear();
        self.candidates = candidates;
    }

    /// Tries the segments before `segment` that no literal occurs in.
    fn try_without_literal(&mut self, chunk: &CleanChunk, segment: usize) {
        while let Some(&first) = self.without_literal.front()
            && first < segment
        {
            self.try_candidates(chunk, first);
        }
    }

    /// Lists the segments where a rule without a literal matches.
    fn find_without_literal(&mut self, chunk: &CleanChunk) {
        self.without_literal.clear();
        let Some(regex) = &self.set.any_without_literal else { return };
        let can_win = |&rule: &u16| !self.is_settled(usize::from(rule));
        if !self.set.without_literal.iter().any(can_win) {
            return;
        }
        let mut start = 0;
        while start < chunk.text.len() {
            let input = Input::new(&chunk.text).range(start..).earliest(true);
            let Some(hit) = regex.search_half(&input) else { break };
            let segment = chunk.segments.partition_point(|s| s.start() < hit.offset()) - 1;
            self.without_literal.push_back(segment);
            start = chunk.segment_end(segment) + 1;
        }
    }
}

/// The best line so far, and the lines around it.
struct BestLine<'r> {
    set: &'r RuleSet,
    best: Option<BestMatch>,
    /// The best rule, for those who scan what comes later.
    settled: &'r AtomicUsize,
    /// The last lines before the chunk.
    before: VecDeque<String>,
}

struct BestMatch {
    rule: usize,
    found: LogMatch,
    /// Lines of the context that are still to come.
    missing_after: usize,
}

impl<'r> BestLine<'r> {
    fn new(set: &'r RuleSet, settled: &'r AtomicUsize) -> Self {
        Self { set, best: None, settled, before: VecDeque::new() }
    }

    /// Adds the next chunk of the log, and copies what is reported of its best line.
    fn add(&mut self, chunk: &CleanChunk, found: Option<FoundSegment>) {
        // Whoever scanned the chunk may not have known all that was found before.
        let found = found.filter(|found| match &self.best {
            Some(best) if found.rule == best.rule => self.set.rules[found.rule].pick == Pick::Last,
            Some(best) => found.rule < best.rule,
            None => true,
        });
        let count = chunk.segments.len();
        let lines = |from: usize, to: usize| {
            (from..to.min(count)).map(|s| cut_text(chunk.segment(s), MAX_CONTEXT_LINE))
        };
        if let Some(FoundSegment { segment, rule }) = found {
            self.settled.store(rule, Ordering::Relaxed);
            let from = segment.saturating_sub(CONTEXT_LINES);
            let from_before = CONTEXT_LINES.saturating_sub(segment).min(self.before.len());
            let mut context: Vec<String> =
                self.before.range(self.before.len() - from_before..).cloned().collect();
            context.extend(lines(from, segment + 1 + CONTEXT_LINES));
            let after = (count - segment - 1).min(CONTEXT_LINES);
            self.best = Some(BestMatch {
                rule,
                found: self.describe(chunk, segment, rule, context),
                missing_after: CONTEXT_LINES - after,
            });
        } else if let Some(best) = &mut self.best {
            let context = lines(0, best.missing_after);
            best.found.context.extend(context);
            best.missing_after = best.missing_after.saturating_sub(count);
        }
        self.before.extend(lines(count.saturating_sub(CONTEXT_LINES), count));
        while self.before.len() > CONTEXT_LINES {
            self.before.pop_front();
        }
    }

    fn describe(
        &self,
        chunk: &CleanChunk,
        segment: usize,
        rule: usize,
        context: Vec<String>,
    ) -> LogMatch {
        let (rule, line) = (&self.set.rules[rule], chunk.segment(segment));
        let mut groups = rule.regex.create_captures();
        rule.regex.captures(line, &mut groups);
        let text = |span: regex_automata::Span| cut_text(&line[span.range()], MAX_CAPTURE);
        let mut captures: Vec<String> =
            groups.iter().skip(1).flatten().take(MAX_CAPTURES).map(text).collect();
        let whole = groups.get_group(0);
        if captures.is_empty() {
            captures.extend(whole.map(text));
        }
        // A very long line is shown from a little before the match.
        let start = whole.map_or(0, |span| span.start.saturating_sub(MAX_LINE / 4));
        let start = if line.len() > MAX_LINE { start } else { 0 };
        LogMatch {
            rule: Some(rule.name.clone()),
            category: Some(rule.category.clone()),
            line_number: chunk.segments[segment].line_number,
            line: cut_text(&line[start..], MAX_LINE),
            captures,
            context,
            by: LogMatchSource::Rule,
        }
    }
}
