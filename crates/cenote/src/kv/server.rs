//! Commands about the server and the connection.

use super::dispatch::{Call, Command, WRITES};
use super::glob;
use super::refusal::{Done, Refusal, SYNTAX, wrong_number};
use cenote_kv::STRING_MAX;
use std::fmt::Write;

/// The Redis whose commands these are: clients look at it.
const REDIS_VERSION: &str = "7.0.0";

pub fn ping(call: &mut Call<'_>) -> Done {
    match call.strings.len() {
        1 => call.reply.simple("PONG"),
        2 => call.reply.string(&call.strings[1]),
        _ => return Err(Refusal::Text(wrong_number("ping"))),
    }
    Ok(())
}

pub fn echo(call: &mut Call<'_>) -> Done {
    call.reply.string(&call.strings[1]);
    Ok(())
}

pub fn quit(call: &mut Call<'_>) -> Done {
    call.client.is_leaving = true;
    call.reply.ok();
    Ok(())
}

pub fn select(call: &mut Call<'_>) -> Done {
    match call.integer(1) {
        Ok(0) => call.reply.ok(),
        Ok(_) => return Err(Refusal::Says("ERR DB index is out of range")),
        Err(_) => return Err(Refusal::Says("ERR invalid DB index")),
    }
    Ok(())
}

pub fn auth(_call: &mut Call<'_>) -> Done {
    Err(Refusal::Says(
        "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
         configuration is correct?",
    ))
}

pub fn reset(call: &mut Call<'_>) -> Done {
    call.client.queue = None;
    call.client.name.clear();
    call.shared.watches.forget(call.client);
    call.reply.is_resp3 = false;
    call.reply.simple("RESET");
    Ok(())
}

pub fn hello(call: &mut Call<'_>) -> Done {
    let mut is_resp3 = call.reply.is_resp3;
    if call.strings.len() > 1 {
        is_resp3 = match &call.strings[1] {
            b"2" => false,
            b"3" => true,
            _ => return Err(Refusal::Says("NOPROTO unsupported protocol version")),
        };
    }
    match call.strings.len() {
        0..=2 => {}
        4 if call.is(2, "setname") => set_name(call, 3)?,
        n if n > 4 && call.is(2, "auth") => return auth(call),
        _ => return Err(SYNTAX),
    }
    call.reply.is_resp3 = is_resp3;
    call.reply.map(7);
    let words = [("server", "redis"), ("version", REDIS_VERSION)];
    for (name, value) in words {
        call.reply.string(name.as_bytes());
        call.reply.string(value.as_bytes());
    }
    call.reply.string(b"proto");
    call.reply.integer(if is_resp3 { 3 } else { 2 });
    call.reply.string(b"id");
    call.reply.integer(call.client.id as i64);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        call.reply.string(name.as_bytes());
        call.reply.string(value.as_bytes());
    }
    call.reply.string(b"modules");
    call.reply.array(0);
    Ok(())
}

fn set_name(call: &mut Call<'_>, n: usize) -> Done {
    let name = &call.strings[n];
    if !name.iter().all(u8::is_ascii_graphic) {
        return Err(Refusal::Says(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ));
    }
    call.client.name = name.to_vec();
    Ok(())
}

fn unknown_part(call: &Call<'_>, of: &str) -> Refusal {
    let part = String::from_utf8_lossy(&call.strings[1]).into_owned();
    Refusal::Text(format!(
        "ERR unknown subcommand or wrong number of arguments for '{part}' of {of}"
    ))
}

pub fn client(call: &mut Call<'_>) -> Done {
    match call.strings.len() {
        3 if call.is(1, "setname") => {
            set_name(call, 2)?;
            call.reply.ok();
        }
        2 if call.is(1, "getname") && call.client.name.is_empty() => call.reply.null(),
        2 if call.is(1, "getname") => call.reply.string(&call.client.name),
        2 if call.is(1, "id") => call.reply.integer(call.client.id as i64),
        4 if call.is(1, "setinfo") && (call.is(2, "lib-name") || call.is(2, "lib-ver")) => call.reply.ok(),
        _ => return Err(unknown_part(call, "CLIENT")),
    }
    Ok(())
}

pub fn command(call: &mut Call<'_>) -> Done {
    match call.strings.len() {
        1 => {
            call.reply.array(call.shared.commands().len());
            call.shared
                .commands()
                .iter()
                .for_each(|command| describe(call, command));
        }
        2 if call.is(1, "count") => call.reply.integer(call.shared.commands().len() as i64),
        _ if call.is(1, "docs") => call.reply.map(0),
        n if call.is(1, "info") => {
            call.reply.array(n - 2);
            for name in call.strings.from(2) {
                match call.shared.named(name) {
                    Some(command) => describe(call, command),
                    None => call.reply.null_array(),
                }
            }
        }
        _ => return Err(unknown_part(call, "COMMAND")),
    }
    Ok(())
}

fn describe(call: &mut Call<'_>, command: &Command) {
    let reply = &mut *call.reply;
    reply.array(6);
    reply.string(command.name.as_bytes());
    reply.integer(command.arity);
    reply.array(1);
    let writes = command.flags & WRITES != 0;
    reply.simple(if writes { "write" } else { "readonly" });
    let (first, last, step) = command.keys;
    [first, last, step].into_iter().for_each(|n| reply.integer(n));
}

pub fn config(call: &mut Call<'_>) -> Done {
    match call.strings.len() {
        3.. if call.is(1, "get") => {}
        2 if call.is(1, "resetstat") => {
            call.reply.ok();
            return Ok(());
        }
        _ if call.is(1, "set") => {
            return Err(Refusal::Says(
                "ERR settings are given on the command line: see `cenote kv --help`",
            ));
        }
        _ => return Err(unknown_part(call, "CONFIG")),
    }
    let capacity: u64 = call.shared.store.space().parts().map(|part| part.capacity()).sum();
    let settings = [
        ("appendonly", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", super::statistics::CONNECTIONS_MAX.to_string()),
        ("maxmemory", capacity.to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("proto-max-bulk-len", STRING_MAX.to_string()),
        ("save", String::new()),
        ("timeout", "0".to_owned()),
    ];
    let is_wanted = |name: &str| {
        let fits = |pattern: &[u8]| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes());
        call.strings.from(2).any(fits)
    };
    let wanted: Vec<_> = settings.iter().filter(|(name, _)| is_wanted(name)).collect();
    call.reply.map(wanted.len());
    for (name, value) in wanted {
        call.reply.string(name.as_bytes());
        call.reply.string(value.as_bytes());
    }
    Ok(())
}

pub fn info(call: &mut Call<'_>) -> Done {
    let is_wanted = |section: &str| {
        let named = |word: &[u8]| {
            [section, "all", "everything", "default"]
                .iter()
                .any(|name| word.eq_ignore_ascii_case(name.as_bytes()))
        };
        call.strings.len() == 1 || call.strings.from(1).any(named)
    };
    let mut text = String::new();
    for (section, lines) in sections(call) {
        if is_wanted(section) {
            let title = section[..1].to_uppercase() + &section[1..];
            write!(text, "# {title}\r\n{}\r\n", lines.replace('\n', "\r\n")).ok();
        }
    }
    call.reply.string(text.as_bytes());
    Ok(())
}

fn sections(call: &Call<'_>) -> [(&'static str, String); 5] {
    let (store, counted) = (&call.shared.store, &call.shared.statistics);
    let stats = store.space().stats();
    let capacity: u64 = store.space().parts().map(|part| part.capacity()).sum();
    let seconds = call.shared.now.saturating_sub(counted.began) / 1000;
    let keyspace = match store.len() {
        0 => String::new(),
        keys => format!("db0:keys={keys},expires={},avg_ttl=0\n", store.expiring()),
    };
    [
        (
            "server",
            format!(
                "redis_version:{REDIS_VERSION}\ncenote_version:{}\nredis_mode:standalone\nprocess_id:{}\nuptime_in_seconds:{seconds}\n",
                env!("CARGO_PKG_VERSION"),
                std::process::id()
            ),
        ),
        ("clients", format!("connected_clients:{}\n", counted.connections)),
        (
            "memory",
            format!(
                "used_memory:{}\nmaxmemory:{capacity}\nmaxmemory_policy:noeviction\n",
                stats.bytes()
            ),
        ),
        (
            "stats",
            format!(
                "total_connections_received:{}\ntotal_commands_processed:{}\nexpired_keys_swept:{}\n",
                counted.accepted, counted.commands, counted.swept
            ),
        ),
        ("keyspace", keyspace),
    ]
}

pub fn time(call: &mut Call<'_>) -> Done {
    let now = call.shared.now;
    call.reply.array(2);
    call.reply.string((now / 1000).to_string().as_bytes());
    call.reply.string((now % 1000 * 1000).to_string().as_bytes());
    Ok(())
}

pub fn lastsave(call: &mut Call<'_>) -> Done {
    call.reply.integer((call.shared.statistics.began / 1000) as i64);
    Ok(())
}
