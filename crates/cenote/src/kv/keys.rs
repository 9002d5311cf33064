//! Commands on keys, whatever they hold.

use super::dispatch::{Call, Data, count};
use super::glob;
use super::refusal::{Done, Refusal, SYNTAX, TOO_MUCH};
use super::request::Strings;
use cenote_kv::{Entry, Failure};
use std::str::FromStr;

/// Keys that a step of SCAN tells of, about.
const SCAN_COUNT: u64 = 10;

/// When a time is over, in milliseconds since 1970; `None` if no clock shows that.
pub fn deadline(time: i64, unit: i64, is_relative: bool, now: u64) -> Option<u64> {
    let time = time.checked_mul(unit)?;
    let at = match is_relative {
        true => time.checked_add(now as i64)?,
        false => time,
    };
    Some(at.max(0) as u64)
}

pub fn del(call: &mut Call<'_>) -> Done {
    let mut removed = 0;
    for key in call.strings.from(1) {
        if call.shared.store.remove(key, call.shared.now)? {
            call.shared.watches.touch(key);
            removed += 1;
        }
    }
    call.reply.integer(removed);
    Ok(())
}

pub fn exists(call: &mut Call<'_>) -> Done {
    let mut there = 0;
    for key in call.strings.from(1) {
        there += i64::from(call.shared.store.find(key, call.shared.now)?.is_some());
    }
    call.reply.integer(there);
    Ok(())
}

pub fn kind(call: &mut Call<'_>) -> Done {
    let entry = call.shared.store.find(&call.strings[1], call.shared.now)?;
    call.reply.simple(entry.map_or("none", |entry| name_of(&entry)));
    Ok(())
}

fn name_of(entry: &Entry) -> &'static str {
    if entry.is_hash() { "hash" } else { "string" }
}

pub fn expire(call: &mut Call<'_>) -> Done {
    expire_in(call, 1000, true, "expire")
}

pub fn pexpire(call: &mut Call<'_>) -> Done {
    expire_in(call, 1, true, "pexpire")
}

pub fn expireat(call: &mut Call<'_>) -> Done {
    expire_in(call, 1000, false, "expireat")
}

pub fn pexpireat(call: &mut Call<'_>) -> Done {
    expire_in(call, 1, false, "pexpireat")
}

fn expire_in(call: &mut Call<'_>, unit: i64, is_relative: bool, command: &str) -> Done {
    let at = deadline(call.integer(2)?, unit, is_relative, call.look_at_clock());
    let at = at.ok_or_else(|| Refusal::Text(format!("ERR invalid expire time in '{command}' command")))?;
    let found = call.shared.store.find(&call.strings[1], call.shared.now)?;
    let Some(entry) = found else {
        check_conditions(&call.strings, 0, at)?;
        call.reply.integer(0);
        return Ok(());
    };
    if !check_conditions(&call.strings, entry.expiry(), at)? {
        call.reply.integer(0);
        return Ok(());
    }
    set_expiry(call, at.max(1))?;
    call.reply.integer(1);
    Ok(())
}

/// NX, XX, GT, LT: whether an expiry may take the place of another one; never is later than all others.
///
/// # Errors
/// They contradict each other, or are none.
pub fn check_conditions(strings: &Strings<'_>, former: u64, at: u64) -> Result<bool, Refusal> {
    let (mut may, mut seen) = (true, [false; 4]);
    let later = |expiry: u64| if expiry == 0 { u64::MAX } else { expiry };
    for n in 3..strings.len() {
        let words = [
            ("nx", former == 0),
            ("xx", former != 0),
            ("gt", at > later(former)),
            ("lt", at < later(former)),
        ];
        let known = words
            .iter()
            .position(|(word, _)| strings[n].eq_ignore_ascii_case(word.as_bytes()));
        let known = known.ok_or_else(|| {
            let option = String::from_utf8_lossy(&strings[n]).into_owned();
            Refusal::Text(format!("ERR Unsupported option {option}"))
        })?;
        seen[known] = true;
        may &= words[known].1;
    }
    match seen {
        [true, ..] if seen[1..].contains(&true) => Err(Refusal::Says(
            "ERR NX and XX, GT or LT options at the same time are not compatible",
        )),
        [.., true, true] => Err(Refusal::Says(
            "ERR GT and LT options at the same time are not compatible",
        )),
        _ => Ok(may),
    }
}

/// Sets when the key that is the first string expires: if that has passed, it is gone at once.
pub fn set_expiry(call: &mut Call<'_>, at: u64) -> Done {
    let (key, now) = (&call.strings[1], call.shared.now);
    let is_there = match at != 0 && at <= now {
        true => call.shared.store.remove(key, now)?,
        false => call.shared.store.expire(key, at, now)?,
    };
    if is_there {
        call.touch();
    }
    Ok(())
}

pub fn ttl(call: &mut Call<'_>) -> Done {
    rest(call, |left| left.saturating_add(500) / 1000)
}

pub fn pttl(call: &mut Call<'_>) -> Done {
    rest(call, |left| left)
}

fn rest(call: &mut Call<'_>, shown: fn(u64) -> u64) -> Done {
    let now = call.shared.now;
    let rest = match call.shared.store.find(&call.strings[1], now)? {
        None => -2,
        Some(entry) if entry.expiry() == 0 => -1,
        Some(entry) => shown(entry.expiry().saturating_sub(now)) as i64,
    };
    call.reply.integer(rest);
    Ok(())
}

pub fn persist(call: &mut Call<'_>) -> Done {
    let (key, now) = (&call.strings[1], call.shared.now);
    let expires = call
        .shared
        .store
        .find(key, now)?
        .is_some_and(|entry| entry.expiry() != 0);
    if expires {
        call.shared.store.expire(key, 0, now)?;
        call.touch();
    }
    call.reply.integer(expires.into());
    Ok(())
}

pub fn rename(call: &mut Call<'_>) -> Done {
    rename_to(call)?;
    call.reply.ok();
    Ok(())
}

fn rename_to(call: &mut Call<'_>) -> Done {
    let (from, to) = (&call.strings[1], &call.strings[2]);
    call.shared.store.rename(from, to, call.shared.now)?;
    call.touch();
    call.shared.watches.touch(&call.strings[2]);
    Ok(())
}

pub fn renamenx(call: &mut Call<'_>) -> Done {
    let now = call.shared.now;
    if call.shared.store.find(&call.strings[1], now)?.is_none() {
        return Err(Failure::Missing.into());
    }
    let is_new = call.shared.store.find(&call.strings[2], now)?.is_none();
    if is_new {
        rename_to(call)?;
    }
    call.reply.integer(is_new.into());
    Ok(())
}

pub fn keys(call: &mut Call<'_>) -> Done {
    let (strings, mut found, mut cursor) = (call.strings, Names::default(), 0);
    loop {
        cursor = scan_step(call, cursor, &mut found, |_| true)?;
        if cursor == 0 {
            break;
        }
    }
    found.tell(call, &strings[1])
}

/// Keys that were found, one behind the other.
#[derive(Default)]
pub struct Names {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Names {
    /// One more ends here.
    ///
    /// # Errors
    /// That of `append`.
    pub fn end(&mut self, append: impl FnOnce(&mut Vec<u8>) -> Result<(), Failure>) -> Result<(), Failure> {
        append(&mut self.bytes)?;
        self.ends.push(self.bytes.len());
        Ok(())
    }

    /// One more.
    pub fn push(&mut self, name: &[u8]) {
        self.bytes.extend_from_slice(name);
        self.ends.push(self.bytes.len());
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = core::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| &self.bytes[begin..*end])
    }

    /// Answers with those that are of a pattern.
    ///
    /// # Errors
    /// `TOO_MUCH`.
    pub fn tell<D: Data>(&self, call: &mut Call<'_, D>, pattern: &[u8]) -> Done {
        let of_pattern = || self.iter().filter(|name| glob::matches(pattern, name));
        call.reply.array(of_pattern().count());
        for name in of_pattern() {
            if call.reply.is_full() {
                return Err(TOO_MUCH);
            }
            call.reply.string(name);
        }
        Ok(())
    }
}

fn scan_step(call: &Call<'_>, cursor: u32, found: &mut Names, wanted: impl Fn(&Entry) -> bool) -> Result<u32, Refusal> {
    let store = &call.shared.store;
    let mut entries = Vec::new();
    let next = store.scan(cursor, call.shared.now, |entry| entries.push(*entry))?;
    for entry in entries.iter().filter(|entry| wanted(entry)) {
        found.end(|out| store.append_key(entry, out))?;
    }
    Ok(next)
}

/// What stands behind the cursor of SCAN and HSCAN.
pub struct ScanOptions<'a> {
    /// Only what is of it.
    pub pattern: Option<&'a [u8]>,
    /// How many, about.
    pub count: u64,
    kind: Option<&'a [u8]>,
}

impl<'a> ScanOptions<'a> {
    /// The cursor, which is string `n`, and the options behind it.
    ///
    /// # Errors
    /// The cursor or an option is none.
    pub fn read<D: Data, C: FromStr>(call: &Call<'a, D>, n: usize, takes_type: bool) -> Result<(C, Self), Refusal> {
        let cursor = core::str::from_utf8(&call.strings[n])
            .ok()
            .and_then(|text| text.parse().ok());
        let cursor = cursor.ok_or(Refusal::Says("ERR invalid cursor"))?;
        let mut options = Self {
            pattern: None,
            count: SCAN_COUNT,
            kind: None,
        };
        for at in (n + 1..call.strings.len()).step_by(2) {
            let value = call.strings.get(at + 1).ok_or(SYNTAX)?;
            match () {
                () if call.is(at, "match") => options.pattern = Some(value),
                () if call.is(at, "count") => options.count = count(value)?,
                () if call.is(at, "type") && takes_type => options.kind = Some(value),
                () => return Err(SYNTAX),
            }
        }
        Ok((cursor, options))
    }

    /// Whether a name is wanted.
    pub fn wants(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name))
    }

    /// Whether keys with values of a kind are wanted.
    pub fn wants_kind(&self, name: &str) -> bool {
        self.kind.is_none_or(|kind| kind.eq_ignore_ascii_case(name.as_bytes()))
    }
}

pub fn scan(call: &mut Call<'_>) -> Done {
    let (mut cursor, options) = ScanOptions::read(call, 1, true)?;
    let (mut found, mut buckets) = (Names::default(), 0);
    loop {
        cursor = scan_step(call, cursor, &mut found, |entry| options.wants_kind(name_of(entry)))?;
        buckets += 1;
        let is_enough = found.ends.len() as u64 >= options.count || buckets >= options.count.saturating_mul(10);
        if cursor == 0 || is_enough {
            break;
        }
    }
    call.reply.array(2);
    call.reply.string(cursor.to_string().as_bytes());
    found.tell(call, options.pattern.unwrap_or(b"*"))
}

pub fn randomkey(call: &mut Call<'_>) -> Done {
    let store = &call.shared.store;
    match store.any(call.shared.now)? {
        Some(entry) => {
            let mut key = Vec::new();
            store.append_key(&entry, &mut key)?;
            call.reply.string(&key);
        }
        None => call.reply.null(),
    }
    Ok(())
}

pub fn dbsize(call: &mut Call<'_>) -> Done {
    call.reply.integer(call.shared.store.len() as i64);
    Ok(())
}

pub fn flush(call: &mut Call<'_>) -> Done {
    let is_known = match call.strings.len() {
        1 => true,
        2 => call.is(1, "sync") || call.is(1, "async"),
        _ => false,
    };
    if !is_known {
        return Err(SYNTAX);
    }
    call.shared.store.clear()?;
    call.reply.ok();
    Ok(())
}
