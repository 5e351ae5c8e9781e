# SPDX-License-Identifier: GPL-2.0-only
"""`tandem ab` with real guests: in the timing lab, and as on a real machine.

usage: python3 -m unittest discover -v -s tests -p 'boot_ab.py'     (about 10 minutes; needs ./run build)
"""

import json
from pathlib import Path
import subprocess
import tempfile
import unittest

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "bin"
SMALL = "crossed:--passes 3 --private-mib 16 --shared-mib 1"
# Long enough for two decisions at half a second each.
DECIDED = "crossed:--passes 30 --private-mib 16 --shared-mib 1"
# Policies that decide once an interval. The comma, marked as one of an option's, is for the scheduler to read.
PLAIN = "scx_tandem:--policy sma+tmma"
WITH_OPTIONS = rf"{PLAIN} --interval-ms 500 --manage uid=0\,uid=1"
# The timing lab's CPUs have no counters.
REFUSED = "scx_tandem:--sampler pmu"
CRASH = "#!/bin/sh\necho c > /proc/sysrq-trigger\n"

# Starts an experiment and ends it by a signal while a workload runs; then looks at what is left. Words: SIGNAL.
INTERRUPTED = """
settings() {
	cat /proc/sys/kernel/numa_balancing /sys/kernel/mm/transparent_hugepage/enabled
}
echo 0 > /proc/sys/kernel/numa_balancing
echo madvise > /sys/kernel/mm/transparent_hugepage/enabled
before=$(settings)
# What a shell starts in the background ignores interrupts, and tandem leaves what it finds ignored: the other one waits there.
{
	until [ -e /t/ab/attempts/*/workload.out ]; do
		sleep 0.1
	done
	echo "during: $(settings)"
	kill -$1 $(cat /tmp/tandem.pid)
} &
sh -c 'echo $$ > /tmp/tandem.pid; exec "$@"' sh \
	/t/bin/tandem ab --native --workload 'crossed:--passes 1000000 --private-mib 8' --arms 'stock-nb1-thp'
echo "code: $?"
kill $! 2> /dev/null
# A killed program cannot wait for its children: they end by themselves.
for i in $(seq 100); do
	pidof tandem-load > /dev/null || break
	sleep 0.1
done
pidof tandem-load && echo "still there"
for i in $(seq 100); do
	[ "$(settings)" = "$before" ] && break
	sleep 0.1
done
echo "after: $(settings)"
"""

# Runs an experiment to its end, on a machine whose package took 1 J since a moment ago, and says so in two places.
FINISHED = """
mount -t tmpfs none /sys/class
for zone in intel-rapl:0 intel-rapl:0:0 intel-rapl-mmio:0; do
	mkdir -p /sys/class/powercap/$zone
	echo package-0 > /sys/class/powercap/$zone/name
	echo 0 > /sys/class/powercap/$zone/energy_uj
	echo 900000000000 > /sys/class/powercap/$zone/max_energy_range_uj
done
echo core > /sys/class/powercap/intel-rapl:0:0/name
# Whole at any time: whoever reads meanwhile sees the number of before.
count() { echo $2 > /sys/class/powercap/$1/next && mv /sys/class/powercap/$1/next /sys/class/powercap/$1/energy_uj; }
while sleep 0.02; do
	uj=$((${uj:-0} + 1000))
	for zone in intel-rapl:0:0 intel-rapl-mmio:0; do count $zone ${uj}000000; done
	count intel-rapl:0 $uj
done &
/t/bin/tandem ab --native --workload 'crossed:--passes 60 --private-mib 4' --arms stock-nb0,oracle --boots 2 \\
	--json /tmp/out.json --html /tmp/out.html >&2
echo "code: $?" >&2
cat /tmp/out.json
echo "plots: $(grep -o '<h2>[^<]*' /tmp/out.html | tr '\\n' ' ')" >&2
"""


def guest(script, *words):
    """Runs a script in a plain guest that has the toolbox as it would be installed; what it printed."""
    done = subprocess.run(
        [ROOT / "vm/lab.py", "run", "--machine", ROOT / "vm/machines/2x4.toml", "--quiet",
         "--add", f"{BIN / 'tandem'}:/t/bin/tandem", "--add", f"{BIN / 'tandem-load'}:/t/bin/tandem-load",
         "--", "sh", "-c", script, "sh", *words],
        capture_output=True, text=True, check=False,
    )
    return done.stdout + done.stderr


def in_lab(folder, workload, arms):
    """The code, the result and the progress of an experiment that keeps its files in `folder`."""
    out = Path(folder) / "out.json"
    done = subprocess.run(
        [BIN / "tandem", "ab", "--machine", "2node", "--workload", workload, "--boots", "1", "--json", out,
         "--arms", arms, "--store", Path(folder) / "store"],
        capture_output=True, text=True, check=False,
    )
    return done.returncode, json.loads(out.read_text()) if out.exists() else done.stderr, done.stderr


class InTheTimingLab(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.crash = Path(cls.folder.name) / "scx_crash"
        cls.crash.write_text(CRASH)
        cls.crash.chmod(0o755)
        cls.first = cls.ab()

    @classmethod
    def ab(cls):
        """The experiment's code, result and progress."""
        return in_lab(cls.folder.name, SMALL, f"stock-nb0,oracle,worst,{cls.crash}")

    def arm(self, name):
        return next(arm for arm in self.first[1]["arms"] if arm["name"] == name)

    def test_the_calibration_is_within_one_percent(self):
        calibration = self.first[1]["calibration"]
        self.assertTrue(calibration["valid"], calibration)
        self.assertEqual(len(calibration["walks"]), 4)

    def test_bounds_are_where_the_machine_file_puts_them(self):
        oracle, worst = self.arm("oracle"), self.arm("worst")
        self.assertLess(oracle["remote_share"], 0.05)
        self.assertGreater(worst["remote_share"], 0.95)
        # Remote memory costs twice as much; instructions cost the same.
        self.assertGreater(worst["median"] / oracle["median"], 1.7)
        self.assertLess(worst["median"] / oracle["median"], 2.1)
        self.assertAlmostEqual(worst["instructions"] / oracle["instructions"], 1, delta=0.05)
        self.assertEqual(self.arm("stock-nb0")["numa_pte_updates"], 0)

    def test_a_crashed_guest_is_reported_and_the_rest_went_on(self):
        code, result, said = self.first
        self.assertEqual(code, 1, said)
        crashed = self.arm(str(self.crash))
        self.assertFalse(crashed["valid"])
        self.assertIn("kernel panic", crashed["failures"][0])
        self.assertTrue(all(self.arm(name)["valid"] for name in ("stock-nb0", "oracle", "worst")))

    def test_what_was_measured_is_not_measured_again(self):
        _, again, said = self.ab()
        self.assertIn("3 of 4 runs are in the store already", said)
        self.assertEqual([arm["runs"] for arm in again["arms"]], [arm["runs"] for arm in self.first[1]["arms"]])


class UnderSchedExt(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            arms = f"stock-nb0,oracle,{PLAIN},{WITH_OPTIONS},{REFUSED}"
            cls.code, cls.result, cls.said = in_lab(folder, DECIDED, arms)

    def arm(self, name):
        return next(arm for arm in self.result["arms"] if arm["name"] == name)

    def report(self, name):
        (boot,) = self.arm(name)["boots"]
        return boot["scheduler_report"]

    def test_a_scheduler_that_cannot_be_loaded_is_reported_with_its_sentence_and_the_rest_went_on(self):
        self.assertEqual(self.code, 1, self.said)
        refused = self.arm(REFUSED)
        self.assertEqual((refused["valid"], refused["runs"]), (False, []))
        sentence = "the scheduler ended while loading: scx_tandem: the sampler pmu cannot be used"
        self.assertIn(sentence, refused["failures"][0])
        self.assertTrue(all(arm["valid"] for arm in self.result["arms"] if arm is not refused), self.said)

    def test_the_scheduler_had_the_tasks_and_stock_had_none(self):
        for name in (PLAIN, WITH_OPTIONS):
            scheduler = self.report(name)["scheduler"]
            # Eight threads ran to the end; every one of them was put into a queue or onto an idle CPU.
            self.assertGreater(scheduler["task_made"], 8, name)
            self.assertGreater(scheduler["queued"] + scheduler["idle_prev"] + scheduler["idle_home"], 8, name)
            # Under a sched_ext scheduler the kernel balances nothing.
            self.assertEqual(self.arm(name)["numa_pte_updates"], 0)
        self.assertIsNone(self.report("stock-nb0"))

    def test_options_reach_the_scheduler(self):
        # One decides each second, the other twice as often, in runs of the same length.
        self.assertGreater(self.report(WITH_OPTIONS)["intervals"], 1.5 * self.report(PLAIN)["intervals"])

    def test_what_it_decided_is_what_the_machine_saw(self):
        arm, stock, oracle = self.arm(WITH_OPTIONS), self.arm("stock-nb0"), self.arm("oracle")
        decided = {move["tid"] for move in self.report(WITH_OPTIONS)["thread_moves"]}
        self.assertGreaterEqual(len(decided), 2, "half of crossed's threads run on the wrong node")
        self.assertGreaterEqual(arm["thread_moves"], len(decided))
        self.assertLess(arm["remote_share"], stock["remote_share"] - 0.15)
        self.assertTrue(oracle["median"] <= arm["median"] < stock["median"], (oracle, arm, stock))


class OnTheRealMachine(unittest.TestCase):
    def test_a_finished_experiment_tells_the_machines_state_and_energy_and_no_truth_that_only_the_lab_has(self):
        said = guest(FINISHED)
        self.assertIn("code: 0", said)
        result = json.loads(said[said.index("\n{\n") : said.rindex("\n}\n") + 2])
        self.assertRegex(said, "plots: .*seconds per arm.*Load per node over time")
        self.assertNotIn("Remote share of memory accesses over time", said)
        self.assertTrue(any("virtual" in noise for noise in result["native"]["noise"]), result["native"])
        for arm in result["arms"]:
            self.assertTrue(arm["valid"] and len(arm["runs"]) == 2, arm)
            self.assertIsNone(arm["remote_share"])
            for boot in arm["boots"]:
                self.assert_load(boot)
            # The other two zones count a thousand J for each mJ of this one.
            self.assertTrue(0 < arm["energy_j"] < 10, arm["energy_j"])
            self.assertEqual(arm["numa_pte_updates"], 0)

    def assert_load(self, boot):
        """Two nodes of four CPUs were watched while eight threads ran, and no longer."""
        series = boot["placement"]["series"]
        self.assertTrue(all(len(point["load"]) == 2 and point["remote_share"] is None for point in series), series)
        self.assertTrue(all(0 <= load <= 1 for point in series for load in point["load"]), series)
        for node in (0, 1):
            self.assertGreater(max(point["load"][node] for point in series), 0.5, series)
        times = [point["at_s"] for point in series]
        self.assertEqual(times, sorted(times))
        # A reading's distance before and after, and the program's begin before its timed part.
        self.assertLess(boot["report"]["seconds"] - 0.5, times[-1])
        self.assertLess(times[-1], boot["host_s"])

    def left_by(self, signal):
        said = guest(INTERRUPTED, signal)
        lines = [line for line in said.splitlines() if line.startswith(("during", "after", "code", "still", "always", "[always]"))]
        self.assertEqual(lines[:2], ["during: 1", "[always] madvise never"], said)
        self.assertEqual(lines[-2:], ["after: 0", "always [madvise] never"], said)
        self.assertNotIn("still there", said)
        return lines[2:-2], said

    def test_an_interrupt_puts_the_settings_back(self):
        code, said = self.left_by("INT")
        self.assertEqual(code, ["code: 130"], said)

    def test_a_killed_program_leaves_no_setting_and_no_workload(self):
        code, said = self.left_by("KILL")
        self.assertEqual(code, ["code: 137"], said)


if __name__ == "__main__":
    unittest.main()
