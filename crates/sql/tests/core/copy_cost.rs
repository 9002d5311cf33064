//! What COPY and CREATE INDEX cost, in process. Run by hand:
//! `CENOTE_LINES=200000 cargo test -p cenote-sql --release --test core copy_cost -- --ignored --nocapture`.
//! Under callgrind with n and 2n lines, the difference is what n lines take.
//! `CENOTE_COPY_FILE=path` keeps the lines, so that another server can be given the same. `CENOTE_UNIQUE=columns` gives
//! the table a unique index of these before: `l_partkey, l_orderkey, l_linenumber`, or in the order of the lines
//! `l_orderkey, l_linenumber, l_partkey`.

use crate::support::{Answer, Database, run_simple, simple};
use cenote_base::random::Random;
use std::fmt::Write;

const LINEITEM: &str = "CREATE TABLE lineitem (l_orderkey INTEGER NOT NULL, l_partkey INTEGER NOT NULL, l_suppkey INTEGER \
     NOT NULL, l_linenumber INTEGER NOT NULL, l_quantity NUMERIC(15,2) NOT NULL, l_extendedprice NUMERIC(15,2) NOT NULL, \
     l_discount NUMERIC(15,2) NOT NULL, l_tax NUMERIC(15,2) NOT NULL, l_returnflag CHAR(1) NOT NULL, l_linestatus CHAR(1) \
     NOT NULL, l_shipdate DATE NOT NULL, l_commitdate DATE NOT NULL, l_receiptdate DATE NOT NULL, l_shipinstruct CHAR(25) \
     NOT NULL, l_shipmode CHAR(10) NOT NULL, l_comment VARCHAR(44) NOT NULL, PRIMARY KEY (l_orderkey, l_linenumber))";
/// Bytes of a message, as psql sends them.
const MESSAGE: usize = 8 << 10;

/// A line of TPC-H's largest table, about as its generator writes it.
fn line(text: &mut String, random: &mut Random, number: u64) {
    let (order, part) = (number / 4 * 4 + 1, 1 + random.below(200_000));
    let (quantity, cents) = (1 + random.below(50), 90_000 + random.below(100_000));
    let price = quantity * cents;
    let day = |random: &mut Random| {
        format!(
            "199{}-{:02}-{:02}",
            2 + random.below(7),
            1 + random.below(12),
            1 + random.below(28)
        )
    };
    let (ship, commit, receipt) = (day(random), day(random), day(random));
    let (discount, tax) = (random.below(11), random.below(9));
    let comment =
        &"carefully final deposits sleep blithely about the ironic requests"[..10 + random.below(34) as usize];
    let _ = writeln!(
        text,
        "{order}\t{part}\t{}\t{}\t{quantity}\t{}.{:02}\t0.{discount:02}\t0.{tax:02}\t{}\t{}\t{ship}\t{commit}\t{receipt}\t{}\t{}\t{comment}",
        1 + part % 10_000,
        number % 4 + 1,
        price / 100,
        price % 100,
        random.pick(&["N", "R", "A"]),
        random.pick(&["O", "F"]),
        random.pick(&["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"]),
        random.pick(&["REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"]),
    );
}

/// Hundredths of a second of processor time that this process has used, all threads, user and kernel.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("a process");
    let fields = stat[stat.rfind(')').expect("a name") + 2..].split(' ');
    fields
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().expect("ticks"))
        .sum()
}

/// As `ticks`, when the threads that a start leaves behind (the pool's memory is touched) are done.
fn idle() -> u64 {
    let mut before = ticks();
    loop {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let now = ticks();
        if now <= before + 1 {
            return now;
        }
        before = now;
    }
}

#[test]
#[ignore = "measures"]
fn copy_cost() {
    let asked = std::env::var("CENOTE_LINES").ok().and_then(|lines| lines.parse().ok());
    let (mut text, mut random) = (String::new(), Random(7));
    let lines = asked.unwrap_or(20_000);
    (0..lines).for_each(|number| line(&mut text, &mut random, number));
    if let Ok(path) = std::env::var("CENOTE_COPY_FILE") {
        std::fs::write(path, &text).expect("a file");
    }
    let database = Database::with_memory(1 << 30);
    let mut session = database.session();
    simple(&mut session, LINEITEM).expect("made");
    if let Ok(columns) = std::env::var("CENOTE_UNIQUE") {
        let index = format!("CREATE UNIQUE INDEX lineitem_unique ON lineitem ({columns})");
        simple(&mut session, &index).expect("made");
    }
    let mut answer = Answer {
        copy_input: text.as_bytes().chunks(MESSAGE).map(<[u8]>::to_vec).collect(),
        ..Answer::default()
    };
    let mut before = idle();
    let mut used = |what: &str| {
        let now = ticks();
        println!("{what}: {} ms of processor time", 10 * (now - before));
        before = now;
    };
    run_simple(&mut session, "COPY lineitem FROM STDIN", &mut answer).expect("copied");
    used("COPY");
    simple(
        &mut session,
        "CREATE INDEX lineitem_part ON lineitem (l_partkey, l_suppkey)",
    )
    .expect("made");
    used("CREATE INDEX of two columns");
    simple(&mut session, "CREATE INDEX lineitem_supplier ON lineitem (l_suppkey)").expect("made");
    used("CREATE INDEX of one");
    assert_eq!(
        simple(&mut session, "SELECT count(*) FROM lineitem")
            .expect("readable")
            .lines(),
        [lines.to_string()]
    );
}
