//! UPDATE, DELETE and INSERT whose rows other tables decide.

use super::{Generator, Named, Relation, Scope, Statement, filter};
use crate::differential::schema::{Kind, TABLES, Table, key_columns};
use crate::differential::tree::{Tree, list, nothing, optional, text};

/// The target's alias.
const TARGET: &str = "tt";

fn target_columns(table: &'static Table) -> Vec<Named> {
    table
        .columns
        .iter()
        .map(|c| (format!("{TARGET}.{}", c.name), c.kind))
        .collect()
}

impl Generator {
    pub(super) fn change(&mut self) -> Statement {
        let table = &TABLES[self.random.index(TABLES.len())];
        let body = match self.random.below(8) {
            0 | 1 => self.update(table),
            6 => self.update_key(table),
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
    fn sources(&mut self, table: &'static Table, word: &str) -> (Tree, Vec<Named>, Vec<Tree>) {
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

    fn target_scope(table: &'static Table, sources: &[Named]) -> Scope {
        Scope {
            columns: target_columns(table).iter().chain(sources).cloned().collect(),
            ..Scope::default()
        }
    }

    /// SET of columns that no key has.
    fn assignments(&mut self, table: &'static Table, scope: &Scope) -> Tree {
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

    fn returning(&mut self, table: &'static Table, scope: &Scope) -> Tree {
        let items = match self.random.below(6) {
            0 | 1 => target_columns(table).into_iter().map(|(name, _)| text(name)).collect(),
            2 => {
                let kinds = self.kinds(3);
                kinds.into_iter().map(|kind| self.expr(scope, kind, 1)).collect()
            }
            _ => return nothing(),
        };
        optional(vec![text(" RETURNING "), list(", ", items)])
    }

    /// Keys that no other row has.
    fn update_key(&mut self, table: &'static Table) -> Tree {
        let scope = Self::target_scope(table, &[]);
        let moved: Vec<Tree> = table
            .columns
            .iter()
            .filter(|c| c.key && c.kind != Kind::Text)
            .map(|c| text(format!("{0} = {TARGET}.{0} + 1000", c.name)))
            .collect();
        let condition = self.condition(&scope, 2);
        Tree::Sequence(vec![
            text(format!("UPDATE {} {TARGET} SET ", table.name)),
            list(", ", moved),
            filter(vec![condition]),
            self.returning(table, &scope),
        ])
    }

    fn update(&mut self, table: &'static Table) -> Tree {
        let set = self.assignments(table, &Self::target_scope(table, &[]));
        let (sources, columns, mut conditions) = self.sources(table, " FROM ");
        let scope = Self::target_scope(table, &columns);
        if conditions.is_empty() || self.random.one_in(2) {
            conditions.push(self.condition(&scope, 2));
        }
        let head = text(format!("UPDATE {} {TARGET} SET ", table.name));
        // Which of several rows of the sources is met is open: what is given is of the target.
        let own = Self::target_scope(table, &[]);
        let returning = self.returning(table, &own);
        Tree::Sequence(vec![head, set, sources, filter(conditions), returning])
    }

    /// Values of a source of which each row of the target meets at most one.
    fn update_by_key(&mut self, table: &'static Table) -> Tree {
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
        parts.push(self.returning(table, &scope));
        Tree::Sequence(parts)
    }

    fn delete(&mut self, table: &'static Table) -> Tree {
        let (sources, columns, mut conditions) = self.sources(table, " USING ");
        let scope = Self::target_scope(table, &columns);
        if conditions.is_empty() || self.random.one_in(2) {
            conditions.push(self.condition(&scope, 2));
        }
        let head = text(format!("DELETE FROM {} {TARGET}", table.name));
        let own = Self::target_scope(table, &[]);
        let returning = self.returning(table, &own);
        Tree::Sequence(vec![head, sources, filter(conditions), returning])
    }

    /// Rows of the table again, under other keys or under those that are there.
    fn insert(&mut self, table: &'static Table) -> Tree {
        let alias = self.name("r");
        let relation = Relation::of_table(table, alias);
        let scope = Scope {
            columns: relation.named(),
            ..Scope::default()
        };
        let conflict = self.random.one_in(2);
        let moved = if conflict {
            self.random.pick(&[0, 1, 2, 100])
        } else {
            100
        };
        let mut items = Vec::new();
        for column in table.columns {
            let name = format!("{}.{}", relation.alias, column.name);
            items.push(match (column.key, column.kind) {
                (true, Kind::Text) => text(name),
                (true, _) => text(format!("{name} + {moved}")),
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
        let head = text(format!("INSERT INTO {} AS {TARGET} SELECT ", table.name));
        let from = Tree::Sequence(vec![text(" FROM "), relation.tree.clone()]);
        let on_conflict = if conflict { self.on_conflict(table) } else { nothing() };
        let own = Self::target_scope(table, &[]);
        let returning = self.returning(table, &own);
        Tree::Sequence(vec![head, items, from, filter(vec![condition]), on_conflict, returning])
    }

    fn on_conflict(&mut self, table: &'static Table) -> Tree {
        let key = key_columns(table).join(", ");
        if self.random.one_in(3) {
            let target = self.random.pick(&["", "()"]).replace("()", &format!(" ({key})"));
            return text(format!(" ON CONFLICT{target} DO NOTHING"));
        }
        let excluded = table.columns.iter().map(|c| (format!("excluded.{}", c.name), c.kind));
        let scope = Self::target_scope(table, &excluded.collect::<Vec<_>>());
        let set = self.assignments(table, &scope);
        let condition = match self.random.one_in(2) {
            true => vec![self.condition(&scope, 1)],
            false => Vec::new(),
        };
        let head = text(format!(" ON CONFLICT ({key}) DO UPDATE SET "));
        Tree::Sequence(vec![head, set, filter(condition)])
    }
}
