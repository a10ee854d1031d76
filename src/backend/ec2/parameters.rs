//! What a StorageClass, a VolumeAttributesClass and a VolumeSnapshotClass may say, as aws-ebs-csi-driver names it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::volume::{Bytes, Error, Number, RawParameters, Result};

use super::kinds::{Kind, Rate};
use super::tags;

/// Of a StorageClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ec2Parameters {
    #[serde(default)]
    pub rates: Rates,
    /// `true`: encrypted by AWS, with the account's default key unless `kmsKeyId` names one. Default `false`, but where the account
    /// encrypts all its volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<Flag>,
    /// The key's id, ARN or alias; with `encrypted: "true"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kms_key_id: Option<String>,
    /// The Outpost on which it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outpost_arn: Option<String>,
    /// In MiB/s, 100 to 300: how fast a volume made from a snapshot is filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_initialization_rate: Option<Number>,
    /// From `tagSpecification_…`, their templates filled in.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
}

/// What a volume does per second, and what it costs; may be changed later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rates {
    /// `gp3` (default), `gp2`, `io1`, `io2`, `st1`, `sc1`, `standard`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// I/O operations per second (gp3, io1, io2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<Number>,
    /// The same per GiB of its size, within what the type allows.
    #[serde(rename = "iopsPerGB", default, skip_serializing_if = "Option::is_none")]
    pub iops_per_gb: Option<Number>,
    /// `true`: where `iopsPerGB` comes to less than the type's least, that is taken; otherwise it is refused.
    #[serde(rename = "allowAutoIOPSPerGBIncrease", default, skip_serializing_if = "Option::is_none")]
    pub allow_increase: Option<Flag>,
    /// In MiB/s (gp3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<Number>,
    /// The same per GiB of its size, within what the type allows.
    #[serde(rename = "throughputPerGB", default, skip_serializing_if = "Option::is_none")]
    pub throughput_per_gb: Option<Number>,
}

/// `"true"` or `"false"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Flag(#[serde(with = "crate::volume::parameters::text_bool")] pub bool);

impl Flag {
    fn is_set(flag: Option<Flag>) -> bool {
        flag == Some(Flag(true))
    }
}

/// How a disk is to be, or is: what is sent to EC2, and what it describes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSettings {
    pub kind: Kind,
    pub iops: Option<u32>,
    /// In MiB/s.
    pub throughput: Option<u32>,
    pub encrypted: Option<bool>,
    pub kms_key_id: Option<String>,
    pub outpost_arn: Option<String>,
    pub initialization_rate: Option<u32>,
}

impl DiskSettings {
    /// Of a disk that was described.
    ///
    /// # Errors
    /// `Invalid` where they are not EC2's.
    pub fn read(kept: &Value) -> Result<DiskSettings> {
        serde_json::from_value(kept.clone()).map_err(|error| Error::invalid("settings", error.to_string()))
    }
}

/// How a snapshot is to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotSettings {
    /// The zones in which volumes made of it are fast from the first byte on, separated by commas.
    #[serde(rename = "fastSnapshotRestoreAvailabilityZones", default)]
    pub fast_restore: Option<String>,
    #[serde(rename = "outpostArn", default)]
    pub outpost_arn: Option<String>,
}

impl SnapshotSettings {
    pub fn zones(&self) -> Vec<String> {
        let zones = self.fast_restore.iter().flat_map(|zones| zones.split(','));
        zones.map(|zone| zone.trim().to_owned()).filter(|zone| !zone.is_empty()).collect()
    }
}

fn refuse(field: &str, reason: impl std::fmt::Display) -> Error {
    Error::invalid("parameters", format!("{field}: {reason}"))
}

impl Ec2Parameters {
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn parse(raw: &RawParameters) -> Result<Ec2Parameters> {
        let mut rest = raw.clone();
        let tags = tags::take(&mut rest)?;
        let rates = Rates::take(&mut rest)?;
        let parameters = Ec2Parameters { rates, tags, ..rest.parse()? };
        let kind = parameters.rates.kind()?;
        let bounds = kind.bounds();
        if parameters.kms_key_id.is_some() && !Flag::is_set(parameters.encrypted) {
            return Err(refuse("kmsKeyId", "has no meaning without encrypted: \"true\""));
        }
        // Bounds that hang on the size are checked with the size; what can never be, here.
        parameters.rates.resolve(bounds.largest, None)?;
        Ok(parameters)
    }

    /// As they were kept with the volume.
    ///
    /// # Errors
    /// `Invalid` where they were not made by `parse`.
    pub fn read(kept: &Value) -> Result<Ec2Parameters> {
        Ok(match kept {
            Value::Null => Ec2Parameters::default(),
            kept => serde_json::from_value(kept.clone()).map_err(|error| Error::invalid("parameters", error.to_string()))?,
        })
    }

    /// How a disk of this size is to be made, with these mutable parameters over those of the class.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn settings(&self, capacity: Bytes, mutable: &Rates) -> Result<DiskSettings> {
        let resolved = self.rates.overlaid(mutable).resolve(capacity, None)?;
        Ok(DiskSettings {
            encrypted: self.encrypted.map(|flag| flag.0),
            kms_key_id: self.kms_key_id.clone(),
            outpost_arn: self.outpost_arn.clone(),
            initialization_rate: self.volume_initialization_rate.map(|rate| rate.0),
            ..resolved
        })
    }
}

impl Rates {
    const KEYS: [&str; 6] = ["type", "iops", "iopsPerGB", "allowAutoIOPSPerGBIncrease", "throughput", "throughputPerGB"];

    /// Takes them out of the parameters.
    fn take(raw: &mut RawParameters) -> Result<Rates> {
        raw.split(&Rates::KEYS).parse()
    }

    /// Those of a VolumeAttributesClass, and nothing else.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn parse(raw: &RawParameters) -> Result<Rates> {
        let mut rest = raw.clone();
        let rates = Rates::take(&mut rest)?;
        rest.parse::<Nothing>()?;
        rates.kind()?;
        Ok(rates)
    }

    pub fn kind(&self) -> Result<Kind> {
        match &self.kind {
            None => Ok(Kind::default()),
            Some(name) => Kind::named(name).ok_or_else(|| {
                let known: Vec<&str> = Kind::ALL.into_iter().map(Kind::name).collect();
                refuse("type", format!("{name:?} is no type of volume; there are {}", known.join(", ")))
            }),
        }
    }

    /// These, with those of `over` in their place. A further type brings its own rates, and a rate takes the place of the same rate
    /// said in the other way.
    fn overlaid(&self, over: &Rates) -> Rates {
        let base = if over.kind.is_some() && over.kind != self.kind { &Rates::default() } else { self };
        let iops = over.iops.is_some() || over.iops_per_gb.is_some();
        let throughput = over.throughput.is_some() || over.throughput_per_gb.is_some();
        Rates {
            kind: over.kind.clone().or_else(|| base.kind.clone()),
            iops: if iops { over.iops } else { base.iops },
            iops_per_gb: if iops { over.iops_per_gb } else { base.iops_per_gb },
            allow_increase: over.allow_increase.or(base.allow_increase),
            throughput: if throughput { over.throughput } else { base.throughput },
            throughput_per_gb: if throughput { over.throughput_per_gb } else { base.throughput_per_gb },
        }
    }

    /// What they come to for a disk of this size; `now` is what it has, if there is one.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn resolve(&self, capacity: Bytes, now: Option<&DiskSettings>) -> Result<DiskSettings> {
        let kind = match (&self.kind, now) {
            (None, Some(now)) => now.kind,
            _ => self.kind()?,
        };
        let bounds = kind.bounds();
        let kept = now.filter(|now| now.kind == kind);
        let gib = capacity.0.div_ceil(1 << 30);
        let auto = Flag::is_set(self.allow_increase);
        let iops = rate("iops", kind, bounds.iops, self.iops, ("iopsPerGB", self.iops_per_gb), gib, auto)?;
        let throughput =
            rate("throughput", kind, bounds.throughput, self.throughput, ("throughputPerGB", self.throughput_per_gb), gib, true)?;
        let iops = iops.or(kept.and_then(|now| now.iops).filter(|_| bounds.iops.is_some()));
        if bounds.iops_needed && iops.is_none() {
            return Err(refuse("iops", format!("{kind} volumes need it, or iopsPerGB")));
        }
        let throughput = throughput.or(kept.and_then(|now| now.throughput).filter(|_| bounds.throughput.is_some()));
        let rest = now.cloned().unwrap_or_default();
        Ok(DiskSettings { kind, iops, throughput, ..rest })
    }
}

/// What a rate comes to; `None` where nobody asks for one.
fn rate(
    field: &str,
    kind: Kind,
    bounds: Option<Rate>,
    fixed: Option<Number>,
    (per_gib_field, per_gib): (&str, Option<Number>),
    gib: u64,
    auto: bool,
) -> Result<Option<u32>> {
    let Some(bounds) = bounds else {
        let given = fixed.map(|_| field).or(per_gib.map(|_| per_gib_field));
        return match given {
            Some(field) => Err(refuse(field, format!("cannot be chosen for {kind} volumes"))),
            None => Ok(None),
        };
    };
    match (fixed, per_gib) {
        (Some(_), Some(_)) => Err(refuse(per_gib_field, format!("{field} sets it as well; give one of them"))),
        (Some(Number(fixed)), None) => Ok(Some(fixed)),
        (None, None) => Ok(None),
        (None, Some(Number(per_gib))) => {
            if let Some(most) = bounds.per_gib.filter(|most| per_gib > *most) {
                return Err(refuse(per_gib_field, format!("{per_gib} is more than the {most} that {kind} volumes have per GiB")));
            }
            let wanted = u64::from(per_gib).saturating_mul(gib);
            if wanted < u64::from(bounds.least) && !auto {
                return Err(refuse(
                    per_gib_field,
                    format!(
                        "comes to {wanted} for {gib} GiB, and {kind} volumes have at least {}; \
                         allowAutoIOPSPerGBIncrease: \"true\" takes that",
                        bounds.least
                    ),
                ));
            }
            let most = bounds.per_gib.map_or(u64::MAX, |most| u64::from(most).saturating_mul(gib)).min(bounds.most.into());
            let resolved = wanted.clamp(u64::from(bounds.least).min(most), most);
            Ok(Some(u32::try_from(resolved).unwrap_or(bounds.most)))
        }
    }
}

/// No parameter at all.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(pairs: &[(&str, &str)]) -> RawParameters {
        RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    fn settings(pairs: &[(&str, &str)], gib: u64) -> Result<DiskSettings> {
        Ec2Parameters::parse(&raw(pairs))?.settings(Bytes(gib << 30), &Rates::default())
    }

    #[test]
    fn rates_come_from_the_size_within_what_a_type_has() {
        let of = |pairs: &[(&str, &str)], gib| {
            settings(pairs, gib).map(|settings| (settings.iops, settings.throughput)).expect("fine")
        };
        assert_eq!(of(&[], 10), (None, None));
        assert_eq!(of(&[("type", "gp3"), ("iops", "4000"), ("throughput", "250")], 10), (Some(4000), Some(250)));
        assert_eq!(of(&[("type", "io2"), ("iopsPerGB", "50")], 10), (Some(500), None));
        assert_eq!(of(&[("type", "io1"), ("iopsPerGB", "50")], 4000), (Some(64_000), None), "no more than the type has");
        assert_eq!(of(&[("type", "io2"), ("iopsPerGB", "1"), ("allowAutoIOPSPerGBIncrease", "true")], 10), (Some(100), None));
        assert_eq!(of(&[("throughputPerGB", "1")], 200), (None, Some(200)));
        assert_eq!(of(&[("throughputPerGB", "1")], 10), (None, Some(125)), "what each has");
    }

    #[test]
    fn impossible_value_is_named() {
        for (pairs, words) in [
            (&[("type", "gp4")][..], "type: \"gp4\" is no type"),
            (&[("type", "io2")], "iops: io2 volumes need it"),
            (&[("type", "gp2"), ("iops", "3000")], "iops: cannot be chosen for gp2"),
            (&[("type", "st1"), ("throughput", "3000")], "throughput: cannot be chosen for st1"),
            (&[("type", "io2"), ("iops", "many")], "no whole number"),
            (&[("type", "io1"), ("iopsPerGB", "51")], "more than the 50"),
            (&[("type", "io1"), ("iopsPerGB", "5"), ("iops", "500")], "give one of them"),
            (&[("kmsKeyId", "alias/x")], "without encrypted"),
            (&[("encrypted", "yes")], "neither true nor false"),
            (&[("typ", "gp3")], "typ"),
        ] {
            let error = Ec2Parameters::parse(&raw(pairs)).expect_err(words).to_string();
            assert!(error.contains(words), "{pairs:?}: {error}");
        }
        let error = settings(&[("type", "io2"), ("iopsPerGB", "1")], 10).expect_err("too little").to_string();
        assert!(error.contains("comes to 10 for 10 GiB"), "{error}");
    }

    #[test]
    fn parameters_kept_with_a_volume_are_read_again() {
        let pairs =
            [("type", "io2"), ("iopsPerGB", "50"), ("encrypted", "true"), ("kmsKeyId", "alias/k"), ("tagSpecification_1", "a=b")];
        let parameters = Ec2Parameters::parse(&raw(&pairs)).expect("fine");
        let kept = serde_json::to_value(&parameters).expect("JSON");
        assert_eq!(Ec2Parameters::read(&kept).expect("fine"), parameters);
    }

    #[test]
    fn another_type_brings_its_own_rates() {
        let now = DiskSettings { kind: Kind::Gp3, iops: Some(4000), throughput: Some(250), ..DiskSettings::default() };
        let change = |pairs: &[(&str, &str)]| Rates::parse(&raw(pairs)).expect("fine").resolve(Bytes(100 << 30), Some(&now));
        let more = change(&[("iops", "5000")]).expect("fine");
        assert_eq!((more.kind, more.iops, more.throughput), (Kind::Gp3, Some(5000), Some(250)), "the rest stays");
        let other = change(&[("type", "io2"), ("iops", "5000")]).expect("fine");
        assert_eq!((other.kind, other.iops, other.throughput), (Kind::Io2, Some(5000), None));
        assert!(change(&[("type", "io2")]).is_err(), "not the IOPS of gp3");
        assert!(Rates::parse(&raw(&[("encrypted", "true")])).is_err(), "it is what it is");
    }
}
