// SPDX-License-Identifier: GPL-2.0-only
//! Plots as SVG texts, to be put into a page.
//!
//! Ink is black and grid lines are light grey here; the page's style sheet turns both over in the dark (see `report`).
//! Colours of series are legible on both.

use std::fmt::Display;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::experiment::{ArmResult, Experiment};

/// Colours of series, in their order; a further series begins anew.
pub const COLOURS: [(u8, u8, u8); 10] = [
    (43, 131, 217),
    (226, 106, 32),
    (47, 158, 82),
    (196, 62, 87),
    (139, 98, 208),
    (150, 110, 74),
    (214, 92, 170),
    (120, 130, 140),
    (164, 160, 30),
    (22, 163, 173),
];

/// Colour of grid lines; the style sheet knows it.
pub const GRID: RGBColor = RGBColor(221, 221, 221);

/// Room for one character of a row's name, in px.
const NAME_CHARACTER_PX: usize = 8;

/// Room to the right of a plot: the last label below it may be centred on its end.
const LAST_LABEL_PX: u32 = 28;

/// One line of a plot: its points, x ascending.
pub struct Line {
    /// Index of its colour.
    pub colour: usize,
    /// (x, y).
    pub points: Vec<(f64, f64)>,
}

/// The colour with this index.
pub fn colour(index: usize) -> RGBColor {
    let (red, green, blue) = COLOURS[index % COLOURS.len()];
    RGBColor(red, green, blue)
}

/// One row of a plot of dots.
pub struct Row {
    /// What it is of.
    pub name: String,
    /// A dot each.
    pub values: Vec<f64>,
    /// Where its tick is.
    pub tick: Option<f64>,
    /// From where to where its bar goes.
    pub bar: Option<[f64; 2]>,
}

/// Every run of every arm as a dot, its median as a tick, its interval (scaled by the best stock arm's median) as a bar,
/// and the best stock arm as a line through all.
///
/// # Errors
/// The plot cannot be drawn.
pub fn values(experiment: &Experiment) -> Result<String> {
    let reference = experiment.best_stock().and_then(|arm| arm.median);
    let row = |arm: &ArmResult| Row {
        name: arm.name.clone(),
        values: arm.runs.clone(),
        tick: arm.median,
        bar: arm.interval.zip(reference).map(|(ends, reference)| ends.map(|end| end * reference)),
    };
    let rows: Vec<Row> = experiment.arms.iter().map(row).collect();
    dots(&rows, &format!("{} [{}]", experiment.metric, experiment.unit), reference)
}

/// Rows of dots from 0 on, below each other, and a line through all at `reference`. Empty if nothing is above 0. Names have as
/// much room as the longest needs, up to half of the plot.
///
/// # Errors
/// The plot cannot be drawn.
pub fn dots(all: &[Row], x_name: &str, reference: Option<f64>) -> Result<String> {
    let (rows, height) = (all.len() as i32, 66 + 34 * all.len() as u32);
    let parts =
        |row: &Row| row.values.iter().copied().chain(row.tick).chain(row.bar.into_iter().flatten()).collect::<Vec<_>>();
    let greatest = all.iter().flat_map(parts).fold(0.0, f64::max);
    if greatest <= 0.0 {
        return Ok(String::new());
    }
    let longest = all.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    svg((860, height), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(LAST_LABEL_PX)
            .x_label_area_size(42)
            .y_label_area_size((longest * NAME_CHARACTER_PX).clamp(190, 430) as u32)
            .build_cartesian_2d(0.0..greatest * 1.05, (0..rows - 1).into_segmented())
            .map_err(drawing)?;
        let name = |row: &SegmentValue<i32>| match row {
            SegmentValue::CenterOf(row) => all.get((rows - 1 - row) as usize).map_or("", |row| &row.name).to_owned(),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .y_labels(all.len())
            .y_label_formatter(&name)
            .x_desc(x_name)
            .label_style(("sans-serif", 16))
            .draw()
            .map_err(drawing)?;
        if let Some(reference) = reference {
            let ends = [(reference, SegmentValue::Exact(0)), (reference, SegmentValue::Exact(rows))];
            chart.draw_series([PathElement::new(ends, BLACK.mix(0.5).stroke_width(1))]).map_err(drawing)?;
        }
        for (index, row) in all.iter().enumerate() {
            let place = SegmentValue::CenterOf(rows - 1 - index as i32);
            let style = colour(index);
            if let Some([low, high]) = row.bar {
                let ends = [(low, place.clone()), (high, place.clone())];
                chart.draw_series([PathElement::new(ends, style.mix(0.35).stroke_width(9))]).map_err(drawing)?;
            }
            let dots = row.values.iter().map(|&value| Circle::new((value, place.clone()), 4, style.filled()));
            chart.draw_series(dots).map_err(drawing)?;
            let tick = row.tick.map(|tick| {
                EmptyElement::at((tick, place.clone())) + PathElement::new([(0, -10), (0, 10)], BLACK.stroke_width(2))
            });
            chart.draw_series(tick).map_err(drawing)?;
        }
        Ok(())
    })
}

/// Lines over time in s, y from 0 to 1 (or to the greatest value if that is more).
///
/// # Errors
/// The plot cannot be drawn.
pub fn over_time(lines: &[Line], y_name: &str, size: (u32, u32)) -> Result<String> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let end = points().map(|point| point.0).fold(0.0, f64::max);
    let top = points().map(|point| point.1).fold(1.0, f64::max);
    if end <= 0.0 {
        return Ok(String::new());
    }
    svg(size, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(LAST_LABEL_PX)
            .x_label_area_size(40)
            .y_label_area_size(if top < 1e2 { 52 } else { 68 })
            .build_cartesian_2d(0.0..end, 0.0..top)
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .x_labels(6)
            .y_labels(5)
            .y_label_formatter(&|value| if top < 1e3 { format!("{value:.1}") } else { format!("{value:.0}") })
            .x_desc("time [s]")
            .y_desc(y_name)
            .label_style(("sans-serif", 15))
            .draw()
            .map_err(drawing)?;
        for line in lines {
            let series = LineSeries::new(line.points.iter().copied(), colour(line.colour).stroke_width(2));
            chart.draw_series(series).map_err(drawing)?;
        }
        Ok(())
    })
}

/// What `draw` draws on an area of this size, as the text of an element that shrinks with its page.
///
/// # Errors
/// The plot cannot be drawn.
pub fn svg(
    (width, height): (u32, u32),
    draw: impl Fn(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<()>,
) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (width, height)).into_drawing_area();
        draw(&area)?;
        area.present().map_err(drawing)?;
    }
    // So that it shrinks with the page.
    let fixed = format!("<svg width=\"{width}\" height=\"{height}\" ");
    Ok(text.replacen(&fixed, &format!("<svg style=\"max-width:{width}px\" "), 1))
}

/// The library's errors hold references to the plot and cannot be passed on as they are.
pub fn drawing(error: impl Display) -> anyhow::Error {
    anyhow!("the plot cannot be drawn: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the texts that are centred end in a plot, in px, if a character is half as wide as it is high, or a little more.
    fn ends_px(plot: &str) -> Vec<f64> {
        let attribute = |element: &str, name: &str| {
            let (_, value) = element.split_once(&format!(" {name}=\"")).unwrap();
            value.split_once('"').unwrap().0.to_owned()
        };
        let centred = plot.split("<text").skip(1).filter(|element| element.contains("text-anchor=\"middle\""));
        centred
            .map(|element| {
                let words = element.split_once('>').unwrap().1.split('<').next().unwrap().trim();
                let height: f64 = attribute(element, "font-size").parse().unwrap();
                attribute(element, "x").parse::<f64>().unwrap() + 0.3 * height * words.chars().count() as f64
            })
            .collect()
    }

    #[test]
    fn an_interval_beyond_all_dots_is_drawn_whole() {
        let row = Row { name: "arm".into(), values: vec![1.0], tick: Some(1.0), bar: Some([0.5, 4.0]) };
        let plot = dots(&[row], "time [s]", None).unwrap();
        let bar = plot.split("<polyline").find(|element| element.contains("stroke-width=\"9\"")).unwrap();
        let end_px: f64 = bar
            .split_once("points=\"")
            .unwrap()
            .1
            .split(['"', ' '])
            .filter(|point| point.contains(','))
            .map(|point| point.split_once(',').unwrap().0.parse().unwrap())
            .fold(0.0, f64::max);
        // The axis goes 5 % beyond it: what is cut off ends where the axis does.
        assert!(end_px < 820.0, "{end_px}: {bar}");
    }

    #[test]
    fn a_label_at_the_end_of_an_axis_has_room() {
        // The axis ends 5 % beyond the greatest value: at a label, or right behind one.
        for end in [0.16, 0.1601, 0.2, 1.0, 25.0, 100.0, 1000.0, 16000.0] {
            let row = Row { name: "arm".into(), values: vec![end / 1.05], tick: None, bar: None };
            let line = Line { colour: 0, points: vec![(0.0, 0.0), (end, 1.0)] };
            for plot in [dots(&[row], "time [s]", None).unwrap(), over_time(&[line], "share", (860, 320)).unwrap()] {
                let ends = ends_px(&plot);
                assert!(ends.len() > 3, "{plot}");
                assert!(ends.iter().all(|&end_px| end_px <= 860.0), "{end}: {ends:?}");
            }
        }
    }
}
