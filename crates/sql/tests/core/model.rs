//! The short path against a naive model: random tables, indexes and conditions; every path must find what a plain walk
//! finds.

use crate::support::{Database, simple};
use cenote_sql::Session;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;

/// A row: key, two nullable columns.
type Row = (Option<i32>, Option<i32>);

#[derive(Debug, Clone)]
enum Step {
    Insert(i32, Row),
    Upsert(i32, Row),
    Update { set: i32, condition: Condition },
    MoveKeys { by: i32, condition: Condition },
    Delete(Condition),
    Select(Condition, &'static str, Option<u32>),
    Begin,
    Rollback,
    Commit,
}

#[derive(Debug, Clone)]
enum Condition {
    True,
    Compare(&'static str, &'static str, i32),
    Between(&'static str, i32, i32),
    In(&'static str, Vec<i32>),
    Null(&'static str),
    And(Box<Condition>, Box<Condition>),
    Or(Box<Condition>, Box<Condition>),
    Not(Box<Condition>),
}

impl Condition {
    fn sql(&self) -> String {
        match self {
            Condition::True => "true".into(),
            Condition::Compare(c, op, v) => format!("{c} {op} {v}"),
            Condition::Between(c, a, b) => format!("{c} BETWEEN {a} AND {b}"),
            Condition::In(c, list) => format!(
                "{c} IN ({})",
                list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ),
            Condition::Null(c) => format!("{c} IS NULL"),
            Condition::And(a, b) => format!("({} AND {})", a.sql(), b.sql()),
            Condition::Or(a, b) => format!("({} OR {})", a.sql(), b.sql()),
            Condition::Not(a) => format!("NOT ({})", a.sql()),
        }
    }

    fn test(&self, id: i32, row: &Row) -> Option<bool> {
        let value = |c: &str| match c {
            "id" => Some(id),
            "a" => row.0,
            _ => row.1,
        };
        match self {
            Condition::True => Some(true),
            Condition::Compare(c, op, v) => value(c).map(|x| match *op {
                "=" => x == *v,
                "<>" => x != *v,
                "<" => x < *v,
                "<=" => x <= *v,
                ">" => x > *v,
                _ => x >= *v,
            }),
            Condition::Between(c, a, b) => value(c).map(|x| x >= *a && x <= *b),
            Condition::In(c, list) => value(c).map(|x| list.contains(&x)),
            Condition::Null(c) => Some(value(c).is_none()),
            Condition::And(a, b) => match (a.test(id, row), b.test(id, row)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Condition::Or(a, b) => match (a.test(id, row), b.test(id, row)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            },
            Condition::Not(a) => a.test(id, row).map(|b| !b),
        }
    }
}

fn condition() -> impl Strategy<Value = Condition> {
    let column = prop_oneof![Just("id"), Just("a"), Just("b")];
    let op = prop_oneof![Just("="), Just("<>"), Just("<"), Just("<="), Just(">"), Just(">=")];
    let leaf = prop_oneof![
        1 => Just(Condition::True),
        6 => (column.clone(), op, -3..25i32).prop_map(|(c, o, v)| Condition::Compare(c, o, v)),
        2 => (column.clone(), -3..25i32, -3..25i32).prop_map(|(c, a, b)| Condition::Between(c, a, b)),
        2 => (column.clone(), prop::collection::vec(-3..25i32, 1..5)).prop_map(|(c, l)| Condition::In(c, l)),
        1 => column.prop_map(Condition::Null),
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        prop_oneof![
            3 => (inner.clone(), inner.clone()).prop_map(|(a, b)| Condition::And(Box::new(a), Box::new(b))),
            1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| Condition::Or(Box::new(a), Box::new(b))),
            1 => inner.prop_map(|a| Condition::Not(Box::new(a))),
        ]
    })
}

fn row() -> impl Strategy<Value = Row> {
    (
        prop::option::weighted(0.8, 0..20i32),
        prop::option::weighted(0.8, 0..20i32),
    )
}

fn step() -> impl Strategy<Value = Step> {
    let order = prop_oneof![
        Just("id"),
        Just("id DESC"),
        Just("a, id"),
        Just("a DESC, id DESC"),
        Just("b NULLS FIRST, id")
    ];
    prop_oneof![
        6 => (0..30i32, row()).prop_map(|(k, r)| Step::Insert(k, r)),
        2 => (0..30i32, row()).prop_map(|(k, r)| Step::Upsert(k, r)),
        2 => (0..20i32, condition()).prop_map(|(set, condition)| Step::Update { set, condition }),
        1 => (1..40i32, condition()).prop_map(|(by, condition)| Step::MoveKeys { by, condition }),
        1 => condition().prop_map(Step::Delete),
        8 => (condition(), order, prop::option::of(0..6u32)).prop_map(|(c, o, l)| Step::Select(c, o, l)),
        1 => Just(Step::Begin),
        1 => Just(Step::Rollback),
        1 => Just(Step::Commit),
    ]
}

fn text(value: Option<i32>) -> String {
    value.map_or("NULL".into(), |v| v.to_string())
}

fn select(model: &BTreeMap<i32, Row>, condition: &Condition, order: &str, limit: Option<u32>) -> Vec<String> {
    let mut rows: Vec<(i32, Row)> = model
        .iter()
        .filter(|(k, r)| condition.test(**k, r) == Some(true))
        .map(|(k, r)| (*k, *r))
        .collect();
    // NULL is above every value.
    let high = |v: Option<i32>| v.map_or(i64::MAX, i64::from);
    match order {
        "id" => {}
        "id DESC" => rows.reverse(),
        "a, id" => rows.sort_by_key(|(k, r)| (high(r.0), *k)),
        "a DESC, id DESC" => rows.sort_by_key(|(k, r)| std::cmp::Reverse((high(r.0), *k))),
        _ => rows.sort_by_key(|(k, r)| (r.1.map_or(i64::MIN, i64::from), *k)),
    }
    let shown = rows.iter().map(|(k, r)| format!("{k}|{}|{}", text(r.0), text(r.1)));
    shown.take(limit.map_or(usize::MAX, |l| l as usize)).collect()
}

/// The table as it is, and as it has to be.
struct Model {
    session: Session,
    rows: BTreeMap<i32, Row>,
    /// The rows that the open block began with.
    before: Option<BTreeMap<i32, Row>>,
}

impl Model {
    fn new(database: &Database, layout: usize) -> Model {
        let mut session = database.session();
        let key = if layout == 0 { "" } else { ", PRIMARY KEY (id)" };
        let create = format!("CREATE TABLE t (id int NOT NULL, a int, b int{key})");
        simple(&mut session, &create).expect("create");
        let indexes: &[&str] = match layout {
            0 => &["CREATE UNIQUE INDEX u ON t (id)"],
            1 => &[],
            2 => &["CREATE INDEX i ON t (a)"],
            _ => &["CREATE INDEX i ON t (a, b)", "CREATE INDEX j ON t (b)"],
        };
        for index in indexes {
            simple(&mut session, index).expect("index");
        }
        Model {
            session,
            rows: BTreeMap::new(),
            before: None,
        }
    }

    fn tag(&mut self, sql: &str) -> String {
        simple(&mut self.session, sql).expect(sql).tags.remove(0)
    }

    fn qualifying(&self, condition: &Condition) -> Vec<i32> {
        let rows = self.rows.iter();
        rows.filter(|(k, r)| condition.test(**k, r) == Some(true))
            .map(|(k, _)| *k)
            .collect()
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Insert(id, row) => self.insert(*id, *row),
            Step::Upsert(id, row) => self.upsert(*id, *row),
            Step::Update { set, condition } => self.update(*set, condition),
            Step::MoveKeys { by, condition } => self.move_keys(*by, condition),
            Step::Delete(condition) => self.delete(condition),
            Step::Select(condition, order, limit) => {
                self.select(condition, order, *limit)?;
                self.aggregate(condition)
            }
            Step::Begin => self.begin(),
            Step::Rollback => self.end("ROLLBACK"),
            Step::Commit => self.end("COMMIT"),
        }
    }

    fn insert(&mut self, id: i32, (a, b): Row) -> Result<(), TestCaseError> {
        let values = format!("({id}, {}, {})", text(a), text(b));
        let tag = self.tag(&format!("INSERT INTO t VALUES {values} ON CONFLICT DO NOTHING"));
        let fresh = !self.rows.contains_key(&id);
        self.rows.entry(id).or_insert((a, b));
        prop_assert_eq!(tag, format!("INSERT 0 {}", u8::from(fresh)));
        Ok(())
    }

    fn upsert(&mut self, id: i32, (a, b): Row) -> Result<(), TestCaseError> {
        let values = format!("({id}, {}, {})", text(a), text(b));
        self.tag(&format!(
            "INSERT INTO t VALUES {values} ON CONFLICT (id) DO UPDATE SET a = excluded.a, b = t.a"
        ));
        let new = self.rows.get(&id).map_or((a, b), |old| (a, old.0));
        self.rows.insert(id, new);
        Ok(())
    }

    fn update(&mut self, set: i32, condition: &Condition) -> Result<(), TestCaseError> {
        let keys = self.qualifying(condition);
        let tag = self.tag(&format!("UPDATE t SET a = {set}, b = a + 1 WHERE {}", condition.sql()));
        prop_assert_eq!(tag, format!("UPDATE {}", keys.len()));
        for key in keys {
            let row = self.rows.get_mut(&key).expect("it qualified");
            *row = (Some(set), row.0.map(|a| a + 1));
        }
        Ok(())
    }

    fn move_keys(&mut self, by: i32, condition: &Condition) -> Result<(), TestCaseError> {
        let keys = self.qualifying(condition);
        let moved: BTreeMap<i32, Row> = keys.iter().map(|k| (k + 1000 + by, self.rows[k])).collect();
        if self.before.is_some() || moved.keys().any(|k| self.rows.contains_key(k)) {
            return Ok(());
        }
        self.tag(&format!("UPDATE t SET id = id + 1000 + {by} WHERE {}", condition.sql()));
        self.rows.retain(|k, _| !keys.contains(k));
        self.rows.extend(moved);
        Ok(())
    }

    fn delete(&mut self, condition: &Condition) -> Result<(), TestCaseError> {
        let keys = self.qualifying(condition);
        let tag = self.tag(&format!("DELETE FROM t WHERE {}", condition.sql()));
        prop_assert_eq!(tag, format!("DELETE {}", keys.len()));
        self.rows.retain(|k, _| !keys.contains(k));
        Ok(())
    }

    fn select(&mut self, condition: &Condition, order: &str, limit: Option<u32>) -> Result<(), TestCaseError> {
        let clause = limit.map_or(String::new(), |l| format!(" LIMIT {l}"));
        let sql = format!("SELECT * FROM t WHERE {} ORDER BY {order}{clause}", condition.sql());
        let got = simple(&mut self.session, &sql).expect("select").lines();
        prop_assert_eq!(got, select(&self.rows, condition, order, limit), "{}", sql);
        Ok(())
    }

    fn aggregate(&mut self, condition: &Condition) -> Result<(), TestCaseError> {
        let sql = format!("SELECT count(*), sum(a), min(b) FROM t WHERE {}", condition.sql());
        let rows: Vec<Row> = self.qualifying(condition).iter().map(|k| self.rows[k]).collect();
        let sum: Option<i32> = rows.iter().filter_map(|r| r.0).reduce(|x, y| x + y);
        let min = rows.iter().filter_map(|r| r.1).min();
        let wanted = format!("{}|{}|{}", rows.len(), text(sum), text(min));
        let got = simple(&mut self.session, &sql).expect("aggregate").lines();
        prop_assert_eq!(got, vec![wanted], "{}", sql);
        Ok(())
    }

    fn begin(&mut self) -> Result<(), TestCaseError> {
        if self.before.is_none() {
            self.tag("BEGIN");
            self.before = Some(self.rows.clone());
        }
        Ok(())
    }

    fn end(&mut self, how: &str) -> Result<(), TestCaseError> {
        let Some(old) = self.before.take() else { return Ok(()) };
        self.tag(how);
        if how == "ROLLBACK" {
            self.rows = old;
        }
        Ok(())
    }
}

fn check(steps: &[Step], layout: usize) -> Result<(), TestCaseError> {
    let database = Database::new();
    let mut model = Model::new(&database, layout);
    steps.iter().try_for_each(|step| model.take(step))
}

#[test]
fn every_path_finds_what_a_walk_finds() {
    let mut runner = TestRunner::new(Config {
        cases: 24,
        failure_persistence: None,
        ..Config::default()
    });
    let strategy = (prop::collection::vec(step(), 1..60), 0..4usize);
    runner
        .run(&strategy, |(steps, layout)| check(&steps, layout))
        .unwrap_or_else(|e| panic!("{e}"));
}
