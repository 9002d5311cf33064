//! Certificates and keys in PEM files, for TLS in either direction.

use cenote_base::{Error, Result};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a server shows, and what it asks its clients for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// Its certificate, with its chain.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// The authorities that clients' certificates are checked against; without it, clients need none.
    pub client_authority: Option<PathBuf>,
}

/// How a server speaks TLS 1.2 and 1.3.
///
/// # Errors
/// [`Error::Io`] if a file cannot be read. [`Error::Invalid`] if it holds no certificate or key, or if the key is not
/// the certificate's.
pub fn server(files: &ServerFiles) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(ring::default_provider());
    let Identity { chain, key, .. } = identity(&files.certificate, &files.key)?;
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(&files.certificate, &error))?;
    let config = match &files.client_authority {
        None => config.with_no_client_auth(),
        Some(file) => {
            let roots = Arc::new(authorities(file)?.1);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            config.with_client_cert_verifier(verifier.map_err(|error| bad(file, &error))?)
        }
    };
    let config = config.with_single_cert(chain, key);
    Ok(Arc::new(config.map_err(|error| bad(&files.key, &error))?))
}

/// The certificates of a file, each of which may be an authority.
///
/// # Errors
/// The file cannot be read, or one of them cannot.
pub fn authorities(file: &Path) -> Result<(Vec<CertificateDer<'static>>, RootCertStore)> {
    let certificates = certificates(file)?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|error| bad(file, &error))?;
    }
    Ok((certificates, roots))
}

/// A certificate and its private key.
pub struct Identity {
    /// The certificate, with its chain.
    pub chain: Vec<CertificateDer<'static>>,
    /// The key.
    pub key: PrivateKeyDer<'static>,
    /// The text of the key's file.
    pub pem: Vec<u8>,
}

/// A certificate and its key. Checks that they fit: a request would find it out too late.
///
/// # Errors
/// A file cannot be read; there is no certificate or key in it; the key is another's.
pub fn identity(chain_file: &Path, key_file: &Path) -> Result<Identity> {
    let (chain, pem) = (certificates(chain_file)?, read(key_file)?);
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| bad(key_file, &error))?;
    let provider: CryptoProvider = ring::default_provider();
    CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider).map_err(|error| bad(key_file, &error))?;
    Ok(Identity { chain, key, pem })
}

/// The certificates of a PEM file, of which there is at least one.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read(file)?;
    let found = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| bad(file, &error))?;
    match found.is_empty() {
        false => Ok(found),
        true => Err(bad(file, &"it holds no certificate")),
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|error| Error::io(format!("reading {}", file.display()), error))
}

/// A file that is of no use for TLS.
pub fn bad(file: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::Invalid(format!(
        "{} cannot be used for TLS: {why}; give a PEM file",
        file.display()
    ))
}
