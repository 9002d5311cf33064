//! Spaces of a pool, found through its manager and shared with other processes.

use super::arguments::{array, text};
use super::error::{Report, Status, answer};
use super::space::{Options, SpaceHandle, opened};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::rdma::call::Callers;
use cenote_libfabric::{Net, NetOptions};
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::holder::Credentials;
use cenote_pool::settings::DEFAULT_TENANT;
use cenote_space::Space;
use core::ffi::c_char;
use core::ptr::null;
use std::sync::Arc;

/// Where the manager listens unless told otherwise.
const MANAGER: &str = "127.0.0.1:5440";
/// Between two looks at a space that another process is making.
const RETRY: Nanos = Nanos::from_millis(50);

/// `cenote_pool_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolOptions {
    manager: *const c_char,
    tenant: *const c_char,
    secret: *const c_char,
    pod: *const c_char,
    space: Options,
}

const DEFAULT: PoolOptions = PoolOptions {
    manager: null(),
    tenant: null(),
    secret: null(),
    pod: null(),
    space: Options::DEFAULT,
};

/// The way to a pool, as options tell it.
struct ConnectPlan {
    credentials: Credentials,
    client: ClientOptions,
    /// Of the space, if there is none of its name; 0: that is an error.
    bytes: u64,
}

impl ConnectPlan {
    /// # Safety
    /// `options` is null, or leads to some, whose texts are null or end with a zero.
    unsafe fn read(options: *const PoolOptions) -> Result<Self> {
        let options = match options.is_null() {
            true => DEFAULT,
            // SAFETY: the same duty; it need not be aligned.
            false => unsafe { options.read_unaligned() },
        };
        let given = |from: *const c_char, default: &str, what| match from.is_null() {
            true => Ok(default.to_owned()),
            // SAFETY: the same duty.
            false => unsafe { text(from, what) }.map(str::to_owned),
        };
        let credentials = Credentials {
            manager: given(options.manager, MANAGER, "the manager's address")?,
            tenant: given(options.tenant, DEFAULT_TENANT, "the tenant")?,
            secret: given(options.secret, "", "the secret")?,
        };
        let pod = given(options.pod, "", "the pod")?;
        let client = ClientOptions {
            pod: Some(pod).filter(|pod| !pod.is_empty()),
            region: options.space.region(),
            ..ClientOptions::default()
        };
        let bytes = options.space.bytes;
        Ok(Self {
            credentials,
            client,
            bytes,
        })
    }

    fn connect(self) -> Result<PoolClient> {
        let network: Arc<dyn Network> = Arc::new(Tcp);
        PoolClient::connect(&network, &self.credentials, self.client)
    }

    fn open(mut self, name: &str) -> Result<Space> {
        self.client.callers = far();
        let (until, bytes) = (rt::now() + self.client.timeout, self.bytes);
        let pool = self.connect()?;
        if bytes > 0 {
            pool.ensure_space(name, bytes)?;
        }
        loop {
            match pool.open_space(name) {
                // Another process has just begun to make it.
                Err(Error::Busy(_)) if bytes > 0 && rt::now() < until => rt::sleep(RETRY),
                answer => return answer,
            }
        }
    }
}

/// The way to memory of other pods, where libfabric is there. Without it what lies there is an error when it is used.
fn far() -> Option<Arc<dyn Callers>> {
    let net = Net::new(NetOptions::default()).ok()?;
    Some(Arc::new(net))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_space_connect(
    name: *const c_char,
    options: *const PoolOptions,
    space: *mut *mut SpaceHandle,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's memory, as the header asks (`mod`, 2).
    unsafe {
        opened(space, error, || {
            ConnectPlan::read(options)?.open(text(name, "the space's name")?)
        })
    }
}

/// Pods by their names; all of them where there is no array.
///
/// # Safety
/// `from` is null, or leads to `n` texts, which are null or end with a zero.
unsafe fn pods(from: *const *const c_char, n: usize) -> Result<Option<Vec<String>>> {
    // SAFETY: the same duty.
    let names = unsafe { array(from, n)? };
    if names.is_empty() {
        // No pods at all would be an array of none, which no caller means.
        return match from.is_null() {
            true => Ok(None),
            false => Err(Error::Invalid("an array of 0 pods: NULL stands for all of them".into())),
        };
    }
    // SAFETY: the same duty.
    let name = |name: &*const c_char| unsafe { text(*name, "a pod") }.map(str::to_owned);
    names.iter().map(name).collect::<Result<_>>().map(Some)
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_space_grow(
    name: *const c_char,
    bytes: u64,
    names: *const *const c_char,
    n: usize,
    options: *const PoolOptions,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let (name, pods) = (text(name, "the space's name")?, pods(names, n)?);
            ConnectPlan::read(options)?
                .connect()?
                .grow_space(name, bytes, pods.as_deref())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_space_drop(
    name: *const c_char,
    options: *const PoolOptions,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let name = text(name, "the space's name")?;
            ConnectPlan::read(options)?.connect()?.drop_space(name)
        })
    }
}
