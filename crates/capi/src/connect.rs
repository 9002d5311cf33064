//! Spaces of a pool, found through its manager and shared with other processes.

use super::arguments::{ArrayArg, OutArg, StructArg, TextArg};
use super::error::{ReportArg, Status, answer};
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
use std::sync::Arc;

/// Where the manager listens unless told otherwise.
const MANAGER: &str = "127.0.0.1:5440";
/// Between two looks at a space that another process is making.
const RETRY: Nanos = Nanos::from_millis(50);

/// `cenote_pool_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolOptions<'a> {
    manager: TextArg<'a>,
    tenant: TextArg<'a>,
    secret: TextArg<'a>,
    pod: TextArg<'a>,
    space: Options,
}

const DEFAULT: PoolOptions<'static> = PoolOptions {
    manager: TextArg::NULL,
    tenant: TextArg::NULL,
    secret: TextArg::NULL,
    pod: TextArg::NULL,
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
    fn of(options: StructArg<'_, PoolOptions<'_>>) -> Result<Self> {
        let options = options.get().unwrap_or(DEFAULT);
        let given = |from: TextArg<'_>, default: &str, what| from.text_or(default, what).map(str::to_owned);
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
pub extern "C" fn cenote_space_connect(
    name: TextArg<'_>,
    options: StructArg<'_, PoolOptions<'_>>,
    space: OutArg<'_, *mut SpaceHandle>,
    error: ReportArg<'_>,
) -> Status {
    opened(space, error, || {
        ConnectPlan::of(options)?.open(name.text("the space's name")?)
    })
}

/// Pods by their names; all of them where there is no array.
fn pods(from: ArrayArg<'_, TextArg<'_>>, n: usize) -> Result<Option<Vec<String>>> {
    if n == 0 {
        // No pods at all would be an array of none, which no caller means.
        return match from.is_null() {
            true => Ok(None),
            false => Err(Error::Invalid("an array of 0 pods: NULL stands for all of them".into())),
        };
    }
    let name = |name: TextArg<'_>| name.text("a pod").map(str::to_owned);
    from.elements(n)?.map(name).collect::<Result<_>>().map(Some)
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_space_make(
    name: TextArg<'_>,
    bytes: u64,
    mirrored: u32,
    names: ArrayArg<'_, TextArg<'_>>,
    n: usize,
    options: StructArg<'_, PoolOptions<'_>>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let (name, pods) = (name.text("the space's name")?, pods(names, n)?);
        let pool = ConnectPlan::of(options)?.connect()?;
        match mirrored {
            0 => pool.create_space(name, bytes, pods.as_deref()),
            1 => pool.create_mirrored_space(name, bytes, pods.as_deref()),
            other => Err(Error::Invalid(format!("mirrored is {other}: give 0 or 1"))),
        }
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_space_grow(
    name: TextArg<'_>,
    bytes: u64,
    names: ArrayArg<'_, TextArg<'_>>,
    n: usize,
    options: StructArg<'_, PoolOptions<'_>>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let (name, pods) = (name.text("the space's name")?, pods(names, n)?);
        ConnectPlan::of(options)?
            .connect()?
            .grow_space(name, bytes, pods.as_deref())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_space_drop(
    name: TextArg<'_>,
    options: StructArg<'_, PoolOptions<'_>>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let name = name.text("the space's name")?;
        ConnectPlan::of(options)?.connect()?.drop_space(name)
    })
}
