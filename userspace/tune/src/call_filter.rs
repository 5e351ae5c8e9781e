// SPDX-License-Identifier: GPL-2.0-only
//! Which system calls stop a traced program: those that get it much memory, and no others. For 64-bit x86 only.

use std::io;

use libc::{c_long, sock_filter, sock_fprog};

use crate::births::LEAST_BYTES;

/// From linux/audit.h: 64-bit x86.
const X86_64: u32 = 0xc000_003e;

/// Where a filter finds what is called for (struct seccomp_data): the number, the architecture, the second argument.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const SECOND_LOW: u32 = 24;
const SECOND_HIGH: u32 = 28;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// The filter; each jump says how many instructions it leaves out if it is so, and if it is not.
fn filter() -> [sock_filter; 12] {
    let instruction = |code: u16, k: u32, jt: u8, jf: u8| sock_filter { code, jt, jf, k };
    let is = |number: c_long, jt: u8, jf: u8| instruction(EQUAL, number as u32, jt, jf);
    [
        instruction(LOAD, ARCHITECTURE, 0, 0),
        instruction(EQUAL, X86_64, 0, 8),
        instruction(LOAD, NUMBER, 0, 0),
        is(libc::SYS_brk, 7, 0),
        is(libc::SYS_mremap, 6, 0),
        is(libc::SYS_mmap, 0, 4),
        instruction(LOAD, SECOND_HIGH, 0, 0),
        instruction(EQUAL, 0, 0, 3),
        instruction(LOAD, SECOND_LOW, 0, 0),
        instruction(AT_LEAST, LEAST_BYTES as u32, 1, 0),
        instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
        instruction(RETURN, libc::SECCOMP_RET_TRACE, 0, 0),
    ]
}

/// From now on these calls of the calling thread, and of what it starts, stop it for whoever traces it. Without a tracer they
/// fail, so it must not outlive that.
///
/// # Errors
/// What the system says.
pub fn stop_at_births() -> io::Result<()> {
    let mut filter = filter();
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let install = || {
        // SAFETY: program and filter live through the call, which copies them.
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) == 0 }
    };
    if install() {
        return Ok(());
    }
    // Who is not root may do that only if nothing it starts can become more than it is, which a traced program cannot anyway.
    // SAFETY: takes plain numbers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0 && install() {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}
