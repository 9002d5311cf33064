//! One relation with its statements.

use crate::differential::generate::block::{Block, Shape};
use crate::differential::generate::{Generator, Statement};
use crate::differential::schema::Kind;
use crate::differential::tree::{Tree, text};
use cenote_base::random::Random;
use std::fmt::{self, Display, Formatter};

/// What carries a statement out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// What the planner chooses.
    Chosen,
    /// Not the short path.
    Rows,
    /// Neither that nor the row executor.
    Analytics,
}

impl Path {
    pub(super) const ALL: [Path; 3] = [Path::Chosen, Path::Rows, Path::Analytics];

    /// The settings of its connection.
    pub(super) fn settings(self) -> &'static str {
        match self {
            Path::Chosen => "",
            Path::Rows => "SET enable_short_path = off",
            Path::Analytics => "SET enable_short_path = off; SET enable_row_executor = off",
        }
    }
}

/// A statement of one side.
pub(super) struct Query {
    pub(super) sql: String,
    pub(super) path: Path,
    /// The table that it changes.
    pub(super) target: Option<&'static str>,
}

impl Query {
    fn new(sql: String) -> Query {
        Query {
            sql,
            path: Path::Chosen,
            target: None,
        }
    }
}

/// What has to agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    /// The three parts, each by a statement.
    Parts,
    /// The three parts by one UNION ALL.
    Union,
    Distinct,
    /// An aggregate of the parts' aggregates.
    Aggregate,
    /// Groups' aggregates of the parts'.
    Groups,
    Having,
    /// All pairs are those of which ON holds, does not hold, or is unknown.
    Join,
    /// LEFT JOIN is JOIN and the rows for which NOT EXISTS a match.
    LeftJoin,
    /// FULL JOIN is LEFT JOIN and the rows of the other side for which NOT EXISTS a match.
    FullJoin,
    /// WHERE EXISTS is the rows with a match, each once.
    Exists,
    Count,
    Delete,
    Update,
    Paths,
}

const RELATIONS: [Relation; 16] = [
    Relation::Parts,
    Relation::Parts,
    Relation::Union,
    Relation::Distinct,
    Relation::Aggregate,
    Relation::Groups,
    Relation::Having,
    Relation::Join,
    Relation::LeftJoin,
    Relation::FullJoin,
    Relation::Exists,
    Relation::Count,
    Relation::Delete,
    Relation::Update,
    Relation::Paths,
    Relation::Paths,
];

/// A relation with what its statements are made of.
#[derive(Clone, Debug)]
pub(super) struct Case {
    relation: Relation,
    block: Block,
    /// The statement of [`Relation::Paths`].
    statement: Statement,
    /// An aggregate, and the aggregate of its answers.
    aggregate: (&'static str, &'static str),
}

impl Case {
    pub(super) fn new(generator: &mut Generator, random: &mut Random) -> Case {
        let relation = random.pick(&RELATIONS);
        let shape = match relation {
            Relation::Join | Relation::LeftJoin | Relation::FullJoin | Relation::Exists => Shape::Pair,
            Relation::Delete | Relation::Update => Shape::Target,
            _ => Shape::Joined,
        };
        let block = generator.block(shape);
        let statement = match relation {
            Relation::Paths => generator.query_statement(),
            _ => Statement::of(text("")),
        };
        let aggregate = match (block.kind, random.below(3)) {
            (_, 0) => ("count", "sum"),
            (Kind::Int | Kind::Big | Kind::Numeric, 1) => ("sum", "sum"),
            (Kind::Bool, _) => random.pick(&[("bool_and", "bool_and"), ("bool_or", "bool_or")]),
            _ => random.pick(&[("min", "min"), ("max", "max")]),
        };
        Case {
            relation,
            block,
            statement,
            aggregate,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self.relation {
            Relation::Parts | Relation::Union => "partitions of WHERE",
            Relation::Distinct => "partitions of DISTINCT",
            Relation::Aggregate => "partitions of an aggregate",
            Relation::Groups => "partitions of GROUP BY",
            Relation::Having => "partitions of HAVING",
            Relation::Join => "partitions of ON",
            Relation::LeftJoin => "LEFT JOIN, and JOIN with NOT EXISTS",
            Relation::FullJoin => "FULL JOIN, and LEFT JOIN with NOT EXISTS",
            Relation::Exists => "EXISTS, and JOIN with DISTINCT",
            Relation::Count => "WHERE, and CASE in the select list",
            Relation::Delete => "SELECT, and DELETE",
            Relation::Update => "SELECT, and UPDATE",
            Relation::Paths => "paths",
        }
    }

    /// Whether rows are compared as sets.
    pub(super) fn as_sets(&self) -> bool {
        matches!(self.relation, Relation::Distinct | Relation::Exists)
    }

    /// Whether one side's error has to be the other's: the statement is the same.
    pub(super) fn fails_alike(&self) -> bool {
        self.relation == Relation::Paths
    }

    pub(super) fn cuts(&self) -> Vec<Case> {
        let of_block = self
            .block
            .cuts()
            .into_iter()
            .map(|block| Case { block, ..self.clone() });
        let of_statement = self.statement.cuts().into_iter().map(|statement| Case {
            statement,
            ..self.clone()
        });
        of_statement.chain(of_block).collect()
    }

    /// The statements of both sides.
    pub(super) fn sides(&self) -> [Vec<Query>; 2] {
        let sides = match self.relation {
            Relation::Parts => [vec![self.selected("")], self.partitions("")],
            Relation::Union => [vec![self.selected("")], vec![self.partitions("").join(" UNION ALL ")]],
            Relation::Distinct => [vec![self.selected("DISTINCT ")], self.partitions("DISTINCT ")],
            Relation::Aggregate => self.aggregates(),
            Relation::Groups => self.groups(),
            Relation::Having => self.having(),
            Relation::Join => self.pairs(),
            Relation::LeftJoin => self.left_join(),
            Relation::FullJoin => self.full_join(),
            Relation::Exists => self.exists(),
            Relation::Count => self.counts(),
            Relation::Delete | Relation::Update => return self.changes(),
            Relation::Paths => return self.paths(),
        };
        sides.map(|side| side.into_iter().map(Query::new).collect())
    }

    fn selected(&self, distinct: &str) -> String {
        let Block {
            items, from, filter, ..
        } = &self.block;
        format!("SELECT {distinct}{items}{from} WHERE {filter}")
    }

    fn partitions(&self, distinct: &str) -> Vec<String> {
        let all = self.selected(distinct);
        let part = |condition| format!("{all} AND {condition}");
        thirds(&self.block.predicate).into_iter().map(part).collect()
    }

    fn aggregates(&self) -> [Vec<String>; 2] {
        let Block {
            argument, from, filter, ..
        } = &self.block;
        let (inner, outer) = self.aggregate;
        let all = format!("SELECT {inner}({argument}) AS x1{from} WHERE {filter}");
        let parts = thirds(&self.block.predicate).map(|condition| format!("{all} AND {condition}"));
        let whole = format!("SELECT {outer}(q.x1) FROM ({}) AS q", parts.join(" UNION ALL "));
        [vec![all], vec![whole]]
    }

    fn groups(&self) -> [Vec<String>; 2] {
        let Block {
            argument,
            from,
            filter,
            keys,
            ..
        } = &self.block;
        let (inner, outer) = self.aggregate;
        // One name for the keys together would need a type for rows.
        let key = keys.to_string();
        let key = key.split(", ").next().unwrap_or_default();
        let all = format!("SELECT {key} AS x1, {inner}({argument}) AS x2{from} WHERE {filter}");
        let part = |condition| format!("{all} AND {condition} GROUP BY {key}");
        let parts = thirds(&self.block.predicate).map(part).join(" UNION ALL ");
        let whole = format!("SELECT q.x1, {outer}(q.x2) FROM ({parts}) AS q GROUP BY q.x1");
        [vec![format!("{all} GROUP BY {key}")], vec![whole]]
    }

    fn having(&self) -> [Vec<String>; 2] {
        let Block {
            from,
            filter,
            keys,
            of_groups,
            ..
        } = &self.block;
        let all = format!("SELECT {keys}, count(*){from} WHERE {filter} GROUP BY {keys}");
        let part = |condition| format!("{all} HAVING {condition}");
        let parts = thirds(of_groups).into_iter().map(part).collect();
        [vec![all], parts]
    }

    fn pairs(&self) -> [Vec<String>; 2] {
        let Block {
            items,
            from,
            next,
            filter,
            predicate,
            ..
        } = &self.block;
        let part = |condition| format!("SELECT {items}{from} JOIN {next} ON {condition} WHERE {filter}");
        let all = format!("SELECT {items}{from} CROSS JOIN {next} WHERE {filter}");
        [vec![all], thirds(predicate).into_iter().map(part).collect()]
    }

    fn left_join(&self) -> [Vec<String>; 2] {
        let Block {
            items,
            from,
            next,
            filter,
            predicate,
            ..
        } = &self.block;
        let joined = |join| format!("SELECT {items}{from} {join} {next} ON {predicate} WHERE {filter}");
        let alone =
            format!("SELECT {items}{from} WHERE {filter} AND NOT EXISTS (SELECT 1 FROM {next} WHERE {predicate})");
        [vec![joined("LEFT JOIN")], vec![joined("JOIN"), alone]]
    }

    fn full_join(&self) -> [Vec<String>; 2] {
        let Block {
            from, next, predicate, ..
        } = &self.block;
        let joined = |join| format!("SELECT count(*){from} {join} {next} ON {predicate}");
        let left = from.to_string();
        let left = left.trim_start_matches(" FROM ");
        let alone = format!("SELECT 1 FROM {next} WHERE NOT EXISTS (SELECT 1 FROM {left} WHERE {predicate})");
        let whole = format!(
            "SELECT ({}) + (SELECT count(*) FROM ({alone}) AS q)",
            joined("LEFT JOIN")
        );
        [vec![joined("FULL JOIN")], vec![whole]]
    }

    fn exists(&self) -> [Vec<String>; 2] {
        let Block {
            items,
            from,
            next,
            filter,
            predicate,
            ..
        } = &self.block;
        let semi = format!("SELECT {items}{from} WHERE {filter} AND EXISTS (SELECT 1 FROM {next} WHERE {predicate})");
        let joined = format!("SELECT DISTINCT {items}{from} JOIN {next} ON {predicate} WHERE {filter}");
        [vec![semi], vec![joined]]
    }

    fn counts(&self) -> [Vec<String>; 2] {
        let Block { from, predicate, .. } = &self.block;
        let asked = format!("SELECT count(*){from} WHERE {predicate}");
        let counted = format!("SELECT coalesce(sum(CASE WHEN {predicate} THEN 1 ELSE 0 END), 0){from}");
        [vec![asked], vec![counted]]
    }

    fn changes(&self) -> [Vec<Query>; 2] {
        let Block {
            keys,
            from,
            predicate,
            target,
            ..
        } = &self.block;
        let table = target.expect("a block of one table");
        let selected = Query::new(format!("SELECT {keys}{from} WHERE {predicate}"));
        let sql = match self.relation {
            Relation::Delete => format!("DELETE FROM {table} tt WHERE {predicate} RETURNING {keys}"),
            _ => {
                let key = keys.to_string();
                let column = key.split(", ").next().and_then(|name| name.strip_prefix("tt."));
                let column = column.unwrap_or_default();
                format!("UPDATE {table} tt SET {column} = tt.{column} WHERE {predicate} RETURNING {keys}")
            }
        };
        let changed = Query {
            target: *target,
            ..Query::new(sql)
        };
        [vec![selected], vec![changed]]
    }

    fn paths(&self) -> [Vec<Query>; 2] {
        let by = |path| Query {
            path,
            ..Query::new(self.statement.sql())
        };
        [
            vec![by(Path::Chosen)],
            vec![by(if self.by_rows() { Path::Rows } else { Path::Analytics })],
        ]
    }

    fn by_rows(&self) -> bool {
        self.block.kind == Kind::Int
    }
}

/// The conditions that a predicate holds, does not hold, and is unknown.
fn thirds(predicate: &Tree) -> [String; 3] {
    [
        format!("({predicate})"),
        format!("(NOT ({predicate}))"),
        format!("(({predicate}) IS NULL)"),
    ]
}

impl Display for Case {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        for (side, queries) in ["left", "right"].iter().zip(self.sides()) {
            for query in queries {
                write!(f, "\n    {side}: {}", query.sql)?;
                if query.path != Path::Chosen {
                    write!(f, " -- {}", query.path.settings())?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_the_relation_and_its_statements() {
        let case = |seed| Case::new(&mut Generator::new(seed), &mut Random(seed)).to_string();
        for seed in 0..50 {
            assert_eq!(case(seed), case(seed));
        }
        assert_ne!(case(1), case(2));
    }

    #[test]
    fn a_predicate_divides_rows_into_three() {
        let parts = thirds(&text("a = 1"));
        assert_eq!(parts, ["(a = 1)", "(NOT (a = 1))", "((a = 1) IS NULL)"]);
    }
}
