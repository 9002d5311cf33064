//! Ranges of devices, in the grant table: where there is room, and what has to go so that there is.

use super::devices::{Device, RangeOf};
use super::{Grant, GrantId, GrantTable, NodeId, Phase};
use std::collections::BTreeMap;

/// A part of a device's extents: of a grant, or free.
#[derive(Debug, Clone, Copy)]
struct Segment {
    offset: u64,
    bytes: u64,
    grant: Option<GrantId>,
}

impl GrantTable {
    /// The extents of a device, in their order: each grant's range, and what is free between them.
    fn segments(&self, id: NodeId) -> Vec<Segment> {
        let Some(device) = self.devices.get(&id) else {
            return Vec::new();
        };
        let of = |(id, grant): (&GrantId, &Grant)| {
            let offset = grant.range.as_ref()?.offset;
            Some((offset, grant.bytes, Some(*id)))
        };
        let mut granted: Vec<_> = self
            .grants
            .iter()
            .filter(|(_, grant)| grant.node == id)
            .filter_map(of)
            .collect();
        granted.sort_unstable();
        granted.push((device.start + device.bytes, 0, None));
        let (mut at, mut segments) = (device.start, Vec::new());
        for (offset, bytes, grant) in granted {
            if offset > at {
                let bytes = offset - at;
                segments.push(Segment {
                    offset: at,
                    bytes,
                    grant: None,
                });
            }
            if grant.is_some() {
                segments.push(Segment { offset, bytes, grant });
            }
            at = offset + bytes;
        }
        segments
    }

    /// Bytes of the largest part that is free in one piece.
    pub(super) fn largest_hole(&self, id: NodeId) -> u64 {
        let free = self.segments(id).into_iter().filter(|segment| segment.grant.is_none());
        free.map(|segment| segment.bytes).max().unwrap_or(0)
    }

    /// Where on a device so many bytes are free: in the smallest part that has them.
    pub(super) fn hole(&self, id: NodeId, bytes: u64) -> Option<u64> {
        let fits = |segment: &Segment| segment.grant.is_none() && segment.bytes >= bytes;
        let holes = self.segments(id).into_iter().filter(fits);
        holes
            .min_by_key(|hole| (hole.bytes, hole.offset))
            .map(|hole| hole.offset)
    }

    /// What has to go so that a device has so much room in one piece, if that can be: the least of it.
    pub(super) fn victims_in_a_row(&self, id: NodeId, bytes: u64, priority: u8) -> Option<Vec<GrantId>> {
        let bytes = self.whole_on(id, bytes);
        let segments = self.segments(id);
        let reclaimable: BTreeMap<GrantId, u64> = self.reclaimable(id, priority).into_iter().collect();
        let mut best: Option<(u64, Vec<GrantId>)> = None;
        for from in 0..segments.len() {
            let (mut room, mut cost, mut victims) = (0, 0, Vec::new());
            for segment in &segments[from..] {
                match segment.grant {
                    None => {}
                    Some(id) if self.grants[&id].phase == Phase::Freeing => {}
                    Some(id) if reclaimable.contains_key(&id) => {
                        cost += segment.bytes;
                        victims.push(id);
                    }
                    Some(_) => break,
                }
                room += segment.bytes;
                if room >= bytes {
                    if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                        best = Some((cost, victims));
                    }
                    break;
                }
            }
        }
        best.map(|(_, victims)| victims)
    }

    pub(super) fn problems_of_devices(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (id, grant) in self.grants() {
            let device = self.devices.get(&grant.node);
            if device.is_some() != grant.range.is_some() {
                problems.push(format!("grant {id} has a range, or lies on a device, and not both"));
            }
            if let (Some(device), Some(range)) = (device, &grant.range) {
                problems.extend(problem_of_range(id, grant, device, range));
            }
        }
        for (id, _) in self.devices() {
            let segments = self.segments(id);
            let pairs = segments.iter().zip(segments.iter().skip(1));
            for (one, two) in pairs.filter(|(one, two)| one.offset + one.bytes > two.offset) {
                let names = [one, two].map(|segment| segment.grant.unwrap_or_default());
                problems.push(format!(
                    "grants {} and {} have bytes of device {id} in common",
                    names[0], names[1]
                ));
            }
        }
        problems
    }
}

fn problem_of_range(id: GrantId, grant: &Grant, device: &Device, range: &RangeOf) -> Option<String> {
    let from = range.offset.checked_sub(device.start);
    let is_aligned = |from: u64| from.is_multiple_of(device.granule) && grant.bytes.is_multiple_of(device.granule);
    let fits = |from: u64| is_aligned(from) && from.checked_add(grant.bytes).is_some_and(|end| end <= device.bytes);
    if !from.is_some_and(fits) {
        return Some(format!("grant {id} lies at {}, outside of its device", range.offset));
    }
    let known = range
        .host
        .as_ref()
        .is_none_or(|host| device.hosts.get(host).is_some_and(|host| host.open));
    let fits = match grant.phase {
        Phase::Held | Phase::Fencing => range.host.is_some() && known,
        Phase::Idle => range.host.is_none(),
        Phase::Freeing => known,
        Phase::Keeping | Phase::Kept | Phase::Filling | Phase::Whole => false,
    };
    let host = range.host.as_deref().unwrap_or("none");
    (!fits).then(|| format!("grant {id} is {} on a device, with host {host}", grant.phase))
}
