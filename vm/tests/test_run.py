# SPDX-License-Identifier: GPL-2.0-only
"""Which guests are booted once more, and what they print."""

import array
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
import types
import unittest

import machines  # noqa: F401  (finds the lab)

from lab import run


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


if __name__ == "__main__":
    unittest.main()
