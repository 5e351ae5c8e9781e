# SPDX-License-Identifier: GPL-2.0-only
"""Reading files while they grow.

The guest's lines go to files, not to pipes: a file is never full, so that nothing is left in QEMU's queues when the
guest powers off.
"""

import ctypes
import os
import selectors
import threading
import time

from lab import LabError, process

IN_MODIFY = 2
# How often the deadline is asked for, which may change.
LOOK_S = 1.0


class Growth:
    """Tells when one of some files is written to (inotify)."""

    def __init__(self, paths):
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise LabError(f"inotify is not to be had: {os.strerror(ctypes.get_errno())}")
        for path in paths:
            if libc.inotify_add_watch(self.fd, os.fsencode(path), IN_MODIFY) < 0:
                raise LabError(f"{path} cannot be watched: {os.strerror(ctypes.get_errno())}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)

    def clear(self):
        os.read(self.fd, 1 << 16)


class Guard:
    """Kills `child` at the time that `deadline()` says: a thread of its own, since whoever takes what the child prints may
    wait for its reader, or never come to an end of it."""

    def __init__(self, child, deadline):
        self.killed = False
        self._child, self._deadline = child, deadline
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _watch(self):
        while self._child.poll() is None:
            left = self._deadline() - time.monotonic()
            if left <= 0:
                self.killed = True
                process.end(self._child)
                return
            if self._over.wait(min(left, LOOK_S)):
                return


def follow(paths, take, child, deadline):
    """Calls `take(name, data)` with what is written to `paths` (name to path, files that exist) until `child` has
    ended and everything is read; False when it had to be killed since the time that `deadline()` says had passed."""
    exit_fd = os.pidfd_open(child.pid)
    files = {name: open(path, "rb", buffering=0) for name, path in paths.items()}
    try:
        with Growth(paths.values()) as growth, selectors.DefaultSelector() as selector, Guard(child, deadline) as guard:
            selector.register(exit_fd, selectors.EVENT_READ)
            selector.register(growth.fd, selectors.EVENT_READ)
            ended = False
            while True:
                # Before the first wait too: what was written before the watch tells nobody.
                for name, file in files.items():
                    while data := file.read(1 << 16):
                        take(name, data)
                if ended:
                    return not guard.killed
                ready = {key.fd for key, _ in selector.select()}
                if growth.fd in ready:
                    growth.clear()
                ended = exit_fd in ready
    finally:
        os.close(exit_fd)
        for file in files.values():
            file.close()
