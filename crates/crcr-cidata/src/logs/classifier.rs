//! Finds the line of a log that explains a failure.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

use crcr_domain::ci_data::job_log::{LogClassification, LogMatch, LogMatchSource};
use parking_lot::Mutex;
use regex_automata::Input;

use super::candidate::MAX_CONTEXT_LINE_BYTES;
use super::cleaner::{CleanChunk, LogReader, RawChunk, Segment, TestOutput, cut_text};
use super::diff::{Baseline, NovelLines, ShapeHasher};
use super::evidence::{CONTEXT_LINES, LineEvidence};
use super::features::{COUNT, rule_certainty_percent};
use super::line_marks::{LineMarks, MarkedLine};
use super::literal_search::LiteralHits;
use super::rules::{LAST_RESORT, LogRule, Pick, RuleKind, RuleSet};
use super::test_output::mark_test_output;
use super::weighed::{WeighedLine, WeighedLog, line_match};

/// Each has up to 4 MiB of buffers, and those of the rules that it tries.
const MAX_THREADS: usize = 4;
/// Lines that are offered.
const CANDIDATES: usize = 3;

/// Reads a log to its end and finds the line that explains the failure.
///
/// A rule that counts anywhere decides first, then one that counts in a failing section, then what speaks for
/// each line; a rule of last resort if there is nothing better. Outside failing sections, a rule that counts anywhere
/// decides only if nothing specific is in one, or if the runner itself reports the error. No rule decides about a line
/// that the green run has, too.
pub fn classify(
    input: impl Read,
    rules: &RuleSet,
    baseline: Option<&Baseline>,
) -> io::Result<LogClassification> {
    let own = ShapeHasher::default();
    let hasher = baseline.map_or(&own, Baseline::hasher);
    Ok(read_log(input, rules, baseline, hasher)?.classification())
}

/// A line that was weighed: its number, its text and the values of its features.
pub struct LineFeatures {
    /// Counted from 1.
    pub line_number: u64,
    pub line: String,
    pub values: [f32; COUNT],
    /// Whether it is named if it is likelier than that no line explains the failure.
    pub tells_of_failure: bool,
    /// Whether it is named if it is likelier than all else together.
    pub tells_if_likeliest: bool,
}

/// What [`classify`] weighs, for learning weights, and the line of a specific rule, which decides before them.
pub(crate) fn weighed_lines(
    input: impl Read,
    rules: &RuleSet,
    baseline: Option<&Baseline>,
) -> io::Result<(Vec<LineFeatures>, Option<LogMatch>)> {
    let own = ShapeHasher::default();
    let hasher = baseline.map_or(&own, Baseline::hasher);
    let read = read_log(input, rules, baseline, hasher)?;
    let log = &read.weighed;
    let features = |(index, weighed): (usize, &WeighedLine)| {
        let (line_number, line) = log.line(index);
        let tells = |is_likeliest| weighed.tells_of_failure(is_likeliest);
        LineFeatures {
            line_number,
            line: String::from_utf8_lossy(line).into_owned(),
            values: weighed.features.0,
            tells_of_failure: tells(false),
            tells_if_likeliest: tells(true),
        }
    };
    let lines = log.lines.iter().enumerate().map(features).collect();
    Ok((lines, read.found_by_rule()))
}

/// All that is known at the end of a log.
struct ReadLog<'r> {
    /// The match of a rule that counts anywhere in the log.
    by_rule: Option<(usize, LogMatch)>,
    /// Whether the green run has that line, too.
    is_rule_in_green: bool,
    rules: &'r RuleSet,
    weighed: WeighedLog<'r>,
    novel: Vec<crcr_domain::ci_data::job_log::NovelLine>,
}

impl ReadLog<'_> {
    fn is_last_resort(&self, rule: usize) -> bool {
        self.rules.rules[rule].category == LAST_RESORT
    }

    /// The line of a specific rule, which decides whatever else is known.
    fn found_by_rule(&self) -> Option<LogMatch> {
        let certainty_percent = rule_certainty_percent();
        let in_section = self.weighed.by_rule_of_failing_section();
        let anywhere = self.by_rule.as_ref().filter(|(rule, found)| {
            !self.is_last_resort(*rule)
                && !self.is_in_green_run(*rule, found)
                && in_section.is_none_or(|line| self.decides_over(*rule, found, line))
        });
        let weighed = match anywhere {
            Some((rule, found)) => {
                self.weighed.by_rule_anywhere(&self.rules.rules[*rule], found.line_number)
            }
            None => in_section,
        };
        weighed
            .map(|line| self.weighed.describe(line, certainty_percent))
            .or_else(|| anywhere.map(|(_, found)| LogMatch { certainty_percent, ..found.clone() }))
    }

    /// Whether the green run has the line, too, that a rule finds anywhere in the log.
    fn is_in_green_run(&self, rule: usize, found: &LogMatch) -> bool {
        match self.weighed.by_rule_anywhere(&self.rules.rules[rule], found.line_number) {
            Some(line) => self.weighed.lines[line].is_in_green_run(),
            None => self.is_rule_in_green,
        }
    }

    /// Whether a rule that counts anywhere decides although a specific rule matches a line of a failing section, too:
    /// what follows the failing step, such as an upload, often fails for lack of what that step would have made.
    fn decides_over(&self, rule: usize, found: &LogMatch, line_of_section: usize) -> bool {
        let is_of_runner =
            matches!(&*self.rules.rules[rule].category, "infrastructure" | "timeout");
        let is_before = found.line_number < self.weighed.line(line_of_section).0;
        self.weighed.is_in_failed_section(found.line_number)
            || (found.line.starts_with("##[error]") && (is_of_runner || is_before))
    }

    fn classification(self) -> LogClassification {
        let by_rule = self.found_by_rule();
        let is_known = by_rule.is_some();
        let last_resort = match &self.by_rule {
            Some((rule, found)) if self.is_last_resort(*rule) => {
                let end = self.weighed.end_instead_of(found.line_number);
                Some(end.unwrap_or_else(|| found.clone()))
            }
            _ => None,
        };
        let Self { weighed, novel, .. } = self;
        let mut shares = weighed.shares();
        let of_no_line = shares.pop().unwrap_or_default();
        let rest = if is_known { 1.0 - f32::from(rule_certainty_percent()) / 100.0 } else { 1.0 };
        let mut candidates: Vec<LogMatch> = by_rule.into_iter().collect();
        let mut order: Vec<usize> = (0..shares.len()).collect();
        order.sort_by(|&a, &b| shares[b].total_cmp(&shares[a]));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 100")]
        let percent = |index: usize| (shares[index] * rest * 100.0).round() as u8;
        for &index in &order {
            let (line_number, _) = weighed.line(index);
            let is_listed = candidates.iter().any(|known| known.line_number == line_number);
            if candidates.len() < CANDIDATES && !is_listed {
                candidates.push(weighed.describe(index, percent(index)));
            }
        }
        let found = match candidates.first() {
            Some(by_rule) if is_known => Some(by_rule.clone()),
            _ => weighed
                .named_without_rule(&order, &shares, of_no_line)
                .map(|index| weighed.describe(index, percent(index))),
        };
        let found = found.or(last_resort);
        LogClassification { found, candidates, novel }
    }
}

/// Threads scan chunks at the same time; this one reads them and puts the results in order.
fn read_log<'r>(
    input: impl Read,
    rules: &'r RuleSet,
    baseline: Option<&'r Baseline>,
    hasher: &'r ShapeHasher,
) -> io::Result<ReadLog<'r>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let (jobs, queue) = sync_channel::<ScanJob>(threads);
    let queue = Mutex::new(queue);
    let settled = AtomicUsize::new(usize::MAX);
    let mut best = BestLine::new(rules, &settled);
    let mut evidence = LineEvidence::new(rules, baseline, hasher);
    let mut novel = baseline.filter(|logs| logs.has_green()).map(NovelLines::new);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| scan_chunks(&queue, rules, hasher, &settled));
        }
        // The threads end when `jobs` is dropped, also after an error.
        let jobs = jobs;
        let mut reader = LogReader::new(input);
        let mut spare = vec![];
        let mut pending = VecDeque::new();
        let mut is_at_end = false;
        while !is_at_end || !pending.is_empty() {
            if !is_at_end && pending.len() <= threads {
                let mut buffers: ChunkBuffers = spare.pop().unwrap_or_default();
                is_at_end = !reader.read(&mut buffers.raw)?;
                let (done, scanned) = channel();
                if !is_at_end && jobs.send(ScanJob { buffers, done }).is_ok() {
                    pending.push_back(scanned);
                }
                continue;
            }
            let scanned: Option<Receiver<ScannedChunk>> = pending.pop_front();
            let ended = || io::Error::other("a thread that scans the log has ended");
            let ScannedChunk { buffers, found } =
                scanned.and_then(|scanned| scanned.recv().ok()).ok_or_else(ended)?;
            best.add(&buffers.clean, found);
            evidence.add(&buffers.clean, &buffers.marked);
            if let Some(novel) = &mut novel {
                novel.scan(&buffers.clean, |line| !is_noise(rules, line));
            }
            spare.push(buffers);
        }
        io::Result::Ok(())
    })?;
    let by_rule = best.best.map(|best| (best.rule, best.found));
    let is_rule_in_green = by_rule.as_ref().is_some_and(|(_, found)| {
        let shape = hasher.shape_of(found.line.as_bytes());
        baseline.and_then(|logs| logs.is_in_green(shape)) == Some(true)
    });
    Ok(ReadLog {
        by_rule,
        is_rule_in_green,
        rules,
        weighed: evidence.finish(),
        novel: novel.map(NovelLines::finish).unwrap_or_default(),
    })
}

/// What a chunk is read, cleaned and scanned in. Buffers are used again for the next one.
#[derive(Default)]
struct ChunkBuffers {
    raw: RawChunk,
    clean: CleanChunk,
    marked: Vec<MarkedLine>,
}

/// A chunk to clean and to scan.
struct ScanJob {
    buffers: ChunkBuffers,
    done: Sender<ScannedChunk>,
}

struct ScannedChunk {
    buffers: ChunkBuffers,
    found: Option<FoundSegment>,
}

fn scan_chunks(
    queue: &Mutex<Receiver<ScanJob>>,
    rules: &RuleSet,
    hasher: &ShapeHasher,
    settled: &AtomicUsize,
) {
    // A clone has buffers of its own for its regular expressions.
    let rules = rules.clone();
    let mut scanner = ChunkScanner::new(&rules, hasher);
    loop {
        let job = queue.lock().recv();
        let Ok(ScanJob { mut buffers, done }) = job else { return };
        buffers.clean.clean(&buffers.raw);
        mark_test_output(&mut buffers.clean);
        buffers.marked.clear();
        let best_before = settled.load(Ordering::Relaxed);
        let found = scanner.scan(&buffers.clean, best_before, &mut buffers.marked);
        // The receiver is gone after an error.
        let _ = done.send(ScannedChunk { buffers, found });
    }
}

/// All rules of kind `match` that match a line, by priority, up to the first that ignores it.
pub fn matching_rules<'r>(rules: &'r RuleSet, line: &str) -> Vec<&'r LogRule> {
    let matching = rules.rules.iter().filter(|rule| rule.regex().is_match(line));
    matching.take_while(|rule| rule.kind == RuleKind::Match).collect()
}

/// Whether a line says nothing about the cause, as far as the rules know.
fn is_noise(rules: &RuleSet, line: &[u8]) -> bool {
    let says_nothing =
        |rule: &&LogRule| rule.kind == RuleKind::Ignore || rule.category == LAST_RESORT;
    rules.rules.iter().filter(says_nothing).any(|rule| rule.regex().is_match(line))
}

/// The best segment of a chunk.
#[derive(Clone, Copy)]
struct FoundSegment {
    segment: usize,
    rule: usize,
}

struct ChunkScanner<'r> {
    set: &'r RuleSet,
    hasher: &'r ShapeHasher,
    shape: Vec<u8>,
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
    hits: LiteralHits,
}

impl<'r> ChunkScanner<'r> {
    fn new(set: &'r RuleSet, hasher: &'r ShapeHasher) -> Self {
        Self {
            set,
            hasher,
            shape: vec![],
            best_before: usize::MAX,
            best: None,
            candidates: vec![],
            candidate_for: vec![0; set.rules.len()],
            serial: 0,
            without_literal: VecDeque::new(),
            hits: LiteralHits::default(),
        }
    }

    fn scan(
        &mut self,
        chunk: &CleanChunk,
        best_before: usize,
        marked: &mut Vec<MarkedLine>,
    ) -> Option<FoundSegment> {
        (self.best_before, self.best) = (best_before, None);
        self.find_without_literal(chunk);
        let (mut segment, mut marks) = (0, LineMarks::default());
        let mut hits = std::mem::take(&mut self.hits);
        self.set.literals.search(&chunk.text, &mut hits);
        for hit in hits.iter() {
            // A literal may start with the line feed before its line, or end with the one after it.
            let last = hit.last as usize;
            if last > chunk.segment_end(segment) {
                self.mark(chunk, segment, std::mem::take(&mut marks), marked);
                self.try_candidates(chunk, segment);
                while last > chunk.segment_end(segment) {
                    segment += 1;
                }
                self.try_without_literal(chunk, segment);
            }
            for literal in self.set.literals.literals_of(hit) {
                marks |= self.set.marks_of_literal[literal];
                for &rule in &self.set.searched_rules_of_literal[literal] {
                    self.add_candidate(rule);
                }
            }
        }
        self.hits = hits;
        if !chunk.segments.is_empty() {
            self.mark(chunk, segment, marks, marked);
            self.try_candidates(chunk, segment);
            self.try_without_literal(chunk, usize::MAX);
        }
        self.mark_red_lines(chunk, marked);
        self.best
    }

    fn mark(
        &mut self,
        chunk: &CleanChunk,
        segment: usize,
        marks: LineMarks,
        marked: &mut Vec<MarkedLine>,
    ) {
        let is_of_passed_test = chunk.segments[segment].output == TestOutput::Passed;
        if !marks.is_empty() && !is_of_passed_test {
            let shape = self.hasher.shape_in(chunk.segment(segment), &mut self.shape);
            marked.push(MarkedLine { segment, marks, shape });
        }
    }

    /// Red lines count also without a word of failure.
    fn mark_red_lines(&mut self, chunk: &CleanChunk, marked: &mut Vec<MarkedLine>) {
        let known = marked.len();
        let is_candidate = |line: &Segment| line.is_red && line.output != TestOutput::Passed;
        let lines = chunk.segments.iter().enumerate();
        for (segment, _) in lines.filter(|(_, line)| is_candidate(line)) {
            if marked[..known].binary_search_by_key(&segment, |line| line.segment).is_err() {
                let shape = self.hasher.shape_in(chunk.segment(segment), &mut self.shape);
                marked.push(MarkedLine { segment, marks: LineMarks::default(), shape });
            }
        }
        if marked.len() > known {
            marked.sort_unstable_by_key(|line| line.segment);
        }
    }

    /// Whether the rule can't become the result any more.
    fn is_settled(&self, rule: usize) -> bool {
        let best = self.best.map_or(self.best_before, |best| best.rule.min(self.best_before));
        rule > best || (rule == best && self.set.rules[rule].pick == Pick::First)
    }

    fn can_win(&self, rule: usize) -> bool {
        self.set.rules[rule].is_searched_everywhere() && !self.is_settled(rule)
    }

    fn add_candidate(&mut self, rule: u16) {
        let index = usize::from(rule);
        let is_known =
            std::mem::replace(&mut self.candidate_for[index], self.serial + 1) == self.serial + 1;
        let may_decide = || self.set.rules[index].kind == RuleKind::Ignore || self.can_win(index);
        if !is_known && may_decide() {
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
        if chunk.segments[segment].output.may_decide(true)
            && self.candidates.iter().any(|&rule| self.can_win(usize::from(rule)))
        {
            for place in 0..self.set.tried_with_others.len() {
                self.add_candidate(self.set.tried_with_others[place]);
            }
            self.try_line(chunk, segment);
        }
        self.serial += 1;
        self.candidates.clear();
    }

    /// The first rule that matches the line decides.
    fn try_line(&mut self, chunk: &CleanChunk, segment: usize) {
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.sort_unstable();
        let line = chunk.segment(segment);
        let rules = candidates.iter().map(|&index| usize::from(index));
        let decides = rules.into_iter().find(|&rule| self.set.rules[rule].regex().is_match(line));
        if let Some(rule) = decides.filter(|&rule| self.can_win(rule)) {
            self.best = Some(FoundSegment { segment, rule });
        }
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
            Some(best) if found.rule == best.rule => self.set.rules[found.rule].pick != Pick::First,
            Some(best) => found.rule < best.rule,
            None => true,
        });
        let count = chunk.segments.len();
        let lines = |from: usize, to: usize| {
            (from..to.min(count)).map(|s| cut_text(chunk.segment(s), MAX_CONTEXT_LINE_BYTES))
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
        let line_number = chunk.segments[segment].line_number;
        let rule = Some(&self.set.rules[rule]);
        let found = line_match(chunk.segment(segment), line_number, rule, LogMatchSource::Rule);
        LogMatch { context, ..found }
    }
}
