//! The fork-build template with the real sccache: what a second build finds, and who reads whose cache.

use std::fs;

use crcr_standin::runs::Run;

use crate::act::{Outside, Ran};

const FILES: u64 = 20;

/// Compiles with a server of its own, whose counts it prints. A change of `CHANGED` is a pull request's.
const COMPILE: &str = r#"
mkdir -p build
folder=$(mktemp -d /tmp/crcr-sccache.XXXXXX)
export SCCACHE_SERVER_UDS="$folder/socket"
for n in $(seq 20); do
  echo "int answer$n(void) { return $n; }" > "$n.c"
  sccache cc -c "$n.c" -o "build/$n.o"
done
sccache --show-stats | awk '/^Cache hits  / { print "build: hits=" $3 "." }'
sccache --stop-server > "$folder/stopped"
rm -rf "$folder"
echo built > build/tool
chmod +x build/tool
"#;

fn hits(outside: &Outside) -> u64 {
    let Ran { succeeded, log } = outside.act(&outside.runner_variables(), true);
    assert!(succeeded, "{log}");
    let counted = log.lines().find_map(|line| line.split_once("build: hits=")?.1.split_once('.'));
    counted.unwrap_or_else(|| panic!("{log}")).0.parse().unwrap()
}

#[test]
#[ignore = "needs act, node, sccache and cc"]
fn forks_second_build_is_warm_and_neither_the_bucket_nor_the_default_branch_gets_anything_of_it() {
    let mut outside = Outside::new(Run::fork());
    outside.build = COMPILE;
    assert_eq!(hits(&outside), 0);
    outside.run.id += 1;
    let second = hits(&outside);
    assert!(second * 100 >= FILES * 95, "{second} of {FILES}");
    assert_eq!(outside.s3.keys(), Vec::<String>::new(), "a fork writes nothing to the bucket");

    let caches = outside.path("caches");
    let scopes = || -> Vec<_> {
        let found = fs::read_dir(&caches).unwrap().map(|entry| entry.unwrap().file_name());
        found.map(|name| name.into_string().unwrap()).collect()
    };
    assert_eq!(scopes(), ["refs%2Fpull%2F7%2Fmerge"]);
    outside.payload = Run::push().payload();
    outside.run = Run { id: outside.run.id + 1, ..Run::push() };
    assert_eq!(hits(&outside), 0, "the default branch reads nothing that a fork compiled");
    let keys = outside.s3.keys();
    let compiled = |key: &&String| key.starts_with("default-branch/") && !key.ends_with("_check");
    // sccache also stores what it learned of the preprocessor, for some files.
    assert!(keys.iter().filter(compiled).count() as u64 >= FILES, "{keys:?}");
    assert!(!keys.iter().any(|key| key.starts_with("pull-requests/")), "{keys:?}");
}
