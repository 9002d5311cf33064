//! Memory at the moment when the first thing went wrong: a world's memory is gone when its run has ended.

use std::cell::RefCell;

thread_local! {
    static SCENE: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Keeps how it is now, unless an earlier moment is kept.
pub(super) fn keep() {
    let kept = SCENE.with_borrow(Option::is_some);
    if !kept {
        let scene = crate::state::memory_scene();
        SCENE.set(Some(scene));
    }
}

/// What is kept; from then on nothing is.
pub(super) fn take() -> Vec<String> {
    SCENE.take().unwrap_or_default()
}
