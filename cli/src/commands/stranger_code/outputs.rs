//! What each output of a step leads to, by its own name where the script says its value.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_yaml::Value;

use super::as_code::{asks_for_text, first_name, variables};
use super::expression::expressions;
use super::javascript;
use super::scope::{
    ContextReach, ContextScope, FETCHED_TEXT, MAX_NAMES, NamedReaches, StepOutputs,
};
use super::script::{scripts, written_files};
use super::shell::{self, ShellCommand, ShellWord};
use super::shell_text::{bare, name_of};
use super::step;

/// More commands aren't read one by one.
const MAX_COMMANDS: usize = 1000;
/// Outputs, times texts that variables have, times files: what is looked at for one script. More could take long.
const MAX_LOOKS: usize = 20_000;

/// Ways to the outputs in which a shell of another kind than the POSIX one is at work, or that GitHub took away.
const OTHER_WAYS: [&str; 3] = ["$env:", "%GITHUB_OUTPUT%", "set-output"];

/// Variables that bash sets of what a command reads or matches.
const SET_BY_BASH: [&str; 4] = ["bash_rematch", "mapfile", "optarg", "reply"];

/// Programs that print nothing of their environment, unless they are told to. Any other one may print all of it.
const KNOWN_PROGRAMS: [&str; 33] = [
    "", "awk", "basename", "bc", "cat", "curl", "cut", "date", "dirname", "echo", "expr", "find",
    "gh", "git", "grep", "head", "jq", "ls", "mktemp", "nproc", "openssl", "printf", "pwd",
    "realpath", "sed", "seq", "sort", "tail", "tr", "uname", "uniq", "wc", "yq",
];

/// What the outputs of a step lead to that runs a script or an action of others.
pub fn outputs_of(step: &Value, path: &str, scope: &ContextScope) -> StepOutputs {
    let mut whole = scope.reach_all(step);
    if step::fetches_text(step) {
        whole.add_path(FETCHED_TEXT);
    }
    if path == "actions/github-script" {
        return javascript_outputs(step, whole);
    }
    let script = step.get("run").and_then(Value::as_str).filter(|_| is_posix_shell(step));
    let named = script.map(|script| shell_outputs(script, scope)).unwrap_or_default();
    StepOutputs { named, others: Rc::new(whole) }
}

fn is_posix_shell(step: &Value) -> bool {
    let shell = step.get("shell").and_then(Value::as_str).unwrap_or("bash");
    matches!(shell.split_whitespace().next(), Some("bash" | "sh"))
}

/// Each output has what the expressions of the script lead to, since these may be in any part of its code.
fn javascript_outputs(step: &Value, mut whole: ContextReach) -> StepOutputs {
    let set: Vec<_> =
        scripts(step).into_iter().flat_map(|script| javascript::outputs(&script)).collect();
    let (named, unnamed): (Vec<_>, Vec<_>) = set.into_iter().partition(|(name, _)| name.is_some());
    unnamed.iter().flat_map(|(_, paths)| paths).for_each(|path| whole.add_path(path));
    let mut outputs: BTreeMap<String, ContextReach> = BTreeMap::new();
    for (name, paths) in named.iter().take(MAX_NAMES) {
        let name = name.clone().unwrap_or_default();
        let reach = outputs.entry(name).or_insert_with(|| whole.clone());
        paths.iter().for_each(|path| reach.add_path(path));
    }
    named.iter().flat_map(|(_, paths)| paths).for_each(|path| whole.add_path(path));
    let named = outputs.into_iter().map(|(name, reach)| (name, Rc::new(reach))).collect();
    StepOutputs { named, others: Rc::new(whole) }
}

/// The outputs of a script whose values are seen in it. None if it may set outputs in another way, too.
fn shell_outputs(script: &str, scope: &ContextScope) -> NamedReaches {
    // The reader of shell takes the first `}` for the end of an expression.
    let is_other = OTHER_WAYS.iter().any(|way| script.contains(way))
        || expressions(script).iter().any(|inner| inner.contains('}'));
    if is_other || !script.contains("GITHUB_OUTPUT") {
        return NamedReaches::new();
    }
    let script = script.replace("\\\n", " ");
    let commands = shell::commands(&script);
    if commands.len() > MAX_COMMANDS {
        return NamedReaches::new();
    }
    let values = ScriptValues::new(&script, &commands, scope);
    let mut written = WrittenOutputs::default();
    if written.read(&commands).is_none() || written.values.len() * values.looks() > MAX_LOOKS {
        return NamedReaches::new();
    }
    let named = written.values.iter().take(MAX_NAMES);
    let known = named.filter_map(|(name, of)| Some((name.clone(), Rc::new(values.reach(of)?))));
    known.collect()
}

/// A text of a script, and its parts in which variables expand.
#[derive(Debug, Clone, Default)]
struct OpenText {
    text: String,
    open: String,
}

impl OpenText {
    fn of_words<'a>(words: impl IntoIterator<Item = &'a ShellWord>) -> Self {
        let words: Vec<_> = words.into_iter().collect();
        let texts: Vec<_> = words.iter().map(|word| word.text.as_str()).collect();
        let open: Vec<_> = words.iter().map(|word| word.open.as_str()).collect();
        Self { text: texts.join(" "), open: open.join(" ") }
    }
}

/// What a script writes into the file of its outputs.
#[derive(Debug, Default)]
struct WrittenOutputs {
    values: BTreeMap<String, Vec<OpenText>>,
    /// The output whose lines are being written, and the line that ends it.
    begun: Option<(String, String)>,
}

impl WrittenOutputs {
    /// `None` if what is written can't be told.
    fn read(&mut self, commands: &[ShellCommand]) -> Option<()> {
        for (at, command) in commands.iter().enumerate() {
            let texts = command.words.iter().map(|word| &word.text);
            let mut texts = texts.chain([&command.input, &command.fixed_input]);
            if texts.any(|text| text.contains("GITHUB_OUTPUT") && !text.contains("$(")) {
                return None;
            }
            let mut files = command.writes.iter().map(|output| output.file.as_str());
            let Some(file) = files.find(|file| file.contains("GITHUB_OUTPUT")) else { continue };
            if !["$GITHUB_OUTPUT", "${GITHUB_OUTPUT}"].contains(&file) || command.within.is_some() {
                return None;
            }
            if name_of(command) == "}" {
                let begins =
                    |part: &ShellCommand| part.words.first().is_some_and(|word| word.text == "{");
                let start = commands[..at].iter().rposition(begins)?;
                commands[start..at].iter().try_for_each(|part| self.add_part(part))?;
            } else {
                self.add(command)?;
            }
        }
        Some(())
    }

    /// Adds a part of a group of commands.
    fn add_part(&mut self, command: &ShellCommand) -> Option<()> {
        const SILENT: [&str; 9] = ["", "[", "[[", "test", "fi", "done", "esac", "for", "set"];
        let sets = |word: &ShellWord| output_name(&word.text).is_some();
        let is_silent = SILENT.contains(&name_of(command).as_str())
            || bare(&command.words).first().is_some_and(sets);
        match is_silent || !command.writes.is_empty() {
            true => Some(()),
            false => self.add(command),
        }
    }

    fn add(&mut self, command: &ShellCommand) -> Option<()> {
        let words = bare(&command.words);
        let text = match name_of(command).as_str() {
            "echo" | "printf" => {
                let is_option = |word: &&ShellWord| {
                    word.text.len() > 1 && word.text.starts_with('-') && !word.text.contains('=')
                };
                OpenText::of_words(words[1..].iter().skip_while(is_option))
            }
            "cat"
                if words.len() == 1
                    && !command.input.is_empty()
                    && command.fixed_input.is_empty() =>
            {
                return self.add_lines(&command.input);
            }
            // What comes through a pipe isn't followed.
            _ if self.begun.is_some() && !command.is_piped => {
                let words = OpenText::of_words(words).text;
                let text = [&*words, &*command.input, &*command.reads.join(" ")].join(" ");
                // It prints what it would print into a value.
                OpenText { open: format!("$({text})"), text }
            }
            _ => return None,
        };
        self.add_text(text)
    }

    /// Adds a text in which variables expand, each line by itself if it is an output.
    fn add_lines(&mut self, input: &str) -> Option<()> {
        let is_whole = |line: &str| {
            let value = output_name(line).map(|name| &line[name.len()..]);
            value.is_some_and(|value| value.starts_with('='))
        };
        let open = |text: &str| OpenText { text: text.to_owned(), open: text.to_owned() };
        match self.begun.is_none() && input.lines().all(is_whole) {
            true => input.lines().try_for_each(|line| self.add_text(open(line))),
            false => self.add_text(open(input)),
        }
    }

    fn add_text(&mut self, text: OpenText) -> Option<()> {
        let all = text.text.replace("\\n", "\n");
        let lines: Vec<_> = all.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if let Some((name, end)) = &self.begun {
            let is_end = lines.last().is_some_and(|line| *line == end.as_str());
            self.values.entry(name.clone()).or_default().push(text);
            if is_end {
                self.begun = None;
            }
            return Some(());
        }
        let (Some(first), Some(last)) = (lines.first(), lines.last()) else { return Some(()) };
        // A name that is computed may be any.
        output_name(first)?;
        for name in lines.iter().filter_map(|line| output_name(line)) {
            self.values.entry(name.to_lowercase()).or_default().push(text.clone());
        }
        let begun = output_name(last).and_then(|name| {
            let end = last[name.len()..].strip_prefix("<<")?;
            Some((name.to_lowercase(), end.trim().to_owned()))
        });
        self.begun = begun;
        Some(())
    }
}

/// The name that a line such as `name=value` or `name<<END` begins with.
fn output_name(line: &str) -> Option<&str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let rest = line.trim_start_matches(is_part);
    let name = &line[..line.len() - rest.len()];
    (!name.is_empty() && (rest.starts_with('=') || rest.starts_with("<<"))).then_some(name)
}

/// What the variables of a script are.
struct ScriptValues<'a> {
    scope: &'a ContextScope,
    assigned: BTreeMap<String, Vec<OpenText>>,
    /// Variables that get what a command reads.
    read: BTreeSet<String>,
    /// Whether other files or texts may set variables, too.
    is_open: bool,
    /// Names of files that the script writes, without folders and braces.
    files: Vec<String>,
}

impl<'a> ScriptValues<'a> {
    fn new(script: &str, commands: &[ShellCommand], scope: &'a ContextScope) -> Self {
        let (assigned, read) = (BTreeMap::new(), BTreeSet::from(SET_BY_BASH.map(str::to_owned)));
        let mut found = Self { scope, assigned, read, is_open: false, files: vec![] };
        written_files(script).iter().for_each(|file| found.add_file(file));
        commands.iter().for_each(|command| found.add(command));
        found
    }

    /// How many texts and files may be looked at for one output.
    fn looks(&self) -> usize {
        let texts: usize = self.assigned.values().map(Vec::len).sum();
        (texts + 1) * (self.files.len() + 1)
    }

    fn add_file(&mut self, file: &str) {
        if is_own_file(file) {
            self.files.push(without_braces(file));
        }
    }

    fn add(&mut self, command: &ShellCommand) {
        let words = bare(&command.words);
        match (name_of(command).as_str(), words) {
            ("for" | "select", [_, name, values @ ..]) => {
                let values = OpenText::of_words(values);
                self.assigned.entry(name.text.to_lowercase()).or_default().push(values);
            }
            ("read" | "mapfile" | "readarray" | "getopts" | "printf", [_, names @ ..]) => {
                self.read.extend(names.iter().map(|word| word.text.to_lowercase()));
            }
            ("eval" | "source" | ".", _) => self.is_open = true,
            (program, [_, operands @ ..]) => {
                for word in written_operands(program, operands) {
                    self.add_file(word.text.rsplit(['/', '=']).next().unwrap_or_default());
                }
            }
            _ => {}
        }
        for word in &command.words {
            // `${A:=b}` sets `A`, and `${!A}` is the variable that `A` names.
            self.is_open |= word.open.contains(":=") || word.open.contains("${!");
            let Some((name, _)) = word.open.split_once('=') else { continue };
            let name = name.strip_suffix('+').unwrap_or(name);
            let name = name.split_once('[').map_or(name, |(name, _)| name);
            if !name.is_empty() && first_name(name) == name.to_lowercase() {
                let value = OpenText::of_words([word]);
                self.assigned.entry(name.to_lowercase()).or_default().push(value);
            }
        }
    }

    /// What texts of the script lead to. `None` if it can't be told.
    fn reach(&self, texts: &[OpenText]) -> Option<ContextReach> {
        let mut found = ContextReach::default();
        let (mut seen, mut all) = (BTreeSet::new(), String::new());
        let mut pending: Vec<_> = texts.iter().collect();
        while let Some(OpenText { text, open }) = pending.pop() {
            if open.contains("$(") && !prints_its_own_words(open) {
                return None;
            }
            let plain = without_braces(text);
            if self.files.iter().any(|file| plain.contains(file)) {
                return None;
            }
            found.merge(&self.scope.reach(text));
            all.push_str(text);
            all.push('\n');
            for name in variables(open) {
                if name == "@" || name.starts_with(|c: char| c.is_ascii_digit()) {
                    return None;
                }
                if self.read.contains(&name) {
                    return None;
                }
                if seen.insert(name.clone()) {
                    pending.extend(self.assigned.get(&name).into_iter().flatten());
                    self.add_variable(&name, &mut found)?;
                }
            }
        }
        // One command may get what another one takes the text from.
        if asks_for_text(&all) {
            found.add_path(FETCHED_TEXT);
        }
        Some(found)
    }

    /// Adds what a variable has from outside of the script.
    fn add_variable(&self, name: &str, found: &mut ContextReach) -> Option<()> {
        let is_runners = ["github_", "runner_"].iter().any(|start| name.starts_with(start));
        if name == "github_event_path" || (self.is_open && !is_runners) {
            return None;
        }
        if let Some(given) = self.scope.env.get(name) {
            found.merge(given);
        } else if name == "github_head_ref" {
            found.add_path("github.head_ref");
        } else if !is_runners {
            found.merge(&self.scope.written);
        }
        Some(())
    }
}

/// Whether the commands in a text print only what they are given as words and files.
fn prints_its_own_words(open: &str) -> bool {
    let commands = shell::commands(open);
    let mut inner = commands.iter().filter(|command| command.within.is_some());
    !open.to_lowercase().contains("env")
        && inner.all(|command| KNOWN_PROGRAMS.contains(&name_of(command).as_str()))
}

/// The operands of a command that may be files it writes, which aren't among those of redirections.
fn written_operands<'a>(program: &str, operands: &'a [ShellWord]) -> &'a [ShellWord] {
    let is_in_place = |word: &ShellWord| word.text.starts_with("-i") || word.text == "--in-place";
    match program {
        "cp" | "dd" | "install" | "ln" | "mv" | "sponge" | "tee" => operands,
        "perl" | "sed" | "yq" if operands.iter().any(is_in_place) => {
            &operands[operands.len() - 1..]
        }
        _ => &[],
    }
}

fn without_braces(text: &str) -> String {
    text.replace(['{', '}'], "")
}

/// Whether a name may be of a file that a script writes and reads itself.
fn is_own_file(name: &str) -> bool {
    let is_other = name.contains("GITHUB_") || name == "null" || name.starts_with(['-', '&']);
    !is_other && !name.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{codes, codes_of, with_rights};

    const TITLE: &str = "${{ github.event.pull_request.title }}";

    /// Whether the output `o` of a script, which another script holds, is text of a stranger.
    fn is_text(script: &str) -> bool {
        let lines: String = script.lines().map(|line| format!("          {line}\n")).collect();
        let steps = format!(
            "      - id: a\n        env: {{T: '{TITLE}', N: '${{{{ github.event.number }}}}'}}\n        run: |\n{lines}      - \
             run: echo ${{{{ steps.a.outputs.o }}}}\n"
        );
        codes(&with_rights("pull_request_target", &steps)).contains(&"untrusted-expression")
    }

    #[test]
    fn output_has_what_its_own_value_has() {
        for script in [
            "echo \"o=$T\" >> \"$GITHUB_OUTPUT\"",
            "echo \"n=1\" >> $GITHUB_OUTPUT\necho \"o=${T#x}\" >> $GITHUB_OUTPUT",
            "text=\"x $T\"\nshort=${text%% *}\necho o=$short >> ${GITHUB_OUTPUT}",
            "{\n  echo \"n=$N\"\n  echo \"o=$T\"\n} >> \"$GITHUB_OUTPUT\"",
            "echo 'o<<END' >> $GITHUB_OUTPUT\necho \"$T\" >> $GITHUB_OUTPUT\necho END >> $GITHUB_OUTPUT",
            "printf 'n=%s\\no=%s\\n' \"$N\" \"$T\" >> \"$GITHUB_OUTPUT\"",
            "cat <<END >> \"$GITHUB_OUTPUT\"\no=$T\nEND",
            "for word in $T; do\n  echo \"o=$word\" >> \"$GITHUB_OUTPUT\"\ndone",
            "read -r first rest <<< \"$T\"\necho \"o=$first\" >> \"$GITHUB_OUTPUT\"",
            "[[ \"$T\" =~ ^fix(.*)$ ]]\necho \"o=${BASH_REMATCH[1]}\" >> \"$GITHUB_OUTPUT\"",
            "read -r <<< \"$T\"\necho \"o=$REPLY\" >> \"$GITHUB_OUTPUT\"",
            "echo \"o=$(./title.sh)\" >> \"$GITHUB_OUTPUT\"",
            "title() { echo \"$T\"; }\necho \"o=$(title)\" >> \"$GITHUB_OUTPUT\"",
            "o=$(jq -rn env.T)\necho \"o=$o\" >> \"$GITHUB_OUTPUT\"",
            "name=T\necho \"o=${!name}\" >> \"$GITHUB_OUTPUT\"",
            "tmp=$(mktemp)\necho \"$T\" > \"$tmp\"\necho \"o=$(cat \"${tmp}\")\" >> \"$GITHUB_OUTPUT\"",
            "echo \"$T\" > t.txt\necho \"o=$(head -1 t.txt)\" >> \"$GITHUB_OUTPUT\"",
            "echo \"$T\" | tee t.txt\necho \"o=$(head -1 t.txt)\" >> \"$GITHUB_OUTPUT\"",
            "set_it() { echo \"o=$1\" >> \"$GITHUB_OUTPUT\"; }\nset_it \"$T\"",
            "key=o\necho \"$key=$T\" >> \"$GITHUB_OUTPUT\"",
            "echo \"o=1\" >> \"$GITHUB_OUTPUT\"\npython3 -c 'import os; print(os.environ[\"T\"])' | tee -a \"$GITHUB_OUTPUT\"",
            "echo \"n=$N\" >> \"$GITHUB_OUTPUT\"\n./set-outputs.sh",
            "echo \"::set-output name=o::$T\"",
            "echo \"o=$(gh pr view 1 --json title -q .title)\" >> \"$GITHUB_OUTPUT\"",
            "pr=$(gh pr view 1 --json title,number)\necho \"o=$(jq -r .title <<< \"$pr\")\" >> \"$GITHUB_OUTPUT\"",
            "pr=$(gh api repos/a/b/pulls/1)\necho \"o=$(jq -r .title <<< \"$pr\")\" >> \"$GITHUB_OUTPUT\"",
            "{\n  echo 'o<<END'\n  echo \"$T\" | sed s/a/b/\n  echo END\n} >> \"$GITHUB_OUTPUT\"",
            "{\n  echo 'o<<END'\n  ./title.sh\n  echo END\n} >> \"$GITHUB_OUTPUT\"",
            "echo 'o<<END' >> $GITHUB_OUTPUT\nprintenv T >> $GITHUB_OUTPUT\necho END >> $GITHUB_OUTPUT",
            "echo o=no >> $GITHUB_OUTPUT\necho \"o=$T\" > t.txt\ncat < t.txt >> $GITHUB_OUTPUT",
            "echo o=no >> $GITHUB_OUTPUT\necho \"o=$T\" | cat >> $GITHUB_OUTPUT",
            "echo \"$T\" > a.txt\ncp a.txt b.txt\necho \"o=$(cat b.txt)\" >> \"$GITHUB_OUTPUT\"",
            "sed -i \"s/x/$T/\" src/v.txt\necho \"o=$(cat src/v.txt)\" >> \"$GITHUB_OUTPUT\"",
            "echo \"$T\" | tee src/t.txt\ncd src\necho \"o=$(head -1 t.txt)\" >> \"$GITHUB_OUTPUT\"",
        ] {
            assert!(is_text(script), "{script}");
        }
        for script in [
            "echo \"title=$T\" >> \"$GITHUB_OUTPUT\"\necho \"o=$N\" >> \"$GITHUB_OUTPUT\"",
            "if [[ \"$T\" == fix* ]]; then\n  echo \"o=true\" >> \"$GITHUB_OUTPUT\"\nelse\n  echo \"o=false\" >> \
             \"$GITHUB_OUTPUT\"\nfi",
            "kind=other\ncase \"$T\" in fix*) kind=fix ;; esac\necho \"o=$kind\" >> \"$GITHUB_OUTPUT\"",
            "{\n  echo \"o=$N\"\n  echo \"title=$T\"\n} >> \"$GITHUB_OUTPUT\"",
            "echo 't<<END' >> $GITHUB_OUTPUT\necho \"$T\" >> $GITHUB_OUTPUT\necho END >> $GITHUB_OUTPUT\necho o=1 >> \
             $GITHUB_OUTPUT",
            "cat <<END >> \"$GITHUB_OUTPUT\"\no=$N\nEND\necho \"$T\"",
            "echo \"$T\" > title.txt\necho \"o=$(git rev-parse HEAD)\" >> \"$GITHUB_OUTPUT\"",
            "now=$(date +%s | tail -c 4)\necho \"$T\"; echo \"o=$now\" >> \"$GITHUB_OUTPUT\"",
            "echo \"o=${GITHUB_SHA::7}\" >> \"$GITHUB_OUTPUT\"; echo \"$T\"",
            "{\n  echo 'o<<END'\n  git rev-parse HEAD\n  echo END\n} >> \"$GITHUB_OUTPUT\"\necho \"$T\"",
            "sed -i s/x/y/ src/v.txt\necho \"o=$(cat VERSION)\" >> \"$GITHUB_OUTPUT\"; echo \"$T\"",
            "echo \"${{ github.event.number }}\"; echo \"$T\"; echo \"o=${{ github.sha }}\" >> \"$GITHUB_OUTPUT\"",
        ] {
            assert!(!is_text(script), "{script}");
        }
    }

    #[test]
    fn outputs_of_a_script_with_too_much_in_it_are_not_told_apart() {
        let script = |n: usize| {
            let line = |i: usize| {
                format!("v=$v{i}\necho x > f{i}.txt\necho \"o{i}=$v\" >> $GITHUB_OUTPUT\n")
            };
            let lines: String = (0..n).map(line).collect();
            format!("{lines}echo \"o=$N\" >> $GITHUB_OUTPUT\necho \"$T\"")
        };
        assert!(!is_text(&script(5)));
        assert!(is_text(&script(50)));
    }

    /// Of a job's environment as well as of the step's own.
    #[test]
    fn output_of_a_variable_that_the_job_sets_is_text_of_a_stranger() {
        let text = format!(
            "on: pull_request_target\nenv: {{T: '{TITLE}'}}\njobs: {{b: {{steps: [{{id: a, run: 'echo \"o=$T\" >> \
             $GITHUB_OUTPUT'}}, {{run: 'echo ${{{{ steps.a.outputs.o }}}}'}}]}}}}"
        );
        assert_eq!(codes(&text), ["untrusted-expression"]);
    }

    #[test]
    fn outputs_of_actions_called_workflows_and_scripts_of_javascript_are_told_apart() {
        let set = format!(
            "{{id: a, env: {{T: '{TITLE}'}}, shell: bash, run: \"echo t=$T >> $GITHUB_OUTPUT\\necho n=1 >> \
             $GITHUB_OUTPUT\"}}"
        );
        let value = |name: &str| format!("{{value: '${{{{ steps.a.outputs.{name} }}}}'}}");
        let action = format!(
            "outputs: {{t: {}, n: {}}}\nruns: {{using: composite, steps: [{set}]}}",
            value("t"),
            value("n")
        );
        let called = format!(
            "on: {{workflow_call: {{outputs: {{t: {{value: '${{{{ jobs.j.outputs.t }}}}'}}, n: {{value: '${{{{ \
             jobs.j.outputs.n }}}}'}}}}}}}}\njobs: {{j: {{outputs: {{t: '${{{{ steps.a.outputs.t }}}}', n: '${{{{ \
             steps.a.outputs.n }}}}'}}, steps: [{set}]}}}}"
        );
        let script = "uses: actions/github-script@v8, with: {script: \"core.setOutput('t', \
                      context.payload.pull_request.title); core.setOutput('n', context.payload.number)\"}";
        for (name, expected) in [("t", vec!["untrusted-expression"]), ("n", vec![])] {
            let use_of = |step: &str| {
                with_rights(
                    "pull_request_target",
                    &format!(
                        "      - {{id: x, {step}}}\n      - run: echo ${{{{ steps.x.outputs.{name} }}}}\n"
                    ),
                )
            };
            let caller = use_of("uses: ./x");
            let files = [(".github/workflows/w.yml", &*caller), ("x/action.yml", &*action)];
            assert_eq!(codes_of(&files), expected, "action {name}");
            assert_eq!(codes(&use_of(script)), expected, "JavaScript {name}");
            let caller = format!(
                "on: pull_request_target\njobs: {{c: {{uses: ./.github/workflows/x.yml}}, d: {{needs: c, steps: \
                 [{{run: 'echo ${{{{ needs.c.outputs.{name} }}}}'}}]}}}}"
            );
            let files =
                [(".github/workflows/w.yml", &*caller), (".github/workflows/x.yml", &*called)];
            assert_eq!(codes_of(&files), expected, "workflow {name}");
        }
    }

    #[test]
    fn output_of_a_called_workflow_may_be_one_of_its_inputs() {
        let handed_on = "on: {workflow_call: {inputs: {t: {type: string}}, outputs: {t: {value: '${{ inputs.t }}'}}}}\njobs: \
                         {j: {steps: []}}";
        let caller = format!(
            "on: pull_request_target\njobs: {{c: {{uses: ./.github/workflows/x.yml, with: {{t: '{TITLE}'}}}}, d: {{needs: c, \
             steps: [{{run: 'echo ${{{{ needs.c.outputs.t }}}}'}}]}}}}"
        );
        let files = [(".github/workflows/w.yml", &*caller), (".github/workflows/x.yml", handed_on)];
        assert_eq!(codes_of(&files), ["untrusted-expression"]);
    }
}
