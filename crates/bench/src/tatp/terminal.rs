//! The seven transactions, as a client runs them.

use super::options::{KINDS, MIX, Options};
use super::population::number;
use crate::Result;
use crate::draw::Draw;
use crate::oltp::{Outcome, Session, Statement, Terminal, Values};

/// A statement of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sql {
    Subscriber,
    NewDestination,
    Access,
    UpdateBit,
    UpdateData,
    UpdateLocation,
    SubscriberByNumber,
    Facilities,
    InsertForwarding,
    DeleteForwarding,
}

/// A statement, its text, and literals for its parameters where the server is asked how it carries it out.
pub type Text = (Sql, &'static str, &'static [&'static str]);

/// All of them, by number.
pub const STATEMENTS: [Text; 10] = [
    (
        Sql::Subscriber,
        "SELECT s_id, sub_nbr, bit_1, bit_2, bit_3, bit_4, bit_5, bit_6, bit_7, bit_8, bit_9, bit_10, hex_1, hex_2, hex_3, \
         hex_4, hex_5, hex_6, hex_7, hex_8, hex_9, hex_10, byte2_1, byte2_2, byte2_3, byte2_4, byte2_5, byte2_6, byte2_7, \
         byte2_8, byte2_9, byte2_10, msc_location, vlr_location FROM subscriber WHERE s_id = $1",
        &["1"],
    ),
    (
        Sql::NewDestination,
        "SELECT cf.numberx FROM special_facility AS sf, call_forwarding AS cf WHERE sf.s_id = $1 AND sf.sf_type = $2 AND \
         sf.is_active = 1 AND cf.s_id = sf.s_id AND cf.sf_type = sf.sf_type AND cf.start_time <= $3 AND $4 < cf.end_time",
        &["1", "2", "8", "10"],
    ),
    (
        Sql::Access,
        "SELECT data1, data2, data3, data4 FROM access_info WHERE s_id = $1 AND ai_type = $2",
        &["1", "2"],
    ),
    (
        Sql::UpdateBit,
        "UPDATE subscriber SET bit_1 = $2 WHERE s_id = $1",
        &["1", "0"],
    ),
    (
        Sql::UpdateData,
        "UPDATE special_facility SET data_a = $3 WHERE s_id = $1 AND sf_type = $2",
        &["1", "2", "3"],
    ),
    (
        Sql::UpdateLocation,
        "UPDATE subscriber SET vlr_location = $2 WHERE sub_nbr = $1",
        &["'000000000000001'", "7"],
    ),
    (
        Sql::SubscriberByNumber,
        "SELECT s_id FROM subscriber WHERE sub_nbr = $1",
        &["'000000000000001'"],
    ),
    (
        Sql::Facilities,
        "SELECT sf_type FROM special_facility WHERE s_id = $1",
        &["1"],
    ),
    (
        Sql::InsertForwarding,
        "INSERT INTO call_forwarding (s_id, sf_type, start_time, end_time, numberx) VALUES ($1, $2, $3, $4, $5)",
        &["1", "9", "0", "8", "'1'"],
    ),
    (
        Sql::DeleteForwarding,
        "DELETE FROM call_forwarding WHERE s_id = $1 AND sf_type = $2 AND start_time = $3",
        &["1", "2", "0"],
    ),
];

/// What a transaction is given; each takes what it needs of it.
#[derive(Debug, Clone)]
pub struct Input {
    kind: usize,
    subscriber: i32,
    /// Of an access or a facility, 1 to 4.
    of_four: i32,
    start: i32,
    end: i32,
    /// A bit, a byte or a location.
    value: i32,
    number: String,
}

/// A client: its connection, its statements, its inputs.
pub struct Tatp {
    session: Session,
    prepared: Vec<Statement>,
    draw: Draw,
    subscribers: i32,
}

impl Tatp {
    /// Connects and prepares all statements.
    ///
    /// # Errors
    /// [`crate::Error::Statement`] if the server refuses something; as of [`Session::connect`].
    pub fn connect(options: &Options, client: u32, seed: u64) -> Result<Tatp> {
        let mut session = Session::connect(&options.url)?;
        let prepared = STATEMENTS.iter().map(|s| session.client().prepare(s.1));
        Ok(Tatp {
            prepared: prepared.collect::<Result<_>>()?,
            session,
            draw: Draw::new(seed, [201, u64::from(client)]),
            subscribers: options.subscribers,
        })
    }

    fn update_subscriber(&mut self, input: &Input) -> Result<Outcome> {
        let Input {
            subscriber: id,
            of_four,
            value,
            ..
        } = input;
        let mut work = self.session.begin()?;
        work.execute(&self.prepared[Sql::UpdateBit as usize], &[id, &(value % 2)])?;
        let changed = work.execute(&self.prepared[Sql::UpdateData as usize], &[id, of_four, &(value % 256)])?;
        match changed {
            0 => work.rollback()?,
            _ => work.commit()?,
        }
        Ok(found(changed))
    }

    /// A facility that is not there would violate a foreign key, which tables here do not have: the client looks.
    fn insert_forwarding(&mut self, input: &Input) -> Result<Outcome> {
        let Input {
            of_four,
            start,
            end,
            number: to,
            ..
        } = input;
        let mut work = self.session.begin()?;
        let row = work.row(
            &self.prepared[Sql::SubscriberByNumber as usize],
            &[&number(input.subscriber)],
        )?;
        let id: i32 = row.get(0);
        let facilities = work.query(&self.prepared[Sql::Facilities as usize], &[&id])?;
        if !facilities.iter().any(|row| row.get::<i32>(0) == *of_four) {
            work.rollback()?;
            return Ok(Outcome::Missed);
        }
        match work.execute(
            &self.prepared[Sql::InsertForwarding as usize],
            &[&id, of_four, start, end, to],
        ) {
            Ok(_) => work.commit().map(|()| Outcome::Done),
            Err(error) if error.sqlstate() == Some("23505") => {
                work.rollback()?;
                Ok(Outcome::Missed)
            }
            Err(error) => Err(error),
        }
    }

    fn delete_forwarding(&mut self, input: &Input) -> Result<Outcome> {
        let mut work = self.session.begin()?;
        let row = work.row(
            &self.prepared[Sql::SubscriberByNumber as usize],
            &[&number(input.subscriber)],
        )?;
        let id: i32 = row.get(0);
        let values: Values<'_> = &[&id, &input.of_four, &input.start];
        let changed = work.execute(&self.prepared[Sql::DeleteForwarding as usize], values)?;
        work.commit()?;
        Ok(found(changed))
    }
}

fn found(rows: u64) -> Outcome {
    if rows == 0 { Outcome::Missed } else { Outcome::Done }
}

/// A subscriber's number: the OR of two draws, so some come far more often than others.
fn skewed(draw: &mut Draw, subscribers: i32) -> i32 {
    let a = match subscribers {
        ..=1_000_000 => 65_535,
        1_000_001..=10_000_000 => 1_048_575,
        _ => 2_097_151,
    };
    (draw.number(0, a) | draw.number(1, subscribers)) % subscribers + 1
}

impl Terminal for Tatp {
    type Input = Input;
    const KINDS: &'static [&'static str] = &KINDS;

    fn draw(&mut self) -> (usize, Input) {
        let d = &mut self.draw;
        let kind = d.weighted(&MIX);
        let input = Input {
            kind,
            subscriber: skewed(d, self.subscribers),
            of_four: d.number(1, 4),
            start: 8 * d.number(0, 2),
            end: d.number(1, 24),
            value: d.number(0, i32::MAX),
            number: d.digits(15),
        };
        (kind, input)
    }

    fn run(&mut self, input: &Input) -> Result<Outcome> {
        let Input {
            subscriber: id,
            of_four,
            start,
            end,
            value,
            ..
        } = input;
        let prepared = |sql| &self.prepared[sql as usize];
        let rows = match input.kind {
            0 => self.session.query(prepared(Sql::Subscriber), &[id])?.len() as u64,
            1 => {
                let rows = self
                    .session
                    .query(prepared(Sql::NewDestination), &[id, of_four, start, end])?;
                rows.len() as u64
            }
            2 => self.session.query(prepared(Sql::Access), &[id, of_four])?.len() as u64,
            3 => return self.update_subscriber(input),
            4 => self
                .session
                .execute(prepared(Sql::UpdateLocation), &[&number(*id), value])?,
            5 => return self.insert_forwarding(input),
            _ => return self.delete_forwarding(input),
        };
        Ok(found(rows))
    }

    fn statements(&self) -> u64 {
        self.session.statements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_statement_is_at_its_number_and_has_a_sample_of_each_parameter() {
        for (n, (sql, text, samples)) in STATEMENTS.iter().enumerate() {
            assert_eq!(*sql as usize, n, "{text}");
            let has = |n: usize| text.contains(&format!("${n}"));
            assert!((1..=samples.len()).all(has) && !has(samples.len() + 1), "{text}");
        }
    }

    /// Of 100,000 subscribers, the OR with up to 65,535 leaves few numbers below 65,536 with a low bit that is not set.
    #[test]
    fn subscribers_are_in_range_and_skewed() {
        let mut draw = Draw::new(1, [0, 0]);
        let drawn: Vec<i32> = (0..100_000).map(|_| skewed(&mut draw, 100_000)).collect();
        assert!(drawn.iter().all(|id| (1..=100_000).contains(id)));
        let odd_bits = drawn.iter().filter(|id| ((*id - 1) & 0xff) == 0xff).count();
        assert!(odd_bits > 3 * 100_000 / 256, "{odd_bits}");
    }
}
