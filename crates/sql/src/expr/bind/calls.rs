//! Functions and aggregates.

use super::{Binder, Bound, Refusal, Typed, shape, strip};
use crate::error::{SqlError, code};
use crate::expr::Arithmetic;
use crate::expr::Expr;
use crate::expr::aggregate::{Aggregate, Kind};
use crate::expr::functions::{self, Call, Function, Signature};
use crate::names::{qualified, span_of};
use crate::types::base_type;
use crate::types::cast::{Context, castable};
use cenote_engine::{ColumnType, Datum};
use sqlparser::ast::{self, FunctionArg, FunctionArgExpr, FunctionArguments, Spanned, Value as Literal};

impl Binder<'_> {
    pub(super) fn function(&self, function: &ast::Function, whole: &ast::Expr) -> Bound<Typed> {
        let name = qualified(&function.name)?.1;
        if !function.within_group.is_empty() {
            return shape("WITHIN GROUP");
        }
        if function.over.is_some() {
            return match self.names {
                Some(names) => names.window(self, function),
                None => shape("a window function"),
            };
        }
        if let Some(kind) = Kind::named(&name) {
            return self.aggregate(kind, &name, function);
        }
        if function.filter.is_some() {
            return shape("FILTER of this function");
        }
        match name.as_str() {
            "grouping" => return self.grouping_mark(function),
            "nextval" | "currval" | "setval" => return self.sequence_function(&name, function),
            _ => {}
        }
        let args: Vec<Typed> = arguments(function)?
            .into_iter()
            .map(|e| self.bind(e))
            .collect::<Bound<_>>()?;
        match name.as_str() {
            "coalesce" => {
                let (args, ty) = self.unify(args, "COALESCE")?;
                Ok(Typed::new(Expr::Coalesce(args), ty))
            }
            "greatest" | "least" => {
                let (args, ty) = self.unify(args, &name.to_uppercase())?;
                let function = if name == "greatest" {
                    Function::Greatest
                } else {
                    Function::Least
                };
                Ok(Typed::new(Expr::Call(Box::new(Call { function, args })), ty))
            }
            "nullif" if args.len() == 2 => {
                let ty = args[0].ty.or(args[1].ty).unwrap_or(ColumnType::Text);
                let mut args = args.into_iter();
                let (Some(a), Some(b)) = (args.next(), args.next()) else {
                    return shape("NULLIF");
                };
                let (a, b, _) = self.comparable(a, "=", b)?;
                Ok(Typed::new(
                    Expr::Call(Box::new(Call {
                        function: Function::NullIf,
                        args: vec![a, b],
                    })),
                    base_type(ty),
                ))
            }
            "mod" if args.len() == 2 => {
                let list = arguments(function)?;
                self.arithmetic(list[0], Arithmetic::Rem, list[1])
            }
            "current_schema" | "current_user" | "session_user" | "user" | "now" | "random" if args.is_empty() => {
                self.call(&name, args, whole)
            }
            _ => self.call(&name, args, whole),
        }
    }

    pub(super) fn call(&self, name: &str, args: Vec<Typed>, whole: &ast::Expr) -> Bound<Typed> {
        let types: Vec<Option<ColumnType>> = args.iter().map(|a| a.ty).collect();
        let Some(Signature {
            function,
            args: wanted,
            result,
        }) = functions::resolve(name, &types)
        else {
            let error = self.no_function(name, &types, whole);
            // Analytics has no other of this name.
            return Err(if name == "set_config" {
                error.into()
            } else {
                Refusal::Shape(error)
            });
        };
        if self.names.is_some() && function.uses_sequences() {
            return shape(format_args!("{name} in a query of this shape"));
        }
        let context = if function == Function::Concat {
            Context::Assignment
        } else {
            Context::Implicit
        };
        let mut converted = Vec::new();
        for (arg, ty) in args.into_iter().zip(wanted) {
            if function == Function::Concat && matches!(arg.ty, Some(ColumnType::Char(_))) {
                // Written as a result is, with its blanks.
                converted.push(arg.expr);
                continue;
            }
            if let Some(from) = arg.ty
                && !castable(from, ty, context)
            {
                return Err(Refusal::Shape(self.no_function(name, &types, whole)));
            }
            converted.push(self.coerce(arg, ty, context)?);
        }
        Ok(Typed::new(
            Expr::Call(Box::new(Call {
                function,
                args: converted,
            })),
            result,
        ))
    }

    #[cold]
    pub(super) fn no_function(&self, name: &str, types: &[Option<ColumnType>], whole: &ast::Expr) -> SqlError {
        let shown: Vec<&str> = types.iter().map(|t| t.map_or("unknown", |t| t.name())).collect();
        let text = format!("function {name}({}) does not exist", shown.join(", "));
        SqlError::new(code::UNDEFINED_FUNCTION, text)
            .with_hint(
                "No function matches the given name and argument types. You might need to add explicit type casts.",
            )
            .at(self.places.of(whole.span()))
    }

    pub(super) fn sequence_function(&self, name: &str, function: &ast::Function) -> Bound<Typed> {
        if self.names.is_some() {
            return shape(format_args!("{name} in a query of this shape"));
        }
        let list = arguments(function)?;
        let Some(sequence) = list.first().and_then(|e| sequence_name(e)) else {
            return shape(format_args!("{name} of a computed name"));
        };
        let id = (self.sequence)(&sequence)?;
        let mut args = vec![Typed::new(Expr::Const(Datum::Int8(i64::from(id))), ColumnType::Int8)];
        for rest in &list[1..] {
            args.push(self.bind(rest)?);
        }
        self.call(name, args, list[0])
    }

    pub(super) fn aggregate(&self, kind: Kind, name: &str, function: &ast::Function) -> Bound<Typed> {
        let Some(cell) = &self.grouping else {
            let text = "aggregate functions are not allowed here".to_string();
            return Err(SqlError::new(code::GROUPING_ERROR, text)
                .at(self.places.of(span_of(&function.name)))
                .into());
        };
        let FunctionArguments::List(list) = &function.args else {
            return shape("this aggregate");
        };
        if !list.clauses.is_empty() {
            return shape("ORDER BY in an aggregate");
        }
        let inner = self.below_grouping();
        let (argument, input) = match list.args.as_slice() {
            [FunctionArg::Unnamed(FunctionArgExpr::Wildcard)] if kind == Kind::Count => (None, ColumnType::Int8),
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(e))] => {
                let (expr, ty) = inner.settled(inner.bind(e)?)?;
                (Some(expr), ty)
            }
            _ => return shape("this aggregate"),
        };
        if let (Some(names), Some(argument)) = (self.names, &argument)
            && names.is_all_outer(argument)
        {
            return shape("an aggregate of outer columns in a subquery");
        }
        let Some(result) = kind.result(input) else {
            let text = format!("function {name}({}) does not exist", input.name());
            let error = SqlError::new(code::UNDEFINED_FUNCTION, text).with_hint(
                "No function matches the given name and argument types. You might need to add explicit type casts.",
            );
            return Err(error.at(self.places.of(span_of(&function.name))).into());
        };
        let filter = function
            .filter
            .as_deref()
            .map(|f| inner.condition(f, "FILTER"))
            .transpose()?;
        let distinct = matches!(list.duplicate_treatment, Some(ast::DuplicateTreatment::Distinct));
        let mut grouping = cell.borrow_mut();
        grouping.aggregates.push(Aggregate {
            kind,
            argument,
            input,
            distinct,
            filter,
        });
        let slot = match self.names {
            Some(names) => names.new_slot(),
            None => (grouping.keys.len() + grouping.aggregates.len() - 1) as u16,
        };
        grouping.aggregate_slots.push(slot);
        Ok(Typed::new(Expr::Column(slot), result))
    }

    /// `GROUPING(a, b)`: a bit for each key, 1 where the row's group is not one by that.
    fn grouping_mark(&self, function: &ast::Function) -> Bound<Typed> {
        let (Some(cell), Some(names)) = (&self.grouping, self.names) else {
            return shape("GROUPING without GROUP BY");
        };
        let mut keys = Vec::new();
        for arg in arguments(function)? {
            let bound = match self.bind(arg) {
                Ok(typed) => Some(typed.expr),
                Err(Refusal::Error(error)) if error.code() == code::GROUPING_ERROR => None,
                Err(refusal) => return Err(refusal),
            };
            let is_key = |slot: &u16| bound == Some(Expr::Column(*slot));
            let at = cell.borrow().key_slots.iter().position(is_key);
            let Some(at) = at else {
                let text = "arguments to GROUPING must be grouping expressions of the associated query level";
                let error = SqlError::new(code::GROUPING_ERROR, text);
                return Err(error.at(self.places.of(arg.span())).into());
            };
            keys.push(at);
        }
        if keys.is_empty() || keys.len() > 31 {
            return shape("GROUPING of so many arguments");
        }
        let slot = names.new_slot();
        cell.borrow_mut().marks.push((keys, slot));
        Ok(Typed::new(Expr::Column(slot), ColumnType::Int4))
    }

    /// The binder for what stands below an aggregate: rows of the table.
    pub fn below_grouping(&self) -> Binder<'_> {
        Binder {
            places: self.places,
            params: self.params,
            session: self.session,
            table: self.table.clone(),
            excluded: self.excluded,
            sequence: self.sequence,
            grouping: None,
            names: self.names,
        }
    }
}

/// Plain arguments of a function.
pub(crate) fn arguments(function: &ast::Function) -> Bound<Vec<&ast::Expr>> {
    match &function.args {
        FunctionArguments::None => Ok(Vec::new()),
        FunctionArguments::List(list) if list.duplicate_treatment.is_none() && list.clauses.is_empty() => {
            let plain = list.args.iter().map(|a| match a {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(e)) => Ok(e),
                _ => shape("this argument"),
            });
            plain.collect()
        }
        _ => shape("these arguments"),
    }
}

/// `'name'` or `'name'::regclass`, folded; a schema in front is dropped.
fn sequence_name(expr: &ast::Expr) -> Option<String> {
    let text = match strip(expr) {
        ast::Expr::Value(v) => match &v.value {
            Literal::SingleQuotedString(s) => s.clone(),
            _ => return None,
        },
        ast::Expr::Cast { expr, .. } => return sequence_name(expr),
        _ => return None,
    };
    let last = text.rsplit('.').next().unwrap_or(&text);
    Some(match last.strip_prefix('"').and_then(|s| s.strip_suffix('"')) {
        Some(quoted) => quoted.to_string(),
        None => last.to_lowercase(),
    })
}
