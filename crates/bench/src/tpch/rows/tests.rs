use super::*;
use std::collections::HashSet;

fn table(count: i64, row: impl Fn(&mut String, i64)) -> Vec<Vec<String>> {
    let mut out = String::new();
    (1..=count).for_each(|n| row(&mut out, n));
    out.lines()
        .map(|line| line.split('\t').map(String::from).collect())
        .collect()
}

/// In a hundred.
fn share(rows: &[Vec<String>], is: impl Fn(&[String]) -> bool) -> f64 {
    100.0 * rows.iter().filter(|row| is(row)).count() as f64 / rows.len() as f64
}

fn near(what: &str, found: f64, wanted: f64, by: f64) {
    assert!((found - wanted).abs() < by, "{what}: {found}, not {wanted}");
}

#[test]
fn days_are_those_of_the_calendar() {
    for (since, wanted) in [
        (0, "1992-01-01"),
        (59, "1992-02-29"),
        (60, "1992-03-01"),
        (366, "1993-01-01"),
    ] {
        assert_eq!(day(since), wanted);
    }
    assert_eq!(
        (day(TODAY), day(LAST_ORDER)),
        ("1995-06-17".into(), "1998-08-02".into())
    );
    assert_eq!((money(-5), money(123_456)), ("-0.05".into(), "1234.56".into()));
}

/// What queries 2, 9, 14, 16 and 20 look for in parts.
#[test]
fn parts_have_the_shares_that_queries_look_for() {
    let rows = Rows::new(0.1, 1);
    let parts = table(rows.parts, |out, n| rows.part(out, n));
    assert!(parts.len() == 20_000 && parts.iter().all(|row| row.len() == 9));
    near(
        "green",
        share(&parts, |row| row[1].contains("green")),
        100.0 * 5.0 / 92.0,
        0.6,
    );
    near(
        "forest",
        share(&parts, |row| row[1].starts_with("forest")),
        100.0 / 92.0,
        0.3,
    );
    near("brass", share(&parts, |row| row[4].ends_with("BRASS")), 20.0, 1.2);
    near(
        "promotion",
        share(&parts, |row| row[4].starts_with("PROMO")),
        100.0 / 6.0,
        1.2,
    );
    near("brand", share(&parts, |row| row[3] == "Brand#45"), 4.0, 0.6);
    near("container", share(&parts, |row| row[6] == "MED BOX"), 2.5, 0.5);
    assert!(
        parts.iter().all(|row| row[3][6..7] == row[2][13..14]),
        "a brand is its maker's"
    );
    assert_eq!((parts[0][7].as_str(), parts[999][7].as_str()), ("901.00", "901.00"));
}

#[test]
fn suppliers_of_a_part_are_four_at_any_scale() {
    for scale in [0.001, 0.002, 0.0037, 0.01, 0.0245, 0.1] {
        let rows = Rows::new(scale, 1);
        for part in 1..=rows.parts {
            let its: HashSet<i64> = (0..4).map(|n| rows.supplier_of(part, n)).collect();
            let is_known = its.iter().all(|supplier| (1..=rows.suppliers).contains(supplier));
            assert!(its.len() == 4 && is_known, "scale {scale}, part {part}: {its:?}");
        }
    }
}

/// Query 16 leaves out the suppliers with complaints: 5 of 10,000.
#[test]
fn few_suppliers_have_complaints() {
    let rows = Rows::new(10.0, 1);
    let suppliers = table(rows.suppliers, |out, n| rows.supplier(out, n));
    assert!(
        suppliers
            .iter()
            .all(|row| row.len() == 7 && row[4].len() == 15 && row[6].len() >= 25)
    );
    near(
        "complaints",
        share(&suppliers, |row| row[6].contains("Customer Complaints")),
        0.05,
        0.025,
    );
    near(
        "recommendations",
        share(&suppliers, |row| row[6].contains("Customer Recommends")),
        0.05,
        0.025,
    );
    near("nation", share(&suppliers, |row| row[3] == "7"), 4.0, 0.3);
}

#[test]
fn orders_and_their_lines_belong_together() {
    let rows = Rows::new(0.01, 1);
    let orders = table(rows.orders, |out, n| rows.order(out, n - 1));
    let lines = table(rows.orders, |out, n| rows.lines(out, n - 1));
    assert!(orders.len() == 15_000 && orders.iter().all(|row| row.len() == 9));
    assert!((58_000..62_000).contains(&lines.len()) && lines.iter().all(|row| row.len() == 16));
    let keys: Vec<i64> = orders.iter().map(|row| row[0].parse().expect("a number")).collect();
    assert_eq!(keys[..10], [1, 2, 3, 4, 5, 6, 7, 8, 33, 34]);
    assert!(
        orders
            .iter()
            .all(|row| row[1].parse::<i64>().is_ok_and(|customer| customer % 3 != 0))
    );
    near("half delivered", share(&orders, |row| row[2] == "P"), 2.6, 0.8);
    near("returned", share(&lines, |row| row[8] == "R"), 24.6, 1.0);
    near("shipped", share(&lines, |row| row[9] == "F"), 50.0, 1.5);
    near("late", share(&lines, |row| row[11] < row[12]), 63.2, 1.5);
    let total = |key: &str| -> f64 {
        let its = lines.iter().filter(|row| row[0] == key);
        its.map(|row| {
            let [price, discount, tax] = [5, 6, 7].map(|n| row[n].parse::<f64>().expect("a number"));
            price * (1.0 - discount) * (1.0 + tax)
        })
        .sum()
    };
    for order in orders.iter().step_by(997) {
        near(&order[0], order[3].parse().expect("a number"), total(&order[0]), 0.2);
    }
}

#[test]
fn seed_and_scale_decide_rows() {
    let of = |seed| {
        let rows = Rows::new(0.001, seed);
        let [mut customers, mut lines] = [String::new(), String::new()];
        (1..=rows.customers).for_each(|n| rows.customer(&mut customers, n));
        (0..rows.orders).for_each(|n| rows.lines(&mut lines, n));
        (customers, lines)
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}
