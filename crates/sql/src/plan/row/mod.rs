//! Plans of the row executor: queries of any shape that touch few rows.
//!
//! The whole statement has one *tuple*, an array of slots. Each column of a relation, each group key, aggregate and
//! subquery's result has a slot of its own. A node writes its slots and leaves the others alone, so that
//!
//! - a join's inner side reads the rows around it where they are: nothing is passed;
//! - a scan's conditions may name slots of what was joined before ([`Expr::Outer`]), and its keys are made of them:
//!   an index nested-loop join is a nested loop whose inner side is such a scan.
//!
//! A subquery in an expression is run when its answer is asked for, on a tuple of its own ([`Subplan`]): what it
//! reads of the row around it are its arguments.
//!
//! 1. [`scope`] finds what names mean; [`from`] makes relations of FROM and conditions of ON.
//! 2. [`block`] plans one SELECT with its clauses, [`subquery`] those inside expressions.
//! 3. [`rewrite`] takes out what a join does not need; [`join`] chooses the order of joins and how each relation is
//!    read, by the estimates of [`estimate`] and [`shares`].
//!
//! Invariants: a node reads only slots that nodes before it, or around it, have written. What holds rows (sort, hash,
//! group, cache) keeps the slots that are read above it, and writes them back.

mod block;
mod common;
pub(super) mod estimate;
mod explain;
mod frame;
mod from;
mod full;
mod function;
mod join;
mod profile;
mod rewrite;
mod scope;
mod semi;
mod sets;
mod shares;
mod subquery;
mod window;

pub use common::Common;
pub use explain::shown;
pub use frame::{Frame, FrameBound, Units};
pub use profile::{NodeRun, Profile};
pub use window::{FrameValue, WindowFunction};

use super::Planner;
use super::access::Access;
use super::learned::{Expected, WRONG};
use crate::expr::Expr;
use crate::expr::aggregate::Aggregate;
use crate::expr::bind::{Binder, Bound, Refusal, Typed, shape};
use crate::output::Field;
use crate::types::base_type;
use crate::types::cast::Context;
use cenote_engine::{ColumnType, Columns, Table, Tx};
use estimate::Estimator;
use sqlparser::ast::{OrderByOptions, Query};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A query that costs more than this is left to analytics, where there is one. In steps of a scan, some 100 ns each:
/// planning by analytics takes milliseconds.
const COST_MAX: f64 = 100_000.0;

/// SELECTs of one statement, at most: WITH queries that name each other twice double at each step.
const BLOCKS_MAX: u32 = 200;
/// A table that has grown by this many rows, and tenfold, since a plan was made is planned for anew.
const GROWN: f64 = 1_000.0;

/// A place in the tuple.
pub type SlotNumber = u16;

/// A query, planned for the row executor.
#[derive(Debug)]
pub struct RowPlan {
    /// Gives the rows.
    pub root: Node,
    /// Subqueries in expressions.
    pub subplans: Vec<Subplan>,
    /// WITH queries whose rows are kept.
    pub commons: Vec<Common>,
    /// Slots of the tuple.
    pub slots: usize,
    /// The select list over the tuple.
    pub outputs: Vec<Expr>,
    /// Its types.
    pub types: Vec<ColumnType>,
    /// Ids of the tables that are read.
    pub tables: Vec<u32>,
    /// Rows of the tables when it was planned, by their ids.
    pub counts: BTreeMap<u32, f64>,
    /// Which results are literals or parameters whose type was open.
    pub open: Vec<bool>,
    /// Steps of a run, as estimated.
    pub cost: f64,
    /// Its scans, by their numbers.
    pub scans: Vec<Expected>,
    /// Whether it reads a timestamptz of a table.
    pub reads_zoned: bool,
}

/// How the rows of a join qualify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinKind {
    /// Pairs that match.
    Inner,
    /// Also outer rows without a match, with NULLs.
    Left,
    /// Also rows of both sides without a match, with NULLs.
    Full,
    /// Outer rows that have a match, once.
    Semi,
    /// Outer rows without a match.
    Anti,
}

/// What a subquery answers.
#[derive(Debug)]
pub enum Answer {
    /// Its only row's only column, NULL without a row (21000 with several).
    Scalar(Expr),
    /// Whether it has rows.
    Exists,
    /// Whether a comparison with one of its rows holds (`IN`, `ANY`): NULL where none does and one is unknown.
    Any {
        /// The comparison, over the operands among the arguments and the subquery's row.
        condition: Expr,
        /// The rows are the same for each operand, and are kept in a set: operand, item, and the type by which they
        /// are compared.
        keys: Option<Vec<(Expr, Expr, ColumnType)>>,
        /// The items of a row.
        items: Vec<SlotNumber>,
    },
}

/// A subquery in an expression. It runs on a tuple of its own, when it is asked ([`Expr::Subquery`]).
#[derive(Debug)]
pub struct Subplan {
    /// Its rows.
    pub node: Node,
    /// What of it is asked.
    pub answer: Answer,
    /// Where its arguments go in its tuple.
    pub slots: Vec<SlotNumber>,
    /// Whether it reads the row around it: its rows are others for each. Else they are read once.
    pub correlated: bool,
    /// Steps of an answer.
    pub cost: f64,
}

/// A sort key in the tuple.
#[derive(Debug, Clone)]
pub struct Key {
    /// Where the value is.
    pub slot: SlotNumber,
    /// Falling.
    pub descending: bool,
    /// NULLs before values.
    pub nulls_first: bool,
    /// char(n).
    pub trim: bool,
}

impl Key {
    fn of(slot: SlotNumber, ty: ColumnType, options: OrderByOptions) -> Key {
        let descending = options.asc == Some(false);
        Key {
            slot,
            descending,
            nulls_first: options.nulls_first.unwrap_or(descending),
            trim: matches!(ty, ColumnType::Char(_)),
        }
    }
}

/// A table read by a path.
#[derive(Debug)]
pub struct Scan {
    /// How the rows are found; its expressions are over the stored row and the tuple around ([`Expr::Outer`]).
    pub access: Access,
    /// The name that the statement gives it.
    pub alias: String,
    /// Columns that go to the tuple, and where.
    pub fetch: Vec<(usize, SlotNumber)>,
    /// Columns that are read at all.
    pub columns: Columns,
    /// Whether it is the statement's target, which may be asked about one row alone.
    pub is_target: bool,
    /// Whether the first rows may do: few are fetched at first.
    pub few: bool,
    /// Steps of a run, as estimated.
    pub cost: f64,
    /// Its position among the plan's scans.
    pub number: usize,
}

/// What `UNION` and its like do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetKind {
    /// All rows of both.
    Union,
    /// Rows that both have.
    Intersect,
    /// Rows that only the left one has.
    Except,
}

/// A node of the plan, with the rows that it is expected to give.
#[derive(Debug)]
pub struct Node {
    /// What it does.
    pub step: Step,
    /// Rows a run.
    pub rows: f64,
}

/// What a node does.
#[derive(Debug)]
pub enum Step {
    /// One row, nothing written.
    Row,
    /// A table.
    Scan(Box<Scan>),
    /// For each outer row the inner node is run; `on` is asked of each pair.
    Nested {
        kind: JoinKind,
        outer: Box<Node>,
        inner: Box<Node>,
        on: Option<Expr>,
        /// Slots of the inner side: NULL in an outer row without a match.
        nulls: Vec<SlotNumber>,
    },
    /// The build side is read once into a table by `keys`; each outer row looks its matches up.
    Hash {
        kind: JoinKind,
        outer: Box<Node>,
        build: Box<Node>,
        /// Of the outer row, of the build row, and the type by which they are compared.
        keys: Vec<(Expr, Expr, ColumnType)>,
        on: Option<Expr>,
        /// Slots of the build side that are kept.
        carried: Vec<SlotNumber>,
        /// Of a full join, those of the outer side: NULL in a build row without a match.
        nulls: Vec<SlotNumber>,
    },
    /// Rows for which the condition holds.
    Filter { input: Box<Node>, condition: Expr },
    /// Expressions into slots.
    Project {
        input: Box<Node>,
        values: Vec<(SlotNumber, Expr)>,
    },
    /// Groups.
    Aggregate {
        input: Box<Node>,
        keys: Vec<(Expr, ColumnType, SlotNumber)>,
        aggregates: Vec<(Aggregate, SlotNumber)>,
        /// Grouping sets: positions of the keys of each; none where all keys are the only one.
        sets: Vec<Vec<usize>>,
        /// `GROUPING(...)`: where it goes, and what it is for each set.
        marks: Vec<(SlotNumber, Vec<i32>)>,
    },
    /// Each combination of these slots once.
    Distinct {
        input: Box<Node>,
        slots: Vec<(SlotNumber, ColumnType)>,
    },
    /// In order; `first`: only the first rows are wanted, by this LIMIT and OFFSET.
    Sort {
        input: Box<Node>,
        keys: Vec<Key>,
        carried: Vec<SlotNumber>,
        first: Option<(Expr, Option<Expr>)>,
    },
    /// OFFSET and LIMIT, bigint.
    Limit {
        input: Box<Node>,
        limit: Option<Expr>,
        offset: Option<Expr>,
    },
    /// Rows kept from the first run to the next: what they depend on does not change.
    Cache { input: Box<Node>, carried: Vec<SlotNumber> },
    /// UNION, INTERSECT, EXCEPT of what both sides write into `slots`.
    Set {
        kind: SetKind,
        all: bool,
        left: Box<Node>,
        right: Box<Node>,
        slots: Vec<(SlotNumber, ColumnType)>,
    },
    /// Window functions: rows by partition, in each by the order. Their values go into slots.
    Window {
        input: Box<Node>,
        partition: Vec<Key>,
        order: Vec<Key>,
        functions: Vec<(WindowFunction, SlotNumber)>,
        carried: Vec<SlotNumber>,
    },
    /// Rows of a WITH query that are kept: which, and the columns that are read.
    Common { at: u16, columns: Vec<(usize, SlotNumber)> },
    /// Integers from one to another, by steps of 1 or of another size.
    Series {
        start: Expr,
        stop: Expr,
        by: Option<Expr>,
        ty: ColumnType,
        slot: SlotNumber,
    },
    /// The elements of an array, which is text.
    Unnest {
        array: Expr,
        element: ColumnType,
        slot: SlotNumber,
    },
    /// Rows of expressions.
    Values {
        rows: Vec<Vec<Expr>>,
        slots: Vec<SlotNumber>,
    },
}

impl RowPlan {
    /// Gives results whose type is open the types of the columns that take them; false where one stays open: it is
    /// computed below the select list.
    ///
    /// # Errors
    /// A literal is no value of its column's type.
    pub fn settle(&mut self, binder: &Binder<'_>, targets: &[ColumnType]) -> Bound<bool> {
        let mut settled = true;
        for (at, ty) in targets
            .iter()
            .enumerate()
            .take(self.open.len())
            .filter(|(at, _)| self.open[*at])
        {
            let expr = self.outputs[at].clone();
            if !matches!(expr, Expr::Const(_) | Expr::Param(_)) {
                settled = false;
                continue;
            }
            let ty = match ty {
                ColumnType::Char(_) => ColumnType::Text,
                ty => base_type(*ty),
            };
            self.outputs[at] = binder.coerce(Typed { expr, ty: None }, ty, Context::Assignment)?;
            self.types[at] = ty;
        }
        Ok(settled)
    }

    /// Steps after which a run is given up, and analytics takes over: as many as analytics needs, which reads each table
    /// once, so that both together take at most twice what either takes alone; and ten times what was estimated, but
    /// not much more than that.
    pub fn steps_max(&self) -> u64 {
        let by_analytics = COST_MAX + self.counts.values().sum::<f64>();
        (WRONG * self.cost).clamp(by_analytics, 2.0 * by_analytics) as u64
    }

    /// Whether the tables are about as large as they were when it was planned.
    pub fn still_fits(&self, tx: &Tx) -> bool {
        let grown = |(id, then): (&u32, &f64)| match tx.table_by_id(*id) {
            Ok(Some(table)) => {
                let now = tx.engine().row_estimate(&table) as f64;
                now > 10.0 * then && now - then > GROWN
            }
            _ => false,
        };
        !self.counts.iter().any(grown)
    }
}

impl JoinKind {
    /// Rows that a join of so many outer rows gives, where one has so many matches on the average.
    fn rows(self, outer: f64, matches: f64) -> f64 {
        match self {
            JoinKind::Inner => outer * matches,
            JoinKind::Left | JoinKind::Full => outer * matches.max(1.0),
            JoinKind::Semi => outer * matches.min(1.0),
            JoinKind::Anti => outer * (1.0 - matches).max(0.1),
        }
    }

    /// Whether the first match of an outer row decides.
    pub fn is_decided_by_one(self) -> bool {
        matches!(self, JoinKind::Semi | JoinKind::Anti)
    }
}

impl Node {
    /// A node that is expected to give so many rows.
    fn new(step: Step, rows: f64) -> Node {
        Node { step, rows }
    }
}

/// A block of a query, planned: its rows, and the select list over the tuple.
struct Block {
    node: Node,
    outputs: Vec<Output>,
    /// Slots of the queries around it that it reads.
    outer: BTreeSet<SlotNumber>,
    /// Steps of a run.
    cost: f64,
}

/// A result column.
struct Output {
    name: String,
    expr: Expr,
    ty: ColumnType,
    /// The table's column that it shows as it is.
    source: Option<(Arc<Table>, usize)>,
    /// Whether it is a literal whose type is open.
    open: bool,
}

/// What planning a statement for the row executor gathers.
struct RowPlanner<'a> {
    planner: &'a Planner<'a>,
    slots: Cell<SlotNumber>,
    /// Slots that an expression names.
    used: RefCell<BTreeSet<SlotNumber>>,
    subplans: RefCell<Vec<Subplan>>,
    commons: RefCell<Vec<Common>>,
    tables: RefCell<Vec<u32>>,
    estimator: Estimator<'a>,
    scans: RefCell<Vec<Expected>>,
    /// SELECTs planned so far.
    blocks: Cell<u32>,
    /// Cost of what is run once.
    cost: Cell<f64>,
    /// Whether a timestamptz is read.
    reads_zoned: Cell<bool>,
    /// Whether the next table that FROM names is a statement's target.
    target: Cell<bool>,
}

impl RowPlanner<'_> {
    fn slot(&self) -> Bound<SlotNumber> {
        let slot = self.slots.get();
        if slot == SlotNumber::MAX {
            return shape("a query of so many columns");
        }
        self.slots.set(slot + 1);
        Ok(slot)
    }

    fn slots(&self, count: usize) -> Bound<Vec<SlotNumber>> {
        (0..count).map(|_| self.slot()).collect()
    }

    fn spend(&self, cost: f64) {
        self.cost.set(self.cost.get() + cost);
    }
}

impl Planner<'_> {
    /// Plans a query for the row executor; a shape refusal where it is none for it, or touches many rows and analytics
    /// is there. `target`: the first table of FROM is one whose rows are to be changed.
    pub fn rows(&self, query: &Query, target: bool) -> Bound<(RowPlan, Vec<Field>)> {
        if !query.locks.is_empty() {
            return shape("FOR UPDATE of a query of this shape");
        }
        let rows = RowPlanner {
            planner: self,
            slots: Cell::new(0),
            used: RefCell::default(),
            subplans: RefCell::default(),
            commons: RefCell::default(),
            tables: RefCell::default(),
            estimator: Estimator::new(self.tx, &self.known),
            scans: RefCell::default(),
            blocks: Cell::new(0),
            cost: Cell::new(0.0),
            reads_zoned: Cell::new(false),
            target: Cell::new(target),
        };
        let known = self.params.known();
        let planned = rows.query(query, None, &[]).and_then(|block| rows.finished(block));
        if matches!(planned, Err(Refusal::Shape(_))) {
            // What this planner took parameters for does not bind the next one.
            self.params.restore(known);
        }
        planned
    }
}

impl RowPlanner<'_> {
    /// The plan of the outermost block.
    fn finished(self, block: Block) -> Bound<(RowPlan, Vec<Field>)> {
        if self.slots.get() == SlotNumber::MAX {
            return shape("a query of so many columns");
        }
        let cost = self.cost.get() + block.cost;
        self.planner.known.note_cost(cost);
        if self.planner.for_many && cost > COST_MAX {
            return shape("a query of many rows");
        }
        let fields = block.outputs.iter().map(Output::field).collect();
        let open = block.outputs.iter().map(|o| o.open).collect();
        let plan = RowPlan {
            root: block.node,
            subplans: self.subplans.into_inner(),
            commons: self.commons.into_inner(),
            slots: usize::from(self.slots.get()),
            types: block.outputs.iter().map(|o| o.ty).collect(),
            outputs: block.outputs.into_iter().map(|o| o.expr).collect(),
            tables: self.tables.into_inner(),
            counts: self.estimator.into_counts(),
            open,
            cost,
            scans: self.scans.into_inner(),
            reads_zoned: self.reads_zoned.get(),
        };
        Ok((plan, fields))
    }
}

impl Output {
    fn field(&self) -> Field {
        match &self.source {
            Some((table, column)) => super::table_field(&self.name, table, *column),
            None => super::computed_field(&self.name, self.ty),
        }
    }
}
