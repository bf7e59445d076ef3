#!/usr/bin/env bash
# Finds or builds the `crcr` binary that an action of this repository runs, and prints its absolute path.
#
# usage: install.sh [--add-path]
#
# INPUT_BINARY       absolute path of a binary that is already there; nothing is downloaded or built
# INPUT_INSTALL      auto (default): a release that manifest.json lists, else the source; release; source
# INPUT_VERSION      a version that manifest.json lists; default: the manifest's own default
# CRCR_DOWNLOAD_URL  where releases are, for a mirror; the hash decides, so any mirror will do
# CRCR_RETRY_SECONDS how long a download goes on while the network or the server fails; default: 75
# CRCR_BUILD_DIR     where cargo keeps what it builds; default: a temporary folder, removed afterwards
# CRCR_ACTION_REPOSITORY  the repository of this action, where its releases are
#
# A download, fresh or cached, is used only if its SHA-256 is the one in manifest.json beside this
# file: whoever pins this action by commit has pinned the bytes that run. A build is made from the
# files of this action, with the dependencies that Cargo.lock pins by hash.
# What an earlier step exported by mistake shouldn't change the programs below. This is no defence
# against a hostile earlier step: whoever can set variables of the job can change PATH, too.
# A privileged shell takes no functions from the environment; in POSIX mode no function hides `exec`.
if [[ $- != *p* ]]; then
  POSIXLY_CORRECT=1
  exec bash -p "${BASH_SOURCE[0]}" "$@"
fi
set -euo pipefail
unset BASH_ENV ENV LD_PRELOAD CDPATH
IFS=$' \t\n'

here=$(cd -- "${BASH_SOURCE[0]%/*}" && pwd)
manifest=$here/manifest.json
max_bytes=$((64 * 1024 * 1024))
use_binary='name a binary that is already there in the input `binary`'

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

have() { command -v "$1" >/dev/null; }

# The Rust target triple that releases for this machine are named by; empty where there are none.
target() {
  case $(uname -s)/$(uname -m) in
    Linux/x86_64 | Linux/amd64) echo x86_64-unknown-linux-musl ;;
    Linux/aarch64 | Linux/arm64) echo aarch64-unknown-linux-musl ;;
    Darwin/x86_64) echo x86_64-apple-darwin ;;
    Darwin/arm64) echo aarch64-apple-darwin ;;
    # Windows on ARM64 runs programs for x86-64, too.
    MINGW*/* | MSYS*/* | CYGWIN*/*) echo x86_64-pc-windows-msvc ;;
  esac
}

# sha256 [FILE]: of the file or of standard input.
sha256() {
  local sum
  if have sha256sum; then sum=$(sha256sum <"${1:-/dev/stdin}"); else sum=$(shasum -a 256 <"${1:-/dev/stdin}"); fi
  echo "${sum%% *}"
}

# The node that the runner brings into a job's container for its own use, or the one on PATH. It has
# root certificates of its own.
node_path() {
  local candidate
  for candidate in "$(command -v node || true)" /__e/node24*/bin/node /__e/node20*/bin/node; do
    if [[ -n $candidate ]] && "$candidate" --version >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
}

# is_final CODE LOG: whether a failed download fails again, whenever it is tried. A 403 may be a proxy's.
is_final() {
  local status=
  [[ ! $(<"$2") =~ rror:\ ([0-9]{3}) ]] || status=${BASH_REMATCH[1]}
  case $1/$status in
    # 23: the file can't be written. 47, 63: too many redirects, too large. 60, 77: no root certificates.
    23/* | 47/* | 60/* | 63/* | 77/* | 127/*) return 0 ;;
    */403 | */408 | */429) return 1 ;;
    */4??) return 0 ;;
  esac
  return 1
}

# is_page FILE: whether it is a web page, which only something in between sends.
is_page() {
  case $(head -c 200 -- "$1" | LC_ALL=C tr -cd '[:alpha:]<!' | tr '[:upper:]' '[:lower:]') in
    '<html'* | '<!doctypehtml'*) return 0 ;;
  esac
  return 1
}

# download URL FILE: again while the network or the server fails, for 75 seconds or as CRCR_RETRY_SECONDS says.
download() {
  local patience=${CRCR_RETRY_SECONDS:-75} started=$SECONDS try pause=2 code log=$2.log
  [[ $patience =~ ^[0-9]{1,5}$ ]] || patience=75
  for ((try = 1; ; try++)); do
    code=0
    download_once "$1" "$2" >"$log" 2>&1 || code=$?
    if [[ $code == 0 ]]; then
      is_page "$2" || return 0
      code=1
      echo 'something in between answered with a web page' >"$log"
    fi
    # A try may have taken long, and gets a second one all the same.
    if is_final "$code" "$log" || ((SECONDS - started + pause > patience && (try > 1 || patience == 0))); then
      cat -- "$log" >&2
      return "$code"
    fi
    [[ $try != 1 ]] || echo "waiting, and trying again for up to $patience s: $(tail -n 1 -- "$log")" >&2
    sleep $((pause / 2 + RANDOM % (pause / 2 + 1)))
    pause=$((pause < 8 ? pause * 2 : 8))
  done
}

# download_once URL FILE: with whichever program is here. A status of 400 or above is told as `error: STATUS`.
download_once() {
  local node code=127 text
  if have curl; then
    code=0
    curl --proto '=https,http' --fail --silent --show-error --location --max-redirs 5 \
      --connect-timeout 10 --speed-limit 1 --speed-time 30 --max-time 300 \
      --max-filesize "$max_bytes" --output "$2" -- "$1" || code=$?
    [[ $code == 60 || $code == 77 ]] || return "$code"
  fi
  node=$(node_path)
  if [[ -n $node ]]; then
    # Only with this variable does node use the proxy variables.
    NODE_USE_ENV_PROXY=1 "$node" -e '
      const [url, file, max] = process.argv.slice(1);
      fetch(url, { signal: AbortSignal.timeout(300000) }).then(async answer => {
        if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
        const chunks = [];
        let size = 0;
        for await (const chunk of answer.body) {
          if ((size += chunk.length) > Number(max)) {
            console.error("too large");
            process.exit(63);
          }
          chunks.push(chunk);
        }
        require("fs").writeFileSync(file, Buffer.concat(chunks));
      }).catch(error => { console.error(String(error.cause ?? error)); process.exit(1); });
    ' -- "$1" "$2" "$max_bytes"
    return
  fi
  if [[ $code == 127 ]] && have wget; then
    code=0
    text=$(wget --quiet --server-response --tries=1 --timeout=30 -O "$2" -- "$1" 2>&1) || code=$?
    # The rest are headers, which may be anything.
    if [[ $text =~ .*HTTP/[0-9.]+\ ([0-9]{3}) ]]; then
      echo "wget: error: ${BASH_REMATCH[1]}"
    else
      echo "wget: no answer (exit code $code)"
    fi
  fi
  return "$code"
}

# fetch URL FILE: the binary behind URL, unpacked into FILE.
fetch() {
  local code=0 tool=gzip hint='check that the release exists and that the network lets this machine reach it'
  [[ $1 != *.xz ]] || tool=xz
  download "$1" "$2.packed" || code=$?
  case $code in
    0) ;;
    127) fail missing-tool '`curl`, `wget` and `node` are not on PATH' \
      "install one, such as by \`apt-get install curl ca-certificates\`, or $use_binary" ;;
    60 | 77) fail download "\`$1\` can't be downloaded: this machine has no root certificates" \
      'install them, such as by `apt-get install ca-certificates`' ;;
    *) fail download "\`$1\` can't be downloaded (exit code $code)" "$hint" ;;
  esac
  # `head` ends the stream at the cap, whatever the archive claims; the hash then refuses it.
  { "$tool" -dc <"$2.packed" 2>/dev/null || true; } | head -c "$max_bytes" >"$2"
}

# cache_folder NAME: a folder for one binary, in the tool cache where this user may write there.
cache_folder() {
  local base folder
  for base in "${RUNNER_TOOL_CACHE:-}" "${RUNNER_TEMP:-}" "${TMPDIR:-/tmp}"; do
    [[ -n $base ]] || continue
    folder=$base/crcr/$1
    ! have cygpath || folder=$(cygpath -m "$folder")
    if mkdir -p -- "$folder" 2>/dev/null && [[ -w $folder ]]; then
      echo "$folder"
      return
    fi
  done
  fail tool-cache "neither the tool cache nor a temporary folder can be written" \
    "let this user write to \`RUNNER_TEMP\`, or $use_binary"
}

# scratch_in FOLDER: sets `scratch` to a new folder there, so that what is done in it can be moved
# into place in one step; it is removed at exit.
scratch_in() {
  scratch=$(mktemp -d "$1/.new.XXXXXX")
  trap 'rm -rf -- "$scratch"' EXIT
}

suffix() { case $(uname -s) in MINGW* | MSYS* | CYGWIN*) echo .exe ;; esac; }

# hash_of VERSION TRIPLE: what the manifest says, or nothing.
hash_of() {
  local text pattern="\"${1//./\\.}/$2\"[[:space:]]*:[[:space:]]*\"([0-9a-f]{64})\""
  text=$(<"$manifest")
  [[ ! $text =~ $pattern ]] || echo "${BASH_REMATCH[1]}"
}

# released VERSION TRIPLE HASH: downloads that version unless a verified copy is in the tool cache.
released() {
  local folder file got
  folder=$(cache_folder "$1/$2")
  file=$folder/crcr$(suffix)
  # A third smaller, but not every machine can unpack it.
  local form=xz
  have xz || form=gz
  have xz || have gzip || fail missing-tool '`xz` and `gzip` are not on PATH' "install one, or $use_binary"
  have sha256sum || have shasum || fail missing-tool '`sha256sum` and `shasum` are not on PATH' \
    "install one, or $use_binary"
  # A cached file is checked again: on a machine that jobs share, anyone may have written it.
  if [[ ! -f $file || $(sha256 "$file") != "$3" ]]; then
    scratch_in "$folder"
    local base=${CRCR_DOWNLOAD_URL:-https://github.com/${CRCR_ACTION_REPOSITORY:-pytorch/crcr}/releases/download}
    local url="${base%/}/v$1/crcr-$1-$2.$form"
    fetch "$url" "$scratch/crcr"
    got=$(sha256 "$scratch/crcr")
    [[ $got == "$3" ]] || fail hash-mismatch \
      "\`$url\` has SHA-256 $got, the manifest of this action says $3" \
      "do not use this download; report it to the repository of this action"
    chmod 755 "$scratch/crcr"
    mv -f -- "$scratch/crcr" "$file"
  fi
  echo "$file"
}

# built WHY: builds the source of this action unless the tool cache has a build of the same source.
#
# The name of the build is a hash of its source: an action is unpacked without its git history, and a
# branch or tag that it was named by may move.
built() {
  local source folder file id build started=$SECONDS code=0
  source=$(cd -- "$here/../.." && pwd)
  [[ -f $source/Cargo.lock && -d $source/cli ]] || fail no-source \
    "$1, and \`$source\` doesn't hold the source to build" "$use_binary"
  local parts=(Cargo.toml Cargo.lock cli crates workflows-templates)
  # Settings of cargo, such as flags of the compiler, and files that the binary has in it.
  for folder in .cargo deploy/aws-ci schemas; do
    [[ ! -d $source/$folder ]] || parts+=("$folder")
  done
  id=$(cd -- "$source" && files=$(find "${parts[@]}" -type f | LC_ALL=C sort) &&
    { echo "$files" && tr '\n' '\0' <<<"$files" | xargs -0 cat; } | sha256)
  folder=$(cache_folder "source-${id:0:32}/$(uname -s)-$(uname -m)")
  file=$folder/crcr$(suffix)
  if [[ ! -f $file ]]; then
    have cargo || fail no-release "$1, and there is no \`cargo\` to build it with" \
      "install Rust by https://rustup.rs in an earlier step, or $use_binary"
    scratch_in "$folder"
    build=${CRCR_BUILD_DIR:-$scratch/build}
    echo "$1: building its source, which takes some minutes and is kept in \`$folder\`" >&2
    # Settings that the job made for its own Rust code stay out of this build.
    (
      # The machine's own Rust spares a download of the one that rust-toolchain.toml names; too old a one doesn't.
      if [[ -z ${RUSTUP_TOOLCHAIN:-} && $(cd / && cargo --version) =~ ^cargo\ 1\.([0-9]+) ]] &&
        ((BASH_REMATCH[1] >= $(sed -n 's/^rust-version = "1\.\([0-9]*\).*/\1/p' "$source/Cargo.toml"))) && have rustup; then
        RUSTUP_TOOLCHAIN=$(cd / && rustup show active-toolchain)
        export RUSTUP_TOOLCHAIN=${RUSTUP_TOOLCHAIN%% *}
      fi
      cd -- "$source" || exit
      unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS CARGO_BUILD_TARGET RUSTC_WRAPPER \
        CARGO_BUILD_TARGET_DIR RUSTC_WORKSPACE_WRAPPER CARGO_INCREMENTAL
      CARGO_TARGET_DIR=$build cargo build --locked --quiet --no-default-features -p crcr >&2
    ) || code=$?
    [[ $code == 0 ]] || fail build-failed "\`cargo build --locked --no-default-features -p crcr\` failed in \`$source\`" \
      "read what cargo says above; it needs $(sed -n 's/^rust-version = "\(.*\)"/Rust \1/p' "$source/Cargo.toml"), a C compiler, and the crate registry"
    cp -- "$build/debug/crcr$(suffix)" "$scratch/crcr"
    mv -f -- "$scratch/crcr" "$file"
    echo "built \`crcr\` from the action's source in $((SECONDS - started)) seconds" >&2
  fi
  echo "$file"
}

# found: the path of a release or of a build, as `install` and `version` say.
found() {
  local version=${INPUT_VERSION:-} install=${INPUT_INSTALL:-auto} triple expected=
  [[ $install == auto || $install == release || $install == source ]] || fail install \
    "the input \`install\` is \`$install\`" 'use `auto`, `release` or `source`'
  if [[ -z $version && $(<"$manifest") =~ \"default\"[[:space:]]*:[[:space:]]*\"([^\"]*)\" ]]; then
    version=${BASH_REMATCH[1]}
  elif [[ $install == source ]]; then
    fail version "the inputs \`version\` and \`install: source\` exclude each other" \
      'leave `version` out: the source is the one of this commit of the action'
  fi
  [[ -z $version || $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || fail version \
    "the input \`version\` is \`$version\`, which is not a version" "write it as \`1.2.3\`"
  triple=$(target)
  [[ -z $version || -z $triple ]] || expected=$(hash_of "$version" "$triple")
  local why="this commit of the action comes with no released binary"
  [[ -z $version ]] || why="there is no release for $(uname -s) on $(uname -m)"
  if [[ $install == source ]]; then
    built 'the input `install` is `source`'
  elif [[ -n $expected ]]; then
    released "$version" "$triple" "$expected"
  elif [[ -n ${INPUT_VERSION:-} ]]; then
    fail not-in-manifest "the manifest of this action has no \`crcr\` $version for ${triple:-$(uname -s) on $(uname -m)}" \
      "use a version that \`actions/install/manifest.json\` lists, or leave \`version\` out"
  elif [[ $install == release ]]; then
    fail no-release "$why" "leave out \`install: release\` to have it built from source, or $use_binary"
  else
    built "$why"
  fi
}

main() {
  local path version
  if [[ -n ${INPUT_BINARY:-} ]]; then
    path=$INPUT_BINARY
    [[ $path == /* || $path =~ ^[A-Za-z]:[/\\] ]] || fail binary-path \
      "the input \`binary\` is \`$path\`, which is not an absolute path" \
      "write the whole path, for example \`\${{ github.workspace }}/target/release/crcr\`"
    [[ -f $path && -x $path ]] || fail binary-path \
      "the input \`binary\` is \`$path\`, which is not an executable file" \
      "check that an earlier step has built or unpacked it, with its mode bits"
  else
    path=$(set -e; found) # bash drops `-e` in there
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
