//! What conditions fix of a tree's key: equal leading columns, then a list, a pattern or a range of what follows.

use super::{Items, Limit, Path, key_column, key_length, tree_columns};
use crate::expr::{Comparison, Expr, fixes_prefix};
use cenote_engine::{ColumnType, Table};

/// What stands behind the equal columns, by the positions of the conditions.
enum Behind {
    Nothing,
    List(usize),
    Like(usize),
    /// IS NULL.
    Null(usize),
    /// Lower and upper limit; a row comparison may be either.
    Between(Option<usize>, Option<usize>),
    /// IS NOT NULL alone.
    NotNull(usize),
}

/// What the conditions fix of one tree's key.
pub(super) struct Match<'c> {
    table: &'c Table,
    conditions: &'c [Expr],
    pub index: Option<usize>,
    /// One key at most: a whole primary key or a unique index's columns.
    pub unique: bool,
    pub equal: Vec<usize>,
    behind: Behind,
}

impl<'c> Match<'c> {
    /// `for_order`: the rows are to come in the tree's order, so that a pattern that may fix nothing does not serve.
    pub fn new(table: &'c Table, index: Option<usize>, conditions: &'c [Expr], for_order: bool) -> Match<'c> {
        let length = key_length(table, index);
        let mut found = Match {
            table,
            conditions,
            index,
            unique: false,
            equal: Vec::new(),
            behind: Behind::Nothing,
        };
        for at in 0..length {
            match found.comparison(key_column(table, index, at), &[Comparison::Eq]) {
                Some(condition) => found.equal.push(condition),
                None => break,
            }
        }
        let own = tree_columns(table, index).len();
        found.unique = own > 0 && found.equal.len() >= own && index.is_none_or(|i| table.indexes[i].unique);
        if !found.unique && found.equal.len() < length {
            found.behind = found.next(length, for_order);
        }
        found
    }

    /// Whether anything is fixed.
    pub fn fixes(&self) -> bool {
        !self.equal.is_empty() || !matches!(self.behind, Behind::Nothing)
    }

    /// Key columns that have one value in all rows of the path.
    pub fn fixed_columns(&self) -> usize {
        self.equal.len()
    }

    /// Whether the path reads one range of the tree, so that the tree's order is the rows'.
    pub fn is_one_range(&self) -> bool {
        !matches!(self.behind, Behind::List(_))
    }

    /// The position of the comparison of this column with what is no column of the row.
    fn comparison(&self, column: usize, wanted: &[Comparison]) -> Option<usize> {
        self.conditions
            .iter()
            .position(|e| column_of(e) == Some(column) && operator(e).is_some_and(|op| wanted.contains(&op)))
    }

    fn next(&self, length: usize, for_order: bool) -> Behind {
        let at = self.equal.len();
        let column = key_column(self.table, self.index, at);
        let position = |is: &dyn Fn(&Expr) -> bool| self.conditions.iter().position(is);
        let tests_null = |e: &Expr, wanted: bool| matches!(e, Expr::IsNull { operand, negated } if *negated == wanted && is_column(operand, column));
        if let Some(list) = position(&|e| list_column(e) == Some(column)) {
            return Behind::List(list);
        }
        if let Some(null) = position(&|e| tests_null(e, false)) {
            return Behind::Null(null);
        }
        let ty = self.table.layout().column_type(column);
        if let Some(like) = position(&|e| is_like_of(e, column, ty, for_order)) {
            return Behind::Like(like);
        }
        let row = |lower: bool| position(&|e| self.row_limit(e, at, length).is_some_and(|(_, _, l)| l == lower));
        let lower = row(true).or_else(|| self.comparison(column, &[Comparison::Gt, Comparison::Ge]));
        let upper = row(false).or_else(|| self.comparison(column, &[Comparison::Lt, Comparison::Le]));
        match (lower, upper) {
            (None, None) => position(&|e| tests_null(e, true)).map_or(Behind::Nothing, Behind::NotNull),
            (lower, upper) => Behind::Between(lower, upper),
        }
    }

    /// The leading values of a row comparison whose columns stand in the key from `at` on, whether the last of them is in
    /// the range, and whether they are its lower limit.
    fn row_limit(&self, condition: &Expr, at: usize, length: usize) -> Option<(Vec<Expr>, bool, bool)> {
        let Expr::CompareRows { op, pairs } = condition else {
            return None;
        };
        let mut values = Vec::new();
        let mut mirrored = false;
        for (i, (left, right, trim)) in pairs.iter().enumerate() {
            if *trim || at + i >= length {
                break;
            }
            let column = key_column(self.table, self.index, at + i);
            let value = match (is_column(left, column), is_column(right, column)) {
                (true, _) if right.is_row_free() && (i == 0 || !mirrored) => right,
                (_, true) if left.is_row_free() && (i == 0 || mirrored) => {
                    mirrored = true;
                    left
                }
                _ => break,
            };
            values.push(value.clone());
        }
        if values.is_empty() {
            return None;
        }
        let op = if mirrored { op.mirrored() } else { *op };
        // What stands behind the values that are used may decide either way.
        let inclusive = values.len() < pairs.len() || matches!(op, Comparison::Ge | Comparison::Le);
        match op {
            Comparison::Gt | Comparison::Ge => Some((values, inclusive, true)),
            Comparison::Lt | Comparison::Le => Some((values, inclusive, false)),
            Comparison::Eq | Comparison::Ne => None,
        }
    }

    /// The path.
    pub fn path(&self) -> Path {
        let prefix: Vec<Expr> = self.equal.iter().map(|at| right_side(&self.conditions[*at])).collect();
        if self.unique && self.index.is_none() {
            return Path::Point(prefix);
        }
        let index = self.index;
        let range = |lower, upper| Path::Range {
            index,
            prefix: prefix.clone(),
            lower,
            upper,
        };
        match self.behind {
            Behind::Nothing => range(None, None),
            Behind::Null(_) => range(Some(Limit::Null), None),
            Behind::NotNull(_) => range(None, Some(Limit::Null)),
            Behind::Between(lower, upper) => range(self.limit(lower), self.limit(upper)),
            Behind::Like(at) => range(like_of(&self.conditions[at]), None),
            Behind::List(at) => match items_of(&self.conditions[at]) {
                Some(items) => Path::List { index, prefix, items },
                None => range(None, None),
            },
        }
    }

    fn limit(&self, at: Option<usize>) -> Option<Limit> {
        let condition = &self.conditions[at?];
        if let Some((values, inclusive, _)) =
            self.row_limit(condition, self.equal.len(), key_length(self.table, self.index))
        {
            return Some(Limit::Row(values, inclusive));
        }
        let inclusive = matches!(operator(condition), Some(Comparison::Ge | Comparison::Le));
        Some(Limit::Value(right_side(condition), inclusive))
    }

    /// Conditions that the keys do not answer wholly.
    pub fn rest(&self) -> Vec<Expr> {
        let mut used = self.equal.clone();
        match self.behind {
            Behind::Nothing | Behind::Like(_) => {}
            Behind::List(at) | Behind::Null(at) | Behind::NotNull(at) => used.push(at),
            Behind::Between(lower, upper) => {
                let whole = |at: &usize| !matches!(self.conditions[*at], Expr::CompareRows { .. });
                used.extend(lower.into_iter().chain(upper).filter(whole));
            }
        }
        let all = self.conditions.iter().enumerate();
        all.filter(|(i, _)| !used.contains(i)).map(|(_, e)| e.clone()).collect()
    }
}

fn is_column(expr: &Expr, column: usize) -> bool {
    matches!(expr, Expr::Column(c) if usize::from(*c) == column)
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

/// The column that a list of row-free values is about.
fn list_column(expr: &Expr) -> Option<usize> {
    let operand = match expr {
        Expr::InList {
            operand,
            list,
            negated: false,
            ..
        } if list.iter().all(Expr::is_row_free) => operand,
        Expr::AnyOf {
            operand,
            array,
            op: Comparison::Eq,
            all: false,
            ..
        } if array.is_row_free() => operand,
        _ => return None,
    };
    match &**operand {
        Expr::Column(c) => Some(usize::from(*c)),
        _ => None,
    }
}

fn items_of(expr: &Expr) -> Option<Items> {
    match expr {
        Expr::InList { list, .. } => Some(Items::Exprs(list.clone())),
        Expr::AnyOf { array, element, .. } => Some(Items::Array {
            array: (**array).clone(),
            element: *element,
        }),
        _ => None,
    }
}

/// Whether the condition is a LIKE of this column whose pattern fixes how the text begins, or may.
fn is_like_of(expr: &Expr, column: usize, ty: ColumnType, for_order: bool) -> bool {
    let Expr::Like {
        text,
        pattern,
        escape,
        ignore_case: false,
        negated: false,
    } = expr
    else {
        return false;
    };
    let is_text = matches!(ty, ColumnType::Text | ColumnType::Varchar(_));
    let row_free = pattern.is_row_free() && escape.as_ref().is_none_or(|e| e.is_row_free());
    is_text && row_free && is_column(text, column) && fixes_prefix(pattern, escape.as_deref()).unwrap_or(!for_order)
}

fn like_of(expr: &Expr) -> Option<Limit> {
    let Expr::Like { pattern, escape, .. } = expr else {
        return None;
    };
    Some(Limit::Like {
        pattern: (**pattern).clone(),
        escape: escape.as_deref().cloned(),
    })
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
