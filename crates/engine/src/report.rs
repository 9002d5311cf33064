//! What recovery and check tell people.

/// What recovery did at start.
#[derive(Debug, Clone, Default)]
pub struct RecoveryReport {
    /// `clean`, `instant` or `log`.
    pub mode: String,
    /// Frames kept as they were.
    pub frames_kept: u64,
    /// Frames repaired from redo (in mode `log`: pages to which redo was applied).
    pub frames_repaired: u64,
    /// Frames discarded.
    pub frames_discarded: u64,
    /// Redo read, in bytes.
    pub redo_bytes_read: u64,
    /// Transactions that had not ended when the last process did.
    pub losers: u64,
    /// How many of them have been rolled back by now (rises in the background after start).
    pub transactions_rolled_back: u64,
    /// Time until ready, in milliseconds.
    pub duration_ms: f64,
    /// Further lines for people: what was repaired and why.
    pub notes: Vec<String>,
}

/// Repaired pages that are named one by one.
const NAMED: usize = 64;

impl RecoveryReport {
    pub(crate) fn of(pages: &cenote_buffer::RecoveryReport, losers: u64) -> RecoveryReport {
        let mut notes = pages.remarks.clone();
        for repaired in pages.repaired.iter().take(NAMED) {
            let (page, cause, records) = (repaired.page, repaired.cause.text(), repaired.records);
            notes.push(format!("page {page} {cause}: rebuilt with {records} redo records"));
        }
        if pages.repaired.len() > NAMED {
            notes.push(format!("and {} more pages", pages.repaired.len() - NAMED));
        }
        if pages.remote_kept + pages.remote_discarded > 0 {
            let (kept, discarded) = (pages.remote_kept, pages.remote_discarded);
            notes.push(format!(
                "{kept} pages in remote memory are used, {discarded} were discarded"
            ));
        }
        if pages.voided > 0 {
            notes.push(format!("{} unfinished mini-transactions made void", pages.voided));
        }
        RecoveryReport {
            mode: pages.mode.name().to_string(),
            frames_kept: pages.frames_kept,
            frames_repaired: pages.repaired.len() as u64 + pages.pages_replayed,
            frames_discarded: pages.frames_discarded,
            redo_bytes_read: pages.redo_bytes_read,
            losers,
            transactions_rolled_back: 0,
            duration_ms: 0.0,
            notes,
        }
    }
}

/// What `check` found.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// What was looked at.
    pub summary: Vec<String>,
    /// What is wrong; empty where all is well.
    pub problems: Vec<String>,
    /// Index entries that lead to no row that a new snapshot sees: of older versions, of transactions in progress, and
    /// of those that ended, until purge has been through.
    pub entries_of_others: u64,
}
