# SPDX-License-Identifier: GPL-2.0-only
"""Following files that a child writes."""

from pathlib import Path
import signal
import subprocess
import tempfile
import time
import unittest

import machines  # noqa: F401  (the way to the lab)

from lab.follow import follow


class Follow(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "file"
        self.path.touch()
        self.seen = []

    def start(self, script):
        child = subprocess.Popen(["sh", "-c", script, "sh", self.path])
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def take(self, name, data):
        self.seen.append((name, data, time.monotonic()))

    def test_everything_is_read_even_what_is_written_last(self):
        child = self.start('seq 100000 > "$1"')
        self.assertTrue(follow({"a": self.path}, self.take, child, lambda: time.monotonic() + 20))
        self.assertEqual(b"".join(data for _, data, _ in self.seen), self.path.read_bytes())

    def test_what_is_written_is_read_at_once(self):
        child = self.start('echo one >> "$1"; sleep 1; echo two >> "$1"')
        self.assertTrue(follow({"a": self.path}, self.take, child, lambda: time.monotonic() + 20))
        self.assertEqual([data for _, data, _ in self.seen], [b"one\n", b"two\n"])
        self.assertGreater(self.seen[1][2] - self.seen[0][2], 0.5)

    def test_what_was_written_before_is_read_at_once_too(self):
        self.path.write_bytes(b"early")
        begun = time.monotonic()
        follow({"a": self.path}, self.take, self.start("sleep 1"), lambda: begun + 20)
        self.assertEqual(self.seen[0][1], b"early")
        self.assertLess(self.seen[0][2] - begun, 0.5)

    def test_the_deadline_may_be_as_far_away_as_one_likes(self):
        child = self.start('echo one >> "$1"')
        self.assertTrue(follow({"a": self.path}, self.take, child, lambda: 1e300))

    def test_the_deadline_ends_a_child_that_never_stops_writing(self):
        begun = time.monotonic()
        child = self.start('while :; do seq 1000; sleep 0.01; done >> "$1"')
        read = []

        def take(_name, data):
            # As slow as what it takes is written.
            read.append(data)
            time.sleep(0.02)

        self.assertFalse(follow({"a": self.path}, take, child, lambda: begun + 1))
        self.assertLess(time.monotonic() - begun, 10)
        self.assertEqual(b"".join(read), self.path.read_bytes())

    def test_the_deadline_ends_the_child_while_nobody_takes_what_it_wrote(self):
        begun = time.monotonic()
        child = self.start('echo one >> "$1"; exec sleep 100')
        ended = []
        self.assertFalse(follow({"a": self.path}, lambda *_: ended.append(child.wait(20)), child, lambda: begun + 1))
        self.assertEqual(ended, [-signal.SIGKILL])

    def test_the_deadline_is_none_for_one_that_ended_before(self):
        begun = time.monotonic()
        child = self.start('echo one >> "$1"')
        self.assertTrue(follow({"a": self.path}, lambda *_: time.sleep(1.5), child, lambda: begun + 1))

    def test_the_deadline_ends_it(self):
        begun = time.monotonic()
        child = self.start("exec sleep 100")
        self.assertFalse(follow({"a": self.path}, self.take, child, lambda: begun + 0.3))
        self.assertLess(time.monotonic() - begun, 5)


if __name__ == "__main__":
    unittest.main()
