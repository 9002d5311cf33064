//! A bank whose books show every crime: what the crash tests do to a pool, and how they tell what is wrong.
//!
//! Several threads move amounts between accounts on random pages: some mini-transactions over many pages, some of one
//! page so often that images are logged, some that make pages anew. Each thread counts its mini-transactions on a page
//! of its own, in the same mini-transaction, and *notes* a count once it is durable. After a crash the sum over all
//! accounts is what it was (each mini-transaction is whole or void), each page agrees with itself, and no noted count
//! is lost.

pub use cenote_base::random::Random;
use cenote_base::{PAGE_SIZE, PageId};
use cenote_buffer::{BufferPool, Mtr, PageH};

pub const SPACE: u32 = 1000;
pub const THREADS: u32 = 3;
/// Accounts on a page, from ACCOUNTS_AT on; their sum, wrapping, stands at SUM_AT.
const ACCOUNTS: usize = 100;
const ACCOUNTS_AT: usize = 64;
const SUM_AT: usize = 32;
/// Bytes that are moved about, to log moves.
const SCRATCH_AT: usize = 8192;

/// Makes `pages` pages of accounts, and one a thread.
pub fn prepare(pool: &BufferPool, pages: u32) {
    if pool.storage().pages().has_space(SPACE) {
        return;
    }
    pool.storage().pages().create_space(SPACE).expect("space");
    let mut last = cenote_base::Lsn::ZERO;
    for page in 0..pages + THREADS {
        let mut m = pool.mtr();
        m.create(PageId::new(SPACE, page), 7, 0).expect("create");
        last = m.commit();
    }
    pool.storage().log().wait_durable(last).expect("durable");
}

fn add(m: &mut Mtr<'_>, h: PageH, account: usize, amount: u64) {
    let at = ACCOUNTS_AT + account * 8;
    let (value, sum) = (m.view(h).u64(at), m.view(h).u64(SUM_AT));
    m.write_u64(h, at, value.wrapping_add(amount));
    // Under the simulator: a place to be cut off, page half changed.
    cenote_base::rt::preempt();
    m.write_u64(h, SUM_AT, sum.wrapping_add(amount));
}

/// Makes the page anew, with what it held.
fn rebuild(m: &mut Mtr<'_>, h: PageH) {
    let mut old = vec![0; PAGE_SIZE];
    m.view(h).copy_out(0, &mut old);
    let page = m.page(h);
    m.create(page, 7, 1).expect("create");
    m.write(h, SUM_AT, &old[SUM_AT..SUM_AT + 8]);
    m.write(h, ACCOUNTS_AT, &old[ACCOUNTS_AT..ACCOUNTS_AT + 8 * ACCOUNTS]);
}

/// One mini-transaction of `thread`; when its count is known to be durable, that count.
pub fn step(pool: &BufferPool, pages: u32, thread: u32, random: &mut Random) -> Option<u64> {
    let wide = if random.below(20) == 0 { 30 } else { 4 };
    let mut touched: Vec<u32> = (0..2 + random.below(wide))
        .map(|_| random.below(pages as u64) as u32)
        .collect();
    if random.below(3) == 0 {
        touched.push(thread % 5); // a few hot ones
    }
    touched.sort_unstable();
    touched.dedup();
    if random.below(4) == 0 {
        let pages: Vec<PageId> = touched.iter().map(|page| PageId::new(SPACE, *page)).collect();
        pool.bring(&pages);
    }
    let mut m = pool.mtr();
    let held: Vec<PageH> = touched
        .iter()
        .map(|p| m.exclusive(PageId::new(SPACE, *p)).expect("page"))
        .collect();
    let own = m.exclusive(PageId::new(SPACE, pages + thread)).expect("page");
    let amount = random.word();
    for h in &held[1..] {
        add(
            &mut m,
            held[0],
            random.below(ACCOUNTS as u64) as usize,
            amount.wrapping_neg(),
        );
        if random.below(30) == 0 {
            rebuild(&mut m, *h);
        }
        add(&mut m, *h, random.below(ACCOUNTS as u64) as usize, amount);
        if random.below(8) == 0 {
            m.write(*h, SCRATCH_AT, &amount.to_le_bytes());
            m.move_bytes(*h, SCRATCH_AT, SCRATCH_AT + 4, 3000);
        }
    }
    let count = m.view(own).u64(ACCOUNTS_AT) + 1;
    m.write_u64(own, ACCOUNTS_AT, count);
    let end = m.commit();
    (random.below(4) == 0).then(|| {
        pool.storage().log().wait_durable(end).expect("durable");
        count
    })
}

/// Whether the books are in order, and `noted` is not lost.
pub fn verify(pool: &BufferPool, pages: u32, noted: &[u64]) {
    let mut total = 0u64;
    for page in 0..pages {
        let guard = pool.shared(PageId::new(SPACE, page)).expect("page");
        let view = guard.view();
        let sum = (0..ACCOUNTS).fold(0u64, |s, i| s.wrapping_add(view.u64(ACCOUNTS_AT + i * 8)));
        assert_eq!(sum, view.u64(SUM_AT), "page {page} contradicts itself");
        total = total.wrapping_add(sum);
    }
    assert_eq!(total, 0, "a mini-transaction is half there");
    for (thread, noted) in noted.iter().enumerate() {
        let guard = pool.shared(PageId::new(SPACE, pages + thread as u32)).expect("page");
        let count = guard.view().u64(ACCOUNTS_AT);
        assert!(count >= *noted, "thread {thread}: {count} < {noted}");
    }
    assert_eq!(pool.check().problems, Vec::<String>::new());
}

/// From the environment (`random`: drawn), else 1; printed, so that a failure can be met again.
pub fn seed() -> u64 {
    let seed = match std::env::var("CENOTE_SEED") {
        Ok(text) if text == "random" => cenote_base::rt::random(),
        Ok(text) => text.parse().expect("CENOTE_SEED is a number or `random`"),
        Err(_) => 1,
    } | 1;
    println!("CENOTE_SEED={seed}");
    seed
}
