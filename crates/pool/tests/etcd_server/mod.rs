//! A real etcd for tests: of one member, on loopback, with a directory of its own; ended with its guard. Tests reach it
//! by [`TestTransport`].

use super::{Answer, Endpoint, Transport};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const TIMEOUT: Nanos = Nanos::from_secs(100);
const ANSWER_TIMEOUT: Nanos = Nanos::from_secs(20);

/// Plain HTTP, one connection a request.
pub struct TestTransport;

impl Transport for TestTransport {
    fn post(
        &self,
        endpoint: &Endpoint,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        timeout: Nanos,
    ) -> Result<Answer> {
        let config = ureq::Agent::config_builder().proxy(None).http_status_as_error(false);
        let agent: ureq::Agent = config
            .timeout_global(Some(Duration::from_nanos(timeout.raw())))
            .build()
            .into();
        let request = agent.post(format!("{endpoint}{path}")).header("Connection", "close");
        let request = headers
            .iter()
            .fold(request, |request, (name, value)| request.header(*name, *value));
        let answer = request.send(body).and_then(|mut answer| {
            let (status, body) = (answer.status().as_u16(), answer.body_mut().read_to_vec()?);
            Ok(Answer { status, body })
        });
        answer.map_err(|error| match error {
            // Only a connection that is not made is refused.
            ureq::Error::Io(io) if io.kind() == ErrorKind::ConnectionRefused => Error::Lost(io.to_string()),
            error => Error::Timeout(error.to_string()),
        })
    }
}

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
            // Another process was faster to take a port.
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
        while self.post("/v3/kv/range", r#"{"key":"eA=="}"#).is_err() {
            if self.child.try_wait().expect("asked").is_some() {
                return false;
            }
            assert!(rt::now().since(began) < TIMEOUT, "etcd does not answer");
            rt::sleep(Nanos::from_millis(20));
        }
        true
    }

    pub fn ask(&self, path: &str, question: &str) -> Option<String> {
        let answer = self.post(path, question).ok()?;
        (answer.status == 200).then(|| String::from_utf8(answer.body).expect("text"))
    }

    fn post(&self, path: &str, question: &str) -> Result<Answer> {
        let endpoint = Endpoint::parse(&self.url())?;
        TestTransport.post(&endpoint, path, &[], question.as_bytes(), ANSWER_TIMEOUT)
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
