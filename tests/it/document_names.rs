//! What a page names exists, and is where the page says: files, paths of Rust, identifiers.

use std::collections::BTreeSet;
use std::path::Path;

use regex::Regex;

use crate::contracts::{files, root, text};
use crate::documents::{pages, without_blocks};

/// The files that a page can name, or a word of.
fn sources() -> Vec<String> {
    let is_source = |name: &str| {
        let kinds =
            [".rs", ".toml", ".yml", ".yaml", ".sh", ".json", ".tf", ".sql", ".py", ".mjs", ".lua"];
        kinds.iter().any(|kind| name.ends_with(kind))
            && !["node_modules", "/fixtures/"].iter().any(|part| name.contains(part))
    };
    let folders = ["crates", "cli", "actions", "deploy", "tests", "fuzz", "workflows-templates"];
    let sources = folders.iter().flat_map(|folder| files(folder, is_source));
    sources.chain(["Cargo.toml".to_owned(), "deny.toml".to_owned()]).collect()
}

/// All words of the sources, which a page can name.
fn words_of_the_sources() -> BTreeSet<String> {
    let word = Regex::new("[A-Za-z_][A-Za-z0-9_]*").unwrap();
    let mut words = BTreeSet::new();
    for path in sources() {
        words.extend(word.find_iter(&text(&path)).map(|found| found.as_str().to_owned()));
    }
    words
}

/// The spans of code in a page's prose that `pattern` matches, each with its page.
fn spans(pattern: &str) -> Vec<(String, String)> {
    let pattern = Regex::new(pattern).unwrap();
    let of_page = |page: String| {
        let prose = without_blocks(&text(&page));
        let spans = prose.split('`').skip(1).step_by(2).filter(|span| pattern.is_match(span));
        spans.map(|span| (page.clone(), span.to_owned())).collect::<Vec<_>>()
    };
    pages().into_iter().flat_map(of_page).collect()
}

/// A page may leave out the first folders of a file.
#[test]
fn every_source_file_on_a_page_exists() {
    let sources = sources();
    let named = spans(r"^[\w./-]+\.(?:rs|sql|py|mjs|lua|sh)$");
    let exists = |name: &str| {
        sources.iter().any(|path| Path::new(path).ends_with(name))
            || root().join("tests/fixtures").join(name).exists()
    };
    // The example of a user's own tests.
    let is_missing = |name: &str| !exists(name) && name != "tests/test_ops.py";
    let missing: Vec<_> = named.iter().filter(|(_, name)| is_missing(name)).collect();
    assert!(missing.is_empty(), "there are no such files: {missing:#?}");
    assert!(named.len() > 100, "{}", named.len());
}

/// `Type::function`, `module::function` or `Enum::Variant`: both words exist somewhere, but do they belong together?
#[test]
fn every_path_of_rust_on_a_page_is_defined_there() {
    let rust: Vec<_> = sources().into_iter().filter(|path| path.ends_with(".rs")).collect();
    let rust: Vec<_> = rust.iter().map(|path| (path, text(path))).collect();
    let is_defined = |owner: &str, name: &str| {
        let holds = format!(
            r"\b(?:struct|enum|trait|mod) {owner}\b|\bimpl(?:<[^>]*>)? (?:\w+ for )?{owner}\b"
        );
        let defines = format!(r"\b(?:fn|const|struct|enum) {name}\b|(?m)^ +{name}\b[,({{ ]");
        let (holds, defines) = (Regex::new(&holds).unwrap(), Regex::new(&defines).unwrap());
        let is_owner = |path: &str| {
            path.ends_with(&format!("/{owner}.rs")) || path.contains(&format!("/{owner}/"))
        };
        rust.iter()
            .any(|(path, text)| (is_owner(path) || holds.is_match(text)) && defines.is_match(text))
    };
    let paths = spans(r"^\w+(?:::\w+)+$");
    let is_ours = |path: &str| {
        !["std::", "reqwest::", "axum::", "schemars::"].iter().any(|of| path.starts_with(of))
    };
    let missing: Vec<_> = paths
        .iter()
        .filter(|(_, path)| is_ours(path))
        .filter(|(_, path)| {
            let mut parts = path.rsplit("::");
            let (Some(name), Some(owner)) = (parts.next(), parts.next()) else { return true };
            !is_defined(owner, name)
        })
        .collect();
    assert!(missing.is_empty(), "nothing defines these: {missing:#?}");
    assert!(paths.len() > 10, "{}", paths.len());
}

/// `name` in `file`, `name` of `file` and `name` (`file`): a name that exists elsewhere sends the reader to the wrong file.
#[test]
fn every_name_that_a_page_puts_into_a_file_is_in_that_file() {
    let pair = r"`([\w:]+)`(?:\s+(?:in|of)\s+|\s+\()`([\w./-]+\.(?:rs|sql|py|mjs|lua|sh))`";
    let pair = Regex::new(pair).unwrap();
    let sources = sources();
    let has = |file: &str, name: &str| {
        let word = Regex::new(&format!(r"\b{}\b", name.rsplit("::").next().unwrap())).unwrap();
        let mut named = sources.iter().filter(|path| Path::new(path).ends_with(file));
        named.any(|path| word.is_match(&text(path)))
    };
    let (mut seen, mut missing) = (0, Vec::new());
    for page in pages() {
        for found in pair.captures_iter(&without_blocks(&text(&page))) {
            let (name, file) = (&found[1], &found[2]);
            if !has(file, name) {
                missing.push(format!("{page}: `{name}` isn't in `{file}`"));
            }
            seen += 1;
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(seen > 20, "{seen}");
}

/// A page that names a function, a type, a test, a table or a setting which is gone misleads its reader.
#[test]
fn every_identifier_on_a_page_exists() {
    let identifiers = spans(
        "^(?:[A-Za-z0-9_]+(?:::[A-Za-z0-9_]+)+|[a-z0-9]+(?:_[a-z0-9]+)+|[A-Z]+(?:_[A-Z0-9]+)+|(?:[A-Z][a-z0-9]+){2,})$",
    );
    let words = words_of_the_sources();
    // The registry of metrics adds the prefix, and each setting also has a form with `_FILE`.
    let exists = |name: &str| {
        let whole = name.strip_suffix("_FILE").or_else(|| name.strip_prefix("crcr_"));
        words.contains(name) || whole.is_some_and(|whole| words.contains(whole))
    };
    // Variables of OpenTelemetry's own crates.
    let is_missing = |span: &str| !span.starts_with("OTEL_") && !span.split("::").all(exists);
    let missing: Vec<_> = identifiers.iter().filter(|(_, span)| is_missing(span)).collect();
    assert!(missing.is_empty(), "nothing has these names: {missing:#?}");
    assert!(identifiers.len() > 300, "{}", identifiers.len());
}
