//! Pages of a file used in a circle, so that a stream without end has a file with one.
//!
//! A stream's pages have an *index*, which rises for good; index `i` lies on page `1 + i % pages`, since page 0 is the
//! file's header. The writer makes sure that an index has given its page back before another one takes it.

use std::ops::Range;

/// How many pages go round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Circle(u32);

impl Circle {
    /// Of `pages` pages, at least one.
    pub(crate) const fn new(pages: u32) -> Option<Circle> {
        match pages {
            0 | u32::MAX => None,
            pages => Some(Circle(pages)),
        }
    }

    /// How many indexes have a page at once.
    #[inline]
    pub(crate) const fn len(self) -> u64 {
        self.0 as u64
    }

    /// The page of an index.
    #[inline]
    pub(crate) const fn page(self, index: u64) -> u32 {
        1 + (index % self.len()) as u32
    }

    /// The pages of a run of indexes, none of them twice.
    pub(crate) fn pages(self, indexes: Range<u64>) -> Vec<Range<u32>> {
        assert!(
            indexes.start <= indexes.end && indexes.end - indexes.start <= self.len(),
            "a run of indexes goes round once at most"
        );
        let mut runs = Vec::new();
        let mut at = indexes.start;
        while at < indexes.end {
            let first = self.page(at);
            let run = (indexes.end - at).min(self.len() + 1 - u64::from(first));
            runs.push(first..first + run as u32);
            at += run;
        }
        assert!(at == indexes.end, "each index has its page");
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_go_on_at_the_circle_s_beginning() {
        let circle = Circle::new(128).expect("some pages");
        assert_eq!((circle.page(0), circle.page(127), circle.page(128)), (1, 128, 1));
        let runs = |indexes: Range<u64>| -> Vec<(u32, u32)> {
            circle
                .pages(indexes)
                .into_iter()
                .map(|run| (run.start, run.end))
                .collect()
        };
        assert_eq!(runs(0..64), [(1, 65)]);
        assert_eq!(runs(64..128), [(65, 129)]);
        assert_eq!(runs(100..170), [(101, 129), (1, 43)]);
        assert_eq!(runs(100..228), [(101, 129), (1, 101)]);
        assert_eq!(runs(9..9), []);
        assert_eq!(Circle::new(0), None);
    }
}
