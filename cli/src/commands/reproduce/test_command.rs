//! The command that runs the failing tests again, where their names in the report tell which program ran
//! them.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RecipeTest {
    pub name: String,
    pub classname: Option<String>,
    pub file: Option<String>,
    pub message: Option<String>,
}

impl RecipeTest {
    pub fn line(&self) -> String {
        let name = match &self.classname {
            Some(class) => format!("{class}.{}", self.name),
            None => self.name.clone(),
        };
        let place = self.file.as_ref().map(|file| format!(" ({file})")).unwrap_or_default();
        let message = self.message.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
        format!("{name}{place}{message}")
    }
}

/// One word of a POSIX shell, always in single quotes.
pub fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A command for all tests of a job; `None` if they don't tell the same program. Every name is a quoted
/// word, so that none is an option or anything else to a shell.
pub fn guess(tests: &[RecipeTest]) -> Option<String> {
    if tests.is_empty() {
        return None;
    }
    [pytest, nextest, go, ctest].into_iter().find_map(|command| command(tests))
}

/// `file::Class::name`, as pytest names a test. Only its own reports and PyTorch's name the file.
fn pytest(tests: &[RecipeTest]) -> Option<String> {
    let ids: Option<Vec<_>> = tests
        .iter()
        .map(|test| {
            let file = test.file.as_ref().filter(|file| file.ends_with(".py"))?;
            let class = test.classname.as_deref().and_then(|class| class.rsplit('.').next());
            Some(match class.filter(|class| class.starts_with(|c: char| c.is_ascii_uppercase())) {
                Some(class) => shell_word(&format!("{file}::{class}::{}", test.name)),
                None => shell_word(&format!("{file}::{}", test.name)),
            })
        })
        .collect();
    Some(format!("python -m pytest -- {}", ids?.join(" ")))
}

/// cargo-nextest: the class is a binary (`crate` or `crate::binary`), the name a path of Rust.
fn nextest(tests: &[RecipeTest]) -> Option<String> {
    let is_path = |text: &str| {
        let is_name = |part: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '/';
            !part.is_empty() && part.chars().all(plain)
        };
        text.split("::").all(is_name)
    };
    let filters: Option<Vec<_>> = tests
        .iter()
        .map(|test| {
            let binary = test.classname.as_deref().filter(|class| is_path(class))?;
            let name = Some(&*test.name).filter(|name| name.contains("::") && is_path(name))?;
            Some(format!("(binary_id(={binary}) & test(={name}))"))
        })
        .collect();
    Some(format!("cargo nextest run -E {}", shell_word(&filters?.join(" | "))))
}

/// Go: the class is an import path, which has a slash, and the name begins with `Test`.
fn go(tests: &[RecipeTest]) -> Option<String> {
    let package = tests[0].classname.as_deref().filter(|class| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/~".contains(c);
        class.contains('/') && !class.starts_with(['-', '/']) && class.chars().all(plain)
    })?;
    let names: Option<Vec<_>> = tests
        .iter()
        .map(|test| {
            let of_package = test.classname.as_deref() == Some(package) && test.file.is_none();
            // For `TestA/case`, all of `TestA` runs: each level is an expression of its own.
            let name = test.name.split('/').next().filter(|_| of_package)?;
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            (name.starts_with("Test") && name.chars().all(word)).then_some(name)
        })
        .collect();
    let mut names = names?;
    names.dedup();
    let pattern = format!("^({})$", names.join("|"));
    Some(format!("go test -run {} {}", shell_word(&pattern), shell_word(package)))
}

/// CTest names a test twice, as its class, too.
fn ctest(tests: &[RecipeTest]) -> Option<String> {
    let names: Option<Vec<_>> = tests
        .iter()
        .map(|test| {
            let is_own = test.classname.as_deref() == Some(&*test.name) && test.file.is_none();
            is_own.then(|| escape_regex(&test.name))
        })
        .collect();
    Some(format!(
        "ctest --output-on-failure -R {}",
        shell_word(&format!("^({})$", names?.join("|")))
    ))
}

/// CMake knows no escape for letters and digits, and needs none.
fn escape_regex(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if r"\^$.|?*+()[]{}".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str, class: &str, file: Option<&str>) -> RecipeTest {
        RecipeTest {
            name: name.to_owned(),
            classname: Some(class.to_owned()),
            file: file.map(str::to_owned),
            message: None,
        }
    }

    #[test]
    fn hostile_test_names_are_single_words_of_the_command() {
        let class = "test.test_ops.TestOps";
        let hostile = "x'; touch /tmp/owned; echo $(id) `id` '";
        let tests = [
            test("test_add", class, Some("test/test_ops.py")),
            test(hostile, class, Some("--rootdir=/.py")),
        ];
        let command = guess(&tests).unwrap();
        let script = command.replace("python -m pytest", "printf '%s\\n'");
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        let words = String::from_utf8(output.stdout).unwrap();
        let expected =
            format!("test/test_ops.py::TestOps::test_add\n--rootdir=/.py::TestOps::{hostile}\n");
        assert_eq!(words.trim_start_matches("--\n"), expected, "{command}");
    }

    #[test]
    fn program_is_known_by_how_it_names_tests() {
        let command_of = |name: &str, class: &str| guess(&[test(name, class, None)]);
        assert_eq!(
            command_of("results::tests::rate", "crcr-domain").unwrap(),
            "cargo nextest run -E '(binary_id(=crcr-domain) & test(=results::tests::rate))'"
        );
        assert_eq!(
            guess(&[
                test("TestAdd/small", "example.org/npu/ops", None),
                test("TestSub", "example.org/npu/ops", None),
            ])
            .unwrap(),
            "go test -run '^(TestAdd|TestSub)$' 'example.org/npu/ops'"
        );
        assert_eq!(
            command_of("ops.add+", "ops.add+").unwrap(),
            r"ctest --output-on-failure -R '^(ops\.add\+)$'"
        );
        // GoogleTest doesn't name its program, and unittest and pytest name alike.
        for (name, class, file) in [
            ("Add", "OpsTest", Some("ops_test.cc")),
            ("test_add", "test.test_ops.TestOps", None),
            ("TestAdd", "-exec/x", None),
            ("a", "test.cpp", None),
        ] {
            assert_eq!(guess(&[test(name, class, file)]), None, "{name}");
        }
        assert_eq!(guess(&[]), None);
        let mixed = [test("a", "a", None), test("TestAdd", "example.org/x", None)];
        assert_eq!(guess(&mixed), None);
    }
}
