//! How a life of an engine ends.

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Death {
    /// The process is killed: memory and files stay as they are.
    Kill,
    /// The host is lost, with what its cache had not written back.
    HostLoss,
    /// Power is cut: the region is gone, and what files had not synced, in part.
    PowerCut,
    /// The memory device is lost while the engine runs.
    DeviceLoss,
    /// The link between the host and the memory device is cut.
    LinkLoss,
    /// In order.
    Order,
    /// It ended itself: pages were half changed, and the log had failed.
    Itself,
}

impl Death {
    /// Whether the next life finds in memory what this one had committed.
    pub(super) fn keeps_memory(self, survives_host: bool) -> bool {
        match self {
            Death::Kill | Death::Order | Death::Itself => true,
            Death::HostLoss | Death::LinkLoss => survives_host,
            Death::PowerCut | Death::DeviceLoss => false,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Death::Kill => "deaths: killed",
            Death::HostLoss => "deaths: host lost",
            Death::PowerCut => "deaths: power cut",
            Death::DeviceLoss => "deaths: memory device lost",
            Death::LinkLoss => "deaths: link cut",
            Death::Order => "orderly ends",
            Death::Itself => "deaths: ended itself",
        }
    }
}
