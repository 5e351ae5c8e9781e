// SPDX-License-Identifier: GPL-2.0-only
//! Child processes of the workload, and the pipes over which they keep step with their parent.

use crate::truth::ThreadTruth;
use crate::worker::Work;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Error, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};

/// What a child tells its parent: `Ready`, then `Done`; or `Failed` at any time.
#[derive(Serialize, Deserialize)]
enum Message {
    Ready(Vec<ThreadTruth>),
    Done(Vec<Work>),
    Failed(String),
}

/// A child process, as its parent sees it.
pub struct Child {
    pid: i32,
    messages: BufReader<File>,
    go: File,
}

impl Child {
    /// What the child's threads touch, once all of it is initialised.
    pub fn wait_ready(&mut self) -> Result<Vec<ThreadTruth>> {
        match self.receive()? {
            Message::Ready(threads) => Ok(threads),
            Message::Failed(why) => bail!("process {}: {why}", self.pid),
            Message::Done(_) => bail!("process {} answered out of turn", self.pid),
        }
    }

    /// Starts the child's measured phase.
    pub fn release(&mut self) -> Result<()> {
        self.go.write_all(b"g").with_context(|| format!("process {} has ended early", self.pid))
    }

    /// What the child's threads did, once it has ended.
    pub fn wait_done(mut self) -> Result<Vec<Work>> {
        let message = self.receive()?;
        // SAFETY: waits for a child of this process, once; a null status is allowed.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
        match message {
            Message::Done(work) => Ok(work),
            Message::Failed(why) => bail!("process {}: {why}", self.pid),
            Message::Ready(_) => bail!("process {} answered out of turn", self.pid),
        }
    }

    /// The child's process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    fn receive(&mut self) -> Result<Message> {
        let mut line = String::new();
        self.messages.read_line(&mut line).with_context(|| format!("cannot hear from process {}", self.pid))?;
        if line.is_empty() {
            bail!("process {} ended without saying why (killed?)", self.pid);
        }
        Ok(serde_json::from_str(&line)?)
    }
}

/// The parent, as a child process sees it.
pub struct Parent {
    messages: File,
    go: File,
}

impl Parent {
    /// Says what this process's threads touch and waits until they may start.
    pub fn ready(&mut self, threads: Vec<ThreadTruth>) -> Result<()> {
        self.send(&Message::Ready(threads))?;
        self.go.read_exact(&mut [0]).context("the parent process has ended")
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.messages.write_all(&line).context("the parent process has ended")
    }
}

/// Starts a child that does `body` and ends; it gets SIGTERM when its parent dies. To be called while
/// the process has one thread. `siblings` are the children there are.
pub fn start(siblings: &mut Vec<Child>, body: impl FnOnce(&mut Parent) -> Result<Vec<Work>>) -> Result<()> {
    let (messages, to_parent) = pipe()?;
    let (from_parent, go) = pipe()?;
    // SAFETY: this is the only thread, so the child's memory is consistent.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Error::last_os_error()).context("cannot start a process");
    }
    if pid > 0 {
        siblings.push(Child { pid, messages: BufReader::new(messages), go });
        return Ok(());
    }
    // SAFETY: sets this process's death signal; no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
    // Copies of the parent's pipe ends would keep siblings and this process from seeing the parent's end.
    siblings.clear();
    drop((messages, go));
    let mut parent = Parent { messages: to_parent, go: from_parent };
    let (message, code) = match body(&mut parent) {
        Ok(work) => (Message::Done(work), 0),
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
