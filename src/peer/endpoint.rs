//! What another engine needs to connect, as bytes and as text.

use super::{KeyId, base64};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// An engine as long as it runs: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(pub [u8; 16]);

/// How to reach an engine. Frameworks send such blobs to each other by ways of their own; nothing in it is secret, and
/// nothing in it is believed: who answers there still has to prove that it has the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    identity: Identity,
    key: Option<KeyId>,
    addresses: Vec<SocketAddr>,
}

/// Bytes of an endpoint at most, whatever its version.
pub const ENDPOINT_BYTES_MAX: usize = 1024;
/// Addresses of an endpoint at most.
pub const ADDRESSES_MAX: usize = 8;

/// Why there is no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Other bytes, or a piece of an endpoint.
    #[error("not an endpoint, or not all of it")]
    Malformed,
    /// Of a later version.
    #[error("an endpoint of version {0}, which this version does not know")]
    Version(u8),
    /// There must be at least one address, and eight at most.
    #[error("{0} addresses; an endpoint has 1 to 8")]
    Addresses(usize),
    /// Nobody can be reached at port 0, or at an address that means every address.
    #[error("{0} is no address to connect to")]
    NoTarget(SocketAddr),
}

impl Endpoint {
    /// An engine at these addresses, to be tried in this order.
    ///
    /// # Errors
    /// None or too many addresses, or one that cannot be connected to.
    pub fn new(identity: Identity, key: Option<KeyId>, addresses: &[SocketAddr]) -> Result<Endpoint, EndpointError> {
        if !(1..=ADDRESSES_MAX).contains(&addresses.len()) {
            return Err(EndpointError::Addresses(addresses.len()));
        }
        // What IPv6 knows besides (flow, scope) means nothing on another host.
        let addresses: Vec<SocketAddr> = addresses.iter().map(|a| SocketAddr::new(a.ip(), a.port())).collect();
        match addresses.iter().find(|a| a.port() == 0 || a.ip().is_unspecified()) {
            Some(address) => Err(EndpointError::NoTarget(*address)),
            None => Ok(Endpoint { identity, key, addresses }),
        }
    }

    /// Which engine it was.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Its first key, `None` if it has none.
    #[must_use]
    pub fn key(&self) -> Option<KeyId> {
        self.key
    }

    /// Where it listens, in the order to try.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// At most [`ENDPOINT_BYTES_MAX`] bytes: magic, version, whether there is a key, length, identity, key, addresses.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + ADDRESSES_MAX * 19);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, u8::from(self.key.is_some()), 0, 0]);
        bytes.extend(self.identity.0);
        bytes.extend(self.key.map_or([0; 16], |key| key.0));
        for address in &self.addresses {
            match address.ip() {
                IpAddr::V4(ip) => {
                    bytes.push(4);
                    bytes.extend(ip.octets());
                }
                IpAddr::V6(ip) => {
                    bytes.push(6);
                    bytes.extend(ip.octets());
                }
            }
            bytes.extend(address.port().to_le_bytes());
        }
        let len = bytes.len() as u16;
        bytes[6..8].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote, all of it and nothing else.
    ///
    /// # Errors
    /// Anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Endpoint, EndpointError> {
        let malformed = EndpointError::Malformed;
        if bytes.len() > ENDPOINT_BYTES_MAX {
            return Err(malformed);
        }
        let mut rest = bytes;
        if take::<4>(&mut rest)? != MAGIC {
            return Err(malformed);
        }
        let [version, has_key, len_low, len_high] = take(&mut rest)?;
        if version != VERSION {
            return Err(EndpointError::Version(version));
        }
        if usize::from(u16::from_le_bytes([len_low, len_high])) != bytes.len() {
            return Err(malformed);
        }
        let identity = Identity(take(&mut rest)?);
        let key = match (has_key, KeyId(take(&mut rest)?)) {
            (0, KeyId(id)) if id == [0; 16] => None,
            (1, id) => Some(id),
            _ => return Err(malformed),
        };
        let mut addresses = [SocketAddr::from(([0, 0, 0, 0], 0)); ADDRESSES_MAX];
        let mut count = 0;
        while !rest.is_empty() {
            let ip: IpAddr = match take(&mut rest)? {
                [4] => Ipv4Addr::from(take::<4>(&mut rest)?).into(),
                [6] => Ipv6Addr::from(take::<16>(&mut rest)?).into(),
                _ => return Err(malformed),
            };
            let port = u16::from_le_bytes(take(&mut rest)?);
            *addresses.get_mut(count).ok_or(malformed)? = SocketAddr::new(ip, port);
            count += 1;
        }
        Endpoint::new(identity, key, &addresses[..count])
    }
}

impl fmt::Display for Endpoint {
    /// In base 64 with the alphabet for URLs, without padding.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base64::encode(&self.to_bytes(), base64::URL_SAFE))
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        let mut bytes = [0; ENDPOINT_BYTES_MAX];
        let len = base64::decode(text.trim().as_bytes(), base64::URL_SAFE, &mut bytes);
        len.and_then(|len| bytes.get(..len)).ok_or(EndpointError::Malformed).and_then(Endpoint::from_bytes)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], EndpointError> {
    let (first, after) = rest.split_first_chunk().ok_or(EndpointError::Malformed)?;
    *rest = after;
    Ok(*first)
}

const MAGIC: [u8; 4] = *b"SREP";
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_endpoint() -> impl Strategy<Value = Endpoint> {
        let ip = prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)];
        let address = (ip, 1..=u16::MAX).prop_map(SocketAddr::from);
        let usable = address.prop_filter("to connect to", |a| !a.ip().is_unspecified());
        let key = prop::option::of(any::<[u8; 16]>().prop_map(KeyId));
        (any::<[u8; 16]>(), key, prop::collection::vec(usable, 1..=ADDRESSES_MAX))
            .prop_map(|(identity, key, addresses)| Endpoint::new(Identity(identity), key, &addresses).unwrap())
    }

    proptest! {
        #[test]
        fn an_endpoint_comes_back_from_its_bytes_and_its_text(endpoint in any_endpoint()) {
            let bytes = endpoint.to_bytes();
            prop_assert!(bytes.len() <= ENDPOINT_BYTES_MAX);
            prop_assert_eq!(Endpoint::from_bytes(&bytes), Ok(endpoint.clone()));
            let text = endpoint.to_string();
            prop_assert!(text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_'));
            prop_assert_eq!(text.parse(), Ok(endpoint));
        }

        #[test]
        fn a_cut_or_longer_endpoint_is_none(endpoint in any_endpoint(), more in any::<u8>()) {
            let mut bytes = endpoint.to_bytes();
            for len in 0..bytes.len() {
                prop_assert!(Endpoint::from_bytes(&bytes[..len]).is_err());
            }
            bytes.push(more);
            prop_assert!(Endpoint::from_bytes(&bytes).is_err());
        }

        #[test]
        fn whatever_is_read_is_written_back_the_same(
            endpoint in any_endpoint(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let mut bytes = endpoint.to_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(other) = Endpoint::from_bytes(&bytes) {
                prop_assert_eq!(other.to_bytes(), bytes);
            }
        }

        #[test]
        fn any_bytes_and_any_text_are_read_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..1500), text in any::<String>(),
        ) {
            let _ = Endpoint::from_bytes(&bytes);
            let _ = text.parse::<Endpoint>();
            let _ = base64::encode(&bytes, base64::URL_SAFE).parse::<Endpoint>();
        }
    }

    #[test]
    fn a_later_version_and_useless_addresses_are_named() {
        let endpoint = Endpoint::new(Identity([7; 16]), None, &[([127, 0, 0, 1], 9).into()]).unwrap();
        let mut bytes = endpoint.to_bytes();
        bytes[4] = 2;
        assert_eq!(Endpoint::from_bytes(&bytes), Err(EndpointError::Version(2)));
        for address in ["0.0.0.0:1", "[::]:1", "127.0.0.1:0"] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(Endpoint::new(Identity([7; 16]), None, &[address]), Err(EndpointError::NoTarget(address)));
        }
    }
}
