// SPDX-License-Identifier: GPL-2.0-only
//! `tandem top` in a pseudo-terminal, driven by keys, against the socket of a scheduler that shows states made for the test.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use tandem_view::{Board, Maybe, MoveView, NodeView, ProcessView, Server, Status, ThreadView};

/// A busy machine may be slow; what never comes is waited for this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// `tandem top` on a screen of its own.
struct Top {
    child: Child,
    keys: File,
    output: Receiver<Vec<u8>>,
    screen: vt100::Parser,
}

impl Top {
    fn start(socket: &Path, rows: u16, columns: u16) -> Self {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let (mut own, mut its) = (-1, -1);
        // SAFETY: both descriptors are written on success; there is no name and no terminal setting to read.
        let failed = unsafe { libc::openpty(&mut own, &mut its, std::ptr::null_mut(), std::ptr::null(), &size) };
        assert_eq!(failed, 0, "openpty: {}", std::io::Error::last_os_error());
        // SAFETY: openpty just made both, and nobody else has them.
        let (own, its) = unsafe { (OwnedFd::from_raw_fd(own), OwnedFd::from_raw_fd(its)) };
        let end = || Stdio::from(its.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
        command.args(["top", "--interval", "0.1", "--socket"]).arg(socket).env("TERM", "xterm");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let (sender, output) = mpsc::channel();
        let mut from = File::from(own.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keys: File::from(own), output, screen: vt100::Parser::new(rows, columns, 0) }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen is as it should be.
    fn wait(&mut self, what: &str, condition: impl Fn(&str) -> bool) {
        let start = Instant::now();
        while !condition(&self.screen.screen().contents()) {
            let left = PATIENCE.saturating_sub(start.elapsed());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.screen.process(&bytes),
                Err(_) => panic!("{what}: not on the screen\n{}", self.screen.screen().contents()),
            }
        }
    }

    fn has(&mut self, text: &str) {
        self.wait(text, |screen| screen.contains(text));
    }

    /// Waits for its end; the terminal must be as it was.
    fn ends(mut self) -> bool {
        let status = self.child.wait().unwrap();
        while let Ok(bytes) = self.output.recv_timeout(Duration::from_millis(500)) {
            self.screen.process(&bytes);
        }
        assert!(!self.screen.screen().alternate_screen(), "the terminal is given back");
        // SAFETY: an all-zero termios is one; tcgetattr fills it.
        let mut settings: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is the pseudo-terminal's, the structure lives through the call.
        assert_eq!(unsafe { libc::tcgetattr(self.keys.as_raw_fd(), &mut settings) }, 0);
        assert_ne!(settings.c_lflag & libc::ECHO, 0, "and echoes again");
        status.success()
    }
}

fn status(load_cpus: f64) -> Status {
    let node = |id| NodeView { id, cpus: 2, memory_mib: 512, ..NodeView::default() };
    let thread = |pid, tid, node, command: &str| ThreadView {
        tid,
        pid,
        command: command.to_owned(),
        node,
        preferred_node: Maybe(Some(node)),
        local_share: Maybe(Some(0.5)),
        load_cpus,
        ..ThreadView::default()
    };
    let process = |pid, command: &str| ProcessView { pid, command: command.to_owned(), ..ProcessView::default() };
    let (tid, from) = (Maybe(Some(4242)), Maybe(Some(0)));
    Status {
        mode: "acting".to_owned(),
        thread_policy: "sma".to_owned(),
        page_policy: "tmma".to_owned(),
        nodes: vec![node(0), node(5)],
        processes: vec![process(4242, "database"), process(777, "web")],
        threads: vec![thread(777, 777, 5, "web"), thread(4242, 4242, 0, "database")],
        moves: vec![MoveView { tid, from, to: 5, reason: "its memory is there".to_owned(), ..MoveView::default() }],
        ..Status::default()
    }
}

#[test]
fn it_shows_the_running_scheduler_and_does_what_keys_say() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("stats");
    let board = Board::default();
    let _server = Server::start(&socket, board.clone()).unwrap();
    let mut top = Top::start(&socket, 24, 80);
    top.has("waiting for the end of the first interval");
    board.publish(status(0.25));
    top.has("tandem acting  sma+tmma");
    top.has("thread 4242            0 -> 5  its memory is there");
    top.has("2 threads by load");
    top.press("/data\r");
    top.wait("web is filtered away", |screen| screen.contains("database") && !screen.contains("web"));
    top.press("\x1b[B\r");
    top.has("Thread 4242 (database) of process 4242 is on node 0 and uses 0.25 CPUs");
    top.press("q");
    top.wait("the box is gone", |screen| !screen.contains("Thread 4242 (database)"));
    top.press("p");
    top.has("PAUSED");
    board.publish(status(0.75));
    top.press("p");
    top.wait("it goes on", |screen| screen.contains(" 0.75 ") && !screen.contains("PAUSED"));
    top.press("?");
    top.has("A filter is a part of a command");
    top.press("\x1b");
    top.wait("help is gone", |screen| !screen.contains("A filter is"));
    top.press("q");
    assert!(top.ends());
}

#[test]
fn a_scheduler_that_ends_is_told_and_one_that_begins_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("stats");
    let board = Board::default();
    board.publish(status(0.25));
    let server = Server::start(&socket, board.clone()).unwrap();
    let mut top = Top::start(&socket, 50, 160);
    top.has("2 threads by load");
    drop(server);
    std::fs::remove_file(&socket).unwrap();
    top.has("no scx_tandem answers");
    let _server = Server::start(&socket, board).unwrap();
    top.wait("it is found again", |screen| !screen.contains("no scx_tandem answers"));
    // SAFETY: the child is ours and was not waited for.
    unsafe { libc::kill(top.child.id() as i32, libc::SIGTERM) };
    assert!(top.ends());
}

#[test]
fn a_process_that_is_not_there_is_all_that_is_complained_about() {
    let top = Command::new(env!("CARGO_BIN_EXE_tandem"))
        .args(["top", "--alone", "--json", "-p", "4194305"])
        .output()
        .unwrap();
    assert_eq!(top.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&top.stderr), "tandem: there is no process 4194305\n");
}

#[test]
fn without_a_terminal_it_prints_a_state_or_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("stats");
    let board = Board::default();
    board.publish(status(0.25));
    let _server = Server::start(&socket, board).unwrap();
    let top = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
        command.arg("top").arg("--socket").arg(&socket).args(arguments).stdin(Stdio::null()).output().unwrap()
    };
    let json: Status = serde_json::from_slice(&top(&["--json"]).stdout).unwrap();
    assert_eq!(json, status(0.25));
    let refused = top(&[]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && said.contains("run tandem top in one, or with --json"), "{said}");
}
