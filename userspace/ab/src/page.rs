// SPDX-License-Identifier: GPL-2.0-only
//! Pages that all our reports are: one file, no network, no script, in the reader's choice of light or dark.
//!
//! A page remembers its plots, so that they can be had as files of their own too (see `plots`).

use std::fmt::{self, Write};
use std::ops::AddAssign;

use anyhow::Result;

use crate::charts::COLOURS;

/// Style sheet of all our pages.
pub const STYLE: &str = include_str!("report.css");

/// A page that is being written.
pub struct Page {
    text: String,
    plots: Vec<Plot>,
    section: Option<String>,
}

/// A plot of a page.
pub struct Plot {
    /// What it shows; no two of a page need differ.
    pub title: String,
    /// The SVG element as it is in the page.
    pub element: String,
    /// What its colours mean: (index, name).
    pub legend: Vec<(usize, String)>,
}

impl Page {
    /// Begins a section with this title, which the titles of its plots then have before their own.
    pub fn begin_section(&mut self, title: &str) {
        self.text += &format!("<section><h1>{}</h1>\n", escaped(title));
        self.section = Some(title.to_owned());
    }

    fn add_plot(&mut self, title: &str, element: &str, legend: &[(usize, String)]) {
        let title = self.section.as_ref().map_or(title.to_owned(), |section| format!("{section}: {title}"));
        self.plots.push(Plot { title, element: element.to_owned(), legend: legend.to_vec() });
    }

    /// Its plots, in their order.
    pub fn plots(&self) -> &[Plot] {
        &self.plots
    }

    /// The page as a file, at its end.
    pub fn into_html(self) -> String {
        self.text + "</body></html>\n"
    }
}

impl Write for Page {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.text.write_str(text)
    }
}

impl AddAssign<&str> for Page {
    fn add_assign(&mut self, text: &str) {
        self.text += text;
    }
}

/// The beginning of a page, up to and with `<body>`.
pub fn head(title: &str, style: &str) -> Page {
    let text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n<style>\n{style}</style></head>\n<body>\n",
        escaped(title)
    );
    Page { text, plots: Vec::new(), section: None }
}

/// Appends a plot with its title, legend and caption; nothing if the plot is empty.
///
/// # Errors
/// None; the type is that of writing.
pub fn figure(page: &mut Page, title: &str, caption: &str, plot: &str, legend: &[(usize, String)]) -> Result<()> {
    if plot.is_empty() {
        return Ok(());
    }
    writeln!(page, "<h2>{}</h2>\n<figure>{plot}</figure>", escaped(title))?;
    write_legend(page, legend)?;
    writeln!(page, "<p class=\"caption\">{caption}</p>")?;
    page.add_plot(title, plot, legend);
    Ok(())
}

/// Appends a plot to a grid of plots under one title, which share a legend that the caller writes; nothing if the plot is
/// empty.
///
/// # Errors
/// None; the type is that of writing.
pub fn cell(page: &mut Page, title: &str, name: &str, plot: &str, legend: &[(usize, String)]) -> Result<()> {
    if plot.is_empty() {
        return Ok(());
    }
    writeln!(page, "<figure><figcaption>{}</figcaption>{plot}</figure>", escaped(name))?;
    page.add_plot(&format!("{title}: {name}"), plot, legend);
    Ok(())
}

/// Appends a line that names the colours (index, name) of a plot.
///
/// # Errors
/// None; the type is that of writing.
pub fn write_legend(page: &mut Page, legend: &[(usize, String)]) -> Result<()> {
    if legend.is_empty() {
        return Ok(());
    }
    *page += "<p class=\"legend\">";
    for (colour, name) in legend {
        let (red, green, blue) = COLOURS[colour % COLOURS.len()];
        write!(page, "<span><i style=\"background:rgb({red},{green},{blue})\"></i>{}</span>", escaped(name))?;
    }
    *page += "</p>\n";
    Ok(())
}

/// Text with everything escaped that means something in a page.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
