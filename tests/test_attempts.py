# SPDX-License-Identifier: GPL-2.0-only
"""Which in-guest tests get a second attempt, and how they count."""

import unittest

from count import count, second_attempts
from guest import failed_tests

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


if __name__ == "__main__":
    unittest.main()
