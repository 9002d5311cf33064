//! Commands on strings.

use super::dispatch::{Call, Data};
use super::keys::{deadline, set_expiry};
use super::refusal::{Done, Refusal, SYNTAX, wrong_number};
use cenote_kv::{Entry, Keep, PREFETCHED_KEYS, STRING_MAX, Store};

/// No number is written with more digits.
pub const FLOAT_MAX: usize = 400;
pub const NOT_FLOAT: Refusal = Refusal::Says("ERR value is not a valid float");
pub const TOO_LONG: Refusal = Refusal::Says("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

pub fn get(call: &mut Call<'_>) -> Done {
    let entry = call.shared.store.find(&call.strings[1], call.shared.now)?;
    call.reply.value_or_null(&call.shared.store, entry.as_ref())
}

/// What stands behind the value of SET.
#[derive(Default)]
pub struct SetOptions {
    pub only_new: bool,
    pub only_there: bool,
    /// It answers with what was there.
    pub gets: bool,
    /// It expires when what was there would have.
    pub keeps: bool,
    /// When it expires.
    pub expiry: Option<u64>,
}

impl SetOptions {
    /// # Errors
    /// They contradict each other, or are none.
    pub fn read<D: Data>(call: &mut Call<'_, D>) -> Result<Self, Refusal> {
        let (mut options, mut n) = (Self::default(), 3);
        while n < call.strings.len() {
            match () {
                () if call.is(n, "nx") && !options.only_there => options.only_new = true,
                () if call.is(n, "xx") && !options.only_new => options.only_there = true,
                () if call.is(n, "get") => options.gets = true,
                () if call.is(n, "keepttl") && options.expiry.is_none() => options.keeps = true,
                () if options.expiry.is_none() && !options.keeps && n + 1 < call.strings.len() => {
                    options.expiry = Some(expiry_option(call, n, "set")?);
                    n += 1;
                }
                () => return Err(SYNTAX),
            }
            n += 1;
        }
        Ok(options)
    }
}

/// EX, PX, EXAT or PXAT and the number behind it.
///
/// # Errors
/// It is none of these, or no time that is to come.
pub fn expiry_option<D: Data>(call: &mut Call<'_, D>, n: usize, command: &str) -> Result<u64, Refusal> {
    let (unit, is_relative) = match () {
        () if call.is(n, "ex") => (1000, true),
        () if call.is(n, "px") => (1, true),
        () if call.is(n, "exat") => (1000, false),
        () if call.is(n, "pxat") => (1, false),
        () => return Err(SYNTAX),
    };
    positive_deadline(call, n + 1, unit, is_relative, command)
}

/// A time that is to come.
///
/// # Errors
/// The string is none.
pub fn positive_deadline<D: Data>(
    call: &mut Call<'_, D>,
    n: usize,
    unit: i64,
    is_relative: bool,
    command: &str,
) -> Result<u64, Refusal> {
    let time = call.integer(n)?;
    let at = deadline(time, unit, is_relative, call.look_at_clock()).filter(|_| time > 0);
    at.ok_or_else(|| Refusal::Text(format!("ERR invalid expire time in '{command}' command")))
}

pub fn set(call: &mut Call<'_>) -> Done {
    if call.strings.len() == 3 {
        let (key, value) = (&call.strings[1], &call.strings[2]);
        call.shared.store.set(key, value, Keep::At(0), call.shared.now)?;
        call.touch();
        call.reply.ok();
        return Ok(());
    }
    let options = SetOptions::read(call)?;
    let (key, value, now) = (&call.strings[1], &call.strings[2], call.shared.now);
    let former = call.shared.store.find(key, now)?;
    if options.gets {
        call.reply.value_or_null(&call.shared.store, former.as_ref())?;
    }
    if options.only_new && former.is_some() || options.only_there && former.is_none() {
        if !options.gets {
            call.reply.null();
        }
        return Ok(());
    }
    let keep = match (options.keeps, options.expiry) {
        (true, _) => Keep::Expiry,
        (false, expiry) => Keep::At(expiry.unwrap_or(0)),
    };
    call.shared.store.set(key, value, keep, now)?;
    call.touch();
    if !options.gets {
        call.reply.ok();
    }
    Ok(())
}

pub fn setnx(call: &mut Call<'_>) -> Done {
    let (key, now) = (&call.strings[1], call.shared.now);
    let is_new = call.shared.store.find(key, now)?.is_none();
    if is_new {
        call.shared.store.set(key, &call.strings[2], Keep::At(0), now)?;
        call.touch();
    }
    call.reply.integer(is_new.into());
    Ok(())
}

pub fn setex(call: &mut Call<'_>) -> Done {
    set_for(call, 1000, "setex")
}

pub fn psetex(call: &mut Call<'_>) -> Done {
    set_for(call, 1, "psetex")
}

fn set_for(call: &mut Call<'_>, unit: i64, command: &str) -> Done {
    let at = positive_deadline(call, 2, unit, true, command)?;
    let (key, value) = (&call.strings[1], &call.strings[3]);
    call.shared.store.set(key, value, Keep::At(at), call.shared.now)?;
    call.touch();
    call.reply.ok();
    Ok(())
}

pub fn mget(call: &mut Call<'_>) -> Done {
    call.reply.array(call.strings.len() - 1);
    for (n, key) in call.strings.from(1).enumerate() {
        if n % PREFETCHED_KEYS == 0 {
            call.shared.store.expect(call.strings.from(1 + n));
        }
        let entry = call.shared.store.find(key, call.shared.now)?;
        let string = entry.filter(|entry| !entry.is_hash());
        call.reply.value_or_null(&call.shared.store, string.as_ref())?;
    }
    Ok(())
}

/// Keys with values, each after the other from the first string on.
fn set_all(call: &mut Call<'_>) -> Done {
    for n in (1..call.strings.len()).step_by(2) {
        let (key, value) = (&call.strings[n], &call.strings[n + 1]);
        call.shared.store.set(key, value, Keep::At(0), call.shared.now)?;
        call.shared.watches.touch(key);
    }
    Ok(())
}

pub fn mset(call: &mut Call<'_>) -> Done {
    if call.strings.len().is_multiple_of(2) {
        return Err(Refusal::Text(wrong_number("mset")));
    }
    set_all(call)?;
    call.reply.ok();
    Ok(())
}

pub fn msetnx(call: &mut Call<'_>) -> Done {
    if call.strings.len().is_multiple_of(2) {
        return Err(Refusal::Text(wrong_number("msetnx")));
    }
    for key in call.strings.from(1).step_by(2) {
        if call.shared.store.find(key, call.shared.now)?.is_some() {
            call.reply.integer(0);
            return Ok(());
        }
    }
    set_all(call)?;
    call.reply.integer(1);
    Ok(())
}

pub fn getset(call: &mut Call<'_>) -> Done {
    get(call)?;
    let (key, value) = (&call.strings[1], &call.strings[2]);
    call.shared.store.set(key, value, Keep::At(0), call.shared.now)?;
    call.touch();
    Ok(())
}

pub fn getdel(call: &mut Call<'_>) -> Done {
    get(call)?;
    if call.shared.store.remove(&call.strings[1], call.shared.now)? {
        call.touch();
    }
    Ok(())
}

pub fn getex(call: &mut Call<'_>) -> Done {
    let expiry = match call.strings.len() {
        2 => None,
        3 if call.is(2, "persist") => Some(0),
        4 => Some(expiry_option(call, 2, "getex")?),
        _ => return Err(SYNTAX),
    };
    get(call)?;
    if let Some(at) = expiry {
        set_expiry(call, at)?;
    }
    Ok(())
}

pub fn append(call: &mut Call<'_>) -> Done {
    let (key, more) = (&call.strings[1], &call.strings[2]);
    let len = call.shared.store.append(key, more, call.shared.now)?;
    call.touch();
    call.reply.integer(len as i64);
    Ok(())
}

pub fn strlen(call: &mut Call<'_>) -> Done {
    let len = match call.shared.store.find(&call.strings[1], call.shared.now)? {
        Some(entry) => call.shared.store.len_of(&entry)?,
        None => 0,
    };
    call.reply.integer(len as i64);
    Ok(())
}

pub fn getrange(call: &mut Call<'_>) -> Done {
    let (from, to) = (call.integer(2)?, call.integer(3)?);
    let Some(entry) = call.shared.store.find(&call.strings[1], call.shared.now)? else {
        call.reply.string(b"");
        return Ok(());
    };
    match range(call.shared.store.len_of(&entry)?, from, to) {
        None => {
            call.reply.string(b"");
            Ok(())
        }
        Some((first, count)) => call.reply.range(&call.shared.store, &entry, first, count),
    }
}

/// Where a range of a string begins and how many bytes it has, its ends counted from the string's end where they are
/// negative; `None` if it is empty.
pub fn range(len: usize, from: i64, to: i64) -> Option<(usize, usize)> {
    let len = len as i64;
    let from_start = |n: i64| if n < 0 { len.saturating_add(n) } else { n };
    let (first, last) = (from_start(from).max(0), from_start(to).max(0).min(len - 1));
    // Two places before the beginning are nothing, if they are the wrong way round.
    let is_empty = from < 0 && to < 0 && from > to || len == 0 || first > last;
    (!is_empty).then(|| (first as usize, (last - first + 1) as usize))
}

pub fn setrange(call: &mut Call<'_>) -> Done {
    let at = call.integer(2)?;
    if at < 0 {
        return Err(Refusal::Says("ERR offset is out of range"));
    }
    let (key, value, now) = (&call.strings[1], &call.strings[3], call.shared.now);
    let mut whole = Vec::new();
    if let Some(entry) = call.shared.store.find(key, now)? {
        let len = call.shared.store.len_of(&entry)?;
        if value.is_empty() {
            call.reply.integer(len as i64);
            return Ok(());
        }
        call.shared.store.append_value(&entry, 0, len, &mut whole)?;
    } else if value.is_empty() {
        call.reply.integer(0);
        return Ok(());
    }
    let end = (at as u64).saturating_add(value.len() as u64);
    if end > STRING_MAX {
        return Err(TOO_LONG);
    }
    let (at, end) = (at as usize, end as usize);
    whole.resize(whole.len().max(end), 0);
    whole[at..end].copy_from_slice(value);
    call.shared.store.set(key, &whole, Keep::Expiry, now)?;
    call.touch();
    call.reply.integer(whole.len() as i64);
    Ok(())
}

pub fn incr(call: &mut Call<'_>) -> Done {
    add(call, 1)
}

pub fn decr(call: &mut Call<'_>) -> Done {
    add(call, -1)
}

pub fn incrby(call: &mut Call<'_>) -> Done {
    add(call, call.integer(2)?)
}

pub fn decrby(call: &mut Call<'_>) -> Done {
    let n = call.integer(2)?.checked_neg();
    add(call, n.ok_or(Refusal::Says("ERR decrement would overflow"))?)
}

fn add(call: &mut Call<'_>, n: i64) -> Done {
    let sum = call.shared.store.add(&call.strings[1], n, call.shared.now)?;
    call.touch();
    call.reply.integer(sum);
    Ok(())
}

/// A number with a fraction.
pub fn float(text: &[u8]) -> Option<f64> {
    let text = core::str::from_utf8(text).ok()?;
    let is_plain = text
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    text.parse().ok().filter(|number: &f64| is_plain && number.is_finite())
}

/// The sum of what an entry holds and a string, as it is written.
///
/// # Errors
/// `wrong` if the entry holds no float; the string is none, or the sum is not finite.
pub fn float_sum(store: &Store, held: Option<&Entry>, n: &[u8], wrong: Refusal) -> Result<String, Refusal> {
    let held = match held {
        Some(entry) => held_float(store, entry)?.ok_or(wrong)?,
        None => 0.0,
    };
    written_sum(held, n)
}

/// The sum of a number and a string, as it is written.
///
/// # Errors
/// The string is no number, or the sum is not finite.
pub fn written_sum(held: f64, n: &[u8]) -> Result<String, Refusal> {
    let sum = held + float(n).ok_or(NOT_FLOAT)?;
    match sum.is_finite() {
        true => Ok(format!("{sum}")),
        false => Err(Refusal::Says("ERR increment would produce NaN or Infinity")),
    }
}

/// The number that an entry holds, if it is one.
fn held_float(store: &Store, entry: &Entry) -> Result<Option<f64>, Refusal> {
    let (mut text, len) = (Vec::new(), store.len_of(entry)?);
    if len > FLOAT_MAX {
        return Ok(None);
    }
    store.append_value(entry, 0, len, &mut text)?;
    Ok(float(&text))
}

pub fn incrbyfloat(call: &mut Call<'_>) -> Done {
    let (key, now) = (&call.strings[1], call.shared.now);
    let found = call.shared.store.find(key, now)?;
    let sum = float_sum(&call.shared.store, found.as_ref(), &call.strings[2], NOT_FLOAT)?;
    call.shared.store.set(key, sum.as_bytes(), Keep::Expiry, now)?;
    call.touch();
    call.reply.string(sum.as_bytes());
    Ok(())
}
