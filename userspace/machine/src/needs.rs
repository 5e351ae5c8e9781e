// SPDX-License-Identifier: GPL-2.0-only
//! What scx_tandem cannot do without: asked by it before it loads anything, and by whoever examines a machine for it.

use std::fs;
use std::io::Error;
use std::path::Path;

/// Functions of the kernel that the scheduler calls and older kernels with sched_ext lack, and what they stand for.
const FUNCTIONS: [(&str, &str); 3] = [
    ("scx_bpf_pick_idle_cpu_node", "idle CPUs by node"),
    ("scx_bpf_get_idle_smtmask_node", "idle cores by node"),
    ("bpf_iter_scx_dsq_new", "walking a dispatch queue"),
];
const TYPES: &str = "sys/kernel/btf/vmlinux";

/// Functions that the scheduler needs and the kernel below `root` does not describe among its types, with what they stand for.
///
/// # Errors
/// The kernel does not describe its types, or that cannot be read.
pub fn missing_functions(root: &Path) -> Result<Vec<(&'static str, &'static str)>, Error> {
    let types = fs::read(root.join(TYPES))?;
    // Names of types, functions among them, stand in one table of strings, each ended by a zero.
    let mut missing = FUNCTIONS.to_vec();
    for name in types.split(|&byte| byte == 0) {
        missing.retain(|(function, _)| function.as_bytes() != name);
    }
    Ok(missing)
}

/// The words after `isolcpus=` on this kernel's command line, if they take CPUs out of all scheduling domains: then the kernel
/// loads no scheduler.
pub fn forbidding_isolation(command_line: &str) -> Option<&str> {
    const FLAGS: [&str; 3] = ["domain", "nohz", "managed_irq"];
    let given = command_line.split_whitespace().rev().find_map(|word| word.strip_prefix("isolcpus="))?;
    let mut flags = given.split(',').take_while(|word| FLAGS.contains(word)).peekable();
    (flags.peek().is_none() || flags.any(|flag| flag == "domain")).then_some(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_missing_whose_names_the_kernel_does_not_tell() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sys/kernel/btf")).unwrap();
        let told = |names: &str| {
            fs::write(root.path().join(TYPES), names).unwrap();
            missing_functions(root.path()).unwrap().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let all = "\0scx_bpf_pick_idle_cpu_node\0bpf_iter_scx_dsq_new\0int\0scx_bpf_get_idle_smtmask_node\0";
        assert!(told(all).is_empty());
        let of_6_12 = "\0scx_bpf_pick_idle_cpu\0bpf_iter_scx_dsq_new\0bpf_iter_scx_dsq_new_one\0";
        assert_eq!(told(of_6_12), ["scx_bpf_pick_idle_cpu_node", "scx_bpf_get_idle_smtmask_node"]);
        fs::remove_file(root.path().join(TYPES)).unwrap();
        assert!(missing_functions(root.path()).is_err());
    }

    #[test]
    fn cpus_outside_of_all_domains_forbid_a_scheduler() {
        for given in
            ["isolcpus=3", "isolcpus=domain,3", "isolcpus=nohz,domain,2-3", "isolcpus=nohz,1 quiet isolcpus=2,3"]
        {
            let last = given.rsplit('=').next();
            assert_eq!(forbidding_isolation(&format!("root=/dev/vda {given} quiet\n")), last);
        }
    }

    #[test]
    fn other_kinds_of_isolation_are_fine() {
        for given in ["", "nohz_full=3 rcu_nocbs=3", "isolcpus=nohz,3", "isolcpus=managed_irq,nohz,3", "noisolcpus=3"] {
            assert_eq!(forbidding_isolation(given), None);
        }
    }
}
