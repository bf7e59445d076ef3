#!/usr/bin/env python3
"""Learns how much each feature of a line counts in `crcr logs classify`, from labelled logs.

usage: tests/bench/learn_log_weights.py CRCR FOLDER...     (needs numpy and scipy)

Each FOLDER is one that `crcr logs test --fixtures` takes. The weights go to crates/crcr-cidata/src/logs/weights.toml.
First they are learned five times from four fifths of the projects and counted on the fifth left out, for each of
five divisions of the projects: their mean is what docs/benchmarks.md shows for logs of projects that nothing was
learned from.

The model is a conditional logit: of all lines of a log, and the case that none of them explains the failure, one is
chosen with a probability that grows with the sum of its weighted features.
"""

import collections
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import numpy as np
from scipy.optimize import minimize

WEIGHTS = pathlib.Path(__file__).parents[2] / "crates/crcr-cidata/src/logs/weights.toml"
NO_LINE = "none of the lines"
# Larger ones fit the logs that are learned from better, and others worse.
PENALTY = 0.0007
# Logs that were made for this repository, of few kinds, count less than those of other projects.
OWN_LOGS = 0.5
FOLDS = 5
# Which projects are left out together moves the result by several percent, so it is the mean of several divisions.
DIVISIONS = 5
# Taken from a line that the green run has, too, beyond what is learned: few of the labelled logs have such an error.
GREEN_RUN = "in the green run, too"
GREEN_RUN_PENALTY = 3.0
# The same for a line of a step that didn't fail, as most of the labelled logs have no steps.
OTHER_STEP = "in another step"
OTHER_STEP_PENALTY = 2.0
# Weigh at least as much as a line of a specific rule: few of the labelled tracebacks end with an unusual name, and few
# logs are of a formatter that prints nothing but a diff.
LIKE_A_RULE = ["end of a traceback", "file of a diff"]

HEADER = """\
# How much each feature of a line counts; features.rs has what they are.
#
# Learned by tests/bench/learn_log_weights.py from the labelled logs of this repository (tests/fixtures/logs) and from
# parts of two public sets, of which nothing but these sums is here:
# - LogChunks (C. Brandt, A. Panichella, A. Zaidman, M. Beller, MSR 2020; doi:10.5281/zenodo.3632351, CC BY 4.0):
#   419 logs of 42 projects
# - CiDiff (github.com/labri-progress/cidiff, Apache-2.0): 46 pairs of logs
# The weights are under the licence of this repository.
"""


class Log:
    def __init__(self, folder, log, names):
        self.values = np.zeros((len(log["lines"]) + 1, len(names)))
        for row, line in zip(self.values, log["lines"]):
            row[:-1] = line["values"]
        self.values[-1, -1] = 1
        self.right = np.array([line["right"] for line in log["lines"]] + [False])
        self.right[-1] = not self.right.any()
        # The line that a specific rule decides for; a number that no line has if it wasn't weighed.
        self.rule = None
        if log["by_rule"]:
            numbers = [line["line"] for line in log["lines"]]
            number = log["by_rule"]["line"]
            self.rule = numbers.index(number) if number in numbers else -1
            self.rule_is_right = log["by_rule"]["right"]
        parts = log["file"].split("__")
        self.is_public = len(parts) > 1
        # LogChunks has the language in the name, CiDiff has Terraform's jobs and Java's projects.
        self.project = parts[1] if len(parts) > 2 else re.sub(r"_\d+\.log\.gz$", "", log["file"])
        self.language = parts[0] if len(parts) > 2 else "Java" if self.is_public else "own"
        self.language = {"breakages_dump": "Go (Terraform)"}.get(self.language, self.language)
        self.set = pathlib.Path(folder).name
        self.share = 1.0 if self.is_public else OWN_LOGS
        self.tells = np.array([line["tells"] for line in log["lines"]] + [False])
        self.tells_if_likeliest = np.array([line["tells_if_likeliest"] for line in log["lines"]] + [False])


def features(crcr, folder, *arguments):
    with tempfile.NamedTemporaryFile() as file:
        command = [crcr, "logs", "test", "--fixtures", folder, "--features", file.name, *arguments]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        names, *logs = (json.loads(line) for line in open(file.name))
    names = names["names"] + [NO_LINE]
    return names, [Log(folder, log, names) for log in logs]


def with_earlier_logs(folder, new):
    """Makes a folder whose labels name the earlier failed logs of the same project, by their Travis numbers.
    Returns whether there are any."""
    names = sorted(os.listdir(folder))
    of_project = collections.defaultdict(list)
    for name in names:
        os.symlink(os.path.abspath(f"{folder}/{name}"), f"{new}/{name}")
        if "__failed__" in name:
            of_project[name.split("__failed__")[0]].append(name)
    number = lambda name: int(name.split("__")[-1].split(".")[0])
    earlier = {}
    for logs in of_project.values():
        logs.sort(key=number)
        earlier |= {log: logs[:place] for place, log in enumerate(logs) if place > 0}
    line = lambda name: f'file = "{name}"\nearlier = {json.dumps(earlier[name])}\n' if name in earlier else None
    text = open(f"{folder}/labels.toml").read()
    text = re.sub(r'^file = "(.*)"\n', lambda found: line(found[1]) or found[0], text, flags=re.M)
    os.remove(f"{new}/labels.toml")
    open(f"{new}/labels.toml", "w").write(text)
    return bool(earlier)


def learn(logs):
    values = np.concatenate([log.values for log in logs])
    right = np.concatenate([log.right for log in logs])
    sizes = [len(log.values) for log in logs]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    of_log = np.repeat(np.arange(len(logs)), sizes)
    share = np.array([log.share for log in logs])
    share /= share.sum()

    def loss(weights):
        scores = values @ weights
        powers = np.exp(scores - np.maximum.reduceat(scores, starts)[of_log])
        of_all = np.add.reduceat(powers, starts)
        of_right = np.add.reduceat(powers * right, starts)
        chosen = np.where(right, powers / np.maximum(of_right, 1e-12)[of_log], 0)
        gradient = values.T @ (share[of_log] * (powers / of_all[of_log] - chosen))
        sum_of_logs = -(share * np.log(of_right / of_all + 1e-12)).sum()
        return sum_of_logs + PENALTY * weights @ weights, gradient + 2 * PENALTY * weights

    start = np.zeros(values.shape[1])
    return minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 300}).x


def count(log, weights):
    """One log: right at first, right among three, no line."""
    scores = log.values @ weights
    order = list(np.argsort(-scores, kind="stable"))
    no_line = len(log.values) - 1
    lines = [line for line in order if line != no_line]
    if log.rule is not None:
        rest = [line for line in lines if line != log.rule][:2]
        return np.array([log.rule_is_right, log.rule_is_right or log.right[rest].any(), False], int)
    share = 1 / np.exp(scores - scores[order[0]]).sum()
    tells = (log.tells_if_likeliest if share > 0.5 else log.tells)[order[0]]
    is_unsure = order[0] == no_line or not tells
    return np.array([not is_unsure and log.right[order[0]], log.right[lines[:3]].any(), is_unsure], int)


def table(rows):
    """`rows`: a name, and the logs counted by it, each with the same logs and what else is known of them or not."""
    print("| | logs | right | right among three | no line |\n|---|---|---|---|---|")
    for name, results in rows:
        right, among_three, nothing = sum(results)
        logs = len(results)
        share = lambda count: f"{count:.0f} ({count / logs:.0%})"
        print(f"| {name} | {logs} | {share(right)} | {share(among_three)} | {nothing:.0f} |")


def main():
    crcr, *folders = sys.argv[1:]
    logs, kinds = [], []
    for folder in folders:
        names, alone = features(crcr, folder, "--without-baseline")
        _, with_green = features(crcr, folder)
        with tempfile.TemporaryDirectory() as new:
            with_earlier = features(crcr, new)[1] if with_earlier_logs(folder, new) else []
        has_green = any((a.values != b.values).any() for a, b in zip(alone, with_green) if a.values.shape == b.values.shape)
        variants = [("alone", alone)]
        variants += [("with green logs", with_green)] if has_green else []
        variants += [("with earlier logs", with_earlier)] if with_earlier else []
        for kind, of_kind in variants:
            for log in of_kind:
                log.kind, log.set = kind, pathlib.Path(folder).name
                log.share /= len(variants)
            logs += of_kind
    projects = sorted({log.project for log in logs})
    green, rule = names.index(GREEN_RUN), names.index("specific rule")
    other_step = names.index(OTHER_STEP)
    like_a_rule = [names.index(name) for name in LIKE_A_RULE]

    def weights_of(logs):
        weights = learn(logs)
        weights[green] -= GREEN_RUN_PENALTY
        weights[other_step] -= OTHER_STEP_PENALTY
        weights[like_a_rule] = np.maximum(weights[like_a_rule], weights[rule])
        return weights

    sums = np.zeros((len(logs), 3))
    for division in range(DIVISIONS):
        random.Random(division).shuffle(projects)
        fold = {project: number % FOLDS for number, project in enumerate(projects)}
        weights = [weights_of([log for log in logs if fold[log.project] != number]) for number in range(FOLDS)]
        sums += [count(log, weights[fold[log.project]]) for log in logs]
    results = collections.defaultdict(list)
    of_language = collections.defaultdict(list)
    for log, result in zip(logs, sums / DIVISIONS):
        results[f"{log.set}, {log.kind}"].append(result)
        if log.is_public and log.kind == ("with green logs" if log.set == "cidiff" else "alone"):
            of_language[f"{log.set}: {log.language}"].append(result)
    print("Projects that nothing was learned from:\n")
    table(results.items())
    print()
    table(sorted(of_language.items()))
    weights = weights_of(logs)
    results = collections.defaultdict(list)
    for log in logs:
        results[f"{log.set}, {log.kind}"].append(count(log, weights))
    print("\nThe weights that are written:\n")
    table(results.items())
    by_rule = [log.rule_is_right for log in logs if log.rule is not None and log.kind == "alone"]
    percent = round(100 * sum(by_rule) / len(by_rule))
    print(f"\nspecific rules: {sum(by_rule)} of {len(by_rule)} right")
    lines = (f'"{name}" = {weight:.2f}\n' for name, weight in zip(names, weights))
    rules = f"\n[specific_rules]\n# {sum(by_rule)} of {len(by_rule)} labelled logs.\nright_percent = {percent}\n"
    WEIGHTS.write_text(HEADER + rules + "\n[weights]\n" + "".join(lines))


main()
