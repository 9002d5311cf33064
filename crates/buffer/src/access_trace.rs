//! Page accesses of a workload, told as they are made, and the bytes of a file that keeps them.
//!
//! What a workload would gain from memory of another size or speed depends on the pages that it asks for, in which
//! order, and on what its processor does in between: not on where the pages were. An observer
//! ([`Pool::observe_accesses`]) hears of each; nothing is asked of the pool but one load where none is installed.
//!
//! A file is a header and frames, each decoded by itself; integers are variable in length (LEB128, seven bits a byte,
//! the lowest first), differences are zigzag:
//!
//! ```text
//! header   "CNTRACE1"  page size: u32  checksum of these: u32
//! frame    length: u32  checksum: u32  events
//! event    kind: 3 bits, same thread: bit 3, same space: bit 4, 0: bits 5 to 7
//!          [thread]  nanoseconds of the processor that the thread has used since its event before
//!          page:   [space] page - page of the event before
//!          pages:  count, then each as a page, the space always there
//!          mark:   length, UTF-8; nanoseconds of the processor that the process has used since the mark before
//!          end:    nothing
//! ```
//!
//! [`Pool::observe_accesses`]: crate::Pool::observe_accesses

use std::sync::Arc;

use cenote_base::bytes::get_le;
use cenote_base::crc::crc32c;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{Mutex, Nanos};
use cenote_base::{Error, PAGE_SIZE, PageId, Result};

const MAGIC: &[u8; 8] = b"CNTRACE1";
const HEADER_BYTES: usize = 16;
/// Events go to a frame until it has so many bytes.
const FRAME_BYTES: usize = 64 << 10;
/// No frame of a sound file is longer: the last event of one may be a list of pages.
const FRAME_MOST: usize = FRAME_BYTES + (64 << 10);
/// Pages of one event; longer lists become several events.
const PAGES_MOST: usize = 1 << 10;
/// Bytes of a mark's name at most.
pub const MARK_BYTES: usize = 128;

const SAME_THREAD: u8 = 1 << 3;
const SAME_SPACE: u8 = 1 << 4;

/// How a page is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageAccess {
    /// To be read.
    Read,
    /// To be read by one that passes by: leaves no trace of recency.
    Pass,
    /// To be changed.
    Write,
    /// To be made anew: it is not read.
    Create,
}

/// Hears of page accesses. It is called by the thread that makes them, which may hold latches: it must not use the pool.
pub trait AccessObserver: Send + Sync {
    /// A page is asked for: before it is looked for, or, of one that a reader latches to change it, just behind that.
    fn page(&self, page: PageId, access: PageAccess);
    /// These pages will be asked for: they are read together now, or in the background (`ahead`).
    fn pages(&self, pages: &[PageId], ahead: bool);
}

/// The pool's observer, if it has one.
#[derive(Default)]
pub(crate) struct Observed {
    on: AtomicBool,
    observer: Mutex<Option<Arc<dyn AccessObserver>>>,
}

impl Observed {
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        // The observer itself is behind a lock: a thread that sees the change late tells a little less.
        self.on.as_raw().load(Ordering::Relaxed)
    }

    pub fn set(&self, observer: Option<Arc<dyn AccessObserver>>) {
        let mut place = self.observer.lock();
        self.on.as_raw().store(observer.is_some(), Ordering::Relaxed);
        *place = observer;
    }

    #[cold]
    #[inline(never)]
    pub fn tell(&self, page: PageId, access: PageAccess) {
        let observer = self.observer.lock().clone();
        if let Some(observer) = observer {
            observer.page(page, access);
        }
    }

    #[cold]
    #[inline(never)]
    pub fn tell_pages(&self, pages: &[PageId], ahead: bool) {
        let observer = self.observer.lock().clone();
        if let Some(observer) = observer {
            observer.pages(pages, ahead);
        }
    }
}

/// What a trace tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Traced {
    /// A page was asked for.
    Page(PageId, PageAccess),
    /// Pages were announced: read together then, or in the background (`ahead`).
    Pages {
        /// Which.
        pages: Vec<PageId>,
        /// In the background.
        ahead: bool,
    },
    /// A part of the workload ended here.
    Mark {
        /// Of the part; at most [`MARK_BYTES`].
        name: String,
        /// Of the processor, by the whole process since the mark before.
        processor: Nanos,
    },
    /// Nothing follows: what lacks this was cut off.
    End,
}

/// One event of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEvent {
    /// Which thread, numbered as they came.
    pub thread: u32,
    /// Of the processor, by that thread since its event before.
    pub processor: Nanos,
    /// What.
    pub what: Traced,
}

/// Makes the bytes of a trace.
#[derive(Default)]
pub struct TraceEncoder {
    events: Vec<u8>,
    before: Before,
}

/// The event before, within a frame.
#[derive(Default, Clone, Copy)]
struct Before {
    thread: u32,
    page: (u32, u32),
}

impl TraceEncoder {
    /// What a file begins with.
    pub fn header() -> Vec<u8> {
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&(PAGE_SIZE as u32).to_le_bytes());
        header.extend_from_slice(&crc32c(&header).to_le_bytes());
        header
    }

    /// Adds an event, and a whole frame to `out` if there is one now.
    pub fn push(&mut self, event: &TraceEvent, out: &mut Vec<u8>) {
        match &event.what {
            Traced::Page(page, access) => {
                self.head(
                    event.thread,
                    event.processor,
                    *access as u8,
                    page.space == self.before.page.0,
                );
                self.page(*page, false);
            }
            Traced::Pages { pages, ahead } => {
                let mut processor = event.processor;
                for some in pages.chunks(PAGES_MOST) {
                    self.head(event.thread, processor, 4 + u8::from(*ahead), false);
                    processor = Nanos::ZERO;
                    put(&mut self.events, some.len() as u64);
                    some.iter().for_each(|page| self.page(*page, true));
                    self.frame(false, out);
                }
            }
            Traced::Mark { name, processor } => {
                self.head(event.thread, event.processor, 6, false);
                let name = &name.as_bytes()[..name.floor_char_boundary(MARK_BYTES)];
                put(&mut self.events, name.len() as u64);
                self.events.extend_from_slice(name);
                put(&mut self.events, processor.raw());
            }
            Traced::End => self.head(event.thread, event.processor, 7, false),
        }
        self.frame(event.what == Traced::End, out);
    }

    fn head(&mut self, thread: u32, processor: Nanos, kind: u8, same_space: bool) {
        let same_thread = thread == self.before.thread;
        self.events
            .push(kind | if same_thread { SAME_THREAD } else { 0 } | if same_space { SAME_SPACE } else { 0 });
        if !same_thread {
            put(&mut self.events, u64::from(thread));
            self.before.thread = thread;
        }
        put(&mut self.events, processor.raw());
    }

    fn page(&mut self, page: PageId, with_space: bool) {
        if with_space || page.space != self.before.page.0 {
            put(&mut self.events, u64::from(page.space));
        }
        let step = i64::from(page.page) - i64::from(self.before.page.1);
        put(&mut self.events, ((step << 1) ^ (step >> 63)) as u64);
        self.before.page = (page.space, page.page);
    }

    fn frame(&mut self, is_last: bool, out: &mut Vec<u8>) {
        if self.events.len() < FRAME_BYTES && !is_last {
            return;
        }
        assert!(
            self.events.len() <= FRAME_MOST,
            "a frame is closed by the event that fills it"
        );
        out.extend_from_slice(&(self.events.len() as u32).to_le_bytes());
        out.extend_from_slice(&crc32c(&self.events).to_le_bytes());
        out.append(&mut self.events);
        self.before = Before::default();
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The events of a trace's bytes, checked. After an error there is nothing more.
pub struct TraceDecoder<'a> {
    rest: &'a [u8],
    frame: &'a [u8],
    before: Before,
    is_over: bool,
}

impl<'a> TraceDecoder<'a> {
    /// Of a whole file.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no trace, or one of pages of another size.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let (header, rest) = bytes
            .split_at_checked(HEADER_BYTES)
            .filter(|(header, _)| header.starts_with(MAGIC) && get_le(header, 12) == Some(crc32c(&header[..12])))
            .ok_or_else(|| Error::Invalid("this is no trace of page accesses".into()))?;
        match get_le::<u32>(header, 8) {
            Some(size) if size as usize == PAGE_SIZE => Ok(Self {
                rest,
                frame: &[],
                before: Before::default(),
                is_over: false,
            }),
            size => Err(Error::Invalid(format!(
                "a trace of pages of {} bytes, not of {PAGE_SIZE}",
                size.unwrap_or(0)
            ))),
        }
    }

    fn event(&mut self) -> Result<TraceEvent> {
        if self.frame.is_empty() {
            self.frame = self.next_frame()?;
            self.before = Before::default();
        }
        self.decode()
            .ok_or_else(|| Error::corrupt("a frame of the trace has what is no event"))
    }

    fn next_frame(&mut self) -> Result<&'a [u8]> {
        let cut = || Error::corrupt("the trace was cut off: it has no end");
        let length = get_le::<u32>(self.rest, 0).ok_or_else(cut)? as usize;
        let sum = get_le::<u32>(self.rest, 4).ok_or_else(cut)?;
        if length == 0 || length > FRAME_MOST {
            return Err(Error::corrupt(format!(
                "a frame of the trace says that it has {length} bytes"
            )));
        }
        let (frame, rest) = self.rest[8..].split_at_checked(length).ok_or_else(cut)?;
        if crc32c(frame) != sum {
            return Err(Error::corrupt("a frame of the trace is not what was written"));
        }
        self.rest = rest;
        Ok(frame)
    }

    fn decode(&mut self) -> Option<TraceEvent> {
        let head = self.byte()?;
        if head >> 5 != 0 {
            return None;
        }
        if head & SAME_THREAD == 0 {
            self.before.thread = self.small()?;
        }
        let processor = Nanos(self.number()?);
        let kind = head & 7;
        let what = match kind {
            0..=3 => Traced::Page(self.page(head & SAME_SPACE == 0)?, ACCESSES[kind as usize]),
            4 | 5 => {
                let count = self.small().filter(|count| *count as usize <= PAGES_MOST)?;
                let pages = (0..count).map(|_| self.page(true)).collect::<Option<_>>()?;
                Traced::Pages {
                    pages,
                    ahead: kind == 5,
                }
            }
            6 => {
                let length = self.small().filter(|length| *length as usize <= MARK_BYTES)?;
                let (name, rest) = self.frame.split_at_checked(length as usize)?;
                self.frame = rest;
                let name = std::str::from_utf8(name).ok()?.to_owned();
                Traced::Mark {
                    name,
                    processor: Nanos(self.number()?),
                }
            }
            _ => Traced::End,
        };
        Some(TraceEvent {
            thread: self.before.thread,
            processor,
            what,
        })
    }

    fn page(&mut self, with_space: bool) -> Option<PageId> {
        if with_space {
            self.before.page.0 = self.small()?;
        }
        let step = self.number()?;
        let step = (step >> 1) as i64 ^ -((step & 1) as i64);
        self.before.page.1 = u32::try_from(i64::from(self.before.page.1).checked_add(step)?).ok()?;
        Some(PageId::new(self.before.page.0, self.before.page.1))
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.frame.split_first()?;
        self.frame = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return None;
            }
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }
}

const ACCESSES: [PageAccess; 4] = [
    PageAccess::Read,
    PageAccess::Pass,
    PageAccess::Write,
    PageAccess::Create,
];

impl Iterator for TraceDecoder<'_> {
    type Item = Result<TraceEvent>;

    fn next(&mut self) -> Option<Result<TraceEvent>> {
        if self.is_over {
            return None;
        }
        let event = self.event();
        self.is_over = !matches!(&event, Ok(event) if event.what != Traced::End);
        Some(event)
    }
}

#[cfg(test)]
mod tests;
