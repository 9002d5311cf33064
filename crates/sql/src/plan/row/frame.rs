//! Frames of window functions, and windows that WINDOW names.

use super::scope::Scope;
use crate::error::{SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::{Binder, Bound, shape};
use crate::names::fold;
use crate::types::cast::Context;
use crate::types::is_integer;
use cenote_engine::ColumnType;
use sqlparser::ast::{self, Ident, NamedWindowExpr, WindowFrameBound, WindowFrameUnits, WindowSpec};

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

impl Scope<'_> {
    /// What `OVER name` means.
    pub(super) fn named_window(&self, name: &Ident, binder: &Binder<'_>) -> Bound<WindowSpec> {
        let folded = fold(name);
        let Some(at) = self.window_names.iter().position(|(known, _)| *known == folded) else {
            return Err(undefined(&folded, name, binder).into());
        };
        self.defined(at, binder)
    }

    /// A definition of WINDOW, which may build on one before it.
    fn defined(&self, at: usize, binder: &Binder<'_>) -> Bound<WindowSpec> {
        let NamedWindowExpr::WindowSpec(spec) = &self.window_names[at].1 else {
            return shape("a window that is another name");
        };
        let Some(base) = &spec.window_name else {
            return Ok(spec.clone());
        };
        let folded = fold(base);
        match self.window_names[..at].iter().position(|(known, _)| *known == folded) {
            Some(base) => merged(&folded, self.defined(base, binder)?, spec),
            None => Err(undefined(&folded, base, binder).into()),
        }
    }

    /// The window with what it takes from the one that it names.
    pub(super) fn window_of(&self, spec: &WindowSpec, binder: &Binder<'_>) -> Bound<WindowSpec> {
        match &spec.window_name {
            None => Ok(spec.clone()),
            Some(name) => merged(&fold(name), self.named_window(name, binder)?, spec),
        }
    }
}

fn merged(name: &str, base: WindowSpec, spec: &WindowSpec) -> Bound<WindowSpec> {
    if !spec.partition_by.is_empty() {
        let text = format!("cannot override PARTITION BY clause of window \"{name}\"");
        return Err(windowing(&text).into());
    }
    if !spec.order_by.is_empty() && !base.order_by.is_empty() {
        let text = format!("cannot override ORDER BY clause of window \"{name}\"");
        return Err(windowing(&text).into());
    }
    if base.window_frame.is_some() {
        let text = format!("cannot copy window \"{name}\" because it has a frame clause");
        return Err(windowing(&text).into());
    }
    let order_by = match spec.order_by.is_empty() {
        true => base.order_by,
        false => spec.order_by.clone(),
    };
    Ok(WindowSpec {
        window_name: None,
        partition_by: base.partition_by,
        order_by,
        window_frame: spec.window_frame.clone(),
    })
}

fn undefined(name: &str, ident: &Ident, binder: &Binder<'_>) -> SqlError {
    SqlError::new(code::UNDEFINED_OBJECT, format!("window \"{name}\" does not exist")).at(binder.places.of(ident.span))
}

fn windowing(text: &str) -> SqlError {
    SqlError::new(code::WINDOWING_ERROR, text)
}
