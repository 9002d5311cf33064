//! The store of several managers, watched: two of them never lead at a time.
//!
//! What a leadership is asked is asked of the pool's own store. A leadership's number is the revision of etcd in which
//! its manager claimed the lead. What it answers is held against the claims that etcd had seen when it was asked: one
//! that says that it leads after another's claim would answer and order beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use cenote_base::Result;
use cenote_base::rt::Nanos;
use cenote_pool::store::etcd::{Answer, Endpoint, EtcdOptions, EtcdStore, Transport};
use cenote_pool::store::{Change, GrantTableStore, Lead, Leadership, RecordSet, Stored};
use serde_json::Value;

use super::stage::Stage;

/// A manager's way to the store.
pub(super) struct Watched {
    stage: Arc<Stage>,
    store: EtcdStore,
    /// The revision of the last claim that succeeded.
    claimed: Arc<AtomicI64>,
}

/// The way to etcd; notes the revision of a claim that succeeded.
struct CountingTransport(Arc<dyn Transport>, Arc<AtomicI64>);

impl Transport for CountingTransport {
    fn post(
        &self,
        endpoint: &Endpoint,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        timeout: Nanos,
    ) -> Result<Answer> {
        let answer = self.0.post(endpoint, path, headers, body, timeout)?;
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
    /// # Errors
    /// Those of the store's options.
    pub fn new(stage: &Arc<Stage>) -> Result<Arc<Self>> {
        let options = EtcdOptions {
            endpoints: vec!["http://etcd:2379".into()],
            ttl: stage.grants.ttl,
            ..EtcdOptions::default()
        };
        let claimed = Arc::new(AtomicI64::new(0));
        let transport = CountingTransport(stage.etcd.transport(), Arc::clone(&claimed));
        Ok(Arc::new(Self {
            stage: Arc::clone(stage),
            store: EtcdStore::over(&options, Arc::new(transport))?,
            claimed,
        }))
    }
}

impl GrantTableStore for Watched {
    fn lead(&self, name: &str) -> Result<Lead> {
        let leadership = match self.store.lead(name)? {
            Lead::Here(leadership) => leadership,
            elsewhere => return Ok(elsewhere),
        };
        let stage = Arc::clone(&self.stage);
        let number = self.claimed.load(SeqCst);
        stage.leaderships().leader = name.into();
        stage.shared.count("leaderships");
        stage.shared.step(format!("leadership {number} begins, of {name}"));
        Ok(Lead::Here(Arc::new(WatchedLeadership {
            stage,
            number,
            leadership,
        })))
    }
}

struct WatchedLeadership {
    stage: Arc<Stage>,
    number: i64,
    leadership: Arc<dyn Leadership>,
}

impl WatchedLeadership {
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

    /// A success that another leadership had made impossible before it was asked for.
    fn judge(&self, what: &str, claimed: i64) {
        if claimed > self.number {
            self.fail(format!(
                "leadership {} {what}, after the lead was claimed in revision {claimed}",
                self.number
            ));
        }
    }

    /// The grant table that was read is the one that was written last, unless another has written while the answer was
    /// on its way.
    fn compare(&self, read: Option<&Stored>) {
        let (number, mut leaderships) = (self.number, self.stage.leaderships());
        let writer = leaderships.writer;
        let none = Stored::Records(RecordSet::new());
        let differs = leaderships
            .grant_table
            .as_ref()
            .is_some_and(|grant_table| grant_table != read.unwrap_or(&none))
            && writer <= number;
        leaderships.has_read(number, read);
        drop(leaderships);
        if differs {
            self.fail(format!(
                "leadership {number} reads another grant table than leadership {writer} has written"
            ));
        }
    }
}

impl Leadership for WatchedLeadership {
    fn leads(&self) -> bool {
        let claimed = self.claimed();
        let leads = self.leadership.leads();
        if leads {
            self.judge("says that it leads", claimed);
        }
        leads
    }

    fn confirm(&self) -> Result<()> {
        let claimed = self.claimed();
        self.leadership.confirm()?;
        self.judge("is confirmed", claimed);
        Ok(())
    }

    fn read(&self) -> Result<Option<Stored>> {
        let claimed = self.claimed();
        let grant_table = self.leadership.read()?;
        self.judge("reads the grant table", claimed);
        self.compare(grant_table.as_ref());
        Ok(grant_table)
    }

    fn write(&self, change: &Change) -> Result<()> {
        let claimed = self.claimed();
        let before = self.stage.leaderships().writes(self.number);
        self.leadership.write(change)?;
        self.judge("has written the grant table", claimed);
        self.stage.leaderships().has_written(self.number, before, change);
        Ok(())
    }

    fn resign(&self) {
        self.leadership.resign();
    }
}
