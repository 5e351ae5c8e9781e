# SPDX-License-Identifier: GPL-2.0-only
"""What `--runner vng` promises: the same as the direct runner, with this machine's files.

usage: python3 -m unittest discover -v -s vm/tests -p 'boot_vng.py'     (about 12 s a test; the first run sets virtme-ng up)
"""

from pathlib import Path
import subprocess
import tempfile
import unittest

import boot_topologies
from machines import VM

from lab import kernels, machine, verdict


def lab(name, *words):
    """Runs the lab with virtme-ng on the machine file `name`; what it printed and its code."""
    head = [VM / "lab.py", "run", "--runner", "vng", "--quiet", "--machine", VM / f"machines/{name}.toml"]
    return subprocess.run([*head, *words], capture_output=True, text=True, check=False)


class Runs(unittest.TestCase):
    def test_exit_code_output_and_files_come_back_on_every_kernel(self):
        for kernel in kernels.pinned():
            with self.subTest(kernel), tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "out"
                command = "uname -r; echo err >&2; seq 100000 > /out/numbers; exit 41"
                done = lab("1x4", "--kernel", kernel, "--timeout", "120", "--out", out, "--", "sh", "-c", command)
                self.assertEqual((done.stdout, done.returncode), (f"{kernel}\nerr\n", 41), done.stderr)
                self.assertEqual((out / "numbers").read_text(), "".join(f"{i}\n" for i in range(1, 100001)))

    def test_the_guest_has_the_nodes_cpus_and_distances_of_the_file(self):
        done = lab("4x2-ring", "--timeout", "120", "--", "sh", "-c", boot_topologies.SHOW)
        self.assertEqual(done.returncode, 0, done.stderr)
        kinds = ("online ", "cpus ", "distance ")
        seen = {line for line in done.stdout.splitlines() if line.startswith(kinds)}
        expected = boot_topologies.expected(machine.load(VM / "machines/4x2-ring.toml"))
        self.assertEqual(seen, {line for line in expected if line.startswith(kinds)})

    def test_what_the_guest_writes_stays_in_the_guest(self):
        # /tmp is the guest's own anyway, and this repository may lie there.
        marker = Path("/opt/written-by-a-tandem-guest")
        done = lab("1x4", "--timeout", "120", "--", "sh", "-c", f"echo x > {marker} && cat {marker}")
        self.assertEqual((done.stdout, done.returncode), ("x\n", 0), done.stderr)
        self.assertFalse(marker.exists())

    def test_a_hanging_command_ends_at_the_time_limit(self):
        # The limit begins before the boot, which takes longer on a busy machine.
        done = lab("1x4", "--timeout", "90", "--", "sleep", "1000")
        self.assertEqual(done.returncode, verdict.TIME_LIMIT, done.stderr)

    def test_a_machine_that_virtme_ng_cannot_make_is_refused_in_words(self):
        done = lab("sparse-0-2-5", "--", "true")
        self.assertEqual(done.returncode, verdict.LAB_ERROR, done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1)
        self.assertIn("--runner direct", done.stderr)


if __name__ == "__main__":
    unittest.main()
