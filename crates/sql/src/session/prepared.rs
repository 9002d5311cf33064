//! Prepared statements of a session: by name, and by the text that they came in.
//!
//! Invariants:
//! - A plan is good for one version of the catalog and one epoch of the session ([`Compiled::fits`]).
//! - A session has at most [`MAX_STATEMENTS`] named statements, each with the charge of its memory, and keeps the
//!   statements of at most [`CACHED_TEXTS`] texts and as many templates.

use super::history::History;
use crate::error::{Result, SqlError, code};
use crate::expr::type_names::type_named;
use crate::parse::template::Template;
use crate::parse::{Parsed, Statement, Utility, parse};
use crate::plan::Planned;
use crate::types::type_oid;
use cenote_engine::Charge;
use sqlparser::ast;
use std::collections::HashMap;
use std::sync::Arc;

/// Texts whose statements a session keeps parsed and planned.
const CACHED_TEXTS: usize = 256;
/// Longest text that is kept, in bytes.
const CACHED_TEXT_BYTES: usize = 16 << 10;
/// Named prepared statements of a session at one time.
pub const MAX_STATEMENTS: usize = 16_384;

/// A parsed statement with its plan, if it has one.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The statement.
    pub parsed: Arc<Parsed>,
    /// Parameter types that the client gave; 0: to be inferred.
    pub declared: Arc<[u32]>,
    /// The plan, and what it is good for.
    pub compiled: Option<Compiled>,
    /// Whether PREPARE made it: its statement is inside.
    pub inner: bool,
    /// Whether its literals were taken out: a plan of the short path or none.
    pub template: bool,
    /// Memory of one that has a name.
    pub memory: Option<Arc<Charge>>,
}

/// A plan, and the catalog, statistics and session that it is good for.
#[derive(Debug, Clone)]
pub struct Compiled {
    version: u64,
    statistics: u64,
    epoch: u64,
    /// The plan, for any parameters.
    pub planned: Arc<Planned>,
    /// How it was run.
    pub history: Arc<History>,
}

impl Compiled {
    /// A plan made at this version of the catalog and epoch of statistics, in this epoch of the session.
    pub fn new((version, statistics): (u64, u64), epoch: u64, planned: Planned) -> Compiled {
        Compiled {
            version,
            statistics,
            epoch,
            planned: Arc::new(planned),
            history: Arc::default(),
        }
    }

    /// This plan, where it was made in place of another. Tables and settings that are as they were answer as they did:
    /// where this one would not (it is another planner's), the former stays.
    pub fn in_place_of(mut self, former: Compiled) -> Compiled {
        if (self.version, self.epoch) != (former.version, former.epoch) {
            return self;
        }
        if let Some(planned) = Arc::get_mut(&mut self.planned) {
            planned.stays = former.planned.stays.clone();
        }
        if !former.planned.answers_like(&self.planned) {
            self.planned = former.planned;
            self.history = Arc::new(History::settled());
        } else if self.statistics == former.statistics {
            self.history = Arc::new(former.history.next());
        }
        self
    }

    /// Whether the plan is good for this version of the catalog, these statistics and this epoch of the session.
    pub fn fits(&self, (version, statistics): (u64, u64), epoch: u64) -> bool {
        self.version == version && self.statistics == statistics && self.epoch == epoch
    }
}

impl Prepared {
    /// The statement of an empty text.
    pub fn empty() -> Prepared {
        Prepared::new(
            Arc::new(Parsed {
                statement: Statement::Empty,
                text: "".into(),
            }),
            Vec::new(),
        )
    }

    /// The statement of a text without literals, if it is one that reads or writes rows.
    pub fn template(found: &Template) -> Option<Prepared> {
        let [parsed] = <[Parsed; 1]>::try_from(parse(found.text()).ok()?).ok()?;
        let types: Vec<u32> = found.literals.iter().map(|(ty, _)| *ty).collect();
        has_plan(&parsed.statement).then(|| Prepared {
            template: true,
            ..Prepared::new(Arc::new(parsed), types)
        })
    }

    /// Not planned yet.
    pub fn new(parsed: Arc<Parsed>, declared: impl Into<Arc<[u32]>>) -> Prepared {
        Prepared {
            parsed,
            declared: declared.into(),
            compiled: None,
            inner: false,
            template: false,
            memory: None,
        }
    }

    /// The statement of a PREPARE, not planned yet.
    ///
    /// # Errors
    /// There is no such type.
    pub fn of_command(types: &[ast::DataType], parsed: &Arc<Parsed>) -> Result<Prepared> {
        let oids = types.iter().map(|ty| type_named(ty).map(type_oid));
        let mut prepared = Prepared::new(parsed.clone(), oids.collect::<Result<Vec<u32>>>()?);
        prepared.inner = true;
        Ok(prepared)
    }

    /// The statement to plan: PREPARE's inner one where it came by PREPARE.
    pub fn statement(&self) -> &Statement {
        match &self.parsed.statement {
            Statement::Utility(Utility::Prepare { statement, .. }) if self.inner => statement,
            statement => statement,
        }
    }
}

/// Whether a statement has a plan (the others are carried out from their parsed form).
pub fn has_plan(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::Query(_) | Statement::Insert(_) | Statement::Update(_) | Statement::Delete(_)
    )
}

/// The statements that a session has prepared or seen.
#[derive(Default)]
pub struct PreparedStatements {
    named: HashMap<String, Prepared>,
    /// Those of them that PREPARE made.
    by_command: usize,
    /// How often one of those came or went.
    changes: u64,
    unnamed: Option<Prepared>,
    texts: HashMap<String, Vec<Prepared>>,
    /// Statements by their text without literals; None: the literals stay in.
    templates: HashMap<String, Option<Prepared>>,
    /// Raised when plans become stale for a reason other than the catalog.
    epoch: u64,
}

impl PreparedStatements {
    /// The epoch that a plan has to be of.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Makes all plans stale.
    pub fn make_plans_stale(&mut self) {
        self.epoch += 1;
    }

    /// Number of named statements.
    pub fn named_count(&self) -> usize {
        self.named.len()
    }

    /// A named statement.
    pub fn named(&self, name: &str) -> Option<&Prepared> {
        self.named.get(name)
    }

    /// The statement that a name stands for, taken out; [`put`](Self::put) gives it back.
    ///
    /// # Errors
    /// 26000: the session has no such statement.
    pub fn take(&mut self, name: &str) -> Result<Prepared> {
        if name.is_empty() {
            return self.unnamed.take().ok_or_else(no_unnamed);
        }
        self.named.get(name).cloned().ok_or_else(|| no_statement(name))
    }

    /// Gives a statement back with the plan that it has got.
    pub fn put(&mut self, name: &str, prepared: Prepared) {
        if name.is_empty() {
            self.unnamed = Some(prepared);
        } else if let Some(kept) = self.named.get_mut(name) {
            kept.compiled = prepared.compiled;
        }
    }

    /// Keeps the plan that a copy of a named statement has got.
    pub fn keep_plan(&mut self, name: &str, prepared: &Prepared) {
        if let Some(kept) = self.named.get_mut(name) {
            kept.compiled = prepared.compiled.clone();
        }
    }

    /// Refuses a name that is in use.
    ///
    /// # Errors
    /// 42P05: a named statement has this name.
    pub fn require_new(&self, name: &str) -> Result<()> {
        if !name.is_empty() && self.named.contains_key(name) {
            let text = format!("prepared statement \"{name}\" already exists");
            return Err(SqlError::new(code::DUPLICATE_STATEMENT, text));
        }
        Ok(())
    }

    /// Keeps a statement without a name.
    pub fn set_unnamed(&mut self, prepared: Option<Prepared>) {
        self.unnamed = prepared;
    }

    /// Keeps a named statement; the memory that it takes was charged before.
    pub fn insert(&mut self, name: &str, prepared: Prepared) {
        assert!(prepared.memory.is_some(), "a named statement is accounted for");
        self.by_command += usize::from(prepared.inner);
        self.changes += u64::from(prepared.inner);
        let former = self.named.insert(name.to_string(), prepared);
        assert!(former.is_none(), "a named statement replaces none");
    }

    /// Forgets a statement; whether there was one of this name.
    pub fn close(&mut self, name: &str) -> bool {
        match name.is_empty() {
            true => self.unnamed.take().is_some(),
            false => self.deallocate(name),
        }
    }

    /// Forgets a named statement; whether there was one.
    pub fn deallocate(&mut self, name: &str) -> bool {
        let gone = self.named.remove(name);
        let was_commanded = gone.as_ref().is_some_and(|prepared| prepared.inner);
        self.by_command -= usize::from(was_commanded);
        self.changes += u64::from(was_commanded);
        gone.is_some()
    }

    /// Texts of the commands that made those that PREPARE made.
    pub fn commanded(&self) -> Vec<String> {
        let commanded = self.named.values().filter(|prepared| prepared.inner);
        commanded.map(|prepared| prepared.parsed.text.to_string()).collect()
    }

    /// How often PREPARE has made one, or one of these has gone.
    pub fn commanded_changes(&self) -> u64 {
        self.changes
    }

    /// Whether there is one that PREPARE made.
    pub fn has_commanded(&self) -> bool {
        self.by_command > 0
    }

    /// Forgets all named statements.
    pub fn deallocate_all(&mut self) {
        self.by_command = 0;
        self.changes += 1;
        self.named.clear();
    }

    /// Statements of a text, from the cache if they are there. [`keep_text`](Self::keep_text) gives them back.
    ///
    /// # Errors
    /// 42601: the text does not parse.
    pub fn of_text(&mut self, text: &str, types: &[u32]) -> Result<Vec<Prepared>> {
        if let Some(cached) = self.texts.get_mut(text)
            && cached.first().is_some_and(|p| *p.declared == *types)
        {
            return Ok(std::mem::take(cached));
        }
        let parsed = parse(text)?;
        Ok(parsed
            .into_iter()
            .map(|p| Prepared::new(Arc::new(p), types.to_vec()))
            .collect())
    }

    /// Keeps the statements of a text, if they are worth it.
    pub fn keep_text(&mut self, text: &str, statements: Vec<Prepared>) {
        let worth = text.len() <= CACHED_TEXT_BYTES
            && statements
                .iter()
                .all(|p| p.compiled.is_some() || is_block_command(&p.parsed.statement));
        if let Some(kept) = self.texts.get_mut(text) {
            *kept = statements;
        } else if worth {
            if self.texts.len() >= CACHED_TEXTS {
                self.texts.clear();
            }
            self.texts.insert(text.to_string(), statements);
        }
    }

    /// The statement of a template, taken out; None: the short path does not run such texts.
    pub fn take_template(&mut self, found: &Template) -> Option<Prepared> {
        match self.templates.get_mut(&found.key) {
            Some(known) => known.take(),
            None => Prepared::template(found),
        }
    }

    /// Keeps the statement of a template, or that the short path does not run it (None).
    pub fn keep_template(&mut self, key: String, prepared: Option<Prepared>) {
        if self.templates.len() >= CACHED_TEXTS {
            self.templates.clear();
        }
        self.templates.insert(key, prepared);
    }
}

/// BEGIN, COMMIT and ROLLBACK, which stand around statements again and again.
fn is_block_command(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::Utility(Utility::Begin(..) | Utility::Commit { .. } | Utility::Rollback { .. })
    )
}

#[cold]
fn no_unnamed() -> SqlError {
    SqlError::new(
        code::INVALID_STATEMENT_NAME,
        "unnamed prepared statement does not exist",
    )
}

/// 26000: the session has no statement of this name.
#[cold]
pub fn no_statement(name: &str) -> SqlError {
    let text = format!("prepared statement \"{name}\" does not exist");
    SqlError::new(code::INVALID_STATEMENT_NAME, text)
}
