//! `SHOW cenote.proxy`: what the proxy answers of itself.

use super::protocol::{put, put_ready};
use super::shared::Shared;
use bytes::{BufMut, BytesMut};
use std::sync::atomic::Ordering;

const COLUMNS: [&str; 7] = [
    "address",
    "role",
    "sessions",
    "in_use",
    "waiting",
    "clients",
    "without_writer",
];
const TEXT: u32 = 25;

/// The answer, for a client whose transaction has this status.
pub fn answer(shared: &Shared, status: u8) -> BytesMut {
    let mut out = BytesMut::new();
    put(&mut out, b'T', &[&description()]);
    let rows = rows(shared);
    rows.iter().for_each(|row| put(&mut out, b'D', &[&row_body(row)]));
    put(&mut out, b'C', &[b"SHOW\0"]);
    put_ready(&mut out, status);
    out
}

/// One row for each server; clients are the proxy's in every row.
fn rows(shared: &Shared) -> Vec<[String; COLUMNS.len()]> {
    let servers = shared.directory.servers();
    servers
        .writer
        .iter()
        .for_each(|server| drop(shared.pool(server, false)));
    servers
        .readers
        .iter()
        .for_each(|server| drop(shared.pool(server, true)));
    let clients = super::shared::lock(&shared.clients).len().to_string();
    let without = shared.without_writer.load(Ordering::Relaxed).to_string();
    let of = |pool: &super::pool::Pool| {
        let role = if pool.is_reader { "reader" } else { "writer" };
        [
            pool.address.clone(),
            role.to_owned(),
            pool.open().to_string(),
            pool.in_use().to_string(),
            pool.waiting().to_string(),
            clients.clone(),
            without.clone(),
        ]
    };
    shared.all_pools().iter().map(|pool| of(pool)).collect()
}

fn description() -> BytesMut {
    let mut body = BytesMut::new();
    body.put_u16(COLUMNS.len() as u16);
    for name in COLUMNS {
        body.put_slice(name.as_bytes());
        body.put_u8(0);
        // No table, no column; the type, of any length, without a modifier, as text.
        body.put_slice(&[0; 6]);
        body.put_u32(TEXT);
        body.put_i16(-1);
        body.put_i32(-1);
        body.put_u16(0);
    }
    body
}

fn row_body(row: &[String]) -> BytesMut {
    let mut body = BytesMut::new();
    body.put_u16(row.len() as u16);
    for value in row {
        body.put_u32(value.len() as u32);
        body.put_slice(value.as_bytes());
    }
    body
}
