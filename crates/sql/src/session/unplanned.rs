//! Statements that are carried out from their parsed form.

use super::copy;
use super::state::Session;
use crate::ddl::Definer;
use crate::error::{Result, SqlError};
use crate::output::{Field, Format, Output};
use crate::parse::{Parsed, Statement, Utility};
use crate::plan::computed_field;
use cenote_engine::{ColumnType, Datum};
use std::sync::Arc;

/// What a client has said of a statement's answer, and of its parameters.
#[derive(Clone, Copy, Default)]
pub(super) struct Asked<'a> {
    /// RowDescription goes before the rows.
    pub describe: bool,
    /// Result formats.
    pub formats: &'a [Format],
    /// Type ids of the parameters of a statement that EXPLAIN is about.
    pub declared: &'a [u32],
    /// These parameters.
    pub params: &'a [Datum],
}

impl Session {
    /// Runs a statement that is carried out from its parsed form.
    pub(super) fn run_unplanned(&mut self, parsed: &Arc<Parsed>, asked: Asked<'_>, out: &mut dyn Output) -> Result<()> {
        let Asked { describe, formats, .. } = asked;
        self.transaction.queried |= takes_snapshot(&parsed.statement);
        match &parsed.statement {
            Statement::Empty => out.empty_query(),
            Statement::Utility(utility) => self.utility(utility, parsed, describe, formats, out),
            Statement::Define(statement) => {
                self.refuse_read_only("this definition statement")?;
                self.note_tables_in_use();
                let mut definer = Definer {
                    tx: &mut self.tx,
                    session: &self.env,
                    text: &parsed.text,
                    notices: Vec::new(),
                };
                let tag = definer.run(statement)?;
                definer.notices.iter().try_for_each(|n| out.notice(n))?;
                out.complete(tag)
            }
            Statement::Copy(command) => copy::run(self, command, &parsed.text, out),
            Statement::Explain { options, inner } => self.explain(*options, inner, &parsed.text, asked, out),
            _ => Err(SqlError::internal("a statement with a plan")),
        }
    }

    /// Columns that a statement without a plan answers with.
    pub(super) fn unplanned_fields(&self, statement: &Statement) -> Vec<Field> {
        match statement {
            Statement::Explain { .. } => vec![computed_field("QUERY PLAN", ColumnType::Text)],
            Statement::Utility(utility) => self.utility_fields(utility),
            _ => Vec::new(),
        }
    }

    fn utility(
        &mut self,
        command: &Utility,
        parsed: &Arc<Parsed>,
        describe: bool,
        formats: &[Format],
        out: &mut dyn Output,
    ) -> Result<()> {
        match command {
            Utility::Show(name) => return self.show(name, describe, formats, out),
            Utility::ShowAll => return self.show_all(describe, formats, out),
            Utility::Execute { name, args } => {
                return self.execute_prepared(name, args, parsed, describe, formats, out);
            }
            _ => {}
        }
        let tag = match self.transaction_command(command, out)? {
            Some(tag) => tag,
            None => self.tagged_command(command, parsed, out)?,
        };
        out.complete(tag)
    }
}

/// Whether a statement without a plan settles its transaction's isolation, as in PostgreSQL: all do but those about
/// transactions and settings.
fn takes_snapshot(statement: &Statement) -> bool {
    use Utility::{
        Begin, Checkpoint, Commit, LockTable, Release, Reset, ResetAll, Rollback, RollbackTo, Savepoint, Set,
        SetSessionTransaction, SetTransaction, Show, ShowAll, Unlisten,
    };
    !matches!(
        statement,
        Statement::Empty
            | Statement::Utility(
                Begin(..)
                    | Commit { .. }
                    | Rollback { .. }
                    | Savepoint(_)
                    | Release(_)
                    | RollbackTo(_)
                    | SetTransaction(_)
                    | SetSessionTransaction(_)
                    | Set { .. }
                    | Reset(_)
                    | ResetAll
                    | Show(_)
                    | ShowAll
                    | Unlisten
                    | Checkpoint
                    | LockTable
            )
    )
}
