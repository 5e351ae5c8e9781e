// SPDX-License-Identifier: GPL-2.0-only
//! Machines that are reached by ssh as executor: one request at a time each.
//!
//! A worker gets its request as a line of its standard input and replies on its standard output. That its input ends tells it to
//! stop, so that a program does not go on alone when the connection or the asker is gone.

use std::collections::VecDeque;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use tandem_ab::say::say_line;
use tandem_ab::stop::{Stop, start};

use super::{Executor, Reply, Request, TRIES, last_line};
use crate::shell::quoted;

/// How often a worker's end and the wish to stop are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A host that fails so often in a row is asked no more.
const FAILURES: u32 = 2;

/// What ssh is told besides: to ask nobody, and to give a host up that does not answer for a minute, or was never there. What the
/// user's command says about that comes first, and so holds.
const OPTIONS: [&str; 8] =
    ["-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"];

/// Hands requests to machines by ssh.
#[derive(Debug)]
pub struct SshHosts {
    hosts: Vec<Host>,
    ssh: Vec<String>,
    worker: PathBuf,
}

/// A machine, and what became of requests until now.
#[derive(Debug)]
struct Host {
    name: String,
    /// How often it failed since it replied last.
    failures: AtomicU32,
    has_replied: AtomicBool,
}

/// Requests that nobody has carried out.
struct Queue {
    /// Index and how often it was lost.
    waiting: VecDeque<(usize, u32)>,
    /// Handed to a host.
    under_way: usize,
    /// Why it is over.
    failure: Option<String>,
}

fn locked(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether there is no time left.
fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

impl SshHosts {
    /// Machines of these names, the command that reaches one with its arguments, and `tandem` on these machines.
    pub fn new(names: Vec<String>, ssh: Vec<String>, worker: PathBuf) -> Self {
        let host = |name| Host { name, failures: AtomicU32::new(0), has_replied: AtomicBool::new(false) };
        Self { hosts: names.into_iter().map(host).collect(), ssh, worker }
    }

    /// Serves requests on one host until there are none.
    fn serve(
        &self,
        host: &Host,
        requests: &[Request],
        queue: &Mutex<Queue>,
        (stop, deadline): (&Stop, Option<Instant>),
        replies: &Sender<(usize, Reply)>,
    ) {
        while host.failures.load(Relaxed) < FAILURES && !stop.wished() && !is_over(deadline) {
            let next = {
                let mut queue = locked(queue);
                if queue.failure.is_some() || (queue.waiting.is_empty() && queue.under_way == 0) {
                    return;
                }
                let next = queue.waiting.pop_front();
                queue.under_way += usize::from(next.is_some());
                next
            };
            let Some((index, losses)) = next else {
                // Another host may lose what it has.
                std::thread::sleep(LOOK_EVERY);
                continue;
            };
            let reply = self.ask(&host.name, &requests[index], stop);
            let mut queue = locked(queue);
            queue.under_way -= 1;
            match reply {
                Ok(reply) => {
                    host.failures.store(0, Relaxed);
                    host.has_replied.store(true, Relaxed);
                    // Nobody listens any more once it is over.
                    let _ = replies.send((index, reply));
                }
                Err(_) if stop.wished() => {}
                Err(error) => {
                    say_line(format_args!("tandem: {}: {error:#}", host.name));
                    // What one that was never there loses, or is not there any more, says nothing of the run.
                    let first = host.failures.fetch_add(1, Relaxed) == 0;
                    let losses = losses + u32::from(first && host.has_replied.load(Relaxed));
                    queue.waiting.push_back((index, losses));
                    if losses >= TRIES {
                        let name = &host.name;
                        queue.failure =
                            Some(format!("a run was lost {TRIES} times, the last time by {name}: {error:#}"));
                    }
                }
            }
        }
    }

    /// One request on one host.
    fn ask(&self, host: &str, request: &Request, stop: &Stop) -> Result<Reply> {
        let (program, options) = self.ssh.split_first().context("there is no command that reaches a host")?;
        let worker = format!("exec {} trial", quoted(&self.worker.display().to_string()));
        let mut command = Command::new(program);
        command.args(options).args(OPTIONS).args([host, &worker]);
        // Not a pipe: a connection that ssh keeps for others would hold it open.
        let mut errors = tempfile::tempfile().context("there is no place for what ssh says")?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors.try_clone()?);
        // A group of its own: the command may start another one, which holds what is sent to it.
        command.process_group(0);
        let mut child = start(&mut command).with_context(|| format!("{program} does not start"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let line = serde_json::to_string(request)? + "\n";
        std::thread::scope(|scope| {
            let Some(mut output) = output else { bail!("{program} has no output") };
            let output = scope.spawn(move || {
                let mut bytes = Vec::new();
                output.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
            });
            // A request with a map is more than a pipe holds, and is read when the host has answered. One that ended at once does not
            // read; its last words say why.
            let mut sending = Some(scope.spawn(move || {
                let mut input = input;
                let sent = input.as_mut().map_or(Ok(()), |input| input.write_all(line.as_bytes()));
                (input, sent)
            }));
            let mut sent = None;
            let status = loop {
                if let Some(done) = sending.take_if(|sending| sending.is_finished()) {
                    sent = Some(done.join().map_err(|_| anyhow!("{program} cannot be asked"))?);
                }
                if let Some(status) = child.try_wait()? {
                    break status;
                }
                match &mut sent {
                    Some((input, _)) if stop.wished() => *input = None,
                    None if stop.wished() => end_group(&child),
                    _ => {}
                }
                std::thread::sleep(LOOK_EVERY);
            };
            // It has ended, so nothing waits for it to read any more.
            let late = sending.map(|sending| sending.join().map_err(|_| anyhow!("{program} cannot be asked")));
            let (_, sent) = match late {
                Some(late) => late?,
                None => sent.unwrap_or((None, Ok(()))),
            };
            let output = output.join().map_err(|_| anyhow!("what {program} wrote cannot be read"))??;
            if !status.success() {
                let mut words = Vec::new();
                errors.rewind()?;
                errors.read_to_end(&mut words)?;
                bail!("no reply ({status}): {}", last_line(&String::from_utf8_lossy(&words)));
            }
            sent.with_context(|| format!("{program} took no request"))?;
            serde_json::from_str(&output).with_context(|| format!("{} is no reply", last_line(&output)))
        })
    }
}

/// Ends a child that has a process group of its own, and what it started in that.
fn end_group(child: &Child) {
    // SAFETY: a plain system call; the child was not waited for yet, so the group is its own.
    unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
}

impl Executor for SshHosts {
    fn carry_out(
        &self,
        requests: &[Request],
        stop: &Stop,
        deadline: Option<Instant>,
        replied: &mut dyn FnMut(usize, Reply) -> Result<()>,
    ) -> Result<()> {
        let waiting = (0..requests.len()).map(|index| (index, 0)).collect();
        let queue = Mutex::new(Queue { waiting, under_way: 0, failure: None });
        let (replies, came) = mpsc::channel();
        std::thread::scope(|scope| {
            for host in &self.hosts {
                let (replies, queue) = (replies.clone(), &queue);
                scope.spawn(move || self.serve(host, requests, queue, (stop, deadline), &replies));
            }
            drop(replies);
            let handed = came.iter().try_for_each(|(index, reply)| replied(index, reply));
            if let Err(error) = &handed {
                locked(&queue).failure = Some(format!("{error:#}"));
            }
            handed
        })?;
        let queue = locked(&queue);
        match &queue.failure {
            Some(failure) => bail!("{failure}"),
            None if !queue.waiting.is_empty() && !stop.wished() && !is_over(deadline) => {
                let names: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
                bail!("no host is left: each of {} failed {FAILURES} times in a row", names.join(", "))
            }
            None => Ok(()),
        }
    }

    fn machines(&self) -> usize {
        self.hosts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::Job;
    use crate::remote::tests::job;

    /// Instead of ssh: says what it is called with, and fails.
    fn called_with(ssh: &[&str]) -> String {
        let words =
            ["sh", "-c", "echo \"$@\" >&2; exit 255"].iter().chain(ssh).map(|word| (*word).to_owned()).collect();
        let hosts = SshHosts::new(vec!["far".into()], words, "/bin/tandem".into());
        hosts.ask("far", &Request::Describe, &Stop::default()).unwrap_err().to_string()
    }

    #[test]
    fn from_the_deadline_on_nothing_is_handed_out_and_what_came_is_kept() {
        let words = ["sh", "-c", "sleep 0.4; echo '{\"not-set-up\":\"x\"}'"].map(str::to_owned).to_vec();
        let hosts = SshHosts::new(vec!["far".into()], words, "/bin/tandem".into());
        let (requests, deadline) = (vec![Request::Describe; 9], Instant::now() + Duration::from_millis(500));
        let mut came = 0;
        let carried_out = hosts.carry_out(&requests, &Stop::default(), Some(deadline), &mut |_, _| {
            came += 1;
            Ok(())
        });
        assert!(carried_out.is_ok() && (1..=2).contains(&came), "{carried_out:?}, {came}");
    }

    /// Which does not read what it is asked, and a request that no pipe holds.
    #[test]
    fn a_stop_ends_a_host_that_takes_no_request() {
        let words = ["sh", "-c", "sleep 1000; exit 3"].map(str::to_owned).to_vec();
        let hosts = SshHosts::new(vec!["far".into()], words, "/bin/tandem".into());
        let job = Job { command: vec!["x".repeat(1 << 20)], ..job() };
        let (stop, started) = (Stop::default(), Instant::now());
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| hosts.ask("far", &Request::Run(Box::new(job)), &stop));
            // It is on its way by then, or will be, which is the same.
            std::thread::sleep(3 * LOOK_EVERY);
            stop.wish();
            assert!(asked.join().unwrap().is_err());
        });
        assert!(started.elapsed() < Duration::from_secs(100), "it was ended");
    }

    #[test]
    fn a_host_that_vanishes_is_noticed_unless_the_user_says_otherwise() {
        let called = called_with(&["ssh", "-o", "ServerAliveInterval=99"]);
        let place = |option: &str| called.find(option).unwrap_or_else(|| panic!("{option}: {called}"));
        for option in ["ConnectTimeout=", "ServerAliveInterval=", "ServerAliveCountMax=", "BatchMode=yes"] {
            assert!(place(option) < place(" far "), "{called}");
        }
        // Of an option that is given twice ssh takes the first.
        assert!(place("ServerAliveInterval=99") < place("ServerAliveInterval=1"), "{called}");
    }
}
