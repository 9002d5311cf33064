//! A plan as EXPLAIN shows it: a tree of nodes, as lines or as JSON with PostgreSQL's keys.

use cenote_base::rt::Nanos;
use cenote_fabric::observe::Traffic;
use std::fmt::Write;

/// What a node did in a run.
#[derive(Debug, Clone, Copy)]
pub struct Actual {
    /// Rows of all loops.
    pub rows: u64,
    /// How often it began.
    pub loops: u64,
    /// Time of all loops.
    pub time: Nanos,
    /// Accesses to the buffer's memory, where they were counted.
    pub traffic: Option<Traffic>,
}

/// A node.
#[derive(Debug, Clone, Default)]
pub struct Shown {
    /// What it does.
    pub title: String,
    /// The table that it reads.
    pub relation: Option<String>,
    /// Steps and rows a run, as estimated.
    pub estimate: Option<(f64, f64)>,
    /// What it did.
    pub actual: Option<Actual>,
    /// Nodes under it.
    pub under: Vec<Shown>,
}

impl Shown {
    /// A node of which nothing is estimated.
    pub fn line(title: impl Into<String>) -> Shown {
        Shown {
            title: title.into(),
            ..Shown::default()
        }
    }

    /// The tree, a line a node; `costs`: with the estimates.
    pub fn lines(&self, costs: bool) -> Vec<String> {
        let mut lines = Vec::new();
        self.put_lines(0, costs, &mut lines);
        lines
    }

    fn put_lines(&self, depth: usize, costs: bool, lines: &mut Vec<String>) {
        let mut line = format!("{}{}", "  ".repeat(depth), self.title);
        if let Some((cost, rows)) = self.estimate.filter(|_| costs) {
            let _ = write!(line, "  (cost={cost:.1} rows={:.0})", rows.max(1.0));
        }
        if let Some(actual) = self.actual {
            line.push_str(&actual.text());
        }
        lines.push(line);
        self.under
            .iter()
            .for_each(|node| node.put_lines(depth + 1, costs, lines));
    }

    /// The tree as a JSON object.
    pub fn json(&self, costs: bool) -> String {
        let mut fields = vec![("Node Type", quoted(&self.title))];
        fields.extend(self.relation.iter().map(|name| ("Relation Name", quoted(name))));
        if let Some((cost, rows)) = self.estimate.filter(|_| costs) {
            fields.push(("Total Cost", format!("{cost:.2}")));
            fields.push(("Plan Rows", format!("{:.0}", rows.max(1.0))));
        }
        if let Some(actual) = self.actual {
            actual.fields(&mut fields);
        }
        if !self.under.is_empty() {
            let under: Vec<String> = self.under.iter().map(|node| node.json(costs)).collect();
            fields.push(("Plans", format!("[{}]", under.join(", "))));
        }
        object(&fields)
    }
}

impl Actual {
    fn each(&self) -> (f64, f64) {
        let loops = self.loops.max(1) as f64;
        (self.rows as f64 / loops, self.time.0 as f64 / 1e6 / loops)
    }

    fn text(&self) -> String {
        if self.loops == 0 {
            return "  (never executed)".into();
        }
        let (rows, time) = self.each();
        let mut text = format!("  (actual time={time:.3} rows={rows:.0} loops={})", self.loops);
        if let Some(traffic) = self.traffic {
            let _ = write!(
                text,
                "  (memory: {} reads of {} bytes",
                traffic.reads, traffic.bytes_read
            );
            if traffic.writes > 0 {
                let _ = write!(text, ", {} writes of {} bytes", traffic.writes, traffic.bytes_written);
            }
            text.push(')');
        }
        text
    }

    fn fields(&self, fields: &mut Vec<(&'static str, String)>) {
        let (rows, time) = self.each();
        fields.push(("Actual Total Time", format!("{time:.3}")));
        fields.push(("Actual Rows", format!("{rows:.0}")));
        fields.push(("Actual Loops", self.loops.to_string()));
        if let Some(traffic) = self.traffic {
            fields.push(("Memory Reads", traffic.reads.to_string()));
            fields.push(("Memory Bytes Read", traffic.bytes_read.to_string()));
            fields.push(("Memory Writes", traffic.writes.to_string()));
            fields.push(("Memory Bytes Written", traffic.bytes_written.to_string()));
        }
    }
}

/// A JSON object of fields whose values are JSON.
pub fn object(fields: &[(&str, String)]) -> String {
    let each: Vec<String> = fields
        .iter()
        .map(|(key, value)| format!("{}: {value}", quoted(key)))
        .collect();
    format!("{{{}}}", each.join(", "))
}

/// A JSON string.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_shown_as_lines_and_as_json() {
        let leaf = Shown {
            title: "full scan on \"a\"".into(),
            relation: Some("a".into()),
            estimate: Some((10.0, 0.2)),
            actual: Some(Actual {
                rows: 12,
                loops: 4,
                time: Nanos(8_000_000),
                traffic: None,
            }),
            under: Vec::new(),
        };
        let tree = Shown {
            under: vec![leaf],
            ..Shown::line("Row executor")
        };
        let lines = tree.lines(true);
        assert_eq!(lines[0], "Row executor");
        let second = "  full scan on \"a\"  (cost=10.0 rows=1)  (actual time=2.000 rows=3 loops=4)";
        assert_eq!(lines[1], second);
        let json = tree.json(true);
        assert!(
            json.contains(r#""Node Type": "full scan on \"a\"", "Relation Name": "a""#),
            "{json}"
        );
        assert!(
            json.ends_with(r#""Actual Total Time": 2.000, "Actual Rows": 3, "Actual Loops": 4}]}"#),
            "{json}"
        );
        assert!(!tree.json(false).contains("Cost"));
    }
}
