//! `cenote archive`: what an archive has; a copy of all pages now. And the moment that `cenote restore` means.

use super::client::connect;
use super::{ConnectOptions, Failure, print_aligned, say};
use crate::objects;
use cenote_base::Lsn;
use cenote_storage::archive::{RestoreFrom, Target, TimelineSeen, survey};
use chrono::{DateTime, Local};
use clap::{Args, Subcommand};
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub enum ArchiveCommand {
    /// Show what an archive has: databases, timelines, the moments that can be restored
    Status {
        /// A directory, or s3://BUCKET/PREFIX
        #[arg(value_name = "ARCHIVE")]
        archive: String,
    },
    /// Have a running server copy all pages to its archive now: later moments are restored from there
    Base(ConnectOptions),
}

/// The moment of an archive that is meant.
#[derive(Debug, Args)]
pub struct MomentOptions {
    /// Of an archive: what was committed at this time, as `2026-11-29 14:05:00+01`
    #[arg(long, value_name = "TIME", conflicts_with = "to_lsn")]
    to_time: Option<String>,
    /// Of an archive: what the log has below this position, as `SELECT position FROM cenote_archive` shows it
    #[arg(long, value_name = "X/X")]
    to_lsn: Option<String>,
    /// Of an archive with several databases: which
    #[arg(long, value_name = "ID")]
    database: Option<String>,
    /// Of an archive: the timeline [default: the newest that has the moment]
    #[arg(long, value_name = "N")]
    timeline: Option<u32>,
}

impl MomentOptions {
    /// Whether any is given.
    pub fn is_given(&self) -> bool {
        self.to_time.is_some() || self.to_lsn.is_some() || self.database.is_some() || self.timeline.is_some()
    }

    /// What they mean.
    ///
    /// # Errors
    /// One is no time, position or id; a time to come.
    pub fn decide(&self) -> Result<RestoreFrom, Failure> {
        let database = self.database.as_ref().map(|id| {
            let number = Some(id)
                .filter(|id| id.len() == 32)
                .and_then(|id| u128::from_str_radix(id, 16).ok());
            number.ok_or_else(|| format!("{id:?} is no database's id: 32 hexadecimal digits"))
        });
        let target = match (&self.to_time, &self.to_lsn) {
            (Some(time), _) => Target::Time(parse_time(time)?),
            (None, Some(lsn)) => Target::Position(parse_lsn(lsn)?),
            (None, None) => Target::Latest,
        };
        Ok(RestoreFrom {
            database: database.transpose()?,
            timeline: self.timeline,
            target,
        })
    }
}

/// Microseconds since 1970.
fn parse_time(text: &str) -> Result<u64, Failure> {
    const FORMATS: [&str; 2] = ["%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M:%S%.f%#z"];
    let text = text.trim().replace(" UTC", "+00").replace('Z', "+00");
    let parsed = FORMATS
        .iter()
        .find_map(|format| DateTime::parse_from_str(&text, format).ok());
    let time = parsed.ok_or_else(|| {
        format!("{text:?} is no time: write it with its zone, as 2026-11-29 14:05:00+01, or 2026-11-29T13:05:00Z")
    })?;
    let micros = u64::try_from(time.timestamp_micros()).map_err(|_| format!("{text:?} is before 1970"))?;
    match micros <= crate::archiving::now() {
        true => Ok(micros),
        false => Err(format!("{text:?} has not come yet").into()),
    }
}

/// A position as PostgreSQL writes it.
fn parse_lsn(text: &str) -> Result<Lsn, Failure> {
    let halves = text.trim().split_once('/');
    let half = |text: &str| {
        let is_number = (1..=8).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_number.then(|| u32::from_str_radix(text, 16).ok()).flatten()
    };
    let halves = halves.and_then(|(high, low)| Some((half(high)?, half(low)?)));
    let (high, low) = halves.ok_or_else(|| format!("{text:?} is no position of a log, as 0/1A2B3C40"))?;
    Ok(Lsn::from_raw(u64::from(high) << 32 | u64::from(low)))
}

/// A time as people here read it, with its zone.
pub fn local_time(micros: u64) -> String {
    let time = i64::try_from(micros).ok().and_then(DateTime::from_timestamp_micros);
    time.map_or_else(
        || "an unknown time".into(),
        |time| {
            time.with_timezone(&Local)
                .format("%Y-%m-%d %H:%M:%S%.3f%:z")
                .to_string()
        },
    )
}

/// Runs it.
///
/// # Errors
/// The archive or the server does not answer; an object is damaged.
pub fn run(command: ArchiveCommand) -> Result<ExitCode, Failure> {
    match command {
        ArchiveCommand::Status { archive } => status(&archive),
        ArchiveCommand::Base(options) => base(&options),
    }
}

fn base(options: &ConnectOptions) -> Result<ExitCode, Failure> {
    let Some(mut server) = connect(options)? else {
        return Err("no server runs there: a base is taken by the server that has the database".into());
    };
    let table = server.ask("CENOTE BASE")?;
    for row in &table.rows {
        let field = |name| table.field(row, name);
        say!(
            "{} pages in {} spaces, {} bytes; it is restored from there from position {} on",
            field("pages"),
            field("spaces"),
            field("bytes"),
            field("position")
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn status(archive: &str) -> Result<ExitCode, Failure> {
    let objects = objects::open(archive)?;
    let seen = survey(&*objects)?;
    if seen.is_empty() {
        say!("there is no archive in {}", objects.place());
        return Ok(ExitCode::FAILURE);
    }
    for timeline in &seen {
        show(timeline);
    }
    Ok(ExitCode::SUCCESS)
}

fn show(timeline: &TimelineSeen) {
    say!(
        "database {:032x}, timeline {}: {}",
        timeline.database,
        timeline.number,
        timeline.why
    );
    say!("  began {}", local_time(timeline.began));
    match (timeline.bases.first(), timeline.last) {
        (Some(first), last) => {
            let until = last.map_or(first.ended, |last| last.micros.max(first.ended));
            say!(
                "  can be restored: {} to {}",
                local_time(first.ended),
                local_time(until)
            );
            say!("                   position {} to {}", first.end, timeline.end);
        }
        (None, _) => say!("  nothing can be restored: it has no base yet"),
    }
    say!(
        "  log   {:.1} MB in {} objects; bases {:.1} MB",
        timeline.log_bytes as f64 / 1e6,
        timeline.pieces,
        timeline.base_bytes as f64 / 1e6
    );
    timeline.damage.iter().for_each(|damage| say!("  DAMAGED {damage}"));
    let mut rows = vec![[
        "base".to_owned(),
        "position".into(),
        "spaces".into(),
        "pages".into(),
        "version".into(),
    ]];
    rows.extend(timeline.bases.iter().map(|base| {
        [
            local_time(base.ended),
            base.end.to_string(),
            base.spaces.to_string(),
            base.pages.to_string(),
            base.damage.clone().unwrap_or_else(|| base.version.clone()),
        ]
    }));
    print_aligned(&rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_with_its_zone_or_a_position() {
        let at = parse_time("2026-01-01 01:00:00.5+01").unwrap();
        assert_eq!(at, 1_767_225_600_500_000);
        for same in [
            "2026-01-01T00:00:00.5Z",
            "2026-01-01 00:00:00.5 UTC",
            "2025-12-31 19:00:00.5-05:00",
        ] {
            assert_eq!(parse_time(same).unwrap(), at, "{same}");
        }
        for wrong in [
            "2026-01-01 01:00:00",
            "now",
            "2026-13-01 00:00:00Z",
            "2999-01-01 00:00:00Z",
            "1900-01-01 00:00:00Z",
        ] {
            parse_time(wrong).unwrap_err();
        }
        assert_eq!(parse_lsn("2/1A").unwrap(), Lsn::from_raw(0x2_0000_001A));
        assert_eq!(
            parse_lsn(&Lsn::from_raw(0x2_0000_001A).to_string()).unwrap(),
            Lsn::from_raw(0x2_0000_001A)
        );
        for wrong in ["", "5", "0/", "g/1", "0/123456789", "1/2/3", "+1/+2"] {
            parse_lsn(wrong).unwrap_err();
        }
    }
}
