//! `cenote run --role auto`: a server that has the database, or reads what another one changes, as things go.
//!
//! ```text
//!   begins ──▶ reader ── no server has it: takes it, keeps its frames ──▶ writer
//!     ▲          ▲                                                          │
//!     │          └───────────── another one was named: hands over ──────────┤
//!     └──── anew, as a process ── another one has it, or its memory fails ──┘
//!
//!   reader, writer ── it is not needed ──▶ paused ── clients wait, or one connects ──▶ begins
//! ```
//!
//! The port stays bound, in a pause, too. Its sessions end before it refuses connections: an address that refuses has
//! none.

use super::Failure;
use super::client::{publish_address, withdraw_address};
use super::say;
use super::serving::{
    bind_local, describe_memory, end_at_second_signal, name_orphans, report_recovery, say_connect, serve,
};
use crate::archiving::ArchivingThread;
use crate::config::Settings;
use crate::metering::{Activity, Meter};
use crate::server::Server;
use crate::server::auth::Passwords;
use crate::{database, log, membership};
use cenote_base::rt::Nanos;
use cenote_cluster::decide::{may_begin_as_writer, takes_at_once};
use cenote_cluster::lease::SILENCE;
use cenote_cluster::pausing::all_are_needed;
use cenote_cluster::{Claimed, Decision, Member};
use cenote_engine::{Engine, Promotion};
use cenote_storage_node::{NodesClient, ServerRole};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks whether a signal has come.
const TURN: Nanos = Nanos::from_millis(20);
/// How long statements have that run when another server is to have the database.
const GRACE: Duration = Duration::from_millis(100);
/// How long a reader that is about to pause waits for statements and transactions to end.
const PAUSE_GRACE: Duration = Duration::from_secs(5);
/// How long sessions have to end.
const TIMEOUT: Duration = Duration::from_secs(2);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a start waits for storage nodes, or for a database that is being made.
const BEGIN: Duration = Duration::from_secs(60);
/// Before something is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;

/// What stays while the server changes.
struct Auto {
    settings: Settings,
    listener: TcpListener,
    address: SocketAddr,
    member: Member,
    meter: Option<Meter>,
}

/// What the server is now.
struct Standing {
    engine: Arc<Engine>,
    role: ServerRole,
    /// Of its start, where it has the database.
    epoch: u64,
    /// What archives it then.
    archiving: Option<ArchivingThread>,
}

/// A database that was taken from a server that was silent.
struct Took {
    epoch: u64,
    claimed: Claimed,
}

/// What it does next.
enum Next {
    Stop(i32),
    Promoted(Box<Promotion>, Took),
    HandOver,
    Pause,
    /// As a process, for this reason.
    Anew(String),
}

/// Runs the server until it is told to stop.
///
/// # Errors
/// No storage node answers for a minute; those of opening the database.
pub fn run(settings: Settings, listener: TcpListener, started: Instant) -> Result<ExitCode, Failure> {
    let address = listener.local_addr()?;
    if settings.listen.ends_with(":0") {
        return Err(
            "role is auto: name the port with --listen, at which it comes back each time that it changes".into(),
        );
    }
    let Some(member) = membership::join(&settings, address)? else {
        return Err("role is auto: say where the storage nodes are, with --storage".into());
    };
    say!("Cenote {} on {}", env!("CARGO_PKG_VERSION"), settings.data.display());
    let auto = Auto {
        meter: Meter::begin(&settings)?,
        settings,
        listener,
        address,
        member,
    };
    // A signal ends the process at once where nothing is served yet.
    let Some(standing) = auto.begin(|| false)? else {
        return Ok(ExitCode::SUCCESS);
    };
    auto.introduce(&standing);
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    database::end_at_signals()?;
    let code = auto.serve_on(standing, &mut signals, started)?;
    auto.meter.iter().for_each(Meter::end);
    withdraw_address(&auto.settings.data);
    Ok(code)
}

impl Auto {
    /// A reader of the database; or, where there is none, or none that can be read and no server that has it, the writer.
    /// `None`: it is to end.
    fn begin(&self, mut is_to_end: impl FnMut() -> bool) -> Result<Option<Standing>, Failure> {
        let (until, mut said) = (Instant::now() + BEGIN, String::new());
        while !is_to_end() {
            let is_late = Instant::now() >= until;
            match self.try_to_begin() {
                Ok(Some(standing)) => return Ok(Some(standing)),
                Ok(None) if is_late => return Err("another server makes the database, and has not ended".into()),
                Ok(None) => {}
                Err(error) if is_late || is_final(&error) => return Err(error),
                Err(error) => {
                    let text = error.to_string();
                    if said != text {
                        log::info!("not yet: {text}");
                        said = text;
                    }
                }
            }
            std::thread::sleep(AGAIN);
        }
        Ok(None)
    }

    fn try_to_begin(&self) -> Result<Option<Standing>, Failure> {
        let seen = self.member.ask()?;
        if seen.has_database && !takes_at_once(self.member.id(), &seen) {
            match database::open_reader(&self.settings) {
                Ok(engine) => return Ok(Some(reader(engine))),
                Err(error) if seen.writer().is_some() => return Err(error.into()),
                Err(_) if seen.listens_for < SILENCE => return Ok(None),
                Err(_) => {}
            }
        }
        if !may_begin_as_writer(&seen) {
            // That server makes the database, or is about to say that it has it.
            return Ok(None);
        }
        let client = self.client()?;
        let claimed = self.member.claim(seen.epoch, SILENCE);
        let claimed = claimed.map(Some).or_else(|error| match seen.epoch {
            // No server ever had it.
            0 => Ok(None),
            _ => Err(error),
        })?;
        let options = database::writer_after(&self.settings, &client, seen.epoch)?;
        self.say_start_of(&client);
        // A database that was taken and cannot be opened is another server's to take.
        let engine = Engine::open(options).inspect_err(|_| self.member.opens(Arc::new(|| 0)))?;
        claimed.into_iter().for_each(|claimed| self.member.outlast(claimed));
        let epoch = client.epoch();
        Ok(Some(self.writer(engine, epoch)?))
    }

    /// Others see at once that it has the database, and that it opens it.
    fn say_start_of(&self, client: &Arc<NodesClient>) {
        let client = Arc::clone(client);
        self.member.opens(Arc::new(move || client.epoch()));
    }

    fn client(&self) -> Result<Arc<NodesClient>, Failure> {
        match &self.settings.storage {
            Some(storage) => Ok(Arc::new(database::client(storage)?)),
            None => Err("there are no storage nodes".into()),
        }
    }

    fn introduce(&self, standing: &Standing) {
        say!("memory     {}", describe_memory(&self.settings));
        if let Some(storage) = &self.settings.storage {
            say!(
                "storage    log and pages on the storage nodes {}",
                storage.nodes.join(", ")
            );
        }
        say!("role       auto: {}", standing.describe());
        report_recovery(&standing.engine.recovery_report());
    }

    fn serve_on(&self, mut standing: Standing, signals: &mut Signals, started: Instant) -> Result<ExitCode, Failure> {
        let mut is_first = true;
        loop {
            let mut server = self.serve(&standing)?;
            if is_first {
                publish_address(&self.settings.data, self.address)?;
                say_connect(&self.settings, self.address);
                say!("ready in {} ms on {}", started.elapsed().as_millis(), self.address);
                name_orphans();
                is_first = false;
            }
            standing = match self.wait(&standing, &server, signals) {
                Next::Stop(signal) => return Ok(self.stop(&mut standing, &mut server, signal)),
                Next::Promoted(promotion, took) => self.become_writer(standing, server, *promotion, took)?,
                next @ (Next::HandOver | Next::Pause) => {
                    let is_pause = matches!(next, Next::Pause);
                    match self.leave(standing, server, is_pause, signals)? {
                        Some(standing) => standing,
                        None => return Ok(ExitCode::SUCCESS),
                    }
                }
                Next::Anew(why) => {
                    self.restart(&why);
                    return Ok(ExitCode::FAILURE);
                }
            };
        }
    }

    fn writer(&self, engine: Arc<Engine>, epoch: u64) -> Result<Standing, Failure> {
        Ok(Standing {
            archiving: ArchivingThread::begin(self.settings.archive.as_ref(), &engine)?,
            engine,
            role: ServerRole::Writer,
            epoch,
        })
    }

    fn serve(&self, standing: &Standing) -> Result<Server, Failure> {
        let passwords = self
            .settings
            .password_file
            .as_deref()
            .map(Passwords::read)
            .transpose()?;
        let local = bind_local(&self.settings, self.address.port())?;
        let lease = (standing.role == ServerRole::Writer).then(|| self.member.lease());
        // Before anything is answered: as the writer, its lease begins with this.
        let said = self.member.become_role(standing.role, standing.epoch);
        said.unwrap_or_else(|error| log::warn!("the storage nodes do not hear of this server: {error}"));
        let listener = self.listener.try_clone()?;
        let engine = standing.engine.clone();
        let archiving = standing.archiving.as_ref().map(|thread| thread.archiving.clone());
        let server = serve(
            &self.settings,
            engine,
            (listener, local),
            passwords,
            None,
            lease,
            archiving,
        )?;
        self.member.look(membership::look(&standing.engine, &server.registry));
        self.meter.iter().for_each(|meter| meter.look(&standing.engine));
        self.count(match standing.role {
            ServerRole::Writer => Activity::Writer,
            _ => Activity::Reader,
        });
        Ok(server)
    }

    /// Waits for what changes it. The database is taken here, while the reader goes on: another may be faster.
    fn wait(&self, standing: &Standing, server: &Server, signals: &mut Signals) -> Next {
        loop {
            if let Some(signal) = signals.pending().next() {
                return Next::Stop(signal);
            }
            if let Some(why) = standing.failure() {
                return Next::Anew(why);
            }
            match self.member.wait(TURN) {
                Decision::Take { after, silent } => match self.take(standing, after, silent) {
                    Ok((promotion, taken)) => return Next::Promoted(Box::new(promotion), taken),
                    Err(error) => {
                        log::info!("it does not take the database: {error}");
                        std::thread::sleep(AGAIN);
                    }
                },
                Decision::HandOver => return Next::HandOver,
                Decision::Pause if self.drains(standing.role, server) => return Next::Pause,
                // Clients need it.
                Decision::Pause => std::thread::sleep(Duration::from_nanos(TURN.0)),
                Decision::Deposed { by } => return Next::Anew(format!("start {by} has the database")),
                Decision::Stay | Decision::Probe(_) | Decision::Resume => {}
            }
        }
    }

    /// Lets no client in any more, once none would see it; false: one would still. Proxies send a reader nothing new
    /// while it is waited for, and no switch names it.
    fn drains(&self, role: ServerRole, server: &Server) -> bool {
        if role != ServerRole::Reader {
            return server.close_if_unused(false);
        }
        let _ = self.member.become_role(ServerRole::Opening, 0);
        let until = Instant::now() + PAUSE_GRACE;
        let is_needed = || self.member.seen().is_some_and(|seen| all_are_needed(&seen));
        while Instant::now() < until && !is_needed() {
            if server.close_if_unused(true) {
                return true;
            }
            std::thread::sleep(Duration::from_nanos(TURN.0));
        }
        let _ = self.member.become_role(ServerRole::Reader, 0);
        false
    }

    fn take(&self, standing: &Standing, after: u64, silent: Nanos) -> Result<(Promotion, Took), Failure> {
        let client = self.client()?;
        let options = database::writer_after(&self.settings, &client, after)?;
        let claimed = self.member.claim(after, silent)?;
        self.say_start_of(&client);
        let promoted = standing.engine.promote(options);
        let promotion = promoted.inspect_err(|_| self.member.opens(Arc::new(|| 0)))?;
        let epoch = client.epoch();
        Ok((promotion, Took { epoch, claimed }))
    }

    fn become_writer(
        &self,
        standing: Standing,
        mut server: Server,
        promotion: Promotion,
        Took { epoch, claimed }: Took,
    ) -> Result<Standing, Failure> {
        let begun = Instant::now();
        // Others see that it is under way; it is said again.
        let _ = self.member.become_role(ServerRole::Opening, epoch);
        self.count(Activity::None);
        let left = server.stop(TIMEOUT);
        drop(server);
        let stopped = begun.elapsed().as_millis();
        self.listen()?;
        if left > 0 {
            log::warn!("{left} sessions did not end: its memory is left to them");
        }
        let engine = promotion.open(standing.engine).inspect_err(|error| {
            self.restart(&format!("the database was taken and cannot be opened: {error}"));
        })?;
        self.member.outlast(claimed);
        let report = engine.recovery_report();
        log::info!(
            "this server has the database now, start {epoch}: promoted in {} ms, {} frames kept; \
             its sessions ended in {stopped} ms",
            begun.elapsed().as_millis(),
            report.frames_kept
        );
        report.notes.iter().for_each(|note| log::info!("promotion: {note}"));
        self.writer(engine, epoch)
    }

    /// Leaves the database in order, if it has it. Then it begins again: at once, or behind a pause. `None`: it is to
    /// end.
    fn leave(
        &self,
        mut standing: Standing,
        mut server: Server,
        is_pause: bool,
        signals: &mut Signals,
    ) -> Result<Option<Standing>, Failure> {
        log::info!(
            "{}",
            match is_pause {
                true => "this server is not needed: it pauses",
                false => "another server is to have the database: handing over",
            }
        );
        if !is_pause {
            server.wait_for_blocks();
        }
        let begun = Instant::now();
        self.count(Activity::None);
        standing.archiving.iter().for_each(ArchivingThread::close);
        let left = server.hand_over(GRACE, TIMEOUT);
        drop(server);
        self.listen()?;
        if left > 0 {
            self.restart(&format!("{left} sessions did not end"));
        }
        // What a former server did not archive the next one does: it need not wait.
        let mut is_archived = !is_pause || standing.end_archiving();
        if let Err(error) = standing.engine.shutdown() {
            self.restart(&format!("the database was not closed in order: {error}"));
        }
        let epoch = standing.epoch;
        let _ = self.member.become_role(ServerRole::Gone, epoch);
        log::info!("the database was left in {} ms", begun.elapsed().as_millis());
        is_archived &= standing.end_archiving();
        if !is_archived {
            // It has the memory until the archive answers.
            self.restart("the archive does not answer");
        }
        drop(standing);
        if is_pause && !self.pause(epoch, signals) {
            return Ok(None);
        }
        let begun = Instant::now();
        self.member.opens(Arc::new(|| 0));
        let _ = self.member.become_role(ServerRole::Opening, 0);
        let standing = self.begin_again(is_pause, signals)?;
        if let (Some(standing), true) = (&standing, is_pause) {
            let ms = begun.elapsed().as_millis();
            log::info!("this server serves again, after {ms} ms: {}", standing.describe());
        }
        Ok(standing)
    }

    /// As `begin`. One that was paused is needed when its nodes are back, too.
    fn begin_again(&self, was_paused: bool, signals: &mut Signals) -> Result<Option<Standing>, Failure> {
        loop {
            match self.begin(|| signals.pending().next().is_some()) {
                Err(error) if was_paused && !is_final(&error) => log::warn!("it cannot serve yet: {error}"),
                begun => return begun,
            }
        }
    }

    /// Waits, with no memory for pages, until clients need this server; false: it is to end. `epoch`: of the start with
    /// which it had the database, or zero.
    fn pause(&self, epoch: u64, signals: &mut Signals) -> bool {
        // It is said again.
        let _ = self.member.become_role(ServerRole::Paused, epoch);
        while signals.pending().next().is_none() {
            let keeps_shared = epoch > 0 && self.member.seen().is_some_and(|seen| seen.epoch == epoch);
            self.count(Activity::Paused { keeps_shared });
            if self.has_client() || self.member.wait(TURN) == Decision::Resume {
                return true;
            }
        }
        false
    }

    /// Whether a client has connected that no server has accepted yet.
    fn has_client(&self) -> bool {
        let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// As a process, with what it has used counted.
    fn restart(&self, why: &str) {
        self.meter.iter().for_each(Meter::end);
        database::restart(why);
    }

    fn count(&self, activity: Activity) {
        self.meter.iter().for_each(|meter| meter.is_now(activity));
    }

    /// Clients wait in the backlog from here on. A server that stops ends what listens.
    fn listen(&self) -> Result<(), Failure> {
        Ok(rustix::net::listen(&self.listener, BACKLOG)?)
    }

    fn stop(&self, standing: &mut Standing, server: &mut Server, signal: i32) -> ExitCode {
        let name = if signal == SIGINT { "SIGINT" } else { "SIGTERM" };
        log::info!("{name}: shutting down");
        database::end_for_good();
        end_at_second_signal();
        server.wait_for_blocks();
        let begun = Instant::now();
        standing.archiving.iter().for_each(ArchivingThread::close);
        let left = server.stop(STOP_TIMEOUT);
        if left > 0 {
            log::warn!("{left} sessions did not end: stopping as if killed");
            return ExitCode::FAILURE;
        }
        standing.end_archiving();
        if let Err(error) = standing.engine.shutdown() {
            log::error!("the database was not closed in order: {error}; the next start recovers");
            return ExitCode::FAILURE;
        }
        // Else it is found silent.
        let _ = self.member.become_role(ServerRole::Gone, standing.epoch);
        log::info!("stopped in {} ms", begun.elapsed().as_millis());
        ExitCode::SUCCESS
    }
}

impl Standing {
    /// Why it serves nothing any more, if so.
    fn failure(&self) -> Option<String> {
        match self.role {
            ServerRole::Writer => self.engine.log_failure(),
            _ => self.engine.check_following().err().map(|error| error.to_string()),
        }
    }

    /// Whether what archived it has ended.
    fn end_archiving(&mut self) -> bool {
        self.archiving.as_mut().is_none_or(ArchivingThread::end)
    }

    fn describe(&self) -> String {
        match self.role {
            ServerRole::Writer => format!("it has the database, as start {}", self.epoch),
            _ => "it reads what another server changes, and takes the database when none has it".into(),
        }
    }
}

/// Whether it will be the same the next time.
fn is_final(error: &Failure) -> bool {
    use cenote_base::Error::{Invalid, Mismatch};
    matches!(error.downcast_ref(), Some(Mismatch(_) | Invalid(_)))
}

fn reader(engine: Arc<Engine>) -> Standing {
    Standing {
        engine,
        role: ServerRole::Reader,
        epoch: 0,
        archiving: None,
    }
}
