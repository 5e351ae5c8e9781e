# SPDX-License-Identifier: GPL-2.0-only
"""Child processes that never outlive the lab."""

import ctypes
import os
import signal
import subprocess

from lab import LabError

PR_SET_PDEATHSIG = 1


def _die_with_parent():
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(arguments, own_session=True, **options):
    """Starts a program that is killed when this process dies. In a session of its own, Ctrl-C
    reaches the lab only, which then says what happened."""
    try:
        return subprocess.Popen(arguments, start_new_session=own_session, preexec_fn=_die_with_parent, **options)
    except FileNotFoundError:
        raise LabError(f"{arguments[0]} is missing: run vm/setup/packages.sh build/cache") from None


def end(child):
    """Kills a child and its process group, and reaps it."""
    if child.poll() is None:
        if os.getpgid(child.pid) == child.pid:
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.wait()
