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
    let (status, body) = match (head.split_whitespace().next(), head.split_whitespace().nth(1), board.read()) {
        (Some("GET"), Some("/metrics"), Some(_)) if board.age().is_some_and(|age| age > fresh) => {
            ("503 Service Unavailable", "the agent does not go on\n".to_owned())
        }
        (Some("GET"), Some("/metrics"), Some(state)) => ("200 OK", prometheus(&state)),
        (Some("GET"), Some("/metrics"), None) => {
            ("503 Service Unavailable", "the first interval is under way\n".to_owned())
        }
        (Some("GET"), ..) => ("404 Not Found", "there is /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET\n".to_owned()),
    };
    let length = body.len();
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
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
