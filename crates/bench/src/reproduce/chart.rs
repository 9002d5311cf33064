//! Plots of figures: panels side by side, each with its own axes; lines with marks, or bars. SVG and PNG.
//!
//! A system has one colour in every figure. What the paper measured is drawn hollow, what was simulated is filled.

use crate::{Error, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::path::{Path, PathBuf};

/// A system's colour: can be told apart also without seeing red and green.
pub fn colour(series: &str) -> RGBColor {
    let known = [
        ("cost, 48 sessions", RGBColor(86, 180, 233)),
        ("Cenote", RGBColor(0, 114, 178)),
        ("page swapping", RGBColor(110, 110, 110)),
        ("objects", RGBColor(0, 158, 115)),
        ("coherent caches", RGBColor(213, 94, 0)),
        ("CXL over Ethernet", RGBColor(204, 121, 167)),
        ("the pool's choice", RGBColor(0, 114, 178)),
        ("always plain", RGBColor(86, 180, 233)),
        ("pure RPC, bare", RGBColor(110, 110, 110)),
        ("one layer", RGBColor(110, 110, 110)),
        ("two layers", RGBColor(0, 114, 178)),
        ("one-sided", RGBColor(213, 94, 0)),
        ("zero-copy", RGBColor(0, 158, 115)),
        ("read, ", RGBColor(0, 114, 178)),
        ("write, ", RGBColor(213, 94, 0)),
        ("each by itself", RGBColor(110, 110, 110)),
        ("collected", RGBColor(0, 114, 178)),
        ("all clients", RGBColor(0, 114, 178)),
        ("uniform", RGBColor(110, 110, 110)),
        ("skewed", RGBColor(0, 114, 178)),
        ("PolarDB", RGBColor(110, 110, 110)),
        ("16 sessions", RGBColor(0, 114, 178)),
        ("48 sessions", RGBColor(110, 110, 110)),
        ("switch, remote memory", RGBColor(0, 158, 115)),
        ("crash, remote memory", RGBColor(0, 114, 178)),
        ("storage nodes alone", RGBColor(213, 94, 0)),
        ("a reader goes on", RGBColor(86, 180, 233)),
        ("each pod its own", RGBColor(0, 114, 178)),
        ("CXL", RGBColor(0, 114, 178)),
        ("instant", RGBColor(0, 114, 178)),
        ("RDMA", RGBColor(213, 94, 0)),
        ("tiered", RGBColor(213, 94, 0)),
        ("DRAM", RGBColor(0, 158, 115)),
        ("vanilla", RGBColor(110, 110, 110)),
    ];
    let found = known.iter().find(|k| series.contains(k.0));
    found.map_or(RGBColor(170, 51, 119), |k| k.1)
}

/// One series of a panel.
pub struct Series {
    /// For the legend.
    pub name: String,
    /// (x, y), in order of x.
    pub points: Vec<(f64, f64)>,
    /// Measured by the paper: dashes and hollow marks.
    pub paper: bool,
}

/// One set of axes.
pub struct Panel {
    /// Above it.
    pub title: String,
    /// Below the x axis.
    pub x: String,
    /// Beside the y axis.
    pub y: String,
    /// What is drawn.
    pub series: Vec<Series>,
    /// Whether marks stand at the points (few points) or not (a course over time).
    pub marks: bool,
}

/// A figure: panels in rows of at most three.
pub struct Chart {
    /// Above all: says "simulated" or "measured".
    pub title: String,
    /// Its panels.
    pub panels: Vec<Panel>,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Plot(error.to_string())
}

/// Panels in a row.
const IN_A_ROW: usize = 3;

/// Draws `path.svg` and `path.png`.
///
/// # Errors
/// [`Error::Plot`] if the plot cannot be drawn or written.
pub fn draw(path: &Path, chart: &Chart) -> Result<[PathBuf; 2]> {
    // A second registration of the same font is refused, and needs no more than the first.
    let font = include_bytes!("../../assets/plot-font.ttf");
    let _ = register_font("sans-serif", FontStyle::Normal, font);
    let columns = chart.panels.len().clamp(1, IN_A_ROW);
    let rows = chart.panels.len().div_ceil(columns).max(1);
    let size = ((420 * columns as u32).max(760), 46 + 330 * rows as u32);
    let (svg, png) = (path.with_extension("svg"), path.with_extension("png"));
    all(SVGBackend::new(&svg, size).into_drawing_area(), chart, (rows, columns))?;
    all(
        BitMapBackend::new(&png, size).into_drawing_area(),
        chart,
        (rows, columns),
    )?;
    Ok([svg, png])
}

fn all<B: DrawingBackend>(root: DrawingArea<B, Shift>, chart: &Chart, grid: (usize, usize)) -> Result<()> {
    root.fill(&WHITE).map_err(failed)?;
    let root = root.titled(&chart.title, ("sans-serif", 18)).map_err(failed)?;
    for (area, panel) in root.split_evenly(grid).iter().zip(&chart.panels) {
        draw_panel(area, panel)?;
    }
    root.present().map_err(failed)
}

/// The greatest value of an axis.
fn top(values: impl Iterator<Item = f64>) -> f64 {
    let greatest = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
    if greatest > 0.0 { greatest } else { 1.0 }
}

/// Of a panel's height and width, what a line of the legend takes, what its frame and a mark below it do, and what it is
/// wide.
const LEGEND: (f64, f64, f64) = (0.065, 0.1, 0.6);

/// Where a panel's axes end: no point lies behind the legend, which stands at the upper left.
fn limits(panel: &Panel) -> (f64, f64) {
    let points = || panel.series.iter().flat_map(|s| &s.points);
    let (line, frame, wide) = LEGEND;
    let x_max = top(points().map(|p| p.0)) * 1.05;
    let left = points().filter(|p| p.0 < wide * x_max).map(|p| p.1);
    let below = 1.0 - (frame + line * panel.series.len() as f64).min(0.6);
    (x_max, (top(left) / below).max(top(points().map(|p| p.1)) * 1.1))
}

fn draw_panel<B: DrawingBackend>(area: &DrawingArea<B, Shift>, panel: &Panel) -> Result<()> {
    let (x_max, y_max) = limits(panel);
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(38)
        .y_label_area_size(58)
        .build_cartesian_2d(0.0..x_max, 0.0..y_max)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(&panel.x)
        .y_desc(&panel.y)
        .label_style(("sans-serif", 13))
        .x_label_formatter(&|v| short(*v))
        .y_label_formatter(&|v| short(*v))
        .draw()
        .map_err(failed)?;
    for series in &panel.series {
        let colour = colour(&series.name);
        let style = if series.paper {
            colour.stroke_width(1)
        } else {
            colour.stroke_width(2)
        };
        let drawn = chart
            .draw_series(LineSeries::new(series.points.iter().copied(), style))
            .map_err(failed)?;
        drawn
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        if panel.marks {
            let fill = if series.paper {
                colour.stroke_width(1)
            } else {
                colour.filled()
            };
            let marks = series.points.iter().map(|p| Circle::new(*p, 4, fill));
            chart.draw_series(marks).map_err(failed)?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 12))
        .draw()
        .map_err(failed)?;
    Ok(())
}

/// A number at an axis.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => crate::table::thousands(value),
        v if v >= 10.0 || (v - v.round()).abs() < 1e-9 => format!("{value:.0}"),
        v if v >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A legend hid the highest point, of one pod.
    #[test]
    fn no_point_lies_behind_the_legend() {
        let series = |name: &str, first: f64| Series {
            name: name.into(),
            points: vec![(1.0, first), (2.0, 10.0), (5.0, 24.0)],
            paper: false,
        };
        let panel = Panel {
            title: String::new(),
            x: String::new(),
            y: String::new(),
            series: (0..5).map(|n| series(&n.to_string(), 23.0 - f64::from(n))).collect(),
            marks: true,
        };
        let (x_max, y_max) = limits(&panel);
        assert!(x_max > 5.0 && y_max > 26.0);
        // As drawn: 16 pixels a line, 16 for the frame and above it, 4 for a mark, of 260.
        assert!(y_max * (1.0 - (5.0 * 16.0 + 20.0) / 260.0) > 23.0);
        let legend = y_max * (1.0 - LEGEND.1 - 5.0 * LEGEND.0);
        assert!((23.0..24.0).contains(&legend), "{legend} of {y_max}");
    }

    #[test]
    fn a_chart_is_drawn_twice() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let series = |name: &str, paper| Series {
            name: name.into(),
            points: vec![(1.0, 2.0), (12.0, 3.5)],
            paper,
        };
        let panel = |title: &str| Panel {
            title: title.into(),
            x: "instances".into(),
            y: "GB/s".into(),
            series: vec![series("CXL", false), series("RDMA, paper", true)],
            marks: true,
        };
        let chart = Chart {
            title: "simulated".into(),
            panels: vec![panel("one"), panel("two"), panel("three"), panel("four")],
        };
        for file in draw(&dir.path().join("x"), &chart).expect("drawn") {
            assert!(std::fs::metadata(file).expect("written").len() > 1000);
        }
        assert_eq!((short(1234.5), short(0.25)), ("1,234".into(), "0.25".into()));
    }
}
