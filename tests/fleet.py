# SPDX-License-Identifier: GPL-2.0-only
"""The manifests for Kubernetes: judged by its schemas, and what they tell our programs by our programs.

usage: fleet.py [BUILD_DIR]
"""

import os
from pathlib import Path
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = Path(__file__).resolve().parent.parent
FLEET = ROOT / "packaging/fleet"
MODES = {"dry-run": "true", "act": "false"}
# The first with all fields that are used, and a new one.
VERSIONS = ("1.30", "1.35")
IN_EVERY_IMAGE = {"libc6", "libgcc-s1"}
BUILD = ROOT / "build"
INSIDE = "TANDEM_MANIFESTS_PYTHON"


def documents(mode):
    """The objects of a file, by kind."""
    return {document["kind"]: document for document in yaml.safe_load_all((FLEET / f"{mode}.yaml").read_text())}


def said(value, mode):
    """A document without the name of its mode, to compare it with the other's."""
    return repr(value).replace(mode, "MODE")


class Fleet(unittest.TestCase):
    def test_every_object_is_as_kubernetes_schemas_want_it(self):
        for mode in MODES:
            for kind, document in documents(mode).items():
                for version in VERSIONS:
                    with self.subTest(f"{mode}.yaml, {kind}, {version}"):
                        kubernetes_validate.validate(document, version, strict=True)

    def test_the_schemas_refuse_what_is_wrong(self):
        daemons = documents("act")["DaemonSet"]
        daemons["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(daemons, VERSIONS[0], strict=True)

    def test_scx_tandem_takes_the_configuration(self):
        for mode, dry in MODES.items():
            with self.subTest(mode), tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
                file.write(documents(mode)["ConfigMap"]["data"]["tandem.toml"])
                file.flush()
                os.chmod(file.name, 0o644)
                check = [BUILD / "bin/tandem", "config", "--check", file.name]
                done = subprocess.run(check, capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                shown = [BUILD / "bin/tandem", "config", "--show-effective", "--config", file.name]
                text = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
                self.assertIn(f"\ndry_run = {dry}", text)
                self.assertIn('\nmetrics = "0.0.0.0:9100"', text)

    def test_the_image_has_every_library_that_the_programs_need(self):
        recipe = (FLEET / "Containerfile").read_text()
        for program in ("scx_tandem", "tandem"):
            self.assertIn(f" {program} ", recipe)
            needed = subprocess.run(["ldd", BUILD / "bin" / program], capture_output=True, text=True, check=True).stdout
            # Below /lib for the package manager, or below /usr/lib.
            files = [f"*/{os.path.basename(os.path.realpath(line.split()[2]))}" for line in needed.splitlines() if "=>" in line]
            found = subprocess.run(["dpkg", "--search", *files], capture_output=True, text=True, check=True).stdout
            packages = {line.split(":")[0] for line in found.splitlines()} - IN_EVERY_IMAGE
            self.assertEqual([package for package in packages if f" {package} " not in recipe], [])

    def test_the_image_is_made_of_stripped_programs_and_licences_and_of_nothing_else(self):
        copied = re.findall(r"(?m)^COPY (.*) \S+$", (FLEET / "Containerfile").read_text())
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            subprocess.run([ROOT / "packaging/image.sh", folder], check=True)
            self.assertEqual(sorted(path.name for path in folder.iterdir()), sorted(" ".join(copied).split()))
            for program in ("scx_tandem", "tandem"):
                sections = subprocess.run(["objdump", "--section-headers", folder / program], capture_output=True, text=True, check=True)
                self.assertNotRegex(sections.stdout, r" \.debug_(info|line|str) ")
                version = subprocess.run([folder / program, "--version"], capture_output=True, text=True, check=True).stdout
                self.assertTrue(version.startswith(f"{program} "), version)

    def test_both_modes_differ_in_nothing_but_their_mode(self):
        one, other = (said(documents(mode)["DaemonSet"], mode) for mode in MODES)
        self.assertEqual(one, other)

    def test_the_rights_are_those_of_the_unit(self):
        unit = (ROOT / "packaging/scx_tandem.service").read_text()
        line = next(line for line in unit.splitlines() if line.startswith("CapabilityBoundingSet="))
        names = sorted(name.removeprefix("CAP_") for name in line.split("=")[1].split())
        for mode in MODES:
            pod = documents(mode)["DaemonSet"]["spec"]["template"]["spec"]
            for container in pod["containers"] + pod["initContainers"]:
                capabilities = container["securityContext"]["capabilities"]
                self.assertEqual((sorted(capabilities["add"]), capabilities["drop"]), (names, ["ALL"]))

    def test_parts_fit_together(self):
        version = next(line for line in (ROOT / "Cargo.toml").read_text().splitlines() if line.startswith("version = ")).split('"')[1]
        for mode in MODES:
            found = documents(mode)
            spec = found["DaemonSet"]["spec"]
            pod = spec["template"]["spec"]
            self.assertEqual(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"])
            self.assertEqual(pod["nodeSelector"], {"scx-tandem": mode})
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            self.assertEqual(volumes["config"]["configMap"]["name"], found["ConfigMap"]["metadata"]["name"])
            for container in pod["containers"] + pod["initContainers"]:
                # Of a registry that nobody can have (RFC 2606), so that no node fetches what somebody else calls tandem.
                self.assertEqual(container["image"], f"registry.example/tandem:{version}")
                self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, set(volumes))
            port = pod["containers"][0]["ports"][0]["containerPort"]
            self.assertIn(f":{port}\"", found["ConfigMap"]["data"]["tandem.toml"])
            self.assertEqual(spec["template"]["metadata"]["annotations"]["prometheus.io/port"], str(port))
        # What its reader replaces.
        self.assertIn(f's|registry.example/tandem:{version}|$image|', (ROOT / "docs/fleet.md").read_text())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BUILD = Path(sys.argv[1])
    if INSIDE not in os.environ:
        found = subprocess.run([ROOT / "vm/setup/manifests.sh", BUILD / "cache"], stdout=subprocess.PIPE, text=True, check=True)
        python = found.stdout.strip()
        os.execve(python, [python, *sys.argv], {**os.environ, INSIDE: python})
    import kubernetes_validate
    import yaml
    unittest.main(argv=sys.argv[:1])
