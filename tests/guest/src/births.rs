// SPDX-License-Identifier: GPL-2.0-only
//! `tandem run --tuned` with memory that is bound as it is allocated.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use libtest_mimic::Trial;

use crate::trial;

/// As the first argument, makes this program the one that is run.
pub const PROGRAM: &str = "tell-homes";

const PAGE_BYTES: usize = 4096;
/// An even number of pages, more than what is left where it is touched first.
const BYTES: usize = 4 << 20;

/// Memory that the program has from its start.
static mut ZEROS: [u8; BYTES] = [0; BYTES];

/// One thread on each of two nodes, and pages with them.
const TUNED: &str = r#"
version = 2
notes = []
measured = []
[subject]
program = "/bin/guest-tests"
program_sha256 = ""
arguments = ["tell-homes"]
machine = []
[configuration]
threads = 2
thread_nodes = 2
thread_placement = "contiguous"
page_nodes = 2
page_placement = "dataset"
"#;

pub fn tests() -> Vec<Trial> {
    vec![trial("memory_is_on_its_nodes_wherever_it_is", memory_is_on_its_nodes_wherever_it_is)]
}

/// The program: its one thread touches memory of each kind, and tells by kind the runs of pages on one node.
pub fn tell_homes() {
    let map = |protection| {
        // SAFETY: asks for memory of its own, wherever it may be.
        let memory = unsafe {
            libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(memory, libc::MAP_FAILED);
        memory.cast::<u8>()
    };
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: takes a plain number; nothing else in this program moves the end of its heap meanwhile.
    let heap = unsafe { libc::sbrk(BYTES as isize) }.cast::<u8>();
    let kinds = [("mapped", map(both)), ("again", map(both)), ("heap", heap), ("zeros", (&raw mut ZEROS).cast())];
    for (kind, begin) in kinds {
        let first = begin.align_offset(PAGE_BYTES);
        let pages: Vec<*mut u8> = (first..)
            .step_by(PAGE_BYTES)
            .take_while(|at| at + PAGE_BYTES <= BYTES)
            .map(|at| begin.wrapping_add(at))
            .collect();
        for &page in &pages {
            // SAFETY: a page of this program's own memory, which nobody else uses.
            unsafe { page.write_volatile(1) };
        }
        let mut runs: Vec<(i32, usize)> = Vec::new();
        for home in homes(&pages) {
            match runs.last_mut() {
                Some(last) if last.0 == home => last.1 += 1,
                _ => runs.push((home, 1)),
            }
        }
        let runs: Vec<String> = runs.iter().map(|(node, pages)| format!("{pages} on {node}")).collect();
        println!("{kind}: {}", runs.join(", "));
    }
}

/// The node of each of these pages.
fn homes(pages: &[*mut u8]) -> Vec<i32> {
    let mut homes = vec![-1; pages.len()];
    let nowhere = std::ptr::null::<i32>();
    // SAFETY: both lists are as long as it is told, and live through the call, which moves nothing without a list of nodes.
    let result =
        unsafe { libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), nowhere, homes.as_mut_ptr(), 0) };
    assert_eq!(result, 0, "move_pages: {}", std::io::Error::last_os_error());
    homes
}

fn told(addresses_vary: bool) -> String {
    let file = "/tmp/homes.tandem.toml";
    std::fs::write(file, TUNED).expect("there is room in /tmp");
    let mut command = Command::new("/bin/tandem");
    command.args(["run", "--tuned", file, "--", "/bin/guest-tests", PROGRAM]);
    let persona = if addresses_vary { 0 } else { libc::ADDR_NO_RANDOMIZE };
    // SAFETY: between fork and exec only a system call is made.
    unsafe {
        command.pre_exec(move || {
            if libc::personality(persona as libc::c_ulong) < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    let output = command.output().expect("tandem is in the guest");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn memory_is_on_its_nodes_wherever_it_is() {
    let told: Vec<String> = [true, true, false].map(told).to_vec();
    assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
    let mut both = Vec::new();
    for line in told[0].lines() {
        let (kind, runs) = line.split_once(": ").expect("kind: runs");
        let runs: Vec<(usize, u32)> = runs
            .split(", ")
            .map(|run| run.split_once(" on ").expect("pages on node"))
            .map(|(pages, node)| (pages.parse().expect("a number"), node.parse().expect("a number")))
            .collect();
        let [(some, one), (others, other)] = runs[..] else { panic!("{kind} is in two parts: {told:?}") };
        // Its begin or end may be within a page.
        assert!(some.abs_diff(others) <= 1 && some + others + 1 >= BYTES / PAGE_BYTES, "{kind}: {told:?}");
        both.push((one, other));
    }
    assert_eq!(both.len(), 4, "{told:?}");
    assert!(both.iter().all(|nodes| *nodes == both[0] && nodes.0 != nodes.1), "{told:?}");
}
