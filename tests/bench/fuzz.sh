#!/usr/bin/env bash
# Runs the fuzz targets one after the other, starting from fuzz/seeds, tests/fixtures and from what
# earlier runs found (target/fuzz). Needs cargo-fuzz and a nightly toolchain.
# usage: tests/bench/fuzz.sh SECONDS [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=$1
shift
targets=("$@")
[[ $# -gt 0 ]] || mapfile -t targets < <(cd fuzz/fuzz_targets && ls | sed 's/\.rs$//')

for target in "${targets[@]}"; do
  corpus=target/fuzz/corpus/$target
  mkdir -p "$corpus" target/fuzz/findings
  seeds=(fuzz/seeds/"$target")
  case $target in
    allowlist | junit) seeds=(tests/fixtures/"$target") ;;
    log)
      # The ends of real logs, as text: a gzip that is changed anywhere is hardly ever one.
      seeds=(target/fuzz/logs)
      mkdir -p "${seeds[@]}"
      for log in tests/fixtures/logs/*/*.gz; do
        zcat "$log" | tail -c 16384 > "${seeds[0]}/$(basename "$log" .gz)"
      done
      ;;
  esac
  [[ -d ${seeds[0]} ]] || seeds=()
  # A few of the readers take a second for the largest inputs under the sanitizer.
  log=$(cargo +nightly fuzz run "$target" --target-dir target/fuzz/build "$corpus" "${seeds[@]}" -- \
    -max_total_time="$seconds" -max_len=65536 -timeout=20 -print_final_stats=1 \
    -artifact_prefix=target/fuzz/findings/ 2>&1) || { tail -40 <<< "$log"; exit 1; }
  printf '%-14s %s inputs, none with a finding\n' "$target" \
    "$(awk '/stat::number_of_executed_units/ { print $2 }' <<< "$log")"
done
