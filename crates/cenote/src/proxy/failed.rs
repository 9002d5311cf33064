//! A block whose server was lost, as the client sees it from there: a failed one, without a server.
//!
//! Everything is 25P02 but ROLLBACK and COMMIT, which end it.

use super::batch::Batch;
use super::dialogue::Dialogue;
use super::protocol::{Message, Refusal, put, put_ready};
use super::statements::{Interned, split_name};
use super::words::{Verb, verb};
use bytes::BytesMut;

/// Answers a batch in a failed block; ends the block where the batch does. Whether all up to the next Sync is to be
/// skipped.
pub fn answer(dialogue: &mut Dialogue, interned: &Interned, batch: &Batch, out: &mut BytesMut) -> bool {
    let mut skips = false;
    for message in &batch.messages {
        match message.tag {
            b'Q' => {
                query(dialogue, message, out);
                put_ready(out, dialogue.status);
            }
            b'S' => {
                skips = false;
                put_ready(out, dialogue.status);
            }
            b'H' => {}
            _ if skips => {}
            _ => skips = !extended(dialogue, interned, message, out),
        }
    }
    skips
}

fn query(dialogue: &mut Dialogue, message: &Message, out: &mut BytesMut) {
    match verb(message.body.strip_suffix(b"\0").unwrap_or_default()) {
        _ if dialogue.status != b'E' => put_lost(out),
        Verb::Empty => put(out, b'I', &[]),
        Verb::Commit | Verb::Rollback => end(dialogue, out),
        _ => put_failed(out),
    }
}

/// Whether it succeeded.
fn extended(dialogue: &mut Dialogue, interned: &Interned, message: &Message, out: &mut BytesMut) -> bool {
    let body = &message.body;
    let ends = |verb: Verb| matches!(verb, Verb::Commit | Verb::Rollback);
    match message.tag {
        b'P' => {
            let Some((name, rest)) = split_name(body, 0) else {
                return put_failed_false(out);
            };
            let statement = interned.statement(&rest);
            if !ends(statement.verb) {
                return put_failed_false(out);
            }
            match name.is_empty() {
                true => dialogue.names.unnamed = Some(statement),
                false => drop(dialogue.names.named.insert(name[..].into(), statement)),
            }
            put(out, b'1', &[]);
        }
        b'B' => {
            let name = split_name(body, 0).and_then(|(_, rest)| split_name(&rest, 0));
            let statement = name.and_then(|(name, _)| dialogue.names.get(&name));
            if !statement.is_some_and(|statement| ends(statement.verb)) {
                return put_failed_false(out);
            }
            put(out, b'2', &[]);
        }
        b'D' => {
            if body.first() == Some(&b'S') {
                put(out, b't', &[&[0, 0]]);
            }
            put(out, b'n', &[]);
        }
        // Bind has let nothing else pass.
        b'E' if dialogue.status == b'E' => end(dialogue, out),
        b'C' => {
            if let (Some(b'S'), Some((name, _))) = (body.first(), split_name(body, 1)) {
                dialogue.names.named.remove(&name[..]);
            }
            put(out, b'3', &[]);
        }
        _ => return put_failed_false(out),
    }
    true
}

fn end(dialogue: &mut Dialogue, out: &mut BytesMut) {
    dialogue.status = b'I';
    put(out, b'C', &[b"ROLLBACK\0"]);
}

fn put_failed_false(out: &mut BytesMut) -> bool {
    put_failed(out);
    false
}

fn put_failed(out: &mut BytesMut) {
    let text = "current transaction is aborted, commands ignored until end of transaction block";
    Refusal::new("25P02", text).put(out, false);
}

/// What came behind the end of the block in the same batch.
fn put_lost(out: &mut BytesMut) {
    Refusal::new(
        "08006",
        "the statement came with the end of a lost block, and was not carried out",
    )
    .put(out, false);
}
