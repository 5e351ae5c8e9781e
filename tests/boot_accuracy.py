# SPDX-License-Identifier: GPL-2.0-only
"""`lookahead` at its default budget, in guests of the timing lab: as right as docs/signals.md says.

usage: python3 -m unittest discover -v -s tests -p 'boot_accuracy.py'     (five to twenty minutes)
"""

import unittest

import accuracy

# The goals; the cost with room for what a run takes too much, which is paid off later.
GOALS = {"threads": 0.98, "groups": 0.95, "sharing": 0.9}
MOST_LASTING_COST = 0.012


class Accuracy(unittest.TestCase):
    def judge(self, workload):
        lines = accuracy.observed("2node", workload, accuracy.WORKLOADS[workload])
        found = accuracy.measures(lines, "lookahead")
        print(f"{workload}: {found}", flush=True)
        for name, least in GOALS.items():
            self.assertGreaterEqual(found[name], least, (workload, name, found))
        self.assertLess(found["lasting_cost"], MOST_LASTING_COST, found)

    def test_threads_that_are_far_from_their_memory(self):
        self.judge("crossed")

    def test_neighbours_that_share(self):
        self.judge("ring")


if __name__ == "__main__":
    unittest.main()
