# SPDX-License-Identifier: GPL-2.0-only
"""The tables of docs/policies.md."""

import math
import unittest

import policies


def report(scenario, **times):
    arms = [{"name": name.replace("_", "+"), "times_s": list(seeds)} for name, seeds in times.items()]
    return {"scenario": scenario, "arms": arms}


REPORTS = [
    report("crossed", eevdf=(4.0, 4.0), autonuma=(2.0, 2.0), oracle=(1.0, 1.0), sma_none=(1.5, 1.5), cra_none=(3.0, 3.0)),
    report("sam-1", eevdf=(2.0, 2.0), autonuma=(2.0, 2.0), oracle=(1.0, 1.0), sma_none=(3.0, None), cra_none=(1.0, 1.0)),
]


class Tables(unittest.TestCase):
    def test_scenarios_have_one_family_each(self):
        names = ("crossed", "sam-12", "kmaf-grid", "single-lu", "thanos-queue", "full-nodes", "ping-pong", "all-shared", "queue")
        self.assertEqual([policies.family(name) for name in names], ["lab", "sam", "kmaf", "single", "thanos", "adversarial", "lab", "lab", "lab"])

    def test_an_interval_is_students_of_the_logarithms(self):
        middle, half = policies.interval([math.log(0.9), math.log(1.0), math.log(1.1)])
        self.assertAlmostEqual(middle, 100 * 0.99 ** (1 / 3))
        # Standard deviation of the logarithms .1003, by sqrt(3), by 4.303: .2493.
        self.assertAlmostEqual(half, middle * math.sinh(0.2493), delta=0.01)
        self.assertEqual(policies.interval([0.0, 0.0]), (100.0, 0.0))

    def test_scenarios_count_alike_however_long_they_are(self):
        middle, half = policies.together(policies.ratios(REPORTS, "cra+none"), ["crossed", "sam-1"])
        # 1.5 times and half of the reference.
        self.assertAlmostEqual(middle, 100 * math.sqrt(0.75))
        self.assertEqual(half, 0.0)

    def test_the_slowest_program_is_as_fast_as_its_mix_lasts(self):
        mixes = [{**report("sam-1", sma_none=(20.0, 20.0)), "ideal_seconds": 10}, {**report("sam-2", sma_none=(10.0, 10.0)), "ideal_seconds": 8}]
        self.assertAlmostEqual(policies.slowest(mixes, "sma+none"), math.sqrt(0.5 * 0.8))

    def test_runs_beside_all_policies_are_those_that_the_tables_name(self):
        machines = {*policies.MACHINES, *policies.EXTRAS}
        self.assertLessEqual({machine for _, _, machine, _, _, _ in policies.PAPERS}, machines)
        for _, _, runs, arm in policies.COUPLED:
            self.assertIn(arm, policies.EXTRAS[runs][2].split(","))
        for _, scenario, _, _ in policies.EXTRAS.values():
            self.assertTrue("/" not in scenario or (policies.ROOT / scenario).is_file(), scenario)

    def test_a_run_that_was_given_up_is_said_and_is_no_number(self):
        found = policies.ratios(REPORTS, "sma+none")
        self.assertEqual(policies.cell(policies.together(found, ["crossed", "sam-1"])), "gave up")
        self.assertEqual(policies.losses(found), 1)

    def test_the_best_comes_first_and_what_was_given_up_last(self):
        rows = policies.summary_table(REPORTS).splitlines()[2:]
        self.assertEqual([row.split("`")[1] for row in rows], ["oracle", "cra+none", "autonuma", "eevdf", "sma+none"])
        self.assertIn("| 150 ±0.0 |", rows[1])

    def test_neither_bounds_nor_the_systems_arms_are_the_best_policy(self):
        self.assertEqual(policies.best_policy(REPORTS[0]), ("sma+none", (75.0, 0.0)))

    def test_no_policy_is_best_that_is_no_faster_than_the_system(self):
        idle = report("all-shared", eevdf=(2.0,), autonuma=(2.01,), oracle=(2.0,), sma_none=(1.99,))
        self.assertIsNone(policies.best_policy(idle))
        self.assertIn("| all-shared | 100 / - / 100 |", policies.scenario_table({"2node": [idle]}))

    def test_what_is_outside_of_the_markers_stays(self):
        text = "a\n<!-- x begins -->\nold\n<!-- x ends -->\nb\n"
        self.assertEqual(policies.put(text, "x", "new"), "a\n<!-- x begins -->\nnew\n<!-- x ends -->\nb\n")
        with self.assertRaisesRegex(ValueError, "y begins"):
            policies.put(text, "y", "new")


if __name__ == "__main__":
    unittest.main()
