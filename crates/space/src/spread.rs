//! Where a session allocates what has no room in its own pod (Rcmp, section 5.1): in another pod, chosen by consistent
//! hash.
//!
//! Each pod has a score for a session and a class of objects: a hash of the three. The pod with the highest comes first,
//! the next is asked if it has no room, and so on; within a pod its parts have scores of their own. So sessions spread
//! evenly over pods, however many parts each has. A pod that comes is first for its share of them, and the others keep
//! theirs; one that goes leaves its share to all others. No table is kept, and nobody is asked.
//!
//! One session has its objects of a class together: it fills a slab before it asks for the next.

use super::FarAttached;

/// What a session chooses by: its own number, drawn once, and the class of what it allocates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spread {
    pub session: u64,
    pub class: u8,
}

impl Spread {
    /// The parts in the order in which they are asked.
    pub(super) fn order<'a>(self, parts: impl Iterator<Item = &'a FarAttached>) -> Vec<&'a FarAttached> {
        let mut ordered: Vec<_> = parts
            .map(|far| (self.place(&far.part.pod, far.part.number), far))
            .collect();
        ordered.sort_by(|(one, _), (other, _)| other.cmp(one));
        ordered.into_iter().map(|(_, far)| far).collect()
    }

    /// A part's place in the order, the highest first. Pods whose scores are the same are told apart by their names.
    fn place(self, pod: &str, part: u8) -> (u64, &str, u64) {
        (self.score(pod.as_bytes()), pod, self.score(&[part]))
    }

    fn score(self, name: &[u8]) -> u64 {
        let start = mix(self.session ^ u64::from(self.class).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        name.iter().fold(start, |hash, byte| mix(hash ^ u64::from(*byte)))
    }
}

/// SplitMix64's finalizer: each bit of the result depends on each of the input.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pods, and how many parts each has.
    const PODS: [(&str, u8); 4] = [("east", 1), ("north", 3), ("south", 1), ("west", 7)];
    const SESSIONS: u64 = 10_000;

    fn first<'a>(session: u64, pods: &[(&'a str, u8)]) -> (&'a str, u8) {
        let spread = Spread { session, class: 3 };
        let parts = pods
            .iter()
            .flat_map(|(pod, parts)| (1..=*parts).map(move |part| (*pod, part)));
        let best = parts.max_by_key(|(pod, part)| spread.place(pod, *part));
        best.expect("there are pods")
    }

    #[test]
    fn sessions_spread_over_pods_and_over_the_parts_of_each() {
        for (pod, parts) in PODS {
            let there: Vec<u8> = (0..SESSIONS)
                .map(|session| first(session, &PODS))
                .filter_map(|(found, part)| (found == pod).then_some(part))
                .collect();
            assert!((2300..2700).contains(&there.len()), "{pod}: {}", there.len());
            for part in 1..=parts {
                let of_part = there.iter().filter(|found| **found == part).count();
                let fair = there.len() / usize::from(parts);
                assert!(of_part.abs_diff(fair) <= 80, "{pod}, part {part}: {of_part} of {fair}");
            }
        }
    }

    #[test]
    fn a_pod_that_goes_leaves_all_others_what_they_had() {
        let left = [PODS[0], PODS[1], PODS[3]];
        let changed = (0..SESSIONS).filter(|session| first(*session, &PODS) != first(*session, &left));
        assert!(changed.clone().all(|session| first(session, &PODS).0 == "south"));
        let to_each = left.map(|(pod, _)| {
            changed
                .clone()
                .filter(|session| first(*session, &left).0 == pod)
                .count()
        });
        assert!(to_each.iter().all(|count| (700..1000).contains(count)), "{to_each:?}");
    }

    /// What consistent hash is for: a pod that comes takes its share, evenly from all others, and nothing else changes.
    #[test]
    fn a_pod_that_comes_takes_its_share_from_all_others() {
        let names: Vec<String> = (0..9).map(|n| format!("rack{n}")).collect();
        let pods: Vec<(&str, u8)> = names.iter().map(|name| (name.as_str(), 2)).collect();
        let before = &pods[..8];
        let changed: Vec<&str> = (0..SESSIONS)
            .map(|session| (first(session, before), first(session, &pods)))
            .filter_map(|(one, other)| (one != other).then_some((one.0, other.0)))
            .map(|(from, to)| {
                assert_eq!(to, "rack8", "only the new pod takes any");
                from
            })
            .collect();
        let fair = SESSIONS as usize / 9;
        assert!(changed.len().abs_diff(fair) < fair / 10, "{} of {fair}", changed.len());
        let of = |pods: &[(&str, u8)], pod: &str| (0..SESSIONS).filter(|n| first(*n, pods).0 == pod).count();
        let most = pods.iter().map(|(pod, _)| of(&pods, pod)).max().expect("pods");
        let taken = before
            .iter()
            .map(|(pod, _)| changed.iter().filter(|from| *from == pod).count());
        let taken: Vec<usize> = taken.collect();
        assert!(
            most < fair * 11 / 10 && taken.iter().all(|n| n.abs_diff(fair / 8) < fair / 16),
            "{most}, {taken:?}"
        );
        println!(
            "{SESSIONS} sessions, 8 pods and a 9th: {} go there, {taken:?} from each; most of one {most}",
            changed.len()
        );
    }

    #[test]
    fn another_class_goes_elsewhere() {
        let of = |class| Spread { session: 7, class }.place("east", 1).0;
        assert_eq!((0..86).map(of).collect::<std::collections::BTreeSet<_>>().len(), 86);
    }
}
