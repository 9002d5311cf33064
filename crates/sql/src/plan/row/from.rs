//! FROM: its relations as items of one join, and the conditions of ON and USING.

use super::scope::{Relation, RelationColumn, Scope};
use super::subquery::slots_of;
use super::{Block, JoinKind, Node, RowPlanner, SlotNumber, Step};
use crate::error::{SqlError, code};
use crate::expr::bind::{Binder, Bound, Typed, shape};
use crate::expr::{Comparison, Expr};
use crate::names::{fold, qualified};
use crate::plan::access::conjuncts;
use cenote_engine::{ColumnType, Table};
use sqlparser::ast::{
    self, FunctionArg, FunctionArgExpr, JoinConstraint, JoinOperator, ObjectName, TableAlias, TableFactor,
    TableWithJoins,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Where the rows of an item come from.
pub(super) enum Source {
    /// A table; `bool`: it is the statement's target.
    Table(Arc<Table>, bool),
    /// A subquery in FROM, and the steps of one run.
    Block(Node, f64),
    /// The rows of a WITH query that are kept: which, and how many are expected.
    Kept(u16, f64),
    /// A join of its own: the nullable side of an outer join.
    Group(From),
    /// FULL JOIN.
    Full(Box<Full>),
}

/// A slot that an item writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct ItemSlot {
    pub slot: SlotNumber,
    /// The table's column that goes there.
    pub column: usize,
    pub ty: ColumnType,
}

/// One thing to join.
pub(super) struct Item {
    pub source: Source,
    pub alias: String,
    /// Its slots.
    pub slots: Vec<ItemSlot>,
    /// Some: the nullable side of a LEFT JOIN, or the side of a semi or anti join that only tells whether there is a
    /// match, with the conditions of its ON.
    pub on: Option<(JoinKind, Vec<Expr>)>,
    /// It is one of the different values of a semi join's side.
    pub unique: Option<Unique>,
    /// Slots that have to be written before it is read.
    pub requires: BTreeSet<SlotNumber>,
    /// Those of them that its source reads (LATERAL): its rows are others for each row before.
    pub lateral: BTreeSet<SlotNumber>,
}

/// A semi join's side of which each combination of values is read once: it is joined as any other item.
pub(super) struct Unique {
    pub keys: Vec<(SlotNumber, ColumnType)>,
    /// Conditions by which it is read.
    pub own: Vec<Expr>,
}

/// Two sides of which both are nullable.
pub(super) struct Full {
    pub left: From,
    pub right: From,
    pub on: Vec<Expr>,
    /// Columns of USING: of the side that has a row.
    pub merged: Vec<(SlotNumber, Expr)>,
}

/// What is joined, and the conditions that hold of each row.
#[derive(Default)]
pub(super) struct From {
    pub items: Vec<Item>,
    pub conditions: Vec<Expr>,
}

/// A column's place: its relation, and its position there.
type Place = (usize, usize);

/// Places of the columns that `*` shows.
type Star = Vec<Place>;

impl Scope<'_> {
    /// Adds the relations of FROM to the scope.
    pub(super) fn from(
        &self,
        list: &[TableWithJoins],
        sequence: &dyn Fn(&str) -> crate::error::Result<u32>,
    ) -> Bound<From> {
        let mut from = From::default();
        for item in list {
            let start = self.relations.borrow().len();
            let (joined, star) = self.joined(item, start, sequence)?;
            from.items.extend(joined.items);
            from.conditions.extend(joined.conditions);
            self.star.borrow_mut().extend(star);
        }
        self.visible_from.set(0);
        Ok(from)
    }

    fn joined(
        &self,
        list: &TableWithJoins,
        start: usize,
        sequence: &dyn Fn(&str) -> crate::error::Result<u32>,
    ) -> Bound<(From, Star)> {
        let (mut from, mut star) = self.factor(&list.relation, sequence)?;
        for join in &list.joins {
            let (side, constraint) = side_of(&join.join_operator)?;
            let right_start = self.relations.borrow().len();
            let (right, right_star) = self.factor(&join.relation, sequence)?;
            self.visible_from.set(start);
            // What only the ON of an outer join reads is read where that join stays (`rewrite`).
            let used = matches!(side, Side::Left | Side::Right).then(|| self.rows.used_so_far());
            let binder = self.binder(sequence);
            let merged = match constraint {
                JoinConstraint::Using(names) => names.iter().map(|n| Ok(qualified(n)?.1)).collect::<Bound<Vec<_>>>()?,
                JoinConstraint::Natural => self.common_names(&star, &right_star),
                _ => Vec::new(),
            };
            let mut on = match constraint {
                JoinConstraint::On(condition) => {
                    let bound = binder.condition(condition, "JOIN/ON")?;
                    conjuncts(Some(bound))
                }
                _ => Vec::new(),
            };
            let mut pairs = Vec::new();
            for name in &merged {
                pairs.push(self.merge(name, (start, right_start), side, &binder, &mut on)?);
            }
            if let Some(used) = used {
                self.rows.unuse(used);
            }
            let (first, values) = match side {
                Side::Full => self.columns_of_either(&pairs)?,
                Side::Right => (pairs.into_iter().map(|(_, right)| right).collect(), Vec::new()),
                _ => (pairs.into_iter().map(|(left, _)| left).collect(), Vec::new()),
            };
            star = self.star_of(first, star, right_star);
            from = match side {
                Side::Full => full(from, right, on, values),
                _ => attach(from, right, side, on),
            };
            self.visible_from.set(0);
        }
        Ok((from, star))
    }

    /// `*` of a join: the merged columns, then what is left of both sides.
    fn star_of(&self, mut first: Star, left: Star, right: Star) -> Star {
        let relations = self.relations.borrow();
        let rest: Star = left
            .into_iter()
            .chain(right)
            .filter(|at| !relations[at.0].columns[at.1].merged && !first.contains(at))
            .collect();
        first.extend(rest);
        first
    }

    /// The merged columns of a FULL JOIN, as a relation that no name qualifies: the value of the side that has a row.
    fn columns_of_either(&self, pairs: &[(Place, Place)]) -> Bound<(Star, Vec<(SlotNumber, Expr)>)> {
        let slots = self.rows.slots(pairs.len())?;
        let mut relations = self.relations.borrow_mut();
        let (at, mut columns, mut values) = (relations.len(), Vec::new(), Vec::new());
        for ((left, right), slot) in pairs.iter().zip(slots) {
            let sides = [left, right].map(|(r, c)| &relations[*r].columns[*c]);
            values.push((slot, Expr::Coalesce(sides.map(|c| Expr::Column(c.slot)).to_vec())));
            columns.push(RelationColumn {
                slot,
                source: None,
                merged: false,
                ..sides[0].clone()
            });
        }
        if !columns.is_empty() {
            let alias = String::new();
            relations.push(Relation { alias, columns });
        }
        Ok(((0..pairs.len()).map(|c| (at, c)).collect(), values))
    }

    fn common_names(&self, left: &Star, right: &Star) -> Vec<String> {
        let relations = self.relations.borrow();
        let name = |at: &(usize, usize)| relations[at.0].columns[at.1].name.clone();
        let right: Vec<String> = right.iter().map(name).collect();
        left.iter().map(name).filter(|n| right.contains(n)).collect()
    }

    /// Makes one column of two: the condition that they are equal, and where both are.
    fn merge(
        &self,
        name: &str,
        (start, right_start): (usize, usize),
        side: Side,
        binder: &Binder<'_>,
        on: &mut Vec<Expr>,
    ) -> Bound<((usize, usize), (usize, usize))> {
        let find = |from: usize, to: usize, which: &str| -> Bound<(usize, usize)> {
            let relations = self.relations.borrow();
            let columns = relations[from..to].iter().enumerate().flat_map(|(r, relation)| {
                let matching = relation
                    .columns
                    .iter()
                    .enumerate()
                    .filter(|(_, c)| c.name == name && !c.merged);
                matching.map(move |(c, _)| (from + r, c))
            });
            let found: Vec<_> = columns.collect();
            match found.as_slice() {
                [one] => Ok(*one),
                [] => {
                    let text = format!("column \"{name}\" specified in USING clause does not exist in {which} table");
                    Err(SqlError::new(code::UNDEFINED_COLUMN, text).into())
                }
                _ => {
                    let text = format!("common column name \"{name}\" appears more than once in {which} table");
                    Err(SqlError::new(code::AMBIGUOUS_COLUMN, text).into())
                }
            }
        };
        let end = self.relations.borrow().len();
        let (left, right) = (find(start, right_start, "left")?, find(right_start, end, "right")?);
        let mut relations = self.relations.borrow_mut();
        let typed = |at: (usize, usize)| {
            let column = &relations[at.0].columns[at.1];
            self.rows.used.borrow_mut().insert(column.slot);
            Typed::new(Expr::Column(column.slot), column.ty)
        };
        let (a, b) = (typed(left), typed(right));
        if a.ty != b.ty {
            return shape("USING of columns of two types");
        }
        on.push(binder.compare(a, Comparison::Eq, b)?.expr);
        for hidden in [left, right] {
            let is_shown = match side {
                Side::Full => false,
                Side::Right => hidden == right,
                Side::Inner | Side::Left => hidden == left,
            };
            relations[hidden.0].columns[hidden.1].merged |= !is_shown;
        }
        Ok((left, right))
    }

    fn factor(
        &self,
        factor: &TableFactor,
        sequence: &dyn Fn(&str) -> crate::error::Result<u32>,
    ) -> Bound<(From, Star)> {
        match factor {
            TableFactor::Table {
                name,
                alias,
                args: None,
                sample: None,
                with_ordinality: false,
                ..
            } => self.named(name, alias.as_ref()),
            TableFactor::Derived {
                lateral,
                subquery,
                alias,
                sample: None,
            } => {
                let binder = self.binder(sequence);
                let block = match lateral {
                    true => self.rows.query(subquery, Some(&binder), &self.common)?,
                    false => self.rows.query(subquery, self.around, &self.common)?,
                };
                if !lateral {
                    self.outer.borrow_mut().extend(block.outer.iter().copied());
                }
                let Some(alias) = alias else {
                    return Err(SqlError::new(code::SYNTAX_ERROR, "subquery in FROM must have an alias").into());
                };
                self.derived(block, fold(&alias.name), Some(alias), Vec::new())
            }
            TableFactor::Table {
                name,
                alias,
                args: Some(ast::TableFunctionArgs { args, settings: None }),
                sample: None,
                with_ordinality: false,
                ..
            } => {
                let binder = self.binder(sequence);
                let (relation, item) = self.function(&binder, (name, args), alias.as_ref())?;
                self.add(relation, item)
            }
            TableFactor::Function {
                name,
                args,
                alias,
                with_ordinality: false,
                ..
            } => {
                let binder = self.binder(sequence);
                let (relation, item) = self.function(&binder, (name, args), alias.as_ref())?;
                self.add(relation, item)
            }
            TableFactor::UNNEST {
                alias,
                array_exprs,
                with_offset: false,
                with_ordinality: false,
                ..
            } if array_exprs.len() == 1 => {
                let binder = self.binder(sequence);
                let name = ObjectName::from(vec![ast::Ident::new("unnest")]);
                let args = [FunctionArg::Unnamed(FunctionArgExpr::Expr(array_exprs[0].clone()))];
                let (relation, item) = self.function(&binder, (&name, &args), alias.as_ref())?;
                self.add(relation, item)
            }
            TableFactor::NestedJoin {
                table_with_joins,
                alias: None,
            } => {
                let start = self.relations.borrow().len();
                self.joined(table_with_joins, start, sequence)
            }
            other => shape(format_args!("the FROM item {other}")),
        }
    }

    fn named(&self, name: &ObjectName, alias: Option<&TableAlias>) -> Bound<(From, Star)> {
        let (schema, bare) = qualified(name)?;
        let common = self.common.iter().rposition(|c| schema.is_none() && c.name == bare);
        if let Some(at) = common {
            return self.common(at, alias);
        }
        let table = self.rows.planner.table(name)?;
        let known_as = alias.map_or_else(|| table.name.clone(), |a| fold(&a.name));
        let slots = self.rows.slots(table.columns.len())?;
        let columns = table
            .columns
            .iter()
            .zip(&slots)
            .enumerate()
            .map(|(at, (column, slot))| RelationColumn {
                name: column.name.clone(),
                ty: column.ty,
                slot: *slot,
                source: Some((table.clone(), at)),
                merged: false,
            });
        let relation = named_columns(known_as.clone(), columns.collect(), alias)?;
        let is_target = self.rows.take_target();
        let item = Item {
            alias: known_as,
            slots: item_slots(&relation),
            on: None,
            unique: None,
            requires: BTreeSet::new(),
            lateral: BTreeSet::new(),
            source: Source::Table(table.clone(), is_target),
        };
        self.rows.tables.borrow_mut().push(table.id);
        self.add(relation, item)
    }

    /// What WITH names as a relation.
    fn common(&self, at: usize, alias: Option<&TableAlias>) -> Bound<(From, Star)> {
        let named = &self.common[at];
        let known_as = alias.map_or_else(|| named.name.clone(), |a| fold(&a.name));
        let Some(kept) = &named.kept else {
            let block = self.rows.query(named.query, named.around, &self.common[..at])?;
            let is_here = match (named.around, self.around) {
                (Some(there), Some(here)) => std::ptr::eq(there, here),
                _ => true,
            };
            if !block.outer.is_empty() && !is_here {
                return shape("WITH that reads the row around it, named in a subquery");
            }
            self.outer.borrow_mut().extend(block.outer.iter().copied());
            return self.derived(block, known_as, alias, named.columns.clone());
        };
        let slots = self.rows.slots(kept.columns.len())?;
        let column = |(at, ((name, ty), slot)): (usize, (&(String, ColumnType), SlotNumber))| RelationColumn {
            name: named.columns.get(at).unwrap_or(name).clone(),
            ty: *ty,
            slot,
            source: None,
            merged: false,
        };
        let columns = kept.columns.iter().zip(slots).enumerate().map(column).collect();
        let relation = named_columns(known_as.clone(), columns, alias)?;
        let item = Item {
            alias: known_as,
            slots: item_slots(&relation),
            on: None,
            unique: None,
            requires: BTreeSet::new(),
            lateral: BTreeSet::new(),
            source: Source::Kept(kept.at, kept.rows),
        };
        self.add(relation, item)
    }

    /// A subquery's rows as a relation; `columns`: names that WITH gives.
    fn derived(
        &self,
        block: Block,
        known_as: String,
        alias: Option<&TableAlias>,
        names: Vec<String>,
    ) -> Bound<(From, Star)> {
        let mut columns = Vec::new();
        let mut values = Vec::new();
        for (at, output) in block.outputs.into_iter().enumerate() {
            let slot = match output.expr {
                // A slot of a query around it is not the relation's own: an outer join writes NULL there.
                Expr::Column(slot) if !block.outer.contains(&slot) => slot,
                expr => {
                    let slot = self.rows.slot()?;
                    values.push((slot, expr));
                    slot
                }
            };
            columns.push(RelationColumn {
                name: names.get(at).cloned().unwrap_or(output.name),
                ty: output.ty,
                slot,
                source: None,
                merged: false,
            });
        }
        let rows = block.node.rows;
        let node = match values.is_empty() {
            true => block.node,
            false => Node::new(
                Step::Project {
                    input: Box::new(block.node),
                    values,
                },
                rows,
            ),
        };
        let relation = named_columns(known_as.clone(), columns, alias)?;
        let item = Item {
            alias: known_as,
            slots: item_slots(&relation),
            on: None,
            unique: None,
            lateral: block.outer.clone(),
            requires: block.outer,
            source: Source::Block(node, block.cost),
        };
        self.add(relation, item)
    }

    fn add(&self, relation: Relation, item: Item) -> Bound<(From, Star)> {
        let mut relations = self.relations.borrow_mut();
        if relations.iter().any(|r| r.alias == relation.alias) {
            let text = format!("table name \"{}\" specified more than once", relation.alias);
            return Err(SqlError::new(code::DUPLICATE_ALIAS, text).into());
        }
        let at = relations.len();
        let star = (0..relation.columns.len()).map(|c| (at, c)).collect();
        relations.push(relation);
        let from = From {
            items: vec![item],
            conditions: Vec::new(),
        };
        Ok((from, star))
    }
}

impl RowPlanner<'_> {
    /// Whether this table, the first that is named, is the statement's target.
    fn take_target(&self) -> bool {
        self.target.replace(false)
    }
}

/// Which rows without a match a join keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Inner,
    Left,
    Right,
    Full,
}

fn side_of(operator: &JoinOperator) -> Bound<(Side, &JoinConstraint)> {
    match operator {
        JoinOperator::Join(c) | JoinOperator::Inner(c) | JoinOperator::CrossJoin(c) => Ok((Side::Inner, c)),
        JoinOperator::Left(c) | JoinOperator::LeftOuter(c) => Ok((Side::Left, c)),
        JoinOperator::Right(c) | JoinOperator::RightOuter(c) => Ok((Side::Right, c)),
        JoinOperator::FullOuter(c) => Ok((Side::Full, c)),
        _ => shape("this join"),
    }
}

/// FULL JOIN: one item, whose sides are joins of their own.
fn full(left: From, right: From, on: Vec<Expr>, merged: Vec<(SlotNumber, Expr)>) -> From {
    let items = || left.items.iter().chain(&right.items);
    let mut slots: Vec<ItemSlot> = items().flat_map(|i| i.slots.iter().copied()).collect();
    for (slot, value) in &merged {
        let mut sides = BTreeSet::new();
        slots_of(value, &mut sides);
        let side = slots.iter().find(|s| sides.contains(&s.slot)).copied();
        slots.extend(side.map(|side| ItemSlot { slot: *slot, ..side }));
    }
    let mut requires: BTreeSet<SlotNumber> = items().flat_map(|i| i.requires.iter().copied()).collect();
    let conditions = left.conditions.iter().chain(&right.conditions).chain(&on);
    conditions.for_each(|c| slots_of(c, &mut requires));
    requires.retain(|slot| !slots.iter().any(|s| s.slot == *slot));
    let item = Item {
        alias: String::new(),
        slots,
        on: None,
        unique: None,
        lateral: requires.clone(),
        requires,
        source: Source::Full(Box::new(Full {
            left,
            right,
            on,
            merged,
        })),
    };
    From {
        items: vec![item],
        conditions: Vec::new(),
    }
}

/// Joins what is on the right to what is on the left.
fn attach(mut left: From, mut right: From, side: Side, on: Vec<Expr>) -> From {
    match side {
        Side::Inner => {
            left.items.extend(right.items);
            left.conditions.extend(right.conditions);
            left.conditions.extend(on);
            left
        }
        Side::Left => {
            left.items.push(dependent(right, JoinKind::Left, on));
            left
        }
        Side::Right | Side::Full => {
            right.items.push(dependent(left, JoinKind::Left, on));
            right
        }
    }
}

/// One item of a side that is joined to what its conditions name: the nullable one of an outer join.
pub(super) fn dependent(mut from: From, kind: JoinKind, on: Vec<Expr>) -> Item {
    let single = from.items.len() == 1 && from.conditions.is_empty() && from.items[0].on.is_none();
    let mut item = match single {
        true => from.items.remove(0),
        false => Item {
            alias: String::new(),
            slots: from.items.iter().flat_map(|i| i.slots.iter().copied()).collect(),
            on: None,
            unique: None,
            requires: from.items.iter().flat_map(|i| i.requires.iter().copied()).collect(),
            // What its items are joined by inside, its rows depend on.
            lateral: from.items.iter().flat_map(|i| i.requires.iter().copied()).collect(),
            source: Source::Group(from),
        },
    };
    let own: BTreeSet<SlotNumber> = item.slots.iter().map(|s| s.slot).collect();
    on.iter().for_each(|condition| slots_of(condition, &mut item.requires));
    item.requires.retain(|slot| !own.contains(slot));
    item.lateral.retain(|slot| !own.contains(slot));
    item.on = Some((kind, on));
    item
}

fn item_slots(relation: &Relation) -> Vec<ItemSlot> {
    let slot = |(column, c): (usize, &RelationColumn)| ItemSlot {
        slot: c.slot,
        column,
        ty: c.ty,
    };
    relation.columns.iter().enumerate().map(slot).collect()
}

/// The relation with the names that its alias gives.
fn named_columns(alias: String, mut columns: Vec<RelationColumn>, given: Option<&TableAlias>) -> Bound<Relation> {
    let names = given.map_or(&[][..], |a| a.columns.as_slice());
    if names.len() > columns.len() {
        let text = format!(
            "table \"{alias}\" has {} columns available but {} columns specified",
            columns.len(),
            names.len()
        );
        return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, text).into());
    }
    for (column, name) in columns.iter_mut().zip(names) {
        column.name = fold(&name.name);
    }
    Ok(Relation { alias, columns })
}
