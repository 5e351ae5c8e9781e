#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Plays the lab's part towards `tandem ab`, without a machine: same arguments, same files, same exit codes.

What it does is in behaviour.json beside it: {"seconds": {ARM: S}, "crash": [ARM], "eject": [ARM], "walks": [...],
"hang": [ARM], "wait": [ARM]}; who waits does so until there is a file `go` beside it, for a minute at most. Every call is a line in calls.log beside it.
"""

import json
from pathlib import Path
import signal
import sys
import time

HERE = Path(__file__).resolve().parent
MARKS = {"begin": 1, "end": 2}


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


def arm(command):
    """The arm's name from the words that the guest would run."""
    _, _, balancing, thp, _, scheduler, *rest = command
    placement = rest[rest.index("--placement") + 1]
    if placement != "none":
        return placement
    if scheduler:
        return Path(scheduler.split()[0]).name
    return f"stock-nb{balancing}" + ("-thp" if thp == "always" else "")


def record(at_s, mark, remote, seconds):
    at_ns = int(at_s * 1e9)
    accesses = [[0, int(1000 * remote * seconds)], [0, int(1000 * (1 - remote) * seconds)]] if mark == MARKS["end"] else [[0, 0], [0, 0]]
    return {"at_ns": at_ns, "mark": mark, "accesses": accesses, "busy_ns": [at_ns] * 8, "instructions": [at_ns // 2] * 8}


def leave_results(out, name, seconds, seed):
    remote = 0.0 if name == "oracle" else 0.5
    records = [record(2, 1, remote, seconds), record(2 + seconds, 2, remote, seconds)]
    (out / "truth.json").write_text(json.dumps({"schema": 1, "cpus_per_node": [4, 4], "records": records}))
    report = {
        "workload": "crossed", "placement": "none", "seed": seed, "threads": 8, "metric": "seconds", "unit": "s",
        "better": "lower", "value": seconds, "seconds": seconds, "work": 1, "work_unit": "lines", "work_per_s": 1 / seconds, "check": "ok",
        "p99_ns": None, "node_ids": [0, 1], "pages_per_node": [10, 20], "threads_per_node": [4, 4], "thread_moves": 1,
        "run_delay_ns": [0] * 8,
    }
    (out / "workload.out").write_text(json.dumps(report) + "\n")
    for moment in ("before", "after"):
        (out / f"energy.{moment}").touch()
    (out / "vmstat.before").write_text("pgmigrate_success 1\nnuma_pte_updates 2\n")
    (out / "vmstat.after").write_text("pgmigrate_success 11\nnuma_pte_updates 5\n")


def fail(code, sentence):
    print(f"lab: {sentence}; kernel log: /tmp/log", file=sys.stderr)
    sys.exit(code)


def main():
    behaviour = json.loads((HERE / "behaviour.json").read_text())
    if sys.argv[1] == "calibrate":
        name = "calibrate"
    else:
        out = Path(option("--out"))
        out.mkdir(parents=True, exist_ok=True)
        command = sys.argv[sys.argv.index("--") + 1:]
        seed = int(option("--seed"))
        name = arm(command)
    with (HERE / "calls.log").open("a") as calls:
        calls.write(f"{name}\n")
    if name in behaviour.get("wait", []):
        (HERE / "waiting").touch()
        end = time.monotonic() + 60
        while not (HERE / "go").exists() and time.monotonic() < end:
            time.sleep(0.01)
    if name == "calibrate":
        print("a warning of Python's")
        print(json.dumps({"walks": behaviour["walks"]}))
        sys.exit(behaviour.get("calibration_code", 0))
    if name in behaviour.get("hang", []):
        signal.signal(signal.SIGTERM, lambda *_: fail(130, "interrupted, the guest is killed"))
        (HERE / "hanging").touch()
        while True:
            signal.pause()
    if name in behaviour.get("crash", []):
        fail(122, "kernel panic: Attempted to kill init!")
    if name in behaviour.get("eject", []):
        (out / "failure").write_text("the scheduler was ejected or ended before the workload did: stall\n")
        fail(120, 'the kernel ejected the BPF scheduler rusty (runnable task stall)')
    leave_results(out, name, behaviour["seconds"][name] + seed / 1000, seed)


main()
