//! A holder: asks for memory again and again, uses it, and lets go of it, or not.

use cenote_base::random::Random;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::coherence;
use cenote_fabric::message::Network;
use cenote_pool::holder::{GrantRequest, GrantedMemory};

use super::bytes::{Bytes, offset_in_range};
use super::label::Label;
use super::model::{Use, WORDS};
use super::role::{agent_host, agent_on, host_name};
use super::stage::{Stage, holder_name};
use crate::clock;

/// The body of a holder's process, on one of the hosts that share the device if there are any.
pub(super) fn run(stage: &Arc<Stage>, slot: usize, host: Option<usize>, mut draw: Random) {
    let network = stage.network_of(&holder_name(slot), host);
    while stage.take_turn() {
        let label = Label(draw.below(stage.grants.labels as u64) as usize);
        // One in a while names another host than its own.
        let lies = host.is_some() && draw.one_in(8);
        let named = host.map(|host| (host + usize::from(lies)) % stage.grants.hosts);
        match Opened::new(stage, &network, label, named) {
            Ok(opened) => {
                if !hold(stage, opened, &mut draw) {
                    return;
                }
            }
            // Other errors are noted as failures.
            Err(error) => stage.shared.count(&format!("openings refused: {}", kind(&error))),
        }
        rt::sleep(Nanos(draw.below(2 * stage.grants.lease.raw())));
    }
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Busy(_) => "busy",
        Error::Full(_) => "full",
        Error::Lost(_) | Error::Timeout(_) => "no answer",
        Error::Revoked(_) => "revoked",
        // The host that it has named does not see it, or has no agent.
        Error::Mismatch(_) => "host",
        Error::Io { kind, .. } if *kind == std::io::ErrorKind::NotFound => "freed",
        _ => "otherwise",
    }
}

/// A label's grant, opened and mapped.
pub(super) struct Opened {
    pub memory: GrantedMemory,
    pub mapped: Mapped,
    /// Set when it is taken away.
    revoked: Arc<AtomicBool>,
}

impl Opened {
    /// # Errors
    /// Those that may come: others are failures.
    pub fn new(stage: &Arc<Stage>, network: &Arc<dyn Network>, label: Label, host: Option<usize>) -> Result<Self> {
        let (asked, revoked) = (clock::now(), Arc::new(AtomicBool::new(false)));
        let (told, credentials) = (Arc::clone(&revoked), stage.credentials(label.tenant()));
        let on_revoked = Box::new(move |_: &Error| told.store(true, SeqCst));
        let on = stage.machine().host().and_then(agent_on);
        stage.machine().name_host(host.map(agent_host));
        let map = |memory: &GrantedMemory| Mapped::new(stage, Use::of(label, memory, asked, on), memory);
        let requested = GrantRequest {
            host: host.map(host_name),
            ..label.requested()
        };
        let opened = GrantedMemory::open_mapped(network, &credentials, requested, on_revoked, map);
        if let Err(error) = &opened
            && (kind(error) == "otherwise" || (kind(error) == "host" && host.is_none()))
        {
            stage.shared.fail(format!("{label:?} is opened: {error}"));
        }
        let (memory, mut mapped) = opened?;
        mapped.begin(&memory)?;
        Ok(Self {
            memory,
            mapped,
            revoked,
        })
    }
}

/// A grant's memory, mapped.
pub(super) struct Mapped {
    stage: Arc<Stage>,
    path: PathBuf,
    /// Until it is dropped.
    bytes: Option<Bytes>,
    user: Use,
    /// Whether it is used.
    has_begun: bool,
}

impl Mapped {
    fn new(stage: &Arc<Stage>, user: Use, memory: &GrantedMemory) -> Result<Self> {
        let path = memory.path();
        let bytes = match memory.range() {
            Some(range) => Bytes::of_range(stage, &path, range)?,
            None => Bytes::of_file(stage, &path)?,
        };
        Ok(Self {
            stage: Arc::clone(stage),
            path,
            bytes: Some(bytes),
            user,
            has_begun: false,
        })
    }

    /// It is used from here on.
    fn begin(&mut self, memory: &GrantedMemory) -> Result<()> {
        let (stage, user) = (Arc::clone(&self.stage), self.user);
        self.has_begun = true;
        self.judge(stage.model().begin(user, |process| stage.machine().is_running(process)));
        stage.shared.count("grants opened");
        stage.shared.step(format!("process {} uses {user:?}", user.process));
        match self.bytes() {
            Bytes::File(file) if memory.is_fresh() => file.set_len(memory.bytes()),
            _ => Ok(()),
        }
        .map_err(|error| Error::io(format!("using {}", self.path.display()), error))
    }

    fn judge(&self, judged: std::result::Result<(), String>) {
        if let Err(problem) = judged
            && !self.stage.shared.has_failed()
        {
            self.stage.shared.fail(problem);
        }
    }

    fn bytes(&self) -> &Bytes {
        self.bytes.as_ref().expect("until it is dropped")
    }

    /// # Errors
    /// Those of the simulated file.
    pub fn write(&self, word: usize, value: u64) -> std::io::Result<()> {
        let (stage, user) = (&self.stage, self.user);
        self.judge(stage.model().writes(user, word, value));
        self.bytes().write(word, value)?;
        self.judge(stage.model().wrote(user, word));
        Ok(())
    }

    /// # Errors
    /// Those of the simulated file.
    pub fn read(&self, word: usize) -> std::io::Result<()> {
        let found = self.bytes().read(word)?;
        let judged = self.stage.model().read(self.user, word, found);
        self.judge(judged);
        Ok(())
    }

    /// What was written to the word survives the loss of the host.
    fn flush(&self, word: usize) {
        if let Bytes::Range(memory) = self.bytes() {
            coherence::flush(memory, offset_in_range(word), 8);
            self.stage.model().flushed(self.user, word);
        }
    }

    /// # Errors
    /// Those of the simulated file.
    pub fn read_all(&self) -> std::io::Result<()> {
        (0..WORDS).try_for_each(|word| self.read(word))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.has_begun {
            self.stage.model().end(self.user.label);
        }
        // The lock goes last, as with a region.
        match self.user.range {
            Some(range) => self.stage.machine().unmap_range(range),
            None => self.stage.machine().unmap(&self.path),
        }
        self.bytes.take();
    }
}

/// Uses a grant for a while; whether the process goes on.
fn hold(stage: &Arc<Stage>, opened: Opened, draw: &mut Random) -> bool {
    let Opened {
        memory,
        mapped,
        revoked,
    } = opened;
    if let Err(error) = work(stage, &mapped, &revoked, draw) {
        stage.shared.fail(format!("grant {} is used: {error}", memory.id()));
    }
    match draw.below(8) {
        // The process ends in the middle of it.
        0 => {
            std::mem::forget(mapped);
            return false;
        }
        // The lease lapses, whether it is mapped or not.
        1 => drop((mapped, memory)),
        2 => drop((memory, mapped)),
        n => {
            drop(mapped);
            let_go(stage, memory, n < 5);
        }
    }
    true
}

/// Reads and writes, with pauses shorter and longer than a lease; until it is taken away, and a little longer.
fn work(stage: &Arc<Stage>, mapped: &Mapped, revoked: &AtomicBool, draw: &mut Random) -> std::io::Result<()> {
    mapped.read_all()?;
    let (mut left, lease) = (draw.below(30), stage.grants.lease.raw());
    while left > 0 && stage.take_turn() {
        let word = draw.below(WORDS as u64) as usize;
        match draw.one_in(2) {
            true => mapped.write(word, stage.new_value())?,
            false => mapped.read(word)?,
        }
        if draw.one_in(4) {
            mapped.flush(word);
        }
        let most = if draw.one_in(10) { 2 * lease } else { lease / 10 };
        rt::sleep(Nanos(draw.below(most)));
        if revoked.load(SeqCst) {
            left = left.min(4);
        }
        left -= 1;
    }
    Ok(())
}

/// Ends the lease in order.
pub(super) fn let_go(stage: &Stage, memory: GrantedMemory, gives_back: bool) {
    let grant = memory.id();
    if gives_back {
        stage.model().may_go(grant);
    }
    match memory.release(gives_back) {
        Ok(()) if gives_back => stage.model().is_freed(grant),
        Ok(()) => stage.shared.count("grants released"),
        Err(error) => stage.shared.count(&format!("releases that failed: {}", kind(&error))),
    }
}
