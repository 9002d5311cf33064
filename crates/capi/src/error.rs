//! What a call answers: a status, and if it failed a text in memory of the caller's. So nothing is to be freed, and
//! threads do not meet.

use super::arguments::OutArg;
use cenote_base::{Error, Result};
use core::any::Any;
use core::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `cenote_status`.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    Io = 1,
    Full = 2,
    Corrupt = 3,
    Mismatch = 4,
    Poisoned = 5,
    Invalid = 6,
    Busy = 7,
    Timeout = 8,
    Revoked = 9,
    OutOfBounds = 10,
    Lost = 11,
    Bug = 12,
}

impl Status {
    pub(super) fn of(error: &Error) -> Self {
        match error {
            // The last two are of databases, which this library has none of.
            Error::Io { .. } | Error::Canceled | Error::Ahead(_) | Error::Past(_) => Self::Io,
            Error::Full(_) | Error::OutOfMemory(_) => Self::Full,
            Error::Corrupt(_) => Self::Corrupt,
            Error::Mismatch(_) => Self::Mismatch,
            Error::Poisoned(_) | Error::LogFailed(_) => Self::Poisoned,
            Error::Invalid(_) => Self::Invalid,
            Error::Busy(_) => Self::Busy,
            Error::Timeout(_) => Self::Timeout,
            Error::Revoked(_) => Self::Revoked,
            Error::OutOfBounds(_) => Self::OutOfBounds,
            Error::Lost(_) => Self::Lost,
        }
    }
}

/// Bytes of a text with its final zero.
const TEXT: usize = 508;

/// `cenote_error`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Report {
    status: Status,
    text: [c_char; TEXT],
}

const _: () = assert!(size_of::<Report>() == 512);

/// Where a call's report goes; null if the caller wants none.
pub type ReportArg<'a> = OutArg<'a, Report>;

/// Runs a function's body. What it fails with goes to `report`, if there is one.
#[inline(always)]
pub(super) fn answer(report: ReportArg<'_>, body: impl FnOnce() -> Result<()>) -> Status {
    // A body that panics leaves handles as they are between its steps: locks are released, and what is shared is in
    // order at any time, as it has to be for processes that are killed.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(error)) => {
            let (status, text) = (Status::of(&error), error.to_string());
            tell(report, status, &text)
        }
        Err(panic) => {
            let text = format!("a bug in this library: {}", said(&*panic));
            tell(report, Status::Bug, &text)
        }
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it does not say what")
}

#[cold]
#[inline(never)]
fn tell(report: ReportArg<'_>, status: Status, text: &str) -> Status {
    let text = c_text(text);
    report.write_if_wanted(Report { status, text });
    status
}

/// As much of a text as there is room for, in whole characters.
fn c_text(text: &str) -> [c_char; TEXT] {
    let mut bytes = [0; TEXT];
    let fitting = &text.as_bytes()[..text.floor_char_boundary(TEXT - 1)];
    // A zero inside would end it there.
    let chars = fitting.iter().map(|byte| if *byte == 0 { b'?' } else { *byte });
    bytes.iter_mut().zip(chars).for_each(|(to, from)| *to = from as c_char);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let text = [1; TEXT];
        Report {
            status: Status::Ok,
            text,
        }
    }

    fn text(report: &Report) -> String {
        let end = report.text.iter().position(|c| *c == 0).expect("it ends");
        String::from_utf8(report.text[..end].iter().map(|c| *c as u8).collect()).expect("whole characters")
    }

    #[test]
    fn a_panic_becomes_a_status() {
        let mut told = report();
        let status = answer(OutArg::of(&mut told), || panic!("number {}", 7));
        assert_eq!((status, told.status), (Status::Bug, Status::Bug));
        assert_eq!(text(&told), "a bug in this library: number 7");
        let status = answer(OutArg::NULL, || panic!("again"));
        assert_eq!(status, Status::Bug);
    }

    #[test]
    fn long_texts_end_in_whole_characters() {
        for shift in 0..4 {
            let (mut told, long) = (report(), "x".repeat(shift) + &"ä€".repeat(300) + "\0");
            answer(OutArg::of(&mut told), || Err(Error::Invalid(long.clone())));
            assert!(long.starts_with(&text(&told)) && text(&told).len() > TEXT - 5);
        }
        let mut told = report();
        answer(OutArg::of(&mut told), || Err(Error::Full("a\0b".into())));
        assert_eq!((text(&told).as_str(), told.status), ("a?b", Status::Full));
    }
}
