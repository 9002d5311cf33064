//! Sessions that define: a table of their own comes and goes with its rows, an index of a common table, too.
//!
//! What a definer's table holds is checked as a whole: all of its rows, or none, all of one transaction.

use cenote_base::rt::{self, Nanos};
use cenote_engine::{Change, Direction, Insert, Isolation, KeyRange, Table};

use super::rows::{self, DEFINED, DEFINED_ROWS, Path};
use super::session::{Met, Session, Step, Stop};
use crate::check::Tag;
use crate::check::history::tag;
use std::sync::Arc;

pub(super) struct Definer {
    session: Session,
    table: u8,
}

impl Definer {
    pub(super) fn new(session: Session, number: u8) -> Definer {
        Definer {
            session,
            table: DEFINED + number,
        }
    }

    pub(super) fn run(mut self) {
        while !self.session.shared.is_stopping() {
            self.one();
            self.session.shared.ended_one();
            self.session.shared.count("definitions");
            rt::sleep(Nanos(self.session.draw.below(100_000)));
        }
    }

    fn one(&mut self) {
        self.session.begin(Isolation::ReadCommitted);
        let number = self.session.txn;
        self.session.shared.history().defines(number);
        match self.define() {
            Ok(()) if !self.session.draw.one_in(5) => self.session.commit(),
            Ok(()) | Err(Stop::Failed) => self.session.roll_back(),
            Err(Stop::Refused(error)) => {
                self.session.judge(&error);
                self.session.roll_back();
            }
        }
    }

    fn define(&mut self) -> Step {
        self.session.begin_statement();
        if self.session.draw.one_in(3) {
            return self.change_index();
        }
        let Some(table) = self.session.tx.table(&rows::name(self.table))? else {
            return self.create();
        };
        match self.session.draw.below(4) {
            0 => self.drop(&table),
            1 => self.truncate(&table),
            2 => self.change_own_index(&table),
            _ => self.update(&table),
        }
    }

    fn tag(&self) -> Tag {
        tag(self.session.txn, 1)
    }

    fn create(&mut self) -> Step {
        let table = self.session.tx.create_table(rows::new_table(self.table))?;
        self.fill(&table, &[])
    }

    /// Rows of the table now.
    fn rows(&self, table: &Arc<Table>) -> Step<Vec<(i32, Tag)>> {
        self.session
            .read(table, Path::Primary, KeyRange::all(), Direction::Forward)
    }

    fn fill(&mut self, table: &Table, before: &[(i32, Tag)]) -> Step {
        let shape = self.session.shared.plan.shape;
        let tag = self.tag();
        for id in 0..DEFINED_ROWS {
            self.session.begin_statement();
            let row = shape.encode(table, id, tag)?;
            match self.session.tx.insert(table, &row)? {
                Insert::Done => {
                    let old = before.iter().find(|b| b.0 == id).map_or(0, |b| b.1);
                    self.session.wrote(self.table, id, old, tag);
                }
                // Two rows with the same value of the unique column.
                Insert::Duplicate { index: Some(_), .. } => {
                    return Err(Stop::Refused(table.unique_violation(None, &row)));
                }
                other => return Err(self.session.fail(format!("{}[{id}]: {other:?}", table.name))),
            }
        }
        Ok(())
    }

    fn drop(&mut self, table: &Arc<Table>) -> Step {
        for (id, before) in self.rows(table)? {
            self.session.wrote(self.table, id, before, 0);
        }
        Ok(self.session.tx.drop_table(table)?)
    }

    fn truncate(&mut self, table: &Arc<Table>) -> Step {
        let before = self.rows(table)?;
        self.session.tx.truncate(table)?;
        let Some(table) = self.session.tx.table(&table.name)? else {
            return Err(self.session.fail(format!("{} is gone after TRUNCATE", table.name)));
        };
        self.session.begin_statement();
        if !self.rows(&table)?.is_empty() {
            return Err(self.session.fail(format!("{} has rows after TRUNCATE", table.name)));
        }
        self.fill(&table, &before)
    }

    fn update(&mut self, table: &Arc<Table>) -> Step {
        let (shape, tag) = (self.session.shared.plan.shape, self.tag());
        for id in 0..DEFINED_ROWS {
            self.session.begin_statement();
            let new = shape.encode(table, id, tag)?;
            match self.session.modify(table, id, Change::Update(new), |_| true)? {
                Met::Changed(_, before) => self.session.wrote(self.table, id, before, tag),
                Met::Left(..) => return Err(self.session.fail(format!("{}[{id}] is gone", table.name))),
            }
        }
        Ok(())
    }

    fn change_own_index(&mut self, table: &Arc<Table>) -> Step {
        let name = rows::extra_index(self.table).name;
        match table.index_named(&name) {
            Some(at) => self.session.tx.drop_index(table, at).map(drop)?,
            None => self
                .session
                .tx
                .create_index(table, rows::extra_index(self.table))
                .map(drop)?,
        }
        Ok(())
    }

    /// An index of a common table comes or goes, and leads to all of the table's rows.
    fn change_index(&mut self) -> Step {
        let number = self.session.draw.below(u64::from(self.session.shared.plan.tables)) as u8;
        let name = rows::name(number);
        let Some(table) = self.session.tx.table(&name)? else {
            return Err(self.session.fail(format!("{name} is gone")));
        };
        if let Some(at) = table.index_named(&rows::extra_index(number).name) {
            return Ok(self.session.tx.drop_index(&table, at).map(drop)?);
        }
        let table = self.session.tx.create_index(&table, rows::extra_index(number))?;
        let Some(at) = table.index_named(&rows::extra_index(number).name) else {
            return Err(self.session.fail(format!("{name} lacks the index that it was given")));
        };
        self.session.begin_statement();
        let rows = self.rows(&table)?;
        let mut led_to = self
            .session
            .read(&table, Path::Index(at), KeyRange::all(), Direction::Forward)?;
        led_to.sort_unstable();
        if led_to != rows {
            let problem = format!("the new index of {name} leads to {led_to:?}, there are {rows:?}");
            return Err(self.session.fail(problem));
        }
        Ok(())
    }
}
