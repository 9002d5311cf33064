//! `cenote restore`: a data directory from a backup, or from an archive.

use super::archive::local_time;
use super::{Failure, RestoreOptions, say};
use crate::objects;
use cenote_base::units::ByteSize;
use cenote_storage::archive::{RestoreReport, Target, restore_archive};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Makes the data directory.
///
/// # Errors
/// The backup or archive is damaged, or has no such moment; the data directory is not empty.
pub fn run(options: &RestoreOptions) -> Result<ExitCode, Failure> {
    let from = options.moment.decide()?;
    if Path::new(&options.from).join("control").is_file() {
        if options.moment.is_given() {
            return Err(format!("{} is a backup: it is of one moment", options.from).into());
        }
        return backup(Path::new(&options.from), &options.data);
    }
    let objects = objects::open(&options.from)?;
    let begun = Instant::now();
    let bar = ProgressBar::new(1000).with_style(ProgressStyle::with_template(
        "  pages {bar:30} {percent:>3} %   log {msg}",
    )?);
    let told = |pages: f64, log_bytes: u64| {
        bar.set_position((pages * 1000.0) as u64);
        bar.set_message(ByteSize(log_bytes).to_string());
    };
    let report = restore_archive(&objects, from, &options.data, &told)?;
    bar.finish_and_clear();
    tell(&report, from.target, &options.data, begun);
    Ok(ExitCode::SUCCESS)
}

fn tell(report: &RestoreReport, target: Target, data: &Path, begun: Instant) {
    say!(
        "restored {} in {:.1} s: {} pages in {} spaces, {:.1} MB of log",
        data.display(),
        begun.elapsed().as_secs_f64(),
        report.pages,
        report.spaces,
        report.log_bytes as f64 / 1e6
    );
    let time = report
        .at
        .map_or_else(|| "the time of its base".to_owned(), |sample| local_time(sample.micros));
    say!(
        "it is as of position {} of timeline {}, {time}",
        report.lsn,
        report.timeline
    );
    if report.is_end && target != Target::Latest {
        say!("the archive knows of no later moment up to the one that was asked for");
    }
    say!("start it with: cenote run --data {}", data.display());
}

fn backup(from: &Path, data: &Path) -> Result<ExitCode, Failure> {
    let report = crate::database::restore(from, data)?;
    say!(
        "restored {}: {} pages in {} spaces, {} of log; start it with: cenote run --data {}",
        data.display(),
        report.pages,
        report.spaces,
        ByteSize(report.log_bytes),
        data.display()
    );
    Ok(ExitCode::SUCCESS)
}
