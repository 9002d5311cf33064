//! Time zones: fixed offsets, and named ones by the system's zone files (RFC 8536, version 2 or later).

use super::datetime::{self, EPOCH_DAYS, SECOND};
use std::sync::Arc;

/// Where the system keeps its zones.
const ZONE_DIRECTORY: &str = "/usr/share/zoneinfo";
/// Seconds from 1970 to 2000.
const EPOCH_SECONDS: i64 = EPOCH_DAYS * 86_400;

/// A session's time zone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Zone {
    /// UTC itself.
    #[default]
    Utc,
    /// Seconds east of UTC.
    Fixed(i32),
    /// Offsets that change at known times.
    Table(Arc<Transitions>),
}

/// Times (seconds since 2000, UTC) from which an offset holds, ascending; before the first: `before`.
#[derive(Debug, PartialEq, Eq)]
pub struct Transitions {
    before: i32,
    changes: Vec<(i64, i32)>,
}

impl Zone {
    /// The zone of this name or offset. PostgreSQL's bare numbers are hours east of UTC.
    pub fn named(name: &str) -> Option<Zone> {
        if let Some(seconds) = datetime::offset_named(name) {
            return Some(if seconds == 0 { Zone::Utc } else { Zone::Fixed(seconds) });
        }
        if let Ok(hours) = name.parse::<f64>() {
            return (hours.abs() <= 15.0).then_some(Zone::Fixed((hours * 3600.0) as i32));
        }
        read_zone_file(name).map(|t| Zone::Table(Arc::new(t)))
    }

    /// Seconds east of UTC at a time (microseconds since 2000, UTC).
    pub fn offset_at_utc(&self, micros: i64) -> i32 {
        match self {
            Zone::Utc => 0,
            Zone::Fixed(seconds) => *seconds,
            Zone::Table(table) => table.offset_at(micros.div_euclid(SECOND)),
        }
    }

    /// Seconds east of UTC at a local time.
    pub fn offset_at_local(&self, micros: i64) -> i32 {
        match self {
            Zone::Utc => 0,
            Zone::Fixed(seconds) => *seconds,
            Zone::Table(table) => {
                let local = micros.div_euclid(SECOND);
                let guess = table.offset_at(local - i64::from(table.offset_at(local)));
                table.offset_at(local - i64::from(guess))
            }
        }
    }

    /// Local time of a UTC time.
    pub fn to_local(&self, micros: i64) -> i64 {
        micros + i64::from(self.offset_at_utc(micros)) * SECOND
    }

    /// UTC time of a local time.
    pub fn to_utc(&self, micros: i64) -> i64 {
        micros - i64::from(self.offset_at_local(micros)) * SECOND
    }
}

impl Transitions {
    fn offset_at(&self, second: i64) -> i32 {
        match self.changes.partition_point(|(from, _)| *from <= second) {
            0 => self.before,
            n => self.changes[n - 1].1,
        }
    }
}

fn read_zone_file(name: &str) -> Option<Transitions> {
    let plain = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'+'))
    };
    if !name.split('/').all(plain) {
        return None;
    }
    parse(&std::fs::read(format!("{ZONE_DIRECTORY}/{name}")).ok()?)
}

/// Header: magic, version, 15 unused, then six counts: isut, isstd, leap, time, type, char.
fn parse(file: &[u8]) -> Option<Transitions> {
    let first = counts(file)?;
    let [isut, isstd, leap, times, types, chars] = first;
    let skipped = 44 + times * 5 + types * 6 + chars + leap * 8 + isstd + isut;
    let body = file.get(skipped..)?;
    let [_, _, _, times, types, _] = counts(body)?;
    let at = body.get(44..)?;
    let (moments, rest) = at.split_at_checked(times * 8)?;
    let (kinds, rest) = rest.split_at_checked(times)?;
    let offsets: Vec<i32> = rest
        .get(..types * 6)?
        .chunks_exact(6)
        .map(|t| i32::from_be_bytes([t[0], t[1], t[2], t[3]]))
        .collect();
    let mut changes = Vec::with_capacity(times);
    for (moment, kind) in moments.chunks_exact(8).zip(kinds) {
        let second = i64::from_be_bytes(moment.try_into().ok()?).saturating_sub(EPOCH_SECONDS);
        changes.push((second, *offsets.get(usize::from(*kind))?));
    }
    Some(Transitions {
        before: *offsets.first()?,
        changes,
    })
}

fn counts(header: &[u8]) -> Option<[usize; 6]> {
    if header.get(..4)? != b"TZif" || *header.get(4)? < b'2' {
        return None;
    }
    let mut out = [0; 6];
    for (count, word) in out.iter_mut().zip(header.get(20..44)?.chunks_exact(4)) {
        *count = u32::from_be_bytes([word[0], word[1], word[2], word[3]]) as usize;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_offsets() {
        assert_eq!(Zone::named("UTC"), Some(Zone::Utc));
        assert_eq!(Zone::named("-03:30"), Some(Zone::Fixed(-12_600)));
        assert_eq!(Zone::named("../../etc/passwd"), None);
        assert_eq!(Zone::named("No/Such"), None);
    }

    #[test]
    fn garbage_is_no_zone() {
        assert!(parse(b"TZif2").is_none());
        assert!(parse(&[b"TZif2".as_slice(), &[255; 200]].concat()).is_none());
    }
}
