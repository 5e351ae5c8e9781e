# SPDX-License-Identifier: GPL-2.0-only
"""What goes into a guest: the command, word by word, and added files."""

import hashlib
import os
from pathlib import Path
import subprocess
import tempfile
import types
import unittest

import machines  # noqa: F401  (the way to the lab)

from lab import LabError, image, run, vng


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

    def test_empty_folders_and_links_arrive_as_such(self):
        folder = self.folder / "set"
        (folder / "empty").mkdir(parents=True)
        (folder / "sub").mkdir()
        (folder / "sub/one").write_text("1")
        (self.folder / "elsewhere").write_text("2")
        for name, to in (("folder", "sub"), ("file", "sub/one"), ("nothing", "/no/such"), ("out", "../elsewhere"), ("loop", "loop")):
            (folder / name).symlink_to(to)
        archive = image.Archive()
        image.add(archive, f"{folder}:/data")
        arrived = self.unpack(archive) / "data"
        self.assertTrue((arrived / "empty").is_dir())
        links = {path.name: os.readlink(path) for path in arrived.iterdir() if path.is_symlink()}
        self.assertEqual(links, {"folder": "sub", "file": "sub/one", "nothing": "/no/such", "loop": "loop"})
        self.assertEqual((arrived / "out").read_text(), "2")

    def test_what_is_neither_a_file_nor_a_folder_is_named(self):
        (self.folder / "set").mkdir()
        os.mkfifo(self.folder / "set/pipe")
        for host, path in ((self.folder / "set", self.folder / "set/pipe"), ("/dev/null", "/dev/null")):
            sentence = f"--add {host}:/x: {path} is neither a file nor a folder"
            self.assertRaisesRegex(LabError, f"^{sentence}$", image.add, image.Archive(), f"{host}:/x")

    def test_a_path_that_is_taken_is_refused(self):
        for name in ("one", "two"):
            (self.folder / name).write_text(name)
        archive = image.Archive()
        archive.file("lab/command", b"true")
        image.add(archive, f"{self.folder}/one:/a/x")
        image.add(archive, f"{self.folder}/one:/a/x")
        for guest in ("/a/x", "/lab/command", "/a", "/a/x/below"):
            taken = "/a/x" if "x" in guest else guest
            self.assertRaisesRegex(LabError, f"^--add .*: {taken} in the guest is taken already$",
                                   image.add, archive, f"{self.folder}/two:{guest}")

    def test_a_library_gives_way_to_what_is_added_in_its_place(self):
        (self.folder / "own").write_text("own")
        library = image.libraries("/bin/ls")[0]
        additions = [f"{self.folder}/own:{library}", "/bin/ls:/bin/real-ls"]
        for ordered in (additions, additions[::-1]):
            archive = image.Archive()
            for text in ordered:
                image.add(archive, text)
            self.assertEqual(archive.names[library.lstrip("/")][1], hashlib.sha256(b"own").digest(), ordered)

    def test_a_folder_with_its_own_linker_gets_no_libraries_of_this_machine(self):
        (self.folder / "set").mkdir()
        (self.folder / "set/ls").write_bytes(Path("/bin/ls").read_bytes())
        for linker in (False, True):
            if linker:
                (self.folder / "set/ld-linux-x86-64.so.2").write_text("another one")
            archive = image.Archive()
            image.add(archive, f"{self.folder}/set:/opt")
            libraries = [name for name in archive.names if name.endswith("/libc.so.6")]
            self.assertEqual(len(libraries), 0 if linker else 1)

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
        for guest in ("", "bin/x", "/../x", "/", "//", "///", "/.", "//."):
            with self.assertRaisesRegex(LabError, "absolute"):
                image.split_addition(f"/bin/sh:{guest}")

    def test_more_slashes_mean_one(self):
        for guest in ("/opt/x", "//opt/x", "///opt/x", "/opt//x/"):
            self.assertEqual(image.split_addition(f"/bin/sh:{guest}")[1], "opt/x")

    def test_a_folder_without_a_name_needs_a_path_in_the_guest(self):
        for host in (".", "./", "/"):
            self.assertRaisesRegex(LabError, f"^--add {host}: say where it goes in the guest: {host}:/PATH$",
                                   image.split_addition, host)
        self.assertEqual(image.split_addition(".:/here")[1], "here")

    def test_virtme_ng_gets_the_same_files(self):
        (self.folder / "set/empty").mkdir(parents=True)
        (self.folder / "set/nothing").symlink_to("/no/such")
        request = types.SimpleNamespace(command=("true",), additions=(f"{self.folder}/set://opt/set", "/bin/ls:/opt/ls"))
        vng.stage(self.folder, request)
        arrived = sorted(str(path.relative_to(self.folder / "add")) for path in (self.folder / "add").rglob("*"))
        self.assertEqual(arrived, ["lab", "lab/command", "opt", "opt/ls", "opt/set", "opt/set/empty", "opt/set/nothing"])
        self.assertEqual((self.folder / "add/lab/command").read_bytes(), b"true\n")


if __name__ == "__main__":
    unittest.main()
