//! The table of commands.

use super::{Table, keys, refuse, strings};
use crate::kv::dispatch::{AT_ONCE, Command, GETS, OPEN, SETS, WRITES, command};
use crate::kv::server;

const NONE: (i64, i64, i64) = (0, 0, 0);
const ONE: (i64, i64, i64) = (1, 1, 1);
const ALL: (i64, i64, i64) = (1, -1, 1);
const PAIRS: (i64, i64, i64) = (1, -1, 2);

/// What the table does not have, and is refused by name.
const fn refused(name: &'static str) -> Command<Table> {
    command(name, -1, AT_ONCE, NONE, refuse)
}

/// All commands.
pub static COMMANDS: [Command<Table>; 74] = [
    command("get", 2, GETS, ONE, strings::get),
    command("set", -3, WRITES | SETS, ONE, strings::set),
    command("setnx", 3, WRITES, ONE, strings::setnx),
    command("setex", 4, WRITES, ONE, strings::setex),
    command("psetex", 4, WRITES, ONE, strings::psetex),
    command("mget", -2, 0, ALL, strings::mget),
    command("mset", -3, WRITES, PAIRS, strings::mset),
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
    command("del", -2, WRITES, ALL, keys::del),
    command("unlink", -2, WRITES, ALL, keys::del),
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
    command("keys", 2, 0, NONE, keys::keys),
    command("scan", -2, 0, NONE, keys::scan),
    command("randomkey", 1, 0, NONE, keys::randomkey),
    command("dbsize", 1, 0, NONE, keys::dbsize),
    command("flushall", -1, WRITES, NONE, keys::flush),
    command("flushdb", -1, WRITES, NONE, keys::flush),
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
    refused("multi"),
    refused("exec"),
    refused("discard"),
    refused("watch"),
    refused("unwatch"),
    refused("msetnx"),
    refused("rename"),
    refused("renamenx"),
    refused("hset"),
    refused("hmset"),
    refused("hsetnx"),
    refused("hget"),
    refused("hmget"),
    refused("hgetall"),
    refused("hdel"),
    refused("hexists"),
    refused("hlen"),
    refused("hkeys"),
    refused("hvals"),
    refused("hstrlen"),
    refused("hincrby"),
    refused("hincrbyfloat"),
    refused("hscan"),
];
