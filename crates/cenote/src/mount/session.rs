//! A mount from its beginning to its end.

use super::Mounted;
use crate::log;
use cenote_fs::FileSystem;
use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use signal_hook::iterator::Signals;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How it is mounted.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Nothing can be changed.
    pub read_only: bool,
    /// Users other than the mounting one see it.
    pub allow_other: bool,
    /// Threads that answer the kernel.
    pub threads: usize,
    /// What `mount` and `df` call it.
    pub name: String,
}

impl Options {
    /// As the FUSE library takes it.
    pub fn config(&self) -> Config {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(self.name.clone()),
            MountOption::Subtype("cenote".into()),
            MountOption::DefaultPermissions,
            MountOption::NoAtime,
            MountOption::NoDev,
            MountOption::NoSuid,
            if self.read_only {
                MountOption::RO
            } else {
                MountOption::RW
            },
        ];
        if self.allow_other {
            config.acl = SessionACL::All;
        }
        config.n_threads = Some(self.threads.max(1));
        config.clone_fd = true;
        config
    }
}

/// Mounts a file system at a directory, and serves it until it is unmounted: by `umount`, or at a signal. `ready` is
/// called once it is there; `leave` before the process ends although programs still use what is mounted.
///
/// # Errors
/// Those of mounting, with what can be done about them.
pub fn run(
    files: FileSystem,
    at: &Path,
    options: &Options,
    signals: Signals,
    ready: impl FnOnce(),
    leave: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    // Before it is mounted: afterwards a look at the directory asks this process, which does not answer yet.
    let place = at.canonicalize()?;
    let session = Session::new(Mounted::new(files), &place, &options.config());
    let mut session = session.map_err(|error| explained(at, &error))?;
    unmount_at_signal(signals, session.unmount_callable(), place, leave);
    ready();
    let answer = session.run();
    IS_OVER.store(true, Ordering::Release);
    while ENDS.load(Ordering::Acquire) {
        std::thread::park();
    }
    answer
}

fn explained(at: &Path, error: &io::Error) -> io::Error {
    let why = match error.kind() {
        _ if !Path::new("/dev/fuse").exists() => {
            "there is no /dev/fuse: the kernel has no FUSE, or this is a container without it"
        }
        ErrorKind::NotFound if at.exists() => "fusermount3 is missing: install it (apt-get install fuse3)",
        ErrorKind::PermissionDenied => {
            "no right to: the directory must be one's own, /dev/fuse open to all, fusermount3 installed (apt-get \
             install fuse3), and for --allow-other `user_allow_other` in /etc/fuse.conf"
        }
        _ => "see above, or `dmesg`",
    };
    io::Error::new(
        error.kind(),
        format!("cannot mount at {}: {error} ({why})", at.display()),
    )
}

/// Where this process has mounted, to be undone when it has to end at once.
static MOUNTED: OnceLock<PathBuf> = OnceLock::new();
/// The kernel asks nothing any more.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// How long programs may take to close what is open, once it is unmounted.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(1);
const TURN: Duration = Duration::from_millis(10);
/// A thread is in [`end`].
static ENDS: AtomicBool = AtomicBool::new(false);

/// The first signal unmounts. If programs are still in the directory, it is detached; a program that does not close its
/// files there in a moment loses them, with this process.
fn unmount_at_signal(
    mut signals: Signals,
    mut unmounter: SessionUnmounter,
    at: PathBuf,
    leave: impl FnOnce() + Send + 'static,
) {
    let _ = MOUNTED.set(at.clone());
    std::thread::spawn(move || {
        signals.forever().next();
        let Err(error) = unmounter.unmount() else { return };
        log::warn!("{} is in use ({error}): detached", at.display());
        detach(&at);
        let until = Instant::now() + CLOSE_TIME_MAX;
        while Instant::now() < until {
            if IS_OVER.load(Ordering::Acquire) {
                return;
            }
            std::thread::sleep(TURN);
        }
        leave();
        std::process::exit(0);
    });
}

/// Takes the mount away, used or not, and ends the process as if killed: the memory is not touched again.
pub fn end() -> ! {
    ENDS.store(true, Ordering::Release);
    if let Some(at) = MOUNTED.get() {
        detach(at);
    }
    std::process::exit(1)
}

fn detach(at: &Path) {
    let tries = [("umount", ["-l"].as_slice()), ("fusermount3", &["-u", "-z"])];
    for (program, arguments) in tries {
        let status = Command::new(program)
            .args(arguments)
            .arg(at)
            .stderr(Stdio::null())
            .status();
        if status.is_ok_and(|status| status.success()) {
            return;
        }
    }
    log::error!("{} could not be unmounted: do so with `umount -l`", at.display());
}
