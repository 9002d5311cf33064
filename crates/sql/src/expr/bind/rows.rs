//! Comparisons of rows, `(a, b) < (c, d)`, and of a value with the elements of an array, `a = ANY (array)`.

use super::{Binder, Bound, Refusal, Typed, open_text, shape, strip};
use crate::error::{SqlError, code};
use crate::expr::elements::Parsed;
use crate::expr::{Comparison, Expr};
use crate::names::qualified;
use crate::types::cast::Context;
use crate::types::{array, array_oid, base_type, is_integer};
use cenote_engine::{ColumnType, Datum};
use sqlparser::ast::{self, BinaryOperator, DataType, Value as Literal};

/// What ANY or ALL goes through.
enum Elements {
    /// Known when the statement is planned.
    List(Vec<Typed>),
    /// An array parameter.
    Param(Expr, ColumnType),
}

/// The elements of an array that FROM goes through.
pub(crate) enum Unnested {
    /// Known when the statement is planned, and their type.
    List(Vec<Expr>, ColumnType),
    /// Of an array that is text, and their type.
    Array(Expr, ColumnType),
}

/// Whether the expression is a query in parentheses.
pub(super) fn is_query(expr: &ast::Expr) -> bool {
    matches!(strip(expr), ast::Expr::Subquery(_))
}

/// The comparison that an operator is.
pub(crate) fn comparison_of(op: &BinaryOperator) -> Option<Comparison> {
    Some(match op {
        BinaryOperator::Eq => Comparison::Eq,
        BinaryOperator::NotEq => Comparison::Ne,
        BinaryOperator::Lt => Comparison::Lt,
        BinaryOperator::LtEq => Comparison::Le,
        BinaryOperator::Gt => Comparison::Gt,
        BinaryOperator::GtEq => Comparison::Ge,
        _ => return None,
    })
}

impl Binder<'_> {
    /// `(a, b) op (c, d)`; None where the operands are no rows.
    pub(super) fn rows_compared(&self, left: &ast::Expr, op: Comparison, right: &ast::Expr) -> Bound<Option<Typed>> {
        let (ast::Expr::Tuple(left), ast::Expr::Tuple(right)) = (left, right) else {
            return Ok(None);
        };
        self.row_comparison(left, op, right).map(Some)
    }

    fn row_comparison(&self, left: &[ast::Expr], op: Comparison, right: &[ast::Expr]) -> Bound<Typed> {
        if left.len() != right.len() {
            let text = "unequal number of entries in row expressions";
            return Err(SqlError::new(code::SYNTAX_ERROR, text).into());
        }
        let mut pairs = Vec::with_capacity(left.len());
        for (a, b) in left.iter().zip(right) {
            pairs.push(self.comparable(self.bind(a)?, op.symbol(), self.bind(b)?)?);
        }
        let each = |(left, right, trim)| Expr::Compare {
            op,
            trim,
            left: Box::new(left),
            right: Box::new(right),
        };
        let expr = match op {
            Comparison::Eq => Expr::And(pairs.into_iter().map(each).collect()),
            Comparison::Ne => Expr::Or(pairs.into_iter().map(each).collect()),
            _ => Expr::CompareRows { op, pairs },
        };
        Ok(Typed::new(expr, ColumnType::Bool))
    }

    /// `(a, b) IN ((1, 2), (3, 4))`.
    pub(super) fn row_in_list(&self, row: &[ast::Expr], list: &[ast::Expr], negated: bool) -> Bound<Typed> {
        let mut arms = Vec::with_capacity(list.len());
        for item in list {
            let ast::Expr::Tuple(item) = item else {
                return shape("a row in a list of what is no row");
            };
            arms.push(self.row_comparison(row, Comparison::Eq, item)?.expr);
        }
        let found = Expr::Or(arms);
        let expr = if negated { Expr::Not(Box::new(found)) } else { found };
        Ok(Typed::new(expr, ColumnType::Bool))
    }

    /// `left op ANY (array)`; `all`: ALL.
    pub(super) fn any_of(&self, left: &ast::Expr, op: &BinaryOperator, right: &ast::Expr, all: bool) -> Bound<Typed> {
        let Some(op) = comparison_of(op) else {
            return shape(format_args!("{op} of ANY"));
        };
        let operand = self.bind(left)?;
        match self.elements(&operand, strip(right))? {
            Elements::List(items) => self.any_of_list(operand, op, items, all),
            Elements::Param(array, element) => self.any_of_param(operand, op, (array, element), all),
        }
    }

    fn any_of_list(&self, operand: Typed, op: Comparison, items: Vec<Typed>, all: bool) -> Bound<Typed> {
        if items.is_empty() {
            return Ok(Typed::new(Expr::Const(Datum::Bool(all)), ColumnType::Bool));
        }
        match (op, all) {
            (Comparison::Eq, false) => return self.in_items(operand, items, false),
            (Comparison::Ne, true) => return self.in_items(operand, items, true),
            _ => {}
        }
        if operand.expr.is_volatile() {
            return shape("a volatile operand of ANY");
        }
        let each = |item| Ok(self.compare(operand.clone(), op, item)?.expr);
        let arms = items.into_iter().map(each).collect::<Bound<Vec<Expr>>>()?;
        let expr = if all { Expr::And(arms) } else { Expr::Or(arms) };
        Ok(Typed::new(expr, ColumnType::Bool))
    }

    fn any_of_param(
        &self,
        operand: Typed,
        op: Comparison,
        (array, element): (Expr, ColumnType),
        all: bool,
    ) -> Bound<Typed> {
        let both_integers = is_integer(element) && operand.ty.is_some_and(is_integer);
        let item = Typed::new(Expr::Const(Datum::Null), element);
        let common = self
            .common([&operand, &item].into_iter(), op.symbol())?
            .unwrap_or(element);
        let (operand, _, trim) = self.comparable(operand, op.symbol(), item)?;
        let expr = Expr::AnyOf {
            operand: Box::new(operand),
            array: Box::new(array),
            element: match base_type(common) {
                _ if both_integers => element,
                // Of any length.
                ColumnType::Char(_) => ColumnType::Text,
                other => other,
            },
            parsed: Parsed::default(),
            op,
            all,
            trim,
        };
        Ok(Typed::new(expr, ColumnType::Bool))
    }

    /// The elements of an array, which says itself what they are.
    pub(crate) fn unnested(&self, array: &ast::Expr) -> Bound<Unnested> {
        let array = strip(array);
        if !matches!(array, ast::Expr::Array(_) | ast::Expr::Cast { .. }) {
            return shape("unnest of an array of an open type");
        }
        let text = Typed::new(Expr::Const(Datum::Null), ColumnType::Text);
        Ok(match self.elements(&text, array)? {
            Elements::Param(array, element) => Unnested::Array(array, element),
            Elements::List(items) => {
                let (items, ty) = self.unify(items, "ARRAY")?;
                Unnested::List(items, ty)
            }
        })
    }

    /// The elements of an array of whose type the operand is, where it has none of its own.
    fn elements(&self, operand: &Typed, array: &ast::Expr) -> Bound<Elements> {
        let like_operand = operand.ty.map_or(ColumnType::Text, base_type);
        match array {
            // Its elements have one type of their own: text, where none says another.
            ast::Expr::Array(items) => {
                let items = leaves(items)?.0.into_iter().map(|e| self.bind(e));
                let (items, ty) = self.unify(items.collect::<Bound<Vec<_>>>()?, "ARRAY")?;
                Ok(Elements::List(items.into_iter().map(|e| Typed::new(e, ty)).collect()))
            }
            ast::Expr::Cast { expr, data_type, .. } => {
                let DataType::Array(of) = data_type else {
                    return Err(no_array());
                };
                let element = match of {
                    ast::ArrayElemTypeDef::AngleBracket(ty)
                    | ast::ArrayElemTypeDef::SquareBracket(ty, _)
                    | ast::ArrayElemTypeDef::Parenthesis(ty) => self.element_type(ty)?,
                    ast::ArrayElemTypeDef::None => return shape("an array without a type"),
                };
                self.cast_elements(strip(expr), element)
            }
            other => self.cast_elements(other, like_operand),
        }
    }

    /// The type of an array's elements by its name. `oid` is an integer here, and its array is none of integers to clients.
    fn element_type(&self, ty: &DataType) -> Bound<ColumnType> {
        match ty {
            DataType::Custom(name, _) if qualified(name)?.1 == "oid" => shape("an array of oid"),
            ty => self.named_type(ty),
        }
    }

    /// The elements of a literal, a parameter or `ARRAY[...]` as values of a type.
    fn cast_elements(&self, array: &ast::Expr, element: ColumnType) -> Bound<Elements> {
        match array {
            ast::Expr::Array(items) => {
                let cast = |e: &ast::Expr| {
                    let item = self.bind(e)?;
                    Ok(Typed::new(
                        self.coerce(item, element, Context::Explicit)?,
                        base_type(element),
                    ))
                };
                Ok(Elements::List(
                    leaves(items)?.0.into_iter().map(cast).collect::<Bound<_>>()?,
                ))
            }
            ast::Expr::Value(value) => match &value.value {
                Literal::Placeholder(_) => self.array_parameter(array, element),
                Literal::SingleQuotedString(text) => self.literal_elements(text, element).map(Elements::List),
                Literal::Null => Ok(Elements::Param(Expr::Const(Datum::Null), element)),
                _ => Err(no_array()),
            },
            other => shape(format_args!("ANY of {other}")),
        }
    }

    fn literal_elements(&self, text: &str, element: ColumnType) -> Bound<Vec<Typed>> {
        let item = |item: Option<String>| match item {
            None => Ok(Typed::new(Expr::Const(Datum::Null), base_type(element))),
            Some(item) => {
                let value = self.coerce(open_text(&item), element, Context::Explicit)?;
                Ok(Typed::new(value, base_type(element)))
            }
        };
        array::elements(text)?.into_iter().map(item).collect()
    }

    fn array_parameter(&self, parameter: &ast::Expr, element: ColumnType) -> Bound<Elements> {
        let Typed {
            expr: Expr::Param(at),
            ty,
        } = self.bind(parameter)?
        else {
            return Err(no_array());
        };
        let place = usize::from(at);
        let element = match (self.params.element(place), ty) {
            (Some(known), _) => known,
            (None, None) => {
                self.params.set_array(place, array_oid(element));
                element
            }
            (None, Some(_)) => return Err(no_array()),
        };
        Ok(Elements::Param(Expr::Param(at), base_type(element)))
    }
}

/// The elements of an array of arrays, one after the other, and the sizes of its dimensions.
fn leaves(array: &ast::Array) -> Bound<(Vec<&ast::Expr>, Vec<usize>)> {
    let nested = array.elem.iter().filter_map(|item| match item {
        ast::Expr::Array(inner) => Some(inner),
        _ => None,
    });
    let nested = nested.map(leaves).collect::<Bound<Vec<_>>>()?;
    let sizes = nested.first().map_or(Vec::new(), |(_, sizes)| sizes.clone());
    let is_alike = nested.iter().all(|inner| inner.1 == sizes);
    if nested.is_empty() {
        return Ok((array.elem.iter().collect(), vec![array.elem.len()]));
    }
    if !is_alike || nested.len() < array.elem.len() {
        let text = "multidimensional arrays must have array expressions with matching dimensions";
        return Err(SqlError::new(code::ARRAY_SUBSCRIPT, text).into());
    }
    let sizes = std::iter::once(nested.len()).chain(sizes).collect();
    Ok((nested.into_iter().flat_map(|(items, _)| items).collect(), sizes))
}

fn no_array() -> Refusal {
    SqlError::new(
        code::WRONG_OBJECT_TYPE,
        "op ANY/ALL (array) requires array on right side",
    )
    .into()
}
