# SPDX-License-Identifier: GPL-2.0-only
"""The lab's command line tells how it is used."""

from contextlib import redirect_stderr
import importlib.util
import io
from pathlib import Path
import signal
import subprocess
import tempfile
import unittest
from unittest import mock

from machines import VM


def command():
    """lab.py as a module; the name is the folder's beside it."""
    spec = importlib.util.spec_from_file_location("command", VM / "lab.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*options):
    """The exit code of a run that is refused before it boots, and what it says."""
    words = [VM / "lab.py", "run", "--machine", VM / "machines/2x4.toml", *options, "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


class Words(unittest.TestCase):
    def test_every_command_prints_its_help(self):
        for words in ([], ["run"], ["calibrate"], ["shell"]):
            done = subprocess.run([VM / "lab.py", *words, "--help"], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""), words)
            self.assertIn("usage: lab.py", done.stdout)

    def test_a_control_socket_without_a_qemu_of_its_own_is_refused(self):
        refused = (125, "lab: --control needs --runner direct\n")
        self.assertEqual(run("--runner", "vng", "--control", "socket"), refused)

    def test_turns_of_emulated_cpus_below_virtme_ng_are_refused(self):
        # Not through the program, which would set virtme-ng up if it were not refused.
        lab = command()
        words = ["run", "--machine", str(VM / "machines/2x4.toml"), "--runner", "vng", "--accel", "tcg-in-turn", "--", "true"]
        with self.assertRaisesRegex(lab.LabError, "^--accel tcg-in-turn needs --runner direct$"):
            lab.request(lab.parser().parse_args(words))

    def test_a_terminal_that_goes_away_ends_it_as_an_interrupt_does(self):
        for handler, ended in ((signal.SIG_DFL, 130), (signal.SIG_IGN, 0)):
            lab = command()
            run_it = mock.Mock(side_effect=lambda _: (signal.raise_signal(signal.SIGHUP), (0, None))[1])
            self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, handler))
            self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
            with mock.patch.object(lab, "request"), mock.patch.object(lab.run, "direct", run_it), mock.patch(
                "sys.argv", ["lab.py", "run", "--machine", "m", "--", "true"]
            ), redirect_stderr(io.StringIO()):
                self.assertEqual(lab.main(), ended)

    def test_results_that_could_not_be_left_are_refused_before_anything_boots(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "file"
            file.touch()
            for out, why in ((file, "File exists"), (file / "below", "Not a directory"), (Path("/proc/none"), "No such file or directory")):
                sentence = f"lab: --out {out}: cannot be made: {why}: name a folder\n"
                self.assertEqual(run("--out", out), (125, sentence))

    def test_numbers_that_mean_nothing_are_refused(self):
        for option, values, words in (
            ("--seed", ("x", "-1", "1.5", "²", str(1 << 64)), "must be a whole number from 0 to 18446744073709551615"),
            ("--timeout", ("x", "0", "-1", "nan", "1e999"), "must be a number of seconds above 0"),
        ):
            for value in values:
                code, said = run(f"{option}={value}")
                self.assertEqual(code, 2, said)
                self.assertTrue(said.endswith(f"error: argument {option}: {value} {words}\n"), said)

    def test_an_interrupted_run_has_its_code_though_its_terminal_is_gone(self):
        gone = mock.Mock(write=mock.Mock(side_effect=OSError(5, "Input/output error")))
        lab = command()
        with mock.patch.object(lab, "request", side_effect=KeyboardInterrupt), redirect_stderr(gone), mock.patch(
            "sys.argv", ["lab.py", "run", "--machine", "m", "--", "true"]
        ):
            self.assertEqual(lab.main(), 130)

    def test_what_the_system_refuses_is_one_sentence(self):
        lab = command()
        for error, words in ((OSError(36, "File name too long", "log"), "log: File name too long"), (OSError("broken"), "broken")):
            said = io.StringIO()
            with mock.patch.object(lab, "request", side_effect=error), redirect_stderr(said), mock.patch(
                "sys.argv", ["lab.py", "run", "--machine", "m", "--", "true"]
            ):
                self.assertEqual(lab.main(), 125)
            self.assertEqual(said.getvalue(), f"lab: {words}\n")


if __name__ == "__main__":
    unittest.main()
