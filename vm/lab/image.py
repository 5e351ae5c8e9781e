# SPDX-License-Identifier: GPL-2.0-only
"""Initramfs images: busybox, the caller's programs with their libraries, and the command."""

import hashlib
import os
from pathlib import Path
import re
import shutil
import stat
import subprocess

from lab import BUILD, LabError

INIT = Path(__file__).with_name("init.sh")
DIRECTORIES = "bin sbin dev etc lib64 out proc root run sys tmp usr usr/bin usr/lib usr/sbin lab".split()


class Archive:
    """A newc cpio archive. Archives may follow each other: the kernel unpacks all of them."""

    def __init__(self):
        self.parts = []
        # What is there under a name: the same may come twice, but nothing else in its place. None: anything may.
        self.names = {}
        self.inode = 0

    def _entry(self, name, mode, data, device=(0, 0)):
        content = mode, hashlib.sha256(data).digest()
        if self.names.get(name) == content:
            return
        if self.names.get(name) is not None:
            raise LabError(f"/{name} in the guest is taken already")
        self.names[name] = content
        self.inode += 1
        path = os.fsencode(name) + b"\0"
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields)
        self.parts += [_padded(header + path), _padded(data)]

    def directory(self, name):
        if name:
            self.directory(os.path.dirname(name))
            self._entry(name, stat.S_IFDIR | 0o755, b"")

    def file(self, name, data, mode=0o755):
        self.directory(os.path.dirname(name))
        self._entry(name, stat.S_IFREG | mode, data)

    def library(self, name, data):
        """A file that gives way to what is added under its name."""
        if name not in self.names:
            self.file(name, data)
            self.names[name] = None

    def link(self, name, target):
        self.directory(os.path.dirname(name))
        self._entry(name, stat.S_IFLNK | 0o777, os.fsencode(target))

    def console(self):
        self._entry("dev/console", stat.S_IFCHR | 0o600, b"", (5, 1))

    def bytes(self):
        end = Archive()
        end._entry("TRAILER!!!", 0, b"")
        return b"".join(self.parts + end.parts)


def _padded(data):
    return data + b"\0" * (-len(data) % 4)


def base():
    """Path of the part that all guests share: busybox and the init program."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise LabError("busybox is missing: run vm/setup/packages.sh build/cache")
    program, init = Path(busybox).read_bytes(), INIT.read_bytes()
    path = BUILD / "vm" / f"base-{hashlib.sha256(program + init).hexdigest()[:16]}.cpio"
    if not path.exists():
        archive = Archive()
        for directory in DIRECTORIES:
            archive.directory(directory)
        archive.console()
        archive.file("bin/busybox", program)
        archive.file("init", init)
        applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
        for applet in applets:
            if applet != "busybox":
                archive.link(f"bin/{applet}", "busybox")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(archive.bytes())
        part.replace(path)
    return path


def libraries(program):
    """The shared libraries of a program; none when it is static or no ELF file."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    if "not found" in done.stdout:
        missing = [line.split()[0] for line in done.stdout.splitlines() if "not found" in line]
        raise LabError(f"{program}: needs {', '.join(missing)}, which this machine does not have")
    return re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE)


def split_addition(text):
    """HOST[:GUEST] as (host path, guest path without the leading slash)."""
    host, colon, guest = text.partition(":")
    path = Path(host)
    try:
        path.stat()
    except OSError as error:
        raise LabError(f"--add {text}: {host}: {error.strerror}") from None
    if not colon and not path.name:
        raise LabError(f"--add {text}: say where it goes in the guest: {text}:/PATH")
    guest = guest if colon else f"/bin/{path.name}"
    inside = str(Path(guest)).lstrip("/")
    if not guest.startswith("/") or ".." in Path(guest).parts or not inside:
        raise LabError(f"--add {text}: the path in the guest must be absolute, and not its root")
    return path, inside


def add(archive, text, with_libraries=True):
    """Puts what `--add TEXT` names into `archive`."""
    host, guest = split_addition(text)
    try:
        if not host.is_dir():
            return add_file(archive, host, guest, with_libraries)
        archive.directory(guest)
        inside = list(below(host))
        # What has its own dynamic linker has its own libraries.
        with_libraries = with_libraries and not any(path.name.startswith("ld-linux") for path in inside)
        for path in inside:
            name = f"{guest}/{path.relative_to(host)}"
            if stays_link(path, host):
                archive.link(name, os.readlink(path))
            elif path.is_dir():
                archive.directory(name)
            else:
                add_file(archive, path, name, with_libraries)
    except OSError as error:
        raise LabError(f"--add {text}: {error.filename}: {error.strerror}") from None
    except LabError as error:
        raise LabError(f"--add {text}: {error}") from None


def below(folder):
    """All that is below a folder, each folder before what it holds."""
    def refuse(error):
        raise error

    for path, folders, files in os.walk(folder, onerror=refuse):
        folders.sort()
        yield from (Path(path) / name for name in sorted(folders + files))


def stays_link(path, folder):
    """Whether a path is a link that is one in the guest too; one that leads out of the folder to a file becomes that file."""
    if not path.is_symlink():
        return False
    inside = not os.path.isabs(os.readlink(path)) and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    return inside or not path.is_file()


def add_file(archive, path, name, with_libraries):
    if not path.is_file():
        raise LabError(f"{path} is neither a file nor a folder")
    data = path.read_bytes()
    archive.file(name, data, stat.S_IMODE(path.stat().st_mode))
    if with_libraries and data[:4] == b"\x7fELF":
        for library in libraries(path):
            archive.library(library.lstrip("/"), Path(library).read_bytes())


def build(path, kernel, release, additions, script):
    """Writes a whole initramfs to `path`: the base, the kernel's configuration, `additions`, and the command's script."""
    archive = Archive()
    archive.file("lab/command", script)
    # Where libbpf looks for what a BPF program asks of it (__kconfig).
    archive.file(f"boot/config-{release}", kernel.with_name("config").read_bytes(), 0o644)
    for text in additions:
        add(archive, text)
    # The base comes first, so that additions may replace parts of it.
    with open(path, "wb") as out, open(base(), "rb") as common:
        shutil.copyfileobj(common, out)
        out.write(b"\0" * (-out.tell() % 512))
        out.write(archive.bytes())
