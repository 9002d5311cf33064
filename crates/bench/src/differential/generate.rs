//! Random statements over the tables of [`super::schema`].
//!
//! Both servers have to answer them in one way only, so the generator keeps these rules:
//! - LIMIT stands behind an ORDER BY of all outputs.
//! - Kinds never mix, so that rows that are equal look alike (1.0 and 1.00 are equal).
//! - Arithmetic stays far from overflow and from division by zero, since plans differ in the rows that they compute.
//! - SET names the columns of the target, or of sources that are joined by their whole key.

pub mod block;
mod changes;
mod conditions;
mod expressions;
mod from;
mod groups;
mod windows;

use super::schema::{KINDS, Kind, Table};
use super::tree::{Tree, list, nothing, optional, text};
use cenote_base::random::Random;

/// A statement, and how its answer is compared.
#[derive(Clone, Debug)]
pub struct Statement {
    /// All of it but ORDER BY and LIMIT of the outermost query.
    pub body: Tree,
    /// ORDER BY and LIMIT. Empty: the rows have no order.
    pub tail: Tree,
    /// The table that it changes.
    pub target: Option<&'static str>,
}

impl Statement {
    /// A statement whose rows have no order.
    pub fn of(body: Tree) -> Statement {
        Statement {
            body,
            tail: nothing(),
            target: None,
        }
    }

    /// What a server gets.
    pub fn sql(&self) -> String {
        format!("{}{}", self.body, self.tail)
    }

    /// Whether the order of rows is fixed.
    pub fn is_ordered(&self) -> bool {
        !self.tail.to_string().is_empty()
    }

    /// The statements that are one cut smaller.
    pub fn cuts(&self) -> Vec<Statement> {
        let tail = self
            .tail
            .cuts()
            .into_iter()
            .map(|tail| Statement { tail, ..self.clone() });
        let body = self
            .body
            .cuts()
            .into_iter()
            .map(|body| Statement { body, ..self.clone() });
        tail.chain(body).collect()
    }
}

/// A column, or another expression, by the text that names it.
type Named = (String, Kind);

/// What an expression may name.
#[derive(Clone, Default)]
struct Scope {
    /// Columns of FROM.
    columns: Vec<Named>,
    /// Columns of the queries around.
    outer: Vec<Named>,
    /// Some: the query has groups, with these keys.
    keys: Option<Vec<Named>>,
    /// The groups are those of several sets of keys.
    sets: bool,
}

impl Scope {
    /// The scope around a subquery that stands in this one.
    fn around(&self) -> Vec<Named> {
        let own = self.keys.as_ref().unwrap_or(&self.columns);
        own.iter().chain(&self.outer).cloned().collect()
    }
}

/// A relation of FROM.
struct Relation {
    tree: Tree,
    /// Empty: its columns are named without it (those that USING merged).
    alias: String,
    columns: Vec<(String, Kind)>,
    /// What it is, if it is a table.
    table: Option<&'static Table>,
}

impl Relation {
    fn named(&self) -> Vec<Named> {
        let column = |(name, kind): &(String, Kind)| match self.alias.is_empty() {
            true => (name.clone(), *kind),
            false => (format!("{}.{name}", self.alias), *kind),
        };
        self.columns.iter().map(column).collect()
    }

    fn of_table(table: &'static Table, alias: String) -> Relation {
        Relation {
            tree: text(format!("{} {alias}", table.name)),
            columns: table.columns.iter().map(|c| (c.name.to_string(), c.kind)).collect(),
            table: Some(table),
            alias,
        }
    }

    fn has(&self, name: &str) -> bool {
        self.columns.iter().any(|c| c.0 == name)
    }

    fn merged(columns: Vec<(String, Kind)>) -> Relation {
        Relation {
            tree: nothing(),
            alias: String::new(),
            columns,
            table: None,
        }
    }
}

/// Columns of all relations.
fn all_named(relations: &[Relation]) -> Vec<Named> {
    relations.iter().flat_map(Relation::named).collect()
}

/// Makes statements of one seed.
pub struct Generator {
    random: Random,
    /// Names given.
    names: u32,
    /// What WITH names.
    common: Vec<(String, Vec<(String, Kind)>)>,
    /// Some: constants may be parameters, and these are.
    parameters: Option<Vec<Kind>>,
    /// Whether the statement may have what is rare in applications. One such piece takes all of it to analytics, so half
    /// of the statements have none.
    rare: bool,
}

impl Generator {
    /// A generator; the same seed makes the same statements.
    pub fn new(seed: u64) -> Generator {
        Generator {
            random: Random(seed),
            names: 0,
            common: Vec::new(),
            parameters: None,
            rare: false,
        }
    }

    /// The next statement.
    pub fn statement(&mut self) -> Statement {
        self.begin();
        match self.random.below(10) {
            0 | 1 => self.change(),
            _ => self.top(),
        }
    }

    fn begin(&mut self) {
        self.names = 0;
        self.common.clear();
        self.rare = self.random.one_in(2);
    }

    /// The next statement that changes nothing.
    pub fn query_statement(&mut self) -> Statement {
        self.begin();
        self.top()
    }

    /// The next statement whose constants may be parameters, and their kinds.
    pub fn with_parameters(&mut self) -> (Statement, Vec<Kind>) {
        self.parameters = Some(Vec::new());
        let statement = self.statement();
        (statement, self.parameters.take().unwrap_or_default())
    }

    fn name(&mut self, letter: &str) -> String {
        self.names += 1;
        format!("{letter}{}", self.names)
    }

    fn kinds(&mut self, most: u64) -> Vec<Kind> {
        (0..1 + self.random.below(most))
            .map(|_| self.random.pick(&KINDS))
            .collect()
    }

    fn top(&mut self) -> Statement {
        let mut commons = Vec::new();
        while self.random.one_in(5) && commons.len() < 2 {
            commons.push(self.common());
        }
        let kinds = self.kinds(4);
        let mut tail = match self.random.one_in(3) {
            true => nothing(),
            false => self.tail(kinds.len()),
        };
        let query = match self.random.below(30) {
            0..6 => self.set_operation(&[], &kinds, 3),
            6 | 7 => {
                let (query, order) = self.distinct_on(&[], &kinds, 3, false);
                tail = order;
                query
            }
            8 if self.rare => {
                tail = nothing();
                let query = self.select(&[], &kinds, 3, false);
                Tree::Sequence(vec![query, self.with_ties(kinds.len())])
            }
            9 => {
                tail = nothing();
                self.star()
            }
            10 if self.rare => {
                tail = nothing();
                self.several(&kinds)
            }
            _ => self.select(&[], &kinds, 3, false),
        };
        let with = match commons.is_empty() {
            true => nothing(),
            false => optional(vec![text("WITH "), list(", ", commons), text(" ")]),
        };
        Statement {
            body: Tree::Sequence(vec![with, query]),
            tail,
            target: None,
        }
    }

    fn common(&mut self) -> Tree {
        let kinds = self.kinds(3);
        let name = self.name("w");
        let query = self.query(&[], &kinds, 1, true);
        let given = self.random.one_in(2);
        let columns: Vec<(String, Kind)> = kinds
            .iter()
            .enumerate()
            .map(|(at, kind)| (format!("{}{}", if given { "y" } else { "x" }, at + 1), *kind))
            .collect();
        let names: Vec<&str> = columns.iter().map(|c| c.0.as_str()).collect();
        let kept = self.random.pick(&["", "", "MATERIALIZED ", "NOT MATERIALIZED "]);
        let head = if given {
            format!("{name} ({}) AS {kept}(", names.join(", "))
        } else {
            format!("{name} AS {kept}(")
        };
        self.common.push((name, columns));
        Tree::Sequence(vec![text(head), query, text(")")])
    }

    /// ORDER BY of all outputs, and perhaps LIMIT.
    fn tail(&mut self, outputs: usize) -> Tree {
        let mut positions: Vec<usize> = (1..=outputs).collect();
        let first = self.random.index(outputs);
        positions.rotate_left(first);
        let key = |at: usize, random: &mut Random| {
            format!(
                "{at}{}",
                random.pick(&["", "", " DESC", " ASC", " NULLS FIRST", " DESC NULLS LAST"])
            )
        };
        let keys: Vec<String> = positions.into_iter().map(|at| key(at, &mut self.random)).collect();
        let order = text(format!(" ORDER BY {}", keys.join(", ")));
        let limit = text(self.limit());
        optional(vec![order, optional(vec![limit])])
    }

    fn limit(&mut self) -> String {
        let offset = self.random.below(4);
        let count = match self.parameter(Kind::Big) {
            Some(parameter) => format!("abs({parameter}::bigint)"),
            None => self.random.below(6).to_string(),
        };
        match self.random.below(12) {
            0 | 1 => format!(" LIMIT {count}"),
            2 | 3 => format!(" LIMIT {count} OFFSET {offset}"),
            4 => format!(" OFFSET {offset}"),
            5 => format!(" OFFSET {offset} ROWS FETCH NEXT {offset} ROWS ONLY"),
            6 => self.random.pick(&[" LIMIT ALL", " LIMIT NULL"]).to_string(),
            _ => String::new(),
        }
    }

    /// The first rows in an order that may leave some equal: those go with the last one.
    fn with_ties(&mut self, outputs: usize) -> Tree {
        let key = 1 + self.random.index(outputs);
        let direction = self.random.pick(&["", " DESC", " NULLS FIRST"]);
        let count = 1 + self.random.below(4);
        text(format!(" ORDER BY {key}{direction} FETCH FIRST {count} ROWS WITH TIES"))
    }

    /// The first row for each value of the first outputs, and the order that says which it is.
    fn distinct_on(&mut self, outer: &[Named], kinds: &[Kind], depth: u32, named: bool) -> (Tree, Tree) {
        let on = 1 + self.random.index(kinds.len());
        let positions: Vec<String> = (1..=on).map(|at| at.to_string()).collect();
        let distinct = text(format!("DISTINCT ON ({}) ", positions.join(", ")));
        let query = self.select_of(outer, kinds, depth, (distinct, named));
        let key = |at| format!("{at}{}", self.random.pick(&["", "", " DESC", " NULLS FIRST"]));
        let keys: Vec<String> = (1..=kinds.len()).map(key).collect();
        let limit = text(self.limit());
        let order = text(format!(" ORDER BY {}", keys.join(", ")));
        (query, Tree::Sequence(vec![order, optional(vec![limit])]))
    }

    /// All columns.
    fn star(&mut self) -> Tree {
        let (from, relations, conditions) = self.from(&[], 2);
        let all: Vec<&Relation> = relations.iter().filter(|r| !r.alias.is_empty()).collect();
        let items = match self.random.one_in(3) {
            true => format!("{}.*", all[self.random.index(all.len())].alias),
            false => "*".into(),
        };
        Tree::Sequence(vec![text(format!("SELECT {items}")), from, filter(conditions)])
    }

    /// Rows of a select list with a subquery that may give several rows (21000). It stands where each row asks it, and
    /// no LIMIT is there: else how far a plan goes would decide.
    fn several(&mut self, kinds: &[Kind]) -> Tree {
        let (from, relations, mut conditions) = self.from(&[], 1);
        let scope = Scope {
            columns: all_named(&relations),
            ..Scope::default()
        };
        conditions.push(self.condition(&scope, 0));
        let mut items = self.items(&scope, kinds, 1, false, &mut Vec::new());
        let subquery = self.select(&scope.around(), &kinds[..1], 1, false);
        let asked = match self.random.one_in(2) {
            true => vec![text("("), subquery, text(")")],
            false => {
                let condition = self.condition(&scope, 0);
                vec![text("CASE WHEN "), condition, text(" THEN ("), subquery, text(") END")]
            }
        };
        items.push(Tree::Sequence(asked));
        Tree::Sequence(vec![text("SELECT "), list(", ", items), from, filter(conditions)])
    }

    /// A query of these kinds. `named`: its outputs are called x1, x2, ...
    fn query(&mut self, outer: &[Named], kinds: &[Kind], depth: u32, named: bool) -> Tree {
        let query = match depth > 0 && self.random.one_in(8) {
            true => self.set_operation(outer, kinds, depth),
            false if self.random.one_in(15) => {
                let (query, order) = self.distinct_on(outer, kinds, depth, named);
                return Tree::Sequence(vec![query, order]);
            }
            false => self.select(outer, kinds, depth, named),
        };
        match self.random.below(12) {
            0 | 1 => Tree::Sequence(vec![query, self.tail(kinds.len())]),
            2 if self.rare => Tree::Sequence(vec![query, self.with_ties(kinds.len())]),
            _ => query,
        }
    }

    fn set_operation(&mut self, outer: &[Named], kinds: &[Kind], depth: u32) -> Tree {
        let operator = self.random.pick(&[
            " UNION ",
            " UNION ALL ",
            " INTERSECT ",
            " INTERSECT ALL ",
            " EXCEPT ",
            " EXCEPT ALL ",
        ]);
        let left = self.select(outer, kinds, depth - 1, true);
        let right = match self.random.one_in(5) && depth > 1 {
            true => {
                let inner = self.set_operation(outer, kinds, depth - 1);
                Tree::Sequence(vec![text("("), inner, text(")")])
            }
            false if self.random.one_in(8) => self.value_rows(kinds),
            false => self.select(outer, kinds, depth - 1, true),
        };
        Tree::Exchange {
            parts: vec![left, text(operator), right],
            operands: vec![0, 2],
            plain: None,
        }
    }

    fn select(&mut self, outer: &[Named], kinds: &[Kind], depth: u32, named: bool) -> Tree {
        let distinct = match self.random.one_in(6) {
            true => optional(vec![text("DISTINCT ")]),
            false => nothing(),
        };
        self.select_of(outer, kinds, depth, (distinct, named))
    }

    fn select_of(&mut self, outer: &[Named], kinds: &[Kind], depth: u32, (distinct, named): (Tree, bool)) -> Tree {
        let (from, relations, mut conditions) = self.from(outer, depth);
        let mut scope = Scope {
            columns: all_named(&relations),
            outer: outer.to_vec(),
            ..Scope::default()
        };
        while self.random.one_in(2) && conditions.len() < 4 {
            conditions.push(self.condition(&scope, depth));
        }
        if !outer.is_empty() && !self.random.one_in(3) {
            conditions.extend(self.correlation(&scope));
        }
        let (group, having) = match self.random.one_in(3) {
            true => self.groups(&mut scope, &relations, depth),
            false => (nothing(), nothing()),
        };
        let mut windows = Vec::new();
        let items = self.items(&scope, kinds, depth, named, &mut windows);
        let windows = match windows.is_empty() {
            true => nothing(),
            false => optional(vec![text(" WINDOW "), list(", ", windows)]),
        };
        Tree::Sequence(vec![
            text("SELECT "),
            distinct,
            list(", ", items),
            from,
            filter(conditions),
            group,
            having,
            windows,
        ])
    }

    fn items(&mut self, scope: &Scope, kinds: &[Kind], depth: u32, named: bool, windows: &mut Vec<Tree>) -> Vec<Tree> {
        let mut items = Vec::new();
        for (at, kind) in kinds.iter().enumerate() {
            let window = match self.random.one_in(8) {
                true => self.window(scope, *kind, windows),
                false => None,
            };
            let inner = self.random.below(u64::from(depth.min(2)) + 1) as u32;
            let expr = window.unwrap_or_else(|| self.expr(scope, *kind, inner));
            let name = if named {
                text(format!(" AS x{}", at + 1))
            } else {
                nothing()
            };
            items.push(Tree::Sequence(vec![expr, name]));
        }
        items
    }

    /// A column of this kind.
    fn column(&mut self, of: &[Named], kind: Kind) -> Option<String> {
        let fitting: Vec<&Named> = of.iter().filter(|c| c.1 == kind).collect();
        let found = fitting.get(self.random.index(fitting.len()))?;
        Some(found.0.clone())
    }
}

/// WHERE of these conditions.
fn filter(conditions: Vec<Tree>) -> Tree {
    match conditions.is_empty() {
        true => nothing(),
        false => optional(vec![text(" WHERE "), list(" AND ", conditions)]),
    }
}
