//! A trace as it is replayed: its pages numbered from 0, its parts one after the other.

use crate::{Error, IoContext, Result};
use cenote_base::PageId;
use cenote_base::rt::Nanos;
use cenote_buffer::{PageAccess, TraceDecoder, TraceEvent, Traced};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// What a thread does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// It computes, and no more.
    Compute,
    /// It asks for a page.
    Page(u32, PageAccess),
    /// It says that it will ask for these, a range of [`Workload::lists`]: read together now, or in the background.
    Pages {
        /// The first.
        from: u32,
        /// How many.
        count: u16,
        /// In the background.
        ahead: bool,
    },
}

/// One step of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Which thread.
    pub thread: u32,
    /// Nanoseconds of the processor before it.
    pub processor: u32,
    /// What.
    pub act: Act,
}

/// A part of a workload: what was between two marks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// Of its mark.
    pub name: String,
    /// In the trace's order.
    pub steps: Vec<Step>,
    /// Of the processor, after the last step: what the process has used and no step has.
    pub rest: Nanos,
}

/// Steps that a thread does in one go: a few statements.
const PIECE: usize = 256;
/// The name of the part behind a trace's last mark.
const LAST: &str = "end";
/// No thread computes for longer between two accesses: a day.
const COMPUTES_MOST: Nanos = Nanos::from_secs(86_400);
/// Pages at most: a database of a tebibyte.
const PAGES_MOST: usize = 1 << 26;

impl Part {
    /// The steps in pieces, each of one thread, in the order in which they began; as one, in the trace's order, for one
    /// thread.
    pub fn pieces(&self, one_thread: bool) -> Vec<Vec<Step>> {
        if one_thread {
            return vec![self.steps.clone()];
        }
        let mut pieces: Vec<Vec<Step>> = Vec::new();
        let mut open: HashMap<u32, usize> = HashMap::new();
        for step in &self.steps {
            let is_open = |place: &&usize| pieces[**place].len() < PIECE;
            let place = open.get(&step.thread).filter(is_open).copied().unwrap_or(pieces.len());
            if place == pieces.len() {
                pieces.push(Vec::new());
                open.insert(step.thread, place);
            }
            pieces[place].push(*step);
        }
        pieces
    }

    /// How many threads did it.
    pub fn threads(&self) -> usize {
        self.steps.iter().map(|step| step.thread).collect::<HashSet<_>>().len()
    }

    /// Pages that are announced to be read together, to those that are asked for.
    pub fn announced(&self) -> f64 {
        let (mut announced, mut asked) = (0, 0);
        for step in &self.steps {
            match step.act {
                Act::Pages {
                    count, ahead: false, ..
                } => announced += u64::from(count),
                Act::Page(..) => asked += 1,
                Act::Pages { .. } | Act::Compute => {}
            }
        }
        announced as f64 / f64::from(asked.max(1))
    }
}

/// A trace, to be replayed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// Pages that it asks for, numbered from 0 in the order of spaces and of pages in them.
    pub pages: u32,
    /// The parts that have a step or take time.
    pub parts: Vec<Part>,
    /// Pages that are announced.
    pub lists: Vec<u32>,
    /// Of the pages, those that are made anew before they are asked for otherwise.
    pub made: Vec<u32>,
}

impl Workload {
    /// Of a file.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read; [`Error::Simulation`] if it is no whole trace, or asks for no page.
    pub fn read(path: &Path) -> Result<Workload> {
        let bytes = std::fs::read(path).context(format!("reading {}", path.display()))?;
        Workload::of(&bytes).map_err(|error| Error::Simulation(format!("{}: {error}", path.display())))
    }

    fn of(bytes: &[u8]) -> cenote_base::Result<Workload> {
        let mut workload = Workload::default();
        let mut numbers = HashMap::new();
        let mut part = Part::default();
        let invalid = |problem: &str| Err(cenote_base::Error::Invalid(problem.into()));
        for event in TraceDecoder::new(bytes)? {
            let event = event?;
            if event.processor > COMPUTES_MOST {
                return invalid("a thread computes for more than a day between two accesses");
            }
            workload.add(event, &mut part, &mut numbers);
            if numbers.len() > PAGES_MOST || workload.lists.len() > u32::MAX as usize / 2 {
                return invalid("the trace has more pages than can be replayed");
            }
        }
        if numbers.is_empty() {
            return invalid("the trace asks for no page");
        }
        // What came behind the last mark is of no part that was named.
        if workload.parts.len() > 1 && workload.parts.last().is_some_and(|part| part.name == LAST) {
            workload.parts.pop();
        }
        workload.number_in_order(&numbers);
        Ok(workload)
    }

    fn add(&mut self, event: TraceEvent, part: &mut Part, numbers: &mut HashMap<PageId, u32>) {
        let mut left = event.processor.raw();
        let mut step = |act, processor: u64| {
            part.steps.push(Step {
                thread: event.thread,
                processor: processor as u32,
                act,
            });
        };
        // What is too long for one step is several.
        while left > u64::from(u32::MAX) {
            step(Act::Compute, u64::from(u32::MAX));
            left -= u64::from(u32::MAX);
        }
        match event.what {
            Traced::Page(page, access) => {
                let known = numbers.len();
                let page = number(numbers, page);
                if access == PageAccess::Create && page as usize == known {
                    self.made.push(page);
                }
                step(Act::Page(page, access), left);
            }
            Traced::Pages { pages, ahead } => {
                let from = self.lists.len() as u32;
                self.lists.extend(pages.into_iter().map(|page| number(numbers, page)));
                let count = (self.lists.len() as u32 - from) as u16;
                step(Act::Pages { from, count, ahead }, left);
            }
            Traced::Mark { name, processor } => {
                let part = std::mem::take(part);
                let told: u64 = part.steps.iter().map(|step| u64::from(step.processor)).sum();
                let rest = Nanos(processor.raw().saturating_sub(told));
                if !part.steps.is_empty() {
                    self.parts.push(Part { name, rest, ..part });
                }
            }
            Traced::End => {}
        }
    }

    /// Neighbours in a space become neighbours.
    fn number_in_order(&mut self, numbers: &HashMap<PageId, u32>) {
        let mut pages: Vec<(PageId, u32)> = numbers.iter().map(|(page, number)| (*page, *number)).collect();
        pages.sort_unstable_by_key(|(page, _)| (page.space, page.page));
        let mut places = vec![0; pages.len()];
        for (place, (_, number)) in pages.iter().enumerate() {
            places[*number as usize] = place as u32;
        }
        let all = self.lists.iter_mut().chain(&mut self.made);
        all.for_each(|page| *page = places[*page as usize]);
        for step in self.parts.iter_mut().flat_map(|part| &mut part.steps) {
            if let Act::Page(page, _) = &mut step.act {
                *page = places[*page as usize];
            }
        }
        self.pages = pages.len() as u32;
    }
}

/// The page's, or the next one.
fn number(numbers: &mut HashMap<PageId, u32>, page: PageId) -> u32 {
    let next = numbers.len() as u32;
    *numbers.entry(page).or_insert(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_buffer::TraceEncoder;

    #[test]
    fn pieces_are_of_one_thread_each_and_all_steps() {
        let step = |n: u32| Step {
            thread: n % 3,
            processor: n,
            act: Act::Compute,
        };
        let part = Part {
            steps: (0..3_000).map(step).collect(),
            ..Part::default()
        };
        assert_eq!((part.threads(), part.pieces(true)), (3, vec![part.steps.clone()]));
        let pieces = part.pieces(false);
        assert!(
            pieces
                .iter()
                .all(|piece| piece.iter().all(|step| step.thread == piece[0].thread))
        );
        assert!(pieces.is_sorted_by_key(|piece| piece[0].processor));
        for thread in 0..3 {
            let of_it = pieces.iter().flatten().filter(|step| step.thread == thread);
            assert!(of_it.eq(part.steps.iter().filter(|step| step.thread == thread)));
        }
        assert_eq!(pieces.iter().map(Vec::len).sum::<usize>(), 3_000);
    }

    #[test]
    fn what_no_thread_can_have_done_is_refused() {
        let day = COMPUTES_MOST.raw();
        let trace = |processor| bytes(&[(0, processor, read(1, 1)), (0, 0, mark("a", 1)), (0, 0, Traced::End)]);
        assert!(Workload::of(&trace(day)).is_ok());
        assert!(
            Workload::of(&trace(day + 1))
                .expect_err("more")
                .to_string()
                .contains("a day")
        );
        assert!(Workload::of(&trace(u64::MAX)).is_err());
    }

    #[test]
    fn pages_that_are_made_first_are_known() {
        let create = |page| Traced::Page(PageId::new(1, page), PageAccess::Create);
        let trace = bytes(&[
            (0, 1, read(1, 9)),
            (0, 1, create(9)),
            (0, 1, create(4)),
            (0, 1, read(1, 4)),
            (0, 0, mark("a", 1)),
            (0, 1, read(1, 4)),
            (0, 0, mark(LAST, 1)),
            (0, 0, Traced::End),
        ]);
        let workload = Workload::of(&trace).expect("a trace");
        assert_eq!((workload.made, workload.pages), (vec![0], 2));
        assert_eq!(workload.parts.len(), 1, "what comes behind the last mark is of no part");
    }

    fn bytes(events: &[(u32, u64, Traced)]) -> Vec<u8> {
        let mut bytes = TraceEncoder::header();
        let mut encoder = TraceEncoder::default();
        for (thread, processor, what) in events {
            let event = TraceEvent {
                thread: *thread,
                processor: Nanos(*processor),
                what: what.clone(),
            };
            encoder.push(&event, &mut bytes);
        }
        bytes
    }

    fn read(space: u32, page: u32) -> Traced {
        Traced::Page(PageId::new(space, page), PageAccess::Read)
    }

    fn mark(name: &str, processor: u64) -> Traced {
        Traced::Mark {
            name: name.into(),
            processor: Nanos(processor),
        }
    }

    #[test]
    fn parts_have_the_time_that_their_process_used() {
        let pages = vec![PageId::new(8, 1), PageId::new(9, 4)];
        let trace = bytes(&[
            (0, 10, read(9, 4)),
            (1, 5_000_000_000, read(7, 70)),
            (0, 20, Traced::Pages { pages, ahead: true }),
            (0, 0, mark("one", 5_000_000_100)),
            (0, 0, mark("nothing", 7)),
            (1, 3, read(9, 4)),
            (0, 0, mark("two", 2)),
            (0, 0, Traced::End),
        ]);
        let workload = Workload::of(&trace).expect("a trace");
        assert_eq!(workload.pages, 3, "7:70, 8:1, 9:4");
        assert_eq!(workload.lists, [1, 2]);
        let [one, two] = &workload.parts[..] else {
            panic!("{:?}", workload.parts)
        };
        assert_eq!((&one.name[..], one.rest), ("one", Nanos(70)));
        assert_eq!((&two.name[..], two.rest), ("two", Nanos(0)), "not less than nothing");
        let acts: Vec<Act> = one.steps.iter().map(|step| step.act).collect();
        let page = |n| Act::Page(n, PageAccess::Read);
        assert_eq!(
            acts,
            [
                page(2),
                Act::Compute,
                page(0),
                Act::Pages {
                    from: 0,
                    count: 2,
                    ahead: true
                }
            ]
        );
        let all: u64 = one.steps.iter().map(|step| u64::from(step.processor)).sum();
        assert_eq!(all, 5_000_000_030, "what is too much for a step is in two");
    }

    #[test]
    fn what_is_no_whole_trace_is_refused() {
        let whole = bytes(&[(0, 1, read(1, 1)), (0, 0, mark("a", 1)), (0, 0, Traced::End)]);
        assert!(Workload::of(&whole).is_ok());
        assert!(Workload::of(&whole[..whole.len() - 1]).is_err());
        assert!(Workload::of(b"CNTRACE").is_err());
        let nothing = bytes(&[(0, 0, Traced::End)]);
        assert!(
            Workload::of(&nothing)
                .expect_err("empty")
                .to_string()
                .contains("no page")
        );
    }
}
