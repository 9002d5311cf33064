//! A bucket that speaks S3's protocol, by the library `object_store`: credentials, region and endpoint come from the
//! usual variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, AWS_ALLOW_HTTP, ...), or
//! from the machine's role.
//!
//! An object is put with `If-None-Match: *`, which AWS, MinIO, Ceph and R2 know; where a store does not, that is an
//! error. The library repeats what was not answered: it may report as taken the name that it took itself.

use cenote_base::{Error, Result};
use cenote_storage::archive::{ObjectSeen, Objects};
use futures::TryStreamExt;
use futures::stream::BoxStream;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{ClientOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, RetryConfig};
use std::future::Future;
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long one request may take, and all tries of one.
const REQUEST: Duration = Duration::from_secs(120);
const TRIES: Duration = Duration::from_secs(180);
const TRIES_MAX: usize = 5;
const CONNECT: Duration = Duration::from_secs(5);

/// See the module.
pub struct Bucket {
    url: String,
    prefix: Path,
    store: AmazonS3,
    runtime: Runtime,
}

impl Bucket {
    /// The bucket, and the prefix in it, that `url` names.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it names none, or the variables say what makes no sense.
    pub fn new(url: &str) -> Result<Bucket> {
        let invalid = |why: &dyn std::fmt::Display| Error::Invalid(format!("the archive {url:?}: {why}"));
        let rest = url.split_once("://").map_or("", |(_, rest)| rest).trim_end_matches('/');
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(invalid(&"it names no bucket: s3://BUCKET/PREFIX"));
        }
        let options = ClientOptions::new().with_timeout(REQUEST).with_connect_timeout(CONNECT);
        let retry = RetryConfig {
            max_retries: TRIES_MAX,
            retry_timeout: TRIES,
            ..RetryConfig::default()
        };
        let mut builder = AmazonS3Builder::from_env().with_retry(retry);
        // The options that the variables give stay.
        let allows_http =
            builder.get_config_value(&AmazonS3ConfigKey::Client(object_store::ClientConfigKey::AllowHttp));
        let allows_http = allows_http.is_some_and(|value| value == "true");
        builder = builder
            .with_client_options(options.with_allow_http(allows_http))
            .with_bucket_name(bucket);
        // Threads that ask wait; this one does the work of all.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Ok(Bucket {
            url: url.trim_end_matches('/').to_owned(),
            prefix: Path::parse(prefix).map_err(|error| invalid(&error))?,
            store: builder.build().map_err(|error| invalid(&error))?,
            runtime: runtime.map_err(|error| Error::io("making a runtime for requests", error))?,
        })
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// The name of an object below the prefix.
    fn name(&self, path: &Path) -> Option<String> {
        let parts: Vec<String> = path
            .prefix_match(&self.prefix)?
            .map(|part| part.as_ref().to_owned())
            .collect();
        Some(parts.join("/"))
    }

    fn ask<T>(&self, what: &str, of: &str, asked: impl Future<Output = object_store::Result<T>>) -> Result<T> {
        let answer = self.runtime.block_on(asked);
        answer.map_err(|error| Error::Io {
            doing: format!("{what} {}/{of}", self.url),
            message: error.to_string(),
            kind: std::io::ErrorKind::Other,
        })
    }
}

/// `None` where there is no such object.
fn if_there<T>(answer: object_store::Result<T>) -> object_store::Result<Option<T>> {
    match answer {
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

impl Objects for Bucket {
    fn place(&self) -> String {
        self.url.clone()
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let (path, bytes) = (self.path(name), bytes.to_vec());
        let options = PutOptions::from(PutMode::Create);
        self.ask("writing", name, async move {
            match self.store.put_opts(&path, bytes.into(), options).await {
                Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
                put => put.map(|_| true),
            }
        })
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(name);
        self.ask("reading", name, async move {
            match if_there(self.store.get(&path).await)? {
                Some(found) => Ok(Some(found.bytes().await?.to_vec())),
                None => Ok(None),
            }
        })
    }

    fn list(&self, folder: &str) -> Result<Vec<ObjectSeen>> {
        let path = self.path(folder);
        self.seen(folder, self.store.list(Some(&path)))
    }

    fn list_behind(&self, folder: &str, after: &str) -> Result<Vec<ObjectSeen>> {
        let (path, after) = (self.path(folder), self.path(after));
        self.seen(folder, self.store.list_with_offset(Some(&path), &after))
    }

    fn folders(&self) -> Result<Vec<String>> {
        let found = self.ask("listing", "", self.store.list_with_delimiter(Some(&self.prefix)))?;
        Ok(found
            .common_prefixes
            .iter()
            .filter_map(|path| self.name(path))
            .collect())
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        self.ask("removing", name, async move {
            if_there(self.store.delete(&path).await).map(drop)
        })
    }
}

impl Bucket {
    /// What a listing finds.
    fn seen(&self, folder: &str, listing: BoxStream<'_, object_store::Result<ObjectMeta>>) -> Result<Vec<ObjectSeen>> {
        let found: Vec<_> = self.ask("listing", folder, listing.try_collect())?;
        let seen = found.iter().filter_map(|meta| {
            Some(ObjectSeen {
                name: self.name(&meta.location)?,
                bytes: meta.size,
            })
        });
        let mut seen: Vec<ObjectSeen> = seen.collect();
        seen.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(seen)
    }
}
