//! What is known of a join before its order is chosen: sides that nothing reads and that match one row at most go, and
//! columns that are equal share their values.
//!
//! Both change nothing of the rows: a LEFT JOIN keeps each row of its left side, once where a unique key is met; and of
//! `a.x = b.y AND a.x = 5` follows `b.y = 5`, which says all that the first condition does.

use super::from::{From, Item, Source};
use super::subquery::slots_of;
use super::{JoinKind, RowPlanner, SlotNumber};
use crate::expr::{Comparison, Expr};
use crate::plan::access::tree_columns;
use crate::types::{base_type, is_integer};
use cenote_engine::{ColumnType, Table};
use std::collections::{BTreeMap, BTreeSet};

impl RowPlanner<'_> {
    /// The slots that are used, and the first that nothing has yet.
    pub(super) fn used_so_far(&self) -> (BTreeSet<SlotNumber>, SlotNumber) {
        (self.used.borrow().clone(), self.slots.get())
    }

    /// Returns to what was used; the slots that came since (of subqueries, which are planned) stay.
    pub(super) fn unuse(&self, (mut used, first): (BTreeSet<SlotNumber>, SlotNumber)) {
        used.extend(self.used.borrow().range(first..));
        self.used.replace(used);
    }

    /// Takes out the nullable sides that nothing but their own ON reads and that match one row at most. The slots that
    /// the others' ON reads are used from here on.
    pub(super) fn drop_unread(&self, from: &mut From) {
        for at in (0..from.items.len()).rev() {
            let item = &from.items[at];
            let mut used = self.used.borrow_mut();
            if let Some((JoinKind::Left, on)) = &item.on {
                if !item.slots.iter().any(|s| used.contains(&s.slot)) && matches_one_row(item, on) {
                    from.items.remove(at);
                    continue;
                }
                on.iter().for_each(|condition| slots_of(condition, &mut used));
            }
            // A group of joins, a subquery among them, may read others in an ON of its own.
            used.extend(&item.requires);
        }
    }
}

/// Whether ON fixes a unique key of the table that the item is.
fn matches_one_row(item: &Item, on: &[Expr]) -> bool {
    let Source::Table(table, false) = &item.source else {
        return false;
    };
    let fixed: BTreeSet<usize> = on
        .iter()
        .filter_map(|condition| fixed_column(item, condition))
        .collect();
    let is_fixed = |columns: &[usize]| !columns.is_empty() && columns.iter().all(|column| fixed.contains(column));
    unique_keys(table).any(is_fixed) && !on.iter().any(Expr::is_volatile)
}

/// The columns of each unique key.
fn unique_keys(table: &Table) -> impl Iterator<Item = &[usize]> {
    let unique = (0..table.indexes.len())
        .filter(|at| table.indexes[*at].unique)
        .map(Some);
    [None].into_iter().chain(unique).map(|index| tree_columns(table, index))
}

/// The column of the item that the condition makes equal to something outside of it.
fn fixed_column(item: &Item, condition: &Expr) -> Option<usize> {
    let Expr::Compare {
        op: Comparison::Eq,
        left,
        right,
        ..
    } = condition
    else {
        return None;
    };
    let column = |side: &Expr| match side {
        Expr::Column(slot) => item.slots.iter().find(|s| s.slot == *slot).map(|s| s.column),
        _ => None,
    };
    let is_outside = |side: &Expr| {
        let mut slots = BTreeSet::new();
        slots_of(side, &mut slots);
        !item.slots.iter().any(|s| slots.contains(&s.slot))
    };
    match (column(left), column(right)) {
        (Some(found), None) if is_outside(right) => Some(found),
        (None, Some(found)) if is_outside(left) => Some(found),
        _ => None,
    }
}

/// Gives columns that are equal to one that has a value the same value, in place of the condition that they are equal.
pub(super) fn share_values(from: &mut From) {
    let mut pairs: Vec<usize> = (0..from.conditions.len())
        .filter(|at| pair(&from.conditions[*at]).is_some())
        .collect();
    if pairs.is_empty() {
        return;
    }
    let columns = inner_columns(from);
    pairs.retain(|at| pair(&from.conditions[*at]).is_some_and(|pair| alike(&columns, pair)));
    let mut values = BTreeMap::new();
    for condition in &from.conditions {
        if let Some((slot, value)) = fixed(from, &columns, condition) {
            values.entry(slot).or_insert(value);
        }
    }
    let mut implied = BTreeSet::new();
    while !values.is_empty() {
        let known = implied.len();
        for at in &pairs {
            let Some((a, b)) = pair(&from.conditions[*at]).filter(|_| !implied.contains(at)) else {
                continue;
            };
            let new = match (values.get(&a), values.get(&b)) {
                (Some(value), None) => Some((b, value.clone())),
                (None, Some(value)) => Some((a, value.clone())),
                (Some(one), Some(other)) if one == other => None,
                _ => continue,
            };
            implied.insert(*at);
            if let Some((slot, value)) = new {
                from.conditions.push(equal(slot, value.clone()));
                values.insert(slot, value);
            }
        }
        if implied.len() == known {
            break;
        }
    }
    let mut at = 0;
    from.conditions.retain(|_| {
        at += 1;
        !implied.contains(&(at - 1))
    });
}

/// The slots of items whose rows the conditions are about, with their types.
fn inner_columns(from: &From) -> BTreeMap<SlotNumber, ColumnType> {
    let inner = from.items.iter().filter(|item| item.on.is_none());
    inner
        .flat_map(|item| item.slots.iter().map(|s| (s.slot, s.ty)))
        .collect()
}

/// The two slots that a condition makes equal.
fn pair(condition: &Expr) -> Option<(SlotNumber, SlotNumber)> {
    match condition {
        Expr::Compare {
            op: Comparison::Eq,
            trim: false,
            left,
            right,
        } => match (&**left, &**right) {
            (Expr::Column(a), Expr::Column(b)) => Some((*a, *b)),
            _ => None,
        },
        _ => None,
    }
}

/// Whether both are columns of the join whose values compare with others alike.
fn alike(columns: &BTreeMap<SlotNumber, ColumnType>, (a, b): (SlotNumber, SlotNumber)) -> bool {
    match (columns.get(&a), columns.get(&b)) {
        (Some(a), Some(b)) => is_integer(*a) && is_integer(*b) || base_type(*a) == base_type(*b),
        _ => false,
    }
}

/// The column that a condition gives a value which is the same for all rows of the join, and that.
fn fixed(from: &From, columns: &BTreeMap<SlotNumber, ColumnType>, condition: &Expr) -> Option<(SlotNumber, Expr)> {
    let Expr::Compare {
        op: Comparison::Eq,
        trim: false,
        left,
        right,
    } = condition
    else {
        return None;
    };
    let is_value = |side: &Expr| {
        let mut slots = BTreeSet::new();
        slots_of(side, &mut slots);
        let is_own = |slot: &SlotNumber| from.items.iter().any(|i| i.slots.iter().any(|s| s.slot == *slot));
        !side.is_volatile() && !runs_anew(side) && !slots.iter().any(is_own)
    };
    match (&**left, &**right) {
        (Expr::Column(slot), value) if columns.contains_key(slot) && is_value(value) => Some((*slot, value.clone())),
        (value, Expr::Column(slot)) if columns.contains_key(slot) && is_value(value) => Some((*slot, value.clone())),
        _ => None,
    }
}

/// Whether a subquery is part of it that is run for the row around: it would be run for each column.
fn runs_anew(expr: &Expr) -> bool {
    let mut found = false;
    expr.walk(&mut |e| found |= matches!(e, Expr::Subquery(subquery) if !subquery.args.is_empty()));
    found
}

fn equal(slot: SlotNumber, value: Expr) -> Expr {
    Expr::Compare {
        op: Comparison::Eq,
        trim: false,
        left: Box::new(Expr::Column(slot)),
        right: Box::new(value),
    }
}
