//! VACUUM and ANALYZE.
//!
//! In a transaction block ANALYZE is part of the transaction, as in PostgreSQL. Elsewhere each table is analyzed in a
//! transaction of its own, so that no table's lock is held while the next one is sampled.

use super::state::Session;
use crate::ddl::Definer;
use crate::error::{Result, Severity, SqlError, code};
use crate::output::Output;
use crate::parse::Maintained;
use cenote_engine::{Analysis, Analyzed, Table};
use std::sync::Arc;

/// A table, and the positions of the columns where some are named.
type Named = (Arc<Table>, Option<Vec<usize>>);

impl Session {
    pub(super) fn vacuum(
        &mut self,
        tables: &[Maintained],
        (analyze, verbose): (bool, bool),
        text: &str,
        out: &mut dyn Output,
    ) -> Result<&'static str> {
        if self.transaction.in_block() || self.transaction.several {
            return Err(SqlError::new(
                code::ACTIVE_TRANSACTION,
                "VACUUM cannot run inside a transaction block",
            ));
        }
        match analyze {
            true => drop(self.analyze(tables, verbose, text, out)?),
            false => drop(self.named_tables(tables, text)?),
        }
        self.sql.engine().vacuum_until(&self.env.cancel)?;
        Ok("VACUUM")
    }

    pub(super) fn analyze(
        &mut self,
        tables: &[Maintained],
        verbose: bool,
        text: &str,
        out: &mut dyn Output,
    ) -> Result<&'static str> {
        let mut named = self.named_tables(tables, text)?;
        if tables.is_empty() {
            named = self.tx.tables()?.into_iter().map(|table| (table, None)).collect();
        }
        let target = self.env.settings.get("default_statistics_target");
        let target = target.and_then(|value| value.parse().ok()).unwrap_or(100);
        for (table, columns) in named {
            if verbose {
                out.notice(&info(format!("analyzing \"public.{}\"", table.name)))?;
            }
            match self.analyze_table(&table, &Analysis { target, columns }) {
                Ok(analyzed) if verbose => out.notice(&info(report(&table, &analyzed)))?,
                Ok(_) => {}
                // Dropped since the list of all tables was made.
                Err(cenote_engine::Error::UndefinedTable(_)) if tables.is_empty() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok("ANALYZE")
    }

    fn analyze_table(&mut self, table: &Arc<Table>, what: &Analysis) -> cenote_engine::Result<Analyzed> {
        if self.transaction.in_block() || self.transaction.several {
            // PostgreSQL lets transactions that only read do it, too.
            self.tx.set_read_only(false);
            let analyzed = self.tx.analyze(table, what);
            self.tx.set_read_only(self.transaction.read_only);
            return analyzed;
        }
        let mut tx = self.sql.engine().tx();
        tx.set_cancel_flag(&self.env.cancel);
        tx.set_lock_timeout(self.env.settings.millis("lock_timeout"));
        tx.analyze_alone(table, what)
    }

    fn named_tables(&mut self, tables: &[Maintained], text: &str) -> Result<Vec<Named>> {
        let definer = Definer {
            tx: &mut self.tx,
            session: &self.env,
            text,
            notices: Vec::new(),
        };
        let named = tables.iter().map(|maintained| {
            let table = definer.existing(&maintained.table)?;
            let columns = positions(&table, &maintained.columns)?;
            Ok((table, (!columns.is_empty()).then_some(columns)))
        });
        named.collect()
    }
}

fn positions(table: &Table, names: &[String]) -> Result<Vec<usize>> {
    let mut positions = Vec::with_capacity(names.len());
    for name in names {
        let refused = |code, what: &str| {
            let text = format!("column \"{name}\" of relation \"{}\" {what}", table.name);
            SqlError::new(code, text)
        };
        let at = table.column_named(name);
        let at = at.ok_or_else(|| refused(code::UNDEFINED_COLUMN, "does not exist"))?;
        if positions.contains(&at) {
            return Err(refused(code::DUPLICATE_COLUMN, "appears more than once"));
        }
        positions.push(at);
    }
    Ok(positions)
}

fn info(text: String) -> SqlError {
    SqlError::notice(Severity::Info, code::SUCCESS, text)
}

fn report(table: &Table, analyzed: &Analyzed) -> String {
    let (name, (pages, read), (live, dead)) = (&table.name, analyzed.leaves, analyzed.sampled);
    format!(
        "\"{name}\": scanned {read} of {pages} pages, containing {live} live rows and {dead} dead rows; {live} rows in \
         sample, {:.0} estimated total rows",
        analyzed.rows
    )
}
