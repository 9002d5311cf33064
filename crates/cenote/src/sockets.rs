//! What every client's socket is told: that the kernel is to notice a machine which is gone.

use rustix::net::sockopt;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// After so long without a word the kernel asks whether the client's machine is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;
/// Bytes that stay unacknowledged for so long mean that the client's machine is gone.
const UNACKNOWLEDGED_MS_MAX: u32 = 120_000;

/// Has a connection end by itself when the other side's machine is gone.
///
/// # Errors
/// The system refuses it: the client has left.
pub fn notice_loss(stream: impl AsFd) -> io::Result<()> {
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED_MS_MAX)?;
    Ok(())
}
