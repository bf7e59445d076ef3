"""Runs the cases of artifact_outage.sh, which says more."""

import http.client
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

PEERS = Path(__file__).resolve().parent.parent / "peers"
NODE = PEERS / "node_modules/.bin/node"
SERVICE = "/twirp/github.actions.results.api.v1.ArtifactService/"
LONGEST = 600

# What is asked: the request that fails, and whether an upload or a download sends it.
CALLS = {
    "CreateArtifact": ("upload", "POST", SERVICE + "CreateArtifact"),
    "Put Blob": ("upload", "PUT", "/_blob/"),
    "FinalizeArtifact": ("upload", "POST", SERVICE + "FinalizeArtifact"),
    "ListArtifacts": ("download", "POST", SERVICE + "ListArtifacts"),
    "GetSignedArtifactURL": ("download", "POST", SERVICE + "GetSignedArtifactURL"),
    "Get Blob": ("download", "GET", "/_blob/"),
    "S3 PutObject": ("s3", "PUT", "/bench/"),
}


class Outage:
    """A proxy that answers 503 to some requests for some seconds, from the first of them on."""

    def __init__(self, upstream):
        self.upstream = urlsplit(upstream)
        self.method = self.path = self.until = None
        self.seconds = 0
        outage = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle_any(self):
                outage.serve(self)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://localhost:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def begin(self, method, path, seconds):
        self.method, self.path, self.seconds = method, path, seconds

    def fails(self, request):
        if request.command != self.method or not request.path.startswith(self.path):
            return False
        if self.until is None:
            self.until = time.monotonic() + self.seconds
        return time.monotonic() < self.until

    def serve(self, request):
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        if self.fails(request):
            status, headers, answer = 503, [], b""
        else:
            server = http.client.HTTPConnection(self.upstream.hostname, self.upstream.port)
            server.request(request.command, request.path, body, dict(request.headers))
            response = server.getresponse()
            status, headers, answer = response.status, response.getheaders(), response.read()
            server.close()
            # The addresses of blobs lead through here, too.
            own = f"http://localhost:{self.upstream.port}".encode()
            answer = answer.replace(own, self.url.encode())
        request.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                request.send_header(name, value)
        request.send_header("content-length", str(len(answer)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(answer)


def environment(server):
    env = {}
    while line := server.stdout.readline().strip():
        name, _, value = line.partition("=")
        env[name] = value
    return env


def run(command, env, folder):
    """Seconds until it ends, and whether it succeeded."""
    start = time.monotonic()
    try:
        done = subprocess.run([str(word) for word in command], env=env, cwd=folder, timeout=LONGEST,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE)
        ended = done.returncode == 0
    except subprocess.TimeoutExpired:
        ended = False
    return time.monotonic() - start, ended


def one_case(crcr, binary, client, call, seconds):
    kind, method, path = CALLS[call]
    if kind == "s3" and client != "crcr":
        return None
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        (folder / "dist").mkdir()
        (folder / "dist/a.txt").write_text("a\n" * 1000)
        server = subprocess.Popen([binary, "s3" if kind == "s3" else "github"], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            env = environment(server)
            outage = Outage(env.get("BENCH_ENDPOINT") or env["ACTIONS_RESULTS_URL"])
            env |= {"PATH": os.environ["PATH"], "HOME": work, "RUNNER_TEMP": work,
                    "GITHUB_WORKSPACE": work, "GITHUB_OUTPUT": f"{work}/output",
                    "GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "acme/upstream",
                    "GITHUB_RUN_ID": "4242", "GITHUB_SERVER_URL": "https://github.com"}
            upload = [crcr, "artifact", "upload", "--name", "bench", "--path", "dist"]
            if kind == "s3":
                upload += ["--s3-bucket", "bench", "--s3-endpoint", outage.url, "--aws-region",
                           "us-east-1", "--fallback", "never"]
            else:
                env["ACTIONS_RESULTS_URL"] = outage.url + "/"
            download = [crcr, "artifact", "download", "--name", "bench", "--path", "out"]
            if client != "crcr":
                upload = [NODE, PEERS / "artifact.mjs", "upload", "bench", folder / "dist", 6,
                          folder / "dist/a.txt"]
            if kind == "download":
                first = [crcr, "artifact", "upload", "--name", "bench", "--path", "dist"]
                if not run(first, env, folder)[1]:
                    raise RuntimeError("the artifact to download can't be stored")
                told = dict(re.findall(r"^([a-z-]+)=(.*)$", (folder / "output").read_text(), re.M))
                if client != "crcr":
                    download = [NODE, PEERS / "artifact.mjs", "download", told["artifact-id"],
                                folder / "out", f"sha256:{told['artifact-digest']}"]
            outage.begin(method, path, seconds)
            result = run(download if kind == "download" else upload, env, folder)
            if outage.until is None:
                raise RuntimeError(f"{client} never sent {call}")
            return result
        finally:
            server.stdin.close()
            server.wait()


def cell(result):
    if result is None:
        return "–"
    seconds, ended = result
    return f"{'survived' if ended else '**failed**'}, {seconds:.0f} s"


def main():
    crcr, binary, *lengths = sys.argv[1:]
    crcr, binary = Path(crcr).resolve(), Path(binary).resolve()
    lengths = [int(length) for text in lengths for length in text.split()]
    clients = ["crcr", "@actions/artifact"]
    cases = [(call, length, client) for call in CALLS for length in lengths for client in clients]
    with ThreadPoolExecutor(len(cases)) as pool:
        running = {case: pool.submit(one_case, crcr, binary, case[2], case[0], case[1])
                   for case in cases}
    print("| call | 503 for | " + " | ".join(clients) + " |\n|---|---|" + "---|" * len(clients))
    for call in CALLS:
        for length in lengths:
            cells = [cell(running[call, length, client].result()) for client in clients]
            print(f"| {call} | {length} s | " + " | ".join(cells) + " |")


main()
