//! Prepared statements: planned for one version of the catalog, planned again when it has changed.

use super::Session;
use crate::error::{Result, SqlError, code};
use crate::exec::{scope, types_of};
use crate::expr::bind::{Bound, Params, Refusal};
use crate::hook::Analytics;
use crate::output::Field;
use crate::parse::template::Template;
use crate::parse::{Parsed, Statement, parse};
use crate::plan::{Plan, Planned, Planner};
use crate::types::{is_array_oid, oid, type_of_oid, type_oid};
use cenote_engine::{Charge, ColumnType};
use sqlparser::ast::Query;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Columns of a result, at most: PostgreSQL's limit.
const RESULTS_MAX: usize = 1664;

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

/// A plan, and the catalog and session that it is good for.
#[derive(Debug, Clone)]
pub struct Compiled {
    version: u64,
    epoch: u64,
    /// The plan.
    pub planned: Arc<Planned>,
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
}

/// Whether a statement has a plan (the others are carried out from their parsed form).
pub fn has_plan(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::Query(_) | Statement::Insert(_) | Statement::Update(_) | Statement::Delete(_)
    )
}

impl Session {
    /// The plan of a prepared statement, good for the catalog as this transaction sees it.
    pub(super) fn plan(&mut self, prepared: &mut Prepared) -> Result<Arc<Planned>> {
        let version = self.tx.catalog_version();
        if let Some(compiled) = &prepared.compiled
            && compiled.version == version
            && compiled.epoch == self.epoch
        {
            return Ok(compiled.planned.clone());
        }
        self.tx.ensure_snapshot();
        let planned = Arc::new(self.plan_statement(
            prepared.statement(),
            &prepared.parsed.text,
            &prepared.declared,
            !prepared.template,
        )?);
        prepared.compiled = Some(Compiled {
            version,
            epoch: self.epoch,
            planned: planned.clone(),
        });
        Ok(planned)
    }

    /// Plans a statement that reads or writes rows; `any_shape`: analytics takes what the short path refuses.
    pub(super) fn plan_statement(
        &self,
        statement: &Statement,
        text: &str,
        declared: &[u32],
        any_shape: bool,
    ) -> Result<Planned> {
        let params = Params::new(declared.iter().map(|id| declared_type(*id)).collect());
        let analytics = self.sql.analytics().filter(|_| any_shape);
        let planner = Planner {
            tx: &self.tx,
            session: &self.env,
            text,
            params: &params,
            analytics: analytics.is_some(),
        };
        let arrays = RefCell::default();
        let foreign = |query: &Query| {
            self.describe_foreign(analytics, query, (&params, &arrays), declared)
                .map(|fields| types_of(fields.iter().map(|f| f.type_oid)))
        };
        let bound: Bound<(Plan, Vec<Field>)> = match statement {
            Statement::Query(query) => match planner.select(query) {
                Err(Refusal::Shape(why)) => match analytics {
                    Some(_) => self
                        .describe_foreign(analytics, query, (&params, &arrays), declared)
                        .map_err(Refusal::Error)
                        .and_then(|fields| Ok((planner.read_by_analytics(query)?, fields))),
                    None => Err(Refusal::Error(why)),
                },
                bound => bound,
            },
            Statement::Insert(insert) => planner.insert(insert, &foreign),
            Statement::Update(update) => planner.update(update, &foreign),
            Statement::Delete(delete) => planner.delete(delete, &foreign),
            _ => return Err(SqlError::internal("a statement without a plan")),
        };
        let (plan, fields) = bound?;
        if fields.len() > RESULTS_MAX {
            let text = format!("target lists can have at most {RESULTS_MAX} entries");
            return Err(SqlError::new(code::TOO_MANY_COLUMNS, text));
        }
        let arrays = arrays.into_inner();
        let (mut types, mut param_oids) = (Vec::new(), Vec::new());
        for (at, found) in params.into_inner().into_iter().enumerate() {
            let ty = found.unwrap_or(ColumnType::Text);
            let array = arrays.get(&at).copied().filter(|_| found.is_none());
            types.push(ty);
            param_oids.push(reported_oid(array.as_ref().or(declared.get(at)), ty));
        }
        Ok(Planned {
            plan,
            params: types,
            param_oids,
            fields: fields.into(),
        })
    }

    /// Columns of another planner's query; parameter types that it infers are taken over. Arrays, which the engine has
    /// not, are noted by their ids: drivers send them as such (`= ANY($1::bigint[])`).
    fn describe_foreign(
        &self,
        analytics: Option<&Arc<dyn Analytics>>,
        query: &Query,
        (params, arrays): (&Params, &RefCell<BTreeMap<usize, u32>>),
        declared: &[u32],
    ) -> Result<Vec<Field>> {
        let analytics = analytics.ok_or_else(|| SqlError::unsupported("a query of this shape"))?;
        let known: Vec<u32> = params
            .borrow()
            .iter()
            .enumerate()
            .map(|(i, t)| t.map_or(0, |t| reported_oid(declared.get(i), t)))
            .collect();
        let description = analytics.describe(&scope(&self.tx, &self.env)?, query, &known)?;
        let mut params = params.borrow_mut();
        for (i, id) in description.param_types.iter().enumerate() {
            if params.len() <= i {
                params.push(None);
            }
            if params[i].is_none() {
                params[i] = type_of_oid(*id);
                if is_array_oid(*id) {
                    arrays.borrow_mut().insert(i, *id);
                }
            }
        }
        Ok(description.fields)
    }
}

/// A client that declared varchar or bpchar gets that back.
fn reported_oid(declared: Option<&u32>, ty: ColumnType) -> u32 {
    match declared {
        Some(id) if *id != 0 && *id != oid::UNKNOWN => *id,
        _ => type_oid(ty),
    }
}

/// Types that the engine has not (arrays, ...) travel as text under the id that the client declared: analytics knows
/// them.
fn declared_type(id: u32) -> Option<ColumnType> {
    match id {
        0 | oid::UNKNOWN => None,
        id => Some(type_of_oid(id).unwrap_or(ColumnType::Text)),
    }
}
