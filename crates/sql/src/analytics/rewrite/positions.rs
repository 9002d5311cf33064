//! DISTINCT ON a result's position: the key is what the result is, said so that no result's name takes its place.

use crate::error::{Result, SqlError, code};
use crate::names::fold;
use sqlparser::ast::*;

/// The results of a SELECT, its wildcards written out.
pub(super) struct Results {
    pub values: Vec<Expr>,
    /// False: more of them follow that are not known.
    pub complete: bool,
}

/// Writes a key that is a position as what stands there; `plain`: the one column of FROM that a name means.
///
/// # Errors
/// 42P10: there is no such position. 0A000: what stands there cannot be said.
pub(super) fn key_of_position(
    key: &mut Expr,
    results: &Results,
    items: &[SelectItem],
    plain: &dyn Fn(&str) -> Option<Expr>,
) -> Result<()> {
    let Expr::Value(ValueWithSpan {
        value: Value::Number(digits, _),
        ..
    }) = &*key
    else {
        return Ok(());
    };
    let position: usize = digits
        .parse()
        .map_err(|_| SqlError::new(code::SYNTAX_ERROR, "non-integer constant in DISTINCT ON"))?;
    let found = position.checked_sub(1).and_then(|at| results.values.get(at));
    *key = match found {
        Some(Expr::Identifier(ident)) => match plain(&fold(ident)) {
            Some(column) => column,
            None if is_alias(ident, items) => return Err(SqlError::unsupported("DISTINCT ON this position")),
            None => Expr::Identifier(ident.clone()),
        },
        Some(value) => value.clone(),
        None if results.complete || position == 0 => {
            let text = format!("DISTINCT ON position {position} is not in select list");
            return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, text));
        }
        None => return Err(SqlError::unsupported("DISTINCT ON a position behind these columns")),
    };
    Ok(())
}

/// Whether a result is called as this column.
fn is_alias(ident: &Ident, items: &[SelectItem]) -> bool {
    let name = fold(ident);
    let takes = |item: &SelectItem| matches!(item, SelectItem::ExprWithAlias { alias, .. } if fold(alias) == name);
    items.iter().any(takes)
}
