//! What the commands of the pool and of its spaces share.

use super::say;
use cenote_pool::AuditReport;
use std::process::ExitCode;

/// Where a manager listens unless it is told.
pub(super) const MANAGER_DEFAULT: &str = "127.0.0.1:5440";

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
