// SPDX-License-Identifier: GPL-2.0-only
//! Which program each managed process runs, so that what is known of one is not taken for another's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tandem_act::Programs;
use tandem_bpf::TaskRecord;
use tandem_machine::ProgramId;
use tandem_policies::model::ProcessId;

/// What was read last.
#[derive(Debug)]
pub struct ProgramWatch {
    proc: PathBuf,
    known: Programs,
}

impl ProgramWatch {
    /// Nothing is known yet. `proc` is /proc but for tests.
    pub fn new(proc: &Path) -> Self {
        Self { proc: proc.to_owned(), known: Programs::default() }
    }

    /// Looks at the `managed` processes of `tasks`, and returns those that were managed before and are not any more, have ended, or
    /// run another program. `has_run` says of a thread whether it ran since the last look: who did not has executed nothing.
    pub fn look(
        &mut self,
        tasks: &[TaskRecord],
        managed: &BTreeSet<u32>,
        has_run: impl Fn(&TaskRecord) -> bool,
    ) -> BTreeSet<ProcessId> {
        let mut ran: BTreeMap<u32, bool> = BTreeMap::new();
        for task in tasks.iter().filter(|task| managed.contains(&task.process)) {
            *ran.entry(task.process).or_default() |= has_run(task);
        }
        let program = |(process, ran): (u32, bool)| {
            let known = self.known.get(ProcessId(process)).filter(|_| !ran);
            Some((ProcessId(process), known.or_else(|| ProgramId::read(&self.proc, process))?))
        };
        let now: Programs = ran.into_iter().filter_map(program).collect();
        let gone = self.known.gone_in(&now);
        self.known = now;
        gone
    }

    /// The program of each managed process that is there.
    pub fn known(&self) -> &Programs {
        &self.known
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    use tandem_act::{Cooldowns, Ended, Generation, LinuxMovePages, Mover, MoverConfig, PageMove, PageMover as _};
    use tandem_policies::model::{GroupId, NodeId};

    use super::*;
    use crate::managed::tests::task;

    const NOBODY: [u32; 0] = [];

    /// A /proc to which processes come.
    struct Proc(tempfile::TempDir);

    impl Proc {
        fn runs(&self, process: u32, stack: u64) {
            let folder = self.0.path().join(format!("{process}/task/{process}"));
            fs::create_dir_all(&folder).unwrap();
            let fields = "1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 3792983 0 0 0 4096 8192";
            fs::write(folder.join("stat"), format!("{process} (a) S {fields} {stack} 0\n")).unwrap();
        }

        fn ends(&self, process: u32) {
            fs::remove_dir_all(self.0.path().join(process.to_string())).unwrap();
        }
    }

    /// Processes 7 and 8, of which each runs a program, and who has looked at them.
    fn two() -> (Proc, ProgramWatch) {
        let proc = Proc(tempfile::tempdir().unwrap());
        [7, 8].into_iter().for_each(|process| proc.runs(process, 1));
        let mut watch = ProgramWatch::new(proc.0.path());
        assert_eq!(gone(&mut watch, &[7, 8], &[]), NOBODY);
        (proc, watch)
    }

    /// Looks at these processes, of which those of `ran` ran.
    fn gone(watch: &mut ProgramWatch, managed: &[u32], ran: &[u32]) -> Vec<u32> {
        let tasks = [task(7, "a", false), task(8, "b", false)];
        let managed = managed.iter().copied().collect();
        watch.look(&tasks, &managed, |task| ran.contains(&task.tid)).into_iter().map(|process| process.0).collect()
    }

    #[test]
    fn who_executed_another_program_ended_or_is_not_managed_any_more_is_gone() {
        let (proc, mut watch) = two();
        let before = watch.known().clone();
        proc.runs(7, 2);
        assert_eq!(gone(&mut watch, &[7, 8], &[7, 8]), [7]);
        assert_eq!(before.gone_in(watch.known()), [ProcessId(7)].into());
        assert_eq!(gone(&mut watch, &[7, 8], &[7, 8]), NOBODY, "it is said once");
        proc.ends(7);
        assert_eq!(gone(&mut watch, &[7, 8], &[7, 8]), [7]);
        assert_eq!(gone(&mut watch, &[7], &[7]), [8]);
        assert_eq!(watch.known(), &Programs::default());
    }

    #[test]
    fn who_has_not_run_is_not_read_again() {
        let (proc, mut watch) = two();
        proc.runs(7, 2);
        assert_eq!(gone(&mut watch, &[7, 8], &[8]), NOBODY);
        assert_eq!(gone(&mut watch, &[7, 8], &[7]), [7]);
    }

    #[test]
    fn pages_of_a_process_that_executes_another_program_are_let_be_at_once_and_all_is_forgotten_at_the_next_look() {
        const SCRIPT: &str = "echo; read line; exec sh -c 'echo; read line'";
        let mut shell = Command::new("sh");
        let mut child = shell.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (id, mut input, mut output) = (child.id(), child.stdin.take().unwrap(), child.stdout.take().unwrap());
        output.read_exact(&mut [0]).unwrap();
        let mut watch = ProgramWatch::new(Path::new("/proc"));
        let mut look = || (watch.look(&[task(id, "sh", false)], &[id].into(), |_| true), watch.known().clone());
        let (mut mover, mut cooldowns) =
            (Mover::new(LinuxMovePages::default(), MoverConfig::default()), Cooldowns::new(8));
        assert!(mover.follow(&look().1).is_empty());
        let wanted = |start| PageMove {
            group: GroupId { process: ProcessId(id), start },
            bytes: 4096,
            huge: false,
            to: NodeId(0),
            generation: Generation(1),
            cooldown_ns: 1,
        };
        let mut ended = |mover: &mut Mover<LinuxMovePages>, start| {
            mover.enqueue(wanted(start), 0, &cooldowns).unwrap();
            mover.run(0, &mut cooldowns).into_iter().map(|outcome| outcome.ended).collect::<Vec<_>>()
        };
        assert_eq!(ended(&mut mover, 1 << 30), [Ended::Done]);
        input.write_all(b"\n").unwrap();
        output.read_exact(&mut [0]).unwrap();
        assert_eq!(ended(&mut mover, 2 << 30), [Ended::ProcessGone]);
        mover.enqueue(wanted(3 << 30), 0, &Cooldowns::new(8)).unwrap();
        let (gone, known) = look();
        let stopped: Vec<_> = mover.follow(&known).into_iter().map(|outcome| outcome.ended).collect();
        assert_eq!((gone, stopped), ([ProcessId(id)].into(), vec![Ended::ProcessGone]));
        assert_eq!(ended(&mut mover, 4 << 30), [Ended::Done], "of the new program");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn one_thread_that_ran_suffices() {
        let (proc, mut watch) = two();
        proc.runs(7, 2);
        let tasks = [TaskRecord { process: 7, ..task(9, "thread", false) }, task(7, "a", false), task(8, "b", false)];
        assert_eq!(watch.look(&tasks, &[7, 8].into(), |task| task.tid == 9), [ProcessId(7)].into());
    }
}
