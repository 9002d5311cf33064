//! How the rows of one table are found: by a key, a range of keys, several of them, or all.
//!
//! [`choose`] compares what the conditions fix of each tree's key and takes the cheapest path; [`keys`] makes key ranges
//! of a path's values when it is run. Conditions that the keys answer wholly are not asked again.

mod choose;
pub mod keys;
mod matching;

pub use choose::{Costs, Order, choose, cost};

use crate::expr::Expr;
use cenote_engine::{ColumnType, Direction, Table};
use std::sync::Arc;

/// A bound of a range.
#[derive(Debug, Clone)]
pub enum Limit {
    /// A value of the column behind the prefix, and whether it is in the range.
    Value(Expr, bool),
    /// Values of the columns behind the prefix, compared as a row. The range holds more where one of them is NULL or
    /// outside of its column's type: the comparison is asked again.
    Row(Vec<Expr>, bool),
    /// As a lower bound: all texts that begin as this pattern of LIKE does. The condition is asked again.
    Like { pattern: Expr, escape: Option<Expr> },
    /// As a lower bound NULL alone, as an upper one all that is not NULL.
    Null,
}

impl Limit {
    /// The values and whether they are in the range; None for a pattern and NULL.
    fn values(&self) -> Option<(&[Expr], bool)> {
        match self {
            Limit::Value(value, inclusive) => Some((std::slice::from_ref(value), *inclusive)),
            Limit::Row(values, inclusive) => Some((values, *inclusive)),
            Limit::Like { .. } | Limit::Null => None,
        }
    }
}

/// The values of a list.
#[derive(Debug, Clone)]
pub enum Items {
    /// Each of its own.
    Exprs(Vec<Expr>),
    /// Elements of an array, which a run gives.
    Array { array: Expr, element: ColumnType },
}

/// What of a tree is read. `index`: position in `Table::indexes`; None: the primary key.
#[derive(Debug, Clone)]
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
    /// Keys that begin with `prefix` and one value of `items`.
    List {
        index: Option<usize>,
        prefix: Vec<Expr>,
        items: Items,
    },
    /// What one of these finds, each row once.
    Union(Vec<Path>),
}

/// How the rows of a table are found and which of them qualify.
#[derive(Debug, Clone)]
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
    /// Columns of the tree's key within which rows go in that direction: those that are equal in them go in the other.
    pub turn: Option<usize>,
    /// Whether the index that the path reads has all columns that are read, so that rows need no visit.
    pub index_only: bool,
}

impl Access {
    /// The direction in which a range of the tree is read.
    pub fn direction_of_ranges(&self) -> Direction {
        match (self.turn, self.direction) {
            (None, direction) => direction,
            (Some(_), Direction::Forward) => Direction::Backward,
            (Some(_), Direction::Backward) => Direction::Forward,
        }
    }

    /// Whether the entries of the index that the path reads give these columns, and those that the filter reads.
    pub fn entries_give(&self, columns: &[usize]) -> bool {
        match &self.path {
            Path::Range { index, .. } | Path::List { index, .. } => {
                has_all(&self.table, *index, columns, self.filter.as_ref())
            }
            Path::Point(_) | Path::Union(_) => false,
        }
    }
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

/// The conditions joined again.
pub fn all_of(mut list: Vec<Expr>) -> Option<Expr> {
    match list.len() {
        0 | 1 => list.pop(),
        _ => Some(Expr::And(list)),
    }
}

/// Columns of a tree, without the primary key that stands behind an index's.
pub fn tree_columns(table: &Table, index: Option<usize>) -> &[usize] {
    match index {
        Some(i) => &table.indexes[i].columns,
        None => table.primary_key.as_ref().map_or(&[], |p| p.columns.as_slice()),
    }
}

/// How many columns the keys of a tree have: an index's entries end with the primary key.
pub fn key_length(table: &Table, index: Option<usize>) -> usize {
    let primary = tree_columns(table, None).len();
    index.map_or(primary, |i| table.indexes[i].columns.len() + primary)
}

/// The table's column at a place of a tree's key.
pub fn key_column(table: &Table, index: Option<usize>, at: usize) -> usize {
    let own = tree_columns(table, index);
    match at.checked_sub(own.len()) {
        None => own[at],
        Some(behind) => tree_columns(table, None)[behind],
    }
}

/// How rows are found, in words, for EXPLAIN.
pub fn describe(access: &Access) -> String {
    let mut path = describe_path(&access.path, &access.table);
    if let (Some(turn), Path::Range { index, prefix, .. }) = (access.turn, &access.path) {
        let columns = (prefix.len()..turn).map(|at| key_column(&access.table, *index, at));
        let names: Vec<&str> = columns
            .map(|column| access.table.columns[column].name.as_str())
            .collect();
        path = format!("{path} (rows of one {} the other way round)", names.join(", "));
    }
    match access.index_only {
        true => format!("Index Only Scan, {path}"),
        false => path,
    }
}

fn describe_path(path: &Path, table: &Table) -> String {
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
        Path::Union(paths) => {
            let each: Vec<String> = paths.iter().map(|p| describe_path(p, table)).collect();
            format!("union of ({})", each.join(", "))
        }
        Path::Range {
            index,
            prefix,
            lower,
            upper,
        } if !prefix.is_empty() || lower.is_some() || upper.is_some() => {
            let unique =
                index.is_some_and(|i| table.indexes[i].unique && prefix.len() >= table.indexes[i].columns.len());
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

/// Whether entries of the index give all these columns, and those that the filter reads. What the keys answer needs no
/// column.
fn has_all(table: &Table, index: Option<usize>, columns: &[usize], filter: Option<&Expr>) -> bool {
    let Some(index) = index else { return false };
    let given = table.columns_of_entries(index);
    let mut all = columns.iter().all(|column| given.contains(column));
    if let Some(filter) = filter {
        filter.walk(&mut |e| {
            if let Expr::Column(column) = e {
                all &= given.contains(&usize::from(*column));
            }
        });
    }
    all
}
