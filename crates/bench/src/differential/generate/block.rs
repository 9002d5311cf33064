//! The pieces of a query, from which statements are made that have to agree with each other.

use super::{Generator, Named, Relation, Scope, all_named};
use crate::differential::schema::{KINDS, Kind, TABLES};
use crate::differential::tree::{Tree, list, text};

/// What a block is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Several relations in FROM.
    Joined,
    /// A relation, and another that is joined to it.
    Pair,
    /// One table, which statements may change.
    Target,
}

/// The pieces of a query.
#[derive(Clone, Debug)]
pub struct Block {
    /// Relations, joined.
    pub from: Tree,
    /// The other relation of a pair; nothing else.
    pub next: Tree,
    /// Conditions that hold for all rows that are asked about; at least `true`.
    pub filter: Tree,
    /// What divides the rows.
    pub predicate: Tree,
    /// The select list.
    pub items: Tree,
    /// An argument of aggregates, and its kind.
    pub argument: Tree,
    /// Its kind.
    pub kind: Kind,
    /// Columns by which rows are grouped.
    pub keys: Tree,
    /// What divides the groups.
    pub of_groups: Tree,
    /// The table that is changed.
    pub target: Option<&'static str>,
}

impl Block {
    /// The blocks that are one cut smaller.
    pub fn cuts(&self) -> Vec<Block> {
        let pieces = self.pieces();
        let cut = |(at, piece): (usize, &Tree)| {
            let with = move |smaller| {
                let mut block = self.clone();
                *block.piece(at) = smaller;
                block
            };
            piece.cuts().into_iter().map(with).collect::<Vec<_>>()
        };
        pieces.into_iter().enumerate().flat_map(cut).collect()
    }

    fn pieces(&self) -> [&Tree; 8] {
        [
            &self.from,
            &self.next,
            &self.filter,
            &self.predicate,
            &self.items,
            &self.argument,
            &self.keys,
            &self.of_groups,
        ]
    }

    fn piece(&mut self, at: usize) -> &mut Tree {
        match at {
            0 => &mut self.from,
            1 => &mut self.next,
            2 => &mut self.filter,
            3 => &mut self.predicate,
            4 => &mut self.items,
            5 => &mut self.argument,
            6 => &mut self.keys,
            _ => &mut self.of_groups,
        }
    }
}

impl Generator {
    /// Pieces of this shape.
    pub fn block(&mut self, shape: Shape) -> Block {
        self.begin();
        let (from, relations, mut conditions) = self.sources_of(shape);
        let next = match shape {
            Shape::Pair => Some(self.relation(&[], 1)),
            _ => None,
        };
        let mut scope = Scope {
            columns: all_named(&relations),
            ..Scope::default()
        };
        if self.random.one_in(2) {
            conditions.push(self.condition(&scope, 1));
        }
        if conditions.is_empty() {
            conditions.push(text("true"));
        }
        let own = scope.columns.clone();
        let next_tree = next.as_ref().map_or(text(""), |r| r.tree.clone());
        let both: Vec<Named> = next.iter().flat_map(Relation::named).collect();
        let predicate = self.dividing(&own, &both);
        let kinds = self.kinds(3);
        let items = self.items(&scope, &kinds, 1, true, &mut Vec::new());
        let kind = self.random.pick(&KINDS);
        let argument = self.expr(&scope, kind, 1);
        let keys = self.grouping_keys(&own);
        scope.keys = Some(keys.clone());
        Block {
            from,
            next: next_tree,
            filter: list(" AND ", conditions),
            predicate,
            items: list(", ", without_windows(items, &own)),
            argument,
            kind,
            keys: list(", ", keys.into_iter().map(|(name, _)| text(name)).collect()),
            of_groups: self.condition(&scope, 1),
            target: relations[0].table.filter(|_| shape == Shape::Target).map(|t| t.name),
        }
    }

    fn sources_of(&mut self, shape: Shape) -> (Tree, Vec<Relation>, Vec<Tree>) {
        match shape {
            Shape::Joined => self.from(&[], 2),
            Shape::Pair => {
                let relation = self.relation(&[], 1);
                (
                    Tree::Sequence(vec![text(" FROM "), relation.tree.clone()]),
                    vec![relation],
                    Vec::new(),
                )
            }
            Shape::Target => {
                let table = &TABLES[self.random.index(TABLES.len())];
                let relation = Relation::of_table(table, "tt".into());
                (text(format!(" FROM {} tt", table.name)), vec![relation], Vec::new())
            }
        }
    }

    /// A predicate over the rows of one side, or of a pair.
    fn dividing(&mut self, own: &[Named], next: &[Named]) -> Tree {
        let scope = Scope {
            columns: own.iter().chain(next).cloned().collect(),
            ..Scope::default()
        };
        let condition = self.condition(&scope, 2);
        match self.equal(own, next) {
            Some(equal) if !self.random.one_in(4) => Tree::Sequence(vec![list(" AND ", vec![equal, condition])]),
            _ => condition,
        }
    }

    fn grouping_keys(&mut self, own: &[Named]) -> Vec<Named> {
        let mut keys: Vec<Named> = Vec::new();
        for _ in 0..1 + self.random.below(2) {
            let column = own[self.random.index(own.len())].clone();
            if !keys.contains(&column) {
                keys.push(column);
            }
        }
        keys
    }
}

/// A window sees the rows of its query, so a part of them answers otherwise: a column stands in its place.
fn without_windows(items: Vec<Tree>, own: &[Named]) -> Vec<Tree> {
    let plain = |(at, item): (usize, Tree)| match item.to_string().contains(" OVER ") {
        true => text(format!("{} AS x{}", own[at % own.len()].0, at + 1)),
        false => item,
    };
    items.into_iter().enumerate().map(plain).collect()
}
