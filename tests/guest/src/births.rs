// SPDX-License-Identifier: GPL-2.0-only
//! `tandem run --tuned` with memory that is bound as it is allocated.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use libtest_mimic::Trial;
use tandem_guest_tests::homes_in_words;

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

/// As it is, but for the main thread, which is on a node.
fn main_alone(node: u32) -> String {
    format!("\n[first_touch]\nremedy = \"main-thread\"\nnode = {node}\ngroup = []\n")
}

/// Its static array by a map, of which the pages are told.
const MAP: &str = r#"
[page_map]
sampler = "made up"
accesses = 1
[[page_map.allocation]]
site = "static"
order = 0
"#;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("memory_is_on_its_nodes_wherever_it_is", memory_is_on_its_nodes_wherever_it_is),
        trial("a_main_thread_is_bound_before_it_initialises", a_main_thread_is_bound_before_it_initialises),
        trial(
            "a_map_places_pages_and_what_it_does_not_fit_is_told",
            a_map_places_pages_and_what_it_does_not_fit_is_told,
        ),
    ]
}

/// The kernel's ids of the first two nodes with CPUs.
fn two_nodes() -> [u32; 2] {
    let topology = tandem_machine::read_running().expect("the guest has a topology").topology;
    let ids: Vec<u32> = topology.nodes_with_cpus().map(|node| topology.nodes[node].id.0).collect();
    [ids[0], ids[1]]
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
        println!("{kind}: {}", homes_in_words(&pages));
    }
}

/// What the program tells under this result, and what `tandem` says.
fn told_under(result: &str) -> (String, String) {
    let file = "/tmp/under.tandem.toml";
    std::fs::write(file, result).expect("there is room in /tmp");
    let mut command = Command::new("/bin/tandem");
    let output = command.args(["run", "--tuned", file, "--", "/bin/guest-tests", PROGRAM]).output();
    let output = output.expect("tandem is in the guest");
    assert!(output.status.success(), "{output:?}");
    let [told, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (told, said)
}

fn a_main_thread_is_bound_before_it_initialises() {
    let (head, _) = TUNED.split_once("[configuration]").expect("it has one");
    let [_, node] = two_nodes();
    let under = |node: u32| told_under(&format!("{}{}", head.replace("version = 2", "version = 4"), main_alone(node)));
    let (told, said) = under(node);
    assert!(said.contains(&format!("with its main thread on node {node} at first")), "{said}");
    let on_one = |line: &str| line.ends_with(&format!(" on {node}")) && !line.contains(',');
    assert!(told.lines().count() == 4 && told.lines().all(on_one), "{told}");
    let (_, said) = under(99);
    assert!(said.contains("node 99 has no CPUs here"), "{said}");
}

fn a_map_places_pages_and_what_it_does_not_fit_is_told() {
    let result = TUNED.replace("version = 2", "version = 4").replace("dataset", "locality");
    let with = |pages: u64, runs: &str| told_under(&format!("{result}{MAP}pages = {pages}\nruns = \"{runs}\"\n"));
    let (_, said) = with(1, &format!("0-0 on {}", two_nodes()[0]));
    let has = said.split("number 0 at static has ").nth(1).unwrap_or_else(|| panic!("{said}"));
    let pages: u64 = has.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{said}"));
    assert!(said.contains("0 of 1 pages are bound by the map") && has.contains("it had 1"), "{said}");
    // The main thread is on one of the nodes: of this array a part is where it would not be.
    let [one, other] = two_nodes();
    let (told, said) = with(pages, &format!("0-99 on {other}, 100-299 on {one}, 300-{} on {other}", pages - 1));
    let zeros = told.lines().find(|line| line.starts_with("zeros: ")).unwrap_or_default();
    assert!(zeros.contains(&format!(" on {other}, 200 on {one}, ")), "{told}");
    assert!(!said.contains("not those that were profiled"), "{said}");
    let (_, said) = with(pages, "0-99 on 99");
    assert!(said.contains("its map of pages names nodes that are not here"), "{said}");
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
