//! Windows that WINDOW names, written out where a function takes them.
//!
//! DataFusion puts the whole definition in the place of `OVER w` alone; of `OVER (w ...)` it drops what `w` says, and
//! ORDER BY it does not look at.

use crate::error::{Result, SqlError};
use crate::expr::windows::NamedWindows;
use sqlparser::ast::*;
use std::ops::ControlFlow;

/// Writes the windows of `query` and of its subqueries out.
///
/// # Errors
/// 42704, 42P20: as [`NamedWindows`] says.
pub(crate) fn expand_windows(query: &mut Query) -> Result<()> {
    match VisitMut::visit(query, &mut Queries) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Visits the innermost query first: then what is left of names in one is its own.
struct Queries;

impl VisitorMut for Queries {
    type Break = SqlError;

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<SqlError> {
        match of_body(&mut query.body, query.order_by.as_mut()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}

fn of_body(body: &mut SetExpr, order: Option<&mut OrderBy>) -> Result<()> {
    match body {
        SetExpr::Select(select) => of_select(select, order),
        SetExpr::SetOperation { left, right, .. } => {
            of_body(left, None)?;
            of_body(right, None)
        }
        _ => Ok(()),
    }
}

fn of_select(select: &mut Select, order: Option<&mut OrderBy>) -> Result<()> {
    let definitions = std::mem::take(&mut select.named_window);
    let mut functions = Functions(NamedWindows::of(&definitions, &|_| 0)?);
    let mut visited = VisitMut::visit(&mut select.projection, &mut functions);
    if visited.is_continue() {
        visited = VisitMut::visit(&mut select.distinct, &mut functions);
    }
    if let (true, Some(order)) = (visited.is_continue(), order) {
        visited = VisitMut::visit(order, &mut functions);
    }
    match visited {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Functions(NamedWindows);

impl VisitorMut for Functions {
    type Break = SqlError;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        let Expr::Function(Function { over: Some(over), .. }) = expr else {
            return ControlFlow::Continue(());
        };
        match self.0.window(over, &|_| 0) {
            Ok(spec) => {
                *over = WindowType::WindowSpec(spec);
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(error),
        }
    }
}
