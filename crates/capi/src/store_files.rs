//! Values of the store in files, and its metrics.

use super::arguments::{ContextArg, TextArg, TextFunctionArg};
use super::error::{ReportArg, Status, answer};
use super::handle::HandleArg;
use super::store::{OpenStore, tenant_of};
use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};
use cenote_store::SpillOptions;
use std::ffi::CString;

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_spill_to(
    store: HandleArg<'_, OpenStore>,
    directory: TextArg<'_>,
    bytes: u64,
    tenant: i64,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        store.get()?.store.spill_to(SpillOptions {
            directory: directory.path()?.to_owned(),
            bytes,
            tenant: tenant_of(tenant)?,
        })
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_flush_spilled(
    store: HandleArg<'_, OpenStore>,
    nanoseconds: u64,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || match store.get()?.store.flush_spilled(Nanos(nanoseconds)) {
        true => Ok(()),
        false => Err(Error::Timeout("spilled values wait for their disk still".into())),
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_metrics(
    store: HandleArg<'_, OpenStore>,
    text: TextFunctionArg,
    context: ContextArg,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let metrics = store.get()?.store.metrics()?;
        text.call(&text_of(metrics)?, context);
        Ok(())
    })
}

fn text_of(metrics: String) -> Result<CString> {
    CString::new(metrics).map_err(|_| Error::corrupt("metrics have no zeros"))
}
