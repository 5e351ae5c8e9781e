# SPDX-License-Identifier: GPL-2.0-only
"""What the lab prepares for the timing plugin, what it refuses, and what it makes of the plugin's records."""

import json
from pathlib import Path
import tempfile
import types
import unittest
from unittest import mock

from machines import VM, machine

from lab import LabError, calibrate, qemu, run, timing
from lab.machine import load, parse

FLAT = """\
name=pair
nodes=2
threads_per_core=1
llcs_per_node=1
caches.line_b=64
caches.l1_kb=32
caches.l2_kb=256
caches.l3_kb_per_llc=1024
core.pause_ns=40
node.0.id=0
node.0.cpus=2
node.0.memory_mb=512
node.0.distance=10 20
node.0.latency_ns=90 180
node.1.id=2
node.1.cpus=1
node.1.memory_mb=512
node.1.distance=20 10
node.1.latency_ns=185 95
"""


def pair():
    return parse(FLAT)


def settings_of(machine, seed=0):
    text = timing.settings(machine, seed, Path("/run"))
    return dict(line.split("=", 1) for line in text.splitlines())


def request(machine, seed=0, accel="timing"):
    return types.SimpleNamespace(machine=machine, release="7.0", seed=seed, accel=accel, timed=True, command=("true",))


class Settings(unittest.TestCase):
    def test_every_place_for_a_cpu_has_its_node_and_llc(self):
        # Node 1 is absent and node 2 has one CPU less: their empty places count.
        values = settings_of(pair())
        self.assertEqual(values["vcpus"], "6")
        self.assertEqual(values["vcpu_node"], "0 0 -1 -1 1 -1")
        self.assertEqual(values["vcpu_llc"], "0 0 -1 -1 2 -1")
        self.assertEqual(values["llcs"], "3")

    def test_the_machines_costs_are_passed_on_unchanged(self):
        values = settings_of(pair())
        self.assertEqual((values["node.1.latency_ns"], values["core.pause_ns"]), ("185 95", "40"))

    def test_memory_below_4_gib_ends_where_q35_ends_it(self):
        self.assertEqual(settings_of(pair())["low_memory_mb"], "2816")
        large = parse(FLAT.replace("node.1.memory_mb=512", "node.1.memory_mb=2304"))
        self.assertEqual(settings_of(large)["low_memory_mb"], "2048")

    def test_a_seed_says_when_the_guest_and_the_command_start(self):
        offsets = {settings_of(pair(), seed)["boot_offset_ns"] for seed in range(20)}
        scripts = {run.delayed_script(request(pair(), seed)) for seed in range(20)}
        self.assertEqual((len(offsets), len(scripts)), (20, 20))
        self.assertEqual(settings_of(pair(), 7), settings_of(pair(), 7))
        self.assertEqual(run.delayed_script(request(pair(), 7)), run.delayed_script(request(pair(), 7)))


class Refusals(unittest.TestCase):
    def refused(self, machine, words, version="10.0.2"):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "qemu"
            program.write_text(f"#!/bin/sh\necho QEMU emulator version {version}\n")
            program.chmod(0o755)
            plugin = Path(folder) / "timing.so"
            plugin.touch()
            with mock.patch.object(qemu, "PROGRAM", program), mock.patch.object(timing, "PLUGIN", plugin):
                if words is None:
                    timing.check(machine)
                else:
                    self.assertRaisesRegex(LabError, words, timing.check, machine)

    def test_a_known_qemu_and_a_machine_of_fitting_size_pass(self):
        self.refused(pair(), None)

    def test_an_unknown_qemu_is_refused_with_the_known_ones(self):
        self.refused(pair(), r"this QEMU is 9\.9\.9, the timing plugin knows 10\.0\.2", version="9.9.9")
        self.refused(pair(), "an unknown version", version="")

    def test_a_machine_with_more_memory_than_the_host_has_left_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            meminfo = Path(folder) / "meminfo"
            meminfo.write_text("MemTotal:  9999999 kB\nMemAvailable:   819200 kB\n")
            qemu.check_memory(machine([1, 1]), False, meminfo)
            self.assertRaisesRegex(LabError, "needs 832 MB of this host's memory, 800 MB are available", qemu.check_memory,
                                   machine([1, 1]), True, meminfo)

    def test_too_many_cpus_or_nodes_are_refused(self):
        self.refused(machine([17, 17]), "needs 34 vCPUs, 32 is the most")
        self.refused(machine([1] * 9), "has 9 nodes, 8 is the most")

    def test_lines_of_another_size_are_refused(self):
        self.refused(parse(FLAT.replace("line_b=64", "line_b=128")), "lines of 128 bytes, must be 64")

    def test_times_that_the_plugin_would_change_are_refused(self):
        for ns, counted in (("0.1", "0.125"), ("0.02", "0"), ("1.04", "1.0625")):
            slow = parse(FLAT.replace("pause_ns=40", f"pause_ns={ns}"))
            words = f"pair: core.pause_ns has {ns} ns, of which steps of 1/16 ns would make {counted}: give a multiple"
            self.refused(slow, words)
        self.refused(parse(FLAT.replace("185 95", "185 1.1")), "node.1.latency_ns has 1.1 ns")
        for ns in ("0", "0.3125", "49.3"):
            self.refused(parse(FLAT.replace("pause_ns=40", f"pause_ns={ns}")), None)

    def test_an_l1_that_the_plugin_would_change_is_refused(self):
        for kb in (1, 2, 3, 48):
            self.refused(parse(FLAT.replace("l1_kb=32", f"l1_kb={kb}")), f"l1_kb is {kb}, must be a power of two from 4 up")
        for kb in (4, 64):
            self.refused(parse(FLAT.replace("l1_kb=32", f"l1_kb={kb}")), None)

    def test_all_machine_files_have_times_that_the_plugin_keeps(self):
        for path in sorted((VM / "machines").glob("*.toml")):
            timing.check_times(path.name, timing.flat(load(path)))

    def test_a_plugin_that_is_not_built_is_named(self):
        with mock.patch.object(timing, "PLUGIN", Path("/no/timing.so")):
            self.assertRaisesRegex(LabError, "is not built", timing.check, pair())


class Truth(unittest.TestCase):
    def test_records_stand_beside_the_costs_in_force(self):
        with tempfile.TemporaryDirectory() as folder:
            lines = ['{"at_ns":5,"mark":null}', '{"at_ns":9,"mark":1}']
            (Path(folder) / "records").write_text("\n".join(lines) + "\n")
            truth = timing.truth(request(pair(), seed=3), Path(folder))
        self.assertEqual((truth["schema"], truth["machine"], truth["kernel"], truth["seed"]), (1, "pair", "7.0", 3))
        self.assertEqual((truth["nodes"], truth["cpus_per_node"]), ([0, 2], [2, 1]))
        self.assertEqual(truth["plugin"]["node.1.latency_ns"], [185.0, 95.0])
        self.assertEqual([record["mark"] for record in truth["records"]], [None, 1])
        json.dumps(truth)

    def test_a_record_cut_off_by_the_end_of_qemu_is_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "records").write_text('{"at_ns":5,"mark":null}\n{"at_ns":9,"ma')
            self.assertEqual(len(timing.truth(request(pair()), Path(folder))["records"]), 1)

    def test_a_bad_record_among_others_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "records").write_text('{"at_ns":5,"ma\n{"at_ns":9,"mark":1}\n')
            self.assertRaisesRegex(LabError, "has a line that is no record", timing.truth, request(pair()), Path(folder))


class Calibration(unittest.TestCase):
    def test_a_program_that_fails_in_the_guest_is_told_and_a_verdict_of_the_lab_is_not_told_twice(self):
        wanted = run.Request(pair(), Path("kernel"), "7.0", "timing", 60, (), "", None, True, False, False, ())
        with mock.patch.object(calibrate, "PROGRAM", Path(__file__)):
            with mock.patch.object(run, "direct", return_value=(1, None)):
                self.assertRaisesRegex(LabError, "^tandem-calibrate failed with 1 in the guest", calibrate.calibrate, wanted)
            with mock.patch.object(run, "direct", return_value=(122, "kernel panic")):
                self.assertEqual(calibrate.calibrate(wanted), (122, None))

    WALKS = [{"from": 0, "to": 2, "ns": 180.9}, {"from": 2, "to": 0, "ns": 185.0}]

    def test_walks_are_compared_by_the_kernels_ids(self):
        result = calibrate.compare(pair(), self.WALKS)
        self.assertEqual([walk["file_ns"] for walk in result["walks"]], [180.0, 185.0])
        self.assertAlmostEqual(result["worst_error"], 0.005)
        self.assertTrue(result["valid"])

    def test_more_than_one_percent_off_in_either_direction_is_void(self):
        for ns in (181.9, 178.1):
            result = calibrate.compare(pair(), [self.WALKS[1], {"from": 0, "to": 2, "ns": ns}])
            self.assertFalse(result["valid"], ns)
            self.assertIn("void", calibrate.table(result))

    def test_a_walk_is_a_power_of_two_of_lines_and_twice_the_caches(self):
        lines = calibrate.lines(pair())
        self.assertEqual(lines & (lines - 1), 0)
        self.assertGreaterEqual(lines * 64, 2 * 1280 * 1024)


if __name__ == "__main__":
    unittest.main()
