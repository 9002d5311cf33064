//! Who is told when a socket has something to be read: one thread of the process sleeps on all sockets for which a
//! caller waits, so that idle connections need no thread each.

use cenote_base::rt::{self, HashMap, Mutex};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

/// Events that are taken at once.
const BATCH: usize = 256;

pub(super) type Wake = Box<dyn FnOnce() + Send>;

/// See the module.
pub(super) struct Poller {
    epoll: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the number that the event carries: no event of before is taken for a later one of the same socket.
    wakes: HashMap<u64, Wake>,
    last: u64,
}

/// The process's own.
///
/// # Errors
/// The system has none to give.
pub(super) fn poller() -> io::Result<&'static Poller> {
    static POLLER: OnceLock<io::Result<Poller>> = OnceLock::new();
    static THREAD: OnceLock<io::Result<()>> = OnceLock::new();
    let poller = POLLER.get_or_init(Poller::new).as_ref().map_err(copy)?;
    let thread = || rt::try_spawn("connections", || poller.run()).map(drop);
    THREAD.get_or_init(thread).as_ref().map_err(copy)?;
    Ok(poller)
}

fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

impl Poller {
    fn new() -> io::Result<Self> {
        // SAFETY: it takes no pointer.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            // SAFETY: the descriptor is new, and nobody else's.
            epoll: unsafe { OwnedFd::from_raw_fd(fd) },
            state: Mutex::default(),
        })
    }

    /// Calls `wake` once, when there is something to be read, or the socket is over. Whoever wakes keeps the socket open
    /// until then.
    ///
    /// # Errors
    /// The system's: then `wake` is dropped.
    pub(super) fn arm(&self, socket: BorrowedFd<'_>, wake: Wake) -> io::Result<()> {
        let number = {
            let mut state = self.state.lock();
            state.last += 1;
            let number = state.last;
            state.wakes.insert(number, wake);
            number
        };
        let armed = self.control(libc::EPOLL_CTL_MOD, socket, number);
        let armed = match armed {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                self.control(libc::EPOLL_CTL_ADD, socket, number)
            }
            armed => armed,
        };
        if armed.is_err() {
            let wake = self.state.lock().wakes.remove(&number);
            drop(wake);
        }
        armed
    }

    fn control(&self, what: i32, socket: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLONESHOT) as u32,
            u64: number,
        };
        // SAFETY: the event is this function's own, and the system copies it.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), what, socket.as_raw_fd(), &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn run(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        loop {
            // SAFETY: the array is this function's own, and as long as it says.
            let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), BATCH as i32, -1) };
            for event in &events[..usize::try_from(count).unwrap_or(0)] {
                let wake = self.state.lock().wakes.remove(&{ event.u64 });
                if let Some(wake) = wake {
                    wake();
                }
            }
        }
    }
}

/// Waits until a socket has something to be read, so long at most.
pub(super) fn wait(socket: BorrowedFd<'_>, timeout: rt::Nanos) {
    let mut wanted = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let millis = i32::try_from(timeout.raw().div_ceil(1_000_000)).unwrap_or(i32::MAX);
    // SAFETY: the one entry is this function's own.
    unsafe { libc::poll(&mut wanted, 1, millis) };
}
