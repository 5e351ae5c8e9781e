# SPDX-License-Identifier: GPL-2.0-only
"""Rules of the demo's report, on series written by hand."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import report  # noqa: E402

LOADED_NS = 100_000_000_000


def sample(time_s, **changes):
    """A sample `time_s` after loading that meets every goal, but for `changes`."""
    no_migrations = {"pgmigrate_success": 0, "numa_pages_migrated": 0, "numa_pte_updates": 0, "numa_hint_faults": 0}
    return {
        "time_s": time_s,
        "monotonic_ns": LOADED_NS + int(time_s * 1e9),
        "local_pages_share": 0.99,
        "pairs_together": 4,
        "pages_per_node": {"0": 10, "2": 30},
        "threads_per_node": {"0": 8},
        "thread_moves": 0,
        "page_home_changes": 0,
        "migrations": no_migrations,
    } | changes


def observation(samples):
    summary = {
        "observed_s": 60.0,
        "remote_share_start": 1.0,
        "remote_share_end": 0.02,
        "local_pages_share_end": 0.99,
        "private_local_share_end": None,
        "right_place_share": 0.875,
        "pairs": 4,
        "pairs_together_end": 4,
        "thread_node_changes": 7,
        "thread_moves": 5,
        "migrations": {"pgmigrate_success": 1234, "numa_hint_faults": 9},
        "time_to_90_percent_local_s": None,
    }
    pairs = [[1, 2], [3, 4], [5, 6], [7, 8]]
    return {"samples": samples, "pairs": pairs, "summary": summary, "observer_cpu_s": 0.5, "nodes": [0, 2]}


SAMPLER = {
    "name": "lookahead", "budget_percent": 25.0, "used_percent": 21.34, "covered_threads": 7, "busy_threads": 8,
    "counters": {"emulated": 2085, "accesses": 52262},
}
MOVER = {"budget_pages_per_s": 65536, "budget_call_ns_per_s": 500_000_000, "moved_pages": 8192, "call_ns": 1_581_291_991}


def scheduler_report(**changes):
    empty = {"loaded_at_ns": LOADED_NS, "sampler": SAMPLER, "mover": MOVER}
    return empty | {"thread_moves": [], "page_moves": []} | changes


def series(**changes_by_time):
    """Samples every 0.5 s for 60 s; `t3_5={...}` changes the sample at 3.5 s."""
    changes = {float(key[1:].replace("_", ".")): value for key, value in changes_by_time.items()}
    return [sample(tick / 2, **changes.get(tick / 2, {})) for tick in range(121)]


def verdicts(samples, *within_s, **report_changes):
    return [goal["met"] for goal in report.goals(observation(samples), scheduler_report(**report_changes), *within_s)]


class Goals(unittest.TestCase):
    def test_all_are_met_by_a_placement_that_is_right_and_quiet(self):
        self.assertEqual(verdicts(series()), [True, True, True, True])

    def test_placement_after_20_s_is_too_late_and_before_it_is_not(self):
        def placed_from(first_s):
            return [sample(tick / 2, local_pages_share=0.99 if tick / 2 >= first_s else 0.5) for tick in range(121)]

        self.assertEqual(verdicts(placed_from(20.0)), [True, True, True, True])
        self.assertEqual(verdicts(placed_from(20.5)), [False, True, True, True])
        self.assertEqual(verdicts(placed_from(20.5), 30), [True, True, True, True])
        self.assertEqual(verdicts(placed_from(30.5), 30), [False, True, True, True])

    def test_pairs_and_quiet_are_judged_by_the_same_time(self):
        def together_from(first_s):
            return [sample(tick / 2, pairs_together=4 if tick / 2 >= first_s else 3) for tick in range(121)]

        self.assertEqual(verdicts(together_from(29.5), 30), [True, True, True, True])
        self.assertEqual(verdicts(series(t25_0={"thread_moves": 1}), 30), [True, True, True, True])
        self.assertEqual(verdicts(series(t49_5={"thread_moves": 1}), 30), [True, True, False, True])

    def test_times_count_from_the_schedulers_word_when_that_is_earlier_than_the_first_sample(self):
        late = [sample(tick / 2, local_pages_share=0.99 if tick / 2 >= 19.5 else 0.5) for tick in range(161)]
        self.assertEqual(verdicts(late)[0], True)
        self.assertEqual(verdicts(late, loaded_at_ns=LOADED_NS - 10**9)[0], False)

    def test_94_percent_of_pages_are_not_enough(self):
        goals = report.goals(observation([sample(t / 2, local_pages_share=0.94) for t in range(121)]), scheduler_report())
        self.assertEqual([goal["met"] for goal in goals], [False, True, True, False])
        self.assertIn("94.0 %", goals[0]["measured"])

    def test_one_good_sample_alone_is_no_placement(self):
        samples = [sample(t / 2, local_pages_share=0.99 if t == 9 else 0.5) for t in range(121)]
        self.assertEqual(verdicts(samples), [False, True, True, False])

    def test_a_pair_apart_misses_the_goal(self):
        samples = [sample(t / 2, pairs_together=3) for t in range(121)]
        self.assertEqual(verdicts(samples), [True, False, True, False])

    def test_any_move_from_20_to_40_s_misses_the_goal_and_before_it_does_not(self):
        def at(time_s):
            return LOADED_NS + int(time_s * 1e9)

        for change in ({"thread_moves": 1}, {"page_home_changes": 8}, {"migrations": {"pgmigrate_success": 1}}):
            self.assertFalse(verdicts(series(t30_0=change))[2], change)
            self.assertTrue(verdicts(series(t19_5=change))[2], change)
        self.assertFalse(verdicts(series(), thread_moves=[{"time_ns": at(21)}])[2])
        self.assertTrue(verdicts(series(), thread_moves=[{"time_ns": at(19)}])[2])
        self.assertFalse(verdicts(series(), page_moves=[{"time_ns": at(39), "moved_pages": 1}])[2])
        self.assertTrue(verdicts(series(), page_moves=[{"time_ns": at(41), "moved_pages": 1}])[2])

    def test_an_observation_that_ends_before_40_s_proves_no_quiet(self):
        self.assertFalse(verdicts(series()[:70])[2])

    def test_samples_before_loading_count_for_nothing(self):
        bad_before = [sample(-1.0, thread_moves=8, local_pages_share=0.0, pairs_together=0)]
        self.assertEqual(verdicts(bad_before + series()), [True, True, True, True])
        good_before = [sample(-time_s) for time_s in (2.0, 1.5, 1.0)]
        bad_after = [sample(tick / 2, local_pages_share=0.5, pairs_together=0) for tick in range(121)]
        self.assertEqual(verdicts(good_before + bad_after), [False, False, True, False])


class Measures(unittest.TestCase):
    def test_start_and_end_are_those_after_the_mark(self):
        samples = [sample(-0.5, pages_per_node={"0": 1}), sample(0.0), sample(0.5, pages_per_node={"0": 40})]
        result = report.measures(observation(samples), None)
        self.assertEqual(result["pages_per_node_start"], {"0": 10, "2": 30})
        self.assertEqual(result["pages_per_node_end"], {"0": 40})
        self.assertEqual(result["page_moves"], 1234)
        self.assertEqual(result["thread_excursions"], 2)
        self.assertNotIn("sampler", result)

    def test_decided_moves_are_the_reports(self):
        moves = {"thread_moves": [{"time_ns": 1}], "page_moves": [{"moved_pages": 3}, {"moved_pages": 4}]}
        result = report.measures(observation([sample(0.0)]), scheduler_report(**moves))
        self.assertEqual((result["decided_thread_moves"], result["decided_page_moves"]), (1, 7))
        self.assertEqual((result["sampler"], result["mover"]), (SAMPLER, MOVER))


class Words(unittest.TestCase):
    def arms(self):
        stock = report.measures(observation(series()), None)
        return {"stock": stock, "tandem": report.measures(observation(series()), scheduler_report())}

    def test_unknown_values_are_said_to_be_so(self):
        self.assertEqual((report.percent(None), report.percent(0.125)), ("-", "12.5 %"))
        self.assertEqual((report.seconds(None), report.seconds(3.25)), ("not reached", "3.2 s"))

    def test_every_node_of_the_machine_has_its_count_in_order(self):
        self.assertEqual(report.per_node({"2": 30, "10": 1}, [0, 2, 10]), "0/30/1")

    def test_the_table_has_a_column_per_arm_with_aligned_cells(self):
        lines = report.table([0, 2], self.arms())
        self.assertEqual(len({len(line) for line in lines}), 1, lines)
        pages = next(line for line in lines if line.startswith("pages per node, end"))
        self.assertEqual(pages.split()[-2:], ["10/30", "10/30"])
        decided = next(line for line in lines if line.startswith("moves decided"))
        self.assertRegex(decided, r" - +0 threads, 0 pages$")

    def test_budgets_stand_beside_what_was_used_of_them(self):
        self.assertEqual(
            report.sampler_line(SAMPLER),
            "sampler lookahead: budget 25 % of one CPU, used 21.3 %, 7 of 8 busy threads covered, 2085 samples, 52262 accesses",
        )
        self.assertEqual(
            report.mover_line(MOVER), "mover: budget 256 MiB/s and 50 % of one CPU, 8192 pages in 1.58 s of system calls"
        )

    def test_the_report_names_missed_goals_budgets_and_why_time_is_not_compared(self):
        arms = [{"name": name, "measures": arm} for name, arm in self.arms().items()]
        goals = [{"workload": "w", "goal": "g", "measured": "never", "met": False}]
        workload = {"name": "crossed", "description": "d", "arms": arms}
        text = "\n".join(report.text({"machine": {"node_ids": [0, 2]}, "workloads": [workload], "goals": goals}))
        self.assertIn("MISSED w: g: never", text)
        self.assertIn("tandem: mover: budget 256 MiB/s", text)
        self.assertIn("no NUMA latency", text)


if __name__ == "__main__":
    unittest.main()
