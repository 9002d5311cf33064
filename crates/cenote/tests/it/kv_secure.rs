//! What the key-value server asks of its clients, and where it stops: a secret, TLS, limits; and its metrics.

use crate::kv::{Client, command, directory};
use crate::program::{Process, cenote};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const SECRET: &str = "open, sesame";

fn server(directory: &Path, arguments: &[&str]) -> Process {
    let mut command = cenote(&["kv", "--memory-size", "16MiB", "--listen", "127.0.0.1:0", "--region"]);
    command
        .arg(directory.join("region"))
        .args(arguments)
        .current_dir(directory);
    Process::spawn(command)
}

fn with_secret(directory: &Path, arguments: &[&str]) -> Process {
    std::fs::write(directory.join("secret"), format!("{SECRET}\n")).unwrap();
    server(directory, &[&["--secret-file", "secret"], arguments].concat())
}

#[test]
fn nothing_is_answered_before_the_secret_is_said() {
    let directory = directory();
    let server = with_secret(directory.path(), &[]);
    let mut client = Client::new(&server);
    for words in ["PING", "GET a", "INFO", "NOPE", "MULTI", "GET", "HELLO 3"] {
        client.says(words, "-NOAUTH");
    }
    for wrong in [&["AUTH", "open"][..], &["AUTH", "other", SECRET], &["AUTH", ""]] {
        assert!(client.ask(wrong).starts_with("-WRONGPASS"), "{wrong:?}");
    }
    client.says("AUTH a b c", "-ERR syntax error");
    client.says("GET a", "-NOAUTH");
    assert_eq!(client.ask(&["AUTH", SECRET]), "+OK");
    client.says("SET a 1", "+OK");
    client.says("RESET", "+RESET");
    client.says("GET a", "-NOAUTH");
    let hello = client.ask(&["HELLO", "3", "AUTH", "default", SECRET, "SETNAME", "me"]);
    assert!(hello.contains(":3"), "{hello}");
    client.says("GET a", "\"1\"");
    client.says("CLIENT GETNAME", "\"me\"");
    client.says("INFO stats", "auth_failures:3");
    // Of a client that has not said it little is kept: what it asks for may be long.
    let mut client = Client::new(&server);
    client.send(format!("*2\r\n$3\r\nGET\r\n$500000000\r\n{}", "x".repeat(200_000)).as_bytes());
    assert!(client.answer().contains("unauthenticated"));
    // What comes in one heap with the secret is run behind it.
    let mut client = Client::new(&server);
    client.send(
        &[
            command(&["GET", "a"]),
            command(&["AUTH", SECRET]),
            command(&["GET", "a"]).repeat(2),
        ]
        .concat(),
    );
    assert!(client.answer().starts_with("-NOAUTH"));
    assert_eq!(
        [client.answer(), client.answer(), client.answer()],
        ["+OK", "\"1\"", "\"1\""]
    );
}

#[test]
fn with_a_secret_others_are_listened_to() {
    let directory = directory();
    std::fs::write(directory.path().join("secret"), SECRET).unwrap();
    let mut command = cenote(&[
        "kv",
        "--memory-size",
        "16MiB",
        "--listen",
        "0.0.0.0:0",
        "--region",
        "region",
    ]);
    command.args(["--secret-file", "secret"]).current_dir(directory.path());
    let server = Process::spawn(command);
    assert_eq!(Client::new(&server).ask(&["AUTH", SECRET]), "+OK");
}

#[test]
fn clients_beyond_the_limit_are_told_so_and_served_when_others_have_gone() {
    let directory = directory();
    let server = server(directory.path(), &["--max-connections", "3"]);
    let mut clients: Vec<_> = (0..3).map(|_| Client::new(&server)).collect();
    clients.iter_mut().for_each(|client| client.says("PING", "+PONG"));
    let mut refused = Client::new(&server);
    assert_eq!(refused.answer(), "-ERR max number of clients reached");
    assert!(refused.is_closed());
    clients[0].says("INFO stats", "rejected_connections:1");
    drop(clients.pop());
    // Until the server has heard of it.
    let served = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let mut client = Client::new(&server);
        client.send(&command(&["PING"]));
        client.answer() == "+PONG"
    });
    assert!(served);
}

// ---- TLS ----

/// Whether there is an `openssl` to make certificates with.
fn make_certificates(directory: &Path) -> bool {
    let openssl = |arguments: &[&str]| {
        let mut command = Command::new("openssl");
        command.current_dir(directory).args(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !openssl(&["version"]) {
        println!("skipped: openssl is not installed");
        return false;
    }
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let authority = ["req", "-x509", "-days", "2", "-subj", "/CN=test authority"];
    assert!(openssl(
        &[&authority[..], &key, &["-keyout", "ca.key", "-out", "ca.pem"]].concat()
    ));
    std::fs::write(directory.join("names"), "subjectAltName = IP:127.0.0.1\n").unwrap();
    for name in ["server", "client"] {
        let [key_file, request, signed] = ["key", "csr", "pem"].map(|end| format!("{name}.{end}"));
        let subject = format!("/CN={name}");
        let asked = ["req", "-subj", &subject, "-keyout", &key_file, "-out", &request];
        assert!(openssl(&[&asked[..], &key].concat()));
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
        assert!(openssl(
            &[&signs[..], &["-extfile", "names", "-in", &request, "-out", &signed]].concat()
        ));
    }
    true
}

type Secured = StreamOwned<ClientConnection, TcpStream>;

fn connect(server: &Process, directory: &Path, has_certificate: bool) -> Secured {
    let certificates = |name: &str| -> Vec<_> {
        let found = CertificateDer::pem_file_iter(directory.join(name)).unwrap();
        found.map(Result::unwrap).collect()
    };
    let mut roots = RootCertStore::empty();
    certificates("ca.pem")
        .into_iter()
        .for_each(|root| roots.add(root).unwrap());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_root_certificates(roots);
    let config = match has_certificate {
        false => config.with_no_client_auth(),
        true => {
            let key = PrivateKeyDer::from_pem_file(directory.join("client.key")).unwrap();
            config.with_client_auth_cert(certificates("client.pem"), key).unwrap()
        }
    };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    StreamOwned::new(session, stream)
}

fn ask(stream: &mut Secured, request: &[u8], answer: &[u8]) {
    stream.write_all(request).unwrap();
    let mut bytes = vec![0; answer.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert!(
        bytes == answer,
        "{}",
        String::from_utf8_lossy(&bytes[..bytes.len().min(200)])
    );
}

const TLS: [&str; 4] = ["--tls-cert", "server.pem", "--tls-key", "server.key"];

#[test]
fn clients_speak_tls_and_what_is_no_tls_harms_none() {
    let directory = directory();
    if !make_certificates(directory.path()) {
        return;
    }
    let server = with_secret(directory.path(), &TLS);
    let mut client = connect(&server, directory.path(), false);
    ask(&mut client, b"PING\r\n", b"-NOAUTH Authentication required.\r\n");
    ask(&mut client, &command(&["AUTH", SECRET]), b"+OK\r\n");
    for garbage in [&b"PING\r\n"[..], b"\x16\x03\x01\xff\xff", &[0xff; 70_000]] {
        let mut plain = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        plain.write_all(garbage).ok();
        plain.shutdown(std::net::Shutdown::Write).ok();
        plain.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = Vec::new();
        plain.read_to_end(&mut answer).ok();
        assert!(!answer.starts_with(b"+PONG"));
    }
    // More than TLS keeps at once, in both directions.
    let large = "x".repeat(3 << 20);
    ask(&mut client, &command(&["SET", "large", &large]), b"+OK\r\n");
    let wanted = format!("${}\r\n{large}\r\n", large.len());
    ask(
        &mut client,
        &command(&["GET", "large"]).repeat(3),
        wanted.repeat(3).as_bytes(),
    );
    ask(&mut client, b"QUIT\r\n", b"+OK\r\n");
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "the end is said");
}

#[test]
fn clients_need_a_certificate_where_one_is_asked_for() {
    let directory = directory();
    if !make_certificates(directory.path()) {
        return;
    }
    let arguments = [&TLS[..], &["--tls-client-authority", "ca.pem"]].concat();
    let server = server(directory.path(), &arguments);
    let mut known = connect(&server, directory.path(), true);
    ask(&mut known, b"PING\r\n", b"+PONG\r\n");
    let mut unknown = connect(&server, directory.path(), false);
    unknown.write_all(b"PING\r\n").ok();
    assert!(!unknown.read(&mut [0; 7]).is_ok_and(|n| n > 0));
    ask(&mut known, b"PING\r\n", b"+PONG\r\n");
}

// ---- metrics ----

fn http(port: u16, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(request).ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn metrics_are_told_to_those_who_ask_for_them_alone() {
    let directory = directory();
    let server = server(directory.path(), &["--metrics", "127.0.0.1:0"]);
    let said = server.said.iter().find(|line| line.starts_with("metrics")).unwrap();
    let address = said.trim_end_matches("/metrics").rsplit('/').next().unwrap();
    let free: std::net::SocketAddr = address.parse().unwrap();
    Client::new(&server).says("SET a 1", "+OK");
    // It says nothing, and holds up none.
    let _silent = TcpStream::connect(free).unwrap();
    let text = http(free.port(), b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(
        text.starts_with("HTTP/1.1 200 OK") && text.contains("\ncenote_kv_commands_total 1\n"),
        "{text}"
    );
    assert!(http(free.port(), b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(http(free.port(), b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    let long = [b"GET /".to_vec(), vec![b'x'; 8187]].concat();
    let refused = http(free.port(), &long);
    assert!(refused.is_empty() || refused.starts_with("HTTP/1.1 431"), "{refused}");
}
