//! See docs/.
