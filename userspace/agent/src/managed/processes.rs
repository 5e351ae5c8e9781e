// SPDX-License-Identifier: GPL-2.0-only
//! What selectors ask about processes, as /proc tells it.
//!
//! A process may end between two questions; what cannot be known of it any more chooses nothing. Names of containers and
//! virtual machines are those that their runtimes leave in paths of control groups and in arguments. Who may start processes
//! there may choose such names, so they choose what is managed, and nothing else is done with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tandem_bpf::TaskRecord;
use tandem_config::{Named, Selector};
use tandem_machine::{ProgramId, parent_of, process_text};

/// What a descriptor of a virtual machine of KVM links to.
const KVM: &str = "anon_inode:kvm-vm";
/// Digits of a container's id, and how many of them must be given at least.
const ID_DIGITS: usize = 64;
const LEAST_DIGITS: usize = 12;

/// What /proc says about processes, read when it is asked for the first time.
#[derive(Default)]
pub struct Processes(BTreeMap<u32, Process>);

/// `None` for what cannot be known any more, because the process ended.
#[derive(Default)]
struct Process {
    parent: Option<Option<u32>>,
    start_ticks: Option<Option<u64>>,
    user: Option<Option<u32>>,
    control_group: Option<Option<String>>,
    pid_namespace: Option<Option<u64>>,
    holds_kvm: Option<bool>,
    arguments: Option<Vec<String>>,
}

impl Processes {
    /// Whether `selector` chooses the process of `task`.
    pub fn matches(&mut self, selector: &Selector, task: &TaskRecord) -> bool {
        let process = task.process;
        match selector {
            Selector::All => true,
            Selector::Command(name) => task.command == *name,
            Selector::Tree(root) => self.is_below(process, *root),
            Selector::User(uid) => self.user(process) == Some(*uid),
            Selector::ControlGroup(path) => self.control_group(process).is_some_and(|of| is_in(of, path)),
            Selector::PidNamespace(number) => self.pid_namespace(process) == Some(*number),
            Selector::Container(Named::All) => self.is_contained(process),
            Selector::Container(Named::Name(name)) => {
                self.control_group(process).is_some_and(|of| of.split('/').any(|part| names_container(part, name)))
            }
            Selector::VirtualMachine(Named::All) => self.holds_kvm(process),
            Selector::VirtualMachine(Named::Name(name)) => {
                machine_name(self.arguments(process)).is_some_and(|own| own == name) && self.holds_kvm(process)
            }
        }
    }

    fn is_below(&mut self, mut process: u32, root: u32) -> bool {
        // A process that is gone may leave a number that is used again: never go round in circles.
        let mut seen = BTreeSet::new();
        while process != root {
            match self.parent(process) {
                Some(parent) if seen.insert(process) => process = parent,
                _ => return false,
            }
        }
        true
    }

    fn parent(&mut self, process: u32) -> Option<u32> {
        let read = || parent_of(&told(process, "stat")?);
        *self.0.entry(process).or_default().parent.get_or_insert_with(read)
    }

    /// When it began, on CLOCK_BOOTTIME, in ticks of 10 ms.
    pub fn start_ticks(&mut self, process: u32) -> Option<u64> {
        let read = || ProgramId::read(Path::new("/proc"), process).map(|program| program.start_ticks);
        *self.0.entry(process).or_default().start_ticks.get_or_insert_with(read)
    }

    /// The number of its pid namespace.
    pub fn pid_namespace(&mut self, process: u32) -> Option<u64> {
        let read = || Some(fs::metadata(format!("/proc/{process}/ns/pid")).ok()?.ino());
        *self.0.entry(process).or_default().pid_namespace.get_or_insert_with(read)
    }

    /// Whether it is in another pid namespace than this program.
    fn is_contained(&mut self, process: u32) -> bool {
        let own = self.pid_namespace(std::process::id());
        own.is_some() && self.pid_namespace(process).is_some_and(|of| Some(of) != own)
    }

    /// Whether it holds a virtual machine of KVM: only such a process has a descriptor of one.
    fn holds_kvm(&mut self, process: u32) -> bool {
        *self.0.entry(process).or_default().holds_kvm.get_or_insert_with(|| {
            let Ok(entries) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
            entries.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == KVM))
        })
    }

    fn arguments(&mut self, process: u32) -> &[String] {
        self.0.entry(process).or_default().arguments.get_or_insert_with(|| {
            let bytes = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            bytes.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
        })
    }

    /// Its real user.
    pub fn user(&mut self, process: u32) -> Option<u32> {
        *self.0.entry(process).or_default().user.get_or_insert_with(|| {
            let status = told(process, "status")?;
            status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
        })
    }

    /// Its path in the unified hierarchy.
    pub fn control_group(&mut self, process: u32) -> Option<&str> {
        let read = || control_group(&told(process, "cgroup")?);
        self.0.entry(process).or_default().control_group.get_or_insert_with(read).as_deref()
    }
}

/// What this file of /proc says of a process; `None` if it has ended.
fn told(process: u32, file: &str) -> Option<String> {
    process_text(&Path::new("/proc").join(process.to_string()).join(file)).ok()
}

/// The path in the unified hierarchy, out of /proc/PID/cgroup.
fn control_group(text: &str) -> Option<String> {
    Some(text.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned())
}

/// Whether the control group `group` is `path` or below it; the root's path is empty.
fn is_in(group: &str, path: &str) -> bool {
    group.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether this part of a control group's path belongs to the container that is called `name`, as the common runtimes make
/// them: `docker-ID.scope`, `crio-ID.scope`, `cri-containerd-ID.scope`, `libpod-ID.scope` or `ID` alone, where the first
/// digits of the ID suffice as they do for the runtimes' own commands; `lxc.payload.NAME`; `machine-NAME.scope`.
fn names_container(part: &str, name: &str) -> bool {
    let stem = part.strip_suffix(".scope").unwrap_or(part);
    let id = stem.rsplit('-').next().unwrap_or(stem);
    let is_id = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (id.len() == ID_DIGITS && is_id(id) && name.len() >= LEAST_DIGITS && id.starts_with(name))
        || stem.strip_prefix("lxc.payload.") == Some(name)
        || stem.strip_prefix("machine-").is_some_and(|escaped| unescaped(escaped) == name)
}

/// A unit's name without systemd's escapes: \x2d is a minus sign.
fn unescaped(text: &str) -> String {
    text.replace("\\x2d", "-")
}

/// What a virtual machine is called by the arguments of the program that runs it: `-name guest=NAME,...` or `-name NAME` of
/// QEMU, `--id NAME` of Firecracker.
fn machine_name(arguments: &[String]) -> Option<&str> {
    let at = arguments.iter().position(|word| matches!(word.as_str(), "-name" | "--name" | "--id"))?;
    let value = arguments.get(at + 1)?;
    let named = value.split(',').find_map(|part| part.strip_prefix("guest="));
    named.or_else(|| value.split(',').next())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    use super::*;

    impl Processes {
        /// Processes of which the parent is known and when they began.
        pub fn with_parents_and_starts(known: &[(u32, (u32, u64))]) -> Self {
            let of = |&(process, (parent, start_ticks)): &(u32, (u32, u64))| {
                let (parent, start_ticks) = (Some(Some(parent)), Some(Some(start_ticks)));
                (process, Process { parent, start_ticks, ..Process::default() })
            };
            Self(known.iter().map(of).chain([(1, Process { parent: Some(None), ..Process::default() })]).collect())
        }
    }

    #[test]
    fn a_tree_holds_descendants_and_nobody_else() {
        let parents = [(11, 10), (12, 11), (20, 1), (1, 0), (30, 31), (31, 30)];
        let known = |&(process, parent)| (process, Process { parent: Some(Some(parent)), ..Process::default() });
        let mut processes = Processes(parents.iter().map(known).collect());
        processes.0.insert(0, Process { parent: Some(None), ..Process::default() });
        assert!([10, 11, 12].iter().all(|&process| processes.is_below(process, 10)));
        assert!(!processes.is_below(20, 10));
        assert!(!processes.is_below(30, 10), "a circle of parents ends");
    }

    /// The kernel cuts names within a letter, and a program may call itself anything.
    #[test]
    fn a_process_with_a_name_in_any_bytes_has_a_parent_and_a_user() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(OsStr::from_bytes(b"a-\xd0\xbe\xd0"));
        fs::copy("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("1000").spawn().unwrap();
        let mut processes = Processes::default();
        let (parent, user) = (processes.parent(child.id()), processes.user(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        // SAFETY: takes nothing and cannot fail.
        assert_eq!((parent, user), (Some(std::process::id()), Some(unsafe { libc::getuid() })));
    }

    #[test]
    fn a_control_group_holds_those_below_and_not_those_of_a_longer_name() {
        assert_eq!(control_group("1:name=systemd:/x\n0::/a/b\n").as_deref(), Some("/a/b"));
        assert!(is_in("/a/b", "/a") && is_in("/a", "/a") && is_in("/a", "") && is_in("/", ""));
        assert!(!is_in("/ab", "/a") && !is_in("/a", "/a/b"));
    }

    #[test]
    fn containers_are_known_by_what_runtimes_call_their_control_groups() {
        let id = "0123456789ab".repeat(6)[..ID_DIGITS].to_owned();
        for part in ["docker-ID.scope", "crio-ID.scope", "cri-containerd-ID.scope", "libpod-ID.scope", "ID"] {
            let part = part.replace("ID", &id);
            assert!(names_container(&part, &id) && names_container(&part, "0123456789ab"), "{part}");
            assert!(!names_container(&part, "0123"), "too short to be one container's");
            assert!(!names_container(&part, "123456789ab0"), "not its beginning");
        }
        assert!(names_container("lxc.payload.web-1", "web-1") && !names_container("lxc.monitor.web-1", "web-1"));
        assert!(names_container("machine-web\\x2d1.scope", "web-1"));
        assert!(!names_container("docker.service", "docker") && !names_container("system.slice", "system"));
    }

    #[test]
    fn virtual_machines_are_known_by_their_programs_arguments() {
        let name = |words: &str| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            machine_name(&words).map(str::to_owned)
        };
        assert_eq!(name("qemu-system-x86_64 -name guest=db,debug-threads=on -m 4G").as_deref(), Some("db"));
        assert_eq!(name("qemu-system-x86_64 -m 4G -name db").as_deref(), Some("db"));
        assert_eq!(name("firecracker --id db --api-sock /run/db").as_deref(), Some("db"));
        assert_eq!(name("qemu-system-x86_64 -m 4G"), None);
        assert_eq!(name("qemu-system-x86_64 -name"), None);
    }

    #[test]
    fn only_who_holds_a_machine_of_kvm_is_one() {
        let with = |holds_kvm, name: &str| Process {
            holds_kvm: Some(holds_kvm),
            arguments: Some(vec!["-name".to_owned(), name.to_owned()]),
            ..Process::default()
        };
        let mut processes =
            Processes([(10, with(true, "db")), (11, with(false, "db")), (12, with(true, "web"))].into());
        let mut chosen = |name: Named| -> Vec<u32> {
            let selector = Selector::VirtualMachine(name);
            [10, 11, 12].into_iter().filter(|&process| processes.matches(&selector, &of(process))).collect()
        };
        assert_eq!(chosen(Named::All), [10, 12]);
        assert_eq!(chosen(Named::Name("db".to_owned())), [10], "a name alone is anybody's to take");
    }

    fn of(process: u32) -> TaskRecord {
        TaskRecord { process, ..crate::managed::tests::task(process, "vm", false) }
    }

    #[test]
    fn processes_of_another_pid_namespace_are_contained() {
        let within = |number| Process { pid_namespace: Some(number), ..Process::default() };
        let own = std::process::id();
        let known =
            [(own, within(Some(1))), (own + 1, within(Some(1))), (own + 2, within(Some(2))), (own + 3, within(None))];
        let mut processes = Processes(known.into());
        let contained: Vec<bool> = (0..4).map(|step| processes.is_contained(own + step)).collect();
        assert_eq!(contained, [false, false, true, false], "unknown is not contained");
    }
}
