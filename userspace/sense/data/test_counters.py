# SPDX-License-Identifier: GPL-2.0-only
"""What counters.py makes of a small tree of event tables."""

import json
import pathlib
import subprocess
import sys
import tempfile
import tomllib
import unittest

SCRIPT = pathlib.Path(__file__).with_name("counters.py")


def event(name, code, mask="0x0", **more):
    """An entry of a table."""
    return {"EventName": name, "EventCode": code, "UMask": mask, "Counter": "0,1", **more}


class Counters(unittest.TestCase):
    """The table of a tree with two Intel models, one of them hybrid, an AMD family and an Arm core."""

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as tree:
            arch = pathlib.Path(tree) / "tools/perf/pmu-events/arch"
            cls.fill(arch)
            cls.text = subprocess.run([sys.executable, SCRIPT, tree, "a test"], check=True, capture_output=True,
                                      text=True).stdout
        cls.cores = {(core["name"], core["pmu"]): core for core in tomllib.loads(cls.text)["core"]}

    @staticmethod
    def fill(arch):
        """Writes the tables."""
        tables = {
            "x86/server/cache.json": [
                {"EventName": "INST_RETIRED.ANY", "Counter": "Fixed counter 0", "UMask": "0x1"},
                event("LONGEST_LAT_CACHE.MISS", "0x2e", "0x41", CounterMask="2"),
                event("FP_ARITH_INST_RETIRED.SCALAR_DOUBLE", "0xc7", "0x1"),
                event("FP_ARITH_INST_RETIRED.SCALAR_SINGLE", "0xc7", "0x2"),
                event("FP_ARITH_INST_RETIRED.128B_PACKED_DOUBLE", "0xc7", "0x4"),
                event("MEM_LOAD_RETIRED.L2_MISS", "0xd1", "0x10", Deprecated="1"),
                event("MEM_LOAD_UOPS_RETIRED.L2_MISS", "0xd1,0xd2", "0x10"),
            ],
            "x86/hybrid/cache.json": [
                event("CPU_CLK_UNHALTED.CORE", "0x3c", Unit="cpu_atom"),
                event("MEM_LOAD_RETIRED.L2_MISS", "0xd1", "0x10", Unit="cpu_core"),
                event("LONGEST_LAT_CACHE.MISS", "0x2e", "0x41", Unit="CBO"),
            ],
            "x86/zen/memory.json": [event("ls_any_fills_from_sys.dram_io_far", "0x44", "0x40")],
            "arm64/common.json": [event("CPU_CYCLES", "0x11")],
            "arm64/arm/core/general.json": [{"ArchStdEvent": "CPU_CYCLES"}],
        }
        for name, entries in tables.items():
            (arch / name).parent.mkdir(parents=True, exist_ok=True)
            (arch / name).write_text(json.dumps(entries))
        head = "Family-model,Version,Filename,EventType\n"
        (arch / "x86/mapfile.csv").write_text(
            head + "GenuineIntel-6-55-[01234],v1,server,core\nGenuineIntel-6-(97|9A),v1,hybrid,core\n"
            "AuthenticAMD-25-([12][[:xdigit:]]|[[:xdigit:]]),v1,zen,core\n")
        (arch / "arm64/mapfile.csv").write_text("# comment\n0x00000000410fd490,v1,arm/core,core\n")

    def test_models_are_ranges_and_steppings(self):
        self.assertEqual(self.cores["server", "cpu"]["cpus"], ["GenuineIntel-6-55-0..4"])
        self.assertEqual(self.cores["zen", "cpu"]["cpus"], ["AuthenticAMD-25-0..2F"])
        self.assertEqual(self.cores["arm core", "cpu"]["cpus"], ["0x410fd490"])

    def test_fixed_counters_and_masks_have_the_terms_of_the_pmu(self):
        counters = self.cores["server", "cpu"]["counters"]
        self.assertEqual(counters["instructions"][0]["terms"], "event=0xc0")
        self.assertEqual(counters["l3_miss"][0]["terms"], "event=0x2e,umask=0x41,cmask=0x2")

    def test_events_that_add_up_are_one(self):
        operations = self.cores["server", "cpu"]["counters"]["operations"]
        self.assertEqual([(entry["weight"], entry["terms"]) for entry in operations],
                         [(1, "event=0xc7,umask=0x3"), (2, "event=0xc7,umask=0x4")])

    def test_deprecated_events_and_those_with_two_codes_are_left_out(self):
        self.assertNotIn("l2_miss", self.cores["server", "cpu"]["counters"])

    def test_each_type_of_core_has_its_own_and_no_uncore_event(self):
        self.assertEqual(list(self.cores["hybrid", "cpu_atom"]["counters"]), ["cycles"])
        self.assertEqual(list(self.cores["hybrid", "cpu_core"]["counters"]), ["l2_miss"])

    def test_standard_events_of_arm_are_looked_up(self):
        self.assertEqual(self.cores["arm core", "cpu"]["counters"]["cycles"][0]["terms"], "event=0x11")

    def test_a_folder_that_is_no_source_tree_is_one_sentence(self):
        with tempfile.TemporaryDirectory() as empty:
            run = subprocess.run([sys.executable, SCRIPT, empty, "x"], check=False, capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stderr.count("\n")), (1, 1))
        self.assertIn("name the root of a Linux source tree", run.stderr)


if __name__ == "__main__":
    unittest.main()
