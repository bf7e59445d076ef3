//! Finds the files of an artifact as `actions/upload-artifact` does.
//!
//! Each line is a pattern: `#` starts a comment, `!` excludes, and the last pattern that matches a
//! file decides. A pattern that matches a folder includes everything below it. Symbolic links are
//! followed. Hidden files and folders are left out by default. The artifact's root is the common
//! folder of the patterns' parts before the first wildcard,
//! <https://github.com/actions/upload-artifact/blob/main/src/shared/search.ts>.

mod pattern;

use std::collections::HashSet;
use std::fs::{self, FileType, Metadata};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Component, Path, PathBuf};

use pattern::PathPattern;
pub use pattern::PathPatternError;

use crate::paths;

const MAX_DEPTH: usize = 256;
/// Files and folders that are found by links to folders. A dozen folders with links to each other have 12! paths.
const MAX_BEHIND_LINKS: u32 = 2_000_000;
/// Links that are named; more are only left out.
const MAX_NAMED_LINKS: usize = 20;
/// Why a file can't be in an artifact. Zip, S3 and GitHub have no names of other bytes.
const NOT_UTF8: &str = "its name isn't UTF-8";

#[derive(Debug, Clone)]
pub struct FileQuery<'a> {
    /// Each has one or several lines.
    pub patterns: &'a [String],
    /// Absolute; relative patterns start here.
    pub cwd: &'a Path,
    /// What `~` in a pattern means.
    pub home: Option<&'a Path>,
    /// Whether to include hidden files and folders.
    pub hidden: bool,
    pub links: LinkRule,
}

/// What becomes of symbolic links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkRule {
    /// What they lead to is taken in their place.
    Follow,
    /// Those that stay within the artifact are stored as links, the others followed.
    Keep,
    /// Those to folders aren't entered, unless a pattern begins with one. For files of strangers.
    SkipFolders,
}

#[derive(Debug, Default)]
pub struct CollectedFiles {
    pub root: PathBuf,
    pub entries: Vec<FileEntry>,
    /// The first hidden file or folder that was left out.
    pub left_out: Option<PathBuf>,
    /// Broken links, sockets and the like, which can't be stored.
    pub skipped: Vec<PathBuf>,
    /// The first links to one of their own parent folders.
    pub loops: Vec<PathBuf>,
    /// The first links to folders that weren't entered, which [`LinkRule::SkipFolders`] asks for.
    pub not_entered: Vec<PathBuf>,
    /// Links that lead out of the working folder, with their targets. They are followed.
    pub outside: Vec<(PathBuf, PathBuf)>,
    /// What can't be stored, and why: this user may not read it, or no store takes its name.
    pub unreadable: Vec<(PathBuf, String)>,
    /// Lines of the patterns that match none of the files.
    pub unmatched: Vec<String>,
}

impl CollectedFiles {
    /// At most `limit` paths that differ from an earlier one only in case, which macOS and Windows
    /// can't unpack.
    pub fn case_collisions(&self, limit: usize) -> Vec<&str> {
        // There may be millions of files, so compare hashes of 8 bytes first.
        let hash = |entry: &FileEntry| {
            let mut hasher = DefaultHasher::new();
            entry.path.to_lowercase().hash(&mut hasher);
            hasher.finish()
        };
        let mut hashes: Vec<u64> = self.entries.iter().map(hash).collect();
        hashes.sort_unstable();
        let repeated: HashSet<u64> =
            hashes.windows(2).filter(|two| two[0] == two[1]).map(|two| two[0]).collect();
        let mut seen = HashSet::new();
        let candidates = self.entries.iter().filter(|entry| repeated.contains(&hash(entry)));
        let again = candidates.filter(|entry| !seen.insert(entry.path.to_lowercase()));
        again.map(|entry| entry.path.as_str()).take(limit).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Relative to the root, with `/` between its parts.
    pub path: String,
    /// In bytes, when it was found.
    pub size: u64,
    /// Unix permission bits; `None` on Windows.
    pub mode: Option<u32>,
    /// The target of a symbolic link that is stored as one.
    pub link: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    #[error(transparent)]
    Pattern(#[from] PathPatternError),
    #[error("`{}` is more than {MAX_DEPTH} folders deep", .0.display())]
    TooDeep(PathBuf),
    #[error("links to folders, such as `{}`, lead to more than {MAX_BEHIND_LINKS} files", .0.display())]
    TooMany(PathBuf),
}

/// A search path that doesn't exist matches nothing. What is excluded isn't looked at, so it needn't be
/// readable.
pub fn collect(query: &FileQuery<'_>) -> Result<CollectedFiles, CollectError> {
    collect_within(query, MAX_BEHIND_LINKS)
}

fn collect_within(
    query: &FileQuery<'_>,
    max_behind_links: u32,
) -> Result<CollectedFiles, CollectError> {
    let mut patterns = Vec::new();
    for line in query.patterns.iter().flat_map(|text| text.lines()) {
        patterns.extend(PathPattern::parse(line, query.cwd, query.home)?);
    }
    let starts = search_paths(&patterns);
    let mut walk = FolderWalk {
        matched: patterns.iter().map(|pattern| pattern.excludes).collect(),
        patterns: &patterns,
        hidden: query.hidden,
        link_root: (query.links == LinkRule::Keep).then(|| common_folder(&starts)),
        skips_folders: query.links == LinkRule::SkipFolders,
        entered_links: vec![],
        left_behind_links: max_behind_links,
        cwd: query.cwd,
        real_cwd: fs::canonicalize(query.cwd).unwrap_or_else(|_| query.cwd.to_path_buf()),
        found: Vec::new(),
        out: CollectedFiles::default(),
    };
    for start in &starts {
        walk.search(start)?;
    }
    let FolderWalk { found, mut out, matched, .. } = walk;
    let unmatched = patterns.iter().zip(matched).filter(|(_, matched)| !matched);
    out.unmatched = unmatched.map(|(pattern, _)| pattern.line.clone()).collect();
    out.root = root(&starts, &found);
    for file in found {
        match file.relative_to(&out.root) {
            Ok(entry) => out.entries.push(entry),
            Err(path) => out.unreadable.push((path, NOT_UTF8.to_owned())),
        }
    }
    out.entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(out)
}

/// The folders to search: the patterns' parts before the first wildcard, without folders that are
/// below another one.
fn search_paths(patterns: &[PathPattern]) -> Vec<PathBuf> {
    let starts: Vec<_> = patterns.iter().filter(|p| !p.excludes).map(PathPattern::start).collect();
    let mut kept: Vec<PathBuf> = Vec::new();
    for start in &starts {
        let below = starts.iter().any(|other| other != start && start.starts_with(other));
        if !below && !kept.contains(start) {
            kept.push(start.clone());
        }
    }
    kept
}

fn root(starts: &[PathBuf], found: &[FoundFile]) -> PathBuf {
    match starts {
        [only] if matches!(found, [file] if file.path == *only) => {
            only.parent().map(Path::to_path_buf).unwrap_or_default()
        }
        starts => common_folder(starts),
    }
}

fn common_folder(starts: &[PathBuf]) -> PathBuf {
    let Some((first, rest)) = starts.split_first() else { return PathBuf::new() };
    let mut common: Vec<Component<'_>> = first.components().collect();
    for path in rest {
        let same = common.iter().zip(path.components()).take_while(|(a, b)| *a == b);
        common.truncate(same.count());
    }
    common.iter().collect()
}

/// A file with its absolute path. There may be millions, so it holds nothing else.
struct FoundFile {
    path: PathBuf,
    size: u64,
    mode: Option<u32>,
    link: Option<String>,
}

impl FoundFile {
    /// Fails with the path if it isn't UTF-8.
    fn relative_to(self, root: &Path) -> Result<FileEntry, PathBuf> {
        let mut relative = String::new();
        for part in self.path.strip_prefix(root).unwrap_or(&self.path).components() {
            let Component::Normal(part) = part else { continue };
            let Some(part) = part.to_str() else { return Err(self.path) };
            if !relative.is_empty() {
                relative.push('/');
            }
            relative.push_str(part);
        }
        Ok(FileEntry { path: relative, size: self.size, mode: self.mode, link: self.link })
    }
}

#[cfg(unix)]
fn mode(metadata: &Metadata) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    Some(metadata.permissions().mode() & 0o777)
}

#[cfg(not(unix))]
fn mode(_: &Metadata) -> Option<u32> {
    None
}

struct FolderWalk<'a> {
    patterns: &'a [PathPattern],
    /// For each pattern, whether it excludes or has matched a file.
    matched: Vec<bool>,
    hidden: bool,
    /// Set if links are kept: the folder that they may not lead out of.
    link_root: Option<PathBuf>,
    /// Whether links to folders aren't entered.
    skips_folders: bool,
    /// The links to folders that led here.
    entered_links: Vec<PathBuf>,
    /// How many more files and folders may be found by links to folders.
    left_behind_links: u32,
    cwd: &'a Path,
    /// `cwd` with links resolved.
    real_cwd: PathBuf,
    found: Vec<FoundFile>,
    out: CollectedFiles,
}

impl FolderWalk<'_> {
    fn search(&mut self, path: &Path) -> Result<(), CollectError> {
        match fs::symlink_metadata(path) {
            Err(e)
                if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                Ok(())
            }
            Err(error) => {
                self.note_unreadable(path.to_path_buf(), &error);
                Ok(())
            }
            Ok(metadata) => {
                self.visit(path.to_path_buf(), Some(metadata.file_type()), &mut Vec::new())
            }
        }
    }

    /// Visits one file or folder. `kind` is its own kind, not that of a link's target. `above` holds
    /// its parents with links resolved, so that a link to one of them is recognized as a loop.
    fn visit(
        &mut self,
        path: PathBuf,
        kind: Option<FileType>,
        above: &mut Vec<PathBuf>,
    ) -> Result<(), CollectError> {
        let is_file = kind.is_some_and(|kind| kind.is_file());
        let is_link = kind.is_some_and(|kind| kind.is_symlink());
        // What is excluded is neither entered nor looked at.
        if !(self.matches(&path) || (!is_file && self.may_hold(&path))) {
            return Ok(());
        }
        self.count_behind_links()?;
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        // The working folder itself may have a hidden name.
        if hidden && !self.hidden && path != self.cwd {
            if self.out.left_out.is_none() {
                self.out.left_out = Some(path);
            }
            return Ok(());
        }
        if is_link && let Some(target) = self.kept_target(&path) {
            let size = target.len() as u64;
            self.add(FoundFile { path, size, mode: Some(0o777), link: Some(target) });
            return Ok(());
        }
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            // A link that leads nowhere, or to itself.
            Err(error) if is_link || error.kind() == io::ErrorKind::NotFound => {
                if error.kind() == io::ErrorKind::PermissionDenied {
                    self.note_unreadable(path, &error);
                } else {
                    self.out.skipped.push(path);
                }
                return Ok(());
            }
            Err(error) => {
                self.note_unreadable(path, &error);
                return Ok(());
            }
        };
        if metadata.is_dir() {
            return self.enter(path, is_link, above);
        }
        if !self.matches(&path) {
            return Ok(());
        }
        if !metadata.is_file() {
            self.out.skipped.push(path);
            return Ok(());
        }
        if let Err(error) = check_readable(&path) {
            self.note_unreadable(path, &error);
            return Ok(());
        }
        if is_link {
            self.note_outside(&path, fs::canonicalize(&path).ok());
        }
        self.add(FoundFile { path, size: metadata.len(), mode: mode(&metadata), link: None });
        Ok(())
    }

    /// A link to one of its own parents is a loop; others can still multiply the paths without end.
    fn count_behind_links(&mut self) -> Result<(), CollectError> {
        let Some(link) = self.entered_links.first() else { return Ok(()) };
        match self.left_behind_links.checked_sub(1) {
            Some(left) => self.left_behind_links = left,
            None => return Err(CollectError::TooMany(link.clone())),
        }
        Ok(())
    }

    fn add(&mut self, file: FoundFile) {
        if self.matched.iter().any(|matched| !matched) {
            for (pattern, matched) in self.patterns.iter().zip(&mut self.matched) {
                *matched |= pattern.matches(&file.path, false);
            }
        }
        self.found.push(file);
    }

    fn note_unreadable(&mut self, path: PathBuf, error: &io::Error) {
        self.out.unreadable.push((path, format!("it can't be read: {error}")));
    }

    /// The target of a link that is stored as a link: it stays within the artifact wherever that is
    /// unpacked.
    fn kept_target(&self, link: &Path) -> Option<String> {
        let inner = link.strip_prefix(self.link_root.as_ref()?).ok()?.to_str()?;
        // A link that is all of the artifact would lead nowhere in it.
        if inner.is_empty() {
            return None;
        }
        let target = fs::read_link(link).ok()?.into_os_string().into_string().ok()?;
        paths::check_link_target(inner, &target).ok()?;
        Some(target)
    }

    fn note_outside(&mut self, link: &Path, target: Option<PathBuf>) {
        if let Some(target) = target.filter(|target| !target.starts_with(&self.real_cwd)) {
            self.out.outside.push((link.to_path_buf(), target));
        }
    }

    fn enter(
        &mut self,
        path: PathBuf,
        is_link: bool,
        above: &mut Vec<PathBuf>,
    ) -> Result<(), CollectError> {
        if !self.may_hold(&path) {
            return Ok(());
        }
        // Where a pattern begins, whoever wrote it means the link.
        let is_inner_link = is_link && !above.is_empty();
        if is_inner_link && self.skips_folders {
            note_first(&mut self.out.not_entered, path);
            return Ok(());
        }
        let children = fs::canonicalize(&path).and_then(|real| Ok((real, fs::read_dir(&path)?)));
        let (real, children) = match children {
            Ok(children) => children,
            Err(error) => {
                self.note_unreadable(path, &error);
                return Ok(());
            }
        };
        if above.contains(&real) {
            note_first(&mut self.out.loops, path);
            return Ok(());
        }
        if is_link {
            self.note_outside(&path, Some(real.clone()));
        }
        if above.len() >= MAX_DEPTH {
            return Err(CollectError::TooDeep(path));
        }
        above.push(real);
        if is_inner_link {
            self.entered_links.push(path.clone());
        }
        for child in children {
            match child {
                Ok(child) => self.visit(child.path(), child.file_type().ok(), above)?,
                Err(error) => {
                    self.note_unreadable(path, &error);
                    break;
                }
            }
        }
        if is_inner_link {
            self.entered_links.pop();
        }
        above.pop();
        Ok(())
    }

    /// Whether the last pattern that matches `path`, as a file, includes it.
    fn matches(&self, path: &Path) -> bool {
        self.patterns.iter().rev().find(|p| p.matches(path, false)).is_some_and(|p| !p.excludes)
    }

    /// Whether something in the folder `path` can be included.
    fn may_hold(&self, path: &Path) -> bool {
        let last = self.patterns.iter().rposition(|p| p.matches(path, true));
        let after = match last {
            Some(n) if !self.patterns[n].excludes => return true,
            Some(n) => &self.patterns[n + 1..],
            None => self.patterns,
        };
        after.iter().any(|p| !p.excludes && p.may_match_below(path))
    }
}

fn note_first(links: &mut Vec<PathBuf>, link: PathBuf) {
    if links.len() < MAX_NAMED_LINKS {
        links.push(link);
    }
}

/// Fails if this process may not read the file, which the upload would fail on later.
#[cfg(unix)]
fn check_readable(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::access(path, rustix::fs::Access::READ_OK)?)
}

#[cfg(not(unix))]
fn check_readable(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[&str]) -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            for file in files {
                let path = tree.0.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, file).unwrap();
            }
            tree
        }

        fn find(&self, patterns: &str, hidden: bool) -> CollectedFiles {
            let patterns = [patterns.to_owned()];
            let home = self.0.path().join("home");
            let query = FileQuery {
                patterns: &patterns,
                cwd: self.0.path(),
                home: Some(&home),
                hidden,
                links: LinkRule::Follow,
            };
            collect(&query).unwrap()
        }

        fn paths(&self, patterns: &str) -> Vec<String> {
            self.find(patterns, false).entries.into_iter().map(|e| e.path).collect()
        }
    }

    #[test]
    fn files_folders_and_globs_match_as_in_upload_artifact() {
        let tree = Tree::new(&["dist/a.whl", "dist/sub/b.whl", "dist/c.txt", "other/d.txt"]);
        assert_eq!(tree.paths("dist/a.whl"), ["a.whl"], "the folder of a single file is the root");
        assert_eq!(tree.paths("dist"), ["a.whl", "c.txt", "sub/b.whl"]);
        assert_eq!(tree.paths("dist/"), tree.paths("dist/**"));
        assert_eq!(tree.paths("dist/**/*.whl"), ["a.whl", "sub/b.whl"]);
        assert_eq!(tree.paths("dist/*.whl"), ["a.whl"]);
        assert_eq!(tree.paths("dist/[ab].whl\n"), ["a.whl"]);
        assert_eq!(
            tree.paths("dist\nother"),
            ["dist/a.whl", "dist/c.txt", "dist/sub/b.whl", "other/d.txt"]
        );
        assert_eq!(tree.paths("dist/sub/../c.txt"), ["c.txt"]);
        assert!(tree.paths("nothing/here").is_empty());
        assert_eq!(tree.paths("*/s?b"), ["dist/sub/b.whl"], "all files of a matching folder");
    }

    #[test]
    fn last_matching_pattern_wins_and_comments_are_ignored() {
        let tree = Tree::new(&["d/a.txt", "d/b.txt", "d/x/c.txt"]);
        assert_eq!(tree.paths("  d/**  \n\n# d/b.txt\n!d/b.txt"), ["a.txt", "x/c.txt"]);
        assert_eq!(tree.paths("d\n!d/**\nd/x/c.txt"), ["x/c.txt"]);
        assert_eq!(tree.paths("d\n!d/x"), ["a.txt", "b.txt"], "no file of an excluded folder");
        assert!(tree.paths("!d").is_empty());
    }

    #[test]
    fn braces_and_brackets_in_existing_names_are_literal() {
        let tree = Tree::new(&["w[1]/x{a,b}.txt", "w1/xa.txt"]);
        let inner = [String::from("x{a,b}.txt")];
        let cwd = tree.0.path().join("w[1]");
        let query = FileQuery {
            patterns: &inner,
            cwd: &cwd,
            home: None,
            hidden: false,
            links: LinkRule::Follow,
        };
        assert_eq!(collect(&query).unwrap().entries.len(), 1);
    }

    #[test]
    fn hidden_files_are_left_out_by_default_and_reported() {
        let tree = Tree::new(&[".cache/x", "d/.env", "d/y", "home/z"]);
        let found = tree.find(".cache/", false);
        assert!(found.entries.is_empty());
        assert_eq!(found.left_out.unwrap(), tree.0.path().join(".cache"));
        assert_eq!(tree.find(".cache/", true).entries.len(), 1);
        assert_eq!(tree.paths("d"), ["y"]);
        assert_eq!(tree.find("d", true).entries.len(), 2);
        assert_eq!(tree.paths("~/z"), ["z"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_loops_are_reported() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let tree = Tree::new(&["real/run.sh", "d/a"]);
        let at = |path: &str| tree.0.path().join(path);
        symlink(at("real"), at("d/link")).unwrap();
        symlink(at("d"), at("d/circle")).unwrap();
        symlink(at("nowhere"), at("d/broken")).unwrap();
        fs::set_permissions(at("real/run.sh"), fs::Permissions::from_mode(0o4755)).unwrap();
        let found = tree.find("d", false);
        let paths: Vec<_> = found.entries.iter().map(|e| e.path.as_str()).collect();
        assert_eq!(paths, ["a", "link/run.sh"]);
        assert_eq!(found.entries[1].mode, Some(0o755), "the setuid bit is dropped");
        assert_eq!(found.skipped, [at("d/broken")]);
        assert_eq!(found.unreadable, []);
        assert_eq!(found.loops, [at("d/circle")]);
        assert_eq!(found.outside, []);
    }

    #[cfg(unix)]
    #[test]
    fn folders_that_link_to_each_other_end_the_search_or_are_not_entered() {
        use std::os::unix::fs::symlink;
        let names: Vec<_> = (0..12).map(|n| format!("d/d{n}")).collect();
        let tree = Tree::new(&["d/a", "elsewhere/b"]);
        let at = |path: &str| tree.0.path().join(path);
        for name in &names {
            fs::create_dir(at(name)).unwrap();
            for (n, other) in names.iter().enumerate().filter(|(_, other)| *other != name) {
                symlink(at(other), at(&format!("{name}/l{n}"))).unwrap();
            }
        }
        symlink(at("d"), at("begin")).unwrap();
        let search = |pattern: &str, links, limit| {
            let patterns = [pattern.to_owned()];
            let cwd = tree.0.path();
            let query = FileQuery { patterns: &patterns, cwd, home: None, hidden: false, links };
            collect_within(&query, limit)
        };
        let error = search("d/**/*.xml", LinkRule::Follow, 5_000).unwrap_err();
        assert!(matches!(&error, CollectError::TooMany(link) if link.starts_with(at("d"))));
        for pattern in ["d/**", "begin/**"] {
            let found = search(pattern, LinkRule::SkipFolders, 0).unwrap();
            assert_eq!(found.entries.iter().map(|e| e.path.as_str()).collect::<Vec<_>>(), ["a"]);
            assert_eq!((found.not_entered.len(), found.loops.len()), (MAX_NAMED_LINKS, 0));
        }
        for n in 0..30 {
            symlink(at("elsewhere"), at(&format!("elsewhere/l{n}"))).unwrap();
        }
        let found = search("elsewhere", LinkRule::Follow, 0).unwrap();
        assert_eq!((found.entries.len(), found.loops.len()), (1, MAX_NAMED_LINKS));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn name_that_is_not_utf8_costs_the_others_nothing() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt as _;
        let tree = Tree::new(&["d/a"]);
        let bad = |bytes: &[u8]| tree.0.path().join("d").join(OsStr::from_bytes(bytes));
        fs::write(bad(b"caf\xe9.txt"), "x").unwrap();
        fs::create_dir(bad(b"\xff")).unwrap();
        fs::write(bad(b"\xff/inner"), "x").unwrap();
        let mut found = tree.find("d", false);
        assert_eq!(found.entries.iter().map(|e| e.path.as_str()).collect::<Vec<_>>(), ["a"]);
        found.unreadable.sort();
        let why = NOT_UTF8.to_owned();
        let expected = [(bad(b"caf\xe9.txt"), why.clone()), (bad(b"\xff/inner"), why)];
        assert_eq!(found.unreadable, expected);
        assert_eq!(tree.find("d\n!d/caf?.txt\n!d/?", false).unreadable, []);
    }

    #[test]
    fn many_double_stars_in_a_pattern_take_no_longer_than_a_few() {
        let deep = "a/".repeat(60);
        let tree = Tree::new(&[&format!("d/{deep}f.txt"), "d/x/a/b/y/a/c/f.txt"]);
        let many = "**/a/".repeat(60);
        assert_eq!(tree.paths(&format!("d/{many}**/f.txt")), [format!("{deep}f.txt")]);
        assert_eq!(tree.paths(&format!("d/{many}**/g.txt")), [""; 0]);
        assert_eq!(tree.paths("d/**/a/c/**/f.txt"), ["x/a/b/y/a/c/f.txt"], "not the first `a`");
        assert_eq!(tree.paths("d/**/a/b/**/b/**/f.txt"), [""; 0], "a folder stands for one name");
    }

    #[test]
    fn pattern_with_a_final_slash_matches_folders_only() {
        let tree = Tree::new(&["dist/a.txt", "dist/sub/b.txt", "dist/sub/c/d.txt"]);
        assert_eq!(tree.paths("dist\n!dist/*/"), ["a.txt"], "files beside the folders stay");
        assert_eq!(tree.paths("dist\n!dist/*"), [""; 0]);
        assert_eq!(tree.paths("dist/*/"), ["sub/b.txt", "sub/c/d.txt"]);
        assert_eq!(tree.paths("dist/**/"), ["a.txt", "sub/b.txt", "sub/c/d.txt"]);
        assert_eq!(tree.paths("dist/a.txt/"), [""; 0]);
        assert_eq!(tree.paths("dist\n!dist/a.txt/"), tree.paths("dist"));
        assert_eq!(tree.paths("dist\n!dist/sub/"), ["a.txt"]);
    }

    #[cfg(unix)]
    #[test]
    fn backslash_makes_a_wildcard_literal() {
        let tree = Tree::new(&["d/a*b", "d/axb", "d/[x]", "d/x", "d/q?", "d/qq", "d/[", "d/a\\b"]);
        assert_eq!(tree.paths("d/a\\*b"), ["a*b"]);
        assert_eq!(tree.paths("d/*\n!d/\\[x\\]\n!d/q\\?\n!d/a*"), ["[", "qq", "x"]);
        assert_eq!(tree.paths("d/[x]"), ["x"], "a class of one character is that character");
        assert_eq!(tree.paths("d/["), ["["], "a bracket without an end is a bracket");
        assert_eq!(tree.paths("d/[z-a]"), [""; 0]);
        assert_eq!(tree.paths("d/a[\\*]b"), ["a*b"]);
        assert_eq!(tree.paths("d/a\\\\b"), ["a\\b"]);
    }

    #[test]
    fn lines_that_match_no_file_are_named() {
        let tree = Tree::new(&["dist/a.whl", "logs/b.log"]);
        let found = tree.find("dist/*.whl\n dist/*.exe\n!dist/x\nlogs\nlog\n# dist/*.rpm", false);
        assert_eq!(found.unmatched, ["dist/*.exe", "log"]);
        let found = tree.find("dist/*.whl\n!dist/a.whl", false);
        assert_eq!(found.unmatched, ["dist/*.whl"]);
    }

    #[cfg(unix)]
    #[test]
    fn excluded_folder_is_not_looked_at_and_a_link_to_itself_is_left_out() {
        use std::os::unix::fs::symlink;
        let tree = Tree::new(&["d/a", "d/data/x/secret", "d/data/keep/y"]);
        let at = |path: &str| tree.0.path().join(path);
        symlink("self", at("d/self")).unwrap();
        symlink("../self2", at("d/data/self2")).unwrap();
        for (patterns, files, skipped) in [
            ("d\n!d/data", &["a"][..], &["d/self"][..]),
            ("d\n!d/data/**\n!**/self", &["a"], &[]),
            ("d\n!d/self\n!d/data\nd/data/keep", &["a", "data/keep/y"], &[]),
        ] {
            let found = tree.find(patterns, false);
            let paths: Vec<_> = found.entries.iter().map(|e| e.path.as_str()).collect();
            assert_eq!(paths, files, "{patterns}");
            let expected: Vec<_> = skipped.iter().map(|path| at(path)).collect();
            assert_eq!((found.skipped, found.loops, found.unreadable), (expected, vec![], vec![]));
        }
    }

    #[cfg(unix)]
    #[test]
    fn kept_links_stay_within_the_artifact_and_others_are_followed() {
        use std::os::unix::fs::symlink;
        let tree = Tree::new(&["d/lib/libx.so.1.2", "d/tool", "elsewhere/e"]);
        let at = |path: &str| tree.0.path().join(path);
        for (link, target) in [
            ("d/lib/libx.so", "libx.so.1.2"),
            ("d/lib/tool", "../tool"),
            ("d/libs", "lib"),
            ("d/gone", "nothing"),
            ("d/out", "../elsewhere/e"),
        ] {
            symlink(target, at(link)).unwrap();
        }
        symlink(at("d/tool"), at("d/absolute")).unwrap();
        let query = |links| {
            let patterns = ["d".to_owned()];
            let query = FileQuery {
                patterns: &patterns,
                cwd: tree.0.path(),
                home: None,
                hidden: false,
                links,
            };
            collect(&query).unwrap()
        };
        let found = query(LinkRule::Keep);
        let links: Vec<_> =
            found.entries.iter().map(|e| (e.path.as_str(), e.link.as_deref())).collect();
        assert_eq!(
            links,
            [
                ("absolute", None),
                ("gone", Some("nothing")),
                ("lib/libx.so", Some("libx.so.1.2")),
                ("lib/libx.so.1.2", None),
                ("lib/tool", Some("../tool")),
                ("libs", Some("lib")),
                ("out", None),
                ("tool", None),
            ]
        );
        assert!(query(LinkRule::Follow).entries.iter().all(|entry| entry.link.is_none()));
        assert_eq!(query(LinkRule::Follow).skipped, [at("d/gone")]);
    }

    #[cfg(unix)]
    #[test]
    fn links_out_of_the_working_folder_are_followed_and_reported() {
        use std::os::unix::fs::symlink;
        let elsewhere = Tree::new(&["etc/passwd", "lib/x"]);
        let tree = Tree::new(&["d/a"]);
        let at = |path: &str| tree.0.path().join(path);
        let real = |path: &str| fs::canonicalize(elsewhere.0.path().join(path)).unwrap();
        symlink(elsewhere.0.path().join("etc/passwd"), at("d/file")).unwrap();
        symlink(elsewhere.0.path().join("lib"), at("d/lib")).unwrap();
        let mut found = tree.find("d", false);
        assert_eq!(found.entries.len(), 3);
        found.outside.sort();
        let links = [(at("d/file"), real("etc/passwd")), (at("d/lib"), real("lib"))];
        assert_eq!(found.outside, links, "a link is named once, not each file behind it");
    }

    #[test]
    fn paths_that_differ_only_in_case_are_reported() {
        let tree = Tree::new(&["d/Read.me", "d/read.me", "d/x/A", "d/x/b", "d/É", "d/é"]);
        assert_eq!(tree.find("d", false).case_collisions(20), ["read.me", "é"]);
        assert_eq!(tree.find("d", false).case_collisions(1).len(), 1);
        assert!(tree.find("d/x", false).case_collisions(20).is_empty());
    }

    #[test]
    fn error_for_a_malformed_pattern_names_it() {
        let tree = Tree::new(&[]);
        for bad in ["a/*/../b", "!"] {
            let patterns = [bad.to_owned()];
            let query = FileQuery {
                patterns: &patterns,
                cwd: tree.0.path(),
                home: None,
                hidden: false,
                links: LinkRule::Follow,
            };
            let error = collect(&query).unwrap_err().to_string();
            assert!(error.contains(bad), "{error}");
        }
    }
}
