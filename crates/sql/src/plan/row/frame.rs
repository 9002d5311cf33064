//! Frames of window functions.

use crate::error::{SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::{Binder, Bound, shape};
use crate::types::cast::Context;
use crate::types::is_integer;
use cenote_engine::ColumnType;
use sqlparser::ast::{self, WindowFrameBound, WindowFrameUnits};

/// What the offsets of a frame count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Units {
    /// Rows.
    Rows,
    /// Groups of rows that are equal in the order.
    Groups,
    /// Differences of the sort key.
    Range,
}

/// An end of a frame.
#[derive(Debug, Clone, PartialEq)]
pub enum FrameBound {
    /// The partition's end on this side.
    Unbounded,
    /// The row itself; with RANGE and GROUPS, those that are equal to it in the order as well.
    Current,
    /// So many before the row.
    Preceding(Expr),
    /// So many behind the row.
    Following(Expr),
}

/// A frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// What offsets count.
    pub units: Units,
    /// Its first row.
    pub start: FrameBound,
    /// Its last row.
    pub end: FrameBound,
}

impl Default for Frame {
    fn default() -> Frame {
        Frame {
            units: Units::Range,
            start: FrameBound::Unbounded,
            end: FrameBound::Current,
        }
    }
}

/// The frame of a window that is sorted by keys of these types.
pub(super) fn frame_of(binder: &Binder<'_>, frame: &ast::WindowFrame, order: &[ColumnType]) -> Bound<Frame> {
    let units = match frame.units {
        WindowFrameUnits::Rows => Units::Rows,
        WindowFrameUnits::Range => Units::Range,
        WindowFrameUnits::Groups => Units::Groups,
    };
    if units == Units::Groups && order.is_empty() {
        return Err(windowing("GROUPS mode requires an ORDER BY clause").into());
    }
    let current = WindowFrameBound::CurrentRow;
    let (start, end) = (&frame.start_bound, frame.end_bound.as_ref().unwrap_or(&current));
    check_order(start, end)?;
    Ok(Frame {
        units,
        start: bound(binder, start, (units, order))?,
        end: bound(binder, end, (units, order))?,
    })
}

fn check_order(start: &WindowFrameBound, end: &WindowFrameBound) -> Bound<()> {
    use WindowFrameBound::{CurrentRow, Following, Preceding};
    let wrong = match (start, end) {
        (Following(None), _) => "frame start cannot be UNBOUNDED FOLLOWING",
        (_, Preceding(None)) => "frame end cannot be UNBOUNDED PRECEDING",
        (CurrentRow, Preceding(_)) => "frame starting from current row cannot have preceding rows",
        (Following(_), Preceding(_) | CurrentRow) => "frame starting from following row cannot have preceding rows",
        _ => return Ok(()),
    };
    Err(windowing(wrong).into())
}

fn bound(binder: &Binder<'_>, bound: &WindowFrameBound, (units, order): (Units, &[ColumnType])) -> Bound<FrameBound> {
    let (offset, is_before) = match bound {
        WindowFrameBound::CurrentRow => return Ok(FrameBound::Current),
        WindowFrameBound::Preceding(None) | WindowFrameBound::Following(None) => return Ok(FrameBound::Unbounded),
        WindowFrameBound::Preceding(Some(offset)) => (offset, true),
        WindowFrameBound::Following(Some(offset)) => (offset, false),
    };
    let ty = match (units, order) {
        (Units::Rows | Units::Groups, _) => ColumnType::Int8,
        (Units::Range, [key]) if is_integer(*key) => ColumnType::Int8,
        (Units::Range, [ColumnType::Numeric(_)]) => ColumnType::Numeric(None),
        (Units::Range, [_]) => return shape("RANGE with an offset of this type"),
        (Units::Range, _) => {
            let text = "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column";
            return Err(windowing(text).into());
        }
    };
    let offset = binder.coerce(binder.bind(offset)?, ty, Context::Implicit)?;
    let mut is_constant = true;
    offset.walk(&mut |e| is_constant &= !matches!(e, Expr::Column(_) | Expr::Subquery(_)));
    if !is_constant {
        return shape("a frame offset of columns");
    }
    Ok(match is_before {
        true => FrameBound::Preceding(offset),
        false => FrameBound::Following(offset),
    })
}

fn windowing(text: &str) -> SqlError {
    SqlError::new(code::WINDOWING_ERROR, text)
}
