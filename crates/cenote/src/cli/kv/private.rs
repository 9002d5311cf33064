//! The memory of a store that is this server's alone: a region of this machine, or a grant of a pool.

use super::{KvArguments, size};
use crate::cli::Failure;
use crate::{log, pooled};
use cenote_base::units::ByteSize;
use cenote_fabric::{FileRange, RegionOptions, is_blank_at};
use cenote_kv::Found;
use cenote_space::{Space, SpaceOptions};
use std::path::{Path, PathBuf};

/// The grant's label unless an option names another.
const LABEL_DEFAULT: &str = "kv";

/// The file of the memory and the part of it, which are the pool's from here on if it is one of the pool.
pub fn place(arguments: &KvArguments, port: u16) -> Result<(PathBuf, Option<FileRange>), Failure> {
    let Some(manager) = &arguments.manager else {
        let path = arguments.region.clone();
        let path = path.unwrap_or_else(|| Path::new(cenote_fabric::SHM_DIR).join(format!("cenote-kv-{port}")));
        return Ok((path, None));
    };
    let pool = arguments.pool(manager);
    let label = arguments.label.as_deref().unwrap_or(LABEL_DEFAULT);
    let label = format!("kv-{label}");
    let taken = pooled::take_labelled(&pool, None, label, "key-value store".into(), size(arguments))?;
    Ok((taken.path, taken.range))
}

/// Its space, made if it is not there.
pub fn open(path: &Path, range: Option<FileRange>, arguments: &KvArguments) -> Result<Space, Failure> {
    let options = RegionOptions {
        range,
        ..RegionOptions::default()
    };
    if !path.exists() || is_blank_at(path, range) {
        return Ok(Space::create(
            path,
            &SpaceOptions {
                bytes: size(arguments).bytes(),
                region: options,
                ..SpaceOptions::default()
            },
        )?);
    }
    let space = Space::open(path, options)?;
    let length = ByteSize(space.parts().map(|part| part.region().len()).sum());
    if arguments
        .memory_size
        .is_some_and(|wanted| wanted.bytes().abs_diff(length.bytes()) >= 4 << 20)
    {
        log::warn!(
            "{} has {length}, and stays so: --memory-size is for memory that is made",
            path.display()
        );
    }
    Ok(space)
}

/// For people.
pub fn describe(space: &Space, path: &Path) -> String {
    let length = ByteSize(space.parts().map(|part| part.region().len()).sum());
    format!(
        "{length} in {}; it survives a killed process, not a lost host",
        path.display()
    )
}

/// What was found in it, for people.
pub fn tell(found: Found) -> String {
    match found {
        Found { keys: 0, freed: 0, .. } => "none".into(),
        Found {
            keys, is_closed: true, ..
        } => format!("{keys} keys, closed in order"),
        Found { keys, freed, .. } => {
            format!("{keys} keys, found after a kill; {freed} objects of what was being done are freed")
        }
    }
}
