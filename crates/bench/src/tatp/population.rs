//! The tables and their rows.

use super::options::{Load, Options};
use crate::draw::Draw;
use crate::oltp::connect;
use crate::{IoContext, Result};
use indicatif::{ProgressBar, ProgressStyle};
use postgres::Client;
use std::fmt::Write as _;
use std::io::Write as _;

/// Text goes to the server in pieces of so many bytes.
const PIECE: usize = 256 << 10;

/// Each table with its columns. There are no foreign keys: Cenote has none, and all servers get the same.
fn tables() -> [(&'static str, String); 4] {
    let ten = |name: &str| {
        (1..=10)
            .map(|n| format!("{name}_{n} INTEGER NOT NULL, "))
            .collect::<String>()
    };
    let numbers = [ten("bit"), ten("hex"), ten("byte2")].concat();
    [
        (
            "subscriber",
            format!(
                "s_id INTEGER PRIMARY KEY, sub_nbr VARCHAR(15) NOT NULL, {numbers}msc_location INTEGER NOT NULL, \
                 vlr_location INTEGER NOT NULL"
            ),
        ),
        (
            "access_info",
            "s_id INTEGER NOT NULL, ai_type INTEGER NOT NULL, data1 INTEGER NOT NULL, data2 INTEGER NOT NULL, data3 \
             CHAR(3) NOT NULL, data4 CHAR(5) NOT NULL, PRIMARY KEY (s_id, ai_type)"
                .into(),
        ),
        (
            "special_facility",
            "s_id INTEGER NOT NULL, sf_type INTEGER NOT NULL, is_active INTEGER NOT NULL, error_cntrl INTEGER NOT NULL, \
             data_a INTEGER NOT NULL, data_b CHAR(5) NOT NULL, PRIMARY KEY (s_id, sf_type)"
                .into(),
        ),
        (
            "call_forwarding",
            "s_id INTEGER NOT NULL, sf_type INTEGER NOT NULL, start_time INTEGER NOT NULL, end_time INTEGER NOT NULL, \
             numberx VARCHAR(15) NOT NULL, PRIMARY KEY (s_id, sf_type, start_time)"
                .into(),
        ),
    ]
}

/// Creates and fills all tables, which only [`Load::Always`] drops before, and makes the index.
///
/// # Errors
/// [`crate::Error::Sql`] if the server refuses something.
pub fn load(options: &Options) -> Result<()> {
    let mut client = connect(&options.url)?;
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len}").expect("a constant template");
    let bar = ProgressBar::new(4).with_style(style);
    for (n, (table, columns)) in tables().into_iter().enumerate() {
        bar.set_message(format!("loading {table}"));
        if options.load == Load::Always {
            client.batch_execute(&format!("DROP TABLE IF EXISTS {table}"))?;
        }
        client.batch_execute(&format!("CREATE TABLE {table} ({columns})"))?;
        copy(&mut client, table, options, |text, id| {
            let rows = rows(id, options.seed);
            text.push_str(&rows[n]);
        })?;
        bar.inc(1);
    }
    client.batch_execute("CREATE UNIQUE INDEX subscriber_number ON subscriber (sub_nbr)")?;
    for (table, _) in tables() {
        client.batch_execute(&format!("VACUUM ANALYZE {table}"))?;
    }
    bar.finish_and_clear();
    Ok(())
}

fn copy(client: &mut Client, table: &str, options: &Options, row: impl Fn(&mut String, i32)) -> Result<()> {
    let mut writer = client.copy_in(&format!("COPY {table} FROM STDIN"))?;
    let mut text = String::new();
    for id in 1..=options.subscribers {
        row(&mut text, id);
        if text.len() >= PIECE {
            writer.write_all(text.as_bytes()).context("sending rows")?;
            text.clear();
        }
    }
    writer.write_all(text.as_bytes()).context("sending rows")?;
    writer.finish()?;
    Ok(())
}

/// A subscriber's number as it is dialled.
pub fn number(id: i32) -> String {
    format!("{id:015}")
}

/// What each of the four tables has of a subscriber.
fn rows(id: i32, seed: u64) -> [String; 4] {
    let mut d = Draw::new(seed, [200, id as u64]);
    let mut rows: [String; 4] = Default::default();
    let [subscriber, access, facility, forwarding] = &mut rows;
    let _ = write!(subscriber, "{id}\t{}", number(id));
    for high in [1, 15, 255] {
        (0..10).for_each(|_| _ = write!(subscriber, "\t{}", d.number(0, high)));
    }
    let _ = writeln!(subscriber, "\t{}\t{}", d.number(1, i32::MAX), d.number(1, i32::MAX));
    for kind in some_of_four(&mut d) {
        let (one, two) = (d.number(0, 255), d.number(0, 255));
        let _ = writeln!(
            access,
            "{id}\t{kind}\t{one}\t{two}\t{}\t{}",
            d.letters(3, 3),
            d.letters(5, 5)
        );
    }
    for kind in some_of_four(&mut d) {
        let is_active = i32::from(d.percent(85));
        let (control, data) = (d.number(0, 255), d.number(0, 255));
        let _ = writeln!(
            facility,
            "{id}\t{kind}\t{is_active}\t{control}\t{data}\t{}",
            d.letters(5, 5)
        );
        let count = d.number(0, 3) as usize;
        for start in d.shuffled(3).into_iter().take(count).map(|n| 8 * n as i32) {
            let end = start + d.number(1, 8);
            let _ = writeln!(forwarding, "{id}\t{kind}\t{start}\t{end}\t{}", d.digits(15));
        }
    }
    rows
}

/// One to four of the numbers from 1 to 4.
fn some_of_four(d: &mut Draw) -> Vec<i32> {
    let count = d.number(1, 4) as usize;
    d.shuffled(4).into_iter().take(count).map(|n| n as i32 + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscribers_have_the_shares_that_missed_transactions_follow_from() {
        let (mut access, mut facilities, mut active, mut forwardings, mut found) = (0, 0, 0, 0, 0.0);
        let count = 20_000;
        for id in 1..=count {
            let [subscriber, accesses, its, ends] = rows(id, 1);
            assert_eq!(subscriber.trim_end().split('\t').count(), 34);
            access += accesses.lines().count();
            facilities += its.lines().count();
            forwardings += ends.lines().count();
            for facility in its.lines().filter(|line| line.split('\t').nth(2) == Some("1")) {
                active += 1;
                let kind = facility.split('\t').nth(1);
                let times: Vec<Vec<i32>> = ends
                    .lines()
                    .filter(|line| line.split('\t').nth(1) == kind)
                    .map(|line| {
                        line.split('\t')
                            .skip(2)
                            .take(2)
                            .map(|n| n.parse().expect("a number"))
                            .collect()
                    })
                    .collect();
                let is_found = |start, end| times.iter().any(|t| t[0] <= start && end < t[1]);
                let hits = [0, 8, 16].map(|start| (1..=24).filter(|end| is_found(start, *end)).count());
                found += hits.iter().sum::<usize>() as f64 / 72.0;
            }
        }
        let near = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 0.02, "{found}, not {wanted}");
        near(access as f64, 2.5 * f64::from(count));
        near(facilities as f64, 2.5 * f64::from(count));
        near(f64::from(active), 0.85 * facilities as f64);
        near(forwardings as f64, 1.5 * facilities as f64);
        // What get new destination finds at first, of four kinds of facilities and three times: see `MISSED`.
        near(100.0 * found / (4.0 * f64::from(count)), 14.79);
    }
}
