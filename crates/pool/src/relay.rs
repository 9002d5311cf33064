//! What members say to their memory node's relay over a ring, and hear of it: a request for the host of a far part,
//! with the part and a mark behind it; an answer with a byte behind it, 0, or 1 if what comes before is an error
//! ([`Failure`], JSON).

use crate::wire::Failure;
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::Answer;

/// What ends a request that is to be forwarded; what ends JSON is another.
const MARK: u8 = 1;
const ANSWERED: u8 = 0;
const FAILED: u8 = 1;
/// Bytes behind a request. Users leave room for them (`space::far::wire`).
const BEHIND: usize = 2;
/// Bytes of an error's text.
const ERROR_MAX: usize = 1024;

/// A request, and which part it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward<'a> {
    pub part: u8,
    pub request: &'a [u8],
}

/// Makes it one that is to be forwarded. One that is too long for that is refused by the ring.
pub fn wrap(part: u8, request: &mut Vec<u8>) {
    request.extend([part, MARK]);
}

/// What it was before.
pub fn unwrap(request: &mut Vec<u8>) {
    request.truncate(request.len().saturating_sub(BEHIND));
}

/// A request that has come, if it is one to be forwarded.
pub fn forward(request: &[u8]) -> Option<Forward<'_>> {
    let (request, [part, MARK]) = request.split_last_chunk()? else {
        return None;
    };
    Some(Forward { part: *part, request })
}

/// Answers a member.
pub fn answer(mut answer: Answer, answered: Result<Vec<u8>>) {
    *answer.bytes() = match answered {
        Ok(mut bytes) => {
            bytes.push(ANSWERED);
            bytes
        }
        Err(error) => {
            let mut bytes = Failure::from(error).within(ERROR_MAX);
            bytes.push(FAILED);
            bytes
        }
    };
    answer.send();
}

/// What was answered.
///
/// # Errors
/// The host's, or the node's; [`Error::Corrupt`].
pub fn answered(mut bytes: Vec<u8>) -> Result<Vec<u8>> {
    match bytes.pop() {
        Some(ANSWERED) => Ok(bytes),
        Some(FAILED) => {
            let failure: Failure = serde_json::from_slice(&bytes)
                .map_err(|error| Error::corrupt(format!("an error of the memory node's relay: {error}")))?;
            Err(failure.into())
        }
        _ => Err(Error::corrupt("an answer of the memory node's relay")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::MemberRequest;

    #[test]
    fn requests_are_told_apart() {
        let mut request = b"anything\x01\x01".to_vec();
        wrap(7, &mut request);
        let (part, inner) = (7, b"anything\x01\x01".as_slice());
        assert_eq!(forward(&request), Some(Forward { part, request: inner }));
        unwrap(&mut request);
        assert_eq!(request, inner);
        for request in [MemberRequest::Ping, MemberRequest::Audit { part: 1 }] {
            assert_eq!(forward(&serde_json::to_vec(&request).expect("written")), None);
        }
        assert_eq!((forward(&[]), forward(&[1])), (None, None));
    }

    #[test]
    fn answers_that_cannot_be_are_refused() {
        for bytes in [vec![], vec![2], vec![9, FAILED], vec![FAILED]] {
            assert!(matches!(answered(bytes), Err(Error::Corrupt(_))));
        }
        assert_eq!(answered(vec![5, ANSWERED]).expect("an answer"), [5]);
    }
}
