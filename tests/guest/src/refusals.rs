// SPDX-License-Identifier: GPL-2.0-only
//! The wrong place: one sentence that says what is wrong and what to do, a failing exit code, nothing changed.

use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;

use libtest_mimic::Trial;
use scx_utils::{compat, scx_ops_attach, scx_ops_load, scx_ops_open};
use serde_json::Value;
use tandem_bpf::FLAGS;
use tandem_bpf::skeleton::TandemSkelBuilder;
use tandem_guest_tests::{Scx, enable_seq, program, scx_tandem_fails, state};

use crate::trial;

/// Exit code for what waiting does not mend, after which the unit starts nothing anew.
pub const LASTING: Option<i32> = Some(78);

pub fn tests() -> Vec<Trial> {
    vec![
        trial("refuses_to_run_as_somebody_else", refuses_to_run_as_somebody_else),
        trial("refuses_beside_another_scheduler", refuses_beside_another_scheduler),
        trial("refuses_without_type_information", refuses_without_type_information),
        trial("refuses_without_sched_ext", refuses_without_sched_ext),
        trial("refuses_unknown_policies", refuses_unknown_policies),
        trial("refuses_a_report_that_cannot_be_written", refuses_a_report_that_cannot_be_written),
        trial("samplers_say_what_somebody_else_lacks", samplers_say_what_somebody_else_lacks),
        trial("refuses_samplers_that_do_not_work_here", refuses_samplers_that_do_not_work_here),
        trial("takes_the_best_sampler_that_works", takes_the_best_sampler_that_works),
    ]
}

/// What can be seen on a machine with one node only.
pub fn on_one_node() -> Vec<Trial> {
    vec![trial("refuses_a_machine_with_one_node", refuses_a_machine_with_one_node)]
}

fn refuses_a_machine_with_one_node() {
    let failed = scx_tandem_fails(&mut program());
    assert!(failed.message.contains("one NUMA node only"), "{}", failed.message);
    assert_eq!(failed.code, LASTING);
    assert_eq!(state(), "disabled");
}

fn refuses_to_run_as_somebody_else() {
    let failed = scx_tandem_fails(program().uid(65534));
    assert!(failed.message.contains("run scx_tandem as root"), "{}", failed.message);
    assert_eq!(failed.code, LASTING);
}

fn samplers_say_what_somebody_else_lacks() {
    let mut doctor = Command::new("/bin/tandem");
    let said = doctor.args(["doctor", "--json"]).uid(65534).gid(65534).output().expect("tandem is in the guest");
    let found: Value = serde_json::from_slice(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    let samplers = found["samplers"]["samplers"].as_array().or_else(|| found["samplers"].as_array());
    let samplers = samplers.unwrap_or_else(|| panic!("{found}"));
    for (name, remedy) in
        [("lookahead", "run as root or with CAP_PERFMON, or set"), ("fault", "run as root or with CAP_PERFMON")]
    {
        let sampler = samplers.iter().find(|sampler| sampler["name"] == name).unwrap_or_else(|| panic!("{found}"));
        let why_not = sampler["why_not"].as_str().unwrap_or_default();
        assert!(sampler["works"] == false && why_not.contains("Permission denied"), "{sampler}");
        assert!(why_not.contains(remedy), "{sampler}");
    }
}

/// A scheduler of another name, loaded by this process and gone with the link.
fn refuses_beside_another_scheduler() {
    let mut storage = MaybeUninit::uninit();
    let load = || -> anyhow::Result<()> {
        let mut open = scx_ops_open!(TandemSkelBuilder::default(), &mut storage, tandem_ops, None)?;
        let name = &mut open.struct_ops.tandem_ops_mut().name;
        for (to, from) in name.iter_mut().zip(b"other\0") {
            *to = *from as i8;
        }
        for flag in FLAGS {
            open.struct_ops.tandem_ops_mut().flags |= compat::read_enum("scx_ops_flags", flag)?;
        }
        let rodata = open.maps.rodata_data.as_mut().expect("constants");
        rodata.nr_nodes = 1;
        rodata.nr_cpus = 1;
        rodata.node_nr_queues[0] = 1;
        let mut skel = scx_ops_load!(open, tandem_ops, uei)?;
        let _link = scx_ops_attach!(skel, tandem_ops)?;
        let failed = scx_tandem_fails(&mut program());
        assert!(failed.message.contains("another sched_ext scheduler (other) is loaded"), "{}", failed.message);
        assert_eq!(failed.code, Some(1), "that one may go");
        let failed = scx_tandem_fails(program().arg("--unload"));
        assert!(failed.message.contains("(other) is loaded, which is not scx_tandem's"), "{}", failed.message);
        assert_eq!(state(), "enabled", "the other scheduler is left alone");
        Ok(())
    };
    let mut load = load;
    load().expect("the other scheduler loads");
    tandem_guest_tests::wait_until("the other scheduler is gone", || state() == "disabled");
}

/// Runs scx_tandem where `path` is covered by an empty file system.
fn with_covered(path: &'static str) -> String {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &format!("mount -t tmpfs cover {path} && /bin/scx_tandem; code=$?; umount {path}; exit $code")]);
    scx_tandem_fails(&mut command).message
}

fn refuses_without_type_information() {
    let message = with_covered("/sys/kernel/btf");
    assert!(message.contains("CONFIG_DEBUG_INFO_BTF"), "{message}");
}

fn refuses_without_sched_ext() {
    let message = with_covered("/sys/kernel");
    assert!(message.contains("no sched_ext"), "{message}");
}

fn refuses_unknown_policies() {
    for (arguments, expected) in [
        (["--thread-policy", "smb"], "smb"),
        (["--policy", "sma"], "THREAD+PAGE"),
        (["--parameter", "tandem.erors=1"], "erors"),
        (["--parameter", "tandem.errors=seven"], "seven"),
        (["--interval-ms", "1"], "100"),
    ] {
        let done = program().args(arguments).output().expect("scx_tandem is in the guest");
        let message = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && message.contains(expected), "{message}");
        assert_eq!(state(), "disabled");
    }
}

fn refuses_a_report_that_cannot_be_written() {
    let loads = enable_seq();
    for (path, code) in [("/nowhere/report.json", Some(1)), ("/tmp", LASTING)] {
        let failed = scx_tandem_fails(program().args(["--report", path]));
        assert!(failed.message.contains(&format!("the report {path} cannot be written: ")), "{}", failed.message);
        assert_eq!((failed.code, state().as_str()), (code, "disabled"));
    }
    assert_eq!(enable_seq(), loads, "nothing was loaded meanwhile");
}

fn refuses_samplers_that_do_not_work_here() {
    let loads = enable_seq();
    for (sampler, expected) in [("pmu", "has no PMU"), ("device", "vm/lab.py run --timing")] {
        let failed = scx_tandem_fails(program().args(["--sampler", sampler]));
        let named = format!("the sampler {sampler} cannot be used");
        assert!(failed.message.contains(&named) && failed.message.contains(expected), "{}", failed.message);
        assert_eq!((failed.code, state().as_str()), (Some(1), "disabled"));
    }
    for (arguments, expected, code) in [
        (&["--counters"][..], "hardware counters cannot be used: ", Some(1)),
        (&["--calibration", "/nowhere.toml"], "/nowhere.toml: cannot be read", LASTING),
    ] {
        let failed = scx_tandem_fails(program().args(arguments));
        assert!(failed.message.contains(expected), "{}", failed.message);
        assert_eq!((failed.code, state().as_str()), (code, "disabled"));
    }
    assert_eq!(enable_seq(), loads, "nothing was loaded meanwhile");
}

fn takes_the_best_sampler_that_works() {
    let scx = Scx::start(&["--dry-run", "--sampler", "auto"]);
    let log = scx.log();
    let told = log.lines().filter(|line| line.contains("sampling with lookahead, since better samplers cannot"));
    assert_eq!(told.filter(|line| line.contains("has no PMU")).count(), 1, "{log}");
    assert!(scx.stop().success());
}
