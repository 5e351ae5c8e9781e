# SPDX-License-Identifier: GPL-2.0-only
"""Programs of other projects as workloads: each in a guest, and one in an experiment. Installs them if they are missing.

usage: python3 -m unittest discover -v -s tests -p 'boot_external.py'     (a guest of 2 minutes, and experiments of some minutes each; needs ./run build)
"""

import json
from pathlib import Path
import subprocess
import tempfile
import unittest

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "bin"
SMALL = {
    "perf-numa": "--process-mib 4 --loops 2",
    "pipe": "--loops 200",
    "hackbench": "--groups 1 --loops 5",
    "stress-ng": "--array-kib 256 --loops 2",
    "sysbench-threads": "--events 400",
    "redis": "--requests 300",
    "hpcc": "--processes 2 --order 60",
}
# One after the other; what each prints last is its report.
ALL = "".join(f"echo; echo RUNS {name}; tandem-load {name} {sizes} 2>&1\n" for name, sizes in SMALL.items())


def external():
    """Names and programs of the workloads that start programs of other projects."""
    listed = subprocess.run([BIN / "tandem-load", "list", "--json"], capture_output=True, check=True)
    return {workload["name"]: workload["needs"] for workload in json.loads(listed.stdout) if workload["needs"]}


class TheBinary(unittest.TestCase):
    def test_it_needs_no_library(self):
        done = subprocess.run(["ldd", BIN / "tandem-load"], capture_output=True, text=True, check=False)
        self.assertRegex(done.stdout + done.stderr, "statically linked|not a dynamic executable")


class InAGuest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.needs = external()
        names = sorted({program for programs in cls.needs.values() for program in programs})
        got = subprocess.run([ROOT / "vm/setup/programs.sh", ROOT / "build/cache", *names], capture_output=True, text=True, check=True)
        added = [word for line in got.stdout.splitlines() for word in ("--add", line)]
        done = subprocess.run(
            [ROOT / "vm/lab.py", "run", "--machine", ROOT / "vm/machines/2x4.toml", "--quiet", "--timeout", "600",
             "--add", BIN / "tandem-load", *added, "--", "sh", "-c", ALL],
            capture_output=True, text=True, check=False,
        )
        cls.said = done.stdout + done.stderr
        # Of what the guest printed alone: the lab's own words, such as that it boots once more, come after the last report.
        cls.parts = dict(part.split("\n", 1) for part in done.stdout.split("RUNS ")[1:])

    def test_all_of_them_are_tried_here(self):
        self.assertEqual(sorted(self.needs), sorted(SMALL))

    def test_each_does_its_work_and_proves_it(self):
        for name in SMALL:
            with self.subTest(name):
                last = self.parts[name].strip().splitlines()[-1]
                self.assertTrue(last.startswith("{"), self.parts[name])
                report = json.loads(last)
                self.assertEqual((report["workload"], report["check"]), (name, "ok"), self.said)
                self.assertGreater(report["value"], 0)
                self.assertEqual(report["node_ids"], [0, 1])


class InAnExperiment(unittest.TestCase):
    def arms(self, workload, names="stock-nb0,direct,interleave"):
        """The arms of an experiment of one boot each, by name."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.json"
            done = subprocess.run(
                [BIN / "tandem", "ab", "--machine", "2node", "--workload", workload, "--arms", names,
                 "--boots", "1", "--json", out, "--store", Path(folder) / "store"],
                capture_output=True, text=True, check=False,
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return {arm["name"]: arm for arm in json.loads(out.read_text())["arms"]}

    def test_numactl_places_what_does_not_place_itself(self):
        # Not perf bench numa: its threads go back to all CPUs, and its memory is on the first node whatever it is told.
        arms = self.arms("stress-ng:--processes 2 --array-kib 2048 --loops 8")
        # Of what is remote under `direct`, the most is the program's file, which is where the boot left it.
        self.assertLess(arms["direct"]["remote_share"], 0.25)
        self.assertGreater(arms["interleave"]["remote_share"], 0.3)

    def test_workloads_of_our_own_do_the_same_work_bound_to_a_node_or_interleaved(self):
        arms = self.arms("master-init:--array-mib 64 --passes 2")
        boots = {name: arm["boots"][0]["report"] for name, arm in arms.items()}
        self.assertEqual(len({report["work"] for report in boots.values()}), 1, boots)
        self.assertLess(arms["direct"]["remote_share"], 0.05)
        first, second = boots["interleave"]["pages_per_node"]
        self.assertAlmostEqual(first / (first + second), 0.5, delta=0.05)

    def test_who_is_woken_while_leaving_its_cpu_gets_an_idle_one_at_once(self):
        # Servers and clients that wait for each other, on more CPUs than they are: a few of a hundred wake-ups are so early.
        arm = self.arms("redis:--requests 2000", "stock-nb0,scx_tandem")["scx_tandem"]
        events = arm["boots"][0]["scheduler_report"]["scheduler"]
        woken = events["idle_prev"] + events["idle_home"]
        print(f"{events['queued']} of {woken + events['queued']} through a queue", flush=True)
        self.assertGreater(woken, 10000, events)
        self.assertLess(events["queued"], woken / 200, events)


if __name__ == "__main__":
    unittest.main()
