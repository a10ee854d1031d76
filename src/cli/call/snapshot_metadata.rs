//! The SnapshotMetadata service: two streams, each gathered into one answer.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::csi::{
    BlockMetadata, BlockMetadataType, GetMetadataAllocatedRequest, GetMetadataAllocatedResponse, GetMetadataDeltaRequest,
    GetMetadataDeltaResponse,
};

use super::super::{Failure, table};
use super::client::Client;
use super::flags::SecretArgs;
use super::{Answer, encode};

#[derive(Debug, Subcommand)]
pub enum Rpc {
    /// GetMetadataAllocated: which blocks of a snapshot hold data
    #[command(alias = "get-metadata-allocated")]
    MetadataAllocated {
        snapshot_id: String,
        #[command(flatten)]
        part: PartArgs,
        #[command(flatten)]
        secrets: SecretArgs,
    },
    /// GetMetadataDelta: which blocks differ between two snapshots of one volume
    #[command(alias = "get-metadata-delta")]
    MetadataDelta {
        /// The earlier one
        base_snapshot_id: String,
        /// The later one
        target_snapshot_id: String,
        #[command(flatten)]
        part: PartArgs,
        #[command(flatten)]
        secrets: SecretArgs,
    },
}

#[derive(Clone, Copy, Debug, Args)]
pub struct PartArgs {
    /// Start at this byte
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    offset: i64,
    /// At most so many blocks in a message of the stream [default: as the driver likes]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(i32).range(1..))]
    max: Option<i32>,
}

/// A message of either stream.
struct Message {
    kind: BlockMetadataType,
    capacity: i64,
    blocks: Vec<BlockMetadata>,
}

impl From<GetMetadataAllocatedResponse> for Message {
    fn from(message: GetMetadataAllocatedResponse) -> Self {
        let kind = message.block_metadata_type();
        Message { kind, capacity: message.volume_capacity_bytes, blocks: message.block_metadata }
    }
}

impl From<GetMetadataDeltaResponse> for Message {
    fn from(message: GetMetadataDeltaResponse) -> Self {
        let kind = message.block_metadata_type();
        Message { kind, capacity: message.volume_capacity_bytes, blocks: message.block_metadata }
    }
}

impl Rpc {
    pub async fn run(self, client: &Client) -> Result<Answer, Failure> {
        match self {
            Rpc::MetadataAllocated { snapshot_id, part, secrets } => {
                let request = GetMetadataAllocatedRequest {
                    snapshot_id,
                    starting_offset: part.offset,
                    max_results: part.max.unwrap_or_default(),
                    secrets: secrets.read()?,
                };
                let call = "metadata-allocated";
                Ok(answer(client.collect(call, client.snapshot_metadata().get_metadata_allocated(request)).await?))
            }
            Rpc::MetadataDelta { base_snapshot_id, target_snapshot_id, part, secrets } => {
                let request = GetMetadataDeltaRequest {
                    base_snapshot_id,
                    target_snapshot_id,
                    starting_offset: part.offset,
                    max_results: part.max.unwrap_or_default(),
                    secrets: secrets.read()?,
                };
                Ok(answer(client.collect("metadata-delta", client.snapshot_metadata().get_metadata_delta(request)).await?))
            }
        }
    }
}

fn answer<M: Into<Message>>(messages: Vec<M>) -> Answer {
    let mut whole = Message { kind: BlockMetadataType::Unknown, capacity: 0, blocks: Vec::new() };
    for message in messages {
        let Message { kind, capacity, blocks } = message.into();
        whole = Message { kind, capacity, ..whole };
        whole.blocks.extend(blocks);
    }
    let json = json!({
        "block_metadata_type": whole.kind.as_str_name(),
        "volume_capacity_bytes": whole.capacity,
        "block_metadata": encode::list(&whole.blocks, |block| json!({ "byte_offset": block.byte_offset, "size_bytes": block.size_bytes })),
    });
    let text = match whole.blocks.as_slice() {
        [] => "no blocks\n".to_owned(),
        blocks => {
            let total = blocks.iter().fold(0_i64, |total, block| total.saturating_add(block.size_bytes));
            let row = |block: &BlockMetadata| vec![block.byte_offset.to_string(), table::size(block.size_bytes)];
            let table = table::rows(&["OFFSET", "SIZE"], blocks.iter().map(row));
            format!("{table}{} of {}\n", table::size(total), table::size(whole.capacity))
        }
    };
    Answer { json, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_messages_of_a_stream_become_one_answer() {
        let message = |offsets: &[i64]| GetMetadataAllocatedResponse {
            block_metadata_type: BlockMetadataType::VariableLength.into(),
            volume_capacity_bytes: 1 << 30,
            block_metadata: offsets.iter().map(|offset| BlockMetadata { byte_offset: *offset, size_bytes: 4096 }).collect(),
        };
        let answer = answer(vec![message(&[0, 8192]), message(&[1 << 20])]);
        assert_eq!(answer.json["block_metadata"].as_array().map(Vec::len), Some(3));
        assert_eq!(answer.json["block_metadata_type"], "VARIABLE_LENGTH");
        assert!(answer.text.ends_with("1048576   4 KiB\n12 KiB of 1 GiB\n"), "{}", answer.text);
        assert_eq!(super::answer(Vec::<GetMetadataDeltaResponse>::new()).text, "no blocks\n");
    }
}
