//! What a lost host leaves behind: a recorder of a region's flushes and fences, for tests.
//!
//! Killing a process proves nothing about host survival, since the caches live on. The recorder
//! keeps an image of the *memory* behind the caches, beside the region, which stands for the
//! caches' view:
//!
//! ```text
//!   store            region changes                      image: old bytes
//!   write_back       line noted, with its bytes of now   image: old bytes
//!   fence            this thread's noted lines           ──► image
//!   eviction         (at random, at any call) a line     ──► image
//!   crash            for each line that differs: the image's, the noted, or the region's bytes
//! ```
//!
//! Stores need not be told: a line that differs from the image has been stored to. A line moves
//! whole, as caches move it. The recorder's lock makes calls and crashes happen one after
//! another, so an image never shows a flushed line beside an unflushed past that it follows.

use cenote_base::random::Random;
use cenote_base::rt::{HashMap, Mutex, thread_slot};
use cenote_fabric::{FlushSink, LINE, RegionMemory};
use std::sync::Arc;

type Line = [u8; LINE];

/// Records a region.
pub struct Recorder {
    inner: Mutex<Inner>,
}

struct Inner {
    /// What memory holds.
    image: Vec<u8>,
    /// Lines on their way to memory: by thread, then by number, with the bytes that are under way and when they
    /// were read.
    noted: HashMap<usize, HashMap<u64, (u64, Line)>>,
    /// When the bytes that memory holds of a line were read, where that is known.
    reached: HashMap<u64, u64>,
    /// Counts reads of lines.
    clock: u64,
    random: Random,
    counts: Counts,
}

/// How many calls a recorder has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ranges written back.
    pub write_backs: u64,
    /// Lines of them.
    pub lines: u64,
    /// Fences.
    pub fences: u64,
}

/// Lines around a written-back range among which one may be evicted.
const NEIGHBOURHOOD: u64 = 512;

impl Recorder {
    /// Starts to record the write-backs and fences of a region. What the region holds now counts as flushed. `seed`
    /// says which lines are evicted.
    ///
    /// # Panics
    /// If the region is recorded already.
    pub fn of(region: &RegionMemory, seed: u64) -> Arc<Self> {
        let inner = Inner {
            image: region.span(0, region.len()).to_vec(),
            noted: HashMap::default(),
            reached: HashMap::default(),
            clock: 0,
            random: Random(seed),
            counts: Counts::default(),
        };
        let recorder = Arc::new(Self {
            inner: Mutex::new(inner),
        });
        assert!(
            region.tell_flushes(Arc::clone(&recorder) as Arc<dyn FlushSink>),
            "a region has one recorder"
        );
        recorder
    }

    /// Calls seen so far.
    pub fn counts(&self) -> Counts {
        self.inner.lock().counts
    }

    /// The bytes that a loss of the host at this moment could leave, by `seed`. `with` runs at
    /// the same moment: flushes wait until it returns, so it is the place to copy the files.
    ///
    /// The region must be the recorded one. Other threads may be running: what they store now and
    /// have not flushed may or may not be in it.
    pub fn crash<T>(&self, region: &RegionMemory, seed: u64, with: impl FnOnce() -> T) -> (Vec<u8>, T) {
        let inner = self.inner.lock();
        let mut random = Random(seed);
        // How likely a dirty line reached memory: differs from crash to crash, extremes included.
        let reached = [0, 1, 8, 15, 16][(random.word() % 5) as usize];
        let mut image = inner.image.clone();
        let span = region.span(0, region.len());
        for (line, old) in image.as_chunks_mut::<LINE>().0.iter_mut().enumerate() {
            if !span.eq(line * LINE, old) {
                inner.choose(region, line as u64, old, &mut random, reached);
            }
        }
        (image, with())
    }

    /// The numbers of lines whose bytes are not in memory: a test's means to name a missing flush.
    pub fn unflushed(&self, region: &RegionMemory, off: u64, len: usize) -> Vec<u64> {
        let inner = self.inner.lock();
        let (first, end) = (off / LINE as u64, (off + len as u64).div_ceil(LINE as u64));
        (first..end)
            .filter(|line| inner.line(*line) != line_of(region, *line))
            .collect()
    }
}

impl FlushSink for Recorder {
    fn write_back(&self, region: &RegionMemory, off: u64, len: usize) {
        if len == 0 {
            return;
        }
        let (first, last) = (off / LINE as u64, (off + len as u64 - 1) / LINE as u64);
        let slot = thread_slot();
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let now = inner.clock;
        let noted = inner.noted.entry(slot).or_default();
        for line in first..=last {
            noted.insert(line, (now, line_of(region, line)));
        }
        inner.counts.write_backs += 1;
        inner.counts.lines += last - first + 1;
        inner.maybe_evict(region, first);
    }

    fn fence(&self) {
        let slot = thread_slot();
        let mut inner = self.inner.lock();
        inner.counts.fences += 1;
        for (line, (read, bytes)) in inner.noted.remove(&slot).unwrap_or_default() {
            inner.store(line, read, &bytes);
        }
    }
}

impl Inner {
    fn line(&self, line: u64) -> Line {
        let at = line as usize * LINE;
        *self.image[at..].first_chunk().expect("regions are whole lines")
    }

    /// A line never goes back: bytes read before those that memory holds came too late.
    fn store(&mut self, line: u64, read: u64, bytes: &Line) {
        if self.reached.get(&line).is_some_and(|reached| *reached > read) {
            return;
        }
        self.reached.insert(line, read);
        let at = line as usize * LINE;
        self.image[at..at + LINE].copy_from_slice(bytes);
    }

    /// Sometimes a line near by is written back though no thread asks for it.
    fn maybe_evict(&mut self, region: &RegionMemory, near: u64) {
        if !self.random.one_in(4) {
            return;
        }
        let from = near.saturating_sub(NEIGHBOURHOOD / 2);
        let line = from + self.random.word() % NEIGHBOURHOOD;
        if (line + 1) * LINE as u64 <= region.len() {
            self.clock += 1;
            self.store(line, self.clock, &line_of(region, line));
        }
    }

    /// What a line that is not in memory as it stands is found to hold.
    fn choose(&self, region: &RegionMemory, line: u64, old: &mut Line, random: &mut Random, reached: u64) {
        let draw = random.word() % 16;
        let reached_at = self.reached.get(&line).copied().unwrap_or(0);
        let newer =
            |lines: &HashMap<u64, (u64, Line)>| lines.get(&line).filter(|(read, _)| *read > reached_at).copied();
        let under_way = self.noted.values().find_map(newer);
        match under_way {
            Some((_, bytes)) if random.one_in(2) => *old = bytes,
            _ if draw < reached => *old = line_of(region, line),
            _ => {}
        }
    }
}

fn line_of(region: &RegionMemory, line: u64) -> Line {
    let mut bytes = [0; LINE];
    region.span(line * LINE as u64, LINE as u64).copy_out(0, &mut bytes);
    bytes
}
