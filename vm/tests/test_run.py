# SPDX-License-Identifier: GPL-2.0-only
"""Which guests are booted once more, what they print, and what is left of a run."""

import array
from contextlib import redirect_stderr
import fcntl
import hashlib
import io
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import tarfile
import tempfile
import termios
import time
import types
import unittest

import machines  # noqa: F401  (finds the lab)

from lab import run
from lab.verdict import Ending


def streams(timeout_s=300, waited_s=0.0, last_boot=False):
    """A guest that has been silent for `waited_s`."""
    guest = run.Streams(types.SimpleNamespace(timeout_s=timeout_s, verbose=False, timed=False), time.monotonic() - waited_s, last_boot)
    guest._booted -= waited_s
    return guest


class Output(unittest.TestCase):
    def test_a_signal_amid_a_write_loses_nothing_of_an_unbuffered_python(self):
        printed = b"".join(b"%d\n" % i for i in range(30000))
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys, test_run; test_run.streams().terminal(sys.stdin.buffer.read())"],
            cwd=os.path.dirname(__file__), env=dict(os.environ, PYTHONUNBUFFERED="1"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.kill)
        child.stdin.write(printed)
        child.stdin.close()
        pipe = child.stdout.fileno()
        full, end = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ), time.monotonic() + 60
        self.assertLess(full, len(printed), "the write is not stopped midway")
        held = array.array("i", [0])
        while held[0] < full:
            self.assertLess(time.monotonic(), end, "the pipe does not fill")
            fcntl.ioctl(pipe, termios.FIONREAD, held)
            time.sleep(0.01)
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        child.send_signal(signal.SIGCONT)
        self.assertEqual(child.stdout.read(), printed)
        self.assertEqual(child.wait(), 0)


class BootLimit(unittest.TestCase):
    def test_the_first_boot_has_a_limit_of_its_own(self):
        guest = streams()
        self.assertLess(guest.deadline(), guest.begun + run.BOOT_LIMIT_S + 1)
        self.assertFalse(guest.failed_by_emulation(None, ""))
        self.assertTrue(streams(waited_s=run.BOOT_LIMIT_S + 1).failed_by_emulation(None, ""))

    def test_a_guest_that_started_has_all_the_time(self):
        guest = streams(waited_s=run.BOOT_LIMIT_S + 1)
        guest.port(b"x")
        self.assertEqual(guest.deadline(), guest.begun + 300)
        self.assertFalse(guest.failed_by_emulation(None, ""))

    def test_the_second_boot_has_all_the_time_that_is_left(self):
        guest = streams(waited_s=run.BOOT_LIMIT_S + 1, last_boot=True)
        self.assertEqual(guest.deadline(), guest.begun + 300)
        self.assertFalse(guest.failed_by_emulation(None, ""))

    def test_the_limit_of_the_run_comes_first(self):
        guest = streams(timeout_s=10, waited_s=11)
        self.assertEqual(guest.deadline(), guest.begun + 10)
        self.assertFalse(guest.failed_by_emulation(None, ""))

    def test_of_all_panics_only_a_stale_breakpoint_while_booting_is_the_emulators(self):
        for oops, again in (("[    1.0] Oops: int3: 0000 [#1] SMP", True), ("[    1.0] Oops: 0002 [#1] SMP", False)):
            guest = streams()
            guest.serial(f"{oops}\n[    1.1] Kernel panic - not syncing: Fatal exception\n".encode())
            self.assertEqual(guest.failed_by_emulation(None, ""), again, oops)
            guest.port(b"x")
            self.assertFalse(guest.failed_by_emulation(None, ""))

    def test_a_qemu_that_a_signal_ends_while_booting_is_the_emulators_and_one_with_a_complaint_is_not(self):
        self.assertTrue(streams().failed_by_emulation(-6, ""))
        self.assertFalse(streams().failed_by_emulation(1, "qemu: no such device"))
        guest = streams()
        guest.port(b"x")
        self.assertFalse(guest.failed_by_emulation(-6, ""))

    def test_a_failed_assertion_below_virtme_ng_shows_in_the_words_alone(self):
        words = "qemu-system-x86_64: hw/pci/msix.c:228: f: Assertion `a + b <= c' failed.\n"
        self.assertTrue(streams().failed_by_emulation(255, words))
        self.assertFalse(streams().failed_by_emulation(0, words))
        guest = streams()
        guest.port(b"x")
        self.assertFalse(guest.failed_by_emulation(255, words))


class TooMuch(unittest.TestCase):
    def test_what_a_guest_writes_is_bounded(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = {name: Path(folder) / name for name in ("serial", "terminal", "port")}
            for path in paths.values():
                path.touch()
            for name, words in (("terminal", "the command printed"), ("serial", "the kernel logged")):
                guest = streams()
                guest._paths = paths
                os.truncate(paths["port"], run.MOST_B + 1)
                os.truncate(paths[name], run.MOST_B)
                self.assertIsNone(guest.too_much())
                self.assertGreater(guest.deadline(), time.monotonic())
                os.truncate(paths[name], run.MOST_B + 1)
                self.assertEqual(guest.too_much(), f"{words} more than 1024 MiB, the guest is killed")
                self.assertLess(guest.deadline(), time.monotonic())
                self.assertFalse(guest.failed_by_emulation(None, ""))
                os.truncate(paths[name], 0)
            for path in paths.values():
                path.unlink()
            self.assertIsNone(guest.too_much(), "whoever tidies the logs meanwhile ends no run")


class Conclusion(unittest.TestCase):
    """A run that ended, with a tar of /out that is there or not."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out, self.directory = Path(folder.name) / "out", Path(folder.name) / "own"
        self.out.mkdir()
        self.directory.mkdir()

    def conclude(self, code=7, quiet=True, timed=True, panic=None, files=()):
        sent = io.BytesIO()
        with tarfile.open(fileobj=sent, mode="w") as tar:
            for name, text in files:
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text))
        tar = sent.getvalue()
        guest = streams()
        guest.result += b"started 1.0\nexit %d\nfiles\n" % code + tar + hashlib.sha256(tar).hexdigest().encode() + b"\nend\n"
        guest.kernel.panic = panic
        wanted = run.Request(
            machine=types.SimpleNamespace(name="m", flat="", nodes=()), kernel=None, release="7.0", timeout_s=60,
            accel="timing" if timed else "tcg", additions=(), append="", out=self.out, quiet=quiet, verbose=False,
            allow_scx_exit=False, command=(),
        )
        said = io.StringIO()
        with redirect_stderr(said):
            verdict = run.conclude(wanted, guest, "log", Ending(False, 0, ""), self.directory)
        return verdict, said.getvalue()

    def test_bad_records_hide_neither_the_commands_code_nor_its_files(self):
        (self.directory / "records").write_bytes(b"{\xff\n{}\n")
        (code, sentence), said = self.conclude(files=[("./kept", b"x")])
        self.assertEqual(code, 125)
        self.assertRegex(sentence, "has a line that is no record .*; the command ended with exit code 7$")
        self.assertEqual(said, f"lab: {sentence}; kernel log: log\n")
        self.assertEqual((self.out / "kept").read_text(), "x")
        (code, sentence), _ = self.conclude(panic="a reason")
        self.assertEqual(code, 122)
        self.assertRegex(sentence, "^kernel panic: a reason; .* has a line that is no record")

    def test_files_that_cannot_be_left_hide_no_code_either(self):
        (self.out / "kept").mkdir()
        (self.out / "kept/full").touch()
        (code, sentence), _ = self.conclude(timed=False, files=[("./kept", b"x")])
        self.assertEqual(code, 125)
        self.assertRegex(sentence, "^--out .*; the command ended with exit code 7$")
        (self.out / "truth.json").mkdir()
        (code, sentence), _ = self.conclude()
        self.assertEqual((code, sentence), (
            125, f"--out {self.out}: truth.json cannot be written: Is a directory; the command ended with exit code 7"))

    def test_the_truth_and_a_file_of_that_name_stay_both(self):
        files = [("./truth.json", b"x"), ("./truth.json.old", b"y"), ("./sub/truth.json", b"z")]
        self.assertEqual(self.conclude(files=files), ((7, None), ""))
        self.assertEqual(json.loads((self.out / "truth.json").read_text())["machine"], "m")
        left = {str(path.relative_to(self.out)) for path in self.out.rglob("*") if path.is_file()}
        self.assertEqual(left, {"truth.json", "command-truth.json", "truth.json.old", "sub/truth.json"})
        self.assertEqual((self.out / "command-truth.json").read_text(), "x")
        self.conclude(timed=False, files=files)
        self.assertEqual((self.out / "truth.json").read_text(), "x")

    def test_only_a_verdict_begins_as_one(self):
        _, said = self.conclude(quiet=False)
        self.assertRegex(said, r"\Anote: m on 7\.0 \(timing\): booted after never, ended after .* s\n\Z")


class Notes(unittest.TestCase):
    def test_a_second_boot_is_told_but_to_whom_wants_quiet(self):
        for quiet, words in ((True, ""), (False, "note: the guest did not come up, which lies in the emulator: once more\n")):
            said = io.StringIO()
            with redirect_stderr(said):
                run.note(types.SimpleNamespace(quiet=quiet), run.ONCE_MORE)
            self.assertEqual(said.getvalue(), words)


if __name__ == "__main__":
    unittest.main()
