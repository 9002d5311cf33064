//! Where archives lie: a directory, or a bucket that speaks S3's protocol.

mod directory;
mod s3;

use cenote_base::{Error, Result};
use cenote_storage::archive::Objects;
use std::sync::Arc;

/// What a URL names. Nothing is connected to yet.
///
/// # Errors
/// [`Error::Invalid`] if it names neither.
pub fn open(url: &str) -> Result<Arc<dyn Objects>> {
    match url.split_once("://") {
        Some(("s3" | "s3a", _)) => Ok(Arc::new(s3::Bucket::new(url)?)),
        Some(("file", path)) if path.starts_with('/') => Ok(Arc::new(directory::Directory::new(path))),
        Some((scheme, _)) => Err(Error::Invalid(format!(
            "the archive {url:?} is neither a directory nor s3://BUCKET/PREFIX ({scheme}:// is not known)"
        ))),
        None if url.is_empty() => Err(Error::Invalid("the archive has no name".into())),
        None => Ok(Arc::new(directory::Directory::new(url))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_directory_or_a_bucket() {
        for (url, place) in [
            ("/srv/archive", "/srv/archive"),
            ("file:///srv/archive", "/srv/archive"),
            ("s3://bucket/some/prefix", "s3://bucket/some/prefix"),
        ] {
            assert_eq!(open(url).unwrap().place(), place);
        }
        for url in ["ftp://host/x", "file://host/x", "", "s3://"] {
            assert!(matches!(open(url).map(drop), Err(Error::Invalid(_))), "{url}");
        }
    }
}
