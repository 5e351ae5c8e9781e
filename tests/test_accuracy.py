# SPDX-License-Identifier: GPL-2.0-only
"""Known answers of what the accuracy of samplers is measured by."""

import unittest

import accuracy


def picture(threads, groups=(), sharing=(), cost_ns=0):
    return {"threads": threads, "groups": list(groups), "sharing": list(sharing), "cost_ns": cost_ns}


def line(time_s, truth, said):
    return {"time_s": time_s, "truth": truth, "samplers": {"x": said}}


class Measures(unittest.TestCase):
    def test_the_preferred_node_is_right_where_it_is_nearly_the_best(self):
        self.assertTrue(accuracy.is_right([1, 5], [2, 9]))
        self.assertFalse(accuracy.is_right([5, 1], [2, 9]))
        self.assertTrue(accuracy.is_right([5, 1], [96, 100]))
        self.assertFalse(accuracy.is_right([5, 1], [94, 100]))
        for nothing in (None, [], [0, 0]):
            self.assertFalse(accuracy.is_right(nothing, [2, 9]))

    def test_equal_values_share_their_ranks(self):
        self.assertEqual(accuracy.ranks([30, 10, 30, 20]), [3.5, 1, 3.5, 2])
        self.assertEqual(accuracy.ranks([]), [])

    def test_where_nothing_varies_there_is_nothing_to_find(self):
        self.assertIsNone(accuracy.correlation([3, 3], [1, 2]))
        self.assertIsNone(accuracy.correlation([], []))
        self.assertEqual(accuracy.correlation([1, 2], [3, 3]), 0)
        self.assertAlmostEqual(accuracy.correlation([1, 2, 3], [2, 4, 6]), 1)
        self.assertAlmostEqual(accuracy.correlation([1, 2, 3], [3, 2, 1]), -1)

    def test_truth_is_forgotten_by_half_in_a_half_life(self):
        truth = accuracy.Truth()
        truth.add(0, picture({"1": [8, 0]}, [(7, 0, [8, 0])], [(1, 2, 4)]))
        truth.add(accuracy.HALF_LIFE_S, picture({"1": [0, 1], "2": [1, 1]}, [(7, 0, [1, 1])]))
        self.assertEqual(truth.threads, {"1": [4, 1], "2": [1, 1]})
        self.assertEqual((truth.groups, truth.pairs), ({(7, 0): [5, 1]}, {(1, 2): 2}))

    def test_groups_count_by_their_accesses_and_cold_ones_do_not(self):
        truth = accuracy.Truth()
        truth.add(0, picture({"1": [60, 35]}, [(7, 0, [60, 0]), (7, 2, [0, 35]), (7, 4, [5, 0])]))
        self.assertEqual(set(truth.hot_groups()), {(7, 0), (7, 2)})
        said = picture({"1": [2, 1]}, [(7, 0, [1, 0]), (7, 2, [1, 0]), (7, 4, [0, 1])])
        found = accuracy.judged(truth, {"1"}, said)
        self.assertAlmostEqual(found["groups"], 60 / 95)
        self.assertEqual(found["threads"], 1)

    def test_a_thread_that_the_sampler_does_not_see_is_wrong(self):
        truth = accuracy.Truth()
        truth.add(0, picture({"1": [9, 1], "2": [1, 9]}, [(7, 0, [9, 9])], [(1, 2, 3)]))
        self.assertEqual(accuracy.judged(truth, {"1", "2"}, picture({"1": [3, 1]}))["threads"], 0.5)

    def test_sharing_is_compared_pair_by_pair(self):
        truth = accuracy.Truth()
        rows = {"1": [1, 0], "2": [1, 0], "10": [1, 0]}
        truth.add(0, picture(rows, [(7, 0, [3, 0])], [(1, 2, 9), (2, 10, 1)]))
        for sharing, expected in (([(1, 2, 90), (2, 10, 10)], 1), ([(1, 10, 9)], -0.585)):
            found = accuracy.judged(truth, set(rows), picture(rows, sharing=sharing))
            self.assertAlmostEqual(found["sharing"], expected, places=2)

    def test_a_lag_is_from_the_change_to_the_first_right_answer(self):
        rows = {0: {"5": [9, 1]}, 1: {"5": [1, 9]}}
        true, said = [0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1]
        lines = [line(at / 2, picture(rows[t]), picture(rows[s])) for at, (t, s) in enumerate(zip(true, said))]
        self.assertEqual(accuracy.lags_s(lines, "x"), [1.5])
        never = [line(at / 2, picture(rows[t]), picture(rows[0])) for at, t in enumerate(true)]
        self.assertEqual(accuracy.lags_s(never, "x"), [None])
        excursion = [line(at / 2, picture(rows[t]), picture(rows[0])) for at, t in enumerate([0, 0, 1, 0, 0, 0])]
        self.assertEqual(accuracy.lags_s(excursion, "x"), [])

    def test_truth_forgets_a_phase_that_is_over_where_there_are_phases(self):
        rows = [{"5": [900, 100]}, {"5": [100, 900]}]
        nodes = [0] * 6 + [1] * 4
        lines = [line(at / 2, picture(rows[node], [(7, node, rows[node]["5"])]), picture(rows[node], [(7, node, rows[node]["5"])])) for at, node in enumerate(nodes)]
        self.assertEqual(list(accuracy.turns(lines, "5")), [(6, 1)])
        self.assertEqual(accuracy.measures(lines, "x", phased=True)["threads"], 1)
        self.assertLess(accuracy.measures(lines, "x")["threads"], 1)

    def test_a_run_is_judged_after_its_warm_up(self):
        rows, other = {"5": [900, 100]}, {"5": [100, 900]}
        groups = [(7, 0, [1000, 0])]
        lines = [line(at, picture(rows, groups), picture(other if at < 2 else rows, groups, cost_ns=at * 10**7)) for at in range(1, 5)]
        found = accuracy.measures(lines, "x")
        self.assertEqual((found["threads"], found["groups"], found["intervals"], found["changes"]), (1, 1, 3, 0))
        self.assertAlmostEqual(found["cost"], 0.01)
        self.assertIsNone(accuracy.measures(lines[:2], "x")["lasting_cost"], "it ended too early")
        for at, seen in enumerate(lines):
            seen["samplers"]["x"]["cost_ns"] = 10**9 + at * 10**6
        self.assertAlmostEqual(accuracy.measures(lines, "x")["lasting_cost"], 0.001, msg="what was spent at first does not count")
        idle = [line(at, picture({"5": [1, 1]}), picture({})) for at in range(1, 5)]
        self.assertRaises(accuracy.Failed, accuracy.measures, idle, "x")


class Table(unittest.TestCase):
    def test_only_what_is_between_the_markers_is_replaced(self):
        begin, end = accuracy.FILTER
        text = f"a\n{begin}\nold\n{end}\nb\n"
        new = accuracy.written(text, accuracy.FILTER, "new")
        self.assertEqual(new, f"a\n{begin}\nnew\n{end}\nb\n")
        self.assertEqual(accuracy.written(new, accuracy.FILTER, "new"), new)

    def test_what_is_not_known_is_a_dash(self):
        found = {"threads": 1, "groups": 0.5, "ranks": None, "sharing": 0.9, "lag_s": None, "changes": 0, "followed": 0, "cost": 0.01}
        found["lasting_cost"] = None
        row = accuracy.table({"w": {"x": found}}).splitlines()[-1]
        self.assertEqual(row, "| `w` | `x` | 100.0% | 50.0% | - | 0.90 | - | 1.00% | - |")
        followed = {**found, "lag_s": 1.25, "changes": 3, "followed": 2}
        self.assertIn("| 1.2 s (2 of 3) |", accuracy.table({"w": {"x": followed}}))

    def test_what_the_filter_keeps_is_compared_with_what_the_cpus_counted(self):
        def seen(accesses):
            return {"counters": {"accesses": accesses, "instructions": 5000}}

        samplers = {accuracy.FILTERED: seen(600), accuracy.UNFILTERED: seen(1500)}
        last = {"counted": {"lines": {"l2_misses": 2000, "l3_misses": 400}, "instructions": 20000}, "samplers": samplers}
        row = accuracy.filter_table({"w": last}).splitlines()[-1]
        self.assertEqual(row, "| `w` | 100 | 20 | 120 (1.20x) | 300 (3.00x) |")


if __name__ == "__main__":
    unittest.main()
