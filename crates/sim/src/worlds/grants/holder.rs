//! A holder: asks for memory again and again, uses it, and lets go of it, or not.

use cenote_base::random::Random;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cenote_base::rt::{self, Nanos, fs};
use cenote_base::{Error, Result};
use cenote_fabric::message::Network;
use cenote_pool::holder::GrantedMemory;

use super::label::Label;
use super::model::{Use, WORDS, offset};
use super::stage::{Stage, holder_name};
use crate::clock;

/// The body of a holder's process.
pub(super) fn run(stage: &Arc<Stage>, slot: usize, mut draw: Random) {
    let network = stage.network(&holder_name(slot));
    while stage.take_turn() {
        let label = Label(draw.below(stage.grants.labels as u64) as usize);
        match Opened::new(stage, &network, label) {
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
    pub fn new(stage: &Arc<Stage>, network: &Arc<dyn Network>, label: Label) -> Result<Self> {
        let (asked, revoked) = (clock::now(), Arc::new(AtomicBool::new(false)));
        let (told, credentials) = (Arc::clone(&revoked), stage.credentials(label.tenant()));
        let on_revoked = Box::new(move |_: &Error| told.store(true, SeqCst));
        let map = |memory: &GrantedMemory| Mapped::new(stage, Use::of(label, memory, asked), memory);
        let opened = GrantedMemory::open_mapped(network, &credentials, label.requested(), on_revoked, map);
        if let Err(error) = &opened
            && kind(error) == "otherwise"
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

/// A grant's file, mapped.
pub(super) struct Mapped {
    stage: Arc<Stage>,
    path: PathBuf,
    file: Option<fs::File>,
    user: Use,
    /// Whether it is used.
    has_begun: bool,
}

impl Mapped {
    /// As a region is: the file is locked, if it is to be, then mapped.
    fn new(stage: &Arc<Stage>, user: Use, memory: &GrantedMemory) -> Result<Self> {
        let path = memory.path();
        let failed = |error| Error::io(format!("mapping {}", path.display()), error);
        let file = fs::open(&path, fs::OpenOptions::WRITE).map_err(failed)?;
        if stage.grants.locks && !file.lock_exclusive_within(Nanos::from_millis(100)).map_err(failed)? {
            return Err(Error::Busy(format!("{} is in use by another process", path.display())));
        }
        stage.machine().map(&path);
        Ok(Self {
            stage: Arc::clone(stage),
            path,
            file: Some(file),
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
        match memory.is_fresh() {
            true => self.file().set_len(memory.bytes()),
            false => Ok(()),
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

    fn file(&self) -> &fs::File {
        self.file.as_ref().expect("until it is dropped")
    }

    /// # Errors
    /// Those of the simulated file.
    pub fn write(&self, word: usize, value: u64) -> std::io::Result<()> {
        let (stage, user) = (&self.stage, self.user);
        self.judge(stage.model().writes(user, word, value));
        self.file().write_at(&value.to_le_bytes(), offset(word))?;
        self.judge(stage.model().wrote(user, word));
        Ok(())
    }

    /// # Errors
    /// Those of the simulated file.
    pub fn read(&self, word: usize) -> std::io::Result<()> {
        let mut found = [0; 8];
        self.file().read_exact_at(&mut found, offset(word))?;
        let judged = self.stage.model().read(self.user, word, u64::from_le_bytes(found));
        self.judge(judged);
        Ok(())
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
        self.stage.machine().unmap(&self.path);
        self.file.take();
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
