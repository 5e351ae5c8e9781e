// SPDX-License-Identifier: GPL-2.0-only
//! Clients of a redis server: threads with several connections each, one request under way on each connection.
//!
//! A thread waits for whichever of its connections has an answer, takes the time of that request, and asks the next: first
//! a SET, then so many GETs, and again. Keys are random and all are there before, so every GET must give its key's value.

use crate::external::Setting;
use crate::frame::program::percentile_99;
use crate::frame::seating::{mix, scaled};
use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Name of the subcommand that is a server's clients.
pub const COMMAND: &str = "redis-clients";
/// Hexadecimal digits at a value's beginning that say whose key's it is.
const DIGITS: usize = 16;

/// What the clients of one server do.
#[derive(Args, Clone, Debug)]
pub struct Load {
    #[arg(long)]
    threads: u64,
    #[arg(long)]
    clients: u64,
    #[arg(long = "requests")]
    requests_each: u64,
    #[arg(long)]
    gets_per_set: u64,
    /// Different keys.
    #[arg(long)]
    pub keys: u64,
    #[arg(long)]
    value_bytes: u64,
    #[arg(long)]
    seed: u64,
}

/// Options of the subcommand.
#[derive(Args, Debug)]
pub struct Options {
    #[arg(long)]
    socket: PathBuf,
    #[command(flatten)]
    load: Load,
}

/// What the subcommand prints.
#[derive(Serialize, Deserialize)]
struct Printed {
    p99_ns: u64,
}

impl Load {
    /// The load that a workload's sizes ask for.
    ///
    /// # Errors
    /// A value is too small to name its key.
    pub fn of(setting: &Setting) -> Result<Self> {
        let size = |name| setting.sizes.of(name);
        if size("value-bytes") < DIGITS as u64 {
            bail!("--value-bytes {} is too small: a value has {DIGITS} bytes at least", size("value-bytes"));
        }
        Ok(Self {
            threads: size("threads"),
            clients: size("clients"),
            requests_each: size("requests"),
            gets_per_set: size("gets-per-set"),
            keys: size("keys"),
            value_bytes: size("value-bytes"),
            seed: setting.seed,
        })
    }

    /// The command line of the clients of the server at `socket`; `own` is the path of this program.
    pub fn command(&self, own: &str, socket: &Path) -> Vec<String> {
        let mut words = vec![own.to_owned(), COMMAND.to_owned(), "--socket".to_owned()];
        words.push(socket.to_string_lossy().into_owned());
        let sizes = [
            ("--threads", self.threads),
            ("--clients", self.clients),
            ("--requests", self.requests_each),
            ("--gets-per-set", self.gets_per_set),
            ("--keys", self.keys),
            ("--value-bytes", self.value_bytes),
            ("--seed", self.seed),
        ];
        words.extend(sizes.iter().flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]));
        words
    }

    /// Requests of all clients of a server.
    pub fn requests(&self) -> u64 {
        self.threads * self.clients * self.requests_each
    }

    /// SETs among them.
    pub fn sets(&self) -> u64 {
        self.threads * self.clients * self.requests_each.div_ceil(self.gets_per_set + 1)
    }

    /// Sets all keys of the server at `socket`.
    ///
    /// # Errors
    /// The server cannot be reached or refuses.
    pub fn fill(&self, socket: &Path) -> Result<()> {
        let mut connection = Connection::to(socket)?;
        for key in 0..self.keys {
            connection.send(&["SET", &name(key), &self.value(key)])?;
            expect_ok(&connection.receive()?)?;
        }
        Ok(())
    }

    /// The 99th percentile in what the clients printed.
    ///
    /// # Errors
    /// There is none.
    pub fn p99_ns(&self, printed: &str) -> Result<u64> {
        let printed: Printed = serde_json::from_str(printed.trim()).context("the redis clients printed no result")?;
        Ok(printed.p99_ns)
    }

    fn value(&self, key: u64) -> String {
        let digits = digits(key);
        digits.repeat(self.value_bytes as usize / DIGITS + 1)[..self.value_bytes as usize].to_owned()
    }

    fn check(&self, key: u64, answer: &[u8]) -> Result<()> {
        if answer.len() as u64 != self.value_bytes || answer[..DIGITS] != *digits(key).as_bytes() {
            bail!("self-check failed: the redis server gave another value for key {key} than was set");
        }
        Ok(())
    }
}

fn name(key: u64) -> String {
    format!("key:{key}")
}

fn digits(key: u64) -> String {
    format!("{:016x}", mix(key))
}

fn expect_ok(answer: &[u8]) -> Result<()> {
    if answer != b"OK" {
        bail!("a redis server answered a SET with: {}", String::from_utf8_lossy(answer));
    }
    Ok(())
}

/// Runs all clients of a server to their end and prints the 99th percentile of their requests' times.
///
/// # Errors
/// The server cannot be reached, breaks off, or answers what it should not.
pub fn run(options: &Options) -> Result<()> {
    let load = &options.load;
    let threads: Vec<_> =
        (0..load.threads).map(|thread| Thread::new(load, &options.socket, thread)).collect::<Result<_>>()?;
    let times_ns: Result<Vec<Vec<u64>>> = std::thread::scope(|scope| {
        let started: Vec<_> = threads.into_iter().map(|thread| scope.spawn(|| thread.run())).collect();
        started.into_iter().map(|thread| thread.join().expect("a thread of clients does not panic")).collect()
    });
    let p99_ns = percentile_99(times_ns?.concat()).context("the redis clients made no request")?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&Printed { p99_ns })?).context("cannot print the result")
}

/// A thread and its connections.
struct Thread<'a> {
    load: &'a Load,
    random: u64,
    clients: Vec<Client>,
    times_ns: Vec<u64>,
}

/// A connection and its request under way.
struct Client {
    connection: Connection,
    made: u64,
    key: u64,
    asked: Instant,
}

impl<'a> Thread<'a> {
    fn new(load: &'a Load, socket: &Path, number: u64) -> Result<Self> {
        let client = |_| Ok(Client { connection: Connection::to(socket)?, made: 0, key: 0, asked: Instant::now() });
        let clients = (0..load.clients).map(client).collect::<Result<_>>()?;
        Ok(Self { load, random: mix(load.seed ^ mix(number)), clients, times_ns: Vec::new() })
    }

    fn run(mut self) -> Result<Vec<u64>> {
        for client in 0..self.clients.len() {
            self.ask(client)?;
        }
        let mut waiting: Vec<libc::pollfd> = self.clients.iter().map(|client| readable(&client.connection)).collect();
        let mut busy = self.clients.len();
        while busy > 0 {
            wait_for_any(&mut waiting)?;
            for (client, waiting) in waiting.iter_mut().enumerate().filter(|(_, waiting)| waiting.revents != 0) {
                self.answered(client)?;
                if self.clients[client].made < self.load.requests_each {
                    self.ask(client)?;
                } else {
                    // poll(2) passes over negative descriptors.
                    waiting.fd = -1;
                    busy -= 1;
                }
            }
        }
        Ok(self.times_ns)
    }

    fn ask(&mut self, client: usize) -> Result<()> {
        self.random = mix(self.random);
        let key = scaled(self.random, self.load.keys as usize) as u64;
        let client = &mut self.clients[client];
        (client.key, client.asked) = (key, Instant::now());
        if client.made.is_multiple_of(self.load.gets_per_set + 1) {
            client.connection.send(&["SET", &name(key), &self.load.value(key)])
        } else {
            client.connection.send(&["GET", &name(key)])
        }
    }

    fn answered(&mut self, client: usize) -> Result<()> {
        let client = &mut self.clients[client];
        let answer = client.connection.receive()?;
        self.times_ns.push(client.asked.elapsed().as_nanos() as u64);
        let set = client.made.is_multiple_of(self.load.gets_per_set + 1);
        client.made += 1;
        if set { expect_ok(&answer) } else { self.load.check(client.key, &answer) }
    }
}

fn readable(connection: &Connection) -> libc::pollfd {
    libc::pollfd { fd: connection.stream.get_ref().as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

fn wait_for_any(waiting: &mut [libc::pollfd]) -> Result<()> {
    loop {
        // SAFETY: the pointer and the count are those of one slice, which poll(2) only writes `revents` of.
        if unsafe { libc::poll(waiting.as_mut_ptr(), waiting.len() as libc::nfds_t, -1) } >= 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error).context("answers cannot be waited for");
        }
    }
}

/// A connection to a redis server, which speaks the protocol RESP2.
pub struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    /// Connects to the server at `socket`.
    ///
    /// # Errors
    /// None is there.
    pub fn to(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).context("a redis server cannot be reached")?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a command.
    ///
    /// # Errors
    /// The server is gone.
    pub fn send(&mut self, words: &[&str]) -> Result<()> {
        self.stream.get_mut().write_all(&encoded(words)).context("a redis server cannot be asked")
    }

    /// The next answer, a simple or a bulk string.
    ///
    /// # Errors
    /// The server is gone, or answers something else: an error, or that a key is not there.
    pub fn receive(&mut self) -> Result<Vec<u8>> {
        read_answer(&mut self.stream)
    }
}

fn encoded(words: &[&str]) -> Vec<u8> {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text += &format!("${}\r\n{word}\r\n", word.len());
    }
    text.into_bytes()
}

fn read_answer(answer: &mut impl BufRead) -> Result<Vec<u8>> {
    let mut head = String::new();
    answer.read_line(&mut head).context("a redis server does not answer")?;
    let head = head.trim_end();
    if let Some(simple) = head.strip_prefix('+') {
        return Ok(simple.as_bytes().to_vec());
    }
    let length: Option<usize> = head.strip_prefix('$').and_then(|length| length.parse().ok());
    let length = length.with_context(|| format!("a redis server answered: {head}"))?;
    let mut body = vec![0; length + 2];
    answer.read_exact(&mut body).context("a redis server broke off")?;
    body.truncate(length);
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load =
        Load { threads: 2, clients: 3, requests_each: 12, gets_per_set: 10, keys: 7, value_bytes: 20, seed: 1 };

    #[test]
    fn simple_and_bulk_answers_are_read_and_errors_told() {
        assert_eq!(read_answer(&mut &b"+PONG\r\n"[..]).unwrap(), b"PONG");
        assert_eq!(read_answer(&mut &b"$4\r\n\r\nab\r\nrest"[..]).unwrap(), b"\r\nab");
        for (answer, said) in [("-ERR unknown", "-ERR unknown"), ("$-1", "$-1")] {
            let error = read_answer(&mut format!("{answer}\r\n").as_bytes()).unwrap_err().to_string();
            assert_eq!(error, format!("a redis server answered: {said}"));
        }
        assert!(read_answer(&mut &b"$9\r\nshort"[..]).is_err());
    }

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        assert_eq!(encoded(&["GET", "key:10"]), b"*2\r\n$3\r\nGET\r\n$6\r\nkey:10\r\n");
    }

    #[test]
    fn every_connection_begins_with_a_set_and_has_one_after_so_many_gets() {
        assert_eq!((LOAD.requests(), LOAD.sets()), (72, 12));
        assert_eq!(Load { requests_each: 11, ..LOAD }.sets(), 6);
    }

    #[test]
    fn a_value_tells_its_key_and_another_one_is_noticed() {
        assert_eq!(LOAD.value(3).len(), 20);
        LOAD.check(3, LOAD.value(3).as_bytes()).unwrap();
        assert!(LOAD.check(3, LOAD.value(4).as_bytes()).is_err());
        assert!(LOAD.check(3, &LOAD.value(3).as_bytes()[..19]).is_err());
    }
}
