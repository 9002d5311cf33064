//! Memory that statements gather rows, keys and locks in: one limit for all sessions, an account for each.
//!
//! A [`Charge`] notes what one list, sort or set of locks has grown to. It takes from its session's account in steps,
//! and the account from the limit that all share; whatever holds the list holds the charge, so that memory is given
//! back where the list goes: at the end of the statement, the portal, the transaction or the session. Nothing waits for
//! memory: what would be too much is refused (53200), and the refusal names the session that holds the most.
//!
//! One account gets no more than half of the limit, so that one session does not keep all others from their work.

use crate::error::{Error, Result};
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes that all sessions may gather, unless told otherwise.
pub const DEFAULT_LIMIT: u64 = 1 << 30;
/// Least step, in bytes, in which a charge takes from its account.
const STEP: u64 = 4 << 10;

/// The limit, and the accounts that share it.
#[derive(Debug)]
pub struct Memory {
    limit: AtomicU64,
    used: AtomicU64,
    /// Parts of the limit of which an account gets one.
    parts: u64,
    accounts: rt::Mutex<Accounts>,
}

#[derive(Debug, Default)]
struct Accounts {
    next: u64,
    /// Holder and bytes, by the account's number.
    open: BTreeMap<u64, (String, Arc<AtomicU64>)>,
}

impl Memory {
    /// A limit of so many bytes, of which an account gets a `parts`th.
    pub fn new(limit: u64, parts: u64) -> Arc<Memory> {
        assert!(parts > 0, "an account gets a part of the limit");
        Arc::new(Memory {
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            parts,
            accounts: rt::Mutex::default(),
        })
    }

    /// Sets the limit, in bytes. What is held already stays.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// The limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes that are held now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// An account; `holder` is its name in refusals.
    pub fn account(self: &Arc<Self>, holder: &str) -> Arc<Account> {
        let used = Arc::new(AtomicU64::new(0));
        let mut accounts = self.accounts.lock();
        let number = accounts.next;
        accounts.next += 1;
        accounts.open.insert(number, (holder.to_string(), used.clone()));
        Arc::new(Account {
            memory: self.clone(),
            number,
            used,
        })
    }

    #[cold]
    fn refusal(&self, bytes: u64, held: u64) -> Error {
        let accounts = self.accounts.lock();
        let held_by = |account: &&(String, Arc<AtomicU64>)| account.1.load(Ordering::Relaxed);
        let most = accounts.open.values().max_by_key(held_by);
        let most = most.map_or(String::new(), |(holder, used)| {
            format!(
                "; the most is held by {holder}: {} KiB",
                used.load(Ordering::Relaxed) >> 10
            )
        });
        let (limit, used) = (self.limit(), self.used());
        Error::OutOfMemory(format!(
            "the statement holds {} KiB and needs {} more to gather rows, keys or locks; all sessions hold {} of {} KiB, \
             of which one gets a part in {}{most}",
            held >> 10,
            bytes >> 10,
            used >> 10,
            limit >> 10,
            self.parts
        ))
    }
}

/// A session's part of the memory.
#[derive(Debug)]
pub struct Account {
    memory: Arc<Memory>,
    number: u64,
    used: Arc<AtomicU64>,
}

impl Account {
    /// What it is a part of.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Bytes that are held.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes so many bytes.
    ///
    /// # Errors
    /// 53200: the limit, or this account's part of it, is reached. Nothing is taken then.
    pub fn take(&self, bytes: u64) -> Result<()> {
        let memory = &self.memory;
        let own = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let all = memory.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let limit = memory.limit();
        if all > limit || own > limit / memory.parts {
            self.give_back(bytes);
            return Err(memory.refusal(bytes, own - bytes));
        }
        Ok(())
    }

    /// Takes so many bytes, whatever the limit.
    pub fn take_always(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        self.memory.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives bytes back.
    pub fn give_back(&self, bytes: u64) {
        let own = self.used.fetch_sub(bytes, Ordering::Relaxed);
        let all = self.memory.used.fetch_sub(bytes, Ordering::Relaxed);
        assert!(own >= bytes && all >= bytes, "an account gives back what it has taken");
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.give_back(self.used());
        self.memory.accounts.lock().open.remove(&self.number);
    }
}

/// What one list or set holds of an account; given back when it is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    bytes: u64,
    /// Taken from the account: `bytes`, and a little in advance.
    taken: u64,
}

impl Charge {
    /// Nothing yet.
    pub fn new(account: &Arc<Account>) -> Charge {
        Charge {
            account: account.clone(),
            bytes: 0,
            taken: 0,
        }
    }

    /// The list is about to grow by so many bytes.
    ///
    /// # Errors
    /// As [`Account::take`].
    #[inline]
    pub fn grow(&mut self, bytes: usize) -> Result<()> {
        self.bytes += bytes as u64;
        if self.bytes <= self.taken {
            return Ok(());
        }
        let taken = self.take_more();
        if taken.is_err() {
            self.bytes -= bytes as u64;
        }
        taken
    }

    #[cold]
    fn take_more(&mut self) -> Result<()> {
        let more = (self.bytes - self.taken).max(self.taken / 8).max(STEP);
        self.account.take(more)?;
        self.taken += more;
        assert!(
            self.bytes <= self.taken,
            "a list grows into memory that its account has"
        );
        Ok(())
    }

    /// The list has become shorter by so many bytes. What was taken for them is kept for later.
    pub fn shrink(&mut self, bytes: usize) {
        assert!(bytes as u64 <= self.bytes, "a list gives back what it has grown by");
        self.bytes -= bytes as u64;
    }

    /// The list is empty again.
    pub fn clear(&mut self) {
        if self.taken > 0 {
            self.account.give_back(self.taken);
        }
        (self.bytes, self.taken) = (0, 0);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(charge: &mut Charge, bytes: usize) -> String {
        let error = charge.grow(bytes).expect_err("too much");
        assert_eq!(error.sqlstate(), "53200");
        error.to_string()
    }

    #[test]
    fn too_much_is_refused_by_name_until_memory_is_given_back() {
        let memory = Memory::new(1 << 20, 2);
        let (one, two, three) = (memory.account("one"), memory.account("two"), memory.account("three"));
        let mut first = Charge::new(&one);
        first.grow(510 << 10).expect("within half");
        let text = refused(&mut first, 100 << 10);
        assert!(text.contains("held by one"), "{text}");
        let mut second = Charge::new(&two);
        second.grow(500 << 10).expect("the other half");
        let mut third = Charge::new(&three);
        let text = refused(&mut third, 100 << 10);
        assert!(text.contains("held by one: 510 KiB"), "{text}");
        drop(first);
        drop(one);
        third.clear();
        third.grow(100 << 10).expect("there is room now");
        drop((second, third));
        assert_eq!(memory.used(), 0);
        drop((two, three));
        assert!(memory.accounts.lock().open.is_empty());
    }

    #[test]
    fn an_account_takes_what_it_holds_with_it() {
        let memory = Memory::new(1 << 20, 1);
        let account = memory.account("one");
        account.take(1 << 10).expect("room");
        account.take_always(2 << 20);
        assert!(account.take(1).is_err());
        drop(account);
        assert_eq!(memory.used(), 0);
    }
}
