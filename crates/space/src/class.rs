//! Sizes of objects. Objects of one class share extents (slabs); larger ones get extents of their own (runs).
//!
//! An extent of a run that may move has a class of its own ([`Class::WHOLE`]): one object, as large as the extent.
//!
//! Multiples of 64 bytes: eight classes a doubling up to 256 KiB, so that at most an eighth is wasted, then sevenths to
//! halves of an extent. Which object an offset lies in is asked on each access; it takes a multiplication, whose
//! exactness a test shows for each class and offset.

use super::address::{GENERATION_SHIFT, OFFSET_BITS};
use crate::extent::EXTENT;
use serde::{Deserialize, Serialize};

/// What sizes are multiples of, in bytes: a cache line.
pub const GRAIN: u64 = 64;
/// Classes that a doubling has.
const STEPS: u64 = 8;
/// Up to this the classes grow by eighths.
const FINE_MAX: u64 = 256 << 10;
/// The greatest object that shares an extent, in bytes.
pub const SLAB_OBJECT_MAX: u64 = EXTENT / 2;
/// How many classes there are of objects that share extents.
const CLASSES: usize = 86;
/// All of them, and [`Class::WHOLE`].
pub(super) const CLASS_CODES: usize = CLASSES + 1;
/// Objects that one live word tells of; its other bits are the generation.
pub(super) const LIVE_BITS: u32 = 46;
/// Live words of a slab of the smallest class.
pub(super) const WORDS_MAX: u32 = (EXTENT / GRAIN).div_ceil(LIVE_BITS as u64) as u32;

/// What a state word says of a slab is its class's number, and this.
pub(super) const SLAB_CODE: u8 = 8;

const GRAIN_SHIFT: u32 = GRAIN.trailing_zeros();
const RECIPROCAL_SHIFT: u32 = 31;
const WORD_SHIFT: u32 = 21;
const WORD_RECIPROCAL: u32 = (1u32 << WORD_SHIFT).div_ceil(LIVE_BITS);

// A live word is the bits of its objects, and the generation above them.
const _: () = assert!(LIVE_BITS == GENERATION_SHIFT);
const _: () = assert!(GRAIN.is_power_of_two() && EXTENT.is_multiple_of(GRAIN));
const _: () = assert!(SHAPES[0].size as u64 == GRAIN && SHAPES[CLASSES - 1].size as u64 == SLAB_OBJECT_MAX);

/// A class: its number, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Class(u8);

/// What is known of a class.
#[derive(Debug, Clone, Copy)]
struct Shape {
    size: u32,
    count: u32,
    reciprocal: u32,
}

const SHAPES: [Shape; CLASS_CODES] = shapes();

/// Size and reciprocal of each code that a state word may hold; nothing for those that are no slab's. So what a word
/// says needs no check before it is looked up. Whole words, by which instructions can multiply where they lie.
struct Dividers {
    sizes: [u64; 256],
    reciprocals: [u64; 256],
}

static DIVIDERS: Dividers = dividers();

const fn dividers() -> Dividers {
    let (mut sizes, mut reciprocals) = ([0; 256], [0; 256]);
    let mut n = 0;
    while n < CLASS_CODES {
        sizes[n + SLAB_CODE as usize] = SHAPES[n].size as u64;
        reciprocals[n + SLAB_CODE as usize] = SHAPES[n].reciprocal as u64;
        n += 1;
    }
    Dividers { sizes, reciprocals }
}

/// The number of the object that the byte at `offset` lies in, in a slab with this code, and where that object ends.
/// Nothing ends after 0 where there is no slab. The rest at the end of an extent counts as an object: one that is never
/// live.
#[inline(always)]
pub(super) fn divide(code: u8, offset: u32) -> (u32, u64) {
    let code = usize::from(code);
    let grains = u64::from(offset >> GRAIN_SHIFT);
    let index = (grains * DIVIDERS.reciprocals[code]) >> RECIPROCAL_SHIFT;
    (index as u32, (index + 1) * DIVIDERS.sizes[code])
}

const fn shapes() -> [Shape; CLASS_CODES] {
    let mut shapes = [Shape {
        size: 0,
        count: 0,
        reciprocal: 0,
    }; CLASS_CODES];
    let (mut n, mut size) = (0, GRAIN);
    while size <= FINE_MAX {
        shapes[n] = shape(size);
        size += step_above(size);
        n += 1;
    }
    let mut share = 7;
    while share >= 2 {
        shapes[n] = shape(EXTENT / share / GRAIN * GRAIN);
        share -= 1;
        n += 1;
    }
    assert!(n == CLASSES);
    shapes[n] = shape(EXTENT);
    n += 1;
    while n > 1 {
        n -= 1;
        assert!(
            shapes[n - 1].size < shapes[n].size,
            "classes in the order of their sizes"
        );
    }
    shapes
}

const fn shape(size: u64) -> Shape {
    assert!(size.is_multiple_of(GRAIN) && size <= EXTENT);
    let grains = (size / GRAIN) as u32;
    Shape {
        size: size as u32,
        count: (EXTENT / size) as u32,
        reciprocal: (1u32 << RECIPROCAL_SHIFT).div_ceil(grains),
    }
}

/// From one size to the next, up to [`FINE_MAX`].
const fn step_above(size: u64) -> u64 {
    let doublings = (size / (GRAIN * STEPS)).checked_ilog2();
    match doublings {
        Some(n) => GRAIN << n,
        None => GRAIN,
    }
}

impl Class {
    /// That of an extent which is a piece of a run: one object, alone in it.
    pub(super) const WHOLE: Class = Class(CLASSES as u8);

    /// The class that an object of `len` bytes is of; `None` if it is too large to share an extent.
    pub fn of(len: u64) -> Option<Self> {
        let found = match len {
            0..=FINE_MAX => Self::fine(len.max(1).div_ceil(GRAIN)),
            _ => SHAPES[..CLASSES].partition_point(|shape| u64::from(shape.size) < len),
        };
        let class = (found < CLASSES).then_some(Self(found as u8));
        assert!(
            class.is_none_or(|class| class.size() >= len),
            "a class too small for {len} bytes"
        );
        class
    }

    /// The number of the class for so many grains, up to [`FINE_MAX`].
    fn fine(grains: u64) -> usize {
        let doublings = (grains - 1)
            .checked_ilog2()
            .map_or(0, |n| n.saturating_sub(STEPS.ilog2()));
        let steps = grains.div_ceil(1 << doublings);
        (u64::from(doublings) * STEPS + steps - 1) as usize
    }

    /// The class of this number, if there is one.
    pub fn numbered(number: u8) -> Option<Self> {
        (usize::from(number) < CLASSES).then_some(Self(number))
    }

    /// Its number.
    pub fn number(self) -> u8 {
        self.0
    }

    /// All of them, smallest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..CLASSES as u8).map(Self)
    }

    fn shape(self) -> &'static Shape {
        &SHAPES[usize::from(self.0)]
    }

    /// Bytes of an object.
    pub fn size(self) -> u64 {
        u64::from(self.shape().size)
    }

    /// Objects of an extent.
    pub fn count(self) -> u32 {
        self.shape().count
    }

    /// Live words of an extent.
    #[inline]
    pub(super) fn words(self) -> u32 {
        self.count().div_ceil(LIVE_BITS)
    }

    /// The bits of a live word that tell of an object.
    #[inline]
    pub(super) fn mask(self, word: u32) -> u64 {
        let objects = self.count().saturating_sub(word * LIVE_BITS).min(LIVE_BITS);
        (1 << objects) - 1
    }

    /// The number of the object that the byte at `offset` of an extent lies in; [`Class::count`] if that is the rest at
    /// the extent's end.
    pub(super) fn index(self, offset: u32) -> u32 {
        assert!(offset >> OFFSET_BITS == 0, "{offset} lies behind an extent");
        divide(self.code(), offset).0
    }

    /// What a state word says of a slab of this class.
    pub(super) fn code(self) -> u8 {
        self.0 + SLAB_CODE
    }

    /// The class that a state word tells of, if it is a slab's.
    pub(super) fn of_code(code: u8) -> Option<Self> {
        let number = code.checked_sub(SLAB_CODE)?;
        (usize::from(number) < CLASS_CODES).then_some(Self(number))
    }
}

/// The live word of an object, and its bit there.
#[inline(always)]
pub(super) fn live_bit(index: u32) -> (u32, u32) {
    let word = (index * WORD_RECIPROCAL) >> WORD_SHIFT;
    (word, index - word * LIVE_BITS)
}

impl TryFrom<u8> for Class {
    type Error = cenote_base::Error;

    fn try_from(number: u8) -> cenote_base::Result<Self> {
        let unknown = || cenote_base::Error::Invalid(format!("there is no class {number}"));
        Self::numbered(number).ok_or_else(unknown)
    }
}

impl From<Class> for u8 {
    fn from(class: Class) -> u8 {
        class.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_gets_the_smallest_class_that_holds_it() {
        let mut smaller = 0;
        for class in Class::all() {
            for len in [smaller + 1, class.size() - 1, class.size()] {
                assert_eq!(Class::of(len), Some(class), "{len}");
            }
            smaller = class.size();
        }
        assert_eq!(smaller, SLAB_OBJECT_MAX);
        assert_eq!(Class::of(SLAB_OBJECT_MAX + 1), None);
        assert_eq!(Class::of(u64::MAX), None);
    }

    #[test]
    fn little_is_wasted() {
        let sizes: Vec<u64> = Class::all().map(Class::size).collect();
        assert!(sizes.iter().all(|size| size.is_multiple_of(GRAIN)));
        for pair in sizes.windows(2) {
            let (smaller, size) = (pair[0], pair[1]);
            assert!(smaller < size && size <= 2 * smaller);
            if (512..=FINE_MAX).contains(&smaller) && size <= FINE_MAX {
                assert!((size - smaller) * 8 <= smaller, "{smaller} to {size}");
            }
        }
    }

    /// All offsets of all classes.
    #[test]
    fn the_multiplication_divides_exactly() {
        for class in Class::all().chain([Class::WHOLE]) {
            let size = class.size() as u32;
            let mut offset = 0;
            for index in 0..=class.count() {
                for _ in 0..size.min(EXTENT as u32 - offset) {
                    let (found, end) = divide(class.code(), offset);
                    assert_eq!(
                        (found, end),
                        (index, u64::from(index + 1) * class.size()),
                        "{offset} by {size}"
                    );
                    offset += 1;
                }
            }
            assert_eq!(u64::from(offset), EXTENT);
        }
        let others = (0..=u8::MAX).filter(|code| Class::of_code(*code).is_none());
        others.for_each(|code| assert_eq!(divide(code, EXTENT as u32 - 1), (0, 0)));
        for index in 0..(EXTENT / GRAIN) as u32 {
            assert_eq!(live_bit(index), (index / LIVE_BITS, index % LIVE_BITS));
        }
    }

    #[test]
    fn masks_cover_each_object_once() {
        for class in Class::all() {
            let objects: u32 = (0..class.words()).map(|word| class.mask(word).count_ones()).sum();
            assert_eq!(objects, class.count());
            assert!(class.words() <= WORDS_MAX && class.mask(class.words()) == 0);
        }
    }
}
