#!/usr/bin/env bash
# Builds what a release has for this machine, as .github/workflows/release.yml does, and prints how long the build takes,
# its size, its size as a download, and how long `--version` takes.
#
# usage: tests/bench/release_binary.sh [COPY]   (COPY: where to keep the binary)
#
# Needs the target of musl (rustup target add) and musl-gcc. Crates are downloaded beforehand, and nothing else should run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=$(uname -m)-unknown-linux-musl
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
cargo fetch --locked --quiet
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
started=$SECONDS
CARGO_TARGET_DIR=$folder cargo build --release --locked --quiet -p crcr --target "$target"
echo "built in $((SECONDS - started)) s"
.ci/check-binary "$folder/$target/release/crcr" "$version"
[[ -z ${1:-} ]] || cp "$folder/$target/release/crcr" "$1"
