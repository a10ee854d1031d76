//! Where nodes may log in: a PersistentVolume names portals, a target names more (discovery) and sends a login elsewhere (redirect).

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::os::iscsi::Portal;

/// Networks and addresses, each with a port or with any. Without one everything is allowed.
#[derive(Clone, Debug, Default)]
pub(super) struct AllowedPortals(Vec<Network>);

#[derive(Clone, Debug)]
struct Network {
    address: IpAddr,
    /// How many bits of it count.
    bits: u8,
    port: Option<u16>,
}

impl AllowedPortals {
    /// # Errors
    /// Why a text is no network.
    pub fn parse(texts: &[String]) -> Result<AllowedPortals, String> {
        texts.iter().map(|text| text.parse()).collect::<Result<_, _>>().map(AllowedPortals)
    }

    /// Whether a session may be used that is connected to `peer`, which is another address than its portal's where the target redirected
    /// the login.
    ///
    /// # Errors
    /// Why not; `None` where it has no connection, so that it is not known.
    pub fn check_peer(&self, peer: Option<SocketAddr>) -> Result<(), Option<String>> {
        match peer {
            _ if self.is_open() => Ok(()),
            Some(peer) if self.permits(peer) => Ok(()),
            Some(peer) => {
                Err(Some(format!("it redirected the login to {peer}, which is not among the backend's allowedPortals")))
            }
            None => Err(None),
        }
    }

    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    pub fn permits(&self, address: SocketAddr) -> bool {
        self.is_open() || self.0.iter().any(|network| network.holds(address))
    }

    /// Whether a portal may be connected to; a name, which may mean another address the next time, may not.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, portal: &Portal) -> Result<(), String> {
        if self.is_open() {
            return Ok(());
        }
        let Ok(address) = portal.host().parse::<IpAddr>() else {
            return Err(format!("portal {portal} is a name; with allowedPortals a volume must give the address"));
        };
        match self.permits((address, portal.port()).into()) {
            true => Ok(()),
            false => {
                Err(format!("portal {portal} is not among the backend's allowedPortals; correct the volume, or allow it there"))
            }
        }
    }
}

impl Network {
    fn holds(&self, address: SocketAddr) -> bool {
        if self.port.is_some_and(|port| port != address.port()) {
            return false;
        }
        match (self.address, address.ip().to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                (own.to_bits() ^ ip.to_bits()).checked_shr(32 - u32::from(self.bits)).unwrap_or_default() == 0
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => {
                (own.to_bits() ^ ip.to_bits()).checked_shr(128 - u32::from(self.bits)).unwrap_or_default() == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            return Ok(Network { address: address.ip(), bits, port: Some(address.port()) });
        }
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let wrong = || format!("{text:?} is no network; write 192.0.2.0/24, 2001:db8::/64, 192.0.2.1 or 192.0.2.1:3260");
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), str::parse).ok().filter(|bits| *bits <= most).ok_or_else(wrong)?;
        Ok(Network { address, bits, port: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(texts: &[&str]) -> AllowedPortals {
        AllowedPortals::parse(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).expect("networks")
    }

    #[test]
    fn portal_outside_of_all_networks_is_refused() {
        let list = allowed(&["192.0.2.0/25", "2001:db8::/64", "198.51.100.1:3260", "203.0.113.7"]);
        for portal in ["192.0.2.1", "192.0.2.127:860", "[2001:db8::ffff]:1", "198.51.100.1:3260", "203.0.113.7:99"] {
            assert_eq!(list.check(&portal.parse().expect("a portal")), Ok(()), "{portal}");
        }
        for portal in ["192.0.2.128", "[2001:db8:0:1::1]", "198.51.100.1:860", "203.0.113.8", "[::ffff:203.0.113.8]"] {
            let error = list.check(&portal.parse().expect("a portal")).expect_err(portal);
            assert!(error.contains("allowedPortals"), "{error}");
        }
        assert!(list.check(&"san.example.org".parse().expect("a portal")).is_err(), "a name may mean another address later");
        assert!(list.permits("[::ffff:203.0.113.7]:1".parse().expect("an address")), "IPv4 in an IPv6 socket");
    }

    #[test]
    fn session_that_was_redirected_outside_of_all_networks_is_refused() {
        let list = allowed(&["192.0.2.0/24", "198.51.100.1:3260"]);
        let peer = |text: &str| Some(text.parse().expect("an address"));
        for permitted in ["192.0.2.9:860", "198.51.100.1:3260"] {
            assert_eq!(list.check_peer(peer(permitted)), Ok(()), "{permitted}");
        }
        for refused in ["203.0.113.1:3260", "198.51.100.1:860", "[2001:db8::1]:3260", "127.0.0.1:3260"] {
            let reason = list.check_peer(peer(refused)).expect_err(refused).expect("it is connected");
            assert!(reason.contains("redirected the login to") && reason.contains(refused), "{reason}");
        }
        assert_eq!(list.check_peer(None), Err(None), "where it is connected to is not known");
        for any in [None, peer("203.0.113.1:3260")] {
            assert_eq!(AllowedPortals::default().check_peer(any), Ok(()));
        }
    }

    #[test]
    fn everything_is_allowed_without_a_list_and_by_whole_networks() {
        assert_eq!(AllowedPortals::default().check(&"san.example.org".parse().expect("a portal")), Ok(()));
        assert!(AllowedPortals::default().permits("[2001:db8::1]:1".parse().expect("an address")));
        assert!(allowed(&["0.0.0.0/0"]).permits("192.0.2.1:1".parse().expect("an address")));
        assert!(!allowed(&["0.0.0.0/0"]).permits("[2001:db8::1]:1".parse().expect("an address")));
        assert!(allowed(&["::/0"]).permits("[2001:db8::1]:1".parse().expect("an address")));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in
            ["", "san.example.org", "192.0.2.0/33", "192.0.2.0/", "192.0.2.0/-1", "2001:db8::/129", "192.0.2.1:70000", "a/8"]
        {
            assert!(AllowedPortals::parse(&[text.to_owned()]).is_err(), "{text:?}");
        }
    }
}
