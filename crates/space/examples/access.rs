//! What access to objects of a space costs, beside bare copies with the same pattern in the same run.
//!
//! `cargo run --release -p cenote-pool --example access -- [SIZE [FILE]]`
//!
//! Where huge pages come on request only, `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` before it has memcpy use them too:
//! the space does.
//!
//! SIZE (1GiB) is filled with objects of one size; they are read and written in random order. *memcpy* does the same
//! with slices of ordinary memory; *span* with the space's own memory, without any check. Rounds are interleaved; each
//! number is a median. *Dependent*: where the next access goes is known when the last one is done; a dependent write
//! reads a word of its object first.

use cenote_base::units::ByteSize;
use cenote_base::{Result, rt};
use cenote_fabric::{Quiet, Region};
use cenote_space::{GlobalAddress, Read, Session, Space, SpaceOptions, Write};
use std::hint::black_box;
use std::path::{Path, PathBuf};

const ROUNDS: usize = 11;
/// Bytes that a round touches, and accesses that it makes, at most.
const ROUND_BYTES: usize = 128 << 20;
const ROUND_ACCESSES: usize = 500_000;
/// Accesses of a batch.
const BATCH: usize = 64;
const SIZES: [usize; 5] = [64, 256, 1 << 10, 4 << 10, 16 << 10];

/// Something that is read and written at places of its own kind.
trait Memory {
    type Place: Copy;
    fn read(&mut self, at: Self::Place, into: &mut [u8]);
    fn write(&mut self, at: Self::Place, from: &[u8]);
    /// All of `places`, into or from the parts of `buffer`.
    fn read_many(&mut self, places: &[Self::Place], buffer: &mut [u8], size: usize) {
        places
            .iter()
            .zip(buffer.chunks_mut(size))
            .for_each(|(at, into)| self.read(*at, into));
    }
    fn write_many(&mut self, places: &[Self::Place], buffer: &[u8], size: usize) {
        places
            .iter()
            .zip(buffer.chunks(size))
            .for_each(|(at, from)| self.write(*at, from));
    }
    /// The same place, but only known when `word` is.
    fn after(at: Self::Place, word: u64) -> Self::Place;
}

struct Objects<'a>(&'a Space);

impl Memory for Objects<'_> {
    type Place = GlobalAddress;
    #[inline(always)]
    fn read(&mut self, at: GlobalAddress, into: &mut [u8]) {
        self.0.read(at, into).expect("an object");
    }
    #[inline(always)]
    fn write(&mut self, at: GlobalAddress, from: &[u8]) {
        self.0.write(at, from).expect("an object");
    }
    fn read_many(&mut self, places: &[GlobalAddress], buffer: &mut [u8], size: usize) {
        let pairs = places.iter().zip(buffer.chunks_mut(size));
        let mut reads: Vec<_> = pairs
            .map(|(address, into)| Read {
                address: *address,
                into,
            })
            .collect();
        self.0.read_many(&mut reads).expect("objects");
    }
    fn write_many(&mut self, places: &[GlobalAddress], buffer: &[u8], size: usize) {
        let pairs = places.iter().zip(buffer.chunks(size));
        let writes: Vec<_> = pairs
            .map(|(address, from)| Write {
                address: *address,
                from,
            })
            .collect();
        self.0.write_many(&writes).expect("objects");
    }
    #[inline(always)]
    fn after(at: GlobalAddress, word: u64) -> GlobalAddress {
        GlobalAddress::from_raw(at.raw() ^ word)
    }
}

struct Slices<'a>(&'a mut [u8]);

impl Memory for Slices<'_> {
    type Place = usize;
    #[inline(always)]
    fn read(&mut self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0[at..at + into.len()]);
    }
    #[inline(always)]
    fn write(&mut self, at: usize, from: &[u8]) {
        self.0[at..at + from.len()].copy_from_slice(from);
    }
    #[inline(always)]
    fn after(at: usize, word: u64) -> usize {
        at ^ word as usize
    }
}

struct Spans<'a>(Quiet<'a>);

impl Memory for Spans<'_> {
    type Place = usize;
    #[inline(always)]
    fn read(&mut self, at: usize, into: &mut [u8]) {
        self.0.copy_out(at, into);
    }
    #[inline(always)]
    fn write(&mut self, at: usize, from: &[u8]) {
        self.0.copy_in(at, from);
    }
    #[inline(always)]
    fn after(at: usize, word: u64) -> usize {
        at ^ word as usize
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Read,
    Write,
    DependentRead,
    DependentWrite,
    Reads,
    Writes,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Read,
        Self::Write,
        Self::Reads,
        Self::Writes,
        Self::DependentRead,
        Self::DependentWrite,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::DependentRead => "read, dependent",
            Self::DependentWrite => "write, dependent",
            Self::Reads => "read, 64 at once",
            Self::Writes => "write, 64 at once",
        }
    }
}

/// Nanoseconds an access.
#[inline(never)]
fn round<M: Memory>(memory: &mut M, places: &[M::Place], many: &mut [u8], size: usize, kind: Kind) -> f64 {
    let (buffer, _) = many.split_at_mut(size);
    // Zero, which the compiler does not know.
    let zero = black_box(0);
    let mut word = 0;
    let began = rt::now();
    match kind {
        Kind::Read => {
            for at in places {
                memory.read(*at, buffer);
                black_box(&mut *buffer);
            }
        }
        Kind::Write => {
            for at in places {
                memory.write(*at, buffer);
            }
        }
        Kind::Reads => {
            for some in places.chunks(BATCH) {
                memory.read_many(some, many, size);
                black_box(&mut *many);
            }
        }
        Kind::Writes => places
            .chunks(BATCH)
            .for_each(|some| memory.write_many(some, many, size)),
        Kind::DependentRead => {
            for at in places {
                memory.read(M::after(*at, word), buffer);
                black_box(&mut *buffer);
                word = first_word(buffer) & zero;
            }
        }
        Kind::DependentWrite => {
            let mut first = [0; 8];
            for at in places {
                let at = M::after(*at, word);
                memory.read(at, &mut first);
                word = u64::from_le_bytes(first) & zero;
                memory.write(at, buffer);
            }
        }
    }
    black_box(word);
    rt::now().since(began).raw() as f64 / places.len() as f64
}

fn first_word(buffer: &[u8]) -> u64 {
    u64::from_le_bytes(*buffer.first_chunk().expect("8 bytes"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A space that is full of objects of one size.
struct Filled {
    space: Space,
    addresses: Vec<GlobalAddress>,
    path: PathBuf,
}

impl Filled {
    fn new(path: &Path, bytes: u64, size: usize) -> Result<Self> {
        let options = SpaceOptions {
            bytes,
            ..SpaceOptions::default()
        };
        let space = Space::create(path, &options)?;
        let session = space.session();
        let mut addresses = Vec::new();
        let began = rt::now();
        while let Ok(address) = session.alloc(size as u64) {
            addresses.push(address);
        }
        let first = rt::now().since(began).raw() as f64 / addresses.len() as f64;
        let (free, again) = churn(&session, &mut addresses, size)?;
        let region = space.parts().next().expect("a part").region();
        let mut at = 0;
        while let Ok(to) = region.collapse_step(at, region.len()) {
            at = to;
            if at == region.len() {
                break;
            }
        }
        println!(
            "# {} objects of {size} in {}, {} in huge pages; alloc {first:.0} ns at first, {again:.0} later, free {free:.0}",
            addresses.len(),
            ByteSize(region.len()),
            ByteSize(at),
        );
        Ok(Self {
            space,
            addresses,
            path: path.to_owned(),
        })
    }

    fn region(&self) -> &Region {
        self.space.parts().next().expect("a part").region()
    }
}

/// Frees one in ten objects at random, and allocates as many: nanoseconds for each of both.
fn churn(session: &Session, addresses: &mut [GlobalAddress], size: usize) -> Result<(f64, f64)> {
    let mut chosen: Vec<_> = (0..addresses.len())
        .filter(|_| rt::random().is_multiple_of(10))
        .collect();
    (1..chosen.len()).for_each(|n| chosen.swap(n, (rt::random() % n as u64) as usize));
    let each = |began: rt::Nanos| rt::now().since(began).raw() as f64 / chosen.len() as f64;
    let began = rt::now();
    chosen.iter().try_for_each(|n| session.free(addresses[*n]))?;
    let free = each(began);
    let began = rt::now();
    for n in &chosen {
        addresses[*n] = session.alloc(size as u64)?;
    }
    Ok((free, each(began)))
}

impl Drop for Filled {
    fn drop(&mut self) {
        let _ = rt::fs::remove(&self.path);
    }
}

/// Where each of a round's accesses goes: as address, and as offset among the objects.
fn places(filled: &Filled, size: usize) -> Vec<(GlobalAddress, usize)> {
    let accesses = ROUND_ACCESSES.min(ROUND_BYTES / size);
    let random = || {
        let n = (rt::random() % filled.addresses.len() as u64) as usize;
        (filled.addresses[n], n * size)
    };
    (0..accesses).map(|_| random()).collect()
}

fn measure(filled: &Filled, slices: &mut [u8], size: usize) {
    let mut buffer = vec![1; size * BATCH];
    let extents = (filled.addresses.len() * size) as u64;
    let span = filled
        .region()
        .span(filled.region().len() - extents.next_multiple_of(2 << 20), extents)
        .quiet();
    let mut times = vec![[const { Vec::new() }; 3]; Kind::ALL.len()];
    for _ in 0..ROUNDS {
        for (kind, times) in Kind::ALL.into_iter().zip(&mut times) {
            // Each anew: no kind finds in the cache what another has left there.
            let addresses: Vec<_> = places(filled, size).into_iter().map(|place| place.0).collect();
            times[0].push(round(&mut Objects(&filled.space), &addresses, &mut buffer, size, kind));
            let offsets: Vec<_> = places(filled, size).into_iter().map(|place| place.1).collect();
            times[1].push(round(&mut Slices(slices), &offsets, &mut buffer, size, kind));
            let offsets: Vec<_> = places(filled, size).into_iter().map(|place| place.1).collect();
            times[2].push(round(&mut Spans(span), &offsets, &mut buffer, size, kind));
        }
    }
    for (kind, times) in Kind::ALL.into_iter().zip(times) {
        let [space, memcpy, span] = times.map(median);
        println!(
            "{size:>6}  {:<18}{space:>9.1}{memcpy:>9.1}{span:>9.1}{:>9.2}{:>9.2}{:>9.2}{:>9.2}",
            kind.name(),
            space / memcpy,
            space / span,
            1e3 / space,
            size as f64 / space,
        );
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let bytes = arguments.next().map_or(Ok(ByteSize::gib(1)), |text| text.parse());
    let bytes = bytes.expect("a size, such as 4GiB").bytes();
    let path = arguments
        .next()
        .unwrap_or_else(|| format!("/dev/shm/cenote-access-{:x}", rt::random()));
    let mut slices = vec![1u8; bytes as usize];
    println!("# {} in {path}; ns an access, median of {ROUNDS}", ByteSize(bytes));
    println!(
        "{:>6}  {:<18}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
        "bytes", "access", "space", "memcpy", "span", "/memcpy", "/span", "M/s", "GB/s"
    );
    for size in SIZES {
        let filled = Filled::new(Path::new(&path), bytes, size)?;
        measure(&filled, &mut slices, size);
    }
    Ok(())
}
