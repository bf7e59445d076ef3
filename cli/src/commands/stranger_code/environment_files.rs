//! What scripts write into the files by which a step sets variables and outputs for later ones.

use super::as_code::{CODE_VARIABLES, first_name};

/// Ways to the environment of later steps and to the step's outputs.
const WAYS: [&str; 5] = ["GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "exportVariable", "addPath"];

/// Patterns of a whole number, as bash matches them.
const NUMBERS: [&str; 2] = ["^[0-9]+$", "^[1-9][0-9]*$"];

/// Starts of commands that print nothing of a file.
const ASK_THE_MACHINE: [&str; 5] = ["date +", "nproc", "openssl rand ", "pwd", "uuidgen"];

/// Ways in which a script sets a variable without naming it before `=`.
const OTHER_SETTERS: [&str; 5] = ["read", "mapfile", "printf -v", "source ", "eval "];

/// Whether a script changes the environment or the outputs by more than words of its own and numbers that it has checked,
/// so that an artifact may be in them.
pub fn writes_more_than_own_words(script: &str) -> bool {
    let lines: Vec<_> = script.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(at, line)| {
        WAYS.iter().any(|way| line.contains(way)) && !writes_own_words(line, &lines[..at])
    })
}

/// Whether a line is `echo "name=value" >> "$GITHUB_OUTPUT"`, or the same for a flag of the environment.
fn writes_own_words(line: &str, before: &[&str]) -> bool {
    let quotes = ['"', '\'', ' '];
    let written = line.strip_prefix("echo ").and_then(|rest| rest.split_once(">>"));
    let Some((text, file)) = written else { return line.starts_with('#') };
    let Some((name, value)) = text.trim_matches(quotes).split_once('=') else { return false };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if !name.bytes().all(is_name) {
        return false;
    }
    match file.trim_matches(quotes).trim_matches(['$', '{', '}']) {
        "GITHUB_OUTPUT" => is_own_value(value, before),
        // A variable that later commands look for in a folder, or take code from, may lead to the artifact's.
        "GITHUB_ENV" => {
            let name = name.to_lowercase();
            let is_flag = ["true", "false", "yes", "no"].contains(&value)
                || value.bytes().all(|byte| byte.is_ascii_digit());
            is_flag && !name.contains("path") && !CODE_VARIABLES.contains(&&*name)
        }
        _ => false,
    }
}

/// Whether a value has fixed words, what the machine tells and checked numbers only.
fn is_own_value(value: &str, before: &[&str]) -> bool {
    let mut parts = value.split('$');
    let is_plain = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b" _-.:/".contains(&byte))
    };
    parts.next().is_some_and(is_plain)
        && parts.all(|part| match part.strip_prefix('(') {
            Some(rest) => rest.split_once(')').is_some_and(|(command, rest)| {
                let is_known = ASK_THE_MACHINE.iter().any(|known| command.starts_with(known));
                is_known && is_plain(&command.replace(['+', '%'], "")) && is_plain(rest)
            }),
            None => {
                let name = part.trim_start_matches('{');
                let rest = name.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
                is_checked_number(&first_name(name), before)
                    && is_plain(rest.strip_prefix('}').unwrap_or(rest))
            }
        })
}

/// Whether the lines before leave the script unless a variable is a whole number, and don't set it again.
fn is_checked_number(name: &str, before: &[&str]) -> bool {
    let is_check = |line: &&str| {
        let negated = line.split_once("! ").and_then(|(_, test)| test.split_once("=~"));
        negated.filter(|_| !line.contains("&&")).is_some_and(|(tested, pattern)| {
            let tested = tested.trim_start_matches(['[', ' ', '"', '$', '{']);
            first_name(tested) == name && NUMBERS.iter().any(|number| pattern.contains(number))
        })
    };
    let Some(at) = before.iter().position(is_check) else { return false };
    let rest = &before[at..];
    let end = rest.iter().position(|line| *line == "fi").unwrap_or_default();
    let leaves = rest[..end].iter().any(|line| line.starts_with("exit "));
    let sets = |line: &&str| {
        let lower = line.to_lowercase();
        lower.contains(&format!("{name}="))
            || lower.starts_with(". ")
            || OTHER_SETTERS.iter().any(|setter| lower.contains(setter))
    };
    leaves && !rest[end..].iter().any(sets)
}

#[cfg(test)]
mod tests {
    use super::writes_more_than_own_words;

    #[test]
    fn fixed_words_and_checked_numbers_are_no_text_of_an_artifact() {
        let check = "n=$(cat left/n)\nif ! [[ \"$n\" =~ ^[0-9]+$ ]]; then\n  exit 1\nfi\n";
        let checked = |line: &str| format!("{check}{line}");
        for script in [
            "if grep -q x left/log; then\necho \"has-x=true\" >> $GITHUB_OUTPUT\nfi".to_owned(),
            "echo 'state=not run' >> $GITHUB_OUTPUT".to_owned(),
            "echo \"report=$(pwd)/report.md\" >> ${GITHUB_OUTPUT}".to_owned(),
            "echo \"tag=$(date +%Y-%m-%d)-$(openssl rand -hex 8)\" >> $GITHUB_OUTPUT".to_owned(),
            "echo \"SKIP_UPLOAD=true\" >> \"$GITHUB_ENV\"".to_owned(),
            checked("echo \"id=$n\" >> $GITHUB_OUTPUT"),
            checked("echo \"url=https://preview-${n}.example.org\" >> \"$GITHUB_OUTPUT\""),
        ] {
            assert!(!writes_more_than_own_words(&script), "{script}");
        }
        for script in [
            "cat left/env >> \"$GITHUB_ENV\"".to_owned(),
            "echo \"n=$(cat left/n)\" >> $GITHUB_OUTPUT".to_owned(),
            "echo \"n=$(date +%s)$(<left/n)\" >> $GITHUB_OUTPUT".to_owned(),
            "echo \"n=$(openssl enc -d -base64 -in left/n)\" >> $GITHUB_OUTPUT".to_owned(),
            "n=$(cat left/n)\necho \"n=$n\" >> $GITHUB_OUTPUT".to_owned(),
            "echo \"n=`cat left/n`\" >> $GITHUB_OUTPUT".to_owned(),
            "{\n  echo a=b\n  cat left/n\n} >> $GITHUB_OUTPUT".to_owned(),
            "echo a=b | tee -a $GITHUB_OUTPUT < left/n".to_owned(),
            "echo \"$(pwd)/left/bin\" >> $GITHUB_PATH".to_owned(),
            "echo left >> $GITHUB_PATH".to_owned(),
            "echo \"NODE_OPTIONS=--require=left.js\" >> $GITHUB_ENV".to_owned(),
            "echo \"LD_LIBRARY_PATH=1\" >> $GITHUB_ENV".to_owned(),
            "echo \"BASH_ENV=1\" >> $GITHUB_ENV".to_owned(),
            "core.exportVariable('X', text)".to_owned(),
            checked("echo \"id=$n\" >> $GITHUB_ENV"),
            checked("echo \"id=$m\" >> $GITHUB_OUTPUT"),
            checked("n=$(cat left/m)\necho \"id=$n\" >> $GITHUB_OUTPUT"),
            checked("read -r n < left/m\necho \"id=$n\" >> $GITHUB_OUTPUT"),
            format!("{}echo \"id=$n\" >> $GITHUB_OUTPUT", check.replace("exit 1", "true")),
            format!("{}echo \"id=$n\" >> $GITHUB_OUTPUT", check.replace("^[0-9]+$", "[0-9]+")),
            format!("{}echo \"id=$n\" >> $GITHUB_OUTPUT", check.replace("! ", "")),
        ] {
            assert!(writes_more_than_own_words(&script), "{script}");
        }
    }
}
