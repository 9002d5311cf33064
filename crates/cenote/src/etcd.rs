//! How a manager of the pool reaches etcd: HTTP, with TLS if the endpoint is `https://`.
//!
//! ```text
//!  pool::store::etcd ── Transport::post ─► EtcdTransport ── ureq, rustls ─► etcd's JSON gateway
//! ```
//!
//! One connection a request, one time-out for all of it. No proxy, no redirect, no second try: the store repeats a
//! request by rules of its own, and only if it knows whether the first one may have been done.
//!
//! Invariant: [`Error::Lost`] means that no byte of the request's body was taken for sending. etcd does nothing before
//! it has the whole body.

use crate::tls;
use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};
use cenote_pool::store::etcd::{Answer, Endpoint, Transport};
use rustls::pki_types::CertificateDer;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use ureq::{Agent, SendBody};

/// Bytes of the longest answer's body.
const ANSWER_MAX: u64 = 16 << 20;

/// PEM files for TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdFiles {
    /// The authorities that etcd's certificate is checked against; without it, the public ones (webpki).
    pub authority: Option<PathBuf>,
    /// The manager's own certificate (with its chain), and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The way to etcd.
pub struct EtcdTransport {
    tls: TlsConfig,
}

impl EtcdTransport {
    /// Reads and checks the files. Connects to nothing yet.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be read. [`Error::Invalid`] if it holds no certificate or key, or if the key is
    /// not the certificate's.
    pub fn new(files: &EtcdFiles) -> Result<Self> {
        let mut tls = TlsConfig::builder();
        if let Some(file) = &files.authority {
            let (certificates, _) = tls::authorities(file)?;
            let roots: Vec<_> = certificates.iter().map(certificate).collect();
            tls = tls.root_certs(RootCerts::new_with_certs(&roots));
        }
        if let Some((certificates, key)) = &files.identity {
            tls = tls.client_cert(Some(identity(certificates, key)?));
        }
        Ok(Self { tls: tls.build() })
    }

    /// An agent of its own for each request: nothing of an earlier connection is used again.
    fn agent(&self, timeout: Nanos) -> Agent {
        // A time-out of zero is over before it begins.
        let timeout = Duration::from_nanos(timeout.raw().max(1_000_000));
        let config = Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_global(Some(timeout))
            .timeout_connect(Some(timeout))
            .tls_config(self.tls.clone());
        config.build().into()
    }
}

impl Transport for EtcdTransport {
    fn post(
        &self,
        endpoint: &Endpoint,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        timeout: Nanos,
    ) -> Result<Answer> {
        let request = self
            .agent(timeout)
            .post(format!("{endpoint}{path}"))
            .header("Connection", "close")
            .header("Content-Type", "application/json")
            .header("Content-Length", body.len().to_string());
        let request = headers
            .iter()
            .fold(request, |request, (name, value)| request.header(*name, *value));
        let mut body = WatchedBody {
            rest: body,
            taken: false,
        };
        let answer = request.send(SendBody::from_reader(&mut body)).and_then(whole);
        answer.map_err(|error| match body.taken {
            false => Error::Lost(format!("{endpoint} cannot be reached: {error}")),
            true => Error::Timeout(format!("no answer of {endpoint}: {error}")),
        })
    }
}

/// A request's body, which knows whether any of it was taken for sending.
struct WatchedBody<'a> {
    rest: &'a [u8],
    taken: bool,
}

impl Read for WatchedBody<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        self.taken = true;
        self.rest.read(to)
    }
}

fn whole(mut answer: ureq::http::Response<ureq::Body>) -> Result<Answer, ureq::Error> {
    let status = answer.status().as_u16();
    let body = answer.body_mut().with_config().limit(ANSWER_MAX).read_to_vec()?;
    Ok(Answer { status, body })
}

// ---- certificates and keys ----

fn identity(chain_file: &Path, key_file: &Path) -> Result<ClientCert> {
    let identity = tls::identity(chain_file, key_file)?;
    let key = PrivateKey::from_pem(&identity.pem).map_err(|error| tls::bad(key_file, &error))?;
    let chain: Vec<_> = identity.chain.iter().map(certificate).collect();
    Ok(ClientCert::new_with_certs(&chain, key))
}

fn certificate(der: &CertificateDer<'static>) -> Certificate<'static> {
    Certificate::from_der(der).to_owned()
}

#[cfg(test)]
mod tests;
