//! Other processes: this test program started again, with what it is to do in its environment. Each program has a test
//! of its own that does it, `another_process`, which without a task does nothing.

use cenote_base::rt::{self, Nanos};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Nothing takes so long, unless it hangs.
pub const TIMEOUT: Nanos = Nanos::from_secs(200);

/// Where the task of another process stands.
const TASK: &str = "CENOTE_TEST_TASK";
/// What a process says to its starter begins with this; the test harness writes to the same output.
const SAID: &str = "said: ";
/// What it says again and again as it goes on: that is counted.
const WORKING: &str = "working";
const TURN: Nanos = Nanos::from_millis(2);

/// What this process was told to do, if it is another one.
pub fn task<T: DeserializeOwned>() -> Option<T> {
    let task = std::env::var(TASK).ok()?;
    Some(serde_json::from_str(&task).expect("a task"))
}

/// Says something to the starter.
pub fn say(text: &str) {
    // In one piece, since the process may end at any moment; on a line of its own, since the test harness writes too.
    let line = format!("\n{SAID}{text}\n");
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .expect("written");
}

/// Holds on until the starter ends, or closes this process's input.
pub fn hold() {
    std::io::stdin().lines().for_each(drop);
}

/// Another process, as its starter sees it; killed when dropped.
pub struct Process {
    child: Child,
    said: Mutex<Receiver<String>>,
    /// How often it said that it is working, and how much of that was waited for.
    reports: Arc<AtomicU64>,
    heard: u64,
    /// Whether it is the child of the program that started it.
    is_under: bool,
}

impl Process {
    /// Starts it; what it complains of is seen.
    pub fn start(task: &impl Serialize) -> Self {
        Self::start_with(task, &[], Stdio::inherit())
    }

    /// Starts one that is expected to complain.
    pub fn start_silent(task: &impl Serialize) -> Self {
        Self::start_with(task, &[], Stdio::null())
    }

    /// Starts one by another program, which waits for it: in namespaces of a host.
    pub fn start_under(program: &[String], task: &impl Serialize) -> Self {
        Self::start_with(task, program, Stdio::null())
    }

    fn start_with(task: &impl Serialize, under: &[String], complaints: Stdio) -> Self {
        let this = std::env::current_exe().expect("this program");
        let words: Vec<_> = under.iter().map(Into::into).chain([this.into_os_string()]).collect();
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .args(["another_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(TASK, serde_json::to_string(task).expect("text"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(complaints)
            .spawn()
            .expect("it starts");
        let output = child.stdout.take().expect("a pipe");
        let ((sender, said), reports) = (channel(), Arc::new(AtomicU64::new(0)));
        let theirs = Arc::clone(&reports);
        // It never waits for its starter to read.
        std::thread::spawn(move || listen(output, &sender, &theirs));
        Self {
            child,
            said: Mutex::new(said),
            reports,
            heard: 0,
            is_under: !under.is_empty(),
        }
    }

    /// What it says next, but for that it is working.
    pub fn says(&self) -> String {
        let said = self.said.lock().expect("one reader");
        said.recv().unwrap_or_else(|_| "(it ended)".into())
    }

    /// What it says next, if it does so soon.
    pub fn says_within(&self, timeout: Nanos) -> Option<String> {
        let said = self.said.lock().expect("one reader");
        said.recv_timeout(Duration::from_nanos(timeout.raw())).ok()
    }

    /// The last that it said before it ended, but for what was asked for before.
    pub fn last_said(&self) -> Option<String> {
        self.said.lock().expect("one reader").iter().last()
    }

    /// Says something to it.
    pub fn tell(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("a pipe");
        writeln!(input, "{line}").expect("written");
    }

    /// A process that [holds](hold) on goes on.
    pub fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// How often it has said that it is working.
    pub fn reports(&self) -> u64 {
        self.reports.load(Ordering::Relaxed)
    }

    /// Waits until it has said so often more that it is working than was waited for. It must not end by itself.
    pub fn hear(&mut self, more: u64) {
        self.heard += more;
        self.await_reports(self.heard);
    }

    /// Waits until it has said so often again that it is working, from now on. It must not end by itself.
    pub fn progress(&mut self, more: u64) {
        self.await_reports(self.reports() + more);
    }

    fn await_reports(&mut self, wanted: u64) {
        let began = rt::now();
        while self.reports() < wanted {
            let ended = self.child.try_wait().expect("asked");
            assert!(ended.is_none(), "it ended: {ended:?}");
            assert!(rt::now().since(began) < TIMEOUT, "it does not go on");
            rt::sleep(TURN);
        }
    }

    pub fn pid(&self) -> u32 {
        let (id, began) = (self.child.id(), rt::now());
        if !self.is_under {
            return id;
        }
        loop {
            let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
            if let Some(pid) = children.split_ascii_whitespace().next() {
                return pid.parse().expect("a number");
            }
            assert!(rt::now().since(began) < TIMEOUT, "it is not started");
            rt::sleep(TURN);
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("asked").is_some()
    }

    /// Whether it has ended, or does within the time that a killed process takes to be reaped.
    pub fn has_ended_soon(&mut self) -> bool {
        let until = rt::now() + Nanos::from_secs(5);
        while !self.has_ended() && rt::now() < until {
            self.let_reap();
            rt::sleep(TURN);
        }
        self.has_ended()
    }

    /// How it has ended: another one ends it.
    pub fn ended(&mut self) -> ExitStatus {
        let began = rt::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("asked") {
                return status;
            }
            self.let_reap();
            assert!(rt::now().since(began) < TIMEOUT, "the process does not end");
            rt::sleep(TURN);
        }
    }

    /// The program that waits for it stops when it stops, and goes on with it. So it is told to when that has ended.
    fn let_reap(&self) {
        if !self.is_under {
            return;
        }
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let of = |pid: &str| std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        let is_over = of(&children)
            .rsplit_once(')')
            .is_none_or(|(_, rest)| rest.starts_with(" Z"));
        if is_over && let Some(id) = Pid::from_raw(id as i32) {
            kill_process(id, Signal::CONT).ok();
        }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a process");
        kill_process(pid, signal).expect("sent");
        if signal == Signal::CONT {
            self.wake_waiting();
        }
    }

    /// The program that waits for it stops when it stops, and is woken with it.
    fn wake_waiting(&self) {
        if self.is_under {
            let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
            kill_process(pid, Signal::CONT).expect("not waited for yet");
        }
    }

    pub fn kill(&mut self) {
        if self.is_under {
            self.signal(Signal::KILL);
            // The killed process may be reaped by now: its number may belong to another one.
            self.wake_waiting();
        }
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }
}

/// Hears a process to its end.
fn listen(output: ChildStdout, said: &Sender<String>, reports: &AtomicU64) {
    let (mut output, mut line) = (BufReader::new(output), String::new());
    while output.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        // What was not written to its end was not said.
        match line.strip_suffix('\n').and_then(|line| line.strip_prefix(SAID)) {
            Some(WORKING) => _ = reports.fetch_add(1, Ordering::Relaxed),
            // The test may not listen any more.
            Some(text) => _ = said.send(text.to_owned()),
            None => {}
        }
        line.clear();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
