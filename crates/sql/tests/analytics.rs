//! Queries through DataFusion over the engine, and the catalog that tools read: statements and what they answer, as
//! text.

#[path = "analytics_support/mod.rs"]
mod support;

use support::Database;

#[test]
fn select_basics() {
    let db = Database::with_samples();
    db.check("select 1, 'a', null, true, 1.50, -2", "1|a||t|1.50|-2");
    db.check("select id, name from items order by id limit 2", "1|anvil\n2|bolt");
    db.check(
        "select count(*), sum(qty), avg(qty), min(price), max(price) from items",
        "5|26|5.2000000000000000|0.05|120.00",
    );
    db.check(
        "select name from items where id between 2 and 3 order by 1 desc",
        "nut\nbolt",
    );
    db.check(
        "select i.name, o.amount from items i join orders o on o.item = i.id where o.amount > 2 order by o.id",
        "bolt|10\nanvil|3",
    );
    db.check("select name from items where id = '3'", "nut");
    db.check("select name from items where note is null order by id", "bolt\nspare");
    db.check(
        "select qty / 2, qty % 3, qty * 1.5, -qty from items where id = 1",
        "2|2|7.5|-5",
    );
}

/// Dates outside of 1677 to 2262 were an error wherever DataFusion took them through nanoseconds.
#[test]
fn dates_of_all_years() {
    let db = Database::with_samples();
    db.check(
        "select date_trunc('century', d) from (select date '1542-01-06' as d) x",
        "1501-01-01 00:00:00+00",
    );
    db.check(
        "select date_trunc('year', d) from (select date '9999-12-31' as d) x",
        "9999-01-01 00:00:00+00",
    );
    db.check(
        "select date_trunc('hour', t) from (select timestamp '1001-02-03 04:05:06' as t) x",
        "1001-02-03 04:00:00",
    );
    db.check(
        "select extract(year from d), d + 1 from (select date '1542-01-06' as d) x",
        "1542|1542-01-07",
    );
    db.check(
        "select d < timestamp '1600-01-01 00:00:00' from (select date '1542-01-06' as d) x",
        "t",
    );
    db.check(
        "select cast(d as timestamp) from (select date '1542-01-06' as d) x",
        "1542-01-06 00:00:00",
    );
    db.check(
        "select max(d) - min(d) from (select date '1542-01-06' as d union all select date '9999-01-01') x",
        "3088851",
    );
}

#[test]
fn types_of_results() {
    let db = Database::with_samples();
    let types = |sql: &str| db.types(sql);
    assert_eq!(
        types("select 1, 1 + 1, 3000000000, 1.5, 'x', null"),
        [23, 23, 20, 1700, 25, 25]
    );
    assert_eq!(
        types(
            "select sum(id), sum(big), avg(id), count(*), sum(price), avg(weight), sum(weight), max(small) from items"
        ),
        [20, 1700, 1700, 20, 1700, 701, 701, 21]
    );
    assert_eq!(
        types("select id + small, id + big, id + price, id + weight, small + small from items"),
        [23, 20, 1700, 701, 21]
    );
    assert_eq!(
        types("select name, code, made, stamped, zoned, ok, data from items"),
        [1043, 1042, 1082, 1114, 1184, 16, 17]
    );
    assert_eq!(
        types("select case when id = 1 then 1 else 0 end, sum(case when id = 1 then 1 else 0 end) over () from items"),
        [23, 20]
    );
    assert_eq!(
        types("select cast(1 as bigint), 1::smallint, '1'::int, 1::numeric, '5'::text"),
        [20, 21, 23, 1700, 25]
    );
    // It was described as what its first branch is: smallint.
    assert_eq!(types("select case when ok then small else id end from items"), [23]);
}

#[test]
fn overflow_and_division_are_errors() {
    let db = Database::with_samples();
    for sql in [
        "select 2147483647 + 1",
        "select 2147483647 * id from items where id = 2",
        "select 9223372036854775807 + big from items where id = 1",
        "select (32767::smallint + 1::smallint)",
        "select -(-2147483648::int) - 1 - id from items where id = -2147483648 or id = 1 and 2147483647 + id > 0",
        "select 40000::smallint",
        "select 1e300::float8 * 1e300::float8",
        "select (3000000000)::int4",
        "select sum(big) * 1000000000000000000000000000000000000000 * sum(big) * \
         1000000000000000000000000000000000000000 from items",
    ] {
        assert_eq!(db.error(sql), "22003", "{sql}");
    }
    for sql in [
        "select 1 / 0",
        "select 1 % (id - 1) from items where id = 1",
        "select 1.0 / 0",
        "select id / (id - id) from items",
        "select 1::float8 / 0",
    ] {
        assert_eq!(db.error(sql), "22012", "{sql}");
    }
}

#[test]
fn errors_have_their_codes() {
    let db = Database::with_samples();
    assert_eq!(db.error("select * from nowhere"), "42P01");
    assert_eq!(db.error("select nothing from items"), "42703");
    assert_eq!(db.error("select i.nothing from items i"), "42703");
    assert_eq!(db.error("select nofunction(1)"), "42883");
    assert_eq!(db.error("select 'abc'::int"), "22P02");
    assert_eq!(db.error("select (select id from items)"), "21000");
    assert_eq!(db.error("select id from items a join items b on true"), "42702");
    assert_eq!(db.error("select name, count(*) from items"), "42803");
    assert_eq!(db.error("select 1::nosuchtype"), "42704");
}

#[test]
fn column_names() {
    let db = Database::with_samples();
    let names = |sql: &str| db.names(sql).join(",");
    assert_eq!(
        names(
            "select 1, 1 + 1, count(*), max(id), 'x'::text, case when true then 1 end, id, id as \"Id\", id from items \
             group by id"
        ),
        "?column?,?column?,count,max,text,case,id,Id,id"
    );
    assert_eq!(names("select *, id from items where false").matches("id").count(), 2);
    assert_eq!(
        names("select (select 1 as one), exists (select 1), current_date, now()"),
        "one,exists,current_date,now"
    );
    // The last branch's cast named it "numeric".
    assert_eq!(
        names("select case when true then 1 else 2::numeric end, true, (select 1)::int8, array[1], null::char(3)"),
        "case,?column?,?column?,array,bpchar"
    );
}

#[test]
fn joins_subqueries_windows_and_ctes() {
    let db = Database::with_samples();
    db.check(
        "select i.id, count(o.id) from items i left join orders o on o.item = i.id group by i.id order by 1",
        "1|2\n2|1\n3|0\n4|0\n5|0",
    );
    db.check(
        "select id from items i where exists (select 1 from orders o where o.item = i.id) order by id",
        "1\n2",
    );
    db.check(
        "select id from items where id not in (select item from orders where item is not null) order by id",
        "3\n4\n5",
    );
    db.check(
        "select id, (select max(amount) from orders o where o.item = i.id) from items i order by id limit 3",
        "1|3\n2|10\n3|",
    );
    db.check(
        "with recursive t(n) as (select 1 union all select n + 1 from t where n < 4) select sum(n) from t",
        "10",
    );
    db.check(
        "with a as (select id, qty from items), b as (select max(qty) m from a) select id from a, b where qty = m",
        "4",
    );
    db.check(
        "select id, rank() over (order by qty desc), sum(qty) over (order by id) from items order by id",
        "1|3|5\n2|5|6\n3|4|8\n4|1|20\n5|2|26",
    );
    db.check(
        "select id from items where id < 3 union select id from items where id > 1 and id < 4 order by 1",
        "1\n2\n3",
    );
    db.check(
        "select id from items where id < 3 intersect select id from items where id > 1 order by 1",
        "2",
    );
    db.check("select distinct on (ok) ok, id from items order by ok, id", "f|2\nt|1");
    db.check(
        "select ok, count(*) from items group by ok having count(*) > 2 order by 1",
        "t|3",
    );
    db.check("select * from (values (1, 'a'), (2, 'b')) v(x, y) where x > 1", "2|b");
    db.check("select sum(g) from generate_series(1, 4) g", "10");
    db.check(
        "select coalesce(note, 'none'), nullif(id, 1), greatest(id, 2) from items where id < 3 order by id",
        "heavy||2\nnone|2|2",
    );
}

#[test]
fn numeric_and_dates() {
    let db = Database::with_samples();
    db.check(
        "select 1 / 3.0, 2.0 / 3, 10.00 / 4, 1.10 + 2.205, 1.5 * 1.5",
        "0.33333333333333333333|0.66666666666666666667|2.5000000000000000|3.305|2.25",
    );
    db.check(
        "select round(2.567, 2), round(2.5), trunc(2.567, 1), round(avg(price), 2) from items",
        "2.57|3|2.5|32.22",
    );
    db.check(
        "select 1.7::int, 2.5::float8::int, '12'::int + 1, 1.006::numeric(5,2), 5::numeric / 2",
        "2|2|13|1.01|2.5000000000000000",
    );
    db.check(
        "select date '2024-02-28' + 2, date '2024-03-01' - date '2024-02-01', date '1998-12-01' - interval '90' day",
        "2024-03-01|29|1998-09-02 00:00:00",
    );
    db.check(
        "select made, extract(year from made), date_trunc('month', stamped) from items where id = 1",
        "2024-01-15|2024|2024-01-01 00:00:00",
    );
    db.check(
        "select zoned, stamped from items where id = 1",
        "2024-01-15 10:30:00+00|2024-01-15 10:30:00.5",
    );
    db.check(
        "select count(*) from items where made >= date '2024-01-01' and made < date '2024-01-01' + interval '1' year",
        "5",
    );
    db.check("select free from items order by id", "1.5\n2\n\n1000000\n0.00001");
    db.check("select sum(free), sum(big) from items", "1000003.50001|15");
    db.check(
        "select 'a' || 1 || true, 'x' || null, upper(name) || '!' from items where id = 1",
        "a1true||ANVIL!",
    );
}

#[test]
fn parameters() {
    let db = Database::with_samples();
    assert_eq!(
        db.param_types("select name from items where id = $1 and price > $2 and name like $3"),
        [23, 1700, 25]
    );
    // What nothing reads has parameters, too: it had none.
    assert_eq!(
        db.param_types("with unread as (select name from items where id = $1) select 1 from items where big = $2"),
        [23, 20]
    );
    assert_eq!(
        db.param_types("select $1::bigint, $2 + id from items limit $3"),
        [20, 23, 20]
    );
    use cenote_engine::Datum;
    assert_eq!(
        db.with_params("select name from items where id = $1", &[(Datum::Int4(2), 23)]),
        "bolt"
    );
    assert_eq!(
        db.with_params("select id from items order by id limit $1", &[(Datum::Int8(2), 20)]),
        "1\n2"
    );
    assert_eq!(
        db.with_params(
            "select $1, $2 + 1",
            &[(Datum::Text("x".into()), 25), (Datum::Int4(41), 23)]
        ),
        "x|42"
    );
    assert_eq!(
        db.with_params(
            "select count(*) from items where price > $1",
            &[(Datum::Numeric("1.5".parse().expect("numeric")), 1700)]
        ),
        "3"
    );
    assert_eq!(
        db.with_params("select count(*) from items where name = $1", &[(Datum::Null, 25)]),
        "0"
    );
}

#[test]
fn scans_use_keys() {
    let db = Database::with_samples();
    assert!(
        db.explain("select * from items where id = 3")
            .contains("by primary key")
    );
    assert!(
        db.explain("select * from items where id > 3 and id < 10")
            .contains("by primary key")
    );
    assert!(
        db.explain("select id from items where name = 'bolt'")
            .contains("by index items_name")
    );
    assert!(
        db.explain("select id from items")
            .starts_with("path: analytics (DataFusion)")
    );
    db.check("select id from items where name = 'bolt'", "2");
    db.check(
        "select id from items where name > 'bolt' and name <= 'nut' order by 1",
        "3",
    );
    db.check("select id from items where id >= 2 and id < 4 order by 1", "2\n3");
    db.check("select id from items where 4 <= id order by 1", "4\n5");
}

/// A range on an index beat a scan whatever it held: with an index on its date, a query of nearly all rows was eight
/// times dearer than without.
#[test]
fn ranges_that_hold_most_of_a_table_are_scanned() {
    let mut db = Database::empty(256 << 20);
    db.add_large(20_000);
    let plan = |condition: &str| db.explain(&format!("select sum(amount) from big where {condition}"));
    assert!(!plan("part >= 3").contains("by index"), "{}", plan("part >= 3"));
    assert!(plan("part between 10 and 12").contains("by index big_part"));
    assert!(plan("part = 7").contains("by index big_part"));
    assert!(plan("id > 100").contains("by primary key"));
    db.check("select count(*), min(id) from big where part >= 3", "19970|30");
    db.check(
        "select count(*), min(id) from big where part between 10 and 12",
        "30|100",
    );
}

/// What the small side of a join holds is looked up in the large one, if that is less work; lists and OR likewise.
#[test]
fn few_keys_are_looked_up() {
    let mut db = Database::empty(256 << 20);
    db.add_large(60_000);
    let looked_up = |sql: &str| {
        let plan = db.explained(sql, true);
        plan.contains("looked up").then_some(()).ok_or(plan)
    };
    let join = "select count(*), sum(b.amount) from small s join big b on b.part = s.id where s.kind = 3";
    looked_up(join).expect("a join by index");
    db.check(join, "100|48475.00");
    let join = "select count(*), sum(b.id) from small s join big b on b.id = s.id where s.kind = 4";
    looked_up(join).expect("a join by primary key");
    db.check(join, "10|490");
    let list = "select count(*), sum(id) from big where part = 5 or part in (77, 5, 1000000)";
    looked_up(list).expect("an index's values");
    db.check(list, "20|8290");
    db.check("select count(*) from big where part in (5, null)", "10");
    db.check(
        "select count(*) from big where part in (5, 6) and part not in (6, 7)",
        "10",
    );
    let all = "select count(*) from small s join big b on b.part >= s.id where s.kind = 3 and s.id = 3";
    db.check(all, "59970");
    let outer = "select count(*), count(b.id) from small s left join big b on b.id = s.id + 59990 where s.kind = 3";
    db.check(outer, "10|1");
}

/// FROM decided the order of joins: two large tables met before a small one chose among their rows.
#[test]
fn joins_are_ordered_by_rows() {
    let mut db = Database::empty(256 << 20);
    db.add_large(60_000);
    let commas = "from big b, big c, small s where b.id = c.id and b.part = s.id and s.kind = 3";
    let written = "from big b join big c on b.id = c.id join small s on b.part = s.id where s.kind = 3";
    let outer = "from big b left join small t on t.id = b.id join big c on b.id = c.id join small s on b.part = s.id \
                 where s.kind = 3 and exists (select 1 from big e where e.id = c.id and e.amount <> 33.25)";
    for (from, rows) in [
        (commas, "100|48475.00"),
        (written, "100|48475.00"),
        (outer, "99|48441.75"),
    ] {
        let query = format!("select count(*), sum(c.amount) {from}");
        let plan = db.explain(&query);
        let first = |table: &str| plan.find(&format!("TableScan: {table}"));
        assert!(first("small") < first("big"), "{plan}");
        db.check(&query, rows);
    }
    assert_eq!(
        db.names(&format!("select * {commas}")),
        [
            "id", "part", "name", "day", "amount", "id", "part", "name", "day", "amount", "id", "kind"
        ]
    );
    db.check(
        &format!("select * {commas} and b.id = 31 and c.amount > 3")
            .replace("*", "b.id, s.id, c.part, s.kind, b.amount"),
        "31|3|3|3|31.25",
    );
    db.check(
        "select count(*) from big b, big c, small s where b.id = c.id and s.kind = 3 and s.id = 3",
        "60000",
    );
}

/// A query of WITH that was named twice was carried out twice.
#[test]
fn equal_subqueries_are_carried_out_once() {
    let mut db = Database::empty(256 << 20);
    db.add_large(60_000);
    let with = "with r as (select part, sum(amount) as total, min(name) as name from big group by part)";
    for (query, rows, shared) in [
        ("select part from r where total = (select max(total) from r)", "5999", 2),
        (
            "select count(*), sum(a.total - b.total) from r a join r b on a.part = b.part",
            "6000|0.00",
            2,
        ),
        (
            "select count(*) from r a where a.part < 3 and exists (select 1 from r b where b.part = a.part + 5997)",
            "3",
            2,
        ),
        (
            "select count(*) from r a, r b, r c where a.part = b.part and c.part = b.part and a.part < 10",
            "10",
            3,
        ),
        ("select count(*) from r where part > 10", "5989", 0),
    ] {
        let query = format!("{with} {query}");
        let plan = db.explain(&query);
        assert_eq!(plan.matches("Shared subquery").count(), shared, "{plan}");
        db.check(&query, rows);
    }
    // What depends on the row around it is not the same everywhere.
    db.check(
        "select s.id, (select count(*) from (select distinct part from big where part < s.id) x), \
         (select count(*) from (select distinct part from big where part < s.id) y) from small s where id in (3, 7) \
         order by 1",
        "3|3|3\n7|7|7",
    );
}

/// What is gathered for several places is the query's memory: where it is too much, the query starts over without.
#[test]
fn equal_subqueries_beyond_memory_are_carried_out_each() {
    let mut db = Database::spilling(6 << 20, true);
    db.add_large(300_000);
    db.check(
        "with r as (select id, part from big order by part desc) \
         select count(*), count(a.id) from r a join r b on a.id = b.id and a.part = b.part",
        "300000|300000",
    );
}

/// What a join has learned in one round of a recursion is not true in the next.
#[test]
fn a_plan_that_runs_again_forgets_what_its_joins_learned() {
    let mut db = Database::empty(256 << 20);
    db.add_large(60_000);
    db.check(
        "with recursive r(id) as (select 1 union all select b.id + 1000 from r join big b on b.id = r.id \
         where b.id < 59000) select count(*), max(id) from r",
        "60|59001",
    );
    db.check(
        "with recursive r(part) as (select 1 union all select max(b.part) + 500 from r join big b on b.part = r.part \
         where b.part < 3000 having count(*) > 0) select count(*), max(part) from r",
        "7|3001",
    );
}

/// Scans evaluate conditions themselves, in several partitions where the table is large.
#[test]
fn scans_filter_rows() {
    let mut db = Database::empty(256 << 20);
    db.add_large(60_000);
    let plan = db.explain("select sum(amount) from big where day < date '2024-01-10' + interval '1' day");
    assert!(plan.contains("partitions 2") && !plan.contains("FilterExec"), "{plan}");
    assert!(
        !plan.contains("filters [cenote_timestamp"),
        "the column is compared as it is: {plan}"
    );
    db.check(
        "select count(*) from big where day < date '2024-01-10' + interval '1' day",
        "6000",
    );
    db.check(
        "select count(*) from big where day >= timestamp '2024-04-09 00:00:01'",
        "0",
    );
    db.check(
        "select count(*) from big where day > timestamp '2024-04-08 23:59:59'",
        "540",
    );
    db.check("select count(*) from big where day is null", "60");
    db.check("select count(*) from big where not (day < date '2024-04-09')", "540");
    db.check(
        "select count(*) from big where name like '%16' and amount > 100.25 and id < 1000",
        "53",
    );
    db.check(
        "select id from big where 1000 / (id - 5) > 400 and id <> 5 order by 1",
        "6\n7",
    );
    db.check("select id from big where amount = 77.25", "77");
    db.check(
        "select count(*) from (select id from big where id % 2 = 0 limit 7) t",
        "7",
    );
    db.check("select count(*) from (select id from big limit 7) t where id >= 0", "7");
    db.check("select id from big order by amount desc limit 3", "59999\n59998\n59997");
}

/// A hash join that finds no memory starts over as one that sorts and spills. Before, the query was refused.
#[test]
fn joins_beyond_memory_spill() {
    let sql = "select count(*), sum(a.id) from big a join big b on a.id = b.id and a.part = b.part";
    for spills in [false, true] {
        let mut db = Database::spilling(6 << 20, spills);
        db.add_large(300_000);
        match spills {
            true => db.check(sql, "300000|44999850000"),
            false => assert_eq!(db.error(sql), "53200"),
        }
    }
}

#[test]
fn memory_is_bounded_and_queries_stop() {
    let db = Database::with_memory(1 << 20);
    let sql = "select a.g, count(*), array_agg(b.g) from generate_series(1, 2000) a(g), generate_series(1, 2000) b(g) \
        group by a.g order by 3";
    assert_eq!(db.error(sql), "53200");
}

/// The rows of IN that are kept to be looked up are query memory, and go with their query.
#[test]
fn rows_of_in_that_are_kept_are_counted() {
    let db = Database::with_memory(8 << 20);
    let among = |rows: u32| {
        format!("select count(g in (select h from generate_series(1, {rows}) b(h))) from generate_series(1, 100) a(g)")
    };
    db.check(&among(1000), "100");
    assert_eq!(db.error(&among(500_000)), "53200");
    db.check(&among(1000), "100");
}

/// A suspended query keeps what its operators hold. A query that finds no memory left is refused with the holder's
/// name, and runs once that one is closed. Before, the error told how many bytes an operator had asked for.
#[test]
fn memory_of_a_suspended_query_is_held_by_name() {
    let db = Database::with_memory(16 << 20);
    let joined = "select a.g from generate_series(1, 50000) a(g) join generate_series(1, 50000) b(g) on a.g = b.g";
    let suspended = || {
        let mut rows = db.suspended(joined, 77)?;
        rows.next().map(|_| rows)
    };
    let mut held = Vec::new();
    let error = loop {
        match suspended() {
            Ok(rows) => held.push(rows),
            Err(error) => break error,
        }
        assert!(held.len() < 100, "nothing is counted");
    };
    assert!(!held.is_empty(), "{error:?}");
    assert_eq!(error.code(), "53200");
    let text = format!("{error:?}");
    assert!(text.contains("session 77 of tester"), "{text}");
    held.pop();
    suspended().expect("there is room again");
}

/// What psql 15 sends for \d, \d table, \d sequence, \d index, \dt, \di, \ds, \dv, \l, \l+, \dn, \dn+, \du, \dp, \df,
/// \dT, \d+ and \dt+, verbatim but for ids and names.
#[test]
fn psql_queries_run() {
    let db = Database::with_samples();
    let mut failed = Vec::new();
    for (id, name) in [
        (db.id("items"), "items"),
        (db.id("orders_id_seq"), "orders_id_seq"),
        (db.id("items_name"), "items_name"),
    ] {
        for query in include_str!("analytics_support/psql.sql").split("\n-----\n") {
            let sql = query.replace("@OID@", &id.to_string()).replace("@NAME@", name);
            if let Err(error) = db.ask(&sql, &[]) {
                failed.push(format!("{sql}\n{error}"));
            }
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n\n"));
}

#[test]
fn psql_describes_tables() {
    let db = Database::with_samples();
    let queries: Vec<&str> = include_str!("analytics_support/psql.sql").split("\n-----\n").collect();
    let find = |part: &str| {
        queries
            .iter()
            .find(|q| q.contains(part))
            .unwrap_or_else(|| panic!("no query with {part}"))
            .replace("@OID@", &db.id("items").to_string())
            .replace("@NAME@", "items")
    };
    db.check(
        &find("c.relkind IN ('r','p','v','m','S','f','')"),
        "public|items|table|tester\npublic|orders|table|tester\npublic|orders_id_seq|sequence|tester",
    );
    db.check(
        &find("c.relname OPERATOR(pg_catalog.~)"),
        &format!("{}|public|items", db.id("items")),
    );
    let columns = db
        .ask(&find("pg_catalog.pg_get_expr(d.adbin, d.adrelid, true)"), &[])
        .expect("columns");
    assert!(
        columns.starts_with(
            "id|integer||t||||\nsmall|smallint||f||||\n"
                .replace("||||", "|||")
                .as_str()
        ),
        "{columns}"
    );
    assert!(columns.contains("name|character varying(20)|'x'|t|||"), "{columns}");
    assert!(columns.contains("price|numeric(10,2)||f|||"), "{columns}");
    db.check(
        &find("pg_catalog.pg_get_constraintdef(con.oid, true)"),
        "items_pkey|t|t|f|t|CREATE UNIQUE INDEX items_pkey ON public.items USING btree (id)|PRIMARY KEY \
         (id)|p|f|f|f|0\nitems_code_key|f|t|f|t|CREATE UNIQUE INDEX items_code_key ON public.items USING btree (code, \
         qty)|UNIQUE (code, qty)|u|f|f|f|0\nitems_name|f|f|f|t|CREATE INDEX items_name ON public.items USING btree \
         (name)|||||f|0",
    );
    db.check(&find("c2.relname as \"Table\""), "public|items_code_key|index|tester|items\npublic|items_name|index|tester|items\npublic|items_pkey|index|tester|items");
    db.check(&find("d.datname as \"Name\""), "cenote|tester|UTF8|C|C.UTF-8||libc|");
}

#[test]
fn catalog_answers_tools() {
    let db = Database::with_samples();
    db.check(
        "select 'items'::regclass::oid = c.oid from pg_class c where relname = 'items'",
        "t",
    );
    db.check(
        "select relname from pg_class where oid = 'public.items'::regclass",
        "items",
    );
    assert_eq!(db.error("select 'nothing'::regclass"), "42P01");
    db.check(
        "select table_name from information_schema.tables where table_schema = 'public' order by 1",
        "items\norders",
    );
    db.check(
        "select column_name, data_type, is_nullable, column_default from information_schema.columns where \
        table_name = 'orders' order by ordinal_position",
        "id|bigint|NO|nextval('orders_id_seq'::regclass)\nitem|integer|YES|\namount|integer|YES|",
    );
    db.check(
        "select current_user, current_database(), current_schema(), pg_backend_pid(), current_schemas(true)",
        "tester|cenote|public|42|{pg_catalog,public}",
    );
    db.check(
        "select format_type(23, -1), format_type(1043, 24), format_type(1700, 655366), pg_size_pretty(123456789)",
        "integer|character varying(20)|numeric(10,2)|118 MB",
    );
    db.check(
        "select now(), current_date, current_timestamp = now()",
        "2024-06-01 12:00:00+00|2024-06-01|t",
    );
    db.check(
        "select t.oid, typarray from pg_type t where typname = 'int4'",
        "23|1007",
    );
    db.check(
        "select a.attname from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = \
        any(i.indkey) where i.indrelid = 'items'::regclass and i.indisprimary",
        "id",
    );
    db.check(
        "select typname, oid, typarray, oid::regtype::text, typdelim from pg_type t where t.oid = \
        to_regtype('hstore') order by t.oid",
        "",
    );
    db.check("select count(*) from pg_stat_activity", "1");
    db.check(
        "select setting from pg_settings where name = 'server_version_num'",
        "150000",
    );
    db.check(
        "select tablename from pg_tables where schemaname = 'public' order by 1",
        "items\norders",
    );
    db.check("select pg_get_serial_sequence('orders', 'id')", "public.orders_id_seq");
    db.check("select oid, datname from pg_database where datallowconn", "1|cenote");
}

/// What SQLAlchemy's reflection, psycopg's type look-up and pgbench send, with their parameters put in.
#[test]
fn tools_queries_run() {
    let db = Database::with_samples();
    let mut failed = Vec::new();
    for query in include_str!("analytics_support/tools.sql").split("\n-----\n") {
        let sql = query.replace("@OID@", &db.id("items").to_string());
        if let Err(error) = db.ask(&sql, &[]) {
            failed.push(format!("{sql}\n{error}"));
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n\n"));
}

#[test]
fn tpch_queries_run() {
    let db = Database::with_tpch();
    let queries: Vec<&str> = include_str!("analytics_support/tpch.sql").split("\n-----\n").collect();
    assert_eq!(queries.len(), 22);
    let failed: Vec<String> = queries
        .iter()
        .filter_map(|q| db.ask(q, &[]).err().map(|e| format!("{q}\n{e}")))
        .collect();
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n\n"));
    db.check(
        queries[0],
        "N|O|17.00|1000.00|950.0000|988.000000|17.0000000000000000|1000.0000000000000000|0.05000000000000000000|1\n\
        R|F|37.00|6600.00|6240.0000|6739.200000|18.5000000000000000|3300.0000000000000000|0.05500000000000000000|2",
    );
    db.check(queries[5], "180.0000");
    db.check(queries[2], "1|950.0000|1995-01-01|0");
    db.check(queries[13], "0.00000000000000000000");
}

#[test]
fn char_columns_ignore_trailing_blanks() {
    let db = Database::with_samples();
    db.check("select code, id from items where code = 'a'", "a  |1");
    db.check("select count(*) from items where code || '!' = 'b!'", "1");
    db.check(
        "select code, count(*) from items group by code order by code desc limit 1",
        "e  |1",
    );
}

#[test]
fn patterns_and_formats() {
    let db = Database::with_samples();
    db.check(
        "select 'pg_x' like 'pg/_%' escape '/', 'pgax' like 'pg/_%' escape '/', 'abc' ~ '^a', 'abc' !~* 'B', \
        'a%c' like 'a\\%c'",
        "t|f|t|f|t",
    );
    db.check(
        "select to_char(date '2024-01-05', 'YYYY-MM-DD'), to_char(timestamp '2024-01-05 13:00:00', 'HH12:MI PM')",
        "2024-01-05|01:00 PM",
    );
    db.check(
        "select json_build_object('a', 1, 'b', 'x\"y')",
        "{\"a\" : 1, \"b\" : \"x\\\"y\"}",
    );
    db.check(
        "select array(select id from items where id < 3 order by id), array_to_string(array['a', 'b'], ','), 2 = \
        any(array[1, 2]), 3 = any('{1,2}')",
        "{1,2}|a,b|t|f",
    );
    db.check(
        "select o.n from items i cross join lateral (select i.id * 2) as o(n) where o.n > 8",
        "10",
    );
}

/// Each of these goes on for minutes or hours, most of them inside one step of an operator.
#[test]
fn canceled_queries_end() {
    let million = |name: &str| format!("generate_series(1, 1000000) {name}(g)");
    let (a, b) = (million("a"), million("b"));
    let queries = [
        "select count(*) from generate_series(1, 4000000000) a(g) where a.g % 7 = 9".into(),
        // A join by condition: no pair, every pair; and those without a match.
        format!("select count(*) from {a}, {b} where a.g + b.g < 0"),
        format!("select count(*) from {a}, {b} where a.g <> -b.g"),
        format!("select count(*) from {a} left join {b} on a.g + b.g < 0"),
        format!("select count(*) from {a} where not exists (select 1 from {b} where b.g + a.g < 0)"),
        // All pairs, gathered and sorted.
        format!("select count(*), sum(a.g * 2 + b.g) from {a}, {b}"),
        format!("select a.g + b.g from {a}, {b} order by 1 limit 3"),
        // One key for all, and no pair that fits.
        format!("select count(*) from {a} join {b} on a.g / 2000000 = b.g / 2000000 and a.g + b.g < 0"),
        format!("select count(*) from {a} join {b} on a.g / 2000000 = b.g / 2000000"),
        // A subquery that is evaluated for each row.
        format!("select count(*) from {a} where a.g < (select count(*) from items i where i.id + a.g < 0)"),
        "with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r".into(),
    ];
    for sql in queries {
        let db = Database::with_samples();
        let cancel = db.tx.cancel_flag();
        let handle = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(700));
            cancel.set();
            std::time::Instant::now()
        });
        assert_eq!(db.error(&sql), "57014", "{sql}");
        let canceled = handle.join().expect("the thread ends");
        let took = canceled.elapsed();
        assert!(took < std::time::Duration::from_secs(2), "{sql}: ended after {took:?}");
    }
}

#[test]
fn arrays_as_parameters() {
    use cenote_engine::Datum;
    let db = Database::with_samples();
    let array = |text: &str, id: u32| [(Datum::Text(text.into()), id)];
    assert_eq!(
        db.with_params(
            "select id from items where id = any($1) order by id",
            &array("{2,3}", 1007)
        ),
        "2\n3"
    );
    assert_eq!(
        db.with_params(
            "select id from items where name = any($1) order by id",
            &array("{bolt,\"nut\"}", 25)
        ),
        "2\n3"
    );
    assert_eq!(
        db.with_params(
            "select id from items where id <> all($1::int[]) order by id",
            &array("{2,3}", 1007)
        ),
        "1\n4\n5"
    );
    assert_eq!(
        db.with_params("select count(*) from items where id = any($1)", &array("{}", 1007)),
        "0"
    );
    assert_eq!(
        db.with_params(
            "select count(*) from items where price = any($1)",
            &array("{1.04,10}", 1231)
        ),
        "2"
    );
    assert_eq!(db.param_types("select id from items where id = any($1)"), [25]);
    db.check(
        "select indkey from pg_index where indexrelid = 'items_code_key'::regclass",
        "5 6",
    );
    db.check("select generate_series(1, 3)", "1\n2\n3");
    db.check(
        "select interval '1 month 2 days 03:04:05', interval '-00:30'",
        "1 mon 2 days 03:04:05|-00:30:00",
    );
}

#[test]
fn comparisons_with_all_and_any_of_a_subquery() {
    let db = Database::with_samples();
    db.check(
        "select id from items where id > all (select id from items where id < 4) order by id",
        "4\n5",
    );
    db.check(
        "select id from items where id < any (select id from items where id < 3) order by id",
        "1",
    );
    db.check(
        "select id from items where id = any (select 2) or id <> all (select id from items where id > 1) order by id",
        "1\n2",
    );
    db.check(
        "select 1 > all (select id from items where false), 1 > any (select id from items where false)",
        "t|f",
    );
    db.check(
        "select 5 > all (select * from (values (1), (null)) v(x)), 0 > all (select * from (values (1), (null)) v(x)), \
         5 > any (select * from (values (1), (null)) v(x)), 0 > any (select * from (values (1), (null)) v(x))",
        "|f|t|",
    );
    db.check(
        "select 1 = all (select * from (values (1), (1)) v(x)), 1 = all (select * from (values (1), (2)) v(x)), 1 \
        <> any (select * from (values (1), (1)) v(x)), 1 <> any (select * from (values (1), (2)) v(x))",
        "t|f|f|t",
    );
}
