//! `x IN (SELECT ...)` in WHERE as a join with the different values of the subquery, where that reads nothing around it: the
//! join's planner decides whether the values look the rows up, or the rows the values.

use super::from::{From, Item, ItemSlot, Source};
use super::scope::Scope;
use super::{Node, RowPlanner, Step};
use crate::expr::bind::{Binder, Bound, Typed, strip};
use crate::expr::{Comparison, Expr};
use sqlparser::ast::{self, BinaryOperator};
use std::collections::BTreeSet;

/// The conditions that AND joins.
pub(super) fn ast_conjuncts(condition: &ast::Expr) -> Vec<&ast::Expr> {
    match strip(condition) {
        ast::Expr::BinaryOp {
            left,
            op: BinaryOperator::And,
            right,
        } => {
            let mut list = ast_conjuncts(left);
            list.extend(ast_conjuncts(right));
            list
        }
        other => vec![other],
    }
}

impl RowPlanner<'_> {
    /// Adds a condition of WHERE to the join, as an item of its own where that can be; false where it is no IN of a
    /// subquery, and nothing was added.
    pub(super) fn semi_join(
        &self,
        scope: &Scope<'_>,
        binder: &Binder<'_>,
        condition: &ast::Expr,
        from: &mut From,
    ) -> Bound<bool> {
        let ast::Expr::InSubquery {
            expr,
            subquery,
            negated: false,
        } = condition
        else {
            return Ok(false);
        };
        if from.items.is_empty() || matches!(strip(expr), ast::Expr::Tuple(_)) {
            return Ok(false);
        }
        let mut block = self.query(subquery, Some(binder), &scope.common)?;
        let is_own = block.outer.is_empty() && matches!(block.outputs.as_slice(), [output] if !output.open);
        if !is_own {
            // It is run for each row.
            let found = scope.any_of_block(binder, expr, Comparison::Eq, block)?;
            from.conditions.push(found);
            return Ok(true);
        }
        let output = block.outputs.remove(0);
        let slot = self.slot()?;
        self.used.borrow_mut().insert(slot);
        let item = Typed::new(Expr::Column(slot), output.ty);
        let equal = binder.compare(binder.bind(expr)?, Comparison::Eq, item)?.expr;
        let rows = block.node.rows;
        let project = Step::Project {
            input: Box::new(block.node),
            values: vec![(slot, output.expr)],
        };
        // A value that is there twice would give its row twice.
        let distinct = Step::Distinct {
            input: Box::new(Node::new(project, rows)),
            slots: vec![(slot, output.ty)],
        };
        from.items.push(Item {
            source: Source::Block(Node::new(distinct, rows), block.cost + rows),
            alias: String::new(),
            slots: vec![ItemSlot {
                slot,
                column: 0,
                ty: output.ty,
            }],
            left: None,
            requires: BTreeSet::new(),
            lateral: BTreeSet::new(),
        });
        from.conditions.push(equal);
        Ok(true)
    }
}
