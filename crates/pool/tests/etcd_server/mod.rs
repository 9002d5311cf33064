//! A real etcd for tests: of one member, on loopback, with a directory of its own; ended with its guard.

use cenote_base::rt::{self, Nanos};
use cenote_fabric::http;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

const TIMEOUT: Nanos = Nanos::from_secs(100);
const ANSWER_TIMEOUT: Nanos = Nanos::from_secs(20);

pub struct Etcd {
    directory: tempfile::TempDir,
    ports: [u16; 2],
    child: Child,
}

impl Etcd {
    /// `None` where etcd is not installed: then the test says so and checks nothing.
    pub fn start() -> Option<Self> {
        if Command::new("etcd")
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_err()
        {
            println!("skipped: etcd is not installed (scripts/setup.sh test installs it)");
            return None;
        }
        let mut directory = tempfile::tempdir().expect("a directory");
        for _ in 0..20 {
            let ports = free_ports();
            let child = spawn(&directory, ports);
            let mut etcd = Self {
                directory,
                ports,
                child,
            };
            if etcd.is_ready() {
                return Some(etcd);
            }
            // Somebody else was faster to take a port.
            directory = std::mem::replace(&mut etcd.directory, tempfile::tempdir().expect("a directory"));
        }
        panic!("etcd does not start");
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.host())
    }

    /// Waits until it answers; false if it has ended instead.
    fn is_ready(&mut self) -> bool {
        let began = rt::now();
        // Whatever it says: it may ask for a password.
        while http::post(&self.host(), "/v3/kv/range", &[], br#"{"key":"eA=="}"#, ANSWER_TIMEOUT).is_err() {
            if self.child.try_wait().expect("asked").is_some() {
                return false;
            }
            assert!(rt::now().since(began) < TIMEOUT, "etcd does not answer");
            rt::sleep(Nanos::from_millis(20));
        }
        true
    }

    pub fn ask(&self, path: &str, question: &str) -> Option<String> {
        let answer = http::post(&self.host(), path, &[], question.as_bytes(), ANSWER_TIMEOUT).ok()?;
        (answer.status == 200).then(|| String::from_utf8(answer.body).expect("text"))
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    /// With all that it has had.
    pub fn restart(&mut self) {
        self.child = spawn(&self.directory, self.ports);
        assert!(self.is_ready(), "etcd starts again");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_ports() -> [u16; 2] {
    let listeners = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("an address").port())
}

fn spawn(directory: &tempfile::TempDir, [clients, peers]: [u16; 2]) -> Child {
    let (clients, peers) = (
        format!("http://127.0.0.1:{clients}"),
        format!("http://127.0.0.1:{peers}"),
    );
    Command::new("etcd")
        .arg("--data-dir")
        .arg(directory.path())
        .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
        .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
        .args(["--initial-cluster", &format!("default={peers}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd starts")
}
