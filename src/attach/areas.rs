//! The two areas of a ring pair, as each side sees them.

use super::AttachError;
use crate::region::{SharedPages, Slots, Word};
use crate::ring::{Consumer, Producer, Words};
use crate::sync::{AtomicU64, Ordering};
use ring_abi::{Features, HEADER_WORDS, Header, complete, submit};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::SealFlags;
use std::sync::Arc;

/// A ring's words in the two areas.
#[derive(Clone, Debug)]
pub struct RingWords {
    head: Word,
    tail: Word,
    slots: Slots,
}

impl Words for RingWords {
    fn capacity(&self) -> u32 {
        self.slots.capacity()
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        &self.head
    }

    #[inline]
    fn tail(&self) -> &AtomicU64 {
        &self.tail
    }

    #[inline]
    fn slot(&self, position: u64) -> &[AtomicU64; 8] {
        self.slots.get(position)
    }
}

/// The engine's side of a ring pair.
#[derive(Debug)]
pub struct EngineAreas {
    /// Takes descriptors.
    pub sq: Consumer<RingWords>,
    /// Writes spans.
    pub cq: Producer<RingWords>,
    /// Read by the engine after it has published spans.
    pub client_sleep: Word,
    /// Written by the engine before it sleeps.
    pub engine_sleep: Word,
    /// Written by the engine once, when the session ends.
    pub stop: Word,
}

impl EngineAreas {
    /// Creates both areas, and gives their files to send to the client: submit area, complete area.
    ///
    /// # Errors
    /// Out of memory, or what else the kernel says.
    pub fn create(header: &Header) -> Result<(EngineAreas, [OwnedFd; 2]), AttachError> {
        let submit_bytes = submit::bytes(header.sq_capacity);
        let (submit_pages, submit_fd) = SharedPages::create("scatter-ring-submit", submit_bytes, SealFlags::empty())
            .map_err(AttachError::io("creating the submit area"))?;
        let complete_bytes = complete::bytes(header.cq_capacity);
        let (complete_pages, complete_fd) =
            SharedPages::create("scatter-ring-complete", complete_bytes, SealFlags::FUTURE_WRITE)
                .map_err(AttachError::io("creating the complete area"))?;
        for (i, word) in header.to_words().into_iter().enumerate() {
            complete_pages.word(8 * i).store(word, Ordering::Relaxed);
        }
        let words = AreaWords::new(&submit_pages, &complete_pages, header);
        // A start position other than 0 needs the shared words to agree before anybody looks at them.
        for position in [&words.sq.head, &words.sq.tail, &words.cq.head, &words.cq.tail] {
            position.store(header.start_position, Ordering::Relaxed);
        }
        let areas = EngineAreas {
            sq: Consumer::new(words.sq, header.start_position),
            cq: Producer::new(words.cq, header.start_position),
            client_sleep: words.client_sleep,
            engine_sleep: words.engine_sleep,
            stop: words.stop,
        };
        Ok((areas, [submit_fd, complete_fd]))
    }
}

/// The client's side of a ring pair.
#[derive(Debug)]
pub struct ClientAreas {
    /// What the engine said about the areas.
    pub header: Header,
    /// Writes descriptors.
    pub sq: Producer<RingWords>,
    /// Takes spans.
    pub cq: Consumer<RingWords>,
    /// Written by the client before it sleeps.
    pub client_sleep: Word,
    /// Read by the client after it has published descriptors.
    pub engine_sleep: Word,
    /// Set when the session has ended.
    pub stop: Word,
}

impl ClientAreas {
    /// Maps the areas that the engine sent: submit area for writing, complete area for reading.
    ///
    /// # Errors
    /// If the header is not one that this version can work with, or not the one that was agreed on, or mapping fails.
    pub fn map(
        submit: impl AsFd,
        complete: impl AsFd,
        sq_capacity: u32,
        cq_capacity: u32,
    ) -> Result<ClientAreas, AttachError> {
        if !Header::is_capacity(sq_capacity) || !Header::is_capacity(cq_capacity) {
            return Err(AttachError::BadMessage("a ring capacity is not allowed"));
        }
        let complete_pages = SharedPages::map(complete, complete::bytes(cq_capacity), false)
            .map_err(AttachError::io("mapping the complete area"))?;
        let words: [u64; HEADER_WORDS] = core::array::from_fn(|i| complete_pages.word(8 * i).load(Ordering::Relaxed));
        let header = Header::from_words(&words);
        header.check().map_err(|(status, field)| AttachError::Refused { status, text: format!("header: {field}") })?;
        if (header.sq_capacity, header.cq_capacity) != (sq_capacity, cq_capacity) {
            return Err(AttachError::BadMessage("header and answer disagree on a capacity"));
        }
        let submit_pages = SharedPages::map(submit, submit::bytes(sq_capacity), true)
            .map_err(AttachError::io("mapping the submit area"))?;
        let words = AreaWords::new(&submit_pages, &complete_pages, &header);
        Ok(ClientAreas {
            header,
            sq: Producer::new(words.sq, header.start_position),
            cq: Consumer::new(words.cq, header.start_position),
            client_sleep: words.client_sleep,
            engine_sleep: words.engine_sleep,
            stop: words.stop,
        })
    }

    /// What the engine offers.
    #[must_use]
    pub fn features(&self) -> Features {
        Features(self.header.features)
    }
}

/// Where everything is; the same for both sides.
struct AreaWords {
    sq: RingWords,
    cq: RingWords,
    client_sleep: Word,
    engine_sleep: Word,
    stop: Word,
}

impl AreaWords {
    fn new(submit: &Arc<SharedPages>, complete: &Arc<SharedPages>, header: &Header) -> AreaWords {
        AreaWords {
            sq: RingWords {
                head: complete.word(complete::HEAD),
                tail: submit.word(submit::TAIL),
                slots: submit.slots(submit::SLOTS, header.sq_capacity),
            },
            cq: RingWords {
                head: submit.word(submit::HEAD),
                tail: complete.word(complete::TAIL),
                slots: complete.slots(complete::SLOTS, header.cq_capacity),
            },
            client_sleep: submit.word(submit::SLEEP_WORD),
            engine_sleep: complete.word(complete::SLEEP_WORD),
            stop: complete.word(complete::STOP_WORD),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring_abi::Features;

    fn header(start: u64) -> Header {
        Header::new(8, 8, Features(Features::LOCAL), 1, start)
    }

    #[test]
    fn both_sides_meet_in_the_areas() {
        let (mut engine, [submit, complete]) = EngineAreas::create(&header(u64::MAX)).unwrap();
        let mut client = ClientAreas::map(&submit, &complete, 8, 8).unwrap();
        client.sq.push(&[3; 8]).unwrap();
        client.sq.publish();
        assert_eq!(engine.sq.pop().unwrap(), Some([3; 8]));
        engine.cq.push(&[4; 8]).unwrap();
        engine.cq.publish();
        assert_eq!(client.cq.pop().unwrap(), Some([4; 8]));
    }

    #[test]
    fn a_client_cannot_get_write_access_to_the_complete_area() {
        let (_engine, [_, complete]) = EngineAreas::create(&header(0)).unwrap();
        let bytes = complete::bytes(8);
        assert!(SharedPages::map(&complete, bytes, true).is_err(), "mapped for writing");
        assert!(rustix::io::pwrite(&complete, &[1], 0).is_err(), "written through the file");
        assert!(rustix::fs::ftruncate(&complete, 0).is_err(), "shrunk");
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&complete, punch, 0, 4096).is_err(), "punched");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&complete));
        if let Ok(again) = std::fs::OpenOptions::new().read(true).write(true).open(path) {
            assert!(SharedPages::map(&again, bytes, true).is_err(), "mapped for writing through a new open");
        }
        let map = memmap2::MmapOptions::new().len(bytes).map_raw_read_only(&complete).unwrap();
        // SAFETY: only the protection of our own read-only mapping is changed; nothing is accessed.
        let upgraded =
            unsafe { rustix::mm::mprotect(map.as_mut_ptr().cast(), bytes, rustix::mm::MprotectFlags::WRITE) };
        assert!(upgraded.is_err(), "made writable");
    }

    #[test]
    fn a_header_of_another_version_is_refused_by_name() {
        let mut wrong = header(0);
        wrong.abi_major += 1;
        let (_engine, [submit, complete]) = EngineAreas::create(&wrong).unwrap();
        let refusal = ClientAreas::map(&submit, &complete, 8, 8).unwrap_err();
        assert_eq!(refusal.status(), ring_abi::Status::VERSION_MISMATCH);
        assert!(refusal.to_string().contains("abi_major"), "{refusal}");
    }
}
