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

ROOT = Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / "tests/peers"
NODE = PEERS / "node_modules/.bin/node"
SERVICE = "/twirp/github.actions.results.api.v1.ArtifactService/"
LONGEST = 600

# What is asked: who sends it, the request that fails, and GitHub's or AWS's own client, if there is one.
CALLS = {
    "CreateArtifact": ("upload", "POST", SERVICE + "CreateArtifact", "@actions/artifact"),
    "Put Blob": ("upload", "PUT", "/_blob/", "@actions/artifact"),
    "FinalizeArtifact": ("upload", "POST", SERVICE + "FinalizeArtifact", "@actions/artifact"),
    "ListArtifacts": ("download", "POST", SERVICE + "ListArtifacts", "@actions/artifact"),
    "GetSignedArtifactURL": ("download", "POST", SERVICE + "GetSignedArtifactURL", "@actions/artifact"),
    "Get Blob": ("download", "GET", "/_blob/", "@actions/artifact"),
    "S3 PutObject": ("s3", "PUT", "/bench/", "boto3"),
    "OIDC token": ("oidc", "GET", "/_oidc/", "@actions/core"),
    "STS AssumeRoleWithWebIdentity": ("sts", "POST", "/", "boto3"),
    "checkout": ("checkout", "GET", "/", "git"),
}

# For node, from the folder of the peers.
GET_TOKEN = """
import { getIDToken } from "@actions/core";
await getIDToken("sts.amazonaws.com");
"""
# For Python with boto3.
ASSUME_ROLE = """
import boto3, sys
sts = boto3.client("sts", region_name="us-east-1", endpoint_url=sys.argv[1])
sts.assume_role_with_web_identity(RoleArn=sys.argv[2], RoleSessionName="bench", WebIdentityToken="a.b.c")
"""
PUT_OBJECT = """
import boto3, botocore.config, sys
path = botocore.config.Config(s3={"addressing_style": "path"})
s3 = boto3.client("s3", region_name="us-east-1", endpoint_url=sys.argv[1], config=path)
s3.upload_file(sys.argv[2], "bench", "a.txt")
"""
ROLE = "arn:aws:iam::123456789012:role/ci-build"
CREDENTIALS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><AssumedRoleUser><Arn>arn:aws:sts::123456789012:assumed-role/ci-build/b</Arn>
<AssumedRoleId>A:b</AssumedRoleId></AssumedRoleUser><Credentials><AccessKeyId>ASIAEXAMPLE</AccessKeyId>
<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>""".encode()


class Outage:
    """A server that answers 503 to some requests for some seconds, from the first of them on. `answer` makes
    the others: of a method, a path with a query, headers and a body, a status, headers and a body."""

    def __init__(self, answer):
        self.answer = answer
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
            status, headers, answer = self.answer(request.command, request.path, request.headers, body)
        request.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                request.send_header(name, value)
        request.send_header("content-length", str(len(answer)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(answer)


def in_front_of(upstream):
    """An outage of a server. The addresses of blobs lead through it, too."""
    host = urlsplit(upstream)

    def forward(method, path, headers, body):
        server = http.client.HTTPConnection(host.hostname, host.port)
        server.request(method, path, body, dict(headers))
        response = server.getresponse()
        status, headers, answer = response.status, response.getheaders(), response.read()
        server.close()
        own = f"http://localhost:{host.port}".encode()
        return status, headers, answer.replace(own, outage.url.encode())

    outage = Outage(forward)
    return outage


def git_server(folder):
    """A repository with a commit, behind git's own server; returns the server and the commit."""
    source = folder / "acme/upstream"
    source.mkdir(parents=True)
    name = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org"}
    name |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org"}
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_HTTP_EXPORT_ALL": "1"} | name

    def git(*words):
        return subprocess.check_output(["git", *words], cwd=source, env=env, text=True).strip()

    git("init", "--quiet")
    git("config", "uploadpack.allowAnySHA1InWant", "true")
    git("commit", "--quiet", "--allow-empty", "--message", "one")

    def answer(method, path, headers, body):
        path, _, query = path.partition("?")
        given = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query,
                 "GIT_PROJECT_ROOT": str(folder), "CONTENT_TYPE": headers.get("content-type", ""),
                 "CONTENT_LENGTH": str(len(body)), "HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""),
                 "GIT_PROTOCOL": headers.get("git-protocol", "")}
        done = subprocess.run(["git", "http-backend"], input=body, env=env | given, stdout=subprocess.PIPE)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = [line.split(": ", 1) for line in head.decode().splitlines()]
        status = next((int(value[:3]) for name, value in fields if name == "Status"), 200)
        return status, [field for field in fields if field[0] != "Status"], content

    return Outage(answer), git("rev-parse", "HEAD")


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


def artifact_case(crcr, official, kind, server, env, folder):
    """An outage of an artifact's store, and the command that meets it."""
    outage = in_front_of(env.get("BENCH_ENDPOINT") or env["ACTIONS_RESULTS_URL"])
    if kind == "s3":
        if official:
            return outage, [sys.executable, "-c", PUT_OBJECT, outage.url, folder / "dist/a.txt"]
        return outage, [crcr, "artifact", "upload", "--name", "bench", "--path", "dist", "--s3-bucket", "bench",
                        "--s3-endpoint", outage.url, "--aws-region", "us-east-1", "--fallback", "never"]
    env["ACTIONS_RESULTS_URL"] = env["CRCR_RESULTS_URL"] = outage.url + "/"
    upload = [crcr, "artifact", "upload", "--name", "bench", "--path", "dist"]
    if kind == "upload":
        peer = [NODE, PEERS / "artifact.mjs", "upload", "bench", folder / "dist", 6, folder / "dist/a.txt"]
        return outage, peer if official else upload
    if not run(upload, env, folder)[1]:
        raise RuntimeError("the artifact to download can't be stored")
    told = dict(re.findall(r"^([a-z-]+)=(.*)$", (folder / "output").read_text(), re.M))
    peer = [NODE, PEERS / "artifact.mjs", "download", told["artifact-id"], folder / "out",
            f"sha256:{told['artifact-digest']}"]
    return outage, peer if official else [crcr, "artifact", "download", "--name", "bench", "--path", "out"]


def credentials_case(crcr, official, kind, server, env, folder):
    """An outage of the token's endpoint or of STS."""
    sts = Outage(lambda *_: (200, [("content-type", "text/xml")], CREDENTIALS))
    issuer = urlsplit(env["ACTIONS_ID_TOKEN_REQUEST_URL"])
    token = in_front_of(f"{issuer.scheme}://{issuer.netloc}")
    env["ACTIONS_ID_TOKEN_REQUEST_URL"] = env["ACTIONS_ID_TOKEN_REQUEST_URL"].replace(
        f"{issuer.scheme}://{issuer.netloc}", token.url)
    own = [crcr, "oidc", "configure", "--role-to-assume", ROLE, "--aws-region", "us-east-1", "--sts-endpoint",
           sts.url]
    if kind == "sts":
        return sts, [sys.executable, "-c", ASSUME_ROLE, sts.url, ROLE] if official else own
    script = PEERS / f".token-{os.getpid()}-{threading.get_ident()}.mjs"
    script.write_text(GET_TOKEN)
    (folder / "scripts").symlink_to(script)
    return token, [NODE, script] if official else own


def checkout_case(crcr, official, kind, server, env, folder):
    outage, commit = git_server(folder / "git")
    url = f"{outage.url}/acme/upstream"
    if official:
        return outage, ["git", "clone", "--quiet", "--depth", "1", url, "src"]
    return outage, [crcr, "checkout", "--repository", "acme/upstream", "--sha", commit, "--path", "src",
                    "--server-url", outage.url]


CASES = {"oidc": credentials_case, "sts": credentials_case, "checkout": checkout_case}


def one_case(crcr, binary, official, call, seconds):
    kind, method, path, _ = CALLS[call]
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        (folder / "dist").mkdir()
        (folder / "dist/a.txt").write_text("a\n" * 1000)
        server = subprocess.Popen([binary, "s3" if kind == "s3" else "github"], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            env = environment(server)
            env |= {"PATH": os.environ["PATH"], "HOME": work, "RUNNER_TEMP": work,
                    "GITHUB_WORKSPACE": work, "GITHUB_OUTPUT": f"{work}/output", "GITHUB_ENV": f"{work}/env",
                    "GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "acme/upstream",
                    "GITHUB_RUN_ID": "4242", "GITHUB_SERVER_URL": "https://github.com"}
            case = CASES.get(kind, artifact_case)
            outage, command = case(crcr, official, kind, server, env, folder)
            outage.begin(method, path, seconds)
            result = run(command, env, folder)
            if outage.until is None:
                raise RuntimeError(f"{command[0]} never sent {call}")
            return result
        finally:
            if (folder / "scripts").exists():
                (folder / "scripts").resolve().unlink()
            server.stdin.close()
            server.wait()


def cell(result):
    seconds, ended = result
    return f"{'survived' if ended else '**failed**'}, {seconds:.0f} s"


def main():
    crcr, binary, *lengths = sys.argv[1:]
    crcr, binary = Path(crcr).resolve(), Path(binary).resolve()
    lengths = [int(length) for text in lengths for length in text.split()]
    cases = [(call, length, official) for call in CALLS for length in lengths for official in (False, True)]
    with ThreadPoolExecutor(len(cases)) as pool:
        running = {case: pool.submit(one_case, crcr, binary, case[2], case[0], case[1])
                   for case in cases}
    print("| call | 503 for | crcr | other client | |\n|---|---|---|---|---|")
    for call, (*_, peer) in CALLS.items():
        for length in lengths:
            cells = [cell(running[call, length, official].result()) for official in (False, True)]
            print(f"| {call} | {length} s | {' | '.join(cells)} | {peer} |")


main()
