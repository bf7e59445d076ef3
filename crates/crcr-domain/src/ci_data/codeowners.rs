//! GitHub's CODEOWNERS: who owns a file.
//! <https://docs.github.com/en/repositories/managing-your-repositorys-settings-and-features/customizing-your-repository/about-code-owners>

/// GitHub ignores a larger file.
pub const MAX_BYTES: usize = 3 << 20;
/// Where GitHub looks for it, in this order.
pub const PLACES: [&str; 3] = [".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS"];
/// Longer paths have no owner here.
const MAX_PATH_BYTES: usize = 4096;

#[derive(Debug, Clone, Default)]
pub struct Codeowners {
    rules: Vec<OwnerRule>,
}

#[derive(Debug, Clone)]
struct OwnerRule {
    /// Parts between slashes; `**` stands for any number of parts.
    parts: Vec<String>,
    /// Whether it is of folders only, and not of a file of that name.
    is_folder: bool,
    /// Whether what is in a matching folder belongs to it as well.
    includes_contents: bool,
    owners: Vec<String>,
}

impl Codeowners {
    /// Lines that GitHub doesn't understand are left out, as GitHub does.
    pub fn parse(text: &str) -> Self {
        Self { rules: text.lines().filter_map(OwnerRule::parse).collect() }
    }

    /// Such as `@alice` and `@org/team`. The last rule that matches the path counts.
    pub fn owners(&self, path: &str) -> &[String] {
        self.owners_of_any(&[path])
    }

    fn owners_of_any(&self, paths: &[&str]) -> &[String] {
        let paths: Vec<Vec<&str>> = paths
            .iter()
            .map(|path| path.trim_start_matches("./").trim_start_matches('/'))
            .filter(|path| path.len() <= MAX_PATH_BYTES)
            .map(|path| path.split('/').collect())
            .collect();
        let is_of = |rule: &&OwnerRule| paths.iter().any(|parts| rule.matches(parts));
        self.rules.iter().rev().find(is_of).map_or(&[], |rule| &rule.owners)
    }

    /// Whether any rule names an owner who is wanted.
    pub fn has_owner(&self, is_wanted: impl Fn(&str) -> bool) -> bool {
        self.rules.iter().flat_map(|rule| &rule.owners).any(|owner| is_wanted(owner))
    }

    /// Who owns a test: the owners of the file that its report names, else of the path that its class tells.
    pub fn owners_of_test(&self, repository: &str, file: Option<&str>, class: &str) -> &[String] {
        let Some(file) = file.or(Some(class).filter(|class| is_path(class))) else {
            let path = path_of_class(repository, class);
            // Where Maven and Gradle have the tests of a project. A class in another one is in the file of that.
            let outermost = path.split_once('$').map_or(&*path, |(class, _)| class);
            let of_java = format!("src/test/java/{outermost}.java");
            // Packages of Python are called `io` or `dev`, too.
            let is_java = is_java_class(class) && !path.ends_with(".py");
            let places = if is_java { vec![&*path, &*of_java] } else { vec![&*path] };
            return self.owners_of_any(&places);
        };
        // Runners check a repository out into `…/NAME/NAME`.
        let name = repository.rsplit('/').next().unwrap_or(repository);
        let checkout = format!("/{name}/{name}/");
        // As Windows writes it: `D:\a\NAME\NAME\test\a.js`.
        let file = file.replace('\\', "/");
        let path = file.find(&checkout).map_or(&*file, |at| &file[at + checkout.len()..]);
        self.owners(path)
    }
}

/// Playwright, Vitest and others name a test's file as its class.
fn is_path(class: &str) -> bool {
    const SCRIPTS: [&str; 8] = ["js", "cjs", "mjs", "jsx", "ts", "cts", "mts", "tsx"];
    let extension = class.rsplit_once('.').map_or("", |(_, extension)| extension);
    !class.contains(char::is_whitespace) && SCRIPTS.contains(&extension)
}

/// `com.acme.FooTest`, or `com.acme.FooTest$Inner`: a domain tells it from a module of Python.
fn is_java_class(class: &str) -> bool {
    const DOMAINS: [&str; 12] =
        ["com", "org", "net", "io", "dev", "edu", "gov", "de", "fr", "uk", "eu", "ai"];
    let mut parts = class.split('.');
    let is_of_domain = parts.next().is_some_and(|first| DOMAINS.contains(&first));
    let name = parts.skip(1).last().unwrap_or_default();
    is_of_domain && name.starts_with(|c: char| c.is_ascii_uppercase())
}

/// The dots of a class are the slashes of its path. Two of them tell a file: a module of pytest, which by default is
/// called `test_*` or `*_test`, and a package of Go in a module that has the name of its repository.
fn path_of_class(repository: &str, class: &str) -> String {
    let package = class.strip_prefix("github.com/").and_then(|path| path.strip_prefix(repository));
    if let Some(folder) = package.filter(|folder| folder.is_empty() || folder.starts_with('/')) {
        return format!("{folder}/_test.go");
    }
    let is_plain = class.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte));
    let is_module = |part: &&str| part.starts_with("test_") || part.ends_with("_test");
    let parts: Vec<&str> = class.split('.').collect();
    match parts.iter().rposition(is_module).filter(|_| is_plain) {
        Some(module) => format!("{}.py", parts[..=module].join("/")),
        None => parts.join("/"),
    }
}

impl OwnerRule {
    fn parse(line: &str) -> Option<Self> {
        // A space that belongs to the path has a backslash before it.
        let line = line.replace("\\ ", "\0");
        let mut words = line
            .split_whitespace()
            .take_while(|word| !word.starts_with('#'))
            .map(|word| word.replace('\0', " "));
        let pattern = words.next()?;
        if pattern.starts_with('!') || pattern.contains(['[', ']']) {
            return None;
        }
        let is_folder = pattern.ends_with('/');
        let path = pattern.trim_end_matches('/');
        let is_anchored = path.contains('/');
        let mut parts: Vec<String> =
            path.trim_start_matches('/').split('/').map(str::to_owned).collect();
        if !is_anchored {
            parts.insert(0, "**".to_owned());
        }
        // `docs/*` is of the files right in that folder only, and `*` alone of every file.
        let includes_contents = is_folder || !is_anchored || parts.last()? != "*";
        let owners: Vec<String> = words.collect();
        // GitHub leaves out a line with anything else.
        let are_valid = owners.iter().all(|owner| owner.contains('@'));
        are_valid.then_some(Self { parts, is_folder, includes_contents, owners })
    }

    fn matches(&self, path: &[&str]) -> bool {
        // How many parts of the path the pattern's parts so far can stand for.
        let mut reached = vec![false; path.len() + 1];
        reached[0] = true;
        for part in &self.parts {
            let mut next = vec![false; path.len() + 1];
            for at in (0..=path.len()).filter(|at| reached[*at]) {
                if part == "**" {
                    next[at..].fill(true);
                    break;
                }
                if path.get(at).is_some_and(|name| matches_name(part, name)) {
                    next[at + 1] = true;
                }
            }
            reached = next;
        }
        let is_inside = reached[1..path.len()].contains(&true);
        (reached[path.len()] && !self.is_folder) || (is_inside && self.includes_contents)
    }
}

/// `*` stands for any characters, `?` for one.
fn matches_name(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut from) = (0, 0);
    // Where the last `*` is, and how far it reaches.
    let mut star: Option<(usize, usize)> = None;
    while from < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(c) if *c == '?' || *c == name[from] => {
                at += 1;
                from += 1;
            }
            _ => {
                let Some((star_at, reach)) = &mut star else { return false };
                *reach += 1;
                (at, from) = (*star_at, *reach);
            }
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_rule_that_matches_a_path_names_its_owners() {
        let owners = Codeowners::parse(
            "# Owners\n*  @org/all\n*.js @web # pages\n/build/logs/ @ops\ndocs/* docs@example.com\n\
             apps/ @apps\n/scripts @scripts @bob\n**/vendor @vendor\n/apps/free\n\
             with\\ blank.txt @blank\n[ab].rs @never\n!x @never\nREADME.md all @never\n/a/**/z.py @deep\n/team/*/ @team\n",
        );
        for (path, expected) in [
            ("README.md", &["@org/all"][..]),
            ("src/page.js", &["@web"]),
            ("./src/page.js", &["@web"]),
            ("build/logs/a/b.txt", &["@ops"]),
            ("x/build/logs/a.txt", &["@org/all"]),
            ("docs/a.md", &["docs@example.com"]),
            ("docs/more/a.md", &["@org/all"]),
            ("x/apps/y/z.c", &["@apps"]),
            ("scripts/run.py", &["@scripts", "@bob"]),
            ("deep/er/vendor/x.c", &["@vendor"]),
            ("apps/free/x.c", &[]),
            ("with blank.txt", &["@blank"]),
            ("a/z.py", &["@deep"]),
            ("a/b/c/z.py", &["@deep"]),
            ("a.rs", &["@org/all"]),
            ("[ab].rs", &["@org/all"]),
            ("!x", &["@org/all"]),
            ("team/a/b.c", &["@team"]),
            ("team/b.c", &["@org/all"]),
        ] {
            assert_eq!(owners.owners(path), expected, "{path}");
        }
        assert!(Codeowners::parse("*.py @a").owners("x.js").is_empty());
        let all = Codeowners::parse("* @a");
        assert_eq!(all.owners(&"x".repeat(MAX_PATH_BYTES)), ["@a"]);
        assert!(all.owners(&"x".repeat(MAX_PATH_BYTES + 1)).is_empty());
    }

    #[test]
    fn file_names_an_owner_if_any_rule_does() {
        let owners = Codeowners::parse("*.js @web\n*.py @acme/py @bob\n");
        for (name, is_named) in [("@web", true), ("@bob", true), ("@alice", false)] {
            assert_eq!(owners.has_owner(|owner| owner == name), is_named, "{name}");
        }
        assert!(!Codeowners::parse("*.js\n").has_owner(|_| true));
    }

    #[test]
    fn owners_of_a_test_are_those_of_its_file_wherever_it_was_checked_out() {
        let owners = Codeowners::parse("/test/ops/ @ops\n/test/ @tests\n/test/ops/ @ops\n");
        let of = |file, class| owners.owners_of_test("acme/backend", file, class);
        assert_eq!(of(Some("/home/runner/work/backend/backend/test/ops/a.py"), ""), ["@ops"]);
        assert_eq!(of(Some(r"D:\a\backend\backend\test\ops\a.py"), ""), ["@ops"]);
        assert_eq!(of(Some(r"test\ops\a.py"), ""), ["@ops"]);
        assert_eq!(of(Some("test/a.py"), "test.ops.A"), ["@tests"], "the file says more");
        assert_eq!(of(None, "test.ops.test_a.TestA"), ["@ops"]);
        assert!(of(Some("/elsewhere/test/ops/a.py"), "").is_empty());
        let files =
            Codeowners::parse("/test/ @tests\n/test/ops/test_a.py @a\n/pkg/ @pkg\n*.go @go\n");
        let of = |class| files.owners_of_test("acme/backend", None, class);
        assert_eq!(of("test.ops.test_a.TestA"), ["@a"], "what pytest writes by default");
        assert_eq!(of("test.ops.Test A"), ["@tests"]);
        assert_eq!(of("github.com/acme/backend/pkg"), ["@go"]);
        assert_eq!(of("github.com/acme/backend"), ["@go"]);
        assert!(of("github.com/acme/backend2/pkg").is_empty());
    }

    #[test]
    fn owners_of_a_test_in_java_or_javascript_are_those_of_the_path_that_its_class_tells() {
        let owners = Codeowners::parse(
            "* @all\n/src/test/java/com/acme/ui/ @ui\n*.spec.ts @web\n/web/login.spec.ts @login\n",
        );
        let of = |class| owners.owners_of_test("acme/app", None, class);
        assert_eq!(of("com.acme.ui.ButtonTest$Click"), ["@ui"]);
        assert_eq!(of("web/login.spec.ts"), ["@login"], "Playwright has the file as the class");
        assert_eq!(of("a.spec.ts"), ["@web"]);
        assert_eq!(of("/home/runner/work/app/app/web/login.spec.ts"), ["@login"]);
        assert_eq!(of("tests.ops.TestAdd"), ["@all"]);
        assert_eq!(of("reads a.spec.ts"), ["@all"], "a title");
        let java = Codeowners::parse("/src/ @src\n/src/test/java/com/acme/ui/ @ui\n");
        let of = |class| java.owners_of_test("acme/app", None, class);
        assert_eq!(of("com.acme.ui.ButtonTest"), ["@ui"]);
        assert_eq!(of("com.acme.MainTest"), ["@src"]);
        for python in ["tests.ops.TestAdd", "dev.tools.test_ops.TestAdd"] {
            assert!(of(python).is_empty(), "{python}: a module of Python");
        }
        let files = Codeowners::parse("* @all\n*.java @java\n/src/**/ButtonTest.java @button\n");
        let of = |class| files.owners_of_test("acme/app", None, class);
        assert_eq!(of("com.acme.ui.LinkTest"), ["@java"]);
        assert_eq!(of("com.acme.ui.ButtonTest$Click"), ["@button"]);
        assert_eq!(of("tests.ops.TestAdd"), ["@all"]);
    }

    #[test]
    fn hostile_pattern_is_compared_quickly() {
        let line = format!("{}b @a", "**/*a*".repeat(200));
        let started = std::time::Instant::now();
        let owners = Codeowners::parse(&line);
        assert!(owners.owners(&"a/".repeat(500)).is_empty());
        assert!(owners.owners(&"a".repeat(1000)).is_empty());
        assert!(started.elapsed().as_secs() < 20, "it isn't exponential");
    }
}
