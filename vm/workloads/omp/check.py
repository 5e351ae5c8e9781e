# SPDX-License-Identifier: GPL-2.0-only
"""The lab's OpenMP programs come to the right result with any number of threads, and say what was wrong with bad input."""

import json
import os
from pathlib import Path
import subprocess
import unittest

HERE = Path(__file__).resolve().parent
BIN = HERE.parent.parent.parent / "build/bin"
PROGRAMS = sorted(source.stem for source in HERE.glob("*.c"))


def run(program, *arguments, threads=2):
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    return subprocess.run([BIN / f"tandem-omp-{program}", *arguments], env=environment, capture_output=True, text=True,
                          check=False, timeout=300)


class Programs(unittest.TestCase):
    def test_each_one_checks_its_result_with_any_number_of_threads(self):
        for program in PROGRAMS:
            for threads in (1, 3):
                with self.subTest(program=program, threads=threads):
                    done = run(program, "1", threads=threads)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    report = json.loads(done.stdout)
                    self.assertEqual((report["program"], report["threads"], report["checked"]), (program, threads, True))

    def test_a_number_that_is_none_is_refused_in_words(self):
        for bad in ("0", "-1", "1x", "x"):
            done = run("is", bad)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, r"^usage: .*tandem-omp-is \[REPETITIONS\]\n$")
        self.assertEqual(run("is", "1", "2").returncode, 2)


if __name__ == "__main__":
    unittest.main()
