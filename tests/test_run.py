# SPDX-License-Identifier: GPL-2.0-only
"""What ./run says to wrong words: one sentence, before anything is done."""

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class WrongWords(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        # A copy, so that a command that is taken after all finds nothing of ours.
        shutil.copy(ROOT / "run", self.folder)
        self.kept = self.folder / "build/bin/kept"
        self.kept.parent.mkdir(parents=True)
        self.kept.touch()

    def run_it(self, *words):
        return subprocess.run([self.folder / "run", *words], capture_output=True, text=True, timeout=60)

    def test_wrong_words_are_refused_in_one_sentence_and_nothing_is_done(self):
        for words, said in [
            (["clean", "--al"], "clean takes nothing but --all, not '--al'"),
            (["clean", "--all", "x"], "clean takes nothing but --all, not '--all x'"),
            (["test", "--ful"], "test takes nothing but --full, not '--ful'"),
            (["build", "x"], "build takes nothing, not 'x'"),
            (["package", "x"], "package takes nothing, not 'x'"),
            (["fmt", "x"], "fmt takes nothing, not 'x'"),
            (["nope"], "there is no command 'nope'"),
        ]:
            with self.subTest(words):
                ran = self.run_it(*words)
                self.assertEqual((ran.returncode, ran.stdout), (2, ""))
                self.assertEqual(ran.stderr, f"run: {said}; ./run help says what there is\n")
                self.assertTrue(self.kept.exists())

    def test_clean_removes_what_was_built(self):
        self.assertEqual(self.run_it("clean").returncode, 0)
        self.assertFalse(self.kept.exists())

    def test_the_help_of_ab_is_the_programs_and_installs_nothing(self):
        ran = self.run_it("ab", "--help")
        self.assertEqual((ran.returncode, ran.stdout, len(ran.stderr.splitlines())), (2, "", 1))
        program = self.folder / "build/bin/tandem"
        program.write_text("#!/bin/sh\necho $*\n")
        program.chmod(0o755)
        ran = self.run_it("ab", "--machine", "2node", "--help")
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "ab --help\n", ""))


if __name__ == "__main__":
    unittest.main()
