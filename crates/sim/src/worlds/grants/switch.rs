//! The controller of the switch: says of hosts that were lost that they are; in some worlds of others, too.

use cenote_base::random::Random;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_pool::holder::Operator;

use super::label::Label;
use super::role::{MACHINE, host_name};
use super::stage::Stage;

const TURN: Nanos = Nanos::from_millis(50);
/// It is neither cut off nor killed: of each word it hears what has come of it.
const SWITCH: &str = "switch";

/// The body of its process: ends when faults are over, and all words are said.
pub(super) fn run(stage: &Arc<Stage>, mut draw: Random) {
    while !stage.shared.has_failed() {
        let due = stage.hosts().words_due();
        if due.is_empty() && stage.is_calm() {
            return;
        }
        for host in due {
            if stage.is_calm() || draw.one_in(4) {
                say(stage, host);
            }
        }
        let any = draw.below(stage.grants.hosts as u64) as usize;
        if stage.grants.wrong_words && !stage.is_calm() && draw.one_in(40) && !stage.hosts().is_word_due(any) {
            say_wrongly(stage, any);
        }
        rt::sleep(TURN);
    }
}

fn tell(stage: &Stage, host: usize) -> Result<()> {
    let network = stage.net.endpoint(SWITCH, MACHINE);
    let operator = Operator::connect(&*network, &stage.credentials(Label::TENANTS[0]))?;
    operator.host_lost(&host_name(host), None, |_| {})
}

fn say(stage: &Stage, host: usize) {
    let life = stage.hosts().life(host);
    match tell(stage, host) {
        Ok(()) => {
            stage.shared.count("hosts called lost");
            stage.shared.step(format!("host {host} is called lost"));
            stage.hosts().is_told(host, life);
        }
        // Its agent's end is not heard yet, or no manager leads.
        Err(Error::Busy(_) | Error::Lost(_) | Error::Timeout(_)) => {}
        Err(error) => stage.shared.fail(format!("host {host} is called lost: {error}")),
    }
}

/// It is not lost. While its agent is heard it is not believed.
fn say_wrongly(stage: &Stage, host: usize) {
    stage.model().doubt(host);
    let told = tell(stage, host);
    match &told {
        Err(Error::Busy(_) | Error::Invalid(_)) => {
            stage.model().trust(host);
            return stage.shared.count("hosts called lost that were heard");
        }
        Ok(()) | Err(Error::Lost(_) | Error::Timeout(_)) => {}
        Err(error) => stage.shared.fail(format!("host {host} is called lost: {error}")),
    }
    stage.shared.befalls("faults: host called lost that is not");
    stage
        .shared
        .step(format!("host {host}, which is not lost, is called so: {told:?}"));
    stage.hosts().wrong(host);
}
