#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The demo several times: what one run shows may be luck.

usage: comparison.py KERNEL [ROUNDS]     (about 5 minutes a round, 3 rounds by default)

Prints the median and the range of each measure by workload and arm. Fails when `crossed` misses a goal in any round, or
when its median remote share at the end is not lower under scx_tandem than under the stock scheduler. `perf` is shown
only: in a guest without memory latency all its threads look alike, and where they end is a matter of luck in both arms.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEASURES = ("remote_share_end", "pairs_together_end", "time_to_90_percent_local_s", "thread_moves", "page_moves")


def demo(kernel, folder):
    """The report of one round, which has `folder` for itself: the report of another must not stand in for it."""
    command = [sys.executable, ROOT / "vm/demo/demo.py", "--kernel", kernel, "--seconds", "45",
               "--json", folder / "demo.json", "--runs", folder]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout, flush=True)
    # A missed goal is in the report; without one there is nothing to compare.
    return json.loads((folder / "demo.json").read_text())


def by_arm(rounds):
    """Values of all rounds: {(workload, arm, measure): [...]}."""
    values = {}
    for report in rounds:
        for workload in report["workloads"]:
            for arm in workload["arms"]:
                for measure in MEASURES:
                    values.setdefault((workload["name"], arm["name"], measure), []).append(arm["measures"][measure])
    return values


def described(values):
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    missing = f", {len(values) - len(known)} without" if len(known) < len(values) else ""
    return f"median {statistics.median(known):.3g} ({min(known):.3g} to {max(known):.3g}{missing})"


def failures(rounds):
    """What the rounds do not show, in sentences."""
    found = [
        f"round {number}: {goal['workload']}: {goal['goal']}: {goal['measured']}"
        for number, report in enumerate(rounds, 1) for goal in report["goals"] if not goal["met"]
    ]
    values = by_arm(rounds)
    shares = {arm: values["crossed", arm, "remote_share_end"] for arm in ("stock", "tandem")}
    unknown = [arm for arm, known in shares.items() if None in known]
    if unknown:
        return [*found, f"crossed: a round has no remote share of {' and '.join(unknown)}"]
    stock, tandem = map(statistics.median, shares.values())
    if not tandem < stock:
        found.append(f"crossed: median remote share {tandem:.3f} under scx_tandem, {stock:.3f} under stock")
    return found


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    kernel, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 3
    rounds = []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(demo(kernel, pathlib.Path(folder)))
    for (workload, arm, measure), values in by_arm(rounds).items():
        print(f"{workload:8} {arm:7} {measure:28} {described(values)}")
    if missed := failures(rounds):
        sys.exit("comparison: " + "; ".join(missed))


if __name__ == "__main__":
    main()
