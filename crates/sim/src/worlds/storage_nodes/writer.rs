//! A writer: a start of the database that takes it, changes it, reads it, until it is killed, or another has taken it.
//!
//! Faults excuse that no majority answers ([`Error::Timeout`]): it asks again, as a database does. They excuse no other
//! error, and no answer that is wrong.

use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_storage::nodes::{LogEnd, StorageNodes};
use cenote_storage_node::NodesClient;

use super::model::{ORIGIN, SPACES};
use super::stage::{NODES, Stage};
use super::views::Views;
use crate::clock;

/// Requests of a start that has the database no more, each of which has to be refused.
const REFUSED: u32 = 6;
/// Readers beside the writer.
const READERS: usize = 2;

/// The body of a writer's process.
pub(super) fn run(stage: &Arc<Stage>, host: usize, number: u64) {
    let nodes = Arc::new(stage.client(host, 0..NODES));
    let mut writer = Writer {
        stage,
        nodes,
        number,
        epoch: 0,
        end: LogEnd::at_origin(ORIGIN),
        draw: Random(rt::random()),
        controls: 0,
        snapshots: 0,
    };
    if writer.take().is_none() {
        return;
    }
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let (stage, nodes, epoch) = (Arc::clone(stage), Arc::clone(&writer.nodes), writer.epoch);
            rt::spawn("reader", move || read(&stage, host, &nodes, epoch))
        })
        .collect();
    if writer.work().is_none() {
        writer.is_refused();
    }
    for reader in readers {
        if let Err(panic) = reader.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

struct Writer<'s> {
    stage: &'s Arc<Stage>,
    nodes: Arc<NodesClient>,
    number: u64,
    epoch: u64,
    end: LogEnd,
    draw: Random,
    controls: u64,
    snapshots: u64,
}

/// What came of a call.
enum Told<T> {
    This(T),
    /// No majority answered; it may have been carried out.
    Unknown,
    /// Another start has the database, or the world is over.
    Over,
}

impl Writer<'_> {
    /// Takes the database, and makes it if there is none.
    fn take(&mut self) -> Option<()> {
        let taken = loop {
            if self.stage.is_over() {
                return None;
            }
            let begun = clock::now();
            let former = match self.told("asking who has the database", begun, self.nodes.owner()) {
                Told::This(owner) => owner.epoch,
                Told::Unknown => continue,
                Told::Over => return None,
            };
            self.stage.model().begin_take(former);
            let begun = clock::now();
            match self.nodes.take(former, self.number.to_string().as_bytes()) {
                Err(Error::Busy(_)) => self.stage.shared.count("takes that another was faster in"),
                taken => match self.told("taking the database", begun, taken) {
                    Told::This(taken) => {
                        self.epoch = former + 1;
                        break taken;
                    }
                    Told::Unknown => {}
                    Told::Over => return None,
                },
            }
        };
        if self.stage.model().is_late(self.epoch) {
            self.stage.shared.count("takes that were heard of too late");
            return None;
        }
        self.stage.shared.befalls("takes of the database");
        self.stage.shared.step(format!(
            "writer {} is start {}: {:?}",
            self.number, self.epoch, taken.log
        ));
        let wrong = self.stage.model().took(self.epoch, &taken);
        self.wrong(wrong);
        match taken.control {
            Some(_) => self.end = taken.log,
            None => self.begin()?,
        }
        self.list_snapshots()
    }

    fn begin(&mut self) -> Option<()> {
        let control = self.new_control();
        self.stage.model().begin_control(self.epoch, &control);
        let mut was_asked = false;
        loop {
            let begun = clock::now();
            match self.nodes.begin(&control, ORIGIN) {
                // The first try was carried out.
                Err(Error::Invalid(_)) if was_asked => break,
                answer => match self.told("making the database", begun, answer) {
                    Told::This(()) => break,
                    Told::Unknown => was_asked = true,
                    Told::Over => return None,
                },
            }
        }
        let wrong = self.stage.model().end_control(self.epoch, &control);
        self.wrong(wrong);
        Some(())
    }

    /// Changes the database; `None`: it is another's, or the world is over.
    fn work(&mut self) -> Option<()> {
        while !self.stage.is_over() {
            let has_spaces = self.stage.model().has_spaces();
            match self.draw.below(20) {
                _ if !has_spaces => self.change_spaces()?,
                0 => self.change_spaces()?,
                1 => self.set_control()?,
                2 => self.check()?,
                3 => self.read_log(),
                4 | 5 => self.change_snapshots()?,
                _ => self.append()?,
            }
            self.stage.count_operation();
            let rests = match self.stage.is_whole() {
                true => 300_000,
                false => self.draw.pick(&[0, 1_000, 20_000]),
            };
            rt::sleep(Nanos::from_micros(self.draw.below(rests + 1)));
        }
        Some(())
    }

    fn append(&mut self) -> Option<()> {
        while self.stage.lags(self.end.end) {
            if self.stage.is_over() {
                return None;
            }
            rt::sleep(Nanos::from_millis(10));
        }
        let long = self.stage.has_pieces && self.draw.one_in(20);
        let made = self
            .stage
            .model()
            .begin_append(self.epoch, self.end, long, &mut self.draw);
        let Some((bytes, end)) = made else { return Some(()) };
        self.stage.shared.add("appends of several pieces", u64::from(long));
        let nodes = Arc::clone(&self.nodes);
        let at = self.end.end;
        self.until_told("an append", || nodes.append(at, &bytes, end))?;
        self.stage.shared.count("appends");
        self.stage.shared.add("bytes appended", bytes.len() as u64);
        self.end = end;
        let wrong = self.stage.model().end_append(self.epoch, end.end);
        self.wrong(wrong);
        Some(())
    }

    fn new_control(&mut self) -> Vec<u8> {
        self.controls += 1;
        format!("{} {}", self.number, self.controls).into_bytes()
    }

    fn set_control(&mut self) -> Option<()> {
        let (nodes, control) = (Arc::clone(&self.nodes), self.new_control());
        self.stage.model().begin_control(self.epoch, &control);
        self.until_told("a control record", || nodes.set_control(&control))?;
        let wrong = self.stage.model().end_control(self.epoch, &control);
        self.wrong(wrong);
        Some(())
    }

    /// Makes a space, or drops one. One that is not answered is carried out before the next command in turn.
    fn change_spaces(&mut self) -> Option<()> {
        let (change, was_current) = {
            let mut model = self.stage.model();
            let change = model.any_space(SPACES, &mut self.draw);
            let is_kept = !change.1 && model.is_in_snapshot(change.0);
            self.stage
                .shared
                .add("spaces dropped that a snapshot has", is_kept.into());
            model.begin_space(self.epoch, change);
            (change, model.is_current(self.epoch))
        };
        let begun = clock::now();
        let answer = match change {
            (space, true) => self.nodes.make_space(space),
            (space, false) => self.nodes.drop_space(space),
        };
        match self.told("a change of spaces", begun, answer) {
            Told::This(()) => {}
            Told::Unknown => self.set_control()?,
            Told::Over => return None,
        }
        self.stage.shared.count("spaces made or dropped");
        let wrong = self.stage.model().end_space(self.epoch, change, was_current);
        self.wrong(wrong);
        Some(())
    }

    /// Makes a snapshot, drops one, or asks which there are.
    fn change_snapshots(&mut self) -> Option<()> {
        match self.draw.below(5) {
            0 => self.list_snapshots(),
            1 => self.drop_snapshot(),
            _ => self.make_snapshot(),
        }
    }

    fn make_snapshot(&mut self) -> Option<()> {
        self.snapshots += 1;
        let name = format!("{} {}", self.number, self.snapshots);
        if !self.stage.model().begin_snapshot(self.epoch, &name) {
            return self.drop_snapshot();
        }
        let begun = clock::now();
        match self.told("a snapshot", begun, self.nodes.make_snapshot(&name, begun.0)) {
            Told::This(found) => {
                self.stage.shared.count("snapshots made");
                self.stage
                    .shared
                    .step(format!("snapshot {name} is {} as of {}", found.number, found.end));
                let wrong = self.stage.model().end_snapshot(self.epoch, &found);
                self.wrong(wrong);
                Some(())
            }
            // It may be there, or come yet.
            Told::Unknown => self.list_snapshots(),
            Told::Over => None,
        }
    }

    fn list_snapshots(&mut self) -> Option<()> {
        let before = self.stage.model().snapshots().before();
        let nodes = Arc::clone(&self.nodes);
        let found = self.until_told("the snapshots", || nodes.snapshots())?;
        self.stage.shared.count("looks at which snapshots there are");
        let wrong = self.stage.model().listed_snapshots(&before, &found);
        self.wrong(wrong);
        Some(())
    }

    fn drop_snapshot(&mut self) -> Option<()> {
        let drawn = self.stage.model().snapshots().begin_leaving(&mut self.draw);
        let Some(name) = drawn else { return Some(()) };
        let mut was_asked = false;
        loop {
            let begun = clock::now();
            match self.nodes.drop_snapshot(&name, false) {
                // The first try was carried out, or another start's.
                Err(Error::Invalid(_)) if was_asked || self.stage.model().snapshots().has_leavers(&name) => break,
                answer => match self.told("dropping a snapshot", begun, answer) {
                    Told::This(()) => break,
                    Told::Unknown => was_asked = true,
                    Told::Over => return None,
                },
            }
        }
        self.stage.shared.count("snapshots dropped");
        self.stage.shared.step(format!("snapshot {name} is dropped"));
        self.stage.model().snapshots().end_leaving(&name);
        Some(())
    }

    fn check(&mut self) -> Option<()> {
        let was_current = self.stage.model().is_current(self.epoch);
        let nodes = Arc::clone(&self.nodes);
        self.until_told("a check", || nodes.check())?;
        if !was_current {
            self.stage
                .fail(format!("start {} is told that it has the database", self.epoch));
        }
        Some(())
    }

    fn read_log(&mut self) {
        let drawn = self.stage.model().any_log(self.epoch, &mut self.draw);
        let Some((at, bytes)) = drawn else { return };
        let mut found = vec![0; bytes.len()];
        match self.nodes.read_log(at, &mut found) {
            Ok(n) if found[..n] == bytes[..n] => self.stage.shared.count("looks at the log"),
            Ok(_) if !self.stage.model().is_current(self.epoch) => {}
            Ok(_) => self.stage.fail(format!("the log at {at} is not what was appended")),
            // A checkpoint of every node is behind it.
            Err(_) => self.stage.shared.count("looks at the log that found it gone"),
        }
    }

    /// The database is another's: nothing is done for this one any more.
    fn is_refused(&mut self) {
        for _ in 0..REFUSED {
            if self.stage.is_over() || self.stage.model().is_current(self.epoch) {
                return;
            }
            let begun = clock::now();
            let made = self
                .stage
                .model()
                .begin_append(self.epoch, self.end, false, &mut self.draw);
            let answer = match (self.draw.below(4), made) {
                (0, _) => self.nodes.set_control(b"late"),
                (1, _) => self.nodes.make_space(7 + SPACES),
                (_, Some((bytes, end))) => self.nodes.append(self.end.end, &bytes, end),
                (_, None) => self.nodes.check(),
            };
            match answer {
                Ok(()) => self
                    .stage
                    .fail(format!("start {} changes a database that is another's", self.epoch)),
                Err(Error::Revoked(_)) => self.stage.shared.count("requests of former starts refused"),
                Err(error) => _ = self.told::<()>("a request of a former start", begun, Err(error)),
            }
            rt::sleep(Nanos(self.draw.below(20_000_000)));
        }
    }

    // ---- what is told ----

    fn wrong(&self, wrong: impl IntoIterator<Item = String>) {
        wrong.into_iter().for_each(|wrong| self.stage.fail(wrong));
    }

    fn until_told<T>(&self, what: &str, call: impl Fn() -> Result<T>) -> Option<T> {
        loop {
            let begun = clock::now();
            match self.told(what, begun, call()) {
                Told::This(found) => return Some(found),
                Told::Unknown => {}
                Told::Over => return None,
            }
        }
    }

    fn told<T>(&self, what: &str, begun: Nanos, answer: Result<T>) -> Told<T> {
        match answer {
            Ok(found) => Told::This(found),
            Err(Error::Revoked(_)) => {
                let wrong = self.stage.model().was_revoked(self.epoch);
                self.wrong(wrong);
                self.stage.shared.count("starts that were revoked");
                Told::Over
            }
            Err(Error::Timeout(_)) if self.stage.is_over() => Told::Over,
            Err(Error::Timeout(_)) if self.stage.is_excused(begun) => {
                self.stage.shared.count("calls without an answer");
                Told::Unknown
            }
            Err(error) => {
                self.stage.fail(format!("{what}, by start {}: {error}", self.epoch));
                Told::Over
            }
        }
    }
}

/// The body of a reader: pages as of what is acknowledged, while they change, and pages of snapshots.
fn read(stage: &Stage, host: usize, nodes: &NodesClient, epoch: u64) {
    let mut draw = Random(rt::random());
    let views = Views::new(stage, host);
    while !stage.is_over() {
        rt::sleep(Nanos::from_micros(draw.below(40_000)));
        if draw.one_in(3) {
            views.look(nodes, &mut draw);
        }
        let wanted = stage.model().any_pages(epoch, &mut draw);
        let Some(wanted) = wanted else {
            if !stage.model().is_current(epoch) {
                return;
            }
            continue;
        };
        let begun = clock::now();
        let answers = nodes.read_pages(&wanted.request());
        for (n, answer) in answers.iter().enumerate() {
            if matches!(answer, Err(Error::Timeout(_))) && stage.is_excused(begun) {
                stage.shared.count("reads without an answer");
                continue;
            }
            let wrong = stage.model().saw(&wanted, n, answer);
            wrong.into_iter().for_each(|wrong| stage.fail(wrong));
            stage.shared.count("pages read");
        }
    }
}
