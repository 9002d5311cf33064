//! The file system as people use it: mounted, with ordinary tools, twice at once, killed. Where FUSE cannot be used,
//! the tests that need it say so.

use crate::program::{cenote, output};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Whether this machine can mount: else the test says that it was left out.
fn can_mount() -> bool {
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let can = device.is_ok();
    if !can {
        println!("skipped: /dev/fuse cannot be used here ({})", device.unwrap_err());
    }
    can
}

/// A directory for regions and mounts.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn region(&self) -> PathBuf {
        self.0.path().join("region")
    }

    fn mount(&self, name: &str) -> Mount {
        self.mount_with(name, &[]).unwrap()
    }

    /// A mount, or what the program said instead.
    fn mount_with(&self, name: &str, options: &[&str]) -> Result<Mount, String> {
        let at = self.0.path().join(name);
        fs::create_dir_all(&at).unwrap();
        let mut command = cenote(&["mount", at.to_str().unwrap(), "--size", "256MiB", "--region"]);
        command.arg(self.region()).args(options).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        if said.into_iter().any(|line| line.starts_with("ready")) {
            return Ok(Mount { child, at });
        }
        let output = child.wait_with_output().unwrap();
        Err(String::from_utf8(output.stderr).unwrap())
    }

    #[track_caller]
    fn check(&self, options: &[&str]) -> String {
        let mut command = cenote(&["fs", "check", "--region"]);
        let (is_well, said) = output(command.arg(self.region()).args(options));
        assert!(is_well && said.contains("no problems"), "{said}");
        said
    }
}

/// A mount by a process of its own.
struct Mount {
    child: Child,
    at: PathBuf,
}

impl Mount {
    fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        // What is left of it answers no request.
        Command::new("umount").arg("-l").arg(&self.at).output().ok();
    }

    /// SIGTERM.
    fn tell_to_stop(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    #[track_caller]
    fn stop(&mut self) {
        self.tell_to_stop();
        self.stopped();
    }

    /// It ends in order.
    #[track_caller]
    fn stopped(&mut self) {
        let (status, mut said) = (self.child.wait().unwrap(), String::new());
        let errors = self.child.stderr.as_mut().unwrap();
        std::io::Read::read_to_string(errors, &mut said).unwrap();
        assert!(status.success(), "{status}: {said}");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.kill();
    }
}

#[track_caller]
fn sh(directory: &Path, script: &str) -> String {
    let mut command = Command::new("bash");
    command.args(["-euc", script]).current_dir(directory);
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", directory);
    for role in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{role}_NAME"), "n")
            .env(format!("GIT_{role}_EMAIL"), "a@b.c");
    }
    let (is_well, said) = output(&mut command);
    assert!(is_well, "{script}\n{said}");
    said
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

#[test]
fn ordinary_tools_work_on_it() {
    if !can_mount() {
        return;
    }
    let home = Home::new();
    let mut mount = home.mount("at");
    // Of this run's checkout: a build directory may be shared with others.
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").into());
    let sources = format!("{here}/src");
    sh(
        &mount.at,
        &format!(
            "cp -r {sources} copy; diff -r {sources} copy
             tar cf copy.tar copy; mkdir out; tar xf copy.tar -C out; diff -r copy out/copy; rm copy.tar
             mv out/copy moved; rmdir out; ln moved/lib.rs hard; ln -s moved/lib.rs soft
             cmp hard soft; [ $(stat -c %h hard) = 2 ]; [ $(stat -c %i hard) = $(stat -c %i moved/lib.rs) ]
             echo more >> hard; cmp hard moved/lib.rs; rm hard; [ $(stat -c %h moved/lib.rs) = 1 ]
             chmod 600 moved/lib.rs; [ $(stat -c %a moved/lib.rs) = 600 ]; touch -d '2001-02-03 04:05:06.789Z' moved/lib.rs
             [ $(date -u -d @$(stat -c %.9Y moved/lib.rs) +%F.%T.%N) = 2001-02-03.04:05:06.789000000 ]
             truncate -s 1G sparse; [ $(du -k sparse | cut -f1) = 0 ]; dd if=/dev/urandom of=random bs=64k count=100 status=none
             cp random again; cmp random again; dd if=random of=again bs=1000 seek=5 conv=notrunc status=none
             tail -c +5001 again | cmp - random; mkfifo pipe; [ -p pipe ]
             for n in $(seq 300); do echo $n > file$n; done; [ $(ls | wc -l) -ge 300 ]; rm file*
             exec 5<random; rm random; head -c 6553600 <&5 | wc -c | grep -qx 6553600; exec 5<&-
             rm -rf copy; [ ! -e copy ]"
        ),
    );
    if has("git") {
        sh(
            &mount.at,
            "git init -q one; cp -r moved one/; cd one; git add .; git commit -qm first; git rm -qr moved/cli; git commit -qm second
             git checkout -q HEAD~1; cd ..; git clone -q one two; cd two; git fsck --no-progress; git log --oneline | wc -l | grep -qx 1; git gc -q; git status --short | wc -l | grep -qx 0",
        );
    }
    if has("sqlite3") {
        sh(
            &mount.at,
            "sqlite3 db 'create table t(a integer primary key, b text)'
             for n in 1 2 3; do sqlite3 db \"with recursive n(x) as (select 1 union all select x + 1 from n where x < 2000) insert into t(b) select hex(randomblob(50)) from n\"; done
             sqlite3 db 'delete from t where a % 3 = 0; vacuum'
             [ $(sqlite3 db 'pragma integrity_check; select count(*) from t' | tr '\\n' ' ' | tr -d ' ') = ok4000 ]",
        );
    }
    mount.stop();
    assert_eq!(fs::read_dir(&mount.at).unwrap().count(), 0, "unmounted");
    let said = home.check(&[]);
    assert!(said.contains("nothing lies there that nothing refers to"), "{said}");
    let mount = home.mount("at");
    sh(
        &mount.at,
        "[ -L soft ]; [ $(stat -c %a moved/lib.rs) = 600 ]; rm -rf *; [ -z \"$(ls -A | grep -v git)\" ]",
    );
}

#[test]
fn two_processes_see_each_others_changes_at_once() {
    if !can_mount() {
        return;
    }
    let home = Home::new();
    let (mut one, mut other) = (home.mount("one"), home.mount("other"));
    fs::write(one.path("file"), "first").unwrap();
    assert_eq!(fs::read(other.path("file")).unwrap(), b"first");
    // While it is open: by its time of change the kernel knows that its pages are out of date.
    let mut open = fs::File::open(other.path("file")).unwrap();
    for text in ["second", "third!", "fourth"] {
        fs::write(one.path("file"), text).unwrap();
        let mut held = String::new();
        std::io::Seek::rewind(&mut open).unwrap();
        std::io::Read::read_to_string(&mut open, &mut held).unwrap();
        assert_eq!(held, text);
    }
    fs::rename(other.path("file"), other.path("renamed")).unwrap();
    assert!(!one.path("file").exists() && one.path("renamed").exists());
    fs::remove_file(one.path("renamed")).unwrap();
    let mut held = String::new();
    std::io::Seek::rewind(&mut open).unwrap();
    std::io::Read::read_to_string(&mut open, &mut held).unwrap();
    assert_eq!(held, "fourth", "open here, removed there");
    drop(open);
    let writers: Vec<_> = [&one, &other]
        .into_iter()
        .enumerate()
        .map(|(n, mount)| {
            let at = mount.at.clone();
            std::thread::spawn(move || {
                for i in 0..200 {
                    let path = at.join(format!("{n}-{i}"));
                    fs::write(&path, vec![n as u8; 3000]).unwrap();
                    fs::rename(&path, at.join(format!("last-{n}"))).unwrap();
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let mut names: Vec<_> = fs::read_dir(&one.at)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["last-0", "last-1"]);
    home.check(&[]);
    // The keeper of the space ends last, and serves the other one until that ends.
    one.tell_to_stop();
    while fs::read_dir(&one.at).unwrap().count() > 0 {
        std::thread::yield_now();
    }
    fs::write(other.path("large"), vec![1; 20 << 20]).unwrap();
    other.stop();
    one.stopped();
    home.check(&[]);
}

/// Both mounts write; the one that joined is killed, then the one that keeps the space. What was written before is
/// there, and all is in order.
#[test]
fn killed_mounts_lose_nothing_that_was_written() {
    const ROUNDS: u64 = 4;
    if !can_mount() {
        return;
    }
    let home = Home::new();
    for round in 0..ROUNDS {
        let (mut keeper, mut other) = (home.mount("one"), home.mount("other"));
        for before in 0..round {
            assert_eq!(
                fs::read(keeper.path(&format!("kept {before}"))).unwrap(),
                vec![before as u8; 100_000]
            );
        }
        fs::write(other.path(&format!("kept {round}")), vec![round as u8; 100_000]).unwrap();
        let writers: Vec<_> = [&keeper, &other]
            .into_iter()
            .enumerate()
            .map(|(n, mount)| {
                let at = mount.at.clone();
                std::thread::spawn(move || until_it_ends(&at, n))
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(100 + 50 * round));
        other.kill();
        // The locks and memory of the dead are given back: the keeper goes on.
        fs::create_dir_all(keeper.path("after")).unwrap();
        fs::write(keeper.path("after/file"), vec![2; 1 << 20]).unwrap();
        home.check(&[]);
        keeper.kill();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        home.check(&["--free"]);
    }
    // Whose keeper is killed ends too, so that the next one has the memory for itself.
    let (mut keeper, mut other) = (home.mount("one"), home.mount("other"));
    keeper.kill();
    assert!(!other.child.wait().unwrap().success());
    assert_eq!(fs::read_dir(&other.at).unwrap().count(), 0, "unmounted");
    home.check(&[]);
}

/// Makes, renames and removes until the mount is gone.
fn until_it_ends(at: &Path, n: usize) {
    let work = || -> std::io::Result<()> {
        for i in 0.. {
            let directory = at.join(format!("d{n}-{}", i % 5));
            fs::create_dir_all(&directory)?;
            let file = directory.join(format!("f{i}"));
            fs::write(&file, vec![1; 1000 * (i % 90)])?;
            fs::rename(&file, directory.join("last"))?;
            if i % 7 == 0 {
                fs::remove_dir_all(&directory)?;
            }
        }
        Ok(())
    };
    work().expect_err("its process is killed");
}

#[test]
fn what_cannot_be_mounted_is_said() {
    let home = Home::new();
    let region = home.region();
    let refused = |arguments: &[&str], wanted: &str| {
        let mut command = cenote(&["mount"]);
        let (is_well, said) = output(command.args(arguments).arg("--region").arg(&region));
        assert!(!is_well && said.contains(wanted), "{arguments:?}: {said}");
    };
    refused(&["/no/such/directory"], "is no directory");
    let at = home.0.path().to_str().unwrap();
    refused(&[at, "--size", "1MiB"], "--size");
    refused(&[at, "--threads", "0"], "--threads");
    // A look makes nothing.
    fs::write(&region, "").unwrap();
    let (is_well, said) = output(cenote(&["fs", "check", "--region"]).arg(&region));
    assert!(!is_well, "{said}");
    assert_eq!(fs::metadata(&region).unwrap().len(), 0, "{said}");
    fs::write(&region, vec![7; 100_000]).unwrap();
    refused(&[at], "");
    fs::remove_file(&region).unwrap();
    let (is_well, said) = output(cenote(&["fs", "check", "--region"]).arg(&region));
    assert!(!is_well && said.contains("does not exist"), "{said}");
}

/// Several begin at once, where nothing is yet: one makes the region and keeps it, the others join it.
#[test]
fn mounts_that_begin_together_find_each_other() {
    if !can_mount() {
        return;
    }
    let home = Home::new();
    let begin = |name: &'static str| {
        let home = &home;
        move || home.mount(name)
    };
    let mounts = std::thread::scope(|scope| {
        let begun = ["one", "two", "three"].map(|name| scope.spawn(begin(name)));
        begun.map(|mount| mount.join().unwrap())
    });
    fs::write(mounts[0].path("file"), "text").unwrap();
    for mount in &mounts {
        assert_eq!(fs::read(mount.path("file")).unwrap(), b"text");
    }
    home.check(&[]);
}

/// As a shell completes it, and from the directory above.
#[test]
fn a_directory_may_be_named_with_a_slash() {
    if !can_mount() {
        return;
    }
    let home = Home::new();
    let mut mount = home.mount("at/");
    fs::write(mount.path("file"), "text").unwrap();
    mount.stop();
    assert_eq!(fs::read_dir(&mount.at).unwrap().count(), 0, "unmounted");
}

/// A copy is put where a region was that is still mounted: a mount of the copy does not join the other's keeper.
#[test]
fn a_copy_in_the_place_of_a_region_is_another_region() {
    if !can_mount() {
        return;
    }
    let home = Home::new();
    let mut first = home.mount("first");
    fs::write(first.path("file"), "text").unwrap();
    let (region, moved) = (home.region(), home.0.path().join("moved"));
    fs::rename(&region, &moved).unwrap();
    sh(home.0.path(), "cp --sparse=always moved region");
    let second = home.mount("second");
    fs::write(second.path("file"), "other").unwrap();
    assert_eq!(fs::read(first.path("file")).unwrap(), b"text");
    first.stop();
    assert_eq!(
        fs::read(second.path("file")).unwrap(),
        b"other",
        "no other process keeps it"
    );
}

#[test]
fn a_mount_can_be_read_only() {
    if !can_mount() {
        return;
    }
    let home = Home::new();
    let mut mount = home.mount("at");
    fs::write(mount.path("file"), "text").unwrap();
    mount.stop();
    let mut mount = home.mount_with("at", &["--read-only"]).unwrap();
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"text");
    let refused = fs::write(mount.path("file"), "other").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    // A file is open in it: it goes all the same.
    let open = fs::File::open(mount.path("file")).unwrap();
    mount.stop();
    drop(open);
    assert_eq!(fs::read_dir(&mount.at).unwrap().count(), 0);
}
