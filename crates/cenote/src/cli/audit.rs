//! What the commands of the pool and of its spaces share.

use super::say;
use cenote_pool::AuditReport;
use std::process::ExitCode;

/// Where a manager listens unless it is told.
pub(super) const MANAGER_DEFAULT: &str = "127.0.0.1:5440";

/// What a device for all tenants does not do.
pub(super) const NOT_APART: &str = "it is one device for all tenants: a process that may open it can map another tenant's range, and only its good \
                         will keeps it from that. Run tenants that do not trust each other on `cenote memory`";

/// Shows what an audit found.
pub(super) fn tell(report: &AuditReport) -> ExitCode {
    report.summary.iter().for_each(|line| say!("{line}"));
    report.problems.iter().for_each(|line| say!("PROBLEM  {line}"));
    say!("{} problems", report.problems.len());
    match report.problems.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
