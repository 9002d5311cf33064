use super::*;
use cenote_base::random::Random;

fn page(space: u32, page: u32, access: PageAccess) -> Traced {
    Traced::Page(PageId::new(space, page), access)
}

/// Events of every kind, with numbers at their limits among others that are usual.
fn events(seed: u64, count: usize) -> Vec<TraceEvent> {
    let mut draw = Random(seed);
    let mut number = |usual: u64, most: u64| match draw.below(8) {
        0 => most,
        1 => 0,
        _ => draw.below(usual),
    };
    let mut event = |_| {
        let id = |number: &mut dyn FnMut(u64, u64) -> u64| {
            PageId::new(
                number(3, u64::from(u32::MAX)) as u32,
                number(9000, u64::from(u32::MAX)) as u32,
            )
        };
        let what = match number(6, 0) {
            0 => Traced::Pages {
                pages: (0..1 + number(9, PAGES_MOST as u64 - 1))
                    .map(|_| id(&mut number))
                    .collect(),
                ahead: number(2, 0) == 0,
            },
            1 => Traced::Mark {
                name: "ü".repeat(number(9, MARK_BYTES as u64 / 2) as usize),
                processor: Nanos(number(1 << 30, u64::MAX)),
            },
            _ => Traced::Page(id(&mut number), ACCESSES[number(4, 0) as usize]),
        };
        TraceEvent {
            thread: number(3, u64::from(u32::MAX)) as u32,
            processor: Nanos(number(1 << 20, u64::MAX)),
            what,
        }
    };
    let mut events: Vec<TraceEvent> = (0..count).map(&mut event).collect();
    let last = TraceEvent {
        thread: 0,
        processor: Nanos::ZERO,
        what: Traced::End,
    };
    events.push(last);
    events
}

fn encode(events: &[TraceEvent]) -> Vec<u8> {
    let mut bytes = TraceEncoder::header();
    let mut encoder = TraceEncoder::default();
    events.iter().for_each(|event| encoder.push(event, &mut bytes));
    bytes
}

#[test]
fn a_trace_is_read_as_it_was_written() {
    for seed in 1..=20 {
        let events = events(seed, 2000);
        let bytes = encode(&events);
        let read: Result<Vec<TraceEvent>> = TraceDecoder::new(&bytes).expect("a trace").collect();
        assert!(read.expect("sound") == events, "seed {seed}: other events");
    }
}

#[test]
fn the_next_page_takes_three_bytes() {
    let many: Vec<TraceEvent> = (0..1000)
        .map(|n| TraceEvent {
            thread: 0,
            processor: Nanos(100),
            what: page(7, n, PageAccess::Read),
        })
        .collect();
    let mut bytes = Vec::new();
    let mut encoder = TraceEncoder::default();
    many.iter().for_each(|event| encoder.push(event, &mut bytes));
    assert!(
        bytes.is_empty() && encoder.events.len() < 3 * 1000 + 4,
        "{}",
        encoder.events.len()
    );
}

/// Every byte that is another, and every length that is less, is an error: no panic, and no other events.
#[test]
fn what_was_not_written_is_refused() {
    let events = events(3, 300);
    let bytes = encode(&events);
    let read = |bytes: &[u8]| TraceDecoder::new(bytes)?.collect::<Result<Vec<TraceEvent>>>();
    let mut draw = Random(9);
    for _ in 0..2000 {
        let mut spoiled = bytes.clone();
        let at = draw.below(bytes.len() as u64) as usize;
        spoiled[at] ^= 1 << draw.below(8);
        assert!(read(&spoiled).is_err(), "byte {at}");
        assert!(read(&bytes[..at]).is_err(), "cut at {at}");
    }
    assert!(read(&bytes).expect("itself is sound") == events);
}

/// Frames whose checksum is right may come from elsewhere: what is in them is not believed either.
#[test]
fn frames_of_anything_end() {
    let mut draw = Random(5);
    for _ in 0..2000 {
        let frame: Vec<u8> = (0..1 + draw.below(60)).map(|_| draw.below(256) as u8).collect();
        let mut bytes = TraceEncoder::header();
        bytes.extend_from_slice(&(frame.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32c(&frame).to_le_bytes());
        bytes.extend_from_slice(&frame);
        assert!(TraceDecoder::new(&bytes).expect("a header").count() <= frame.len() + 1);
    }
}

#[test]
fn long_lists_and_names_are_split_and_cut() {
    let pages: Vec<PageId> = (0..PAGES_MOST as u32 + 1).map(|n| PageId::new(1, n)).collect();
    let of = |what| TraceEvent {
        thread: 1,
        processor: Nanos(5),
        what,
    };
    let bytes = encode(&[
        of(Traced::Pages {
            pages: pages.clone(),
            ahead: true,
        }),
        of(Traced::Mark {
            name: "x".repeat(MARK_BYTES + 1),
            processor: Nanos::ZERO,
        }),
        of(Traced::End),
    ]);
    let read: Vec<TraceEvent> = TraceDecoder::new(&bytes)
        .unwrap()
        .map(|event| event.expect("sound"))
        .collect();
    let lists = read.iter().filter_map(|event| match &event.what {
        Traced::Pages { pages, .. } => Some(pages.as_slice()),
        _ => None,
    });
    assert_eq!(lists.flatten().copied().collect::<Vec<_>>(), pages);
    assert_eq!(
        read.iter().map(|event| event.processor.raw()).sum::<u64>(),
        15,
        "the second part took nothing"
    );
    assert!(matches!(&read[2].what, Traced::Mark { name, .. } if name.len() == MARK_BYTES));
}
