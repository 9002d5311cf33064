//! An adversarial file system (in the next commit).
