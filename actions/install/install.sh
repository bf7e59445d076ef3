#!/usr/bin/env bash
# Finds the `crcr` binary that an action of this repository runs, and prints its absolute path.
#
# usage: install.sh [--add-path]
#
# INPUT_BINARY       absolute path of a binary that is already there; nothing is downloaded
# INPUT_VERSION      a version that manifest.json lists; default: the manifest's own default
# CRCR_DOWNLOAD_URL  where releases are, for a mirror; the hash decides, so any mirror will do
#
# A download, fresh or cached, is used only if its SHA-256 is the one in manifest.json beside this
# file: whoever pins this action by commit has pinned the bytes that run.
set -euo pipefail
# Started from a step, nothing of an earlier step may change what the programs below do.
unset BASH_ENV ENV LD_PRELOAD CDPATH
IFS=$' \t\n'

here=$(cd -- "${BASH_SOURCE[0]%/*}" && pwd)
manifest=$here/manifest.json
max_bytes=$((64 * 1024 * 1024))

# fail CODE WHAT HINT: says it the way the binary would: an annotation under Actions, else plain.
# Everything here is for the user to fix (exit 1) but the network (exit 2).
fail() {
  if [[ ${GITHUB_ACTIONS:-} == true ]]; then
    local text="$2; $3"
    text=${text//'%'/%25} text=${text//$'\r'/%0D} text=${text//$'\n'/%0A}
    printf '::error title=%s::%s\n' "$1" "$text" >&2
  else
    printf 'error[%s]: %s\nhint: %s\n' "$1" "$2" "$3" >&2
  fi
  [[ $1 != download ]] || exit 2
  exit 1
}

# The Rust target triple of this machine.
target() {
  local system machine
  system=$(uname -s) machine=$(uname -m)
  case $system/$machine in
    Linux/x86_64 | Linux/amd64) echo x86_64-unknown-linux-musl ;;
    Linux/aarch64 | Linux/arm64) echo aarch64-unknown-linux-musl ;;
    Darwin/x86_64) echo x86_64-apple-darwin ;;
    Darwin/arm64) echo aarch64-apple-darwin ;;
    MINGW*/x86_64 | MSYS*/x86_64 | CYGWIN*/x86_64) echo x86_64-pc-windows-msvc ;;
    *) fail unsupported-platform "there is no \`crcr\` binary for $system on $machine" \
      "build one with \`cargo build --release -p crcr\` and name it in the input \`binary\`" ;;
  esac
}

# sha256 FILE
sha256() {
  local sum
  if command -v sha256sum >/dev/null; then sum=$(sha256sum <"$1"); else sum=$(shasum -a 256 <"$1"); fi
  echo "${sum%% *}"
}

# fetch URL FILE: the binary behind URL, unpacked into FILE.
fetch() {
  local try code=0
  # curl repeats timeouts, 429 and 5xx by itself, but not a lost name or connection.
  for try in 1 2 3; do
    curl --proto '=https,http' --fail --silent --show-error --location --max-redirs 5 \
      --retry 3 --retry-connrefused --connect-timeout 10 --max-time 300 \
      --max-filesize "$max_bytes" --output "$2.gz" -- "$1" && break
    code=$?
    [[ $code != 22 && $try != 3 ]] || fail download "\`$1\` can't be downloaded (curl: $code)" \
      "check that the release exists and that the network lets this machine reach it"
    sleep "$try"
  done
  # `head` ends the stream at the cap, whatever the archive claims; the hash then refuses it.
  { gzip -dc "$2.gz" 2>/dev/null || true; } | head -c "$max_bytes" >"$2"
}

# installed VERSION: downloads that version unless a verified copy is in the tool cache.
installed() {
  local version=$1 triple expected folder file got tools
  triple=$(target)
  local text pattern="\"${version//./\\.}/$triple\"[[:space:]]*:[[:space:]]*\"([0-9a-f]{64})\""
  text=$(<"$manifest")
  [[ $text =~ $pattern ]] || fail not-in-manifest \
    "the manifest of this action has no \`crcr\` $version for $triple" \
    "use a version that \`actions/install/manifest.json\` lists, or build one with \`cargo build --release -p crcr\` and name it in the input \`binary\`"
  expected=${BASH_REMATCH[1]}

  folder=${RUNNER_TOOL_CACHE:-${RUNNER_TEMP:-${TMPDIR:-/tmp}}}/crcr/$version/$triple
  [[ $triple != *windows* ]] || folder=$(cygpath -m "$folder")
  file=$folder/crcr
  [[ $triple != *windows* ]] || file=$file.exe
  mkdir -p -- "$folder" || fail tool-cache "\`$folder\` can't be created" \
    "let this user write there, or name a binary in the input \`binary\`"
  for tools in curl gzip "sha256sum shasum"; do
    # Each word of an entry will do.
    # shellcheck disable=SC2086
    command -v $tools >/dev/null || fail missing-tool "\`${tools// /\` and \`}\` not on PATH" \
      "install it, or name a binary in the input \`binary\`"
  done
  # A cached file is checked again: on a machine that jobs share, anyone may have written it.
  if [[ ! -f $file || $(sha256 "$file") != "$expected" ]]; then
    scratch=$(mktemp -d "$folder/.new.XXXXXX")
    trap 'rm -rf -- "$scratch"' EXIT
    local base=${CRCR_DOWNLOAD_URL:-https://github.com/${GITHUB_ACTION_REPOSITORY:-pytorch/crcr}/releases/download}
    local url="${base%/}/v$version/crcr-$version-$triple.gz"
    fetch "$url" "$scratch/crcr"
    got=$(sha256 "$scratch/crcr")
    [[ $got == "$expected" ]] || fail hash-mismatch \
      "\`$url\` has SHA-256 $got, the manifest of this action says $expected" \
      "do not use this download; report it to the repository of this action"
    chmod 755 "$scratch/crcr"
    mv -f -- "$scratch/crcr" "$file"
  fi
  echo "$file"
}

main() {
  local path version=${INPUT_VERSION:-}
  if [[ -n ${INPUT_BINARY:-} ]]; then
    path=$INPUT_BINARY
    [[ $path == /* || $path =~ ^[A-Za-z]:[/\\] ]] || fail binary-path \
      "the input \`binary\` is \`$path\`, which is not an absolute path" \
      "write the whole path, for example \`\${{ github.workspace }}/target/release/crcr\`"
    [[ -f $path && -x $path ]] || fail binary-path \
      "the input \`binary\` is \`$path\`, which is not an executable file" \
      "check that an earlier step has built or unpacked it, with its mode bits"
  else
    if [[ -z $version && $(<"$manifest") =~ \"default\"[[:space:]]*:[[:space:]]*\"([^\"]*)\" ]]; then
      version=${BASH_REMATCH[1]}
    fi
    [[ -n $version ]] || fail no-release "this commit of the action comes with no released binary" \
      "build one with \`cargo build --release -p crcr\` and name it in the input \`binary\`"
    [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || fail version \
      "the input \`version\` is \`$version\`, which is not a version" "write it as \`1.2.3\`"
    path=$(set -e; installed "$version") # bash drops `-e` in there
  fi
  version=$("$path" --version 2>&1) || fail binary-broken \
    "\`$path --version\` fails: $version" "check that it is a \`crcr\` for this machine"

  echo "using $version at $path" >&2
  case $path$version in
    *[$'\n\r']*) fail binary-path "the path of the binary holds a line break" "move it" ;;
  esac
  if [[ -n ${GITHUB_OUTPUT:-} ]]; then
    printf 'path=%s\nversion=%s\n' "$path" "${version#crcr }" >>"$GITHUB_OUTPUT"
  else
    echo "$path"
  fi
  if [[ ${1:-} == --add-path && -n ${GITHUB_PATH:-} ]]; then
    echo "${path%[/\\]*}" >>"$GITHUB_PATH"
  fi
}

main "$@"
