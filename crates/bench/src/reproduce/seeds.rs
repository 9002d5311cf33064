//! One figure out of those of several seeds: medians in place of numbers, with least and most where they matter.
//!
//! Figures of one experiment have the same tables, series and comparisons, whatever the seed. A cell whose numbers are
//! more than a twentieth of their median apart shows what they were; lines of plots are medians, point by point.

use super::chart::{Chart, Panel};
use super::judge::Samples;
use super::report::{Figure, Table};

/// Cells show least and most where they are further apart than this share of the median.
const APART: f64 = 0.05;

/// Puts the figures of several seeds into one.
pub fn merge(mut figures: Vec<Figure>) -> Figure {
    let mut one = figures.remove(0);
    for (i, claim) in one.claims.iter_mut().enumerate() {
        let others = figures.iter().flat_map(|f| f.claims[i].ours.values().iter().copied());
        claim.ours = Samples::of(claim.ours.values().iter().copied().chain(others));
    }
    for (i, table) in one.tables.iter_mut().enumerate() {
        let others: Vec<&Table> = figures.iter().map(|f| &f.tables[i]).collect();
        merge_table(table, &others);
    }
    if let Some(chart) = &mut one.chart {
        let others: Vec<&Chart> = figures.iter().filter_map(|f| f.chart.as_ref()).collect();
        merge_chart(chart, &others);
    }
    one
}

fn merge_table(table: &mut Table, others: &[&Table]) {
    for (r, row) in table.rows.iter_mut().enumerate() {
        for (c, cell) in row.iter_mut().enumerate() {
            let cells: Vec<&str> = others
                .iter()
                .filter_map(|t| Some(t.rows.get(r)?.get(c)?.as_str()))
                .collect();
            *cell = merge_cell(cell, &cells);
        }
    }
}

/// A number in a cell, and what stands behind it.
fn number(cell: &str) -> Option<(f64, &str)> {
    let end = cell.find(|c: char| !c.is_ascii_digit() && !"+-.".contains(c));
    let (digits, unit) = cell.split_at(end.unwrap_or(cell.len()));
    Some((digits.parse().ok()?, unit))
}

fn decimals(cell: &str) -> usize {
    let digits = cell.split_once('.').map_or("", |(_, behind)| behind);
    digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())
}

/// Cells that are no numbers stay what the first says; one among numbers counts as more than any of them.
fn merge_cell(first: &str, others: &[&str]) -> String {
    let all = || std::iter::once(first).chain(others.iter().copied());
    let Some((_, unit)) = all().find_map(number) else {
        return first.into();
    };
    let odd = all().find(|cell| number(cell).is_none()).unwrap_or("");
    let values = all().map(|cell| number(cell).map_or(f64::INFINITY, |n| n.0));
    let samples = Samples::of(values);
    let decimals = all().map(decimals).max().unwrap_or(0);
    let text = |v: f64| match v.is_finite() {
        true => format!("{v:.decimals$}{unit}"),
        false => odd.to_owned(),
    };
    let [median, least, most] = [samples.median(), samples.least(), samples.most()];
    let apart = most - least > APART * median.abs();
    match apart && text(least) != text(most) {
        true => format!("{} ({} to {})", text(median), text(least), text(most)),
        false => text(median),
    }
}

fn merge_chart(chart: &mut Chart, others: &[&Chart]) {
    for (p, panel) in chart.panels.iter_mut().enumerate() {
        let others: Vec<&Panel> = others.iter().filter_map(|c| c.panels.get(p)).collect();
        for (s, series) in panel.series.iter_mut().enumerate() {
            let lines: Vec<&[(f64, f64)]> = others
                .iter()
                .filter_map(|panel| Some(panel.series.get(s)?.points.as_slice()))
                .collect();
            for (i, point) in series.points.iter_mut().enumerate() {
                let at = |of: fn(&(f64, f64)) -> f64, mine: f64| {
                    let theirs = lines.iter().filter_map(|line| line.get(i)).map(of);
                    Samples::of(std::iter::once(mine).chain(theirs)).median()
                };
                *point = (at(|p| p.0, point.0), at(|p| p.1, point.1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_medians_and_say_how_far_apart_they_were() {
        assert_eq!(merge_cell("10.0", &["10.1", "10.2"]), "10.1");
        assert_eq!(merge_cell("5.1", &["30.6", "12.0"]), "12.0 (5.1 to 30.6)");
        assert_eq!(merge_cell("7.0%", &["9.0%", "8.0%"]), "8.0% (7.0% to 9.0%)");
        assert_eq!(merge_cell("not yet", &["1.50", "1.51"]), "1.51 (1.50 to not yet)");
        assert_eq!(merge_cell("log", &["log", "log"]), "log");
        assert_eq!(merge_cell("7", &[]), "7");
    }
}
