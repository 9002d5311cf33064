//! Checking a whole tree and its space.
//!
//! 1. Walk the leaves by key. Each path from the root is copied and validated as a whole, so what is examined is
//!    one moment's truth even while others write. On each page: sound numbers, keys that rise and lie between the
//!    fences, fences that equal the parent's separators, levels that step by one.
//! 2. Account for each page of the space: header, tree, large value or free, exactly once. While others write, pages
//!    change hands in between; so it counts only if the header's page was not changed meanwhile (by its LSN: its words
//!    may change there and back), and is tried again a few times.

use cenote_base::rt::{HashMap, HashSet};

use super::image::Image;
use super::large::chain_page;
use super::layout::{
    AT_KIND, AT_NEXT, Header, KIND_FREE, PageRead, PageWrite, ROOT, Slot, child_at, copy_key, head_of, is_sound,
    level_of, lower_fence, upper_fence,
};
use super::pages::{Hint, OptGuard, PageView, Pool};
use super::search::child_slot;
use super::{Attempt, BTree, Result, until_done};
use crate::space::{self, KIND_AWAY, SpaceHeader, State};

/// Something that is wrong with a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Space of the page.
    pub space: u32,
    /// The page.
    pub page: u32,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "space {} page {}: {}", self.space, self.page, self.what)
    }
}

/// What a check saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Entries in leaves.
    pub entries: u64,
    /// Leaf pages.
    pub leaves: u64,
    /// Pages above the leaves.
    pub inner: u64,
    /// Pages of large values.
    pub overflow: u64,
    /// Pages on the free list.
    pub free: u64,
    /// Pages that were given back to the disk, or are about to be.
    pub away: u64,
    /// First pages of all large values that rows hold.
    pub large: Vec<u32>,
    /// Whether each page of the space was accounted for (not while others kept changing the space).
    pub accounted: bool,
    /// What is wrong; empty when all is well.
    pub findings: Vec<Finding>,
}

/// How often the accounting is tried while others change the space.
const TRIES: usize = 5;

/// Findings after which the walk ends: a page that is wrong is often wrong in many places.
const ENOUGH: usize = 100;

impl BTree {
    /// Checks the whole tree and accounts for all pages of its space. Works while others read and write.
    ///
    /// # Errors
    /// The space's header cannot be read. Whatever else is wrong is in the report.
    pub fn check(&self, pool: &Pool) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        for _ in 0..TRIES {
            let before = space::header(pool, self.space)?;
            let mut walk = Walk::new(*self, pool);
            walk.leaves();
            report = walk.report;
            if !report.findings.is_empty() {
                break;
            }
            let tree = std::mem::take(&mut walk.tree_pages);
            let accounts = Accounts::gather(pool, *self, before, tree)?;
            if space::header(pool, self.space)? == before {
                accounts.settle(&mut report);
                break;
            }
        }
        Ok(report)
    }
}

/// The walk over the leaves. Pages above them are copied again only where they have changed.
struct Walk<'p> {
    tree: BTree,
    pool: &'p Pool,
    report: CheckReport,
    tree_pages: HashSet<u32>,
    /// From the root to the leaf where the walk stands.
    path: Vec<Step<'p>>,
}

/// One page of a path, copied.
struct Step<'p> {
    page: u32,
    guard: OptGuard<'p>,
    image: Image,
    /// Whether this copy has been examined.
    is_examined: bool,
}

impl<'p> Walk<'p> {
    fn new(tree: BTree, pool: &'p Pool) -> Walk<'p> {
        Walk {
            tree,
            pool,
            report: CheckReport::default(),
            tree_pages: HashSet::default(),
            path: Vec::new(),
        }
    }

    fn leaves(&mut self) {
        let mut key = Vec::new();
        loop {
            match until_done(|| self.go_to(&key)) {
                Ok(()) => {}
                Err(super::Error::Corrupt { page, what }) => return self.find(page.page, what),
                Err(error) => return self.find(ROOT, &format!("a page on the way down from here: {error}")),
            }
            self.examine_path(&key);
            let Some(leaf) = self.path.last() else { return };
            let (page, next) = (leaf.page, upper_fence(leaf.image.view()));
            match next {
                Some(fence) if fence > key => key = fence,
                Some(_) => return self.find(page, "its upper fence is not above where it begins"),
                None => return,
            }
            if self.report.findings.len() >= ENOUGH {
                return;
            }
        }
    }

    /// Copies the pages from the root to the leaf of `key`, as they are at one moment.
    fn go_to(&mut self, key: &[u8]) -> Attempt<()> {
        let (mut page, mut depth) = (ROOT, 0);
        loop {
            let is_kept = |step: &Step<'_>| step.page == page && step.guard.valid();
            if !self.path.get(depth).is_some_and(is_kept) {
                self.path.truncate(depth);
                if self.copy(page)?.is_none() {
                    return Ok(None);
                }
            }
            let view = self.path[depth].image.view();
            if level_of(view) == Some(0) {
                break;
            }
            page = child_at(view, child_slot(view, key));
            depth += 1;
        }
        self.path.truncate(depth + 1);
        Ok(self.is_valid().then_some(()))
    }

    /// Copies the next page of the path.
    fn copy(&mut self, page: u32) -> Attempt<()> {
        let read = self.pool.optimistic_hint(self.tree.page(page), Hint::Scan);
        let guard = match read {
            Ok(guard) => guard,
            Err(error) if self.is_valid() => return Err(error.into()),
            Err(_) => return Ok(None),
        };
        let image = Image::copy_of(guard.view());
        if !guard.valid() || !self.is_valid() {
            return Ok(None);
        }
        let above = self.path.last().and_then(|step| level_of(step.image.view()));
        let level = level_of(image.view());
        if !is_sound(image.view()) || above.is_some_and(|above| level != above.checked_sub(1)) {
            return Err(super::Error::corrupt(
                self.tree.page(page),
                "it is not the sound tree page that its parent expects",
            ));
        }
        self.path.push(Step {
            page,
            guard,
            image,
            is_examined: false,
        });
        Ok(Some(()))
    }

    fn is_valid(&self) -> bool {
        self.path.iter().all(|step| step.guard.valid())
    }

    /// Examines the copies on the way to `key` that are new, and the fences of what lies below one.
    fn examine_path(&mut self, key: &[u8]) {
        let mut is_below_new = true;
        for depth in 0..self.path.len() {
            let step = &self.path[depth];
            let (page, view, is_new) = (step.page, step.image.view(), !step.is_examined);
            let bounds = || match depth {
                0 => (Vec::new(), None),
                _ => child_bounds(self.path[depth - 1].image.view(), key),
            };
            if (is_new || is_below_new) && (lower_fence(view), upper_fence(view)) != bounds() {
                self.find(page, "its fences are not what its parent gives it");
            }
            if is_new && self.tree_pages.insert(page) {
                self.examine_page(depth);
            }
            self.path[depth].is_examined = true;
            is_below_new = is_new;
        }
    }

    fn examine_page(&mut self, depth: usize) {
        let (page, view) = (self.path[depth].page, self.path[depth].image.view());
        let header = Header::read(view);
        if !is_in_order(view, &header) {
            for what in disorder(view, &header) {
                self.find(page, what);
            }
        }
        self.count(depth, &header);
    }

    fn count(&mut self, depth: usize, header: &Header) {
        let (page, view) = (self.path[depth].page, self.path[depth].image.view());
        if level_of(view) == Some(0) {
            self.report.leaves += 1;
            self.report.entries += header.count() as u64;
            return;
        }
        let first = view.u32(super::layout::slot_at(0) + 8);
        self.report.inner += 1;
        if header.count() == 0 {
            self.find(page, "an inner page has no children");
        }
        if first == 0 {
            self.find(page, "a child has page number 0");
        }
    }

    fn find(&mut self, page: u32, what: &str) {
        self.report.findings.push(Finding {
            space: self.tree.space,
            page,
            what: what.to_owned(),
        });
    }
}

/// The fences that the child of a page on the way to `key` must have.
fn child_bounds(view: &[u8], key: &[u8]) -> (Vec<u8>, Option<Vec<u8>>) {
    let (header, slot) = (Header::read(view), child_slot(view, key));
    let key = |slot: usize| {
        let mut key = Vec::new();
        copy_key(view, &header, slot, &mut key);
        key
    };
    let has_next = slot + 1 < header.count();
    (
        key(slot),
        if has_next {
            Some(key(slot + 1))
        } else {
            upper_fence(view)
        },
    )
}

/// Whether keys rise between the fences, each with its head: then each is found. What is said of the page otherwise
/// (`disorder`) takes ten times as long.
fn is_in_order(view: &[u8], header: &Header) -> bool {
    let suffix = |entry: Slot| view.get(entry.off as usize..entry.off as usize + entry.len as usize);
    let mut before: Option<&[u8]> = None;
    for slot in 0..header.count() {
        let entry = Slot::read(view, slot);
        let Some(suffix) = suffix(entry) else { return false };
        if entry.head != head_of(suffix) || before.is_some_and(|before| before >= suffix) {
            return false;
        }
        before = Some(suffix);
    }
    let (lower, upper) = (lower_fence(view), upper_fence(view));
    let lies_between = |slot: usize| {
        let mut key = Vec::new();
        copy_key(view, header, slot, &mut key);
        key >= lower && upper.as_ref().is_none_or(|upper| key < *upper)
    };
    header.count() == 0 || lies_between(0) && lies_between(header.count() - 1)
}

/// What is wrong with the order of a page's keys.
fn disorder(view: &[u8], header: &Header) -> Vec<&'static str> {
    let (lower, upper, mut found) = (lower_fence(view), upper_fence(view), Vec::new());
    let mut before: Option<Vec<u8>> = None;
    for slot in 0..header.count() {
        let mut key = Vec::new();
        copy_key(view, header, slot, &mut key);
        if before.as_ref().is_some_and(|before| *before >= key) {
            found.push("its keys do not rise");
        }
        if key < lower || upper.as_ref().is_some_and(|upper| key >= *upper) {
            found.push("a key lies outside its fences");
        }
        if !super::search::search(view, &key).exact {
            found.push("a key's head does not lead to it");
        }
        before = Some(key);
    }
    found
}

/// The owner of each page of the space.
struct Accounts {
    tree: BTree,
    header: SpaceHeader,
    owners: HashMap<u32, &'static str>,
    large: Vec<u32>,
    findings: Vec<Finding>,
    overflow: u64,
    free: u64,
    away: u64,
}

impl Accounts {
    fn gather(pool: &Pool, tree: BTree, header: SpaceHeader, pages: HashSet<u32>) -> Result<Accounts> {
        let owners = pages.into_iter().map(|page| (page, "the tree")).collect();
        let mut accounts = Accounts {
            tree,
            header,
            owners,
            large: Vec::new(),
            findings: Vec::new(),
            overflow: 0,
            free: 0,
            away: 0,
        };
        accounts.free_lists(pool);
        accounts.ranges(pool)?;
        accounts.chains(pool)?;
        accounts.missing();
        Ok(accounts)
    }

    fn settle(self, report: &mut CheckReport) {
        report.accounted = true;
        report.findings.extend(self.findings);
        report.large = self.large;
        report.overflow = self.overflow;
        report.free = self.free;
        report.away = self.away;
    }

    fn free_lists(&mut self, pool: &Pool) {
        self.free_list(pool, self.header.free_head);
        self.free_list(pool, self.header.kept_head);
        if self.free != u64::from(self.header.free_count) {
            self.find(0, "the free list is not as long as the header says");
        }
    }

    /// Pages that are on no list since their blocks are gone, or about to go.
    fn ranges(&mut self, pool: &Pool) -> Result<()> {
        for away in space::header_and_ranges(pool, self.tree.space)?.1 {
            for page in away.pages {
                let mut kind = || self.read(pool, page, |view| PageRead::u8(view, AT_KIND));
                if away.state != State::Claimed || kind() == Some(KIND_AWAY) {
                    self.own(page, "a range that was given back");
                    self.away += 1;
                }
            }
        }
        Ok(())
    }

    fn free_list(&mut self, pool: &Pool, mut page: u32) {
        while page != 0 && self.own(page, "the free list") {
            self.free += 1;
            let read = self.read(pool, page, |view| {
                (PageRead::u8(view, AT_KIND), PageRead::u32(view, AT_NEXT))
            });
            match read {
                Some((KIND_FREE, next)) => page = next,
                _ => return self.find(page, "a page on the free list is in use"),
            }
        }
    }

    /// Follows the chains of all large values: those held by rows and those pending.
    fn chains(&mut self, pool: &Pool) -> Result<()> {
        let pending: HashSet<u32> = space::pending(pool, self.tree.space)?
            .into_iter()
            .map(|(_, first)| first)
            .collect();
        let mut firsts: Vec<u32> = pending.iter().copied().collect();
        for page in 1..self.header.high_water {
            if self.owners.contains_key(&page) {
                continue;
            }
            let read = self.chain_page(pool, page);
            if read.is_some_and(|chain| chain.is_first) && !pending.contains(&page) {
                self.large.push(page);
                firsts.push(page);
            }
        }
        firsts.into_iter().for_each(|first| self.chain(pool, first));
        Ok(())
    }

    fn chain(&mut self, pool: &Pool, first: u32) {
        let mut page = first;
        while page != 0 && self.own(page, "a large value") {
            self.overflow += 1;
            let Some(chain) = self.chain_page(pool, page) else {
                return self.find(page, "a large value leads to a page of another kind");
            };
            page = chain.next;
        }
    }

    fn chain_page(&mut self, pool: &Pool, page: u32) -> Option<super::large::ChainPage> {
        self.read(pool, page, |view| chain_page(view)).flatten()
    }

    /// Reads a page; `None`, and a finding, when it cannot be read.
    fn read<T>(&mut self, pool: &Pool, page: u32, f: impl Fn(PageView<'_>) -> T) -> Option<T> {
        let read = until_done(|| {
            let guard = pool.optimistic_hint(self.tree.page(page), Hint::Scan)?;
            let read = f(guard.view());
            Ok(guard.valid().then_some(read))
        });
        read.map_err(|error| self.find(page, &error.to_string())).ok()
    }

    /// Enters the page's owner; `false` when the page cannot be followed further.
    fn own(&mut self, page: u32, owner: &'static str) -> bool {
        if page == 0 || page >= self.header.high_water {
            self.find(page, &format!("{owner} leads outside the space"));
            return false;
        }
        if let Some(other) = self.owners.insert(page, owner) {
            self.find(page, &format!("it belongs to {owner} and to {other}"));
            return false;
        }
        true
    }

    fn missing(&mut self) {
        for page in 1..self.header.high_water {
            if !self.owners.contains_key(&page) {
                self.find(page, "it belongs to nothing: neither reachable nor free");
            }
        }
    }

    fn find(&mut self, page: u32, what: &str) {
        self.findings.push(Finding {
            space: self.tree.space,
            page,
            what: what.to_owned(),
        });
    }
}
