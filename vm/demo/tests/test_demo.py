# SPDX-License-Identifier: GPL-2.0-only
"""What the demo refuses before it boots anything, and what it says where its report cannot be left."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

DEMO = pathlib.Path(__file__).resolve().parent.parent / "demo.py"
NEEDED = ("bin/tandem-load", "bin/scx_tandem", "cache/perf/usr/bin/perf")


class Refusals(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.build = self.folder / "other-build"
        for name in NEEDED:
            (self.build / name).parent.mkdir(parents=True, exist_ok=True)
            (self.build / name).touch()

    def demo(self, *options):
        """What a demo says that gets as far as its first guest, whose machine is not there."""
        words = [sys.executable, DEMO, "--machine", self.folder / "no-machine", "--runs", self.folder / "runs", *options]
        environment = os.environ | {"TANDEM_BUILD": str(self.build)}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
        self.assertEqual(done.returncode, 1, done.stderr)
        return done.stdout, done.stderr

    def test_every_program_is_looked_for_in_the_named_build_folder_before_a_guest_boots(self):
        self.assertIn("booting a fresh guest", self.demo()[0])
        for name in NEEDED:
            (self.build / name).rename(self.build / "away")
            self.assertEqual(self.demo(), ("", f"demo: {self.build}/{name} is missing; ./run build makes it\n"))
            (self.build / "away").rename(self.build / name)

    def test_a_report_that_could_not_be_written_is_refused_before_a_guest_boots(self):
        file = self.folder / "file"
        file.touch()
        for path, words in (
            (file / "report", f"{file} cannot be made: File exists"),
            (self.folder, "is a folder: name a file"),
        ):
            self.assertEqual(self.demo("--json", path), ("", f"demo: --json {path}: {words}\n"))

    def test_what_the_system_refuses_is_one_sentence(self):
        file = self.folder / "file"
        file.touch()
        _, said = self.demo("--runs", file)
        self.assertRegex(said, rf"\Ademo: {file}/\S+: Not a directory\n\Z")

    def test_a_report_that_cannot_be_written_in_the_end_is_printed(self):
        play = (
            "import sys; sys.path.insert(0, sys.argv[1]); import demo, report, types, pathlib\n"
            "demo.run_workload = lambda *_: ({}, {'stock': ({'nodes': [0]}, None)})\n"
            "report.text = lambda _: ['what came out']\n"
            "try:\n"
            "    demo.demonstrate(types.SimpleNamespace(workload=['perf'], arm=None, machine=pathlib.Path('m'), kernel=None,\n"
            "                                           json=pathlib.Path('/proc/no/report')))\n"
            "except demo.DemoError as error:\n"
            "    print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", play, DEMO.parent], capture_output=True, text=True, check=False)
        sentence = "the report is above, /proc/no/report cannot be written: No such file or directory"
        self.assertEqual((done.stdout, done.stderr), (f"what came out\n{sentence}\n", ""))


if __name__ == "__main__":
    unittest.main()
