#!/usr/bin/env bash
# Builds what a release has for this machine, as .github/workflows/release.yml does, and prints for each binary how long
# the build takes, its size, its size as a download, and how long `--version` takes.
#
# usage: tests/bench/release_binary.sh [crcr|crcr-relay]...
#
# Needs the target of musl (rustup target add) and musl-gcc. Crates are downloaded beforehand, and nothing else should run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
(($#)) || set -- crcr crcr-relay
target=$(uname -m)-unknown-linux-musl
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
cargo fetch --locked --quiet
for name; do
  case $name in
    crcr) options=(--profile actions --no-default-features) profile=actions max_mb=16 ;;
    crcr-relay) options=(--release) profile=release max_mb= ;;
    *) echo "there is no $name in a release" >&2; exit 1 ;;
  esac
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  started=$SECONDS
  CARGO_TARGET_DIR=$folder cargo build "${options[@]}" --locked --quiet -p crcr --target "$target"
  echo "$name: built in $((SECONDS - started)) s"
  binary=$folder/$target/$profile/crcr
  .ci/check-binary "$binary" "$version" "$max_mb"
  echo "$name: $(gzip -9 <"$binary" | wc -c) bytes as a download"
  [[ -z ${KEEP:-} ]] || cp "$binary" "$KEEP-$name"
  rm -rf "$folder"
done
