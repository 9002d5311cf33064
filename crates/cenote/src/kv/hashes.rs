//! Commands on hashes.

use super::dispatch::Call;
use super::keys::{Names, ScanOptions};
use super::refusal::{Done, Refusal, TOO_MUCH, wrong_number};
use super::reply::Reply;
use super::strings::float_sum;
use cenote_base::Error;
use cenote_kv::{Entry, Failure};

const NOT_INTEGER: Refusal = Refusal::Says("ERR hash value is not an integer");

/// The hash that the first string names, if it is there.
fn hash(call: &mut Call<'_>) -> Result<Option<Entry>, Refusal> {
    let found = call.shared.store.find(&call.strings[1], call.shared.now)?;
    match found {
        Some(entry) if !entry.is_hash() => Err(Failure::WrongKind.into()),
        found => Ok(found),
    }
}

/// The field that the second string names, if it is there.
fn field(call: &mut Call<'_>) -> Result<Option<Entry>, Refusal> {
    match hash(call)? {
        Some(hash) => Ok(call.shared.store.field(&hash, &call.strings[2])?),
        None => Ok(None),
    }
}

pub fn hset(call: &mut Call<'_>) -> Done {
    let added = set_all(call, "hset")?;
    call.reply.integer(added);
    Ok(())
}

pub fn hmset(call: &mut Call<'_>) -> Done {
    set_all(call, "hmset")?;
    call.reply.ok();
    Ok(())
}

/// How many of the fields are new.
fn set_all(call: &mut Call<'_>, command: &str) -> Result<i64, Refusal> {
    if !call.strings.len().is_multiple_of(2) {
        return Err(Refusal::Text(wrong_number(command)));
    }
    let strings = call.strings;
    let pairs = (2..strings.len()).step_by(2).map(|n| (&strings[n], &strings[n + 1]));
    let added = call.shared.store.set_fields(&strings[1], pairs, call.shared.now)?;
    call.touch();
    Ok(added as i64)
}

pub fn hsetnx(call: &mut Call<'_>) -> Done {
    let is_new = field(call)?.is_none();
    if is_new {
        let (key, name, value) = (&call.strings[1], &call.strings[2], &call.strings[3]);
        call.shared.store.set_field(key, name, value, call.shared.now)?;
        call.touch();
    }
    call.reply.integer(is_new.into());
    Ok(())
}

pub fn hget(call: &mut Call<'_>) -> Done {
    let entry = field(call)?;
    call.reply.value_or_null(&call.shared.store, entry.as_ref())
}

pub fn hmget(call: &mut Call<'_>) -> Done {
    let hash = hash(call)?;
    call.reply.array(call.strings.len() - 2);
    for name in call.strings.from(2) {
        let entry = match &hash {
            Some(hash) => call.shared.store.field(hash, name)?,
            None => None,
        };
        call.reply.value_or_null(&call.shared.store, entry.as_ref())?;
    }
    Ok(())
}

/// Answers with what is told of each field of the hash that the first string names.
fn tell_all(call: &mut Call<'_>, head: fn(&mut Reply, usize), tell: fn(&mut Reply, &[u8], &[u8])) -> Done {
    let Some(hash) = hash(call)? else {
        head(call.reply, 0);
        return Ok(());
    };
    let (store, reply) = (&mut call.shared.store, &mut *call.reply);
    let (said, mut told) = (store.fields_of(&hash)?, 0);
    head(reply, said as usize);
    store.each_pair(&hash, |name, value| {
        told += 1;
        if !reply.is_full() {
            tell(reply, name, value);
        }
    })?;
    // The client would take what comes next for the rest of it, or the rest for what comes next.
    if told != said {
        let text = format!("a hash of {told} fields that says that it has {said}");
        return Err(Failure::Memory(Error::Corrupt(text)).into());
    }
    match reply.is_full() {
        true => Err(TOO_MUCH),
        false => Ok(()),
    }
}

pub fn hgetall(call: &mut Call<'_>) -> Done {
    tell_all(call, Reply::map, |reply, name, value| {
        reply.string(name);
        reply.string(value);
    })
}

pub fn hkeys(call: &mut Call<'_>) -> Done {
    tell_all(call, Reply::array, |reply, name, _| reply.string(name))
}

pub fn hvals(call: &mut Call<'_>) -> Done {
    tell_all(call, Reply::array, |reply, _, value| reply.string(value))
}

pub fn hdel(call: &mut Call<'_>) -> Done {
    hash(call)?;
    let mut removed = 0;
    for name in call.strings.from(2) {
        let (key, now) = (&call.strings[1], call.shared.now);
        removed += i64::from(call.shared.store.remove_field(key, name, now)?);
    }
    if removed > 0 {
        call.touch();
    }
    call.reply.integer(removed);
    Ok(())
}

pub fn hexists(call: &mut Call<'_>) -> Done {
    let is_there = field(call)?.is_some();
    call.reply.integer(is_there.into());
    Ok(())
}

pub fn hlen(call: &mut Call<'_>) -> Done {
    let len = match hash(call)? {
        Some(hash) => call.shared.store.fields_of(&hash)?,
        None => 0,
    };
    call.reply.integer(len as i64);
    Ok(())
}

pub fn hstrlen(call: &mut Call<'_>) -> Done {
    let len = match field(call)? {
        Some(field) => call.shared.store.len_of(&field)?,
        None => 0,
    };
    call.reply.integer(len as i64);
    Ok(())
}

pub fn hincrby(call: &mut Call<'_>) -> Done {
    let n = call.integer(3)?;
    let (key, name) = (&call.strings[1], &call.strings[2]);
    let sum = call.shared.store.add_to_field(key, name, n, call.shared.now);
    let sum = sum.map_err(|failure| match failure {
        Failure::NotInteger => NOT_INTEGER,
        failure => failure.into(),
    })?;
    call.touch();
    call.reply.integer(sum);
    Ok(())
}

pub fn hincrbyfloat(call: &mut Call<'_>) -> Done {
    let found = field(call)?;
    let wrong = Refusal::Says("ERR hash value is not a float");
    let sum = float_sum(&call.shared.store, found.as_ref(), &call.strings[3], wrong)?;
    let (key, name) = (&call.strings[1], &call.strings[2]);
    call.shared
        .store
        .set_field(key, name, sum.as_bytes(), call.shared.now)?;
    call.touch();
    call.reply.string(sum.as_bytes());
    Ok(())
}

pub fn hscan(call: &mut Call<'_>) -> Done {
    let (mut cursor, options) = ScanOptions::read(call, 2, false)?;
    let mut found = Vec::new();
    if let Some(hash) = hash(call)? {
        for _ in 0..options.count.saturating_mul(10) {
            cursor = call
                .shared
                .store
                .scan_fields(&hash, cursor, |field| found.push(*field))?;
            if cursor == 0 || found.len() as u64 >= options.count {
                break;
            }
        }
    } else {
        cursor = 0;
    }
    let mut names = Names::default();
    for field in &found {
        names.end(|out| call.shared.store.append_key(field, out))?;
    }
    let wanted: Vec<_> = names
        .iter()
        .zip(&found)
        .filter(|(name, _)| options.wants(name))
        .collect();
    call.reply.array(2);
    call.reply.string(cursor.to_string().as_bytes());
    call.reply.array(2 * wanted.len());
    for (name, field) in wanted {
        call.reply.string(name);
        call.reply.value(&call.shared.store, field)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::board::Board;
    use super::super::client::Client;
    use super::super::commands::COMMANDS;
    use super::super::dispatch::Shared;
    use super::super::request::Request;
    use super::*;
    use cenote_kv::Store;
    use cenote_space::{Space, SpaceOptions};
    use std::sync::Arc;

    /// Its head would not be that of what follows it: the client would take the next answer for a part of this one.
    #[test]
    fn a_hash_whose_count_is_wrong_is_an_error() {
        let space = Space::dram(&SpaceOptions {
            bytes: 64 << 20,
            ..SpaceOptions::default()
        });
        let space = space.expect("memory");
        let mut store = Store::open(&space).expect("a store");
        for n in 0..100u32 {
            store
                .set_field(b"hash", n.to_string().as_bytes(), b"value", 1)
                .expect("room");
        }
        // The table of its fields: so many entries, in as many buckets.
        let mut counts = Vec::new();
        space
            .each_object(|at, _| {
                let word = |n| at.checked_add(n).and_then(|at| space.load(at).ok());
                counts.extend(
                    (word(0) == Some(100) && word(8) == Some(100))
                        .then_some(at.checked_add(8))
                        .flatten(),
                );
            })
            .expect("told");
        assert_eq!(counts.len(), 1);
        space.store(counts[0], 99).expect("there");
        let board = Arc::new(Board::new(1, 1, None, 0));
        let mut shared = Shared::new(store, &COMMANDS, &board, 0);
        for words in [&b"HGETALL hash\r\n"[..], b"HKEYS hash\r\n", b"HVALS hash\r\n"] {
            let (mut request, mut reply) = (Request::default(), Reply::default());
            let mut client = Client {
                is_admitted: true,
                ..Client::default()
            };
            assert_eq!(request.read(words), Ok(true));
            let strings = request.strings(words);
            shared.execute(&mut client, shared.command_of(strings), strings, &mut reply);
            assert!(reply.bytes.starts_with(b"-ERR the memory"), "{reply:?}");
        }
    }
}
