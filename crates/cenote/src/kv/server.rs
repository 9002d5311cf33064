//! Commands about the server and the connection.

use super::board::Board;
use super::client::Client;
use super::dispatch::{Call, Command, Data, Shared, WRITES};
use super::glob;
use super::refusal::{Done, Refusal, SYNTAX, wrong_number};
use super::secret::USER;
use cenote_kv::STRING_MAX;
use std::fmt::Write;

/// The Redis whose commands these are: clients look at it.
const REDIS_VERSION: &str = "7.0.0";

pub fn ping<D: Data>(call: &mut Call<'_, D>) -> Done {
    match call.strings.len() {
        1 => call.reply.simple("PONG"),
        2 => call.reply.string(&call.strings[1]),
        _ => return Err(Refusal::Text(wrong_number("ping"))),
    }
    Ok(())
}

pub fn echo<D: Data>(call: &mut Call<'_, D>) -> Done {
    call.reply.string(&call.strings[1]);
    Ok(())
}

pub fn quit<D: Data>(call: &mut Call<'_, D>) -> Done {
    call.client.is_leaving = true;
    call.reply.ok();
    Ok(())
}

pub fn select<D: Data>(call: &mut Call<'_, D>) -> Done {
    match call.integer(1) {
        Ok(0) => call.reply.ok(),
        Ok(_) => return Err(Refusal::Says("ERR DB index is out of range")),
        Err(_) => return Err(Refusal::Says("ERR invalid DB index")),
    }
    Ok(())
}

/// The secret, or the user's name and the secret.
pub fn auth<D: Data>(call: &mut Call<'_, D>) -> Done {
    let (user, secret) = match call.strings.len() {
        2 => (USER, &call.strings[1]),
        3 => (&call.strings[1], &call.strings[2]),
        _ => return Err(SYNTAX),
    };
    admit(call.shared, call.client, user, secret)?;
    call.reply.ok();
    Ok(())
}

fn admit<D: Data>(shared: &Shared<D>, client: &mut Client, user: &[u8], secret: &[u8]) -> Done {
    let Some(wanted) = &shared.board.secret else {
        return Err(Refusal::Says(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
        ));
    };
    if !(wanted.is(secret) && user == USER) {
        shared.counters.denied.add(1);
        return Err(Refusal::Says(
            "WRONGPASS invalid username-password pair or user is disabled.",
        ));
    }
    client.is_admitted = true;
    Ok(())
}

pub fn reset<D: Data>(call: &mut Call<'_, D>) -> Done {
    call.client.queue = None;
    call.client.name.clear();
    call.shared.watches.forget(call.client);
    call.client.is_admitted = call.shared.board.secret.is_none();
    call.reply.is_resp3 = false;
    call.reply.simple("RESET");
    Ok(())
}

pub fn hello<D: Data>(call: &mut Call<'_, D>) -> Done {
    let mut is_resp3 = call.reply.is_resp3;
    if call.strings.len() > 1 {
        is_resp3 = match &call.strings[1] {
            b"2" => false,
            b"3" => true,
            _ => return Err(Refusal::Says("NOPROTO unsupported protocol version")),
        };
    }
    let name = hello_options(call)?;
    if !call.client.is_admitted {
        return Err(Refusal::Says(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
             <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the \
             same time",
        ));
    }
    if let Some(n) = name {
        set_name(call, n)?;
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

/// What stands behind the version: the secret, and the name of the client, which is this string.
fn hello_options<D: Data>(call: &mut Call<'_, D>) -> Result<Option<usize>, Refusal> {
    let (mut n, mut name) = (2, None);
    while n < call.strings.len() {
        match () {
            () if call.is(n, "setname") && n + 1 < call.strings.len() => {
                name = Some(n + 1);
                n += 2;
            }
            () if call.is(n, "auth") && n + 2 < call.strings.len() => {
                admit(call.shared, call.client, &call.strings[n + 1], &call.strings[n + 2])?;
                n += 3;
            }
            () => return Err(SYNTAX),
        }
    }
    Ok(name)
}

fn set_name<D: Data>(call: &mut Call<'_, D>, n: usize) -> Done {
    let name = &call.strings[n];
    if !name.iter().all(u8::is_ascii_graphic) {
        return Err(Refusal::Says(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ));
    }
    call.client.name = name.to_vec();
    Ok(())
}

fn unknown_part<D: Data>(call: &Call<'_, D>, of: &str) -> Refusal {
    let part = String::from_utf8_lossy(&call.strings[1]).into_owned();
    Refusal::Text(format!(
        "ERR unknown subcommand or wrong number of arguments for '{part}' of {of}"
    ))
}

pub fn client<D: Data>(call: &mut Call<'_, D>) -> Done {
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

pub fn command<D: Data>(call: &mut Call<'_, D>) -> Done {
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

fn describe<D: Data>(call: &mut Call<'_, D>, command: &Command<D>) {
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

pub fn config<D: Data>(call: &mut Call<'_, D>) -> Done {
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
    let usage = call.shared.store.usage();
    let settings = [
        ("appendonly", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", call.shared.board.connections_max.to_string()),
        ("maxmemory", usage.capacity.to_string()),
        ("maxmemory-policy", usage.policy.to_owned()),
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

pub fn info<D: Data>(call: &mut Call<'_, D>) -> Done {
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

fn sections<D: Data>(call: &Call<'_, D>) -> [(&'static str, String); 5] {
    let (board, usage) = (&call.shared.board, call.shared.store.usage());
    let seconds = call.shared.now.saturating_sub(board.began) / 1000;
    let keyspace = match usage.keys {
        0 => String::new(),
        keys => format!("db0:keys={keys},expires={},avg_ttl=0\n", usage.expires.unwrap_or(0)),
    };
    [
        (
            "server",
            format!(
                "redis_version:{REDIS_VERSION}\ncenote_version:{}\nredis_mode:standalone\nprocess_id:{}\n\
                 io_threads_active:{}\nuptime_in_seconds:{seconds}\n",
                env!("CARGO_PKG_VERSION"),
                std::process::id(),
                board.threads.len()
            ),
        ),
        (
            "clients",
            format!(
                "connected_clients:{}\nmaxclients:{}\n",
                board.connections(),
                board.connections_max
            ),
        ),
        (
            "memory",
            format!(
                "used_memory:{}\nmaxmemory:{}\nmaxmemory_policy:{}\n",
                usage.used, usage.capacity, usage.policy
            ),
        ),
        ("stats", counted(board) + &usage.counted),
        ("keyspace", keyspace),
    ]
}

fn counted(board: &Board) -> String {
    format!(
        "total_connections_received:{}\nrejected_connections:{}\ntotal_commands_processed:{}\n\
         total_net_input_bytes:{}\ntotal_net_output_bytes:{}\nauth_failures:{}\nexpired_keys_swept:{}\n",
        board.accepted.get(),
        board.refused.get(),
        board.sum(|counters| &counters.commands),
        board.sum(|counters| &counters.bytes_in),
        board.sum(|counters| &counters.bytes_out),
        board.sum(|counters| &counters.denied),
        board.sum(|counters| &counters.swept),
    )
}

pub fn time<D: Data>(call: &mut Call<'_, D>) -> Done {
    let now = call.look_at_clock();
    call.reply.array(2);
    call.reply.string((now / 1000).to_string().as_bytes());
    call.reply.string((now % 1000 * 1000).to_string().as_bytes());
    Ok(())
}

pub fn lastsave<D: Data>(call: &mut Call<'_, D>) -> Done {
    call.reply.integer((call.shared.board.began / 1000) as i64);
    Ok(())
}
