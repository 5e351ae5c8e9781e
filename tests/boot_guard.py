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
# Of accesses, in the last half second of crossed and the last three tenths of master-init (1 % if nothing moves).
LEAST_LOCAL = {"crossed": 0.90, "master-init": 0.75}


class Guard(unittest.TestCase):
    def measure(self, workload):
        """The arms by name, two boots each."""
        return measured.arms(self, workload, [STOCK, TESTED], 2)

    def assert_not_slower(self, arms):
        ratio = arms[TESTED]["median"] / arms[STOCK]["median"]
        print(f"{ratio:.3f} of {STOCK}", flush=True)
        self.assertLess(ratio, MOST_SLOWER, arms[TESTED]["runs"])

    def assert_ends_local(self, arms, records, least):
        """Of the last records, one made every tenth of a second, half have so large a share of local accesses."""
        for boot in arms[TESTED]["boots"]:
            series = boot["placement"]["series"]
            shares = [point["remote_share"] for point in series[-records:] if point["remote_share"] is not None]
            local = 1 - statistics.median(shares)
            print(f"{local:.3f} local at the end", flush=True)
            self.assertGreater(local, least, series)

    def test_crossed_is_not_slower_than_stock_and_ends_local(self):
        arms = self.measure("crossed:--passes 24")
        self.assert_not_slower(arms)
        # And one where the timed part ends.
        self.assert_ends_local(arms, 6, LEAST_LOCAL["crossed"])

    def test_memory_that_one_thread_initialised_is_not_slower_than_under_stock(self):
        arms = self.measure("master-init:--passes 55")
        self.assert_not_slower(arms)
        # Who moves nothing is as fast as balancing that has hardly begun by then.
        self.assert_ends_local(arms, 3, LEAST_LOCAL["master-init"])


if __name__ == "__main__":
    unittest.main()
