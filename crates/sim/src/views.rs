//! Where the views of a host lie, so that an atomic's address tells whether it is in one.

use crate::clock::fast;
use crate::memory::OwnedView;
use cenote_base::rt::memory::{Access, Device};
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

#[derive(Clone)]
struct View {
    low: usize,
    len: usize,
    device: Arc<OwnedView>,
}

thread_local! {
    /// By host; each sorted by address.
    static VIEWS: RefCell<Vec<Vec<View>>> = const { RefCell::new(Vec::new()) };

    /// The device of the view that [`clock::Fast`](crate::clock) names, if it names one; `None` during its touch.
    static LAST: Cell<Last> = const { Cell::new(None) };
}

/// Without a destructor, which each touch would have to look after.
type Last = Option<ManuallyDrop<Arc<OwnedView>>>;

/// (`LocalKey::replace` is no inline function, and would be a call at each atomic.)
#[inline(always)]
fn replace_last(last: Last) -> Last {
    LAST.try_with(|cell| cell.replace(last))
        .expect("a cell without a destructor")
}

fn set_last(last: Option<Arc<OwnedView>>) {
    drop(replace_last(last.map(ManuallyDrop::new)).map(ManuallyDrop::into_inner));
}

/// Declares a view to its host: atomics in it are touches of its device, by offset, until [`remove`] is called with the
/// same base.
pub(crate) fn add(device: &Arc<OwnedView>) {
    let (host, base, bytes) = device.get().place();
    let (low, len) = (base.as_ptr().addr(), bytes as usize);
    let device = Arc::clone(device);
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
    let low = base.as_ptr().addr();
    VIEWS.with_borrow_mut(|all| {
        if let Some(of_host) = all.get_mut(host) {
            of_host.retain(|v| v.low != low);
        }
    });
    set_last(None);
    enter();
}

/// No views at all: a world begins or ends.
pub(crate) fn clear() {
    VIEWS.with_borrow_mut(Vec::clear);
    set_last(None);
    enter();
}

/// Another host's thread runs next, or its views have changed.
pub(crate) fn enter() {
    let host = fast(|f| f.host.get());
    let all = VIEWS.with_borrow(|all| {
        let of_host = all.get(host)?;
        let (first, last) = (of_host.first()?, of_host.last()?);
        Some((first.low, last.low + last.len - first.low))
    });
    fast(|f| {
        f.view.set((0, 0));
        f.views.set(all.unwrap_or((0, 0)));
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
    let (low, len) = fast(|f| f.view.get());
    if address.wrapping_sub(low) < len
        && let Some(device) = replace_last(None)
    {
        device.touch((address - low) as u64, bytes, access);
        replace_last(Some(device));
    } else {
        touch_other(address, bytes, access);
    }
}

#[cold]
#[inline(never)]
fn touch_other(address: usize, bytes: u32, access: Access) {
    let host = fast(|f| f.host.get());
    let Some(view) = VIEWS.with_borrow(|all| find(all, host, address).cloned()) else {
        return;
    };
    view.device.touch((address - view.low) as u64, bytes, access);
    fast(|f| f.view.set((view.low, view.len)));
    set_last(Some(view.device));
}

/// Asks the device that `address` is in a view of for its line, if it is in one.
pub(crate) fn prefetch(address: usize) {
    let host = fast(|f| f.host.get());
    VIEWS.with_borrow(|all| {
        if let Some(view) = find(all, host, address) {
            view.device.prefetch((address - view.low) as u64);
        }
    });
}

fn find(all: &[Vec<View>], host: usize, address: usize) -> Option<&View> {
    let of_host = all.get(host)?;
    let below = of_host.partition_point(|v| v.low <= address).checked_sub(1)?;
    Some(&of_host[below]).filter(|v| address - v.low < v.len)
}
