//! A client of HTTP/1.1: as much as it takes to ask a service that speaks JSON, such as etcd's gateway.
//!
//! One question, one connection, one answer: the answer has a length, is chunked, or ends with its connection, and is
//! bounded ([`ANSWER_MAX`]). What came before the end of one that is cut is not believed. No TLS, no redirects, no
//! trailers.

use crate::message::tcp::{connect, duration};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

/// Bytes of the longest answer, head included.
pub const ANSWER_MAX: usize = 16 << 20;
/// Of the longest head.
const HEAD_MAX: usize = 64 << 10;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// 200 and the like.
    pub status: u16,
    /// What it says.
    pub body: Vec<u8>,
}

/// The `HOST:PORT` of `http://HOST:PORT` (or of itself).
///
/// # Errors
/// [`Error::Invalid`] for another protocol, a path, or no port.
pub fn host_of(url: &str) -> Result<String> {
    let url = url.trim();
    if url.starts_with("https://") {
        return Err(Error::Invalid(format!(
            "{url}: there is no TLS here; give an address with http:// in a network of its own"
        )));
    }
    let host = url.strip_prefix("http://").unwrap_or(url);
    let host = host.strip_suffix('/').unwrap_or(host);
    let port = host.rsplit_once(':').filter(|(name, _)| !name.is_empty());
    let is_whole = port.is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    match is_whole && !host.contains(|c: char| c == '/' || c == '@' || c.is_whitespace() || c.is_control()) {
        true => Ok(host.into()),
        false => Err(Error::Invalid(format!("\"{url}\" is no http://HOST:PORT"))),
    }
}

/// Sends `body`, which is JSON, to `path` at `host` (`HOST:PORT`), and waits for the answer, so long at most. `headers`
/// are names with values.
///
/// # Errors
/// [`Error::Lost`] if nothing of the question was sent; [`Error::Timeout`] if it was and no whole answer came,
/// [`Error::Corrupt`] if what came is none: what the question asked for may be done.
pub fn post(host: &str, path: &str, headers: &[(&str, &str)], body: &[u8], timeout: Nanos) -> Result<Answer> {
    let until = rt::now() + timeout;
    let stream = connect(host, timeout).map_err(|error| Error::Lost(error.to_string()))?;
    let unknown = |why: &dyn std::fmt::Display| Error::Timeout(format!("no answer of {host}: {why}"));
    let question = question(host, path, headers, body);
    let sent = stream
        .set_write_timeout(Some(duration(until.since(rt::now()))))
        .and_then(|()| (&stream).write_all(&question));
    sent.map_err(|error| unknown(&error))?;
    let mut bytes = Vec::new();
    loop {
        let ended = read_some(&stream, &mut bytes, until).map_err(|error| unknown(&error))?;
        match read_answer(&bytes, ended)? {
            Some(answer) => return Ok(answer),
            None if ended => return Err(unknown(&"the connection ended")),
            None if bytes.len() > ANSWER_MAX => return Err(Error::corrupt(format!("the answer of {host} has no end"))),
            None => {}
        }
    }
}

fn question(host: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\nConnection: close\r\n\r\n", body.len()));
    [head.as_bytes(), body].concat()
}

/// Reads what has come; says whether the connection has ended.
fn read_some(mut stream: &TcpStream, bytes: &mut Vec<u8>, until: Nanos) -> std::io::Result<bool> {
    let left = until.since(rt::now());
    if left == Nanos::ZERO {
        return Err(ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(duration(left)))?;
    let mut some = [0; 16 << 10];
    match stream.read(&mut some) {
        Ok(n) => {
            bytes.extend_from_slice(&some[..n]);
            Ok(n == 0)
        }
        // The time is over, or something else came in between: the next look tells.
        Err(e)
            if matches!(
                e.kind(),
                ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut
            ) =>
        {
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

/// How an answer's body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    Length(usize),
    Chunked,
    /// With the connection.
    End,
}

/// The answer, if all of it is there.
fn read_answer(bytes: &[u8], ended: bool) -> Result<Option<Answer>> {
    let Some(end) = find(bytes, b"\r\n\r\n") else {
        return match bytes.len() > HEAD_MAX {
            true => Err(Error::corrupt("an HTTP answer whose head has no end")),
            false => Ok(None),
        };
    };
    let (status, kind) = read_head(&bytes[..end])?;
    let rest = &bytes[end + 4..];
    let body = match kind {
        Body::Length(length) => rest.get(..length).map(<[u8]>::to_vec),
        Body::Chunked => read_chunks(rest)?,
        Body::End => ended.then(|| rest.to_vec()),
    };
    Ok(body.map(|body| Answer { status, body }))
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|some| some == what)
}

fn read_head(head: &[u8]) -> Result<(u16, Body)> {
    let bad = |what: &str| Error::corrupt(format!("an HTTP answer with {what}"));
    let text = std::str::from_utf8(head).map_err(|_| bad("a head that is no text"))?;
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    let status = status.filter(|s| s.len() == 3).and_then(|s| s.parse::<u16>().ok());
    let status = status.filter(|s| *s >= 200).ok_or_else(|| bad("no status"))?;
    let mut body = Body::End;
    for line in lines {
        let (name, value) = line.split_once(':').ok_or_else(|| bad("a line that is no header"))?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("transfer-encoding") {
            // It wins over a length, whichever comes first.
            body = match value.eq_ignore_ascii_case("chunked") {
                true => Body::Chunked,
                false => return Err(bad("an encoding that was not asked for")),
            };
        } else if name.eq_ignore_ascii_case("content-length") && body != Body::Chunked {
            let is_number = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
            let length = value.parse().ok().filter(|length| is_number && *length <= ANSWER_MAX);
            let length = length.ok_or_else(|| bad("a length that cannot be"))?;
            if matches!(body, Body::Length(other) if other != length) {
                return Err(bad("two lengths"));
            }
            body = Body::Length(length);
        }
    }
    Ok((status, body))
}

/// The chunks' contents, once the last one is there. Trailers are not waited for.
fn read_chunks(mut rest: &[u8]) -> Result<Option<Vec<u8>>> {
    let bad = || Error::corrupt("an HTTP answer with a chunk that is none");
    let mut body = Vec::new();
    loop {
        let Some(end) = find(&rest[..rest.len().min(64)], b"\r\n") else {
            return if rest.len() < 64 { Ok(None) } else { Err(bad()) };
        };
        let line = std::str::from_utf8(&rest[..end]).map_err(|_| bad())?;
        let size = line.split(';').next().unwrap_or_default().trim_end();
        let is_number = !size.is_empty() && size.bytes().all(|b| b.is_ascii_hexdigit());
        let size = usize::from_str_radix(size, 16).ok();
        let size = size.filter(|size| is_number && *size <= ANSWER_MAX).ok_or_else(bad)?;
        if size == 0 {
            return Ok(Some(body));
        }
        rest = &rest[end + 2..];
        let Some((chunk, more)) = rest.split_at_checked(size) else {
            return Ok(None);
        };
        let Some((mark, more)) = more.split_at_checked(2) else {
            return Ok(None);
        };
        if mark != b"\r\n" {
            return Err(bad());
        }
        body.extend_from_slice(chunk);
        rest = more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const SOON: Nanos = Nanos::from_secs(20);

    fn read(text: &[u8]) -> Result<Option<Answer>> {
        read_answer(text, false)
    }

    fn answer(status: u16, body: &str) -> Answer {
        let body = body.into();
        Answer { status, body }
    }

    #[test]
    fn answers_are_read_whole_or_not_at_all() {
        let sized = "HTTP/1.1 200 OK\r\nContent-Type: x\r\ncontent-length: 5\r\n\r\nhello";
        let chunked = "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n";
        for (text, status) in [(sized, 200), (chunked, 404)] {
            assert_eq!(read(text.as_bytes()).expect("good"), Some(answer(status, "hello")));
            for cut in 0..text.len() - 2 {
                assert_eq!(
                    read(&text.as_bytes()[..cut]).expect("so far good"),
                    None,
                    "cut at {cut}"
                );
            }
        }
        let trailers = format!("{chunked}Grpc-Trailer: x\r\n\r\n");
        assert_eq!(read(trailers.as_bytes()).expect("good"), Some(answer(404, "hello")));
        let open = b"HTTP/1.0 500 No\r\n\r\nhel";
        assert_eq!(read(open).expect("good"), None, "it may go on");
        assert_eq!(read_answer(open, true).expect("good"), Some(answer(500, "hel")));
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for text in [
            "CEN1 is no HTTP\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 20 x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno header\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n",
        ] {
            assert!(matches!(read(text.as_bytes()), Err(Error::Corrupt(_))), "{text}");
        }
        assert!(matches!(read(&[b'x'; HEAD_MAX + 1]), Err(Error::Corrupt(_))));
        let endless = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            "1".repeat(64)
        );
        assert!(matches!(read(endless.as_bytes()), Err(Error::Corrupt(_))));
    }

    /// Whatever comes is an answer, the beginning of one, or an error.
    #[test]
    fn garbage_never_panics() {
        let good = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 7\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        for at in 0..good.len() {
            for byte in [0, b'\r', b'\n', b'0', b'f', b':', 0x80, 0xff] {
                let mut bad = good.as_bytes().to_vec();
                bad[at] = byte;
                for ended in [false, true] {
                    let _ = read_answer(&bad, ended);
                    let _ = read_answer(&bad[at..], ended);
                }
            }
        }
    }

    #[test]
    fn addresses_are_checked() {
        assert_eq!(host_of("http://127.0.0.1:2379/").expect("good"), "127.0.0.1:2379");
        assert_eq!(host_of(" [::1]:2379").expect("good"), "[::1]:2379");
        for bad in [
            "https://a:1",
            "http://a",
            "http://a:1/x",
            "http://u@a:1",
            "a:b",
            ":1",
            "",
            "a:99999",
            "a b:1",
            "a\n:1",
        ] {
            assert!(matches!(host_of(bad), Err(Error::Invalid(_))), "{bad}");
        }
    }

    /// Answers `text` to the first who asks, after all of the question came; and then ends the connection, or keeps it
    /// open.
    fn server(text: &'static str, ends: bool) -> (String, rt::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let served = rt::spawn("server", move || {
            let (mut stream, _) = listener.accept().expect("somebody");
            let (mut question, mut some) = (Vec::new(), [0; 1024]);
            while find(&question, b"{}").is_none() {
                let n = stream.read(&mut some).expect("readable");
                question.extend_from_slice(&some[..n]);
            }
            stream.write_all(text.as_bytes()).expect("sent");
            if !ends {
                // Until the client has enough.
                while stream.read(&mut some).is_ok_and(|n| n > 0) {}
            }
            String::from_utf8(question).expect("text")
        });
        (address, served)
    }

    #[test]
    fn a_question_is_answered() {
        let (address, served) = server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false);
        let got = post(&address, "/v3/x", &[("Authorization", "token")], b"{}", SOON).expect("answered");
        assert_eq!(got, answer(200, "ok"));
        let question = served.join().expect("no panic");
        assert!(question.starts_with("POST /v3/x HTTP/1.1\r\n"), "{question}");
        for line in [
            &*format!("Host: {address}"),
            "Authorization: token",
            "Content-Length: 2",
        ] {
            assert!(question.contains(&format!("\r\n{line}\r\n")), "{question}");
        }
    }

    /// Who asks knows whether the question may have been heard.
    #[test]
    fn no_answer_is_told_from_no_question() {
        let (address, served) = server("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", true);
        let cut = post(&address, "/", &[], b"{}", SOON);
        assert!(matches!(cut, Err(Error::Timeout(_))), "{cut:?}");
        served.join().expect("no panic");
        let (address, served) = server("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", false);
        let late = post(&address, "/", &[], b"{}", Nanos::from_millis(300));
        assert!(matches!(late, Err(Error::Timeout(_))), "{late:?}");
        served.join().expect("no panic");
        let (address, served) = server("garbage\r\n\r\n", false);
        let garbage = post(&address, "/", &[], b"{}", SOON);
        assert!(matches!(garbage, Err(Error::Corrupt(_))), "{garbage:?}");
        served.join().expect("no panic");
        let nobody = post(&address, "/", &[], b"{}", SOON);
        assert!(matches!(nobody, Err(Error::Lost(_))), "{nobody:?}");
    }
}
