//! The EBS direct APIs: which blocks of a snapshot hold data, or differ from those of another.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Ec2;
use super::endpoint::Service;
use super::http::Unsigned;
use super::query::encoded;
use crate::backend::cloud::Answer;
use crate::backend::cloud::bucket::Purpose;
use crate::backend::cloud::retry::Repeat;

/// The most that a page has; EBS also ends one after some time.
const PAGE: u32 = 10_000;

/// A page of blocks, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPage {
    /// In units of `block_size`.
    pub indices: Vec<u64>,
    /// Bytes.
    pub block_size: u64,
    /// GiB, of the volume.
    pub volume_size: u64,
    /// Where it continues. Expires after an hour.
    pub next: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Reply {
    #[serde(alias = "ChangedBlocks")]
    blocks: Vec<Block>,
    block_size: u64,
    volume_size: u64,
    next_token: Option<String>,
}

/// Without the tokens by which a block is read.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Block {
    block_index: u64,
}

impl Ec2 {
    /// The blocks of a snapshot that hold data, from the block `start` on, or where an earlier page's `next` says.
    ///
    /// # Errors
    /// `NotFound` of the snapshot; `Invalid` of the token or of a snapshot that is not complete.
    pub fn list_snapshot_blocks(&self, snapshot: &str, start: u64, token: Option<&str>) -> Answer<BlockPage> {
        self.blocks("ListSnapshotBlocks", &format!("/snapshots/{}/blocks?", encoded(snapshot, "%20")), start, token)
    }

    /// The blocks of the snapshot `second` that differ from those of `first`, of the same volume.
    ///
    /// # Errors
    /// As `list_snapshot_blocks`; `Invalid` also where they are not of one volume.
    pub fn list_changed_blocks(&self, first: &str, second: &str, start: u64, token: Option<&str>) -> Answer<BlockPage> {
        let (first, second) = (encoded(first, "%20"), encoded(second, "%20"));
        self.blocks("ListChangedBlocks", &format!("/snapshots/{second}/changedblocks?firstSnapshotId={first}&"), start, token)
    }

    fn blocks(&self, action: &'static str, path: &str, start: u64, token: Option<&str>) -> Answer<BlockPage> {
        let from = match token {
            Some(token) => format!("pageToken={}", encoded(token, "%20")),
            None => format!("startingBlockIndex={start}"),
        };
        let path = format!("{path}maxResults={PAGE}&{from}");
        let unsigned = Unsigned { service: Service::Ebs, method: "GET", path, body: String::new() };
        let reply: Reply = self.request((action, Purpose::Call), Repeat::Reads, &unsigned, json)?;
        Ok(BlockPage {
            indices: reply.blocks.into_iter().map(|block| block.block_index).collect(),
            block_size: reply.block_size,
            volume_size: reply.volume_size,
            next: reply.next_token.filter(|token| !token.is_empty()),
        })
    }
}

fn json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}
