# SPDX-License-Identifier: GPL-2.0-only
"""The comparison of the model with the lab."""

from pathlib import Path
import unittest

import model_lab


def arm(name, remote, *values):
    boots = [{"report": {"unit": "s", "value": value, "seconds": 99.0}} for value in values]
    return {"name": name, "remote_share": remote, "boots": boots}


class Comparison(unittest.TestCase):
    def test_ratios_are_of_medians_and_to_the_oracle(self):
        experiment = {"arms": [arm("oracle", 0.0, 2.0, 2.0, 9.0), arm("stock-nb0", 0.5, 3.0), arm("stock-nb1", 0.1)]}
        self.assertEqual(model_lab.lab_ratios(experiment), {"eevdf-llc": (1.5, 0.5)})
        self.assertEqual(model_lab.lab_ratios({"arms": [arm("stock-nb0", 0.5, 3.0)]}), {})

    def test_a_workload_that_counts_no_seconds_is_compared_by_its_timed_part(self):
        oltp = arm("oracle", 0.0, 5000)
        oltp["boots"][0]["report"].update(unit="ns", seconds=4.0)
        self.assertEqual(model_lab.lab_times({"arms": [oltp]}), {"oracle": 4.0})

    def test_the_model_runs_what_the_lab_ran(self):
        queue = model_lab.chosen("queue:--programs 1 --work 25", "ring4")
        self.assertEqual({arm: scenario.name for arm, scenario in queue.values()}, dict.fromkeys(
            ("direct", "eevdf-llc", "autonuma-llc", "direct-far"), "lab-queue.toml"))
        self.assertEqual(model_lab.chosen("migration", "ring4")["worst"], ("eevdf", "migration"))
        self.assertEqual(model_lab.chosen("migration", "2node")["worst"], ("worst", "migration"))
        mixed = model_lab.chosen("mixed:--passes 100", "2node")
        self.assertEqual((mixed["worst"], mixed["oracle"][1].name), (("worst", "mixed"), "lab-mixed.toml"))
        for file in (scenario for found in (queue, mixed) for _, scenario in found.values() if isinstance(scenario, Path)):
            self.assertTrue(file.exists(), file)

    def test_order_counts_where_arms_differ_in_both(self):
        lab = {"eevdf-llc": (1.8, 0.5), "autonuma-llc": (1.2, 0.1), "worst": (1.82, 1.0)}
        self.assertTrue(model_lab.same_order(lab, {"eevdf-llc": (1.7, 0), "autonuma-llc": (1.1, 0), "worst": (1.6, 0)}))
        self.assertFalse(model_lab.same_order(lab, {"eevdf-llc": (1.1, 0), "autonuma-llc": (1.2, 0), "worst": (1.6, 0)}))

    def test_more_than_fifteen_per_cent_is_a_miss_and_is_marked(self):
        lab = {"eevdf-llc": (1.0, 0.5), "autonuma-llc": (2.0, None)}
        model = {"eevdf-llc": (1.16, 0.25), "autonuma-llc": (1.75, 0.1)}
        self.assertEqual(list(model_lab.misses(lab, model)), ["eevdf-llc"])
        cells = model_lab.row("2node", "crossed", 3.5, lab, model)
        self.assertEqual(cells, ["crossed, 2node", "3.50 s", "1.00 / **1.16** (50 / 25 %)", "2.00 / 1.75", "-", "yes", "+16 %"])


if __name__ == "__main__":
    unittest.main()
