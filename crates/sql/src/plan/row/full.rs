//! FULL JOIN: the right side is read into a table of hashes, the left one looks its matches up; then come the rows of
//! the table that none has found.

use super::from::{From, Full};
use super::join::key_type;
use super::subquery::slots_of;
use super::{JoinKind, Node, RowPlanner, SlotNumber, Step};
use crate::expr::bind::Bound;
use crate::expr::{Comparison, Expr};
use crate::plan::access::all_of;
use cenote_engine::ColumnType;
use std::collections::{BTreeMap, BTreeSet};

/// The slots of a side, and their types.
type Side = BTreeMap<SlotNumber, ColumnType>;

impl RowPlanner<'_> {
    pub(super) fn full_join(&self, full: Full) -> Bound<Node> {
        let (left, right) = (side_of(&full.left), side_of(&full.right));
        let (mut keys, mut on) = (Vec::new(), Vec::new());
        for condition in full.on {
            match key_of(&condition, &left, &right) {
                Some(key) => keys.push(key),
                None => on.push(condition),
            }
        }
        let used = |side: &Side| -> Vec<SlotNumber> {
            let used = self.used.borrow();
            side.keys().copied().filter(|slot| used.contains(slot)).collect()
        };
        let (carried, nulls) = (used(&right), used(&left));
        let outer = self.join(full.left, None)?.node;
        let build = self.join(full.right, None)?.node;
        let rows = outer.rows + build.rows;
        let step = Step::Hash {
            kind: JoinKind::Full,
            outer: Box::new(outer),
            build: Box::new(build),
            keys,
            on: all_of(on),
            carried,
            nulls,
        };
        let input = Box::new(Node::new(step, rows));
        let values = full.merged;
        Ok(Node::new(Step::Project { input, values }, rows))
    }
}

fn side_of(from: &From) -> Side {
    let slots = from.items.iter().flat_map(|item| &item.slots);
    slots.map(|s| (s.slot, s.ty)).collect()
}

/// The sides of an equality between the two, and the type by which they are compared.
fn key_of(condition: &Expr, left: &Side, right: &Side) -> Option<(Expr, Expr, ColumnType)> {
    let Expr::Compare {
        op: Comparison::Eq,
        trim: false,
        left: a,
        right: b,
    } = condition
    else {
        return None;
    };
    let names = |expr: &Expr, side: &Side| {
        let mut slots = BTreeSet::new();
        slots_of(expr, &mut slots);
        !slots.is_empty() && slots.iter().all(|slot| side.contains_key(slot))
    };
    let (outer, own) = match (&**a, &**b) {
        (a, b) if names(a, left) && names(b, right) => (a, b),
        (a, b) if names(b, left) && names(a, right) => (b, a),
        _ => return None,
    };
    let type_of = |expr: &Expr| match expr {
        Expr::Column(slot) => left.get(slot).or_else(|| right.get(slot)).copied(),
        Expr::Cast { to, .. } => Some(*to),
        _ => None,
    };
    // Both sides are of one type: one that says it does.
    let ty = type_of(own).or_else(|| type_of(outer))?;
    Some((outer.clone(), own.clone(), key_type(ty)))
}
