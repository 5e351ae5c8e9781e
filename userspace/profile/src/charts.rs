// SPDX-License-Identifier: GPL-2.0-only
//! Plots of a profile as SVG texts, in the look of tandem-ab's.

use anyhow::Result;
use plotters::prelude::*;
use tandem_ab::charts::{GRID, colour, drawing, svg};

/// Most cells of a heat map in a row; more threads than this share cells.
const MOST_CELLS: usize = 96;

/// A symmetric matrix of `threads` threads as a map of cells: the larger, the more colour. Empty without any event.
///
/// # Errors
/// The plot cannot be drawn.
pub fn heat_map(events: &[(usize, usize, u64)], threads: usize, size: (u32, u32)) -> Result<String> {
    let per_cell = threads.div_ceil(MOST_CELLS).max(1);
    let cells = threads.div_ceil(per_cell);
    let mut sums = vec![0u64; cells * cells];
    for &(one, other, count) in events {
        let (one, other) = (one / per_cell, other / per_cell);
        sums[one * cells + other] += count;
        if one != other {
            sums[other * cells + one] += count;
        }
    }
    let most = sums.iter().max().copied().unwrap_or(0);
    if most == 0 {
        return Ok(String::new());
    }
    svg(size, |area| {
        // Ranges of whole numbers hold their end.
        let last = cells as i32 - 1;
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .x_label_area_size(40)
            .y_label_area_size(48)
            .build_cartesian_2d((0..last).into_segmented(), (0..last).into_segmented())
            .map_err(drawing)?;
        let name = |cell: &SegmentValue<i32>| match cell {
            SegmentValue::CenterOf(cell) => (*cell as usize * per_cell).to_string(),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_mesh()
            .x_labels(cells.min(16))
            .y_labels(cells.min(16))
            .x_label_formatter(&name)
            .y_label_formatter(&name)
            .x_desc("thread")
            .y_desc("thread")
            .label_style(("sans-serif", 15))
            .draw()
            .map_err(drawing)?;
        let filled = (0..cells * cells).filter(|&at| sums[at] > 0);
        let cell = |at: usize| {
            let corner = |step: i32| {
                let place = |index: usize| SegmentValue::Exact(index as i32 + step);
                (place(at / cells), place(at % cells))
            };
            Rectangle::new([corner(0), corner(1)], colour(0).mix(sums[at] as f64 / most as f64).filled())
        };
        chart.draw_series(filled.map(cell)).map_err(drawing)?;
        Ok(())
    })
}

/// Bars side by side in groups: a value by group and colour, which is the index in the group. y begins at 0 and ends at
/// `top` at least. Empty if all is 0.
///
/// # Errors
/// The plot cannot be drawn.
pub fn bars(groups: &[(String, Vec<f64>)], y_name: &str, top: f64, size: (u32, u32)) -> Result<String> {
    let most = groups.iter().flat_map(|group| &group.1).copied().fold(0.0, f64::max);
    if most <= 0.0 {
        return Ok(String::new());
    }
    svg(size, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .x_label_area_size(30)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..groups.len() as f64, 0.0..top.max(most * 1.05))
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .x_labels(0)
            .y_labels(5)
            .y_desc(y_name)
            .label_style(("sans-serif", 15))
            .draw()
            .map_err(drawing)?;
        for (at, (name, values)) in groups.iter().enumerate() {
            let width = 0.8 / values.len() as f64;
            for (index, &value) in values.iter().enumerate() {
                let left = at as f64 + 0.1 + index as f64 * width;
                let corners = [(left, 0.0), (left + width * 0.9, value)];
                chart.draw_series([Rectangle::new(corners, colour(index).filled())]).map_err(drawing)?;
            }
            let below = chart.backend_coord(&(at as f64 + 0.5, 0.0));
            let style = TextStyle::from(("sans-serif", 15).into_font()).pos(plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Center,
                plotters::style::text_anchor::VPos::Top,
            ));
            area.draw_text(name, &style, (below.0, below.1 + 8)).map_err(drawing)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heat_map_has_a_cell_for_both_halves_of_a_pair() {
        let map = heat_map(&[(0, 1, 50), (2, 3, 100)], 4, (300, 300)).unwrap();
        assert_eq!(map.matches("<rect").count(), 4, "{map}");
        assert_eq!(map.matches("opacity=\"0.5\"").count(), 2, "{map}");
        assert_eq!(heat_map(&[], 4, (300, 300)).unwrap(), "");
    }

    #[test]
    fn many_threads_share_cells() {
        let pairs: Vec<_> = (0..250).map(|one| (one, 255 - one.min(100), 1)).collect();
        let map = heat_map(&pairs, 256, (300, 300)).unwrap();
        assert!(map.matches("<rect").count() <= MOST_CELLS * MOST_CELLS);
    }

    #[test]
    fn every_value_is_a_bar() {
        let groups = [("a".to_owned(), vec![0.5, 1.0]), ("b & c".to_owned(), vec![0.25, 0.75])];
        let text = bars(&groups, "share", 1.0, (300, 200)).unwrap();
        assert_eq!(text.matches("<rect").count(), 4, "{text}");
        assert_eq!(bars(&[("a".to_owned(), vec![0.0])], "share", 1.0, (300, 200)).unwrap(), "");
    }
}
