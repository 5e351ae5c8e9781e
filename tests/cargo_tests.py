#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs `cargo test` of the whole workspace, and what failed of it a second time, alone. What failed is told once more at the end,
where it is looked for.

usage: tests/cargo_tests.py CARGO
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys

from guest import SECOND_ATTEMPTS, failed_tests

ROOT = pathlib.Path(__file__).resolve().parent.parent
# All crates at once: one by one they would be built again, each with its own features of what they share.
ALL = ("test", "--quiet", "--workspace")
FAILED = re.compile(r"^test result: FAILED\. \d+ passed; (\d+) failed", re.MULTILINE)
FAILED_TARGET = re.compile(r"^error: test failed, to rerun pass `-p \S+ (.*)`$", re.MULTILINE)
COUNTED = re.compile("test result: ")
# What is told at the end of a target's failures: meson shows the last 100 lines.
TOLD_LINES = 60


def failed_targets(output: str) -> list[tuple[list[str], str]]:
    """Of each program of tests that failed, cargo's words for it, and what it said, in the order they ran."""
    # Between two of them are the words of the next and what it said.
    said, *rest = FAILED_TARGET.split(output)
    targets, texts = rest[::2], [said, *rest[1::2]]
    return [(shlex.split(target), text) for target, text in zip(targets, texts)]


def names_all(said: str) -> bool:
    """Whether a program of tests told of each that failed by what name it runs alone; not if it ended otherwise."""
    counts = FAILED.findall(said)
    return bool(counts) and len(failed_tests(said)) == int(counts[-1]) > 0


def failures(said: str) -> str:
    """What a program of tests said of its failures, or the last of it if it got no further, less what is counted."""
    _, found, told = said.partition("\nfailures:\n")
    lines = [line for line in (told if found else said).rstrip().splitlines() if not COUNTED.match(line)]
    return "\n".join(lines[-TOLD_LINES:])


def cargo(program: str, words: list[str], is_told=lambda line: True) -> tuple[int, str]:
    """Runs it; its exit code, and all that it said."""
    lines = []
    with subprocess.Popen(
        [program, *ALL, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as running:
        for line in running.stdout:
            lines.append(line)
            if is_told(line):
                print(line, end="", flush=True)
    return running.returncode, "".join(lines)


def passes_alone(program: str, target: list[str], name: str) -> bool:
    """Whether a test passes by itself; counted if it does, as it was when it failed."""
    print(f"{name} failed: a second attempt, alone", flush=True)
    status, said = cargo(program, [*target, "--", "--exact", name], lambda line: not line.startswith("test result: FAILED."))
    # A name that chooses no test passes nothing.
    passed = status == 0 and " 1 passed; 0 failed" in said
    if passed:
        print(f"passed at the second attempt: {name}", flush=True)
    return passed


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    os.environ.setdefault("CARGO_TERM_COLOR", "never")
    program = sys.argv[1]
    status, output = cargo(program, ["--no-fail-fast"])
    if status == 0:
        return
    targets = failed_targets(output)
    for target, said in targets:
        print(f"\nfailed of {' '.join(target)}:\n{failures(said)}", flush=True)
    failed = [(target, name) for target, said in targets for name in failed_tests(said)]
    if not targets or not all(names_all(said) for _, said in targets) or len(failed) > SECOND_ATTEMPTS or not all([passes_alone(program, *test) for test in failed]):
        sys.exit(status)


if __name__ == "__main__":
    main()
