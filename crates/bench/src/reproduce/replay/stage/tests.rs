use super::super::Part;
use super::*;
use cenote_base::random::Random;

const PAGES: u32 = 640;

fn run(system: System) -> Run {
    Run {
        system,
        processor: 1.0,
        brings: true,
        one_thread: false,
        seed: 1,
    }
}

fn step(thread: u32, processor: u32, act: Act) -> Step {
    Step { thread, processor, act }
}

/// One part a list of steps.
fn workload(parts: Vec<Vec<Step>>) -> Arc<Workload> {
    let part = |(n, steps)| Part {
        name: format!("part {n}"),
        steps,
        rest: Nanos(1_000),
    };
    Arc::new(Workload {
        pages: PAGES,
        parts: parts.into_iter().enumerate().map(part).collect(),
        lists: (0..PAGES).collect(),
        made: Vec::new(),
    })
}

/// Each page once, with a microsecond of the processor before.
fn all_pages(thread: u32, access: PageAccess) -> Vec<Step> {
    (0..PAGES)
        .map(|page| step(thread, 1_000, Act::Page(page, access)))
        .collect()
}

fn stage() -> Stage {
    Stage::build(PAGES, 1, &mut |_| {}).expect("a database")
}

fn play(stage: &Stage, workload: &Arc<Workload>, run: Run) -> Vec<PartMeasured> {
    stage.run(workload, run, &|| {}).expect("a run")
}

#[test]
fn less_memory_costs_what_pages_take() {
    let stage = stage();
    let workload = workload(vec![all_pages(0, PageAccess::Read), all_pages(0, PageAccess::Read)]);
    let pages = u64::from(PAGES);
    let alone = u64::from(PAGES) * 1_000 + 1_000;
    let times = |system| {
        let parts = play(&stage, &workload, run(system));
        assert_eq!(parts.len(), 2);
        let part = parts[1].clone();
        assert_eq!(part.hits + part.misses, pages, "{part:?}");
        part
    };
    let local = times(System::Vanilla(1.25));
    assert_eq!((local.misses, local.remote, local.stored), (0, 0, 0));
    // Some hundreds of nanoseconds an access are the pool's own.
    let own = local.time.raw() - alone;
    assert!(own < pages * 500, "{own} ns of the pool's own for {pages} accesses");
    // A quarter of the pages in frames, by turns: the least recently used one is the one that is next.
    let remote = times(System::Tiered(0.25));
    assert!(
        remote.misses > pages * 9 / 10 && remote.remote == remote.misses && remote.stored == 0,
        "{remote:?}"
    );
    let each = (remote.time.raw() - local.time.raw()) / remote.misses;
    assert!((6_000..14_000).contains(&each), "{each} ns a page over RDMA");
    let stored = times(System::Vanilla(0.25));
    assert!(stored.stored == stored.misses && stored.remote == 0, "{stored:?}");
    let each = (stored.time.raw() - local.time.raw()) / stored.misses;
    assert!((55_000..90_000).contains(&each), "{each} ns a page from storage");
}

#[test]
fn what_remote_memory_has_no_room_for_is_in_storage() {
    let mut draw = Random(7);
    let page = |_| step(0, 0, Act::Page(draw.below(u64::from(PAGES)) as u32, PageAccess::Read));
    let workload = workload(vec![(0..4 * PAGES).map(page).collect()]);
    let system = System::Limited {
        local: 0.25,
        remote: 0.5,
    };
    let part = &play(&stage(), &workload, run(system))[0];
    assert_eq!(part.remote + part.stored, part.misses, "{part:?}");
    let share = |pages: u64| pages as f64 / f64::from(4 * PAGES);
    assert!((0.15..0.55).contains(&share(part.remote)), "{part:?}");
    assert!((0.35..0.65).contains(&share(part.stored)), "{part:?}");
}

#[test]
fn announced_pages_are_read_together() {
    let stage = stage();
    let count = 16;
    let mut steps = Vec::new();
    for from in (0..PAGES).step_by(usize::from(count)) {
        steps.push(step(
            0,
            0,
            Act::Pages {
                from,
                count,
                ahead: false,
            },
        ));
        steps.extend((from..from + u32::from(count)).map(|page| step(0, 1_000, Act::Page(page, PageAccess::Read))));
    }
    let workload = workload(vec![steps]);
    let time = |brings| {
        let run = Run {
            brings,
            ..run(System::Vanilla(0.25))
        };
        play(&stage, &workload, run)[0].time
    };
    let (together, alone) = (time(true), time(false));
    assert!(
        together.raw() * 2 < alone.raw(),
        "together {together:?}, page by page {alone:?}"
    );
}

#[test]
fn threads_run_side_by_side_unless_told() {
    let stage = stage();
    let of_two = (0..2).flat_map(|thread| all_pages(thread, PageAccess::Read)).collect();
    let workload = workload(vec![of_two]);
    let time = |one_thread| {
        let run = Run {
            one_thread,
            processor: 3.0,
            ..run(System::Vanilla(1.25))
        };
        play(&stage, &workload, run)[0].time.raw()
    };
    let (both, one) = (time(false), time(true));
    assert!(
        one > 6_000 * u64::from(PAGES) && both < one * 6 / 10,
        "{both} side by side, {one} one after the other"
    );
}

#[test]
fn changed_pages_leave_and_come_again() {
    let stage = stage();
    let workload = workload(vec![all_pages(0, PageAccess::Write), all_pages(0, PageAccess::Read)]);
    let parts = play(&stage, &workload, run(System::Tiered(0.25)));
    assert!(
        parts[1].misses > u64::from(PAGES) * 9 / 10 && parts[1].stored == 0,
        "{parts:?}"
    );
}

/// A page that is made is not read, wherever it was; one that its reader changes is looked for once.
#[test]
fn what_is_made_is_not_read_and_what_is_read_and_changed_is_found_once() {
    let act = |page, access| step(0, 100, Act::Page(page, access));
    let make = (0..PAGES).map(|page| act(page, PageAccess::Create)).collect();
    let change = |page| [act(page, PageAccess::Read), act(page, PageAccess::Write)];
    let workload = workload(vec![make, (0..PAGES).flat_map(change).collect()]);
    let parts = play(&stage(), &workload, run(System::Vanilla(0.25)));
    assert_eq!(parts[0].stored, 0, "{parts:?}");
    assert_eq!(parts[1].hits + parts[1].misses, u64::from(PAGES), "{parts:?}");
}
