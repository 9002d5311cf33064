//! The workload of the demonstration and of the crash figures: transfers between accounts, with a ledger.
//!
//! A transaction moves an amount from one account to another and writes a ledger row under an id that the client
//! chose. The client remembers which ids were acknowledged. After a crash three things must hold:
//! 1. every acknowledged id is in the ledger (nothing acknowledged is lost);
//! 2. nothing is in the ledger but acknowledged ids and those that were in flight when a connection broke;
//! 3. the balances add up to what they were, and each account's balance is what the ledger says (no transfer is
//!    half there).

use crate::load::Workload;
use crate::{Error, Result};
use cenote_base::random::{Random, mix};
use postgres::{Client, Statement};
use std::collections::{HashMap, HashSet};
use std::io::Write;

/// What an account holds at first.
pub const INITIAL_BALANCE: i64 = 1_000_000;

/// One transfer in so many is rolled back at its end: it must leave no trace.
pub const ROLLED_BACK: i64 = 32;

/// Creates and fills the tables; `progress` is told of each thousand rows.
///
/// # Errors
/// [`Error::Sql`] if a statement fails.
pub fn prepare(client: &mut Client, accounts: i64, mut progress: impl FnMut(u64)) -> Result<()> {
    client.batch_execute(
        "DROP TABLE IF EXISTS account; DROP TABLE IF EXISTS ledger;
         CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL, note text NOT NULL);
         CREATE INDEX account_balance ON account (balance);
         CREATE TABLE ledger (id bigint PRIMARY KEY, source bigint NOT NULL, target bigint NOT NULL, amount bigint NOT NULL)",
    )?;
    let note = "all the water of the land is one water ".repeat(4);
    let mut sink = client.copy_in("COPY account FROM STDIN")?;
    for id in 0..accounts {
        let line = format!("{id}\t{INITIAL_BALANCE}\t{note}\n");
        sink.write_all(line.as_bytes())
            .map_err(|e| Error::Lost(format!("loading stopped: {e}")))?;
        if id % 1000 == 0 {
            progress(id as u64);
        }
    }
    sink.finish()?;
    Ok(())
}

/// One worker's transfers and what it knows of them.
pub struct Transfers {
    worker: i64,
    accounts: i64,
    reads: usize,
    next: i64,
    random: Random,
    statements: Option<[Statement; 4]>,
    /// Ids that the server acknowledged.
    pub acknowledged: Vec<i64>,
    /// Ids whose connection broke before an answer came.
    pub in_flight: Vec<i64>,
}

impl Transfers {
    /// `reads` point reads accompany each transfer; `seed` chooses the accounts.
    pub fn new(worker: i64, accounts: i64, reads: usize, seed: u64) -> Transfers {
        let random = Random(mix(seed ^ (worker as u64 + 1)));
        Transfers {
            worker,
            accounts,
            reads,
            next: 0,
            random,
            statements: None,
            acknowledged: Vec::new(),
            in_flight: Vec::new(),
        }
    }

    /// A number from 0 to `n` - 1: the same for the same seed.
    fn below(&mut self, n: i64) -> i64 {
        self.random.below(n as u64) as i64
    }

    fn transfer(&mut self, client: &mut Client, id: i64) -> std::result::Result<(), postgres::Error> {
        let (a, b) = (self.below(self.accounts), self.below(self.accounts));
        let amount = self.below(100) + 1;
        let reads: Vec<i64> = (0..self.reads).map(|_| self.below(self.accounts)).collect();
        let Some([read, update, insert, _]) = &self.statements else {
            return Ok(());
        };
        let mut transaction = client.transaction()?;
        for account in reads {
            transaction.query_opt(read, &[&account])?;
        }
        // Accounts are taken in order, so that transfers never deadlock.
        let (first, second) = if a < b {
            ((a, -amount), (b, amount))
        } else {
            ((b, amount), (a, -amount))
        };
        for (account, delta) in [first, second] {
            transaction.execute(update, &[&delta, &account])?;
        }
        transaction.execute(insert, &[&id, &a, &b, &amount])?;
        if id % ROLLED_BACK == 0 {
            transaction.rollback()
        } else {
            transaction.commit()
        }
    }
}

impl Workload for Transfers {
    fn connected(&mut self, client: &mut Client) -> std::result::Result<(), postgres::Error> {
        self.statements = Some([
            client.prepare("SELECT balance FROM account WHERE id = $1")?,
            client.prepare("UPDATE account SET balance = balance + $1 WHERE id = $2")?,
            client.prepare("INSERT INTO ledger (id, source, target, amount) VALUES ($1, $2, $3, $4)")?,
            client.prepare("SELECT count(*) FROM ledger WHERE id = $1")?,
        ]);
        Ok(())
    }

    fn transaction(&mut self, client: &mut Client) -> std::result::Result<(), postgres::Error> {
        let id = (self.worker << 40) | self.next;
        self.next += 1;
        let outcome = self.transfer(client, id);
        match &outcome {
            Ok(()) if id % ROLLED_BACK == 0 => {}
            Ok(()) => self.acknowledged.push(id),
            Err(error) if outcome_unknown(error) => self.in_flight.push(id),
            Err(_) => {}
        }
        outcome
    }
}

/// Whether the server may have committed in spite of the error: the connection broke, or was being shut down.
fn outcome_unknown(error: &postgres::Error) -> bool {
    error.as_db_error().is_none_or(|e| e.code().code().starts_with("57P"))
}

/// What the check after a load counted.
#[derive(Debug, Default, Clone, serde::Serialize)]
pub struct Verdict {
    /// Transfers that were acknowledged to a client.
    pub acknowledged: usize,
    /// Transfers in flight when a connection broke.
    pub in_flight: usize,
    /// Of those, how many the database holds.
    pub in_flight_kept: usize,
    /// Acknowledged transfers that are not there.
    pub lost: usize,
    /// Rows that were neither acknowledged nor sent.
    pub unexpected: usize,
    /// Accounts whose balance is not what the ledger says.
    pub wrong_balances: usize,
}

impl Verdict {
    /// An error that says what was lost, if anything was.
    ///
    /// # Errors
    /// [`Error::Lost`] with the numbers, if a transfer was lost, a row is unexpected or a balance is wrong.
    pub fn must_hold(&self) -> Result<()> {
        if self.lost + self.unexpected + self.wrong_balances == 0 {
            return Ok(());
        }
        Err(Error::Lost(format!(
            "{} acknowledged transfers lost, {} unexpected rows, {} balances that the ledger does not explain",
            self.lost, self.unexpected, self.wrong_balances
        )))
    }
}

/// Compares the database with what the clients remember.
///
/// # Errors
/// [`Error::Sql`] if a statement fails.
pub fn verify<'a>(client: &mut Client, accounts: i64, workers: impl Iterator<Item = &'a Transfers>) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    let (mut acknowledged, mut in_flight) = (HashSet::new(), HashSet::new());
    for worker in workers {
        acknowledged.extend(worker.acknowledged.iter().copied());
        in_flight.extend(worker.in_flight.iter().copied());
    }
    let mut deltas: HashMap<i64, i64> = HashMap::new();
    let mut found = HashSet::new();
    for row in client.query("SELECT id, source, target, amount FROM ledger", &[])? {
        let (id, source, target, amount): (i64, i64, i64, i64) = (row.get(0), row.get(1), row.get(2), row.get(3));
        *deltas.entry(source).or_default() -= amount;
        *deltas.entry(target).or_default() += amount;
        let known = acknowledged.contains(&id) || in_flight.contains(&id);
        verdict.unexpected += usize::from(!known || !found.insert(id));
    }
    verdict.acknowledged = acknowledged.len();
    verdict.in_flight = in_flight.len();
    verdict.in_flight_kept = in_flight.iter().filter(|id| found.contains(id)).count();
    verdict.lost = acknowledged.iter().filter(|id| !found.contains(id)).count();
    verdict.wrong_balances = wrong_balances(client, accounts, &deltas)?;
    Ok(verdict)
}

fn wrong_balances(client: &mut Client, accounts: i64, deltas: &HashMap<i64, i64>) -> Result<usize> {
    let rows = client.query("SELECT id, balance FROM account", &[])?;
    let missing = (accounts as usize).abs_diff(rows.len());
    let wrong = rows.iter().filter(|row| {
        let (id, balance): (i64, i64) = (row.get(0), row.get(1));
        balance != INITIAL_BALANCE + deltas.get(&id).copied().unwrap_or(0)
    });
    Ok(missing + wrong.count())
}
