//! What subqueries answer for the row around them.

use super::{Context, State, next, push_key, reset, rewind};
use crate::error::{Result, SqlError, code};
use crate::expr::compare;
use crate::plan::row::{Apply, ApplyKind, Node};
use cenote_engine::{Charge, Datum};
use std::collections::HashSet;

/// The items of `IN (subquery)` that are the same for each operand.
struct Items {
    keys: HashSet<Vec<u8>>,
    has_null: bool,
    _memory: Charge,
}

/// Where a subquery stands.
pub struct ApplyState {
    state: State,
    begun: bool,
    /// The answer, where it is the same for all rows.
    answer: Option<Datum>,
    items: Option<Items>,
}

impl ApplyState {
    pub fn of(node: &Node) -> ApplyState {
        ApplyState {
            state: State::of(node),
            begun: false,
            answer: None,
            items: None,
        }
    }

    /// The answer for the tuple.
    ///
    /// # Errors
    /// As the subquery; 21000: it gives several rows; 53200: the session may gather no more.
    pub fn answer(&mut self, apply: &Apply, cx: &mut Context<'_>) -> Result<Datum> {
        if let Some(answer) = &self.answer {
            return Ok(answer.clone());
        }
        let answer = match &apply.kind {
            ApplyKind::Any { key: Some(_), .. } => self.is_in(apply, cx)?,
            _ => {
                if std::mem::replace(&mut self.begun, true) {
                    rewind(&apply.node, &mut self.state);
                }
                self.run(apply, cx)?
            }
        };
        if apply.outer.is_empty() {
            self.answer = Some(answer.clone());
            reset(&apply.node, &mut self.state);
        }
        Ok(answer)
    }

    fn run(&mut self, apply: &Apply, cx: &mut Context<'_>) -> Result<Datum> {
        match &apply.kind {
            ApplyKind::Exists => Ok(Datum::Bool(next(&apply.node, &mut self.state, cx)?)),
            ApplyKind::Scalar(value) => {
                if !next(&apply.node, &mut self.state, cx)? {
                    return Ok(Datum::Null);
                }
                let answer = value.eval(&cx.env())?;
                if next(&apply.node, &mut self.state, cx)? {
                    let text = "more than one row returned by a subquery used as an expression";
                    return Err(SqlError::new(code::CARDINALITY_VIOLATION, text));
                }
                Ok(answer)
            }
            ApplyKind::Any {
                operand,
                item,
                op,
                trim,
                ..
            } => {
                let operand = operand.eval(&cx.env())?;
                let mut unknown = false;
                while next(&apply.node, &mut self.state, cx)? {
                    let env = cx.env();
                    match compare(&operand.as_ref(), &item.value(&env)?.get(), *trim)? {
                        Some(ordering) if op.holds(ordering) => return Ok(Datum::Bool(true)),
                        Some(_) => {}
                        None => unknown = true,
                    }
                }
                Ok(if unknown { Datum::Null } else { Datum::Bool(false) })
            }
        }
    }

    /// Looks the operand up in the set of items, which is read once.
    fn is_in(&mut self, apply: &Apply, cx: &mut Context<'_>) -> Result<Datum> {
        let ApplyKind::Any {
            operand, key: Some(ty), ..
        } = &apply.kind
        else {
            return Err(SqlError::internal("a set of another subquery"));
        };
        if self.items.is_none() {
            self.items = Some(self.read_items(apply, cx)?);
        }
        let Some(items) = &self.items else {
            return Ok(Datum::Null);
        };
        let env = cx.env();
        let value = operand.value(&env)?;
        let value = value.get();
        if items.keys.is_empty() && !items.has_null {
            return Ok(Datum::Bool(false));
        }
        if value.is_null() {
            return Ok(Datum::Null);
        }
        let mut key = Vec::new();
        push_key(*ty, &value, &mut key);
        Ok(match items.keys.contains(&key) {
            true => Datum::Bool(true),
            false if items.has_null => Datum::Null,
            false => Datum::Bool(false),
        })
    }

    fn read_items(&mut self, apply: &Apply, cx: &mut Context<'_>) -> Result<Items> {
        let ApplyKind::Any {
            item, key: Some(ty), ..
        } = &apply.kind
        else {
            return Err(SqlError::internal("a set of another subquery"));
        };
        let mut items = Items {
            keys: HashSet::new(),
            has_null: false,
            _memory: Charge::new(&cx.session.memory),
        };
        while next(&apply.node, &mut self.state, cx)? {
            let env = cx.env();
            let value = item.value(&env)?;
            let value = value.get();
            if value.is_null() {
                items.has_null = true;
                continue;
            }
            let mut key = Vec::new();
            push_key(*ty, &value, &mut key);
            items._memory.grow(key.len() + 64)?;
            items.keys.insert(key);
        }
        reset(&apply.node, &mut self.state);
        Ok(items)
    }
}
