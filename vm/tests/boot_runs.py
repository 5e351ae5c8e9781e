# SPDX-License-Identifier: GPL-2.0-only
"""Runs that boot a guest: what the lab promises, seen from outside.

usage: python3 -m unittest discover -v -s vm/tests -p 'boot_*.py'     (about 5 s a test)
"""

import os
from pathlib import Path
import signal
import subprocess
import tempfile
import time
import unittest

from machines import VM

from lab import kernels, verdict

LAB = VM / "lab.py"
# For ever, and in half a minute less than the lab takes.
PRINTS = "while :; do seq 1000; usleep 10000; done"


def lab(*words, machine="1x4", **options):
    """Runs the lab; what it printed and its code."""
    head = [LAB, "run", "--machine", VM / f"machines/{machine}.toml", "--quiet"]
    return subprocess.run([*head, *words], capture_output=True, text=True, check=False, **options)


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_exit_code_output_and_words_pass_through(self):
        done = lab("--timeout", "60", "--", "sh", "-c", 'echo "<$1>"; echo err >&2; exit 41', "sh", "a  b'c\n$d")
        self.assertEqual((done.stdout, done.returncode), ("<a  b'c\n$d>\nerr\n", 41), done.stderr)
        self.assertEqual(done.stderr, "")

    def test_a_guest_has_the_configuration_of_its_kernel_where_libbpf_looks_for_it(self):
        for release in kernels.pinned():
            with self.subTest(release=release):
                done = lab("--timeout", "60", "--kernel", release, "--",
                           "sh", "-c", "grep ^CONFIG_SCHED_CLASS_EXT= /boot/config-$(uname -r)")
                self.assertEqual((done.stdout, done.returncode), ("CONFIG_SCHED_CLASS_EXT=y\n", 0), done.stderr)

    def test_a_command_that_is_not_there_has_the_shells_code(self):
        self.assertEqual(lab("--timeout", "60", "--", "no-such-command").returncode, 127)

    def test_files_come_back_byte_for_byte(self):
        source = self.folder / "source"
        source.write_bytes(os.urandom(1 << 20) + b"odd")
        out = self.folder / "out"
        done = lab("--timeout", "60", "--add", f"{source}:/data", "--out", out, "--",
                   "sh", "-c", "mkdir -p /out/sub; cp /data /out/sub/copy; echo text > /out/text")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((out / "sub/copy").read_bytes(), source.read_bytes())
        self.assertEqual((out / "text").read_text(), "text\n")

    def test_much_output_arrives_whole_even_when_nobody_reads_it_for_a_while(self):
        child = subprocess.Popen(
            [LAB, "run", "--machine", VM / "machines/1x4.toml", "--quiet", "--", "seq", "200000"],
            stdout=subprocess.PIPE,
        )
        self.addCleanup(child.kill)
        first = os.read(child.stdout.fileno(), 1)
        printed = "".join(f"{i}\n" for i in range(1, 200001))
        # The lab is stopped, so that nothing takes what the guest prints meanwhile.
        child.send_signal(signal.SIGSTOP)
        terminal = next(fd for fd in Path(f"/proc/{child.pid}/fd").iterdir() if fd.readlink().name == "terminal")
        end = time.monotonic() + 60
        while terminal.stat().st_size < len(printed):
            self.assertLess(time.monotonic(), end, "the guest does not print on")
            time.sleep(0.1)
        child.send_signal(signal.SIGCONT)
        rest, _ = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 0)
        self.assertEqual((first + rest).decode(), printed)

    def test_what_the_command_leaves_running_does_not_hold_the_run(self):
        done = lab("--timeout", "60", "--", "sh", "-c", "sleep 1000 & exit 3")
        self.assertEqual(done.returncode, 3, done.stderr)

    def test_a_hanging_command_ends_at_the_time_limit(self):
        begun = time.monotonic()
        done = lab("--timeout", "20", "--", "sleep", "1000")
        self.assertEqual(done.returncode, verdict.TIME_LIMIT, done.stderr)
        self.assertIn("did not end within 20 s", done.stderr)
        self.assertLess(time.monotonic() - begun, 25)

    def test_a_command_that_never_stops_printing_ends_at_the_time_limit(self):
        begun = time.monotonic()
        with open(self.folder / "printed", "wb") as printed:
            done = subprocess.run(
                [LAB, "run", "--machine", VM / "machines/1x4.toml", "--quiet", "--timeout", "30", "--", "sh", "-c", PRINTS],
                stdout=printed, stderr=subprocess.PIPE, text=True, check=False,
            )
        self.assertEqual(done.returncode, verdict.TIME_LIMIT, done.stderr)
        self.assertLess(time.monotonic() - begun, 45)
        self.assertGreater((self.folder / "printed").stat().st_size, 1 << 18)

    def test_a_time_limit_ends_the_guest_though_nobody_reads(self):
        marker = f"{os.getpid()}-unread"
        child = subprocess.Popen(
            [LAB, "run", "--machine", VM / "machines/1x4.toml", "--quiet", "--timeout", "30",
             "--append", f"marker={marker}", "--", "sh", "-c", PRINTS], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        self.addCleanup(child.kill)
        os.read(child.stdout.fileno(), 1)
        self.assertTrue(guests(marker))
        time.sleep(33)
        self.assertFalse(guests(marker))
        _, errors = child.communicate(timeout=60)
        self.assertEqual(child.returncode, verdict.TIME_LIMIT, errors)

    def test_files_that_cannot_be_packed_are_told_beside_the_commands_code(self):
        fill = "mount -o remount,size=1m /tmp; dd if=/dev/zero of=/out/large bs=1M count=4 2> /dev/null; exit 7"
        done = lab("--timeout", "60", "--out", self.folder / "out", "--", "sh", "-c", fill)
        self.assertEqual(done.returncode, verdict.LAB_ERROR, done.stderr)
        words = r"\Alab: the files in /out could not be packed in the guest .*; the command ended with exit code 7;"
        self.assertRegex(done.stderr, words)

    def test_a_folder_arrives_with_its_links_and_empty_folders(self):
        (self.folder / "set/empty").mkdir(parents=True)
        (self.folder / "set/link").symlink_to("empty")
        done = lab("--timeout", "60", "--add", f"{self.folder}/set://opt//set", "--", "sh", "-c",
                   "cd /opt/set; find . | sort; readlink link")
        self.assertEqual((done.stdout, done.returncode), (".\n./empty\n./link\nempty\n", 0), done.stderr)

    def test_a_kernel_panic_is_reported(self):
        done = lab("--timeout", "60", "--", "sh", "-c", "echo c > /proc/sysrq-trigger")
        self.assertEqual(done.returncode, verdict.PANIC, done.stderr)
        self.assertIn("sysrq triggered crash", done.stderr)

    def test_a_guest_that_never_boots_is_reported(self):
        done = lab("--timeout", "8", "--append", "rdinit=/bin/cat", "--", "true")
        self.assertEqual(done.returncode, verdict.NOT_STARTED, done.stderr)

    def test_a_guest_that_stops_early_is_reported(self):
        done = lab("--timeout", "60", "--", "poweroff", "-f")
        self.assertEqual(done.returncode, verdict.NOT_STARTED, done.stderr)

    def test_an_ejected_scheduler_fails_the_run(self):
        # The kernel's own words, sent through the same log.
        words = '<3>sched_ext: BPF scheduler "x" disabled (runnable task stall)'
        command = ["--timeout", "60", "--", "sh", "-c", f"echo '{words}' > /dev/kmsg"]
        done = lab(*command)
        self.assertEqual(done.returncode, verdict.SCX_EXIT, done.stderr)
        self.assertIn("runnable task stall", done.stderr)
        self.assertEqual(lab("--allow-scx-exit", *command).returncode, 0)

    def test_an_interrupt_kills_the_guest_and_leaves_nothing(self):
        for end in (signal.SIGINT, signal.SIGHUP):
            marker = f"{os.getpid()}-{end}"
            child = subprocess.Popen(
                [LAB, "run", "--machine", VM / "machines/1x4.toml", "--quiet", "--append", f"marker={marker}", "--",
                 "sh", "-c", "echo up; sleep 1000"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(self.folder)},
                # Whatever the tests themselves ignore.
                preexec_fn=lambda end=end: signal.signal(end, signal.SIG_DFL),
            )
            self.addCleanup(child.kill)
            self.assertEqual(child.stdout.readline(), "up\n")
            self.assertTrue(guests(marker))
            self.assertTrue(list(self.folder.iterdir()))
            child.send_signal(end)
            _, errors = child.communicate(timeout=10)
            self.assertEqual(child.returncode, verdict.INTERRUPTED)
            self.assertIn("interrupted", errors)
            self.assertFalse(guests(marker))
            self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_killed_guest_is_told_from_one_that_ended(self):
        marker = f"{os.getpid()}-killed"
        child = subprocess.Popen(
            [LAB, "run", "--machine", VM / "machines/1x4.toml", "--quiet", "--append", f"marker={marker}", "--",
             "sh", "-c", "echo up; sleep 1000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        self.assertEqual(child.stdout.readline(), "up\n")
        for pid in guests(marker):
            os.kill(pid, signal.SIGKILL)
        _, errors = child.communicate(timeout=10)
        self.assertEqual(child.returncode, verdict.QEMU_DIED, errors)
        self.assertIn("signal 9", errors)


class Shell(unittest.TestCase):
    def test_the_shell_answers_and_ends(self):
        import pty

        reader, terminal = pty.openpty()
        child = subprocess.Popen([LAB, "shell", "--machine", VM / "machines/1x4.toml"],
                                 stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
        os.close(terminal)
        self.addCleanup(os.close, reader)
        self.addCleanup(child.kill)
        text = b""
        while b"# " not in text:
            text += os.read(reader, 4096)
        os.write(reader, b"tty; seq 10000 14000; exit\n")
        # What it wrote last is still there when it has ended; then the terminal has no other side any more.
        while True:
            try:
                text += os.read(reader, 4096)
            except OSError:
                break
        self.assertIn(b"/dev/ttyS1", text)
        self.assertIn(b"14000\r", text.replace(b"seq 10000 14000", b""))
        self.assertEqual(child.wait(timeout=10), 0)


def guests(marker):
    """Process ids of the QEMUs whose kernel command line has `marker`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if words.startswith(b"qemu-system") and marker.encode() in words:
            found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    unittest.main()
