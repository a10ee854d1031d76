//! Whether anything still moves on the connections.
//!
//! A client may keep an idle connection open for ever, and a stopped one answers no GOAWAY. At the end only those count
//! that carry something.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::transport::server::Connected;

/// The bytes that have gone in and out on all connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    bytes: Arc<AtomicU64>,
}

impl Traffic {
    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns once nothing has moved for `pause`, or after `longest`.
    pub async fn quiet(&self, pause: Duration, longest: Duration) {
        let begun = Instant::now();
        let mut before = self.bytes.load(Ordering::Relaxed);
        while begun.elapsed() < longest {
            tokio::time::sleep(pause).await;
            let now = self.bytes.load(Ordering::Relaxed);
            if now == before {
                return;
            }
            before = now;
        }
    }
}

/// A connection whose bytes are counted.
#[derive(Debug)]
pub(super) struct Counted {
    stream: UnixStream,
    traffic: Traffic,
}

impl Counted {
    pub fn new(stream: UnixStream, traffic: &Traffic) -> Self {
        Counted { stream, traffic: traffic.clone() }
    }

    fn counted(&self, done: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = done {
            self.traffic.add(bytes);
        }
        done
    }
}

impl Connected for Counted {
    type ConnectInfo = <UnixStream as Connected>::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let done = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.traffic.add(buffer.filled().len() - before);
        done
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.counted(done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.counted(done)
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn idle_connections_are_quiet_and_busy_ones_are_not() {
        let traffic = Traffic::default();
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let mut ours = Counted::new(ours, &traffic);
        let pause = Duration::from_millis(20);
        let begun = Instant::now();
        traffic.quiet(pause, Duration::from_secs(60)).await;
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing moved");

        let talk = async {
            let mut buffer = [0; 4];
            loop {
                theirs.write_all(b"more").await.expect("written");
                ours.read_exact(&mut buffer).await.expect("read");
                ours.write_all(&buffer).await.expect("answered");
                theirs.read_exact(&mut buffer).await.expect("heard");
                tokio::task::yield_now().await;
            }
        };
        let longest = Duration::from_millis(200);
        let begun = Instant::now();
        tokio::select! {
            () = talk => {}
            () = traffic.quiet(pause, longest) => {}
        }
        assert!(begun.elapsed() >= longest, "while something moves it waits to the end");
    }
}
