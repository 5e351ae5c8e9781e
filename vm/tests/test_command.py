# SPDX-License-Identifier: GPL-2.0-only
"""The lab's command line tells how it is used."""

import subprocess
import unittest

from machines import VM


class Help(unittest.TestCase):
    def test_every_command_prints_its_help(self):
        for words in ([], ["run"], ["calibrate"], ["shell"]):
            done = subprocess.run([VM / "lab.py", *words, "--help"], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""), words)
            self.assertIn("usage: lab.py", done.stdout)

    def test_a_control_socket_without_a_qemu_of_its_own_is_refused(self):
        words = ["run", "--machine", VM / "machines/2x4.toml", "--runner", "vng", "--control", "socket", "--", "true"]
        done = subprocess.run([VM / "lab.py", *words], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (125, "lab: --control needs --runner direct\n"))


if __name__ == "__main__":
    unittest.main()
