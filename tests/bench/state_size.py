#!/usr/bin/env python3
"""Measures how many bytes the relay's state takes for a dispatch: in memory of Redis, in its file of changes, and in SQLite.

usage: tests/bench/state_size.py CRCR DELIVERIES BACKENDS     Counts, so that any build and any machine will do.

Sends webhooks of pull requests with 2 KB, answers the relay as GitHub, and compares what the store has before and after.
"""

import hashlib
import hmac
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CRCR, DELIVERIES, BACKENDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
REDIS_PORT, RELAY_PORT, SECRET = "17391", "17392", b"0123456789abcdef"
sent = []


class GitHub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, value):
        body = json.dumps(value).encode() if value is not None else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path.endswith("/installation"):
            self.answer(200, {"id": 1, "permissions": {}})
        elif self.path.startswith("/app/hook/deliveries"):
            self.answer(200, [])
        else:
            self.answer(404, {"message": "Not Found"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.endswith("/access_tokens"):
            repository = {"id": 1, "default_branch": "main"}
            token = {"token": "t", "expires_at": "2099-01-01T00:00:00Z"}
            self.answer(201, token | {"repositories": [repository]})
        else:
            sent.append(body)
            self.answer(204, None)

    def log_message(self, *_):
        pass


def webhook(n):
    repository = {"id": 5, "full_name": "acme/upstream", "name": "upstream", "owner": {"login": "acme"},
                  "default_branch": "main", "clone_url": "https://github.com/acme/upstream.git"}
    side = {"ref": "main", "repo": repository}
    pull = {"number": n, "title": "Change", "state": "open", "body": f"What changes in {n}. " * 50,
            "user": {"login": "alice"}, "author_association": "CONTRIBUTOR", "labels": [],
            "created_at": "2026-11-01T00:00:00Z", "updated_at": "2026-11-01T00:00:00Z",
            "head": side | {"sha": f"{n:040x}"}, "base": side | {"sha": "b" * 40}}
    body = json.dumps({"action": "opened", "number": n, "pull_request": pull, "repository": repository,
                       "sender": {"login": "alice"}}).encode()
    signature = "sha256=" + hmac.new(SECRET, body, hashlib.sha256).hexdigest()
    headers = {"X-GitHub-Event": "pull_request", "X-GitHub-Delivery": str(uuid.UUID(int=n)),
               "X-Hub-Signature-256": signature, "Content-Type": "application/json"}
    return urllib.request.Request(f"http://127.0.0.1:{RELAY_PORT}/github/webhook", body, headers)


def load(folder, github, store):
    """Starts the relay; yields when it is there, and again when everything is dispatched."""
    settings = {
        "PATH": os.environ["PATH"], "GITHUB_APP_ID": "1", "GITHUB_APP_SECRET": SECRET.decode(),
        "GITHUB_APP_PRIVATE_KEY_FILE": f"{folder}/key.pem", "ALLOWLIST_URL": f"file:{folder}/allowlist.yml",
        "UPSTREAM_REPO": "acme/upstream", "GITHUB_API_URL": github, "CRCR_OIDC_ISSUERS": github,
        "CRCR_LISTEN": f"127.0.0.1:{RELAY_PORT}", "CRCR_ADMIN_LISTEN": "off", "CI_PROVIDERS_URL": "off",
        "CRCR_WEBHOOK_EVENTS": "off", "CRCR_STORE": store, "CRCR_RESULTS": f"sqlite:{folder}/results.db",
    }
    with open(f"{folder}/relay.log", "a") as log:
        relay = subprocess.Popen([CRCR, "relay", "serve"], env=settings, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{RELAY_PORT}/healthz"
        while True:
            try:
                urllib.request.urlopen(address, timeout=10)
                break
            except OSError:
                assert relay.poll() is None, open(f"{folder}/relay.log").read()
                time.sleep(0.2)
        yield
        sent.clear()
        for n in range(1, DELIVERIES + 1):
            urllib.request.urlopen(webhook(n), timeout=60)
        while len(sent) < DELIVERIES * BACKENDS:
            time.sleep(0.5)
        time.sleep(3)
        yield
    finally:
        relay.terminate()
        relay.wait()


def files(path):
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(path) for name in names)


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), GitHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    github = f"http://127.0.0.1:{server.server_port}"
    dispatches = DELIVERIES * BACKENDS
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["openssl", "genrsa", "-out", f"{folder}/key.pem", "2048"], check=True, capture_output=True)
        with open(f"{folder}/allowlist.yml", "w") as allowlist:
            allowlist.write("L2:\n" + "".join(f"  - acme{n}/backend\n" for n in range(BACKENDS)))
        options = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--loglevel", "warning"]
        command = ["redis-server", "--port", REDIS_PORT, "--dir", folder, *options]
        redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            def used():
                command = ["redis-cli", "-p", REDIS_PORT, "INFO", "memory"]
                text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                return int(text.split("used_memory:")[1].split()[0])

            steps = load(folder, github, f"redis://127.0.0.1:{REDIS_PORT}")
            time.sleep(1)
            next(steps)
            before = used()
            next(steps)
            print(f"Redis: {(used() - before) / dispatches:.0f} bytes of memory for a dispatch, "
                  f"{files(f'{folder}/appendonlydir') / dispatches:.0f} in its file of changes")
            steps.close()
        finally:
            redis.terminate()
            redis.wait()
        steps = load(folder, github, f"sqlite:{folder}/crcr.db")
        next(steps)
        next(steps)
        steps.close()
        print(f"SQLite: {os.path.getsize(f'{folder}/crcr.db') / dispatches:.0f} bytes for a dispatch")


main()
