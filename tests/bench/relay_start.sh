#!/usr/bin/env bash
# How long `crcr relay serve` takes from its start to its first answer, with a new store and again.
#
# usage: tests/bench/relay_start.sh [CRCR]      default: target/release/crcr
set -euo pipefail
crcr=$(realpath "${1:-$(dirname "${BASH_SOURCE[0]}")/../../target/release/crcr}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
openssl genrsa -out key.pem 2048 2>/dev/null
echo 'L1: [acme/one]' > allowlist.yml
export GITHUB_APP_ID=1 GITHUB_APP_SECRET=benchmark-only GITHUB_APP_PRIVATE_KEY_FILE=$folder/key.pem
export ALLOWLIST_URL=file:$folder/allowlist.yml CRCR_LISTEN=127.0.0.1:0
python3 - "$crcr" <<'PYTHON'
import glob, os, socket, subprocess, sys, time

for store in ["new", "kept", "kept", "new", "kept"]:
    if store == "new":
        for file in glob.glob("crcr.db*"):
            os.remove(file)
    start = time.perf_counter()
    relay = subprocess.Popen([sys.argv[1], "relay", "serve", "--admin-listen", "off"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    host, port = relay.stdout.readline().strip().rsplit("/", 1)[1].rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        answer = connection.recv(100).split(b"\r\n")[0].decode()
    print(f"{store:5} store  {1000 * (time.perf_counter() - start):6.1f} ms  {answer}")
    relay.terminate()
    relay.wait()
PYTHON
