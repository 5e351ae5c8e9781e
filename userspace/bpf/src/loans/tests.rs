// SPDX-License-Identifier: GPL-2.0-only

use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;

/// Kernels without sched_ext do not have its class.
const CLASS: libc::c_int = libc::SCHED_BATCH;

/// One test at a time: where threads of this process are taken back, so is what other tests have started.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that is ended when it is dropped.
struct Program(Child);

impl Program {
    fn of_class(class: libc::c_int) -> Self {
        let program = Self::doing(Command::new("sh").args(["-c", "while :; do :; done"]), class);
        program.wait_until_busy();
        program
    }

    fn doing(command: &mut Command, class: libc::c_int) -> Self {
        let child = command.spawn().unwrap();
        set_class(child.id() as i32, class).unwrap();
        // It began before what begins now: the kernel tells that by clock ticks.
        let ticks = ticks_since_boot();
        while ticks_since_boot() <= ticks {
            std::thread::yield_now();
        }
        Self(child)
    }

    /// Until its shell has read what it is to do.
    fn wait_until_busy(&self) {
        let process = self.0.id() as i32;
        while running_for_ns(process, process).is_none_or(|(_, ran_ns)| ran_ns == 0) {
            std::thread::yield_now();
        }
    }

    fn class(&self) -> libc::c_int {
        class_of(self.0.id() as i32).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_thread_is_lent_and_taken_back() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let (file, program) = (directory.path().join("lent"), Program::of_class(CLASS));
    let mut loans = Loans::of(CLASS, file.clone(), vec![]);
    assert_eq!(loans.lend(program.0.id(), 1000).unwrap(), Lending::Lent);
    assert_eq!((program.class(), file.exists()), (libc::SCHED_OTHER, true));
    loans.take_back(1000 + LENT_NS - 1);
    assert_eq!(program.class(), libc::SCHED_OTHER, "not yet");
    loans.take_back(1000 + LENT_NS);
    assert_eq!((program.class(), file.exists()), (CLASS, false));
    assert_eq!(loans.lend(program.0.id(), 1000).unwrap(), Lending::Lent);
    drop(loans);
    assert_eq!((program.class(), file.exists()), (CLASS, false));
}

#[test]
fn threads_of_other_classes_are_not_lent() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let program = Program::of_class(libc::SCHED_IDLE);
    let mut loans = Loans::of(CLASS, directory.path().join("lent"), vec![]);
    assert_eq!(loans.lend(program.0.id(), 0).unwrap(), Lending::NoneThere);
    assert_eq!(loans.lend(u32::MAX >> 1, 0).unwrap_err().kind(), ErrorKind::NotFound);
    // Nor is one that chose another class meanwhile taken back to where it was.
    set_class(program.0.id() as i32, CLASS).unwrap();
    assert_eq!(loans.lend(program.0.id(), 0).unwrap(), Lending::Lent);
    set_class(program.0.id() as i32, libc::SCHED_IDLE).unwrap();
    loans.take_back(u64::MAX);
    assert_eq!(program.class(), libc::SCHED_IDLE);
}

#[test]
fn a_thread_that_sleeps_is_of_no_use() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let program = Program::doing(Command::new("sleep").arg("1000"), CLASS);
    let asleep = || Process::new(program.0.id() as i32).unwrap().stat().unwrap().state == 'S';
    while !asleep() {
        std::thread::yield_now();
    }
    let mut loans = Loans::of(CLASS, directory.path().join("lent"), vec![]);
    assert_eq!(loans.lend(program.0.id(), 0).unwrap(), Lending::NoneRuns);
    assert_eq!(program.class(), CLASS);
}

#[test]
fn threads_take_turns_in_being_lent() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (ended, (told, telling)) = (std::sync::Arc::clone(&ended), std::sync::mpsc::channel());
            let thread = std::thread::spawn(move || {
                // SAFETY: takes nothing.
                let tid = unsafe { libc::gettid() };
                set_class(tid, CLASS).unwrap();
                told.send(tid).unwrap();
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {}
            });
            (telling.recv().unwrap(), thread)
        })
        .collect();
    let mut loans = Loans::of(CLASS, directory.path().join("lent"), vec![]);
    let own = std::process::id() as i32;
    let ran_enough = |tid| running_for_ns(own, tid).is_some_and(|(_, ran_ns)| ran_ns >= SCAN_PERIOD_NS);
    while !threads.iter().all(|(tid, _)| ran_enough(*tid)) {
        std::thread::yield_now();
    }
    let mut turns = Vec::new();
    for round in 0..3 {
        assert_eq!(loans.lend(own as u32, round).unwrap(), Lending::Lent);
        turns.push(loans.last);
        loans.take_back(u64::MAX);
    }
    ended.store(true, std::sync::atomic::Ordering::Relaxed);
    let [first, second] = [threads[0].0, threads[1].0];
    let (first, second) = (first.min(second), first.max(second));
    assert_eq!(turns, [first, second, first]);
    threads.into_iter().for_each(|(_, thread)| thread.join().unwrap());
}

#[test]
fn threads_that_a_lent_one_started_are_taken_back_with_it() {
    let _alone = alone();
    // Of this process.
    let threads: Vec<_> = [(); 2]
        .map(|()| {
            let ticks = ticks_since_boot();
            while ticks_since_boot() <= ticks {
                std::thread::yield_now();
            }
            let begun_ticks = ticks_since_boot();
            let (told, telling) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                // SAFETY: takes nothing.
                told.send(unsafe { libc::gettid() }).unwrap();
                std::thread::park();
            });
            (begun_ticks, telling.recv().unwrap(), thread)
        })
        .into();
    let (begun_ticks, born, _) = threads[1];
    let lent = Lent { process: std::process::id() as i32, tid: -1, begun_ticks, mixed: true };
    lent.take_back(CLASS);
    assert_eq!(class_of(born).unwrap(), libc::SCHED_OTHER, "as others of its process");
    Lent { mixed: false, ..lent }.take_back(CLASS);
    assert_eq!(class_of(born).unwrap(), CLASS);
    assert_eq!(class_of(threads[0].1).unwrap(), libc::SCHED_OTHER, "which was there before");
    for (.., thread) in threads {
        thread.thread().unpark();
        thread.join().unwrap();
    }
}

/// Of this process: a thread that began during the loan, and a child of it.
#[test]
fn processes_that_such_a_thread_started_are_taken_back_too() {
    let _alone = alone();
    let thread = std::thread::spawn(|| {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let (process, began) = (std::process::id() as i32, child.id() as i32);
        // SAFETY: takes nothing.
        let own = unsafe { libc::gettid() };
        let children = fs::read_to_string(format!("/proc/{process}/task/{own}/children")).unwrap();
        assert_eq!(children.trim(), began.to_string(), "its own child");
        let program = Program(child);
        let lent = Lent { process, tid: -1, begun_ticks: began_ticks(process, own).unwrap(), mixed: true };
        lent.take_back(CLASS);
        assert_eq!(program.class(), libc::SCHED_OTHER, "as others of its process");
        Lent { mixed: false, ..lent }.take_back(CLASS);
        assert_eq!(program.class(), CLASS);
    });
    thread.join().unwrap();
}

#[test]
fn what_a_killed_program_had_lent_is_brought_back() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let (file, program) = (directory.path().join("lent"), Program::of_class(CLASS));
    let mut loans = Loans::of(CLASS, file.clone(), vec![]);
    assert_eq!(loans.lend(program.0.id(), 0).unwrap(), Lending::Lent);
    std::mem::forget(loans);
    recover_from(&file, CLASS).unwrap();
    assert_eq!((program.class(), file.exists()), (CLASS, false));
    recover_from(&file, CLASS).unwrap();
    fs::write(&file, b"no note\n1 2\n\xff\n").unwrap();
    recover_from(&file, CLASS).unwrap();
}

#[test]
fn processes_that_a_lent_thread_started_are_taken_back_with_it() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let mut forks = Command::new("sh");
    forks.args(["-c", "while :; do [ -e \"$0\" ] && [ -z \"$child\" ] && { sleep 20 & child=$!; }; done"]);
    let start = directory.path().join("start");
    let program = Program::doing(forks.arg(&start), CLASS);
    program.wait_until_busy();
    let process = program.0.id() as i32;
    let mut loans = Loans::of(CLASS, directory.path().join("lent"), vec![]);
    assert_eq!(loans.lend(process as u32, 0).unwrap(), Lending::Lent);
    fs::write(start, "").unwrap();
    let children = || fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    while children().is_empty() {
        std::thread::yield_now();
    }
    let child: i32 = children().trim().parse().unwrap();
    assert_eq!(class_of(child).unwrap(), libc::SCHED_OTHER);
    loans.take_back(u64::MAX);
    assert_eq!(class_of(child).unwrap(), CLASS);
    // SAFETY: a child of the program that this test started.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
}

#[test]
fn a_process_that_is_lent_already_is_not_lent_twice() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
    let program = Program::of_class(CLASS);
    let mut samples = Loans::of(CLASS, one.clone(), vec![other.clone()]);
    let mut pages = Loans::of(CLASS, other, vec![one]);
    assert_eq!(samples.lend(program.0.id(), 0).unwrap(), Lending::Lent);
    assert_eq!(pages.lend(program.0.id(), 0).unwrap(), Lending::Lent);
    assert!(pages.lent.is_empty());
}

#[test]
fn what_cannot_be_noted_is_not_lent() {
    let _alone = alone();
    let program = Program::of_class(CLASS);
    let mut loans = Loans::of(CLASS, "/nowhere/lent".into(), vec![]);
    let said = loans.lend(program.0.id(), 0).unwrap_err();
    assert!(said.to_string().starts_with("/nowhere/lent: "), "{said}");
    assert_eq!((program.class(), loans.lent.len()), (CLASS, 0));
}

#[test]
fn a_number_that_another_process_has_now_is_left_alone() {
    let _alone = alone();
    let program = Program::of_class(libc::SCHED_OTHER);
    let process = program.0.id() as i32;
    Lent { process, tid: process, begun_ticks: 1, mixed: false }.take_back(CLASS);
    assert_eq!(program.class(), libc::SCHED_OTHER);
}
