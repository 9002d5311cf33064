//! Plots, each as SVG and as PNG. The font of the PNG is shipped inside, so that it looks the same everywhere.

use crate::{Error, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::path::{Path, PathBuf};

/// Colours that can be told apart, also without seeing red and green.
pub const COLOURS: [RGBColor; 4] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(120, 120, 120),
];

/// A line of (x, y) with its name.
pub struct Line {
    /// For the legend.
    pub name: String,
    /// Points in order of x.
    pub points: Vec<(f64, f64)>,
}

/// A panel of lines over time.
pub struct Panel {
    /// Above the panel.
    pub title: String,
    /// Beside the y axis.
    pub unit: String,
    /// What is drawn.
    pub lines: Vec<Line>,
    /// Vertical marks: (x, text).
    pub marks: Vec<(f64, String)>,
}

/// Groups of bars: one group a label, one bar a series.
pub struct Bars {
    /// Above the plot.
    pub title: String,
    /// Beside the y axis.
    pub unit: String,
    /// Names of the groups.
    pub labels: Vec<String>,
    /// (name, a value a group).
    pub series: Vec<(String, Vec<f64>)>,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Plot(error.to_string())
}

/// Draws `path.svg` and `path.png`; gives both names.
fn both(path: &Path, size: (u32, u32), draw: impl Fn(&dyn Draw) -> Result<()>) -> Result<[PathBuf; 2]> {
    // A second registration of the same font is refused, and needs no more than the first.
    let _ = register_font(
        "sans-serif",
        FontStyle::Normal,
        include_bytes!("../assets/plot-font.ttf"),
    );
    let (svg, png) = (path.with_extension("svg"), path.with_extension("png"));
    draw(&Svg(&svg, size))?;
    draw(&Png(&png, size))?;
    Ok([svg, png])
}

/// The two backends behind one call, since plotters' drawing areas are generic over them.
trait Draw {
    fn panels(&self, panels: &[Panel]) -> Result<()>;
    fn bars(&self, bars: &Bars) -> Result<()>;
}

struct Svg<'a>(&'a Path, (u32, u32));
struct Png<'a>(&'a Path, (u32, u32));

impl Draw for Svg<'_> {
    fn panels(&self, panels: &[Panel]) -> Result<()> {
        draw_panels(SVGBackend::new(self.0, self.1).into_drawing_area(), panels)
    }
    fn bars(&self, bars: &Bars) -> Result<()> {
        draw_bars(SVGBackend::new(self.0, self.1).into_drawing_area(), bars)
    }
}

impl Draw for Png<'_> {
    fn panels(&self, panels: &[Panel]) -> Result<()> {
        draw_panels(BitMapBackend::new(self.0, self.1).into_drawing_area(), panels)
    }
    fn bars(&self, bars: &Bars) -> Result<()> {
        draw_bars(BitMapBackend::new(self.0, self.1).into_drawing_area(), bars)
    }
}

/// Panels one above the other with the same x axis (seconds).
///
/// # Errors
/// [`Error::Plot`] if the plot cannot be drawn or written.
pub fn panels(path: &Path, panels: &[Panel]) -> Result<[PathBuf; 2]> {
    both(path, (1000, 90 + 300 * panels.len() as u32), |b| b.panels(panels))
}

/// Grouped bars.
///
/// # Errors
/// [`Error::Plot`] if the plot cannot be drawn or written.
pub fn bars(path: &Path, bars: &Bars) -> Result<[PathBuf; 2]> {
    both(path, (1000, 480), |b| b.bars(bars))
}

fn draw_panels<B: DrawingBackend>(root: DrawingArea<B, Shift>, panels: &[Panel]) -> Result<()> {
    root.fill(&WHITE).map_err(failed)?;
    let all = || panels.iter().flat_map(|p| &p.lines).flat_map(|l| &l.points);
    let x_max = all().map(|p| p.0).fold(1.0, f64::max);
    let y_max = all().map(|p| p.1).fold(1.0, f64::max) * 1.15;
    for (area, panel) in root.split_evenly((panels.len().max(1), 1)).iter().zip(panels) {
        draw_panel(area, panel, x_max, y_max)?;
    }
    root.present().map_err(failed)
}

fn draw_panel<B: DrawingBackend>(area: &DrawingArea<B, Shift>, panel: &Panel, x_max: f64, y_max: f64) -> Result<()> {
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..x_max, 0.0..y_max)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("seconds")
        .y_desc(&panel.unit)
        .label_style(("sans-serif", 14))
        .y_label_formatter(&|v| crate::table::thousands(*v))
        .draw()
        .map_err(failed)?;
    for (line, colour) in panel.lines.iter().zip(COLOURS) {
        let series = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2));
        let drawn = chart.draw_series(series).map_err(failed)?;
        drawn
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    for (i, (x, text)) in panel.marks.iter().enumerate() {
        let y = y_max * (0.97 - 0.09 * i as f64);
        chart
            .draw_series([PathElement::new([(*x, 0.0), (*x, y)], BLACK.mix(0.5))])
            .map_err(failed)?;
        chart
            .draw_series([Text::new(format!(" {text}"), (*x, y), ("sans-serif", 14))])
            .map_err(failed)?;
    }
    if panel.lines.len() > 1 {
        let mut labels = chart.configure_series_labels();
        labels
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .label_font(("sans-serif", 14))
            .draw()
            .map_err(failed)?;
    }
    Ok(())
}

fn draw_bars<B: DrawingBackend>(root: DrawingArea<B, Shift>, bars: &Bars) -> Result<()> {
    root.fill(&WHITE).map_err(failed)?;
    let y_max = bars
        .series
        .iter()
        .flat_map(|s| &s.1)
        .copied()
        .filter(|v| v.is_finite())
        .fold(0.1, f64::max)
        * 1.2;
    let groups = bars.labels.len() as f64;
    let mut chart = ChartBuilder::on(&root)
        .caption(&bars.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(8)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..groups, -0.07 * y_max..y_max)
        .map_err(failed)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh()
        .disable_x_axis()
        .light_line_style(WHITE)
        .y_desc(&bars.unit)
        .label_style(("sans-serif", 14));
    mesh.y_label_formatter(&|v| if *v < -1e-9 { String::new() } else { short(*v) })
        .draw()
        .map_err(failed)?;
    let width = 0.8 / bars.series.len().max(1) as f64;
    for (s, (name, values)) in bars.series.iter().enumerate() {
        let colour = COLOURS[s % COLOURS.len()];
        let left = |g: usize| g as f64 + 0.1 + s as f64 * width;
        let rectangles = values
            .iter()
            .enumerate()
            .map(|(g, v)| Rectangle::new([(left(g), 0.0), (left(g) + width * 0.92, *v)], colour.filled()));
        let drawn = chart.draw_series(rectangles).map_err(failed)?;
        drawn
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
        let texts = values
            .iter()
            .enumerate()
            .map(|(g, v)| Text::new(short(*v), (left(g), *v + y_max * 0.04), ("sans-serif", 13)));
        chart.draw_series(texts).map_err(failed)?;
    }
    let below = |g: usize, l: &String| Text::new(l.clone(), (g as f64 + 0.1, -y_max * 0.02), ("sans-serif", 14));
    for (g, label) in bars.labels.iter().enumerate() {
        chart.draw_series([below(g, label)]).map_err(failed)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .label_font(("sans-serif", 14))
        .draw()
        .map_err(failed)?;
    root.present().map_err(failed)
}

fn short(value: f64) -> String {
    if value < 100.0 {
        format!("{value:.2}")
    } else {
        crate::table::thousands(value)
    }
}
