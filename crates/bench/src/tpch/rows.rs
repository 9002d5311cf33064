//! The rows of the eight tables (clause 4.2.3), each decided by the seed, the table and its number.

use super::text::Text;
use crate::draw::Draw;
use std::fmt::Write as _;

const NATIONS: [(&str, u32); 25] = [
    ("ALGERIA", 0),
    ("ARGENTINA", 1),
    ("BRAZIL", 1),
    ("CANADA", 1),
    ("EGYPT", 4),
    ("ETHIOPIA", 0),
    ("FRANCE", 3),
    ("GERMANY", 3),
    ("INDIA", 2),
    ("INDONESIA", 2),
    ("IRAN", 4),
    ("IRAQ", 4),
    ("JAPAN", 2),
    ("JORDAN", 4),
    ("KENYA", 0),
    ("MOROCCO", 0),
    ("MOZAMBIQUE", 0),
    ("PERU", 1),
    ("CHINA", 2),
    ("ROMANIA", 3),
    ("SAUDI ARABIA", 4),
    ("VIETNAM", 2),
    ("RUSSIA", 3),
    ("UNITED KINGDOM", 3),
    ("UNITED STATES", 1),
];
const REGIONS: [&str; 5] = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"];
const SEGMENTS: [&str; 5] = ["AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD"];
const PRIORITIES: [&str; 5] = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"];
const INSTRUCTIONS: [&str; 4] = ["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"];
const MODES: [&str; 7] = ["REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"];
const TYPES: [&[&str]; 3] = [
    &["STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"],
    &["ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED"],
    &["TIN", "NICKEL", "BRASS", "STEEL", "COPPER"],
];
const CONTAINERS: [&[&str]; 2] = [
    &["SM", "LG", "MED", "JUMBO", "WRAP"],
    &["CASE", "BOX", "BAG", "JAR", "PKG", "PACK", "CAN", "DRUM"],
];
const COLOURS: &str = "almond antique aquamarine azure beige bisque black blanched blue blush brown burlywood burnished \
    chartreuse chiffon chocolate coral cornflower cornsilk cream cyan dark deep dim dodger drab firebrick floral forest \
    frosted gainsboro ghost goldenrod green grey honeydew hot indian ivory khaki lace lavender lawn lemon light lime \
    linen magenta maroon medium metallic midnight mint misty moccasin navajo navy olive orange orchid pale papaya peach \
    peru pink plum powder puff purple red rose rosy royal saddle salmon sandy seashell sienna sky slate smoke snow \
    spring steel tan thistle tomato turquoise violet wheat white yellow";

/// Days since 1992-01-01 of 1995-06-17, the specification's current date.
const TODAY: i64 = 1263;
/// The last order is placed so many days after 1992-01-01, on 1998-08-02.
const LAST_ORDER: i64 = 2405;

/// How many rows there are, and the text of comments.
pub struct Rows {
    seed: u64,
    text: Text,
    colours: Vec<&'static str>,
    pub suppliers: i64,
    pub parts: i64,
    pub customers: i64,
    pub orders: i64,
    clerks: i64,
}

/// A line of an order, in hundredths and days.
struct Line {
    part: i64,
    supplier: i64,
    quantity: i64,
    price: i64,
    discount: i64,
    tax: i64,
    shipped: i64,
    committed: i64,
    received: i64,
}

/// An order with its lines; what comes after is drawn by the row that needs it.
struct Order {
    key: i64,
    date: i64,
    lines: Vec<Line>,
    draw: Draw,
}

impl Rows {
    /// Of a scale and a seed.
    pub fn new(scale: f64, seed: u64) -> Self {
        let count = |at_one: f64| (at_one * scale).round().max(1.0) as i64;
        let customers = count(150_000.0);
        Self {
            seed,
            text: Text::new(seed),
            colours: COLOURS.split(' ').collect(),
            suppliers: count(10_000.0).max(4),
            parts: count(200_000.0),
            customers,
            orders: 10 * customers,
            clerks: count(1000.0),
        }
    }

    fn draw(&self, table: u64, row: i64) -> Draw {
        Draw::new(self.seed, [table, row as u64])
    }

    pub fn region(&self, out: &mut String, n: i64) {
        let comment = self.text.piece(&mut self.draw(301, n), 31, 115);
        let _ = writeln!(out, "{n}\t{}\t{comment}", REGIONS[n as usize]);
    }

    pub fn nation(&self, out: &mut String, n: i64) {
        let comment = self.text.piece(&mut self.draw(302, n), 31, 114);
        let (name, region) = NATIONS[n as usize];
        let _ = writeln!(out, "{n}\t{name}\t{region}\t{comment}");
    }

    /// Of 10,000 suppliers, 5 have complaints of customers in their comments and 5 have recommendations.
    pub fn supplier(&self, out: &mut String, n: i64) {
        let mut d = self.draw(303, n);
        let (address, nation) = (address(&mut d), d.between(0, 24));
        let (phone, balance) = (phone(&mut d, nation), money(d.between(-99_999, 999_999)));
        let mut comment = self.text.piece(&mut d, 25, 100).to_string();
        let about = match d.between(0, 9_999) {
            0..5 => Some("Complaints"),
            5..10 => Some("Recommends"),
            _ => None,
        };
        if let Some(about) = about {
            let words = format!("Customer {about}");
            let at = d.number(0, comment.len() as i32 - words.len() as i32) as usize;
            comment.replace_range(at..at + words.len(), &words);
        }
        let _ = writeln!(
            out,
            "{n}\tSupplier#{n:09}\t{address}\t{nation}\t{phone}\t{balance}\t{comment}"
        );
    }

    pub fn part(&self, out: &mut String, n: i64) {
        let mut d = self.draw(304, n);
        let colours = d.shuffled(self.colours.len());
        let name: Vec<&str> = colours.iter().take(5).map(|c| self.colours[*c]).collect();
        let (maker, brand) = (d.between(1, 5), d.between(1, 5));
        let kind = TYPES.map(|words| *d.of(words)).join(" ");
        let (size, container) = (d.between(1, 50), CONTAINERS.map(|words| *d.of(words)).join(" "));
        let (price, comment) = (money(retail_price(n)), self.text.piece(&mut d, 5, 22));
        let _ = writeln!(
            out,
            "{n}\t{}\tManufacturer#{maker}\tBrand#{maker}{brand}\t{kind}\t{size}\t{container}\t{price}\t{comment}",
            name.join(" ")
        );
    }

    /// The four suppliers of a part.
    pub fn part_suppliers(&self, out: &mut String, part: i64) {
        let mut d = self.draw(305, part);
        for which in 0..4 {
            let (supplier, count) = (self.supplier_of(part, which), d.between(1, 9_999));
            let (cost, comment) = (money(d.between(100, 100_000)), self.text.piece(&mut d, 49, 198));
            let _ = writeln!(out, "{part}\t{supplier}\t{count}\t{cost}\t{comment}");
        }
    }

    /// One of the four suppliers of a part, spread as the specification has it; where so few suppliers make two of
    /// these the same, the next four.
    fn supplier_of(&self, part: i64, which: i64) -> i64 {
        let step = self.suppliers / 4 + (part - 1) / self.suppliers;
        let is_spread = (1..4).all(|n| n * step % self.suppliers != 0);
        (part + which * if is_spread { step } else { 1 }) % self.suppliers + 1
    }

    pub fn customer(&self, out: &mut String, n: i64) {
        let mut d = self.draw(306, n);
        let (address, nation) = (address(&mut d), d.between(0, 24));
        let (phone, balance) = (phone(&mut d, nation), money(d.between(-99_999, 999_999)));
        let (segment, comment) = (*d.of(&SEGMENTS), self.text.piece(&mut d, 29, 116));
        let _ = writeln!(
            out,
            "{n}\tCustomer#{n:09}\t{address}\t{nation}\t{phone}\t{balance}\t{segment}\t{comment}"
        );
    }

    /// Of the order with a number from 0 on. Eight of 32 keys are used.
    fn order_with_lines(&self, n: i64) -> Order {
        let mut d = self.draw(307, n);
        let (date, count) = (d.between(0, LAST_ORDER), d.between(1, 7));
        let lines = (0..count).map(|_| self.line(&mut d, date)).collect();
        Order {
            key: n / 8 * 32 + n % 8 + 1,
            date,
            lines,
            draw: d,
        }
    }

    fn line(&self, d: &mut Draw, ordered: i64) -> Line {
        let (part, quantity) = (d.between(1, self.parts), d.between(1, 50));
        let shipped = ordered + d.between(1, 121);
        Line {
            part,
            supplier: self.supplier_of(part, d.between(0, 3)),
            quantity,
            price: quantity * retail_price(part),
            discount: d.between(0, 10),
            tax: d.between(0, 8),
            shipped,
            committed: ordered + d.between(30, 90),
            received: shipped + d.between(1, 30),
        }
    }

    pub fn order(&self, out: &mut String, n: i64) {
        let Order {
            key,
            date,
            lines,
            draw: mut d,
        } = self.order_with_lines(n);
        // A third of the customers never order.
        let customer = loop {
            let customer = d.between(1, self.customers);
            if customer % 3 != 0 {
                break customer;
            }
        };
        let total: i64 = lines
            .iter()
            .map(|l| l.price * (100 + l.tax) / 100 * (100 - l.discount) / 100)
            .sum();
        let shipped = lines.iter().filter(|line| line.shipped <= TODAY).count();
        let status = match lines.len() - shipped {
            0 => 'F',
            open if open == lines.len() => 'O',
            _ => 'P',
        };
        let (priority, clerk) = (*d.of(&PRIORITIES), d.between(1, self.clerks));
        let (date, total, comment) = (day(date), money(total), self.text.piece(&mut d, 19, 78));
        let _ = writeln!(
            out,
            "{key}\t{customer}\t{status}\t{total}\t{date}\t{priority}\tClerk#{clerk:09}\t0\t{comment}"
        );
    }

    /// The lines of an order.
    pub fn lines(&self, out: &mut String, n: i64) {
        let Order {
            key,
            lines,
            draw: mut d,
            ..
        } = self.order_with_lines(n);
        // Other draws than those of the order's own columns.
        d = Draw::new(d.between(0, i64::MAX - 1) as u64, [308, 0]);
        for (number, line) in (1..).zip(&lines) {
            let flag = match line.received <= TODAY {
                true => *d.of(&['R', 'A']),
                false => 'N',
            };
            let status = if line.shipped > TODAY { 'O' } else { 'F' };
            let [price, discount, tax] = [line.price, line.discount, line.tax].map(money);
            let [shipped, committed, received] = [line.shipped, line.committed, line.received].map(day);
            let (instruction, mode) = (*d.of(&INSTRUCTIONS), *d.of(&MODES));
            let comment = self.text.piece(&mut d, 10, 43);
            let _ = writeln!(
                out,
                "{key}\t{}\t{}\t{number}\t{}.00\t{price}\t{discount}\t{tax}\t{flag}\t{status}\t{shipped}\t{committed}\t\
                 {received}\t{instruction}\t{mode}\t{comment}",
                line.part, line.supplier, line.quantity
            );
        }
    }
}

/// Hundredths, clause 4.2.3.
fn retail_price(part: i64) -> i64 {
    90_000 + part / 10 % 20_001 + 100 * (part % 1_000)
}

fn money(hundredths: i64) -> String {
    let (sign, all) = (if hundredths < 0 { "-" } else { "" }, hundredths.abs());
    format!("{sign}{}.{:02}", all / 100, all % 100)
}

fn address(d: &mut Draw) -> String {
    d.letters(10, 40)
}

fn phone(d: &mut Draw, nation: i64) -> String {
    let (one, two, three) = (d.between(100, 999), d.between(100, 999), d.between(1_000, 9_999));
    format!("{}-{one}-{two}-{three}", nation + 10)
}

/// A date, of days since 1992-01-01 (Howard Hinnant's algorithm, whose years begin in March).
fn day(since: i64) -> String {
    let days = since + 8_035 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    format!("{}-{month:02}-{day:02}", year + 400 * era + i64::from(month <= 2))
}

#[cfg(test)]
mod tests;
