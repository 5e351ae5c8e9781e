# SPDX-License-Identifier: GPL-2.0-only
"""A guard against regressions: a short A/B of scx_tandem in the timing lab, on two workloads whose memory is on the wrong node.

usage: python3 -m unittest discover -v -s tests -p 'boot_guard.py'     (about 8 minutes; needs ./run build)
"""

import statistics
import unittest

import measured

STOCK, TESTED = "stock-nb1", "scx_tandem"
# What it may take longer than the stock scheduler with NUMA balancing.
MOST_SLOWER = 1.05
# Of crossed's accesses, in the last half second of the run.
LEAST_LOCAL = 0.90


class Guard(unittest.TestCase):
    def measure(self, workload):
        """The arms by name, two boots each."""
        return measured.arms(self, workload, [STOCK, TESTED], 2)

    def assert_not_slower(self, arms):
        ratio = arms[TESTED]["median"] / arms[STOCK]["median"]
        print(f"{ratio:.3f} of {STOCK}", flush=True)
        self.assertLess(ratio, MOST_SLOWER, arms[TESTED]["runs"])

    def test_crossed_is_not_slower_than_stock_and_ends_local(self):
        arms = self.measure("crossed:--passes 24")
        self.assert_not_slower(arms)
        for boot in arms[TESTED]["boots"]:
            # A record is made every tenth of a second, and one where the timed part ends.
            shares = [point["remote_share"] for point in boot["placement"]["series"][-6:] if point["remote_share"] is not None]
            local = 1 - statistics.median(shares)
            self.assertGreater(local, LEAST_LOCAL, boot["placement"]["series"])

    def test_memory_that_one_thread_initialised_is_not_slower_than_under_stock(self):
        self.assert_not_slower(self.measure("master-init:--passes 55"))


if __name__ == "__main__":
    unittest.main()
