# SPDX-License-Identifier: GPL-2.0-only
"""Which tests get a second attempt, and how they count."""

import contextlib
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from count import count, ran_none, second_attempts
from guest import ROOT, failed_tests, is_choice, passed_tests, resumed

FAILED = """test one ... ok
test two ... FAILED

failures:

---- two ----
test panicked: not within 120 s

failures:
    two
    three

test result: FAILED. 1 passed; 2 failed; 0 ignored
"""
ALONE = "test result: ok. 1 passed; 0 failed; 0 ignored\npassed at the second attempt: two\n"
BROKEN = """test one            ... ok
test two            ... seed 7
killed 1 agents
ok
test long_two       ... ignored
test three          ... FAILED
test four           ... lab: kernel panic
note: ended after 7.5 s

"""
# What cargo says of two programs of tests of which the second failed.
CARGO = """running 1 test
.
test result: ok. 1 passed; 0 failed; 0 ignored

running 2 tests
.F
failures:

---- agent::tests::goes ----
it said:
failures:
    another_programs
test result: FAILED. 0 passed; 1 failed; 0 ignored

failures:
    agent::tests::goes

test result: FAILED. 1 passed; 1 failed; 0 ignored

error: test failed, to rerun pass `-p tandem-agent --test run`
error: 1 target failed:
    `-p tandem-agent --test run`
"""
# Stands for cargo: says that, and the second time whether the test passes alone; notes what it was asked.
CARGO_PROGRAM = """#!/bin/sh
echo "$*" >> "$ASKED"
case "$*" in
*--exact*) [ "$ALONE" != no ] || { echo "test result: FAILED. 0 passed; 1 failed"; exit 101; }
	[ "$ALONE" = none ] || echo "test result: ok. 1 passed; 0 failed"
	echo "test result: ok. 0 passed; 0 failed" ;;
*) printf '%s' "$SAID"; exit "$STATUS" ;;
esac
"""


class CargoTests(unittest.TestCase):
    def run_with(self, said, alone="ok", status="101"):
        """What a run ends with, prints, and asked of cargo."""
        with tempfile.TemporaryDirectory() as folder:
            cargo, asked = pathlib.Path(folder, "cargo"), pathlib.Path(folder, "asked")
            cargo.write_text(CARGO_PROGRAM)
            cargo.chmod(0o755)
            environment = {**os.environ, "ASKED": str(asked), "SAID": said, "ALONE": alone, "STATUS": status}
            done = subprocess.run(
                [sys.executable, ROOT / "tests/cargo_tests.py", cargo], env=environment, capture_output=True, text=True, check=False
            )
            return done.returncode, done.stdout, asked.read_text().splitlines()

    def test_what_passes_alone_has_passed_at_the_second_attempt(self):
        status, told, asked = self.run_with(CARGO)
        self.assertEqual((status, asked[1:]), (0, ["test --quiet --workspace --test run -- --exact agent::tests::goes"]))
        self.assertEqual(second_attempts({"stdout": told}), 1)
        # The other program's is what the test said, and counts as it would if there were no second attempt.
        self.assertEqual(count({"result": "OK", "stdout": told.replace("0 passed; 1 failed", "")}), (3, 0))

    def test_what_fails_twice_has_failed_and_is_told_at_the_end(self):
        status, told, _ = self.run_with(CARGO, alone="no")
        self.assertEqual((status, second_attempts({"stdout": told})), (101, 0))
        self.assertIn("---- agent::tests::goes ----", told.partition("failed of --test run:")[2])

    def test_a_name_that_chooses_no_test_has_not_passed(self):
        status, told, asked = self.run_with(CARGO, alone="none")
        self.assertEqual((status, second_attempts({"stdout": told}), len(asked)), (101, 0, 2))

    def test_what_failed_otherwise_gets_no_second_attempt(self):
        goes, other = "    agent::tests::goes\n", "    src/lib.rs - x (line 3)\n"
        one_of_two = CARGO.replace(goes, goes + other).replace("FAILED. 1 passed; 1", "FAILED. 0 passed; 2")
        for said in ("error: could not compile\n", CARGO.replace(goes, other), one_of_two):
            status, _, asked = self.run_with(said)
            self.assertEqual((status, len(asked)), (101, 1), said)

    def test_many_failures_are_a_fault(self):
        many = "".join(f"    agent::t{number}\n" for number in range(5))
        said = CARGO.replace("    agent::tests::goes\n", many).replace("FAILED. 1 passed; 1", "FAILED. 1 passed; 5")
        status, _, asked = self.run_with(said)
        self.assertEqual((status, len(asked)), (101, 1))

    def test_what_passed_is_run_once(self):
        status, _, asked = self.run_with(CARGO.partition("running 2")[0], status="0")
        self.assertEqual((status, asked), (0, ["test --quiet --workspace --no-fail-fast"]))


class Attempts(unittest.TestCase):
    def test_the_failed_are_those_of_the_closing_list(self):
        self.assertEqual(failed_tests(FAILED), ["two", "three"])
        self.assertEqual(failed_tests(FAILED.replace("\n", "\r\n")), ["two", "three"])

    def test_a_run_that_broke_off_has_no_closing_list(self):
        self.assertEqual(failed_tests(FAILED.partition("test result")[0]), [])

    def test_a_passed_second_attempt_counts_once_and_is_told(self):
        passed = {"result": "OK", "stdout": FAILED + ALONE + ALONE.replace("two", "three")}
        self.assertEqual((count(passed), second_attempts(passed)), ((3, 0), 2))

    def test_what_failed_twice_has_failed(self):
        failed = {"result": "FAIL", "stdout": FAILED + ALONE}
        self.assertEqual((count(failed), second_attempts(failed)), ((2, 1), 1))

    def test_skipped_cases_have_neither_passed_nor_failed(self):
        self.assertEqual(count({"result": "OK", "stderr": "Ran 5 tests in 0.1s\n\nOK (skipped=2)\n"}), (3, 0))
        ended = "FAILED (failures=1, errors=1, skipped=2, expected failures=1)"
        self.assertEqual(count({"result": "FAIL", "stderr": f"Ran 9 tests in 0.1s\n\n{ended}\n"}), (5, 2))

    def test_names_that_choose_no_case_are_seen(self):
        none = ["Ran 0 tests in 0.000s\n\nOK\n", "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\n" * 2]
        some = ["Ran 2 tests in 0.1s\n\nOK (skipped=2)\n", none[1] + ALONE, none[1] + FAILED, "a shell script said nothing\n"]
        self.assertEqual([ran_none({"stdout": said}) for said in none + some], [True, True, False, False, False, False])

    def test_a_broken_run_goes_on_with_what_had_not_passed(self):
        self.assertEqual(passed_tests(BROKEN.replace("\n", "\r\n")), ["one", "two"])
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            command = resumed(["guest-tests", "--skip", "five"], BROKEN)
        self.assertEqual(command, ["guest-tests", "--skip", "five", "--skip", "one", "--skip", "two"])
        whole = said.getvalue() + "test result: ok. 2 passed; 0 failed; 1 ignored"
        self.assertEqual(count({"result": "OK", "stdout": BROKEN + whole}), (4, 0))

    def test_another_command_begins_anew(self):
        self.assertEqual(resumed(["sh", "-c", "guest-tests"], BROKEN), ["sh", "-c", "guest-tests"])

    def test_what_is_left_out_is_no_choice(self):
        for arguments in ([], ["--skip", "one"], ["--skip", "one", "--skip", "two"]):
            self.assertFalse(is_choice(arguments), arguments)
        for arguments in (["one"], ["--skip", "one", "two"], ["--ignored", "random"], ["--ignored", "--skip", "one"]):
            self.assertTrue(is_choice(arguments), arguments)

    def test_leaving_out_one_guest_test_leaves_out_no_other(self):
        sources = "".join(path.read_text() for path in (ROOT / "tests/guest/src").glob("*.rs"))
        names = set(re.findall(r'trial\(\s*"(\w+)"', sources))
        self.assertGreater(len(names), 50)
        # Those that begin so run only when they are named.
        parts = {(name, other) for name in names for other in names - {name} if name in other and f"long_{name}" != other}
        self.assertEqual(parts, set())


if __name__ == "__main__":
    unittest.main()
