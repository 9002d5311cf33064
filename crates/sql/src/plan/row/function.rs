//! Functions in FROM: `generate_series` of integers, and `unnest` of an array. Their arguments may name what stands
//! before them in FROM.

use super::from::{Item, ItemSlot, Source};
use super::scope::{Relation, RelationColumn, Scope};
use super::subquery::slots_of;
use super::{Node, SlotNumber, Step};
use crate::error::{SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::rows::Unnested;
use crate::expr::bind::{Binder, Bound, Typed, shape};
use crate::names::{fold, qualified};
use crate::types::cast::Context;
use crate::types::is_integer;
use cenote_engine::{ColumnType, Datum};
use sqlparser::ast::{self, FunctionArg, FunctionArgExpr, ObjectName, TableAlias};
use std::collections::BTreeSet;

/// Rows of a function of which nothing is known.
const ROWS: f64 = 100.0;

/// A function in FROM, bound: what gives its rows, and their type.
struct Series {
    step: Step,
    rows: f64,
    ty: ColumnType,
    slot: SlotNumber,
}

impl Scope<'_> {
    /// The relation of a function.
    pub(super) fn function(
        &self,
        binder: &Binder<'_>,
        (name, args): (&ObjectName, &[FunctionArg]),
        alias: Option<&TableAlias>,
    ) -> Bound<(Relation, Item)> {
        let (schema, name) = qualified(name)?;
        let args = args.iter().map(|arg| match arg {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(e)) => Ok(e),
            _ => shape("this argument of a function in FROM"),
        });
        let args = args.collect::<Bound<Vec<_>>>()?;
        if schema.is_some_and(|s| s != "pg_catalog") {
            return shape("a function of a schema in FROM");
        }
        let series = match (name.as_str(), args.as_slice()) {
            ("generate_series", [_, _] | [_, _, _]) => self.series(binder, &args)?,
            ("unnest", [array]) => self.unnest(binder, array)?,
            _ => return shape(format_args!("the function {name} in FROM")),
        };
        // Its only column goes by the function's alias, or by the name of its own that this gives.
        let known_as = alias.map_or_else(|| name.clone(), |a| fold(&a.name));
        let column = alias.and_then(|a| a.columns.first());
        if alias.is_some_and(|a| a.columns.len() > 1) {
            let text = format!(
                "table \"{known_as}\" has 1 columns available but {} columns specified",
                alias.map_or(0, |a| a.columns.len())
            );
            return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, text).into());
        }
        let relation = Relation {
            alias: known_as.clone(),
            columns: vec![RelationColumn {
                name: column.map_or_else(|| known_as.clone(), |c| fold(&c.name)),
                ty: series.ty,
                slot: series.slot,
                source: None,
                merged: false,
            }],
        };
        let requires = slots_read(&series.step);
        let item = Item {
            alias: known_as,
            slots: vec![ItemSlot {
                slot: series.slot,
                column: 0,
                ty: series.ty,
            }],
            on: None,
            unique: None,
            lateral: requires.clone(),
            requires,
            source: Source::Block(Node::new(series.step, series.rows), series.rows),
        };
        Ok((relation, item))
    }

    fn series(&self, binder: &Binder<'_>, args: &[&ast::Expr]) -> Bound<Series> {
        let bound = args.iter().map(|e| binder.bind(e)).collect::<Bound<Vec<Typed>>>()?;
        let known = bound.iter().filter_map(|a| a.ty);
        let ty = match known.clone().all(is_integer) {
            true if known.clone().any(|ty| ty == ColumnType::Int8) => ColumnType::Int8,
            true => ColumnType::Int4,
            false => return shape("generate_series of no integers"),
        };
        let coerced = bound.into_iter().map(|arg| binder.coerce(arg, ty, Context::Implicit));
        let mut args = coerced.collect::<Bound<Vec<Expr>>>()?.into_iter();
        let (Some(start), Some(stop)) = (args.next(), args.next()) else {
            return shape("generate_series without an end");
        };
        let by = args.next();
        let slot = self.rows.slot()?;
        let rows = rows_of(&start, &stop, by.as_ref());
        let step = Step::Series {
            start,
            stop,
            by,
            ty,
            slot,
        };
        Ok(Series { step, rows, ty, slot })
    }

    fn unnest(&self, binder: &Binder<'_>, array: &ast::Expr) -> Bound<Series> {
        let slot = self.rows.slot()?;
        Ok(match binder.unnested(array)? {
            Unnested::List(items, ty) => Series {
                rows: items.len() as f64,
                step: Step::Values {
                    rows: items.into_iter().map(|item| vec![item]).collect(),
                    slots: vec![slot],
                },
                ty,
                slot,
            },
            Unnested::Array(array, element) => Series {
                step: Step::Unnest { array, element, slot },
                rows: ROWS,
                ty: element,
                slot,
            },
        })
    }
}

fn rows_of(start: &Expr, stop: &Expr, by: Option<&Expr>) -> f64 {
    let whole = |e: &Expr| match e {
        Expr::Const(Datum::Int4(v)) => Some(f64::from(*v)),
        Expr::Const(Datum::Int8(v)) => Some(*v as f64),
        _ => None,
    };
    match (whole(start), whole(stop), by.map_or(Some(1.0), whole)) {
        (Some(start), Some(stop), Some(by)) if by != 0.0 => ((stop - start) / by + 1.0).max(1.0),
        _ => ROWS,
    }
}

fn slots_read(step: &Step) -> BTreeSet<SlotNumber> {
    let mut slots = BTreeSet::new();
    let mut read = |e: &Expr| slots_of(e, &mut slots);
    match step {
        Step::Series { start, stop, by, .. } => [start, stop].into_iter().chain(by).for_each(&mut read),
        Step::Values { rows, .. } => rows.iter().flatten().for_each(&mut read),
        Step::Unnest { array, .. } => read(array),
        _ => {}
    }
    slots
}
