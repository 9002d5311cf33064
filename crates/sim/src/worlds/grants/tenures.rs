//! The store of several managers, watched: two of them never lead at a time.
//!
//! What a tenure is asked is asked of the pool's own store. A tenure's number is the revision of etcd in which its manager claimed the lead. What it answers
//! is held against the claims that etcd had seen when it was asked: one that says that it leads after another's claim would answer and order beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use cenote_base::Result;
use cenote_base::rt::Nanos;
use cenote_fabric::http::Answer;
use cenote_pool::store::etcd::{EtcdOptions, EtcdStore, Transport};
use cenote_pool::store::{BookStore, Lead, Tenure};
use serde_json::Value;

use super::stage::Stage;

/// The book as the last tenure that wrote has left it.
#[derive(Debug, Default)]
pub(super) struct Tenures {
    /// Who was the last to lead: its address.
    pub leader: String,
    /// The last that has begun to write.
    writer: i64,
    /// What it has written; `None` while that is not known.
    book: Option<Vec<u8>>,
}

impl Tenures {
    /// A write that fails may be done all the same, or come late.
    fn writes(&mut self, tenure: i64) {
        if tenure >= self.writer {
            (self.writer, self.book) = (tenure, None);
        }
    }

    /// Who was held up after its write may have been followed by another that wrote, too.
    fn has_written(&mut self, tenure: i64, book: &[u8]) {
        if tenure == self.writer {
            self.book = Some(book.to_vec());
        }
    }
}

/// A manager's way to the store.
pub(super) struct Watched {
    stage: Arc<Stage>,
    store: EtcdStore,
    /// The revision of the last claim that succeeded.
    claimed: Arc<AtomicI64>,
}

/// The way to etcd; notes the revision of a claim that succeeded.
struct Way(Arc<dyn Transport>, Arc<AtomicI64>);

impl Transport for Way {
    fn post(&self, host: &str, path: &str, headers: &[(&str, &str)], body: &[u8], patience: Nanos) -> Result<Answer> {
        let answer = self.0.post(host, path, headers, body, patience)?;
        let [question, said] =
            [body, &answer.body].map(|json| serde_json::from_slice::<Value>(json).unwrap_or_default());
        let claims = !question["success"][0]["request_put"]["lease"].is_null() && said["succeeded"] == true;
        if let Some(revision) = said["header"]["revision"].as_str().filter(|_| claims) {
            self.1.store(revision.parse().unwrap_or(0), SeqCst);
        }
        Ok(answer)
    }
}

impl Watched {
    pub fn new(stage: &Arc<Stage>) -> Result<Arc<Self>> {
        let options = EtcdOptions {
            endpoints: vec!["http://etcd:2379".into()],
            ttl: stage.grants.ttl,
            ..EtcdOptions::default()
        };
        let claimed = Arc::new(AtomicI64::new(0));
        let way = Way(stage.etcd.transport(), Arc::clone(&claimed));
        Ok(Arc::new(Self {
            stage: Arc::clone(stage),
            store: EtcdStore::over(&options, Arc::new(way))?,
            claimed,
        }))
    }
}

impl BookStore for Watched {
    fn lead(&self, name: &str) -> Result<Lead> {
        let tenure = match self.store.lead(name)? {
            Lead::Here(tenure) => tenure,
            elsewhere => return Ok(elsewhere),
        };
        let stage = Arc::clone(&self.stage);
        let number = self.claimed.load(SeqCst);
        stage.tenures().leader = name.into();
        stage.shared.count("tenures");
        stage.shared.step(format!("tenure {number} begins, of {name}"));
        Ok(Lead::Here(Arc::new(WatchedTenure { stage, number, tenure })))
    }
}

struct WatchedTenure {
    stage: Arc<Stage>,
    number: i64,
    tenure: Arc<dyn Tenure>,
}

impl WatchedTenure {
    /// The last claim that etcd has seen.
    fn claimed(&self) -> i64 {
        self.stage.etcd.last_claim()
    }

    /// Says what is wrong, once.
    fn fail(&self, problem: String) {
        if !self.stage.shared.has_failed() {
            self.stage.shared.fail(problem);
        }
    }

    /// A success that another tenure had made impossible before it was asked for.
    fn judge(&self, what: &str, claimed: i64) {
        if claimed > self.number {
            self.fail(format!(
                "tenure {} {what}, after the lead was claimed in revision {claimed}",
                self.number
            ));
        }
    }

    /// The book that was read is the one that was written last, unless another has written while the answer was on its way.
    fn compare(&self, read: Option<&[u8]>) {
        let (number, tenures) = (self.number, self.stage.tenures());
        let writer = tenures.writer;
        let differs = tenures.book.as_deref().is_some_and(|book| Some(book) != read) && writer <= number;
        drop(tenures);
        if differs {
            self.fail(format!(
                "tenure {number} reads another book than tenure {writer} has written"
            ));
        }
    }
}

impl Tenure for WatchedTenure {
    fn leads(&self) -> bool {
        let claimed = self.claimed();
        let leads = self.tenure.leads();
        if leads {
            self.judge("says that it leads", claimed);
        }
        leads
    }

    fn confirm(&self) -> Result<()> {
        let claimed = self.claimed();
        self.tenure.confirm()?;
        self.judge("is confirmed", claimed);
        Ok(())
    }

    fn read(&self) -> Result<Option<Vec<u8>>> {
        let claimed = self.claimed();
        let book = self.tenure.read()?;
        self.judge("reads the book", claimed);
        self.compare(book.as_deref());
        Ok(book)
    }

    fn write(&self, book: &[u8]) -> Result<()> {
        let claimed = self.claimed();
        self.stage.tenures().writes(self.number);
        self.tenure.write(book)?;
        self.judge("has written the book", claimed);
        self.stage.tenures().has_written(self.number, book);
        Ok(())
    }

    fn resign(&self) {
        self.tenure.resign();
    }
}
