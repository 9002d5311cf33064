//! UPDATE, DELETE and INSERT whose rows other tables decide.

use super::{Generator, Named, Relation, Scope, Statement};
use crate::differential::schema::{Kind, TABLES, Table};
use crate::differential::tree::{Tree, list, nothing, optional, text};

/// The target's alias.
const TARGET: &str = "tt";

fn target_columns(table: &Table) -> Vec<Named> {
    table
        .columns
        .iter()
        .map(|c| (format!("{TARGET}.{}", c.name), c.kind))
        .collect()
}

fn filter(conditions: Vec<Tree>) -> Tree {
    match conditions.is_empty() {
        true => nothing(),
        false => optional(vec![text(" WHERE "), list(" AND ", conditions)]),
    }
}

impl Generator {
    pub(super) fn change(&mut self) -> Statement {
        let table = &TABLES[self.random.index(TABLES.len())];
        let body = match self.random.below(6) {
            0 | 1 => self.update(table),
            2 => self.update_by_key(table),
            3 | 4 => self.delete(table),
            _ => self.insert(table),
        };
        Statement {
            body,
            tail: nothing(),
            target: Some(table.name),
        }
    }

    /// FROM or USING of a change, with the sources' columns and the conditions that join them.
    fn sources(&mut self, table: &Table, word: &str) -> (Tree, Vec<Named>, Vec<Tree>) {
        let mut conditions = Vec::new();
        if self.random.one_in(3) {
            return (nothing(), Vec::new(), conditions);
        }
        let first = self.relation(&[], 1);
        conditions.extend(self.equal(&target_columns(table), &first.named()));
        let mut parts = vec![text(word), first.tree.clone()];
        let mut columns = first.named();
        if self.random.one_in(3) {
            let next = self.relation(&[], 0);
            parts.push(optional(self.joined(&columns, &next, 0)));
            columns.extend(next.named());
        }
        (optional(parts), columns, conditions)
    }

    fn target_scope(table: &Table, sources: &[Named]) -> Scope {
        Scope {
            columns: target_columns(table).iter().chain(sources).cloned().collect(),
            ..Scope::default()
        }
    }

    /// SET of columns that no key has.
    fn assignments(&mut self, table: &Table, scope: &Scope) -> Tree {
        let mut items = Vec::new();
        for column in table.columns.iter().filter(|c| !c.key) {
            // Longer texts would not fit everywhere.
            let depth = if column.kind == Kind::Text { 0 } else { 2 };
            if items.is_empty() || self.random.one_in(4) {
                let value = self.expr(scope, column.kind, depth);
                items.push(Tree::Sequence(vec![text(format!("{} = ", column.name)), value]));
            }
        }
        list(", ", items)
    }

    fn returning(&mut self, table: &Table) -> Tree {
        match self.random.one_in(3) {
            true => {
                let names = target_columns(table).into_iter().map(|(name, _)| text(name)).collect();
                optional(vec![text(" RETURNING "), list(", ", names)])
            }
            false => nothing(),
        }
    }

    fn update(&mut self, table: &Table) -> Tree {
        let set = self.assignments(table, &Self::target_scope(table, &[]));
        let (sources, columns, mut conditions) = self.sources(table, " FROM ");
        let scope = Self::target_scope(table, &columns);
        if conditions.is_empty() || self.random.one_in(2) {
            conditions.push(self.condition(&scope, 2));
        }
        let head = text(format!("UPDATE {} {TARGET} SET ", table.name));
        Tree::Sequence(vec![head, set, sources, filter(conditions), self.returning(table)])
    }

    /// Values of a source of which each row of the target meets at most one.
    fn update_by_key(&mut self, table: &Table) -> Tree {
        let source = &TABLES[self.random.index(TABLES.len())];
        let alias = self.name("r");
        let columns: Vec<Named> = source
            .columns
            .iter()
            .map(|c| (format!("{alias}.{}", c.name), c.kind))
            .collect();
        let scope = Self::target_scope(table, &columns);
        let own = Self::target_scope(table, &[]);
        let mut parts = vec![
            text(format!("UPDATE {} {TARGET} SET ", table.name)),
            self.assignments(table, &scope),
        ];
        parts.push(text(format!(" FROM {} {alias} WHERE ", source.name)));
        for (at, column) in source.columns.iter().filter(|c| c.key).enumerate() {
            let and = if at == 0 { "" } else { " AND " };
            parts.push(text(format!("{and}{alias}.{} = ", column.name)));
            parts.push(self.expr(&own, column.kind, 1));
        }
        if self.random.one_in(2) {
            let condition = self.condition(&scope, 1);
            parts.push(optional(vec![text(" AND "), condition]));
        }
        parts.push(self.returning(table));
        Tree::Sequence(parts)
    }

    fn delete(&mut self, table: &Table) -> Tree {
        let (sources, columns, mut conditions) = self.sources(table, " USING ");
        let scope = Self::target_scope(table, &columns);
        if conditions.is_empty() || self.random.one_in(2) {
            conditions.push(self.condition(&scope, 2));
        }
        let head = text(format!("DELETE FROM {} {TARGET}", table.name));
        Tree::Sequence(vec![head, sources, filter(conditions), self.returning(table)])
    }

    /// Rows of the table again, under keys of their own.
    fn insert(&mut self, table: &Table) -> Tree {
        let alias = self.name("r");
        let relation = Relation {
            tree: text(format!("{} {alias}", table.name)),
            columns: table.columns.iter().map(|c| (c.name.to_string(), c.kind)).collect(),
            alias,
        };
        let scope = Scope {
            columns: relation.named(),
            ..Scope::default()
        };
        let mut items = Vec::new();
        for column in table.columns {
            let name = format!("{}.{}", relation.alias, column.name);
            items.push(match (column.key, column.kind) {
                (true, Kind::Text) => text(name),
                (true, _) => text(format!("{name} + 100")),
                (false, Kind::Text) => self.expr(&scope, Kind::Text, 0),
                (false, kind) => self.expr(&scope, kind, 2),
            });
        }
        let items = Tree::List {
            separator: ", ",
            least: items.len(),
            items,
        };
        let condition = self.condition(&scope, 2);
        let head = text(format!("INSERT INTO {} SELECT ", table.name));
        let from = Tree::Sequence(vec![text(" FROM "), relation.tree.clone()]);
        Tree::Sequence(vec![head, items, from, filter(vec![condition])])
    }
}
