# SPDX-License-Identifier: GPL-2.0-only
"""The lab: NUMA machines in QEMU, from machine files."""

from pathlib import Path
import os

REPO = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TANDEM_BUILD", REPO / "build")).resolve()
CACHE = BUILD / "cache"
SETUP = REPO / "vm" / "setup"


class LabError(Exception):
    """What the lab cannot do, in one sentence."""
