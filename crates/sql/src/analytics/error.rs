//! Errors on their way through DataFusion, and DataFusion's own as PostgreSQL would report them.

use crate::error::{SqlError, code};
use arrow::error::ArrowError;
use datafusion::common::{DataFusionError, SchemaError, TableReference};

/// Ours, to travel inside DataFusion.
pub(crate) fn inward(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// DataFusion's, as the client sees it; one of ours comes out as it went in.
pub(crate) fn outward(error: DataFusionError) -> SqlError {
    match error {
        DataFusionError::External(inner) => match inner.downcast::<SqlError>() {
            Ok(ours) => *ours,
            Err(other) => match other.downcast::<DataFusionError>() {
                Ok(nested) => outward(*nested),
                Err(other) => SqlError::internal(other.to_string()),
            },
        },
        DataFusionError::ArrowError(inner, _) => arrow_error(*inner),
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => outward(*inner),
        DataFusionError::Collection(mut errors) if !errors.is_empty() => outward(errors.swap_remove(0)),
        DataFusionError::Shared(shared) => shared_error(&shared),
        DataFusionError::SchemaError(inner, _) => schema_error(&inner),
        DataFusionError::SQL(inner, _) => SqlError::new(code::SYNTAX_ERROR, inner.to_string()),
        DataFusionError::Plan(text) => by_text(&text),
        DataFusionError::NotImplemented(text) => SqlError::new(code::FEATURE_NOT_SUPPORTED, first_line(&text)),
        DataFusionError::ResourcesExhausted(text) => out_of_memory(&text),
        DataFusionError::Execution(text) => by_text(&text),
        DataFusionError::IoError(error) => SqlError::new("58030", error.to_string()),
        DataFusionError::ExecutionJoin(error) => {
            SqlError::internal(format!("a part of the query ended early: {error}"))
        }
        DataFusionError::Internal(text) => by_text(&text),
        other => SqlError::internal(first_line(&other.to_string())),
    }
}

/// As [`outward`], of a plan whose names were found: one that is missing is of a correlation that DataFusion does not
/// see through.
pub(crate) fn unplanned(error: DataFusionError) -> SqlError {
    match outward(error) {
        error if matches!(error.code(), code::UNDEFINED_COLUMN | code::UNDEFINED_TABLE) => {
            SqlError::unsupported("a subquery that refers to rows around it in this way")
        }
        error => error,
    }
}

/// As [`outward`], of an error that others hold too.
pub(crate) fn shared_error(error: &DataFusionError) -> SqlError {
    match error {
        DataFusionError::External(inner) => match inner.downcast_ref::<SqlError>() {
            Some(ours) => ours.clone(),
            None => match inner.downcast_ref::<DataFusionError>() {
                Some(nested) => shared_error(nested),
                None => SqlError::internal(inner.to_string()),
            },
        },
        DataFusionError::ArrowError(inner, _) => arrow_error_ref(inner),
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => shared_error(inner),
        DataFusionError::Shared(inner) => shared_error(inner),
        DataFusionError::SchemaError(inner, _) => schema_error(inner),
        DataFusionError::NotImplemented(text) => SqlError::new(code::FEATURE_NOT_SUPPORTED, first_line(text)),
        DataFusionError::ResourcesExhausted(text) => out_of_memory(text),
        DataFusionError::Plan(text) | DataFusionError::Execution(text) | DataFusionError::Internal(text) => {
            by_text(text)
        }
        other => SqlError::internal(first_line(&other.to_string())),
    }
}

fn out_of_memory(text: &str) -> SqlError {
    SqlError::new(code::OUT_OF_MEMORY, "out of memory for this query")
        .with_detail(first_line(text))
        .with_hint("The memory of analytical queries is bounded. Group, sort or join fewer rows or columns at a time.")
}

fn arrow_error(error: ArrowError) -> SqlError {
    match error {
        ArrowError::ExternalError(inner) => match inner.downcast::<DataFusionError>() {
            Ok(nested) => outward(*nested),
            Err(other) => match other.downcast::<SqlError>() {
                Ok(ours) => *ours,
                Err(other) => SqlError::internal(other.to_string()),
            },
        },
        other => arrow_error_ref(&other),
    }
}

fn arrow_error_ref(error: &ArrowError) -> SqlError {
    match error {
        ArrowError::DivideByZero => SqlError::new(code::DIVISION_BY_ZERO, "division by zero"),
        ArrowError::ArithmeticOverflow(text) => out_of_range(text),
        ArrowError::CastError(text)
        | ArrowError::ParseError(text)
        | ArrowError::InvalidArgumentError(text)
        | ArrowError::ComputeError(text) => by_text(text),
        ArrowError::NotYetImplemented(text) => SqlError::new(code::FEATURE_NOT_SUPPORTED, first_line(text)),
        ArrowError::ExternalError(inner) => match (
            inner.downcast_ref::<SqlError>(),
            inner.downcast_ref::<DataFusionError>(),
        ) {
            (Some(ours), _) => ours.clone(),
            (_, Some(nested)) => shared_error(nested),
            _ => SqlError::internal(inner.to_string()),
        },
        other => SqlError::internal(first_line(&other.to_string())),
    }
}

fn out_of_range(text: &str) -> SqlError {
    let what = if text.contains("on: i128") || text.contains("ecimal") || text.contains("i256") {
        "numeric value"
    } else {
        "integer"
    };
    SqlError::new(code::OUT_OF_RANGE, format!("{what} out of range"))
}

fn schema_error(error: &SchemaError) -> SqlError {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => {
            let is_known = |relation: &TableReference| {
                let mut known = valid_fields.iter().filter_map(|f| f.relation.as_ref());
                known.any(|other| other.table() == relation.table())
            };
            if let Some(relation) = field.relation.as_ref().filter(|r| !is_known(r)) {
                let text = format!("missing FROM-clause entry for table \"{}\"", relation.table());
                return SqlError::new(code::UNDEFINED_TABLE, text);
            }
            let name = match &field.relation {
                Some(relation) => format!("{}.{}", relation.table(), field.name),
                None => format!("\"{}\"", field.name),
            };
            SqlError::new(code::UNDEFINED_COLUMN, format!("column {name} does not exist"))
        }
        SchemaError::AmbiguousReference { field } => SqlError::new(
            code::AMBIGUOUS_COLUMN,
            format!("column reference \"{}\" is ambiguous", field.name),
        ),
        SchemaError::DuplicateQualifiedField { qualifier, .. } => SqlError::new(
            code::DUPLICATE_ALIAS,
            format!("table name \"{}\" specified more than once", qualifier.table()),
        ),
        SchemaError::DuplicateUnqualifiedField { name } => SqlError::new(
            code::DUPLICATE_COLUMN,
            format!(
                "column \"{}\" specified more than once",
                super::rewrite::shown_name(name)
            ),
        ),
    }
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.split("\u{1}").next().unwrap_or_default().trim().to_string()
}

/// Messages whose kind only their words tell. The order matters: the first that fits wins.
const KINDS: &[(&str, &str)] = &[
    ("returned more than one row", code::CARDINALITY_VIOLATION),
    ("ivide by zero", code::DIVISION_BY_ZERO),
    ("ivision by zero", code::DIVISION_BY_ZERO),
    ("verflow", code::OUT_OF_RANGE),
    ("too large to store in a", code::OUT_OF_RANGE),
    ("is too small to store", code::OUT_OF_RANGE),
    ("out of range", code::OUT_OF_RANGE),
    ("Can't cast value", code::OUT_OF_RANGE),
    ("Cannot cast string", code::INVALID_TEXT),
    ("Cannot cast value", code::INVALID_TEXT),
    ("Error parsing timestamp", code::INVALID_DATETIME),
    ("Error parsing date", code::INVALID_DATETIME),
    ("arser error", code::INVALID_TEXT),
    ("parse ", code::INVALID_TEXT),
    ("Invalid function", code::UNDEFINED_FUNCTION),
    ("table function", code::UNDEFINED_FUNCTION),
    ("No function matches", code::UNDEFINED_FUNCTION),
    ("does not support", code::UNDEFINED_FUNCTION),
    ("Failed to coerce", code::UNDEFINED_FUNCTION),
    ("Error during planning: Function", code::UNDEFINED_FUNCTION),
    ("not found", code::UNDEFINED_TABLE),
    ("must appear in the GROUP BY", code::GROUPING_ERROR),
    ("Column in SELECT must be in GROUP BY", code::GROUPING_ERROR),
    ("could not be resolved from available columns", code::GROUPING_ERROR),
    ("ggregate functions are not allowed", code::GROUPING_ERROR),
    ("Cannot infer common argument type", code::UNDEFINED_FUNCTION),
    ("Cannot get result type", code::UNDEFINED_FUNCTION),
    ("Cannot coerce", code::UNDEFINED_FUNCTION),
    ("Unsupported", code::FEATURE_NOT_SUPPORTED),
    ("not implemented", code::FEATURE_NOT_SUPPORTED),
    ("not supported", code::FEATURE_NOT_SUPPORTED),
    ("ScalarSubquery", code::FEATURE_NOT_SUPPORTED),
    ("Physical plan does not support", code::FEATURE_NOT_SUPPORTED),
    ("orrelated", code::FEATURE_NOT_SUPPORTED),
];

fn by_text(text: &str) -> SqlError {
    if text.contains("OuterReferenceColumn") {
        let what = "a subquery in FROM that depends on another item there and has LIMIT, grouping or windows";
        return SqlError::unsupported(what)
            .with_hint("Such queries run where the row executor knows all of the statement.");
    }
    let kind = KINDS
        .iter()
        .find(|(words, _)| text.contains(words))
        .map(|(_, code)| *code);
    match kind {
        Some(code::DIVISION_BY_ZERO) => SqlError::new(code::DIVISION_BY_ZERO, "division by zero"),
        Some(code::CARDINALITY_VIOLATION) => SqlError::new(
            code::CARDINALITY_VIOLATION,
            "more than one row returned by a subquery used as an expression",
        ),
        Some(code::GROUPING_ERROR) => SqlError::new(code::GROUPING_ERROR, first_line(text)),
        Some(code) => SqlError::new(code, first_line(text)),
        None => SqlError::new(code::SYNTAX_ERROR, first_line(text)),
    }
}

/// The error of an engine call on its way through DataFusion.
pub(crate) fn engine_error(error: cenote_engine::Error) -> SqlError {
    match error {
        cenote_engine::Error::Canceled => canceled(),
        other => other.into(),
    }
}

pub(crate) fn canceled() -> SqlError {
    SqlError::new(code::QUERY_CANCELED, "canceling statement due to user request")
}
