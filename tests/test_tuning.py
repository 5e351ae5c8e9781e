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
        """The rows of the table of a store with these runs (configuration, outcome, seconds)."""
        with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(tuning, STORES=Path(folder), RESULTS=Path(folder)):
            with sqlite3.connect(Path(folder) / "2node-cg.sqlite") as store:
                store.execute("CREATE TABLE run (experiment, configuration, outcome, seconds, regions)")
                store.executemany("INSERT INTO run VALUES ('x', ?, ?, ?, '[]')", runs)
            with contextlib.redirect_stderr(io.StringIO()) as said:
                tuning.keep_table("2node", "cg")
            rows = json.loads(tuning.table_file("2node", "cg").read_text())["rows"]
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


if __name__ == "__main__":
    unittest.main()
