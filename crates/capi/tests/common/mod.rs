//! The library as it is installed, and programs in C and Python that use it.

#![allow(dead_code, reason = "each of the test programs uses some of it")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub const C99: [&str; 3] = ["cc", "-xc", "-std=c99"];

pub fn repository() -> PathBuf {
    // Of this run's checkout: a build directory may be shared with others.
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&here).join("../..")
}

/// Whether a program is here. If not, what needs it is passed over, and says so.
pub fn is_here(program: &str) -> bool {
    let is_here = Command::new(program).arg("--version").output().is_ok();
    if !is_here {
        println!("passed over: {program} is not installed");
    }
    is_here
}

/// The library, newly built: cargo puts it beside the tests, under its own name.
pub fn library() -> PathBuf {
    let tests = std::env::current_exe().expect("a path");
    tests.with_file_name("libcenote_capi.so")
}

/// A directory where the library is installed, with room for programs and spaces.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let mut install = Command::new(repository().join("scripts/install_capi.sh"));
        done(install.arg(library()).arg(directory.path()));
        Self(directory)
    }

    /// What a program is compiled with, as `pkg-config` says.
    fn flags(&self) -> Vec<String> {
        if !is_here("pkg-config") {
            let at = |flag: &str, name: &str| format!("{flag}{}", self.file(name).display());
            return vec![at("-I", "include"), at("-L", "lib"), "-lcenote_pool".into()];
        }
        let mut ask = Command::new("pkg-config");
        ask.args(["--cflags", "--libs", "cenote_pool"])
            .env("PKG_CONFIG_PATH", self.file("lib/pkgconfig"));
        done(&mut ask).split_whitespace().map(str::to_owned).collect()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Compiles a program, with all warnings as errors.
    pub fn compile(&self, compiler: [&str; 3], source: &Path) -> PathBuf {
        let name = source.file_stem().expect("a name").to_str().expect("a text");
        let program = self.file(&format!("{name}-{}", compiler[0]));
        let [command, language, standard] = compiler;
        let mut compile = Command::new(command);
        compile
            .args([
                language,
                standard,
                "-pedantic",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-O1",
                "-g",
            ])
            .arg(source)
            .arg("-o")
            .arg(&program)
            .args(self.flags())
            .arg("-pthread");
        done(&mut compile);
        program
    }

    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", self.file("lib"))
            .env("CENOTE_POOL_LIBRARY", self.file("lib/libcenote_pool.so"))
            .env("PYTHONPATH", repository().join("python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(repository().join("python"));
        command
    }

    pub fn python(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("python3");
        command.args(arguments);
        command
    }
}

/// Runs it to its end, which must be a good one: what it printed.
pub fn done(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (said, complained) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{said}\n{complained}");
    said.into_owned()
}
