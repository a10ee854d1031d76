//! Who is connected over HTTP: so many in all and so many of a peer, and who comes last always gets in.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::os::lock;

/// Connections at once.
const MOST: usize = 256;
/// Connections of one peer at once. The kubelet has three probes, a scraper one or two.
const MOST_OF_PEER: usize = 32;

/// Those who are connected.
#[derive(Clone, Default)]
pub(super) struct Crowd(Arc<Mutex<Places>>);

#[derive(Default)]
struct Places {
    next: u64,
    /// By the order in which they came.
    taken: BTreeMap<u64, Taken>,
}

struct Taken {
    peer: IpAddr,
    /// Its request is there and is being answered.
    asked: bool,
    /// Dropped to tell it that it must go.
    _stay: oneshot::Sender<()>,
}

/// A place of one connection, which it leaves when this is dropped.
pub(super) struct Place {
    number: u64,
    crowd: Crowd,
}

impl Crowd {
    /// Always lets in. Who has too many loses one of its own; where all are too many, anyone who has most loses one: the oldest that
    /// has asked nothing yet, or else the oldest. What is returned with the place ends when this one must go.
    pub fn enter(&self, peer: IpAddr) -> (Place, oneshot::Receiver<()>) {
        let peer = one_of(peer);
        let (stay, gone) = oneshot::channel();
        let mut places = self.places();
        if places.taken.values().filter(|taken| taken.peer == peer).count() >= MOST_OF_PEER {
            places.drop_oldest(|taken| taken.peer == peer);
        } else if places.taken.len() >= MOST {
            let mut of = BTreeMap::<IpAddr, usize>::new();
            places.taken.values().for_each(|taken| *of.entry(taken.peer).or_default() += 1);
            let most = of.values().copied().max().unwrap_or_default();
            places.drop_oldest(|taken| of[&taken.peer] == most);
        }
        let number = places.next;
        places.next += 1;
        places.taken.insert(number, Taken { peer, asked: false, _stay: stay });
        (Place { number, crowd: self.clone() }, gone)
    }

    fn places(&self) -> std::sync::MutexGuard<'_, Places> {
        lock(&self.0)
    }
}

impl Places {
    fn drop_oldest(&mut self, among: impl Fn(&Taken) -> bool) {
        let oldest = |asked| self.taken.iter().find(|(_, taken)| taken.asked == asked && among(taken)).map(|(number, _)| *number);
        if let Some(number) = oldest(false).or_else(|| oldest(true)) {
            self.taken.remove(&number);
        }
    }
}

impl Place {
    /// Its request is there.
    pub fn asked(&self) {
        if let Some(taken) = self.crowd.places().taken.get_mut(&self.number) {
            taken.asked = true;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd.places().taken.remove(&self.number);
    }
}

/// Anyone who has an IPv6 address mostly has the 2^64 beside it too.
fn one_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u32) -> IpAddr {
        IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a00_0000 + last))
    }

    #[test]
    fn a_peer_that_has_too_many_loses_its_own_oldest() {
        let crowd = Crowd::default();
        let other = crowd.enter(peer(1));
        let mut many: Vec<_> = (0..=MOST_OF_PEER).map(|_| crowd.enter(peer(2))).collect();
        let ended: Vec<bool> =
            many.iter_mut().map(|(_, gone)| gone.try_recv() == Err(oneshot::error::TryRecvError::Closed)).collect();
        assert_eq!(ended.iter().filter(|ended| **ended).count(), 1);
        assert!(ended[0], "the oldest");
        let (_place, mut gone) = other;
        assert_eq!(gone.try_recv(), Err(oneshot::error::TryRecvError::Empty), "another peer is not concerned");
    }

    #[test]
    fn when_it_is_full_those_who_ask_nothing_go_first() {
        let crowd = Crowd::default();
        let mut all: Vec<_> = (0..MOST).map(|at| crowd.enter(peer(at as u32))).collect();
        all[0].0.asked();
        let _last = crowd.enter(peer(70_000));
        let mut ended = |at: usize| all[at].1.try_recv() == Err(oneshot::error::TryRecvError::Closed);
        assert!(!ended(0) && ended(1) && !ended(2), "the first is being answered");
        all.iter().for_each(|(place, _)| place.asked());
        let _latest = crowd.enter(peer(70_001));
        assert!(all[0].1.try_recv().is_err() && crowd.places().taken.len() == MOST, "all are being answered: the oldest goes");
    }

    #[test]
    fn peer_with_few_connections_is_not_displaced_by_one_with_many() {
        let crowd = Crowd::default();
        let (_probe, mut gone) = crowd.enter(peer(1));
        let _many: Vec<_> = (0..4 * MOST).map(|at| crowd.enter(peer(2 + at as u32 % 64))).collect();
        assert_eq!(gone.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    }

    #[test]
    fn closed_connection_makes_room_and_an_ipv6_network_is_one_peer() {
        let crowd = Crowd::default();
        drop(crowd.enter(peer(1)));
        assert!(crowd.places().taken.is_empty());
        let one = |text: &str| one_of(text.parse().expect("an address"));
        assert_eq!(one("2001:db8::1"), one("2001:db8::ffff:1"));
        assert_ne!(one("2001:db8::1"), one("2001:db8:0:1::1"));
        assert_eq!(one("::ffff:10.0.0.1"), one("10.0.0.1"));
    }
}
