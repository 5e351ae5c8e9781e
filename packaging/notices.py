#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Writes the notices of the crates of others that are linked into scx_tandem and tandem: names, licences, authors, and the texts
of the licences, each text once.

usage: notices.py FILE
"""

import json
from pathlib import Path
import re
import subprocess
import sys

ROOT = Path(__file__).resolve().parent.parent
# The crates of the programs that are shipped.
SHIPPED = ("scx_tandem", "tandem-cli")
LICENCE = re.compile(r"(un)?licen[cs]e|copying|copyright|notice", re.IGNORECASE)
# Nothing of these is linked, and their texts are about themselves.
BESIDE = {"benches", "doc", "docs", "examples", "fuzz", "tests"}
# Sources that a crate brings along, and whose libraries are taken from Debian instead.
FROM_DEBIAN = {"libbpf-sys": {"elfutils", "zlib"}}
HEAD = """The programs of Tandem are under the GNU General Public License, version 2 (file copyright or COPYING). What follows are the
notices of the libraries of others that are linked into them, and of Rust's standard library, which is part of each of them:
it is by the Rust project's developers, under "MIT OR Apache-2.0".
"""


def run(*words):
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"notices: {' '.join(words[:2])} failed: {'; '.join(map(str.strip, done.stderr.strip().splitlines()))}")
    return done.stdout


def metadata():
    """What Cargo knows of all packages on this kind of machine."""
    target = re.search(r"(?m)^host: (.*)$", run("rustc", "-vV"))[1]
    return json.loads(run("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target))


def linked(known):
    """The packages of others that the shipped programs are made of: no build scripts' and tests', and no macros'."""
    packages = {package["id"]: package for package in known["packages"]}
    nodes = {node["id"]: node for node in known["resolve"]["nodes"]}
    to_do = [identity for identity, package in packages.items() if package["name"] in SHIPPED]
    found = {}
    while to_do:
        identity = to_do.pop()
        package = packages[identity]
        if identity in found or any("proc-macro" in target["kind"] for target in package["targets"]):
            continue
        found[identity] = package
        normal = (other for other in nodes[identity]["deps"] if any(kind["kind"] is None for kind in other["dep_kinds"]))
        to_do += (other["pkg"] for other in normal)
    foreign = (package for package in found.values() if package["source"])
    return sorted(foreign, key=lambda package: (package["name"], package["version"]))


def texts(package):
    """The licence files of a package, those of what it brings along included."""
    folder = Path(package["manifest_path"]).parent
    left_out = BESIDE | FROM_DEBIAN.get(package["name"], set())
    files = (path for path in sorted(folder.rglob("*")) if LICENCE.match(path.name) and path.suffix != ".rs" and path.is_file())
    return [path.read_text(errors="replace").strip() for path in files if not left_out & set(path.relative_to(folder).parts)]


def called(package):
    return f"{package['name']} {package['version']}"


def notices(packages):
    """The whole file."""
    # The same words in other lines are the same text.
    same = {}
    lines = [HEAD]
    for package in packages:
        found = texts(package)
        for text in found:
            same.setdefault(" ".join(text.split()), (text, []))[1].append(called(package))
        licence = package["license"] or package["license_file"] or "licence not declared"
        authors = ", ".join(package["authors"]) or "authors not named"
        lines.append(f"{called(package)}: {licence}; {authors}; {package['repository'] or 'no repository named'}" +
                     ("" if found else " (without a text)"))
    for text, users in same.values():
        lines += ["", "-" * 100, "Text of: " + ", ".join(dict.fromkeys(users)), "", text]
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: notices.py FILE")
    try:
        with open(sys.argv[1], "w") as file:
            file.write(notices(linked(metadata())))
    except OSError as error:
        sys.exit(f"notices: {error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
