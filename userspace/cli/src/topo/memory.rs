// SPDX-License-Identifier: GPL-2.0-only
//! Memory of one node, and how fast CPUs get at it.
//!
//! Latency is that of a walk along pointers, whose order has no pattern that hardware could foresee: each load must wait for the one
//! before. Bandwidth is that of plain reading, line after line, by several CPUs at once.

use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use procfs::process::{MMPermissions, Process};
use tandem_policies::model::{CpuId, NodeId};

const LINE_BYTES: usize = 64;
const WORDS_PER_LINE: usize = LINE_BYTES / size_of::<u64>();
/// Lines between looks at the clock.
const PART: usize = 4096;
/// Lines between two that are read one after the other in [`Buffer::scattered_lines_per_s`]: in another row of DRAM each time
/// (rows have 8 KiB), and odd, so that it comes to every line.
const SCATTERED: usize = 129;
/// Loads in a row without a loop's own instructions between them.
const IN_A_ROW: usize = 16;
/// Nodes that a memory policy can name.
const MOST_NODES: usize = 1024;

/// Memory of one node.
pub struct Buffer {
    start: *mut u64,
    bytes: usize,
    /// The line at which the last walk ended, as an address: the next goes on there, since what it has just seen is in caches.
    at: AtomicU64,
}

// SAFETY: the mapping is the buffer's own, and threads only read it, by volatile loads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `bytes` (a power of two) of memory of `node`, all of it there, in huge pages if there are any, and with all lines linked to
    /// one ring.
    ///
    /// # Errors
    /// The node has not so much.
    pub fn on(node: NodeId, bytes: u64) -> io::Result<Self> {
        let bytes = bytes as usize;
        let (protection, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, nowhere in particular.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut buffer = Self { start: start.cast(), bytes, at: AtomicU64::new(start as u64) };
        let mut nodes = [0_u64; MOST_NODES / 64];
        if let Some(word) = nodes.get_mut(node.0 as usize / 64) {
            *word = 1 << (node.0 % 64);
        }
        // SAFETY: a policy for the mapping just made; the set of nodes lives through the call.
        let bound =
            unsafe { libc::syscall(libc::SYS_mbind, start, bytes, libc::MPOL_BIND, nodes.as_ptr(), MOST_NODES, 0) };
        // A kernel without NUMA has no policies, and one node.
        if bound != 0 && io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS) {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: advice on the mapping just made; a kernel without huge pages refuses it, which `in_huge_pages` sees.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
        // SAFETY: as above.
        if unsafe { libc::madvise(start, bytes, libc::MADV_POPULATE_WRITE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        buffer.link();
        Ok(buffer)
    }

    fn lines(&self) -> usize {
        self.bytes / LINE_BYTES
    }

    fn word(&self, line: usize) -> *mut u64 {
        assert!(line < self.lines(), "inside the mapping");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.start.add(line * WORDS_PER_LINE) }
    }

    /// Links all lines to one ring in an order without pattern (a linear congruential generator of full period).
    fn link(&mut self) {
        let mut line = 0;
        for _ in 0..self.lines() {
            let next = (line * 1_664_525 + 1_013_904_223) % self.lines();
            // SAFETY: the word is inside the mapping, and nobody else has the buffer.
            unsafe { self.word(line).write(self.word(next) as u64) };
            line = next;
        }
    }

    /// Whether (nearly) all of it is in huge pages, so that table walks are no part of a latency.
    pub fn in_huge_pages(&self) -> Result<bool> {
        let own = (self.start as u64, self.start as u64 + self.bytes as u64);
        let mut huge_bytes = 0;
        for map in Process::myself()?.smaps()?.0 {
            if map.perms.contains(MMPermissions::WRITE) && map.address.0 < own.1 && own.0 < map.address.1 {
                huge_bytes += map.extension.map.get("AnonHugePages").copied().unwrap_or(0);
            }
        }
        Ok(huge_bytes >= self.bytes as u64 / 10 * 9)
    }

    /// Nanoseconds per line of a walk from `cpu` along the links, for `length`: the median of parts, so that what the kernel
    /// does in some of them is left out.
    ///
    /// # Errors
    /// The CPU cannot be used.
    pub fn walk_ns(&self, cpu: CpuId, length: Duration) -> Result<f64> {
        let mut parts = on_cpus(&[cpu], |_| {
            let (end, mut parts) = (Instant::now() + length, Vec::new());
            let mut at = self.at.load(Ordering::Relaxed);
            loop {
                let begun = Instant::now();
                for _ in 0..PART / IN_A_ROW {
                    for _ in 0..IN_A_ROW {
                        // SAFETY: every link points to a linked line of the mapping.
                        at = unsafe { (at as *const u64).read_volatile() };
                    }
                }
                parts.push(begun.elapsed().as_nanos() as f64 / PART as f64);
                if Instant::now() >= end {
                    self.at.store(at, Ordering::Relaxed);
                    return parts;
                }
            }
        })?
        .remove(0);
        parts.sort_by(f64::total_cmp);
        Ok(parts[parts.len() / 2])
    }

    /// MB per second that all of `cpus` together read, each the whole buffer again and again from its own place on: what one
    /// has read is long out of the caches when the next comes there.
    ///
    /// # Errors
    /// A CPU cannot be used.
    pub fn read_mb_s(&self, cpus: &[CpuId], length: Duration) -> Result<f64> {
        let parts = self.lines() / PART;
        let rates = on_cpus(cpus, |thread| {
            let (begun, first, mut done) = (Instant::now(), parts * thread / cpus.len(), 0);
            while begun.elapsed() < length {
                self.read((first + done / PART) % parts * PART);
                done += PART;
            }
            (done * LINE_BYTES) as f64 / 1e6 / begun.elapsed().as_secs_f64()
        })?;
        Ok(rates.iter().sum())
    }

    /// Lines per second that all of `cpus` together read, each line from another row of DRAM than the one before, which is the
    /// worst that programs ask of memory.
    ///
    /// # Errors
    /// A CPU cannot be used.
    pub fn scattered_lines_per_s(&self, cpus: &[CpuId], length: Duration) -> Result<f64> {
        let rates = on_cpus(cpus, |thread| {
            let (begun, first, mut done) = (Instant::now(), self.lines() / cpus.len() * thread, 0);
            while begun.elapsed() < length {
                for line in 0..PART {
                    let at = (first + (done + line) * SCATTERED) % self.lines();
                    // SAFETY: the line is one of the mapping's.
                    unsafe { self.word(at).read_volatile() };
                }
                done += PART;
            }
            done as f64 / begun.elapsed().as_secs_f64()
        })?;
        Ok(rates.iter().sum())
    }

    /// Reads a part of lines from `first` on.
    fn read(&self, first: usize) {
        assert!(first + PART <= self.lines(), "inside the mapping");
        let from = self.word(first);
        for row in 0..PART / IN_A_ROW {
            for line in 0..IN_A_ROW {
                // SAFETY: between the first and the last line of the part, which are inside the mapping as just checked.
                unsafe { from.add((row * IN_A_ROW + line) * WORDS_PER_LINE).read_volatile() };
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// What a thread on each of `cpus` returns, each with its number. All begin at the same time.
pub fn on_cpus<T: Send>(cpus: &[CpuId], work: impl Fn(usize) -> T + Sync) -> Result<Vec<T>> {
    let all_are_there = Barrier::new(cpus.len());
    let (work, all_are_there) = (&work, &all_are_there);
    let thread = move |(number, &cpu): (usize, &CpuId)| {
        move || {
            let pinned = pin(cpu);
            all_are_there.wait();
            pinned.map(|()| work(number))
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = cpus.iter().enumerate().map(|at| scope.spawn(thread(at))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

/// Binds the calling thread to `cpu`.
fn pin(cpu: CpuId) -> Result<()> {
    // SAFETY: all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    ensure!((cpu.0 as usize) < libc::CPU_SETSIZE as usize, "CPU {} cannot be named: its number is too high", cpu.0);
    // SAFETY: the CPU is within the set, as just checked.
    unsafe { libc::CPU_SET(cpu.0 as usize, &mut set) };
    // SAFETY: the kernel reads the set; 0 is this thread.
    let bound = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    let refused = || format!("CPU {} cannot be used: measure without taskset or a cpuset", cpu.0);
    if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()).with_context(refused) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_node() -> (NodeId, CpuId) {
        let topology = tandem_machine::read_running().unwrap().topology;
        let node = topology.nodes.values().find(|node| !node.cpus.is_empty() && node.memory_pages > 0).unwrap();
        (node.id, node.cpus[0])
    }

    #[test]
    fn the_walk_comes_to_every_line_before_it_comes_back() {
        let buffer = Buffer::on(first_node().0, 1 << 20).unwrap();
        let (start, mut at, mut seen) = (buffer.start as u64, buffer.start as u64, 0);
        loop {
            // SAFETY: a link, as every line has one.
            at = unsafe { *(at as *const u64) };
            seen += 1;
            assert_eq!((at - start) % LINE_BYTES as u64, 0);
            if at == start {
                break;
            }
        }
        assert_eq!(seen, buffer.lines());
    }

    #[test]
    fn a_walk_goes_on_where_the_last_one_ended() {
        let (node, cpu) = first_node();
        let buffer = Buffer::on(node, 1 << 20).unwrap();
        assert!(buffer.walk_ns(cpu, Duration::from_nanos(1)).unwrap() > 0.0);
        let at = buffer.at.load(Ordering::Relaxed);
        let mut expected = buffer.start as u64;
        for _ in 0..PART {
            // SAFETY: a link, as every line has one.
            expected = unsafe { *(expected as *const u64) };
        }
        assert_eq!(at, expected);
    }

    #[test]
    fn several_cpus_read_at_once() {
        let (node, cpu) = first_node();
        let buffer = Buffer::on(node, 1 << 20).unwrap();
        assert!(buffer.read_mb_s(&[cpu, cpu], Duration::from_millis(1)).unwrap() > 0.0);
        assert!(buffer.scattered_lines_per_s(&[cpu, cpu], Duration::from_millis(1)).unwrap() > 0.0);
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused_by_its_number() {
        let buffer = Buffer::on(first_node().0, 1 << 20).unwrap();
        let error = buffer.walk_ns(CpuId(900), Duration::from_millis(1)).unwrap_err().to_string();
        assert!(error.contains("CPU 900"), "{error}");
        assert!(buffer.walk_ns(CpuId(5000), Duration::from_millis(1)).is_err());
    }
}
