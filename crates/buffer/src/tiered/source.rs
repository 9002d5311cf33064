//! How a pool comes by its remote memory: the first part of it, and the slabs by which it grows.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{self, Event, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::RemoteMemory;

/// Slabs of one database: what is granted is a word of bits.
pub const SLABS_MAX: u32 = 64;

/// Gives remote memory to a database, and takes it back.
pub trait RemoteProvider: Send + Sync {
    /// The first part of it, over an endpoint that works.
    ///
    /// # Errors
    /// Why there is none.
    fn connect(&self, database: u128) -> Result<RemoteMemory>;

    /// The first part is not reached where it is: it is to be made anew elsewhere, empty, for
    /// [`RemoteProvider::connect`] to reach.
    ///
    /// # Errors
    /// Why it stays where it is.
    fn elsewhere(&self, _database: u128) -> Result<()> {
        Err(Error::Invalid("this remote memory lies where it lies".into()))
    }

    /// The slab of this number, which is granted if it is not yet. Asked again, it is reached anew.
    ///
    /// # Errors
    /// [`Error::Full`]: there is no memory for it. Others: it cannot be reached.
    fn slab(&self, database: u128, slab: u32) -> Result<RemoteMemory>;

    /// Slabs that are granted, within `patience` for all. `reached` is given each as it is reached, or why it is not:
    /// one that is not costs no other. A provider that asks elsewhere for slabs asks for all of them at once.
    fn slabs(
        &self,
        database: u128,
        slabs: &[u32],
        _patience: Nanos,
        reached: &mut dyn FnMut(u32, Result<RemoteMemory>),
    ) {
        slabs.iter().for_each(|slab| reached(*slab, self.slab(database, *slab)));
    }

    /// The slab is used no more. Nothing where it is not granted.
    ///
    /// # Errors
    /// It is not known whether it was given back: to be done again.
    fn give_back(&self, database: u128, slab: u32) -> Result<()>;
}

/// How far remote memory grows beyond its first part, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// Bytes of a slab.
    pub slab: u64,
    /// Slabs at most.
    pub most: u32,
    /// Pages a second that a GiB has to save from being read in storage, to be taken and kept.
    pub worth: u32,
}

/// Bytes of the first part for each page that slabs may hold: its name, and its share of the index.
pub const NAMED: u64 = 64;

impl Growth {
    /// Bytes of the first part that name what slabs may hold.
    pub fn named(&self) -> u64 {
        self.slab / cenote_base::PAGE_SIZE as u64 * u64::from(self.most) * NAMED
    }
}

/// How a pool comes by its remote memory, at its start and again after it was lost.
#[derive(Clone)]
pub struct RemoteSource {
    provider: Arc<dyn RemoteProvider>,
    growth: Option<Growth>,
    /// Whether there may be slabs, or may have been.
    scales: bool,
    /// Whether a thread is at it.
    is_busy: Arc<AtomicBool>,
}

/// Memory that does not grow.
struct Whole<F>(F);

impl<F: Fn(u128) -> Result<RemoteMemory> + Send + Sync> RemoteProvider for Whole<F> {
    fn connect(&self, database: u128) -> Result<RemoteMemory> {
        (self.0)(database)
    }

    fn slab(&self, _: u128, slab: u32) -> Result<RemoteMemory> {
        Err(Error::Full(format!(
            "this remote memory is in one part: there is no slab {slab}"
        )))
    }

    fn give_back(&self, _: u128, _: u32) -> Result<()> {
        Ok(())
    }
}

impl RemoteSource {
    /// `connect` gives the memory of this database over an endpoint that works, or says why there is none.
    pub fn new(connect: impl Fn(u128) -> Result<RemoteMemory> + Send + Sync + 'static) -> Self {
        Self {
            scales: false,
            ..Self::of(Arc::new(Whole(connect)))
        }
    }

    /// Memory over an endpoint that is there for good.
    pub fn fixed(memory: RemoteMemory) -> Self {
        Self::new(move |_| Ok(memory.clone()))
    }

    /// Memory that whoever has it lets grow; of a reader, which finds out how far.
    pub fn of(provider: Arc<dyn RemoteProvider>) -> Self {
        Self {
            provider,
            growth: None,
            scales: true,
            is_busy: Arc::default(),
        }
    }

    /// Memory that grows and shrinks by slabs.
    ///
    /// # Errors
    /// [`Error::Invalid`]: more than [`SLABS_MAX`] slabs, or none that holds a page.
    pub fn growing(provider: Arc<dyn RemoteProvider>, growth: Growth) -> Result<Self> {
        if growth.most > SLABS_MAX || growth.slab < cenote_base::PAGE_SIZE as u64 {
            return Err(Error::Invalid(format!(
                "remote memory grows by at most {SLABS_MAX} slabs of a page at least, not by {} of {} bytes",
                growth.most, growth.slab
            )));
        }
        let growth = Some(growth).filter(|growth| growth.most > 0);
        Ok(Self {
            growth,
            ..Self::of(provider)
        })
    }

    /// Whether a thread has to see to slabs: to more of them, or to those of former settings.
    pub fn scales(&self) -> bool {
        self.scales
    }

    /// How far it grows.
    pub fn growth(&self) -> Option<Growth> {
        self.growth
    }

    /// Connects. What takes longer than `patience` goes on by itself, for nothing; until it is over no other begins.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::Busy`] while another goes on; those of the endpoint.
    pub fn connect(&self, database: u128, patience: Nanos) -> Result<RemoteMemory> {
        self.within(patience, move |provider| provider.connect(database))
    }

    /// Has the first part made anew elsewhere, as [`RemoteSource::connect`].
    ///
    /// # Errors
    /// As there, and those of [`RemoteProvider::elsewhere`].
    pub fn elsewhere(&self, database: u128, patience: Nanos) -> Result<()> {
        self.within(patience, move |provider| provider.elsewhere(database))
    }

    /// A slab, as [`RemoteSource::connect`].
    ///
    /// # Errors
    /// As there, and those of [`RemoteProvider::slab`].
    pub fn slab(&self, database: u128, slab: u32, patience: Nanos) -> Result<RemoteMemory> {
        self.within(patience, move |provider| provider.slab(database, slab))
    }

    /// Several slabs, together within `patience`: what each of them came to, in their order.
    pub fn slabs(&self, database: u128, slabs: &[u32], patience: Nanos) -> Vec<(u32, Result<RemoteMemory>)> {
        let (found, asked) = (Arc::new(Mutex::new(BTreeMap::new())), slabs.to_vec());
        let into = Arc::clone(&found);
        let ended = self.within(patience, move |provider| {
            let mut reached = |slab, memory| _ = into.lock().insert(slab, memory);
            provider.slabs(database, &asked, patience, &mut reached);
            Ok(())
        });
        let why = ended.err().unwrap_or_else(|| Error::Lost("it was not reached".into()));
        // Those that come later are reached anew when they are asked for.
        let mut found = core::mem::take(&mut *found.lock());
        let outcome = |slab: &u32| (*slab, found.remove(slab).unwrap_or_else(|| Err(why.clone())));
        slabs.iter().map(outcome).collect()
    }

    /// Gives a slab back, as [`RemoteSource::connect`].
    ///
    /// # Errors
    /// As there, and those of [`RemoteProvider::give_back`].
    pub fn give_back(&self, database: u128, slab: u32, patience: Nanos) -> Result<()> {
        self.within(patience, move |provider| provider.give_back(database, slab))
    }

    fn within<T: Send + 'static>(
        &self,
        patience: Nanos,
        ask: impl FnOnce(&dyn RemoteProvider) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.is_busy.swap(true, Ordering::SeqCst) {
            return Err(Error::Busy("the way there is being looked for still".into()));
        }
        let (source, done) = (self.clone(), Arc::new((Mutex::new(None), Event::new())));
        let answer = Arc::clone(&done);
        rt::spawn("remote-connect", move || {
            let connected = ask(&*source.provider);
            source.is_busy.store(false, Ordering::SeqCst);
            *answer.0.lock() = Some(connected);
            answer.1.set();
        });
        done.1.wait_timeout(patience);
        let connected = done.0.lock().take();
        connected.unwrap_or_else(|| Err(Error::Timeout(format!("there was no way there within {patience}"))))
    }
}

impl fmt::Debug for RemoteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteSource")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_fabric::rdma::loopback::Node;

    /// Slab 1 is refused, and slab 3 comes when it is told to.
    struct Slow {
        node: Node,
        go_on: Event,
        asked: Mutex<Vec<Vec<u32>>>,
    }

    impl RemoteProvider for Slow {
        fn connect(&self, _: u128) -> Result<RemoteMemory> {
            Ok(RemoteMemory::new(
                self.node.endpoint(),
                self.node.memory().register(4096),
            ))
        }

        fn slab(&self, database: u128, slab: u32) -> Result<RemoteMemory> {
            match slab {
                1 => return Err(Error::Full("there is no room".into())),
                3 => self.go_on.wait(),
                _ => {}
            }
            self.connect(database)
        }

        fn slabs(&self, database: u128, slabs: &[u32], _: Nanos, reached: &mut dyn FnMut(u32, Result<RemoteMemory>)) {
            self.asked.lock().push(slabs.to_vec());
            slabs.iter().for_each(|slab| reached(*slab, self.slab(database, *slab)));
        }

        fn give_back(&self, _: u128, _: u32) -> Result<()> {
            Ok(())
        }
    }

    /// Of slabs that are asked for together each is what it came to in time.
    #[test]
    fn slabs_that_come_late_cost_no_others() {
        let slow = Arc::new(Slow {
            node: Node::new("far"),
            go_on: Event::new(),
            asked: Mutex::default(),
        });
        let source = RemoteSource::of(Arc::clone(&slow) as Arc<dyn RemoteProvider>);
        let each = source.slabs(7, &[0, 1, 2, 3], Nanos::from_millis(200));
        let kinds: Vec<(u32, bool)> = each.iter().map(|(slab, memory)| (*slab, memory.is_ok())).collect();
        assert_eq!(kinds, [(0, true), (1, false), (2, true), (3, false)]);
        assert!(
            matches!(&each[1].1, Err(Error::Full(_))),
            "{:?}",
            each[1].1.as_ref().err()
        );
        assert!(
            matches!(&each[3].1, Err(Error::Timeout(_))),
            "{:?}",
            each[3].1.as_ref().err()
        );
        assert_eq!(*slow.asked.lock(), [[0, 1, 2, 3]], "with one request");
        slow.go_on.set();
        while matches!(
            source.slab(7, 3, Nanos::from_secs(10)),
            Err(Error::Busy(_) | Error::Timeout(_))
        ) {
            rt::yield_now();
        }
        source.slab(7, 3, Nanos::from_secs(10)).expect("it is reached later");
    }
}
