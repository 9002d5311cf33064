//! Servers as processes: started on loopback with a free port, ended by their ids when dropped.

use crate::{Error, IoContext, Result};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a server may take to accept its first connection.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A TCP port on loopback that was free a moment ago.
///
/// # Errors
/// [`Error::Io`] if loopback gives no port.
pub fn free_port() -> Result<u16> {
    let socket = TcpListener::bind(("127.0.0.1", 0)).context("looking for a free port")?;
    Ok(socket.local_addr().context("looking for a free port")?.port())
}

/// What Cenote is started with.
#[derive(Clone, Debug)]
pub struct CenoteOptions {
    /// The `cenote` executable.
    pub program: PathBuf,
    /// Data directory.
    pub data: PathBuf,
    /// `cxl` or `dram`.
    pub memory: String,
    /// Such as `512MiB`.
    pub memory_size: String,
    /// TCP port on loopback.
    pub port: u16,
    /// `process` or `host`.
    pub survive: String,
    /// Used where the memory is `cxl`.
    pub region: Arc<RegionFile>,
}

/// The region of a server started from here: a file of its own in shared memory, removed when dropped.
#[derive(Debug)]
pub struct RegionFile(PathBuf);

impl RegionFile {
    /// A name that no other process, and nothing else in this one, uses.
    pub fn new() -> Arc<RegionFile> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "cenote-bench-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        Arc::new(RegionFile(Path::new("/dev/shm").join(name)))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for RegionFile {
    fn drop(&mut self) {
        // It is not there if no server was ever started on it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A running server process.
pub struct Server {
    /// For messages and tables.
    pub name: String,
    /// TCP port on loopback.
    pub port: u16,
    /// From exec to the moment it said, or was seen, to be ready.
    pub ready: Duration,
    /// When it was started.
    pub started: Instant,
    child: Child,
    output: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Starts Cenote and waits for its `ready` line.
    ///
    /// # Errors
    /// [`Error::Server`] with the end of its output if it is not ready in time; [`Error::Io`] if it cannot be started.
    pub fn cenote(options: &CenoteOptions) -> Result<Server> {
        Server::cenote_with(options, &[])
    }

    /// As [`Server::cenote`], with more arguments.
    ///
    /// # Errors
    /// As of [`Server::cenote`].
    pub fn cenote_with(options: &CenoteOptions, arguments: &[&str]) -> Result<Server> {
        Server::cenote_by(Command::new(&options.program), options, arguments)
    }

    /// As [`Server::cenote_with`], by a command that runs the program.
    ///
    /// # Errors
    /// As of [`Server::cenote`].
    pub fn cenote_by(mut command: Command, options: &CenoteOptions, arguments: &[&str]) -> Result<Server> {
        command
            .arg("run")
            .arg("--data")
            .arg(&options.data)
            .args(["--listen", &format!("127.0.0.1:{}", options.port)])
            .args(["--memory", &options.memory, "--memory-size", &options.memory_size])
            .args(["--survive", &options.survive])
            .args(arguments);
        if options.memory == "cxl" {
            command.arg("--region").arg(options.region.path());
        }
        let name = format!("cenote ({})", options.memory);
        let mut server = Server::spawn(&name, command, options.port)?;
        server.wait_for_line("ready")?;
        Ok(server)
    }

    /// Makes a PostgreSQL cluster in `data` and starts its server. `initdb`: more arguments of that; `settings`: of the
    /// server.
    ///
    /// # Errors
    /// [`Error::Missing`] if it is not installed and cannot be; as of [`Server::other`]; [`Error::Output`] if initdb fails.
    pub fn postgresql(data: &Path, initdb: &[&str], settings: &[String]) -> Result<Server> {
        let maker = ensure_program("initdb", "postgresql")?;
        let postgres = ensure_program("postgres", "postgresql")?;
        let data = owned_dir(data, "postgres")?;
        let port = free_port()?;
        let mut command = unprivileged(&maker, "postgres");
        command
            .args(["-A", "trust", "-U", "postgres"])
            .args(initdb)
            .arg("-D")
            .arg(&data);
        run_tool(&mut command, "initdb")?;
        let mut command = unprivileged(&postgres, "postgres");
        command.arg("-D").arg(&data);
        let places = [
            format!("port={port}"),
            "listen_addresses=127.0.0.1".into(),
            format!("unix_socket_directories={}", data.display()),
        ];
        for setting in places.iter().chain(settings) {
            command.arg("-c").arg(setting);
        }
        Server::other("postgresql", command, port)
    }

    /// Starts any other server and waits until its port accepts connections.
    ///
    /// # Errors
    /// [`Error::Server`] with the end of its output if it ends or does not listen in time; [`Error::Io`] if it cannot
    /// be started.
    pub fn other(name: &str, command: Command, port: u16) -> Result<Server> {
        let mut server = Server::spawn(name, command, port)?;
        let started = server.started;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            server.must_live(started)?;
            std::thread::sleep(Duration::from_millis(20));
        }
        server.ready = started.elapsed();
        Ok(server)
    }

    /// Starts a process of Cenote's that says `ready`, and has no port of its own to be asked at.
    ///
    /// # Errors
    /// As of [`Server::cenote`].
    pub fn daemon(name: &str, command: Command) -> Result<Server> {
        let mut server = Server::spawn(name, command, 0)?;
        server.wait_for_line("ready")?;
        Ok(server)
    }

    fn spawn(name: &str, mut command: Command, port: u16) -> Result<Server> {
        let started = Instant::now();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context(format!("starting {name}"))?;
        let output = Arc::new(Mutex::new(Vec::new()));
        collect(child.stdout.take(), &output);
        collect(child.stderr.take(), &output);
        Ok(Server {
            name: name.into(),
            port,
            ready: Duration::ZERO,
            started,
            child,
            output,
        })
    }

    fn wait_for_line(&mut self, start: &str) -> Result<()> {
        loop {
            if self
                .output
                .lock()
                .expect("the readers do not panic")
                .iter()
                .any(|l| l.starts_with(start))
            {
                self.ready = self.started.elapsed();
                return Ok(());
            }
            self.must_live(self.started)?;
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn must_live(&mut self, started: Instant) -> Result<()> {
        let ended = self.child.try_wait().context("waiting for a server")?;
        match ended {
            Some(status) => Err(self.error(format!("ended at start with {status}"))),
            None if started.elapsed() > START_LIMIT => Err(self.error("was not ready in time".into())),
            None => Ok(()),
        }
    }

    fn error(&self, what: String) -> Error {
        Error::Server {
            name: self.name.clone(),
            what: format!("{what}\n{}", self.tail(12)),
        }
    }

    /// The last lines that it printed.
    pub fn tail(&self, lines: usize) -> String {
        let output = self.output.lock().expect("the readers do not panic");
        output[output.len().saturating_sub(lines)..].join("\n")
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        // Both fail only if the process has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM (a clean shutdown), then SIGKILL after `limit`.
    pub fn stop(mut self, limit: Duration) {
        self.terminate(limit);
    }

    fn terminate(&mut self, limit: Duration) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let asked = Instant::now();
        while asked.elapsed() < limit && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill();
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.terminate(Duration::from_secs(10));
    }
}

fn collect(stream: Option<impl std::io::Read + Send + 'static>, output: &Arc<Mutex<Vec<String>>>) {
    let (Some(stream), output) = (stream, output.clone()) else {
        return;
    };
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(std::result::Result::ok) {
            output.lock().expect("the readers do not panic").push(line);
        }
    });
}

/// A command that runs as an unprivileged user where this process is root: both peers refuse to run as root.
pub(crate) fn unprivileged(program: &Path, user: &str) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", user, "--regid", user, "--clear-groups", "--"])
        .arg(program);
    command
}

/// An empty directory that `user` may write to, outside other users' homes.
///
/// # Errors
/// [`Error::Io`] or [`Error::Output`] if it cannot be made, or given to that user.
pub(crate) fn owned_dir(data: &Path, user: &str) -> Result<PathBuf> {
    std::fs::create_dir_all(data).context(format!("creating {}", data.display()))?;
    let data = data.canonicalize().context("naming the data directory")?;
    if rustix::process::geteuid().is_root() {
        run_tool(Command::new("chown").arg(user).arg(&data), "chown")?;
    }
    Ok(data)
}

/// Runs a tool to its end.
///
/// # Errors
/// [`Error::Output`] with the end of what it printed if it fails; [`Error::Io`] if it cannot be started.
pub(crate) fn run_tool(command: &mut Command, name: &str) -> Result<()> {
    let output = command.output().context(format!("starting {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    let tail = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::Output {
        tool: name.into(),
        what: "success".into(),
        tail,
    })
}

/// The `cenote` executable: beside this one, else in the PATH.
///
/// # Errors
/// [`Error::Missing`] if it is in neither place.
pub fn cenote_program() -> Result<PathBuf> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|p| p.parent().map(|d| d.join("cenote")));
    match beside.filter(|p| p.exists()).or_else(|| find_program("cenote")) {
        Some(path) => Ok(path),
        None => Err(Error::Missing {
            tool: "cenote".into(),
            command: "make build".into(),
        }),
    }
}

/// A program in the PATH or where Debian puts servers.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let postgres = [
        "/usr/lib/postgresql/17/bin",
        "/usr/lib/postgresql/16/bin",
        "/usr/lib/postgresql/15/bin",
    ];
    path.split(':')
        .chain(postgres)
        .chain(["/usr/sbin", "/usr/local/sbin"])
        .map(|dir| Path::new(dir).join(name))
        .find(|p| p.is_file())
}

/// Finds `program`, installing Debian's `package` where that is possible.
///
/// # Errors
/// [`Error::Missing`] with the command to type, if it is missing still.
pub fn ensure_program(program: &str, package: &str) -> Result<PathBuf> {
    if let Some(path) = find_program(program) {
        return Ok(path);
    }
    let install = format!("apt-get install -y {package}");
    if rustix::process::geteuid().is_root() {
        println!("installing {package} ...");
        let script = format!("(apt-get update -q && DEBIAN_FRONTEND=noninteractive {install}) >/dev/null");
        // A failure shows as the program still missing, just below.
        let _ = Command::new("sh").args(["-c", &script]).status();
    }
    find_program(program).ok_or_else(|| Error::Missing {
        tool: program.into(),
        command: format!("sudo {install}"),
    })
}
