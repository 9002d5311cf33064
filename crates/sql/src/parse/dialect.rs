//! PostgreSQL's dialect with two differences from sqlparser's: the name of a named argument is an identifier, not any
//! expression, and operators bind as in PostgreSQL 15.
//!
//! For `f(expression => value)` the parser tries an expression, looks for the arrow, and parses the argument again
//! where there is none: twice at each level, so that 24 calls inside each other did not end. PostgreSQL itself takes
//! identifiers only.
//!
//! How operators bind, from loosest to tightest (PostgreSQL's `gram.y`):
//!
//! ```text
//! OR · AND · NOT · IS · < > = <= >= <> · BETWEEN IN LIKE ILIKE SIMILAR · every other operator · + - · * / % · ^
//!    · AT TIME ZONE · COLLATE · unary + - · [ ] · :: · .
//! ```
//! `IS`, comparisons and `LIKE` do not chain: `1 < 2 < 3` is a syntax error. sqlparser parses the right side of IS
//! DISTINCT FROM as a whole expression (`a IS DISTINCT FROM b AND c` compares `a` with `b AND c`), puts `~` and its kin
//! among the comparisons and above `+`, and unary minus below `^`.

use sqlparser::ast::{BinaryOperator, Expr, UnaryOperator};
use sqlparser::dialect::{Dialect, PostgreSqlDialect, Precedence};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::Token;
use std::any::TypeId;

/// See the module.
#[derive(Debug)]
pub(super) struct Postgres;

const REAL: PostgreSqlDialect = PostgreSqlDialect {};
/// Unary plus and minus: between `^` and `[`, the level that COLLATE has in sqlparser.
const UNARY: u8 = 120;

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
        let level = match &parser.peek_token_ref().token {
            token if is_match(token) => Precedence::PgOther,
            Token::Word(w) if w.keyword == Keyword::OPERATOR => Precedence::PgOther,
            Token::Word(w) if is_foreign(w.keyword) => return Some(Ok(self.prec_unknown())),
            _ => return REAL.get_next_precedence(parser),
        };
        Some(Ok(self.prec_value(level)))
    }

    fn parse_prefix(&self, parser: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
        let (op, level) = match &parser.peek_token_ref().token {
            Token::Minus => (UnaryOperator::Minus, UNARY),
            Token::Plus => (UnaryOperator::Plus, UNARY),
            Token::Tilde => (UnaryOperator::BitwiseNot, self.prec_value(Precedence::PgOther)),
            Token::AtSign => (UnaryOperator::PGAbs, self.prec_value(Precedence::PgOther)),
            Token::PGSquareRoot => (UnaryOperator::PGSquareRoot, self.prec_value(Precedence::PgOther)),
            Token::PGCubeRoot => (UnaryOperator::PGCubeRoot, self.prec_value(Precedence::PgOther)),
            Token::Word(w) if w.keyword == Keyword::NOT => (UnaryOperator::Not, self.prec_value(Precedence::UnaryNot)),
            _ => return None,
        };
        parser.advance_token();
        Some(parser.parse_subexpr(level).map(|expr| unary(op, expr)))
    }

    fn parse_infix(&self, parser: &mut Parser<'_>, left: &Expr, level: u8) -> Option<Result<Expr, ParserError>> {
        if chains(self, left, level) {
            let found = parser.peek_token();
            return Some(parser.expected("the end of an expression that does not chain", found));
        }
        let negated = distinct_from(parser)?;
        let right = parser.parse_subexpr(self.prec_value(Precedence::Is));
        Some(right.map(|right| match (Box::new(left.clone()), Box::new(right)) {
            (left, right) if negated => Expr::IsNotDistinctFrom(left, right),
            (left, right) => Expr::IsDistinctFrom(left, right),
        }))
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

/// The operators that match patterns: sqlparser has them among the comparisons.
fn is_match(token: &Token) -> bool {
    use Token as T;
    matches!(
        token,
        T::Tilde | T::TildeAsterisk | T::ExclamationMarkTilde | T::ExclamationMarkTildeAsterisk
    ) || matches!(token, T::DoubleTilde | T::DoubleTildeAsterisk)
        || matches!(
            token,
            T::ExclamationMarkDoubleTilde | T::ExclamationMarkDoubleTildeAsterisk
        )
}

/// Words that are operators to other databases, and names to PostgreSQL.
fn is_foreign(word: Keyword) -> bool {
    use Keyword as K;
    matches!(word, K::XOR | K::DIV | K::RLIKE | K::REGEXP | K::MATCH | K::MEMBER)
}

fn unary(op: UnaryOperator, expr: Expr) -> Expr {
    match (op, expr) {
        (
            UnaryOperator::Not,
            Expr::Exists {
                subquery,
                negated: false,
            },
        ) => Expr::Exists {
            subquery,
            negated: true,
        },
        (op, expr) => Expr::UnaryOp {
            op,
            expr: Box::new(expr),
        },
    }
}

/// Whether `left`, without parentheses, ends in an operator of this level, which does not chain.
fn chains(dialect: &Postgres, left: &Expr, level: u8) -> bool {
    use BinaryOperator as B;
    let comparison = |op: &B| matches!(op, B::Eq | B::NotEq | B::Lt | B::LtEq | B::Gt | B::GtEq);
    let own = match left {
        Expr::BinaryOp { op, .. } if comparison(op) => Precedence::Eq,
        Expr::Between { .. } | Expr::Like { .. } | Expr::ILike { .. } | Expr::SimilarTo { .. } => Precedence::Like,
        Expr::IsDistinctFrom(..) | Expr::IsNotDistinctFrom(..) => Precedence::Is,
        _ => return false,
    };
    dialect.prec_value(own) == level
}

/// Consumes IS [NOT] DISTINCT FROM; whether NOT was there.
fn distinct_from(parser: &mut Parser<'_>) -> Option<bool> {
    use Keyword as K;
    if parser.parse_keywords(&[K::IS, K::DISTINCT, K::FROM]) {
        return Some(false);
    }
    parser
        .parse_keywords(&[K::IS, K::NOT, K::DISTINCT, K::FROM])
        .then_some(true)
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
