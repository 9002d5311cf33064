//! Subqueries in expressions: each is run for the row around it, or once where it reads nothing of that, and its answer
//! goes to a slot that the expression names.

use super::join::key_type;
use super::scope::Scope;
use super::{Apply, ApplyKind, Block, Node, SlotNumber, Step};
use crate::error::{SqlError, code};
use crate::expr::bind::rows::comparison_of;
use crate::expr::bind::{Binder, Bound, Typed, shape};
use crate::expr::{Comparison, Expr};
use crate::plan::access::Path;
use cenote_engine::{ColumnType, Datum};
use sqlparser::ast::{self, BinaryOperator, Query};
use std::collections::BTreeSet;

impl Scope<'_> {
    pub(super) fn bind_subquery(&self, binder: &Binder<'_>, expr: &ast::Expr) -> Bound<Typed> {
        match expr {
            ast::Expr::Subquery(query) => self.scalar(binder, query),
            ast::Expr::Exists { subquery, negated } => {
                let block = self.inner(binder, subquery)?;
                let answer = self.apply(binder, block, ApplyKind::Exists)?;
                Ok(bool_of(answer, *negated))
            }
            ast::Expr::InSubquery {
                expr,
                subquery,
                negated,
            } => {
                let answer = self.any(binder, expr, Comparison::Eq, subquery)?;
                Ok(bool_of(answer, *negated))
            }
            ast::Expr::AnyOp {
                left,
                compare_op,
                right,
                ..
            } => {
                let answer = self.any(binder, left, comparison(compare_op)?, query_of(right)?)?;
                Ok(bool_of(answer, false))
            }
            ast::Expr::AllOp {
                left,
                compare_op,
                right,
            } => {
                // x op ALL (q) is NOT (x negated-op ANY (q)), with NULLs too.
                let op = negated(comparison(compare_op)?);
                let answer = self.any(binder, left, op, query_of(right)?)?;
                Ok(bool_of(answer, true))
            }
            other => shape(format_args!("the expression {other}")),
        }
    }

    /// Plans the subquery in the clause of `binder`.
    fn inner(&self, binder: &Binder<'_>, query: &Query) -> Bound<Block> {
        self.rows.query(query, Some(binder), &self.common)
    }

    fn scalar(&self, binder: &Binder<'_>, query: &Query) -> Bound<Typed> {
        let mut block = self.inner(binder, query)?;
        let [_] = block.outputs.as_slice() else {
            return Err(SqlError::new(code::SYNTAX_ERROR, "subquery must return only one column").into());
        };
        if !gives_one_row(&block.node) {
            // It is run before CASE or OR would ask it, and could fail there with 21000 for nothing.
            return shape("a scalar subquery of maybe several rows");
        }
        let output = block.outputs.remove(0);
        let slot = self.apply(binder, block, ApplyKind::Scalar(output.expr))?;
        Ok(Typed::new(slot, output.ty))
    }

    fn any(&self, binder: &Binder<'_>, operand: &ast::Expr, op: Comparison, query: &Query) -> Bound<Expr> {
        if matches!(operand, ast::Expr::Tuple(_)) {
            return shape("a row compared with a subquery");
        }
        let block = self.inner(binder, query)?;
        self.any_of_block(binder, operand, op, block)
    }

    /// The comparison with one of the rows of a subquery that is planned.
    pub(super) fn any_of_block(
        &self,
        binder: &Binder<'_>,
        operand: &ast::Expr,
        op: Comparison,
        mut block: Block,
    ) -> Bound<Expr> {
        let operand = binder.bind(operand)?;
        let mut read = BTreeSet::new();
        slots_of(&operand.expr, &mut read);
        if block.outputs.len() != 1 {
            return Err(SqlError::new(code::SYNTAX_ERROR, "subquery has too many columns").into());
        }
        let output = block.outputs.remove(0);
        let item = Typed {
            expr: output.expr,
            ty: (!output.open).then_some(output.ty),
        };
        let ty = key_type(operand.ty.or(item.ty).unwrap_or(output.ty));
        let types = (operand.ty, item.ty);
        let Expr::Compare { op, trim, left, right } = binder.compare(operand, op, item)?.expr else {
            return shape("this comparison with a subquery");
        };
        // char(n) with text is compared as text.
        let ty = match (ty, types) {
            (ColumnType::Char(_), _) | (_, (_, Some(ColumnType::Char(_)))) if !trim => ColumnType::Text,
            (ty, _) => ty,
        };
        let once = block.outer.is_empty();
        block.outer.extend(read);
        let kind = ApplyKind::Any {
            operand: *left,
            item: *right,
            op,
            trim,
            key: (once && op == Comparison::Eq).then_some(ty),
        };
        if once && op != Comparison::Eq {
            block.node = cached(block.node, &kind);
        }
        self.apply(binder, block, kind)
    }

    /// Notes the subquery, and gives the slot of its answer.
    fn apply(&self, binder: &Binder<'_>, block: Block, kind: ApplyKind) -> Bound<Expr> {
        let slot = self.rows.slot()?;
        let applies = if binder.grouping.is_some() {
            &self.above
        } else {
            &self.below
        };
        let once = block.outer.is_empty() || matches!(kind, ApplyKind::Any { key: Some(_), .. });
        if once {
            self.rows.spend(block.cost);
        }
        applies.borrow_mut().push(Apply {
            cost: if once { 1.0 } else { block.cost },
            node: block.node,
            kind,
            slot,
            outer: block.outer,
        });
        Ok(Expr::Column(slot))
    }
}

/// Whether the node gives one row at most, whatever the tables hold.
fn gives_one_row(node: &Node) -> bool {
    match &node.step {
        Step::Row => true,
        Step::Aggregate { keys, .. } => keys.is_empty(),
        Step::Scan(scan) => matches!(scan.access.path, Path::Point(_)),
        Step::Limit { input, limit, .. } => {
            gives_one_row(input) || matches!(limit, Some(Expr::Const(Datum::Int8(0 | 1))))
        }
        Step::Filter { input, .. }
        | Step::Project { input, .. }
        | Step::Apply { input, .. }
        | Step::Distinct { input, .. }
        | Step::Sort { input, .. }
        | Step::Window { input, .. }
        | Step::Cache { input, .. } => gives_one_row(input),
        Step::Values { rows, .. } => rows.len() <= 1,
        Step::Nested { .. } | Step::Hash { .. } | Step::Set { .. } => false,
    }
}

/// The rows are the same for each operand: they are read once.
fn cached(node: Node, kind: &ApplyKind) -> Node {
    let mut carried = BTreeSet::new();
    if let ApplyKind::Any { item, .. } = kind {
        slots_of(item, &mut carried);
    }
    let rows = node.rows;
    let step = Step::Cache {
        input: Box::new(node),
        carried: carried.into_iter().collect(),
    };
    Node::new(step, rows)
}

/// Adds the slots that the expression names.
pub(super) fn slots_of(expr: &Expr, into: &mut BTreeSet<SlotNumber>) {
    expr.walk(&mut |e| {
        if let Expr::Column(slot) | Expr::Outer(slot) = e {
            into.insert(*slot);
        }
    });
}

fn bool_of(answer: Expr, negated: bool) -> Typed {
    let expr = if negated { Expr::Not(Box::new(answer)) } else { answer };
    Typed::new(expr, ColumnType::Bool)
}

fn query_of(expr: &ast::Expr) -> Bound<&Query> {
    match expr {
        ast::Expr::Subquery(query) => Ok(query),
        ast::Expr::Nested(inner) => query_of(inner),
        other => shape(format_args!("ANY of {other}")),
    }
}

fn comparison(op: &BinaryOperator) -> Bound<Comparison> {
    comparison_of(op).map_or_else(|| shape(format_args!("{op} ANY")), Ok)
}

fn negated(op: Comparison) -> Comparison {
    match op {
        Comparison::Eq => Comparison::Ne,
        Comparison::Ne => Comparison::Eq,
        Comparison::Lt => Comparison::Ge,
        Comparison::Le => Comparison::Gt,
        Comparison::Gt => Comparison::Le,
        Comparison::Ge => Comparison::Lt,
    }
}
