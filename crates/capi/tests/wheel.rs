//! The wheels, as users have them: made without a compiler or the network, installed where nothing else is, and used
//! there without being told where the library lies.

mod common;

use common::{Place, done, is_here, library, repository};
use std::path::{Path, PathBuf};
use std::process::Command;

const USES: &str = "
import cenote_pool, cenote_kvcache
from cenote_kvcache.lmcache import Connector
with cenote_pool.Space.private(32 << 20) as space, space.session() as session:
    a = session.alloc(10)
    space.write(a, b'hello')
    with cenote_pool.Store.of(space) as store:
        store.put(['key'], [b'value'])
    print(space.read(a, 5).decode(), cenote_pool.__file__)
";

/// A program of Python that finds what was installed for it alone.
fn python(program: &Path) -> Command {
    let mut command = Command::new(program);
    let ways = ["PYTHONPATH", "CENOTE_POOL_LIBRARY", "LD_LIBRARY_PATH"];
    ways.iter().for_each(|way| _ = command.env_remove(way));
    command
}

/// Into an environment, by pip where it is.
fn install(environment: &Path, wheels: &Path) {
    let inside = environment.join("bin/python");
    let has_pip = python("python3".as_ref()).args(["-m", "pip", "--version"]).output();
    if has_pip.is_ok_and(|output| output.status.success()) {
        let mut pip = python("python3".as_ref());
        pip.args(["-m", "pip", "--disable-pip-version-check", "--python"])
            .arg(inside);
        pip.args(["install", "--no-index", "--find-links"]).arg(wheels);
        done(pip.arg("cenote-kvcache"));
        return;
    }
    println!("passed over: pip is not installed: the wheels are unpacked instead");
    let mut ask = python(&inside);
    let site = done(ask.args(["-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]));
    for wheel in files(wheels) {
        let mut unpack = python(&inside);
        done(unpack.args(["-m", "zipfile", "-e"]).arg(wheel).arg(site.trim()));
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files
}

fn make(place: &Place, name: &str) -> Vec<PathBuf> {
    let mut make = Command::new("python3");
    make.arg(repository().join("scripts/wheel.py"));
    done(make.arg(library()).arg(place.file(name)));
    files(&place.file(name))
}

#[test]
fn the_wheels_are_all_that_is_needed() {
    if !is_here("python3") {
        return;
    }
    let place = Place::new();
    let wheels = make(&place, "wheels");
    let again = make(&place, "again");
    let bytes = |wheels: &[PathBuf]| -> Vec<Vec<u8>> {
        let read = |path: &PathBuf| std::fs::read(path).expect("a wheel");
        wheels.iter().map(read).collect()
    };
    assert!(wheels.len() == 2 && bytes(&wheels) == bytes(&again), "{wheels:?}");

    let environment = place.file("environment");
    let mut venv = python("python3".as_ref());
    done(venv.args(["-m", "venv", "--without-pip"]).arg(&environment));
    install(&environment, &place.file("wheels"));
    let mut used = python(&environment.join("bin/python"));
    let said = done(used.args(["-I", "-W", "error", "-c", USES]));
    let from = environment.display().to_string();
    assert!(said.starts_with("hello ") && said.contains(&from), "{said}");
}
