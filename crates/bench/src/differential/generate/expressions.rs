//! Expressions and conditions.

use super::{Generator, Named, Scope};
use crate::differential::schema::{KINDS, Kind, TABLES, literal};
use crate::differential::tree::{Tree, list, text};

const COMPARISONS: [&str; 6] = [" = ", " = ", " < ", " <= ", " > ", " <> "];

/// The kind's type in casts.
fn type_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Int => "integer",
        Kind::Big => "bigint",
        Kind::Numeric => "numeric",
        Kind::Text => "text",
        Kind::Date => "date",
        Kind::Bool => "boolean",
    }
}

/// Simple text of the kind, for shrinking.
fn plain(kind: Kind) -> &'static str {
    match kind {
        Kind::Int => "1",
        Kind::Big => "1::bigint",
        Kind::Numeric => "1.00",
        Kind::Text => "'a'::text",
        Kind::Date => "date '2024-01-01'",
        Kind::Bool => "true",
    }
}

/// Pieces of which `operands` can stand for the whole.
fn exchange(kind: Kind, parts: Vec<Tree>, operands: &[usize]) -> Tree {
    Tree::Exchange {
        parts,
        operands: operands.to_vec(),
        plain: Some(plain(kind)),
    }
}

impl Generator {
    /// An expression of this kind; `depth`: how far operators nest.
    pub(super) fn expr(&mut self, scope: &Scope, kind: Kind, depth: u32) -> Tree {
        if depth == 0 || self.random.one_in(3) {
            return self.leaf(scope, kind);
        }
        match self.random.below(9) {
            0 => self.case(scope, kind, depth - 1),
            1 => self.call(scope, kind, depth - 1),
            2 | 3 => self.scalar(scope, kind, depth - 1),
            _ => self.operator(scope, kind, depth - 1),
        }
    }

    /// A literal that has the kind's type wherever it stands.
    pub(super) fn typed_literal(&mut self, kind: Kind) -> String {
        match self.random.one_in(8) {
            true => format!("NULL::{}", type_name(kind)),
            false => format!("{}::{}", self.literal(kind), type_name(kind)),
        }
    }

    fn literal(&mut self, kind: Kind) -> String {
        let literal = literal(&mut self.random, kind);
        if literal.starts_with('-') {
            format!("({literal})")
        } else {
            literal
        }
    }

    fn leaf(&mut self, scope: &Scope, kind: Kind) -> Tree {
        if self.random.one_in(500) {
            return text(
                self.random
                    .pick(&["nosuch", "t1.nosuch", "count(*)", "'x'", "nosuch(1)", "(1, 2)"]),
            );
        }
        if self.random.one_in(7) {
            return text(self.typed_literal(kind));
        }
        if !scope.outer.is_empty()
            && self.random.one_in(5)
            && let Some(name) = self.column(&scope.outer, kind)
        {
            return text(name);
        }
        let Some(keys) = &scope.keys else {
            let name = self.column(&scope.columns, kind);
            return text(name.unwrap_or_else(|| self.typed_literal(kind)));
        };
        if self.random.one_in(2)
            && let Some(name) = self.column(keys, kind)
        {
            return text(name);
        }
        if self.random.one_in(200) {
            let name = self.column(&scope.columns, kind);
            return text(name.unwrap_or_default());
        }
        self.aggregate(scope, kind)
    }

    fn aggregate(&mut self, scope: &Scope, kind: Kind) -> Tree {
        // Of columns of this query alone: else the aggregate would belong to the query around.
        let own = Scope {
            columns: scope.columns.clone(),
            ..Scope::default()
        };
        let distinct = if self.random.one_in(6) { "DISTINCT " } else { "" };
        let depth = self.random.below(2) as u32;
        let (start, of, end) = match (kind, self.random.below(4)) {
            (Kind::Big, 0) => return text("count(*)"),
            (Kind::Big, 1) => ("count(", self.random.pick(&KINDS), ")"),
            (Kind::Big, 2) => ("sum(", Kind::Int, ")"),
            (Kind::Big, 3) => ("sum(", Kind::Big, ")::bigint"),
            (Kind::Numeric, 0) => ("round(avg(", Kind::Int, "), 2)"),
            (Kind::Numeric, 1) => ("sum(", Kind::Numeric, ")"),
            (Kind::Numeric, 2) => ("round(avg(", Kind::Numeric, "), 2)"),
            (Kind::Bool, 0 | 1) => ("bool_and(", Kind::Bool, ")"),
            (Kind::Bool, _) => ("bool_or(", Kind::Bool, ")"),
            (kind, 0 | 1) => ("min(", kind, ")"),
            (kind, _) => ("max(", kind, ")"),
        };
        let argument = self.expr(&own, of, depth);
        exchange(kind, vec![text(format!("{start}{distinct}")), argument, text(end)], &[])
    }

    fn operator(&mut self, scope: &Scope, kind: Kind, depth: u32) -> Tree {
        let (left, operator, right) = match kind {
            Kind::Int if depth == 0 => (Kind::Int, self.random.pick(&[" + ", " - ", " * "]), Kind::Int),
            Kind::Int if self.random.one_in(5) => (Kind::Date, " - ", Kind::Date),
            Kind::Int | Kind::Numeric => (kind, self.random.pick(&[" + ", " - "]), kind),
            Kind::Big => (
                Kind::Big,
                self.random.pick(&[" + ", " - "]),
                self.random.pick(&[Kind::Int, Kind::Big]),
            ),
            Kind::Text => (Kind::Text, " || ", Kind::Text),
            Kind::Date => (Kind::Date, self.random.pick(&[" + ", " - "]), Kind::Int),
            Kind::Bool => return self.condition(scope, depth),
        };
        let operands: &[usize] = if left == kind { &[1] } else { &[] };
        let (left, right) = (self.expr(scope, left, depth), self.expr(scope, right, depth));
        exchange(kind, vec![text("("), left, text(operator), right, text(")")], operands)
    }

    fn case(&mut self, scope: &Scope, kind: Kind, depth: u32) -> Tree {
        let mut parts = vec![text("CASE")];
        for _ in 0..1 + self.random.below(2) {
            let condition = self.condition(scope, depth.min(1));
            let value = self.expr(scope, kind, depth);
            parts.extend([text(" WHEN "), condition, text(" THEN "), value]);
        }
        if !self.random.one_in(3) {
            parts.extend([text(" ELSE "), self.expr(scope, kind, depth)]);
        }
        parts.push(text(" END"));
        let operands: Vec<usize> = (4..parts.len()).step_by(4).collect();
        exchange(kind, parts, &operands)
    }

    fn call(&mut self, scope: &Scope, kind: Kind, depth: u32) -> Tree {
        let one = self.expr(scope, kind, depth);
        let (start, end) = match (kind, self.random.below(4)) {
            (Kind::Int, 0) => {
                let of = self.expr(scope, Kind::Text, depth);
                return exchange(kind, vec![text("length("), of, text(")")], &[]);
            }
            (Kind::Int | Kind::Big | Kind::Numeric, 1) => ("abs(", ")"),
            (Kind::Text, 0) => ("upper(", ")"),
            (Kind::Text, 1) => ("lower(", ")"),
            _ => {
                let name = self
                    .random
                    .pick(&["coalesce(", "coalesce(", "nullif(", "greatest(", "least("]);
                let other = self.expr(scope, kind, depth);
                return exchange(kind, vec![text(name), one, text(", "), other, text(")")], &[1, 3]);
            }
        };
        exchange(kind, vec![text(start), one, text(end)], &[1])
    }

    /// A subquery of at most one row.
    fn scalar(&mut self, scope: &Scope, kind: Kind, depth: u32) -> Tree {
        let outer = scope.around();
        let query = match self.random.below(3) {
            0 => self.by_key(scope, kind, depth),
            1 => {
                let query = self.select(&outer, &[kind], depth, true);
                let order = self.random.pick(&[" ORDER BY 1 LIMIT 1", " ORDER BY x1 DESC LIMIT 1"]);
                Tree::Sequence(vec![query, text(order)])
            }
            _ => self.aggregated(&outer, kind, depth),
        };
        exchange(kind, vec![text("("), query, text(")")], &[])
    }

    fn aggregated(&mut self, outer: &[Named], kind: Kind, depth: u32) -> Tree {
        let (from, relations, mut conditions) = self.from(outer, depth);
        let mut scope = Scope {
            columns: relations.iter().flat_map(super::Relation::named).collect(),
            outer: outer.to_vec(),
            keys: None,
        };
        conditions.extend(self.correlation(&scope));
        if self.random.one_in(3) {
            conditions.push(self.condition(&scope, depth.min(1)));
        }
        scope.keys = Some(Vec::new());
        let item = self.aggregate(&scope, kind);
        let mut parts = vec![text("SELECT "), item, from];
        if !conditions.is_empty() {
            parts.push(super::optional(vec![text(" WHERE "), list(" AND ", conditions)]));
        }
        Tree::Sequence(parts)
    }

    /// A look-up of one row by its key.
    fn by_key(&mut self, scope: &Scope, kind: Kind, depth: u32) -> Tree {
        let fitting: Vec<_> = TABLES
            .iter()
            .filter(|t| t.columns.iter().any(|c| c.kind == kind))
            .collect();
        let table = self.random.pick(&fitting);
        let alias = self.name("r");
        let columns: Vec<Named> = table
            .columns
            .iter()
            .map(|c| (format!("{alias}.{}", c.name), c.kind))
            .collect();
        let item = self.column(&columns, kind).unwrap_or_default();
        let around = Scope {
            columns: scope.around(),
            ..Scope::default()
        };
        let mut parts = vec![text(format!("SELECT {item} AS x1 FROM {} {alias} WHERE ", table.name))];
        for (at, column) in table.columns.iter().filter(|c| c.key).enumerate() {
            let and = if at == 0 { "" } else { " AND " };
            parts.push(text(format!("{and}{alias}.{} = ", column.name)));
            parts.push(self.expr(&around, column.kind, depth.min(1)));
        }
        Tree::Sequence(parts)
    }

    /// A condition; `depth`: how far operators and subqueries nest.
    pub(super) fn condition(&mut self, scope: &Scope, depth: u32) -> Tree {
        if depth == 0 {
            return self.simple_condition(scope, 0);
        }
        match self.random.below(12) {
            0 => self.both(scope, " AND ", depth - 1),
            1 | 2 => self.both(scope, " OR ", depth - 1),
            3 => {
                let inner = self.condition(scope, depth - 1);
                exchange(Kind::Bool, vec![text("(NOT "), inner, text(")")], &[1])
            }
            4 => self.exists(scope, depth - 1),
            5 | 6 => self.in_query(scope, depth - 1),
            _ => self.simple_condition(scope, depth - 1),
        }
    }

    fn both(&mut self, scope: &Scope, operator: &'static str, depth: u32) -> Tree {
        let (left, right) = (self.condition(scope, depth), self.condition(scope, depth));
        exchange(
            Kind::Bool,
            vec![text("("), left, text(operator), right, text(")")],
            &[1, 3],
        )
    }

    fn exists(&mut self, scope: &Scope, depth: u32) -> Tree {
        let kinds = self.kinds(2);
        let query = self.query(&scope.around(), &kinds, depth, false);
        let start = self.random.pick(&["EXISTS (", "EXISTS (", "NOT EXISTS ("]);
        exchange(Kind::Bool, vec![text(start), query, text(")")], &[])
    }

    fn in_query(&mut self, scope: &Scope, depth: u32) -> Tree {
        let kind = self.random.pick(&KINDS);
        let operand = self.expr(scope, kind, depth.min(1));
        let query = self.query(&scope.around(), &[kind], depth, false);
        let operator = self.random.pick(&[
            " IN (",
            " IN (",
            " NOT IN (",
            " = ANY (",
            " > ANY (",
            " <> ALL (",
            " <= ALL (",
        ]);
        exchange(Kind::Bool, vec![operand, text(operator), query, text(")")], &[])
    }

    fn simple_condition(&mut self, scope: &Scope, depth: u32) -> Tree {
        let kind = self.random.pick(&KINDS);
        let operand = self.expr(scope, kind, depth);
        let parts = match self.random.below(11) {
            0 => vec![operand, text(self.random.pick(&[" IS NULL", " IS NOT NULL"]))],
            1 => self.between(scope, kind, operand),
            2 => self.in_list(kind, operand),
            3 => {
                let operator = self.random.pick(&[" IS DISTINCT FROM ", " IS NOT DISTINCT FROM "]);
                vec![operand, text(operator), self.expr(scope, kind, depth)]
            }
            4 if kind == Kind::Text => {
                let operator = self.random.pick(&[" LIKE ", " NOT LIKE "]);
                vec![
                    operand,
                    text(operator),
                    text(self.random.pick(&["'a%'", "'%b'", "'_'", "'ab%'", "''"])),
                ]
            }
            4 if kind == Kind::Bool => vec![operand],
            5 if kind == Kind::Bool => {
                vec![
                    operand,
                    text(
                        self.random
                            .pick(&[" IS TRUE", " IS NOT TRUE", " IS FALSE", " IS UNKNOWN"]),
                    ),
                ]
            }
            6 => self.row(scope, kind, operand),
            7 | 8 => vec![operand, text(self.random.pick(&COMPARISONS)), text(self.literal(kind))],
            _ => {
                let operator = self.random.pick(&COMPARISONS);
                vec![operand, text(operator), self.expr(scope, kind, depth)]
            }
        };
        exchange(Kind::Bool, parts, &[])
    }

    fn between(&mut self, scope: &Scope, kind: Kind, operand: Tree) -> Vec<Tree> {
        let operator = self.random.pick(&[" BETWEEN ", " NOT BETWEEN "]);
        let (low, high) = (self.leaf(scope, kind), self.leaf(scope, kind));
        vec![operand, text(operator), low, text(" AND "), high]
    }

    fn in_list(&mut self, kind: Kind, operand: Tree) -> Vec<Tree> {
        let mut items = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let null = self.random.one_in(10);
            items.push(text(if null { "NULL".into() } else { self.literal(kind) }));
        }
        let operator = self.random.pick(&[" IN (", " IN (", " NOT IN ("]);
        vec![operand, text(operator), list(", ", items), text(")")]
    }

    /// Two rows compared.
    fn row(&mut self, scope: &Scope, kind: Kind, operand: Tree) -> Vec<Tree> {
        let second = self.random.pick(&KINDS);
        let operator = self.random.pick(&[") = (", ") < (", ") >= (", ") <> ("]);
        let mut leaf = |kind| self.leaf(scope, kind);
        let (second_left, left, right) = (leaf(second), leaf(kind), leaf(second));
        let comma = || text(", ");
        let end = text(")");
        vec![
            text("("),
            operand,
            comma(),
            second_left,
            text(operator),
            left,
            comma(),
            right,
            end,
        ]
    }
}
