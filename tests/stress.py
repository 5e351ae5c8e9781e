#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""stress-ng's classes cpu, scheduler and vm, every stressor for a moment, while scx_tandem runs with everything on: none
fails, and the scheduler stays. (Its stressor of context switches, switch, is of the class scheduler.)

usage: stress.py BIN_DIR KERNEL [CLASS...]     (about 10 minutes; KERNEL: a release in vm/kernels.list)
"""

import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLASSES = ["cpu", "scheduler", "vm"]
LIMIT_S = 1800
# Instances of each stressor, which run for a second: more than a node of the machine has CPUs.
INSTANCES = 6
STRESS = """
scx_tandem --report /tmp/report > /tmp/log 2>&1 &
scheduler=$!
until [ "$(cat /sys/kernel/sched_ext/state)" = enabled ]; do
	kill -0 $scheduler || exit 1
	sleep 0.1
done
stress-ng --class {class_name} --sequential {instances} --timeout 1 --vm-bytes 32M --bigheap-growth 64K --oomable \\
	--temp-path /tmp --exclude {excluded} 2>&1
echo "stress-ng ended with $?, state $(cat /sys/kernel/sched_ext/state)"
stress-ng --resched {instances} --timeout 1 2>&1
echo "state $(cat /sys/kernel/sched_ext/state)"
kill $scheduler
wait $scheduler
echo "scx_tandem ended with $?"
"""
# What does not work in a guest of the lab whatever schedules it; all but `resched` and the last were tried under the stock scheduler.
EXCLUDED = {
    "cyclic": "asks for more time of SCHED_DEADLINE than the kernel's own servers leave",
    "madvise": "as root it has the kernel poison its own memory, and one of its instances then ends by SIGBUS",
    "mlock": "maps a table that is larger than the guest's memory",
    "numa": "does not end: moving its pages takes the emulator too long",
    "resched": "run by itself: see OF_COUNTERS",
    "swap": "no file system of the guest can hold a swap file",
    "uprobe": "only one of its instances can open the trace file",
}
# Processes of `resched` count in one place without a lock; at times stress-ng finds that out, and calls it a failure.
OF_COUNTERS = re.compile("corrupted bogo-ops counter|hash error in bogo-ops counter|metrics corrupted")
BIN_DIR, KERNEL = pathlib.Path(), ""


def stress(class_name: str) -> str:
    """Runs a class in a guest; what is printed there, and the lab's own sentences."""
    got = subprocess.run([ROOT / "vm/setup/programs.sh", ROOT / "build/cache", "stress-ng"], capture_output=True, text=True, check=True)
    added = [word for line in got.stdout.splitlines() for word in ("--add", line)]
    script = STRESS.format(class_name=class_name, instances=INSTANCES, excluded=",".join(EXCLUDED))
    command = [
        ROOT / "vm/lab.py", "run", "--machine", ROOT / "vm/machines/2x4.toml", "--kernel", KERNEL, "--timeout", str(LIMIT_S),
        "--add", BIN_DIR / "scx_tandem", *added, "--", "sh", "-c", script,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout


class Stress(unittest.TestCase):
    def test_no_stressor_fails_and_the_scheduler_stays(self):
        for class_name in CLASSES:
            with self.subTest(class_name):
                said = stress(class_name)
                all_stressors, _, resched = said.partition("stress-ng ended with ")
                failures = re.findall(r"stress-ng: (?:fail|error):.*", resched)
                self.assertEqual([line for line in failures if not OF_COUNTERS.search(line)], [], said)
                self.assertEqual(re.findall(r"stress-ng: (?:fail|error):.*", all_stressors), [], said)
                self.assertTrue(resched.startswith("0, state enabled"), said)
                self.assertIn("\nstate enabled", resched, said)
                self.assertIn("scx_tandem ended with 0", said)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    BIN_DIR, KERNEL = pathlib.Path(sys.argv[1]), sys.argv[2]
    CLASSES = sys.argv[3:] or CLASSES
    unittest.main(argv=sys.argv[:1], verbosity=2)
