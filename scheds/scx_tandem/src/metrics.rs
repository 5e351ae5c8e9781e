// SPDX-License-Identifier: GPL-2.0-only
//! Metrics for Prometheus over HTTP, if they are asked for. One request at a time, and one thing to ask for.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tandem_view::{Board, prometheus};
use tracing::debug;

/// A request that takes longer is dropped: there may be others.
const PATIENCE: Duration = Duration::from_secs(2);
/// A request's head is a few lines.
const MOST_BYTES: usize = 8192;

/// Begins to answer at `address` with what is on `board`, as long as that is not older than `fresh`: who asks learns that the
/// agent hangs. Returns the address, whose port may have been 0.
///
/// # Errors
/// The address is taken, or is not this machine's.
pub fn start(address: SocketAddr, board: Board, fresh: Duration) -> Result<SocketAddr> {
    let listener = TcpListener::bind(address).with_context(|| format!("metrics cannot be offered at {address}"))?;
    let bound = listener.local_addr().context("the address of the metrics cannot be read")?;
    thread::spawn(move || {
        for stream in listener.incoming() {
            if let Err(error) = stream.and_then(|stream| answer(stream, &board, fresh)) {
                debug!("a request for metrics was dropped: {error}");
            }
        }
    });
    Ok(bound)
}

/// A connection that is over then, however slowly the other side goes on.
struct Until {
    stream: TcpStream,
    end: Instant,
}

impl Until {
    fn left(&self) -> std::io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Until {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Until {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

fn answer(stream: TcpStream, board: &Board, fresh: Duration) -> std::io::Result<()> {
    let mut stream = Until { stream, end: Instant::now() + PATIENCE };
    let head = head(&mut stream)?;
    let mut words = head.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, body) = match (method, path_of(target)) {
        ("GET" | "HEAD", "/metrics") => metrics(board, fresh),
        ("GET" | "HEAD", _) => ("404 Not Found", "there is /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET and HEAD\n".to_owned()),
    };
    // Who asks for the head alone learns how long the body would be.
    let (length, body) = (body.len(), if method == "HEAD" { "" } else { &body });
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// What is asked for, without what follows a `?`: there is nothing to choose from.
fn path_of(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

fn metrics(board: &Board, fresh: Duration) -> (&'static str, String) {
    let unavailable = |why: &str| ("503 Service Unavailable", why.to_owned());
    match board.read() {
        Some(_) if board.age().is_some_and(|age| age > fresh) => unavailable("the agent does not go on\n"),
        Some(state) => ("200 OK", prometheus(&state)),
        None => unavailable("the first interval is under way\n"),
    }
}

/// The request up to the empty line.
fn head(stream: &mut impl Read) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let mut part = [0; 512];
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut part)?;
        if count == 0 || bytes.len() + count > MOST_BYTES {
            return Err(ErrorKind::InvalidData.into());
        }
        bytes.extend_from_slice(&part[..count]);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use tandem_view::{Maybe, Status};

    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn there_are_metrics_and_nothing_else() {
        let board = Board::default();
        let address = start("127.0.0.1:0".parse().unwrap(), board.clone(), Duration::from_secs(3600)).unwrap();
        let get = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        assert!(ask(address, get).starts_with("HTTP/1.1 503 "));
        board.publish(Status { local_share: Maybe(Some(0.5)), ..Status::default() });
        let answer = ask(address, get);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\ntandem_local_share 0.5\n"), "{answer}");
        assert!(ask(address, "GET /../etc/passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        drop(TcpStream::connect(address).unwrap());
        assert!(ask(address, get).starts_with("HTTP/1.1 200 OK\r\n"), "who says nothing does no harm");
        assert!(start(address, board, PATIENCE).is_err(), "taken");
    }

    #[test]
    fn a_query_changes_nothing_and_head_is_answered_with_the_head_alone() {
        let board = Board::default();
        board.publish(Status::default());
        let address = start("127.0.0.1:0".parse().unwrap(), board, Duration::from_secs(3600)).unwrap();
        let of = |request: &str| ask(address, &format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n"));
        let (head, body) = {
            let whole = of("GET /metrics?name=tandem_info");
            let (head, body) = whole.split_once("\r\n\r\n").unwrap();
            (head.to_owned(), body.to_owned())
        };
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body.contains("tandem_"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        let asked = of("HEAD /metrics");
        assert!(asked.starts_with("HTTP/1.1 200 OK\r\n") && asked.ends_with("\r\n\r\n"), "{asked}");
        assert!(of("HEAD /").starts_with("HTTP/1.1 404 ") && of("GET /metric?/metrics").starts_with("HTTP/1.1 404 "));
        assert!(of("PUT /metrics?").starts_with("HTTP/1.1 405 "));
    }

    #[test]
    fn who_sends_a_byte_now_and_then_is_not_waited_for() {
        let address = start("127.0.0.1:0".parse().unwrap(), Board::default(), PATIENCE).unwrap();
        let mut slow = TcpStream::connect(address).unwrap();
        let begun = Instant::now();
        while slow.write_all(b"x").is_ok() {
            assert!(begun.elapsed() < 10 * PATIENCE, "the connection goes on");
            thread::sleep(PATIENCE / 20);
        }
    }

    #[test]
    fn an_agent_that_hangs_is_told() {
        let board = Board::default();
        board.publish(Status::default());
        let address = start("127.0.0.1:0".parse().unwrap(), board, Duration::ZERO).unwrap();
        let answer = ask(address, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("the agent does not go on\n"), "{answer}");
    }
}
