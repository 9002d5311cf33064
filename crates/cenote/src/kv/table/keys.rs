//! Commands on keys.

use super::change::Change;
use super::expiry::{left, micros};
use super::{Table, refusal};
use crate::kv::dispatch::Call;
use crate::kv::keys::{Names, ScanOptions, check_conditions, deadline};
use crate::kv::refusal::{Done, Refusal, SYNTAX, TOO_MUCH};
use crate::kv::reply::ANSWER_MAX;
use cenote_base::rt;
use cenote_store::Store;

/// Keys that are asked for at once where all are wanted.
const STEP: usize = 256;
/// Bytes of keys beyond which SCAN tells of no more, however many are asked for.
const SCAN_MAX: usize = 1 << 20;

/// Key by key: another client may see some of it.
pub fn del(call: &mut Call<'_, Table>) -> Done {
    let (strings, store) = (call.strings, &call.shared.store.store);
    let mut removed = 0;
    for done in store.remove_many(strings.from(1)) {
        removed += i64::from(done.map_err(refusal)?);
    }
    call.reply.integer(removed);
    Ok(())
}

pub fn exists(call: &mut Call<'_, Table>) -> Done {
    let (strings, store) = (call.strings, &call.shared.store.store);
    let presence = store.exists(strings.from(1), false).map_err(refusal)?;
    let there = presence.found.iter().filter(|found| **found).count();
    call.reply.integer(there as i64);
    Ok(())
}

pub fn kind(call: &mut Call<'_, Table>) -> Done {
    let found = call.shared.store.store.value_of(&call.strings[1]).map_err(refusal)?;
    call.reply.simple(found.map_or("none", |_| "string"));
    Ok(())
}

pub fn expire(call: &mut Call<'_, Table>) -> Done {
    expire_in(call, 1000, true, "expire")
}

pub fn pexpire(call: &mut Call<'_, Table>) -> Done {
    expire_in(call, 1, true, "pexpire")
}

pub fn expireat(call: &mut Call<'_, Table>) -> Done {
    expire_in(call, 1000, false, "expireat")
}

pub fn pexpireat(call: &mut Call<'_, Table>) -> Done {
    expire_in(call, 1, false, "pexpireat")
}

/// The value is put anew, with another time.
fn expire_in(call: &mut Call<'_, Table>, unit: i64, is_relative: bool, command: &str) -> Done {
    let (strings, now) = (call.strings, call.look_at_clock());
    let at = deadline(call.integer(2)?, unit, is_relative, now);
    let at = at.ok_or_else(|| Refusal::Text(format!("ERR invalid expire time in '{command}' command")))?;
    let conditions = |former| check_conditions(&strings, former, at);
    // What is wrong with them is said of a key that is not there, too.
    conditions(0)?;
    let is_set = call.shared.store.change(&strings[1], |found, bytes, new| {
        let Some(value) = found else {
            return Ok((Change::None, false));
        };
        if !conditions(value.expires.div_ceil(1000))? {
            return Ok((Change::None, false));
        }
        if at <= now {
            return Ok((Change::Remove, true));
        }
        new.extend_from_slice(bytes);
        Ok((Change::Put { expires: micros(at) }, true))
    })?;
    call.reply.integer(is_set.into());
    Ok(())
}

pub fn ttl(call: &mut Call<'_, Table>) -> Done {
    rest(call, |left| left.saturating_add(500) / 1000)
}

pub fn pttl(call: &mut Call<'_, Table>) -> Done {
    rest(call, |left| left)
}

fn rest(call: &mut Call<'_, Table>, shown: fn(u64) -> u64) -> Done {
    let found = call.shared.store.store.value_of(&call.strings[1]).map_err(refusal)?;
    let rest = match found {
        None => -2,
        Some(value) => left(&value).map_or(-1, |left| shown(left) as i64),
    };
    call.reply.integer(rest);
    Ok(())
}

pub fn persist(call: &mut Call<'_, Table>) -> Done {
    let was_to_expire = call.shared.store.change(&call.strings[1], |found, bytes, new| {
        if found.is_none_or(|value| value.expires == 0) {
            return Ok((Change::None, false));
        }
        new.extend_from_slice(bytes);
        Ok((Change::Put { expires: 0 }, true))
    })?;
    call.reply.integer(was_to_expire.into());
    Ok(())
}

pub fn scan(call: &mut Call<'_, Table>) -> Done {
    let (cursor, options) = ScanOptions::read::<_, u64>(call, 1, true)?;
    let count = usize::try_from(options.count).unwrap_or(usize::MAX);
    let (cursor, keys) = scan_some(&call.shared.store.store, cursor, count)?;
    let mut names = Names::default();
    if options.wants_kind("string") {
        keys.iter().for_each(|key| names.push(key));
    }
    call.reply.array(2);
    call.reply.string(cursor.to_string().as_bytes());
    names.tell(call, options.pattern.unwrap_or(b"*"))
}

/// About so many keys, or [`SCAN_MAX`] bytes of them, and where to go on.
fn scan_some(store: &Store, mut cursor: u64, count: usize) -> Result<(u64, Vec<Vec<u8>>), Refusal> {
    let (mut left, mut bytes, mut keys) = (count, 0, Vec::new());
    loop {
        let step = left.min(STEP);
        let scanned = store.scan(cursor, step).map_err(refusal)?;
        bytes += scanned.keys.iter().map(Vec::len).sum::<usize>();
        // So many keys, or as many buckets without keys.
        left -= step;
        keys.extend(scanned.keys);
        cursor = scanned.cursor;
        if cursor == 0 || left == 0 || bytes >= SCAN_MAX {
            return Ok((cursor, keys));
        }
    }
}

/// Each key once, though a table that grows meanwhile tells of some twice.
pub fn keys(call: &mut Call<'_, Table>) -> Done {
    let (pattern, mut found, mut bytes, mut cursor) = (call.strings, Vec::new(), 0, 0);
    loop {
        let scanned = call.shared.store.store.scan(cursor, STEP).map_err(refusal)?;
        for key in scanned.keys {
            if crate::kv::glob::matches(&pattern[1], &key) {
                bytes += key.len();
                found.push(key);
            }
        }
        if bytes > ANSWER_MAX {
            return Err(TOO_MUCH);
        }
        cursor = scanned.cursor;
        if cursor == 0 {
            break;
        }
    }
    found.sort_unstable();
    found.dedup();
    let mut names = Names::default();
    found.iter().for_each(|key| names.push(key));
    names.tell(call, b"*")
}

/// A key of the first bucket with one, from a bucket on that is drawn.
pub fn randomkey(call: &mut Call<'_, Table>) -> Done {
    let store = &call.shared.store.store;
    let (mut cursor, mut begins_anew) = (rt::random(), true);
    loop {
        let scanned = store.scan(cursor, 1).map_err(refusal)?;
        if let Some(key) = scanned.keys.first() {
            call.reply.string(key);
            return Ok(());
        }
        cursor = scanned.cursor;
        if cursor == 0 && !core::mem::replace(&mut begins_anew, false) {
            call.reply.null();
            return Ok(());
        }
    }
}

pub fn dbsize(call: &mut Call<'_, Table>) -> Done {
    let stats = call.shared.store.store.stats().map_err(refusal)?;
    call.reply.integer(stats.items as i64);
    Ok(())
}

/// Bucket by bucket: what is put meanwhile may stay.
pub fn flush(call: &mut Call<'_, Table>) -> Done {
    let is_known = match call.strings.len() {
        1 => true,
        2 => call.is(1, "sync") || call.is(1, "async"),
        _ => false,
    };
    if !is_known {
        return Err(SYNTAX);
    }
    call.shared.store.store.clear().map_err(refusal)?;
    call.reply.ok();
    Ok(())
}
