//! The program as people use it: its command line, its settings, its server as a process.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const START_TIME_MAX: Duration = Duration::from_secs(30);

/// The program with arguments, free of settings in the environment.
pub fn cenote(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
    command.args(arguments);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CENOTE_")) {
        command.env_remove(name);
    }
    command
}

/// A server process, killed by its id when dropped.
pub struct Process {
    pub child: Child,
    pub port: u16,
    /// What it said up to `ready`.
    pub said: Vec<String>,
}

impl Process {
    /// Starts a server on a data directory with little memory, on a free port.
    pub fn start(data: &Path) -> Process {
        let mut command = cenote(&["run", "--memory-size", "64MiB", "--listen", "127.0.0.1:0", "--data"]);
        command.arg(data);
        Self::spawn(command)
    }

    /// Starts a server.
    pub fn spawn(command: Command) -> Process {
        let mut process = Self::daemon(command).expect("the server says that it is ready");
        let ready = process.said.last().unwrap();
        process.port = ready.rsplit(':').next().unwrap().parse().unwrap();
        process
    }

    /// Starts a process that says `ready`; `None` if it ends before.
    pub fn daemon(mut command: Command) -> Option<Process> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let (lines, said) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            stdout
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| lines.send(line))
        });
        let mut process = Process {
            child,
            port: 0,
            said: Vec::new(),
        };
        let deadline = Instant::now() + START_TIME_MAX;
        while !process.said.last().is_some_and(|line| line.starts_with("ready")) {
            let left = deadline.saturating_duration_since(Instant::now());
            match said.recv_timeout(left) {
                Ok(line) => process.said.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("it is not ready: {:?}", process.said),
            }
        }
        Some(process)
    }

    pub fn client(&self) -> postgres::Client {
        let mut config = postgres::Config::new();
        config.host("127.0.0.1").port(self.port).user("tester").dbname("cenote");
        config.connect(postgres::NoTls).unwrap()
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// SIGTERM; the exit status.
    pub fn stop(&mut self) -> std::process::ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Ports that no process listens on, below those that the system takes for connections: a port that was free a moment
/// ago and is one of those may be in use when it is bound again.
pub fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let next = || {
        let next = std::process::id().wrapping_mul(61) + NEXT.fetch_add(1, Ordering::SeqCst);
        10_000 + (next % 20_000) as u16
    };
    std::iter::repeat_with(next).filter(is_free).take(count).collect()
}

/// A directory for data, whose region goes with it.
pub struct Data(tempfile::TempDir);

impl Data {
    pub fn new() -> Data {
        Data(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn text(&self) -> &str {
        self.path().to_str().unwrap()
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        for region in cenote::regions::all().unwrap_or_default() {
            let of_this = region
                .content
                .as_ref()
                .is_ok_and(|(identity, _)| Path::new(&identity.directory).starts_with(self.path()));
            if of_this {
                std::fs::remove_file(&region.path).ok();
            }
        }
    }
}

/// Whether libfabric is here; if not, a line says why.
pub fn has_fabric() -> bool {
    let Err(error) = cenote_libfabric::available() else {
        return true;
    };
    assert!(std::env::var("CI").is_err(), "skipped: {error}");
    println!("skipped: {error}");
    false
}

/// Whether it succeeded, and what it said.
pub fn output(command: &mut Command) -> (bool, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (
        status.success(),
        String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap(),
    )
}

#[test]
fn a_server_says_what_it_does_and_stops_in_order() {
    let data = Data::new();
    let mut server = Process::start(data.path());
    let said = server.said.join("\n");
    for word in ["Cenote ", "memory ", "recovery ", "connect    psql -h 127.0.0.1 -p "] {
        assert!(said.contains(word), "{word:?} is missing in:\n{said}");
    }
    assert!(server.stop().success());
    assert!(!data.path().join("cenote.address").exists());
    let server = Process::start(data.path());
    assert!(server.said.join("\n").contains("clean"), "{:?}", server.said);
}

#[test]
fn status_shows_a_running_server_and_says_when_there_is_none() {
    let data = Data::new();
    let (ok, text) = output(&mut cenote(&["status", "--data", data.text()]));
    assert!(!ok && text.contains("cenote run"), "{text}");
    let mut server = Process::start(data.path());
    let (ok, text) = output(&mut cenote(&["status", "--data", data.text()]));
    assert!(ok, "{text}");
    for word in [
        "server ",
        "recovery ",
        "memory ",
        "sessions ",
        "CENOTE SHOW cenote_sessions",
    ] {
        assert!(text.contains(word), "{word:?} is missing in:\n{text}");
    }
    server.kill();
    let (ok, text) = output(&mut cenote(&["status", "--data", data.text()]));
    assert!(
        !ok && text.contains("no server runs"),
        "a killed server is not taken for a running one: {text}"
    );
    // Its process id may be another process's by now, such as this one's.
    let address = data.path().join("cenote.address");
    std::fs::write(address, format!("{}\n127.0.0.1:{}\n", std::process::id(), server.port)).unwrap();
    let (ok, text) = output(&mut cenote(&["status", "--data", data.text()]));
    assert!(!ok && text.contains("no server runs"), "{text}");
}

#[test]
fn settings_come_from_flag_then_environment_then_file() {
    let data = Data::new();
    let file = data.path().join("cenote.toml");
    std::fs::write(
        &file,
        "memory_size = \"48MiB\"\nmemory = \"dram\"\nlisten = \"127.0.0.1:0\"\n",
    )
    .unwrap();
    let memory_line = |command: Command| {
        let server = Process::spawn(command);
        server
            .said
            .iter()
            .find(|line| line.starts_with("memory"))
            .unwrap()
            .clone()
    };
    let run = || cenote(&["run", "--data", data.text()]);
    assert!(memory_line(run()).contains("48MiB of private memory"));
    let mut from_environment = run();
    from_environment.env("CENOTE_MEMORY_SIZE", "56MiB");
    assert!(memory_line(from_environment).contains("56MiB"));
    let mut from_flag = run();
    from_flag
        .env("CENOTE_MEMORY_SIZE", "56MiB")
        .args(["--memory-size", "64MiB"]);
    assert!(memory_line(from_flag).contains("64MiB"));
    std::fs::write(&file, "memory_sise = \"48MiB\"\n").unwrap();
    let (ok, text) = output(&mut run());
    assert!(
        !ok && text.contains("memory_sise") && text.contains("memory_size"),
        "{text}"
    );
}

#[test]
fn errors_say_what_to_do() {
    let data = Data::new();
    let fails = |arguments: &[&str], says: &str| {
        let (ok, text) = output(cenote(arguments).args(["--data", data.text()]));
        assert!(!ok && text.contains(says), "{arguments:?}: {text}");
    };
    fails(&["run", "--listen", "0.0.0.0:0"], "--password-file");
    fails(&["run", "--listen", "nowhere"], "127.0.0.1:5433");
    fails(&["run", "--memory-size", "lots"], "512MiB");
    fails(&["run", "--memory-size", "1MiB"], "16MiB");
    fails(&["run", "--max-connections", "0"], "max_connections");
    fails(&["run", "--memory", "dram", "--region", "/dev/shm/x"], "--region");
    fails(&["run", "--config", "/nowhere.toml"], "/nowhere.toml");
    fails(&["check"], "cenote run");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    fails(
        &["run", "--listen", &taken.local_addr().unwrap().to_string()],
        "--listen",
    );
}

#[test]
fn a_password_file_is_made_and_used() {
    let data = Data::new();
    let mut command = cenote(&["password", "anna"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"open sesame\n").unwrap();
    let entry = child.wait_with_output().unwrap().stdout;
    let file = data.path().join("passwords");
    std::fs::write(&file, entry).unwrap();
    let mut command = cenote(&["run", "--memory-size", "64MiB", "--listen", "0.0.0.0:0", "--data"]);
    command.arg(data.path().join("d")).arg("--password-file").arg(&file);
    let server = Process::spawn(command);
    let connect = |password: &str| {
        let mut config = postgres::Config::new();
        config
            .host("127.0.0.1")
            .port(server.port)
            .user("anna")
            .password(password)
            .dbname("cenote");
        config.connect(postgres::NoTls)
    };
    assert!(connect("open sesame").is_ok());
    assert!(connect("sesame").is_err());
    let status = |password: &str| {
        let mut command = cenote(&["status", "--user", "anna", "--data"]);
        output(command.arg(data.path().join("d")).env("PGPASSWORD", password))
    };
    assert!(status("open sesame").0);
    let (ok, text) = status("wrong");
    assert!(!ok && text.contains("PGPASSWORD"), "{text}");
}

#[test]
fn an_open_socket_waits_for_the_password_no_longer_than_it_should() {
    let data = Data::new();
    let server = Process::start(data.path());
    // A connection that says nothing does not keep the server from stopping.
    let silent = std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let mut server = server;
    let began = Instant::now();
    assert!(server.stop().success());
    assert!(began.elapsed() < Duration::from_secs(5));
    drop(silent);
}
