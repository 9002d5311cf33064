//! Inputs of transactions (clauses 2.4.1, 2.5.1, 2.6.1, 2.7.1, 2.8.1), and how often each transaction comes.

use super::options::Sizes;
use super::population::{C_LAST_LOAD, DISTRICTS, last_name};
use crate::draw::Draw;

/// In a hundred, by number of the transaction (clause 5.2.3).
pub const MIX: [u32; 5] = [45, 43, 4, 4, 4];

/// How a customer is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    Id(i32),
    LastName(String),
}

/// A line of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub item: i32,
    pub supplier: i32,
    pub quantity: i32,
}

/// What a transaction is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// An item 0 is one that is unknown: the transaction is to be rolled back.
    NewOrder {
        district: i32,
        customer: i32,
        lines: Vec<Line>,
    },
    Payment {
        district: i32,
        /// Warehouse and district of the customer.
        home: (i32, i32),
        who: Who,
        cents: i64,
    },
    OrderStatus {
        district: i32,
        who: Who,
    },
    Delivery {
        carrier: i32,
    },
    StockLevel {
        threshold: i32,
    },
}

/// The source of a terminal's inputs.
pub struct Inputs {
    draw: Draw,
    sizes: Sizes,
    warehouses: i32,
    /// The terminal's own.
    pub warehouse: i32,
    /// The terminal's own, of which it asks the stock level.
    pub district: i32,
    c_last: i32,
    c_id: i32,
    c_item: i32,
}

impl Inputs {
    /// Of a terminal. The constants are the same for all terminals of a seed (clause 2.1.6).
    pub fn new(seed: u64, terminal: u32, sizes: Sizes, warehouses: i32) -> Self {
        let mut constants = Draw::new(seed, [100, 0]);
        Self {
            draw: Draw::new(seed, [101, u64::from(terminal)]),
            sizes,
            warehouses,
            warehouse: (terminal as i32) % warehouses + 1,
            district: (terminal as i32 / warehouses) % DISTRICTS + 1,
            c_last: C_LAST_LOAD - last_delta(&mut constants),
            c_id: constants.number(0, 1023),
            c_item: constants.number(0, 8191),
        }
    }

    /// The next transaction's kind and input.
    pub fn next(&mut self) -> (usize, Input) {
        let kind = self.draw.weighted(&MIX);
        let input = match kind {
            0 => self.new_order(),
            1 => self.payment(),
            2 => Input::OrderStatus {
                district: self.draw.number(1, DISTRICTS),
                who: self.who(),
            },
            3 => Input::Delivery {
                carrier: self.draw.number(1, 10),
            },
            _ => Input::StockLevel {
                threshold: self.draw.number(10, 20),
            },
        };
        (kind, input)
    }

    fn new_order(&mut self) -> Input {
        let (district, customer) = (self.draw.number(1, DISTRICTS), self.customer());
        let count = self.draw.number(5, 15);
        let mut lines: Vec<Line> = (0..count).map(|_| self.line()).collect();
        if let (true, Some(last)) = (self.draw.percent(1), lines.last_mut()) {
            last.item = 0;
        }
        Input::NewOrder {
            district,
            customer,
            lines,
        }
    }

    fn line(&mut self) -> Line {
        let is_remote = self.draw.percent(1) && self.warehouses > 1;
        Line {
            item: self.draw.skewed(8191, self.c_item, 1, self.sizes.items),
            supplier: if is_remote {
                self.another_warehouse()
            } else {
                self.warehouse
            },
            quantity: self.draw.number(1, 10),
        }
    }

    fn payment(&mut self) -> Input {
        let district = self.draw.number(1, DISTRICTS);
        let is_remote = self.draw.percent(15) && self.warehouses > 1;
        let home = match is_remote {
            true => (self.another_warehouse(), self.draw.number(1, DISTRICTS)),
            false => (self.warehouse, district),
        };
        Input::Payment {
            district,
            home,
            who: self.who(),
            cents: self.draw.between(100, 500_000),
        }
    }

    fn another_warehouse(&mut self) -> i32 {
        let other = self.draw.number(1, self.warehouses - 1);
        other + i32::from(other >= self.warehouse)
    }

    fn customer(&mut self) -> i32 {
        self.draw.skewed(1023, self.c_id, 1, self.sizes.customers)
    }

    /// By last name in 60 of a hundred.
    fn who(&mut self) -> Who {
        if !self.draw.percent(60) {
            return Who::Id(self.customer());
        }
        let names = self.sizes.customers.min(1000);
        Who::LastName(last_name(self.draw.skewed(255, self.c_last, 0, 999) % names))
    }

    /// Typing and thinking, in seconds (clauses 5.2.5.2 and 5.2.5.4).
    pub fn waits(&mut self, kind: usize) -> [f64; 2] {
        let (keying, mean) = [(18.0, 12.0), (3.0, 12.0), (2.0, 10.0), (2.0, 5.0), (2.0, 5.0)][kind];
        let thinking: f64 = -(1.0 - self.draw.share()).ln() * mean;
        [keying, thinking.min(10.0 * mean)]
    }
}

/// How far the constant of last names in a run is from that at load: 65 to 119, but neither 96 nor 112 (2.1.6.1).
fn last_delta(draw: &mut Draw) -> i32 {
    loop {
        let delta = draw.number(65, 119);
        if delta != 96 && delta != 112 {
            return delta;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = 200_000;

    fn inputs(warehouses: i32) -> Vec<(usize, Input)> {
        let mut source = Inputs::new(1, 2, Sizes::STANDARD, warehouses);
        (0..MANY).map(|_| source.next()).collect()
    }

    /// In a hundred of those that are asked about.
    fn share<'a>(of: impl Iterator<Item = &'a Input> + Clone, is: impl Fn(&Input) -> bool) -> f64 {
        100.0 * of.clone().filter(|input| is(input)).count() as f64 / of.count().max(1) as f64
    }

    #[test]
    fn the_mix_and_the_shares_are_those_of_the_specification() {
        let drawn = inputs(10);
        for (kind, wanted) in MIX.iter().enumerate() {
            let found = 100.0 * drawn.iter().filter(|d| d.0 == kind).count() as f64 / MANY as f64;
            assert!((found - f64::from(*wanted)).abs() < 0.5, "{kind}: {found}");
        }
        let of = |kind| drawn.iter().filter(move |d| d.0 == kind).map(|d| &d.1);
        let near = |found: f64, wanted: f64, by: f64| assert!((found - wanted).abs() < by, "{found}, not {wanted}");
        let is_undone =
            |input: &Input| matches!(input, Input::NewOrder { lines, .. } if lines.last().is_some_and(|l| l.item == 0));
        near(share(of(0), is_undone), 1.0, 0.2);
        let is_remote = |input: &Input| matches!(input, Input::Payment { home, .. } if home.0 != 3);
        near(share(of(1), is_remote), 15.0, 0.7);
        let is_by_name = |input: &Input| {
            let (Input::Payment { who, .. } | Input::OrderStatus { who, .. }) = input else {
                return false;
            };
            matches!(who, Who::LastName(_))
        };
        near(share(of(1), is_by_name), 60.0, 1.0);
        near(share(of(2), is_by_name), 60.0, 2.5);
    }

    #[test]
    fn lines_are_in_range_and_one_in_a_hundred_is_remote() {
        let (mut lines, mut remote) = (0u32, 0u32);
        for (_, input) in inputs(10) {
            let Input::NewOrder {
                district,
                customer,
                lines: its,
            } = input
            else {
                continue;
            };
            assert!((1..=10).contains(&district) && (1..=3000).contains(&customer) && (5..=15).contains(&its.len()));
            for line in &its {
                assert!((0..=100_000).contains(&line.item) && (1..=10).contains(&line.supplier));
                lines += 1;
                remote += u32::from(line.supplier != 3);
            }
        }
        let share = f64::from(remote) / f64::from(lines);
        assert!((share - 0.01).abs() < 0.001, "{share}");
    }

    #[test]
    fn one_warehouse_has_no_other_and_small_data_has_all_names() {
        let small = Sizes {
            items: 100,
            customers: 30,
        };
        let mut source = Inputs::new(5, 0, small, 1);
        let known: Vec<String> = (0..30).map(last_name).collect();
        for _ in 0..10_000 {
            match source.next().1 {
                Input::NewOrder { lines, customer, .. } => {
                    assert!(lines.iter().all(|l| l.supplier == 1 && l.item <= 100) && customer <= 30);
                }
                Input::Payment { home, who, .. } => {
                    assert_eq!(home.0, 1);
                    assert!(!matches!(who, Who::LastName(name) if !known.contains(&name)));
                }
                _ => {}
            }
        }
    }

    #[test]
    fn seeds_decide_inputs_and_constants_keep_their_distance() {
        let next = |seed, terminal| Inputs::new(seed, terminal, Sizes::STANDARD, 4).next();
        assert_eq!(next(1, 0), next(1, 0));
        assert!((0..10).any(|n| next(1, n) != next(2, n)));
        for seed in 0..500 {
            let delta = C_LAST_LOAD - Inputs::new(seed, 0, Sizes::STANDARD, 1).c_last;
            assert!((65..=119).contains(&delta) && delta != 96 && delta != 112);
        }
    }
}
