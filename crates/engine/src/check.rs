//! Verifying the whole database, while it runs or not.
//!
//! 1. Checksums of all pages in files (but those whose blocks were given back, `given_back`) and of the log; the
//!    buffer's frames and lists; each tree's own structure (`tree::check`).
//! 2. Each row that a snapshot sees has its entry in every index of its table; no two such rows share a unique key
//!    (`entries`).
//! 3. Each index entry leads to a row, or to nothing: an entry that no version explains is counted, not a problem (a
//!    crash between a row's undo and purge leaves such hints, readers verify them).
//! 4. Large values: those of the rows that a snapshot sees are read whole; each overflow page belongs to one chain, and
//!    each chain to a version (`chains`).
//! 5. Undo segments: header sane, records readable from tail to end.

mod chains;
mod entries;
mod given_back;

use crate::api::{Direction, RowBatch};
use crate::catalog::{Table, state};
use crate::engine::Engine;
use crate::error::Result;
use crate::key::KeyRange;
use crate::report::CheckReport;
use crate::system::{CATALOG_SPACE, COUNTERS_SPACE};
use crate::tree::BTree;
use crate::tx::read::Reader;
use crate::undo;
use entries::{TableSums, hex};
use std::sync::Arc;

/// How often a table is checked that is defined anew meanwhile.
const TRIES: usize = 5;

impl Engine {
    /// Verifies every tree, index and list. May run while the database is used.
    ///
    /// # Errors
    /// Those of reading alone: what is wrong is in the report.
    pub fn check(self: &Arc<Self>) -> Result<CheckReport> {
        self.refuse_reader("a check at a reader")?;
        let mut report = CheckReport::default();
        let pool = self.pool.check();
        report.summary.push(format!("{} frames of the buffer", pool.frames));
        report.problems.extend(pool.problems);
        let files = self.storage.0.check(&|id| self.is_given_back(id))?;
        let (pages, groups) = (files.pages, files.groups);
        report.summary.push(format!(
            "{pages} pages in files, {groups} redo groups from the checkpoint on"
        ));
        report.problems.extend(files.damage);
        let mut reader = Reader::new(self);
        reader.refresh();
        self.check_tree("the catalog", CATALOG_SPACE, &mut report)?;
        self.check_tree("the counters", COUNTERS_SPACE, &mut report)?;
        for table in self.catalog.current().tables.values() {
            self.check_as_defined(&mut reader, table, &mut report)?;
        }
        self.check_undo(&mut report)?;
        Ok(report)
    }

    /// Checks a table as it is defined: what was found while it was defined otherwise says nothing, since pages went
    /// away under the check. One that was dropped needs none.
    fn check_as_defined(&self, reader: &mut Reader, table: &Arc<Table>, report: &mut CheckReport) -> Result<()> {
        let mut table = table.clone();
        for _ in 0..TRIES {
            let before = (report.summary.len(), report.problems.len(), report.entries_of_others);
            reader.refresh();
            let checked = self.check_table(reader, &table, report);
            let now = self.catalog.current().by_id.get(&table.id).cloned();
            if now
                .as_ref()
                .is_some_and(|now| state::spaces_of(now) == state::spaces_of(&table))
            {
                return checked;
            }
            report.summary.truncate(before.0);
            report.problems.truncate(before.1);
            report.entries_of_others = before.2;
            let Some(now) = now else { return Ok(()) };
            table = now;
        }
        let text = format!(
            "table \"{}\": not checked, it was defined anew all the while",
            table.name
        );
        report.summary.push(text);
        Ok(())
    }

    /// Gives the first pages of the large values that are not pending; None while others kept changing the space.
    fn check_tree(&self, name: &str, space: u32, report: &mut CheckReport) -> Result<Option<Vec<u32>>> {
        let tree = BTree { space }.check(&self.pool)?;
        report.summary.push(format!(
            "{name}: {} entries, {} leaves, {} inner pages, {} overflow pages, {} free pages, {} given back",
            tree.entries, tree.leaves, tree.inner, tree.overflow, tree.free, tree.away
        ));
        report
            .problems
            .extend(tree.findings.iter().map(|finding| format!("{name}: {finding}")));
        Ok(tree.accounted.then_some(tree.large))
    }

    fn check_table(&self, reader: &Reader, table: &Arc<Table>, report: &mut CheckReport) -> Result<()> {
        let rest = self.at_rest(table)?;
        let chains = self.check_tree(&format!("table \"{}\"", table.name), table.space, report)?;
        if let (Some(rest), Some(chains)) = (rest, chains) {
            self.check_chains(table, &chains, rest, report)?;
        }
        let (mut rows, mut sums) = (0, TableSums::new(table, self.row_estimate(table)));
        let (mut scan, mut batch) = (reader.scan(table, KeyRange::all(), Direction::Forward), RowBatch::new());
        while scan.next_batch(reader, &mut batch)? {
            for i in 0..batch.len() {
                check_row(table, batch.key(i), batch.row(i), &mut sums, report)?;
                rows += 1;
            }
        }
        report.summary.push(format!("table \"{}\": {rows} rows", table.name));
        for (at, index) in table.indexes.iter().enumerate() {
            self.check_tree(&format!("index \"{}\"", index.name), index.space, report)?;
            self.check_entries(reader, (table, at), &mut sums, rows, report)?;
        }
        Ok(())
    }

    fn check_undo(&self, report: &mut CheckReport) -> Result<()> {
        let segments = self.segments.all();
        let mut records = 0u64;
        for segment in &segments {
            let header = match undo::header(&self.pool, segment.number) {
                Ok(header) => header,
                Err(error) => {
                    report.problems.push(error.to_string());
                    continue;
                }
            };
            let mut at = header.tail.max(segment.tail());
            while at < header.end {
                match undo::read_next(&self.pool, segment, at) {
                    Ok(Some((_, behind, _))) => {
                        records += 1;
                        at = behind;
                    }
                    Ok(None) => break,
                    Err(error) => {
                        // Purge may have passed and punched it meanwhile.
                        if at >= segment.tail() {
                            report.problems.push(error.to_string());
                        }
                        break;
                    }
                }
            }
        }
        report
            .summary
            .push(format!("{} undo segments, {records} records", segments.len()));
        report
            .problems
            .extend(self.purge.error.lock().iter().map(|error| format!("purge: {error}")));
        Ok(())
    }

    /// Rows in a table: as last counted, unless its tree has grown or shrunk much since.
    pub fn row_estimate(&self, table: &Table) -> u64 {
        let estimate = BTree { space: table.space }.estimate_rows(&self.pool).unwrap_or(0);
        match self.row_count(table.id) {
            Ok(Some(rows)) if rows / 2 <= estimate && estimate / 2 <= rows => rows,
            _ => estimate,
        }
    }

    /// Size of a table with its indexes, in bytes.
    pub fn table_bytes(&self, table: &Table) -> u64 {
        let pages = |space| crate::space::pages(&self.pool, space).unwrap_or(0);
        state::spaces_of(table)
            .into_iter()
            .map(|s| u64::from(pages(s)) * cenote_base::PAGE_SIZE as u64)
            .sum()
    }
}

/// Checks a row, and adds up what it should have in indexes.
fn check_row(table: &Table, key: &[u8], row: &[u8], sums: &mut TableSums, report: &mut CheckReport) -> Result<()> {
    let layout = table.layout();
    if let Err(error) = (0..layout.columns()).try_for_each(|column| layout.column(row, column).map(drop)) {
        report
            .problems
            .push(format!("table \"{}\", key {}: {error}", table.name, hex(key)));
        return Ok(());
    }
    if !table.has_hidden_key() {
        table.key_of_row(row, &mut sums.scratch)?;
        if sums.scratch != key {
            report.problems.push(format!(
                "table \"{}\": a row lies at key {} but has {}",
                table.name,
                hex(key),
                hex(&sums.scratch)
            ));
        }
    }
    sums.add_row(table, key, row)
}
