//! SnapshotMetadata: which blocks of a snapshot hold data, and which differ from an earlier snapshot, as streams.
//!
//! The walk runs in a task and fills a small channel, from which tonic sends. A client that goes away, or takes nothing for
//! too long, ends the walk.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};
use tracing::Instrument;

use super::decode::metadata::Walk;
use super::method::Rpc;
use super::observe::{Effect, Observed, Report};
use super::{Services, encode, status};
use crate::csi;
use crate::ops::Controller;
use crate::volume::{Error, Extent, Result};

/// Blocks of a message for which the client sets no limit, and the most of any: 4096 blocks are some 80 KiB.
const BLOCKS: usize = 256;
const MOST_BLOCKS: usize = 4096;
/// Messages that wait to be sent.
const AHEAD: usize = 4;
/// For how long a client may take nothing. A walk holds its snapshot, which cannot be deleted meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct SnapshotMetadataService {
    pub(super) services: Services,
    pub(super) controller: Arc<Controller>,
}

type Answer<T> = Result<Response<BoxStream<T>>, Status>;

/// Makes a message of a stream from the size of the volume and some blocks.
type Message<T> = fn(i64, Vec<csi::BlockMetadata>) -> T;

#[tonic::async_trait]
impl csi::snapshot_metadata_server::SnapshotMetadata for SnapshotMetadataService {
    async fn get_metadata_allocated(
        &self,
        request: Request<csi::GetMetadataAllocatedRequest>,
    ) -> Answer<csi::GetMetadataAllocatedResponse> {
        self.open(Rpc::GetMetadataAllocated, request, |volume_capacity_bytes, block_metadata| {
            let block_metadata_type = csi::BlockMetadataType::VariableLength.into();
            csi::GetMetadataAllocatedResponse { block_metadata_type, volume_capacity_bytes, block_metadata }
        })
        .await
    }

    async fn get_metadata_delta(&self, request: Request<csi::GetMetadataDeltaRequest>) -> Answer<csi::GetMetadataDeltaResponse> {
        self.open(Rpc::GetMetadataDelta, request, |volume_capacity_bytes, block_metadata| {
            let block_metadata_type = csi::BlockMetadataType::VariableLength.into();
            csi::GetMetadataDeltaResponse { block_metadata_type, volume_capacity_bytes, block_metadata }
        })
        .await
    }
}

impl SnapshotMetadataService {
    async fn open<Q, M>(&self, rpc: Rpc, request: Request<Q>, message: Message<M>) -> Answer<M>
    where
        Q: Observed + std::fmt::Debug,
        Walk: TryFrom<Q, Error = Error>,
        M: Send + 'static,
    {
        let request = request.into_inner();
        let span = request.subject().span(rpc, self.services.this_node());
        async {
            let (report, walk) = self.services.admit::<Q, Walk>(rpc, request)?;
            // What is wrong with the request as a whole is answered before the stream begins.
            let (controller, target) = (self.controller.clone(), walk.target.clone());
            let snapshot = self.services.tasks().run(move || controller.get_snapshot(&target)).await;
            let size = match snapshot.and_then(|snapshot| within(walk.offset, snapshot.size.0).map(|()| snapshot.size.0)) {
                Ok(size) => size,
                Err(error) => return Err(report.failed(&error)),
            };
            let (sender, receiver) = mpsc::channel(AHEAD);
            let pages = Pages::new(&walk, size, message, sender);
            let (controller, tasks) = (self.controller.clone(), self.services.tasks().clone());
            let feeding = move || {
                feed(&controller, &walk, pages, report);
                Ok(())
            };
            let walking = async move { tasks.run(feeding).await };
            tokio::spawn(walking.in_current_span());
            Ok(Response::new(Box::pin(ReceiverStream::new(receiver)) as BoxStream<M>))
        }
        .instrument(span)
        .await
    }
}

fn within(offset: u64, size: u64) -> Result<()> {
    match offset <= size {
        true => Ok(()),
        false => {
            let reason = format!("{offset} is beyond the end of the snapshot, which has {size} bytes");
            Err(Error::OutOfRange { field: "starting_offset", reason })
        }
    }
}

/// Walks and sends, to the end or to the first error, which ends the stream.
fn feed<M>(controller: &Controller, walk: &Walk, mut pages: Pages<M>, report: Report) {
    let mut emit = |extent| pages.add(extent);
    let walked = match &walk.base {
        None => controller.allocated(&walk.target, walk.offset, &mut emit),
        Some(base) => controller.delta(base, &walk.target, walk.offset, &mut emit),
    };
    match walked {
        Ok(()) if pages.finish() => report.ok(Effect::Read),
        Ok(()) => {
            report.refused(status::client_gone());
        }
        Err(error) => {
            let reported = report.failed(&error);
            pages.send(Err(reported));
        }
    }
}

/// Gathers blocks into messages.
struct Pages<M> {
    message: Message<M>,
    sender: mpsc::Sender<Result<M, Status>>,
    runtime: Handle,
    capacity: i64,
    offset: u64,
    most: usize,
    blocks: Vec<csi::BlockMetadata>,
    sent: bool,
    broken: bool,
}

impl<M> Pages<M> {
    fn new(walk: &Walk, size: u64, message: Message<M>, sender: mpsc::Sender<Result<M, Status>>) -> Self {
        let most = if walk.max == 0 { BLOCKS } else { walk.max.min(MOST_BLOCKS) };
        Pages {
            message,
            sender,
            runtime: Handle::current(),
            capacity: encode::bytes(size),
            offset: walk.offset,
            most,
            blocks: Vec::new(),
            sent: false,
            broken: false,
        }
    }

    /// Breaks once nobody takes them any more.
    fn add(&mut self, extent: Extent) -> ControlFlow<()> {
        // No block may end before the offset asked for (csi.proto, starting_offset), and none is empty.
        if extent.length == 0 || extent.offset.saturating_add(extent.length) <= self.offset {
            return ControlFlow::Continue(());
        }
        self.blocks.push(encode::block(extent));
        match self.blocks.len() < self.most || self.flush() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }

    /// Sends what is left; at least one message, so that the client learns the size also of an empty snapshot. `false`
    /// where the client did not get all.
    fn finish(&mut self) -> bool {
        !self.broken && ((self.sent && self.blocks.is_empty()) || self.flush())
    }

    fn flush(&mut self) -> bool {
        let blocks = std::mem::take(&mut self.blocks);
        let message = (self.message)(self.capacity, blocks);
        self.sent = true;
        self.send(Ok(message))
    }

    /// Waits for room, on a thread that may block.
    fn send(&mut self, item: Result<M, Status>) -> bool {
        let sending = self.sender.send_timeout(item, PATIENCE);
        self.broken |= self.runtime.block_on(sending).is_err();
        !self.broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Sent = (i64, Vec<csi::BlockMetadata>);

    fn walk(offset: u64, max: usize) -> Walk {
        Walk { base: None, target: "image:s".parse().expect("an id"), offset, max }
    }

    /// What a client gets that reads all, of a walk that emits 4 KiB runs at these offsets.
    fn received(walk: &Walk, offsets: &[u64]) -> Vec<Sent> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let (sender, mut receiver) = mpsc::channel(64);
        let _entered = runtime.enter();
        let mut pages = Pages::new(walk, 1 << 20, |size, blocks| (size, blocks), sender);
        for offset in offsets {
            assert!(pages.add(Extent { offset: *offset, length: 4096 }).is_continue());
        }
        assert!(pages.finish());
        drop(pages);
        let mut messages = Vec::new();
        while let Some(message) = receiver.blocking_recv() {
            messages.push(message.expect("no error"));
        }
        messages
    }

    #[test]
    fn messages_hold_at_most_what_the_client_takes() {
        let messages = received(&walk(0, 2), &[0, 8192, 16384, 65536, 131_072]);
        let lengths: Vec<usize> = messages.iter().map(|(_, blocks)| blocks.len()).collect();
        assert_eq!(lengths, [2, 2, 1]);
        assert!(messages.iter().all(|(size, _)| *size == 1 << 20));
        assert_eq!(received(&walk(0, 2), &[0, 8192]).len(), 1, "no empty message at the end");
    }

    #[test]
    fn an_empty_snapshot_still_tells_its_size() {
        assert_eq!(received(&walk(0, 0), &[]), [(1 << 20, vec![])]);
    }

    #[test]
    fn extents_that_end_before_the_offset_are_left_out() {
        let messages = received(&walk(8192, 0), &[0, 4096, 6000, 8192]);
        let offsets: Vec<i64> = messages[0].1.iter().map(|block| block.byte_offset).collect();
        assert_eq!(offsets, [6000, 8192]);
        assert!(within(1 << 20, 1 << 20).is_ok());
        assert!(matches!(within(1 + (1 << 20), 1 << 20), Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn a_client_that_has_gone_ends_the_walk() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let (sender, receiver) = mpsc::channel::<Result<Sent, Status>>(1);
        drop(receiver);
        let _entered = runtime.enter();
        let mut pages = Pages::new(&walk(0, 1), 1 << 20, |size, blocks| (size, blocks), sender);
        assert!(pages.add(Extent { offset: 0, length: 4096 }).is_break());
        assert!(!pages.finish());
    }
}
