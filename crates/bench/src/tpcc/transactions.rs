//! The five transactions (clauses 2.4 to 2.8), as a terminal runs them.

use super::inputs::{Input, Inputs, Line, Who};
use super::options::{KINDS, Options};
use super::population::DISTRICTS;
use super::statements::{STATEMENTS, Sql};
use crate::decimal::Decimal;
use crate::oltp::{Outcome, Session, Statement, Terminal, Values, Work};
use crate::{Error, Result};
use std::time::{Duration, SystemTime};

/// Of a customer with bad credit, so much of the history of payments is kept.
const DATA_LENGTH: usize = 500;

/// A terminal: its connection, its statements, its inputs.
pub struct Tpcc {
    session: Session,
    prepared: Prepared,
    inputs: Inputs,
}

/// The statements, prepared.
struct Prepared(Vec<Statement>);

impl std::ops::Index<Sql> for Prepared {
    type Output = Statement;

    fn index(&self, sql: Sql) -> &Statement {
        &self.0[sql as usize]
    }
}

impl Tpcc {
    /// Connects and prepares all statements.
    ///
    /// # Errors
    /// [`Error::Statement`] if the server refuses something; as of [`Session::connect`].
    pub fn connect(options: &Options, terminal: u32, seed: u64) -> Result<Tpcc> {
        let mut session = Session::connect(&options.url)?;
        let isolation = format!("SET default_transaction_isolation = '{}'", options.isolation);
        session.client().batch(&isolation)?;
        let prepared = STATEMENTS.iter().map(|s| session.client().prepare(s.text));
        Ok(Tpcc {
            prepared: Prepared(prepared.collect::<Result<_>>()?),
            session,
            inputs: Inputs::new(seed, terminal, options.sizes, options.warehouses),
        })
    }
}

impl Terminal for Tpcc {
    type Input = Input;
    const KINDS: &'static [&'static str] = &KINDS;

    fn draw(&mut self) -> (usize, Input) {
        self.inputs.next()
    }

    fn run(&mut self, input: &Input) -> Result<Outcome> {
        let (w, own_district) = (self.inputs.warehouse, self.inputs.district);
        let mut run = Run {
            work: self.session.begin()?,
            prepared: &self.prepared,
            w,
        };
        let is_done = match input {
            Input::NewOrder {
                district,
                customer,
                lines,
            } => run.new_order(*district, *customer, lines)?,
            Input::Payment {
                district,
                home,
                who,
                cents,
            } => run.payment(*district, *home, who, *cents)?,
            Input::OrderStatus { district, who } => run.order_status(*district, who)?,
            Input::Delivery { carrier } => run.delivery(*carrier)?,
            Input::StockLevel { threshold } => run.stock_level(own_district, *threshold)?,
        };
        if is_done {
            run.work.commit()?;
            return Ok(Outcome::Done);
        }
        run.work.rollback()?;
        Ok(Outcome::Missed)
    }

    fn statements(&self) -> u64 {
        self.session.statements
    }

    fn waits(&mut self, kind: usize) -> [Duration; 2] {
        self.inputs.waits(kind).map(Duration::from_secs_f64)
    }
}

/// A transaction under way at a terminal of warehouse `w`. The methods say whether it is to be committed.
struct Run<'a> {
    work: Work<'a>,
    prepared: &'a Prepared,
    w: i32,
}

impl Run<'_> {
    fn new_order(&mut self, d: i32, c: i32, lines: &[Line]) -> Result<bool> {
        let (w, p) = (self.w, self.prepared);
        let row = self.work.row(&p[Sql::CustomerAndTax], &[&w, &d, &c])?;
        let (discount, w_tax): (Decimal, Decimal) = (row.get(0), row.get(3));
        let row = self.work.row(&p[Sql::DistrictForOrder], &[&w, &d])?;
        let (order, d_tax): (i32, Decimal) = (row.get(0), row.get(1));
        self.work.execute(&p[Sql::AdvanceDistrict], &[&w, &d])?;
        let count = lines.len() as i32;
        let is_local = i32::from(lines.iter().all(|line| line.supplier == w));
        let now = SystemTime::now();
        let values: Values<'_> = &[&w, &d, &order, &c, &now, &count, &is_local];
        self.work.execute(&p[Sql::InsertOrder], values)?;
        self.work.execute(&p[Sql::InsertNewOrder], &[&w, &d, &order])?;
        let mut total = 0;
        for (number, line) in (1..).zip(lines) {
            match self.line((d, order, number), line)? {
                Some(cents) => total += cents,
                None => return Ok(false),
            }
        }
        // What the terminal shows; no row has it.
        let parts = |share: Decimal| share.to_scale(4);
        let shown = total * (10_000 - parts(discount)) / 10_000 * (10_000 + parts(w_tax) + parts(d_tax)) / 10_000;
        std::hint::black_box(shown);
        Ok(true)
    }

    /// A line's amount; none if its item is unknown.
    fn line(&mut self, (d, order, number): (i32, i32, i32), line: &Line) -> Result<Option<i64>> {
        let (w, p) = (self.w, self.prepared);
        let Some(item) = self.work.row_if_any(&p[Sql::Item], &[&line.item])? else {
            return Ok(None);
        };
        let stock = self.work.row(&p[Sql::Stock], &[&line.supplier, &line.item])?;
        let before: i32 = stock.get(0);
        let info: &str = stock.get(1 + d as usize);
        let left = before - line.quantity;
        let after = if left >= 10 { left } else { left + 91 };
        let is_remote = i32::from(line.supplier != w);
        let values: Values<'_> = &[&line.supplier, &line.item, &after, &line.quantity, &is_remote];
        must_change_one(self.work.execute(&p[Sql::UpdateStock], values)?)?;
        let cents = item.get::<Decimal>(0).to_scale(2) * i64::from(line.quantity);
        let amount = Decimal::cents(cents);
        let (item, supplier, quantity) = (&line.item, &line.supplier, &line.quantity);
        let values: Values<'_> = &[&w, &d, &order, &number, item, supplier, quantity, &amount, &info];
        self.work.execute(&p[Sql::InsertLine], values)?;
        Ok(Some(cents))
    }

    fn payment(&mut self, d: i32, (c_w, c_d): (i32, i32), who: &Who, cents: i64) -> Result<bool> {
        let (w, p, amount) = (self.w, self.prepared, Decimal::cents(cents));
        must_change_one(self.work.execute(&p[Sql::PayWarehouse], &[&w, &amount])?)?;
        let warehouse: String = self.work.row(&p[Sql::Warehouse], &[&w])?.get(0);
        must_change_one(self.work.execute(&p[Sql::PayDistrict], &[&w, &d, &amount])?)?;
        let district: String = self.work.row(&p[Sql::District], &[&w, &d])?.get(0);
        let c = self.customer(c_w, c_d, who)?;
        let row = self.work.row(&p[Sql::CustomerForPayment], &[&c_w, &c_d, &c])?;
        let (credit, old): (&str, &str) = (row.get(10), row.get(14));
        let changed = if credit == "BC" {
            let mut data = format!("{c} {c_d} {c_w} {d} {w} {amount}|{old}");
            data.truncate(DATA_LENGTH);
            let values: Values<'_> = &[&c_w, &c_d, &c, &amount, &amount, &data];
            self.work.execute(&p[Sql::PayBadCustomer], values)?
        } else {
            self.work
                .execute(&p[Sql::PayCustomer], &[&c_w, &c_d, &c, &amount, &amount])?
        };
        must_change_one(changed)?;
        let (now, data) = (SystemTime::now(), format!("{warehouse}    {district}"));
        let values: Values<'_> = &[&c, &c_d, &c_w, &d, &w, &now, &amount, &data];
        self.work.execute(&p[Sql::InsertHistory], values)?;
        Ok(true)
    }

    /// Of several customers of the name, the one in the middle by first name, rounded up (clause 2.5.2.2).
    fn customer(&mut self, w: i32, d: i32, who: &Who) -> Result<i32> {
        let name = match who {
            Who::Id(id) => return Ok(*id),
            Who::LastName(name) => name,
        };
        let rows = self.work.query(&self.prepared[Sql::CustomersByName], &[&w, &d, name])?;
        match rows.len() {
            0 => Err(Error::Lost(format!(
                "no customer {name} in warehouse {w}, district {d}"
            ))),
            n => Ok(rows[n.div_ceil(2) - 1].get(0)),
        }
    }

    fn order_status(&mut self, d: i32, who: &Who) -> Result<bool> {
        let (w, p) = (self.w, self.prepared);
        let c = self.customer(w, d, who)?;
        self.work.row(&p[Sql::CustomerBalance], &[&w, &d, &c])?;
        let order: i32 = self.work.row(&p[Sql::LastOrder], &[&w, &d, &c])?.get(0);
        let lines = self.work.query(&p[Sql::Lines], &[&w, &d, &order])?;
        match lines.len() {
            5..=15 => Ok(true),
            n => Err(Error::Lost(format!(
                "order {order} of warehouse {w}, district {d} has {n} lines"
            ))),
        }
    }

    /// The oldest order of each district; a district without one is passed over (clause 2.7.4.2).
    fn delivery(&mut self, carrier: i32) -> Result<bool> {
        let (w, p, now) = (self.w, self.prepared, SystemTime::now());
        for d in 1..=DISTRICTS {
            let Some(row) = self.work.row_if_any(&p[Sql::OldestNewOrder], &[&w, &d])? else {
                continue;
            };
            let order: i32 = row.get(0);
            must_change_one(self.work.execute(&p[Sql::DeleteNewOrder], &[&w, &d, &order])?)?;
            let c: i32 = self.work.row(&p[Sql::OrderCustomer], &[&w, &d, &order])?.get(0);
            must_change_one(self.work.execute(&p[Sql::SetCarrier], &[&w, &d, &order, &carrier])?)?;
            self.work.execute(&p[Sql::DeliverLines], &[&w, &d, &order, &now])?;
            let sum: Decimal = self.work.row(&p[Sql::SumLines], &[&w, &d, &order])?.get(0);
            must_change_one(self.work.execute(&p[Sql::DeliverCustomer], &[&w, &d, &c, &sum])?)?;
        }
        Ok(true)
    }

    fn stock_level(&mut self, d: i32, threshold: i32) -> Result<bool> {
        let (w, p) = (self.w, self.prepared);
        let next: i32 = self.work.row(&p[Sql::NextOrder], &[&w, &d])?.get(0);
        let first = next - 20;
        self.work.row(&p[Sql::LowStock], &[&w, &d, &next, &first, &threshold])?;
        Ok(true)
    }
}

/// A row that was just read and locked, or that always is there, is changed once.
fn must_change_one(changed: u64) -> Result<()> {
    match changed {
        1 => Ok(()),
        n => Err(Error::Lost(format!("a statement that changes one row has changed {n}"))),
    }
}
