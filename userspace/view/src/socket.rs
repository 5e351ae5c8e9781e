// SPDX-License-Identifier: GPL-2.0-only
//! The socket of scx_tandem, as scx schedulers have it: a line of JSON asks, a line of JSON answers.
//!
//! Only root can connect: the socket shows what all users run.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use scx_stats::prelude::*;

use crate::{Activity, AgentView, Board, MoveView, NodeView, PlanView, ProcessView, SamplerView, Status, ThreadView};

/// Where schedulers of scx have it.
pub const SOCKET: &str = "/var/run/scx/root/stats";
/// Answers take less than a millisecond; a stopped process must not hold up who asks.
const PATIENCE_MS: u64 = 5_000;

fn data(board: Option<Board>) -> StatsServerData<(), ()> {
    let read = move |_: &_, _: (&_, &_)| {
        let status =
            board.as_ref().and_then(Board::read).context("there is no state yet: the first interval is under way")?;
        status.to_json()
    };
    StatsServerData::new()
        .add_meta(Status::meta())
        .add_meta(SamplerView::meta())
        .add_meta(Activity::meta())
        .add_meta(AgentView::meta())
        .add_meta(NodeView::meta())
        .add_meta(ProcessView::meta())
        .add_meta(ThreadView::meta())
        .add_meta(MoveView::meta())
        .add_meta(PlanView::meta())
        .add_stats("top", Box::new(read))
}

/// Every field of the state with what it means, for `--help-stats`.
///
/// # Errors
/// Never for the shapes of this crate.
pub fn describe() -> Result<String> {
    let mut text = Vec::new();
    let names = [
        "Status",
        "SamplerView",
        "Activity",
        "AgentView",
        "NodeView",
        "ProcessView",
        "ThreadView",
        "MoveView",
        "PlanView",
    ];
    let data = data(None);
    for (at, name) in names.iter().enumerate() {
        let mut part = Vec::new();
        data.describe_meta_inner(&mut part, name)?;
        // What is nested in one is described after it, but only lists are.
        let part = String::from_utf8(part)?;
        let own = part.split("\n\n").next().unwrap_or_default().trim_end();
        if at > 0 {
            text.push(String::new());
        }
        text.push(own.to_owned());
    }
    Ok(text.join("\n") + "\n")
}

/// Answers while it lives.
pub struct Server {
    // Told to end before it is woken for that.
    _server: StatsServer<(), ()>,
    _woken_by: Connects,
}

/// The server's thread looks whether it is to end when somebody connects. It would do so itself at the name by which it was made.
struct Connects(PathBuf);

impl Drop for Connects {
    fn drop(&mut self) {
        // Whose socket was removed has nobody left to answer.
        let _ = UnixStream::connect(&self.0);
    }
}

impl Server {
    /// Begins to answer at `path` with what is on `board`. The directory of the socket is made if it is not there.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn start(path: &Path, board: Board) -> Result<Self> {
        let directory = path.parent().with_context(|| format!("{} is no file's name", path.display()))?;
        // Others may have theirs below it: what is there stays as it is.
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        // It can be connected to before its mode is set, but nobody else comes into this folder.
        let own = tempfile::tempdir_in(directory)?;
        let made = own.path().join("stats");
        let server = StatsServer::new(data(Some(board))).set_path(&made).launch()?;
        fs::set_permissions(&made, Permissions::from_mode(0o600))?;
        fs::rename(&made, path)?;
        Ok(Self { _server: server, _woken_by: Connects(path.to_owned()) })
    }
}

/// Asks a running scx_tandem.
pub struct Client(StatsClient);

impl Client {
    /// Connects to the scheduler whose socket is at `path`.
    ///
    /// # Errors
    /// Nobody answers there, or this user may not ask.
    pub fn connect(path: &Path) -> Result<Self> {
        let client = StatsClient::new().set_path(path).connect(Some(PATIENCE_MS)).with_context(|| {
            format!("no scx_tandem answers at {}: is it running, and are you root?", path.display())
        })?;
        Ok(Self(client))
    }

    /// The state now. `None` before the end of the first interval.
    ///
    /// # Errors
    /// The scheduler is gone, or is not scx_tandem.
    pub fn status(&mut self) -> Result<Option<Status>> {
        match self.0.request::<Status>("stats", Vec::new()) {
            Ok(status) => Ok(Some(status)),
            Err(error) if format!("{error:#}").contains("there is no state yet") => Ok(None),
            Err(error) => Err(error).context("the scheduler that runs is no scx_tandem of this version, or it ended"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_is_published_is_what_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below/stats");
        let board = Board::default();
        let server = Server::start(&path, board.clone()).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "root only");
        let mut client = Client::connect(&path).unwrap();
        assert_eq!(client.status().unwrap(), None, "nothing published yet");
        let mut status = Status { time_ns: 7, local_share: Some(0.25).into(), ..Status::default() };
        status.threads.push(ThreadView { tid: 3, preferred_node: Some(2).into(), ..ThreadView::default() });
        board.publish(status.clone());
        assert_eq!(client.status().unwrap(), Some(status));
        drop(server);
        assert!(client.status().is_err(), "it is gone");
    }

    #[test]
    fn nobody_else_may_connect_from_the_first_moment_on() {
        let directory = tempfile::tempdir().unwrap();
        for at in 0..200 {
            let path = directory.path().join(at.to_string());
            let end = Instant::now() + Duration::from_secs(60);
            let mode = || fs::metadata(&path).map(|there| there.permissions().mode() & 0o777);
            let (modes, server) = std::thread::scope(|scope| {
                let seen =
                    scope.spawn(|| std::iter::repeat_with(mode).find(|mode| mode.is_ok() || Instant::now() > end));
                let server = Server::start(&path, Board::default()).unwrap();
                (seen.join().unwrap(), server)
            });
            assert_eq!(modes.unwrap().unwrap(), 0o600);
            drop(server);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 200, "the sockets alone");
    }

    #[test]
    fn a_server_that_is_gone_leaves_no_thread() {
        let directory = tempfile::tempdir().unwrap();
        let listens = || fs::read_to_string("/proc/net/unix").unwrap().contains(directory.path().to_str().unwrap());
        let server = Server::start(&directory.path().join("stats"), Board::default()).unwrap();
        assert!(listens());
        drop(server);
        let end = Instant::now() + Duration::from_secs(60);
        while listens() {
            assert!(Instant::now() < end, "it still waits for connections");
            std::thread::yield_now();
        }
    }

    #[test]
    fn without_a_scheduler_it_says_so() {
        let error = Client::connect(Path::new("/no/such/socket")).err().unwrap();
        assert!(error.to_string().contains("no scx_tandem answers at /no/such/socket"), "{error}");
    }

    #[test]
    fn every_field_is_described() {
        let text = describe().unwrap();
        let described = |name: &str| {
            text.lines().any(|line| line.trim_start().starts_with(&format!("{name} ")) && line.contains(" : "))
        };
        let status = Status {
            nodes: vec![NodeView::default()],
            processes: vec![ProcessView::default()],
            threads: vec![ThreadView::default()],
            moves: vec![MoveView::default()],
            plans: vec![PlanView::default()],
            ..Status::default()
        };
        let status = serde_json::to_value(status).unwrap();
        // Each nested shape is there, alone or as the one entry of a list.
        let one = |value: &serde_json::Value| value.as_array().and_then(|list| list.first().cloned());
        let fields = status.as_object().unwrap().values();
        let nested: Vec<_> = fields.map(|value| one(value).unwrap_or(value.clone())).collect();
        for shape in std::iter::once(&status).chain(&nested).filter_map(|value| value.as_object()) {
            for name in shape.keys() {
                assert!(described(name), "{name} in {text}");
            }
        }
    }
}
