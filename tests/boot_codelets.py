# SPDX-License-Identifier: GPL-2.0-only
"""Entries of parallel regions that CRIU captures and `tandem tune --codelets criu` replays: in guests, and here where CRIU can.

usage: python3 -m unittest discover -v -s tests -p 'boot_codelets.py'     (two guests of a minute; needs ./run build, and root here)
"""

import lzma
import os
from pathlib import Path
import subprocess
import tempfile
import unittest

from guest import ROOT, lab

BUILD = ROOT / "build"
KERNELS = [line for line in (ROOT / "vm/kernels.list").read_text().splitlines() if not line.startswith("#")]


def criu():
    """The folder of a CRIU for the pinned kernels."""
    done = subprocess.run([ROOT / "vm/setup/criu.sh", BUILD / "cache"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


# Without these CRIU does not know what the kernel can, in this order. Elsewhere the kernel loads them itself.
MODULES = ("inet_diag", "tcp_diag", "udp_diag", "raw_diag", "unix_diag", "netlink_diag", "af_packet_diag", "tun", "nfnetlink", "nf_tables", "veth")
IN_A_GUEST = "for one in %s; do [ ! -e /modules/$one.ko ] || insmod /modules/$one.ko || exit; done; PATH=/criu/bin:$PATH codelets" % " ".join(MODULES)


def unpack_modules(kernel, folder):
    """Those that are no part of the kernel itself."""
    for name in MODULES:
        for packed in (BUILD / "cache/kernels" / kernel).glob(f"root/**/{name}.ko.xz"):
            (Path(folder) / f"{name}.ko").write_bytes(lzma.decompress(packed.read_bytes()))


class Codelets(unittest.TestCase):
    def test_pages_and_seats_of_a_replay_are_those_that_are_told(self):
        for kernel in KERNELS:
            with self.subTest(kernel=kernel), tempfile.TemporaryDirectory() as folder:
                unpack_modules(kernel, folder)
                programs = [BUILD / "bin/codelets", f"{criu()}:/criu", f"{folder}:/modules"]
                status, output = lab("2x4", kernel, programs, ["sh", "-c", IN_A_GUEST])
                self.assertEqual(status, 0, output)
                self.assertIn("ok: 256 on 0, 256 on 1, 256 on 0, 256 on 1", output)

    def test_teams_of_both_runtimes_are_replayed_in_other_sizes(self):
        environment = {**os.environ, "PATH": f"{criu()}/bin:{os.environ['PATH']}"}
        checked = subprocess.run(["criu", "check"], env=environment, capture_output=True, text=True, check=False)
        if checked.returncode:
            self.skipTest(f"CRIU says: {checked.stderr}")
        # Of the whole workspace, as its other tests are: its crates are built anew if only some of them are asked for.
        words = ["cargo", "test", "--quiet", "--locked", "--workspace", "--lib", "of_codelets", "--", "--ignored"]
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("2 passed", done.stdout)


if __name__ == "__main__":
    unittest.main()
