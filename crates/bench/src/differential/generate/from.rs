//! FROM: tables, derived tables, functions, and how they are joined.

use super::{Generator, Named, Relation, Scope, all_named};
use crate::differential::schema::{Kind, TABLES};
use crate::differential::tree::{Tree, list, optional, text};

impl Generator {
    /// FROM, and conditions for WHERE that join its items.
    pub(super) fn from(&mut self, outer: &[Named], depth: u32) -> (Tree, Vec<Relation>, Vec<Tree>) {
        let most = u64::from(depth.min(2)) + 1;
        let count = 1 + self.random.below(most) as usize;
        let mut relations = vec![self.relation(outer, depth)];
        let mut parts = vec![text(" FROM "), relations[0].tree.clone()];
        let mut conditions = Vec::new();
        let mut merged: Vec<(String, Kind)> = Vec::new();
        while relations.len() < count {
            let known = all_named(&relations);
            if depth > 0 && self.random.one_in(12) {
                let (part, next) = self.lateral(outer, &known, depth);
                parts.push(optional(part));
                relations.push(next);
                continue;
            }
            let next = self.relation(outer, depth);
            let shared = shared(&relations, &next);
            let part = match self.random.below(6) {
                0 => {
                    conditions.extend(self.equal(&known, &next.named()));
                    vec![text(", "), next.tree.clone()]
                }
                1 if !shared.is_empty() => {
                    let using = self.random.pick(&shared);
                    merged.push(using.clone());
                    let join = self.outer_or_inner();
                    let end = text(format!(" USING ({})", using.0));
                    vec![text(format!(" {join}JOIN ")), next.tree.clone(), end]
                }
                2 if relations.len() == 1 && natural_fits(&relations[0], &next) => {
                    merged.extend(shared.into_iter().cloned());
                    let join = self.outer_or_inner();
                    vec![text(format!(" NATURAL {join}JOIN ")), next.tree.clone()]
                }
                _ => self.joined(&known, &next, depth),
            };
            parts.push(optional(part));
            relations.push(next);
        }
        merged.retain(|column| relations.iter().filter(|r| r.has(&column.0)).count() == 2);
        if !merged.is_empty() {
            relations.push(Relation::merged(merged));
        }
        (Tree::Sequence(parts), relations, conditions)
    }

    fn outer_or_inner(&mut self) -> &'static str {
        let last = if self.rare { "FULL " } else { "" };
        self.random.pick(&["", "LEFT ", "LEFT ", "RIGHT ", last])
    }

    pub(super) fn joined(&mut self, known: &[Named], next: &Relation, depth: u32) -> Vec<Tree> {
        let join = self.outer_or_inner();
        let mut on: Vec<Tree> = self.equal(known, &next.named()).into_iter().collect();
        let scope = Scope {
            columns: known.iter().cloned().chain(next.named()).collect(),
            ..Scope::default()
        };
        if on.is_empty() || self.random.one_in(3) {
            on.push(self.condition(&scope, depth.min(1)));
        }
        let join = text(format!(" {join}JOIN "));
        vec![join, next.tree.clone(), text(" ON "), list(" AND ", on)]
    }

    /// A relation that reads the ones before it.
    fn lateral(&mut self, outer: &[Named], known: &[Named], depth: u32) -> (Vec<Tree>, Relation) {
        let alias = self.name("r");
        let around: Vec<Named> = known.iter().chain(outer).cloned().collect();
        let bound = self
            .column(known, Kind::Int)
            .filter(|_| self.rare && self.random.one_in(3));
        let next = match bound {
            Some(bound) => self.series(alias, format!("{bound}::bigint")),
            None => self.derived(&around, alias, depth),
        };
        let (start, end) = self.random.pick(&[
            (", LATERAL ", ""),
            (" CROSS JOIN LATERAL ", ""),
            (" JOIN LATERAL ", " ON true"),
            (" LEFT JOIN LATERAL ", " ON true"),
        ]);
        (vec![text(start), next.tree.clone(), text(end)], next)
    }

    /// A condition that one side's column equals the other's.
    pub(super) fn equal(&mut self, left: &[Named], right: &[Named]) -> Option<Tree> {
        let pairs: Vec<(&Named, &Named)> = left
            .iter()
            .flat_map(|l| right.iter().map(move |r| (l, r)))
            .filter(|(l, r)| l.1 == r.1 && l.1 != Kind::Bool)
            .collect();
        let (left, right) = *pairs.get(self.random.index(pairs.len()))?;
        Some(text(format!("{} = {}", left.0, right.0)))
    }

    pub(super) fn correlation(&mut self, scope: &Scope) -> Option<Tree> {
        self.equal(&scope.columns, &scope.outer)
    }

    pub(super) fn relation(&mut self, outer: &[Named], depth: u32) -> Relation {
        let alias = self.name("r");
        let choice = self.random.below(28);
        if choice < 6 && !self.common.is_empty() {
            let (name, columns) = self.common[self.random.index(self.common.len())].clone();
            return Relation {
                tree: text(format!("{name} AS {alias}")),
                alias,
                columns,
                table: None,
            };
        }
        match choice {
            6 | 7 if depth > 0 => return self.derived(outer, alias, depth),
            8 | 9 => return self.values(alias),
            10 if self.rare => {
                let last = 2 + self.random.below(5);
                let ty = self.random.pick(&["", "::bigint", "::bigint"]);
                return self.series(alias, format!("{last}{ty}"));
            }
            11 if self.rare => return self.unnest(alias),
            _ => {}
        }
        let table = &TABLES[self.random.index(TABLES.len())];
        match self.random.one_in(8) {
            true => Relation {
                tree: text(table.name),
                ..Relation::of_table(table, table.name.to_string())
            },
            false => Relation::of_table(table, alias),
        }
    }

    fn derived(&mut self, outer: &[Named], alias: String, depth: u32) -> Relation {
        let kinds = self.kinds(3);
        let query = self.query(outer, &kinds, depth - 1, true);
        let tree = Tree::Sequence(vec![text("("), query, text(format!(") AS {alias}"))]);
        Relation {
            tree,
            alias,
            columns: numbered(&kinds),
            table: None,
        }
    }

    fn values(&mut self, alias: String) -> Relation {
        let kinds = self.kinds(2);
        let rows = self.value_rows(&kinds);
        let columns = numbered(&kinds);
        let names: Vec<&str> = columns.iter().map(|c| c.0.as_str()).collect();
        let end = format!(") AS {alias} ({})", names.join(", "));
        Relation {
            tree: Tree::Sequence(vec![text("("), rows, text(end)]),
            alias,
            columns,
            table: None,
        }
    }

    /// `VALUES` with rows of these kinds.
    pub(super) fn value_rows(&mut self, kinds: &[Kind]) -> Tree {
        let mut rows = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let row: Vec<String> = kinds.iter().map(|kind| self.typed_literal(*kind)).collect();
            rows.push(text(format!("({})", row.join(", "))));
        }
        Tree::Sequence(vec![text("VALUES "), list(", ", rows)])
    }

    fn series(&mut self, alias: String, last: String) -> Relation {
        let kind = if last.ends_with("::bigint") {
            Kind::Big
        } else {
            Kind::Int
        };
        let first = self.random.pick(&["0", "1", "1"]);
        Relation {
            tree: text(format!("generate_series({first}, {last}) AS {alias} (x1)")),
            alias,
            columns: numbered(&[kind]),
            table: None,
        }
    }

    fn unnest(&mut self, alias: String) -> Relation {
        let kind = self.kinds(1)[0];
        let array = self.array(kind);
        let (end, kinds) = match self.random.one_in(4) {
            true => (format!(") WITH ORDINALITY AS {alias} (x1, x2)"), vec![kind, Kind::Big]),
            false => (format!(") AS {alias} (x1)"), vec![kind]),
        };
        Relation {
            tree: text(format!("unnest({array}{end}")),
            alias,
            columns: numbered(&kinds),
            table: None,
        }
    }
}

/// Columns called x1, x2, ...
fn numbered(kinds: &[Kind]) -> Vec<(String, Kind)> {
    (1..).zip(kinds).map(|(at, kind)| (format!("x{at}"), *kind)).collect()
}

/// Columns whose name both sides have once, of one kind.
fn shared<'a>(relations: &[Relation], next: &'a Relation) -> Vec<&'a (String, Kind)> {
    let all: Vec<&(String, Kind)> = relations.iter().flat_map(|r| &r.columns).collect();
    let once = |column: &&(String, Kind)| all.iter().filter(|c| c.0 == column.0).count() == 1;
    next.columns.iter().filter(|c| all.contains(c) && once(c)).collect()
}

/// Whether columns of the same name are of the same kind, and there is one.
fn natural_fits(left: &Relation, right: &Relation) -> bool {
    let same = |name: &str| left.columns.iter().filter(|c| c.0 == name).collect::<Vec<_>>();
    let fits = right.columns.iter().all(|r| same(&r.0).iter().all(|l| l.1 == r.1));
    fits && right.columns.iter().any(|r| left.has(&r.0))
}
