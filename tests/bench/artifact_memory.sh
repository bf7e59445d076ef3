#!/usr/bin/env bash
# Fails when the memory of `crcr artifact` grows with an artifact's size or number of files.
#
# usage: tests/bench/artifact_memory.sh [--full] [--crcr BINARY]
#
# Without --full: 1 GiB and 10,000 files, 64 MB allowed. With it: 16 GiB and a million files too,
# and zip64 there and back (an entry of 5 GiB, a million entries), which needs 12 GB of disk. Files
# are holes and links, uploads are dropped. A directory of a million entries is part of the archive
# and so of the memory: 400 MB are allowed there.
set -euo pipefail
full=
if [[ ${1:-} == --full ]]; then full=yes; shift; fi
speed=$(dirname "${BASH_SOURCE[0]}")/artifact_speed.sh
crcr=("$@")

row() { "$speed" "${crcr[@]}" --runs 1 "$@" | tail -n +3; }

row --row sparse --row sparse-s3 --row random --row text --only crcr --mib 1024 --limit-mb 64
row --row many --files 1000 --limit-mb 64
row --row many --row get-many --files 10000 --limit-mb 64
[[ -n $full ]] || exit 0
row --row sparse --row sparse-s3 --mib 16384 --limit-mb 64
row --row get-sparse --mib 5120 --limit-mb 64
row --row many --row get-many --files 1000000 --limit-mb 400
