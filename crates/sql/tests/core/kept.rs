//! Plans that are kept: a generic and a custom one give what a plan made for the values gives, whatever the values are;
//! which of them is taken; and what makes a kept plan anew.

use crate::support::{Answer, Database, bind_tail, extended, simple};
use cenote_base::random::Random;
use cenote_sql::{Bind, Session, SqlError};

fn run(session: &mut Session, text: &str) -> Answer {
    simple(session, text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn explained(session: &mut Session, text: &str) -> String {
    run(session, &format!("EXPLAIN {text}")).lines().join("\n")
}

/// `item`: 4,000 rows, `kind` 0 in most of them; `part`: some of them again, keyed by two columns; `few`: 40 rows.
/// Analyzed, so that values matter.
fn filled(database: &Database) -> Session {
    let mut session = database.session();
    run(
        &mut session,
        "CREATE TABLE item (id int PRIMARY KEY, kind int, small smallint, big bigint, name text, code varchar(6),
            price numeric(8,2), day date, filler text);
         CREATE INDEX item_kind ON item (kind); CREATE INDEX item_small ON item (small, big);
         CREATE UNIQUE INDEX item_big ON item (big); CREATE INDEX item_name ON item (name);
         CREATE INDEX item_day ON item (day);
         CREATE TABLE part (item int, line int, amount int, note text, PRIMARY KEY (item, line));
         CREATE INDEX part_amount ON part (amount);
         CREATE TABLE few (n int PRIMARY KEY, kind int)",
    );
    for chunk in 0..4 {
        let rows: Vec<String> = (1000 * chunk..1000 * (chunk + 1)).map(item).collect();
        run(&mut session, &format!("INSERT INTO item VALUES {}", rows.join(", ")));
        let rows: Vec<String> = (1000 * chunk..1000 * (chunk + 1))
            .filter(|id| id % 3 == 0)
            .flat_map(|id| (0..id % 4).map(move |line| format!("({id}, {line}, {}, 'p{}')", id % 50, id % 9)))
            .collect();
        run(&mut session, &format!("INSERT INTO part VALUES {}", rows.join(", ")));
    }
    let rows: Vec<String> = (0..40).map(|n| format!("({n}, {})", n % 13)).collect();
    run(&mut session, &format!("INSERT INTO few VALUES {}", rows.join(", ")));
    run(&mut session, "ANALYZE");
    session
}

fn item(id: i64) -> String {
    let kind = if id % 10 == 0 {
        (id / 10 % 40 + 1).to_string()
    } else {
        "0".into()
    };
    let kind = if id % 97 == 0 { "NULL".to_string() } else { kind };
    let letter = char::from(b'a' + (id * 7 % 26) as u8);
    let name = if id % 53 == 0 {
        "NULL".to_string()
    } else {
        format!("'{letter}{id}%'")
    };
    format!(
        "({id}, {kind}, {}, {}, {name}, '{letter}{}', {}.5, date '2020-01-01' + {}, 'some text that fills the row')",
        id % 100,
        id * 3,
        id % 10,
        id % 500,
        id % 700,
    )
}

/// What stands for `$n`: the SQL type of a literal of it, and its values.
#[derive(Clone, Copy)]
enum Kind {
    /// An integer about the values of `kind` and `few`, beyond them, or NULL.
    Small,
    /// One that only bigint holds, now and then.
    Wide,
    /// An integer about the ids.
    Id,
    Name,
    Pattern,
    Day,
    Count,
    Array,
    Price,
}

impl Kind {
    /// The value as text, and the type that a literal of it is cast to.
    fn value(self, random: &mut Random) -> (Option<String>, &'static str) {
        let null = random.below(12) == 0;
        let number = |n: i64| Some(n.to_string());
        let id = random.below(4_400) as i64 - 200;
        let (value, ty) = match self {
            Kind::Small => (number(random.below(45) as i64 - 2), "int"),
            Kind::Wide if random.below(4) == 0 => (
                number([i64::MAX, i64::MIN, 1 << 40, -70_000][random.below(4) as usize]),
                "bigint",
            ),
            Kind::Wide => (number(id), "bigint"),
            Kind::Id => (number(id), "int"),
            Kind::Name => (
                Some(["c1%", "a", "", "z9", "m2000%"][random.below(5) as usize].to_string()),
                "text",
            ),
            Kind::Pattern => {
                let patterns = ["c%", "%9%", "", "%", "a1__\\%", "b%7%", "\\%", "_", "zz%"];
                (Some(patterns[random.below(9) as usize].to_string()), "text")
            }
            Kind::Day => (
                Some(format!("202{}-0{}-15", random.below(4), random.below(9) + 1)),
                "date",
            ),
            Kind::Count => (number(random.below(30) as i64), "bigint"),
            Kind::Array => {
                let items: Vec<String> = (0..random.below(6))
                    .map(|_| match random.below(9) {
                        0 => "NULL".to_string(),
                        _ => (random.below(4_400) as i64 - 200).to_string(),
                    })
                    .collect();
                (Some(format!("{{{}}}", items.join(","))), "")
            }
            Kind::Price => (
                Some(format!("{}.{}", random.below(520) as i64 - 10, random.below(10))),
                "numeric",
            ),
        };
        (if null { None } else { value }, ty)
    }
}

/// Each way in which a parameter decides how much a plan reads.
const SHAPES: &[(&str, &[Kind])] = &[
    ("SELECT * FROM item WHERE id = $1", &[Kind::Id]),
    ("SELECT * FROM item WHERE id = $1", &[Kind::Wide]),
    ("SELECT * FROM item WHERE big = $1", &[Kind::Id]),
    ("SELECT id FROM item WHERE kind = $1", &[Kind::Small]),
    ("SELECT id FROM item WHERE kind = $1", &[Kind::Wide]),
    (
        "SELECT id FROM item WHERE kind <> $1 AND id < $2",
        &[Kind::Small, Kind::Id],
    ),
    (
        "SELECT id FROM item WHERE small = $1 AND big > $2",
        &[Kind::Small, Kind::Wide],
    ),
    (
        "SELECT id FROM item WHERE small = $1 AND big > $2",
        &[Kind::Wide, Kind::Id],
    ),
    ("SELECT id FROM item WHERE id BETWEEN $1 AND $2", &[Kind::Id, Kind::Id]),
    (
        "SELECT id FROM item WHERE id > $1 AND id <= $1 + $2",
        &[Kind::Id, Kind::Small],
    ),
    (
        "SELECT id FROM item WHERE id IN ($1, $2, $3)",
        &[Kind::Id, Kind::Wide, Kind::Id],
    ),
    (
        "SELECT id FROM item WHERE kind IN ($1, $2)",
        &[Kind::Small, Kind::Small],
    ),
    ("SELECT id FROM item WHERE id = ANY ($1)", &[Kind::Array]),
    (
        "SELECT id FROM item WHERE kind = ANY ($1) AND id < $2",
        &[Kind::Array, Kind::Id],
    ),
    (
        "SELECT id FROM item WHERE id <> ALL ($1) AND id < $2",
        &[Kind::Array, Kind::Small],
    ),
    (
        "SELECT id FROM item WHERE kind = $1 OR id = $2",
        &[Kind::Small, Kind::Id],
    ),
    (
        "SELECT id FROM item WHERE (small, big) > ($1, $2) AND (small, big) < ($3, $4)",
        &[Kind::Small, Kind::Id, Kind::Small, Kind::Wide],
    ),
    (
        "SELECT id FROM item WHERE (small, big) >= ($1, $2) ORDER BY small, big, id LIMIT $3",
        &[Kind::Small, Kind::Wide, Kind::Count],
    ),
    ("SELECT id FROM item WHERE name LIKE $1", &[Kind::Pattern]),
    (
        "SELECT id FROM item WHERE name NOT LIKE $1 AND kind = $2",
        &[Kind::Pattern, Kind::Small],
    ),
    (
        "SELECT id FROM item WHERE code ILIKE $1 AND id > $2",
        &[Kind::Pattern, Kind::Id],
    ),
    (
        "SELECT id FROM item WHERE name >= $1 AND name < $2",
        &[Kind::Name, Kind::Name],
    ),
    ("SELECT id FROM item WHERE day = $1", &[Kind::Day]),
    (
        "SELECT id FROM item WHERE day > $1 AND day < $2 AND price > $3",
        &[Kind::Day, Kind::Day, Kind::Price],
    ),
    ("SELECT id FROM item WHERE kind IS NOT DISTINCT FROM $1", &[Kind::Small]),
    (
        "SELECT id, day FROM item ORDER BY day, id LIMIT $1 OFFSET $2",
        &[Kind::Count, Kind::Count],
    ),
    (
        "SELECT id FROM item WHERE kind = $1 ORDER BY id LIMIT $2",
        &[Kind::Small, Kind::Count],
    ),
    ("SELECT max(id), min(day) FROM item WHERE kind = $1", &[Kind::Small]),
    (
        "SELECT kind, count(*) FROM item WHERE day < $1 GROUP BY kind HAVING count(*) > $2",
        &[Kind::Day, Kind::Small],
    ),
    (
        "SELECT i.id, p.line FROM item i JOIN part p ON p.item = i.id WHERE i.id = $1",
        &[Kind::Id],
    ),
    (
        "SELECT i.id, p.line FROM item i JOIN part p ON p.item = i.id WHERE i.kind = $1",
        &[Kind::Small],
    ),
    (
        "SELECT i.id, p.line FROM item i JOIN part p ON p.item = i.id WHERE p.amount = $1 AND i.day < $2",
        &[Kind::Small, Kind::Day],
    ),
    (
        "SELECT i.id, p.line FROM item i LEFT JOIN part p ON p.item = i.id AND p.amount > $2 WHERE i.small = $1",
        &[Kind::Small, Kind::Wide],
    ),
    (
        "SELECT i.id, f.n FROM item i JOIN few f ON f.kind = i.kind WHERE f.n < $1 AND i.id BETWEEN $2 AND $3",
        &[Kind::Small, Kind::Id, Kind::Id],
    ),
    (
        "SELECT i.id, p.line, f.n FROM item i JOIN part p ON p.item = i.id JOIN few f ON f.n = p.amount WHERE i.name LIKE $1 AND f.kind = ANY ($2)",
        &[Kind::Pattern, Kind::Array],
    ),
    (
        "SELECT i.id, p.line FROM part p JOIN item i ON i.id = p.item WHERE i.kind = $1 ORDER BY i.id, p.line LIMIT $2",
        &[Kind::Small, Kind::Count],
    ),
    (
        "SELECT f.n FROM few f WHERE f.n < $2 AND EXISTS (SELECT 1 FROM item i WHERE i.kind = f.n AND i.id > $1)",
        &[Kind::Id, Kind::Small],
    ),
    (
        "SELECT i.id FROM item i WHERE i.kind = $1 AND i.id IN (SELECT p.item FROM part p WHERE p.amount < $2)",
        &[Kind::Small, Kind::Small],
    ),
    (
        "SELECT i.id, (SELECT max(p.line) FROM part p WHERE p.item = i.id AND p.amount <> $2) FROM item i WHERE i.small = $1",
        &[Kind::Small, Kind::Wide],
    ),
    (
        "SELECT id FROM item WHERE small = $1 UNION SELECT item FROM part WHERE amount = $2",
        &[Kind::Small, Kind::Small],
    ),
];

/// The text with literals for the parameters, as nobody has planned it before.
fn with_literals(text: &str, values: &[(Option<String>, &str)], n: usize) -> String {
    let mut text = text.to_string();
    for (at, (value, ty)) in values.iter().enumerate().rev() {
        let cast = if ty.is_empty() {
            String::new()
        } else {
            format!("::{ty}")
        };
        let literal = match value {
            Some(value) => format!("'{value}'{cast}"),
            None => format!("NULL{cast}"),
        };
        text = text.replace(&format!("${}", at + 1), &literal);
    }
    format!("{text} -- {n}")
}

fn executed(session: &mut Session, name: &str, values: &[(Option<String>, &str)]) -> Result<Answer, SqlError> {
    let params: Vec<Option<&str>> = values.iter().map(|(value, _)| value.as_deref()).collect();
    let mut answer = Answer::default();
    let tail = bind_tail(&params);
    let mut steps = || {
        session.bind("", name, Bind::from_wire(&tail)?)?;
        session.execute("", 0, &mut answer)
    };
    let done = steps();
    session.sync().and(done).map(|()| answer)
}

/// What a statement gave, in an order of its own where it has none.
fn told(answer: Result<Answer, SqlError>, ordered: bool) -> Result<Vec<String>, String> {
    let mut lines = answer.map_err(|error| error.code().to_string())?.lines();
    if !ordered {
        lines.sort();
    }
    Ok(lines)
}

fn oid_of(ty: &str) -> u32 {
    match ty {
        "int" => 23,
        "bigint" => 20,
        "text" => 25,
        "date" => 1082,
        "numeric" => 1700,
        _ => 0,
    }
}

#[test]
fn kept_plans_give_what_plans_made_for_the_values_give() {
    let database = Database::new();
    drop(filled(&database));
    let mut fresh = database.session();
    let mut kept: Vec<Session> = ["auto", "force_generic_plan", "force_custom_plan"]
        .iter()
        .map(|mode| {
            let mut session = database.session();
            run(&mut session, &format!("SET plan_cache_mode = {mode}"));
            session
        })
        .collect();
    let mut random = Random(0x5EED);
    for (n, (text, kinds)) in SHAPES.iter().enumerate() {
        let name = format!("s{n}");
        let types: Vec<u32> = kinds.iter().map(|kind| oid_of(kind.value(&mut Random(1)).1)).collect();
        for session in &mut kept {
            session
                .parse(&name, text, &types)
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            session.sync().expect("sync");
        }
        for round in 0..12 {
            let values: Vec<_> = kinds.iter().map(|kind| kind.value(&mut random)).collect();
            let ordered = text.contains("ORDER BY");
            let literal = with_literals(text, &values, round);
            let wanted = told(simple(&mut fresh, &literal), ordered);
            for (session, mode) in kept.iter_mut().zip(["auto", "generic", "custom"]) {
                let given = told(executed(session, &name, &values), ordered);
                assert_eq!(given, wanted, "{mode}, run {round}: {literal}");
            }
        }
    }
}

/// The statements of the simple protocol whose literals were taken out are planned for these at first.
#[test]
fn texts_that_differ_in_literals_are_planned_for_them() {
    let database = Database::new();
    drop(filled(&database));
    let (mut kept, mut fresh) = (database.session(), database.session());
    let mut random = Random(7);
    for (text, kinds) in SHAPES
        .iter()
        .filter(|(_, kinds)| !kinds.iter().any(|k| matches!(k, Kind::Array)))
    {
        for round in 0..12 {
            let mut literal = text.to_string();
            for (at, kind) in kinds.iter().enumerate().rev() {
                let value = match kind.value(&mut random) {
                    (Some(value), "int" | "bigint" | "numeric") if !value.starts_with('-') => value,
                    (Some(value), _) => format!("'{value}'"),
                    (None, _) => "NULL".to_string(),
                };
                literal = literal.replace(&format!("${}", at + 1), &value);
            }
            let ordered = text.contains("ORDER BY");
            let wanted = told(simple(&mut fresh, &format!("{literal} -- {round}")), ordered);
            assert_eq!(told(simple(&mut kept, &literal), ordered), wanted, "{literal}");
        }
    }
}

#[test]
fn five_runs_are_planned_for_their_values_then_costs_decide() {
    let database = Database::new();
    let mut session = filled(&database);
    run(
        &mut session,
        "PREPARE by_kind(int) AS SELECT filler FROM item WHERE kind = $1",
    );
    let (scan, index) = ("full scan on item", "by index item_kind");
    let plan = explained(&mut session, "EXECUTE by_kind(0)");
    assert!(plan.contains(scan), "{plan}");
    let plan = explained(&mut session, "EXECUTE by_kind(7)");
    assert!(plan.contains(index), "{plan}");
    for _ in 0..3 {
        run(&mut session, "EXECUTE by_kind(0)");
    }
    // Plans for a value in most rows were dearer than the generic one seems to be.
    let plan = explained(&mut session, "EXECUTE by_kind(0)");
    assert!(plan.contains(index), "{plan}");
    run(&mut session, "SET plan_cache_mode = force_custom_plan");
    let plan = explained(&mut session, "EXECUTE by_kind(0)");
    assert!(plan.contains(scan), "{plan}");
    run(&mut session, "SET plan_cache_mode = force_generic_plan");
    let plan = explained(&mut session, "EXECUTE by_kind(0)");
    assert!(plan.contains(index), "{plan}");
    run(&mut session, "RESET plan_cache_mode");
    let error = simple(&mut session, "SET plan_cache_mode = never")
        .err()
        .expect("no such mode");
    assert_eq!(error.code(), "22023");
}

#[test]
fn ranges_patterns_and_limits_are_planned_for_their_values() {
    let database = Database::new();
    let mut session = filled(&database);
    for (text, args, part) in [
        (
            "a(int, int) AS SELECT filler FROM item WHERE day > date '2020-01-01' + $1 AND day < date '2020-01-01' + $2",
            "1, 3",
            "by index item_day",
        ),
        (
            "b(int, int) AS SELECT filler FROM item WHERE day > date '2020-01-01' + $1 AND day < date '2020-01-01' + $2",
            "1, 690",
            "full scan",
        ),
        (
            "c(text) AS SELECT filler FROM item WHERE name LIKE $1",
            "'a1%'",
            "by index item_name",
        ),
        (
            "d(text) AS SELECT filler FROM item WHERE name LIKE $1",
            "'%a'",
            "full scan",
        ),
        (
            "e(int) AS SELECT filler FROM item ORDER BY day LIMIT $1",
            "3",
            "by index item_day",
        ),
    ] {
        run(&mut session, &format!("PREPARE {text}"));
        let plan = explained(&mut session, &format!("EXECUTE {}({args})", &text[..1]));
        assert!(plan.contains(part), "{text} {args}: {plan}");
    }
}

/// Where no value gives another plan, none is made again; where the table is not analyzed, neither.
#[test]
fn a_key_needs_no_other_plan() {
    let database = Database::new();
    let mut session = filled(&database);
    run(&mut session, "SET plan_cache_mode = auto");
    for text in [
        "SELECT * FROM item WHERE id = $1",
        "UPDATE few SET kind = $2 WHERE n = $1",
        "DELETE FROM few WHERE n = $1 AND $2 = 1",
    ] {
        session.parse("", text, &[]).expect("parsed");
        let params = vec![(Some("-5".to_string()), "int"); 1 + usize::from(text.contains("$2"))];
        for _ in 0..3 {
            executed(&mut session, "", &params).expect("run");
        }
    }
    run(
        &mut session,
        "DROP TABLE part; CREATE TABLE part (item int PRIMARY KEY, amount int); CREATE INDEX part_amount ON part (amount)",
    );
    let text = "SELECT item FROM part WHERE amount > $1";
    assert_eq!(
        extended(&mut session, text, &[Some("5")]).expect("run").lines(),
        Vec::<String>::new()
    );
}

/// A plan kept for one table does not outlive it, nor what is known of it.
#[test]
fn a_kept_plan_goes_with_the_catalog_and_the_statistics() {
    let database = Database::new();
    let mut session = filled(&database);
    run(
        &mut session,
        "PREPARE by_kind(int) AS SELECT id FROM item WHERE kind = $1",
    );
    for _ in 0..7 {
        run(&mut session, "EXECUTE by_kind(0)");
    }
    let plan = explained(&mut session, "EXECUTE by_kind(0)");
    assert!(plan.contains("by index item_kind"), "{plan}");
    run(&mut session, "ANALYZE item");
    let plan = explained(&mut session, "EXECUTE by_kind(0)");
    assert!(plan.contains("full scan on item"), "counted anew: {plan}");
    run(&mut session, "DROP INDEX item_kind");
    let rare = run(&mut session, "EXECUTE by_kind(7)").lines().len();
    assert_eq!(rare, 10);
    run(&mut session, "CREATE INDEX item_kind ON item (kind, id)");
    let plan = explained(&mut session, "EXECUTE by_kind(7)");
    assert!(plan.contains("by index item_kind"), "{plan}");
}

/// A plan that was wrong is made anew with what its run has told: the tables have no statistics here. One of 1,500 rows is
/// guessed to pass conditions that all of them pass, and some rows to have a key that a third of them has.
#[test]
fn a_plan_that_was_wrong_is_made_anew() {
    let database = Database::new();
    let mut session = database.session();
    run(
        &mut session,
        "CREATE TABLE a (id int PRIMARY KEY, x int, y int, z int); CREATE TABLE b (id int PRIMARY KEY, x int);
         CREATE INDEX b_x ON b (x)",
    );
    let rows = |each: &dyn Fn(i64) -> String| (0..1500).map(each).collect::<Vec<_>>().join(",");
    run(
        &mut session,
        &format!("INSERT INTO a VALUES {}", rows(&|i| format!("({i}, 1, 1, 1)"))),
    );
    run(
        &mut session,
        &format!("INSERT INTO b VALUES {}", rows(&|i| format!("({i}, {})", i % 3))),
    );
    let text =
        "SELECT count(*), sum(b.id) FROM a JOIN b ON b.x = a.y WHERE a.x + 0 = 1 AND a.y + 0 = 1 AND a.z + 0 = 1";
    run(&mut session, &format!("PREPARE wrong AS {text}"));
    let plan = explained(&mut session, "EXECUTE wrong");
    assert!(plan.contains("Nested loop"), "{plan}");
    assert_eq!(run(&mut session, "EXECUTE wrong").lines(), ["750000|562125000"]);
    let plan = explained(&mut session, "EXECUTE wrong");
    assert!(plan.contains("Hash join") && plan.contains("rows=1500)"), "{plan}");
    assert_eq!(run(&mut session, "EXECUTE wrong").lines(), ["750000|562125000"]);
    assert_eq!(explained(&mut session, "EXECUTE wrong"), plan, "it is right now");
}
