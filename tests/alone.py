#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""N threads on N allowed CPUs, in a guest of the timing lab: each is alone on a CPU within 10 ms, and stays so.

usage: alone.py BIN_DIR KERNEL CACHES [SCHEDULER]
(about 35 s; KERNEL: a release in vm/kernels.list; CACHES: L3 caches a node, 1 or 2; SCHEDULER: a program, else BIN_DIR/scx_tandem)

tandem-regions (vm/timing/guest/regions.c) says how long each of its threads waited for a CPU, by the kernel's account, from
10 ms after their begin on: all made by one parent, or gathered on one CPU that all of them may leave at the same moment. Of
two that share a CPU one waits at any time.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
MACHINE = ROOT / "vm/machines/2node.toml"
# CPUs 0 to 3 are node 0, 4 to 7 node 1: all CPUs, one node, one CPU of one node and three of the other.
ALL = "ff"
MASKS = (ALL, "f0", "e1")
# 25 regions of 2 ms.
REGIONS, STEPS = 25, 500000
# Of each thread: interrupts, and passive ones' wake-ups. Up to 0.15 ms were seen.
SHORT_MS = 0.2
# Of all threads where no CPU is left over: they make room for kernel threads, up to 1.5 ms in all, and for the agent.
KERNEL_MS = 4
COMMAND = """
set -e
scheduler > /tmp/log 2>&1 &
scheduler=$!
until [ "$(cat /sys/kernel/sched_ext/state)" = enabled ]; do
    kill -0 $scheduler || { cat /tmp/log; exit 1; }
    sleep 0.1
done
agent_ms() { cat /proc/$scheduler/task/*/schedstat | awk '{ ns += $1 } END { print ns / 1000000 }'; }
for mask in MASKS; do
    for policy in active passive; do
        for start in made gathered; do
            before=$(agent_ms)
            said=$(OMP_WAIT_POLICY=$policy taskset 0x$mask tandem-regions REGIONS STEPS ${start#made})
            names="\\"mask\\":\\"$mask\\",\\"policy\\":\\"$policy\\",\\"start\\":\\"$start\\""
            echo "{$names,\\"agent_ms\\":[$before,$(agent_ms)],\\"said\\":$said}"
        done
    done
done
[ "$(cat /sys/kernel/sched_ext/state)" = enabled ]
""".replace("MASKS", " ".join(MASKS)).replace("REGIONS STEPS", f"{REGIONS} {STEPS}")
BIN_DIR, KERNEL, CACHES, SCHEDULER = pathlib.Path(), "", "1", pathlib.Path()


def starts():
    """What each start of the program came to."""
    added = [word for program in (f"{SCHEDULER}:/bin/scheduler", BIN_DIR / "tandem-regions") for word in ("--add", program)]
    with tempfile.TemporaryDirectory() as folder:
        machine = pathlib.Path(folder) / "machine.toml"
        machine.write_text(MACHINE.read_text().replace("nodes = 2\n", f"nodes = 2\nllcs_per_node = {CACHES}\n", 1))
        done = subprocess.run(
            [ROOT / "vm/lab.py", "run", "--quiet", "--timing", "--machine", machine, "--kernel", KERNEL, "--timeout", "400",
             *added, "--", "sh", "-c", COMMAND],
            capture_output=True, text=True, check=False,
        )
    if done.returncode != 0:
        raise AssertionError(f"the guest failed with {done.returncode}: {done.stdout}{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def misses(found):
    """What threads waited too long, by start of the program: how long all of them did, and how long they may."""
    missed = {}
    for start in found:
        print(json.dumps(start), flush=True)
        waited_ms, (before_ms, after_ms) = sum(start["said"]["waited_ms"]), start["agent_ms"]
        room_ms = KERNEL_MS + after_ms - before_ms if start["mask"] == ALL else 0
        most_ms = room_ms + SHORT_MS * len(start["said"]["waited_ms"])
        if waited_ms >= most_ms:
            missed[start["mask"], start["policy"], start["start"]] = f"{waited_ms:.3f} ms, {most_ms:.3f} ms at most"
    return missed


class Alone(unittest.TestCase):
    def test_threads_with_a_cpu_each_are_alone_on_it_within_10_ms_and_stay_so(self):
        found = starts()
        self.assertEqual(len(found), 4 * len(MASKS))
        for start in found:
            self.assertEqual(len(start["said"]["waited_ms"]), int(start["mask"], 16).bit_count())
        missed = misses(found)
        if missed:
            # In one of seventeen guests a thread of eight waited 6.6 ms: what the scheduler does wrong it does again.
            print(f"once more, for {missed}")
            again = misses(starts())
            self.assertEqual([start for start in missed if start in again], [], f"{missed}, and then {again}")


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5) or sys.argv[3] not in ("1", "2"):
        sys.exit(__doc__)
    BIN_DIR, KERNEL, CACHES = pathlib.Path(sys.argv[1]), *sys.argv[2:4]
    SCHEDULER = pathlib.Path(sys.argv[4]) if len(sys.argv) == 5 else BIN_DIR / "scx_tandem"
    unittest.main(argv=sys.argv[:1], verbosity=2)
