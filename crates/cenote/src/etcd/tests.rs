//! The transport at servers of one answer; and, where etcd and openssl are installed, at a real etcd with TLS.

use super::*;
use cenote_base::rt;
use cenote_pool::store::etcd::{EtcdOptions, EtcdStore};
use cenote_pool::store::{Change, GrantTableStore, Lead, RecordSet, Stored};
use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

const SOON: Nanos = Nanos::from_secs(20);
/// How long etcd may take to start on a busy machine.
const START_TIMEOUT: Nanos = Nanos::from_secs(100);

fn plain() -> EtcdTransport {
    EtcdTransport::new(&EtcdFiles::default()).expect("no files")
}

/// Answers `text` to the first request, after all of it came; then ends the connection, or keeps it open.
fn server(text: &'static str, ends: bool) -> (Endpoint, rt::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let served = rt::spawn("server", move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let (mut request, mut some) = (String::new(), [0; 1024]);
        while !request.ends_with("{}") {
            let n = stream.read(&mut some).expect("readable");
            assert!(n > 0, "the request ends early: {request}");
            request.push_str(std::str::from_utf8(&some[..n]).expect("text"));
        }
        stream.write_all(text.as_bytes()).expect("sent");
        while !ends && stream.read(&mut some).is_ok_and(|n| n > 0) {}
        request
    });
    (Endpoint::parse(&address).expect("good"), served)
}

#[test]
fn a_request_is_answered() {
    for (text, status) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200),
        (
            "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
            404,
        ),
        (
            "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 2\r\n\r\nok",
            302,
        ),
    ] {
        let (endpoint, served) = server(text, false);
        let answer = plain().post(&endpoint, "/v3/x", &[("Authorization", "token")], b"{}", SOON);
        let answer = answer.expect("answered");
        assert_eq!((answer.status, &*answer.body), (status, &b"ok"[..]));
        let request = served.join().expect("no panic").to_ascii_lowercase();
        assert!(request.starts_with("post /v3/x http/1.1\r\n"), "{request}");
        for line in ["authorization: token", "content-length: 2", "connection: close"] {
            assert_eq!(request.matches(&format!("\r\n{line}\r\n")).count(), 1, "{request}");
        }
    }
}

/// A request that may have been heard is told from one that was not.
#[test]
fn no_answer_is_told_from_no_request() {
    for (text, ends, timeout) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", true, SOON),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
            false,
            Nanos::from_millis(500),
        ),
        ("garbage\r\n\r\n", false, SOON),
        ("", true, SOON),
    ] {
        let (endpoint, served) = server(text, ends);
        let unknown = plain().post(&endpoint, "/", &[], b"{}", timeout);
        assert!(matches!(unknown, Err(Error::Timeout(_))), "{text}: {unknown:?}");
        served.join().expect("no panic");
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let free = listener.local_addr().expect("an address").to_string();
    drop(listener);
    for address in [&*free, "etcd.invalid:2379"] {
        let endpoint = Endpoint::parse(address).expect("good");
        let unanswered = plain().post(&endpoint, "/", &[], b"{}", SOON);
        assert!(matches!(unanswered, Err(Error::Lost(_))), "{address}: {unanswered:?}");
    }
}

/// A member that accepts a connection and is silent before the handshake has not heard the request.
#[test]
fn a_handshake_has_a_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let endpoint = Endpoint::parse(&url).expect("good");
    let silent = plain().post(&endpoint, "/", &[], b"{}", Nanos::from_millis(300));
    assert!(matches!(silent, Err(Error::Lost(_))), "{silent:?}");
}

#[test]
fn files_are_checked() {
    let directory = tempfile::tempdir().expect("a directory");
    let empty = directory.path().join("empty.pem");
    std::fs::write(&empty, "no certificate").expect("written");
    let with = |authority: Option<PathBuf>, identity| EtcdTransport::new(&EtcdFiles { authority, identity }).err();
    let missing = directory.path().join("missing.pem");
    assert!(matches!(with(Some(missing), None), Some(Error::Io { .. })));
    assert!(matches!(with(Some(empty.clone()), None), Some(Error::Invalid(_))));
    let identity = Some((empty.clone(), empty));
    assert!(matches!(with(None, identity), Some(Error::Invalid(_))));
}

// ---- a real etcd with TLS ----

/// An etcd that asks clients for a certificate; ended with its guard.
struct SecureEtcd {
    directory: TempDir,
    url: String,
    child: Child,
}

impl Drop for SecureEtcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_installed(program: &str, version: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(version).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

impl SecureEtcd {
    fn start() -> Option<Self> {
        if !is_installed("etcd", "--version") || !is_installed("openssl", "version") {
            println!("skipped: etcd or openssl is not installed");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        make_certificates(&directory);
        let listeners = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let [clients, peers] = listeners.map(|listener| listener.local_addr().expect("an address"));
        let (url, peers) = (format!("https://{clients}"), format!("http://{peers}"));
        let child = Command::new("etcd")
            .current_dir(&directory)
            .args(["--data-dir", "data", "--client-cert-auth"])
            .args([
                "--trusted-ca-file",
                "ca.pem",
                "--cert-file",
                "etcd.pem",
                "--key-file",
                "etcd.key",
            ])
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Some(Self {
            directory,
            url,
            child: child.expect("etcd starts"),
        })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn store(&self, files: &EtcdFiles) -> EtcdStore {
        let options = EtcdOptions {
            endpoints: vec![self.url.clone()],
            ttl: 3600,
            ..EtcdOptions::default()
        };
        EtcdStore::over(&options, Arc::new(EtcdTransport::new(files).expect("good files"))).expect("good options")
    }
}

/// An authority (`ca`), and what it signs: etcd's certificate for 127.0.0.1, and a manager's.
fn make_certificates(directory: &TempDir) {
    let openssl = |arguments: &[&str]| {
        let mut command = Command::new("openssl");
        command.current_dir(directory).args(arguments);
        let output = command.output().expect("openssl runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let authority = ["req", "-x509", "-days", "2", "-subj", "/CN=test authority"];
    openssl(&[&authority[..], &key, &["-keyout", "ca.key", "-out", "ca.pem"]].concat());
    std::fs::write(directory.path().join("names"), "subjectAltName = IP:127.0.0.1\n").expect("written");
    for name in ["etcd", "manager"] {
        let [key_file, request, signed] = ["key", "csr", "pem"].map(|end| format!("{name}.{end}"));
        let subject = format!("/CN={name}");
        let asked = ["req", "-subj", &subject, "-keyout", &key_file, "-out", &request];
        openssl(&[&asked[..], &key].concat());
        let signs = [
            "x509",
            "-req",
            "-days",
            "2",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
        ];
        openssl(&[&signs[..], &["-extfile", "names", "-in", &request, "-out", &signed]].concat());
    }
}

#[test]
fn etcd_is_asked_over_tls() {
    let Some(etcd) = SecureEtcd::start() else { return };
    let authority = Some(etcd.file("ca.pem"));
    let identity = Some((etcd.file("manager.pem"), etcd.file("manager.key")));
    let good = EtcdFiles {
        authority: authority.clone(),
        identity: identity.clone(),
    };
    let began = rt::now();
    let leadership = loop {
        match etcd.store(&good).lead("one:1") {
            Ok(Lead::Here(leadership)) => break leadership,
            Ok(Lead::Elsewhere(name)) => panic!("{name:?} leads"),
            Err(error) => assert!(rt::now().since(began) < START_TIMEOUT, "{error}"),
        }
        rt::sleep(Nanos::from_millis(50));
    };
    leadership.read().expect("read");
    let book = RecordSet::from([("meta".to_owned(), "book".to_owned())]);
    let change = Change::from([("meta".to_owned(), Some("book".to_owned()))]);
    leadership.write(&change).expect("written");
    assert_eq!(leadership.read().expect("read"), Some(Stored::Records(book)));

    let refused = |files: &EtcdFiles| etcd.store(files).lead("two:1").err().expect("refused").to_string();
    let unknown = refused(&EtcdFiles {
        authority: None,
        identity,
    });
    assert!(unknown.contains("UnknownIssuer"), "{unknown}");
    let nameless = EtcdFiles {
        authority: authority.clone(),
        identity: None,
    };
    refused(&nameless);
    let mixed = EtcdFiles {
        authority,
        identity: Some((etcd.file("manager.pem"), etcd.file("etcd.key"))),
    };
    assert!(matches!(EtcdTransport::new(&mixed).err(), Some(Error::Invalid(_))));
}
