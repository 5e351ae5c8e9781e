// SPDX-License-Identifier: GPL-2.0-only
//! `tandem explain` against the socket of a scheduler that shows a state made for the test.

use std::path::Path;
use std::process::{Command, Output};

use tandem_view::{Board, Maybe, NodeView, ProcessView, Server, Status, ThreadView};
use tempfile::TempDir;

fn explain(socket: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.arg("explain").arg("--socket").arg(socket).args(arguments).output().unwrap()
}

/// Two processes of two threads each; nobody can be process 1 << 40.
fn serve(directory: &TempDir) -> (Server, Board, std::path::PathBuf) {
    let thread = |pid, tid, node| ThreadView {
        tid,
        pid,
        command: "worker".to_owned(),
        node,
        preferred_node: Maybe(Some(0)),
        local_share: Maybe(Some(if node == 0 { 1.0 } else { 0.0 })),
        accesses_per_s: vec![100.0, 0.0],
        allowed_nodes: vec![node],
        load_cpus: 1.0,
        ..ThreadView::default()
    };
    let process = |pid| ProcessView { pid, command: "main".to_owned(), threads: 2, ..ProcessView::default() };
    let node = |id| NodeView { id, cpus: 4, ..NodeView::default() };
    let board = Board::default();
    let socket = directory.path().join("stats");
    let server = Server::start(&socket, board.clone()).unwrap();
    board.publish(Status {
        nodes: vec![node(0), node(1)],
        processes: vec![process(10), process(20)],
        threads: vec![thread(10, 10, 0), thread(10, 11, 1), thread(20, 20, 0), thread(20, 21, 0)],
        ..Status::default()
    });
    (server, board, socket)
}

#[test]
fn a_process_is_explained_with_all_its_threads_and_a_thread_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (_server, _, socket) = serve(&directory);
    let said = |arguments: &[&str]| {
        let output = explain(&socket, arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let process = said(&["10"]);
    assert!(process.starts_with("Process 10 (main), 2 threads\n"), "{process}");
    assert!(process.contains("Thread 10 (worker)") && process.contains("Thread 11 (worker)"), "{process}");
    assert!(!process.contains("Thread 20"), "{process}");
    let thread = said(&["11"]);
    assert!(thread.contains("but its affinity or cpuset forbids it to run there."), "{thread}");
    assert!(!thread.contains("Thread 10"), "{thread}");
    assert_eq!(said(&[]).matches("\n  Thread ").count(), 4);
    let json: serde_json::Value = serde_json::from_str(&said(&["11", "--json"])).unwrap();
    assert_eq!((&json[0]["pid"], &json[0]["explained"][0]["tid"]), (&10.into(), &11.into()));
    assert!(json[0]["explained"][0]["sentences"][0].as_str().unwrap().starts_with("Thread 11 (worker)"));
}

#[test]
fn what_cannot_be_explained_is_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let (_server, board, socket) = serve(&directory);
    let refused = |socket: &Path, arguments: &[&str], expected: &str| {
        let output = explain(socket, arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.lines().count() == 1 && said.contains(expected), "{said}");
    };
    refused(&socket, &["1099511627776"], "there is no process or thread 1099511627776");
    refused(&socket, &[&std::process::id().to_string()], "is not managed by scx_tandem");
    board.publish(Status::default());
    refused(&socket, &[], "manages no process");
    refused(&directory.path().join("none"), &[], "no scx_tandem answers at");
}
