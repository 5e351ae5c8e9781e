# SPDX-License-Identifier: GPL-2.0-only
"""Pinned kernels, and whether KVM boots one."""

from pathlib import Path
import subprocess
import tempfile

from lab import BUILD, CACHE, REPO, SETUP, LabError, process, qemu

LIST = REPO / "vm" / "kernels.list"
PROBE_LIMIT_S = 20


def pinned():
    lines = (line.strip() for line in LIST.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def vmlinux(release):
    """Path of a pinned kernel's ELF image, fetched when it is not here yet."""
    if release not in pinned():
        raise LabError(f"--kernel {release} is not pinned: choose one of {', '.join(pinned())} (vm/kernels.list)")
    done = subprocess.run([SETUP / "kernels.sh", CACHE, release], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"the kernel {release} cannot be had: see above")
    return Path(done.stdout.strip())


def kvm_boots(kernel, initramfs):
    """Whether a tiny guest boots with KVM; asked once per boot of this machine."""
    if not Path("/dev/kvm").exists():
        return False
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    answer = BUILD / "vm" / f"kvm-{boot_id}"
    if not answer.exists():
        answer.parent.mkdir(parents=True, exist_ok=True)
        # Whole at once: another run may read it at any moment.
        with tempfile.NamedTemporaryFile("w", dir=answer.parent, prefix="kvm-", delete=False) as written:
            written.write("yes" if _probe(kernel, initramfs) else "no")
        Path(written.name).rename(answer)
    return answer.read_text() == "yes"


def _probe(kernel, initramfs):
    child = process.start(
        [qemu.PROGRAM, "-machine", "q35", *qemu.accel_arguments("kvm"), "-m", "256M", "-nodefaults",
         "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio", "-kernel", kernel,
         "-initrd", initramfs, "-append", "console=ttyS0 panic=-1 quiet rdinit=/bin/echo KVM-BOOTS"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )
    try:
        # init ends at once, the kernel panics for it, and QEMU exits: that is the proof.
        output, _ = child.communicate(timeout=PROBE_LIMIT_S)
        return b"Attempted to kill init" in output
    except subprocess.TimeoutExpired:
        return False
    finally:
        process.end(child)
