// SPDX-License-Identifier: GPL-2.0-only
//! The options of every command that has a report: where its page goes, and its plots.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use tandem_ab::page::Page;
use tandem_ab::plots;
use tandem_ab::store::{check_writable, write_whole};

/// Where a report goes.
#[derive(Args)]
pub struct ReportFiles {
    /// Write the report as one HTML file with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each plot of the report to this folder, as SVG and as PNG; the folder is made if there is none
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

impl ReportFiles {
    /// Whether anybody wants a report.
    pub fn wanted(&self) -> bool {
        self.html.is_some() || self.plots.is_some()
    }

    /// Where the page goes, if anybody wants it.
    pub fn page(&self) -> Option<&Path> {
        self.html.as_deref()
    }

    /// Whether they could be written: for what takes long before there is something to write.
    ///
    /// # Errors
    /// They could not.
    pub fn check(&self) -> Result<()> {
        if let Some(file) = &self.html {
            check_writable(file)?;
        }
        self.plots.as_deref().map_or(Ok(()), plots::make_folder)
    }

    /// Writes what is wanted of the page that `page` makes; it is not made if nothing is.
    ///
    /// # Errors
    /// A plot cannot be drawn, or a file not be written.
    pub fn write(&self, page: impl FnOnce() -> Result<Page>) -> Result<()> {
        if !self.wanted() {
            return Ok(());
        }
        let page = page()?;
        if let Some(folder) = &self.plots {
            plots::write(page.plots(), folder)?;
        }
        self.html.as_ref().map_or(Ok(()), |file| write_whole(file, page.into_html().as_bytes()))
    }
}
