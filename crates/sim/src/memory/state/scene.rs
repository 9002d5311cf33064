//! Memory when something has gone wrong, for people: each thread's last accesses, which lines are not as memory has
//! them, what lies there.

use super::super::host::{DIRTY, Id, PENDING, PRESENT, STALE};
use super::super::steps::Step;
use super::{PAGE, SPACE_AT, State, ViewId};
use std::collections::BTreeMap;

/// Steps that are told; those of a hazard's line; lines that are told one by one.
const STEPS: usize = 40;
const STEPS_OF_A_LINE: usize = 10;
const LINES: usize = 10;

const LINES_A_PAGE: u32 = (PAGE / 64) as u32;

impl State {
    /// What the owner of the device has put at a line: a page, a descriptor, another part; empty where it has not said.
    pub(super) fn what_lies_at(&self, host: usize, id: ViewId, line: Id) -> String {
        let view = self.view(host, id);
        let at = line - view.first;
        let Some(part) = view.parts.iter().find(|p| (p.lines.0..p.lines.1).contains(&at)) else {
            return String::new();
        };
        let within = at - part.lines.0;
        match part.name {
            "descriptors" => format!("descriptor of frame {within}, {}", self.page_in(host, id, within)),
            "pages" => {
                let (frame, byte) = (within / LINES_A_PAGE, within % LINES_A_PAGE * 64);
                format!("{}, byte {byte}, in frame {frame}", self.page_in(host, id, frame))
            }
            name => format!("{name} + {:#x}", u64::from(within) * 64),
        }
    }

    /// The page that a frame says it holds, as the host sees it, or else as memory has it.
    fn page_in(&self, host: usize, id: ViewId, frame: u32) -> String {
        let view = self.view(host, id);
        let pages = view.parts.iter().find(|p| p.name == "pages");
        let at = pages.map_or(u32::MAX, |p| p.lines.0.saturating_add(frame * LINES_A_PAGE));
        if u64::from(at) >= view.lines {
            return "no page".into();
        }
        let line = view.first + at;
        let bytes = match self.hosts[host].cache.has(line, PRESENT) {
            true => self.line(host, id, line),
            false => self.behind(host, id, line),
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        format!("page {}:{}", word(SPACE_AT), word(SPACE_AT + 4))
    }

    /// How a line is now.
    fn condition(&self, host: usize, line: Id) -> &'static str {
        match self.hosts[host].cache.tag(line) {
            tag if tag & PRESENT == 0 => "not cached",
            tag if tag & STALE != 0 && tag & DIRTY != 0 => "stale and dirty",
            tag if tag & STALE != 0 => "stale",
            tag if tag & DIRTY != 0 => "dirty",
            tag if tag & PENDING != 0 => "on its way to memory",
            _ => "as in memory",
        }
    }

    fn tell(&self, step: &Step, thread: &dyn Fn(usize) -> String) -> String {
        let (host, id) = (step.host as usize, ViewId(step.view as usize));
        let Some(view) = &self.hosts[host].views[id.0] else {
            return "a view that is closed".into();
        };
        let offset = u64::from(step.first - view.first) * 64;
        let name = thread(step.thread as usize);
        let more = match step.lines {
            1 => String::new(),
            lines => format!(" and {} lines more", lines - 1),
        };
        let (what, now) = (
            self.what_lies_at(host, id, step.first),
            self.condition(host, step.first),
        );
        let (time, thread, deed) = (step.time.0, step.thread, step.deed);
        format!("{time:>12} ns host {host} thread {thread} {name}: {deed} {offset:#x}{more} ({what}); now {now}")
    }

    /// The story; nothing where no device is seen through caches.
    pub(crate) fn scene(&self, thread: &dyn Fn(usize) -> String) -> Vec<String> {
        let mut last: Vec<&Step> = self.steps.newest().take(STEPS).collect();
        last.reverse();
        if last.is_empty() {
            return Vec::new();
        }
        let mut told = vec!["the last steps at memory devices:".to_owned()];
        told.extend(last.into_iter().map(|step| self.tell(step, thread)));
        for hazard in self.hazards.first.iter().take(2) {
            told.push(format!("what came before, at the line of the hazard \"{hazard}\":"));
            let before = |step: &&Step| step.time <= hazard.time && self.is_at(step, hazard.offset);
            let mut steps: Vec<&Step> = self.steps.newest().filter(before).take(STEPS_OF_A_LINE).collect();
            steps.reverse();
            told.extend(steps.into_iter().map(|step| self.tell(step, thread)));
        }
        (0..self.hosts.len()).for_each(|host| self.tell_cache(host, &mut told));
        told
    }

    /// Whether a step of any host was at this place of its device.
    fn is_at(&self, step: &Step, offset: u64) -> bool {
        let view = self.hosts[step.host as usize].views[step.view as usize].as_ref();
        view.is_some_and(|view| step.concerns(step.host, view.first + (offset / 64) as u32))
    }

    /// What of a host's cache is not in memory, by part; and the lines that are stale or on their way.
    fn tell_cache(&self, host: usize, told: &mut Vec<String>) {
        let (mut dirty, mut odd) = (BTreeMap::<&str, u32>::new(), Vec::new());
        for line in self.hosts[host].cache.present() {
            let id = self.view_of(host, line);
            let view = self.view(host, id);
            if view.coherent || line - view.first < view.window_lines {
                continue;
            }
            let tag = self.hosts[host].cache.tag(line);
            let at = line - view.first;
            let part = view.parts.iter().find(|p| (p.lines.0..p.lines.1).contains(&at));
            if tag & DIRTY != 0 {
                *dirty.entry(part.map_or("elsewhere", |p| p.name)).or_default() += 1;
            }
            if tag & (STALE | PENDING) != 0 {
                odd.push((id, line));
            }
        }
        let parts: Vec<String> = dirty.iter().map(|(part, lines)| format!("{part} {lines}")).collect();
        let parts = if parts.is_empty() {
            "none".into()
        } else {
            parts.join(", ")
        };
        let count = odd.len();
        told.push(format!(
            "host {host}: dirty lines: {parts}; stale or on their way to memory: {count}"
        ));
        for (id, line) in odd.into_iter().take(LINES) {
            let (what, now) = (self.what_lies_at(host, id, line), self.condition(host, line));
            told.push(format!("  {what}: {now}"));
        }
    }
}
