//! CancelRequest: to the session that carries out the client's statement, as long as it does.

use super::shared::{Shared, Target, lock};
use crate::server::startup::CANCEL_REQUEST;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a request may take; the client's session stays its own until then.
const TIME_MAX: Duration = Duration::from_secs(2);

/// Passes a client's request on. One that knows no client's secret does nothing.
pub async fn cancel(shared: &Shared, id: i32, secret: i32) {
    let target = {
        let clients = lock(&shared.clients);
        let known = clients.get(&id).filter(|known| known.secret == secret);
        known.map(|known| known.target.clone())
    };
    if let Some(target) = target {
        tokio::time::timeout(TIME_MAX, pass_on(&target)).await.ok();
    }
}

/// Holds the target, so that the session is no other client's before the server has closed the connection: it has
/// acted then.
async fn pass_on(target: &Target) -> io::Result<()> {
    let target = target.read().await;
    let Some((address, key)) = &*target else { return Ok(()) };
    let mut stream = TcpStream::connect(address).await?;
    let request = [&16i32.to_be_bytes()[..], &CANCEL_REQUEST.to_be_bytes(), key].concat();
    stream.write_all(&request).await?;
    let mut rest = [0];
    stream.read(&mut rest).await.map(|_| ())
}
