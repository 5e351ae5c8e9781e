# SPDX-License-Identifier: GPL-2.0-only
"""What goes into a guest: the command, word by word, and added files."""

import os
from pathlib import Path
import subprocess
import tempfile
import unittest

import machines  # noqa: F401  (the way to the lab)

from lab import LabError, image, run


class Command(unittest.TestCase):
    def test_every_word_survives_the_shell(self):
        words = ["printf", "%s\\0", "", "a b", "it's", '"$HOME"', "`id`", "new\nline", "\\", "*", "é", "-n", "~"]
        done = subprocess.run(["sh", "-s"], input=run.script(words), capture_output=True, check=True)
        self.assertEqual(done.stdout.decode().split("\0")[:-1], words[2:])


class Image(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def unpack(self, archive):
        target = self.folder / "target"
        target.mkdir()
        subprocess.run(["cpio", "-id", "--quiet"], cwd=target, input=archive.bytes(), check=True)
        return target

    def test_files_arrive_with_their_bytes_and_mode(self):
        source = self.folder / "odd"
        source.write_bytes(bytes(range(256)) * 17 + b"x")
        source.chmod(0o750)
        archive = image.Archive()
        image.add(archive, f"{source}:/a/b/odd")
        arrived = self.unpack(archive) / "a/b/odd"
        self.assertEqual(arrived.read_bytes(), source.read_bytes())
        self.assertEqual(arrived.stat().st_mode & 0o777, 0o750)

    def test_a_program_brings_its_libraries(self):
        archive = image.Archive()
        image.add(archive, "/bin/ls:/bin/real-ls")
        self.assertIn("bin/real-ls", archive.names)
        self.assertTrue(any("libc.so.6" in name for name in archive.names), archive.names)
        self.assertTrue(any("ld-linux" in name for name in archive.names), archive.names)

    def test_a_folder_arrives_whole(self):
        (self.folder / "set/sub").mkdir(parents=True)
        (self.folder / "set/sub/one").write_text("1")
        archive = image.Archive()
        image.add(archive, f"{self.folder}/set:/data")
        self.assertEqual((self.unpack(archive) / "data/sub/one").read_text(), "1")

    def test_what_does_not_exist_is_named(self):
        for host in ("/no/such", "n" * 300, "/bin/sh/below"):
            with self.assertRaisesRegex(LabError, f"^--add {host}: {host}: [A-Z]"):
                image.split_addition(host)

    def test_names_arrive_byte_by_byte(self):
        name = os.fsdecode(b"not\xffutf-8")
        (self.folder / "set").mkdir()
        (self.folder / "set" / name).write_text("1")
        archive = image.Archive()
        image.add(archive, f"{self.folder}/set:/data")
        self.assertEqual((self.unpack(archive) / "data" / name).read_text(), "1")

    def test_paths_in_the_guest_must_be_absolute(self):
        for guest in ("bin/x", "/../x", "/"):
            with self.assertRaisesRegex(LabError, "absolute"):
                image.split_addition(f"/bin/sh:{guest}")


if __name__ == "__main__":
    unittest.main()
