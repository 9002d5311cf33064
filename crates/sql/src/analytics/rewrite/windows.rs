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
    // They stay until their names are resolved: those that nothing uses are looked at, too.
    let mut functions = Functions(NamedWindows::of(&select.named_window, &|_| 0)?);
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

/// Looks at the names in windows that nothing may use; `known`: whether there is such a name.
///
/// # Errors
/// As `known`.
pub(super) fn refuse_unknown(select: &Select, known: impl Fn(&[Ident]) -> Result<()>) -> Result<()> {
    match select.named_window.visit(&mut OwnNames { known, depth: 0 }) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// The names outside of subqueries.
struct OwnNames<F> {
    known: F,
    depth: usize,
}

impl<F: Fn(&[Ident]) -> Result<()>> Visitor for OwnNames<F> {
    type Break = SqlError;

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<SqlError> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<SqlError> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<SqlError> {
        let path = match expr {
            Expr::Identifier(ident) if self.depth == 0 => std::slice::from_ref(ident),
            Expr::CompoundIdentifier(path) if self.depth == 0 => path,
            _ => return ControlFlow::Continue(()),
        };
        match (self.known)(path) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}
