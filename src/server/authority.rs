//! The kubelet's plugin watcher as a client that our HTTP/2 library refuses, made fit for it.
//!
//! It dials the path of a socket without saying what its authority is, so that Go's gRPC sends the path itself as
//! `:authority` (k8s.io/kubernetes, pkg/kubelet/pluginmanager/operationexecutor). A path is no authority (RFC 9113, section
//! 8.3.1), and the stream is reset with PROTOCOL_ERROR. Here the value is replaced on its way in; all else passes as it came.
//!
//! Only for the registration's socket. The kubelet's CSI client and the sidecars say `localhost`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
/// RFC 9113, section 6.2.
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// RFC 7541, appendix A.
const AUTHORITY: usize = 1;
const LOCALHOST: &[u8] = b"\x09localhost";

/// A connection whose requests are to `localhost`.
#[derive(Debug)]
pub(super) struct Localhost {
    stream: UnixStream,
    /// Come, but not yet a whole frame.
    raw: Vec<u8>,
    /// To be read, from `read` on.
    ready: Vec<u8>,
    read: usize,
    greeted: bool,
}

impl Localhost {
    pub fn new(stream: UnixStream) -> Self {
        Localhost { stream, raw: Vec::new(), ready: Vec::new(), read: 0, greeted: false }
    }

    /// Moves what is whole from `raw` to `ready`.
    fn advance(&mut self) {
        if !self.greeted {
            if self.raw.len() < PREFACE {
                return;
            }
            self.ready.extend(self.raw.drain(..PREFACE));
            self.greeted = true;
        }
        while let Some(length) = frame_length(&self.raw).filter(|length| *length <= self.raw.len()) {
            let frame: Vec<u8> = self.raw.drain(..length).collect();
            let renamed = renamed(&frame);
            self.ready.extend(renamed.unwrap_or(frame));
        }
    }
}

/// Of the frame that begins here, with its header.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let [a, b, c, ..] = bytes else { return None };
    Some(FRAME_HEADER + (usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c)))
}

/// The frame with another authority; `None` where it has none to replace.
fn renamed(frame: &[u8]) -> Option<Vec<u8>> {
    let (header, payload) = frame.split_at_checked(FRAME_HEADER)?;
    let (kind, flags) = (*header.get(3)?, *header.get(4)?);
    // Headers in several frames are longer than a registration's ever are.
    if kind != HEADERS || flags & (END_HEADERS | PADDED | PRIORITY) != END_HEADERS {
        return None;
    }
    let value = authority(payload)?;
    // A path is longer. Then the entry that it becomes in the dynamic table is shorter than its sender believes, so that the
    // sender is the first to drop it.
    if value.len() < LOCALHOST.len() {
        return None;
    }
    let length = payload.len() - value.len() + LOCALHOST.len();
    let mut frame: Vec<u8> = length.to_be_bytes().last_chunk::<3>()?.to_vec();
    frame.extend(header.get(3..)?);
    frame.extend(payload.get(..value.start)?);
    frame.extend(LOCALHOST);
    frame.extend(payload.get(value.end..)?);
    Some(frame)
}

/// Where in a header block the authority stands literally, with its length before it (RFC 7541, section 6).
fn authority(block: &[u8]) -> Option<std::ops::Range<usize>> {
    let mut at = 0;
    while let Some(first) = block.get(at) {
        let prefix = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let index = integer(block, &mut at, prefix)?;
        if prefix == 7 || prefix == 5 {
            continue;
        }
        if index == 0 {
            string(block, &mut at)?;
        }
        let start = at;
        string(block, &mut at)?;
        if index == AUTHORITY {
            return Some(start..at);
        }
    }
    None
}

/// RFC 7541, section 5.1; of at most four bytes, since no frame is longer.
fn integer(block: &[u8], at: &mut usize, prefix: u32) -> Option<usize> {
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(*block.get(*at)?) & most;
    *at += 1;
    if value < most {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = usize::from(*block.get(*at)?);
        *at += 1;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Goes past a string, whether it is Huffman's or plain (RFC 7541, section 5.2).
fn string(block: &[u8], at: &mut usize) -> Option<()> {
    let length = integer(block, at, 7)?;
    *at = at.checked_add(length).filter(|end| *end <= block.len())?;
    Some(())
}

impl Connected for Localhost {
    type ConnectInfo = <UnixStream as Connected>::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Localhost {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.read == self.ready.len() {
            self.ready.clear();
            self.read = 0;
            let mut bytes = [0; 4096];
            let mut more = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut more))?;
            if more.filled().is_empty() {
                // The end, be it within a frame.
                return Poll::Ready(Ok(()));
            }
            self.raw.extend(more.filled());
            self.advance();
        }
        let rest = self.ready.get(self.read..).unwrap_or_default();
        let length = rest.len().min(buffer.remaining());
        buffer.put_slice(rest.get(..length).unwrap_or_default());
        self.read += length;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Localhost {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Go's gRPC sends it: `:method POST`, `:scheme http`, `:path`, `:authority`, and something after it.
    fn request(authority: &[u8]) -> Vec<u8> {
        let mut block = vec![0x83, 0x86, 0x45, 2, b'/', b'a', 0x41, u8::try_from(authority.len()).expect("short")];
        block.extend(authority);
        block.extend([0x40, 1, b'x', 1, b'y', 0x88]);
        frame(HEADERS, END_HEADERS, &block)
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = payload.len().to_be_bytes().last_chunk::<3>().expect("eight bytes").to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.extend(payload);
        frame
    }

    #[test]
    fn a_path_becomes_localhost_and_nothing_else_changes() {
        let path = b"/var/lib/kubelet/plugins_registry/a-reg.sock";
        assert_eq!(renamed(&request(path)).expect("renamed"), request(b"localhost"));
        assert_eq!(renamed(&request(b"short")), None);
        assert_eq!(renamed(&frame(0, 0, path)), None, "data");
        assert_eq!(renamed(&frame(HEADERS, END_HEADERS, &[0x83, 0x86, 0xbe])), None, "from the table");
    }

    #[test]
    fn what_is_cut_off_or_senseless_passes_as_it_is() {
        let whole = request(&[b'/'; 60]);
        for length in 0..whole.len() {
            let block = whole.get(FRAME_HEADER..length).unwrap_or_default();
            // Up to the end of the authority there is none; it never panics.
            assert_eq!(authority(block).is_some(), length >= FRAME_HEADER + 8 + 60, "{length}");
        }
        assert_eq!(authority(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(authority(&[0x41, 0x7f, 0xff, 0xff, 0xff, 0x7f]), None);
    }
}
