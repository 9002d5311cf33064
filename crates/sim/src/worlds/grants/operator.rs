//! An operator: looks at the pool, and takes grants away now and then.

use cenote_base::random::Random;
use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_base::Result;
use cenote_base::rt::{self, Nanos};
use cenote_pool::holder::Operator;
use cenote_pool::{GrantView, Phase, PoolStatus};

use super::label::Label;
use super::stage::{OPERATOR, Stage};

/// The body of an operator's process.
pub(super) fn run(stage: &Arc<Stage>, mut draw: Random) {
    while stage.take_turn() {
        rt::sleep(Nanos(draw.below(4 * stage.grants.lease.raw())));
        // The manager is away, or cannot be reached.
        if operate(stage, &mut draw).is_err() {
            stage.shared.count("operators without an answer");
        }
    }
}

fn operate(stage: &Arc<Stage>, draw: &mut Random) -> Result<()> {
    let operator = connect(stage)?;
    let known = stage.model().known_now();
    let status = operator.status()?;
    let mut problems = problems(stage, &status);
    problems.extend(stage.model().contradicts(&known, &status));
    problems.into_iter().for_each(|problem| stage.shared.fail(problem));
    if draw.one_in(4)
        && let Some(at) = draw.word().checked_rem(status.grants.len() as u64)
    {
        free(stage, &operator, &status.grants[at as usize])?;
    }
    Ok(())
}

/// Connects to the manager.
pub(super) fn connect(stage: &Stage) -> Result<Operator> {
    Operator::connect(&*stage.network(OPERATOR), &stage.credentials(Label::TENANTS[0]))
}

fn free(stage: &Stage, operator: &Operator, grant: &GrantView) -> Result<()> {
    stage.model().may_go(grant.id);
    let freed = operator.free(grant.id);
    if freed.is_ok() {
        stage.shared.count("grants freed by operators");
        stage
            .shared
            .step(format!("grant {} was freed by an operator", grant.id));
        stage.model().is_freed(grant.id);
    }
    freed
}

/// The label of a grant, if it is one of this world.
pub(super) fn label_of(stage: &Stage, grant: &GrantView) -> Option<Label> {
    let is_it = |label: &Label| grant.label == label.text() && grant.tenant == label.tenant();
    stage.labels().find(is_it)
}

/// What may never be so in the grant table.
pub(super) fn problems(stage: &Stage, status: &PoolStatus) -> Vec<String> {
    let mut problems = Vec::new();
    let mut by_node: BTreeMap<_, u64> = BTreeMap::new();
    for grant in &status.grants {
        *by_node.entry(grant.node).or_default() += grant.bytes;
        if label_of(stage, grant).is_none() {
            problems.push(format!(
                "no process has asked for grant {} \"{}\"",
                grant.id, grant.label
            ));
        }
        if !matches!(grant.phase, Phase::Held | Phase::Idle | Phase::Fencing | Phase::Freeing) {
            problems.push(format!("grant {} is {}", grant.id, grant.phase));
        }
    }
    for node in &status.nodes {
        let granted = by_node.get(&node.id).copied().unwrap_or(0);
        if node.granted != granted || granted > node.bytes {
            problems.push(format!(
                "memory node {}: {} of {} granted, in grants {granted}",
                node.id, node.granted, node.bytes
            ));
        }
    }
    for device in &status.devices {
        let granted = by_node.get(&device.id).copied().unwrap_or(0);
        if device.granted != granted || granted > device.bytes {
            problems.push(format!(
                "device {}: {} of {} granted, in grants {granted}",
                device.id, device.granted, device.bytes
            ));
        }
    }
    for tenant in &status.tenants {
        if tenant.quota.is_some_and(|quota| tenant.granted > quota) {
            problems.push(format!(
                "tenant {} has {} of {:?}",
                tenant.name, tenant.granted, tenant.quota
            ));
        }
    }
    problems
}
