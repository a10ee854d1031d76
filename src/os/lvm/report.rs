//! What a volume group has, by LVM's own report (lvmreport(7), `lvm fullreport --reportformat json`).

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Error, Result};

/// What is asked for, by subreport. Fields of segments are none of their logical volume's: LVM refuses them there.
pub(super) const FIELDS: [(&str, &str); 4] = [
    ("vg", "vg_name,vg_uuid,vg_size,vg_free,vg_extent_size,vg_missing_pv_count,vg_mda_size,vg_mda_free"),
    (
        "lv",
        "lv_name,lv_uuid,lv_size,lv_tags,lv_dm_path,lv_layout,pool_lv,origin,lv_active,lv_device_open,data_percent,metadata_percent,\
         lv_health_status,lv_time",
    ),
    ("pv", "pv_name,pv_uuid,pv_size,pv_free,pv_missing,pv_allocatable"),
    ("seg", "lv_uuid,zero,thin_id,seg_pe_ranges"),
];
/// Subreports that nobody reads have one short field: LVM prints all of them.
pub(super) const UNUSED: (&str, &str) = ("pvseg", "pvseg_start");

/// A volume group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub uuid: String,
    /// Bytes.
    pub size: u64,
    pub free: u64,
    pub extent: u64,
    pub missing: u64,
    /// Bytes of the metadata area, and what is free of them.
    pub metadata_size: u64,
    pub metadata_free: u64,
    pub pvs: Vec<Pv>,
    /// By name; hidden ones without their brackets.
    pub lvs: BTreeMap<String, Lv>,
}

/// A physical volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pv {
    pub name: String,
    pub uuid: String,
    pub size: u64,
    pub free: u64,
    pub missing: bool,
    pub allocatable: bool,
}

impl Pv {
    /// Whether its device is there, though LVM counts it as missing: it was, while the metadata was written.
    pub fn is_back(&self) -> bool {
        self.missing && self.name.starts_with('/')
    }
}

/// A logical volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lv {
    pub name: String,
    pub uuid: String,
    pub size: u64,
    pub tags: Vec<String>,
    /// `/dev/mapper/...`
    pub dm_path: String,
    /// Such as `linear`, `thin,sparse`, `thin,pool`, `raid,raid1`.
    pub layout: Vec<String>,
    pub pool: Option<String>,
    pub origin: Option<String>,
    pub active: bool,
    pub open: bool,
    /// Of a thin pool, or a thin volume: hundredths of a percent. `None` where it is not active.
    pub data: Option<u32>,
    pub metadata: Option<u32>,
    /// Empty where LVM knows of nothing wrong.
    pub health: String,
    /// Of a RAID with checksums: how often what a disk read back did not match its checksum, since the logical volume was activated.
    pub mismatches: u64,
    /// `2026-11-25 12:10:04 +0000`
    pub created: String,
    /// Of a thin pool: chunks are zeroed before they are shown.
    pub zeroes: bool,
    /// Of a thin volume: by what its pool knows it.
    pub thin_id: Option<u64>,
    /// `/dev/sda:0-12`, of what it lies on.
    pub ranges: Vec<String>,
}

impl Lv {
    pub fn is(&self, layout: &str) -> bool {
        self.layout.iter().any(|one| one == layout)
    }

    pub fn has_tag(&self, tag: &str) -> bool {
        self.tags.iter().any(|one| one == tag)
    }

    /// What the value of the tag `key=value` is.
    pub fn tag(&self, key: &str) -> Option<&str> {
        self.tags.iter().find_map(|tag| tag.strip_prefix(key)?.strip_prefix('='))
    }
}

#[cfg(test)]
impl Lv {
    /// For tests: inactive, and a byte long.
    pub fn named(name: &str, tags: Vec<String>) -> Lv {
        Lv {
            name: name.to_owned(),
            uuid: "u".to_owned(),
            size: 1,
            tags,
            dm_path: String::new(),
            layout: Vec::new(),
            pool: None,
            origin: None,
            active: false,
            open: false,
            data: None,
            metadata: None,
            health: String::new(),
            mismatches: 0,
            created: String::new(),
            zeroes: false,
            thin_id: None,
            ranges: Vec::new(),
        }
    }
}

#[cfg(test)]
impl Report {
    /// For tests: extents of 4 MiB on no physical volume.
    pub fn of(lvs: impl IntoIterator<Item = Lv>) -> Report {
        Report {
            uuid: String::new(),
            size: 0,
            free: 0,
            extent: 4 << 20,
            missing: 0,
            metadata_size: 1,
            metadata_free: 1,
            pvs: Vec::new(),
            lvs: lvs.into_iter().map(|lv| (lv.name.clone(), lv)).collect(),
        }
    }
}

/// As people read what [`Lv::data`] and [`Lv::metadata`] are.
pub fn in_percent(hundredths: Option<u32>) -> String {
    hundredths.map_or_else(|| "an unknown part".to_owned(), |part| format!("{}.{:02} %", part / 100, part % 100))
}

type Row = BTreeMap<String, String>;

#[derive(Deserialize)]
struct Answer {
    report: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    vg: Vec<Row>,
    #[serde(default)]
    pv: Vec<Row>,
    #[serde(default)]
    lv: Vec<Row>,
    #[serde(default)]
    seg: Vec<Row>,
}

/// Parses the report of one volume group.
///
/// # Errors
/// `Unexpected` where it is not of this form, or two volume groups have the name.
pub fn parse(name: &str, json: &str) -> Result<Report> {
    let unexpected = |reason: String| Error::Unexpected { object: format!("the report of volume group {name}"), reason };
    let answer: Answer = serde_json::from_str(json).map_err(|error| unexpected(error.to_string()))?;
    let mut parts: Vec<&Part> = answer.report.iter().filter(|part| !part.vg.is_empty()).collect();
    let part = match (parts.pop(), parts.is_empty()) {
        (Some(part), true) => part,
        (None, _) => return Err(unexpected("it is empty".to_owned())),
        (Some(_), false) => {
            return Err(unexpected("several volume groups have this name; rename one by its UUID (vgrename)".to_owned()));
        }
    };
    let vg = Fields { row: part.vg.first().unwrap_or(&Row::new()).clone(), name };
    let mut segments: BTreeMap<&str, Segments> = BTreeMap::new();
    for row in &part.seg {
        let Some(uuid) = row.get("lv_uuid") else { continue };
        let all = segments.entry(uuid).or_default();
        all.zeroes |= row.get("zero").is_some_and(|zero| zero == "zero");
        all.thin_id = all.thin_id.or(row.get("thin_id").and_then(|id| id.parse().ok()));
        all.ranges.extend(words(row.get("seg_pe_ranges"), ' '));
    }
    let mut lvs = BTreeMap::new();
    for row in &part.lv {
        let lv = Fields { row: row.clone(), name }.lv(&segments)?;
        lvs.insert(lv.name.clone(), lv);
    }
    Ok(Report {
        uuid: vg.text("vg_uuid")?,
        size: vg.number("vg_size")?,
        free: vg.number("vg_free")?,
        extent: vg.number("vg_extent_size")?,
        missing: vg.number("vg_missing_pv_count")?,
        metadata_size: vg.number("vg_mda_size")?,
        metadata_free: vg.number("vg_mda_free")?,
        pvs: part.pv.iter().map(|row| Fields { row: row.clone(), name }.pv()).collect::<Result<_>>()?,
        lvs,
    })
}

/// What is said of a logical volume by its segments.
#[derive(Clone, Default)]
struct Segments {
    zeroes: bool,
    thin_id: Option<u64>,
    ranges: Vec<String>,
}

fn words(text: Option<&String>, separator: char) -> Vec<String> {
    text.map_or("", String::as_str).split(separator).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

struct Fields<'a> {
    row: Row,
    name: &'a str,
}

impl Fields<'_> {
    fn text(&self, field: &str) -> Result<String> {
        self.row.get(field).cloned().ok_or_else(|| self.wrong(field, "is missing"))
    }

    fn number(&self, field: &str) -> Result<u64> {
        let text = self.text(field)?;
        text.parse().map_err(|_| self.wrong(field, &format!("is {text:?}, not a number")))
    }

    fn some(&self, field: &str) -> Option<String> {
        self.row.get(field).filter(|text| !text.is_empty()).cloned()
    }

    /// `12.34` as 1234.
    fn percent(&self, field: &str) -> Option<u32> {
        let text = self.some(field)?;
        let (whole, hundredths) = text.split_once('.').unwrap_or((&text, "00"));
        Some(whole.parse::<u32>().ok()?.checked_mul(100)? + hundredths.get(..2)?.parse::<u32>().ok()?)
    }

    fn wrong(&self, field: &str, what: &str) -> Error {
        Error::Unexpected {
            object: format!("the report of volume group {}", self.name),
            reason: format!("its field {field} {what}"),
        }
    }

    fn pv(&self) -> Result<Pv> {
        Ok(Pv {
            name: self.text("pv_name")?,
            uuid: self.text("pv_uuid")?,
            size: self.number("pv_size")?,
            free: self.number("pv_free")?,
            missing: self.some("pv_missing").is_some(),
            allocatable: self.some("pv_allocatable").is_some(),
        })
    }

    fn lv(&self, segments: &BTreeMap<&str, Segments>) -> Result<Lv> {
        let uuid = self.text("lv_uuid")?;
        let Segments { zeroes, thin_id, ranges } = segments.get(uuid.as_str()).cloned().unwrap_or_default();
        Ok(Lv {
            name: self.text("lv_name")?.trim_matches(['[', ']']).to_owned(),
            size: self.number("lv_size")?,
            tags: words(self.row.get("lv_tags"), ','),
            dm_path: self.text("lv_dm_path")?,
            layout: words(self.row.get("lv_layout"), ','),
            pool: self.some("pool_lv"),
            origin: self.some("origin"),
            active: self.text("lv_active")? == "active",
            open: self.text("lv_device_open")? == "open",
            data: self.percent("data_percent"),
            metadata: self.percent("metadata_percent"),
            health: self.text("lv_health_status")?,
            mismatches: self.some("integritymismatches").and_then(|text| text.parse().ok()).unwrap_or(0),
            created: self.text("lv_time")?,
            zeroes,
            thin_id,
            ranges,
            uuid,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As LVM 2.03.16 prints it.
    const JSON: &str = r#"{"report": [{
        "vg": [{"vg_name":"vg0", "vg_uuid":"jys6HF-55CH-OhFz-4x7m-TSxc-Rj3i-VCD0cP", "vg_size":"2139095040", "vg_free":"1656750080",
                "vg_extent_size":"4194304", "vg_missing_pv_count":"0", "vg_mda_size":"1044480", "vg_mda_free":"518656"}],
        "pv": [{"pv_name":"/dev/loop0", "pv_uuid":"dl05J8-0hoA-Y76q-rzdM-rFdB-EExZ-i4GmLp", "pv_size":"1069547520", "pv_free":"591396864",
                "pv_missing":"", "pv_allocatable":"allocatable"}],
        "lv": [{"lv_name":"[pool_tdata]", "lv_uuid":"a", "lv_size":"419430400", "lv_tags":"", "lv_dm_path":"/dev/mapper/vg0-pool_tdata",
                "lv_layout":"linear", "pool_lv":"", "origin":"", "lv_active":"active", "lv_device_open":"open", "data_percent":"",
                "metadata_percent":"", "lv_health_status":"", "lv_time":"2026-11-25 12:10:03 +0000"},
               {"lv_name":"pool", "lv_uuid":"b", "lv_size":"419430400", "lv_tags":"", "lv_dm_path":"/dev/mapper/vg0-pool",
                "lv_layout":"thin,pool", "pool_lv":"", "origin":"", "lv_active":"active", "lv_device_open":"open", "data_percent":"2.20",
                "metadata_percent":"11.43", "lv_health_status":"", "lv_time":"2026-11-25 12:10:03 +0000"},
               {"lv_name":"thin1", "lv_uuid":"c", "lv_size":"104857600", "lv_tags":"longshore,longshore.id=a:b",
                "lv_dm_path":"/dev/mapper/vg0-thin1", "lv_layout":"thin,sparse", "pool_lv":"pool", "origin":"", "lv_active":"",
                "lv_device_open":"unknown", "data_percent":"", "metadata_percent":"", "lv_health_status":"",
                "lv_time":"2026-11-25 12:10:04 +0000"}],
        "pvseg": [{"pvseg_start":"0"}],
        "seg": [{"lv_uuid":"a", "zero":"unknown", "seg_pe_ranges":"/dev/loop0:14-113"}, {"lv_uuid":"a", "zero":"", "seg_pe_ranges":"/dev/loop0:7-8"},
                {"lv_uuid":"b", "zero":"zero", "seg_pe_ranges":"pool_tdata:0-99"}, {"lv_uuid":"c", "zero":"zero", "thin_id":"7", "seg_pe_ranges":""}]
    }]}"#;

    #[test]
    fn report_has_what_lvm_prints() {
        let report = parse("vg0", JSON).expect("as LVM prints it");
        assert_eq!((report.size, report.free, report.extent, report.missing), (2_139_095_040, 1_656_750_080, 4 << 20, 0));
        assert_eq!((report.pvs.len(), report.pvs[0].free, report.pvs[0].missing), (1, 591_396_864, false));
        let pool = &report.lvs["pool"];
        assert_eq!((pool.data, pool.metadata, pool.zeroes, pool.is("pool")), (Some(220), Some(1143), true, true));
        let thin = &report.lvs["thin1"];
        assert_eq!(
            (thin.pool.as_deref(), thin.active, thin.open, thin.tag("longshore.id")),
            (Some("pool"), false, false, Some("a:b"))
        );
        assert_eq!(report.lvs["pool_tdata"].ranges, ["/dev/loop0:14-113", "/dev/loop0:7-8"]);
    }

    #[test]
    fn damaged_report_is_no_empty_volume_group() {
        for json in [
            "",
            "{}",
            r#"{"report": []}"#,
            r#"{"report": [{"lv": []}]}"#,
            &JSON.replace("\"vg_free\":\"1656750080\",", ""),
            &JSON.replace("104857600", "100.00m"),
        ] {
            assert!(parse("vg0", json).is_err(), "{json}");
        }
        let two = JSON.replace(r#"{"report": ["#, r#"{"report": [{"vg": [{"vg_name":"vg0"}]}, "#);
        assert!(parse("vg0", &two).expect_err("two of one name").to_string().contains("vgrename"));
    }
}
