//! What a role may do: IAM policies, as EC2 asks them of each resource that a request names.
//!
//! Resources and condition keys are those of "Actions, resources, and condition keys for Amazon EC2" and "... for Amazon Elastic Block
//! Store" (Service Authorization Reference). Of what a request makes the keys `aws:RequestTag` and `aws:TagKeys` are asked, of what there is
//! `aws:ResourceTag`; tags that are given with it are allowed by CreateTags with `ec2:CreateAction`. aws-ebs-csi-driver's policies
//! (docs/AmazonEBSCSIDriverEKSClusterScopedPolicy.json) are written so, too. What does not exist is not found, rather than refused:
//! drivers take that answer to DeleteVolume for success.

use std::collections::BTreeMap;

use serde_json::Value;

use super::state::CloudState;
use super::wire::{self, Parameters};
use super::xml::Element;

/// The documented policy, for this cluster.
pub fn documented(cluster: &str) -> Value {
    let text = include_str!("../../docs/ec2.md");
    let policy = text.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("docs/ec2.md has the policy");
    serde_json::from_str(&policy.replace("prod-eu", cluster)).expect("JSON")
}

/// One question: an action, a resource, and what is known of both.
#[derive(Clone, Debug)]
pub struct Right {
    pub action: String,
    pub resource: String,
    keys: BTreeMap<String, Vec<String>>,
}

impl Right {
    fn of(action: &str, resource: &str) -> Right {
        let action = if action.contains(':') { action.to_owned() } else { format!("ec2:{action}") };
        Right { action, resource: resource.to_owned(), keys: BTreeMap::new() }
    }

    fn with(mut self, key: &str, value: &str) -> Right {
        self.keys.entry(key.to_owned()).or_default().push(value.to_owned());
        self
    }

    /// Something that is there.
    fn owned(self, item: &Element) -> Right {
        let tags = item.items("tagSet").iter();
        tags.fold(self, |right, tag| right.with(&format!("aws:ResourceTag/{}", tag.get("key")), tag.get("value")))
    }

    /// Something that gets tags.
    fn tagged(self, tags: &[(String, String)]) -> Right {
        tags.iter().fold(self, |right, (key, value)| right.with(&format!("aws:RequestTag/{key}"), value).with("aws:TagKeys", key))
    }

    /// Whether a policy allows it: no statement denies here.
    pub fn is_allowed(&self, policy: &Value) -> bool {
        list(&policy["Statement"]).into_iter().any(|statement| {
            let named = |list_of: &str, text: &str| list(&statement[list_of]).iter().any(|like| is_like(text, string(like)));
            let condition = statement.get("Condition").and_then(Value::as_object);
            named("Action", &self.action)
                && named("Resource", &self.resource)
                && condition.is_none_or(|all| all.iter().all(|(operator, keys)| self.meets(operator, keys)))
        })
    }

    fn meets(&self, operator: &str, keys: &Value) -> bool {
        keys.as_object().expect("keys").iter().all(|(key, wanted)| {
            let wanted: Vec<&str> = list(wanted).into_iter().map(string).collect();
            let has = self.keys.get(key);
            match operator {
                "StringEquals" => has.is_some_and(|has| has.iter().any(|value| wanted.contains(&value.as_str()))),
                "ForAllValues:StringEquals" => has.is_none_or(|has| has.iter().all(|value| wanted.contains(&value.as_str()))),
                "Null" => wanted == [if has.is_none() { "true" } else { "false" }],
                other => panic!("{other} is not known here"),
            }
        })
    }
}

/// The rights that a request needs as things are.
pub fn needed(world: &CloudState, action: &str, parameters: &Parameters) -> Vec<Right> {
    let get = |name: &str| parameters.get(name).map_or("", String::as_str);
    let volume = |id: &str| {
        let there = world.volumes.get(id).filter(|volume| volume.deleted.is_none());
        there.map(|volume| Right::of(action, &format!("arn:aws:ec2:us-east-1:000000000000:volume/{id}")).owned(&volume.item))
    };
    let snapshot = |action: &str, id: &str| {
        let there = world.snapshots.get(id).filter(|snapshot| snapshot.deleted.is_none());
        there.map(|snapshot| Right::of(action, &format!("arn:aws:ec2:us-east-1::snapshot/{id}")).owned(&snapshot.item))
    };
    let given = wire::tags(parameters, "TagSpecification.1.Tag");
    let new = |resource: &str| {
        let made = Right::of(action, resource).tagged(&given);
        let tags = Right::of("CreateTags", resource).tagged(&given).with("ec2:CreateAction", action);
        [Some(made), Some(tags).filter(|_| !given.is_empty())]
    };
    const VOLUME: &str = "arn:aws:ec2:us-east-1:000000000000:volume/*";
    const SNAPSHOT: &str = "arn:aws:ec2:us-east-1::snapshot/*";
    let rights: Vec<Option<Right>> = match action {
        "CreateVolume" => new(VOLUME).into_iter().chain([snapshot(action, get("SnapshotId"))]).collect(),
        "CopyVolumes" => new(VOLUME).into_iter().chain([volume(get("SourceVolumeId"))]).collect(),
        "CreateSnapshot" => new(SNAPSHOT).into_iter().chain([volume(get("VolumeId"))]).collect(),
        "DeleteVolume" | "ModifyVolume" => vec![volume(get("VolumeId"))],
        "AttachVolume" | "DetachVolume" => {
            let instance = format!("arn:aws:ec2:us-east-1:000000000000:instance/{}", get("InstanceId"));
            vec![volume(get("VolumeId")), Some(Right::of(action, &instance))]
        }
        "DeleteSnapshot" => vec![snapshot(action, get("SnapshotId"))],
        "EnableFastSnapshotRestores" => {
            wire::list(parameters, "SourceSnapshotId").iter().map(|id| snapshot(action, id)).collect()
        }
        "CreateTags" => {
            let tags = wire::tags(parameters, "Tag");
            let id = get("ResourceId.1");
            vec![volume(id).or_else(|| snapshot(action, id)).map(|right| right.tagged(&tags))]
        }
        "ListSnapshotBlocks" | "ListChangedBlocks" => {
            let ids = ["snapshot", "firstSnapshotId"].map(get).into_iter().filter(|id| !id.is_empty());
            ids.map(|id| snapshot(&format!("ebs:{action}"), id)).collect()
        }
        _ => vec![Some(Right::of(action, "*"))],
    };
    rights.into_iter().flatten().collect()
}

fn list(value: &Value) -> Vec<&Value> {
    value.as_array().map_or_else(|| vec![value], |values| values.iter().collect())
}

fn string(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// `*` is any text.
fn is_like(text: &str, like: &str) -> bool {
    match like.split_once('*') {
        None => text == like,
        Some((start, rest)) => text
            .strip_prefix(start)
            .is_some_and(|text| (0..=text.len()).filter(|at| text.is_char_boundary(*at)).any(|at| is_like(&text[at..], rest))),
    }
}
