//! A figure on paper: Markdown, CSV, plots; what the paper says beside; why a difference over a fifth is there.
//!
//! What must hold: every number that was simulated says so, with the profiles it was simulated by; each comparison
//! carries its explanation with it, and shows it where it does not agree ([`judge`](super::judge)).

use super::chart::{self, Chart};
use super::judge::Claim;
use crate::{IoContext, Result};
use std::fmt::Write as _;
use std::path::Path;

/// A table of a figure.
pub struct Table {
    /// Above it; also in the name of its CSV file.
    pub name: String,
    /// Columns, with units.
    pub header: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(name: &str, header: &[&str]) -> Table {
        Table {
            name: name.into(),
            header: header.iter().map(|h| (*h).into()).collect(),
            rows: Vec::new(),
        }
    }

    /// As a table of Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule: Vec<String> = self.header.iter().map(|_| "---".into()).collect();
        let rows: String = self.rows.iter().map(|r| line(r)).collect();
        line(&self.header) + &line(&rule) + &rows
    }

    fn csv(&self) -> String {
        let cell = |c: &String| if c.contains(',') { format!("\"{c}\"") } else { c.clone() };
        let line = |cells: &[String]| cells.iter().map(cell).collect::<Vec<_>>().join(",") + "\n";
        let rows: String = self.rows.iter().map(|r| line(r)).collect();
        line(&self.header) + &rows
    }
}

/// Columns of a comparison; ours: the median of all seeds, least and most.
const COMPARED: [&str; 4] = ["compared", "paper", "ours, simulated", ""];

/// A figure or table of the paper, as it came out.
pub struct Figure {
    /// Such as `fig7`.
    pub name: &'static str,
    /// In words.
    pub title: String,
    /// How it was run: one paragraph.
    pub how: String,
    /// Profiles, for the label "simulated by".
    pub profiles: String,
    /// Numbers.
    pub tables: Vec<Table>,
    /// The plot.
    pub chart: Option<Chart>,
    /// The paper's numbers beside ours.
    pub claims: Vec<Claim>,
}

impl Figure {
    /// Writes CSV files, plots and the figure's part of the page, which says how it was made; gives that part.
    ///
    /// # Errors
    /// [`crate::Error::Io`] if a file cannot be written; [`crate::Error::Plot`] if the plot cannot be drawn.
    pub fn write(&self, out: &Path, made: &str) -> Result<String> {
        for (i, table) in self.tables.iter().enumerate() {
            let name = if self.tables.len() == 1 {
                format!("{}.csv", self.name)
            } else {
                format!("{}-{}.csv", self.name, i + 1)
            };
            std::fs::write(out.join(&name), table.csv()).context(format!("writing {name}"))?;
        }
        if let Some(chart) = &self.chart {
            chart::draw(&out.join(self.name), chart)?;
        }
        let part = self.markdown(made);
        std::fs::write(out.join(format!("{}.md", self.name)), &part).context("writing the figure's page")?;
        Ok(part)
    }

    fn markdown(&self, made: &str) -> String {
        let mut text = format!("## {}: {}\n\n{}\n\n{made}\n\n", self.name, self.title, self.how);
        writeln!(
            text,
            "Every number below but the paper's is **simulated** ({}).\n",
            self.profiles
        )
        .ok();
        if self.chart.is_some() {
            writeln!(text, "![{}]({}.svg)\n", self.title, self.name).ok();
        }
        if !self.claims.is_empty() {
            text += &self.compared();
        }
        for table in &self.tables {
            writeln!(text, "**{}** (simulated)\n\n{}", table.name, table.markdown()).ok();
        }
        text
    }

    /// For a terminal: what was compared.
    pub fn summary(&self) -> String {
        let rows: Vec<Vec<String>> = self.claims.iter().map(Claim::row).collect();
        let table = crate::table::lay_out(&COMPARED, &rows);
        format!(
            "{}: {} (simulated: {})\n{}",
            self.name,
            self.title,
            self.profiles,
            table.replace("**", "")
        )
    }

    fn compared(&self) -> String {
        let mut table = Table::new("", &COMPARED);
        table.rows = self.claims.iter().map(Claim::row).collect();
        let mut text = table.markdown() + "\n";
        let mut told: Vec<&str> = Vec::new();
        for claim in self.claims.iter().filter(|c| c.needs_reason()) {
            if told.contains(&claim.why) {
                continue;
            }
            told.push(claim.why);
            writeln!(text, "*{}*: {}\n", claim.what, claim.why).ok();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::judge::{Kind, Paper};
    use super::*;

    fn claim(paper: f64, ours: f64) -> Claim {
        Claim {
            what: "x".into(),
            paper: Paper::About(paper),
            ours: ours.into(),
            kind: Kind::More,
            decimals: 2,
            why: "because",
        }
    }

    #[test]
    fn what_differs_is_explained_and_all_is_labelled() {
        let figure = Figure {
            name: "fig0",
            title: "nothing".into(),
            how: "Not at all.".into(),
            profiles: "cxl-switch".into(),
            tables: vec![Table::new("t", &["a"])],
            chart: None,
            claims: vec![claim(1.0, 3.0), claim(1.0, 1.0)],
        };
        let text = figure.markdown("Made by hand.");
        assert!(text.contains("because") && text.contains("simulated") && text.contains("cxl-switch"));
        assert_eq!(text.matches("**better**").count(), 1);
    }
}
