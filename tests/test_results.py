# SPDX-License-Identifier: GPL-2.0-only
"""Tests of what the tables of results still lack: python3 -m unittest discover -s tests"""

import contextlib
import io
import json
from pathlib import Path
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import results

ROOT = Path(__file__).resolve().parent.parent


class Lacking(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "tandem-2node-ring.json"

    def measured(self, **boots):
        arms = [{"name": name.replace("_", "-"), "boots": [{}] * count} for name, count in boots.items()]
        self.file.write_text(json.dumps({"arms": arms}))

    def test_a_result_lacks_arms_and_boots_that_it_has_not(self):
        self.assertTrue(results.lacks(self.file, ["oracle"], 1))
        self.measured(oracle=2, worst=1)
        self.assertFalse(results.lacks(self.file, ["oracle"], 2))
        self.assertTrue(results.lacks(self.file, ["oracle", "worst"], 2))
        self.assertTrue(results.lacks(self.file, ["oracle", "direct"], 1))

    def test_stock_stands_for_four_arms(self):
        self.measured(stock_nb0=1, stock_nb1=1, stock_nb0_thp=1)
        self.assertTrue(results.lacks(self.file, ["stock"], 1))
        self.measured(stock_nb0=1, stock_nb1=1, stock_nb0_thp=1, stock_nb1_thp=1)
        self.assertFalse(results.lacks(self.file, ["stock"], 1))

    def test_arms_asked_for_join_those_that_are_there(self):
        arms = ["stock", "direct", "oracle", "worst"]
        self.assertEqual(results.arms_to_measure(arms, ["oracle"], self.file), ["oracle"])
        self.measured(stock_nb0=1, worst=1)
        self.assertEqual(results.arms_to_measure(arms, ["oracle"], self.file), ["stock", "oracle", "worst"])
        self.assertEqual(results.arms_to_measure(arms, None, self.file), arms)


class Kept(Lacking):
    def test_a_result_with_fewer_boots_does_not_take_the_place_of_one_with_more(self):
        measured = {"arms": [{"name": "oracle", "boots": [{}]}]}
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertFalse(results.lost(self.file, measured, False), "there is none")
            self.measured(oracle=2)
            self.assertEqual(results.lost(self.file, measured, False), ["oracle"])
            self.assertFalse(results.lost(self.file, measured, True), "all was measured again")
        self.assertIn("fewer boots of oracle than it has", said.getvalue())

    def test_a_workload_without_a_reference_has_a_row(self):
        self.assertIn("failed", results.row({"workload": "ring", "arms": [{"name": "scx_tandem"}]}, ["worst"]))


class Told(unittest.TestCase):
    def test_the_agents_cost_is_the_median_of_the_boots_that_have_a_scheduler(self):
        cost = lambda percent: {"scheduler_report": {"cost": {"cpu_percent": percent}}}
        boots = [cost(8.0), {"scheduler_report": None}, cost(2.4), cost(3.0)]
        experiment = {"arms": [{"name": "stock-nb1", "boots": [{}]}, {"name": "scx_tandem", "boots": boots}]}
        told = [results.agent_percent(experiment, name) for name in ("scx_tandem", "stock-nb1", "worst")]
        self.assertEqual(told, ["3 %", "-", "-"])

    def test_a_run_is_as_long_as_at_the_pace_of_its_third_quarter_once_it_is_placed(self):
        boot = lambda seconds, pace: {"report": {"seconds": seconds}, "placement": {"third_quarter_pace": pace}}
        of_others = {"report": {"seconds": 9.0}, "placement": None}
        arms = [{"name": "scx_tandem", "boots": [boot(3.0, 1.25), boot(3.3, 1.1), boot(2.2, None), of_others]},
                {"name": "oracle", "boots": [boot(2.0, 1.0)]}]
        self.assertEqual(results.placed({"arms": arms}, "scx_tandem"), "1.35", "2.4 and 3 s")
        self.assertEqual(results.placed({"arms": arms[:1]}, "scx_tandem"), "-", "of nothing")

    def test_an_arm_is_judged_by_the_best_valid_stock_arm_and_by_the_way_from_there_to_oracle(self):
        def experiment(workload, better="lower", **medians):
            arms = [{"name": name.replace("_n", "-n"), "median": median, "valid": name != "stock_nb0"} for name, median in medians.items()]
            return {"workload": workload, "better": better, "arms": [*arms, {"name": "scx_tandem", "median": medians["tandem"], "valid": True}]}

        rows = [
            experiment("far", stock_nb0=1.0, stock_nb1=4.0, oracle=2.0, tandem=2.4),
            experiment("less far", stock_nb1=4.0, oracle=2.0, tandem=2.5),
            experiment("nothing to gain", stock_nb1=1.0, oracle=0.96, tandem=1.02),
            experiment("slower", stock_nb1=1.0, tandem=1.03),
            experiment("more is better", better="higher", stock_nb1=1.0, tandem=1.5),
        ]
        judged = results.judged("scx_tandem", rows)
        self.assertEqual(judged, "- `scx_tandem`: slower than the best stock arm by more than 2 % on 1 of 5 workloads: `slower` (1.03); 80 % of the way to oracle on 1 of 2.")


class Readme(unittest.TestCase):
    """What the first page says of the results is what they say."""

    @staticmethod
    def said_by_results(machine):
        """Time less than stock with balancing as a mean, and how much longer it takes where it is slower, in percent."""
        section = (ROOT / "docs/results.md").read_text().split(f"\n## scx_tandem on {machine},")[1].split("\n## ")[0]
        [mean] = re.findall(r"balancing, where placement matters: `scx_tandem` ([0-9.]+)", section)
        [slower] = re.findall(r"- `scx_tandem`: slower than .*; 80 %", section)
        return round(100 - 100 * float(mean)), sorted(round(100 * float(ratio)) - 100 for ratio in re.findall(r"\(([0-9.]+)\)", slower))

    def test_its_numbers_are_those_of_the_tables(self):
        [paragraph] = re.findall(r"In its lab `scx_tandem` takes (.*?)\[docs", (ROOT / "README.md").read_text(), re.DOTALL)
        machines = [self.said_by_results(machine) for machine in ["2node", "ring4", "thanos-a", "thanos-b"]]
        cpus, workloads = 16, len(list((ROOT / "docs/results").glob("tandem-2node-*.json")))
        expected = [mean for mean, _ in machines] + [cpus, workloads] + [ratio for _, slower in machines for ratio in slower]
        self.assertEqual([int(number) for number in re.findall(r"\d+", paragraph)], expected)


if __name__ == "__main__":
    unittest.main()
