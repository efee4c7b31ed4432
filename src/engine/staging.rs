//! The slots of one owner session, as the poller has them.
//!
//! A slot is leased by a transfer, filled and emptied, and given back. While a command about it is with the owner, the
//! owner may touch it: a transfer that does not wait for the answer lets go of it, and it is free when the answer comes.

use super::session::{Session, State as SessionState};
use super::staged::Stagings;
use crate::attach::AttachError;
use crate::pack::{Piece, Refusal, Segment, owner_list};
use crate::region::SharedPages;
use crate::ring::{BadPosition, PushError};
use ring_abi::staged::{LIST_BYTES, PIECES_MAX};
use ring_abi::{Command, CommandOp, CommandResult, Entry, Handle, Status};
use rustix::fd::OwnedFd;
use rustix::fs::SealFlags;
use std::collections::VecDeque;
use std::sync::Arc;

/// Of one owner session, kept by the poller from STAGE to the session's end.
#[derive(Debug)]
pub(super) struct Staging {
    slot_bytes: u32,
    slots: Arc<SharedPages>,
    lists: Arc<SharedPages>,
    table: Box<[Slot]>,
    free: Vec<u32>,
    /// Slots whose commands are to be sent, which happens before the poller's round ends.
    commands: VecDeque<u32>,
    /// A transfer that needs two slots at once waits for them, and nobody else gets any meanwhile.
    is_claimed: bool,
    /// Slots leased since the last claim was made.
    unclaimed_leases: u32,
    /// Numbers of chunks grow, and their low bits are the slot.
    next_chunk: u64,
    words: Vec<u64>,
}

/// One slot, and what a transfer notes about the chunk in it.
#[derive(Debug)]
struct Slot {
    state: State,
    command: Command,
    note: Note,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Leased,
    /// The owner may touch the slot. `let_go`: nobody waits for the answer.
    Commanded {
        let_go: bool,
    },
    Answered(Result<(), Refusal>),
}

/// What a transfer notes about a chunk, in the slot that keeps it.
#[derive(Debug)]
pub(super) struct Note {
    pub segments: Vec<Segment>,
    /// Session and slot of the source's owner, until what was packed there is here.
    pub source: Option<(u64, u32)>,
    pub bytes: u32,
    pub fragment: u32,
}

/// Staging memory of one session at most.
const STAGING_BYTES_MAX: u64 = 16 << 20;

const NOTHING: Command = Command { op: CommandOp::PACK, slot: 0, chunk: 0, region: 0, piece_bytes: 0, count: 0 };

/// Low bits of a chunk number that name the slot.
const SLOT_BITS: u32 = 6;

impl Staging {
    /// As many slots as asked for, or fewer if that is too much memory or more than its rings have room for. Also gives
    /// the files for the owner: slots, lists.
    ///
    /// # Errors
    /// No memory.
    pub fn create(slots: u64, slot_bytes: u32, ring_capacity: u32) -> Result<(Staging, [OwnedFd; 2]), AttachError> {
        let count = slots.min(STAGING_BYTES_MAX / u64::from(slot_bytes)).min(ring_capacity.into()) as u32;
        let (slots, slots_fd) =
            SharedPages::create("scatter-ring-slots", count as usize * slot_bytes as usize, SealFlags::empty())
                .map_err(AttachError::io("creating the slots"))?;
        let (lists, lists_fd) =
            SharedPages::create("scatter-ring-lists", count as usize * LIST_BYTES, SealFlags::FUTURE_WRITE)
                .map_err(AttachError::io("creating the lists"))?;
        let note = || Note { segments: Vec::with_capacity(PIECES_MAX as usize), source: None, bytes: 0, fragment: 0 };
        let staging = Staging {
            slot_bytes,
            slots,
            lists,
            table: (0..count).map(|_| Slot { state: State::Free, command: NOTHING, note: note() }).collect(),
            free: (0..count).rev().collect(),
            commands: VecDeque::with_capacity(count as usize),
            is_claimed: false,
            unclaimed_leases: 0,
            next_chunk: 0,
            words: Vec::with_capacity(2 * PIECES_MAX as usize),
        };
        Ok((staging, [slots_fd, lists_fd]))
    }

    pub fn slot_count(&self) -> u32 {
        self.table.len() as u32
    }

    pub fn slot_bytes(&self) -> u32 {
        self.slot_bytes
    }

    pub fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// True while somebody has [claimed](Self::claim) what becomes free.
    pub fn is_claimed(&self) -> bool {
        self.is_claimed
    }

    /// Keeps the slots that become free for one transfer; false if it is not its turn. There is a claim for every so many
    /// slots that went without one, so that transfers which take them one by one are not kept out either.
    #[must_use]
    pub fn claim(&mut self) -> bool {
        let may = !self.is_claimed && self.unclaimed_leases >= self.slot_count();
        if may {
            (self.is_claimed, self.unclaimed_leases) = (true, 0);
        }
        may
    }

    /// Takes a claim back, which was met or is not needed any more.
    pub fn unclaim(&mut self) {
        self.is_claimed = false;
    }

    /// A slot of one's own, until [`let_go`](Self::let_go).
    pub fn lease(&mut self) -> Option<u32> {
        let slot = self.free.pop()?;
        self.table[slot as usize].state = State::Leased;
        self.unclaimed_leases = self.unclaimed_leases.saturating_add(u32::from(!self.is_claimed));
        Some(slot)
    }

    /// The first byte of a slot.
    pub fn slot(&self, slot: u32) -> *mut u8 {
        self.slots.block(slot as usize * self.slot_bytes as usize, self.slot_bytes as usize)
    }

    pub fn note(&mut self, slot: u32) -> &mut Note {
        &mut self.table[slot as usize].note
    }

    /// Writes the list of a leased slot: what its owner is to pack from these pieces, or to unpack to them, when it is
    /// [told](Self::send).
    pub fn list(&mut self, op: CommandOp, slot: u32, region: Handle, pieces: &[Piece]) {
        let (piece_bytes, count) = owner_list(pieces, op == CommandOp::PACK, &mut self.words);
        self.lists.write_words(slot as usize * LIST_BYTES, &self.words);
        self.table[slot as usize].command = Command { op, slot, chunk: 0, region: region.0, piece_bytes, count };
    }

    /// Tells the owner, with the next [`take_command`](Self::take_command).
    pub fn send(&mut self, slot: u32) {
        let chunk = self.next_chunk << SLOT_BITS | u64::from(slot);
        self.next_chunk += 1;
        let entry = &mut self.table[slot as usize];
        entry.command.chunk = chunk;
        entry.state = State::Commanded { let_go: false };
        self.commands.push_back(slot);
    }

    /// The next command for the owner's ring.
    pub fn take_command(&mut self) -> Option<Command> {
        let slot = self.commands.pop_front()?;
        Some(self.table[slot as usize].command)
    }

    /// What the owner says about the command of a slot, once it has said it.
    pub fn answer(&self, slot: u32) -> Option<Result<(), Refusal>> {
        match self.table[slot as usize].state {
            State::Answered(answer) => Some(answer),
            _ => None,
        }
    }

    /// Gives a slot back. If its owner may still touch it, it is free when that one has answered.
    pub fn let_go(&mut self, slot: u32) {
        let entry = &mut self.table[slot as usize];
        match &mut entry.state {
            State::Commanded { let_go } => *let_go = true,
            State::Leased | State::Answered(_) => {
                entry.state = State::Free;
                self.free.push(slot);
            }
            State::Free => debug_assert!(false, "slot {slot} is free already"),
        }
    }

    /// Takes a result of the owner. `None`: it is about nothing that the owner was asked, or is none.
    #[must_use]
    pub fn take_result(&mut self, entry: &Entry) -> Option<()> {
        const SLOT: u64 = (1 << SLOT_BITS) - 1;
        let result = CommandResult::from_entry(entry)?;
        let slot = (result.chunk & SLOT) as u32;
        let entry = self.table.get_mut(slot as usize)?;
        let State::Commanded { let_go } = entry.state else { return None };
        let CommandResult { chunk, status, piece, detail } = result;
        let answer = if status.is_ok() { Ok(()) } else { Err(Refusal { status, piece, detail }) };
        let possible = match answer {
            Ok(()) => piece == 0 && detail == 0,
            Err(_) => status.name().is_some() && piece < entry.command.count.max(1),
        };
        if chunk != entry.command.chunk || !possible {
            return None;
        }
        entry.state = State::Answered(answer);
        if let_go {
            self.let_go(slot);
        }
        Some(())
    }

    /// The slots that its chunks have of other owners.
    pub fn take_sources(&mut self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.table.iter_mut().filter_map(|slot| slot.note.source.take())
    }

    /// True while the owner has a command about this region.
    pub fn is_named(&self, region: Handle) -> bool {
        let names = |slot: &Slot| matches!(slot.state, State::Commanded { .. }) && slot.command.region == region.0;
        self.table.iter().any(names)
    }
}

impl Session {
    /// Makes it an owner session.
    ///
    /// # Errors
    /// It has taken descriptors, or has some to take.
    pub fn become_owner(&mut self) -> Result<(), Status> {
        if self.is_owner || self.events.is_some() || self.sq.known() > 0 || self.sq.position() != self.start_position {
            return Err(Status::BAD_SEQUENCE);
        }
        self.is_owner = true;
        Ok(())
    }

    /// Takes what an owner says about commands. True if it said anything.
    pub(super) fn take_results(&mut self, stagings: &mut Stagings) -> Result<bool, BadPosition> {
        let Some(staging) = stagings.get_mut(self.id).filter(|_| self.state == SessionState::Serving) else {
            return Ok(false);
        };
        let mut any = false;
        while self.sq.known() > 0 {
            let Some(entry) = self.sq.pop()? else { break };
            any = true;
            if staging.take_result(&entry).is_none() {
                self.end(Status::BAD_RING);
                return Ok(true);
            }
        }
        self.sq.release();
        Ok(any)
    }

    /// Sends an owner what transfers have for it.
    ///
    /// # Errors
    /// If the owner's positions are impossible, or it has no room for a command although it has answered all but these.
    pub fn send_commands(&mut self, staging: &mut Staging) -> Result<(), PushError> {
        while let Some(command) = staging.take_command() {
            self.completions.push_command(&command)?;
        }
        self.show_completions();
        Ok(())
    }
}
