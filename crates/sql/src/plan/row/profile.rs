//! What each node of a plan did in a run, for EXPLAIN ANALYZE.

use super::Node;
use cenote_base::rt::Nanos;
use cenote_fabric::observe::Traffic;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// What a node did, with what is under it.
#[derive(Debug, Clone, Copy, Default)]
pub struct NodeRun {
    /// Rows that it gave.
    pub rows: u64,
    /// How often it began, of a subquery in an expression.
    pub runs: u64,
    /// Time in it.
    pub time: Nanos,
    /// Accesses to the buffer's memory; none where they are not counted.
    pub traffic: Traffic,
}

/// A run that is measured. Plans stand still while they are run: a node is known by its place.
#[derive(Debug, Default)]
pub struct Profile {
    nodes: RefCell<HashMap<usize, NodeRun>>,
    /// Steps after which analytics took the run over.
    handed_over: Cell<Option<u64>>,
}

impl Profile {
    /// What a node of the plan did; nothing where it was not reached.
    pub fn of(&self, node: &Node) -> NodeRun {
        self.nodes.borrow().get(&place(node)).copied().unwrap_or_default()
    }

    /// Analytics has taken the run over after so many steps; None: it has not, and the run began anew.
    pub fn note_hand_over(&self, steps: Option<u64>) {
        if steps.is_none() {
            self.nodes.borrow_mut().clear();
        }
        self.handed_over.set(steps);
    }

    /// Steps after which analytics took the run over.
    pub fn handed_over(&self) -> Option<u64> {
        self.handed_over.get()
    }

    /// The node did this in addition.
    pub fn add(&self, node: &Node, more: NodeRun) {
        let mut nodes = self.nodes.borrow_mut();
        let run = nodes.entry(place(node)).or_default();
        run.rows += more.rows;
        run.runs += more.runs;
        run.time = Nanos(run.time.0 + more.time.0);
        run.traffic = run.traffic.and(more.traffic);
    }
}

fn place(node: &Node) -> usize {
    std::ptr::from_ref(node).addr()
}
