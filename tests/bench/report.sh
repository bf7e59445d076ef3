#!/usr/bin/env bash
# How long `crcr report` takes as a whole process, its token included, when network and relay take no
# time: both are a Python server on loopback, whose own milliseconds count. The bound is 15 ms.
#
# usage: tests/bench/report.sh [path of crcr] [runs]      (default: target/release/crcr, 200)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
crcr=$(realpath "${1:-target/release/crcr}")
runs=${2:-200}

folder=$(mktemp -d)
python3 - "$folder" <<'PYTHON' &
import http.server, json, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *_):
        pass

    def say(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.say({"value": "eyJh.eyJi.c2ln"})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.say({"ok": True, "status": "completed"})

payload = {"delivery_id": "d", "event_type": "pull_request", "payload": {"pad": "x" * 30_000}}
with open(f"{sys.argv[1]}/event.json", "w") as event:
    json.dump({"client_payload": payload, "repository": {"full_name": "acme/backend"}}, event)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(f"{sys.argv[1]}/port", "w") as port:
    port.write(f"{server.server_port}\n")
server.serve_forever()
PYTHON
server=$!
trap 'kill "$server"; rm -rf "$folder"' EXIT
until [[ -s $folder/port ]]; do sleep 0.1; done
url=http://127.0.0.1:$(<"$folder/port")

report() {
  env -i PATH="$PATH" GITHUB_RUN_ID=4242 GITHUB_JOB=test GITHUB_WORKFLOW=CI \
    GITHUB_REPOSITORY=acme/backend GITHUB_EVENT_PATH="$folder/event.json" \
    GITHUB_OUTPUT="$folder/output" CRCR_CALLBACK_URL="$url/github/callback" \
    ACTIONS_ID_TOKEN_REQUEST_URL="$url/mint?a=b" ACTIONS_ID_TOKEN_REQUEST_TOKEN=token \
    "$crcr" report --status completed --conclusion success 2>/dev/null
}

report
grep -qx 'outcome=recorded' "$folder/output"
for _ in $(seq "$runs"); do
  start=$(date +%s%N)
  report
  echo $((($(date +%s%N) - start) / 1000))
done | sort -n >"$folder/micros"
awk '{ t[NR] = $1 / 1000 } END {
  printf "runs %d  min %.1f ms  median %.1f ms  p95 %.1f ms  max %.1f ms\n",
    NR, t[1], t[int((NR + 1) / 2)], t[int(NR * 0.95 + 0.5)], t[NR]
  exit t[int((NR + 1) / 2)] > 15 }' "$folder/micros"
