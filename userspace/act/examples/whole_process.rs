// SPDX-License-Identifier: GPL-2.0-only
//! What a page costs if a whole process goes to another node: by move_pages, as the mover does it, and by migrate_pages.
//!
//! A child of this program has memory on one node; the program moves all of it to and fro, in turns by either call, and prints
//! CPU time per page, medians of all turns. Root is needed, and two nodes with memory.
//!
//! usage: whole_process [MIB] [TURNS]

use std::io::{Error, Read as _, Write as _};
use std::os::fd::FromRawFd as _;
use std::time::{Duration, Instant};

use tandem_act::{LinuxMovePages, MovePages as _, UNWRITTEN};
use tandem_policies::model::{NodeId, PAGE_BYTES, ProcessId};

/// Pages of one call, as the mover's.
const BATCH_PAGES: usize = 512;

/// A process with memory that it touched and does nothing with.
struct Child {
    process: libc::pid_t,
    start: u64,
    pages: usize,
}

impl Child {
    /// Of huge pages if there are.
    fn new(pages: usize, huge: bool) -> Self {
        let mut ends = [0; 2];
        // SAFETY: the kernel writes two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0, "{}", Error::last_os_error());
        // SAFETY: both are new, and owned from here on.
        let [mut told, mut telling] = ends.map(|end| unsafe { std::fs::File::from_raw_fd(end) });
        // SAFETY: the child maps and touches memory of its own, writes to its pipe and waits.
        let process = unsafe { libc::fork() };
        assert!(process >= 0, "{}", Error::last_os_error());
        if process == 0 {
            let start = touched(pages, huge);
            telling.write_all(&start.to_ne_bytes()).expect("the parent reads");
            loop {
                std::thread::sleep(Duration::from_secs(1000));
            }
        }
        drop(telling);
        let mut start = [0; 8];
        told.read_exact(&mut start).expect("the child tells");
        Self { process, start: u64::from_ne_bytes(start), pages }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: it is our child, and is waited for once.
        unsafe {
            libc::kill(self.process, libc::SIGKILL);
            libc::waitpid(self.process, std::ptr::null_mut(), 0);
        }
    }
}

/// New memory, aligned to huge pages, touched.
fn touched(pages: usize, huge: bool) -> u64 {
    let (huge_bytes, bytes) = (BATCH_PAGES * PAGE_BYTES as usize, pages * PAGE_BYTES as usize);
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping; the kernel chooses where.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes + huge_bytes, access, kind, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED, "{}", Error::last_os_error());
    let start = (start as usize).next_multiple_of(huge_bytes);
    let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: inside the mapping.
    unsafe { libc::madvise(start as *mut libc::c_void, bytes, advice) };
    for page in 0..pages {
        // SAFETY: inside the mapping.
        unsafe { ((start + page * PAGE_BYTES as usize) as *mut u8).write_volatile(1) };
    }
    start as u64
}

fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<usize>().expect("a number"));
    let (mib, turns) = (words.next().unwrap_or(64), words.next().unwrap_or(7));
    let nodes = memory_nodes();
    let [one, other] = nodes[..2] else { unreachable!("two are taken") };
    for huge in [false, true] {
        let child = Child::new((mib << 20) / PAGE_BYTES as usize, huge);
        move_pages(&child, one);
        let (mut by_page, mut whole) = (Vec::new(), Vec::new());
        for _ in 0..turns {
            by_page.push(timed(|| move_pages(&child, other)));
            by_page.push(timed(|| move_pages(&child, one)));
            whole.push(timed(|| migrate_pages(&child, one, other)));
            whole.push(timed(|| migrate_pages(&child, other, one)));
        }
        let [by_page, whole] = [by_page, whole].map(|times| median_us(times) / child.pages as f64);
        let what = if huge { "asked for huge pages" } else { "base pages" };
        println!(
            "{what}: {by_page:.3} us a page by move_pages, {whole:.3} by migrate_pages: ratio {:.3}",
            whole / by_page
        );
    }
}

fn memory_nodes() -> Vec<NodeId> {
    let topology = tandem_machine::read_running().expect("the machine has a topology").topology;
    let nodes: Vec<_> = topology.nodes.values().filter(|node| node.memory_pages > 0).map(|node| node.id).collect();
    assert!(nodes.len() >= 2, "two nodes with memory are needed");
    nodes
}

fn move_pages(child: &Child, to: NodeId) {
    let system = LinuxMovePages::default();
    let addresses: Vec<u64> = (0..child.pages as u64).map(|page| child.start + page * PAGE_BYTES).collect();
    for batch in addresses.chunks(BATCH_PAGES) {
        let mut status = vec![UNWRITTEN; batch.len()];
        system.call(ProcessId(child.process as u32), batch, Some(to), &mut status).result.expect("root may");
    }
    assert_on(child, to);
}

fn migrate_pages(child: &Child, from: NodeId, to: NodeId) {
    let [from, target] = [from, to].map(|node| [1_u64 << node.0, 0]);
    // SAFETY: both masks have 128 bits, of which the kernel reads 127.
    let left = unsafe { libc::syscall(libc::SYS_migrate_pages, child.process, 128, from.as_ptr(), target.as_ptr()) };
    assert!(left >= 0, "{}", Error::last_os_error());
    assert_on(child, to);
}

/// What was asked for was done.
fn assert_on(child: &Child, node: NodeId) {
    let addresses = [child.start, child.start + (child.pages as u64 - 1) * PAGE_BYTES];
    let mut status = [UNWRITTEN; 2];
    let asked = LinuxMovePages::default().call(ProcessId(child.process as u32), &addresses, None, &mut status);
    assert_eq!((asked.result, status), (Ok(0), [node.0 as i32; 2]));
}

fn timed(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

fn median_us(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}
