// SPDX-License-Identifier: GPL-2.0-only
//! What the search makes of recorded tables, as a JSON array. usage: judge-tuning MACHINES TABLE...

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use tandem_tune::search::Settings;
use tandem_tune::tables::{Judged, Table};

fn main() -> ExitCode {
    match judged() {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("judge-tuning: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn judged() -> Result<String> {
    let mut words = std::env::args_os().skip(1);
    let machines = words.next().ok_or_else(|| anyhow::anyhow!("usage: judge-tuning MACHINES TABLE..."))?;
    let judge = |table| Table::read(Path::new(&table))?.judge(Path::new(&machines), &Settings::default());
    Ok(serde_json::to_string_pretty(&words.map(judge).collect::<Result<Vec<Judged>>>()?)?)
}
