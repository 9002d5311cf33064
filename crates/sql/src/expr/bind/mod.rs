//! From the parsed expression to the bound one: names to positions, types settled as PostgreSQL settles them.
//!
//! An untyped literal or parameter takes the type that its surroundings ask for, and text where they ask for nothing.
//! What the short path does not know is a [`Refusal::Shape`]: another planner may know it, and its error is what to say
//! if there is none.

pub(crate) mod calls;
mod operators;
pub(crate) mod rows;

pub use operators::common_type;

use crate::env::SessionEnv;
use crate::error::{SqlError, code};
use crate::expr::aggregate::Aggregate;
use crate::expr::type_names::type_named;
use crate::expr::{Comparison, Env, Expr, Input};
use crate::names::{Places, fold};
use crate::types::cast::{Context, castable};
use crate::types::{base_type, element_of_array, is_string, same_base};
use cenote_engine::{ColumnType, Datum, Numeric, Table};
use sqlparser::ast::{self, CaseWhen, DataType, Ident, Spanned, Value as Literal};
use std::cell::{Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why something was not bound.
#[derive(Debug)]
pub enum Refusal {
    /// The statement is wrong.
    Error(SqlError),
    /// Not a shape that the short path knows.
    Shape(SqlError),
}

/// Result of binding.
pub type Bound<T> = std::result::Result<T, Refusal>;

impl From<SqlError> for Refusal {
    fn from(error: SqlError) -> Self {
        Refusal::Error(error)
    }
}

impl From<cenote_engine::Error> for Refusal {
    fn from(error: cenote_engine::Error) -> Self {
        Refusal::Error(error.into())
    }
}

impl From<Refusal> for SqlError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Error(error) | Refusal::Shape(error) => error,
        }
    }
}

/// A refusal of a shape, named.
#[cold]
pub fn shape<T>(what: impl std::fmt::Display) -> Bound<T> {
    Err(Refusal::Shape(SqlError::unsupported(what)))
}

/// An expression with its type; None: an untyped literal or parameter.
#[derive(Debug, Clone)]
pub struct Typed {
    /// The expression.
    pub expr: Expr,
    /// Its type.
    pub ty: Option<ColumnType>,
}

impl Typed {
    pub(crate) fn new(expr: Expr, ty: ColumnType) -> Typed {
        Typed { expr, ty: Some(ty) }
    }
}

/// Types of parameters, as far as they are known.
#[derive(Debug, Default)]
pub struct Params {
    types: RefCell<Vec<Option<ColumnType>>>,
    /// Those that are arrays, which the engine holds as text: by their positions, the arrays' type ids.
    arrays: RefCell<BTreeMap<usize, u32>>,
}

impl Params {
    /// Parameters of these types; `arrays`: those that are arrays, by position and type id.
    pub fn new(types: Vec<Option<ColumnType>>, arrays: BTreeMap<usize, u32>) -> Params {
        Params {
            types: RefCell::new(types),
            arrays: RefCell::new(arrays),
        }
    }

    /// The types.
    pub fn borrow(&self) -> Ref<'_, Vec<Option<ColumnType>>> {
        self.types.borrow()
    }

    /// The types, to change them.
    pub fn borrow_mut(&self) -> RefMut<'_, Vec<Option<ColumnType>>> {
        self.types.borrow_mut()
    }

    /// The type of the elements of a parameter that is an array.
    pub fn element(&self, at: usize) -> Option<ColumnType> {
        self.arrays.borrow().get(&at).and_then(|id| element_of_array(*id))
    }

    /// Makes a parameter an array of this type id.
    pub fn set_array(&self, at: usize, id: u32) {
        self.types.borrow_mut()[at] = Some(ColumnType::Text);
        self.arrays.borrow_mut().insert(at, id);
    }

    /// What is known now, to return to.
    pub fn known(&self) -> (Vec<Option<ColumnType>>, BTreeMap<usize, u32>) {
        (self.types.borrow().clone(), self.arrays.borrow().clone())
    }

    /// Returns to what was known.
    pub fn restore(&self, (types, arrays): (Vec<Option<ColumnType>>, BTreeMap<usize, u32>)) {
        *self.types.borrow_mut() = types;
        *self.arrays.borrow_mut() = arrays;
    }
}

/// Grouping under way: group keys, then aggregates, make up the row that the select list sees.
#[derive(Default)]
pub struct Grouping {
    /// GROUP BY expressions and their types.
    pub keys: Vec<(ast::Expr, ColumnType)>,
    /// Where each key stands in the row that the select list sees.
    pub key_slots: Vec<u16>,
    /// The keys over the rows that are grouped, where the names are those of several relations.
    pub bound_keys: Vec<Expr>,
    /// Aggregates found so far.
    pub aggregates: Vec<Aggregate>,
    /// Where each aggregate stands.
    pub aggregate_slots: Vec<u16>,
    /// GROUPING SETS and its like: positions of the keys of each set; none where rows are grouped by all keys.
    pub sets: Vec<Vec<usize>>,
    /// `GROUPING(...)`: positions of the keys that it names, and where its value stands.
    pub marks: Vec<(Vec<usize>, u16)>,
}

/// What names mean in a query of several relations.
pub trait Names {
    /// The column of this name, in the binder's clause.
    fn column(&self, binder: &Binder<'_>, qualifier: Option<&Ident>, name: &Ident) -> Bound<Typed>;
    /// A subquery in an expression, or a comparison with one.
    fn subquery(&self, binder: &Binder<'_>, expr: &ast::Expr) -> Bound<Typed>;
    /// A window function.
    fn window(&self, binder: &Binder<'_>, function: &ast::Function) -> Bound<Typed>;
    /// Whether the expression names columns, and all of them are of queries around this one.
    fn is_all_outer(&self, expr: &Expr) -> bool;
    /// A place in the tuple that nothing has.
    fn new_slot(&self) -> u16;
}

/// What names mean in one statement.
pub struct Binder<'a> {
    /// For error positions.
    pub places: Places<'a>,
    /// Parameter types.
    pub params: &'a Params,
    /// The session, for literals.
    pub session: &'a SessionEnv,
    /// The table in FROM and the name it goes by.
    pub table: Option<(Arc<Table>, String)>,
    /// Whether `excluded` is known.
    pub excluded: bool,
    /// Object id of a sequence by name.
    pub sequence: &'a dyn Fn(&str) -> crate::error::Result<u32>,
    /// Set while the select list of a grouped query is bound.
    pub grouping: Option<RefCell<Grouping>>,
    /// What names mean where the query has several relations; then `table` is None.
    pub names: Option<&'a dyn Names>,
}

impl Binder<'_> {
    /// Binds an expression.
    pub fn bind(&self, expr: &ast::Expr) -> Bound<Typed> {
        if let Some(key) = self.group_key(expr) {
            return Ok(key);
        }
        match expr {
            ast::Expr::Nested(inner) => self.bind(inner),
            ast::Expr::Value(value) => self.literal(&value.value),
            ast::Expr::Identifier(ident) => self.column(None, ident),
            ast::Expr::CompoundIdentifier(parts) => match parts.as_slice() {
                [table, column] => self.column(Some(table), column),
                [_, table, column] => self.column(Some(table), column),
                _ => shape("this name"),
            },
            ast::Expr::BinaryOp { left, op, right } => self.binary(left, op, right),
            ast::Expr::UnaryOp { op, expr } => self.unary(*op, expr),
            ast::Expr::Case {
                operand,
                conditions,
                else_result,
                ..
            } => self.case(operand.as_deref(), conditions, else_result.as_deref()),
            ast::Expr::Cast { expr, data_type, .. } => self.cast(expr, data_type),
            ast::Expr::TypedString(typed) => {
                let ty = self.named_type(&typed.data_type)?;
                let operand = self.literal(&typed.value.value)?;
                Ok(Typed::new(self.coerce(operand, ty, Context::Explicit)?, base_type(ty)))
            }
            ast::Expr::Collate { expr, .. } => self.bind(expr).and_then(|_| shape("COLLATE")),
            ast::Expr::Function(function) => self.function(function, expr),
            other => self.predicate(other),
        }
    }

    /// What is true, false or unknown of its operands.
    fn predicate(&self, expr: &ast::Expr) -> Bound<Typed> {
        match expr {
            ast::Expr::IsNull(e) => self.is_null(e, false),
            ast::Expr::IsNotNull(e) => self.is_null(e, true),
            ast::Expr::IsTrue(e) => self.is_bool(e, true, false),
            ast::Expr::IsNotTrue(e) => self.is_bool(e, true, true),
            ast::Expr::IsFalse(e) => self.is_bool(e, false, false),
            ast::Expr::IsNotFalse(e) => self.is_bool(e, false, true),
            ast::Expr::IsUnknown(e) => self.is_null(e, false),
            ast::Expr::IsNotUnknown(e) => self.is_null(e, true),
            ast::Expr::IsDistinctFrom(a, b) => self.is_distinct(a, b, false),
            ast::Expr::IsNotDistinctFrom(a, b) => self.is_distinct(a, b, true),
            ast::Expr::Between {
                expr,
                negated,
                low,
                high,
            } => self.between(expr, *negated, low, high),
            ast::Expr::InList { expr, list, negated } => self.in_list(expr, list, *negated),
            ast::Expr::Like {
                negated,
                any: false,
                expr,
                pattern,
                escape_char,
            } => self.like(expr, pattern, escape_char.as_ref().map(|v| &v.value), false, *negated),
            ast::Expr::ILike {
                negated,
                any: false,
                expr,
                pattern,
                escape_char,
            } => self.like(expr, pattern, escape_char.as_ref().map(|v| &v.value), true, *negated),
            ast::Expr::AnyOp {
                left,
                compare_op,
                right,
                ..
            } if !rows::is_query(right) => self.any_of(left, compare_op, right, false),
            ast::Expr::AllOp {
                left,
                compare_op,
                right,
            } if !rows::is_query(right) => self.any_of(left, compare_op, right, true),
            ast::Expr::Subquery(_)
            | ast::Expr::AnyOp { .. }
            | ast::Expr::AllOp { .. }
            | ast::Expr::InSubquery { .. }
            | ast::Expr::Exists { .. } => match self.names {
                Some(names) => names.subquery(self, expr),
                None => shape(format_args!("the expression {expr}")),
            },
            other => self.call_in_words(other),
        }
    }

    /// Functions whose arguments have words between them.
    fn call_in_words(&self, expr: &ast::Expr) -> Bound<Typed> {
        match expr {
            ast::Expr::Substring {
                expr,
                substring_from,
                substring_for,
                special: false,
                ..
            } => {
                let one = ast::Expr::value(Literal::Number("1".into(), false));
                let from = substring_from.as_deref().unwrap_or(&one);
                let mut args = vec![self.bind(expr)?, self.bind(from)?];
                args.extend(substring_for.as_deref().map(|e| self.bind(e)).transpose()?);
                self.call("substring", args, expr)
            }
            ast::Expr::Trim {
                expr,
                trim_where,
                trim_what,
                trim_characters: None,
            } => {
                let name = match trim_where {
                    Some(ast::TrimWhereField::Leading) => "ltrim",
                    Some(ast::TrimWhereField::Trailing) => "rtrim",
                    _ => "btrim",
                };
                let mut args = vec![self.bind(expr)?];
                args.extend(trim_what.as_deref().map(|e| self.bind(e)).transpose()?);
                self.call(name, args, expr)
            }
            ast::Expr::Position { expr, r#in } => {
                let args = vec![self.bind(r#in)?, self.bind(expr)?];
                self.call("position", args, expr)
            }
            ast::Expr::Ceil {
                expr,
                field: ast::CeilFloorKind::DateTimeField(ast::DateTimeField::NoDateTime),
            } => self.call("ceil", vec![self.bind(expr)?], expr),
            ast::Expr::Floor {
                expr,
                field: ast::CeilFloorKind::DateTimeField(ast::DateTimeField::NoDateTime),
            } => self.call("floor", vec![self.bind(expr)?], expr),
            other => shape(format_args!("the expression {other}")),
        }
    }

    /// Binds a condition.
    pub fn condition(&self, expr: &ast::Expr, clause: &str) -> Bound<Expr> {
        let typed = self.bind(expr)?;
        match typed.ty {
            None | Some(ColumnType::Bool) => self.coerce(typed, ColumnType::Bool, Context::Implicit),
            Some(other) => {
                let text = format!("argument of {clause} must be type boolean, not type {}", other.name());
                Err(SqlError::new(code::DATATYPE_MISMATCH, text)
                    .at(self.places.of(expr.span()))
                    .into())
            }
        }
    }

    /// An expression whose type, if still open, becomes text.
    pub fn settled(&self, typed: Typed) -> Bound<(Expr, ColumnType)> {
        match typed.ty {
            Some(ty) => Ok((typed.expr, ty)),
            None => Ok((
                self.coerce(typed, ColumnType::Text, Context::Implicit)?,
                ColumnType::Text,
            )),
        }
    }

    /// Converts to `to`, or says that it cannot be done.
    pub fn coerce(&self, typed: Typed, to: ColumnType, context: Context) -> Bound<Expr> {
        let Typed { expr, ty } = typed;
        let Some(from) = ty else {
            return self.coerce_open(expr, to, context);
        };
        if !castable(from, to, context) {
            return Err(self.cannot(from, to, context).into());
        }
        let expr = match (from, to) {
            (ColumnType::Char(_), ColumnType::Text | ColumnType::Varchar(_)) => Expr::TrimBlanks(Box::new(expr)),
            _ => expr,
        };
        let modified = matches!(
            to,
            ColumnType::Varchar(Some(_)) | ColumnType::Char(_) | ColumnType::Numeric(Some(_))
        );
        let text_to_text = matches!((from, to), (_, ColumnType::Text | ColumnType::Varchar(None))) && is_string(from);
        if from == to || text_to_text || same_base(from, to) && !modified {
            return Ok(expr);
        }
        let constant = matches!(expr, Expr::Const(_)) && !uses_zone(from, to);
        let cast = Expr::Cast {
            operand: Box::new(expr),
            to,
            context,
        };
        if constant { self.fold(&cast) } else { Ok(cast) }
    }

    /// An untyped literal is read as `to`; an untyped parameter becomes one of that type.
    fn coerce_open(&self, expr: Expr, to: ColumnType, context: Context) -> Bound<Expr> {
        match expr {
            Expr::Const(Datum::Text(text)) => {
                let relative =
                    ["now", "today", "tomorrow", "yesterday"].contains(&text.trim().to_ascii_lowercase().as_str());
                let timely =
                    matches!(to, ColumnType::Date | ColumnType::Timestamp) && relative || to == ColumnType::TimestampTz;
                let cast = Expr::Cast {
                    operand: Box::new(Expr::Const(Datum::Text(text))),
                    to,
                    context,
                };
                if timely { Ok(cast) } else { self.fold(&cast) }
            }
            Expr::Param(index) => {
                let base = match to {
                    ColumnType::Char(_) => ColumnType::Text,
                    other => base_type(other),
                };
                self.params.borrow_mut()[usize::from(index)] = Some(base);
                let modified = matches!(
                    to,
                    ColumnType::Varchar(Some(_)) | ColumnType::Char(_) | ColumnType::Numeric(Some(_))
                );
                let param = Expr::Param(index);
                Ok(if modified {
                    Expr::Cast {
                        operand: Box::new(param),
                        to,
                        context,
                    }
                } else {
                    param
                })
            }
            other => Ok(other),
        }
    }

    fn fold(&self, expr: &Expr) -> Bound<Expr> {
        let env = Env {
            params: &[],
            input: Input::Nothing,
            outer: &[],
            session: self.session,
            sequences: None,
            subqueries: None,
        };
        Ok(Expr::Const(expr.eval(&env)?))
    }

    #[cold]
    fn cannot(&self, from: ColumnType, to: ColumnType, context: Context) -> SqlError {
        match context {
            Context::Explicit => SqlError::new(
                code::CANNOT_COERCE,
                format!("cannot cast type {} to {}", from.name(), to.name()),
            ),
            _ => SqlError::new(
                code::DATATYPE_MISMATCH,
                format!("expression is of type {} but type {} is wanted", from.name(), to.name()),
            )
            .with_hint("You will need to rewrite or cast the expression."),
        }
    }

    fn named_type(&self, ty: &DataType) -> Bound<ColumnType> {
        type_named(ty).map_err(|e| {
            if e.code() == code::FEATURE_NOT_SUPPORTED {
                Refusal::Shape(e)
            } else {
                e.into()
            }
        })
    }

    fn group_key(&self, expr: &ast::Expr) -> Option<Typed> {
        let grouping = self.grouping.as_ref()?.borrow();
        let expr = strip(expr);
        let at = grouping.keys.iter().position(|(key, _)| key == expr)?;
        Some(Typed::new(Expr::Column(grouping.key_slots[at]), grouping.keys[at].1))
    }

    fn literal(&self, value: &Literal) -> Bound<Typed> {
        Ok(match value {
            Literal::Number(digits, _) => number_literal(digits)?,
            Literal::SingleQuotedString(s)
            | Literal::EscapedStringLiteral(s)
            | Literal::UnicodeStringLiteral(s)
            | Literal::NationalStringLiteral(s) => open_text(s),
            Literal::DollarQuotedString(s) => open_text(&s.value),
            Literal::Boolean(b) => Typed::new(Expr::Const(Datum::Bool(*b)), ColumnType::Bool),
            Literal::Null => Typed {
                expr: Expr::Const(Datum::Null),
                ty: None,
            },
            Literal::Placeholder(name) => self.parameter(name)?,
            other => return shape(format_args!("the literal {other}")),
        })
    }

    fn parameter(&self, name: &str) -> Bound<Typed> {
        let number: Option<u16> = name.strip_prefix('$').and_then(|n| n.parse().ok()).filter(|n| *n > 0);
        let Some(number) = number else {
            return Err(SqlError::new(code::UNDEFINED_PARAMETER, format!("there is no parameter {name}")).into());
        };
        let mut params = self.params.borrow_mut();
        if params.len() < usize::from(number) {
            params.resize(usize::from(number), None);
        }
        Ok(Typed {
            expr: Expr::Param(number - 1),
            ty: params[usize::from(number) - 1],
        })
    }

    /// The column of this name.
    pub(crate) fn column(&self, qualifier: Option<&Ident>, ident: &Ident) -> Bound<Typed> {
        let name = fold(ident);
        let qualifier_name = qualifier.map(fold);
        let place = || self.places.of(qualifier.unwrap_or(ident).span);
        let bare = ident.quote_style.is_none() && qualifier.is_none();
        if bare
            && WITHOUT_PARENTHESES.contains(&name.as_str())
            && self.table.as_ref().is_none_or(|(t, _)| t.column_named(&name).is_none())
        {
            return self.call(&name, Vec::new(), &ast::Expr::Identifier(ident.clone()));
        }
        if let Some(names) = self.names {
            return names.column(self, qualifier, ident);
        }
        let Some((table, alias)) = &self.table else {
            return self.no_table(qualifier_name.as_deref(), &name, place());
        };
        let proposed = self.excluded && qualifier_name.as_deref() == Some("excluded");
        if let Some(q) = &qualifier_name
            && !proposed
            && q != alias
        {
            let error = SqlError::new(
                code::UNDEFINED_TABLE,
                format!("missing FROM-clause entry for table \"{q}\""),
            );
            return Err(error.at(place()).into());
        }
        let Some(index) = table.column_named(&name) else {
            return Err(undefined_column(qualifier_name.as_deref(), &name, place()).into());
        };
        if self.grouping.is_some() {
            let text = format!(
                "column \"{alias}.{name}\" must appear in the GROUP BY clause or be used in an aggregate function"
            );
            // The row executor knows what a primary key among the keys settles.
            return Err(Refusal::Shape(SqlError::new(code::GROUPING_ERROR, text).at(place())));
        }
        let expr = if proposed {
            Expr::Proposed(index as u16)
        } else {
            Expr::Column(index as u16)
        };
        Ok(Typed::new(expr, table.columns[index].ty))
    }

    fn no_table(&self, qualifier: Option<&str>, name: &str, place: u32) -> Bound<Typed> {
        match qualifier {
            Some(q) => {
                let error = SqlError::new(
                    code::UNDEFINED_TABLE,
                    format!("missing FROM-clause entry for table \"{q}\""),
                );
                Err(error.at(place).into())
            }
            None => Err(undefined_column(None, name, place).into()),
        }
    }

    fn case(&self, operand: Option<&ast::Expr>, whens: &[CaseWhen], otherwise: Option<&ast::Expr>) -> Bound<Typed> {
        let mut conditions = Vec::new();
        for when in whens {
            conditions.push(match operand {
                None => self.condition(&when.condition, "CASE/WHEN")?,
                Some(operand) => self.comparison(operand, Comparison::Eq, &when.condition)?.expr,
            });
        }
        let mut results: Vec<Typed> = whens.iter().map(|w| self.bind(&w.result)).collect::<Bound<_>>()?;
        // ELSE is the first of them, where the first one's type decides.
        let has_else = otherwise.is_some();
        results.splice(..0, otherwise.map(|e| self.bind(e)).transpose()?);
        let (mut results, ty) = self.unify(results, "CASE")?;
        let otherwise = has_else.then(|| Box::new(results.remove(0)));
        Ok(Typed::new(
            Expr::Case {
                branches: conditions.into_iter().zip(results).collect(),
                otherwise,
            },
            ty,
        ))
    }

    /// Brings the results of CASE, COALESCE, GREATEST and the like to one type.
    pub(crate) fn unify(&self, items: Vec<Typed>, construct: &str) -> Bound<(Vec<Expr>, ColumnType)> {
        let mut common: Option<ColumnType> = None;
        for ty in items.iter().filter_map(|i| i.ty) {
            common = Some(match common {
                None => base_type(ty),
                // Strings convert to each other: the first one's type stays.
                Some(ColumnType::Varchar(_)) if is_string(ty) => ColumnType::Varchar(None),
                Some(so_far) => match common_type(so_far, ty) {
                    Some(both) => both,
                    None => {
                        let text = format!(
                            "{construct} types {} and {} cannot be matched",
                            so_far.name(),
                            ty.name()
                        );
                        return Err(SqlError::new(code::DATATYPE_MISMATCH, text).into());
                    }
                },
            });
        }
        let common = match common {
            Some(ColumnType::Char(_)) | None => ColumnType::Text,
            Some(ty) => ty,
        };
        let converted = items
            .into_iter()
            .map(|i| self.coerce(i, common, Context::Implicit))
            .collect::<Bound<_>>()?;
        Ok((converted, common))
    }

    fn cast(&self, operand: &ast::Expr, data_type: &DataType) -> Bound<Typed> {
        let ty = self.named_type(data_type)?;
        let typed = self.bind(operand)?;
        if is_bare_bpchar(data_type) {
            // A string is it as it stands.
            let expr = match typed.ty {
                Some(ty) if is_string(ty) => typed.expr,
                _ => self.coerce(typed, ColumnType::Text, Context::Explicit)?,
            };
            return Ok(Typed::new(expr, BARE_BPCHAR));
        }
        let shown = match ty {
            ColumnType::Varchar(_) | ColumnType::Char(_) | ColumnType::Numeric(_) => ty,
            other => base_type(other),
        };
        Ok(Typed::new(self.coerce(typed, ty, Context::Explicit)?, shown))
    }
}

/// char of no length, which expressions alone have: its blanks do not count, and it keeps as many as it has.
const BARE_BPCHAR: ColumnType = ColumnType::Char(0);

fn is_bare_bpchar(ty: &DataType) -> bool {
    matches!(ty, DataType::Custom(name, modifiers)
        if modifiers.is_empty() && crate::names::parts(name).pop().is_some_and(|last| last == "bpchar"))
}

/// Without parentheses around it.
pub fn strip(expr: &ast::Expr) -> &ast::Expr {
    match expr {
        ast::Expr::Nested(inner) => strip(inner),
        other => other,
    }
}

fn open_text(text: &str) -> Typed {
    Typed {
        expr: Expr::Const(Datum::Text(text.to_string())),
        ty: None,
    }
}

fn number_literal(digits: &str) -> Bound<Typed> {
    if let Ok(value) = digits.parse::<i32>() {
        return Ok(Typed::new(Expr::Const(Datum::Int4(value)), ColumnType::Int4));
    }
    if let Ok(value) = digits.parse::<i64>() {
        return Ok(Typed::new(Expr::Const(Datum::Int8(value)), ColumnType::Int8));
    }
    let value = Numeric::parse(digits)?;
    Ok(Typed::new(
        Expr::Const(Datum::Numeric(value)),
        ColumnType::Numeric(None),
    ))
}

/// Whether the conversion depends on the session's time zone.
fn uses_zone(from: ColumnType, to: ColumnType) -> bool {
    from == ColumnType::TimestampTz || to == ColumnType::TimestampTz
}

/// Functions that are called by their bare name.
const WITHOUT_PARENTHESES: [&str; 9] = [
    "current_schema",
    "current_catalog",
    "current_user",
    "current_role",
    "session_user",
    "user",
    "current_date",
    "current_timestamp",
    "localtimestamp",
];

#[cold]
pub(crate) fn undefined_column(qualifier: Option<&str>, name: &str, place: u32) -> SqlError {
    let text = match qualifier {
        Some(q) => format!("column {q}.{name} does not exist"),
        None => format!("column \"{name}\" does not exist"),
    };
    SqlError::new(code::UNDEFINED_COLUMN, text).at(place)
}
