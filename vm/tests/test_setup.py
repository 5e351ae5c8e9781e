# SPDX-License-Identifier: GPL-2.0-only
"""What the set-up scripts ask the package archive, and what they say of kernels that it has no more."""

import os
from pathlib import Path
import subprocess
import tempfile
import time
import unittest

from machines import VM

OFFERED = ["6.18.5+deb13-cloud-amd64", "6.18.20+deb13-cloud-amd64", "6.18.9+deb13-cloud-amd64", "6.18.21+deb13-amd64",
           "6.19.1+deb13-cloud-amd64", "7.0.2+deb13-cloud-amd64", "7.0.10+deb13-cloud-amd64", "7.0.10+deb13-cloud-amd64-dbg"]
APT_GET = """#!/bin/sh
echo "$1" >> "$CALLS"
[ "$1" != "$BROKEN" ]
"""
APT_CACHE = f"""#!/bin/sh
case "$1" in
pkgnames) printf 'linux-image-%s\\n' {' '.join(OFFERED)} ;;
show) case " {' '.join(OFFERED)} " in *" ${{2#linux-image-}} "*) ;; *) exit 100 ;; esac ;;
esac
"""


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = Path(folder.name)
        self.calls = self.cache / "calls"
        for name, text in (("apt-get", APT_GET), ("apt-cache", APT_CACHE)):
            (self.cache / name).write_text(text)
            (self.cache / name).chmod(0o755)

    def ask(self, script, *words, broken=""):
        """What a script says with an archive of ours: its exit code, its last line, and what it asked the archive for."""
        self.calls.write_text("")
        more = {"PATH": f"{self.cache}:{os.environ['PATH']}", "CALLS": str(self.calls), "BROKEN": broken}
        done = subprocess.run([VM / "setup" / script, *words], capture_output=True, text=True, env={**os.environ, **more}, check=False)
        return done.returncode, done.stderr.strip(), self.calls.read_text().split()

    def view(self, broken=""):
        return self.ask("apt-view.sh", self.cache / "apt", broken=broken)

    def test_package_lists_are_fetched_when_they_are_older_than_a_day(self):
        self.assertEqual(self.view(), (0, "", ["update"]))
        self.assertEqual(self.view(), (0, "", []))
        marker = self.cache / "apt/updated"
        for hours, asked in ((23, []), (25, ["update"]), (0, [])):
            with self.subTest(hours):
                if hours:
                    os.utime(marker, (time.time() - hours * 3600,) * 2)
                self.assertEqual(self.view(), (0, "", asked))

    def test_without_the_archive_old_lists_are_used_and_are_asked_for_again(self):
        code, said, _ = self.view(broken="update")
        self.assertEqual((code, said), (1, "apt-view: the package lists cannot be fetched: check the network"))
        self.view()
        os.utime(self.cache / "apt/updated", (86400 * 365.5,) * 2)
        for _ in range(2):
            code, said, asked = self.view(broken="update")
            self.assertEqual((code, asked), (0, ["update"]))
            self.assertEqual(said, "apt-view: the package lists cannot be fetched anew: going on with those of 1971-01-01")

    def refused(self, release):
        code, said, asked = self.ask("kernels.sh", self.cache, release, broken="download")
        self.assertEqual((code, asked[-1]), (1, "download"))
        return said

    def test_a_kernel_that_is_not_offered_any_more_is_told_with_those_that_are(self):
        gone = "kernels: {} is not offered any more: name another release in vm/kernels.list"
        for release, newer in (
            ("6.18.8+deb13-cloud-amd64", "; newer ones are 6.18.9+deb13-cloud-amd64 6.18.20+deb13-cloud-amd64"),
            ("6.18.30+deb13-cloud-amd64", "; newer ones are 6.19.1+deb13-cloud-amd64 7.0.2+deb13-cloud-amd64 7.0.10+deb13-cloud-amd64"),
            ("7.1.1+deb13-cloud-amd64", ""),
        ):
            self.assertEqual(self.refused(release), gone.format(release) + newer)

    def test_a_kernel_that_is_offered_and_does_not_come_is_the_networks_fault(self):
        release = OFFERED[0]
        self.assertEqual(self.refused(release), f"kernels: {release} cannot be fetched: check the network")


if __name__ == "__main__":
    unittest.main()
