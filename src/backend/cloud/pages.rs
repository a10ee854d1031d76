//! Lists come in pages: what clouds share that page by tokens.
//!
//! Only the last page ends a list: one may be short, or empty, and still have a successor (EC2 API reference, DescribeVolumes: "If
//! NextToken is present there are more"; boto3 issue 1776 and aws-cli issue 3928 for filters by tag). What is missing from a page is
//! missing from the list only when all pages were read.

use std::collections::BTreeSet;

use super::api::{Answer, CloudErrorKind, Refusal};

/// More pages than this are no list.
const MOST_PAGES: usize = 10_000;
/// More empty pages than this in a row lead nowhere: 500 resources of others can be behind each.
const MOST_EMPTY: usize = 500;

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Where it continues.
    pub next: Option<String>,
}

/// How far a list has been read.
#[derive(Debug)]
pub struct Pages {
    action: &'static str,
    tokens: BTreeSet<String>,
    empty: usize,
}

impl Pages {
    pub fn new(action: &'static str) -> Pages {
        Pages { action, tokens: BTreeSet::new(), empty: 0 }
    }

    /// The token of the page after this one; `None` at the end of the list.
    ///
    /// # Errors
    /// `Unavailable` for a list that does not end: a token that came before, or too many pages. What was read of it is no list.
    pub fn after(&mut self, is_empty: bool, next: Option<String>) -> Answer<Option<String>> {
        let Some(token) = next else { return Ok(None) };
        self.empty = if is_empty { self.empty + 1 } else { 0 };
        let why = if !self.tokens.insert(token.clone()) {
            "a page's NextToken is that of an earlier page".to_owned()
        } else if self.empty > MOST_EMPTY {
            format!("{MOST_EMPTY} pages in a row are empty")
        } else if self.tokens.len() > MOST_PAGES {
            format!("it does not end after {MOST_PAGES} pages")
        } else {
            return Ok(Some(token));
        };
        Err(Refusal {
            because: CloudErrorKind::Unavailable,
            action: self.action,
            code: "endless list".to_owned(),
            message: format!("{why}; what was read so far is not complete, and nothing was concluded from it"),
            request_id: None,
            maybe_done: false,
            retry_after: None,
        })
    }
}

/// All of a list; `fetch` reads the first page, or the one that a token names.
///
/// # Errors
/// Where a page could not be read, or the list does not end: never a part of it.
pub fn all<T>(action: &'static str, fetch: impl FnMut(Option<&str>) -> Answer<Page<T>>) -> Answer<Vec<T>> {
    let mut items = Vec::new();
    each(action, fetch, |page| items.extend(page))?;
    Ok(items)
}

/// As [`all`], but `take` gets each page as it comes: what it made of them is of no list where this fails.
///
/// # Errors
/// As `all`.
pub fn each<T>(
    action: &'static str,
    mut fetch: impl FnMut(Option<&str>) -> Answer<Page<T>>,
    mut take: impl FnMut(Vec<T>),
) -> Answer<()> {
    let mut pages = Pages::new(action);
    let mut token: Option<String> = None;
    loop {
        let page = fetch(token.as_deref())?;
        token = pages.after(page.items.is_empty(), page.next)?;
        take(page.items);
        if token.is_none() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(items: &[u32], next: Option<usize>) -> Page<u32> {
        Page { items: items.to_vec(), next: next.map(|token| token.to_string()) }
    }

    #[test]
    fn list_with_empty_and_short_pages_is_read_to_its_end() {
        let pages = [page(&[], Some(1)), page(&[7], Some(2)), page(&[], Some(3)), page(&[8, 9], None)];
        let fetch = |token: Option<&str>| Ok(pages[token.map_or(0, |token| token.parse().expect("a token"))].clone());
        assert_eq!(all("list", fetch).expect("read"), [7, 8, 9]);
    }

    #[test]
    fn list_without_an_end_is_an_error() {
        let again = all("list", |_| Ok(page(&[7], Some(1)))).expect_err("the same token");
        assert!(again.message.contains("NextToken"), "{again}");
        let mut asked = 0;
        let empty = all("list", |_| {
            asked += 1;
            Ok(page(&[], Some(asked)))
        });
        assert!(empty.expect_err("empty for ever").message.contains("empty"));
        assert!(asked <= MOST_EMPTY + 1, "{asked}");
        let full = all("list", |token| Ok(page(&[7], Some(token.map_or(0, |token| token.parse::<usize>().expect("ours") + 1)))));
        assert!(full.expect_err("for ever").message.contains("does not end"));
    }

    #[test]
    fn list_whose_page_is_refused_is_no_list() {
        let refused = all("list", |token| match token {
            None => Ok(page(&[7], Some(1))),
            Some(_) => Err(super::super::tests::fake::refusal("list", CloudErrorKind::Throttled)),
        });
        assert_eq!(refused.expect_err("refused").because, CloudErrorKind::Throttled);
    }
}
