//! What clients do: random accesses of one size, or YCSB's six mixes on a hash table.

use super::store::{Layout, SEGMENT, Store, UNIT, fill};
use crate::ycsb::choose::{Random, Zipfian};
use cenote_base::{Error, Result};
use std::sync::Arc;

/// Which items.
#[derive(Debug, Clone)]
pub enum Pick {
    /// All alike.
    Uniform,
    /// By rank; item and rank are the same number, in all pods.
    Zipf(Arc<Zipfian>),
    /// By rank; each pod has ranks of its own, which begin at another place.
    ZipfOfPod(Arc<Zipfian>),
    /// So many of a hundred in memory of the own pod, the others in that of any other; there all alike.
    Near(u64),
}

impl Pick {
    /// Zipf's over so many items.
    pub fn zipf(items: u64) -> Pick {
        Pick::Zipf(Arc::new(Zipfian::new(items)))
    }

    /// One of so many items of a size, for a client of a pod.
    fn draw(&self, dice: &mut Random, (items, size): (u64, u64), pod: usize, pods: usize) -> u64 {
        match self {
            Pick::Uniform => dice.below(items),
            Pick::Zipf(zipf) => zipf.next(dice) % items,
            Pick::ZipfOfPod(zipf) => (zipf.next(dice) + items * pod as u64 / pods as u64) % items,
            Pick::Near(near) => {
                let (each, pods, pod) = (SEGMENT / size, pods as u64, pod as u64);
                let is_near = pods == 1 || dice.below(100) < *near;
                let at = if is_near {
                    pod
                } else {
                    (pod + 1 + dice.below(pods - 1)) % pods
                };
                // Segments go around the pods (`Layout`).
                let segment = dice.below(items / each / pods) * pods + at;
                segment * each + dice.below(each)
            }
        }
    }
}

/// YCSB's workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Half reads, half updates.
    A,
    /// 95% reads, the rest updates.
    B,
    /// Reads.
    C,
    /// 95% reads of what is new, the rest inserts.
    D,
    /// 95% scans of up to [`SCAN`] keys, the rest inserts.
    E,
    /// Half reads, half read-modify-writes.
    F,
}

/// Keys of the longest scan. A hash table has no order: they are looked up one by one, or many at once where a system
/// can.
pub const SCAN: u64 = 100;

impl Mix {
    /// All, in order.
    pub const ALL: [Mix; 6] = [Mix::A, Mix::B, Mix::C, Mix::D, Mix::E, Mix::F];
}

/// What each client does, over and over.
#[derive(Debug, Clone)]
pub enum Load {
    /// Reads or writes one item of `size` bytes; so many of a hundred are writes.
    Random {
        /// Bytes of an item.
        size: u64,
        /// Writes of a hundred.
        writes: u64,
        /// Which.
        pick: Pick,
    },
    /// One operation of a mix on a hash table of pairs of 64 bytes.
    Ycsb {
        /// The mix.
        mix: Mix,
        /// Which keys. D takes it as a distance from the newest.
        pick: Pick,
    },
    /// A segment's lock is taken to write, any of them alike; items in it are written, and the lock is left.
    Locked {
        /// Bytes of an item.
        size: u64,
        /// Items that are written while the lock is held.
        writes: u64,
        /// Whether the lock's write buffer collects them.
        is_buffered: bool,
    },
    /// Reads and writes that a witness judges.
    #[cfg(test)]
    Witnessed(Arc<super::tests::Witness>),
}

/// Pairs that a hash table of so many bytes has before the first insert.
pub fn pairs(bytes: u64) -> u64 {
    bytes / UNIT / 2
}

/// One client: its dice, its buffers.
pub struct Client {
    load: Load,
    layout: Layout,
    place: (usize, usize),
    dice: Random,
    inserted: u64,
    bytes: Vec<u8>,
    many: Vec<Vec<u8>>,
}

/// What is wrong if an item is not what it should be.
fn another(at: u64) -> Error {
    Error::corrupt(format!("another item lies at {at}"))
}

fn check(at: u64, bytes: &[u8]) -> Result<()> {
    let first = bytes.first_chunk().map(|word| u64::from_le_bytes(*word));
    if first == Some(at / UNIT) {
        Ok(())
    } else {
        Err(another(at))
    }
}

impl Client {
    /// Client `place.1` of pod `place.0`.
    pub fn new(load: &Load, layout: Layout, place: (usize, usize), seed: u64) -> Self {
        let size = match load {
            Load::Random { size, .. } | Load::Locked { size, .. } => *size,
            _ => UNIT,
        };
        Self {
            load: load.clone(),
            layout,
            place,
            dice: Random::new(seed ^ ((place.0 as u64) << 32 | (place.1 as u64) << 8 | 1)),
            inserted: 0,
            bytes: vec![0; size as usize],
            many: Vec::new(),
        }
    }

    /// One operation.
    ///
    /// # Errors
    /// The store's error, of the access that failed.
    pub fn operate(&mut self, store: &dyn Store) -> Result<()> {
        match self.load.clone() {
            Load::Random { size, writes, pick } => {
                let items = self.layout.bytes / size;
                let at = pick.draw(&mut self.dice, (items, size), self.place.0, self.layout.pods) * size;
                if self.dice.below(100) < writes {
                    return self.write(store, at);
                }
                self.read(store, at)
            }
            Load::Ycsb { mix, pick } => self.ycsb(store, mix, &pick),
            Load::Locked {
                size,
                writes,
                is_buffered,
            } => self.hold(store, size, writes, is_buffered),
            #[cfg(test)]
            Load::Witnessed(witness) => witness.operate(store, self.place, &mut self.dice),
        }
    }

    fn hold(&mut self, store: &dyn Store, size: u64, writes: u64, is_buffered: bool) -> Result<()> {
        let segment = self.dice.below(self.layout.bytes / SEGMENT) * SEGMENT;
        let item = |dice: &mut Random| segment + dice.below(SEGMENT / size) * size;
        let at: Vec<u64> = (0..writes).map(|_| item(&mut self.dice)).collect();
        // The first item's place says what is written: this load does not read it.
        fill(segment, &mut self.bytes);
        store.write_locked(self.place.1, &at, &self.bytes, is_buffered)
    }

    fn ycsb(&mut self, store: &dyn Store, mix: Mix, pick: &Pick) -> Result<()> {
        let is_first = |dice: &mut Random, of_100| dice.below(100) < of_100;
        let first = match mix {
            Mix::A | Mix::F => is_first(&mut self.dice, 50),
            Mix::B | Mix::D | Mix::E => is_first(&mut self.dice, 95),
            Mix::C => true,
        };
        match (mix, first) {
            (Mix::D, true) => {
                let key = self.newest(pick);
                self.read(store, self.slot(key))
            }
            (Mix::D | Mix::E, false) => self.insert(store),
            (Mix::E, true) => self.scan(store, pick),
            (_, true) => {
                let at = self.any(pick);
                self.read(store, at)
            }
            (Mix::F, false) => {
                let at = self.any(pick);
                self.read(store, at)?;
                self.write(store, at)
            }
            (_, false) => {
                let at = self.any(pick);
                self.write(store, at)
            }
        }
    }

    fn any(&mut self, pick: &Pick) -> u64 {
        let keys = pairs(self.layout.bytes);
        let key = pick.draw(&mut self.dice, (keys, UNIT), self.place.0, self.layout.pods);
        self.slot(key)
    }

    /// The slot of a key. Keys are numbers, and the hash is one that lets no two of them meet: an odd factor, modulo
    /// the table's slots. So no system pays for collisions.
    fn slot(&self, key: u64) -> u64 {
        let slots = self.layout.bytes / UNIT;
        let factor = coprime(slots);
        (u128::from(key % slots) * u128::from(factor) % u128::from(slots)) as u64 * UNIT
    }

    /// A key that was inserted lately by this client, or was there, by its distance.
    fn newest(&mut self, pick: &Pick) -> u64 {
        let keys = pairs(self.layout.bytes);
        let back = pick.draw(&mut self.dice, (keys, UNIT), self.place.0, self.layout.pods);
        match back < self.inserted {
            true => self.own(self.inserted - 1 - back),
            false => keys - 1 - (back - self.inserted) % keys,
        }
    }

    /// The n-th key of this client's own: clients insert keys that no other inserts.
    fn own(&self, n: u64) -> u64 {
        let keys = pairs(self.layout.bytes);
        let clients = self.layout.pods as u64 * 64;
        keys + (n * clients + (self.place.0 * 64 + self.place.1) as u64) % keys
    }

    fn insert(&mut self, store: &dyn Store) -> Result<()> {
        let key = self.own(self.inserted);
        self.inserted += 1;
        let at = self.slot(key);
        self.write(store, at)
    }

    fn scan(&mut self, store: &dyn Store, pick: &Pick) -> Result<()> {
        let keys = pairs(self.layout.bytes);
        let first = pick.draw(&mut self.dice, (keys, UNIT), self.place.0, self.layout.pods);
        let count = 1 + self.dice.below(SCAN);
        let at: Vec<u64> = (first..first + count).map(|key| self.slot(key % keys)).collect();
        self.many.resize(SCAN as usize, vec![0; UNIT as usize]);
        let into = &mut self.many[..count as usize];
        store.read_many(&at, into)?;
        at.iter().zip(into).try_for_each(|(at, bytes)| check(*at, bytes))
    }

    fn read(&mut self, store: &dyn Store, at: u64) -> Result<()> {
        self.bytes.fill(0xff);
        store.read(at, &mut self.bytes)?;
        check(at, &self.bytes)
    }

    fn write(&mut self, store: &dyn Store, at: u64) -> Result<()> {
        fill(at, &mut self.bytes);
        let mark = self.dice.bits();
        self.bytes[8..16].copy_from_slice(&mark.to_le_bytes());
        store.write(at, &self.bytes)
    }
}

/// A factor near the golden section of `n` that has no divisor with it.
fn coprime(n: u64) -> u64 {
    let mut factor = (n as f64 * 0.618) as u64 | 1;
    while gcd(factor, n) != 1 {
        factor += 2;
    }
    factor
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const LAYOUT: Layout = Layout {
        pods: 2,
        servers: 1,
        bytes: 4 << 20,
    };

    #[test]
    fn no_two_keys_meet() {
        let client = Client::new(
            &Load::Ycsb {
                mix: Mix::C,
                pick: Pick::Uniform,
            },
            LAYOUT,
            (0, 0),
            1,
        );
        let slots = LAYOUT.bytes / UNIT;
        let all: HashSet<u64> = (0..slots).map(|key| client.slot(key)).collect();
        assert_eq!(all.len() as u64, slots);
        assert!(all.iter().all(|at| at % UNIT == 0 && *at < LAYOUT.bytes));
    }

    #[test]
    fn near_items_lie_in_the_own_pod_and_others_in_the_others() {
        let layout = Layout {
            pods: 3,
            servers: 2,
            bytes: 18 * SEGMENT,
        };
        let mut dice = Random::new(7);
        for (near, size) in [(0, UNIT), (100, UNIT), (40, 4096)] {
            let items = layout.bytes / size;
            let pods = (0..3000).map(|_| Pick::Near(near).draw(&mut dice, (items, size), 1, 3) * size);
            let own = pods.filter(|at| layout.pod(layout.place(*at).lane) == 1).count() as u64;
            assert!(
                own.abs_diff(near * 30) <= if near % 100 == 0 { 0 } else { 150 },
                "{near}%: {own}"
            );
        }
    }

    #[test]
    fn clients_insert_keys_of_their_own() {
        let load = Load::Ycsb {
            mix: Mix::D,
            pick: Pick::Uniform,
        };
        let clients = [(0, 0), (0, 1), (1, 0)].map(|place| Client::new(&load, LAYOUT, place, 1));
        let keys: HashSet<u64> = clients
            .iter()
            .flat_map(|client| (0..100).map(|n| client.own(n)))
            .collect();
        assert_eq!(keys.len(), 300);
        assert!(keys.iter().all(|key| *key >= pairs(LAYOUT.bytes)));
    }
}
