//! The home of lines: their bytes, and the pods that have them.

use super::super::rig::{LOCAL, Rig};
use super::super::store::{Layout, Place};
use super::super::swap::fill_lane;
use super::wire::{self, Ask, ToCache, ToHome};
use super::{LINE, Ways};
use cenote_base::rt::{self, Condvar, HashMap, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::profile;
use cenote_fabric::rdma::Key;
use cenote_fabric::rdma::call::{Answer, Call, CallerId, Serve};
use cenote_sim::rdma::MemoryNode;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Threads of a home that wait for caches.
const WORKERS: usize = 4;

/// See the module above.
pub struct Home {
    layout: Layout,
    node: MemoryNode,
    key: Key,
    caches: Ways,
    /// Reading or writing a line of the node's own memory.
    copy: Nanos,
    message: Nanos,
    grant_table: Mutex<GrantTable>,
    more: Condvar,
}

#[derive(Default)]
struct GrantTable {
    entries: HashMap<u64, Entry>,
    jobs: VecDeque<Job>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Have {
    #[default]
    Nobody,
    Shared(BTreeSet<usize>),
    Modified(usize),
}

#[derive(Default)]
struct Entry {
    have: Have,
    /// The last grant's number.
    grant: u64,
    busy: bool,
    waiting: VecDeque<Asked>,
}

struct Asked {
    ask: Ask,
    pod: usize,
    answer: Answer,
}

/// What has to be taken from caches before a request can be granted.
struct Job {
    line: u64,
    asked: Asked,
    from: Vec<usize>,
    tell: ToCache,
}

impl Home {
    /// With the lane's memory as it is before the first write.
    pub fn new(rig: &Rig, lane: usize) -> Self {
        let layout = rig.shape.layout;
        rig.register(lane, layout.lane_bytes(), |bytes| fill_lane(layout, lane, bytes));
        let memory = profile::named(LOCAL).expect("a built-in profile");
        Self {
            layout,
            node: rig.nodes[lane].clone(),
            key: rig.remote(lane).key,
            caches: Ways::caches(rig, layout.pod(lane)),
            copy: Nanos(memory.read_time(LINE) as u64),
            message: rig.costs.message,
            grant_table: Mutex::default(),
            more: Condvar::default(),
        }
    }

    /// Starts the threads that wait for caches.
    pub fn start_workers(home: &Arc<Self>) {
        for _ in 0..WORKERS {
            let home = Arc::clone(home);
            rt::spawn("home worker", move || {
                loop {
                    let job = home.next_job();
                    home.work(job);
                }
            });
        }
    }

    fn next_job(&self) -> Job {
        let mut grant_table = self.grant_table.lock();
        loop {
            match grant_table.jobs.pop_front() {
                Some(job) => return job,
                None => grant_table = self.more.wait(grant_table),
            }
        }
    }

    fn range(&self, line: u64) -> core::ops::Range<usize> {
        let Place { at, .. } = self.layout.place(line * LINE);
        at as usize..(at + LINE) as usize
    }

    fn load(&self, line: u64) -> Vec<u8> {
        rt::spend(self.copy);
        let range = self.range(line);
        self.node
            .inspect(self.key, |bytes| bytes[range].to_vec())
            .unwrap_or_default()
    }

    /// What comes with a message that was asked for is copied; what a cache has sent by itself its card has put there.
    fn store(&self, line: u64, from: &[u8]) {
        let range = self.range(line);
        self.node.inspect(self.key, |bytes| bytes[range].copy_from_slice(from));
    }

    /// Grants it, or finds out what has to be done before.
    fn take_up(&self, grant_table: &mut GrantTable, line: u64, asked: Asked) {
        let entry = grant_table.entries.entry(line).or_default();
        let (from, tell) = match &entry.have {
            Have::Modified(owner) if *owner != asked.pod => {
                let (grant, keep) = (entry.grant, asked.ask == Ask::Read);
                (vec![*owner], ToCache::Recall { line, grant, keep })
            }
            Have::Shared(pods) if asked.ask == Ask::Own && pods.iter().any(|pod| *pod != asked.pod) => {
                let others = pods.iter().copied().filter(|pod| *pod != asked.pod);
                let until = entry.grant;
                (others.collect(), ToCache::Invalidate { line, until })
            }
            _ => return self.grant(grant_table, line, asked),
        };
        entry.busy = true;
        grant_table.jobs.push_back(Job {
            line,
            asked,
            from,
            tell,
        });
        self.more.notify_one();
    }

    fn grant(&self, grant_table: &mut GrantTable, line: u64, asked: Asked) {
        let entry = grant_table.entries.entry(line).or_default();
        entry.grant += 1;
        entry.have = match (asked.ask, std::mem::take(&mut entry.have)) {
            (Ask::Own, _) => Have::Modified(asked.pod),
            (Ask::Read, Have::Shared(mut pods)) => {
                pods.insert(asked.pod);
                Have::Shared(pods)
            }
            (Ask::Read, _) => Have::Shared([asked.pod].into()),
        };
        let number = entry.grant;
        asked.answer.with(&wire::grant(number, &self.load(line)));
    }

    /// Takes a line from caches, and grants it then.
    fn work(&self, job: Job) {
        let told = self.tell(&job);
        let mut grant_table = self.grant_table.lock();
        let entry = grant_table.entries.entry(job.line).or_default();
        entry.busy = false;
        let recalled = match told {
            Ok(recalled) => recalled,
            Err(error) => return job.asked.answer.fail(error),
        };
        entry.have = match job.tell {
            ToCache::Recall { keep: true, .. } if recalled.is_some() => {
                Have::Shared(job.from.iter().copied().collect())
            }
            _ => Have::Nobody,
        };
        if let Some(bytes) = recalled {
            rt::spend(self.copy);
            self.store(job.line, &bytes);
        }
        self.grant(&mut grant_table, job.line, job.asked);
        self.take_up_waiting(&mut grant_table, job.line);
    }

    fn take_up_waiting(&self, grant_table: &mut GrantTable, line: u64) {
        while let Some(entry) = grant_table.entries.get_mut(&line).filter(|entry| !entry.busy) {
            let Some(asked) = entry.waiting.pop_front() else { return };
            self.take_up(grant_table, line, asked);
        }
    }

    /// Tells the caches, all at once; the line, if one of them gave it back.
    fn tell(&self, job: &Job) -> Result<Option<Vec<u8>>> {
        let mut told = Vec::new();
        for pod in &job.from {
            rt::spend(self.message);
            told.push(self.caches.to(*pod)?.post(vec![Call::new(job.tell.encode())]));
        }
        let mut recalled = None;
        for told in told {
            let call = told.wait().pop();
            let answer = call
                .ok_or_else(|| Error::Invalid("a caller lost a call".into()))?
                .into_answer()?;
            if let Some(bytes) = wire::read_recalled(&answer)? {
                recalled = Some(bytes.to_vec());
            }
        }
        Ok(recalled)
    }

    fn write_back(&self, (pod, line, grant): (usize, u64, u64), bytes: &[u8]) -> bool {
        let mut grant_table = self.grant_table.lock();
        let entry = grant_table.entries.entry(line).or_default();
        let is_its = entry.have == Have::Modified(pod) && entry.grant == grant;
        let was_busy = entry.busy;
        if is_its {
            if !was_busy {
                entry.have = Have::Nobody;
            }
            self.store(line, bytes);
        }
        is_its && was_busy
    }

    fn take(&self, request: &[u8], answer: Answer) -> Result<()> {
        match ToHome::decode(request)? {
            ToHome::Ask { ask, pod, line } => {
                let asked = Asked { ask, pod, answer };
                let mut grant_table = self.grant_table.lock();
                let entry = grant_table.entries.entry(line).or_default();
                if entry.busy {
                    entry.waiting.push_back(asked);
                } else {
                    self.take_up(&mut grant_table, line, asked);
                }
            }
            ToHome::WriteBack {
                pod,
                line,
                grant,
                bytes,
            } => {
                answer.with(&wire::written_back(self.write_back((pod, line, grant), bytes)));
            }
        }
        Ok(())
    }
}

impl Serve for Home {
    fn serve(&self, _: CallerId, request: &[u8], answer: Answer) {
        // An answer that is dropped says that there is none.
        let _ = self.take(request, answer);
    }
}
