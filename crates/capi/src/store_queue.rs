//! Batches of the store that are submitted, and told of by an eventfd.

use super::arguments::Lent;
use super::arguments::{ArrayArg, OutArg, ResultsArg, StructArg};
use super::error::{ReportArg, Status, answer};
use super::handle::HandleArg;
use super::store::{OpenStore, StoreOp, StorePutOptions, put_options, result_of};
use cenote_base::{Error, Result};
use cenote_store::{Completion, Outcome, PutOptions, Request};
use std::os::fd::AsRawFd;

type Keyed = (Vec<u8>, Request<Lent>);

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_event_fd(
    store: HandleArg<'_, OpenStore>,
    fd: OutArg<'_, i32>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        fd.place("the descriptor")?
            .write(store.get()?.queue.event_fd().as_raw_fd());
        Ok(())
    })
}

/// `cenote_store_request`.
fn request(what: i32, op: &StoreOp<'_>, options: PutOptions) -> Result<Keyed> {
    let request = match what {
        0 => Request::Put(op.value()?, options),
        1 => Request::Get(op.value()?),
        2 => Request::Exists(false),
        3 => Request::Exists(true),
        4 => Request::Remove,
        other => return Err(Error::Invalid(format!("{other} is no request to the store"))),
    };
    Ok((op.key()?.to_vec(), request))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_submit(
    store: HandleArg<'_, OpenStore>,
    what: i32,
    ops: ArrayArg<'_, StoreOp<'_>>,
    n: usize,
    options: StructArg<'_, StorePutOptions>,
    id: OutArg<'_, u64>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let (mut place, options) = (id.place("the batch's number")?, put_options(options));
        let requests: Result<Vec<_>> = ops.elements(n)?.map(|op| request(what, &op, options)).collect();
        place.write(store.get()?.queue.submit(requests?)?);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_drain(
    store: HandleArg<'_, OpenStore>,
    id: OutArg<'_, u64>,
    results: ResultsArg<'_, i64>,
    room: usize,
    n: OutArg<'_, usize>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let store = store.get()?;
        let (mut id, mut n, results) = (
            id.place("the batch's number")?,
            n.place("the count")?,
            results.places(room)?,
        );
        let mut done = store.done.lock();
        done.extend(store.queue.drain());
        let Some(first) = done.front() else {
            id.write(0);
            n.write(0);
            return Ok(());
        };
        n.write(first.outcomes.len());
        id.write(first.id);
        if first.outcomes.len() > room {
            return Err(Error::OutOfBounds(format!(
                "{} results, where there is room for {room}",
                first.outcomes.len()
            )));
        }
        if let Some(batch) = done.pop_front() {
            drop(done);
            take(store, batch, results);
        }
        Ok(())
    })
}

/// Hands a batch's results out, and keeps its pins.
fn take(store: &OpenStore, batch: Completion, results: &mut [i64]) {
    for ((key, outcome), result) in batch.outcomes.into_iter().zip(results) {
        *result = result_of(&outcome);
        if let Outcome::Exists(_, Some(pin)) = outcome {
            store.keep(&key, pin);
        }
    }
}
