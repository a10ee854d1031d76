//! Accepts every `:authority` that a gRPC client sends.
//!
//! A Unix socket has no authority, so each client library makes one up. C-core (Python, C++, Ruby, PHP) sends the percent-encoded
//! path of the socket, Go's sends the path itself where it is given a dialer (the kubelet's plugin watcher: k8s.io/kubernetes,
//! pkg/kubelet/pluginmanager/operationexecutor), and others send `localhost`, an empty value, or none. A path is no authority
//! (RFC 9113, section 8.3.1): our HTTP/2 library resets the stream with PROTOCOL_ERROR.
//!
//! Nothing here depends on the authority, so [`AnyAuthority`] replaces its value in each header block by one that is valid. All
//! other bytes are passed on unchanged. The representation of the field stays too (RFC 7541, section 6): what the client adds to
//! the dynamic table is added, and all indices mean the same to both ends. The entry is smaller than the client counts it, so the
//! client is the first to evict one. Only an empty authority becomes larger, by one byte.
//!
//! Malformed input is passed on unchanged from there on; the HTTP/2 library refuses it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// Length in bytes of what a client sends before its first frame (RFC 9113, section 3.4).
const PREFACE: usize = 24;
/// Length in bytes of a frame's header (RFC 9113, section 4.1).
const FRAME_HEADER: usize = 9;
/// Largest payload that is accepted, in bytes: SETTINGS_MAX_FRAME_SIZE, of which the server announces no other value.
const MAX_PAYLOAD: usize = 16_384;
/// Longest header block that is filtered, in bytes. The HTTP/2 library refuses shorter ones already.
const MAX_BLOCK: usize = 64 * 1024;
/// Frame types and flags (RFC 9113, sections 6.2 and 6.10).
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Length in bytes of a stream dependency and its weight.
const DEPENDENCY: usize = 5;
/// Index of `:authority`, with an empty value, in the static table (RFC 7541, appendix A).
const AUTHORITY: usize = 1;
/// Index of the newest entry of the dynamic table.
const NEWEST: usize = 62;
/// `:authority` as a string literal: plain and in Huffman's code (RFC 7541, section 5.2 and appendix B).
const NAMES: [&[u8]; 2] = [b"\x0a:authority", b"\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f"];
/// A valid authority as a string literal.
const VALUE: &[u8] = b"\x01x";
/// `:authority` by its index, with that value, as a literal field that is not added to the dynamic table.
const LITERAL: &[u8] = b"\x01\x01x";

/// A connection whose requests all have a valid authority.
#[derive(Debug)]
pub(super) struct AnyAuthority<S> {
    stream: S,
    filter: Filter,
    /// Received, from the start of a header block or of a frame's header, but not complete.
    held: Vec<u8>,
    /// Filtered, to be read from `read` on.
    ready: Vec<u8>,
    read: usize,
}

impl<S> AnyAuthority<S> {
    pub fn new(stream: S) -> Self {
        let filter = Filter { skip: PREFACE, authorities: 0 };
        AnyAuthority { stream, filter, held: Vec::new(), ready: Vec::new(), read: 0 }
    }
}

/// What is known of the connection's input so far.
#[derive(Debug)]
struct Filter {
    /// Number of bytes that are passed on before a frame begins. `usize::MAX` stands for all, after malformed input.
    skip: usize,
    /// The entries of the dynamic table whose name is `:authority`, the newest in the lowest bit. The table has at most 128
    /// entries: each counts as 32 bytes or more of the 4,096 that SETTINGS_HEADER_TABLE_SIZE is unless announced otherwise.
    authorities: u128,
}

impl Filter {
    /// Length of what is passed on unchanged: up to a header block, or up to a frame whose header is not complete.
    fn skip(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        loop {
            let skipped = self.skip.min(bytes.len() - at);
            self.skip -= skipped;
            at += skipped;
            match Frame::read(bytes, at) {
                Some(frame) if frame.kind != HEADERS => self.skip = FRAME_HEADER + frame.length,
                _ => return at,
            }
        }
    }

    /// Moves what is complete from `held` to `ready`.
    fn advance(&mut self, held: &mut Vec<u8>, ready: &mut Vec<u8>) {
        let mut at = 0;
        loop {
            let rest = held.get(at..).unwrap_or_default();
            let skipped = self.skip(rest);
            let (passed, rest) = rest.split_at(skipped);
            ready.extend(passed);
            at += skipped;
            let filtered = match Block::read(rest) {
                Ok(None) => break,
                Ok(Some(block)) => self.replace(&block.fields).map(|fields| (block, fields)),
                Err(Malformed) => None,
            };
            match filtered {
                Some((block, fields)) => {
                    block.write(&fields, ready);
                    at += block.length;
                }
                None => self.skip = usize::MAX,
            }
        }
        held.drain(..at);
    }

    /// The fields of a header block with another value of each `:authority`; `None` where they are malformed.
    fn replace(&mut self, fields: &[u8]) -> Option<Vec<u8>> {
        let mut replaced = Vec::with_capacity(fields.len());
        let mut at = 0;
        while let Some(first) = fields.get(at) {
            let start = at;
            // Indexed, added to the dynamic table, a new size of that table, not added (RFC 7541, section 6).
            let prefix = match first {
                0x80.. => 7,
                0x40.. => 6,
                0x20.. => 5,
                _ => 4,
            };
            let index = integer(fields, &mut at, prefix)?;
            if prefix == 7 && index == AUTHORITY {
                replaced.extend(LITERAL);
                continue;
            }
            if prefix == 7 || prefix == 5 {
                replaced.extend(fields.get(start..at)?);
                continue;
            }
            let is_authority = match index {
                0 => NAMES.contains(&string(fields, &mut at)?),
                _ => self.is_authority(index),
            };
            replaced.extend(fields.get(start..at)?);
            let value = string(fields, &mut at)?;
            replaced.extend(if is_authority { VALUE } else { value });
            if prefix == 6 {
                self.authorities = self.authorities << 1 | u128::from(is_authority);
            }
        }
        Some(replaced)
    }

    fn is_authority(&self, index: usize) -> bool {
        let age = index.checked_sub(NEWEST).and_then(|age| u32::try_from(age).ok());
        let bits = age.and_then(|age| self.authorities.checked_shr(age)).unwrap_or_default();
        index == AUTHORITY || bits & 1 == 1
    }
}

/// The header of a frame.
struct Frame {
    /// Of the payload, in bytes.
    length: usize,
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

impl Frame {
    /// The one that begins at `at`; `None` where it is not complete.
    fn read(bytes: &[u8], at: usize) -> Option<Frame> {
        let [a, b, c, kind, flags, stream @ ..] = bytes.get(at..)?.first_chunk::<FRAME_HEADER>()?;
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        Some(Frame { length, kind: *kind, flags: *flags, stream: *stream })
    }

    fn payload<'b>(&self, bytes: &'b [u8], at: usize) -> Option<&'b [u8]> {
        bytes.get(at + FRAME_HEADER..)?.get(..self.length)
    }
}

/// Input that the HTTP/2 library refuses.
struct Malformed;

/// A header block: the frame HEADERS and the CONTINUATION frames after it.
struct Block {
    /// Of the block as it was received, in bytes.
    length: usize,
    /// Of the first frame.
    flags: u8,
    stream: [u8; 4],
    /// Stream dependency and weight, where the flags say that they are there.
    dependency: Vec<u8>,
    /// Without padding.
    fields: Vec<u8>,
}

impl Block {
    /// The one that begins here; `Ok(None)` where it is not complete.
    fn read(bytes: &[u8]) -> Result<Option<Block>, Malformed> {
        let Some(first) = Frame::read(bytes, 0) else { return Ok(None) };
        if first.length > MAX_PAYLOAD {
            return Err(Malformed);
        }
        let Some(payload) = first.payload(bytes, 0) else { return Ok(None) };
        let (padding, payload) = match first.flags & PADDED {
            0 => (0, payload),
            _ => payload.split_first().map(|(padding, payload)| (usize::from(*padding), payload)).ok_or(Malformed)?,
        };
        let dependency = if first.flags & PRIORITY == 0 { 0 } else { DEPENDENCY };
        let (dependency, payload) = payload.split_at_checked(dependency).ok_or(Malformed)?;
        let fields = payload.len().checked_sub(padding).and_then(|length| payload.get(..length)).ok_or(Malformed)?;
        let mut block = Block {
            length: FRAME_HEADER + first.length,
            flags: first.flags,
            stream: first.stream,
            dependency: dependency.to_vec(),
            fields: fields.to_vec(),
        };
        let mut flags = first.flags;
        while flags & END_HEADERS == 0 {
            let Some(next) = Frame::read(bytes, block.length) else { return Ok(None) };
            let fits = next.length <= MAX_PAYLOAD && block.length + next.length <= MAX_BLOCK;
            if next.kind != CONTINUATION || next.stream != first.stream || !fits {
                return Err(Malformed);
            }
            let Some(more) = next.payload(bytes, block.length) else { return Ok(None) };
            block.fields.extend(more);
            block.length += FRAME_HEADER + next.length;
            flags = next.flags;
        }
        Ok(Some(block))
    }

    /// Writes it with these fields, in as few frames as hold them.
    fn write(&self, fields: &[u8], to: &mut Vec<u8>) {
        let (mut fields, mut rest) = fields.split_at(fields.len().min(MAX_PAYLOAD - DEPENDENCY));
        let (mut kind, mut flags, mut dependency) = (HEADERS, self.flags & !(PADDED | END_HEADERS), self.dependency.as_slice());
        loop {
            let end = if rest.is_empty() { END_HEADERS } else { 0 };
            // The length is three bytes, which hold any payload of this size.
            let [.., a, b, c] = (dependency.len() + fields.len()).to_be_bytes();
            to.extend([a, b, c, kind, flags | end]);
            to.extend(self.stream);
            to.extend(dependency);
            to.extend(fields);
            if rest.is_empty() {
                return;
            }
            (fields, rest) = rest.split_at(rest.len().min(MAX_PAYLOAD));
            (kind, flags, dependency) = (CONTINUATION, 0, &[]);
        }
    }
}

/// An integer (RFC 7541, section 5.1) of at most five bytes, as our HTTP/2 library reads it.
fn integer(bytes: &[u8], at: &mut usize, prefix: u32) -> Option<usize> {
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(*bytes.get(*at)?) & most;
    *at += 1;
    if value < most {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = usize::from(*bytes.get(*at)?);
        *at += 1;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// A string literal with its length before it, plain or in Huffman's code (RFC 7541, section 5.2).
fn string<'b>(bytes: &'b [u8], at: &mut usize) -> Option<&'b [u8]> {
    let start = *at;
    let length = integer(bytes, at, 7)?;
    *at = at.checked_add(length)?;
    bytes.get(start..*at)
}

impl<S: Connected> Connected for AnyAuthority<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AnyAuthority<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let rest = this.ready.get(this.read..).unwrap_or_default();
            if !rest.is_empty() {
                let (given, _) = rest.split_at(rest.len().min(buffer.remaining()));
                buffer.put_slice(given);
                this.read += given.len();
                return Poll::Ready(Ok(()));
            }
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            let received = buffer.filled().get(before..).unwrap_or_default();
            if received.is_empty() {
                // The end, be it within a frame.
                return Poll::Ready(Ok(()));
            }
            // Messages stay where they were read to; header blocks and what comes after them are copied.
            let passed = if this.held.is_empty() { this.filter.skip(received) } else { 0 };
            this.held.extend(received.get(passed..).unwrap_or_default());
            buffer.set_filled(before + passed);
            this.ready.clear();
            this.read = 0;
            this.filter.advance(&mut this.held, &mut this.ready);
            if passed > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AnyAuthority<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
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
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const STREAM: [u8; 4] = [0, 0, 0, 1];
    /// `%2Ftmp%2Fa` in Huffman's code.
    const HUFFMAN: &[u8] = b"\x88\x54\x58\xd3\x4d\x6a\x8b\x18\xff";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = payload.len().to_be_bytes().last_chunk::<3>().expect("eight bytes").to_vec();
        frame.extend([kind, flags]);
        frame.extend(STREAM);
        frame.extend(payload);
        frame
    }

    /// A string literal of less than 127 bytes.
    fn plain(text: &[u8]) -> Vec<u8> {
        [&[u8::try_from(text.len()).expect("short")], text].concat()
    }

    /// The fields of a request: `:method POST`, `:scheme http`, `:path`, an authority, and some after it.
    fn request(authority: &[u8]) -> Vec<u8> {
        [&[0x83, 0x86, 0x45, 2, b'/', b'a'], authority, &[0x40, 1, b'x', 1, b'y', 0x88]].concat()
    }

    /// What comes out of a connection whose client sends this and closes, `at_once` bytes at a time.
    fn filtered(input: &[u8], at_once: usize) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let (ours, mut theirs) = tokio::io::duplex(at_once);
            let mut output = Vec::new();
            let mut connection = AnyAuthority::new(ours);
            let sends = async {
                theirs.write_all(input).await.expect("sent");
                drop(theirs);
            };
            let (read, ()) = tokio::join!(connection.read_to_end(&mut output), sends);
            read.expect("read");
            output
        })
    }

    /// After a preface and as one header block.
    fn filtered_block(fields: &[u8]) -> Vec<u8> {
        let output = filtered(&[&[b'P'; PREFACE], frame(HEADERS, END_HEADERS, fields).as_slice()].concat(), 1 << 16);
        let block = Block::read(output.get(PREFACE..).expect("the preface")).ok().flatten().expect("a block");
        assert_eq!(PREFACE + block.length, output.len());
        block.fields
    }

    #[test]
    fn authority_in_every_representation_is_replaced_and_nothing_else() {
        let path = plain(b"%2Frun%2Flongshore%2Fcsi.sock");
        for value in [&path, &HUFFMAN.to_vec(), &plain(b"localhost"), &plain(b""), &plain(b"/run/a b")] {
            // Added, not added, never added; the name by its index, plain, in Huffman's code.
            for name in [&[0x41][..], &[0x01], &[0x11]] {
                assert_eq!(filtered_block(&request(&[name, value].concat())), request(&[name, VALUE].concat()));
            }
            for form in [0x40, 0x00, 0x10] {
                for name in NAMES {
                    let (given, expected) = ([&[form], name, value].concat(), [&[form], name, VALUE].concat());
                    assert_eq!(filtered_block(&request(&given)), request(&expected));
                }
            }
        }
        assert_eq!(filtered_block(&request(&[0x81])), request(LITERAL), "the static table has an empty one");
        for other in [&b""[..], &[0x84], &[0x3f, 0xe1, 0x1f], &[&[0x44], path.as_slice()].concat(), b"\x40\x04host\x01/"] {
            assert_eq!(filtered_block(&request(other)), request(other), "{other:x?}");
        }
    }

    #[test]
    fn authority_named_by_dynamic_table_is_replaced() {
        let path = plain(b"%2Fcsi.sock");
        // The first block adds `:path`, `:authority` and `x`; the second adds its own `:path`, which is the newest then.
        for (index, is_authority) in [(62, false), (63, false), (64, true), (65, false), (66, false)] {
            let mut filter = Filter { skip: 0, authorities: 0 };
            filter.replace(&request(&[&[0x41], path.as_slice()].concat())).expect("well-formed");
            let name: &[u8] = &[0x0f, index - 15];
            let given = request(&[name, path.as_slice()].concat());
            let expected = request(&[name, if is_authority { VALUE } else { path.as_slice() }].concat());
            assert_eq!(filter.replace(&given).expect("well-formed"), expected, "{index}");
        }
        // The oldest that the table can hold, and what cannot be in it.
        let mut filter = Filter { skip: 0, authorities: 1 << 127 };
        assert!(filter.is_authority(62 + 127));
        filter.authorities = u128::MAX;
        assert!(!filter.is_authority(62 + 128) && !filter.is_authority(usize::MAX) && !filter.is_authority(61));
    }

    /// Two requests: one split into three frames, padded and with a dependency; a message; another request.
    fn conversation() -> Vec<u8> {
        let fields = request(&[&[0x41], plain(b"%2Frun%2Fcsi.sock").as_slice()].concat());
        let (first, rest) = fields.split_at(10);
        let (second, third) = rest.split_at(5);
        let padded = [&[4], &[0, 0, 0, 0, 16][..], first, &[0; 4]].concat();
        [
            vec![b'P'; PREFACE],
            frame(4, 0, &[]),
            frame(HEADERS, PADDED | PRIORITY | 1, &padded),
            frame(CONTINUATION, 0, second),
            frame(CONTINUATION, END_HEADERS, third),
            frame(0, 1, &[HEADERS; 40_000]),
            frame(HEADERS, END_HEADERS, &request(&[0xbf])),
            frame(HEADERS, END_HEADERS, &request(&[0x81])),
        ]
        .concat()
    }

    fn expected() -> Vec<u8> {
        let fields = [&[0, 0, 0, 0, 16][..], &request(&[&[0x41], VALUE].concat())].concat();
        [
            vec![b'P'; PREFACE],
            frame(4, 0, &[]),
            frame(HEADERS, END_HEADERS | PRIORITY | 1, &fields),
            frame(0, 1, &[HEADERS; 40_000]),
            frame(HEADERS, END_HEADERS, &request(&[0xbf])),
            frame(HEADERS, END_HEADERS, &request(LITERAL)),
        ]
        .concat()
    }

    #[test]
    fn connection_is_filtered_alike_however_it_arrives() {
        for at_once in [1, 2, 3, 7, 9, 10, 33, 100, 4096, 1 << 20] {
            assert!(filtered(&conversation(), at_once) == expected(), "{at_once} bytes at a time");
        }
    }

    #[test]
    fn connection_cut_at_every_length_gives_the_beginning_of_the_whole() {
        let (whole, expected) = (conversation(), expected());
        let message = whole.len() - 40_000;
        for length in (0..message).chain(whole.len() - 100..whole.len()) {
            let output = filtered(&whole[..length], 1 << 20);
            assert!(expected.starts_with(&output), "{length}");
        }
    }

    #[test]
    fn block_longer_than_a_frame_is_written_in_several() {
        let long = [&[0x00, 1, b'x', 0x7f, 0x81, 0xff, 0x01][..], &[b'y'; 32_768]].concat();
        let fields = request(&long);
        let (first, rest) = fields.split_at(MAX_PAYLOAD);
        let (second, third) = rest.split_at(MAX_PAYLOAD);
        let input = [
            vec![b'P'; PREFACE],
            frame(HEADERS, 0, first),
            frame(CONTINUATION, 0, second),
            frame(CONTINUATION, END_HEADERS, third),
        ];
        let output = filtered(&input.concat(), 1000);
        let block = Block::read(output.get(PREFACE..).expect("the preface")).ok().flatten().expect("a block");
        assert!(block.fields == fields);
        assert_eq!(output.len(), PREFACE + block.length);
    }

    #[test]
    fn malformed_block_is_passed_on_unchanged_with_all_after_it() {
        let whole = frame(HEADERS, END_HEADERS, &request(&[&[0x41], plain(b"%2Fcsi.sock").as_slice()].concat()));
        let mut other_stream = frame(CONTINUATION, END_HEADERS, &[0x84]);
        other_stream[8] = 3;
        for malformed in [
            frame(HEADERS, END_HEADERS, &[0x41, 5, b'x']),
            frame(HEADERS, END_HEADERS, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            frame(HEADERS, END_HEADERS, &[0x41, 0x7f, 0xff, 0xff, 0xff, 0x7f]),
            frame(HEADERS, END_HEADERS | PADDED, &[]),
            frame(HEADERS, END_HEADERS | PADDED, &[2, 0x83]),
            frame(HEADERS, END_HEADERS | PRIORITY, &[0; 4]),
            frame(HEADERS, END_HEADERS, &vec![0x83; MAX_PAYLOAD + 1]),
            [frame(HEADERS, 0, &[0x83]), frame(0, 0, &[])].concat(),
            [frame(HEADERS, 0, &[0x83]), other_stream].concat(),
            [frame(HEADERS, 0, &[0x83]), frame(CONTINUATION, 0, &[0x83; MAX_PAYLOAD]).repeat(4)].concat(),
        ] {
            let input = [&[b'P'; PREFACE], malformed.as_slice(), &whole].concat();
            assert!(filtered(&input, 1 << 20) == input && filtered(&input, 50) == input, "{malformed:x?}");
        }
    }

    proptest! {
        #[test]
        fn any_input_is_filtered_alike_however_it_arrives(
            frames in prop::collection::vec((0_u8..12, any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)), 0..6),
            rest in prop::collection::vec(any::<u8>(), 0..40),
            at_once in 1_usize..60,
        ) {
            let frames: Vec<u8> = frames.into_iter().flat_map(|(kind, flags, payload)| frame(kind, flags, &payload)).collect();
            let input = [&[b'P'; PREFACE], frames.as_slice(), &rest].concat();
            prop_assert_eq!(filtered(&input, at_once), filtered(&input, 1 << 16));
        }

        #[test]
        fn any_fields_are_replaced_without_a_panic(fields in prop::collection::vec(any::<u8>(), 0..60), authorities in any::<u128>()) {
            let mut filter = Filter { skip: 0, authorities };
            if let Some(replaced) = filter.replace(&fields) {
                // What is valid now stays as it is.
                let again = Filter { skip: 0, authorities }.replace(&replaced);
                prop_assert_eq!(again, Some(replaced));
            }
        }
    }
}
