//! The IP addresses of this host, and which of them is an RDMA device's.

use crate::verbs::cm::{CmId, EventChannel};
use crate::verbs::{Library, VerbsError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// An address by which others reach the device through rdma_cm: an IPv4 address before one of IPv6, loopback last. `None`:
/// it has none.
///
/// # Errors
/// rdma_cm cannot be used.
pub fn address_of(library: &Arc<Library>, device: &str) -> Result<Option<IpAddr>, VerbsError> {
    let channel = EventChannel::new(library)?;
    let is_its = |ip: &IpAddr| {
        let id = CmId::new(&channel).ok()?;
        // Of addresses that no device has, or another one, nothing more is to be known.
        id.bind(SocketAddr::new(*ip, 0)).ok()?;
        (id.device()? == device).then_some(())
    };
    let mut addresses = own_addresses();
    addresses.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
    Ok(addresses.into_iter().take(ADDRESSES_MAX).find(|ip| is_its(ip).is_some()))
}

fn own_addresses() -> Vec<IpAddr> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let mut addresses = ipv4_addresses(&read("/proc/net/fib_trie"));
    addresses.extend(ipv6_addresses(&read("/proc/net/if_inet6")));
    addresses
}

/// From the kernel's routing table: `|-- ADDRESS`, and below it that it is a host's and this one's.
fn ipv4_addresses(table: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let mut last = None;
    for line in table.lines() {
        if let Some(address) = line.trim().strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line.contains("/32 host LOCAL")
            && let Some(address) = last.map(IpAddr::V4)
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// From the kernel's list: 32 hexadecimal digits, the number of the interface, bits of the prefix, scope, flags, name.
/// Addresses that count on one link only would need that link to be named.
fn ipv6_addresses(list: &str) -> Vec<IpAddr> {
    const GLOBAL: &str = "00";
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_global = *words.get(3)? == GLOBAL;
        let address = u128::from_str_radix(words.first()?, 16).ok()?;
        is_global.then(|| IpAddr::V6(Ipv6Addr::from(address)))
    };
    list.lines().filter_map(parse).collect()
}

/// Hosts with more are asked no further.
const ADDRESSES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_writes_them() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     +-- 10.0.2.0/24 2 0 2\n\
            \x20       |-- 10.0.2.0\n           /24 link UNICAST\n        |-- 10.0.2.15\n           /32 host LOCAL\n\
            \x20       |-- 10.0.2.255\n           /32 link BROADCAST\nLocal:\n        |-- 10.0.2.15\n           /32 host LOCAL\n\
            \x20       |-- 127.0.0.1\n           /32 host LOCAL\n";
        assert_eq!(ipv4_addresses(table), ["10.0.2.15".parse::<IpAddr>().unwrap(), "127.0.0.1".parse().unwrap()]);
        let list = "00000000000000000000000000000001 01 80 10 80       lo\n\
            fe800000000000005054000000123456 02 40 20 80     eth0\n\
            20010db8000000000000000000000007 02 40 00 00     eth0\nnonsense\n";
        assert_eq!(ipv6_addresses(list), ["2001:db8::7".parse::<IpAddr>().unwrap()]);
        assert!(own_addresses().contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)), "this host");
    }
}
