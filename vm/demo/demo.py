#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The demo: the same workloads under the stock scheduler and under scx_tandem, each on a freshly booted
4-node guest, judged against the ground truth of who touches which memory.

Prints a report and writes it with all series as JSON. Exit status: 0 all goals met, 1 a goal missed or a run failed.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import report

HERE = pathlib.Path(__file__).resolve().parent
VM = HERE.parent
sys.path.append(str(VM))

from lab import BUILD  # noqa: E402

BOOT_AND_LOAD_S = 180
PROGRESS_S = 15
# Emulated CPUs that run in parallel may run a breakpoint after the kernel, patching its code, has removed it.
EMULATOR_FAULT = "Oops: int3"
WORKLOADS = {
    "crossed": "2 processes of 4 threads; each thread's private 32 MiB and each pair's shared 8 MiB are on other nodes, "
    "and the two threads of a pair start on different nodes",
    "perf": "perf bench numa mem -p 4 -t 2 -G 0 -P 64 -0 -z -Z --thp -1; all memory first touched on node 0",
}
ARMS = {
    "stock": "stock scheduler, kernel.numa_balancing=1",
    "tandem": "scx_tandem, kernel.numa_balancing=0",
}


class DemoError(Exception):
    """What went wrong, in one sentence."""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", type=pathlib.Path, default=VM / "machines" / "4x2-ring.toml", help="machine file")
    parser.add_argument("--kernel", help="kernel release (default: the lab's)")
    parser.add_argument("--seconds", type=int, default=60, help="observation per arm, in seconds of guest time (default 60)")
    parser.add_argument(
        "--within", type=float, default=report.PLACED_WITHIN_S, metavar="SECONDS",
        help="when all is to be in its place, for a machine that emulates more slowly than most (default %(default).0f)",
    )
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="only this workload; repeatable (default: crossed and perf)")
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="only this arm; repeatable")
    parser.add_argument("--json", type=pathlib.Path, default=BUILD / "demo.json", help="where the report goes")
    parser.add_argument("--runs", type=pathlib.Path, default=BUILD / "demo", help="where the runs' files go")
    parser.add_argument("--tries", type=int, default=1, help="repeat all of it when a goal is missed: a run is a draw (default 1)")
    arguments = parser.parse_args()
    needed_s = arguments.within + report.QUIET_S + 1
    if arguments.seconds < needed_s:
        parser.error(f"--seconds {arguments.seconds}: the goals need at least {needed_s:.0f} s of observation")
    return arguments


def guest_files(workload, arm):
    """Files the guest needs: (file on this machine, path in the guest)."""
    binaries = BUILD / "bin"
    files = [(HERE / "arm.sh", "/bin/arm.sh"), (binaries / "tandem-load", "/bin/tandem-load")]
    if workload == "perf":
        files.append((BUILD / "cache" / "perf" / "usr" / "bin" / "perf", "/bin/perf"))
    if arm == "tandem":
        files.append((binaries / "scx_tandem", "/bin/scx_tandem"))
    for file, _ in files:
        if not file.exists():
            raise DemoError(f"{file} is missing; ./run build makes it")
    return files


def check(arguments):
    """Refuses, before minutes of runs, what would be missed after them."""
    for name in arguments.workload or WORKLOADS:
        for arm in arguments.arm or ARMS:
            guest_files(name, arm)
    path = arguments.json
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"--json {path}: {path.parent} cannot be made: {error.strerror}") from error
    if path.is_dir():
        raise DemoError(f"--json {path}: is a folder: name a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise DemoError(f"--json {path}: may not be written: name another file, or change its rights")


def run_arm(arguments, workload, arm, title):
    """One arm's documents (observation, scheduler report or None). A guest that dies of the emulator is run again."""
    try:
        return boot_arm(arguments, workload, arm, title)
    except DemoError as error:
        if EMULATOR_FAULT not in str(error):
            raise
        print(f"{title}: the emulator ran a breakpoint that the kernel had removed before: once more", flush=True)
        return boot_arm(arguments, workload, arm, title)


def boot_arm(arguments, workload, arm, title):
    """Boots a guest for one arm and returns its documents."""
    out = arguments.runs / f"{workload}-{arm}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    command = [sys.executable, str(VM / "lab.py"), "run", "--machine", str(arguments.machine)]
    command += ["--kernel", arguments.kernel] if arguments.kernel else []
    command += ["--timeout", str(2 * arguments.seconds + BOOT_AND_LOAD_S), "--out", str(out)]
    for file, guest_path in guest_files(workload, arm):
        command += ["--add", f"{file}:{guest_path}"]
    command += ["--", "/bin/arm.sh", arm, workload, str(arguments.seconds)]
    started = time.monotonic()
    log = out / "lab.log"
    with log.open("wb") as sink:
        lab = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT)
        try:
            wait_with_progress(lab, log, title, started)
        finally:
            if lab.poll() is None:
                lab.terminate()
                lab.wait()
    if lab.returncode != 0:
        raise DemoError(f"{workload} under {arm} failed (exit {lab.returncode}), see {log}; its end:\n{end_of(log)}")
    scheduler_report = read_json(out / "scx_tandem.json") if arm == "tandem" else None
    print(f"{title}: done in {time.monotonic() - started:.0f} s", flush=True)
    return read_json(out / "observation.json"), scheduler_report


def wait_with_progress(lab, log, title, started):
    """Waits for the lab and says now and then what the guest last said."""
    while True:
        try:
            lab.wait(timeout=PROGRESS_S)
            return
        except subprocess.TimeoutExpired:
            said = [line for line in log.read_text(errors="replace").splitlines() if "demo: [" in line]
            last = said[-1][said[-1].index("demo: ") + len("demo: ") :].strip() if said else "booting"
            print(f"{title}: {time.monotonic() - started:.0f} s: {last}", flush=True)


def end_of(log, lines=25):
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def read_json(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DemoError(f"the run left no usable {path.name} ({error})") from error


def run_workload(arguments, name, counter):
    """Both arms of one workload, as the report has them."""
    arms, documents = [], {}
    for arm in arguments.arm or ARMS:
        title = f"{next(counter)} {name}, {ARMS[arm]}"
        print(f"{title}: booting a fresh guest", flush=True)
        observation, scheduler_report = run_arm(arguments, name, arm, title)
        documents[arm] = (observation, scheduler_report)
        arms.append(
            {
                "name": arm,
                "description": ARMS[arm],
                "measures": report.measures(observation, scheduler_report),
                "observation": observation,
                "scheduler_report": scheduler_report,
            }
        )
    return {"name": name, "description": WORKLOADS[name], "arms": arms}, documents


def counters(total):
    """`[1/4]`, `[2/4]` and so on."""
    yield from (f"[{number}/{total}]" for number in range(1, total + 1))


class GoalsMissed(DemoError):
    """The runs went well, but what they show is not what was aimed at."""


def main():
    arguments = parse_arguments()
    check(arguments)
    for _ in range(arguments.tries - 1):
        try:
            return demonstrate(arguments)
        except GoalsMissed as error:
            print(f"demo: {error}: once more", flush=True)
    return demonstrate(arguments)


def demonstrate(arguments):
    """All arms of all workloads once; the report in words and as JSON."""
    names = arguments.workload or WORKLOADS
    counter = counters(len(names) * len(arguments.arm or ARMS))
    demo = {"note": report.NOTE, "machine": {}, "workloads": [], "goals": []}
    for name in names:
        workload, documents = run_workload(arguments, name, counter)
        demo["workloads"].append(workload)
        observation = next(iter(documents.values()))[0]
        demo["machine"] = {"file": arguments.machine.name, "kernel": arguments.kernel, "node_ids": observation["nodes"]}
        if name != "perf" and "tandem" in documents:
            demo["goals"] += [{"workload": name} | goal for goal in report.goals(*documents["tandem"], arguments.within)]
    print("\n".join(report.text(demo)))
    try:
        arguments.json.write_text(json.dumps(demo, indent=1) + "\n")
    except OSError as error:
        raise DemoError(f"the report is above, {arguments.json} cannot be written: {error.strerror}") from error
    print(f"\nAll of this, with the series, is in {arguments.json}.")
    missed = [goal for goal in demo["goals"] if not goal["met"]]
    if missed:
        raise GoalsMissed("missed: " + "; ".join(f"{goal['workload']}: {goal['goal']} ({goal['measured']})" for goal in missed))


if __name__ == "__main__":
    try:
        main()
    except DemoError as error:
        sys.exit(f"demo: {error}")
    except OSError as error:
        sys.exit(f"demo: {error.filename}: {error.strerror}" if error.filename else f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted")
