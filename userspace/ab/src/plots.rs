// SPDX-License-Identifier: GPL-2.0-only
//! Plots of a page as files of their own, SVG and PNG.
//!
//! In a page, the title and the legend are beside a plot and the style sheet colours it. A file has all that in itself: the
//! title above, the legend below, white paper, and the plots' own colours, which are those of the light. Text in PNGs is set in a
//! font that is built in, since a server often has none.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};

use crate::charts::COLOURS;
use crate::page::{Plot, escaped};
use crate::store::{check_writable, write_whole};

/// Pixels of a PNG by unit of its SVG, so that it is sharp in print.
const SCALE: f32 = 2.0;
/// Heights of the title and of a line of the legend, in units of the SVG.
const TITLE: usize = 36;
const LEGEND: usize = 26;
/// The free stripe at each side.
const MARGIN: usize = 10;
/// A letter of the title and of the legend, rather too wide.
const TITLE_LETTER: usize = 10;
const LEGEND_LETTER: usize = 9;
/// A legend's square of colour, with what is free around it.
const SQUARE: usize = 22;
const FONT: &str = "Noto Sans";

/// Makes the folder for plots if there is none, and sees that it can be written to: for what takes long before there is
/// something to write.
///
/// # Errors
/// It cannot be made or written to.
pub fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("the folder {} cannot be made", folder.display()))?;
    check_writable(&folder.join("plot"))
}

/// Writes each plot to `folder` as TITLE.svg and TITLE.png. Files of the same names are replaced.
///
/// # Errors
/// A file cannot be written.
pub fn write(plots: &[Plot], folder: &Path) -> Result<()> {
    for (plot, name) in plots.iter().zip(names(plots)) {
        let svg = stand_alone(plot)?;
        write_whole(&folder.join(format!("{name}.svg")), svg.as_bytes())?;
        write_whole(&folder.join(format!("{name}.png")), &png(&svg)?)?;
    }
    Ok(())
}

/// A name of a file for each plot: its title in small letters, with a number where that is taken.
fn names(plots: &[Plot]) -> Vec<String> {
    let mut taken = HashSet::new();
    let plain = |title: &str| -> String {
        let words = title.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
        words.map(str::to_lowercase).collect::<Vec<_>>().join("-")
    };
    let name = |plot: &Plot| {
        let plain = plain(&plot.title);
        let numbered = (2..).map(|number| format!("{plain}-{number}"));
        let mut all = std::iter::once(plain.clone()).chain(numbered);
        all.find(|name| taken.insert(name.clone())).expect("there are enough numbers")
    };
    plots.iter().map(name).collect()
}

/// The plot as an SVG file.
///
/// # Errors
/// Its element is none of [`crate::charts::svg`].
pub fn stand_alone(plot: &Plot) -> Result<String> {
    let (content, [own_width, own_height]) = content(&plot.element).context("a plot is not as plots are")?;
    let width = own_width.max(2 * MARGIN + TITLE_LETTER * plot.title.chars().count());
    let (legend, legend_height) = legend(&plot.legend, width, TITLE + own_height);
    let height = TITLE + own_height + legend_height;
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#FFFFFF\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" font-size=\"17\">{}</text>\n<g transform=\"translate(0 {TITLE})\">{content}</g>\n\
         {legend}</svg>\n",
        escaped(&plot.title)
    ))
}

/// What is in the element, and its width and height.
fn content(element: &str) -> Option<(&str, [usize; 2])> {
    let (head, rest) = element.split_once('>')?;
    let size = head.split_once("viewBox=\"0 0 ")?.1.split_once('"')?.0;
    let (width, height) = size.split_once(' ')?;
    Some((rest.trim_end().strip_suffix("</svg>")?, [width.parse().ok()?, height.parse().ok()?]))
}

/// A legend within `width` from `top` on, in as many lines as it needs, and its height.
fn legend(entries: &[(usize, String)], width: usize, top: usize) -> (String, usize) {
    let (mut text, mut left, mut line) = (String::new(), MARGIN, 0);
    for (colour, name) in entries {
        let wide = SQUARE + LEGEND_LETTER * name.chars().count() + MARGIN;
        if left > MARGIN && left + wide > width {
            (left, line) = (MARGIN, line + 1);
        }
        let y = top + line * LEGEND;
        let (red, green, blue) = COLOURS[colour % COLOURS.len()];
        writeln!(
            text,
            "<rect x=\"{left}\" y=\"{}\" width=\"14\" height=\"14\" fill=\"rgb({red},{green},{blue})\"/>\
             <text x=\"{}\" y=\"{}\" font-size=\"15\">{}</text>",
            y + 2,
            left + SQUARE,
            y + 14,
            escaped(name)
        )
        .expect("a String takes all");
        left += wide;
    }
    (text, if entries.is_empty() { 0 } else { (line + 1) * LEGEND })
}

/// An SVG file as a PNG file.
///
/// # Errors
/// It is no SVG, or has no size.
pub fn png(svg: &str) -> Result<Vec<u8>> {
    let mut options = Options::default();
    let fonts = options.fontdb_mut();
    fonts.load_font_data(ttf_noto_sans::REGULAR.to_vec());
    fonts.set_sans_serif_family(FONT);
    let tree = Tree::from_str(svg, &options).context("a plot cannot be drawn as PNG")?;
    let [width, height] = [tree.size().width(), tree.size().height()].map(|side| (side * SCALE).ceil() as u32);
    let mut pixels = Pixmap::new(width, height).ok_or_else(|| anyhow!("a plot of {width} x {height} pixels"))?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().context("a plot cannot be written as PNG")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::charts::{Line, over_time};

    fn plot(title: &str, legend: &[&str]) -> Plot {
        let line = |colour: usize| Line { colour, points: vec![(0.0, 0.1 * colour as f64), (4.0, 0.9)] };
        let element = over_time(&[line(0), line(1)], "part", (400, 200)).unwrap();
        let legend = legend.iter().map(|&name| name.to_owned()).enumerate().collect();
        Plot { title: title.to_owned(), element, legend }
    }

    /// Width, height and colours (but for those of few pixels, where edges blend).
    fn seen(png: &[u8]) -> (u32, u32, HashSet<(u8, u8, u8)>) {
        let pixels = Pixmap::decode_png(png).unwrap();
        let mut counts = std::collections::HashMap::new();
        for pixel in pixels.pixels() {
            *counts.entry((pixel.red(), pixel.green(), pixel.blue())).or_insert(0) += 1;
        }
        let colours = counts.into_iter().filter(|&(_, count)| count > 50).map(|(colour, _)| colour).collect();
        (pixels.width(), pixels.height(), colours)
    }

    #[test]
    fn a_plot_has_its_title_its_legend_and_its_colours_in_itself() {
        let svg = stand_alone(&plot("Local & remote", &["one", "<two>"])).unwrap();
        let tree = resvg::usvg::roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<&str> = tree.descendants().filter_map(|node| node.text()).map(str::trim).collect();
        for text in ["Local & remote", "one", "<two>", "time [s]", "part"] {
            assert!(texts.contains(&text), "{text}: {texts:?}");
        }
        let lines = tree.descendants().filter(|node| node.has_tag_name("polyline"));
        let strokes: HashSet<&str> = lines.filter_map(|line| line.attribute("stroke")).collect();
        assert!(strokes.contains("#2B83D9") && strokes.contains("#E26A20"), "{strokes:?}");
        assert!(!svg.contains("var(") && !svg.contains("class=") && !svg.contains("style="), "{svg}");
    }

    #[test]
    fn a_png_shows_paper_ink_and_every_line() {
        let (width, height, colours) = seen(&png(&stand_alone(&plot("Local", &["one", "two"])).unwrap()).unwrap());
        assert_eq!((width, height), (800, 2 * (200 + TITLE + LEGEND) as u32));
        for colour in [(255, 255, 255), (0, 0, 0), COLOURS[0], COLOURS[1]] {
            assert!(colours.contains(&colour), "{colour:?}: {colours:?}");
        }
    }

    #[test]
    fn text_is_drawn_on_a_machine_without_fonts() {
        let letters = |title: &str| {
            let pixels = Pixmap::decode_png(&png(&stand_alone(&plot(title, &[])).unwrap()).unwrap()).unwrap();
            let dark = |pixel: &&resvg::tiny_skia::PremultipliedColorU8| pixel.red() < 100;
            pixels.pixels()[..(pixels.width() * 60) as usize].iter().filter(dark).count()
        };
        assert_eq!(letters(" "), 0);
        assert!(letters("W") > 50);
    }

    #[test]
    fn long_titles_and_legends_are_not_cut_off() {
        let names = ["a name of some length"; 5];
        let (width, height, _) = seen(&png(&stand_alone(&plot(&"long ".repeat(12), &names)).unwrap()).unwrap());
        assert!(width >= 2 * 60 * 8 && height >= 2 * (200 + TITLE + 2 * LEGEND) as u32, "{width} x {height}");
    }

    #[test]
    fn every_plot_has_its_two_files() {
        let folder = tempfile::tempdir().unwrap();
        let all = [plot("Phases", &[]), plot("Load: 1/2", &[]), plot("Load: 1,2", &[])];
        let folder = folder.path().join("new");
        make_folder(&folder).unwrap();
        write(&all, &folder).unwrap();
        let mut found: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        found.sort();
        let expected = ["load-1-2-2.png", "load-1-2-2.svg", "load-1-2.png", "load-1-2.svg", "phases.png", "phases.svg"];
        assert_eq!(found, expected);
    }
}
