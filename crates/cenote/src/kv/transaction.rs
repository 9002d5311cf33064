//! MULTI, EXEC and WATCH: commands that are queued and run as one step of the store.

use super::client::Watched;
use super::dispatch::Call;
use super::refusal::{Done, Refusal};

pub fn multi(call: &mut Call<'_>) -> Done {
    if call.client.queue.is_some() {
        return Err(Refusal::Says("ERR MULTI calls can not be nested"));
    }
    call.client.queue = Some(Default::default());
    call.reply.ok();
    Ok(())
}

pub fn discard(call: &mut Call<'_>) -> Done {
    if call.client.queue.take().is_none() {
        return Err(Refusal::Says("ERR DISCARD without MULTI"));
    }
    call.shared.watches.forget(call.client);
    call.reply.ok();
    Ok(())
}

pub fn exec(call: &mut Call<'_>) -> Done {
    let Some(queue) = call.client.queue.take() else {
        return Err(Refusal::Says("ERR EXEC without MULTI"));
    };
    let has_changed = has_changed(call);
    call.shared.watches.forget(call.client);
    let has_changed = has_changed?;
    if queue.is_refused {
        return Err(Refusal::Says(
            "EXECABORT Transaction discarded because of previous errors.",
        ));
    }
    if has_changed {
        call.reply.null_array();
        return Ok(());
    }
    call.reply.array(queue.commands.len());
    let step = call.shared.store.begin();
    for queued in &queue.commands {
        let strings = queued.strings();
        if let Some(command) = call.shared.command_of(strings) {
            call.shared.run(command, call.client, strings, call.reply);
        }
    }
    Ok(call.shared.store.commit(step)?)
}

/// Whether a key that the client watches has changed.
fn has_changed(call: &mut Call<'_>) -> Result<bool, Refusal> {
    let now = call.shared.now;
    for (key, watched) in &call.client.watched {
        let is_there = call.shared.store.find(key, now)?.is_some();
        if call.shared.watches.has_changed(key, watched) || is_there != watched.was_there {
            return Ok(true);
        }
    }
    Ok(false)
}

pub fn watch(call: &mut Call<'_>) -> Done {
    if call.client.queue.is_some() {
        return Err(Refusal::Says("ERR WATCH inside MULTI is not allowed"));
    }
    for key in call.strings.from(1) {
        if call.client.watched.contains_key(key) {
            continue;
        }
        let was_there = call.shared.store.find(key, call.shared.now)?.is_some();
        let changes = call.shared.watches.add(key);
        call.client.watched.insert(key.into(), Watched { changes, was_there });
    }
    call.reply.ok();
    Ok(())
}

pub fn unwatch(call: &mut Call<'_>) -> Done {
    call.shared.watches.forget(call.client);
    call.reply.ok();
    Ok(())
}
