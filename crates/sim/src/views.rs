//! Where the views of a host lie, so that an atomic's address tells whether it is in one.

#![allow(unsafe_code, reason = "a view is known by address, for as long as it is declared")]

use crate::clock::fast;
use cenote_base::rt::memory::{Access, Device};
use std::cell::RefCell;
use std::ptr::NonNull;

#[derive(Clone, Copy)]
struct View {
    low: usize,
    len: usize,
    device: &'static dyn Device,
}

thread_local! {
    /// By host; each sorted by address.
    static VIEWS: RefCell<Vec<Vec<View>>> = const { RefCell::new(Vec::new()) };
}

/// Declares that `bytes` at `device.base()` are a view of host `host`: atomics in it are touches of the device, by
/// offset.
///
/// # Safety
/// The device stays where it is until [`remove`] is called with the same base, by its destructor at the latest.
pub(crate) unsafe fn add(host: usize, bytes: u64, device: &(dyn Device + 'static)) {
    // SAFETY: the caller's promise; `remove` and `clear` forget every copy, and only `touch` uses them.
    let device = unsafe { std::mem::transmute::<&dyn Device, &'static dyn Device>(device) };
    let (low, len) = (device.base().as_ptr() as usize, bytes as usize);
    VIEWS.with_borrow_mut(|all| {
        if all.len() <= host {
            all.resize_with(host + 1, Vec::new);
        }
        let at = all[host].partition_point(|v| v.low < low);
        all[host].insert(at, View { low, len, device });
    });
    enter();
}

/// The view at `base` is no more.
pub(crate) fn remove(host: usize, base: NonNull<u8>) {
    let low = base.as_ptr() as usize;
    let _ = VIEWS.try_with(|all| {
        if let Some(of_host) = all.borrow_mut().get_mut(host) {
            of_host.retain(|v| v.low != low);
        }
    });
    enter();
}

/// No views at all: a world begins or ends.
pub(crate) fn clear() {
    VIEWS.with_borrow_mut(Vec::clear);
    enter();
}

/// Another host's thread runs next, or its views have changed.
pub(crate) fn enter() {
    let host = fast(|f| f.host.get());
    let all = VIEWS.try_with(|all| {
        let all = all.borrow();
        let of_host = all.get(host)?;
        let (first, last) = (of_host.first()?, of_host.last()?);
        Some((first.low, last.low + last.len - first.low))
    });
    fast(|f| {
        f.view.set((0, 0, None));
        f.views.set(all.ok().flatten().unwrap_or((0, 0)));
    });
}

/// Touches the device that `address` is in a view of, if it is in one.
#[inline(always)]
pub(crate) fn touch(address: usize, bytes: u32, access: Access) {
    let (low, len) = fast(|f| f.views.get());
    if address.wrapping_sub(low) < len {
        touch_near(address, bytes, access);
    }
}

#[inline]
fn touch_near(address: usize, bytes: u32, access: Access) {
    let (low, len, device) = fast(|f| f.view.get());
    match device {
        Some(device) if address.wrapping_sub(low) < len => device.touch((address - low) as u64, bytes, access),
        _ => touch_other(address, bytes, access),
    }
}

#[cold]
#[inline(never)]
fn touch_other(address: usize, bytes: u32, access: Access) {
    let Some(view) = find(fast(|f| f.host.get()), address) else {
        return;
    };
    fast(|f| f.view.set((view.low, view.len, Some(view.device))));
    view.device.touch((address - view.low) as u64, bytes, access);
}

/// Asks the device that `address` is in a view of for its line, if it is in one.
pub(crate) fn prefetch(address: usize) {
    if let Some(view) = find(fast(|f| f.host.get()), address) {
        view.device.prefetch((address - view.low) as u64);
    }
}

fn find(host: usize, address: usize) -> Option<View> {
    VIEWS.with_borrow(|all| {
        let of_host = all.get(host)?;
        let below = of_host.partition_point(|v| v.low <= address).checked_sub(1)?;
        Some(of_host[below]).filter(|v| address - v.low < v.len)
    })
}
