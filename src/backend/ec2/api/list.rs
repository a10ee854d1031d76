//! What is asked for many at once: by ids, or by filters and page by page.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Ec2;
use super::query::{self, Filter, Query};
use crate::backend::cloud::bucket::Purpose;
use crate::backend::cloud::retry::Repeat;
use crate::backend::cloud::{Answer, CloudErrorKind, Page, pages};

/// The most ids that one request takes.
pub const MOST_IDS: usize = 500;
/// The most values of filters that one request takes.
pub const MOST_VALUES: usize = 200;

/// Which are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// Any number; those that do not exist are missing from the answer, which has all others and no next page.
    Ids(Vec<String>),
    /// A page of those that pass all filters; the token is an earlier page's `next`. It may be short or empty and have a `next`.
    Filtered { filters: Vec<Filter>, token: Option<String> },
    /// As `Filtered`, of a list of all there is: no call waits for a single one of them, and there may be many pages.
    All { filters: Vec<Filter>, token: Option<String> },
}

/// A `Describe` action.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listing {
    pub action: &'static str,
    /// The parameter of ids.
    pub id: &'static str,
    /// The filter by id.
    pub id_filter: &'static str,
    /// The most that a page has.
    pub page: u32,
    /// What goes with each page of a filtered list.
    pub with: &'static [(&'static str, &'static str)],
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
struct Reply<T> {
    // There must be one of these: an answer without is none.
    #[serde(
        rename = "volumeSet",
        alias = "availabilityZoneInfo",
        alias = "fastSnapshotRestoreSet",
        alias = "instanceTypeSet",
        alias = "reservationSet",
        alias = "snapshotSet",
        alias = "volumeModificationSet",
        alias = "volumeStatusSet",
        deserialize_with = "query::items"
    )]
    items: Vec<T>,
    #[serde(rename = "nextToken", default, deserialize_with = "query::some")]
    next: Option<String>,
}

impl Ec2 {
    pub(super) fn select<T: DeserializeOwned>(&self, listing: Listing, select: &Select) -> Answer<Page<T>> {
        match select {
            Select::Ids(ids) => {
                let mut items = Vec::new();
                for ids in ids.chunks(MOST_IDS) {
                    items.extend(self.by_ids(listing, ids)?);
                }
                Ok(Page { items, next: None })
            }
            Select::Filtered { filters, token } | Select::All { filters, token } => {
                let purpose = if matches!(select, Select::All { .. }) { Purpose::List } else { Purpose::Call };
                let query = Query::new(listing.action, Repeat::Reads)
                    .for_purpose(purpose)
                    .filters(filters)
                    .set("MaxResults", listing.page);
                let query = listing.with.iter().fold(query, |query, (name, value)| query.set(name, value));
                self.page(&query.may_set("NextToken", token.as_deref()))
            }
        }
    }

    /// EC2 refuses the whole request where one id is of nothing, so the rest is asked for by a filter, which never fails. Ids come
    /// first: more of them go into a request.
    fn by_ids<T: DeserializeOwned>(&self, listing: Listing, ids: &[String]) -> Answer<Vec<T>> {
        // A page's size must not be sent with ids.
        let query = Query::new(listing.action, Repeat::Reads).list(listing.id, ids);
        match self.all(&query) {
            Err(refusal) if matches!(refusal.because, CloudErrorKind::NotFound | CloudErrorKind::NoInstance) => {
                let mut items = Vec::new();
                // A single one is what does not exist.
                for ids in ids.chunks(MOST_VALUES).filter(|_| ids.len() > 1) {
                    let filter = Filter::new(listing.id_filter, ids);
                    items.extend(self.all(&Query::new(listing.action, Repeat::Reads).filters(&[filter]))?);
                }
                Ok(items)
            }
            answer => answer,
        }
    }

    /// All pages.
    pub(super) fn all<T: DeserializeOwned>(&self, query: &Query) -> Answer<Vec<T>> {
        pages::all(query.action, |token| self.page(&query.clone().may_set("NextToken", token)))
    }

    fn page<T: DeserializeOwned>(&self, query: &Query) -> Answer<Page<T>> {
        let Reply { items, next } = self.query(query)?;
        Ok(Page { items, next })
    }
}
