//! Random statements over [`TABLES`].
//!
//! Both servers have to answer them in one way only, so the generator keeps these rules:
//! - LIMIT stands behind an ORDER BY of all outputs.
//! - Kinds never mix, so that rows that are equal look alike (1.0 and 1.00 are equal).
//! - Arithmetic stays far from overflow and from division by zero, since plans differ in the rows that they compute.
//! - SET names the columns of the target, or of sources that are joined by their whole key.

mod changes;
mod expressions;

use super::schema::{KINDS, Kind, TABLES};
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
    alias: String,
    columns: Vec<(String, Kind)>,
}

impl Relation {
    fn named(&self) -> Vec<Named> {
        let column = |(name, kind): &(String, Kind)| (format!("{}.{name}", self.alias), *kind);
        self.columns.iter().map(column).collect()
    }
}

/// Makes statements of one seed.
pub struct Generator {
    random: Random,
    /// Names given.
    names: u32,
    /// What WITH names.
    common: Vec<(String, Vec<(String, Kind)>)>,
}

impl Generator {
    /// A generator; the same seed makes the same statements.
    pub fn new(seed: u64) -> Generator {
        Generator {
            random: Random(seed),
            names: 0,
            common: Vec::new(),
        }
    }

    /// The next statement.
    pub fn statement(&mut self) -> Statement {
        self.names = 0;
        self.common.clear();
        match self.random.below(10) {
            0 | 1 => self.change(),
            _ => self.top(),
        }
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
        let query = match self.random.one_in(5) {
            true => self.set_operation(&[], &kinds, 3),
            false => self.select(&[], &kinds, 3, false),
        };
        let with = match commons.is_empty() {
            true => nothing(),
            false => optional(vec![text("WITH "), list(", ", commons), text(" ")]),
        };
        let tail = match self.random.one_in(3) {
            true => nothing(),
            false => self.tail(kinds.len()),
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
        let head = if given {
            format!("{name} ({}) AS (", names.join(", "))
        } else {
            format!("{name} AS (")
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
        let limit = match self.random.below(5) {
            0 => format!(" LIMIT {}", self.random.below(6)),
            1 => format!(" LIMIT {} OFFSET {}", self.random.below(6), self.random.below(4)),
            2 => format!(" OFFSET {}", self.random.below(4)),
            _ => String::new(),
        };
        let order = text(format!(" ORDER BY {}", keys.join(", ")));
        optional(vec![order, optional(vec![text(limit)])])
    }

    /// A query of these kinds. `named`: its outputs are called x1, x2, ...
    fn query(&mut self, outer: &[Named], kinds: &[Kind], depth: u32, named: bool) -> Tree {
        let query = match depth > 0 && self.random.one_in(8) {
            true => self.set_operation(outer, kinds, depth),
            false => self.select(outer, kinds, depth, named),
        };
        match self.random.one_in(6) {
            true => Tree::Sequence(vec![query, self.tail(kinds.len())]),
            false => query,
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
            false => self.select(outer, kinds, depth - 1, true),
        };
        Tree::Exchange {
            parts: vec![left, text(operator), right],
            operands: vec![0, 2],
            plain: None,
        }
    }

    fn select(&mut self, outer: &[Named], kinds: &[Kind], depth: u32, named: bool) -> Tree {
        let (from, relations, mut conditions) = self.from(outer, depth);
        let mut scope = Scope {
            columns: relations.iter().flat_map(Relation::named).collect(),
            outer: outer.to_vec(),
            keys: None,
        };
        while self.random.one_in(2) && conditions.len() < 4 {
            conditions.push(self.condition(&scope, depth));
        }
        if !outer.is_empty() && !self.random.one_in(3) {
            conditions.extend(self.correlation(&scope));
        }
        let (group, having) = match self.random.one_in(3) {
            true => self.groups(&mut scope, depth),
            false => (nothing(), nothing()),
        };
        let distinct = match self.random.one_in(6) {
            true => optional(vec![text("DISTINCT ")]),
            false => nothing(),
        };
        let items = self.items(&scope, kinds, depth, named);
        let filter = match conditions.is_empty() {
            true => nothing(),
            false => optional(vec![text(" WHERE "), list(" AND ", conditions)]),
        };
        Tree::Sequence(vec![
            text("SELECT "),
            distinct,
            list(", ", items),
            from,
            filter,
            group,
            having,
        ])
    }

    fn items(&mut self, scope: &Scope, kinds: &[Kind], depth: u32, named: bool) -> Vec<Tree> {
        let mut items = Vec::new();
        for (at, kind) in kinds.iter().enumerate() {
            let inner = self.random.below(u64::from(depth.min(2)) + 1) as u32;
            let expr = self.expr(scope, *kind, inner);
            let name = if named {
                text(format!(" AS x{}", at + 1))
            } else {
                nothing()
            };
            items.push(Tree::Sequence(vec![expr, name]));
        }
        items
    }

    /// GROUP BY and HAVING. The scope's keys become those of the groups.
    fn groups(&mut self, scope: &mut Scope, depth: u32) -> (Tree, Tree) {
        let own = Scope {
            outer: Vec::new(),
            ..scope.clone()
        };
        let mut keys: Vec<Named> = Vec::new();
        for _ in 0..self.random.below(3) {
            let kind = self.random.pick(&KINDS);
            let column = self.column(&own.columns, kind);
            match self.random.one_in(6) {
                true => keys.push((self.expr(&own, kind, 1).to_string(), kind)),
                false => keys.extend(column.map(|name| (name, kind))),
            }
        }
        // A literal alone would be a position.
        keys.retain(|(name, _)| name.contains('.'));
        let names = keys.iter().map(|(name, _)| text(name)).collect();
        let group = match keys.is_empty() {
            true => nothing(),
            false => optional(vec![text(" GROUP BY "), list(", ", names)]),
        };
        scope.keys = Some(keys);
        let having = match self.random.one_in(3) {
            true => optional(vec![text(" HAVING "), self.condition(scope, depth.min(1))]),
            false => nothing(),
        };
        (group, having)
    }

    /// FROM, and conditions for WHERE that join its items.
    fn from(&mut self, outer: &[Named], depth: u32) -> (Tree, Vec<Relation>, Vec<Tree>) {
        let most = u64::from(depth.min(2)) + 1;
        let count = 1 + self.random.below(most) as usize;
        let mut relations = vec![self.relation(outer, depth)];
        let mut parts = vec![text(" FROM "), relations[0].tree.clone()];
        let mut conditions = Vec::new();
        while relations.len() < count {
            let next = self.relation(outer, depth);
            let known: Vec<Named> = relations.iter().flat_map(Relation::named).collect();
            let part = match self.random.below(5) {
                0 => {
                    conditions.extend(self.equal(&known, &next.named()));
                    vec![text(", "), next.tree.clone()]
                }
                1 if self.shared(&relations, &next).is_some() => {
                    let name = self.shared(&relations, &next).unwrap_or_default();
                    let join = self.random.pick(&[" JOIN ", " LEFT JOIN ", " RIGHT JOIN "]);
                    vec![text(join), next.tree.clone(), text(format!(" USING ({name})"))]
                }
                _ => self.joined(&known, &next, depth),
            };
            parts.push(optional(part));
            relations.push(next);
        }
        (Tree::Sequence(parts), relations, conditions)
    }

    fn joined(&mut self, known: &[Named], next: &Relation, depth: u32) -> Vec<Tree> {
        let join = self
            .random
            .pick(&[" JOIN ", " JOIN ", " LEFT JOIN ", " LEFT JOIN ", " RIGHT JOIN "]);
        let mut on: Vec<Tree> = self.equal(known, &next.named()).into_iter().collect();
        let scope = Scope {
            columns: known.iter().cloned().chain(next.named()).collect(),
            ..Scope::default()
        };
        if on.is_empty() || self.random.one_in(3) {
            on.push(self.condition(&scope, depth.min(1)));
        }
        vec![text(join), next.tree.clone(), text(" ON "), list(" AND ", on)]
    }

    /// A column name that both sides have once, of one kind.
    fn shared(&self, relations: &[Relation], next: &Relation) -> Option<String> {
        let all: Vec<&(String, Kind)> = relations.iter().flat_map(|r| &r.columns).collect();
        let once = |column: &&(String, Kind)| all.iter().filter(|c| c.0 == column.0).count() == 1;
        let found = next.columns.iter().find(|c| all.contains(c) && once(c));
        found.map(|c| c.0.clone())
    }

    /// A condition that one side's column equals the other's.
    fn equal(&mut self, left: &[Named], right: &[Named]) -> Option<Tree> {
        let pairs: Vec<(&Named, &Named)> = left
            .iter()
            .flat_map(|l| right.iter().map(move |r| (l, r)))
            .filter(|(l, r)| l.1 == r.1 && l.1 != Kind::Bool)
            .collect();
        let (left, right) = *pairs.get(self.random.index(pairs.len()))?;
        Some(text(format!("{} = {}", left.0, right.0)))
    }

    fn correlation(&mut self, scope: &Scope) -> Option<Tree> {
        self.equal(&scope.columns, &scope.outer)
    }

    fn relation(&mut self, outer: &[Named], depth: u32) -> Relation {
        let alias = self.name("r");
        let choice = self.random.below(14);
        if choice < 2 && !self.common.is_empty() {
            let (name, columns) = self.common[self.random.index(self.common.len())].clone();
            let tree = text(format!("{name} AS {alias}"));
            return Relation { tree, alias, columns };
        }
        if choice == 2 && depth > 0 {
            return self.derived(outer, alias, depth);
        }
        if choice == 3 {
            return self.values(alias);
        }
        let table = &TABLES[self.random.index(TABLES.len())];
        let columns = table.columns.iter().map(|c| (c.name.to_string(), c.kind)).collect();
        let (alias, tree) = match self.random.one_in(8) {
            true => (table.name.to_string(), text(table.name)),
            false => {
                let tree = text(format!("{} {alias}", table.name));
                (alias, tree)
            }
        };
        Relation { tree, alias, columns }
    }

    fn derived(&mut self, outer: &[Named], alias: String, depth: u32) -> Relation {
        let kinds = self.kinds(3);
        let query = self.query(outer, &kinds, depth - 1, true);
        let columns = (1..).zip(&kinds).map(|(at, kind)| (format!("x{at}"), *kind)).collect();
        let tree = Tree::Sequence(vec![text("("), query, text(format!(") AS {alias}"))]);
        Relation { tree, alias, columns }
    }

    fn values(&mut self, alias: String) -> Relation {
        let kinds = self.kinds(2);
        let mut rows = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let row: Vec<String> = kinds.iter().map(|kind| self.typed_literal(*kind)).collect();
            rows.push(text(format!("({})", row.join(", "))));
        }
        let columns: Vec<(String, Kind)> = (1..).zip(&kinds).map(|(at, kind)| (format!("x{at}"), *kind)).collect();
        let names: Vec<&str> = columns.iter().map(|c| c.0.as_str()).collect();
        let end = format!(") AS {alias} ({})", names.join(", "));
        let tree = Tree::Sequence(vec![text("(VALUES "), list(", ", rows), text(end)]);
        Relation { tree, alias, columns }
    }

    /// A column of this kind.
    fn column(&mut self, of: &[Named], kind: Kind) -> Option<String> {
        let fitting: Vec<&Named> = of.iter().filter(|c| c.1 == kind).collect();
        let found = fitting.get(self.random.index(fitting.len()))?;
        Some(found.0.clone())
    }
}
