# SPDX-License-Identifier: GPL-2.0-only
"""Timing guests in which everything is measured: does memory cost what the machine file says?

usage: python3 -m unittest discover -v -s vm/tests -p 'boot_timing.py'     (some minutes)
"""

import json
from pathlib import Path
import statistics
import subprocess
import tempfile
import unittest

from machines import VM

from lab import BUILD, kernels, machine, timing

LAB = VM / "lab.py"
MACHINE = VM / "machines/2node.toml"
PROGRAMS = ["tandem-calibrate", "tandem-flood", "tandem-ring", "tandem-sharers", "tandem-strings", "tandem-regions", "tandem-load",
            "tandem"]
# So many that a moment in which one thread waits for its CPU, and the other has the line to itself, does not count.
ADDITIONS = 200000
# Each step of a region takes four instructions.
REGIONS, STEPS = 40, 100000
# CPUs 0 to 3 are node 0, 4 to 7 node 1.
COMMAND = """
set -eo pipefail
sleep_begun=$(cut -d' ' -f1 /proc/uptime); sleep 1.5; sleep_ended=$(cut -d' ' -f1 /proc/uptime)
echo "$sleep_begun $sleep_ended" > /out/sleep
tandem-calibrate 131072 0 1 > /out/calibrate
for at in "turns 0 1 20000" "turns 0 5 20000" "add 0 1 200000" "add 0 5 200000" "read 0 5 200000"; do
    tandem-sharers $at
done > /out/sharers
for at in "0" "4" "0 1 2 3" "4 5 6 7"; do tandem-flood 0 131072 $at; done > /out/flood
tandem-ring 5 0 131072 > /out/ring
tandem-strings 1000 > /out/strings
for policy in active passive; do
    for i in 1 2 3 4 5; do OMP_PROC_BIND=true OMP_WAIT_POLICY=$policy tandem-regions REGIONS STEPS; done > /out/$policy
done
for placement in oracle worst; do
    tandem-load hubench --threads 2 --compute 1 --additions ADDITIONS --placement $placement | tail -1
done > /out/hubench
tandem topo --measure --measure-ms 10 --json > /out/topo
""".replace("ADDITIONS", str(ADDITIONS)).replace("REGIONS STEPS", f"{REGIONS} {STEPS}")


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


class OneGuest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        out = Path(folder.name)
        added = [word for name in PROGRAMS for word in ("--add", BUILD / "bin" / name)]
        done = subprocess.run(
            [LAB, "run", "--quiet", "--timing", "--machine", MACHINE, "--seed", "5", "--timeout", "400", "--out", out,
             *added, "--", "sh", "-c", COMMAND],
            capture_output=True, text=True, check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"the guest failed with {done.returncode}: {done.stdout}{done.stderr}")
        cls.texts = {path.name: path.read_text() for path in out.iterdir()}
        cls.truth = json.loads(cls.texts["truth.json"])
        values = timing.flat(machine.load(MACHINE))
        cls.cost = {key: float(value) for key, value in values.items() if key.startswith(("coherence.", "memory.", "core."))}
        cls.link_mb_s = timing.row(machine.load(MACHINE), 1, "bandwidth_mb_s")[0]
        cls.l3_kb = float(values["caches.l3_kb_per_llc"])
        cls.shared = {(shared["kind"], *shared["cpus"]): shared["ns"] for shared in objects(cls.texts["sharers"])}

    def between_marks(self):
        """What the counters rose by between each pair of marks 1 and 2."""
        marked = [record for record in self.truth["records"] if record["mark"] is not None]
        return list(zip(marked[::2], marked[1::2]))

    def test_dependent_walks_cost_what_the_file_says(self):
        for walk in json.loads(self.texts["calibrate"]):
            right = 90 if walk["from"] == walk["to"] else 180
            self.assertAlmostEqual(walk["ns"] / right, 1, delta=0.01, msg=walk)

    def test_tandem_topo_measures_what_the_file_says(self):
        measured = json.loads(self.texts["topo"])["measured"]
        file = machine.load(MACHINE)
        for matrix, delta in (("latency_ns", 0.1), ("bandwidth_mb_s", 0.15)):
            for at in (0, 1):
                for value, right in zip(measured[matrix][at], timing.row(file, at, matrix), strict=True):
                    self.assertAlmostEqual(value / right, 1, delta=delta, msg=(matrix, at, measured))

    def test_the_guests_clock_sleeps_as_long_as_asked(self):
        begun, ended = map(float, self.texts["sleep"].split())
        self.assertAlmostEqual(ended - begun, 1.5, delta=0.05)

    def test_two_sharers_pay_for_the_distance_between_them(self):
        # A turn is passed by four transfers: two loads of the flag, and two stores that take it from the other.
        near, far = self.shared["turns", 0, 1], self.shared["turns", 0, 5]
        self.assertAlmostEqual(near / (4 * self.cost["coherence.same_llc_ns"]), 1, delta=0.1)
        right = self.cost["coherence.cross_node_ns"] / self.cost["coherence.same_llc_ns"]
        self.assertAlmostEqual(far / near / right, 1, delta=0.05)
        self.assertAlmostEqual(
            (far - near) / 4, self.cost["coherence.cross_node_ns"] - self.cost["coherence.same_llc_ns"], delta=5
        )

    def test_sharers_of_sams_benchmark_pay_for_the_distance_between_them(self):
        # The last two pairs of marks; nearly each addition takes the line from the other core. Arithmetic comes on top.
        transfer_ns = []
        for report, (before, after), kind in zip(
            objects(self.texts["hubench"]), self.between_marks()[-2:], ("same_llc", "cross_node"), strict=True
        ):
            transfers = after["coherence"][kind] - before["coherence"][kind]
            self.assertAlmostEqual(transfers / (2 * ADDITIONS), 1, delta=0.15, msg=(kind, report))
            transfer_ns.append(2 * report["seconds"] * 1e9 / transfers)
        right = self.cost["coherence.cross_node_ns"] - self.cost["coherence.same_llc_ns"]
        self.assertAlmostEqual((transfer_ns[1] - transfer_ns[0]) / right, 1, delta=0.1, msg=transfer_ns)

    def test_string_instructions_cost_one_instruction_a_line_on_each_side(self):
        page = json.loads(self.texts["strings"])
        lines = 4096 / 64
        self.assertAlmostEqual(page["movsq"] / (2 * lines * self.cost["core.instruction_ns"]), 1, delta=0.15)
        self.assertAlmostEqual(page["stosq"] / (lines * self.cost["core.instruction_ns"]), 1, delta=0.25)

    def test_openmp_waits_for_a_few_us_by_pause_and_for_a_wake_up_asleep(self):
        active, passive = (statistics.median(run["ms"] for run in objects(self.texts[name])) for name in ("active", "passive"))
        work_ms = REGIONS * STEPS * 4 * self.cost["core.instruction_ns"] / 1e6
        # Each thread has its CPU: where they run is the kernel's matter. What is beyond the work, of each region: a barrier's and a
        # fork's transfers; a futex's wake-ups besides.
        self.assertTrue(0 < (active - work_ms) / REGIONS < 0.02, active)
        self.assertTrue(0 < (passive - active) / REGIONS < 0.1, (active, passive))

    def test_a_counter_that_two_add_to_goes_back_and_forth(self):
        self.assertGreater(self.shared["add", 0, 5], self.cost["coherence.cross_node_ns"])
        self.assertGreater(self.shared["add", 0, 5], 2 * self.shared["add", 0, 1])

    def test_reading_what_nobody_writes_is_free(self):
        self.assertLess(self.shared["read", 0, 5], 7)

    def test_transfers_are_counted_by_distance(self):
        # Marks: four walks, then the sharers in the order of the command.
        near, far = self.between_marks()[4:6]
        for (before, after), kind in ((near, "same_llc"), (far, "cross_node")):
            counted = {name: after["coherence"][name] - before["coherence"][name] for name in after["coherence"]}
            self.assertAlmostEqual(counted[kind] / 80000, 1, delta=0.05, msg=(kind, counted))
            self.assertEqual(max(counted, key=counted.get), kind)

    def test_every_line_of_a_walk_is_counted_at_its_place(self):
        lines = 2 * 131072
        for (before, after), place in zip(self.between_marks(), ((0, 0), (0, 1), (1, 0), (1, 1))):
            row, column = place
            counted = after["accesses"][row][column] - before["accesses"][row][column]
            self.assertAlmostEqual(counted / lines, 1, delta=0.02, msg=place)
            # The lines were written before, so that the walk also drives what the caches hold back to memory.
            carried = after["dram_bytes"][column] - before["dram_bytes"][column] - counted * 64
            self.assertLess(abs(carried / 1024 - self.l3_kb), 0.15 * self.l3_kb, place)

    def test_independent_loads_overlap_until_the_places_are_taken(self):
        local, remote, _, _ = objects(self.texts["flood"])
        places = self.cost["memory.outstanding_misses"]
        self.assertAlmostEqual(local["mb_s"] / (64e3 * places / 90), 1, delta=0.07)
        self.assertAlmostEqual(remote["mb_s"] / (64e3 * places / 180), 1, delta=0.07)

    def test_a_nodes_memory_gives_no_more_than_its_bandwidth(self):
        limit = 64e3 / self.cost["memory.service_ns_per_line"]
        mb_s = objects(self.texts["flood"])[2]["mb_s"]
        self.assertLess(mb_s, limit * 1.02)
        self.assertGreater(mb_s, limit * 0.8)

    def test_a_link_carries_no_more_than_its_bandwidth(self):
        mb_s = objects(self.texts["flood"])[3]["mb_s"]
        self.assertLess(mb_s, self.link_mb_s * 1.02)
        self.assertGreater(mb_s, self.link_mb_s * 0.8)

    def test_the_guest_sees_samples_and_counters(self):
        seen = json.loads(self.texts["ring"])
        self.assertEqual((seen["cpus"], seen["local"], seen["strangers"], seen["lost"]), (8, 0, 0, 0))
        # memory_on() writes each page before, so some lines may come from a cache.
        self.assertAlmostEqual(seen["remote"] * seen["period"] / 131072, 1, delta=0.15)
        self.assertGreaterEqual(seen["least_ns"], 180)
        for counter in ("l2_misses", "l3_misses", "remote_dram"):
            self.assertAlmostEqual(seen[counter] / 131072, 1, delta=0.05, msg=counter)
        self.assertGreater(seen["cycles"], 131072 * 18)

    def test_a_record_is_written_every_tenth_of_a_virtual_second(self):
        tenths = [record["at_ns"] // 10**8 for record in self.truth["records"] if record["mark"] is None]
        self.assertEqual(tenths, sorted(set(tenths)))
        # Time in which nothing happens may pass at once.
        self.assertGreaterEqual(len(tenths), max(30, 0.9 * tenths[-1]))

    def test_counters_never_fall(self):
        for before, after in zip(self.truth["records"], self.truth["records"][1:]):
            for counter in ("instructions", "busy_ns", "l2_misses", "l3_hits", "l3_misses", "dram_bytes"):
                for old, new in zip(before[counter], after[counter]):
                    self.assertGreaterEqual(new, old, counter)


# What samples say of where a line came from (vm/timing/ring.h).
L3, SAME_LLC, SAME_NODE, CROSS_NODE, LOCAL, REMOTE = range(1, 7)
# Programs that pin themselves to the CPUs before the bar, and the source that most of their misses must have. Two CPUs to an L3.
SOURCES = {
    "0 | tandem-calibrate 16384 0": L3,
    "0 1 | tandem-sharers turns 0 1 20000": SAME_LLC,
    "0 2 | tandem-sharers turns 0 2 20000": SAME_NODE,
    "0 5 | tandem-sharers turns 0 5 20000": CROSS_NODE,
    "0 | tandem-ring 0 0 131072": LOCAL,
    "0 | tandem-ring 0 1 131072": REMOTE,
}
# Reads the ring by its layout: counters before and after each program, and about 50 of the samples between, evenly. All that
# is not the program's own work, its start included, is done on CPU 3.
READER = """
set -e
taskset -p 8 $$ > /dev/null
for device in /sys/bus/pci/devices/*; do
    [ "$(cat $device/vendor $device/device | tr '\\n' ' ')" != "0x1af4 0x1110 " ] || break
done
echo 1 > $device/enable
bar=$(sed -n 3p $device/resource | cut -d' ' -f1)
counters_at=$(devmem $((bar + 16)) 32)
samples_at=$(devmem $((bar + 24)) 32)
slots=$(devmem $((bar + 32)) 32)
counters() {
    for cpu in $1; do
        at=$((bar + counters_at + cpu * 64))
        l3_hits=$(devmem $((at + 24)) 64)
        remote_hitm=$(devmem $((at + 48)) 64)
        echo "counters $cpu $l3_hits $remote_hitm"
    done
}
watched() {
    cpus=$1
    shift
    counters "$cpus"
    number=$(($(devmem $((bar + 40)) 64)))
    "$@" > /dev/null
    head=$(($(devmem $((bar + 40)) 64)))
    counters "$cpus"
    step=$(((head - number) / 50 + 1))
    while [ $number -lt $head ]; do
        at=$((bar + samples_at + number % slots * 40))
        place=$(devmem $((at + 24)) 64)
        kind=$(devmem $((at + 32)) 64)
        echo "sample $place $kind"
        number=$((number + step))
    done
}
"""


class Sources(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        runs = (key.partition(" | ")[::2] for key in SOURCES)
        command = READER + "".join(f"echo program\nwatched '{cpus}' {program}\n" for cpus, program in runs)
        with tempfile.TemporaryDirectory() as folder:
            two_l3s = Path(folder) / "two-l3s.toml"
            two_l3s.write_text(MACHINE.read_text().replace("nodes = 2\n", "nodes = 2\nllcs_per_node = 2\n", 1))
            added = [word for name in PROGRAMS for word in ("--add", BUILD / "bin" / name)]
            done = subprocess.run(
                [LAB, "run", "--quiet", "--timing", "--machine", two_l3s, "--timeout", "400", *added, "--", "sh", "-c", command],
                capture_output=True, text=True, check=False,
            )
        if done.returncode != 0:
            raise AssertionError(f"the guest failed with {done.returncode}: {done.stdout}{done.stderr}")
        parts = done.stdout.split("program\n")[1:]
        cls.seen = {key: cls.parsed(part, key) for key, part in zip(SOURCES, parts, strict=True)}

    @staticmethod
    def parsed(text, key):
        """What the counters of the program's CPUs rose by, as (L3 hits, remote HITM) by CPU, and its samples' sources."""
        cpus = [int(cpu) for cpu in key.partition(" | ")[0].split()]
        rows = [[int(word, 0) for word in line.split()[1:]] for line in text.splitlines() if line.startswith("counters")]
        rose = {
            before[0]: (after[1] - before[1], after[2] - before[2])
            for before, after in zip(rows[: len(cpus)], rows[len(cpus) :], strict=True)
        }
        samples = [[int(word, 0) for word in line.split()[1:]] for line in text.splitlines() if line.startswith("sample")]
        # The words: latency, CPU, node; source, store.
        return rose, [kind & 0xFF for place, kind in samples if place >> 32 & 0xFFFF in cpus]

    def test_samples_say_where_lines_came_from(self):
        for key, right in SOURCES.items():
            sources = self.seen[key][1]
            shares = {source: sources.count(source) / len(sources) for source in range(1, 7)}
            self.assertEqual(max(shares, key=shares.get), right, (key, shares))
            # Memory is written before it is walked, so that some of it comes from L3 and some from the own node.
            for source in {SAME_LLC, SAME_NODE, CROSS_NODE, REMOTE} - {right}:
                self.assertLess(shares[source], 0.08, (key, shares))
            self.assertGreater(len(sources), 20, key)

    def test_l3_hits_are_counted_where_a_walk_fits_into_l3(self):
        walk, turns = "0 | tandem-calibrate 16384 0", "0 5 | tandem-sharers turns 0 5 20000"
        # The two timed passes; what it does before comes on top.
        self.assertGreater(self.seen[walk][0][0][0], 2 * 16384)
        for cpu in (0, 5):
            self.assertLess(self.seen[turns][0][cpu][0], 1000, self.seen[turns][0])

    def test_remote_hitm_is_counted_where_two_nodes_take_turns(self):
        # Each CPU loads the flag that the other wrote once a turn; its own store of it is no load.
        for key in SOURCES:
            for cpu, (_, hitm) in self.seen[key][0].items():
                if SOURCES[key] == CROSS_NODE:
                    self.assertAlmostEqual(hitm / 20000, 1, delta=0.1, msg=(key, cpu))
                else:
                    self.assertLess(hitm, 2000, (key, cpu))


class PageWalks(unittest.TestCase):
    def test_walks_cost_what_the_file_says_and_huge_pages_save_them(self):
        command = """
        for pages in always never; do
            echo $pages > /sys/kernel/mm/transparent_hugepage/enabled
            tandem-calibrate 131072 0 > /out/$pages
        done
        """
        with tempfile.TemporaryDirectory() as folder:
            out, paging = Path(folder) / "out", Path(folder) / "paging.toml"
            paging.write_text(MACHINE.read_text() + "[paging]\ntlb_pages = 64\nwalk_ns = 40\n")
            done = subprocess.run(
                [LAB, "run", "--quiet", "--timing", "--machine", paging, "--timeout", "400", "--out", out,
                 "--add", BUILD / "bin/tandem-calibrate", "--", "sh", "-ec", command],
                capture_output=True, text=True, check=False,
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            huge, base = (json.loads((out / pages).read_text())[0]["ns"] for pages in ("always", "never"))
        self.assertAlmostEqual(huge / 90, 1, delta=0.01)
        # Of the 2048 base pages 64 are in the TLB.
        self.assertAlmostEqual(base / (90 + 40 * (1 - 64 / 2048)), 1, delta=0.02)


class OtherKernel(unittest.TestCase):
    def test_calibration_holds_on_the_other_pinned_kernel(self):
        done = subprocess.run(
            [LAB, "calibrate", "--quiet", "--json", "--timeout", "400", "--machine", MACHINE, "--kernel",
             kernels.pinned()[1]],
            capture_output=True, text=True, check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(json.loads(done.stdout)["valid"])


if __name__ == "__main__":
    unittest.main()
