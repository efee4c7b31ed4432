//! What two engines say to each other on an authenticated connection, byte by byte.
//!
//! Every message travels on one lane of a link, behind what was posted to that lane before. A chunk keeps to one lane:
//! its command, its bytes and its answer. What must not overtake any chunk (CANCEL, DRAINED) goes out on every lane, and
//! counts when the last one has come.
//!
//! All numbers are little-endian. A message begins with its kind in one byte and 3 bytes of 0; a 0 in the table is a word
//! of 0. Lists, names and texts stand last, and the message ends with them.
//!
//! | message      |  4         | 8         | 16         | 20         | 24     | 28       | 32     | 40   |
//! | ------------ | ---------- | --------- | ---------- | ---------- | ------ | -------- | ------ | ---- |
//! | 1 PACK       | number     | batch     | bytes      | list_bytes | landing|          | list   |      |
//! | 2 UNPACK     | number     | batch     | bytes      | list_bytes | slot   | 0        | list   |      |
//! | 3 CANCEL     | 0          | batch     |            |            |        |          |        |      |
//! | 4 DONE       | number     | batch     | queue_ns   | pack_ns    |        |          |        |      |
//! | 5 REFUSED    | number     | batch     |            |            |        |          |        |      |
//! | 6 FAILED     | number     | batch     | status     | stage, 0   | field  | fragment | detail |      |
//! | 7 DRAINED    | 0          | batch     |            |            |        |          |        |      |
//! | 8 OPEN       | name_bytes | request   | rights     |            | name   |          |        |      |
//! | 9 OPENED     | text_bytes | request   | status     | number     | grant  |          | bytes  | text |
//! | 10 CLOSE     | number     |           |            |            |        |          |        |      |
//! | 11 WITHDRAWN | number     |           |            |            |        |          |        |      |
//! | 12 SLOTS     | slots      | grant     | slot_bytes | 0          |        |          |        |      |
//! | 13 PING      | 0          | number    |            |            |        |          |        |      |
//! | 14 PONG      | 0          | number    |            |            |        |          |        |      |
//! | 15 NOTIFY    | payload_bytes | request | number    | 0          | user_data |       | offset | payload |
//! | 16 NOTIFIED  | status     | request   |            |            |        |          |        |      |
//! | 17 HERE      | path_bytes | host, 16 bytes |       | token, 16 bytes   |          |        | path |
//! | 18 LEFT      | number     |           |            |            |        |          |        |      |
//!
//! `number` and `batch` are a chunk's [`ChunkId`]. A stage is one byte and 3 bytes of 0. HERE is only for connections of
//! which both sides offer [`MAP_MEMORY`](super::MAP_MEMORY), LEFT for those by which devices reach the other side's memory by
//! themselves.

use crate::pipeline::{BatchId, ChunkId};
use crate::plan::{Fault, LIST_BYTES};
use ring_abi::{Field, NAME_BYTES_MAX, NOTIFY_BYTES_MAX, Stage, Status};

/// One message, either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// READ, to the owner: pack these pieces of regions of yours and write them to this grant, as a whole.
    Pack {
        /// Which chunk.
        id: ChunkId,
        /// Payload.
        bytes: u32,
        /// Where it goes: a grant for one use, of so many bytes.
        landing: u64,
        /// An encoded list, the regions by the numbers that OPENED gave.
        list: &'a [u8],
    },
    /// WRITE, to the owner: the chunk lies in this landing slot of yours; put it to these pieces.
    Unpack {
        /// Which chunk.
        id: ChunkId,
        /// Payload.
        bytes: u32,
        /// Of the slots that SLOTS named.
        slot: u32,
        /// As in [`Pack`](Message::Pack).
        list: &'a [u8],
    },
    /// To the owner, on every lane: start nothing more of this batch.
    Cancel {
        /// Which.
        batch: BatchId,
    },
    /// From the owner. READ: the chunk's bytes have been written, before this. WRITE: they are in place.
    Done {
        /// Which chunk.
        id: ChunkId,
        /// From its command's arrival until somebody packed or unpacked it.
        queue_ns: u32,
        /// Packing or unpacking.
        pack_ns: u32,
    },
    /// From the owner: no staging for it; ask in another way.
    Refused {
        /// Which chunk.
        id: ChunkId,
    },
    /// From the owner: it cannot be done.
    Failed {
        /// Which chunk.
        id: ChunkId,
        /// Why.
        fault: Fault,
    },
    /// From the owner, on every lane: nothing of the batch is under way any more.
    Drained {
        /// Which.
        batch: BatchId,
    },
    /// To the owner: open an export. OPENED answers.
    Open {
        /// The asker's number for it.
        request: u64,
        /// Wanted, as bits.
        rights: u64,
        /// Of the export, at most [`NAME_BYTES_MAX`] bytes.
        name: &'a str,
    },
    /// From the owner.
    Opened {
        /// The asker's number.
        request: u64,
        /// OK or why not; without OK the rest is 0.
        status: Status,
        /// The region's number in lists, never used twice on a connection.
        number: u32,
        /// The same region for operations: a grant for many uses, of all of it.
        grant: u64,
        /// Its length, at most 2^56.
        bytes: u64,
        /// For people, cut to [`NAME_BYTES_MAX`] bytes.
        text: &'a str,
    },
    /// To the owner: the region is not used any more.
    Close {
        /// Its number.
        number: u32,
    },
    /// From the owner: it has withdrawn the region.
    Withdrawn {
        /// Its number.
        number: u32,
    },
    /// To the owner, which has withdrawn the region: no operation of this side is under way at it any more, nor will be.
    Left {
        /// Its number.
        number: u32,
    },
    /// From each side, once, before anything else: its landing slots for WRITE.
    Slots {
        /// A grant for many uses, of all of them, one behind the other.
        grant: u64,
        /// How many.
        slots: u32,
        /// Bytes of each.
        slot_bytes: u32,
    },
    /// To the owner: tell the client that exported this region. NOTIFIED answers.
    Notify {
        /// The asker's number for it.
        request: u64,
        /// The region's number.
        number: u32,
        /// Handed over.
        user_data: u64,
        /// Handed over.
        offset: u64,
        /// At most [`NOTIFY_BYTES_MAX`] bytes.
        payload: &'a [u8],
    },
    /// From the owner.
    Notified {
        /// The asker's number.
        request: u64,
        /// OK: the client has it. NOT_DONE: it has no room for it now; it was not told, and may be asked again. Or why it
        /// will not be told.
        status: Status,
    },
    /// Asks for a sign of life on this lane.
    Ping {
        /// Comes back.
        number: u64,
    },
    /// Answers PING, on the same lane.
    Pong {
        /// That of the PING.
        number: u64,
    },
    /// From each side, at most once: an engine on the same host can map the memory that this connection opens.
    Here {
        /// Which host: the kernel's number of its boot.
        host: [u8; 16],
        /// Secret of this connection, for [`FETCH`](ring_abi::Kind::FETCH).
        token: [u8; 16],
        /// Of the sender's attach socket, absolute, at most [`NAME_BYTES_MAX`] bytes.
        path: &'a str,
    },
}

/// Bytes of the longest message: a command with a full list.
pub const MESSAGE_BYTES_MAX: usize = COMMAND_BYTES + LIST_BYTES;

/// Of PACK and UNPACK, without the list.
const COMMAND_BYTES: usize = 32;
/// Of OPENED, without the text: the longest head of all.
const OPENED_BYTES: usize = 40;
const _: () = assert!(NOTIFY_BYTES_MAX as usize <= LIST_BYTES);
const _: () = assert!(OPENED_BYTES + NAME_BYTES_MAX <= MESSAGE_BYTES_MAX);

/// No region is longer, on any engine: the user half of a 57-bit address space.
const REGION_BYTES_MAX: u64 = 1 << 56;

const PACK: u8 = 1;
const UNPACK: u8 = 2;
const CANCEL: u8 = 3;
const DONE: u8 = 4;
const REFUSED: u8 = 5;
const FAILED: u8 = 6;
const DRAINED: u8 = 7;
const OPEN: u8 = 8;
const OPENED: u8 = 9;
const CLOSE: u8 = 10;
const WITHDRAWN: u8 = 11;
const SLOTS: u8 = 12;
const PING: u8 = 13;
const PONG: u8 = 14;
const NOTIFY: u8 = 15;
const NOTIFIED: u8 = 16;
const HERE: u8 = 17;
const LEFT: u8 = 18;

impl<'a> Message<'a> {
    /// Writes the message behind what is in `bytes`: [`MESSAGE_BYTES_MAX`] bytes at most. A name or a text that is too
    /// long is cut.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        let mut writer = Writer(bytes);
        match *self {
            Message::Pack { id, bytes, landing, list } => {
                writer.chunk(PACK, id).word(bytes).word(list.len() as u32).long(landing).tail(list);
            }
            Message::Unpack { id, bytes, slot, list } => {
                writer.chunk(UNPACK, id).word(bytes).word(list.len() as u32).word(slot).word(0).tail(list);
            }
            Message::Cancel { batch } => _ = writer.begin(CANCEL, 0).long(batch.0),
            Message::Done { id, queue_ns, pack_ns } => _ = writer.chunk(DONE, id).word(queue_ns).word(pack_ns),
            Message::Refused { id } => _ = writer.chunk(REFUSED, id),
            Message::Failed { id, fault } => {
                writer.chunk(FAILED, id).word(fault.status.0 as u32).word(fault.stage.0.into());
                writer.word(fault.field.0).word(fault.fragment).long(fault.detail);
            }
            Message::Drained { batch } => _ = writer.begin(DRAINED, 0).long(batch.0),
            Message::Open { request, rights, name } => {
                let name = cut(name);
                writer.begin(OPEN, name.len() as u32).long(request).long(rights).tail(name.as_bytes());
            }
            Message::Opened { request, status, number, grant, bytes, text } => {
                let text = cut(text);
                writer.begin(OPENED, text.len() as u32).long(request).word(status.0 as u32).word(number);
                writer.long(grant).long(bytes).tail(text.as_bytes());
            }
            Message::Close { number } => _ = writer.begin(CLOSE, number),
            Message::Withdrawn { number } => _ = writer.begin(WITHDRAWN, number),
            Message::Left { number } => _ = writer.begin(LEFT, number),
            Message::Slots { grant, slots, slot_bytes } => {
                writer.begin(SLOTS, slots).long(grant).word(slot_bytes).word(0);
            }
            Message::Notify { request, number, user_data, offset, payload } => {
                writer.begin(NOTIFY, payload.len() as u32).long(request).word(number).word(0);
                writer.long(user_data).long(offset).tail(payload);
            }
            Message::Notified { request, status } => _ = writer.begin(NOTIFIED, status.0 as u32).long(request),
            Message::Ping { number } => _ = writer.begin(PING, 0).long(number),
            Message::Pong { number } => _ = writer.begin(PONG, 0).long(number),
            Message::Here { host, token, path } => {
                let path = cut(path);
                writer.begin(HERE, path.len() as u32).tail(&host).tail(&token).tail(path.as_bytes());
            }
        }
    }

    /// The message that these bytes spell, all of them. Of a failure a status, a stage or a field that this version does
    /// not know, or that no owner has a reason to send, becomes INTERNAL, COMMAND or none.
    ///
    /// # Errors
    /// Anything else that [`write`](Self::write) does not write.
    pub fn read(bytes: &'a [u8]) -> Result<Message<'a>, BadMessage> {
        let mut reader = Reader(bytes);
        let kind = reader.byte()?;
        // Fields are read in the order in which they stand here.
        let message = match kind {
            PACK => {
                let (id, bytes, list_bytes) = (reader.chunk()?, reader.word()?, reader.word()?);
                Message::Pack { id, bytes, landing: reader.long()?, list: reader.list(list_bytes)? }
            }
            UNPACK => {
                let (id, bytes, list_bytes, slot) = (reader.chunk()?, reader.word()?, reader.word()?, reader.word()?);
                reader.zero()?;
                Message::Unpack { id, bytes, slot, list: reader.list(list_bytes)? }
            }
            CANCEL => Message::Cancel { batch: reader.batch()? },
            DONE => Message::Done { id: reader.chunk()?, queue_ns: reader.word()?, pack_ns: reader.word()? },
            REFUSED => Message::Refused { id: reader.chunk()? },
            FAILED => Message::Failed { id: reader.chunk()?, fault: reader.fault()? },
            DRAINED => Message::Drained { batch: reader.batch()? },
            OPEN => {
                let name_bytes = reader.word()?;
                Message::Open { request: reader.long()?, rights: reader.long()?, name: reader.text(name_bytes)? }
            }
            OPENED => reader.opened()?,
            CLOSE => Message::Close { number: reader.word()? },
            WITHDRAWN => Message::Withdrawn { number: reader.word()? },
            LEFT => Message::Left { number: reader.word()? },
            SLOTS => {
                let slots = reader.word()?;
                let message = Message::Slots { slots, grant: reader.long()?, slot_bytes: reader.word()? };
                reader.zero()?;
                message
            }
            NOTIFY => {
                let (payload_bytes, request, number) = (reader.word()?, reader.long()?, reader.word()?);
                reader.zero()?;
                let (user_data, offset) = (reader.long()?, reader.long()?);
                Message::Notify { request, number, user_data, offset, payload: reader.payload(payload_bytes)? }
            }
            NOTIFIED => Message::Notified { status: reader.status()?, request: reader.long()? },
            PING => Message::Ping { number: reader.numbered()? },
            PONG => Message::Pong { number: reader.numbered()? },
            HERE => {
                let path_bytes = reader.word()?;
                Message::Here { host: reader.take()?, token: reader.take()?, path: reader.text(path_bytes)? }
            }
            _ => return Err(BadMessage("unknown kind")),
        };
        if reader.0.is_empty() { Ok(message) } else { Err(BadMessage("bytes behind the end")) }
    }
}

/// Bytes that are no message: who sends them does not follow the protocol, and loses the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadMessage(pub &'static str);

/// As much of a text as a message has room for.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(NAME_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

struct Writer<'v>(&'v mut Vec<u8>);

impl Writer<'_> {
    fn begin(&mut self, kind: u8, first: u32) -> &mut Self {
        self.word(kind.into()).word(first)
    }

    fn chunk(&mut self, kind: u8, id: ChunkId) -> &mut Self {
        self.begin(kind, id.number).long(id.batch.0)
    }

    fn word(&mut self, value: u32) -> &mut Self {
        self.tail(&value.to_le_bytes())
    }

    fn long(&mut self, value: u64) -> &mut Self {
        self.tail(&value.to_le_bytes())
    }

    fn tail(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// What is not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], BadMessage> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(BadMessage("too short"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn word(&mut self) -> Result<u32, BadMessage> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Result<u64, BadMessage> {
        self.take().map(u64::from_le_bytes)
    }

    /// A byte, and 3 bytes of 0.
    fn byte(&mut self) -> Result<u8, BadMessage> {
        u8::try_from(self.word()?).map_err(|_| BadMessage("a reserved byte is not 0"))
    }

    fn zero(&mut self) -> Result<(), BadMessage> {
        if self.word()? == 0 { Ok(()) } else { Err(BadMessage("a reserved byte is not 0")) }
    }

    fn chunk(&mut self) -> Result<ChunkId, BadMessage> {
        Ok(ChunkId { number: self.word()?, batch: BatchId(self.long()?) })
    }

    /// A message's only number, behind a word of 0.
    fn numbered(&mut self) -> Result<u64, BadMessage> {
        self.zero()?;
        self.long()
    }

    fn batch(&mut self) -> Result<BatchId, BadMessage> {
        self.numbered().map(BatchId)
    }

    fn fault(&mut self) -> Result<Fault, BadMessage> {
        let status = self.status()?;
        if status.is_ok() {
            return Err(BadMessage("a failure that is none"));
        }
        let (stage, field) = (Stage(self.byte()?), Field(self.word()?));
        let stage = if stage.name().is_none() || stage == Stage::NONE { Stage::COMMAND } else { stage };
        let field = if field.name().is_none() { Field::NONE } else { field };
        Ok(Fault { status, stage, field, fragment: self.word()?, detail: self.long()? })
    }

    /// OK, or why not.
    fn status(&mut self) -> Result<Status, BadMessage> {
        let status = Status(self.word()? as i32);
        if status.0 > 0 {
            return Err(BadMessage("a status that is positive"));
        }
        // Clients say these of themselves: nobody else is to make them believe it.
        let is_clients = status == Status::ENGINE_LOST || status == Status::FORKED;
        Ok(if is_clients || status.name().is_none() { Status::INTERNAL } else { status })
    }

    fn opened(&mut self) -> Result<Message<'a>, BadMessage> {
        let (text_bytes, request, status) = (self.word()?, self.long()?, self.status()?);
        let (number, grant, bytes) = (self.word()?, self.long()?, self.long()?);
        if !status.is_ok() && (number != 0 || grant != 0 || bytes != 0) {
            return Err(BadMessage("a region that is not opened, and described"));
        }
        if bytes > REGION_BYTES_MAX {
            return Err(BadMessage("a region that is too long"));
        }
        Ok(Message::Opened { request, status, number, grant, bytes, text: self.text(text_bytes)? })
    }

    fn list(&mut self, bytes: u32) -> Result<&'a [u8], BadMessage> {
        if bytes as usize > LIST_BYTES {
            return Err(BadMessage("a list that is too long"));
        }
        self.tail(bytes)
    }

    fn payload(&mut self, bytes: u32) -> Result<&'a [u8], BadMessage> {
        if bytes > NOTIFY_BYTES_MAX {
            return Err(BadMessage("a payload that is too long"));
        }
        self.tail(bytes)
    }

    fn text(&mut self, bytes: u32) -> Result<&'a str, BadMessage> {
        if bytes as usize > NAME_BYTES_MAX {
            return Err(BadMessage("a name that is too long"));
        }
        std::str::from_utf8(self.tail(bytes)?).map_err(|_| BadMessage("a name that is not UTF-8"))
    }

    fn tail(&mut self, bytes: u32) -> Result<&'a [u8], BadMessage> {
        let (taken, rest) = self.0.split_at_checked(bytes as usize).ok_or(BadMessage("too short"))?;
        self.0 = rest;
        Ok(taken)
    }
}
