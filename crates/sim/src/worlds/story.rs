//! The last steps of a world that failed, for people: what each session did; then what hosts did to lines of memory,
//! and how those are.

use super::shared::Shared;

/// Steps that are told.
const STEPS: usize = 60;

/// The last steps, oldest first, and the scene; nothing where nothing is wrong.
pub(super) fn tell(shared: &Shared, scene: Vec<String>) -> Vec<String> {
    if !shared.has_failed() {
        return Vec::new();
    }
    let mut steps = shared.steps();
    let history = shared.history();
    for (number, txn) in history.txns.iter().enumerate() {
        let actor = format!("life {} session {} T{number}", txn.life, txn.session);
        let ops = txn.ops.iter().map(|op| (op.at, format!("{actor}: {}", op.what)));
        steps.extend(ops);
        let ended = match txn.cts {
            0 => format!("{actor}: {:?}", txn.end),
            cts => format!("{actor}: {:?} at {cts}", txn.end),
        };
        steps.extend((txn.asked != 0).then(|| (txn.asked, format!("{actor}: asks for its end"))));
        steps.extend((txn.answered != 0).then_some((txn.answered, ended)));
    }
    steps.sort();
    let skipped = steps.len().saturating_sub(STEPS);
    let told = steps.into_iter().skip(skipped);
    let told = told.map(|(at, text)| format!("{at:>7}  {text}"));
    told.chain(scene).collect()
}
