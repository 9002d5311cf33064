//! Several reads at once, and checks of their lengths.

use std::io;

use cenote_base::rt::fs::{self, IoOp, IoRequest};

/// Does reads together; they come back in the order of their tags.
pub(crate) fn at_once(requests: Vec<IoRequest>) -> Vec<IoRequest> {
    let submitted = requests.len();
    let mut done = fs::submit(requests).complete();
    assert_eq!(done.len(), submitted, "each request of a batch comes back");
    done.sort_unstable_by_key(|request| request.tag);
    done
}

/// The bytes of a read.
///
/// # Errors
/// The I/O error of the read; `UnexpectedEof` if it brought fewer bytes than were asked for.
pub(crate) fn whole(request: IoRequest) -> io::Result<Box<[u8]>> {
    let (read, offset) = (request.result?, request.offset);
    match request.op {
        IoOp::Read(bytes) if read == bytes.len() => Ok(bytes),
        _ => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("the file ends {read} bytes after {offset}"),
        )),
    }
}

/// The bytes of a read, with zeros where the file ended.
///
/// # Errors
/// The I/O error of the read.
pub(crate) fn padded(request: IoRequest) -> io::Result<Box<[u8]>> {
    let read = request.result?;
    match request.op {
        IoOp::Read(mut bytes) => {
            bytes[read..].fill(0);
            Ok(bytes)
        }
        IoOp::Write(_) => Err(io::ErrorKind::InvalidInput.into()),
    }
}
