//! Functions in FROM. Those whose arguments are of the items before them become UNNEST of an array, which DataFusion
//! takes in LATERAL; it plans a table function's arguments without names.

use super::build::{call, type_literal};
use super::names::{folded, name_function_column};
use super::unqualify;
use sqlparser::ast::*;
use std::ops::ControlFlow;

/// Rewrites a function; leaves other items.
pub(super) fn rewrite(factor: &mut TableFactor) {
    let (name, args, alias) = match factor {
        TableFactor::Table {
            name,
            alias,
            args: Some(args),
            ..
        } => (name, &args.args, alias),
        TableFactor::Function { name, args, alias, .. } => (name, &*args, alias),
        TableFactor::UNNEST { alias, array_exprs, .. } if array_exprs.len() == 1 => {
            return name_function_column("unnest", alias);
        }
        _ => return,
    };
    unqualify(name);
    let function = name.0.last().and_then(|p| p.as_ident()).map(folded).unwrap_or_default();
    name_function_column(&function, alias);
    let array_exprs = match function.as_str() {
        "unnest" => args.iter().filter_map(argument).collect(),
        "generate_series" if args.iter().any(names_a_column) => {
            let mut limits: Vec<Expr> = args.iter().filter_map(argument).collect();
            limits.iter_mut().for_each(type_literal);
            vec![call("cenote_series", limits)]
        }
        _ => return,
    };
    let alias = alias.take();
    *factor = TableFactor::UNNEST {
        alias,
        array_exprs,
        with_offset: false,
        with_offset_alias: None,
        with_ordinality: false,
    };
}

fn names_a_column(arg: &FunctionArg) -> bool {
    let visited = visit_expressions(arg, |expr| match expr {
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    visited.is_break()
}

fn argument(arg: &FunctionArg) -> Option<Expr> {
    match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    }
}
