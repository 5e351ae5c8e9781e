// SPDX-License-Identifier: GPL-2.0-only
//! Redis: one server for each node, each with clients of its own that read and write random keys in the proportion that
//! memtier_benchmark has by default.

use crate::external::redis_clients::{Connection, Load};
use crate::external::session::{Own, Server, Session};
use crate::external::{External, Setting, own_program};
use crate::frame::spec::{Metric, Size, size};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// The workload.
pub const SPEC: External = External {
    name: "redis",
    summary: "redis servers, each with clients that get and set random keys of its own",
    sizes: &[
        Size { name: "servers", default: 0, unit: "servers", help: "servers; 0: one for each node", least: 0 },
        size("threads", 2, "threads", "threads with clients of each server"),
        size("clients", 4, "connections", "connections of each thread"),
        size("requests", 1000, "requests", "requests of each connection"),
        size("gets-per-set", 10, "GETs", "GETs for each SET"),
        size("keys", 4000, "keys", "different keys of each server, all written before the timed part"),
        size("value-bytes", 512, "bytes", "size of a value, 16 at least"),
    ],
    metric: Metric::Seconds,
    work_unit: "requests",
    needs: &["redis-server"],
    session,
};

fn session(setting: &Setting) -> Result<Session> {
    let servers = setting.or("servers", setting.nodes);
    let sockets: Vec<PathBuf> = (0..servers).map(|index| setting.folder.join(format!("redis-{index}"))).collect();
    let load = Load::of(setting)?;
    let server = |socket: &PathBuf| {
        let options = ["--port", "0", "--save", "", "--unixsocket"].map(str::to_owned);
        let words = [vec!["redis-server".to_owned()], options.to_vec(), vec![text(socket)]].concat();
        let socket = socket.clone();
        Server { words, answers: Box::new(move || ask(&socket, &["PING"]).is_ok_and(|answer| answer == "PONG")) }
    };
    let own = own_program()?;
    let commands = sockets.iter().map(|socket| load.command(&own, socket)).collect();
    let (filled, proved) = (sockets.clone(), load.clone());
    Ok(Session {
        servers: sockets.iter().map(server).collect(),
        prepare: Box::new(move || filled.iter().try_for_each(|socket| load.fill(socket))),
        commands,
        work: servers * proved.requests(),
        proof: Box::new(move |printed| {
            sockets.iter().try_for_each(|socket| prove(socket, &proved))?;
            let slowest = printed.iter().map(|printed| proved.p99_ns(printed)).collect::<Result<Vec<_>>>()?;
            Ok(Own { p99_ns: slowest.into_iter().max(), ..Own::default() })
        }),
    })
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The server itself counts what it was asked.
fn prove(socket: &Path, load: &Load) -> Result<()> {
    let counted = ask(socket, &["INFO", "commandstats"])?;
    for (command, expected) in [("set", load.keys + load.sets()), ("get", load.requests() - load.sets())] {
        let calls = calls(&counted, command);
        if calls != Some(expected) {
            bail!("the redis server counted {calls:?} {command} commands instead of {expected}");
        }
    }
    Ok(())
}

/// Calls of `command` in what INFO commandstats answers.
fn calls(counted: &str, command: &str) -> Option<u64> {
    let line = counted.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")))?;
    line.split(',').next()?.parse().ok()
}

/// One command; its answer as text.
fn ask(socket: &Path, words: &[&str]) -> Result<String> {
    let mut connection = Connection::to(socket)?;
    connection.send(words)?;
    String::from_utf8(connection.receive()?).context("a redis server answered no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_those_of_the_command_itself() {
        let counted =
            "# Commandstats\r\ncmdstat_setex:calls=7,usec=1\r\ncmdstat_set:calls=40,usec=9,usec_per_call=0.2\r\n";
        assert_eq!((calls(counted, "set"), calls(counted, "get")), (Some(40), None));
    }
}
