//! Gathers the lines that may explain a failure, section by section, and weighs what speaks for each.
//!
//! Of a section only so many lines are kept that memory is bounded. They are weighed when the section has
//! ended, because it counts how far a line is from the end of the command that failed.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::ops::RangeInclusive;

use super::candidate::{
    CandidateText, LineCandidate, MAX_CONTEXT_LINE_BYTES, MAX_LINE_BYTES, keep_most_promising,
};
use super::cleaner::{CleanChunk, TestOutput, cut_text, without_tool_prefix};
use super::diff::{Baseline, IsHash, ShapeHasher};
use super::features::{
    Features, Trait, fails_for_warnings, is_success_of_all, log_count, log_count_u64,
};
use super::line_marks::{LineMarks, MarkedLine};
use super::line_shape::{is_of_checker, is_stack_frame, names_file, names_source_file};
use super::rules::{LAST_RESORT, LogRule, RuleKind, RuleScope, RuleSet};
use super::sections::{
    SectionEnd, SectionStart, end_of_quote, is_after_script, is_job_work, lacks_artifact,
    runs_whatever_happened, section_end, section_start,
};
use super::traceback::{TracebackPart, traceback_part};
use super::weighed::{WeighedLine, WeighedLog};

// The numbers of logs are those that are right of the 419 of LogChunks.
/// Lines of a section that are kept while it runs, a third of them its first ones. 349 logs; 346 with half as many,
/// 349 with twice as many.
const POOL_LINES: usize = 192;
/// Lines of specific rules that are kept beside them. 349 logs with 16 as with 256, so it only bounds memory.
const SPECIFIC_LINES: usize = 64;
/// Lines of a section that have no place in the pool and that specific rules are tried on, so that a log of 100 MB takes
/// no longer.
const TRIED_LINES: u32 = 1 << 15;
/// Weighed lines that are kept of each failed section. 349 logs with 32 as with 192, so it only bounds memory.
const KEPT_OF_SECTION: usize = 128;
/// Failed sections that are remembered, the newest ones. 349 logs with 12 as with 24; 348 with 6, 339 with 3.
const FAILED_SECTIONS: usize = 12;
/// Lines outside failed sections that are remembered. 349 logs; 347 with 16, 350 with 256.
const ELSEWHERE_LINES: usize = 64;
/// Shapes whose repetitions are counted.
const COUNTED_SHAPES: usize = 1 << 16;
/// The last lines of a failed section are weighed whatever they say: in 72 of 100 labelled logs one of the last
/// 30 was right. 349 logs with 60 as with 120; 345 with 30.
const LAST_LINES: usize = 60;
/// Lines shown before and after the one that was found.
pub(crate) const CONTEXT_LINES: usize = 3;
/// Lines between two errors of different clusters. 349 logs with 10 and 3; 351 with 30, but one less of three.
const CLUSTER_LINES: u64 = 10;

struct FailedSection {
    /// The numbers of its lines.
    numbers: RangeInclusive<u64>,
    lines: Vec<WeighedLine>,
    /// Whether it ended by itself, and wasn't stopped.
    is_known_to_fail: bool,
    /// Whether its step probably runs also after another one has failed.
    runs_whatever_happened: bool,
    /// The line that it ended with.
    end_text: Box<[u8]>,
}

/// The section that the log is in.
#[derive(Default)]
struct OpenSection {
    start: u64,
    /// The number of its first line.
    start_line: u64,
    is_echo: bool,
    /// Whether its command is one that may print no more than the names of the files that it rejects.
    checks_files: bool,
    /// Whether its step probably runs also after another one has failed.
    runs_whatever_happened: bool,
    /// Whether the runner reports an error in it, which ends an action that isn't a script.
    has_error_of_runner: bool,
    pool: Vec<LineCandidate>,
    /// Lines that the pool had no place for and a specific rule matches.
    specific: Vec<LineCandidate>,
    /// Lines that specific rules were tried on for that.
    tried: u32,
    /// Lines that promise less than this aren't looked at any more.
    floor: Option<i8>,
}

pub(crate) struct LineEvidence<'r> {
    rules: &'r RuleSet,
    baseline: Option<&'r Baseline>,
    hasher: &'r ShapeHasher,
    /// Segments before the present chunk.
    ordinal: u64,
    last_line_number: u64,
    section: OpenSection,
    failed: VecDeque<FailedSection>,
    failed_count: u64,
    /// Whether nobody says that the only failed section has failed.
    is_guessed: bool,
    /// Whether steps of a job start in the log: one that passes hardly explains why another one fails.
    has_steps: bool,
    /// Where the last command of Travis starts.
    command_start: u64,
    /// Where the first command starts that Travis says has failed. Before the script, Travis stops at such a command.
    failed_command: Option<u64>,
    /// Where Travis begins to quote a command that has ended and has several lines.
    quote_start: Option<u64>,
    elsewhere: Vec<LineCandidate>,
    repeated: HashMap<u64, u32, BuildHasherDefault<IsHash>>,
    /// The last lines before the present chunk.
    tail: VecDeque<TailLine>,
}

struct TailLine {
    line_number: u64,
    is_red: bool,
    output: TestOutput,
    text: Box<[u8]>,
}

impl<'r> LineEvidence<'r> {
    pub(crate) fn new(
        rules: &'r RuleSet,
        baseline: Option<&'r Baseline>,
        hasher: &'r ShapeHasher,
    ) -> Self {
        Self {
            rules,
            baseline,
            hasher,
            ordinal: 0,
            last_line_number: 0,
            section: OpenSection::default(),
            failed: VecDeque::new(),
            failed_count: 0,
            is_guessed: false,
            has_steps: false,
            command_start: 0,
            failed_command: None,
            quote_start: None,
            elsewhere: vec![],
            repeated: HashMap::default(),
            tail: VecDeque::new(),
        }
    }

    /// Adds the next chunk of the log. `marked`: its lines that have marks.
    pub(crate) fn add(&mut self, chunk: &CleanChunk, marked: &[MarkedLine]) {
        self.complete_contexts(chunk);
        for line in marked {
            let text = chunk.segment(line.segment);
            let ordinal = self.ordinal + line.segment as u64;
            if line.marks.has(LineMarks::SECTION_START)
                && let Some(start) = section_start(text)
            {
                if let Some(end) = self.failure_before(start) {
                    self.end_section(end, chunk, line.segment);
                }
                if text.starts_with(b"$ ") {
                    self.command_start = ordinal;
                }
                self.start_section(start, chunk, line.segment);
            } else if line.marks.has(LineMarks::SECTION_END)
                && let Some((end, segment)) = self.end_at(chunk, line.segment)
            {
                self.end_section(end, chunk, segment);
            } else if !self.section.is_echo {
                let is_error_of_runner = text.starts_with(b"##[error]");
                self.section.has_error_of_runner |= is_error_of_runner;
                self.section.runs_whatever_happened |= is_error_of_runner && lacks_artifact(text);
                if line.marks.has(LineMarks::HUNK) {
                    self.add_file_of_diff(chunk, line.segment);
                }
                if line.marks != LineMarks::HUNK {
                    self.add_candidate(chunk, line, ordinal);
                }
            }
        }
        self.copy_texts(chunk);
        let count = chunk.segments.len();
        for index in count.saturating_sub(LAST_LINES)..count {
            let text = chunk.segment(index);
            let text = &text[..text.len().min(MAX_LINE_BYTES)];
            self.tail.push_back(TailLine {
                line_number: chunk.segments[index].line_number,
                is_red: chunk.segments[index].is_red,
                output: chunk.segments[index].output,
                text: text.into(),
            });
        }
        while self.tail.len() > LAST_LINES {
            self.tail.pop_front();
        }
        self.ordinal += count as u64;
        self.last_line_number =
            chunk.segments.last().map_or(self.last_line_number, |s| s.line_number);
    }

    /// How the section ends that ends in this segment, and the segment after its last line of output. Travis quotes the
    /// command that has ended, maybe on several lines.
    fn end_at(&mut self, chunk: &CleanChunk, segment: usize) -> Option<(SectionEnd, usize)> {
        let text = chunk.segment(segment);
        let is_quote = text.starts_with(b"The command \"");
        let whole = section_end(text);
        let of_quote = if self.quote_start.is_some() { end_of_quote(text) } else { None };
        let Some(end) = whole.or(of_quote) else {
            if is_quote {
                self.quote_start = Some(self.ordinal + segment as u64);
            }
            return None;
        };
        let start = self.quote_start.take().filter(|_| whole.is_none());
        if end == SectionEnd::Failed && (is_quote || start.is_some()) {
            self.failed_command.get_or_insert(self.command_start);
        }
        let Some(start) = start.filter(|start| *start >= self.ordinal) else {
            return Some((end, segment));
        };
        self.section.pool.retain(|line| line.ordinal < start);
        self.section.specific.retain(|line| line.ordinal < start);
        #[expect(clippy::cast_possible_truncation, reason = "an index of this chunk")]
        let first = (start - self.ordinal) as usize;
        Some((end, first))
    }

    /// Adds lines after candidates whose chunk ended before them.
    fn complete_contexts(&mut self, chunk: &CleanChunk) {
        let end = self.ordinal;
        let failed = self.failed.iter_mut().flat_map(|section| &mut section.lines);
        let weighed = failed.map(|line| &mut line.candidate);
        let OpenSection { pool, specific, .. } = &mut self.section;
        let open = pool.iter_mut().chain(specific).chain(&mut self.elsewhere);
        for candidate in weighed.chain(open) {
            let Some(text) = &mut candidate.text else { continue };
            let missing = CONTEXT_LINES - text.after.len();
            if missing > 0 && candidate.ordinal + 1 + text.after.len() as u64 == end {
                text.after.extend(context(chunk, 0, missing));
            }
        }
    }

    /// Copies what is still needed of the present chunk.
    fn copy_texts(&mut self, chunk: &CleanChunk) {
        self.keep_elsewhere();
        let mut pool = std::mem::take(&mut self.section.pool);
        let mut elsewhere = std::mem::take(&mut self.elsewhere);
        for candidate in pool.iter_mut().chain(&mut elsewhere) {
            self.copy_text(chunk, candidate);
        }
        (self.section.pool, self.elsewhere) = (pool, elsewhere);
    }

    fn copy_text(&self, chunk: &CleanChunk, candidate: &mut LineCandidate) {
        if candidate.text.is_none() {
            #[expect(clippy::cast_possible_truncation, reason = "an index of this chunk")]
            let index = (candidate.ordinal - self.ordinal) as usize;
            candidate.text = Some(Box::new(self.candidate_text(chunk, index)));
        }
    }

    /// How the section before this start has ended, if it has failed although no exit code says so: that of an action, of
    /// which the runner reports an error, or maybe the last one before the clean-up, as an action in a container fails
    /// without one. Later steps that run whatever happened may fail for lack of what the failed one would have made.
    fn failure_before(&mut self, start: SectionStart) -> Option<SectionEnd> {
        let has_error = self.section.has_error_of_runner;
        let is_over = match start {
            SectionStart::Echo => has_error,
            SectionStart::Cleanup => true,
            SectionStart::EchoEnd | SectionStart::Group => false,
        };
        if is_over && has_error {
            self.forget_guess();
        }
        if !is_over || (self.failed_count > 0 && !has_error) {
            return None;
        }
        self.is_guessed = !has_error;
        Some(if has_error { SectionEnd::Failed } else { SectionEnd::Stopped })
    }

    fn forget_guess(&mut self) {
        if std::mem::take(&mut self.is_guessed) {
            self.failed.clear();
            self.failed_count = 0;
        }
    }

    fn start_section(&mut self, start: SectionStart, chunk: &CleanChunk, segment: usize) {
        // What looked like the end of another command had none.
        self.quote_start = None;
        let text = chunk.segment(segment);
        let ordinal = self.ordinal + segment as u64;
        let line_number = chunk.segments[segment].line_number;
        if start == SectionStart::EchoEnd {
            if self.section.is_echo {
                if self.does_job_work(chunk, segment) {
                    self.section.runs_whatever_happened = false;
                }
                self.section.is_echo = false;
                self.section.start = ordinal + 1;
                self.section.start_line = line_number + 1;
            }
            return;
        }
        let is_echo = start == SectionStart::Echo;
        self.has_steps |= is_echo;
        let runs_whatever_happened = match start {
            SectionStart::Cleanup => true,
            // A group of lines inside a step.
            SectionStart::Group => self.section.runs_whatever_happened,
            SectionStart::Echo | SectionStart::EchoEnd => runs_whatever_happened(text),
        };
        let before = std::mem::replace(
            &mut self.section,
            OpenSection {
                start: ordinal,
                start_line: line_number,
                is_echo,
                checks_files: is_of_checker(text),
                runs_whatever_happened,
                ..OpenSection::default()
            },
        );
        self.remember_elsewhere(before.pool);
    }

    /// Whether the script whose echo ends here tests, builds or releases, maybe below a first line such as `if` or `echo`.
    /// One that began in the chunk before goes by its first line alone.
    fn does_job_work(&self, chunk: &CleanChunk, end: usize) -> bool {
        let first = self.section.start.checked_sub(self.ordinal);
        let Some(first) = first.and_then(|first| usize::try_from(first).ok()) else {
            return false;
        };
        let lines = (first + 1..end).map(|index| chunk.segment(index));
        lines.take_while(|line| !is_after_script(line)).any(is_job_work)
    }

    fn end_section(&mut self, how: SectionEnd, chunk: &CleanChunk, segment: usize) {
        let end = self.ordinal + segment as u64;
        let end_line = chunk.segments[segment].line_number;
        let next =
            OpenSection { start: end + 1, start_line: end_line + 1, ..OpenSection::default() };
        let mut section = std::mem::replace(&mut self.section, next);
        match how {
            SectionEnd::Passed => self.remember_elsewhere(section.pool),
            SectionEnd::Stopped => self.weigh_section(chunk, section, end, end_line, false),
            SectionEnd::Failed => {
                self.add_last_lines(&mut section, chunk, segment);
                self.weigh_section(chunk, section, end, end_line, true);
                if let Some(failed) = self.failed.back_mut() {
                    let text = chunk.segment(segment);
                    failed.end_text = text[..text.len().min(MAX_LINE_BYTES)].into();
                }
            }
        }
    }

    /// Lines of sections that didn't fail, or of which nobody says so.
    fn remember_elsewhere(&mut self, pool: Vec<LineCandidate>) {
        self.elsewhere.extend(pool);
        if self.elsewhere.len() > 4 * ELSEWHERE_LINES {
            self.keep_elsewhere();
        }
    }

    fn keep_elsewhere(&mut self) {
        if self.elsewhere.len() > ELSEWHERE_LINES {
            keep_most_promising(&mut self.elsewhere, 0, ELSEWHERE_LINES);
        }
    }

    fn add_candidate(&mut self, chunk: &CleanChunk, line: &MarkedLine, ordinal: u64) {
        let segment = chunk.segments[line.segment];
        if let Some(count) = self.repeated.get_mut(&line.shape) {
            *count += 1;
        } else if self.repeated.len() < COUNTED_SHAPES {
            self.repeated.insert(line.shape, 1);
        }
        let promise = line.marks.promise(segment.is_red);
        let is_too_low = self.section.floor.is_some_and(|floor| promise < floor);
        let is_tried =
            line.marks.has(LineMarks::OF_A_SPECIFIC_RULE) && self.section.tried < TRIED_LINES;
        if is_too_low && !is_tried {
            return;
        }
        let candidate = self.candidate(chunk, line.segment, ordinal, line.marks, line.shape);
        if is_too_low {
            self.keep_specific(chunk, vec![candidate]);
            return;
        }
        self.section.pool.push(candidate);
        if self.section.pool.len() >= POOL_LINES {
            let dropped =
                keep_most_promising(&mut self.section.pool, POOL_LINES / 3, POOL_LINES / 3);
            self.keep_specific(chunk, dropped);
            self.section.floor =
                self.section.pool.iter().map(|line| line.marks.promise(line.is_red)).min();
        }
    }

    /// What a specific rule matches decides, however many other lines promise more.
    fn keep_specific(&mut self, chunk: &CleanChunk, dropped: Vec<LineCandidate>) {
        for mut candidate in dropped {
            let is_decided = candidate.output.may_decide(false);
            if !candidate.marks.has(LineMarks::OF_A_SPECIFIC_RULE) || !is_decided {
                continue;
            }
            let OpenSection { specific, tried, .. } = &mut self.section;
            if specific.len() >= SPECIFIC_LINES || *tried >= TRIED_LINES {
                return;
            }
            *tried += 1;
            let line = match &candidate.text {
                Some(text) => &*text.line,
                #[expect(clippy::cast_possible_truncation, reason = "an index of this chunk")]
                None => chunk.segment((candidate.ordinal - self.ordinal) as usize),
            };
            if self.rules.deciding_rule(line).is_some_and(LogRule::is_specific) {
                self.copy_text(chunk, &mut candidate);
                self.section.specific.push(candidate);
            }
        }
    }

    /// Adds the line before a part of a diff, if it names the file: Ormolu and others print no more of it.
    fn add_file_of_diff(&mut self, chunk: &CleanChunk, hunk: usize) {
        let Some(segment) = hunk.checked_sub(1) else { return };
        let line = chunk.segment(segment);
        if !names_file(line) {
            return;
        }
        let ordinal = self.ordinal + segment as u64;
        match self.section.pool.last_mut() {
            Some(last) if last.ordinal == ordinal => last.marks |= LineMarks::HUNK,
            _ => {
                let shape = self.hasher.shape_of(line);
                let line = MarkedLine { segment, marks: LineMarks::HUNK, shape };
                self.add_candidate(chunk, &line, ordinal);
            }
        }
    }

    fn candidate(
        &self,
        chunk: &CleanChunk,
        index: usize,
        ordinal: u64,
        marks: LineMarks,
        shape: u64,
    ) -> LineCandidate {
        let segment = chunk.segments[index];
        let previous = match index {
            0 => self.last_line_number,
            index => chunk.segments[index - 1].line_number,
        };
        LineCandidate {
            ordinal,
            line_number: segment.line_number,
            marks,
            is_red: segment.is_red,
            output: segment.output,
            is_after_blank: segment.line_number > previous + 1,
            shape,
            text: None,
        }
    }

    fn candidate_text(&self, chunk: &CleanChunk, index: usize) -> CandidateText {
        let line = chunk.segment(index);
        let missing = CONTEXT_LINES.saturating_sub(index).min(self.tail.len());
        let mut before: Vec<String> = self
            .tail
            .range(self.tail.len() - missing..)
            .map(|line| cut_text(&line.text, MAX_CONTEXT_LINE_BYTES))
            .collect();
        let from = index.saturating_sub(CONTEXT_LINES);
        before.extend(context(chunk, from, index - from));
        let earlier = (0..index).rev().map(|index| chunk.segment(index));
        let earlier = earlier.chain(self.tail.iter().rev().map(|line| &*line.text));
        CandidateText {
            line: line[..line.len().min(MAX_LINE_BYTES)].into(),
            traceback: traceback_part(line, earlier),
            is_cut: line.len() > MAX_LINE_BYTES,
            before,
            after: context(chunk, index + 1, CONTEXT_LINES).collect(),
        }
    }

    /// The last lines before a failed section's end in `segment` of the chunk, unless they are known already.
    fn add_last_lines(&self, section: &mut OpenSection, chunk: &CleanChunk, segment: usize) {
        let end = self.ordinal + segment as u64;
        let start = section.start.max(end.saturating_sub(LAST_LINES as u64));
        let known: Vec<u64> = section.pool.iter().map(|line| line.ordinal).collect();
        for ordinal in start..end {
            if known.contains(&ordinal) {
                continue;
            }
            if ordinal >= self.ordinal {
                #[expect(clippy::cast_possible_truncation, reason = "an index of this chunk")]
                let index = (ordinal - self.ordinal) as usize;
                if chunk.segments[index].output == TestOutput::Passed {
                    continue;
                }
                let shape = self.hasher.shape_of(chunk.segment(index));
                let marks = LineMarks::default();
                section.pool.push(self.candidate(chunk, index, ordinal, marks, shape));
            } else if let Some(candidate) = self.tail_candidate(ordinal) {
                section.pool.push(candidate);
            }
        }
        section.pool.sort_by_key(|line| line.ordinal);
    }

    fn tail_candidate(&self, ordinal: u64) -> Option<LineCandidate> {
        let back = usize::try_from(self.ordinal - ordinal).ok()?;
        let index = self.tail.len().checked_sub(back)?;
        let line = &self.tail[index];
        if line.output == TestOutput::Passed {
            return None;
        }
        let text = |line: &TailLine| cut_text(&line.text, MAX_CONTEXT_LINE_BYTES);
        let before = self.tail.range(index.saturating_sub(CONTEXT_LINES)..index);
        let after = self.tail.range(index + 1..).take(CONTEXT_LINES);
        let previous = index.checked_sub(1).map_or(line.line_number, |i| self.tail[i].line_number);
        Some(LineCandidate {
            ordinal,
            line_number: line.line_number,
            marks: LineMarks::default(),
            is_red: line.is_red,
            output: line.output,
            is_after_blank: line.line_number > previous + 1,
            shape: self.hasher.shape_of(&line.text),
            text: Some(Box::new(CandidateText {
                line: line.text.clone(),
                traceback: traceback_part(
                    &line.text,
                    self.tail.range(..index).rev().map(|line| &*line.text),
                ),
                is_cut: line.text.len() == MAX_LINE_BYTES,
                before: before.map(text).collect(),
                after: after.map(text).collect(),
            })),
        })
    }

    /// Weighs the lines of a section that failed, and remembers the best ones.
    fn weigh_section(
        &mut self,
        chunk: &CleanChunk,
        mut section: OpenSection,
        end: u64,
        end_line: u64,
        is_known_to_fail: bool,
    ) {
        let numbers = section.start_line..=end_line;
        if !section.specific.is_empty() {
            section.pool.append(&mut section.specific);
            section.pool.sort_by_key(|line| line.ordinal);
        }
        for candidate in &mut section.pool {
            self.copy_text(chunk, candidate);
        }
        let number = self.failed_count;
        self.failed_count += 1;
        let mut lines = self.weigh(section.pool, section.start, end, Some(number));
        for line in &mut lines {
            line.features.flag(Trait::FailingSection, true);
            line.features.flag(
                Trait::NearTheEnd,
                is_known_to_fail && end - line.candidate.ordinal <= LAST_LINES as u64,
            );
            if section.checks_files && names_source_file(&line.candidate.text().line) {
                line.features.flag(Trait::FileOfDiff, true);
            }
        }
        lines.sort_by(|a, b| b.features.score().total_cmp(&a.features.score()));
        // What a specific rule matches stays, whatever else speaks against it.
        let mut kept = 0;
        lines.retain(|line| {
            kept += 1;
            kept <= KEPT_OF_SECTION || line.features.get(Trait::SpecificRule) > 0.0
        });
        lines.sort_by_key(|line| line.candidate.ordinal);
        let runs_whatever_happened = section.runs_whatever_happened;
        self.failed.push_back(FailedSection {
            numbers,
            lines,
            is_known_to_fail,
            runs_whatever_happened,
            end_text: Box::default(),
        });
        if self.failed.len() > FAILED_SECTIONS {
            self.failed.pop_front();
        }
    }

    /// The features of lines in the order of the log.
    fn weigh(
        &self,
        pool: Vec<LineCandidate>,
        start: u64,
        end: u64,
        section: Option<u64>,
    ) -> Vec<WeighedLine> {
        let last_success = pool
            .iter()
            .rfind(|candidate| is_success_of_all(&candidate.text().line))
            .map(|candidate| candidate.ordinal);
        let fails_for_warnings = section.is_some()
            && pool.iter().any(|candidate| fails_for_warnings(&candidate.text().line));
        let mut lines: Vec<WeighedLine> = pool
            .into_iter()
            .map(|candidate| self.weighed(candidate, start, end, section))
            .filter(|line| !line.is_never_the_cause())
            .collect();
        for line in &mut lines {
            if fails_for_warnings {
                line.features.promote_warning();
            }
            line.is_before_success = Some(line.candidate.ordinal) < last_success;
        }
        let strong = lines.iter().filter(|line| line.features.is_strong()).count();
        let (mut before, mut last_strong, mut last_word) = (0, None::<u64>, None::<u64>);
        for line in &mut lines {
            let (ordinal, features) = (line.candidate.ordinal, &mut line.features);
            let is_far = |last: Option<u64>, lines| last.is_none_or(|last| ordinal - last > lines);
            features.set(Trait::StrongBefore, log_count(before));
            if features.is_strong() {
                features.flag(Trait::FirstOfCluster, is_far(last_strong, CLUSTER_LINES));
                last_strong = Some(ordinal);
                before += 1;
            }
            features.set(Trait::StrongAfter, log_count(strong - before));
            if features.get(Trait::FailureWord) > 0.0 {
                features.flag(Trait::FirstWord, is_far(last_word, CONTEXT_LINES as u64));
                last_word = Some(ordinal);
            }
        }
        let mut shapes = std::collections::HashSet::new();
        for line in &mut lines {
            line.features.flag(Trait::FirstOfItsShape, shapes.insert(line.candidate.shape));
        }
        lines
    }

    fn weighed(
        &self,
        candidate: LineCandidate,
        start: u64,
        end: u64,
        section: Option<u64>,
    ) -> WeighedLine {
        let text = candidate.text();
        let line = &text.line;
        let mut features = Features::of_line(without_tool_prefix(line).unwrap_or(line));
        features.flag(Trait::EndOfTraceback, text.traceback == Some(TracebackPart::End));
        // A rule may need the end of the line.
        let decides = if text.is_cut { None } else { self.rules.deciding_rule(line) };
        let goes_on = text.is_ignored_by_ansible();
        let may_decide = |rule: &&LogRule| {
            let is_elsewhere = rule.is_searched_everywhere();
            !goes_on && (!rule.is_specific() || candidate.output.may_decide(is_elsewhere))
        };
        let rule = decides.filter(|rule| rule.kind == RuleKind::Match).filter(may_decide);
        let is_last_resort = rule.is_some_and(|rule| rule.category == LAST_RESORT);
        // What an action says is worth more than the exit code of a script.
        let is_of_runner = is_last_resort && line.starts_with(b"##[error]");
        let is_hint = rule.is_some_and(|rule| rule.scope == RuleScope::Hint);
        features.flag(Trait::FailureWord, candidate.marks.has(LineMarks::FAILURE));
        features.flag(Trait::Red, candidate.is_red);
        features.flag(Trait::SpecificRule, rule.is_some_and(LogRule::is_specific));
        features.flag(Trait::HintRule, (is_hint && !is_last_resort) || is_of_runner);
        features.flag(Trait::LastResortRule, is_last_resort && !is_of_runner);
        let is_ignored = goes_on || decides.is_some_and(|rule| rule.kind == RuleKind::Ignore);
        features.flag(Trait::Ignored, is_ignored);
        let at = candidate.ordinal;
        features.set(Trait::DistanceToEnd, log_count_u64(end.saturating_sub(at)));
        features.set(Trait::DistanceToStart, log_count_u64(at.saturating_sub(start)));
        let repetitions = self.repeated.get(&candidate.shape).copied().unwrap_or(1);
        features.set(Trait::Repeated, log_count_u64(u64::from(repetitions.saturating_sub(1))));
        features.flag(Trait::BlankBefore, candidate.is_after_blank);
        let indent = |text: &[u8]| text.len() - text.trim_ascii_start().len();
        let own_indent = indent(line);
        if let Some(next) = text.after.first().map(String::as_bytes) {
            features.flag(Trait::FileOfDiff, names_file(line) && next.starts_with(b"@@ -"));
            features.flag(Trait::FrameAfter, is_stack_frame(next));
            features.flag(Trait::DeeperAfter, indent(next) > own_indent);
        }
        let is_deeper = |previous: &String| indent(previous.as_bytes()) > own_indent;
        features.flag(Trait::DeeperBefore, text.before.last().is_some_and(is_deeper));
        #[expect(clippy::cast_precision_loss, reason = "at most eight")]
        features.set(Trait::Indent, own_indent.min(8) as f32 / 8.0);
        let length = line.trim_ascii().len();
        features.flag(Trait::Short, length < 12);
        features.flag(Trait::Long, length > 200);
        if let Some(is_known) = self.baseline.and_then(|logs| logs.is_in_green(candidate.shape)) {
            features.flag(Trait::InGreenRun, is_known);
            features.flag(Trait::NotInGreenRun, !is_known);
        }
        if let Some(share) = self.baseline.and_then(|logs| logs.share_of_earlier(candidate.shape)) {
            features.set(Trait::InEarlierLogs, share);
            features.flag(Trait::NotInEarlierLogs, share == 0.0);
        }
        let rule = rule.map(|rule| self.rules.priority(rule));
        WeighedLine { candidate, features, rule, section, is_before_success: false }
    }

    /// Whether a rule for compilers and linkers decides about the line.
    fn is_of_compiler(&self, line: &WeighedLine) -> bool {
        line.rule.is_some_and(|priority| {
            matches!(&*self.rules.rules[priority].category, "compile" | "link")
        })
    }

    /// All lines that were kept, weighed at the end of the log.
    pub(crate) fn finish(mut self) -> WeighedLog<'r> {
        let (end, no_chunk) = (self.ordinal, CleanChunk::default());
        if self.section.has_error_of_runner {
            self.forget_guess();
        }
        if self.failed_count == 0 {
            // Nobody says which section failed, nor, unless the runner reports an error in the last one, that one did.
            let mut section = std::mem::take(&mut self.section);
            let is_known_to_fail = section.has_error_of_runner;
            self.is_guessed = !is_known_to_fail;
            if is_known_to_fail || self.baseline.is_some_and(Baseline::has_green) {
                self.add_last_lines(&mut section, &no_chunk, 0);
            }
            self.weigh_section(&no_chunk, section, end, self.last_line_number, is_known_to_fail);
        } else {
            self.elsewhere.append(&mut self.section.pool);
        }
        self.keep_elsewhere();
        let elsewhere = std::mem::take(&mut self.elsewhere);
        let mut lines = self.weigh(elsewhere, 0, end, None);
        for line in &mut lines {
            self.flag_other_step(line);
        }
        let counting = self.counting_sections();
        let last = counting.iter().rposition(|counts| *counts);
        let (mut failed_sections, mut failed_end) = (vec![], None);
        // Steps after the last one that counts run whatever happened, and can't be why it failed.
        for (index, section) in
            self.failed.into_iter().enumerate().take_while(|(index, _)| Some(*index) <= last)
        {
            if last == Some(index) {
                failed_end = Some((*section.numbers.end(), section.end_text));
            }
            if counting[index] {
                failed_sections.push(section.numbers);
            }
            for mut line in section.lines {
                line.features.flag(Trait::LastFailingSection, last == Some(index));
                if !counting[index] {
                    line.put_outside(end);
                }
                lines.push(line);
            }
        }
        lines.sort_by_key(|line| line.candidate.ordinal);
        WeighedLog { rules: self.rules, lines, failed_sections, failed_end }
    }

    /// Says of a line outside failed sections whether it is of a step that hardly explains why another one failed.
    fn flag_other_step(&self, line: &mut WeighedLine) {
        // A step may pass although its command failed, such as one in a pipe, and then the next one fails for it.
        let shape = line.candidate.shape;
        let is_new = self.baseline.and_then(|logs| logs.is_in_green(shape)) == Some(false);
        // A command that passed did without what it couldn't compile, such as an optional part of a package.
        let ordinal = line.candidate.ordinal;
        let is_before = self.failed_command.is_some_and(|start| ordinal < start);
        let is_overcome = is_before && !is_new && self.is_of_compiler(line);
        if is_overcome {
            line.features.flag(Trait::SpecificRule, false);
        }
        let is_step_known = self.has_steps && !self.is_guessed;
        line.features.flag(Trait::OtherStep, is_overcome || (is_step_known && !is_new));
    }

    /// Which of the failed steps may have ended the job, if its steps are known. Those that run whatever happened
    /// haven't, unless no other one failed. A step after which others run was allowed to fail (`continue-on-error`), so
    /// the last one decides, unless it says nothing: it may only repeat that an earlier one failed.
    fn counting_sections(&self) -> Vec<bool> {
        let ends_job = |section: &FailedSection| !section.runs_whatever_happened;
        let mut counting: Vec<bool> = self.failed.iter().map(ends_job).collect();
        let last = counting.iter().rposition(|counts| *counts);
        let Some(last) = last.filter(|_| self.has_steps) else {
            return vec![true; counting.len()];
        };
        let section = &self.failed[last];
        if section.is_known_to_fail && section.lines.iter().any(WeighedLine::explains) {
            counting[..last].fill(false);
        }
        counting
    }
}

fn context(chunk: &CleanChunk, from: usize, count: usize) -> impl Iterator<Item = String> {
    let to = (from + count).min(chunk.segments.len());
    (from..to).map(|index| cut_text(chunk.segment(index), MAX_CONTEXT_LINE_BYTES))
}
