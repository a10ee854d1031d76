//! What EC2 does for each action, with moto behind it.
//!
//! What moto (5.2.5) does otherwise than EC2, and is repaired here: it ignores `ClientToken`, so that a second CreateVolume makes a second
//! disk; every state is final at once; it attaches what is attached already, in another zone, under a name that is taken, and beyond the
//! machine's limit; it checks no size, no IOPS and no throughput; it modifies as often as one likes; MaxResults and NextToken are ignored;
//! it tells every modification that ever was; requests for an unknown snapshot or modification are answered with an empty message or
//! an empty list; all its request ids are the same. DescribeVolumeStatus and fast snapshot restore it does not have, of the EBS direct
//! API it knows only snapshots that were written through it.
//!
//! Codes and messages are those of "Error codes for the Amazon EC2 API" in the Amazon EC2 Developer Guide.
//!
//! Towards the driver it is at least as unkind as EC2 ([`Act::unkind`], [`Act::late`]), by these rules:
//! - Every list that is not of given ids begins with an empty page that has a NextToken, and continues with short ones (boto3 issue 1776,
//!   aws-cli issue 3928; EC2 API reference, DescribeVolumes: the end is where there is no NextToken).
//! - What was just made is not described for a while; by its id InvalidVolume.NotFound, which refuses the whole request (EC2 API reference,
//!   "Eventual consistency").
//! - Another cluster of the account has a disk and a snapshot with the same names as each of ours, and none of them may be touched.
//! - The token of a deleted disk is refused: "already deleted" (aws-ebs-csi-driver issue 3010, crossplane-contrib/provider-aws issue 1858),
//!   also that of one which vanished since its key could not be used ([`CloudState::fails`]; aws-ebs-csi-driver issues 1951 and 3010).
//! - CopyVolumes, which moto does not have, copies a volume once it is made and filled in, which takes [`super::state::Times::filling`]:
//!   in its zone, at least of its size, one copy of it at a time and five in all; a copy comes from no snapshot, has the source's
//!   encryption and none of its tags (EBS user guide, "Copy an Amazon EBS volume"; EC2 API reference, CopyVolumes). Without a type it is
//!   gp2. Tokens of copies are distinguished from those of new volumes: nothing says that they are the same.
//! - Tags are copied: [`super::proxy::Cloud::restore_backup`] (AWS Backup developer guide, "Copy tags during a restore") and CopySnapshot
//!   (EBS user guide, "Copy an Amazon EBS snapshot": the copy's volume id is arbitrary).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::clock::NEVER;
use super::limits;
use super::moto::{self, Moto};
use super::state::{Attachment, CloudState, Instance, Modification, Snapshot, Volume, percent, stamp};
use super::wire::{self, Parameters};
use super::xml::Element;

/// EC2's "no".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub code: String,
    pub message: String,
}

pub type Answer = Result<Element, Refusal>;

pub fn refuse<T>(code: &str, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { status: 400, code: code.to_owned(), message: message.into() })
}

/// A disk is changed once, and then not for so long.
const BETWEEN_CHANGES: Duration = Duration::from_secs(6 * 3600);
/// Of one disk, one snapshot is begun in this time.
const BETWEEN_SNAPSHOTS: Duration = Duration::from_secs(15);
/// What one question may name.
const MOST_IDS: usize = 500;
const MOST_VALUES: usize = 200;

/// One request, done at this moment; `behind` is how old its answer may be.
pub struct Act<'a> {
    pub moto: &'a Moto,
    pub world: &'a mut CloudState,
    pub parameters: &'a Parameters,
    pub now: Duration,
    pub behind: Duration,
    /// See above; not for what a test asks for itself.
    pub unkind: bool,
    /// What was made is described so much later.
    pub late: Duration,
}

/// How the ids end of what is the other cluster's.
const THEIRS: &str = "-theirs";
const CLUSTER: &str = "longshore.dev/cluster";

impl Act<'_> {
    pub fn perform(&mut self, action: &str) -> Answer {
        self.sweep();
        match action {
            "CreateVolume" => self.create_volume(),
            "CopyVolumes" => self.copy_volumes(),
            "DeleteVolume" => self.delete_volume(),
            "CreateTags" => self.create_tags(),
            "AttachVolume" => self.attach_volume(),
            "DetachVolume" => self.detach_volume(),
            "ModifyVolume" => self.modify_volume(),
            "CreateSnapshot" => self.create_snapshot(),
            "CopySnapshot" => self.copy_snapshot(),
            "DeleteSnapshot" => self.delete_snapshot(),
            "TerminateInstances" => self.terminate_instances(),
            "DescribeVolumes" => self.describe_volumes(),
            "DescribeVolumesModifications" => self.describe_modifications(),
            "DescribeSnapshots" => self.describe_snapshots(),
            "DescribeInstances" => self.describe_instances(),
            "DescribeVolumeStatus" => self.describe_status(),
            "EnableFastSnapshotRestores" => self.enable_fast_restores(),
            "DescribeFastSnapshotRestores" => self.describe_fast_restores(),
            "RunInstances" => self.run_instances(),
            "DescribeAvailabilityZones" => self.describe_zones(),
            "DescribeInstanceTypes" => self.describe_instance_types(),
            other => refuse("InvalidAction", format!("The action {other} is not valid for this web service.")),
        }
    }

    /// What came to nothing is no more, in moto neither.
    fn sweep(&mut self) {
        for (id, volume) in &mut self.world.volumes {
            if volume.vanishes && volume.deleted.is_none() && self.now >= volume.ready {
                volume.deleted = Some(volume.ready);
                let (status, answer) = self.moto.ask(&moto::parameters_of("DeleteVolume", &[("VolumeId", id)]));
                assert_eq!(status, 200, "{answer:?}");
            }
        }
    }

    /// moto's answer.
    fn pass_on(&self, parameters: &Parameters) -> Answer {
        let (status, answer) = self.moto.ask(parameters);
        if status == 200 {
            return Ok(answer);
        }
        let error = answer.items("Errors").first().cloned().unwrap_or_default();
        Err(Refusal { status, code: error.get("Code").to_owned(), message: error.get("Message").to_owned() })
    }

    fn ask_moto(&self, action: &str, parameters: &[(&str, &str)]) -> Answer {
        self.pass_on(&moto::parameters_of(action, parameters))
    }

    fn get(&self, name: &str) -> &str {
        self.parameters.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let Some(text) = self.parameters.get(name) else { return Ok(None) };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => refuse("InvalidParameterValue", format!("Value ({text}) for parameter {name} is invalid.")),
        }
    }

    fn volume(&self, id: &str) -> Result<&Volume, Refusal> {
        assert!(!id.ends_with(THEIRS), "{id} is another cluster's, and was to be changed");
        match self.world.volume(id, self.now) {
            Some(volume) => Ok(volume),
            None => refuse("InvalidVolume.NotFound", format!("The volume '{id}' does not exist.")),
        }
    }

    fn volume_mut(&mut self, id: &str) -> &mut Volume {
        self.world.volumes.get_mut(id).expect("seen to be there")
    }

    /// Tags of the request, if they can be.
    fn check_tags(&self, prefix: &str) -> Result<(), Refusal> {
        let tags = wire::tags(self.parameters, prefix);
        if tags.len() > 50 {
            return refuse("TagLimitExceeded", "More than 50 tags specified");
        }
        for (key, value) in tags {
            if key.starts_with("aws:") {
                let message = format!("Tag keys starting with 'aws:' are reserved for internal use: {key}");
                return refuse("InvalidParameterValue", message);
            }
            if key.is_empty() || key.chars().count() > 128 || value.chars().count() > 256 {
                return refuse(
                    "InvalidParameterValue",
                    format!("Tag {key} is longer than 128, or its value than 256 characters"),
                );
            }
        }
        Ok(())
    }

    /// What an earlier request with this token answered, which may be made of another action.
    fn made_by_token(&self, token: &str, response: &str) -> Option<Answer> {
        let (id, parameters) = self.world.tokens.get(token).filter(|_| !self.get("ClientToken").is_empty())?;
        if parameters != self.parameters {
            let message = "The request uses the same client token as a previous, but non-identical request.";
            return Some(refuse("IdempotentParameterMismatch", message));
        }
        let made = self.world.volumes.get(id).expect("made by this token");
        if made.deleted.is_some() && self.unkind {
            let message = "The client token you have provided is associated with a resource that is already deleted. Please use a \
                           different client token.";
            return Some(refuse("IdempotentParameterMismatch", message));
        }
        let mut item = made.view(self.now);
        item.name = response.to_owned();
        Some(Ok(item))
    }

    fn copy_volumes(&mut self) -> Answer {
        const MOST: usize = 5;
        let answer = |item: Element| Element::of("CopyVolumesResponse", [Element::of("volumeSet", [item])]);
        let token = format!("copy {}", self.get("ClientToken"));
        if let Some(made) = self.made_by_token(&token, "item") {
            return made.map(answer);
        }
        self.check_tags("TagSpecification.1.Tag")?;
        let (of, now) = (self.get("SourceVolumeId").to_owned(), self.now);
        let source = self.volume(&of)?;
        let (zone, encrypted) = (source.item.get("availabilityZone").to_owned(), source.item.get("encrypted").to_owned());
        let least: u64 = source.view(now).get("size").parse().expect("a size");
        if now < source.ready || source.filling.as_ref().is_some_and(|(_, filled)| now < *filled) {
            return refuse("IncorrectState", format!("The volume '{of}' is in the 'creating' or 'initializing' state."));
        }
        if source.modification.as_ref().is_some_and(|change| ["modifying", "failed"].contains(&change.state(now))) {
            return refuse("IncorrectModificationState", format!("Volume {of} is being modified."));
        }
        let filling =
            self.world.volumes.values().filter_map(|volume| volume.filling.as_ref()).filter(|(_, filled)| now < *filled);
        let sources: Vec<&String> = filling.map(|(source, _)| source).collect();
        if sources.contains(&&of) {
            return refuse("ConcurrentCopyVolumeLimitExceeded", format!("Another copy of volume {of} is in progress."));
        }
        if sources.len() >= MOST {
            return refuse("CopyVolumesLimitExceeded", format!("The maximum number of {MOST} volume copies is in progress."));
        }
        let size = self.number("Size")?.unwrap_or(least);
        if size < least {
            return refuse("InvalidParameterValue", format!("Volume copy is smaller than its source, expect size >= {least}GiB"));
        }
        let multi = self.get("MultiAttachEnabled") == "true";
        let kind = self.check_kind(size, multi)?;
        let mut parameters = self.parameters.clone();
        parameters.retain(|name, _| name != "ClientToken" && name != "SourceVolumeId");
        let further = [("Action", "CreateVolume"), ("AvailabilityZone", &zone), ("VolumeType", &kind), ("Encrypted", &encrypted)];
        let further = further
            .into_iter()
            .chain([("Size", size.to_string().as_str())])
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .collect::<Vec<_>>();
        parameters.extend(further);
        let filled = self.world.end("initializing", now, self.world.times.filling);
        let made = self.make_volume(&parameters, token, multi, Some((of, filled)))?;
        let mut item = made;
        item.name = "item".to_owned();
        item.children.retain(|child| child.name != "requestId");
        Ok(answer(item))
    }

    /// The type, if a volume of it can be so.
    fn check_kind(&self, size: u64, multi: bool) -> Result<String, Refusal> {
        let (iops, throughput) = (self.number("Iops")?, self.number("Throughput")?);
        let kind = self.parameters.get("VolumeType").map_or("gp2", String::as_str);
        limits::check(kind, size, iops, throughput)?;
        if multi && !["io1", "io2"].contains(&kind) {
            let message = format!("The parameter MultiAttachEnabled is not supported for {kind} volumes.");
            return refuse("InvalidParameterCombination", message);
        }
        Ok(kind.to_owned())
    }

    fn create_volume(&mut self) -> Answer {
        let token = self.get("ClientToken").to_owned();
        if let Some(made) = self.made_by_token(&token, "CreateVolumeResponse") {
            return made;
        }
        self.check_tags("TagSpecification.1.Tag")?;
        let mut size = self.number("Size")?;
        if let Some(from) = self.parameters.get("SnapshotId") {
            let Some(snapshot) = self.world.snapshots.get(from).filter(|snapshot| snapshot.deleted.is_none()) else {
                return refuse("InvalidSnapshot.NotFound", format!("The snapshot '{from}' does not exist."));
            };
            if self.now < snapshot.done {
                return refuse("IncorrectState", format!("Snapshot {from} is in invalid state - pending"));
            }
            let least = snapshot.item.get("volumeSize").parse().expect("a size");
            if size.is_some_and(|size| size < least) {
                let message = format!("Volume is smaller than snapshot '{from}', expect size >= {least}GiB");
                return refuse("InvalidParameterValue", message);
            }
            size = size.or(Some(least));
        }
        let Some(size) = size else { return refuse("MissingParameter", "The request must contain the parameter size/snapshot") };
        let multi = self.get("MultiAttachEnabled") == "true";
        self.check_kind(size, multi)?;
        let zone = self.get("AvailabilityZone").to_owned();
        self.describe_zones()?;
        if !self.world.zones.contains(&zone) {
            return refuse("InvalidZone.NotFound", format!("The zone '{zone}' does not exist."));
        }
        let parameters = self.parameters.clone();
        self.make_volume(&parameters, token, multi, None)
    }

    /// Has moto make it, and answers what it said.
    fn make_volume(
        &mut self,
        parameters: &Parameters,
        token: String,
        multi: bool,
        filling: Option<(String, Duration)>,
    ) -> Answer {
        let mut answer = self.pass_on(parameters)?;
        let id = answer.get("volumeId").to_owned();
        let mut item = answer.clone();
        item.name = "item".to_owned();
        item.children.retain(|child| child.name != "requestId");
        item.set("multiAttachEnabled", multi);
        let ready = self.world.end("creating", self.now, self.world.times.creating);
        let volume = Volume {
            item: Element::default(),
            created: self.now,
            ready,
            vanishes: self.world.fails,
            deleted: None,
            attachments: Vec::new(),
            modification: None,
            filling,
        };
        self.world.volumes.insert(id.clone(), volume);
        if let Some(theirs) = self.theirs(&item, "volumeId") {
            let theirs_id = theirs.get("volumeId").to_owned();
            let volume = Volume {
                item: Element::default(),
                created: self.now,
                ready: self.now,
                vanishes: false,
                deleted: None,
                attachments: Vec::new(),
                modification: None,
                filling: None,
            };
            self.world.volumes.insert(theirs_id.clone(), volume);
            self.world.reported(&theirs_id, theirs);
        }
        self.world.reported(&id, item);
        if !token.is_empty() {
            self.world.tokens.insert(token, (id, self.parameters.clone()));
        }
        answer.set("status", "creating");
        answer.set("multiAttachEnabled", multi);
        Ok(answer)
    }

    /// The same, of another cluster, where it is a cluster's at all.
    fn theirs(&self, ours: &Element, id: &str) -> Option<Element> {
        let mut tags = ours.items("tagSet").to_vec();
        tags.iter_mut().find(|tag| self.unkind && tag.get("key") == CLUSTER)?.set("value", "another");
        let mut theirs = ours.clone();
        theirs.put(Element::of("tagSet", tags));
        theirs.set(id, format!("{}{THEIRS}", ours.get(id)));
        Some(theirs)
    }

    fn describe_zones(&mut self) -> Answer {
        if self.world.zones.is_empty() {
            let reported = self.ask_moto("DescribeAvailabilityZones", &[])?;
            self.world.zones =
                reported.items("availabilityZoneInfo").iter().map(|item| item.get("zoneName").to_owned()).collect();
        }
        let item = |zone: &String| {
            let states = [("zoneName", zone.as_str()), ("zoneState", "available"), ("zoneType", "availability-zone")];
            Element::of("item", states.map(|(name, text)| Element::leaf(name, text)))
        };
        let zones = Element::of("availabilityZoneInfo", self.world.zones.iter().map(item));
        Ok(Element::of("DescribeAvailabilityZonesResponse", [zones]))
    }

    fn delete_volume(&mut self) -> Answer {
        let id = self.get("VolumeId").to_owned();
        let volume = self.volume(&id)?;
        if let Some((attachment, _)) = volume.attached(self.now).next() {
            let message = format!("Volume {id} is currently attached to {}", attachment.instance);
            return refuse("VolumeInUse", message);
        }
        if self.now < volume.ready {
            return refuse("IncorrectState", format!("The volume '{id}' is in the 'creating' state."));
        }
        let answer = self.pass_on(self.parameters)?;
        let now = self.now;
        self.volume_mut(&id).deleted = Some(now);
        Ok(answer.with("return", true))
    }

    /// The machine, as it was when it was first asked for.
    fn instance(&mut self, id: &str) -> Result<Instance, Refusal> {
        if let Some(instance) = self.world.instances.get(id) {
            return Ok(instance.clone());
        }
        let answer = self.ask_moto("DescribeInstances", &[("InstanceId.1", id)])?;
        let Some(item) = answer.items("reservationSet").first().and_then(|item| item.items("instancesSet").first()) else {
            return refuse("InvalidInstanceID.NotFound", format!("The instance ID '{id}' does not exist"));
        };
        let item = item.clone();
        self.met(&item)
    }

    /// Remembers what moto says of a machine.
    fn met(&mut self, item: &Element) -> Result<Instance, Refusal> {
        let kind = item.get("instanceType");
        if !self.world.limits.contains_key(kind) {
            let reported = self.ask_moto("DescribeInstanceTypes", &[("InstanceType.1", kind)])?;
            let info = reported.items("instanceTypeSet").first().and_then(|kind| kind.child("ebsInfo"));
            let limit = info.and_then(|info| info.get("maximumEbsAttachments").parse().ok()).unwrap_or(27);
            self.world.limits.insert(kind.to_owned(), limit);
        }
        let instance = Instance {
            zone: item.child("placement").map_or("", |placement| placement.get("availabilityZone")).to_owned(),
            limit: self.world.limits[kind],
            own: item.items("blockDeviceMapping").iter().map(|mapping| mapping.get("deviceName").to_owned()).collect(),
            terminated: item.child("instanceState").is_some_and(|state| state.get("name") == "terminated"),
        };
        self.world.instances.insert(item.get("instanceId").to_owned(), instance.clone());
        Ok(instance)
    }

    fn run_instances(&mut self) -> Answer {
        let answer = self.pass_on(self.parameters)?;
        for item in answer.items("instancesSet") {
            self.met(item)?;
        }
        Ok(answer)
    }

    /// Of volumes; a tag takes the place of one of the same key.
    fn create_tags(&mut self) -> Answer {
        let id = self.get("ResourceId.1").to_owned();
        let mut item = self.volume(&id)?.item.clone();
        self.check_tags("Tag")?;
        let answer = self.pass_on(self.parameters)?;
        let mut tags = item.items("tagSet").to_vec();
        for (key, value) in wire::tags(self.parameters, "Tag") {
            tags.retain(|tag| tag.get("key") != key);
            tags.push(Element::new("item").with("key", &key).with("value", &value));
        }
        for tag in item.items("tagSet") {
            let tag = (tag.get("key").to_owned(), tag.get("value").to_owned());
            if let Some(ids) = self.world.by_tag.get_mut(&tag) {
                ids.remove(&id);
            }
        }
        item.put(Element::of("tagSet", tags));
        self.world.reported(&id, item);
        Ok(answer)
    }

    fn attach_volume(&mut self) -> Answer {
        let (id, on, device) =
            (self.get("VolumeId").to_owned(), self.get("InstanceId").to_owned(), self.get("Device").to_owned());
        self.volume(&id)?;
        let instance = self.instance(&on)?;
        let volume = self.volume(&id)?;
        if instance.terminated {
            return refuse("IncorrectState", format!("The instance '{on}' is not 'running'."));
        }
        if self.now < volume.ready {
            return refuse("IncorrectState", format!("{id} is not 'available'."));
        }
        if volume.item.get("availabilityZone") != instance.zone {
            let message = format!("The volume '{id}' is not in the same availability zone as instance '{on}'");
            return refuse("InvalidVolume.ZoneMismatch", message);
        }
        let multi = volume.item.get("multiAttachEnabled") == "true";
        let attached: Vec<_> = volume.attached(self.now).map(|(attachment, _)| attachment.instance.clone()).collect();
        if !attached.is_empty() && (!multi || attached.contains(&on) || attached.len() >= 16) {
            return refuse("VolumeInUse", format!("{id} is already attached to an instance"));
        }
        let taken: Vec<_> = self.world.attached_to(&on, self.now).map(|(_, attachment, _)| attachment.device.clone()).collect();
        let two_letters = device.strip_prefix("/dev/xvd").filter(|letters| letters.len() == 2);
        if two_letters.is_some_and(|letters| letters > "dx") {
            return refuse(
                "InvalidParameterValue",
                format!("Value ({device}) for parameter device is invalid. {device} is not a valid EBS device name."),
            );
        }
        if taken.contains(&device) || instance.own.contains(&device) {
            let message = format!("Invalid value '{device}' for unixDevice. Attachment point {device} is already in use");
            return refuse("InvalidParameterValue", message);
        }
        if taken.len() + instance.own.len() >= instance.limit {
            let message = format!("The maximum number of {} volumes is attached to instance {on}", instance.limit);
            return refuse("AttachmentLimitExceeded", message);
        }
        let answer = self.pass_on(self.parameters)?;
        let attachment = Attachment {
            instance: on,
            device,
            begun: self.now,
            moment: SystemTime::now(),
            attached: self.world.end("attaching", self.now, self.world.times.attaching),
            detaching: None,
            detached: NEVER,
            busy: false,
        };
        self.volume_mut(&id).attachments.push(attachment);
        Ok(answer)
    }

    fn detach_volume(&mut self) -> Answer {
        let (id, from) = (self.get("VolumeId").to_owned(), self.get("InstanceId").to_owned());
        let now = self.now;
        let volume = self.volume(&id)?;
        let attached: Vec<(Attachment, &str)> = volume.attached(now).map(|(is, state)| (is.clone(), state)).collect();
        if attached.is_empty() {
            return refuse("IncorrectState", format!("Volume '{id}' is in the 'available' state."));
        }
        let Some((attachment, state)) = attached.iter().find(|(is, _)| from.is_empty() || is.instance == from) else {
            let message = format!("The volume '{id}' is not attached to instance '{from}'");
            return refuse("InvalidAttachment.NotFound", message);
        };
        let mut answer = attachment.item(&id, "detaching");
        answer.name = "DetachVolumeResponse".to_owned();
        if ["detaching", "busy"].contains(state) {
            return Ok(answer);
        }
        let (instance, device) = (attachment.instance.clone(), attachment.device.clone());
        self.ask_moto("DetachVolume", &[("VolumeId", &id), ("InstanceId", &instance), ("Device", &device)])?;
        // moto knows one attachment of a disk: the last that is left is reported to it again.
        if let Some((other, _)) = attached.iter().find(|(other, state)| other.instance != instance && *state != "detaching") {
            let left = [("VolumeId", id.as_str()), ("InstanceId", &other.instance), ("Device", &other.device)];
            self.ask_moto("AttachVolume", &left)?;
        }
        let busy = self.world.stuck.contains("busy");
        let detached = if busy { NEVER } else { self.world.end("detaching", now, self.world.times.detaching) };
        let attachments = &mut self.volume_mut(&id).attachments;
        let ours = attachments.iter_mut().find(|is| is.instance == instance && is.state(now).is_some()).expect("it is attached");
        (ours.detaching, ours.detached, ours.busy) = (Some(now), detached, busy);
        Ok(answer)
    }

    /// Its disks but for its own are then attached nowhere.
    fn terminate_instances(&mut self) -> Answer {
        for id in wire::list(self.parameters, "InstanceId") {
            self.instance(&id)?;
            let attached: Vec<_> =
                self.world.attached_to(&id, self.now).map(|(volume, is, _)| (volume.clone(), is.device.clone())).collect();
            for (volume, device) in attached {
                self.ask_moto("DetachVolume", &[("VolumeId", &volume), ("InstanceId", &id), ("Device", &device)]).ok();
                let now = self.now;
                for attachment in &mut self.volume_mut(&volume).attachments {
                    if attachment.instance == id && attachment.state(now).is_some() {
                        (attachment.detaching, attachment.detached) = (Some(now), now);
                    }
                }
            }
            self.world.instances.get_mut(&id).expect("known now").terminated = true;
        }
        self.pass_on(self.parameters)
    }

    fn modify_volume(&mut self) -> Answer {
        let id = self.get("VolumeId").to_owned();
        let volume = self.volume(&id)?;
        if let Some(change) = &volume.modification {
            if ["modifying", "optimizing"].contains(&change.state(self.now)) {
                let message = format!("Cannot modify volume {id}: it is in the {} state", change.state(self.now));
                return refuse("IncorrectModificationState", message);
            }
            if self.now < change.begun + BETWEEN_CHANGES && !change.fails {
                let message = "You've reached the maximum modification rate per volume limit. Wait at least 6 hours between modifications \
                               per EBS volume.";
                return refuse("VolumeModificationRateExceeded", message);
            }
        }
        if self.now < volume.ready {
            return refuse("IncorrectState", format!("The volume '{id}' is in the 'creating' state."));
        }
        let before = volume.item.clone();
        let current = |name: &str| before.get(name).parse::<u64>().ok();
        let kind = self.parameters.get("VolumeType").map_or(before.get("volumeType"), String::as_str);
        let same = kind == before.get("volumeType");
        let size = self.number("Size")?.or(current("size")).expect("a size");
        if Some(size) < current("size") {
            return refuse("InvalidParameterValue", "New size cannot be smaller than existing size");
        }
        let iops = self.number("Iops")?.or(current("iops").filter(|_| same && limits::takes_iops(kind)));
        let throughput = self.number("Throughput")?.or(current("throughput").filter(|_| same && kind == "gp3"));
        limits::check(kind, size, iops, throughput)?;
        let mut answer = self.pass_on(self.parameters)?;
        let after = self.ask_moto("DescribeVolumes", &[("VolumeId.1", &id)])?;
        let mut after = after.items("volumeSet").first().expect("it was modified").clone();
        after.set("multiAttachEnabled", before.get("multiAttachEnabled"));
        let mut item = Element::leaf("volumeId", &id);
        item = Element::of("item", [item]);
        for (name, field) in [("Size", "size"), ("Iops", "iops"), ("VolumeType", "volumeType"), ("Throughput", "throughput")] {
            for (prefix, of) in [("original", &before), ("target", &after)] {
                if !of.get(field).is_empty() {
                    item.set(&format!("{prefix}{name}"), of.get(field));
                }
            }
        }
        let optimizing = self.world.end("modifying", self.now, self.world.times.modifying);
        let done = optimizing.saturating_add(self.world.times.optimizing);
        let change =
            Modification { item, before, begun: self.now, moment: SystemTime::now(), optimizing, done, fails: self.world.fails };
        let mut reported = modification_view(&change, self.now);
        reported.name = "volumeModification".to_owned();
        self.volume_mut(&id).modification = Some(change);
        self.world.reported(&id, after);
        answer.put(reported);
        Ok(answer)
    }

    fn create_snapshot(&mut self) -> Answer {
        let id = self.get("VolumeId").to_owned();
        self.volume(&id)?;
        self.check_tags("TagSpecification.1.Tag")?;
        let recent = |snapshot: &&Snapshot| {
            snapshot.item.get("volumeId") == id && self.now < snapshot.done && self.now < snapshot.begun + BETWEEN_SNAPSHOTS
        };
        if self.world.snapshots.values().find(recent).is_some() {
            let message = "The maximum per volume CreateSnapshot request rate has been exceeded. Use an increasing or variable sleep interval \
                           between requests.";
            return refuse("SnapshotCreationPerVolumeRateExceeded", message);
        }
        let mut answer = self.pass_on(self.parameters)?;
        let snapshot = answer.get("snapshotId").to_owned();
        answer.set("status", "pending");
        answer.set("progress", "");
        let mut item = answer.clone();
        item.name = "item".to_owned();
        item.children.retain(|child| child.name != "requestId");
        let done = self.world.end("pending", self.now, self.world.times.snapshot);
        let fails = self.world.fails;
        if let Some(item) = self.theirs(&item, "snapshotId") {
            let theirs = Snapshot { item, begun: self.now, done: self.now, fails: false, deleted: None };
            self.world.snapshots.insert(theirs.item.get("snapshotId").to_owned(), theirs);
        }
        self.world.snapshots.insert(snapshot, Snapshot { item, begun: self.now, done, fails, deleted: None });
        Ok(answer)
    }

    /// With the tags that the request gives.
    fn copy_snapshot(&mut self) -> Answer {
        let of = self.get("SourceSnapshotId").to_owned();
        let Some(source) = self.world.snapshots.get(&of).map(|source| source.item.clone()) else {
            return refuse("InvalidSnapshot.NotFound", format!("The snapshot '{of}' does not exist."));
        };
        let answer = self.pass_on(self.parameters)?;
        let copy = answer.get("snapshotId").to_owned();
        let mut item = source;
        item.set("snapshotId", &copy);
        item.set("volumeId", "vol-ffffffff");
        let done = self.now + self.world.times.snapshot;
        self.world.snapshots.insert(copy, Snapshot { item, begun: self.now, done, fails: false, deleted: None });
        Ok(answer)
    }

    fn describe_instance_types(&self) -> Answer {
        let mut parameters = self.parameters.clone();
        parameters.retain(|name, _| name != "MaxResults" && name != "NextToken");
        let answer = self.pass_on(&parameters)?;
        let named = !wire::list(self.parameters, "InstanceType").is_empty();
        self.page("DescribeInstanceTypesResponse", "instanceTypeSet", answer.items("instanceTypeSet").to_vec(), named)
    }

    fn delete_snapshot(&mut self) -> Answer {
        let id = self.get("SnapshotId").to_owned();
        assert!(!id.ends_with(THEIRS), "{id} is another cluster's, and was to be deleted");
        let now = self.now;
        match self.world.snapshots.get_mut(&id).filter(|snapshot| snapshot.deleted.is_none()) {
            Some(snapshot) => snapshot.deleted = Some(now),
            None => return refuse("InvalidSnapshot.NotFound", format!("The snapshot '{id}' does not exist.")),
        }
        Ok(self.pass_on(self.parameters)?.with("return", true))
    }

    /// The moment whose state is reported.
    fn then(&self) -> Duration {
        self.now.saturating_sub(self.behind)
    }

    fn describe_volumes(&self) -> Answer {
        let (ids, filters) = (wire::list(self.parameters, "VolumeId"), wire::filters(self.parameters));
        limited(&ids, &filters)?;
        let (then, times) = (self.then(), self.world.times);
        let mut found: BTreeMap<&String, Element> = BTreeMap::new();
        let tagged = filters.iter().find_map(|(name, values)| Some((name.strip_prefix("tag:")?, values)));
        let candidates: Box<dyn Iterator<Item = &String>> = match tagged {
            _ if !ids.is_empty() => Box::new(ids.iter()),
            Some((key, values)) if !values.iter().any(|value| value.contains(['*', '?', '\\'])) => {
                Box::new(values.iter().filter_map(|value| self.world.by_tag.get(&(key.to_owned(), value.clone()))).flatten())
            }
            _ => Box::new(self.world.volumes.keys()),
        };
        for id in candidates {
            let reported = |volume: &&Volume| volume.is_reported(then, &times) && then >= volume.created + self.late;
            match self.world.volumes.get(id).filter(reported) {
                Some(volume) => drop(found.insert(id, volume.view(then))),
                None if ids.is_empty() => {}
                None => return refuse("InvalidVolume.NotFound", format!("The volume '{id}' does not exist.")),
            }
        }
        let mut items = Vec::new();
        for item in found.into_values() {
            if matches_all(&item, &filters, "volumeId", "volume-id")? {
                items.push(item);
            }
        }
        self.page("DescribeVolumesResponse", "volumeSet", items, !ids.is_empty())
    }

    fn describe_modifications(&self) -> Answer {
        let (ids, filters) = (wire::list(self.parameters, "VolumeId"), wire::filters(self.parameters));
        limited(&ids, &filters)?;
        let then = self.then();
        let mut items = Vec::new();
        for (id, volume) in &self.world.volumes {
            let change =
                volume.modification.as_ref().filter(|change| volume.is_reported(then, &self.world.times) && then >= change.begun);
            if let Some(change) = change.filter(|_| ids.is_empty() || ids.contains(id)) {
                let item = modification_view(change, then);
                if matches_all(&item, &filters, "volumeId", "volume-id")? {
                    items.push(item);
                }
            }
        }
        let reported = |id: &&String| !items.iter().any(|item| item.get("volumeId") == *id);
        if let Some(missing) = ids.iter().find(reported) {
            let message = format!("Modification for volume '{missing}' does not exist.");
            return refuse("InvalidVolumeModification.NotFound", message);
        }
        self.page("DescribeVolumesModificationsResponse", "volumeModificationSet", items, !ids.is_empty())
    }

    fn describe_snapshots(&self) -> Answer {
        let (ids, filters) = (wire::list(self.parameters, "SnapshotId"), wire::filters(self.parameters));
        limited(&ids, &filters)?;
        let then = self.then();
        let is_reported = |snapshot: &Snapshot| snapshot.is_reported(then) && then >= snapshot.begun + self.late;
        if let Some(id) = ids.iter().find(|id| self.world.snapshots.get(*id).is_none_or(|snapshot| !is_reported(snapshot))) {
            return refuse("InvalidSnapshot.NotFound", format!("The snapshot '{id}' does not exist."));
        }
        let mut items = Vec::new();
        for (id, snapshot) in self.world.snapshots.iter().filter(|(_, snapshot)| is_reported(snapshot)) {
            let item = snapshot.view(then);
            if (ids.is_empty() || ids.contains(id)) && matches_all(&item, &filters, "snapshotId", "snapshot-id")? {
                items.push(item);
            }
        }
        self.page("DescribeSnapshotsResponse", "snapshotSet", items, !ids.is_empty())
    }

    /// moto's answer, with what is attached as it is here.
    fn describe_instances(&self) -> Answer {
        let mut parameters = self.parameters.clone();
        parameters.retain(|name, _| name != "MaxResults" && name != "NextToken");
        let answer = self.pass_on(&parameters)?;
        let mut reservations = answer.items("reservationSet").to_vec();
        for reservation in &mut reservations {
            let mut instances = reservation.items("instancesSet").to_vec();
            for instance in &mut instances {
                let mut mappings = instance.items("blockDeviceMapping").to_vec();
                let of = |mapping: &Element| mapping.child("ebs").map(|ebs| ebs.get("volumeId").to_owned()).unwrap_or_default();
                mappings.retain(|mapping| !self.world.volumes.contains_key(&of(mapping)));
                let id = instance.get("instanceId").to_owned();
                for (volume, attachment, state) in self.world.attached_to(&id, self.then()) {
                    let ebs =
                        Element::new("ebs").with("volumeId", volume).with("status", state).with("deleteOnTermination", false);
                    mappings.push(Element::of("item", [Element::leaf("deviceName", &attachment.device), ebs]));
                }
                instance.put(Element::of("blockDeviceMapping", mappings));
            }
            reservation.put(Element::of("instancesSet", instances));
        }
        let named = !wire::list(self.parameters, "InstanceId").is_empty();
        self.page("DescribeInstancesResponse", "reservationSet", reservations, named)
    }

    /// moto has none.
    fn describe_status(&self) -> Answer {
        let ids = wire::list(self.parameters, "VolumeId");
        let mut items = Vec::new();
        for (id, _) in self
            .world
            .volumes
            .iter()
            .filter(|(id, volume)| volume.is_reported(self.then(), &self.world.times) && (ids.is_empty() || ids.contains(id)))
        {
            let status = Element::new("volumeStatus").with("status", "ok");
            items.push(Element::of("item", [Element::leaf("volumeId", id), status]));
        }
        self.page("DescribeVolumeStatusResponse", "volumeStatusSet", items, !ids.is_empty())
    }

    fn enable_fast_restores(&mut self) -> Answer {
        let mut items = Vec::new();
        for snapshot in wire::list(self.parameters, "SourceSnapshotId") {
            if !self.world.snapshots.contains_key(&snapshot) {
                return refuse("InvalidSnapshot.NotFound", format!("The snapshot '{snapshot}' does not exist."));
            }
            for zone in wire::list(self.parameters, "AvailabilityZone") {
                items.push(fast_item(&snapshot, &zone));
                self.world.fast.insert((snapshot.clone(), zone));
            }
        }
        let lists = [Element::of("successful", items), Element::new("unsuccessful")];
        Ok(Element::of("EnableFastSnapshotRestoresResponse", lists))
    }

    fn describe_fast_restores(&self) -> Answer {
        let items = self.world.fast.iter().map(|(snapshot, zone)| fast_item(snapshot, zone)).collect();
        self.page("DescribeFastSnapshotRestoresResponse", "fastSnapshotRestoreSet", items, false)
    }

    /// The part of a list that was asked for.
    fn page(&self, response: &str, set: &str, items: Vec<Element>, named: bool) -> Answer {
        let most = self.number("MaxResults")?;
        if most.is_some() && named {
            return refuse("InvalidParameterCombination", "MaxResults cannot be used with a list of ids");
        }
        if most.is_some_and(|most| most < 5) {
            return refuse(
                "InvalidParameterValue",
                "Value for parameter MaxResults is invalid. Expecting a value greater than 5.",
            );
        }
        let unkind = self.unkind && !named;
        let from = match self.get("NextToken") {
            "" if unkind => {
                return Ok(Element::of(response, [Element::new(set), Element::leaf("nextToken", "page-0")]));
            }
            "" => 0,
            token => match token.strip_prefix("page-").and_then(|from| from.parse().ok()) {
                Some(from) => from,
                None => return refuse("InvalidParameterValue", format!("Invalid value '{token}' for NextToken")),
            },
        };
        let most = most.map_or(usize::MAX, |most| usize::try_from(most).expect("a count").min(1000));
        let most = if unkind { most.min(items.len().div_ceil(2).max(1)) } else { most };
        let left = items.len().saturating_sub(from);
        let answer = Element::of(response, [Element::of(set, items.into_iter().skip(from).take(most))]);
        Ok(if left > most { answer.with("nextToken", format!("page-{}", from + most)) } else { answer })
    }
}

fn fast_item(snapshot: &str, zone: &str) -> Element {
    Element::new("item").with("snapshotId", snapshot).with("availabilityZone", zone).with("state", "enabling")
}

fn modification_view(change: &Modification, at: Duration) -> Element {
    let state = change.state(at);
    let item = change.item.clone().with("modificationState", state).with("startTime", stamp(change.moment));
    let progress = if state == "modifying" { 0 } else { percent(change.optimizing, change.done, at) };
    item.with("progress", if state == "completed" { 100 } else { progress.min(99) })
}

fn limited(ids: &[String], filters: &[(String, Vec<String>)]) -> Result<(), Refusal> {
    if ids.len() > MOST_IDS {
        return refuse("InvalidParameterValue", format!("The maximum number of ids is {MOST_IDS}"));
    }
    if filters.iter().map(|(_, values)| values.len()).sum::<usize>() > MOST_VALUES {
        let message = format!("The maximum number of filter values specified on a single call is {MOST_VALUES}");
        return refuse("FilterLimitExceeded", message);
    }
    Ok(())
}

/// Whether an item passes every filter. `id` and `id_filter` are how its id is called in the item and in a filter.
fn matches_all(item: &Element, filters: &[(String, Vec<String>)], id: &str, id_filter: &str) -> Result<bool, Refusal> {
    for (name, values) in filters {
        let tags = item.items("tagSet").iter();
        let has: Vec<&str> = match name.as_str() {
            name if name == id_filter => vec![item.get(id)],
            "volume-id" => vec![item.get("volumeId")],
            "status" => vec![item.get("status")],
            "modification-state" => vec![item.get("modificationState")],
            "availability-zone" => vec![item.get("availabilityZone")],
            "tag-key" => tags.map(|tag| tag.get("key")).collect(),
            "attachment.instance-id" => item.items("attachmentSet").iter().map(|is| is.get("instanceId")).collect(),
            "attachment.status" => item.items("attachmentSet").iter().map(|is| is.get("status")).collect(),
            name => match name.strip_prefix("tag:") {
                Some(key) => tags.filter(|tag| tag.get("key") == key).map(|tag| tag.get("value")).collect(),
                None => return refuse("InvalidParameterValue", format!("The filter '{name}' is invalid")),
            },
        };
        if !values.iter().any(|value| has.iter().any(|has| like(has.as_bytes(), value.as_bytes()))) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a text is like a filter's value, in which `*` is any text, `?` one character, and what follows `\` itself.
fn like(text: &[u8], value: &[u8]) -> bool {
    match value {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|from| like(&text[from..], rest)),
        [b'?', rest @ ..] => !text.is_empty() && like(&text[1..], rest),
        [b'\\', next, rest @ ..] | [next, rest @ ..] => text.first() == Some(next) && like(&text[1..], rest),
    }
}

#[test]
fn a_filter_has_wildcards() {
    for (text, value) in [("abc", "abc"), ("abc", "a*"), ("abc", "?b?"), ("a*c", "a\\*c"), ("a\\c", "a\\\\c"), ("", "*")] {
        assert!(like(text.as_bytes(), value.as_bytes()), "{text} {value}");
    }
    for (text, value) in [("abc", "ab"), ("abc", "a\\*"), ("abc", "??"), ("", "?")] {
        assert!(!like(text.as_bytes(), value.as_bytes()), "{text} {value}");
    }
}
