# SPDX-License-Identifier: GPL-2.0-only
"""What the lab says became of a run."""

import hashlib
import unittest

import machines  # noqa: F401  (the way to the lab)

from lab import verdict
from lab.verdict import Ending, KernelLog, Records, judge, records

SENT = b"a tar\n with lines\n"
WHOLE = b"started 3.25\nexit 7\nfiles\n" + SENT + hashlib.sha256(SENT).hexdigest().encode() + b"\nend\n"


def log_of(*lines):
    log = KernelLog()
    for line in lines:
        log.line(line)
    return log


def verdict_of(log=None, got=Records(3.0, 0, b""), timed_out=False, qemu_code=0, words="", allow=False, too_much=None):
    return judge(log or KernelLog(), got, Ending(timed_out, qemu_code, words, too_much), 60, allow)


class GuestRecords(unittest.TestCase):
    def test_exit_code_and_files_are_read(self):
        self.assertEqual(records(WHOLE), Records(3.25, 7, SENT))

    def test_files_cut_short_are_damage(self):
        got = records(WHOLE[:-6])
        self.assertIsNone(got.tar)
        self.assertIn("whole", got.damage)

    def test_a_changed_byte_is_damage(self):
        got = records(WHOLE.replace(b"a tar", b"a tap"))
        self.assertIsNone(got.tar)
        self.assertIn("checksum", got.damage)

    def test_files_that_could_not_be_packed_are_told_from_damaged_ones(self):
        got = records(b"started 3.25\nexit 7\nunpacked 1\n")
        self.assertEqual((got.exit_code, got.tar), (7, None))
        self.assertIn("could not be packed in the guest (tar failed with 1)", got.damage)

    def test_a_guest_that_died_early_has_no_exit_code(self):
        self.assertEqual(records(b"started 3.0\n"), Records(3.0, None, None))
        self.assertEqual(records(b""), Records(None, None, None))


class Judgement(unittest.TestCase):
    def test_the_commands_own_code_passes_through(self):
        self.assertEqual(verdict_of(got=Records(3.0, 126, b"")), (126, None))

    def test_damaged_files_fail_even_when_the_command_did_not(self):
        code, words = verdict_of(got=Records(3.0, 0, None, "damaged"))
        self.assertEqual((code, words), (verdict.LAB_ERROR, "damaged; the command ended with exit code 0"))

    def test_a_panic_is_told_from_everything_else(self):
        log = log_of("[    4.1] Kernel panic - not syncing: sysrq triggered crash")
        self.assertEqual(verdict_of(log, Records(3.0, None, None), timed_out=True)[0], verdict.PANIC)
        self.assertIn("sysrq triggered crash", verdict_of(log)[1])

    def test_an_oops_is_told_but_a_soft_lockup_of_a_busy_host_is_not(self):
        log = log_of("[    4.1] BUG: kernel NULL pointer dereference, address: 0000000000000008")
        self.assertEqual(verdict_of(log)[0], verdict.PANIC)
        log = log_of("[   64.1] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [sh:88]")
        self.assertEqual(verdict_of(log), (0, None))

    def test_a_fault_of_a_program_is_none_of_the_kernels(self):
        fault = "general protection fault"
        log = log_of(f"[    4.1] traps: a.out[123] {fault} ip:401136 sp:7ffc error:0 in a.out[401000+1000]")
        self.assertEqual(verdict_of(log, Records(3.0, 139, b"")), (139, None))
        for words in (f"Oops: {fault}, probably for non-canonical address 0xdead: 0000 [#1]", f"{fault}: 0000 [#1] SMP"):
            self.assertEqual(verdict_of(log_of(f"[    4.1][   T71] {words}"))[0], verdict.PANIC, words)

    def test_an_ejected_scheduler_fails_the_run_with_the_kernels_reason(self):
        log = log_of('[   40.25] sched_ext: BPF scheduler "tandem" disabled (runnable task stall)\r',
                     "[   40.26] sched_ext: tandem: worker[71] failed to run for 30.112s")
        code, words = verdict_of(log)
        self.assertEqual(code, verdict.SCX_EXIT)
        self.assertIn("runnable task stall", words)
        self.assertIn("worker[71] failed to run for 30.112s", words)
        self.assertEqual(verdict_of(log, allow=True), (0, None))

    def test_lines_with_a_caller_are_understood(self):
        log = log_of('[   40.25][   T71] sched_ext: BPF scheduler "x" disabled (runtime error)',
                     "[   40.25][   T71] sched_ext: x: a bad thing")
        self.assertEqual(verdict_of(log)[0], verdict.SCX_EXIT)
        self.assertIn("a bad thing", verdict_of(log)[1])

    def test_an_orderly_unload_is_no_failure(self):
        log = log_of('[   40.25] sched_ext: BPF scheduler "tandem" disabled (unregistered from user space)')
        self.assertEqual(verdict_of(log), (0, None))

    def test_the_time_limit_tells_a_slow_boot_from_a_slow_command(self):
        self.assertEqual(verdict_of(got=Records(3.0, None, None), timed_out=True)[0], verdict.TIME_LIMIT)
        self.assertEqual(verdict_of(got=Records(None, None, None), timed_out=True)[0], verdict.NOT_STARTED)

    def test_a_failing_qemu_is_quoted(self):
        code, words = verdict_of(got=Records(None, None, None), qemu_code=1, words="qemu: no such machine\n")
        self.assertEqual(code, verdict.QEMU_DIED)
        self.assertIn("no such machine", words)
        self.assertIn("signal 9", verdict_of(got=Records(3.0, None, None), qemu_code=-9)[1])

    def test_a_qemu_that_fails_after_the_command_is_quoted_too_beside_the_commands_code(self):
        for tar in (b"", None):
            got = Records(3.0, 7, tar, None if tar is not None else "the files in /out did not arrive whole")
            self.assertEqual(verdict_of(got=got, qemu_code=1, words="timing plugin: records cannot be written\n"), (
                verdict.QEMU_DIED, "QEMU ended with exit code 1: timing plugin: records cannot be written; "
                "the command ended with exit code 7"))

    def test_too_much_output_is_told_from_the_time_limit(self):
        got = Records(3.0, None, None)
        self.assertEqual(verdict_of(got=got, timed_out=True, qemu_code=None, too_much="much"), (verdict.LAB_ERROR, "much"))
        ended = Records(3.0, 7, b"")
        self.assertEqual(verdict_of(got=ended, timed_out=True, qemu_code=None, too_much="much")[1], "much; the command ended with exit code 7")
        self.assertEqual(verdict_of(got=ended, too_much="much"), (7, None), "it ended by itself")

    def test_a_guest_that_powers_itself_off_is_reported(self):
        code, words = verdict_of(got=Records(3.0, None, None))
        self.assertEqual(code, verdict.NOT_STARTED)
        self.assertIn("before the command ended", words)


if __name__ == "__main__":
    unittest.main()
