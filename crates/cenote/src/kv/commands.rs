//! The table of commands: names, how many strings they take, which of those are keys, and the functions that run them.

use super::dispatch::{AT_ONCE, Command, GETS, OPEN, SETS, STEP, WRITES, command};
use super::{hashes, keys, server, strings, transaction};

const NONE: (i64, i64, i64) = (0, 0, 0);
const ONE: (i64, i64, i64) = (1, 1, 1);
const TWO: (i64, i64, i64) = (1, 2, 1);
const ALL: (i64, i64, i64) = (1, -1, 1);
const PAIRS: (i64, i64, i64) = (1, -1, 2);

/// All commands.
pub static COMMANDS: [Command; 74] = [
    command("get", 2, GETS, ONE, strings::get),
    command("set", -3, WRITES | SETS, ONE, strings::set),
    command("setnx", 3, WRITES, ONE, strings::setnx),
    command("setex", 4, WRITES, ONE, strings::setex),
    command("psetex", 4, WRITES, ONE, strings::psetex),
    command("mget", -2, 0, ALL, strings::mget),
    command("mset", -3, WRITES | STEP, PAIRS, strings::mset),
    command("msetnx", -3, WRITES | STEP, PAIRS, strings::msetnx),
    command("getset", 3, WRITES, ONE, strings::getset),
    command("getdel", 2, WRITES, ONE, strings::getdel),
    command("getex", -2, WRITES, ONE, strings::getex),
    command("append", 3, WRITES, ONE, strings::append),
    command("strlen", 2, 0, ONE, strings::strlen),
    command("getrange", 4, 0, ONE, strings::getrange),
    command("substr", 4, 0, ONE, strings::getrange),
    command("setrange", 4, WRITES, ONE, strings::setrange),
    command("incr", 2, WRITES, ONE, strings::incr),
    command("decr", 2, WRITES, ONE, strings::decr),
    command("incrby", 3, WRITES, ONE, strings::incrby),
    command("decrby", 3, WRITES, ONE, strings::decrby),
    command("incrbyfloat", 3, WRITES, ONE, strings::incrbyfloat),
    command("del", -2, WRITES | STEP, ALL, keys::del),
    command("unlink", -2, WRITES | STEP, ALL, keys::del),
    command("exists", -2, 0, ALL, keys::exists),
    command("touch", -2, 0, ALL, keys::exists),
    command("type", 2, 0, ONE, keys::kind),
    command("expire", -3, WRITES, ONE, keys::expire),
    command("pexpire", -3, WRITES, ONE, keys::pexpire),
    command("expireat", -3, WRITES, ONE, keys::expireat),
    command("pexpireat", -3, WRITES, ONE, keys::pexpireat),
    command("ttl", 2, 0, ONE, keys::ttl),
    command("pttl", 2, 0, ONE, keys::pttl),
    command("persist", 2, WRITES, ONE, keys::persist),
    command("rename", 3, WRITES, TWO, keys::rename),
    command("renamenx", 3, WRITES, TWO, keys::renamenx),
    command("keys", 2, 0, NONE, keys::keys),
    command("scan", -2, 0, NONE, keys::scan),
    command("randomkey", 1, 0, NONE, keys::randomkey),
    command("dbsize", 1, 0, NONE, keys::dbsize),
    command("flushall", -1, WRITES, NONE, keys::flush),
    command("flushdb", -1, WRITES, NONE, keys::flush),
    command("hset", -4, WRITES, ONE, hashes::hset),
    command("hmset", -4, WRITES, ONE, hashes::hmset),
    command("hsetnx", 4, WRITES, ONE, hashes::hsetnx),
    command("hget", 3, 0, ONE, hashes::hget),
    command("hmget", -3, 0, ONE, hashes::hmget),
    command("hgetall", 2, 0, ONE, hashes::hgetall),
    command("hdel", -3, WRITES | STEP, ONE, hashes::hdel),
    command("hexists", 3, 0, ONE, hashes::hexists),
    command("hlen", 2, 0, ONE, hashes::hlen),
    command("hkeys", 2, 0, ONE, hashes::hkeys),
    command("hvals", 2, 0, ONE, hashes::hvals),
    command("hstrlen", 3, 0, ONE, hashes::hstrlen),
    command("hincrby", 4, WRITES, ONE, hashes::hincrby),
    command("hincrbyfloat", 4, WRITES, ONE, hashes::hincrbyfloat),
    command("hscan", -3, 0, ONE, hashes::hscan),
    command("multi", 1, AT_ONCE, NONE, transaction::multi),
    command("exec", 1, AT_ONCE, NONE, transaction::exec),
    command("discard", 1, AT_ONCE, NONE, transaction::discard),
    command("watch", -2, AT_ONCE, ALL, transaction::watch),
    command("unwatch", 1, 0, NONE, transaction::unwatch),
    command("ping", -1, 0, NONE, server::ping),
    command("echo", 2, 0, NONE, server::echo),
    command("quit", -1, AT_ONCE | OPEN, NONE, server::quit),
    command("select", 2, 0, NONE, server::select),
    command("hello", -1, OPEN, NONE, server::hello),
    command("auth", -2, OPEN, NONE, server::auth),
    command("client", -2, 0, NONE, server::client),
    command("command", -1, 0, NONE, server::command),
    command("config", -2, 0, NONE, server::config),
    command("info", -1, 0, NONE, server::info),
    command("time", 1, 0, NONE, server::time),
    command("lastsave", 1, 0, NONE, server::lastsave),
    command("reset", 1, AT_ONCE | OPEN, NONE, server::reset),
];

#[cfg(test)]
mod tests {
    use super::super::dispatch::{Index, NAME_MAX};
    use super::*;

    #[test]
    fn each_command_is_found_by_its_name_in_any_letters_and_nothing_else_is() {
        let index = Index::new(&COMMANDS);
        for command in &COMMANDS {
            assert!(command.name.len() <= NAME_MAX && command.name.bytes().all(|b| b.is_ascii_lowercase()));
            for name in [command.name.to_owned(), command.name.to_uppercase()] {
                assert_eq!(index.find(name.as_bytes()).map(|found| found.name), Some(command.name));
            }
        }
        for other in [
            "",
            "ge",
            "gett",
            "get ",
            " get",
            "get\0",
            "\0get",
            "incrbyfloatincrby",
            "\x07et",
        ] {
            assert!(index.find(other.as_bytes()).is_none(), "{other:?}");
        }
    }
}
