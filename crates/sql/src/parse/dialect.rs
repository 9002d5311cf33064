//! PostgreSQL's dialect with one difference: the name of a named argument is an identifier, not any expression.
//!
//! For `f(expression => value)` the parser tries an expression, looks for the arrow, and parses the argument again
//! where there is none: twice at each level, so that 24 calls inside each other did not end. PostgreSQL itself takes
//! identifiers only.

use sqlparser::dialect::{Dialect, PostgreSqlDialect, Precedence};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use std::any::TypeId;

/// See the module.
#[derive(Debug)]
pub(super) struct Postgres;

const REAL: PostgreSqlDialect = PostgreSqlDialect {};

macro_rules! as_postgresql {
    ($($flag:ident),* $(,)?) => {
        $(fn $flag(&self) -> bool {
            REAL.$flag()
        })*
    };
}

impl Dialect for Postgres {
    fn dialect(&self) -> TypeId {
        REAL.dialect()
    }

    fn supports_named_fn_args_with_expr_name(&self) -> bool {
        false
    }

    fn identifier_quote_style(&self, identifier: &str) -> Option<char> {
        REAL.identifier_quote_style(identifier)
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        REAL.is_delimited_identifier_start(ch)
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        REAL.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        REAL.is_identifier_part(ch)
    }

    fn is_reserved_for_identifier(&self, keyword: Keyword) -> bool {
        REAL.is_reserved_for_identifier(keyword)
    }

    fn is_custom_operator_part(&self, ch: char) -> bool {
        REAL.is_custom_operator_part(ch)
    }

    fn get_next_precedence(&self, parser: &Parser<'_>) -> Option<Result<u8, ParserError>> {
        REAL.get_next_precedence(parser)
    }

    fn prec_value(&self, precedence: Precedence) -> u8 {
        REAL.prec_value(precedence)
    }

    as_postgresql!(
        supports_unicode_string_literal,
        supports_filter_during_aggregation,
        supports_group_by_expr,
        allow_extract_custom,
        allow_extract_single_quotes,
        supports_create_index_with_clause,
        supports_explain_with_utility_options,
        supports_listen_notify,
        supports_factorial_operator,
        supports_bitwise_shift_operators,
        supports_comment_on,
        supports_load_extension,
        supports_named_fn_args_with_colon_operator,
        supports_empty_projections,
        supports_nested_comments,
        supports_string_escape_constant,
        supports_numeric_literal_underscores,
        supports_array_typedef_with_brackets,
        supports_geometric_types,
        supports_set_names,
        supports_alter_column_type_using,
        supports_notnull_operator,
        supports_interval_options,
        supports_insert_table_alias,
        supports_create_table_like_parenthesized,
        supports_select_wildcard_with_alias,
        supports_comma_separated_trim,
        supports_xml_expressions,
        supports_comment_optimizer_hint,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_calls_are_parsed_in_a_straight_line() {
        let text = format!("SELECT {}1{}, f(a => 1)", "abs(".repeat(40), ")".repeat(40));
        let parsed = Parser::parse_sql(&Postgres, &text).expect("valid SQL");
        assert_eq!(parsed[0].to_string(), text);
    }
}
