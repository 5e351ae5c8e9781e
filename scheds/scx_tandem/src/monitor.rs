// SPDX-License-Identifier: GPL-2.0-only
//! `--monitor`: the statistics of a scx_tandem that runs elsewhere.

use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::Result;
use tandem_agent::Order;
use tandem_view::{Client, SOCKET};

/// Prints a line now and every `interval`, until it is told to stop or the scheduler is gone.
pub fn run(interval: Duration, orders: &Receiver<Order>) -> Result<()> {
    let mut client = Client::connect(Path::new(SOCKET))?;
    loop {
        let line =
            client.status()?.map_or_else(|| "no interval is over yet".to_owned(), |status| tandem_view::line(&status));
        writeln!(std::io::stdout(), "{line}")?;
        match orders.recv_timeout(interval) {
            Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(Order::Reload) | Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
