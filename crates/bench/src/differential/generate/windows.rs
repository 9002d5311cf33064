//! Window functions.
//!
//! What asks for a row's place among its peers is given an order of all columns that the rows have: rows that are equal
//! in it are the same row, so that the answer is one. Other functions take any order.

use super::{Generator, Named, Scope};
use crate::differential::schema::Kind;
use crate::differential::tree::{Tree, list, nothing, optional, text};

/// Bounds of a frame that any order admits.
const BY_PEERS: [&str; 6] = [
    "UNBOUNDED PRECEDING",
    "BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    "BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "BETWEEN CURRENT ROW AND CURRENT ROW",
    "CURRENT ROW",
];

/// Bounds with distances.
const BY_DISTANCE: [&str; 6] = [
    "1 PRECEDING",
    "BETWEEN 2 PRECEDING AND 1 FOLLOWING",
    "BETWEEN 1 FOLLOWING AND 3 FOLLOWING",
    "BETWEEN 3 PRECEDING AND 1 PRECEDING",
    "BETWEEN CURRENT ROW AND 2 FOLLOWING",
    "BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING",
];

const EXCLUSIONS: [&str; 5] = ["", "", " EXCLUDE CURRENT ROW", " EXCLUDE TIES", " EXCLUDE GROUP"];

/// A function of a window.
struct Function {
    /// What stands before its argument.
    start: String,
    argument: Option<Kind>,
    /// What stands between its argument and OVER.
    end: String,
    /// What stands behind the window.
    after: &'static str,
    /// Whether it is another for rows that are equal in the window's order.
    of_place: bool,
    /// Whether it reads the frame.
    framed: bool,
}

impl Function {
    fn new(start: impl Into<String>, argument: Option<Kind>, end: impl Into<String>) -> Function {
        Function {
            start: start.into(),
            argument,
            end: end.into(),
            after: "",
            of_place: false,
            framed: false,
        }
    }

    fn of_place(self) -> Function {
        Function { of_place: true, ..self }
    }

    fn framed(self) -> Function {
        Function { framed: true, ..self }
    }

    fn rounded(self) -> Function {
        Function {
            start: format!("round({}", self.start),
            after: ", 2)",
            ..self
        }
    }
}

impl Generator {
    /// A window function of this kind; `named`: windows that the query's WINDOW clause is to have.
    pub(super) fn window(&mut self, scope: &Scope, kind: Kind, named: &mut Vec<Tree>) -> Option<Tree> {
        let own = scope.keys.as_ref().unwrap_or(&scope.columns).clone();
        if own.is_empty() {
            return None;
        }
        let function = self.window_function(kind);
        let mut parts = vec![text(function.start)];
        if let Some(of) = function.argument {
            parts.push(self.leaf(scope, of));
        }
        parts.push(text(format!("{} OVER ", function.end)));
        let (partition, order, single) = self.partition_and_order(&own, function.of_place);
        let frame = match function.framed && self.rare && self.random.one_in(2) {
            true => self.frame(function.of_place, single),
            false => nothing(),
        };
        if self.rare && self.random.one_in(5) {
            let name = self.name("w");
            named.push(Tree::Sequence(vec![
                text(format!("{name} AS (")),
                partition,
                order,
                text(")"),
            ]));
            let is_plain = frame.to_string().is_empty();
            parts.push(match is_plain {
                true => text(name),
                false => Tree::Sequence(vec![text(format!("({name}")), frame, text(")")]),
            });
        } else {
            parts.push(Tree::Sequence(vec![text("("), partition, order, frame, text(")")]));
        }
        parts.push(text(function.after));
        Some(Tree::Exchange {
            parts,
            operands: Vec::new(),
            plain: Some(super::expressions::plain(kind)),
        })
    }

    fn window_function(&mut self, kind: Kind) -> Function {
        let any = self.random.below(7);
        let argument = Some(kind);
        let aggregate = |start: &str, of| Function::new(start, Some(of), ")").framed();
        match (kind, any) {
            (_, 0) => {
                let name = self.random.pick(&["lag(", "lead("]);
                let end = self.random.pick(&[")", ", 1)", ", 2)"]);
                Function::new(name, argument, end).of_place()
            }
            (_, 1) => {
                let name = self.random.pick(&["first_value(", "last_value("]);
                Function::new(name, argument, ")").of_place().framed()
            }
            (_, 2) if self.rare => Function::new("nth_value(", argument, ", 2)").of_place().framed(),
            (Kind::Int, 3 | 4) if self.rare => {
                Function::new(format!("ntile({})", 1 + self.random.below(4)), None, "").of_place()
            }
            (Kind::Big, 3) => Function::new("row_number()", None, "").of_place(),
            (Kind::Big, 4) => Function::new(self.random.pick(&["rank()", "dense_rank()"]), None, ""),
            (Kind::Big, 5) => Function::new("count(*)", None, self.filter_of_window()).framed(),
            (Kind::Big, _) => aggregate(self.random.pick(&["count(", "sum("]), Kind::Int),
            (Kind::Numeric, 3) if self.rare => {
                let name = self.random.pick(&["percent_rank()", "cume_dist()"]);
                Function {
                    start: format!("round(({name}"),
                    after: ")::numeric, 2)",
                    ..Function::new("", None, "")
                }
            }
            (Kind::Numeric, 4) => aggregate("avg(", Kind::Int).rounded(),
            (Kind::Numeric, 5) => aggregate("sum(", Kind::Numeric),
            (Kind::Bool, _) => aggregate(self.random.pick(&["bool_and(", "bool_or("]), kind),
            _ => aggregate(self.random.pick(&["min(", "max("]), kind),
        }
    }

    fn filter_of_window(&mut self) -> &'static str {
        self.random
            .pick(&["", "", " FILTER (WHERE true)", " FILTER (WHERE NULL)"])
    }

    /// PARTITION BY and ORDER BY, and whether the order is one number.
    fn partition_and_order(&mut self, own: &[Named], total: bool) -> (Tree, Tree, bool) {
        let partition = match self.random.one_in(2) {
            true => {
                let by = own[self.random.index(own.len())].0.clone();
                optional(vec![text(format!("PARTITION BY {by} "))])
            }
            false => nothing(),
        };
        if total {
            return (partition, self.total_order(own), false);
        }
        let (name, kind) = own[self.random.index(own.len())].clone();
        let direction = self.random.pick(&["", "", " DESC", " NULLS FIRST", " DESC NULLS LAST"]);
        let single = matches!(kind, Kind::Int | Kind::Big | Kind::Numeric);
        (partition, text(format!("ORDER BY {name}{direction}")), single)
    }

    /// An order of all columns; those of a relation can be left out together.
    fn total_order(&mut self, own: &[Named]) -> Tree {
        let mut relations: Vec<(String, Vec<String>)> = Vec::new();
        let first = self.random.index(own.len());
        for (name, _) in own[first..].iter().chain(&own[..first]) {
            let relation = name.split('.').next().unwrap_or_default().to_string();
            let key = format!("{name}{}", self.random.pick(&["", "", " DESC", " NULLS FIRST"]));
            match relations.iter_mut().find(|r| r.0 == relation) {
                Some(known) => known.1.push(key),
                None => relations.push((relation, vec![key])),
            }
        }
        let items = relations.into_iter().map(|(_, keys)| text(keys.join(", "))).collect();
        Tree::Sequence(vec![text("ORDER BY "), list(", ", items)])
    }

    fn frame(&mut self, total: bool, single: bool) -> Tree {
        let mode = self.random.pick(&["RANGE", "GROUPS", "ROWS"]);
        let distance = match mode {
            "ROWS" => total,
            "GROUPS" => true,
            _ => single,
        };
        let bounds = match distance && self.random.one_in(2) {
            true => self.random.pick(&BY_DISTANCE),
            false => self.random.pick(&BY_PEERS),
        };
        // ROWS ends among peers.
        let mode = if mode == "ROWS" && !total { "GROUPS" } else { mode };
        optional(vec![text(format!(" {mode} {bounds}{}", self.random.pick(&EXCLUSIONS)))])
    }
}
