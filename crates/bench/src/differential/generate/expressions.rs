//! Expressions and conditions.

use super::{Generator, Named, Scope, all_named};
use crate::differential::schema::{Kind, TABLES, literal};
use crate::differential::tree::{Tree, list, text};

/// The kind's type in casts.
pub(super) fn type_name(kind: Kind) -> &'static str {
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
pub(super) fn plain(kind: Kind) -> &'static str {
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
pub(super) fn exchange(kind: Kind, parts: Vec<Tree>, operands: &[usize]) -> Tree {
    Tree::Exchange {
        parts,
        operands: operands.to_vec(),
        plain: Some(plain(kind)),
    }
}

/// Parameters of a statement.
const PARAMETERS_MAX: usize = 8;

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

    /// A literal, or a parameter where the statement takes such.
    pub(super) fn literal(&mut self, kind: Kind) -> String {
        if let Some(parameter) = self.parameter(kind) {
            return parameter;
        }
        let literal = literal(&mut self.random, kind);
        if literal.starts_with('-') {
            format!("({literal})")
        } else {
            literal
        }
    }

    pub(super) fn parameter(&mut self, kind: Kind) -> Option<String> {
        let parameters = self.parameters.as_mut()?;
        if parameters.len() == PARAMETERS_MAX || self.random.one_in(3) {
            return None;
        }
        parameters.push(kind);
        Some(format!("${}", parameters.len()))
    }

    /// An array of constants.
    pub(super) fn array(&mut self, kind: Kind) -> String {
        let items: Vec<String> = (0..self.random.below(4)).map(|_| self.typed_literal(kind)).collect();
        format!("ARRAY[{}]::{}[]", items.join(", "), type_name(kind))
    }

    pub(super) fn leaf(&mut self, scope: &Scope, kind: Kind) -> Tree {
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
            columns: all_named(&relations),
            outer: outer.to_vec(),
            ..Scope::default()
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
}
