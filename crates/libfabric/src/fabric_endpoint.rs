//! An endpoint: one endpoint of libfabric with its queue of completions, its address table and its buffers. Few of them
//! serve all threads of a process (a shared queue pair).
//!
//! Ownership is the whole point. A provider is only ever given memory of the endpoint's own *slots*, which is unmapped
//! after the endpoint is closed; a caller that wants bytes moved copies them into a slot, and out of it. A [`Slot`] is
//! a token that cannot be copied: it goes to the provider when something is started with it and comes back with the
//! completion. So no buffer of a user is ever under a network card: a work that is given up after its time gives its
//! buffer back at once, and what arrives later lands in a slot that is not read.
//!
//! 16 KiB are copied in under a microsecond; registering a user's buffer instead costs several.

use super::address::{LONGEST, NodeAddress, Provider};
use super::shim::{self, Done, Options, RawEndpoint, RawMemory, Start, Target};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::Mapping;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::ffi::CString;
use std::sync::Arc;

/// Bytes of a slot: no message and no transfer is longer. A page of 16 KiB and its heads; what `ofi_rxm` sends without
/// asking first, as `shim.c` has told it.
pub const SLOT: usize = 20480;

/// Slots of an endpoint.
pub const SLOTS: usize = 192;

/// A buffer of an endpoint that is not under way.
#[derive(Debug)]
pub struct Slot(usize);

impl Slot {
    /// Below [`SLOTS`]; no other slot of its endpoint has it.
    pub fn index(&self) -> usize {
        self.0
    }
}

/// A completion.
#[derive(Debug)]
pub struct Complete {
    /// Its buffer.
    pub slot: Slot,
    /// What it was started with.
    pub tag: u64,
    /// A message has come.
    pub received: bool,
    /// Bytes received, or libfabric's error.
    pub result: Result<usize, i32>,
}

/// What became of a start.
#[derive(Debug)]
pub enum Started {
    /// It is under way.
    Yes,
    /// There was no room: later.
    Later(Slot),
    /// It could not be.
    No(Slot, Error),
}

/// See the module.
pub struct FabricEndpoint {
    raw: Arc<Opened>,
    /// The slots' registration, where the provider wants one.
    local: Option<Registration>,
    free: Mutex<Vec<Slot>>,
    /// Its name among those of this process, where that matters.
    open: Option<NodeAddress>,
    /// Of each slot: 0, or 1 and the tag it is under way with.
    tags: Box<[AtomicU64]>,
    provider: Provider,
    /// Bytes that can be sent without a completion.
    few: usize,
}

/// What libfabric has opened, and all memory that it may touch until it is closed. Its last holder closes it: the
/// endpoint, or a registration that outlives that.
struct Opened {
    raw: *mut RawEndpoint,
    /// Memory of registrations stays until the endpoint is closed, where the provider is software: that may be in the
    /// middle of it, whatever was done with its key.
    keeps_all: bool,
    kept: Mutex<Vec<Arc<Mapping>>>,
    slots: Mapping,
}

// SAFETY: the shim's functions may be called by any thread (FI_THREAD_SAFE), except closing, which is in `drop`; slots
// are reached through tokens.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Opened {
    fn keep(&self, memory: &Arc<Mapping>) {
        let mut kept = self.kept.lock();
        if !kept.iter().any(|other| Arc::ptr_eq(other, memory)) {
            kept.push(Arc::clone(memory));
        }
    }
}

impl core::fmt::Debug for Registration {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "registration {:p}", self.raw)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: the last holder; registrations are holders, so they are gone; memory is unmapped after this.
        unsafe { shim::cf_close(self.raw) };
    }
}

/// A registration of memory; ends when dropped. Its memory stays mapped as long, and its endpoint open.
pub struct Registration {
    raw: *mut RawMemory,
    /// `None`: the endpoint's own slots.
    memory: Option<Arc<Mapping>>,
    of: Option<Arc<Opened>>,
}

// SAFETY: a handle that any thread may close.
unsafe impl Send for Registration {}
// SAFETY: it has no methods; `FabricEndpoint` hands the pointer to functions that any thread may call.
unsafe impl Sync for Registration {}

/// What may be done with memory that is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Access {
    /// Whatever there is, by peers too.
    All = 0,
    /// Peers write to it: no more.
    Written = 1,
    /// Peers read it: no more.
    Read = 2,
}

impl Registration {
    /// Says whether it has ended. If not, peers may reach the memory as long as the endpoint is open.
    pub fn close(self) -> bool {
        let mut this = self;
        this.end()
    }

    /// Ends it, unless the provider cannot now: then it is there still, and this can be done again.
    ///
    /// # Errors
    /// [`Error::Io`] with libfabric's words.
    pub fn try_close(&mut self) -> Result<()> {
        let Some(of) = &self.of else { return Ok(()) };
        // SAFETY: it was opened with the handle, and its endpoint is open; closed, it is not closed again, as `of` is
        // taken below.
        shim::check("ending a registration", unsafe { shim::cf_unregister(self.raw) })?;
        if let Some(memory) = &self.memory
            && of.keeps_all
        {
            of.keep(memory);
        }
        self.of = None;
        Ok(())
    }

    fn end(&mut self) -> bool {
        let Some(of) = self.of.take() else {
            return true;
        };
        // SAFETY: it was opened with the handle, and is closed once, as `of` is taken; its endpoint is open.
        let has_ended = unsafe { shim::cf_unregister(self.raw) == 0 };
        if let Some(memory) = &self.memory
            && (of.keeps_all || !has_ended)
        {
            of.keep(memory);
        }
        has_ended
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.end();
    }
}

impl FabricEndpoint {
    /// An endpoint of `provider`, at an own IP address or name and a port; `None`: any.
    ///
    /// # Errors
    /// [`Error::Invalid`] if RDMA is not there, [`Error::Io`] with libfabric's words.
    pub fn open(provider: &Provider, node: Option<&str>, port: Option<u16>) -> Result<Self> {
        shim::load()?;
        let doing = format!("opening {provider} at {}", node.unwrap_or("any address"));
        let text = |s: &str| CString::new(s).map_err(|_| Error::Invalid(format!("{s:?} holds a 0 byte")));
        let (name, node) = (text(provider.name())?, node.map(text).transpose()?);
        let port = port.map(|p| text(&p.to_string())).transpose()?;
        let options = Options {
            provider: name.as_ptr(),
            node: node.as_ref().map_or(ptr::null(), |n| n.as_ptr()),
            service: port.as_ref().map_or(ptr::null(), |p| p.as_ptr()),
            hardware: u32::from(provider.is_hardware()),
            pad: 0,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: texts that outlive the call; the endpoint is ours from here on.
        shim::check(&doing, unsafe { shim::cf_open(&options, &mut raw) })?;
        Self::around(raw, provider.clone())
    }

    fn around(raw: *mut RawEndpoint, provider: Provider) -> Result<Self> {
        let slots = Mapping::anonymous(SLOT * SLOTS).map_err(|e| Error::io("mapping buffers for RDMA", e));
        let slots = slots.inspect_err(|_| {
            // SAFETY: opened above, not used yet.
            unsafe { shim::cf_close(raw) }
        })?;
        let opened = Opened {
            raw,
            keeps_all: !provider.is_hardware(),
            kept: Mutex::default(),
            slots,
        };
        let mut fabric_endpoint = Self {
            raw: Arc::new(opened),
            local: None,
            free: Mutex::new((0..SLOTS).map(Slot).collect()),
            open: None,
            tags: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            provider,
            // SAFETY: an open endpoint.
            few: unsafe { shim::cf_inject_room(raw) }.min(MOST_INJECTED),
        };
        // SAFETY: an open endpoint.
        if unsafe { shim::cf_wants_local_registration(raw) } == 1 {
            let base = fabric_endpoint.raw.slots.base().as_ptr();
            let (registration, _) = fabric_endpoint.register_at(base, None, SLOT * SLOTS, Access::All, rt::random())?;
            fabric_endpoint.local = Some(registration);
        }
        if fabric_endpoint.provider == Provider::shm() {
            fabric_endpoint.open = Some(fabric_endpoint.address()?);
            OPEN.lock().extend(fabric_endpoint.open.clone());
        }
        Ok(fabric_endpoint)
    }

    /// Its provider.
    pub fn provider(&self) -> &Provider {
        &self.provider
    }

    /// Where others reach it.
    ///
    /// # Errors
    /// [`Error::Io`] if the provider does not tell it, [`Error::Invalid`] if its bytes are none.
    pub fn address(&self) -> Result<NodeAddress> {
        let mut bytes = vec![0; LONGEST];
        let mut size = bytes.len();
        // SAFETY: room of `size` bytes.
        let error = unsafe { shim::cf_name(self.raw.raw, bytes.as_mut_ptr().cast(), &mut size) };
        shim::check("asking for the own address", error)?;
        bytes.truncate(size);
        NodeAddress::new(self.provider.clone(), bytes)
    }

    /// Puts a peer into the address table.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an address of another provider or of this process, [`Error::Io`] if the provider refuses
    /// it.
    pub fn insert(&self, address: &NodeAddress) -> Result<u64> {
        if address.provider() != &self.provider {
            return Err(Error::Invalid(format!("{address} from {}", self.provider)));
        }
        if OPEN.lock().contains(address) {
            return Err(Error::Invalid(format!(
                "{address} is of this process: use rdma::loopback, or TCP"
            )));
        }
        let mut peer = 0;
        // Providers read as many bytes as their addresses have, whatever the length: it was checked where it can be.
        let mut bytes = [0u8; LONGEST];
        bytes[..address.bytes().len()].copy_from_slice(address.bytes());
        // SAFETY: more bytes than any provider's address has.
        let error = unsafe { shim::cf_insert(self.raw.raw, bytes.as_ptr().cast(), &mut peer) };
        shim::check(&format!("reaching {address}"), error)?;
        Ok(peer)
    }

    /// Takes a peer out of the address table.
    pub fn remove(&self, peer: u64) {
        // SAFETY: the table knows its numbers.
        unsafe { shim::cf_remove(self.raw.raw, peer) };
    }

    /// Registers memory for peers; what they have to say to reach it.
    ///
    /// The registration keeps the memory mapped and the endpoint open; the endpoint keeps what a provider may touch
    /// after that. A mapping gives no reference to its bytes: code that makes one has to know that no peer writes.
    ///
    /// # Errors
    /// [`Error::Io`] if the provider refuses the memory.
    pub fn register(
        &self,
        memory: &Arc<Mapping>,
        len: usize,
        access: Access,
        want: u64,
    ) -> Result<(Registration, Target)> {
        assert!(len <= memory.len(), "{len} bytes of memory to register");
        self.register_at(memory.base().as_ptr(), Some(Arc::clone(memory)), len, access, want)
    }

    /// `at` begins `memory`, or the slots.
    fn register_at(
        &self,
        at: *mut u8,
        memory: Option<Arc<Mapping>>,
        len: usize,
        access: Access,
        want: u64,
    ) -> Result<(Registration, Target)> {
        let (mut raw, mut target) = (ptr::null_mut(), Target::default());
        // SAFETY: `len` bytes that stay mapped until the registration has ended, and longer where the provider goes on:
        // the registration made below holds them, the slots are of what it holds open.
        let error =
            unsafe { shim::cf_register(self.raw.raw, at.cast(), len, access as i32, want, &mut raw, &mut target) };
        let guard = (!raw.is_null()).then(|| Registration {
            raw,
            memory,
            of: Some(Arc::clone(&self.raw)),
        });
        shim::check(&format!("registering {len} bytes with {}", self.provider), error)?;
        Ok((guard.expect("registered"), target))
    }

    /// A free slot.
    pub fn take(&self) -> Option<Slot> {
        self.free.lock().pop()
    }

    /// Gives a slot back.
    pub fn give(&self, slot: Slot) {
        assert!(
            self.tags[slot.0].load(Relaxed) == 0,
            "a slot that the provider has is not free"
        );
        let mut free = self.free.lock();
        assert!(free.len() < SLOTS, "a slot has one token");
        free.push(slot);
    }

    /// A slot's bytes.
    pub fn bytes<'a>(&'a self, slot: &'a mut Slot) -> &'a mut [u8] {
        // SAFETY: the token is the only one of its index, and not under way; the mapping lives as long as `self`.
        unsafe { core::slice::from_raw_parts_mut(self.at(slot), SLOT) }
    }

    fn at(&self, slot: &Slot) -> *mut u8 {
        // SAFETY: there are so many slots.
        unsafe { self.raw.slots.base().as_ptr().add(slot.0 * SLOT) }
    }

    fn local(&self) -> *mut RawMemory {
        self.local.as_ref().map_or(ptr::null_mut(), |r| r.raw)
    }

    /// Gives a slot to the provider if `start` says 0.
    fn hand_over(&self, slot: Slot, tag: u64, doing: &str, start: impl FnOnce(*mut u8, u64) -> i32) -> Started {
        let former = self.tags[slot.0].swap(tag + 1, Relaxed);
        assert!(former == 0, "a slot is handed to the provider once");
        let error = start(self.at(&slot), slot.0 as u64 + 1);
        if error == 0 {
            return Started::Yes;
        }
        self.tags[slot.0].store(0, Relaxed);
        if shim::is_again(error) {
            Started::Later(slot)
        } else {
            Started::No(slot, shim::error(doing, error))
        }
    }

    /// Starts something with the first `len` bytes of a slot. `more`: another start follows at once, and one doorbell
    /// does for both. `tag` comes back with the completion.
    pub fn start(&self, slot: Slot, len: usize, what: Start, target: &Target, tag: u64, more: bool) -> Started {
        assert!(len <= SLOT, "{len} bytes of a slot");
        let (op, more) = (what as i32, i32::from(more));
        self.hand_over(slot, tag, "starting a transfer", |at, context| {
            // SAFETY: the slot is the provider's until its completion; it is unmapped after the endpoint is closed.
            unsafe { shim::cf_start(self.raw.raw, op, at.cast(), len, self.local(), target, context, more) }
        })
    }

    /// Sends the first `len` bytes of a slot, which is free again afterwards if they are few, and under way otherwise.
    /// Of few bytes nothing is heard once they have been started, nor what became of them: for what is answered.
    pub fn send(&self, mut slot: Slot, len: usize, target: &Target, tag: u64, more: bool) -> Started {
        if !self.is_few(len) || more {
            return self.start(slot, len, Start::Send, target, tag, more);
        }
        let bytes = &self.bytes(&mut slot)[..len];
        // SAFETY: bytes that are ours, also afterwards.
        let error = unsafe { shim::cf_inject(self.raw.raw, bytes.as_ptr().cast(), len, target.peer) };
        match error {
            0 => {
                self.give(slot);
                Started::Yes
            }
            error if shim::is_again(error) => Started::Later(slot),
            error => Started::No(slot, shim::error("sending", error)),
        }
    }

    /// Whether peers may write to what is registered here, and this endpoint to theirs.
    pub fn writes(&self) -> bool {
        // SAFETY: an open endpoint.
        unsafe { shim::cf_writes(self.raw.raw) == 1 }
    }

    /// How bytes are written to a peer's memory before a message about them: where a message comes only if they are
    /// there it may follow at once, else when the writes are complete.
    ///
    /// `FI_ORDER_SAW` alone does not say that: it is about the order, and not about success. Over shared memory the
    /// peer fetches the bytes from the writer's process itself, and goes on to the message if they cannot be fetched
    /// any more. A card's reliable connection ends with the write that fails.
    pub fn ordered_write(&self) -> Start {
        // SAFETY: an open endpoint.
        let is_ordered = unsafe { shim::cf_orders_sends_after_writes(self.raw.raw) } == 1;
        match is_ordered && FAILS_TOGETHER.contains(&self.provider.name()) {
            true => Start::Put,
            false => Start::Write,
        }
    }

    /// Whether [`FabricEndpoint::send`] sends so many bytes without a completion, if no more follow.
    pub fn is_few(&self, len: usize) -> bool {
        len <= self.few
    }

    /// Lets a slot take the next message that comes.
    pub fn receive(&self, slot: Slot) -> Started {
        self.hand_over(slot, 0, "receiving", |at, context| {
            // SAFETY: as in `start`.
            unsafe { shim::cf_receive(self.raw.raw, at.cast(), SLOT, self.local(), context) }
        })
    }

    /// Lets everything go on, and reports what is complete. Never blocks.
    ///
    /// # Errors
    /// [`Error::Io`] if the completion queue is broken.
    pub fn poll(&self, mut report: impl FnMut(Complete)) -> Result<usize> {
        let mut done = [Done::default(); 32];
        // SAFETY: room for so many.
        let count = unsafe { shim::cf_poll(self.raw.raw, done.as_mut_ptr(), done.len() as i32) };
        let count = shim::check("reading completions", count)? as usize;
        for done in &done[..count] {
            if let Some(complete) = self.complete(done) {
                report(complete);
            }
        }
        Ok(count)
    }

    /// Believed only of a slot that is under way.
    fn complete(&self, done: &Done) -> Option<Complete> {
        let index = (done.context as usize).checked_sub(1).filter(|i| *i < SLOTS)?;
        let tag = self.tags[index].swap(0, Relaxed).checked_sub(1)?;
        Some(Complete {
            slot: Slot(index),
            tag,
            received: done.received != 0,
            result: match done.error {
                0 => Ok((done.length as usize).min(SLOT)),
                error => Err(error),
            },
        })
    }

    /// Sleeps until something may be complete, [`FabricEndpoint::wake`], or the time has passed.
    pub fn sleep(&self, at_most: Nanos) {
        // SAFETY: an open endpoint.
        if unsafe { shim::cf_has_fd(self.raw.raw) } == 1 {
            let milliseconds = (at_most.0 / 1_000_000).clamp(1, 1000) as i32;
            // SAFETY: an open endpoint.
            unsafe { shim::cf_wait(self.raw.raw, milliseconds) };
        } else {
            rt::sleep(at_most.min(NAP));
        }
    }

    /// Between two looks for completions, when there were none for `idle`: spins until `spin`, then sleeps for at most
    /// `longest`; for zero, another thread goes on.
    pub fn pause(&self, idle: Nanos, spin: Nanos, longest: Nanos) {
        // SAFETY: an open endpoint.
        let wakes = unsafe { shim::cf_has_fd(self.raw.raw) } == 1;
        if idle < spin && wakes {
            rt::relax();
        } else if longest == Nanos::ZERO || !wakes && idle < RESTLESS {
            rt::yield_now();
        } else {
            self.sleep(longest);
        }
    }

    /// Ends a sleep.
    pub fn wake(&self) {
        // SAFETY: an open endpoint.
        unsafe { shim::cf_wake(self.raw.raw) };
    }
}

/// Providers where no message comes behind a write that has failed.
const FAILS_TOGETHER: [&str; 1] = ["verbs;ofi_rxm"];

/// Bytes beyond which a copy more costs as much as a completion.
const MOST_INJECTED: usize = 256;
const _: () = assert!(MOST_INJECTED <= SLOT, "what is injected fits into a slot");

/// Endpoints of shared memory that this process has open. The provider lets two of one process use each other's memory
/// without a mapping of its own, also when the other is closed: not with us.
static OPEN: Mutex<Vec<NodeAddress>> = Mutex::new(Vec::new());

/// Where sleeping cannot be ended by what comes, it begins so late.
const RESTLESS: Nanos = Nanos::from_micros(100);

/// A sleep where nothing can be waited for.
const NAP: Nanos = Nanos::from_micros(50);

impl Drop for FabricEndpoint {
    fn drop(&mut self) {
        if let Some(name) = &self.open {
            OPEN.lock().retain(|n| n != name);
        }
    }
}

impl core::fmt::Debug for FabricEndpoint {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "libfabric endpoint of {}", self.provider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::available;
    use crate::options::own_name;

    /// shm keeps messages behind writes, and lets them pass when a write has failed: a reader would take old bytes for
    /// an answer.
    #[test]
    fn software_providers_answer_after_their_writes_are_complete() {
        if available().is_err() {
            return;
        }
        for provider in [Provider::tcp(), Provider::shm()] {
            let fabric_endpoint =
                FabricEndpoint::open(&provider, own_name(&provider).as_deref(), None).expect("opened");
            assert_eq!(fabric_endpoint.ordered_write(), Start::Write, "{provider}");
        }
    }
}
