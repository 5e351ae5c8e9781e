// SPDX-License-Identifier: GPL-2.0-only
//! Processes of a workload, and the pipes over which they keep step with the one that started them.
//!
//! A process says `Ready`, waits to be let go, says `Ended`, waits to be let go, says `Checked` and ends; or it says
//! `Failed` instead. So there is never more than one message under way from it.

use crate::frame::plan::Claim;
use crate::frame::worker::Notes;
use crate::topology::NodeId;
use crate::truth::ThreadTruth;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Error, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// What the threads of a process did in the timed part.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ended {
    /// CLOCK_MONOTONIC in ns at which its last thread had done its work.
    pub at_ns: u64,
    /// Its threads' notes.
    pub threads: Vec<Notes>,
    /// What its threads say they left in memory.
    pub claims: Vec<Claim>,
    /// 99th percentile of its requests' times.
    pub p99_ns: Option<u64>,
}

/// What a process tells.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    /// Its memory is filled and its threads stand ready.
    Ready(Vec<ThreadTruth>),
    /// Its threads have done their work.
    Ended(Ended),
    /// The work was checked; pages of its arrays by node as they were before the check.
    Checked(BTreeMap<NodeId, u64>),
    /// It cannot go on.
    Failed(String),
}

/// A process, as the one that started it sees it.
pub struct Child {
    pid: i32,
    messages: BufReader<File>,
    go: File,
}

impl Child {
    /// The next message; an error if the process fails or has ended.
    pub fn receive(&mut self) -> Result<Message> {
        let mut line = String::new();
        self.messages.read_line(&mut line).with_context(|| format!("cannot hear from process {}", self.pid))?;
        if line.is_empty() {
            bail!("process {} ended without saying why (killed?)", self.pid);
        }
        match serde_json::from_str(&line)? {
            Message::Failed(why) => bail!("process {}: {why}", self.pid),
            message => Ok(message),
        }
    }

    /// Lets the process go on.
    pub fn release(&mut self) -> Result<()> {
        self.go.write_all(b"g").with_context(|| format!("process {} has ended early", self.pid))
    }

    /// Waits for the end of the process.
    pub fn wait(self) {
        // SAFETY: waits for a child of this process, once; a null status is allowed.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The descriptor that becomes readable when there is a message or the process has ended.
    pub fn descriptor(&self) -> RawFd {
        self.messages.get_ref().as_raw_fd()
    }
}

/// The process that started this one.
pub struct Parent {
    messages: File,
    go: File,
}

impl Parent {
    /// Says something and waits to be let go.
    pub fn say_and_wait(&mut self, message: &Message) -> Result<()> {
        self.send(message)?;
        self.go.read_exact(&mut [0]).context("the parent process has ended")
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.messages.write_all(&line).context("the parent process has ended")
    }
}

/// Starts a process that does `body`, tells what it returns and ends; it gets SIGTERM when its parent dies. To be
/// called while the process has one thread. `siblings` are the processes there are.
pub fn start<'a>(
    siblings: impl Iterator<Item = &'a Child>,
    body: impl FnOnce(&mut Parent) -> Result<Message>,
) -> Result<Child> {
    let (messages, to_parent) = pipe()?;
    let (from_parent, go) = pipe()?;
    // SAFETY: this is the only thread, so the child's memory is consistent.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Error::last_os_error()).context("cannot start a process");
    }
    if pid > 0 {
        return Ok(Child { pid, messages: BufReader::new(messages), go });
    }
    // SAFETY: sets this process's death signal; no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
    // Copies of the parent's pipe ends would keep siblings and this process from seeing the parent's end.
    for sibling in siblings {
        for descriptor in [sibling.descriptor(), sibling.go.as_raw_fd()] {
            // SAFETY: this process leaves without dropping its copy of `sibling`, so nothing closes it again.
            unsafe { libc::close(descriptor) };
        }
    }
    drop((messages, go));
    let mut parent = Parent { messages: to_parent, go: from_parent };
    let (message, code) = match body(&mut parent) {
        Ok(message) => (message, 0),
        Err(error) => (Message::Failed(format!("{error:#}")), 1),
    };
    std::process::exit(if parent.send(&message).is_ok() { code } else { 1 })
}

/// A pipe's read end and write end.
fn pipe() -> Result<(File, File)> {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two descriptors into an array of two.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(Error::last_os_error()).context("cannot make a pipe");
    }
    // SAFETY: both descriptors are new, open and owned by nothing else.
    let [read, write] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    Ok((read.into(), write.into()))
}
