//! Random patterns of the input `path` beside GitHub's own globber.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crcr_artifacts::collect::{FileQuery, LinkRule, collect};
use serde_json::Value;

const INPUTS: usize = 600;
/// Of a tree with names that are patterns themselves.
const FILES: [&str; 14] = [
    "dist/a.txt",
    "dist/b.whl",
    "dist/sub/a.txt",
    "dist/sub/deep/c.log",
    "dist/[x]",
    "dist/x",
    "dist/a*b",
    "dist/axb",
    "dist/q?",
    "dist/{a,b}",
    "dist/.hidden/z",
    "logs/one.log",
    "logs/sub/two.log",
    "top.txt",
];
const PARTS: [&str; 25] = [
    "dist", "logs", "sub", "deep", "*", "**", "*.txt", "?.txt", "a*", "[ab].txt", "[!a]*", "[x]",
    "\\[x\\]", "a\\*b", "q\\?", "{a,b}", "[", "x]", "[a-c]*", "*.log", "**", "top.txt", "[\\]x]*",
    "su[b]", "t?p.*",
];

/// Always the same numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }

    fn line(&mut self) -> String {
        let bang = if self.below(3) == 0 { "!" } else { "" };
        let start = ["", "dist/", "dist/", "logs/"][self.below(4)];
        let parts: Vec<_> = (0..=self.below(3)).map(|_| PARTS[self.below(PARTS.len())]).collect();
        let end = if self.below(4) == 0 { "/" } else { "" };
        format!("{bang}{start}{}{end}", parts.join("/"))
    }
}

fn theirs(folder: &Path, inputs: &[String]) -> Vec<Value> {
    let mut peers = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let peers = peers.find_map(|up| Some(up.join("tests/peers")).filter(|it| it.is_dir())).unwrap();
    let mut child = Command::new(peers.join("node_modules/.bin/node"))
        .arg(peers.join("glob.mjs"))
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("tests/peers is installed");
    let sent = serde_json::to_vec(inputs).unwrap();
    child.stdin.take().unwrap().write_all(&sent).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    // The globber logs to stdout, too.
    let said = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

#[test]
#[ignore = "needs @actions/glob"]
fn random_patterns_select_the_files_that_githubs_globber_selects() {
    // Their globber leaves out what is in a hidden folder, as this one would be by default.
    let folder = tempfile::Builder::new().prefix("glob-").tempdir().unwrap();
    let root = fs::canonicalize(folder.path()).unwrap();
    for file in FILES {
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::write(root.join(file), file).unwrap();
    }
    let mut random = Random(7);
    let inputs: Vec<String> = (0..INPUTS)
        .map(|_| (0..=random.below(3)).map(|_| random.line()).collect::<Vec<_>>().join("\n"))
        .collect();
    let mut compared = 0;
    for (input, theirs) in inputs.iter().zip(theirs(&root, &inputs)) {
        let Some(theirs) = theirs.as_array() else { continue };
        let patterns = [input.clone()];
        let query = FileQuery {
            patterns: &patterns,
            cwd: &root,
            home: None,
            hidden: false,
            links: LinkRule::Follow,
        };
        let found = collect(&query).unwrap();
        let below = found.root.strip_prefix(&root).map(Path::to_path_buf);
        let below = below.unwrap_or_default();
        let mut ours: Vec<String> = found
            .entries
            .iter()
            .map(|entry| below.join(&entry.path).to_string_lossy().into_owned())
            .collect();
        ours.sort();
        let theirs: Vec<&str> = theirs.iter().filter_map(Value::as_str).collect();
        assert_eq!(ours, theirs, "{input:?}");
        compared += usize::from(!theirs.is_empty());
    }
    assert!(compared > INPUTS / 5, "only {compared} inputs select a file");
}
