# SPDX-License-Identifier: GPL-2.0-only
"""Tests of the tables of tuned programs: python3 -m unittest discover -s tests"""

import contextlib
import io
import json
from pathlib import Path
import sqlite3
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
import tuning


class Table(unittest.TestCase):
    def kept(self, *runs):
        """The rows of a store with these runs (configuration, outcome, seconds), and what is said of them."""
        with tempfile.TemporaryDirectory() as folder:
            with sqlite3.connect(Path(folder) / "store") as store:
                store.execute("CREATE TABLE run (experiment, configuration, outcome, seconds, regions)")
                store.executemany("INSERT INTO run VALUES ('x', ?, ?, ?, '[]')", runs)
            with contextlib.redirect_stderr(io.StringIO()) as said:
                rows = tuning.rows_of("2node", "cg", Path(folder) / "store")
            return {row["configuration"]: row["seconds"] for row in rows}, said.getvalue()

    def test_a_placement_whose_map_did_not_fit_is_left_out_in_words(self):
        fits, fails = (f"2 threads, pages {rule}, by a map" for rule in ("mix", "balance"))
        rows, said = self.kept(("as it is", "ended", 2.0), (fits, "ended", 1.0), (fails, "failed", 0.5))
        self.assertEqual(rows, {"as it is": [2.0], fits: [1.0]})
        self.assertIn(f"{fails}: a run failed", said)

    def test_any_other_run_that_did_not_end_ends_the_recording(self):
        with self.assertRaisesRegex(SystemExit, "a run failed"):
            self.kept(("as it is", "failed", 2.0))

    def test_it_is_said_of_how_many_configurations_there_is_one_run(self):
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "ring4-cg.json"
            table.write_text(json.dumps({"rows": [{"seconds": [1.0]}, {"seconds": [1.0, 1.1]}, {"seconds": [1.2]}]}))
            self.assertIn("`ring4`: 1 to 2, 2 of 3 configurations have one.", tuning.runs_of_tables([table]))


def row(configuration, *seconds, **regions):
    return {"configuration": configuration, "seconds": list(seconds), "regions": regions}


class More(unittest.TestCase):
    def test_runs_of_another_session_are_added_to_those_of_the_table(self):
        both = tuning.with_more([row("as it is", 1.0, 1.02, f=0.5), row("a", 2.0, f=0.3)], [row("as it is", 1.0, f=0.8), row("a", 2.01, f=0.4)])
        self.assertEqual(both, [row("as it is", 1.0, 1.02, 1.0, f=0.6), row("a", 2.0, 2.01, f=0.35)])

    def test_runs_that_all_take_another_time_are_refused_in_words(self):
        with self.assertRaisesRegex(SystemExit, r"\+10.0% of the table's time"):
            tuning.with_more([row("as it is", 1.0), row("a", 2.0)], [row("as it is", 1.1), row("a", 2.2)])

    def test_runs_of_other_configurations_are_refused_in_words(self):
        with self.assertRaisesRegex(SystemExit, "other configurations"):
            tuning.with_more([row("as it is", 1.0)], [row("as it is", 1.0), row("a", 2.0)])

    def test_the_placements_are_those_of_the_table(self):
        rows = [row("as it is", 1.0), row("2 threads scatter on 1 node, pages mix on 2 nodes, by a map", 1.0),
                row("2 threads scatter on 1 node, pages first-touch on 1 node", 1.0)]
        self.assertEqual(tuning.placements_of(rows), "first-touch,mix")

    def test_a_table_of_another_program_gets_no_runs(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(
                tuning, RESULTS=Path(folder), contents=lambda program: b"its code", measured=self.fail):
            for table in ({"rows": []}, {"rows": [], "subject": "of old"}):
                tuning.table_file("2node", "cg").write_text(json.dumps(table))
                with self.assertRaisesRegex(SystemExit, "not of this program"):
                    tuning.add_runs("2node", "cg", "first-touch", 1)

    def test_a_subject_is_its_code_its_argument_and_its_machine(self):
        def subject(machine="2node", program="cg", code=b"its code", repetitions=1):
            with mock.patch.multiple(tuning, contents=lambda program: code, PROGRAMS={program: repetitions}):
                return tuning.subject(machine, program)
        self.assertEqual(subject(), subject())
        self.assertEqual(5, len({subject(), subject(machine="ring4"), subject(code=b"other"), subject(repetitions=2), subject(code=b"", repetitions=3)}))

    def test_what_was_added_is_in_the_table_and_in_no_store(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(
                tuning, RESULTS=Path(folder), STORES=Path(folder), contents=lambda program: b"its code", measured=lambda *_: None,
                rows_of=lambda *_: [row("as it is", 1.01)]):
            tuning.write_table("2node", "cg", [row("as it is", 1.0)])
            store = Path(folder) / "2node-cg-more.sqlite"
            store.touch()
            tuning.add_runs("2node", "cg", "first-touch", 1)
            self.assertEqual(json.loads(tuning.table_file("2node", "cg").read_text())["rows"], [row("as it is", 1.0, 1.01)])
            self.assertFalse(store.exists())


class Document(unittest.TestCase):
    TEXT = f"before\n{tuning.BEGIN}12 %\n{tuning.END}after\n"

    def checked(self, generated, only_check=True):
        with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(
                tuning, ROOT=Path(folder), DOCUMENT=Path(folder) / "autotune.md", written=lambda judge: generated,
                written_predictions=lambda: ""):
            tuning.DOCUMENT.write_text(self.TEXT)
            try:
                tuning.write_document([], only_check)
            finally:
                self.text = tuning.DOCUMENT.read_text()

    def test_a_document_that_would_be_written_otherwise_is_said_with_the_line_and_left_alone(self):
        with self.assertRaisesRegex(SystemExit, "autotune.md has\n12 %\nwhere --only-written writes\n13 %"):
            self.checked("13 %\n")
        self.assertEqual(self.text, self.TEXT)
        with self.assertRaisesRegex(SystemExit, "<!-- to here -->\nwhere --only-written writes\n13 %"):
            self.checked("12 %\n13 %\n")
        self.checked("12 %\n")

    def test_what_is_around_the_generated_part_stays(self):
        self.checked("13 %\n", only_check=False)
        self.assertEqual(self.text, self.TEXT.replace("12 %", "13 %"))


class Measured(unittest.TestCase):
    def test_guests_follow_each_other_until_nothing_is_left_for_the_same_command(self):
        notes = [["2 configurations were not measured yet: the same command goes on"],
                 ["there was no time to tune all regions one by one: the same command goes on"], ["it is done"]]

        def lab(command, check):
            out = Path(command[command.index("--out") + 1])
            (out / "runs").touch()
            (out / "result.json").write_text(json.dumps({"notes": notes.pop(0)}))
            return mock.Mock(returncode=0)

        with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(tuning, STORES=Path(folder)), mock.patch(
                "subprocess.run", lab):
            result = tuning.measured("2node", "cg", Path(folder) / "store", "")
        self.assertEqual((result, notes), ({"notes": ["it is done"]}, []))


class Predictions(unittest.TestCase):
    PLANS = [{"plan": "a", "predicted_s": 1.0, "real_s": 1.25, "runs": 1, "way": "in place"},
             {"plan": "b", "predicted_s": 1.05, "real_s": 1.0, "runs": 4, "way": "in place"},
             {"plan": "c", "predicted_s": 1.2, "runs": 0, "way": "in place"}]

    def written(self, *results):
        with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(
                tuning, RESULTS=Path(folder), contents=lambda program: b"its code"):
            for program, result in zip(("cg", "sp"), results):
                tuning.keep_predictions("2node", program, "", {"notes": [], **result})
            return tuning.written_predictions()

    def test_errors_are_of_the_worst_the_best_predicted_and_the_chosen_plan(self):
        chosen = {"prediction": self.PLANS, "seats": {"f": {}}, "evidence": {"tuned_s": 1.0}}
        text = self.written(chosen, {"prediction": self.PLANS})
        self.assertIn("| `cg` | 2node | 2 | 1 to 4 | -20.0% | -20.0% | +5.0% |", text)
        self.assertIn("| `sp` | 2node | 2 | 1 to 4 | -20.0% | -20.0% | one configuration |", text)
        self.assertIn("Within 10 % of the real time: 2 of 4.", text)

    def test_without_plans_there_is_a_line_and_without_results_nothing(self):
        self.assertIn("| `cg` | 2node | 0 | | | | none |", self.written({}))
        self.assertEqual(self.written(), "")


if __name__ == "__main__":
    unittest.main()
