//! A number's digits of base 10000. A few lie in the number itself: most numbers are copied without an allocation.

use std::ops::{Deref, Range};

/// Digits that lie in the number: 25 decimal ones, wherever the point cuts their groups.
const FEW: usize = 7;
const _: () = assert!(
    size_of::<Digits>() == size_of::<Vec<u16>>(),
    "digits in place take no more than a list of them"
);

/// Most significant first.
#[derive(Debug, Clone)]
pub(super) enum Digits {
    /// So many of these.
    Few(u8, [u16; FEW]),
    Many(Vec<u16>),
}

impl Digits {
    pub const NONE: Digits = Digits::Few(0, [0; FEW]);

    /// Leaves these of them.
    pub fn keep(&mut self, range: Range<usize>) {
        if range != (0..self.len()) {
            *self = Digits::from(&self[range]);
        }
    }
}

impl Deref for Digits {
    type Target = [u16];

    #[inline]
    fn deref(&self) -> &[u16] {
        match self {
            Digits::Few(count, digits) => &digits[..usize::from(*count)],
            Digits::Many(digits) => digits,
        }
    }
}

impl From<&[u16]> for Digits {
    #[inline]
    fn from(given: &[u16]) -> Digits {
        let mut digits = [0; FEW];
        match digits.get_mut(..given.len()) {
            Some(few) => few.copy_from_slice(given),
            None => return Digits::Many(given.to_vec()),
        }
        Digits::Few(given.len() as u8, digits)
    }
}

impl FromIterator<u16> for Digits {
    #[inline]
    fn from_iter<I: IntoIterator<Item = u16>>(given: I) -> Digits {
        let (mut given, mut digits, mut count) = (given.into_iter(), [0; FEW], 0);
        while let Some(digit) = given.next() {
            if count == FEW {
                return Digits::Many(digits.into_iter().chain([digit]).chain(given).collect());
            }
            digits[count] = digit;
            count += 1;
        }
        Digits::Few(count as u8, digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_are_the_same_digits() {
        for count in 0..3 * FEW as u16 {
            let given: Vec<u16> = (0..count).collect();
            let mut digits: Digits = given.iter().copied().collect();
            assert_eq!(given, *digits);
            assert_eq!(given, *Digits::from(&given[..]));
            assert_eq!(matches!(digits, Digits::Few(..)), given.len() <= FEW);
            let (from, to) = (given.len() / 3, given.len() / 2);
            digits.keep(from..to);
            assert_eq!(given[from..to], *digits);
        }
    }
}
