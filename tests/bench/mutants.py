#!/usr/bin/env python3
"""Changes one operator, condition or result of the code at a time, and finds out which changes no test notices.

usage: tests/bench/mutants.py tests CRATE [EVERY [FIRST]]     by the unit tests of a crate, such as `domain`
       tests/bench/mutants.py sample [COUNT [CRATE...]]       the same, of changes spread over several crates
       tests/bench/mutants.py simulator [COUNT [SEEDS]]       by the simulator, of the files that it runs

`cargo mutants --list` says what can be changed (`cargo install cargo-mutants --locked`). Instead of building each change,
all of them are put into one program, where an environment variable chooses the one that is made. EVERY: take only every
EVERYth change, beginning with the FIRST (from 0). COUNT: as many in all, 200 in a sample and 100 for the simulator. Needs tree-sitter (`pip install tree-sitter tree-sitter-rust`).

The copy and its build are in target/mutants. A change that doesn't compile there is left out, and counted. A change
that lasts longer than five times its tests or the simulations counts as noticed. It ends with 1 if a change wasn't
noticed.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import tree_sitter
import tree_sitter_rust

VARIABLE = "CRCR_MUTANT"
# What the simulator runs of the relay, the store and the domain. The rest is text, settings and what operators ask for.
SIMULATED = [
    "crates/crcr-domain/src/checks/",
    "crates/crcr-relay/src/breaker.rs",
    "crates/crcr-relay/src/callback/dispatched_job.rs",
    "crates/crcr-relay/src/queue/handlers/",
    "crates/crcr-relay/src/queue/workers.rs",
    "crates/crcr-relay/src/webhook/",
    "crates/crcr-store/src/batch.rs",
    "crates/crcr-store/src/memory.rs",
    "crates/crcr-store/src/task.rs",
]
# Parts of it that docs/simulation.md says it leaves out: logs of jobs, the archive, alerts, comments, and texts of authors.
NOT_SIMULATED = [
    "crates/crcr-relay/src/queue/handlers/alert.rs",
    "crates/crcr-relay/src/queue/handlers/comment.rs",
    "crates/crcr-relay/src/queue/handlers/job_log.rs",
    "crates/crcr-relay/src/queue/handlers/keep_webhook.rs",
    "crates/crcr-relay/src/queue/handlers/merge_base.rs",
    "crates/crcr-relay/src/queue/handlers/webhook_owner.rs",
    "crates/crcr-relay/src/webhook/payload.rs",
]
# The crates of a sample.
SAMPLED = ["relay", "store", "results", "artifacts"]
# The switch of each crate that has changes.
SWITCH = """
pub(crate) fn is_mutant(id: u32) -> bool {
    static CHOSEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| {
        std::env::var("CRCR_MUTANT").ok().and_then(|id| id.parse().ok()).unwrap_or(u32::MAX)
    }) == id
}
"""

root = pathlib.Path(__file__).resolve().parents[2]
copy = root / "target/mutants/copy"
environment = os.environ | {
    "CARGO_TARGET_DIR": str(root / "target/mutants/build"),
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    "CARGO_INCREMENTAL": "0",
    "RUST_BACKTRACE": "0",
    "PROPTEST_MAX_SHRINK_ITERS": "0",
    "INSTA_UPDATE": "no",
    "INSTA_WORKSPACE_ROOT": str(copy),
}
rust = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language()))
EXPRESSIONS = {
    "BinaryOperator": ["binary_expression", "compound_assignment_expr"],
    "UnaryOperator": ["unary_expression"],
}


def listed(crates):
    """All changes of some crates, by `cargo mutants`. Those of a field that isn't set can't be made while a program runs."""
    found = []
    for crate in crates:
        command = ["cargo", "mutants", "--list", "--json", "--package", f"crcr-{crate}"]
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
        found += [one for one in json.loads(listed.stdout) if one["genre"] != "StructField"]
    return found


def spread(mutants, count):
    return mutants[:: max(1, len(mutants) // count)][:count]


def crate_of(mutant):
    return mutant["file"].removeprefix("crates/crcr-").split("/")[0]


class SourceFile:
    """A file, and the places in it that change."""

    def __init__(self, name):
        self.name = name
        self.source = (root / name).read_bytes()
        self.lines = self.source.split(b"\n")
        self.tree = rust.parse(self.source).root_node
        # Of each place, by its bytes: the changes that are made there.
        self.places = collections.defaultdict(list)

    def offset(self, at):
        """`cargo mutants` counts characters, from 1."""
        line = self.lines[at["line"] - 1].decode()
        before = sum(len(one) + 1 for one in self.lines[: at["line"] - 1])
        return before + len(line[: at["column"] - 1].encode())

    def add(self, number, mutant):
        """Notes a change. False: there is no way to make it while the program runs."""
        start, end = (self.offset(mutant["span"][side]) for side in ("start", "end"))
        genre, replacement = mutant["genre"], mutant["replacement"]
        if genre == "FnValue":
            # What returns `impl Iterator` can have only one type.
            if replacement.startswith("::std::iter::"):
                return False
            return self.note((start, end), number, "body", replacement)
        node = self.tree.descendant_for_byte_range(start, end)
        if genre in EXPRESSIONS:
            while node and node.type not in EXPRESSIONS[genre]:
                node = node.parent
            operator = node and (node.child_by_field_name("operator") or node.children[0])
            if not operator or (operator.start_byte, operator.end_byte) != (start, end):
                return False
            changed = self.source[node.start_byte : start].decode() + replacement
            changed += self.source[end : node.end_byte].decode()
            return self.note((node.start_byte, node.end_byte), number, "expression", changed)
        if genre == "MatchArmGuard":
            return self.note((start, end), number, "expression", replacement)
        if genre == "MatchArm":
            while node and node.type != "match_arm":
                node = node.parent
            pattern = node and node.child_by_field_name("pattern")
            if not pattern:
                return False
            condition = pattern.child_by_field_name("condition")
            at = (condition or pattern).end_byte
            return self.note((at, at), number, "arm" if condition else "new arm", "")
        return False

    def note(self, place, number, kind, text):
        self.places[place].append((number, kind, text))
        return True

    def changed(self):
        """The whole file with all changes in it."""
        order = sorted(self.places, key=lambda place: (place[0], -place[1]))
        return self.render(0, len(self.source), order)

    def render(self, start, end, places):
        text, at = b"", start
        places = list(places)
        while places:
            place = places.pop(0)
            inner = [one for one in places if one[1] <= place[1] and one[0] < place[1]]
            places = [one for one in places if one not in inner]
            text += self.source[at : place[0]]
            text += self.with_switches(place, self.render(*place, inner))
            at = place[1]
        return text + self.source[at:end]

    def with_switches(self, place, text):
        numbers = self.places[place]
        kinds = {kind for _, kind, _ in numbers}
        chosen = lambda number: f"crate::is_mutant({number})".encode()
        if kinds <= {"arm", "new arm"}:
            switches = b" && ".join(b"!" + chosen(number) for number, *_ in numbers)
            return (b" && " if "arm" in kinds else b" if ") + switches
        if kinds == {"body"}:
            # In a block, so that attributes and items within the body keep their place.
            switches = b" ".join(
                b"if " + chosen(number) + b" { return " + value.encode() + b"; }"
                for number, _, value in numbers
            )
            return switches + b" " + text
        switches = b" else ".join(
            b"if " + chosen(number) + b" { " + value.encode() + b" }"
            for number, _, value in numbers
        )
        return b"(" + switches + b" else { " + text + b" })"


def write(mutants, dropped):
    """Writes the copy with all changes that aren't dropped. Returns the numbers of those that are in it."""
    files, made = {}, set()
    for number, mutant in enumerate(mutants):
        if number not in dropped:
            file = files.setdefault(mutant["file"], SourceFile(mutant["file"]))
            if file.add(number, mutant):
                made.add(number)
    crates = {name.split("/src/")[0] + "/src/lib.rs" for name in files}
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if not (root / name).is_file():
            continue
        content = files[name].changed() if name in files else (root / name).read_bytes()
        if name in crates:
            content += SWITCH.encode()
        target = copy / name
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    return made


def build(mutants, target):
    """Builds the copy, without the changes that don't compile. Returns the program and the numbers of the changes."""
    dropped = set()
    while True:
        made = write(mutants, dropped)
        command = ["cargo", target[0], "--workspace", "--locked", "--message-format", "json", *target[1:]]
        built = subprocess.run(
            command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
        if built.returncode == 0:
            programs = [one["executable"] for one in messages if one.get("executable")]
            return programs, made
        wrong = set()
        for message in messages:
            if message.get("message", {}).get("level") == "error":
                wrong |= numbers_in(message["message"])
        print(f"{len(wrong)} changes don't compile", flush=True)
        if not wrong - dropped:
            sys.exit(f"the copy doesn't compile:\n{built.stderr[-3000:]}")
        dropped |= wrong


def numbers_in(message):
    """The change that an error is about: the last one before it on its lines, or else all of those lines."""
    spans = [*message["spans"], *(span for child in message["children"] for span in child["spans"])]
    on_lines = set()
    for span in sorted(spans, key=lambda span: not span["is_primary"]):
        path = copy / span["file_name"]
        if not path.is_file():
            continue
        lines = path.read_text().split("\n")[span["line_start"] - 1 : span["line_end"]]
        numbers = re.findall(r"is_mutant\((\d+)\)", lines[0][: span["column_end"]])
        if numbers and span["is_primary"]:
            return {int(numbers[-1])}
        on_lines |= {int(number) for line in lines for number in re.findall(r"is_mutant\((\d+)\)", line)}
    return on_lines


def test_program(crate, programs):
    name = f"crcr_{crate}"
    return next(one for one in programs if re.fullmatch(name + "-[0-9a-f]+", os.path.basename(one)))


def slow_tests(program, crate):
    """The tests that take more than half a second, and how many seconds each takes, the quickest first."""
    tests = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout
    seconds = {}
    for name in re.findall(r"^(.+): test$", tests, re.MULTILINE):
        began = time.monotonic()
        if run_tests(program, crate, None, 3600, [name, "--exact"]):
            sys.exit(f"{name} fails without any change")
        seconds[name] = time.monotonic() - began
    slow = [name for name in seconds if seconds[name] > 0.5]
    return {name: seconds[name] for name in sorted(slow, key=seconds.get)}


def run_tests(program, crate, number, limit, chosen):
    """Whether one of the chosen tests notices the change."""
    environ = environment | {"CARGO_MANIFEST_DIR": str(copy / f"crates/crcr-{crate}")}
    if number is not None:
        environ[VARIABLE] = str(number)
    ends = time.monotonic() + limit
    with subprocess.Popen(
        [program, "--include-ignored", *chosen],
        cwd=copy / f"crates/crcr-{crate}",
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as run:
        os.set_blocking(run.stdout.fileno(), False)
        seen = b""
        while True:
            seen += run.stdout.read() or b""
            is_over = run.poll() is not None
            if not is_over and (b"... FAILED" in seen or time.monotonic() > ends):
                os.killpg(run.pid, 9)
                return True
            if is_over:
                return run.returncode != 0
            time.sleep(0.02)


def measure_tests(mutants):
    programs, made = build(mutants, ["test", "--no-run", "--lib"])
    tests = {crate: test_program(crate, programs) for crate in sorted(set(map(crate_of, mutants)))}
    # Nine in ten changes are noticed within a second, before a slow test has begun. Each pass has its limit in seconds.
    passes = {}
    for crate, program in tests.items():
        slow = slow_tests(program, crate)
        quick = ["--exact", *(word for name in slow for word in ("--skip", name))]
        began = time.monotonic()
        run_tests(program, crate, None, 3600, quick)
        passes[crate] = [(quick, 20 + 5 * (time.monotonic() - began))]
        passes[crate] += [([name, "--exact"], 20 + 5 * seconds) for name, seconds in slow.items()]

    def is_noticed(number):
        crate = crate_of(mutants[number])
        return any(run_tests(tests[crate], crate, number, limit, chosen) for chosen, limit in passes[crate])

    return mutants, made, is_noticed


def measure_simulator(count, seeds):
    every = listed(["domain", "relay", "store"])
    every = [one for one in every if one["file"].startswith(tuple(SIMULATED))]
    mutants = spread([one for one in every if one["file"] not in NOT_SIMULATED], count)
    programs, made = build(mutants, ["build", "--release", "--example", "seeds"])
    (program,) = [one for one in programs if os.path.basename(one) == "seeds"]

    def finding(number, limit):
        """How the simulator notices a change, which may be that it has to be killed. None: it doesn't."""
        with subprocess.Popen(
            [program, "0", str(seeds), "120"],
            env=environment | ({} if number is None else {VARIABLE: str(number)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as run:
            timer = threading.Timer(limit, run.kill)
            timer.start()
            for line in run.stdout:
                if re.match(r"seed \d+, step \d+: |thread .* panicked", line):
                    run.kill()
                    break
            else:
                line = None if run.wait() == 0 else f"it ended with {run.returncode}"
            timer.cancel()
        return line

    began = time.monotonic()
    if without := finding(None, 3600):
        sys.exit(f"the simulator finds something without any change: {without}")
    limit = 30 + 5 * (time.monotonic() - began)

    def is_noticed(number):
        line = finding(number, limit)
        if line:
            print(f"  {mutants[number]['name']}: {line.strip()[:150]}", flush=True)
        return line is not None

    return mutants, made, is_noticed


def main():
    match sys.argv[1:]:
        case ["tests", crate, *rest]:
            every, first = (list(map(int, rest)) + [1, 0][len(rest) :])[:2]
            mutants, made, is_noticed = measure_tests(listed([crate])[first::every])
        case ["sample", *rest]:
            mutants = spread(listed(rest[1:] or SAMPLED), int(rest[0]) if rest else 200)
            mutants, made, is_noticed = measure_tests(mutants)
        case ["simulator", *rest]:
            count, seeds = (list(map(int, rest)) + [100, 1000][len(rest) :])[:2]
            mutants, made, is_noticed = measure_simulator(count, seeds)
        case _:
            sys.exit(__doc__)
    print(f"{len(mutants)} changes, {len(made)} of them can be made", flush=True)
    jobs = int(os.environ.get("JOBS", "2"))
    missed = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for number, noticed in zip(sorted(made), pool.map(is_noticed, sorted(made)), strict=True):
            if not noticed:
                missed.append(number)
                print(f"missed: {mutants[number]['name']}", flush=True)
    print(f"{len(made) - len(missed)} of {len(made)} noticed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
