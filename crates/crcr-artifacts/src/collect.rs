//! Finds the files of an artifact as `actions/upload-artifact` does.
//!
//! Each line is a pattern: `#` starts a comment, `!` excludes, and the last pattern that matches a
//! file decides. A pattern that matches a folder includes everything below it. Symbolic links are
//! followed. Hidden files and folders are left out by default. The artifact's root is the common
//! folder of the patterns' parts before the first wildcard,
//! <https://github.com/actions/upload-artifact/blob/main/src/shared/search.ts>.

mod pattern;

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Component, Path, PathBuf};

use pattern::PathPattern;
pub use pattern::PathPatternError;

const MAX_DEPTH: usize = 256;

#[derive(Debug, Clone)]
pub struct FileQuery<'a> {
    /// Each has one or several lines.
    pub patterns: &'a [String],
    /// Absolute; relative patterns start here.
    pub cwd: &'a Path,
    /// Replaces `~`.
    pub home: Option<&'a Path>,
    /// Whether to include hidden files and folders.
    pub hidden: bool,
}

#[derive(Debug, Default)]
pub struct CollectedFiles {
    pub root: PathBuf,
    /// Sorted by path.
    pub entries: Vec<FileEntry>,
    /// The first hidden file or folder that was left out.
    pub left_out: Option<PathBuf>,
    /// Broken links, sockets and the like, which can't be stored.
    pub skipped: Vec<PathBuf>,
    /// Links to one of their own parent folders.
    pub loops: Vec<PathBuf>,
    /// Links that lead out of the working folder, with their targets. They are followed.
    pub outside: Vec<(PathBuf, PathBuf)>,
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
}

#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    #[error(transparent)]
    Pattern(#[from] PathPatternError),
    #[error("`{}` can't be read", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the name of `{}` isn't UTF-8", .0.display())]
    NotUtf8(PathBuf),
    #[error("`{}` is more than {MAX_DEPTH} folders deep", .0.display())]
    TooDeep(PathBuf),
}

/// A search path that doesn't exist matches nothing; a folder that can't be read is an error.
pub fn collect(query: &FileQuery<'_>) -> Result<CollectedFiles, CollectError> {
    let mut patterns = Vec::new();
    for line in query.patterns.iter().flat_map(|text| text.lines()) {
        patterns.extend(PathPattern::parse(line, query.cwd, query.home)?);
    }
    let starts = search_paths(&patterns);
    let mut walk = FolderWalk {
        patterns: &patterns,
        hidden: query.hidden,
        cwd: query.cwd,
        real_cwd: fs::canonicalize(query.cwd).unwrap_or_else(|_| query.cwd.to_path_buf()),
        found: Vec::new(),
        out: CollectedFiles::default(),
    };
    for start in &starts {
        walk.search(start)?;
    }
    let FolderWalk { found, mut out, .. } = walk;
    out.root = root(&starts, &found);
    for file in found {
        out.entries.push(file.relative_to(&out.root)?);
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
        [] => PathBuf::new(),
        [only] if matches!(found, [file] if file.path == *only) => {
            only.parent().map(Path::to_path_buf).unwrap_or_default()
        }
        [first, rest @ ..] => {
            let mut common: Vec<Component<'_>> = first.components().collect();
            for path in rest {
                let same = common.iter().zip(path.components()).take_while(|(a, b)| *a == b);
                common.truncate(same.count());
            }
            common.iter().collect()
        }
    }
}

/// A file with its absolute path. There may be millions, so it holds nothing else.
struct FoundFile {
    path: PathBuf,
    size: u64,
    mode: Option<u32>,
}

impl FoundFile {
    fn relative_to(self, root: &Path) -> Result<FileEntry, CollectError> {
        let mut relative = String::new();
        for part in self.path.strip_prefix(root).unwrap_or(&self.path).components() {
            let Component::Normal(part) = part else { continue };
            let Some(part) = part.to_str() else { return Err(CollectError::NotUtf8(self.path)) };
            if !relative.is_empty() {
                relative.push('/');
            }
            relative.push_str(part);
        }
        Ok(FileEntry { path: relative, size: self.size, mode: self.mode })
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
    hidden: bool,
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
            Err(source) => Err(CollectError::Unreadable { path: path.to_path_buf(), source }),
            Ok(metadata) => self.visit(path.to_path_buf(), metadata.is_symlink(), &mut Vec::new()),
        }
    }

    /// Visits one file or folder. `above` holds its parents with links resolved, so that a link to
    /// one of them is recognized as a loop.
    fn visit(
        &mut self,
        path: PathBuf,
        is_link: bool,
        above: &mut Vec<PathBuf>,
    ) -> Result<(), CollectError> {
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        // The working folder itself may have a hidden name.
        if hidden && !self.hidden && path != self.cwd {
            if self.out.left_out.is_none() && self.wanted(&path) {
                self.out.left_out = Some(path);
            }
            return Ok(());
        }
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.out.skipped.push(path);
                return Ok(());
            }
            Err(source) => return Err(CollectError::Unreadable { path, source }),
        };
        if metadata.is_dir() {
            return self.enter(path, is_link, above);
        }
        if !self.matches(&path) {
            return Ok(());
        }
        if is_link && metadata.is_file() {
            self.note_outside(&path, fs::canonicalize(&path).ok());
        }
        if metadata.is_file() {
            self.found.push(FoundFile { path, size: metadata.len(), mode: mode(&metadata) });
        } else {
            self.out.skipped.push(path);
        }
        Ok(())
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
        if !self.patterns.iter().any(|p| !p.excludes && p.may_match_below(&path)) {
            return Ok(());
        }
        let unreadable = |source| CollectError::Unreadable { path: path.clone(), source };
        let real = fs::canonicalize(&path).map_err(unreadable)?;
        if above.contains(&real) {
            self.out.loops.push(path);
            return Ok(());
        }
        if is_link {
            self.note_outside(&path, Some(real.clone()));
        }
        if above.len() >= MAX_DEPTH {
            return Err(CollectError::TooDeep(path));
        }
        above.push(real);
        for child in fs::read_dir(&path).map_err(unreadable)? {
            let child = child.map_err(unreadable)?;
            let is_link = child.file_type().is_ok_and(|kind| kind.is_symlink());
            self.visit(child.path(), is_link, above)?;
        }
        above.pop();
        Ok(())
    }

    fn matches(&self, path: &Path) -> bool {
        self.patterns.iter().rev().find(|p| p.matches(path)).is_some_and(|p| !p.excludes)
    }

    fn wanted(&self, path: &Path) -> bool {
        self.matches(path)
            || (path.is_dir()
                && self.patterns.iter().any(|p| !p.excludes && p.may_match_below(path)))
    }
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
            let query =
                FileQuery { patterns: &patterns, cwd: self.0.path(), home: Some(&home), hidden };
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
        let query = FileQuery { patterns: &inner, cwd: &cwd, home: None, hidden: false };
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
        assert_eq!(found.loops, [at("d/circle")]);
        assert_eq!(found.outside, []);
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
        for bad in ["a/[x", "a/*/../b"] {
            let patterns = [bad.to_owned()];
            let query =
                FileQuery { patterns: &patterns, cwd: tree.0.path(), home: None, hidden: false };
            let error = collect(&query).unwrap_err().to_string();
            assert!(error.contains(bad), "{error}");
        }
    }
}
