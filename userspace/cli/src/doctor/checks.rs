// SPDX-License-Identifier: GPL-2.0-only
//! What scx_tandem needs of a machine, and what would get in its way, each with its remedy. Nothing is changed or loaded.

use std::fs;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tandem_machine::{Capabilities, Capability, RivalKind, parent_of, process_text};

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// scx_tandem works, but not as well as it could.
    Warning,
    /// scx_tandem refuses to run.
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// In words.
    pub found: String,
    /// What to do; none if nothing is to be done.
    pub remedy: Option<String>,
}

fn good(name: &'static str, found: impl Into<String>) -> Check {
    Check { name, verdict: Verdict::Good, found: found.into(), remedy: None }
}

fn not_good(name: &'static str, verdict: Verdict, found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { name, verdict, found: found.into(), remedy: Some(remedy.into()) }
}

/// Looks at everything below `root`, which is `/` but for tests.
pub fn checks(root: &Path) -> Vec<Check> {
    let mut checks =
        vec![kernel(root), type_information(root), rights(root), file_system(root), nodes(root), other_scheduler(root)];
    checks.extend(isolation(root));
    checks.push(numa_balancing(root));
    checks.extend(rivals(root));
    checks.push(zone_reclaim(root));
    checks
}

/// Whether scx_tandem refuses to run where these were made.
pub fn refused(checks: &[Check]) -> bool {
    checks.iter().any(|check| check.verdict == Verdict::Bad)
}

fn text(root: &Path, path: &str) -> Option<String> {
    Some(fs::read_to_string(root.join(path)).ok()?.trim().to_owned())
}

fn kernel(root: &Path) -> Check {
    let release = text(root, "proc/sys/kernel/osrelease").unwrap_or_else(|| "of unknown release".to_owned());
    let refused = |lacks: String| {
        let remedy = "boot a kernel of version 6.15 or later that is built with CONFIG_SCHED_CLASS_EXT";
        not_good("kernel", Verdict::Bad, format!("Linux {release} {lacks}"), remedy)
    };
    if !root.join("sys/kernel/sched_ext").exists() {
        return refused("has no sched_ext".to_owned());
    }
    // A kernel that describes nothing has a finding of its own.
    match tandem_machine::missing_functions(root).unwrap_or_default().first() {
        Some((function, meaning)) => refused(format!("has sched_ext, which lacks {function} ({meaning})")),
        None => good("kernel", format!("Linux {release} has sched_ext")),
    }
}

fn type_information(root: &Path) -> Check {
    match tandem_machine::missing_functions(root) {
        Ok(_) => good("type information", "the kernel describes its types (BTF)"),
        Err(error) => not_good(
            "type information",
            Verdict::Bad,
            format!("the kernel does not describe its types: /sys/kernel/btf/vmlinux: {error}"),
            "boot a kernel that is built with CONFIG_DEBUG_INFO_BTF",
        ),
    }
}

/// CPUs that the kernel's command line takes out of all scheduling domains.
fn isolation(root: &Path) -> Option<Check> {
    let command_line = text(root, "proc/cmdline")?;
    let given = tandem_machine::forbidding_isolation(&command_line)?;
    let found = format!("the kernel was booted with isolcpus={given}, with which it loads no sched_ext scheduler");
    Some(not_good("isolation", Verdict::Bad, found, "boot without it, and keep tasks off CPUs by cpusets"))
}

fn rights(root: &Path) -> Check {
    let status = text(root, "proc/self/status").unwrap_or_default();
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let held = Capabilities::read(root);
    let to_load = Capability::TO_LOAD.into_iter().filter(|&one| !held.has(one)).map(Capability::name);
    let to_load = to_load.collect::<Vec<_>>().join(", ");
    let to_place = Capability::TO_PLACE.into_iter().filter(|&(one, _)| !held.has(one));
    let to_place = to_place.map(|(one, without)| format!("{}: {without}", one.name())).collect::<Vec<_>>().join("; ");
    let without = |verdict, names: &str| {
        let remedy = "give the container or service these capabilities";
        not_good("rights", verdict, format!("root without {names}"), remedy)
    };
    if line("Uid:").and_then(|ids| ids.split_whitespace().nth(1)) != Some("0") {
        not_good("rights", Verdict::Bad, "not root", "run scx_tandem as root")
    } else if !to_load.is_empty() {
        without(Verdict::Bad, &to_load)
    } else if !to_place.is_empty() {
        without(Verdict::Warning, &to_place)
    } else {
        good("rights", "root, with all that is needed")
    }
}

/// Whether the sampler works that scx_tandem takes where nothing else is asked for, `why_not` as examined, and whether any other does.
pub fn sampler(name: &str, why_not: Option<&str>, another_works: bool) -> Check {
    match why_not {
        None => good("sampler", format!("{name}, the default, works")),
        Some(why_not) => not_good(
            "sampler",
            if another_works { Verdict::Warning } else { Verdict::Bad },
            format!("{name}, the default, does not work: {why_not}"),
            "choose one that works with --sampler, see below",
        ),
    }
}

fn file_system(root: &Path) -> Check {
    let mounts = text(root, "proc/mounts").unwrap_or_default();
    if mounts.lines().any(|line| line.split_whitespace().nth(1) == Some("/sys/fs/bpf")) {
        return good("BPF file system", "mounted");
    }
    not_good(
        "BPF file system",
        Verdict::Bad,
        "not mounted: a loaded scheduler has no place to stay",
        "mount -t bpf bpf /sys/fs/bpf",
    )
}

fn nodes(root: &Path) -> Check {
    let Ok(entries) = fs::read_dir(root.join("sys/devices/system/node")) else {
        return not_good(
            "nodes",
            Verdict::Bad,
            "the kernel shows no NUMA nodes",
            "boot a kernel that is built with CONFIG_NUMA, without numa=off",
        );
    };
    let lists = entries.flatten().filter(|entry| {
        entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_prefix("node"))
            .is_some_and(|id| id.parse::<u32>().is_ok())
    });
    let with_cpus = lists
        .filter(|entry| fs::read_to_string(entry.path().join("cpulist")).is_ok_and(|list| !list.trim().is_empty()));
    match with_cpus.count() {
        count @ (0 | 1) => not_good(
            "nodes",
            Verdict::Bad,
            format!("{count} node with CPUs: there is nothing to place"),
            "keep the stock scheduler; if the machine has several sockets, look in the firmware's settings for node interleaving, and turn it off",
        ),
        count => good("nodes", format!("{count} nodes with CPUs")),
    }
}

fn other_scheduler(root: &Path) -> Check {
    match text(root, "sys/kernel/sched_ext/root/ops") {
        None => good("other scheduler", "no sched_ext scheduler is loaded"),
        Some(name) if name == "tandem" || name.starts_with("tandem_") => {
            good("other scheduler", "scx_tandem is loaded")
        }
        Some(name) => not_good(
            "other scheduler",
            Verdict::Bad,
            format!("the sched_ext scheduler {name} is loaded"),
            "stop the program that loaded it",
        ),
    }
}

/// Under a sched_ext scheduler the kernel's balancing stops by itself, except for tasks that it does not take.
fn numa_balancing(root: &Path) -> Check {
    match text(root, "proc/sys/kernel/numa_balancing").as_deref() {
        Some("0") | None => good("numa_balancing", "off"),
        Some("1") => good(
            "numa_balancing",
            "on; it acts on tasks that scx_tandem does not take only: all of them with --partial",
        ),
        Some(mode) => not_good(
            "numa_balancing",
            Verdict::Warning,
            format!("in mode {mode}: the kernel demotes and promotes pages between tiers, also under scx_tandem"),
            "sysctl kernel.numa_balancing=0 if pages go back and forth",
        ),
    }
}

/// The process that started the scx_tandem that runs, whatever name that was started by; a loader of schedulers may have.
fn starter(root: &Path) -> Option<u32> {
    let processes = fs::read_dir(root.join("proc")).ok()?.flatten().map(|entry| entry.path());
    let is_ours = |path: &PathBuf| {
        fs::read_link(path.join("exe"))
            .is_ok_and(|program| program.file_name().is_some_and(|name| name == "scx_tandem"))
    };
    parent_of(&process_text(&processes.filter(|path| is_ours(path)).min()?.join("stat")).ok()?)
}

/// Who would work against it.
fn rivals(root: &Path) -> Vec<Check> {
    let found = tandem_machine::rivals(root, starter(root).unwrap_or_else(parent_id));
    let of = |kind, name, all_well: &str| {
        let of_kind = found.iter().filter(|rival| rival.kind == kind);
        let checks: Vec<Check> =
            of_kind.map(|rival| not_good(name, Verdict::Warning, &rival.found, &rival.remedy)).collect();
        if checks.is_empty() { vec![good(name, all_well)] } else { checks }
    };
    [
        of(RivalKind::Daemon, "rivals", "no program that is known to place threads or pages is running"),
        of(RivalKind::Damon, "DAMON", "no scheme that this user may see migrates pages"),
        of(RivalKind::Ksm, "KSM", "off"),
        // Promotion has a check of its own: see `numa_balancing`.
        of(RivalKind::Demotion, "demotion", "off, or there is no memory-only node"),
    ]
    .concat()
}

fn zone_reclaim(root: &Path) -> Check {
    match text(root, "proc/sys/vm/zone_reclaim_mode").as_deref() {
        Some("0") | None => good("zone_reclaim_mode", "off"),
        Some(mode) => not_good(
            "zone_reclaim_mode",
            Verdict::Warning,
            format!(
                "{mode}: a full node evicts pages before another node's memory is used, also for pages that are moved to it"
            ),
            "sysctl vm.zone_reclaim_mode=0",
        ),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    const FUNCTIONS: &str = "\0scx_bpf_pick_idle_cpu_node\0scx_bpf_get_idle_smtmask_node\0bpf_iter_scx_dsq_new\0";

    /// A machine on which all is well.
    fn machine() -> TempDir {
        let machine = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/sys/kernel/osrelease", "7.3.4\n"),
            ("proc/sys/kernel/numa_balancing", "0\n"),
            ("proc/sys/vm/zone_reclaim_mode", "0\n"),
            ("proc/self/status", "Name:\ttandem\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n"),
            ("proc/mounts", "bpf /sys/fs/bpf bpf rw 0 0\n"),
            ("proc/1/comm", "systemd\n"),
            ("sys/kernel/sched_ext/state", "disabled\n"),
            ("sys/kernel/btf/vmlinux", FUNCTIONS),
            ("proc/cmdline", "root=/dev/vda quiet\n"),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            ("sys/devices/system/node/node5/cpulist", "4-7\n"),
        ] {
            write(&machine, path, text);
        }
        machine
    }

    fn write(machine: &TempDir, path: &str, text: &str) {
        let path = machine.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn not_good_ones(machine: &TempDir) -> Vec<(&'static str, Verdict)> {
        let all = checks(machine.path());
        for check in &all {
            assert_eq!(
                check.verdict == Verdict::Good,
                check.remedy.is_none(),
                "a remedy for what is not good: {check:?}"
            );
        }
        let found: Vec<_> = all
            .iter()
            .filter(|check| check.verdict != Verdict::Good)
            .map(|check| (check.name, check.verdict))
            .collect();
        assert_eq!(refused(&all), found.iter().any(|&(_, verdict)| verdict == Verdict::Bad), "{found:?}");
        found
    }

    #[test]
    fn a_fit_machine_has_no_findings() {
        assert_eq!(not_good_ones(&machine()), []);
    }

    #[test]
    fn what_keeps_it_from_running_is_bad() {
        for (path, text, name) in [
            ("proc/self/status", "Uid:\t1000\t1000\t0\t0\nCapEff:\t0\n", "rights"),
            ("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\n", "rights"),
            ("sys/kernel/btf/vmlinux", "\0bpf_iter_scx_dsq_new\0", "kernel"),
            ("proc/cmdline", "isolcpus=3 quiet\n", "isolation"),
            ("proc/mounts", "sysfs /sys sysfs rw 0 0\n", "BPF file system"),
            ("sys/kernel/sched_ext/root/ops", "layered_1.1\n", "other scheduler"),
            ("sys/devices/system/node/node5/cpulist", "\n", "nodes"),
        ] {
            let machine = machine();
            write(&machine, path, text);
            assert_eq!(not_good_ones(&machine), [(name, Verdict::Bad)], "{path}");
        }
        for (path, name) in [("sys/kernel/sched_ext", "kernel"), ("sys/kernel/btf", "type information")] {
            let machine = machine();
            fs::remove_dir_all(machine.path().join(path)).unwrap();
            assert_eq!(not_good_ones(&machine), [(name, Verdict::Bad)], "{path}");
        }
    }

    #[test]
    fn a_default_sampler_that_does_not_work_keeps_it_from_running_unless_another_one_does() {
        assert_eq!(sampler("lookahead", None, false).verdict, Verdict::Good);
        let refused = sampler("lookahead", Some("this machine is no x86-64"), false);
        assert_eq!((refused.verdict, refused.found.ends_with("no x86-64")), (Verdict::Bad, true));
        assert_eq!(sampler("lookahead", Some("no x86-64"), true).verdict, Verdict::Warning);
    }

    #[test]
    fn a_loader_that_started_scx_tandem_is_no_rival() {
        let machine = machine();
        write(&machine, "proc/50/comm", "scx_loader\n");
        write(&machine, "proc/60/comm", "scx_other\n");
        write(&machine, "proc/60/stat", "60 (scx_other) S 50 60 60 0 -1\n");
        assert_eq!(not_good_ones(&machine), [("rivals", Verdict::Warning)]);
        std::os::unix::fs::symlink("/usr/bin/scx_tandem", machine.path().join("proc/60/exe")).unwrap();
        assert_eq!(not_good_ones(&machine), []);
    }

    #[test]
    fn what_works_against_it_is_a_warning() {
        for (path, text, name) in [
            ("proc/77/comm", "numad\n", "rivals"),
            ("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001fffff7ffff\n", "rights"),
            ("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001fffffffffb\n", "rights"),
            ("sys/kernel/mm/ksm/run", "1\n", "KSM"),
            ("proc/sys/kernel/numa_balancing", "2\n", "numa_balancing"),
            ("proc/sys/vm/zone_reclaim_mode", "1\n", "zone_reclaim_mode"),
        ] {
            let machine = machine();
            write(&machine, path, text);
            assert_eq!(not_good_ones(&machine), [(name, Verdict::Warning)], "{path}");
        }
        let machine = machine();
        let scheme = "contexts/0/schemes/0/action";
        write(&machine, "sys/kernel/mm/damon/admin/kdamonds/0/state", "on\n");
        write(&machine, &format!("sys/kernel/mm/damon/admin/kdamonds/0/{scheme}"), "migrate_hot\n");
        assert_eq!(not_good_ones(&machine), [("DAMON", Verdict::Warning)]);
        write(&machine, "sys/kernel/mm/damon/admin/kdamonds/0/state", "off\n");
        write(&machine, "sys/kernel/mm/ksm/run", "0\n");
        write(&machine, "sys/kernel/sched_ext/root/ops", "tandem_0.1\n");
        write(&machine, "proc/sys/kernel/numa_balancing", "1\n");
        write(&machine, "proc/78/comm", "irqbalance\n");
        assert_eq!(not_good_ones(&machine), [], "none of these does");
    }
}
