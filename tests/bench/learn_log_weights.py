#!/usr/bin/env python3
"""Learns how much each feature of a line counts in `crcr logs classify`, from labelled logs.

usage: tests/bench/learn_log_weights.py CRCR FOLDER...     (needs numpy and scipy)

Each FOLDER is one that `crcr logs test --fixtures` takes. The weights go to crates/crcr-cidata/src/logs/weights.toml.
First they are learned five times from four fifths of the projects and counted on the fifth left out: that is what
docs/benchmarks.md shows for logs of projects that nothing was learned from.

The model is a conditional logit: of all lines of a log, and the case that none of them explains the failure, one is
chosen with a probability that grows with the sum of its weighted features.
"""

import json
import pathlib
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

HEADER = """\
# How much each feature of a line counts; features.rs has what they are.
#
# Learned by tests/bench/learn_log_weights.py from the labelled logs of this repository (tests/fixtures/logs) and from
# parts of two public sets, of which nothing but these sums is here:
# - LogChunks (Brandt, Panichella, Zaidman, Beller, MSR 2020; github.com/lacinoire/master-thesis): 419 logs of 42 projects
# - CiDiff (github.com/labri-progress/cidiff, Apache-2.0): 46 pairs of logs
# The weights are under the licence of this repository.
"""


def read(crcr, folder):
    with tempfile.NamedTemporaryFile() as file:
        command = [crcr, "logs", "test", "--fixtures", folder, "--features", file.name]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        names, *logs = (json.loads(line) for line in open(file.name))
    names = names["names"] + [NO_LINE]
    result = []
    for log in logs:
        values = np.zeros((len(log["lines"]) + 1, len(names)))
        for row, line in zip(values, log["lines"]):
            row[:-1] = line["values"]
        values[-1, -1] = 1
        right = np.array([line["right"] for line in log["lines"]] + [False])
        right[-1] = not right.any()
        parts = log["file"].split("__")
        result.append((parts[1] if len(parts) > 2 else log["file"], len(parts) > 1, values, right))
    return names, result


def learn(logs):
    logs = [(values, right, 1.0 if public else OWN_LOGS) for _, public, values, right in logs]
    total = sum(weight for _, _, weight in logs)

    def loss(weights):
        sum_of_logs, gradient = 0.0, np.zeros(len(weights))
        for values, right, weight in logs:
            scores = values @ weights
            powers = np.exp(scores - scores.max())
            of_all, of_right = powers.sum(), powers[right].sum()
            sum_of_logs -= weight * np.log(of_right / of_all + 1e-12)
            chosen = np.where(right, powers / max(of_right, 1e-12), 0)
            gradient += weight * (values.T @ (powers / of_all - chosen))
        return (
            sum_of_logs / total + PENALTY * weights @ weights,
            gradient / total + 2 * PENALTY * weights,
        )

    start = np.zeros(logs[0][0].shape[1])
    return minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 300}).x


def count(logs, weights, names):
    """Right at first, right among three, and no line."""
    specific, section = names.index("specific rule"), names.index("in a failing section")
    first = among_three = nothing = 0
    for _, _, values, right in logs:
        scores = values @ weights
        order = list(np.argsort(-scores, kind="stable"))
        by_rule = np.flatnonzero((values[:, specific] > 0) & (values[:, section] > 0))
        if len(by_rule):
            order.insert(0, max(by_rule, key=lambda line: scores[line]))
        lines = [line for line in dict.fromkeys(order) if line != len(values) - 1][:3]
        is_unsure = order[0] == len(values) - 1
        nothing += is_unsure
        first += bool(not is_unsure and right[order[0]])
        among_three += bool(right[lines].any())
    return first, among_three, nothing


def main():
    crcr, *folders = sys.argv[1:]
    logs = []
    for folder in folders:
        names, of_folder = read(crcr, folder)
        logs += of_folder
    projects = sorted({project for project, *_ in logs})
    fold = {project: number % FOLDS for number, project in enumerate(projects)}
    totals = np.zeros(3, int)
    for number in range(FOLDS):
        weights = learn([log for log in logs if fold[log[0]] != number])
        totals += count([log for log in logs if fold[log[0]] == number], weights, names)
    print(f"of projects left out: {totals[0]} of {len(logs)} right, {totals[1]} among three, {totals[2]} without a line")
    weights = learn(logs)
    first, among_three, nothing = count(logs, weights, names)
    print(f"of all: {first} right, {among_three} among three, {nothing} without a line")
    lines = (f'"{name}" = {weight:.2f}\n' for name, weight in zip(names, weights))
    WEIGHTS.write_text(HEADER + "\n[weights]\n" + "".join(lines))


main()
