//! Commands on strings.

use super::change::Change;
use super::expiry::micros;
use super::{Table, refusal, tell};
use crate::kv::dispatch::Call;
use crate::kv::refusal::{Done, NOT_INTEGER, Refusal, SYNTAX, TOO_MUCH, wrong_number};
use crate::kv::strings::{
    FLOAT_MAX, NOT_FLOAT, SetOptions, TOO_LONG, expiry_option, float, positive_deadline, range, written_sum,
};
use cenote_kv::{Failure, STRING_MAX, decimal, integer};
use cenote_store::{Expected, Value};

fn expires_of(found: Option<Value>) -> u64 {
    found.map_or(0, |value| value.expires)
}

fn to_tell(found: Option<Value>, bytes: &[u8]) -> Option<Vec<u8>> {
    found.map(|_| bytes.to_vec())
}

pub fn get(call: &mut Call<'_, Table>) -> Done {
    let table = &mut call.shared.store;
    let found = table.read(&call.strings[1])?;
    tell(call.reply, found.map(|_| table.bytes()))
}

pub fn set(call: &mut Call<'_, Table>) -> Done {
    let options = SetOptions::read(call)?;
    let (key, value) = (&call.strings[1], &call.strings[2]);
    if options.only_new && !options.gets {
        let is_new = set_new(call, options.expiry)?;
        if is_new {
            call.reply.ok()
        } else {
            call.reply.null()
        }
        return Ok(());
    }
    if !(options.only_new || options.only_there || options.gets || options.keeps) {
        call.shared.store.set(key, value, options.expiry.map_or(0, micros))?;
        call.reply.ok();
        return Ok(());
    }
    let (is_set, before) = call.shared.store.change(key, |found, bytes, new| {
        let before = if options.gets { to_tell(found, bytes) } else { None };
        if options.only_new && found.is_some() || options.only_there && found.is_none() {
            return Ok((Change::None, (false, before)));
        }
        new.extend_from_slice(value);
        let expires = match options.keeps {
            true => expires_of(found),
            false => options.expiry.map_or(0, micros),
        };
        Ok((Change::Put { expires }, (true, before)))
    })?;
    match (options.gets, is_set) {
        (true, _) => return tell(call.reply, before.as_deref()),
        (false, true) => call.reply.ok(),
        (false, false) => call.reply.null(),
    }
    Ok(())
}

/// Sets a key that is not there: whether it was not.
fn set_new(call: &mut Call<'_, Table>, expiry: Option<u64>) -> Result<bool, Refusal> {
    let (key, value, expires) = (&call.strings[1], &call.strings[2], expiry.map_or(0, micros));
    call.shared.store.put_if(key, value, Expected::Absent, expires)
}

pub fn setnx(call: &mut Call<'_, Table>) -> Done {
    let is_new = set_new(call, None)?;
    call.reply.integer(is_new.into());
    Ok(())
}

pub fn setex(call: &mut Call<'_, Table>) -> Done {
    set_for(call, 1000, "setex")
}

pub fn psetex(call: &mut Call<'_, Table>) -> Done {
    set_for(call, 1, "psetex")
}

fn set_for(call: &mut Call<'_, Table>, unit: i64, command: &str) -> Done {
    let at = positive_deadline(call, 2, unit, true, command)?;
    let table = &call.shared.store;
    table.set(&call.strings[1], &call.strings[3], micros(at))?;
    call.reply.ok();
    Ok(())
}

pub fn mget(call: &mut Call<'_, Table>) -> Done {
    let (strings, reply, mut done) = (call.strings, &mut *call.reply, Ok(()));
    reply.array(strings.len() - 1);
    call.shared.store.read_each(strings.from(1), |value| {
        done = value.and_then(|value| match reply.is_full() {
            true => Err(TOO_MUCH),
            false => tell(reply, value),
        });
        done.is_ok()
    });
    done
}

/// Key by key: another client may see some of it.
pub fn mset(call: &mut Call<'_, Table>) -> Done {
    if call.strings.len().is_multiple_of(2) {
        return Err(Refusal::Text(wrong_number("mset")));
    }
    let (strings, table) = (call.strings, &call.shared.store);
    let pairs = (1..strings.len()).step_by(2).map(|n| (&strings[n], &strings[n + 1]));
    for put in table.store.put_many(pairs, table.options) {
        put.map_err(refusal)?;
    }
    call.reply.ok();
    Ok(())
}

pub fn getset(call: &mut Call<'_, Table>) -> Done {
    let value = &call.strings[2];
    let before = call.shared.store.change(&call.strings[1], |found, bytes, new| {
        new.extend_from_slice(value);
        Ok((Change::Put { expires: 0 }, to_tell(found, bytes)))
    })?;
    tell(call.reply, before.as_deref())
}

pub fn getdel(call: &mut Call<'_, Table>) -> Done {
    let change = |found, bytes: &[u8], _: &mut Vec<u8>| Ok((Change::Remove, to_tell(found, bytes)));
    let before = call.shared.store.change(&call.strings[1], change)?;
    tell(call.reply, before.as_deref())
}

pub fn getex(call: &mut Call<'_, Table>) -> Done {
    let expires = match call.strings.len() {
        2 => return get(call),
        3 if call.is(2, "persist") => 0,
        4 => micros(expiry_option(call, 2, "getex")?),
        _ => return Err(SYNTAX),
    };
    let value = call.shared.store.change(&call.strings[1], |found, bytes, new| {
        new.extend_from_slice(bytes);
        let change = match found {
            Some(value) if value.expires != expires => Change::Put { expires },
            _ => Change::None,
        };
        Ok((change, to_tell(found, bytes)))
    })?;
    tell(call.reply, value.as_deref())
}

pub fn append(call: &mut Call<'_, Table>) -> Done {
    let more = &call.strings[2];
    let len = call.shared.store.change(&call.strings[1], |found, bytes, new| {
        let len = bytes.len() + more.len();
        if len as u64 > STRING_MAX {
            return Err(TOO_LONG);
        }
        new.extend_from_slice(bytes);
        new.extend_from_slice(more);
        let change = match found {
            Some(_) if more.is_empty() => Change::None,
            found => Change::Put {
                expires: expires_of(found),
            },
        };
        Ok((change, len))
    })?;
    call.reply.integer(len as i64);
    Ok(())
}

pub fn strlen(call: &mut Call<'_, Table>) -> Done {
    let found = call.shared.store.store.value_of(&call.strings[1]).map_err(refusal)?;
    call.reply.integer(found.map_or(0, |value| value.len as i64));
    Ok(())
}

pub fn getrange(call: &mut Call<'_, Table>) -> Done {
    let (from, to) = (call.integer(2)?, call.integer(3)?);
    let table = &mut call.shared.store;
    table.read(&call.strings[1])?;
    let bytes = table.bytes();
    let (first, count) = range(bytes.len(), from, to).unwrap_or((0, 0));
    tell(call.reply, Some(&bytes[first..first + count]))
}

pub fn setrange(call: &mut Call<'_, Table>) -> Done {
    let at = usize::try_from(call.integer(2)?).map_err(|_| Refusal::Says("ERR offset is out of range"))?;
    let value = &call.strings[3];
    let end = at.saturating_add(value.len());
    let len = call.shared.store.change(&call.strings[1], |found, bytes, new| {
        if value.is_empty() {
            return Ok((Change::None, bytes.len()));
        }
        if end as u64 > STRING_MAX {
            return Err(TOO_LONG);
        }
        new.extend_from_slice(bytes);
        new.resize(bytes.len().max(end), 0);
        new[at..end].copy_from_slice(value);
        let expires = expires_of(found);
        Ok((Change::Put { expires }, new.len()))
    })?;
    call.reply.integer(len as i64);
    Ok(())
}

pub fn incr(call: &mut Call<'_, Table>) -> Done {
    add(call, 1)
}

pub fn decr(call: &mut Call<'_, Table>) -> Done {
    add(call, -1)
}

pub fn incrby(call: &mut Call<'_, Table>) -> Done {
    add(call, call.integer(2)?)
}

pub fn decrby(call: &mut Call<'_, Table>) -> Done {
    let n = call.integer(2)?.checked_neg();
    add(call, n.ok_or(Refusal::Says("ERR decrement would overflow"))?)
}

fn add(call: &mut Call<'_, Table>, n: i64) -> Done {
    let sum = call.shared.store.change(&call.strings[1], |found, bytes, new| {
        let held = match found {
            Some(_) => integer(bytes).ok_or(NOT_INTEGER)?,
            None => 0,
        };
        let sum = held.checked_add(n).ok_or(Failure::Overflow)?;
        new.extend_from_slice(decimal(sum, &mut [0; 20]));
        let expires = expires_of(found);
        Ok((Change::Put { expires }, sum))
    })?;
    call.reply.integer(sum);
    Ok(())
}

pub fn incrbyfloat(call: &mut Call<'_, Table>) -> Done {
    let n = &call.strings[2];
    let sum = call.shared.store.change(&call.strings[1], |found, bytes, new| {
        let held = match found {
            Some(_) if bytes.len() > FLOAT_MAX => return Err(NOT_FLOAT),
            Some(_) => float(bytes).ok_or(NOT_FLOAT)?,
            None => 0.0,
        };
        let sum = written_sum(held, n)?;
        new.extend_from_slice(sum.as_bytes());
        let expires = expires_of(found);
        Ok((Change::Put { expires }, sum))
    })?;
    call.reply.string(sum.as_bytes());
    Ok(())
}
