//! How the rows of one table are found: by a key, a range of keys, or all of them.
//!
//! Each tree of the table (the primary key's and each index's) is measured by what the conditions fix of its key: equal
//! leading columns, then a list or a range of the next. The tree that fixes most wins. Conditions that the keys answer
//! wholly are not asked again.

use crate::error::{Result, SqlError};
use crate::expr::{Comparison, Env, Expr};
use cenote_engine::key::{self, KeyRange};
use cenote_engine::{ColumnType, DatumRef, Direction, Table};
use std::ops::Bound;
use std::sync::Arc;

/// A bound of a range: its value and whether it is in the range.
pub type Limit = (Expr, bool);

/// What of a tree is read. `index`: position in `Table::indexes`; None: the primary key.
#[derive(Debug)]
pub enum Path {
    /// One primary key.
    Point(Vec<Expr>),
    /// Keys that begin with `prefix` and go on between the limits.
    Range {
        index: Option<usize>,
        prefix: Vec<Expr>,
        lower: Option<Limit>,
        upper: Option<Limit>,
    },
    /// Keys that begin with `prefix` and one value of `list`.
    List {
        index: Option<usize>,
        prefix: Vec<Expr>,
        list: Vec<Expr>,
    },
}

/// How the rows of a table are found and which of them qualify.
#[derive(Debug)]
pub struct Access {
    /// The table.
    pub table: Arc<Table>,
    /// Where to look.
    pub path: Path,
    /// What the keys do not answer.
    pub filter: Option<Expr>,
    /// All of WHERE: asked again of a row that has changed meanwhile.
    pub condition: Option<Expr>,
    /// In which order.
    pub direction: Direction,
}

/// A column of ORDER BY, as far as a tree's order can serve it.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Position in the table.
    pub column: usize,
    /// Falling.
    pub descending: bool,
}

/// The conditions that AND joins.
pub fn conjuncts(condition: Option<Expr>) -> Vec<Expr> {
    match condition {
        None => Vec::new(),
        Some(Expr::And(list)) => list.into_iter().flat_map(|e| conjuncts(Some(e))).collect(),
        Some(other) => vec![other],
    }
}

/// Chooses the path. `order`: the rows are wanted in this order, if a tree gives it; the answer says whether it does.
pub fn choose(table: Arc<Table>, condition: Option<Expr>, order: Option<&[Wanted]>) -> (Access, bool) {
    let whole = condition.clone();
    let list = conjuncts(condition);
    let candidates = trees(&table).map(|(index, columns)| Match::new(&table, index, columns, &list));
    let best = candidates.max_by_key(Match::score);
    let found = best.filter(|m| m.score().0 > 0);
    let Some(found) = found else {
        return whole_table(table, whole, order);
    };
    let columns = tree_columns(&table, found.index);
    let (ordered, direction) = served(&columns[found.equal.len()..], order);
    let ordered = ordered && found.list.is_none();
    let used = found.used();
    let (index, complete) = (found.index, found.equal.len() == columns.len() && found.index.is_none());
    let take = |at: usize| right_side(&list[at]);
    let prefix: Vec<Expr> = found.equal.iter().map(|at| take(*at)).collect();
    let path = if complete {
        Path::Point(prefix)
    } else if let Some(at) = found.list {
        let Expr::InList { list: items, .. } = &list[at] else {
            return whole_table(table, whole, order);
        };
        Path::List {
            index,
            prefix,
            list: items.clone(),
        }
    } else {
        let limit = |at: Option<usize>| {
            at.map(|at| {
                (
                    take(at),
                    matches!(operator(&list[at]), Some(Comparison::Ge | Comparison::Le)),
                )
            })
        };
        Path::Range {
            index,
            prefix,
            lower: limit(found.lower),
            upper: limit(found.upper),
        }
    };
    let rest: Vec<Expr> = list
        .iter()
        .enumerate()
        .filter(|(i, _)| !used.contains(i))
        .map(|(_, e)| e.clone())
        .collect();
    (
        Access {
            table,
            path,
            filter: all_of(rest),
            condition: whole,
            direction,
        },
        ordered,
    )
}

/// The conditions joined again.
pub fn all_of(mut list: Vec<Expr>) -> Option<Expr> {
    match list.len() {
        0 | 1 => list.pop(),
        _ => Some(Expr::And(list)),
    }
}

fn whole_table(table: Arc<Table>, condition: Option<Expr>, order: Option<&[Wanted]>) -> (Access, bool) {
    let mut chosen = (None, false, Direction::Forward);
    for (index, columns) in trees(&table) {
        let (ordered, direction) = served(columns, order);
        if ordered && (order.is_some_and(|o| !o.is_empty())) {
            chosen = (index, true, direction);
            break;
        }
    }
    let path = Path::Range {
        index: chosen.0,
        prefix: Vec::new(),
        lower: None,
        upper: None,
    };
    (
        Access {
            table,
            path,
            filter: condition.clone(),
            condition,
            direction: chosen.2,
        },
        chosen.1,
    )
}

/// Whether a tree's remaining columns give the order, and read in which direction.
fn served(columns: &[usize], order: Option<&[Wanted]>) -> (bool, Direction) {
    let Some(order) = order else {
        return (false, Direction::Forward);
    };
    let descending = order.first().is_some_and(|w| w.descending);
    let fits = order.len() <= columns.len()
        && order
            .iter()
            .zip(columns)
            .all(|(w, c)| w.column == *c && w.descending == descending);
    (
        fits && !order.is_empty(),
        if fits && descending {
            Direction::Backward
        } else {
            Direction::Forward
        },
    )
}

fn trees(table: &Table) -> impl Iterator<Item = (Option<usize>, &[usize])> {
    let primary = table.primary_key.iter().map(|p| (None, p.columns.as_slice()));
    primary.chain(
        table
            .indexes
            .iter()
            .enumerate()
            .map(|(i, index)| (Some(i), index.columns.as_slice())),
    )
}

/// Columns of a tree's key.
pub fn tree_columns(table: &Table, index: Option<usize>) -> &[usize] {
    match index {
        Some(i) => &table.indexes[i].columns,
        None => table.primary_key.as_ref().map_or(&[], |p| p.columns.as_slice()),
    }
}

/// What the conditions (by position) fix of one tree's key.
struct Match {
    index: Option<usize>,
    unique: bool,
    equal: Vec<usize>,
    list: Option<usize>,
    lower: Option<usize>,
    upper: Option<usize>,
}

impl Match {
    fn new(table: &Table, index: Option<usize>, columns: &[usize], list: &[Expr]) -> Match {
        let find = |column: usize, wanted: &[Comparison]| {
            list.iter()
                .position(|e| column_of(e) == Some(column) && operator(e).is_some_and(|op| wanted.contains(&op)))
        };
        let equal: Vec<usize> = columns.iter().map_while(|c| find(*c, &[Comparison::Eq])).collect();
        let mut found = Match {
            index,
            unique: false,
            equal,
            list: None,
            lower: None,
            upper: None,
        };
        found.unique = found.equal.len() == columns.len() && index.is_none_or(|i| table.indexes[i].unique);
        if let Some(next) = columns.get(found.equal.len()) {
            found.list = list.iter().position(|e| in_list_column(e) == Some(*next));
            if found.list.is_none() {
                found.lower = find(*next, &[Comparison::Gt, Comparison::Ge]);
                found.upper = find(*next, &[Comparison::Lt, Comparison::Le]);
            }
        }
        found
    }

    fn score(&self) -> (usize, bool) {
        let ranges = usize::from(self.lower.is_some()) + usize::from(self.upper.is_some());
        let fixed = 4 * self.equal.len() + 3 * usize::from(self.list.is_some()) + ranges;
        (fixed + if self.unique { 100 } else { 0 }, self.index.is_none())
    }

    fn used(&self) -> Vec<usize> {
        self.equal
            .iter()
            .copied()
            .chain(self.list)
            .chain(self.lower)
            .chain(self.upper)
            .collect()
    }
}

/// The column that a comparison with a row-free value is about.
fn column_of(expr: &Expr) -> Option<usize> {
    let Expr::Compare { left, right, .. } = expr else {
        return None;
    };
    match (&**left, &**right) {
        (Expr::Column(c), value) | (value, Expr::Column(c)) if value.is_row_free() => Some(usize::from(*c)),
        _ => None,
    }
}

fn in_list_column(expr: &Expr) -> Option<usize> {
    let Expr::InList {
        operand,
        list,
        negated: false,
        ..
    } = expr
    else {
        return None;
    };
    match &**operand {
        Expr::Column(c) if list.iter().all(Expr::is_row_free) => Some(usize::from(*c)),
        _ => None,
    }
}

/// The comparison with the column on the left.
fn operator(expr: &Expr) -> Option<Comparison> {
    let Expr::Compare { op, left, .. } = expr else {
        return None;
    };
    Some(if matches!(**left, Expr::Column(_)) {
        *op
    } else {
        op.mirrored()
    })
}

fn right_side(expr: &Expr) -> Expr {
    match expr {
        Expr::Compare { left, right, .. } if matches!(**left, Expr::Column(_)) => (**right).clone(),
        Expr::Compare { left, .. } => (**left).clone(),
        other => other.clone(),
    }
}

/// How a value lies to the values of a column's type.
enum Fit {
    /// It is one of them; its key part was appended.
    Within,
    /// Below or above all of them.
    Below,
    Above,
    /// NULL: nothing equals it or lies beside it.
    Null,
}

/// Appends a key part; integers of another width are converted where they fit.
fn push_part(ty: ColumnType, value: &DatumRef<'_>, out: &mut Vec<u8>) -> Result<Fit> {
    let wide = match value {
        DatumRef::Null => return Ok(Fit::Null),
        DatumRef::Int2(v) => i64::from(*v),
        DatumRef::Int4(v) => i64::from(*v),
        DatumRef::Int8(v) => *v,
        other if ty.admits(other) => {
            key::push(ty, other, out);
            return Ok(Fit::Within);
        }
        _ => return Err(SqlError::internal("key value of the wrong type")),
    };
    let outside = if wide < 0 { Fit::Below } else { Fit::Above };
    let fitted = match ty {
        ColumnType::Int2 => i16::try_from(wide).ok().map(DatumRef::Int2),
        ColumnType::Int4 => i32::try_from(wide).ok().map(DatumRef::Int4),
        ColumnType::Int8 => Some(DatumRef::Int8(wide)),
        _ => return Err(SqlError::internal("integer key value of a column that is none")),
    };
    Ok(match fitted {
        Some(datum) => {
            key::push(ty, &datum, out);
            Fit::Within
        }
        None => outside,
    })
}

/// Appends the key parts of equal columns; false where nothing can match.
///
/// # Errors
/// A value cannot be computed.
pub fn push_equal(table: &Table, columns: &[usize], values: &[Expr], env: &Env<'_>, out: &mut Vec<u8>) -> Result<bool> {
    for (column, value) in columns.iter().zip(values) {
        let fit = push_part(table.layout().column_type(*column), &value.value(env)?.get(), out)?;
        if !matches!(fit, Fit::Within) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The range of keys between limits; None where it is empty.
///
/// # Errors
/// A limit cannot be computed.
pub fn key_range(
    table: &Table,
    columns: &[usize],
    prefix: &[Expr],
    lower: Option<&Limit>,
    upper: Option<&Limit>,
    env: &Env<'_>,
) -> Result<Option<KeyRange>> {
    let mut start = Vec::with_capacity(32);
    if !push_equal(table, columns, prefix, env, &mut start)? {
        return Ok(None);
    }
    if lower.is_none() && upper.is_none() {
        return Ok(Some(if prefix.is_empty() {
            KeyRange::all()
        } else {
            KeyRange::prefix(&start)
        }));
    }
    let ty = table.layout().column_type(columns[prefix.len()]);
    let mut low = start.clone();
    let mut low_inclusive = true;
    if let Some((value, inclusive)) = lower {
        match push_part(ty, &value.value(env)?.get(), &mut low)? {
            Fit::Within => low_inclusive = *inclusive,
            Fit::Below => {}
            Fit::Above | Fit::Null => return Ok(None),
        }
    }
    let mut high = start;
    let mut high_inclusive = false;
    match upper {
        // NULL sorts above every value and satisfies no comparison.
        None => high.push(key::NULL),
        Some((value, inclusive)) => match push_part(ty, &value.value(env)?.get(), &mut high)? {
            Fit::Within => high_inclusive = *inclusive,
            Fit::Above => high.push(key::NULL),
            Fit::Below | Fit::Null => return Ok(None),
        },
    }
    let lower = if low_inclusive {
        Bound::Included(low.as_slice())
    } else {
        Bound::Excluded(low.as_slice())
    };
    let upper = if high_inclusive {
        Bound::Included(high.as_slice())
    } else {
        Bound::Excluded(high.as_slice())
    };
    Ok(Some(KeyRange::between(lower, upper)))
}

/// The ranges of a list, ascending and each once.
///
/// # Errors
/// An item cannot be computed.
pub fn list_ranges(
    table: &Table,
    columns: &[usize],
    prefix: &[Expr],
    list: &[Expr],
    env: &Env<'_>,
) -> Result<Vec<KeyRange>> {
    let mut start = Vec::with_capacity(32);
    if !push_equal(table, columns, prefix, env, &mut start)? {
        return Ok(Vec::new());
    }
    let ty = table.layout().column_type(columns[prefix.len()]);
    let mut keys = Vec::with_capacity(list.len());
    for item in list {
        let mut key = start.clone();
        if matches!(push_part(ty, &item.value(env)?.get(), &mut key)?, Fit::Within) {
            keys.push(key);
        }
    }
    keys.sort();
    keys.dedup();
    Ok(keys.iter().map(|k| KeyRange::prefix(k)).collect())
}

/// The path in words, for EXPLAIN.
pub fn describe(path: &Path, table: &Table) -> String {
    let name = |index: &Option<usize>| match index {
        Some(i) => table.indexes[*i].name.clone(),
        None => table
            .primary_key
            .as_ref()
            .map_or_else(|| table.name.clone(), |p| p.name.clone()),
    };
    let what = |index: &Option<usize>| if index.is_some() { "index" } else { "primary key" };
    match path {
        Path::Point(_) => format!("point by primary key {}", name(&None)),
        Path::List { index, .. } => format!("list of keys by {} {}", what(index), name(index)),
        Path::Range {
            index,
            prefix,
            lower,
            upper,
        } if !prefix.is_empty() || lower.is_some() || upper.is_some() => {
            let unique =
                index.is_some_and(|i| table.indexes[i].unique && prefix.len() == table.indexes[i].columns.len());
            format!(
                "{} by {} {}",
                if unique { "point" } else { "range" },
                what(index),
                name(index)
            )
        }
        Path::Range { index: Some(i), .. } => format!("full scan by index {}", table.indexes[*i].name),
        Path::Range { .. } => "full scan".to_string(),
    }
}

/// Whether a path reads all of a table.
pub fn is_full(path: &Path) -> bool {
    matches!(path, Path::Range { prefix, lower: None, upper: None, .. } if prefix.is_empty())
}
