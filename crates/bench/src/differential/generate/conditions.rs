//! Conditions.

use super::expressions::exchange;
use super::{Generator, Scope};
use crate::differential::schema::{KINDS, Kind};
use crate::differential::tree::{Tree, list, text};

const COMPARISONS: [&str; 6] = [" = ", " = ", " < ", " <= ", " > ", " <> "];
const PATTERNS: [&str; 9] = ["'a%'", "'%b'", "'_'", "'ab%'", "''", "'a\\_%'", "'%'", "'a_c'", "'b%c'"];

impl Generator {
    /// A condition; `depth`: how far operators and subqueries nest.
    pub(super) fn condition(&mut self, scope: &Scope, depth: u32) -> Tree {
        if depth == 0 {
            return self.simple_condition(scope, 0);
        }
        match self.random.below(14) {
            0 => self.both(scope, " AND ", depth - 1),
            1 | 2 => self.both(scope, " OR ", depth - 1),
            12 => self.any_of_columns(scope),
            13 if self.rare => self.rows_in_query(scope, depth - 1),
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

    /// Rows of two values among those of a query.
    fn rows_in_query(&mut self, scope: &Scope, depth: u32) -> Tree {
        let kinds = [self.random.pick(&KINDS), self.random.pick(&KINDS)];
        let query = self.query(&scope.around(), &kinds, depth, false);
        let (left, right) = (self.leaf(scope, kinds[0]), self.leaf(scope, kinds[1]));
        let operator = self
            .random
            .pick(&[") IN (", ") IN (", ") NOT IN (", ") = ANY (", ") <> ALL ("]);
        let parts = vec![text("("), left, text(", "), right, text(operator), query, text(")")];
        exchange(Kind::Bool, parts, &[])
    }

    /// Columns compared with constants, of which one has to hold: what several indexes answer.
    fn any_of_columns(&mut self, scope: &Scope) -> Tree {
        let own = scope.keys.as_ref().unwrap_or(&scope.columns).clone();
        let mut arms = Vec::new();
        for _ in 0..2 + self.random.below(3) {
            let Some((name, kind)) = own.get(self.random.index(own.len())) else {
                break;
            };
            let operator = self.random.pick(&COMPARISONS);
            arms.push(match self.random.below(5) {
                0 => text(format!("{name} IS NULL")),
                1 => {
                    let items = [self.literal(*kind), self.literal(*kind)];
                    text(format!("{name} IN ({})", items.join(", ")))
                }
                2 => {
                    let (first, second) = (self.literal(*kind), self.simple_condition(scope, 0));
                    list(" AND ", vec![text(format!("{name}{operator}{first}")), second])
                }
                _ => text(format!("{name}{operator}{}", self.literal(*kind))),
            });
        }
        match arms.is_empty() {
            true => text("true"),
            false => exchange(Kind::Bool, vec![text("("), list(" OR ", arms), text(")")], &[]),
        }
    }

    /// Compared with the elements of an array.
    fn in_array(&mut self, scope: &Scope, kind: Kind, operand: Tree) -> Vec<Tree> {
        let operator = self.random.pick(&[
            " = ANY (",
            " = ANY (",
            " <> ALL (",
            " > ANY (",
            " <= ALL (",
            " <> ANY (",
        ]);
        let array = match self.random.below(3) {
            0 => {
                let items = [self.leaf(scope, kind), self.leaf(scope, kind)];
                let items = list(", ", items.to_vec());
                Tree::Sequence(vec![text("ARRAY["), items, text("]")])
            }
            _ => text(self.array(kind)),
        };
        vec![operand, text(operator), array, text(")")]
    }

    fn like(&mut self, operand: Tree) -> Vec<Tree> {
        let operator = self.random.pick(&[" LIKE ", " LIKE ", " NOT LIKE ", " ILIKE "]);
        let pattern = match self.parameter(Kind::Text) {
            Some(parameter) => parameter,
            None => self.random.pick(&PATTERNS).to_string(),
        };
        vec![operand, text(operator), text(pattern)]
    }

    fn simple_condition(&mut self, scope: &Scope, depth: u32) -> Tree {
        let kind = self.random.pick(&KINDS);
        let operand = self.expr(scope, kind, depth);
        let parts = match self.random.below(13) {
            0 => vec![operand, text(self.random.pick(&[" IS NULL", " IS NOT NULL"]))],
            1 => self.between(scope, kind, operand),
            2 => self.in_list(kind, operand),
            3 => {
                let operator = self.random.pick(&[" IS DISTINCT FROM ", " IS NOT DISTINCT FROM "]);
                vec![operand, text(operator), self.expr(scope, kind, depth)]
            }
            4 if kind == Kind::Text => self.like(operand),
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
            11 | 12 => self.in_array(scope, kind, operand),
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
