//! Words of strangers that a program takes for code: an option that starts a program or reads a file, or the name of
//! what it installs or runs.

use super::as_code::{MAX_PARTS, StrangerText, variables};
use super::shell::ShellWord;

/// What a stranger has to choose for code of theirs to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StrangerChoice {
    /// A whole word: one option is enough, or it names what is run.
    Word,
    /// Several words, so that only a variable without quotes gives them.
    Words,
    /// Any part of a word, such as the version of a package of npm, which may be an address.
    Part,
    /// The first word that isn't an option.
    First,
}

/// Programs with the verbs of which it is so; without any, all words are meant.
const PROGRAMS: [(&str, &[&str], StrangerChoice); 35] = [
    ("apt", &["install"], StrangerChoice::Word),
    ("apt-get", &["install"], StrangerChoice::Word),
    ("brew", &["install"], StrangerChoice::Word),
    ("bsdtar", &[], StrangerChoice::Word),
    ("bun", &["add", "i", "install"], StrangerChoice::Part),
    ("bun", &["run", "x"], StrangerChoice::First),
    ("cargo", &["add", "bench", "build", "check", "install", "run", "test"], StrangerChoice::Word),
    ("conda", &["install"], StrangerChoice::Word),
    ("curl", &[], StrangerChoice::Words),
    ("docker", &["build", "create", "exec", "run"], StrangerChoice::Words),
    ("find", &[], StrangerChoice::Words),
    ("gem", &["install"], StrangerChoice::Word),
    ("git", &["bisect", "difftool", "grep", "rebase"], StrangerChoice::Word),
    ("go", &["build", "get", "install", "test", "vet"], StrangerChoice::Word),
    ("go", &["run"], StrangerChoice::First),
    ("npm", &["add", "i", "install"], StrangerChoice::Part),
    ("npm", &["exec", "run", "run-script", "x"], StrangerChoice::First),
    ("pip", &["download", "install", "wheel"], StrangerChoice::Word),
    ("pip3", &["download", "install", "wheel"], StrangerChoice::Word),
    ("pipx", &["install"], StrangerChoice::Word),
    ("pipx", &["run"], StrangerChoice::First),
    ("pnpm", &["add", "i", "install"], StrangerChoice::Part),
    ("pnpm", &["dlx", "exec", "run"], StrangerChoice::First),
    ("podman", &["build", "create", "exec", "run"], StrangerChoice::Words),
    ("py.test", &[], StrangerChoice::Word),
    ("pytest", &[], StrangerChoice::Word),
    ("rsync", &[], StrangerChoice::Word),
    ("scp", &[], StrangerChoice::Word),
    ("sftp", &[], StrangerChoice::Word),
    ("ssh", &[], StrangerChoice::Word),
    ("tar", &[], StrangerChoice::Word),
    ("wget", &[], StrangerChoice::Words),
    ("xargs", &[], StrangerChoice::First),
    ("yarn", &["add"], StrangerChoice::Part),
    ("yarn", &["dlx", "exec", "run"], StrangerChoice::First),
];

/// Options whose value is code, or where it comes from.
const CODE_OPTIONS: [(&str, &[&str]); 16] = [
    ("cmake", &["-P"]),
    ("docker", &["--entrypoint"]),
    ("gdb", &["-ex"]),
    ("gem", &["--source", "-s"]),
    ("git", &["--exec", "--receive-pack", "--upload-pack"]),
    ("node", &["--import", "--loader", "--require", "-r"]),
    ("npm", &["--call", "--registry", "-c"]),
    ("npx", &["--call", "--package", "--registry", "-c", "-p"]),
    ("nvim", &["--cmd", "-c"]),
    ("pip", PIP_OPTIONS),
    ("pip3", PIP_OPTIONS),
    ("rsync", &["--rsh", "--rsync-path", "-e"]),
    ("scp", &["-o"]),
    ("ssh", &["-o"]),
    ("tar", &["--checkpoint-action", "--to-command", "--use-compress-program", "-I"]),
    ("vim", &["--cmd", "-c"]),
];

const PIP_OPTIONS: &[&str] = &[
    "--constraint",
    "--editable",
    "--extra-index-url",
    "--find-links",
    "--index-url",
    "--requirement",
    "-c",
    "-e",
    "-f",
    "-i",
    "-r",
];

/// Options without a value.
const SWITCHES: [&str; 14] = [
    "--locked",
    "--quiet",
    "--upgrade",
    "--user",
    "--yes",
    "-U",
    "-a",
    "-av",
    "-avz",
    "-q",
    "-qq",
    "-s",
    "-v",
    "-y",
];

/// Whether a stranger chooses code of a program by a word of its command, which begins with the program's name.
pub fn run_text(words: &[ShellWord], text: &StrangerText<'_>) -> bool {
    let words = &words[..words.len().min(MAX_PARTS)];
    // `python3 -m pip` and `uv pip` are pip.
    let start = match words {
        [first, second, third, ..] if first.text.starts_with("python") && second.text == "-m" => {
            Some((third, &words[3..]))
        }
        [first, second, ..] if ["corepack", "uv"].contains(&first.text.as_str()) => {
            Some((second, &words[2..]))
        }
        _ => words.split_first(),
    };
    let Some((program, rest)) = start else { return false };
    let name = program.text.rsplit('/').next().unwrap_or_default();
    let rest = match rest {
        // `tar czf FILE` takes whatever comes next for the file.
        [letters, _, more @ ..] if name.ends_with("tar") && is_letters_with_file(letters) => more,
        _ => rest,
    };
    let mut known = PROGRAMS.iter().filter(|(program, ..)| *program == name);
    known.any(|(_, verbs, choice)| is_chosen(rest, verbs, *choice, text))
        || is_value_of_code(name, rest, text)
}

/// Whether a stranger's text is the value of an option that is code.
fn is_value_of_code(program: &str, words: &[ShellWord], text: &StrangerText<'_>) -> bool {
    let options = CODE_OPTIONS.iter().filter(|(name, _)| *name == program);
    options.flat_map(|(_, options)| options.iter()).any(|option| {
        let is_text = |value: &str| value.starts_with('$') && text.expands_in(value);
        let beside = words.windows(2).filter(|two| two[0].text == *option);
        let mut beside = beside.map(|two| two[1].open.as_str());
        let within = words.iter().filter_map(|word| word.open.strip_prefix(*option));
        let mut within = within.filter_map(|rest| rest.strip_prefix('='));
        beside.any(is_text) || within.any(is_text)
    })
}

/// Whether the words that `xargs` reads may be options or packages for the program that it starts.
pub fn xargs_adds_words(words: &[ShellWord]) -> bool {
    const WITH_VALUES: [&str; 6] = ["-L", "-P", "-a", "-d", "-n", "-s"];
    let mut rest = words.get(1..).unwrap_or_default();
    while let Some((option, more)) =
        rest.split_first().filter(|(word, _)| word.text.starts_with('-'))
    {
        // They are put into the words of the program.
        if option.text.starts_with("-I") || option.text.starts_with("--replace") {
            return false;
        }
        let values = usize::from(WITH_VALUES.contains(&option.text.as_str()));
        rest = more.get(values..).unwrap_or_default();
    }
    let Some((program, rest)) = rest.split_first() else { return false };
    let mut operands = rest.iter().filter(|word| !word.text.starts_with('-'));
    let verb = operands.next().map_or("", |word| word.text.as_str());
    let is_ended = rest.iter().any(|word| word.text == "--");
    PROGRAMS.iter().any(|(name, verbs, choice)| {
        let is_meant = *name == program.text && (verbs.is_empty() || verbs.contains(&verb));
        let is_named = matches!(choice, StrangerChoice::First) && rest.len() > 1;
        is_meant && !is_named && !is_ended
    })
}

fn is_letters_with_file(word: &ShellWord) -> bool {
    word.text.contains('f') && word.text.chars().all(|c| c.is_ascii_alphabetic())
}

fn is_chosen(
    words: &[ShellWord],
    verbs: &[&str],
    choice: StrangerChoice,
    text: &StrangerText<'_>,
) -> bool {
    let is_text = |word: &ShellWord| text.expands_in(&word.open);
    let operand = |from: usize| {
        words[from..].iter().position(|word| !word.text.starts_with('-')).map(|at| from + at)
    };
    let start = match (verbs, operand(0)) {
        ([], _) => 0,
        (_, Some(at)) if verbs.contains(&words[at].text.as_str()) => at + 1,
        // The verb itself.
        (_, Some(at)) => return words[at].open.starts_with('$') && is_text(&words[at]),
        (_, None) => return false,
    };
    // After `--` nothing is an option; what a program installs or runs by its name isn't one anyway.
    let end = words.iter().position(|word| word.text == "--").unwrap_or(words.len());
    let options = words.get(start..end).unwrap_or_default();
    let is_value = |at: usize| {
        let before = at.checked_sub(1).and_then(|before| options.get(before));
        before.is_some_and(|word| {
            let is_alone = word.text.contains('=') || SWITCHES.contains(&word.text.as_str());
            word.text.starts_with('-') && !is_alone
        })
    };
    match choice {
        StrangerChoice::First => {
            operand(start).is_some_and(|at| words[at].open.starts_with('$') && is_text(&words[at]))
        }
        StrangerChoice::Part => words[start..].iter().any(is_text),
        StrangerChoice::Words => options.iter().any(|word| gives_words(word) && is_text(word)),
        StrangerChoice::Word => options.iter().enumerate().any(|(at, word)| {
            let is_word = word.open.starts_with('$') && !is_value(at);
            (gives_words(word) || is_word) && is_text(word)
        }),
    }
}

/// Whether a word may become several. Names of branches have no blanks.
fn gives_words(word: &ShellWord) -> bool {
    let is_branch = |name: String| name.contains("ref") || name.contains("branch");
    let mut names = variables(&word.open).peekable();
    word.is_split && (names.peek().is_none() || !names.all(is_branch))
}
