//! GROUP BY, HAVING and aggregates.

use super::expressions::exchange;
use super::{Generator, Named, Relation, Scope};
use crate::differential::schema::{KINDS, Kind};
use crate::differential::tree::{Tree, list, nothing, optional, text};

/// An aggregate but for its argument.
struct Aggregate {
    start: &'static str,
    /// The argument's kind; None: `count(*)`.
    of: Option<Kind>,
    /// Behind the call, and behind its FILTER.
    end: &'static str,
}

impl Aggregate {
    fn new(start: &'static str, of: Kind, end: &'static str) -> Aggregate {
        Aggregate {
            start,
            of: Some(of),
            end,
        }
    }
}

impl Generator {
    /// GROUP BY and HAVING. The scope's keys become those of the groups.
    pub(super) fn groups(&mut self, scope: &mut Scope, relations: &[Relation], depth: u32) -> (Tree, Tree) {
        let (group, keys) = match self.random.below(8) {
            0 => self.by_primary_key(relations),
            1 | 2 if self.rare => self.by_sets(scope),
            _ => self.by_keys(scope),
        };
        scope.keys = Some(keys);
        let having = match self.random.one_in(3) {
            true => optional(vec![text(" HAVING "), self.condition(scope, depth.min(1))]),
            false => nothing(),
        };
        (group, having)
    }

    fn by_keys(&mut self, scope: &Scope) -> (Tree, Vec<Named>) {
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
        (group, keys)
    }

    /// By a table's primary key, on which its other columns depend.
    fn by_primary_key(&mut self, relations: &[Relation]) -> (Tree, Vec<Named>) {
        let tables: Vec<&Relation> = relations.iter().filter(|r| r.table.is_some()).collect();
        let Some(relation) = tables.get(self.random.index(tables.len())) else {
            return (nothing(), Vec::new());
        };
        let key = relation.table.into_iter().flat_map(|t| t.columns).filter(|c| c.key);
        let names = key.map(|c| text(format!("{}.{}", relation.alias, c.name))).collect();
        (
            Tree::Sequence(vec![text(" GROUP BY "), list(", ", names)]),
            relation.named(),
        )
    }

    fn by_sets(&mut self, scope: &mut Scope) -> (Tree, Vec<Named>) {
        let mut keys: Vec<Named> = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let column = &scope.columns[self.random.index(scope.columns.len())];
            if !keys.contains(column) {
                keys.push(column.clone());
            }
        }
        scope.sets = true;
        let names = || keys.iter().map(|(name, _)| text(name));
        let group = match self.random.below(3) {
            0 => vec![text(" GROUP BY ROLLUP ("), list(", ", names().collect()), text(")")],
            1 => vec![text(" GROUP BY CUBE ("), list(", ", names().collect()), text(")")],
            _ => {
                let mut sets: Vec<Tree> = names().collect();
                sets.push(text("()"));
                let all: Vec<&str> = keys.iter().map(|(name, _)| name.as_str()).collect();
                sets.push(text(format!("({})", all.join(", "))));
                vec![text(" GROUP BY GROUPING SETS ("), list(", ", sets), text(")")]
            }
        };
        (Tree::Sequence(group), keys)
    }

    pub(super) fn aggregate(&mut self, scope: &Scope, kind: Kind) -> Tree {
        // Of columns of this query alone: else the aggregate would belong to the query around.
        let own = Scope {
            columns: scope.columns.clone(),
            ..Scope::default()
        };
        let keys = scope.keys.as_deref().unwrap_or_default();
        if kind == Kind::Int && scope.sets && !keys.is_empty() && self.random.one_in(2) {
            return text(format!("grouping({})", keys[self.random.index(keys.len())].0));
        }
        if kind == Kind::Text && self.rare && self.random.one_in(5) {
            let of = self.expr(&own, Kind::Text, 0);
            let distinct = self.random.pick(&["", "DISTINCT "]);
            let item = format!("({of})::text");
            return text(format!("string_agg({distinct}{item}, ',' ORDER BY {item})"));
        }
        let Aggregate { start, of, end } = self.aggregate_function(kind);
        let mut parts = vec![text(start)];
        if let Some(of) = of {
            let distinct = if self.random.one_in(6) { "DISTINCT " } else { "" };
            let depth = self.random.below(2) as u32;
            parts.extend([text(distinct), self.expr(&own, of, depth)]);
        }
        parts.push(text(")"));
        if self.random.one_in(8) {
            let condition = self.condition(&own, 0);
            parts.push(optional(vec![text(" FILTER (WHERE "), condition, text(")")]));
        }
        parts.push(text(end));
        exchange(kind, parts, &[])
    }

    fn aggregate_function(&mut self, kind: Kind) -> Aggregate {
        match (kind, self.random.below(4)) {
            (Kind::Big, 0) => Aggregate {
                start: "count(*",
                of: None,
                end: "",
            },
            (Kind::Big, 1) => Aggregate::new("count(", self.random.pick(&KINDS), ""),
            (Kind::Big, 2) => Aggregate::new("sum(", Kind::Int, ""),
            (Kind::Big, 3) => Aggregate::new("sum(", Kind::Big, "::bigint"),
            (Kind::Numeric, 0) => Aggregate::new("round(avg(", Kind::Int, ", 2)"),
            (Kind::Numeric, 1) => Aggregate::new("sum(", Kind::Numeric, ""),
            (Kind::Numeric, 2) => Aggregate::new("round(avg(", Kind::Numeric, ", 2)"),
            (Kind::Bool, 0 | 1) => Aggregate::new("bool_and(", Kind::Bool, ""),
            (Kind::Bool, _) => Aggregate::new("bool_or(", Kind::Bool, ""),
            (kind, 0 | 1) => Aggregate::new("min(", kind, ""),
            (kind, _) => Aggregate::new("max(", kind, ""),
        }
    }
}
