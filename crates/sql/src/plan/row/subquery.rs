//! Subqueries in expressions. Each has a tuple of its own and is run when its answer is asked for: what it reads of the
//! row around it are its arguments. One that reads nothing around it is run once.

use super::block::is_volatile;
use super::join::key_type;
use super::scope::Scope;
use super::{Answer, Block, Node, Output, RowPlanner, SlotNumber, Step, Subplan};
use crate::error::{SqlError, code};
use crate::expr::bind::rows::comparison_of;
use crate::expr::bind::{Binder, Bound, Typed, shape, strip};
use crate::expr::{Comparison, Expr, Subquery};
use cenote_engine::ColumnType;
use sqlparser::ast::{self, BinaryOperator, Query};
use std::collections::BTreeSet;

impl Scope<'_> {
    pub(super) fn bind_subquery(&self, binder: &Binder<'_>, expr: &ast::Expr) -> Bound<Typed> {
        match expr {
            ast::Expr::Subquery(query) => self.scalar(binder, query),
            ast::Expr::Exists { subquery, negated } => {
                let block = self.inner(binder, subquery)?;
                let answer = self.subplan(block, Answer::Exists, is_volatile(subquery), Vec::new())?;
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
        let output = block.outputs.remove(0);
        let answer = self.subplan(block, Answer::Scalar(output.expr), is_volatile(query), Vec::new())?;
        Ok(Typed::new(answer, output.ty))
    }

    fn any(&self, binder: &Binder<'_>, operand: &ast::Expr, op: Comparison, query: &Query) -> Bound<Expr> {
        let block = self.inner(binder, query)?;
        self.any_of_block(binder, operand, op, (block, is_volatile(query)))
    }

    /// The comparison with one of the rows of a subquery that is planned.
    pub(super) fn any_of_block(
        &self,
        binder: &Binder<'_>,
        operand: &ast::Expr,
        op: Comparison,
        (mut block, volatile): (Block, bool),
    ) -> Bound<Expr> {
        let operands: Vec<&ast::Expr> = match strip(operand) {
            ast::Expr::Tuple(parts) if op == Comparison::Eq => parts.iter().collect(),
            ast::Expr::Tuple(_) => return shape("a row in this comparison with a subquery"),
            one => vec![one],
        };
        if block.outputs.len() != operands.len() {
            let which = if block.outputs.len() > operands.len() {
                "many"
            } else {
                "few"
            };
            return Err(SqlError::new(code::SYNTAX_ERROR, format!("subquery has too {which} columns")).into());
        }
        let outputs = std::mem::take(&mut block.outputs);
        let items = self.rows.slots(outputs.len())?;
        let (mut keys, mut parts, mut values, mut args) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for ((operand, output), item) in operands.into_iter().zip(outputs).zip(&items) {
            self.rows.used.borrow_mut().insert(*item);
            let compared = self.compared(binder, operand, op, (&output, *item))?;
            values.push((*item, output.expr));
            let slot = self.rows.slot()?;
            args.push((slot, compared.operand));
            let operand = Expr::Column(slot);
            parts.push(Expr::Compare {
                op,
                trim: compared.trim,
                left: Box::new(operand.clone()),
                right: Box::new(compared.item.clone()),
            });
            keys.push((operand, compared.item, compared.ty));
        }
        let once = block.outer.is_empty();
        block.node = projected(block.node, values);
        if once && op != Comparison::Eq {
            block.node = cached(block.node, &items);
        }
        let answer = Answer::Any {
            condition: if parts.len() == 1 {
                parts.remove(0)
            } else {
                Expr::And(parts)
            },
            keys: (once && op == Comparison::Eq).then_some(keys),
            items,
        };
        self.subplan(block, answer, volatile, args)
    }

    /// An operand compared with a column of the subquery, which goes to the slot.
    fn compared(
        &self,
        binder: &Binder<'_>,
        operand: &ast::Expr,
        op: Comparison,
        (output, item): (&Output, SlotNumber),
    ) -> Bound<Compared> {
        let operand = binder.bind(operand)?;
        let item = match output.open {
            true => output.typed(),
            false => Typed::new(Expr::Column(item), output.ty),
        };
        let ty = key_type(operand.ty.or(item.ty).unwrap_or(output.ty));
        let types = (operand.ty, item.ty);
        let Expr::Compare { trim, left, right, .. } = binder.compare(operand, op, item)?.expr else {
            return shape("this comparison with a subquery");
        };
        // char(n) with text is compared as text.
        let ty = match (ty, types) {
            (ColumnType::Char(_), _) | (_, (_, Some(ColumnType::Char(_)))) if !trim => ColumnType::Text,
            (ty, _) => ty,
        };
        Ok(Compared {
            operand: *left,
            trim,
            ty,
            item: *right,
        })
    }

    /// Notes the subquery; `args`: what more than its own references to the row around it is passed to it, and where.
    pub(super) fn subplan(
        &self,
        block: Block,
        answer: Answer,
        volatile: bool,
        args: Vec<(SlotNumber, Expr)>,
    ) -> Bound<Expr> {
        let mut subplans = self.rows.subplans.borrow_mut();
        let Ok(at) = u16::try_from(subplans.len()) else {
            return shape("a statement of so many subqueries");
        };
        let correlated = !block.outer.is_empty();
        let is_set = matches!(answer, Answer::Any { keys: Some(_), .. });
        if !correlated {
            self.rows.spend(block.cost);
        }
        let outer = block.outer.iter().map(|slot| (*slot, Expr::Column(*slot)));
        let (slots, args): (Vec<SlotNumber>, Vec<Expr>) = outer.chain(args).unzip();
        subplans.push(Subplan {
            cost: match (correlated, &answer) {
                (true, _) => block.cost,
                (false, Answer::Any { .. }) if !is_set => block.node.rows.max(1.0),
                (false, _) => 1.0,
            },
            node: block.node,
            answer,
            slots,
            correlated,
        });
        // What reads nothing around it is run once, whatever it calls.
        let volatile = volatile && correlated;
        Ok(Expr::Subquery(Box::new(Subquery { at, args, volatile })))
    }
}

impl RowPlanner<'_> {
    /// Steps of the subqueries that an expression asks.
    pub(super) fn subquery_cost<'e>(&self, exprs: impl IntoIterator<Item = &'e Expr>) -> f64 {
        let subplans = self.subplans.borrow();
        let mut cost = 0.0;
        for expr in exprs {
            expr.walk(&mut |e| {
                if let Expr::Subquery(subquery) = e {
                    cost += subplans[usize::from(subquery.at)].cost;
                }
            });
        }
        cost
    }
}

/// The two sides of a comparison with a column of a subquery.
struct Compared {
    operand: Expr,
    /// Over the item's slot.
    item: Expr,
    trim: bool,
    ty: ColumnType,
}

/// The values into their slots.
fn projected(node: Node, values: Vec<(SlotNumber, Expr)>) -> Node {
    let rows = node.rows;
    let input = Box::new(node);
    Node::new(Step::Project { input, values }, rows)
}

/// The rows are the same for each operand: they are read once.
fn cached(node: Node, items: &[SlotNumber]) -> Node {
    let rows = node.rows;
    let step = Step::Cache {
        input: Box::new(node),
        carried: items.to_vec(),
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
