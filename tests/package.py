# SPDX-License-Identifier: GPL-2.0-only
"""The Debian package: what is in it, and what installing, upgrading, going back and removing it do to a Debian 12.

usage: package.py [BUILD_DIR]      needs root, for the Debian that is made for it (300 MB below BUILD_DIR/cache)
"""

from pathlib import Path
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
CONFIG = "etc/tandem/tandem.toml"
# What users and programs find by its place; manual pages of all commands besides.
CONTENT = [
    "usr/bin/scx_tandem", "usr/bin/tandem", CONFIG, "usr/lib/systemd/system/scx_tandem.service",
    "usr/share/man/man1/scx_tandem.1.gz", "usr/share/man/man1/tandem.1.gz", "usr/share/man/man1/tandem-top.1.gz",
    "usr/share/bash-completion/completions/scx_tandem", "usr/share/bash-completion/completions/tandem",
    "usr/share/zsh/vendor-completions/_scx_tandem", "usr/share/zsh/vendor-completions/_tandem",
    "usr/share/fish/vendor_completions.d/scx_tandem.fish", "usr/share/fish/vendor_completions.d/tandem.fish",
    "usr/share/doc/tandem/README.md", "usr/share/doc/tandem/CHANGELOG.md", "usr/share/doc/tandem/copyright",
    "usr/share/doc/tandem/docs/operations.md", "usr/share/doc/tandem/docs/policies/tandem.md",
    "usr/share/doc/tandem/THIRD-PARTY.txt", "usr/share/tandem/grafana-dashboard.json",
    *(f"usr/share/tandem/machines/{path.name}" for path in sorted((ROOT / "vm/machines").glob("*.toml"))),
]
# What a document refers to beside it: links, and sources of pictures.
LINK = re.compile(r'\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)"')
# Debian masks the unit of a package that was removed, until it is purged.
MASK = "etc/systemd/system/scx_tandem.service"
NEWER = "99.0.0-1"


def run(*command, code=0):
    """What a command prints; it must end with this code."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == code, f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def make(folder):
    """The package, in a folder of its own."""
    run(ROOT / "packaging/build.sh", "--fast", "--output", folder)
    return next(folder.glob("*.deb"))


def make_newer(deb, folder):
    """The same as a later version."""
    run("dpkg-deb", "--raw-extract", deb, folder)
    control = folder / "DEBIAN/control"
    control.write_text(re.sub(r"(?m)^Version: .*$", f"Version: {NEWER}", control.read_text()))
    newer = folder.parent / "newer.deb"
    run("dpkg-deb", "-Znone", "--root-owner-group", "--build", folder, newer)
    return newer


def debian(name="debian", *more):
    """A small Debian 12 as a folder, with more packages than it always has; made once."""
    base = BUILD / "cache" / name
    if not (base / "usr/bin/apt-get").exists():
        part = base.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        packages = ",".join(["libelf1", "zlib1g", "libgcc-s1", *more])
        run("mmdebstrap", "--quiet", "--variant=apt", f"--include={packages}", "bookworm", part)
        part.rename(base)
    return base


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        base = Path(cls.folder.name)
        cls.deb = make(base / "this")
        cls.newer = make_newer(cls.deb, base / "newer")
        cls.root = base / "root"
        run("cp", "-a", debian(), cls.root)
        for deb in (cls.deb, cls.newer):
            shutil.copy(deb, cls.root / "root")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def inside(self, *command, code=0):
        """A command in the Debian."""
        return run("chroot", self.root, *command, code=code)

    def install(self, deb):
        self.inside("dpkg", "--install", f"/root/{deb.name}")

    def tearDown(self):
        subprocess.run(["chroot", self.root, "dpkg", "--purge", "tandem"], capture_output=True, check=False)

    def test_everything_has_its_place(self):
        lines = run("dpkg-deb", "--contents", self.deb).splitlines()
        modes = {line.split()[5].removeprefix("./"): line.split()[:2] for line in lines if not line.startswith("d")}
        self.assertEqual([path for path in CONTENT if path not in modes], [], sorted(modes))
        # By number where the archive has no names.
        self.assertLessEqual({owner for _, owner in modes.values()}, {"root/root", "0/0"})
        self.assertEqual([path for path, (mode, _) in modes.items() if mode[5] == "w" or mode[8] == "w"], [])
        self.assertEqual(run("dpkg-deb", "--field", self.deb, "Package").strip(), "tandem")
        self.assertIn("libelf1", run("dpkg-deb", "--field", self.deb, "Depends"))

    def test_documents_refer_to_what_is_in_the_package(self):
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg-deb", "--extract", self.deb, folder)
            documents = sorted((Path(folder) / "usr/share/doc/tandem").rglob("*.md"))
            self.assertGreater(len(documents), 10)
            for document in documents:
                targets = (link or source for link, source in LINK.findall(document.read_text()))
                beside = {target.split("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)}
                missing = sorted(target for target in beside if not (document.parent / target).exists())
                self.assertEqual(missing, [], document.relative_to(folder))

    def test_licences_of_all_that_is_in_the_programs_are_there(self):
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg-deb", "--extract", self.deb, folder)
            ours, others = ((Path(folder) / "usr/share/doc/tandem" / name).read_text() for name in ("copyright", "THIRD-PARTY.txt"))
        self.assertIn("Copyright: The Tandem authors\nLicense: GPL-2.0-only\n", ours)
        self.assertIn((ROOT / "COPYING").read_text(), ours)
        # Of Rust, and the library in C that it brings along.
        for crate in ("anyhow", "libbpf-sys"):
            self.assertRegex(others, rf"(?m)^{crate} [0-9.]+.*: .*; ")
        self.assertIn("Text of: ", others)

    def test_programs_are_stripped(self):
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg-deb", "--extract", self.deb, folder)
            for name in ("scx_tandem", "tandem"):
                sections = run("objdump", "--section-headers", Path(folder) / "usr/bin" / name)
                self.assertNotRegex(sections, r" \.debug_(info|line|str) ")

    def test_installed_it_works_and_removed_it_leaves_the_configuration_only(self):
        before = self.files()
        self.install(self.deb)
        self.assertRegex(self.inside("tandem", "--version"), r"^tandem \d+\.\d+\.\d+\n$")
        self.assertRegex(self.inside("scx_tandem", "--version"), r"^scx_tandem \d+\.\d+\.\d+\n$")
        self.assertEqual(self.inside("tandem", "config", "--check", f"/{CONFIG}"), f"/{CONFIG}: valid\n")
        shown = self.inside("tandem", "config", "--show-effective", "--config", f"/{CONFIG}")
        self.assertIn("\ndry_run = true", shown, "it changes nothing until somebody has looked")
        unit = (self.root / "usr/lib/systemd/system/scx_tandem.service").read_text()
        self.assertIn(f"ExecStart=/usr/bin/scx_tandem --config /{CONFIG}", unit)
        for wants in self.root.glob("etc/systemd/system/*.wants/scx_tandem.service"):
            self.fail(f"{wants}: the service starts only when somebody enables it")
        self.assertIn('"name": "2node"', self.inside("tandem", "topo", "--json", "--machine", "2node"))
        self.inside("dpkg", "--remove", "tandem")
        self.assertEqual(self.files() - before, {f"/{CONFIG}", f"/{MASK}"})
        self.assertEqual(str((self.root / MASK).readlink()), "/dev/null")
        self.inside("dpkg", "--purge", "tandem")
        self.assertEqual(self.files() - before, set())

    def test_a_changed_configuration_outlives_an_upgrade_and_the_way_back(self):
        self.install(self.deb)
        config = self.root / CONFIG
        changed = config.read_text() + "page_rate = 7\n"
        config.write_text(changed)
        for deb, version in ((self.newer, NEWER), (self.deb, None)):
            self.install(deb)
            installed = self.inside("dpkg-query", "--show", "--showformat=${Version}", "tandem")
            self.assertEqual(installed == NEWER, version == NEWER, installed)
            self.assertEqual(config.read_text(), changed)
            shown = self.inside("tandem", "config", "--show-effective", "--config", f"/{CONFIG}")
            self.assertIn("\npage_rate = 7", shown)

    def test_a_running_service_is_stopped_by_removal_only_and_becomes_the_new_version(self):
        calls = self.root / "root/calls"
        manager = self.root / "usr/local/bin/systemctl"
        manager.write_text('#!/bin/sh\necho "$*" >> /root/calls\n')
        manager.chmod(0o755)
        running = self.root / "run/systemd/system"
        running.mkdir(parents=True)
        self.addCleanup(lambda: (shutil.rmtree(running), manager.unlink()))

        def told(action):
            calls.write_text("")
            action()
            words = [line.split() for line in calls.read_text().splitlines()]
            return [line[0] for line in words if line[-1] == "scx_tandem.service"]

        self.assertEqual(told(lambda: self.install(self.deb)), [], "it waits until somebody starts it")
        self.assertEqual(told(lambda: self.install(self.newer)), ["try-restart"])
        self.assertEqual(told(lambda: self.inside("dpkg", "--remove", "tandem")), ["stop"])

    def files(self):
        """Files outside of what the package manager keeps for itself."""
        own = ("/var/", "/root/", "/proc/", "/sys/", "/dev/")
        found = (f"/{path.relative_to(self.root)}" for path in self.root.rglob("*") if path.is_symlink() or path.is_file())
        return {path for path in found if not path.startswith(own)}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BUILD = Path(sys.argv.pop())
    unittest.main()
