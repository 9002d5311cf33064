//! Pages that lost their slot lately: what a slab more would have.

use std::collections::VecDeque;

use cenote_base::PageId;
use cenote_base::rt::HashMap;

/// The last so many of them, oldest first.
#[derive(Default)]
pub struct Ghosts {
    order: VecDeque<(u64, PageId)>,
    /// When each of them lost it last.
    since: HashMap<PageId, u64>,
    clock: u64,
    most: usize,
}

impl Ghosts {
    /// Of the last `most` pages.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// The page has lost its slot.
    pub fn add(&mut self, page: PageId) {
        if self.most == 0 {
            return;
        }
        self.clock += 1;
        self.since.insert(page, self.clock);
        self.order.push_back((self.clock, page));
        while self.order.len() > self.most {
            self.drop_oldest();
        }
        assert!(
            self.since.len() <= self.order.len(),
            "each page that is known is in the order"
        );
    }

    fn drop_oldest(&mut self) {
        if let Some((since, page)) = self.order.pop_front()
            && self.since.get(&page) == Some(&since)
        {
            self.since.remove(&page);
        }
    }

    /// The page is asked for. Says whether it was one of them.
    pub fn take(&mut self, page: PageId) -> bool {
        self.since.remove(&page).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_known_and_each_counts_once() {
        let page = |n| PageId::new(3, n);
        let mut ghosts = Ghosts::new(3);
        (0..5).for_each(|n| ghosts.add(page(n)));
        assert!(!ghosts.take(page(1)) && ghosts.take(page(2)) && !ghosts.take(page(2)));
        ghosts.add(page(3));
        ghosts.add(page(5));
        assert!(ghosts.take(page(3)), "its later time counts");
        ghosts.add(page(6));
        assert!(
            ghosts.take(page(5)) && !ghosts.take(page(4)),
            "three, the taken ones among them"
        );
        let mut none = Ghosts::default();
        none.add(page(1));
        assert!(!none.take(page(1)));
    }
}
