//! How long the chain of a page's redo records is, as a descriptor holds it.

use cenote_base::PAGE_SIZE;

/// How much redo a page has gathered since storage or a logged image had it whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chain {
    /// Records.
    pub count: u32,
    /// Bytes, in units of 64.
    pub lines: u32,
}

const _: () = assert!(
    Chain::COUNT_MAX < 0xFFF && Chain::LINES_MAX + (2 * PAGE_SIZE / Chain::UNIT) as u32 <= 0xF_FFFF,
    "a chain that is due for an image fits its word with the image's record"
);

impl Chain {
    /// Bytes in which the length is counted: a line.
    const UNIT: usize = 64;
    /// Records after which the page's image is logged (rule 4).
    pub const COUNT_MAX: u32 = 500;
    /// Units of 64 bytes after which the page's image is logged (64 KiB, rule 4).
    pub const LINES_MAX: u32 = 1024;

    /// From a descriptor's word.
    #[inline(always)]
    pub fn unpack(word: u32) -> Self {
        Self {
            count: word >> 20,
            lines: word & 0xF_FFFF,
        }
    }

    /// Into a descriptor's word; both parts saturate.
    #[inline(always)]
    pub fn pack(self) -> u32 {
        self.count.min(0xFFF) << 20 | self.lines.min(0xF_FFFF)
    }

    /// With one more record of `bytes`.
    pub fn plus(self, bytes: usize) -> Self {
        Self {
            count: self.count + 1,
            lines: self.lines + bytes.div_ceil(Chain::UNIT) as u32,
        }
    }

    /// Whether the image is due instead of one more record.
    pub fn is_long(self) -> bool {
        self.count >= Self::COUNT_MAX || self.lines >= Self::LINES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_packs_and_saturates() {
        let chain = Chain { count: 7, lines: 9 }.plus(65);
        assert_eq!(chain, Chain { count: 8, lines: 11 });
        assert_eq!(Chain::unpack(chain.pack()), chain);
        assert_eq!(
            Chain::unpack(
                Chain {
                    count: 1 << 30,
                    lines: 1 << 30
                }
                .pack()
            ),
            Chain {
                count: 0xFFF,
                lines: 0xF_FFFF
            }
        );
        assert!(
            Chain { count: 500, lines: 0 }.is_long()
                && !Chain {
                    count: 499,
                    lines: 1023
                }
                .is_long()
        );
    }
}
