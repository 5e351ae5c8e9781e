# SPDX-License-Identifier: GPL-2.0-only
"""Where nothing changes scx_tandem comes to rest: in the timing lab, within ten seconds of the machine's own time, and stays so for three.

usage: python3 -m unittest discover -v -s tests -p 'boot_rest.py'     (about 12 minutes each; needs ./run build)
"""

import unittest

import measured

# What passes until the workload begins, once the scheduler is loaded.
BEGINS_AFTER_S = 2
# From its begin on.
SETTLES_S, LASTS_S = 10, 13


class Rest(unittest.TestCase):
    def assert_comes_to_rest(self, workload, moves_at_first):
        """What is moved is moved in the beginning: some threads or pages if there is something to be gained then."""
        arms = measured.arms(self, workload, ["scx_tandem"], 1)
        ((boot,),) = [arm["boots"] for arm in arms.values()]
        report, began_ns = boot["scheduler_report"], boot["scheduler_report"]["loaded_at_ns"] + BEGINS_AFTER_S * 10**9
        self.assertGreater(boot["report"]["seconds"], LASTS_S, "it is watched for long enough")
        moves = [move for kind in ("thread_moves", "page_moves") for move in report[kind]]
        after_s = sorted((move["time_ns"] - began_ns) / 1e9 for move in moves)
        print(f"{workload}: {len(moves)} moves, {len(report['plans'])} plans, the last move after {after_s[-1:]} s", flush=True)
        self.assertTrue(moves or not moves_at_first, report["plans"])
        self.assertTrue(all(one < SETTLES_S for one in after_s), (after_s, report["plans"]))

    def test_two_that_pass_a_line_to_each_other(self):
        self.assert_comes_to_rest("ping-pong:--turns 34000", moves_at_first=True)

    def test_threads_that_share_all_memory(self):
        self.assert_comes_to_rest("all-shared:--passes 104", moves_at_first=False)

    def test_threads_far_from_their_memory(self):
        self.assert_comes_to_rest("ring:--steps 1500", moves_at_first=True)


if __name__ == "__main__":
    unittest.main()
