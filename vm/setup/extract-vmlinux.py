#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Unpacks the ELF kernel inside a bzImage, found by its setup header (Documentation/arch/x86/boot.rst)."""

import struct
import subprocess
import sys

UNPACKERS = {
    b"\x28\xb5\x2f\xfd": ["zstd", "-dc"],
    b"\xfd7zXZ\x00": ["xz", "-dc"],
    b"\x1f\x8b": ["gzip", "-dc"],
    b"\x02\x21\x4c\x18": ["lz4", "-dc"],
}


def payload(image: bytes) -> bytes:
    """The compressed kernel: it starts after the real-mode setup sectors."""
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    return image[start : start + length]


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: extract-vmlinux.py BZIMAGE VMLINUX")
    with open(sys.argv[1], "rb") as f:
        packed = payload(f.read())
    for magic, command in UNPACKERS.items():
        if packed.startswith(magic):
            break
    else:
        sys.exit(f"extract-vmlinux: {sys.argv[1]}: unknown compression {packed[:4].hex()}")
    # The kernel appends its size behind the stream, so unpackers end with a complaint about
    # trailing bytes: what counts is that an ELF image came out.
    unpacked = subprocess.run(command, input=packed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    if not unpacked.startswith(b"\x7fELF"):
        sys.exit(f"extract-vmlinux: {sys.argv[1]}: {command[0]} gave no ELF image")
    with open(sys.argv[2], "wb") as f:
        f.write(unpacked)


if __name__ == "__main__":
    main()
