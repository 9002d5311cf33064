//! A figure on paper: Markdown, CSV, plots; what the paper says beside; why a difference over a fifth is there.
//!
//! What must hold: every number that was simulated says so, with the profiles it was simulated by; each comparison
//! carries its explanation with it, and shows it where it differs by more than [`FIFTH`].

use super::chart::{self, Chart};
use crate::{IoContext, Result};
use std::fmt::Write as _;
use std::path::Path;

/// Differences beyond this share are explained.
pub const FIFTH: f64 = 0.2;

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

/// What a number has to be, to agree with the paper.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Paper {
    /// About this.
    About(f64),
    /// This, or more.
    AtLeast(f64),
    /// This, or less.
    AtMost(f64),
}

/// One of the paper's numbers, and ours.
pub struct Claim {
    /// What is compared.
    pub what: String,
    /// The paper's number.
    pub paper: Paper,
    /// Ours, simulated.
    pub ours: f64,
    /// Decimals that mean something.
    pub decimals: usize,
    /// Why it differs, where it does.
    pub why: &'static str,
}

impl Claim {
    /// How far ours is off, as a share of the paper's; 0 where an inequality holds.
    pub fn difference(&self) -> f64 {
        match self.paper {
            Paper::About(p) => (self.ours / p - 1.0).abs(),
            Paper::AtLeast(p) => (1.0 - self.ours / p).max(0.0),
            Paper::AtMost(p) if self.ours <= p => 0.0,
            Paper::AtMost(p) => self.ours / p - 1.0,
        }
    }

    /// Whether it agrees within a fifth. What is not a number agrees with nothing.
    pub fn agrees(&self) -> bool {
        self.difference() <= FIFTH
    }

    fn row(&self) -> Vec<String> {
        let number = |v: f64| format!("{v:.*}", self.decimals);
        let paper = match self.paper {
            Paper::About(p) => number(p),
            Paper::AtLeast(p) => format!("at least {}", number(p)),
            Paper::AtMost(p) => format!("at most {}", number(p)),
        };
        let verdict = if self.agrees() { "agrees" } else { "**differs**" };
        vec![self.what.clone(), paper, number(self.ours), verdict.into()]
    }
}

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
    /// Writes CSV files and plots, and gives the figure's part of the page.
    pub fn write(&self, out: &Path) -> Result<String> {
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
        let part = self.markdown();
        std::fs::write(out.join(format!("{}.md", self.name)), &part).context("writing the figure's page")?;
        Ok(part)
    }

    fn markdown(&self) -> String {
        let mut text = format!("## {}: {}\n\n{}\n\n", self.name, self.title, self.how);
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
        let table = crate::table::lay_out(&["compared", "paper", "ours, simulated", ""], &rows);
        format!(
            "{}: {} (simulated: {})\n{}",
            self.name,
            self.title,
            self.profiles,
            table.replace("**", "")
        )
    }

    fn compared(&self) -> String {
        let mut table = Table::new("", &["compared", "paper", "ours, simulated", ""]);
        table.rows = self.claims.iter().map(Claim::row).collect();
        let mut text = table.markdown() + "\n";
        let mut told: Vec<&str> = Vec::new();
        for claim in self.claims.iter().filter(|c| !c.agrees()) {
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
    use super::*;

    fn claim(paper: Paper, ours: f64) -> Claim {
        Claim {
            what: "x".into(),
            paper,
            ours,
            decimals: 2,
            why: "because",
        }
    }

    #[test]
    fn a_fifth_is_the_border() {
        assert!(claim(Paper::About(10.0), 11.9).agrees());
        assert!(!claim(Paper::About(10.0), 12.1).agrees());
        assert!(claim(Paper::AtLeast(4.13), 100.0).agrees());
        assert!(!claim(Paper::AtLeast(4.13), 2.0).agrees());
        assert!(claim(Paper::AtMost(0.07), -0.02).agrees());
        assert!(!claim(Paper::AtMost(0.07), 0.2).agrees());
        assert!(!claim(Paper::About(1.0), f64::NAN).agrees());
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
            claims: vec![claim(Paper::About(1.0), 3.0), claim(Paper::About(1.0), 1.0)],
        };
        let text = figure.markdown();
        assert!(text.contains("because") && text.contains("simulated") && text.contains("cxl-switch"));
        assert_eq!(text.matches("**differs**").count(), 1);
    }
}
