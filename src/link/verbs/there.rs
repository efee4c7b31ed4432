//! Memory of the other side, as its keys name it.

use super::super::{BadOperation, GrantId, RemotePiece, Violation};

/// What a grant of the other side is for this side's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub grant: GrantId,
    /// Of its first byte, as the other side's device has it.
    pub address: u64,
    pub bytes: u64,
    pub remote_key: u32,
    /// False: the other side could not register the memory, so that no operation reaches it.
    pub is_usable: bool,
}

/// The keys that have come. A new grant takes the place of an old one with the same index, so that there are never more of
/// them than the other side has grants.
#[derive(Debug)]
pub(super) struct There {
    keys: Vec<Option<Key>>,
    limit: usize,
}

/// Where a piece is, for a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub address: u64,
    pub remote_key: u32,
}

impl There {
    /// For as many grants as the other side may have.
    pub fn new(limit: u32) -> There {
        There { keys: Vec::new(), limit: limit as usize }
    }

    /// A message has named a grant.
    ///
    /// # Errors
    /// More grants than a side has, or one that is older than what it replaces.
    pub fn learn(&mut self, key: Key) -> Result<(), Violation> {
        let index = key.grant.0 as u32 as usize;
        if index >= self.limit {
            return Err(Violation("more grants than were agreed on"));
        }
        if self.keys.len() <= index {
            self.keys.resize(index + 1, None);
        }
        let is_older = |known: &Key| known.grant.0 >= key.grant.0;
        if self.keys[index].as_ref().is_some_and(is_older) {
            return Err(Violation("a grant that was named before"));
        }
        self.keys[index] = Some(key);
        Ok(())
    }

    /// Where a piece lies.
    ///
    /// # Errors
    /// [`BadOperation::NoKey`]: the grant is not known or not registered, or the piece does not lie in it.
    pub fn place(&self, piece: &RemotePiece) -> Result<Place, BadOperation> {
        let known = self.keys.get(piece.grant.0 as u32 as usize).and_then(|key| key.as_ref());
        let key = known.filter(|key| key.grant == piece.grant && key.is_usable).ok_or(BadOperation::NoKey)?;
        let end = piece.offset.checked_add(piece.len.into()).ok_or(BadOperation::NoKey)?;
        if end > key.bytes {
            return Err(BadOperation::NoKey);
        }
        // It ends inside memory, as was looked at when it came.
        Ok(Place { address: key.address + piece.offset, remote_key: key.remote_key })
    }

    /// True if operations reach the grant.
    pub fn reaches(&self, grant: GrantId) -> bool {
        self.place(&RemotePiece { grant, offset: 0, len: 1 }).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(generation: u64, index: u64) -> Key {
        let grant = GrantId(generation << 32 | index);
        Key { grant, address: 1000, bytes: 100, remote_key: 5, is_usable: true }
    }

    fn piece(key: &Key, offset: u64, len: u32) -> RemotePiece {
        RemotePiece { grant: key.grant, offset, len }
    }

    #[test]
    fn a_piece_lies_where_its_grant_does_and_nowhere_else() {
        let mut there = There::new(4);
        let first = key(1, 3);
        assert_eq!(there.place(&piece(&first, 0, 1)), Err(BadOperation::NoKey), "not told yet");
        there.learn(first).unwrap();
        assert_eq!(there.place(&piece(&first, 40, 60)), Ok(Place { address: 1040, remote_key: 5 }));
        for (offset, len) in [(40, 61), (100, 1), (u64::MAX, 1)] {
            assert_eq!(there.place(&piece(&first, offset, len)), Err(BadOperation::NoKey));
        }
        there.learn(Key { is_usable: false, ..key(1, 0) }).unwrap();
        assert!(there.reaches(first.grant) && !there.reaches(key(1, 0).grant));
    }

    #[test]
    fn a_newer_grant_replaces_an_older_one_and_not_the_other_way_round() {
        let mut there = There::new(4);
        there.learn(key(2, 1)).unwrap();
        assert!(there.learn(key(2, 1)).is_err() && there.learn(key(1, 1)).is_err());
        there.learn(key(3, 1)).unwrap();
        assert!(there.reaches(key(3, 1).grant) && !there.reaches(key(2, 1).grant));
        assert!(there.learn(key(1, 4)).is_err() && there.learn(key(1, u32::MAX.into())).is_err());
        assert!(there.keys.len() <= 4, "no peer makes it longer");
    }
}
