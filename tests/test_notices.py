# SPDX-License-Identifier: GPL-2.0-only
"""Whose notices the package has, and what is in them."""

from pathlib import Path
import subprocess
import sys
import tempfile
import unittest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "packaging"))

import notices


def package(name, folder, **more):
    given = {"id": name, "name": name, "version": "1.0", "source": "elsewhere", "targets": [{"kind": ["lib"]}], "license": "MIT",
             "license_file": None, "authors": ["A <a@b>"], "repository": None, "manifest_path": f"{folder}/{name}/Cargo.toml"}
    return given | more


def node(name, **kinds):
    return {"id": name, "deps": [{"pkg": other, "dep_kinds": [{"kind": None if kind == "normal" else kind}]}
                                 for other, kind in kinds.items()]}


class Notices(unittest.TestCase):
    def test_only_what_is_linked_into_shipped_programs_counts(self):
        names = ["ours", "linked", "below", "of_build", "of_tests", "of_macro", "of_others"]
        packages = [package(name, "/x") for name in names]
        packages += [package("scx_tandem", "/x", source=None), package("other-program", "/x", source=None),
                     package("macro", "/x", targets=[{"kind": ["proc-macro"]}])]
        packages[0]["source"] = None
        nodes = [node("scx_tandem", ours="normal", of_build="build", of_tests="dev"), node("ours", linked="normal", macro="normal"),
                 node("linked", below="normal"), node("macro", of_macro="normal"), node("other-program", of_others="normal"),
                 *(node(name) for name in ("below", "of_build", "of_tests", "of_macro", "of_others"))]
        found = notices.linked({"packages": packages, "resolve": {"nodes": nodes}})
        self.assertEqual([one["name"] for one in found], ["below", "linked"])

    def test_each_text_stands_once_and_who_has_none_is_named_with_licence_and_authors(self):
        with tempfile.TemporaryDirectory() as folder:
            for file, text in {"a/LICENSE": "one\ntext", "b/LICENSE-MIT.txt": "one text\n", "b/inner/COPYING": "another",
                               "b/tests/LICENSE": "of a test", "b/src/license.rs": "code", "libbpf-sys/zlib/LICENSE": "not linked",
                               "none/README": "none"}.items():
                path = Path(folder) / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            said = notices.notices([package(name, folder) for name in ("a", "b", "libbpf-sys", "none")])
        self.assertIn("\nnone 1.0: MIT; A <a@b>; no repository named (without a text)\n", said)
        self.assertIn("Text of: a 1.0, b 1.0\n\none\ntext\n", said)
        self.assertIn("Text of: b 1.0\n\nanother\n", said)
        self.assertEqual(said.count("Text of: "), 2, said)

    def test_what_cannot_be_written_is_refused_in_one_sentence(self):
        for words, sentence in (([], "usage: notices.py FILE\n"), (["/no/file"], "notices: /no/file: No such file or directory\n")):
            done = subprocess.run([ROOT / "packaging/notices.py", *words], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (1, sentence))


if __name__ == "__main__":
    unittest.main()
