# SPDX-License-Identifier: GPL-2.0-only
"""What ./run says to wrong words and to questions for help, before anything is done, and what `fmt` formats."""

import os
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

    def run_it(self, *words, **environment):
        return subprocess.run([self.folder / "run", *words], capture_output=True, text=True, timeout=60, env={**os.environ, **environment})

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

    def test_help_and_misspelt_options_of_demo_and_vm_install_nothing(self):
        for name in ("demo", "lab", "lab.py", "kernels.list"):
            there = ROOT / "vm" / name
            (shutil.copytree if there.is_dir() else shutil.copy)(there, self.folder / "vm" / name)
        for command in ("demo", "vm"):
            ran = self.run_it(command, "--kernel", "x", "--help")
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
            self.assertIn("usage: ", ran.stdout)
            ran = self.run_it(command, "--kernle", "x")
            self.assertEqual((ran.returncode, ran.stdout), (2, ""))
            self.assertIn("error: unrecognized arguments: --kernle", ran.stderr)
        self.assertEqual([path.name for path in (self.folder / "build").iterdir()], ["bin"])


class Formatting(unittest.TestCase):
    def sources(self):
        """All C that there is."""
        folders = (ROOT / name for name in ("bpf", "policies", "scheds", "tests", "userspace", "vm"))
        return sorted(str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("*.[ch]"))

    def test_fmt_sets_up_what_it_needs_and_formats_every_source(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copy(ROOT / "run", folder)
            for source in self.sources():
                (folder / source).parent.mkdir(parents=True, exist_ok=True)
                (folder / source).touch()
            log = folder / "called"
            for program in ("vm/setup/packages.sh", "bin/cargo", "bin/clang-format-19"):
                (folder / program).parent.mkdir(parents=True, exist_ok=True)
                (folder / program).write_text(f'#!/bin/sh\necho "{program} $*" >> "{log}"\n')
                (folder / program).chmod(0o755)
            path = f"{folder / 'bin'}:{os.environ['PATH']}"
            subprocess.run([folder / "run", "fmt"], check=True, capture_output=True, timeout=60, env={**os.environ, "PATH": path})
            packages, cargo, clang = log.read_text().splitlines()
        self.assertEqual((packages, cargo), (f"vm/setup/packages.sh {folder}/build/cache", "bin/cargo fmt --all"))
        self.assertEqual(sorted(clang.split()), sorted(["bin/clang-format-19", "-i", *self.sources()]))

    def test_meson_looks_at_the_style_of_every_source(self):
        listed = (ROOT / "meson.build").read_text()
        self.assertEqual([source for source in self.sources() if f"'{source}'" not in listed], [])


if __name__ == "__main__":
    unittest.main()
