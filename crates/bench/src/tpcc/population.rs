//! The initial population of clause 4.3.3, by COPY.

use super::options::{Load, Options, Sizes};
use super::schema::{INDEXES, TABLES};
use crate::draw::Draw;
use crate::oltp::connect;
use crate::{IoContext, Result};
use indicatif::{ProgressBar, ProgressStyle};
use postgres::Client;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicI32, Ordering};

/// Districts a warehouse.
pub const DISTRICTS: i32 = 10;
/// The constant of last names at load (clause 2.1.6.1).
pub const C_LAST_LOAD: i32 = 157;
/// Text goes to the server in pieces of so many bytes.
const PIECE: usize = 256 << 10;
/// Connections that load.
const LOADERS: i32 = 2;
/// When all of it was entered.
const DATE: &str = "2024-01-01 00:00:00";

/// Creates and fills all tables, which only [`Load::Always`] drops before, and makes the indexes.
///
/// # Errors
/// [`crate::Error::Sql`] if the server refuses something.
pub fn load(options: &Options) -> Result<()> {
    let mut client = connect(&options.url)?;
    for (table, columns) in TABLES {
        if options.load == Load::Always {
            client.batch_execute(&format!("DROP TABLE IF EXISTS {table}"))?;
        }
        client.batch_execute(&format!("CREATE TABLE {table} ({columns})"))?;
    }
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len}  {eta} left").expect("a constant template");
    let bar = ProgressBar::new(options.warehouses as u64).with_style(style);
    bar.set_message("loading warehouses");
    let mut item = Draw::new(options.seed, [0, 0]);
    copy(&mut client, "item", 1..=options.sizes.items, |row, n| {
        items(row, n, &mut item)
    })?;
    let next = AtomicI32::new(1);
    std::thread::scope(|scope| {
        let start = |_| scope.spawn(|| fill(options, &next, &bar));
        let loaders: Vec<_> = (0..LOADERS.min(options.warehouses)).map(start).collect();
        loaders
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no loader panics"))
    })?;
    bar.set_message("indexes");
    INDEXES.iter().try_for_each(|index| client.batch_execute(index))?;
    for (table, _) in TABLES {
        client.batch_execute(&format!("VACUUM ANALYZE {table}"))?;
    }
    bar.finish_and_clear();
    Ok(())
}

/// Fills one warehouse after the other until there is none left.
fn fill(options: &Options, next: &AtomicI32, bar: &ProgressBar) -> Result<()> {
    let mut client = connect(&options.url)?;
    loop {
        let warehouse = next.fetch_add(1, Ordering::Relaxed);
        if warehouse > options.warehouses {
            return Ok(());
        }
        warehouse_rows(&mut client, options, warehouse)?;
        bar.inc(1);
    }
}

fn warehouse_rows(client: &mut Client, options: &Options, w: i32) -> Result<()> {
    let (sizes, draw) = (options.sizes, |table| Draw::new(options.seed, [table, w as u64]));
    let mut d = draw(1);
    copy(client, "warehouse", w..=w, |row, w| {
        let ytd = 10 * sizes.customers * DISTRICTS;
        let _ = writeln!(
            row,
            "{w}\t{}\t{}\t{}\t{ytd}.00",
            d.letters(6, 10),
            address(&mut d),
            tax(&mut d)
        );
    })?;
    let mut d = draw(2);
    copy(client, "district", 1..=DISTRICTS, |row, id| {
        let (ytd, next) = (10 * sizes.customers, sizes.customers + 1);
        let name = d.letters(6, 10);
        let _ = writeln!(
            row,
            "{w}\t{id}\t{name}\t{}\t{}\t{ytd}.00\t{next}",
            address(&mut d),
            tax(&mut d)
        );
    })?;
    let mut d = draw(3);
    copy(client, "stock", 1..=sizes.items, |row, item| {
        stock(row, [w, item], &mut d)
    })?;
    let all = DISTRICTS * sizes.customers;
    let place = |n: i32| (1 + n / sizes.customers, 1 + n % sizes.customers);
    let mut d = draw(4);
    copy(client, "customer", 0..=all - 1, |row, n| {
        customer(row, (w, place(n)), &mut d)
    })?;
    let mut d = draw(5);
    copy(client, "history", 0..=all - 1, |row, n| {
        let (district, c) = place(n);
        let data = d.letters(12, 24);
        let _ = writeln!(row, "{c}\t{district}\t{w}\t{district}\t{w}\t{DATE}\t10.00\t{data}");
    })?;
    orders(client, sizes, w, &draw)
}

/// Orders, their lines, and those that are not delivered yet: the same draws for each of the three tables.
fn orders(client: &mut Client, sizes: Sizes, w: i32, draw: &impl Fn(u64) -> Draw) -> Result<()> {
    let mut d = draw(6);
    let customers: Vec<Vec<usize>> = (0..DISTRICTS).map(|_| d.shuffled(sizes.customers as usize)).collect();
    let all = DISTRICTS * sizes.customers;
    let place = |n: i32| (1 + n / sizes.customers, 1 + n % sizes.customers);
    let is_new = |order: i32| order > sizes.delivered();
    let mut lengths = draw(7);
    let lengths: Vec<i32> = (0..all).map(|_| lengths.number(5, 15)).collect();
    copy(client, "orders", 0..=all - 1, |row, n| {
        let (district, order) = place(n);
        let customer = customers[district as usize - 1][order as usize - 1] + 1;
        let carrier = if is_new(order) {
            "\\N".to_string()
        } else {
            d.number(1, 10).to_string()
        };
        let count = lengths[n as usize];
        let _ = writeln!(
            row,
            "{w}\t{district}\t{order}\t{customer}\t{DATE}\t{carrier}\t{count}\t1"
        );
    })?;
    let mut d = draw(8);
    copy(client, "order_line", 0..=all - 1, |row, n| {
        let (district, order) = place(n);
        for number in 1..=lengths[n as usize] {
            let (item, info) = (d.number(1, sizes.items), d.letters(24, 24));
            let cents = if is_new(order) { d.number(1, 999_999) } else { 0 };
            let date = if is_new(order) { "\\N" } else { DATE };
            let amount = format!("{}.{:02}", cents / 100, cents % 100);
            let _ = writeln!(
                row,
                "{w}\t{district}\t{order}\t{number}\t{item}\t{w}\t{date}\t5\t{amount}\t{info}"
            );
        }
    })?;
    copy(client, "new_order", 0..=all - 1, |row, n| {
        let (district, order) = place(n);
        if is_new(order) {
            let _ = writeln!(row, "{w}\t{district}\t{order}");
        }
    })
}

fn copy(
    client: &mut Client,
    table: &str,
    numbers: std::ops::RangeInclusive<i32>,
    mut row: impl FnMut(&mut String, i32),
) -> Result<()> {
    let mut writer = client.copy_in(&format!("COPY {table} FROM STDIN"))?;
    let mut text = String::new();
    for n in numbers {
        row(&mut text, n);
        if text.len() >= PIECE {
            writer.write_all(text.as_bytes()).context("sending rows")?;
            text.clear();
        }
    }
    writer.write_all(text.as_bytes()).context("sending rows")?;
    writer.finish()?;
    Ok(())
}

fn items(row: &mut String, id: i32, d: &mut Draw) {
    let (image, name, cents) = (d.number(1, 10_000), d.letters(14, 24), d.number(100, 10_000));
    let data = original(d);
    let _ = writeln!(row, "{id}\t{image}\t{name}\t{}.{:02}\t{data}", cents / 100, cents % 100);
}

fn stock(row: &mut String, [w, item]: [i32; 2], d: &mut Draw) {
    let _ = write!(row, "{w}\t{item}\t{}", d.number(10, 100));
    (0..DISTRICTS).for_each(|_| _ = write!(row, "\t{}", d.letters(24, 24)));
    let _ = writeln!(row, "\t0\t0\t0\t{}", original(d));
}

/// 26 to 50 letters; one in ten has ORIGINAL among them (clause 4.3.3.1).
fn original(d: &mut Draw) -> String {
    let mut text = d.letters(26, 50);
    if d.percent(10) {
        let at = d.number(0, text.len() as i32 - 8) as usize;
        text.replace_range(at..at + 8, "ORIGINAL");
    }
    text
}

fn customer(row: &mut String, (w, (district, id)): (i32, (i32, i32)), d: &mut Draw) {
    let last = if id <= 1000 {
        id - 1
    } else {
        d.skewed(255, C_LAST_LOAD, 0, 999)
    };
    let credit = if d.percent(10) { "BC" } else { "GC" };
    let (first, address, phone) = (d.letters(8, 16), address(d), d.digits(16));
    let (discount, data) = (d.number(0, 5_000), d.letters(300, 500));
    let _ = writeln!(
        row,
        "{w}\t{district}\t{id}\t{first}\tOE\t{}\t{address}\t{phone}\t{DATE}\t{credit}\t50000.00\t0.{discount:04}\t\
         -10.00\t10.00\t1\t0\t{data}",
        last_name(last)
    );
}

/// Two streets, city, state, zip (clause 4.3.2.7).
fn address(d: &mut Draw) -> String {
    let [one, two, city] = [(); 3].map(|()| d.letters(10, 20));
    format!("{one}\t{two}\t{city}\t{}\t{}11111", d.letters(2, 2), d.digits(4))
}

fn tax(d: &mut Draw) -> String {
    format!("0.{:04}", d.number(0, 2_000))
}

/// Clause 4.3.2.3: a name of three syllables, of a number below 1000.
pub fn last_name(number: i32) -> String {
    const SYLLABLES: [&str; 10] = [
        "BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING",
    ];
    let syllable = |n: i32| SYLLABLES[(n % 10) as usize];
    [number / 100, number / 10, number].map(syllable).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_specification() {
        assert_eq!(last_name(371), "PRICALLYOUGHT");
        assert_eq!(last_name(40), "BARPRESBAR");
    }

    #[test]
    fn one_in_ten_is_original_and_has_bad_credit() {
        let (mut d, mut text) = (Draw::new(1, [0, 0]), String::new());
        let originals = (0..20_000).filter(|_| original(&mut d).contains("ORIGINAL")).count();
        assert!((1_800..2_200).contains(&originals), "{originals}");
        (1..=20_000).for_each(|id| customer(&mut text, (1, (1, id)), &mut d));
        let bad = text.lines().filter(|line| line.contains("\tBC\t")).count();
        assert!((1_800..2_200).contains(&bad), "{bad}");
        assert!(text.lines().all(|line| line.split('\t').count() == 21));
    }

    #[test]
    fn rows_have_the_columns_of_their_tables() {
        let (mut d, mut text) = (Draw::new(2, [0, 0]), String::new());
        items(&mut text, 7, &mut d);
        stock(&mut text, [1, 7], &mut d);
        let columns: Vec<usize> = text.lines().map(|line| line.split('\t').count()).collect();
        assert_eq!(columns, [5, 17]);
        assert_eq!(address(&mut d).split('\t').count(), 5);
    }
}
