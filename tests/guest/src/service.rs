// SPDX-License-Identifier: GPL-2.0-only
//! As a service: what the service manager is told, and the rights that the unit leaves.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use tandem_guest_tests::{Scx, program, state, wait_until};

use crate::agent::PAGES;
use crate::trial;
use crate::visitor::Visitor;

const UNIT: &str = include_str!("../../../packaging/scx_tandem.service");
const SOCKET: &str = "/tmp/notify";
const FILE: &str = "/tmp/service.toml";
const REPORT: &str = "/tmp/service.json";
const PATIENCE: Duration = Duration::from_secs(120);
/// As the kernel numbers them, up to the last one it has today.
const CAPABILITIES: [(&str, u64); 6] = [
    ("CAP_BPF", 39),
    ("CAP_DAC_READ_SEARCH", 2),
    ("CAP_PERFMON", 38),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_SYS_NICE", 23),
    ("CAP_SYS_PTRACE", 19),
];
const ALL_CAPABILITIES: u64 = 41;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("the_service_manager_is_told", the_service_manager_is_told),
        trial("the_rights_of_the_unit_suffice", the_rights_of_the_unit_suffice),
    ]
}

fn the_service_manager_is_told() {
    let _ = std::fs::remove_file(SOCKET);
    let socket = UnixDatagram::bind(SOCKET).expect("/tmp can be written");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let wait_for = |expected: &str| {
        let mut bytes = [0; 4096];
        let mut said = Vec::new();
        let start = Instant::now();
        while !said.iter().any(|line: &String| line.starts_with(expected)) {
            assert!(start.elapsed() < PATIENCE, "{expected}: not told, only {said:?}");
            let count = socket.recv(&mut bytes).unwrap_or_else(|error| panic!("{expected}: {error}, only {said:?}"));
            said.extend(String::from_utf8_lossy(&bytes[..count]).lines().map(str::to_owned));
        }
        said
    };
    let configure = |text: &str| {
        fs::write(FILE, text).expect("/tmp can be written");
        fs::set_permissions(FILE, Permissions::from_mode(0o644)).expect("the file is ours");
    };
    let observing = "dry_run = true\nmanage = ['pid=1']\n";
    configure(observing);
    let scx = Scx::start_as(program().args(["--config", FILE]).env("NOTIFY_SOCKET", SOCKET));
    let said = wait_for("READY=1");
    assert!(!said.contains(&"WATCHDOG=1".to_owned()), "ready comes first: {said:?}");
    assert_eq!(state(), "enabled", "ready means loaded");
    assert!(said.contains(&"STATUS=observing (dry run) pid=1".to_owned()), "{said:?}");
    wait_for("WATCHDOG=1");
    configure("page_rat = 1\n");
    scx.reload();
    wait_for("STATUS=observing (dry run) pid=1; a new configuration was refused: /tmp/service.toml:1: \"page_rat\": ");
    configure(observing);
    scx.reload();
    let said = wait_for("READY=1");
    assert!(said.contains(&"STATUS=observing (dry run) pid=1".to_owned()), "{said:?}");
    assert!(scx.stop().success());
    wait_for("STOPPING=1");
}

/// The capabilities that the unit leaves, as bits.
fn left_by_the_unit() -> u64 {
    let line = UNIT.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("the unit has them");
    let number = |name: &str| {
        let found = CAPABILITIES.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("{name}: its number is not known here")).1
    };
    line.split_whitespace().map(|name| 1 << number(name)).sum()
}

/// Sampling, loading and moving: memory of somebody else's thread comes to it, and its huge pages are known as such.
fn the_rights_of_the_unit_suffice() {
    let left = left_by_the_unit();
    let mut visitor = Visitor::start_as_nobody();
    let mut command = program();
    let manage = format!("pid={}", visitor.pid());
    command.args(["--interval-ms", "1000", "--sampler-budget", "25", "--mover-budget", "50", "--manage", &manage]);
    command.args(["--report", REPORT]);
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(move || {
            for capability in (0..ALL_CAPABILITIES).filter(|capability| left & (1 << capability) == 0) {
                if libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let scx = Scx::start_as(&mut command);
    wait_until("the memory comes to the thread", || visitor.near() >= PAGES / 10 * 9);
    assert!(!scx.log().contains("without CAP_"), "{}", scx.log());
    let report = scx.stop_and_report(Path::new(REPORT));
    let tables = &report["sampler"]["tables"];
    assert_eq!(tables["unknown_units"], 0, "{tables}");
    assert_eq!(state(), "disabled");
}
