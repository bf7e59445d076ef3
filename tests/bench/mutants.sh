#!/usr/bin/env bash
# Changes one operator, condition or result of the code at a time, and finds out which changes no test notices. Prints
# how many were caught, and each that wasn't. Needs cargo-mutants (`cargo install cargo-mutants --locked`).
#
# usage: tests/bench/mutants.sh domain [SHARD]    crcr-domain: all of it, or a part such as 0/8
#        tests/bench/mutants.sh sample [COUNT]    about COUNT of the relay, store, results and
#                                                 artifacts: of each crate every nth, so the same each time
#
# Each one is tested by the unit tests of its own crate. Copies and builds are in target/mutants, apart from other builds.
set -euo pipefail
cd "$(dirname "$0")/../.."
part=${1:?domain or sample}
output=$PWD/target/mutants
mkdir -p "$output"
# With some optimization the generated cases take a third of the time, and compiling a crate again hardly more.
export CARGO_TARGET_DIR=$output/build CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=1
export PROPTEST_MAX_SHRINK_ITERS=0 INSTA_UPDATE=no

# run NAME ARGUMENT...
run() {
  local to=$output/$1 code=0
  shift
  mkdir -p "$to"
  # 2: some weren't caught. 3: some took too long.
  cargo mutants --output "$to" --colors never --cargo-arg=--lib "$@" || code=$?
  ((code == 0 || code == 2 || code == 3)) || exit "$code"
  for kind in caught missed timeout unviable; do
    cat "$to/mutants.out/$kind.txt" >> "$output/$kind"
  done
}

rm -f "$output"/{caught,missed,timeout,unviable}
case $part in
  domain) run domain --package crcr-domain ${2:+--shard "$2" --sharding round-robin} ;;
  sample)
    for crate in relay store results artifacts; do
      all=$(cargo mutants --list --package "crcr-$crate" | wc -l)
      every=$((all * 4 / ${2:-200}))
      run "$crate" --package "crcr-$crate" --shard "0/$((every > 0 ? every : 1))" --sharding round-robin
    done
    ;;
  *) echo "$part: domain or sample" >&2; exit 2 ;;
esac
for kind in caught missed timeout unviable; do
  printf '%-9s %s\n' "$kind" "$(wc -l < "$output/$kind")"
done
cat "$output/missed"
