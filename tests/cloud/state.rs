//! What the unfriendly cloud knows beyond moto: when everything began, so that each thing's state follows from the time.
//!
//! moto is the truth of what there is: every mutation goes to it, and what is reported of a disk or snapshot is what moto last said of it.
//! It is remembered here since moto takes a millisecond for each disk that it describes and looks at all of them for a tag.
//! States, and several attachments of one disk, moto does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use super::clock::NEVER;
use super::wire::Parameters;
use super::xml::Element;

/// How long things take, in the cloud's time.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub creating: Duration,
    pub deleting: Duration,
    pub attaching: Duration,
    pub detaching: Duration,
    pub modifying: Duration,
    pub optimizing: Duration,
    pub snapshot: Duration,
    /// Of a copy's data.
    pub filling: Duration,
}

impl Default for Times {
    /// As EC2 has them on good days, but for `optimizing`, `snapshot` and `filling`, which may take hours there.
    fn default() -> Times {
        let seconds = Duration::from_secs;
        Times {
            creating: seconds(2),
            deleting: seconds(2),
            attaching: seconds(3),
            detaching: seconds(5),
            modifying: seconds(4),
            optimizing: seconds(60),
            snapshot: seconds(20),
            filling: seconds(30),
        }
    }
}

#[derive(Debug)]
pub struct Volume {
    /// As moto last reported it.
    pub item: Element,
    pub created: Duration,
    /// When it has come to be.
    pub ready: Duration,
    /// It will not be: its key was refused, after the request was accepted.
    pub vanishes: bool,
    pub deleted: Option<Duration>,
    pub attachments: Vec<Attachment>,
    pub modification: Option<Modification>,
    /// Of a copy: its source, and when it is filled in.
    pub filling: Option<(String, Duration)>,
}

#[derive(Clone, Debug)]
pub struct Attachment {
    pub instance: String,
    pub device: String,
    pub begun: Duration,
    pub moment: SystemTime,
    pub attached: Duration,
    pub detaching: Option<Duration>,
    pub detached: Duration,
    /// The machine does not let go.
    pub busy: bool,
}

impl Attachment {
    /// `None` before and after.
    pub fn state(&self, at: Duration) -> Option<&'static str> {
        match self.detaching {
            _ if at < self.begun || at >= self.detached => None,
            Some(begun) if at >= begun && self.busy => Some("busy"),
            Some(begun) if at >= begun => Some("detaching"),
            _ if at >= self.attached => Some("attached"),
            _ => Some("attaching"),
        }
    }

    pub fn item(&self, volume: &str, state: &str) -> Element {
        Element::new("item")
            .with("volumeId", volume)
            .with("instanceId", &self.instance)
            .with("device", &self.device)
            .with("status", state)
            .with("attachTime", stamp(self.moment))
            .with("deleteOnTermination", false)
    }
}

#[derive(Debug)]
pub struct Modification {
    /// As moto tells it.
    pub item: Element,
    /// The disk before it.
    pub before: Element,
    pub begun: Duration,
    pub moment: SystemTime,
    pub optimizing: Duration,
    pub done: Duration,
    pub fails: bool,
}

impl Modification {
    pub fn state(&self, at: Duration) -> &'static str {
        match at {
            at if at < self.optimizing => "modifying",
            _ if self.fails => "failed",
            at if at < self.done => "optimizing",
            _ => "completed",
        }
    }
}

#[derive(Debug)]
pub struct Snapshot {
    pub item: Element,
    pub begun: Duration,
    pub done: Duration,
    pub fails: bool,
    pub deleted: Option<Duration>,
}

impl Snapshot {
    pub fn is_reported(&self, at: Duration) -> bool {
        at >= self.begun && self.deleted.is_none_or(|deleted| at < deleted)
    }

    pub fn view(&self, at: Duration) -> Element {
        let mut item = self.item.clone();
        let (state, progress) = match at >= self.done {
            true if self.fails => ("error", 42),
            true => ("completed", 100),
            false => ("pending", percent(self.begun, self.done, at).min(99)),
        };
        item.set("status", state);
        item.set("progress", format!("{progress}%"));
        item
    }
}

impl Volume {
    /// Whether it is described; for a while after its deletion it is.
    pub fn is_reported(&self, at: Duration, times: &Times) -> bool {
        at >= self.created
            && self.deleted.is_none_or(|deleted| at < deleted + times.deleting)
            && !(self.vanishes && at >= self.ready)
    }

    pub fn state(&self, at: Duration) -> &'static str {
        if self.deleted.is_some_and(|deleted| at >= deleted) {
            "deleting"
        } else if at < self.ready || self.vanishes {
            "creating"
        } else if self.attached(at).next().is_some() {
            "in-use"
        } else {
            "available"
        }
    }

    /// Its attachments that are not over, with their states.
    pub fn attached(&self, at: Duration) -> impl Iterator<Item = (&Attachment, &'static str)> {
        self.attachments.iter().filter_map(move |attachment| Some((attachment, attachment.state(at)?)))
    }

    pub fn view(&self, at: Duration) -> Element {
        let changing = self.modification.as_ref().filter(|change| at < change.optimizing || change.fails);
        let mut item = changing.map_or(&self.item, |change| &change.before).clone();
        // Tags are never late.
        item.put(self.item.child("tagSet").cloned().unwrap_or_else(|| Element::new("tagSet")));
        item.set("status", self.state(at));
        let id = self.item.get("volumeId");
        item.put(Element::of("attachmentSet", self.attached(at).map(|(attachment, state)| attachment.item(id, state))));
        item
    }
}

/// How much of a span has passed.
pub fn percent(begun: Duration, done: Duration, at: Duration) -> u64 {
    let (span, passed) = (done.saturating_sub(begun).as_secs_f64(), at.saturating_sub(begun).as_secs_f64());
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percentage")]
    let percent = (passed / span.max(0.001) * 100.0) as u64;
    percent.min(100)
}

/// A moment as EC2 writes it. It is ours, not the cloud's, and stays the same.
pub fn stamp(moment: SystemTime) -> String {
    humantime::format_rfc3339_millis(moment).to_string()
}

/// What of a machine decides whether a disk may be attached to it.
#[derive(Clone, Debug)]
pub struct Instance {
    pub zone: String,
    /// Disks, its own too.
    pub limit: usize,
    /// Device names of the disks that it was made with.
    pub own: Vec<String>,
    pub terminated: bool,
}

#[derive(Debug, Default)]
pub struct CloudState {
    pub times: Times,
    pub volumes: BTreeMap<String, Volume>,
    pub snapshots: BTreeMap<String, Snapshot>,
    pub instances: BTreeMap<String, Instance>,
    /// How many disks a type takes.
    pub limits: BTreeMap<String, usize>,
    /// What a token made, and by which parameters.
    pub tokens: BTreeMap<String, (String, Parameters)>,
    /// Volumes by tag, which is what is asked for most.
    pub by_tag: BTreeMap<(String, String), BTreeSet<String>>,
    /// Those that the account may use; all that moto has, unless the test says otherwise.
    pub zones: Vec<String>,
    /// Snapshots that are to be made fast to restore, by zone.
    pub fast: BTreeSet<(String, String)>,
    /// The blocks of a snapshot that hold something, and what; of 512 KiB.
    pub blocks: BTreeMap<String, BTreeMap<u64, u64>>,
    /// States that whatever comes into them from now on does not leave: `creating`, `attaching`, `detaching`, `busy`, `modifying`,
    /// `pending`, `initializing`.
    pub stuck: BTreeSet<&'static str>,
    /// Disks and changes that begin from now on come to nothing.
    pub fails: bool,
}

impl CloudState {
    /// When something that begins now and is in this state for so long will be over.
    pub fn end(&self, state: &'static str, now: Duration, span: Duration) -> Duration {
        if self.stuck.contains(state) { NEVER } else { now + span }
    }

    /// The disk, if a request can be about it.
    pub fn volume(&self, id: &str, now: Duration) -> Option<&Volume> {
        self.volumes.get(id).filter(|volume| volume.deleted.is_none() && volume.is_reported(now, &self.times))
    }

    /// Remembers what moto says of a volume.
    pub fn reported(&mut self, id: &str, item: Element) {
        for tag in item.items("tagSet") {
            let tag = (tag.get("key").to_owned(), tag.get("value").to_owned());
            self.by_tag.entry(tag).or_default().insert(id.to_owned());
        }
        if let Some(volume) = self.volumes.get_mut(id) {
            volume.item = item;
        }
    }

    /// What is attached to a machine, or on its way there or from there: disk, attachment and state.
    pub fn attached_to<'a>(
        &'a self,
        instance: &'a str,
        at: Duration,
    ) -> impl Iterator<Item = (&'a String, &'a Attachment, &'static str)> {
        let all = self.volumes.iter().flat_map(move |(id, volume)| volume.attached(at).map(move |(is, state)| (id, is, state)));
        all.filter(move |(_, attachment, _)| attachment.instance == instance)
    }

    /// Ends what is stuck, now.
    pub fn release(&mut self, now: Duration) {
        self.stuck.clear();
        let end = |moment: &mut Duration| {
            if *moment == NEVER {
                *moment = now;
            }
        };
        for volume in self.volumes.values_mut() {
            end(&mut volume.ready);
            for attachment in &mut volume.attachments {
                end(&mut attachment.attached);
                attachment.busy = false;
                if attachment.detaching.is_some() {
                    end(&mut attachment.detached);
                }
            }
            if let Some(change) = &mut volume.modification {
                end(&mut change.optimizing);
                end(&mut change.done);
            }
        }
        self.snapshots.values_mut().for_each(|snapshot| end(&mut snapshot.done));
    }
}
