// SPDX-License-Identifier: GPL-2.0-only
//! Redis: one server for each node, each with clients of its own that write and read random keys.

use crate::external::session::{Server, Session};
use crate::external::{External, Setting};
use crate::frame::spec::{Metric, Size, size};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The workload.
pub const SPEC: External = External {
    name: "redis",
    summary: "redis servers and redis-benchmark: clients write and read random keys, each server has its own",
    sizes: &[
        Size { name: "servers", default: 0, unit: "servers", help: "servers; 0: one for each node", least: 0 },
        size("clients", 8, "connections", "connections to each server"),
        size("requests", 4000, "requests", "requests of each kind (SET, GET) to each server"),
        size("keys", 4000, "keys", "different keys of each server"),
        size("value-bytes", 512, "bytes", "size of a value"),
    ],
    metric: Metric::Seconds,
    work_unit: "requests",
    needs: &["redis-server", "redis-benchmark"],
    session,
};

fn session(setting: &Setting) -> Result<Session> {
    let sizes = setting.sizes;
    let servers = setting.or("servers", setting.nodes);
    let sockets: Vec<PathBuf> = (0..servers).map(|index| setting.folder.join(format!("redis-{index}"))).collect();
    let (clients, requests) = (sizes.of("clients"), sizes.of("requests"));
    let (keys, bytes) = (sizes.of("keys"), sizes.of("value-bytes"));
    let server = |socket: &PathBuf| {
        let options = ["--port", "0", "--save", "", "--unixsocket"].map(str::to_owned);
        let words = [vec!["redis-server".to_owned()], options.to_vec(), vec![text(socket)]].concat();
        let socket = socket.clone();
        Server { words, answers: Box::new(move || ask(&socket, "PING").is_ok_and(|answer| answer == "PONG")) }
    };
    let command = |socket: &PathBuf| {
        let line = format!("redis-benchmark -q -t set,get -c {clients} -n {requests} -r {keys} -d {bytes} -s");
        line.split(' ').map(str::to_owned).chain([text(socket)]).collect()
    };
    Ok(Session {
        servers: sockets.iter().map(server).collect(),
        commands: sockets.iter().map(command).collect(),
        work: 2 * servers * requests,
        proof: Box::new(move |_| {
            sockets.iter().try_for_each(|socket| prove(socket, requests))?;
            Ok(None)
        }),
    })
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The server itself counts what it was asked.
fn prove(socket: &Path, requests: u64) -> Result<()> {
    let counted = ask(socket, "INFO commandstats")?;
    for command in ["set", "get"] {
        let calls = calls(&counted, command);
        if calls != Some(requests) {
            bail!("the redis server counted {calls:?} {command} commands instead of {requests}");
        }
    }
    Ok(())
}

/// Calls of `command` in what INFO commandstats answers.
fn calls(counted: &str, command: &str) -> Option<u64> {
    let line = counted.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")))?;
    line.split(',').next()?.parse().ok()
}

/// One command in Redis' protocol; the answer, a simple or a bulk string.
fn ask(socket: &Path, command: &str) -> Result<String> {
    let mut stream = UnixStream::connect(socket).context("a redis server cannot be reached")?;
    write!(stream, "{command}\r\n").context("a redis server cannot be asked")?;
    read_answer(&mut BufReader::new(stream))
}

fn read_answer(answer: &mut impl BufRead) -> Result<String> {
    let mut head = String::new();
    answer.read_line(&mut head).context("a redis server does not answer")?;
    if let Some(simple) = head.strip_prefix('+') {
        return Ok(simple.trim_end().to_owned());
    }
    let length = head.strip_prefix('$').and_then(|length| length.trim_end().parse().ok());
    let mut body = vec![0; length.with_context(|| format!("a redis server answered: {}", head.trim_end()))?];
    answer.read_exact(&mut body).context("a redis server broke off")?;
    String::from_utf8(body).context("a redis server answered no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simple_and_bulk_answers_are_read_and_errors_told() {
        assert_eq!(read_answer(&mut &b"+PONG\r\n"[..]).unwrap(), "PONG");
        assert_eq!(read_answer(&mut &b"$4\r\nab\ncrest"[..]).unwrap(), "ab\nc");
        let said = read_answer(&mut &b"-ERR unknown\r\n"[..]).unwrap_err().to_string();
        assert_eq!(said, "a redis server answered: -ERR unknown");
        assert!(read_answer(&mut &b"$9\r\nshort"[..]).is_err());
    }

    #[test]
    fn calls_are_those_of_the_command_itself() {
        let counted =
            "# Commandstats\r\ncmdstat_setex:calls=7,usec=1\r\ncmdstat_set:calls=40,usec=9,usec_per_call=0.2\r\n";
        assert_eq!((calls(counted, "set"), calls(counted, "get")), (Some(40), None));
    }
}
