//! What people see of a cluster while it runs.

use super::super::cluster::table;
use super::super::say;
use super::plan::Plan;
use cenote_base::units::ByteSize;
use cenote_storage_node::Membership;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Lines of the last picture.
static DRAWN: AtomicUsize = AtomicUsize::new(0);

/// What is about to be started.
pub fn tell_plan(plan: &Plan, dir: &Path) {
    let memory = match &plan.shared {
        None if !plan.regions.is_empty() => " of a pod".into(),
        None => String::new(),
        Some(shared) => format!(
            ", {} memory nodes with {}{} that they share",
            shared.memory.len(),
            ByteSize(shared.bytes),
            shared
                .max
                .map_or_else(String::new, |max| format!(" to {}", ByteSize(max)))
        ),
    };
    say!(
        "cluster    {} servers{memory}, {} storage nodes and a proxy, in {}",
        plan.servers.len(),
        plan.storage_nodes.len(),
        dir.display()
    );
}

/// Where clients connect.
pub fn tell_ready(plan: &Plan, after: Duration) {
    let storage = plan.storage().join(",");
    say!("ready in {} ms on 127.0.0.1:{}", after.as_millis(), plan.proxy);
    say!("connect    psql -h 127.0.0.1 -p {} -d cenote", plan.proxy);
    say!("look       cenote cluster status --storage {storage}");
    say!("switch     cenote cluster switch --storage {storage}");
    say!("branch     cenote branch create --data DIR --storage {storage}");
}

/// The cluster as of now, in the place of the picture before; nothing where no person looks.
pub fn draw(plan: &Plan, seen: Option<&Membership>) {
    let mut out = std::io::stdout().lock();
    if !out.is_terminal() {
        return;
    }
    let lines = match seen {
        Some(seen) => aligned(&table(seen)),
        None => vec![format!(
            "no majority of {} storage nodes answers",
            plan.storage_nodes.len()
        )],
    };
    let before = DRAWN.swap(lines.len() + 1, Ordering::Relaxed);
    let mut text = String::new();
    if before > 0 {
        text.push_str(&format!("\x1b[{before}A\x1b[J"));
    }
    for line in lines {
        text.push_str(&format!("  {line}\n"));
    }
    text.push_str("  Ctrl-C ends it\n");
    // A terminal that is gone shows nothing.
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
}

fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let line = |row: &Vec<String>| {
        let cells = row
            .iter()
            .enumerate()
            .map(|(n, cell)| format!("{cell:<width$}", width = width(n)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
