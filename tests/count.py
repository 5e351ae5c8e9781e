#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Counts test cases in meson's log: those of cargo and of unittest one by one, a test of any other kind as one.

The last line is `N passed, N failed`, and how many of the passed did so at the second attempt only. Names that choose no case
are an error: what they chose once has another name now.
"""

import json
import re
import sys

CARGO = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed")
UNITTEST = re.compile(r"^Ran (\d+) tests? in", re.MULTILINE)
UNITTEST_END = re.compile(r"^(?:OK|FAILED) \((.*)\)", re.MULTILINE)
UNITTEST_BAD = ("failures", "errors", "unexpected successes")
SECOND_ATTEMPT = re.compile(r"^passed at the second attempt: ", re.MULTILINE)


def output(test: dict) -> str:
    """All that a meson test printed."""
    return test.get("stdout", "") + test.get("stderr", "")


def second_attempts(test: dict) -> int:
    """Cases that failed once and passed then."""
    return len(SECOND_ATTEMPT.findall(output(test)))


def ran_none(test: dict) -> bool:
    """Whether it is one of cargo or of unittest, and no case was run."""
    text = output(test)
    ran = [int(number) for match in CARGO.finditer(text) for number in match.groups()] + [int(number) for number in UNITTEST.findall(text)]
    return bool(ran) and not any(ran)


def count(test: dict) -> tuple[int, int]:
    """Passed and failed cases of one meson test."""
    text = output(test)
    failed_as_a_whole = test["result"] not in ("OK", "EXPECTEDFAIL")
    passed = failed = 0
    for match in CARGO.finditer(text):
        passed += int(match.group(1))
        failed += int(match.group(2))
    ends = [part.split("=") for end in UNITTEST_END.findall(text) for part in end.split(", ")]
    ran = sum(int(number) for number in UNITTEST.findall(text))
    bad = sum(int(number) for name, number in ends if name in UNITTEST_BAD)
    passed += ran - bad - sum(int(number) for name, number in ends if name == "skipped")
    failed += bad - second_attempts(test)
    if passed + failed == 0:
        return (0, 1) if failed_as_a_whole else (1, 0)
    return passed, max(failed, int(failed_as_a_whole))


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as log:
        tests = [json.loads(line) for line in log if line.strip()]
    counts = [count(test) for test in tests]
    passed = sum(passed for passed, _ in counts)
    failed = sum(failed for _, failed in counts)
    again = sum(second_attempts(test) for test in tests)
    print(f"{passed} passed, {failed} failed" + (f", {again} of the passed at the second attempt" if again else ""))
    none = [test["name"] for test in tests if ran_none(test)]
    if none or not passed:
        sys.exit(f"count: no test was run{' by ' if none else ''}{', '.join(none)}")


if __name__ == "__main__":
    main()
