// SPDX-License-Identifier: GPL-2.0-only
//! Of which units memory is made: a cut through a large page would part what the kernel moves as one.
//!
//! Pages of 2 MiB are found by the PAGEMAP_SCAN ioctl of /proc/PID/pagemap (Linux 6.7), which looks at page tables. Units in
//! between (multi-size THP) are mapped as base pages; only the flags of their frames (/proc/kpageflags) show heads and
//! tails. Both are for root, or who may trace the process and has CAP_SYS_ADMIN.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use tandem_policies::model::{GroupId, PAGE_BYTES, ProcessId};

use crate::touches::MOST_PAGES;

/// `_IOWR('f', 16, struct pm_scan_arg)` (include/uapi/linux/fs.h).
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;
/// Category of PAGEMAP_SCAN: mapped by one entry of a page middle directory.
const PAGE_IS_HUGE: u64 = 1 << 6;
/// Bits of an entry of pagemap (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const FRAME_MASK: u64 = (1 << 55) - 1;
/// Bits of a word of /proc/kpageflags (include/uapi/linux/kernel-page-flags.h).
const COMPOUND_HEAD: u64 = 1 << 15;
const COMPOUND_TAIL: u64 = 1 << 16;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ScannedRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// The largest unit that memory of a process is made of between these addresses, in base pages.
///
/// # Errors
/// The process has ended, or one of the files may not be read.
pub fn largest_pages(process: ProcessId, bytes: &Range<u64>) -> io::Result<u64> {
    let pagemap = File::open(format!("/proc/{}/pagemap", process.0))?;
    match has_huge(&pagemap, bytes) {
        Ok(true) => return Ok(MOST_PAGES),
        // Before Linux 6.7: heads and tails show large pages too.
        Ok(false) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {}
        Err(error) => return Err(error),
    }
    let entries = words(&pagemap, bytes.start / PAGE_BYTES, ((bytes.end - bytes.start) / PAGE_BYTES) as usize)?;
    let frames: Vec<Option<u64>> =
        entries.iter().map(|entry| (entry & PRESENT != 0).then_some(entry & FRAME_MASK)).collect();
    if frames.contains(&Some(0)) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "frames are told to CAP_SYS_ADMIN only"));
    }
    let flags = File::open("/proc/kpageflags")?;
    let mut of_frames = vec![0; frames.len()];
    for run in runs(&frames) {
        let first = frames[run.start].unwrap_or_default();
        of_frames[run.clone()].copy_from_slice(&words(&flags, first, run.len())?);
    }
    Ok(largest_unit(&frames, &of_frames))
}

/// Which of these groups, of 2 MiB each, are one huge page; none of them where the kernel does not tell (before Linux 6.7).
///
/// # Errors
/// The process has ended, or its pagemap may not be read.
pub fn huge_groups(process: ProcessId, groups: &[GroupId]) -> io::Result<BTreeSet<GroupId>> {
    let mut huge = BTreeSet::new();
    if groups.is_empty() {
        return Ok(huge);
    }
    let pagemap = File::open(format!("/proc/{}/pagemap", process.0))?;
    for &group in groups {
        match has_huge(&pagemap, &(group.start..group.start + MOST_PAGES * PAGE_BYTES)) {
            Ok(true) => drop(huge.insert(group)),
            Ok(false) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(huge)
}

fn has_huge(pagemap: &File, bytes: &Range<u64>) -> io::Result<bool> {
    let mut found = [ScannedRegion::default()];
    let mut arguments = ScanArguments {
        size: size_of::<ScanArguments>() as u64,
        start: bytes.start,
        end: bytes.end,
        vec: found.as_mut_ptr() as u64,
        vec_len: found.len() as u64,
        max_pages: 1,
        category_mask: PAGE_IS_HUGE,
        return_mask: PAGE_IS_HUGE,
        ..Default::default()
    };
    // SAFETY: the kernel reads and writes `size` bytes of the arguments and at most `vec_len` elements of `found`.
    match unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) } {
        found if found >= 0 => Ok(found > 0),
        _ => Err(io::Error::last_os_error()),
    }
}

fn words(file: &File, first: u64, count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; count * 8];
    file.read_exact_at(&mut bytes, first * 8)?;
    Ok(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

/// Where frames follow each other.
fn runs(frames: &[Option<u64>]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, frame) in frames.iter().enumerate().filter_map(|(at, frame)| Some((at, (*frame)?))) {
        match runs.last_mut().filter(|run| run.end == at && frames[at - 1] == Some(frame.wrapping_sub(1))) {
            Some(run) => run.end = at + 1,
            None => runs.push(at..at + 1),
        }
    }
    runs
}

/// The longest head with its tails, rounded up to a power of two, of frames with these flags. Of a unit that begins before the
/// first of them, or is mapped in part, only what is there counts.
fn largest_unit(frames: &[Option<u64>], flags: &[u64]) -> u64 {
    let (mut largest, mut current) = (1_u64, 0_u64);
    for at in 0..frames.len() {
        let follows = at > 0 && frames[at].is_some() && frames[at - 1].map(|before| before + 1) == frames[at];
        current = match flags[at] {
            tail if tail & COMPOUND_TAIL != 0 && follows && current > 0 => current + 1,
            compound if compound & (COMPOUND_HEAD | COMPOUND_TAIL) != 0 => 1,
            _ => 0,
        };
        largest = largest.max(current);
    }
    largest.next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fresh_pages::FreshPages;
    use crate::testing::{large_pages, unseen, withheld};

    #[test]
    fn the_longest_head_with_its_tails_is_the_largest_unit() {
        let frames = |firsts: &[Option<u64>]| firsts.to_vec();
        let (head, tail) = (COMPOUND_HEAD, COMPOUND_TAIL);
        let four = frames(&[Some(8), Some(9), Some(10), Some(11), Some(20), None, Some(7)]);
        assert_eq!(largest_unit(&four, &[head, tail, tail, tail, 0, 0, 0]), 4);
        assert_eq!(largest_unit(&four, &[head, tail, head, tail, 0, 0, 0]), 2);
        assert_eq!(largest_unit(&four, &[0; 7]), 1);
        assert_eq!(largest_unit(&four, &[tail, tail, tail, tail, 0, 0, tail]), 4, "it begins before");
        assert_eq!(largest_unit(&four, &[head, tail, tail, 0, 0, 0, tail]), 4, "mapped in part");
        assert_eq!(runs(&four), [0..4, 4..5, 6..7]);
    }

    #[test]
    fn small_pages_are_units_of_one_and_large_ones_of_512() {
        let me = ProcessId(std::process::id());
        let small = FreshPages::small(64).unwrap();
        small.touch();
        match withheld(largest_pages(me, &(small.start()..small.start() + 64 * PAGE_BYTES))) {
            Ok(largest) => assert_eq!(largest, 1),
            Err(why) => return unseen(&why),
        }
        let Some(large) = large_pages(1024) else { return unseen("this kernel has no transparent huge pages") };
        let aligned = large.start().next_multiple_of(2 << 20);
        // SAFETY: the second half of 4 MiB of ours begins after that.
        unsafe { (aligned as *mut u8).write_volatile(1) };
        assert_eq!(largest_pages(me, &(aligned..aligned + (2 << 20))).unwrap(), MOST_PAGES);
        let groups = [small.start(), aligned].map(|start| GroupId { process: me, start });
        assert_eq!(huge_groups(me, &groups).unwrap(), BTreeSet::from([groups[1]]));
    }

    #[test]
    fn a_process_that_ended_is_an_error() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = ProcessId(child.id());
        child.wait().unwrap();
        assert!(largest_pages(process, &(0..4096)).is_err());
        assert!(huge_groups(process, &[GroupId { process, start: 0 }]).is_err());
    }
}
