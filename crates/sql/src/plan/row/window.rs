//! Window functions of the select list and of ORDER BY: computed over the rows behind grouping and HAVING, each into
//! a slot of its own.
//!
//! The default frame goes, with an order, from the partition's first row to the last one that is equal to the row in
//! the order; without, it is the partition. Other frames are made by [`frame`](super::frame).

use super::frame::{Frame, frame_of};
use super::scope::Scope;
use super::subquery::slots_of;
use super::{Block, Key, Node, RowPlanner, SlotNumber, Step};
use crate::error::{SqlError, code};
use crate::expr::Expr;
use crate::expr::aggregate::{Aggregate, Kind};
use crate::expr::bind::calls::arguments;
use crate::expr::bind::{Binder, Bound, Typed, shape};
use crate::names::{qualified, span_of};
use crate::types::base_type;
use crate::types::cast::Context;
use cenote_engine::ColumnType;
use sqlparser::ast::{self, FunctionArg, FunctionArgExpr, FunctionArguments};
use std::collections::BTreeSet;

/// What a window function gives for a row.
#[derive(Debug, Clone, PartialEq)]
pub enum WindowFunction {
    /// Its number in the partition, from 1.
    RowNumber,
    /// The number of the first row that is equal to it in the order.
    Rank,
    /// How many different rows in the order there are up to it.
    DenseRank,
    /// A value of a row so many before it (behind it where `ahead`), else the default. NULL as the number gives NULL.
    Shifted {
        value: Expr,
        offset: Option<Expr>,
        default: Option<Expr>,
        ahead: bool,
    },
    /// A value of the frame's first row.
    First(Expr),
    /// A value of the frame's last row.
    Last(Expr),
    /// An aggregate of the frame.
    Aggregate(Aggregate),
    /// The number of the bucket, of so many that are about equal; NULL as the number is.
    Ntile(Expr),
    /// Its rank among the others, from 0 to 1.
    PercentRank,
    /// The share of rows up to those that are equal to it in the order.
    CumeDist,
    /// A value of the rows of a frame that is not the default.
    Framed(FrameValue, Frame),
}

/// What is asked of the rows of a frame.
#[derive(Debug, Clone, PartialEq)]
pub enum FrameValue {
    /// A value of the first.
    First(Expr),
    /// A value of the last.
    Last(Expr),
    /// A value of the one with this number, from 1.
    Nth(Expr, Expr),
    /// An aggregate.
    Aggregate(Aggregate),
}

impl WindowFunction {
    /// The expressions over a row that it evaluates.
    pub(super) fn expressions(&self) -> Vec<&Expr> {
        match self {
            WindowFunction::RowNumber
            | WindowFunction::Rank
            | WindowFunction::DenseRank
            | WindowFunction::PercentRank
            | WindowFunction::CumeDist => Vec::new(),
            WindowFunction::First(value) | WindowFunction::Last(value) | WindowFunction::Ntile(value) => vec![value],
            WindowFunction::Shifted {
                value, offset, default, ..
            } => [value].into_iter().chain(offset).chain(default).collect(),
            WindowFunction::Aggregate(aggregate) | WindowFunction::Framed(FrameValue::Aggregate(aggregate), _) => {
                aggregate.argument.iter().chain(&aggregate.filter).collect()
            }
            WindowFunction::Framed(FrameValue::First(value) | FrameValue::Last(value), _) => vec![value],
            WindowFunction::Framed(FrameValue::Nth(value, number), _) => vec![value, number],
        }
    }
}

/// The order of a window: a value, its type, and how it is sorted.
type Ordering = (Expr, ColumnType, ast::OrderByOptions);

/// A window function of a statement.
#[derive(Debug, Clone)]
pub(super) struct Window {
    function: WindowFunction,
    partition: Vec<(Expr, ColumnType)>,
    order: Vec<Ordering>,
    slot: SlotNumber,
}

impl Window {
    /// Whether two are computed in one pass.
    fn is_alike(&self, other: &Window) -> bool {
        let by = |w: &Window| -> Vec<(Expr, bool, Option<bool>)> {
            let order = w.order.iter();
            order
                .map(|(e, _, o)| (e.clone(), o.asc == Some(false), o.nulls_first))
                .collect()
        };
        self.partition == other.partition && by(self) == by(other)
    }
}

impl Scope<'_> {
    /// Notes the function, and gives the slot of its value.
    pub(super) fn bind_window(&self, binder: &Binder<'_>, function: &ast::Function) -> Bound<Typed> {
        if !self.takes_windows.get() {
            return shape("a window function here");
        }
        let Some(over) = &function.over else {
            return shape("a window function without a window");
        };
        let spec = &self.window_names.window(over, &|name| binder.places.of(name.span))?;
        if function.null_treatment.is_some() {
            return shape("IGNORE NULLS");
        }
        // One inside of another is refused.
        self.takes_windows.set(false);
        let bound = self.window(binder, function, spec);
        self.takes_windows.set(true);
        let (window, ty) = bound?;
        let slot = window.slot;
        self.windows.borrow_mut().push(window);
        Ok(Typed::new(Expr::Column(slot), ty))
    }

    fn window(
        &self,
        binder: &Binder<'_>,
        function: &ast::Function,
        spec: &ast::WindowSpec,
    ) -> Bound<(Window, ColumnType)> {
        let mut partition = Vec::new();
        for expr in &spec.partition_by {
            partition.push(binder.settled(binder.bind(expr)?)?);
        }
        let mut order = Vec::new();
        for item in &spec.order_by {
            let (expr, ty) = binder.settled(binder.bind(&item.expr)?)?;
            order.push((expr, ty, item.options));
        }
        let (mut function, ty) = window_function(binder, function)?;
        if let Some(frame) = &spec.window_frame {
            let keys: Vec<ColumnType> = order.iter().map(|(_, ty, _)| *ty).collect();
            function = framed(function, frame_of(binder, frame, &keys)?);
        }
        let slot = self.rows.slot()?;
        let window = Window {
            function,
            partition,
            order,
            slot,
        };
        Ok((window, ty))
    }
}

fn window_function(binder: &Binder<'_>, function: &ast::Function) -> Bound<(WindowFunction, ColumnType)> {
    let name = qualified(&function.name)?.1;
    if let Some(kind) = Kind::named(&name) {
        return aggregate(binder, kind, &name, function);
    }
    if function.filter.is_some() {
        return shape("FILTER of a window function");
    }
    let args = arguments(function)?;
    match (name.as_str(), args.as_slice()) {
        ("row_number", []) => Ok((WindowFunction::RowNumber, ColumnType::Int8)),
        ("rank", []) => Ok((WindowFunction::Rank, ColumnType::Int8)),
        ("dense_rank", []) => Ok((WindowFunction::DenseRank, ColumnType::Int8)),
        ("first_value", [value]) => {
            let (value, ty) = binder.settled(binder.bind(value)?)?;
            Ok((WindowFunction::First(value), base_type(ty)))
        }
        ("last_value", [value]) => {
            let (value, ty) = binder.settled(binder.bind(value)?)?;
            Ok((WindowFunction::Last(value), base_type(ty)))
        }
        ("percent_rank", []) => Ok((WindowFunction::PercentRank, ColumnType::Float8)),
        ("cume_dist", []) => Ok((WindowFunction::CumeDist, ColumnType::Float8)),
        ("ntile", [buckets]) => {
            let buckets = binder.coerce(binder.bind(buckets)?, ColumnType::Int4, Context::Implicit)?;
            Ok((WindowFunction::Ntile(buckets), ColumnType::Int4))
        }
        ("nth_value", [value, number]) => {
            let (value, ty) = binder.settled(binder.bind(value)?)?;
            let number = binder.coerce(binder.bind(number)?, ColumnType::Int4, Context::Implicit)?;
            let nth = FrameValue::Nth(value, number);
            Ok((WindowFunction::Framed(nth, Frame::default()), base_type(ty)))
        }
        ("lag" | "lead", [value, rest @ ..]) if rest.len() <= 2 => shifted(binder, value, rest, name == "lead"),
        _ => shape(format_args!("the window function {name}")),
    }
}

/// The function over another frame, where it looks at one.
fn framed(function: WindowFunction, frame: Frame) -> WindowFunction {
    if frame == Frame::default() {
        return function;
    }
    let value = match function {
        WindowFunction::First(value) => FrameValue::First(value),
        WindowFunction::Last(value) => FrameValue::Last(value),
        WindowFunction::Aggregate(aggregate) => FrameValue::Aggregate(aggregate),
        WindowFunction::Framed(value, _) => value,
        other => return other,
    };
    WindowFunction::Framed(value, frame)
}

fn shifted(
    binder: &Binder<'_>,
    value: &ast::Expr,
    rest: &[&ast::Expr],
    ahead: bool,
) -> Bound<(WindowFunction, ColumnType)> {
    let (value, ty) = binder.settled(binder.bind(value)?)?;
    let ty = base_type(ty);
    let integer = |e: &&ast::Expr| binder.coerce(binder.bind(e)?, ColumnType::Int4, Context::Implicit);
    let offset = rest.first().map(integer).transpose()?;
    let default = match rest.get(1) {
        Some(default) => {
            let default = binder.bind(default)?;
            if default.ty.is_some_and(|other| base_type(other) != ty) {
                return shape("a default of another type");
            }
            Some(binder.coerce(default, ty, Context::Implicit)?)
        }
        None => None,
    };
    let function = WindowFunction::Shifted {
        value,
        offset,
        default,
        ahead,
    };
    Ok((function, ty))
}

fn aggregate(
    binder: &Binder<'_>,
    kind: Kind,
    name: &str,
    function: &ast::Function,
) -> Bound<(WindowFunction, ColumnType)> {
    let FunctionArguments::List(list) = &function.args else {
        return shape("this aggregate");
    };
    if !list.clauses.is_empty() || list.duplicate_treatment.is_some() {
        return shape("DISTINCT or ORDER BY in an aggregate over a window");
    }
    let (argument, input) = match list.args.as_slice() {
        [FunctionArg::Unnamed(FunctionArgExpr::Wildcard)] if kind == Kind::Count => (None, ColumnType::Int8),
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(e))] => {
            let (expr, ty) = binder.settled(binder.bind(e)?)?;
            (Some(expr), ty)
        }
        _ => return shape("this aggregate"),
    };
    let Some(result) = kind.result(input) else {
        let text = format!("function {name}({}) does not exist", input.name());
        let error = SqlError::new(code::UNDEFINED_FUNCTION, text);
        return Err(error.at(binder.places.of(span_of(&function.name))).into());
    };
    let filter = function
        .filter
        .as_deref()
        .map(|f| binder.condition(f, "FILTER"))
        .transpose()?;
    let aggregate = Aggregate {
        kind,
        argument,
        input,
        distinct: false,
        filter,
    };
    Ok((WindowFunction::Aggregate(aggregate), result))
}

impl RowPlanner<'_> {
    /// The rows with the values of the windows; `read`: expressions above that read slots.
    pub(super) fn windowed(&self, mut block: Block, windows: Vec<Window>, read: &[Expr]) -> Bound<Block> {
        let mut carried = BTreeSet::new();
        let results = block.outputs.iter().map(|o| &o.expr);
        results.chain(read).for_each(|e| slots_of(e, &mut carried));
        windows.iter().for_each(|w| window_slots(w, &mut carried));
        windows.iter().for_each(|w| _ = carried.remove(&w.slot));
        let mut left = windows;
        while !left.is_empty() {
            let first = left[0].clone();
            let (alike, rest): (Vec<Window>, Vec<Window>) = left.into_iter().partition(|w| w.is_alike(&first));
            block = self.one_window(block, &alike, carried.iter().copied().collect())?;
            carried.extend(alike.iter().map(|w| w.slot));
            left = rest;
        }
        Ok(block)
    }

    fn one_window(&self, mut block: Block, alike: &[Window], mut carried: Vec<SlotNumber>) -> Bound<Block> {
        let (mut values, mut partition, mut order): (Vec<_>, Vec<Key>, Vec<Key>) = Default::default();
        let ascending = ast::OrderByOptions {
            asc: None,
            nulls_first: None,
        };
        for (expr, ty) in &alike[0].partition {
            let slot = self.slot()?;
            values.push((slot, expr.clone()));
            partition.push(Key::of(slot, *ty, ascending));
        }
        for (expr, ty, options) in &alike[0].order {
            let slot = self.slot()?;
            values.push((slot, expr.clone()));
            order.push(Key::of(slot, *ty, *options));
        }
        carried.extend(values.iter().map(|(slot, _)| *slot));
        let rows = block.node.rows;
        let project = Step::Project {
            input: Box::new(block.node),
            values,
        };
        block.cost += rows * 4.0;
        let step = Step::Window {
            input: Box::new(Node::new(project, rows)),
            partition,
            order,
            functions: alike.iter().map(|w| (w.function.clone(), w.slot)).collect(),
            carried,
        };
        block.node = Node::new(step, rows);
        Ok(block)
    }
}

/// The slots that a window's function, partition and order read.
fn window_slots(window: &Window, slots: &mut BTreeSet<SlotNumber>) {
    let by = window
        .partition
        .iter()
        .map(|(e, _)| e)
        .chain(window.order.iter().map(|(e, ..)| e));
    by.for_each(|e| slots_of(e, slots));
    window.function.expressions().iter().for_each(|e| slots_of(e, slots));
}
