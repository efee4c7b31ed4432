//! Every constant and structure that C gets, as Rust has it.
//!
//! The lists name the items; their values, types, sizes and offsets are Rust's own. `c_header.rs` fails for an item of the
//! sources that stands neither here nor in [`NOT_IN_C`].

use ring_abi::*;
use std::mem::offset_of;

/// What C does without, and why.
pub const NOT_IN_C: &[(&str, &str)] = &[
    ("BadMessage", "an error of the decoder in Rust"),
    ("Entry", "eight words: in C a structure of 64 bytes"),
    ("Descriptor::ZERO", "{0}"),
    ("Span::ZERO", "{0}"),
    ("Status::ALL", "scatter_ring_status_name and scatter_ring_status_text"),
];

pub struct Constant {
    pub path: &'static str,
    pub value: i128,
    pub c_type: &'static str,
    /// To be written in hexadecimal.
    pub is_bits: bool,
}

pub struct Structure {
    pub name: &'static str,
    pub bytes: usize,
    pub align: usize,
    pub members: Vec<Member>,
    /// One with bytes that differ from each other, as Rust writes it.
    pub sample: Vec<u8>,
}

pub struct Member {
    pub name: &'static str,
    pub c_type: &'static str,
    /// Elements of an array.
    pub array: Option<usize>,
    pub offset: usize,
    pub bytes: usize,
    /// Its values in the sample.
    pub values: Vec<i128>,
}

/// A type whose values are numbers.
pub trait Number: Copy {
    const C: &'static str;
    fn number(self) -> i128;
}

macro_rules! numbers {
    ($($of:ty, $c:literal, $number:expr;)*) => {
        $(impl Number for $of {
            const C: &'static str = $c;
            fn number(self) -> i128 {
                let number: fn($of) -> i128 = $number;
                number(self)
            }
        })*
    };
}

numbers! {
    u8, "uint8_t", |n| n.into();
    u16, "uint16_t", |n| n.into();
    u32, "uint32_t", |n| n.into();
    u64, "uint64_t", |n| n.into();
    usize, "size_t", |n| n as i128;
    i32, "int32_t", |n| n.into();
    Opcode, "uint8_t", |n| n.0.into();
    IndexKind, "uint8_t", |n| (n as u8).into();
    Handle, "uint32_t", |n| n.0.into();
    Field, "uint32_t", |n| n.0.into();
    Route, "uint8_t", |n| n.0.into();
    Stage, "uint8_t", |n| n.0.into();
    Kind, "uint16_t", |n| n.0.into();
    CommandOp, "uint8_t", |n| n.0.into();
    Status, "int32_t", |n| n.0.into();
}

macro_rules! constants {
    ($is_bits:literal: $($name:ident $(:: $of:ident)?),* $(,)?) => {
        [$(constant(concat!(stringify!($name) $(, "::", stringify!($of))?), $name $(:: $of)?, $is_bits)),*]
    };
}

fn constant<T: Number>(path: &'static str, value: T, is_bits: bool) -> Constant {
    Constant { path, value: value.number(), c_type: T::C, is_bits }
}

/// Status codes come from their own list.
pub fn constants() -> Vec<Constant> {
    let bits = constants![true:
        MAGIC, MISSING_U32, MISSING_U64, BATCH_SLOTS_MAX, NO_ANSWER,
        Flags::LAST, Flags::FENCE, Flags::EXTENDED, Flags::MISSING_ZERO, Flags::MISSING_SKIP, Flags::DIRECT,
        Flags::GATHER, Flags::KNOWN,
        SpanFlags::BATCH_DONE, SpanFlags::HELD, SpanFlags::RELEASED, SpanFlags::EVENT, SpanFlags::KNOWN,
        Features::LOCAL, Features::INDEX, Features::EXTENSION, Features::NOTIFY, Features::PEERS, Features::STAGED,
        Features::KNOWN,
        rights::READ, rights::WRITE, rights::KNOWN,
        Kind::ANSWER, Field::NONE, Handle::INDEX_MAX, Handle::GENERATION_MAX,
    ];
    let others = constants![false:
        ABI_MAJOR, ABI_MINOR, ENTRY_BYTES, CAPACITY_MIN, CAPACITY_MAX, SPANS_PER_BATCH,
        submit::TAIL, submit::HEAD, submit::SLEEP_WORD, submit::SLOTS,
        complete::HEAD, complete::TAIL, complete::SLEEP_WORD, complete::STOP_WORD, complete::SLOTS,
        HEADER_WORDS, Header::BYTES, NOTIFY_BYTES_MAX, Handle::NONE,
        Opcode::NOP, Opcode::BEGIN, Opcode::READ, Opcode::WRITE, Opcode::NOTIFY, Opcode::CANCEL, Opcode::EXTENSION,
        IndexKind::None, IndexKind::U32, IndexKind::U64, IndexKind::Fragments,
        Field::OPCODE, Field::INDEX_KIND, Field::FLAGS, Field::LEN, Field::SRC_REGION, Field::DST_REGION,
        Field::SRC_OFFSET, Field::DST_OFFSET, Field::COUNT, Field::INDEX_REGION, Field::INDEX_OFFSET,
        Field::SRC_STRIDE, Field::DST_STRIDE, Field::EXTENSION_OPCODE, Field::EXTENSION_RESERVED, Field::INNER_COUNT,
        Field::INNER_SRC_STRIDE, Field::INNER_DST_STRIDE,
        MESSAGE_BYTES, NAME_BYTES_MAX, MESSAGE_FDS_MAX,
        Kind::HELLO, Kind::REGISTER, Kind::EXPORT, Kind::OPEN, Kind::CLOSE, Kind::CANCEL, Kind::STAGE, Kind::LEND,
        Kind::NOTIFICATIONS, Kind::CONNECT, Kind::FETCH,
        Route::NONE, Route::DIRECT, Route::GATHER, Route::HYBRID,
        Stage::NONE, Stage::TAKE, Stage::PLAN, Stage::COMMAND, Stage::PACK, Stage::WINDOW, Stage::WAIT,
        staged::SLOTS_MIN, staged::SLOTS_MAX, staged::SLOT_BYTES_MIN, staged::SLOT_BYTES_MAX, staged::PIECES_MAX,
        staged::LIST_BYTES, CommandOp::PACK, CommandOp::UNPACK,
    ];
    let statuses =
        Status::ALL.iter().map(|(status, name, _)| constant(leaked(format!("Status::{name}")), *status, false));
    bits.into_iter().chain(others).chain(statuses).collect()
}

fn leaked(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// A member's type: a number, or an array of numbers.
pub trait Values {
    const C: &'static str;
    const ARRAY: Option<usize>;
    fn values(&self) -> Vec<i128>;
}

impl<T: Number> Values for T {
    const C: &'static str = T::C;
    const ARRAY: Option<usize> = None;
    fn values(&self) -> Vec<i128> {
        vec![self.number()]
    }
}

impl<T: Number, const N: usize> Values for [T; N] {
    const C: &'static str = T::C;
    const ARRAY: Option<usize> = Some(N);
    fn values(&self) -> Vec<i128> {
        self.iter().map(|n| n.number()).collect()
    }
}

impl Member {
    fn new<T: Values>(name: &'static str, offset: usize, value: &T) -> Member {
        Member { name, c_type: T::C, array: T::ARRAY, offset, bytes: size_of::<T>(), values: value.values() }
    }
}

/// Structures that Rust lays out as C does.
macro_rules! structures {
    ($($structure:ident { $($field:ident),* } = $sample:expr => $words:ident;)*) => {
        [$({
            let sample: $structure = $sample;
            Structure {
                name: stringify!($structure),
                bytes: size_of::<$structure>(),
                align: align_of::<$structure>(),
                members: vec![
                    $(Member::new(stringify!($field), offset_of!($structure, $field), &sample.$field)),*
                ],
                sample: sample.$words().into_iter().flat_map(u64::to_le_bytes).collect(),
            }
        }),*]
    };
}

pub fn structures() -> Vec<Structure> {
    let mut all = Vec::from(structures! {
        Descriptor { opcode, index_kind, flags, len, src_region, dst_region, src_offset, dst_offset, count, index_region,
            index_offset, src_stride, dst_stride, user_data } = Descriptor::from_entry(&counting()) => to_entry;
        Extension { opcode, reserved, inner_count, inner_src_stride, inner_dst_stride, reserved_words }
            = Extension::from_entry(&counting()) => to_entry;
        FragmentRecord { src, dst, len, reserved } = FragmentRecord::from_words(counting()) => to_words;
        Span { first, count, status, bytes, user_data, flags, route, stage, queue_ns, plan_ns, command_ns, pack_ns,
            window_ns, total_ns, field } = Span::from_entry(&counting()) => to_entry;
        Header { magic, abi_major, abi_minor, header_bytes, features, epoch, start_position, descriptor_bytes,
            span_bytes, sq_capacity, cq_capacity, sq_tail_offset, cq_head_offset, client_sleep_offset,
            descriptors_offset, sq_head_offset, cq_tail_offset, engine_sleep_offset, stop_offset, spans_offset, reserved
        } = Header::from_words(&counting()) => to_words;
        PieceRecord { offset, len, reserved } = PieceRecord::from_words(counting()) => to_words;
    });
    all.extend([message(), command(), command_result()]);
    all
}

/// Words whose bytes count from 1.
fn counting<const N: usize>() -> [u64; N] {
    std::array::from_fn(|word| u64::from_le_bytes(std::array::from_fn(|byte| (8 * word + byte + 1) as u8)))
}

/// A structure that is no C structure in Rust, member by member without gaps.
struct Wire {
    members: Vec<Member>,
    end: usize,
}

impl Wire {
    fn new() -> Wire {
        Wire { members: Vec::new(), end: 0 }
    }

    fn then<T: Values>(mut self, name: &'static str, value: T) -> Wire {
        let member = Member::new(name, self.end, &value);
        assert!(self.end.is_multiple_of(align_of::<T>()), "C would leave a gap before {name}");
        self.end += member.bytes;
        self.members.push(member);
        self
    }

    fn of(self, name: &'static str, sample: &[u8]) -> Structure {
        Structure { name, bytes: self.end, align: 8, members: self.members, sample: sample.to_vec() }
    }
}

fn message() -> Structure {
    let [a, b, args @ ..] = counting::<10>();
    let text: String = (0..NAME_BYTES_MAX - 1).map(|i| char::from(b'!' + (i % 90) as u8)).collect();
    let mut message = Message::new(Kind(b as u16), b, args).with_name(&text);
    message.status = Status(a as u32 as i32);
    let name: [u8; NAME_BYTES_MAX] = std::array::from_fn(|i| text.as_bytes().get(i).copied().unwrap_or(0));
    let mut wire = Wire::new()
        .then("kind", message.kind)
        .then("reserved", 0u16)
        .then("status", message.status)
        .then("request", message.request)
        .then("args", message.args)
        .then("name_bytes", text.len() as u32)
        .then("reserved2", 0u32)
        .then("name", name);
    wire.members.last_mut().unwrap().c_type = "char";
    wire.of("Message", &message.to_bytes())
}

fn command() -> Structure {
    let command = Command::from_entry(&counting());
    let wire = Wire::new()
        .then("op", command.op)
        .then("reserved", [0u8; 3])
        .then("slot", command.slot)
        .then("chunk", command.chunk)
        .then("region", command.region)
        .then("piece_bytes", command.piece_bytes)
        .then("count", command.count)
        .then("reserved2", 0u32)
        .then("reserved_words", [0u64; 4]);
    wire.of("Command", &command.to_entry().map(u64::to_le_bytes).concat())
}

fn command_result() -> Structure {
    let [chunk, pair, detail] = counting::<3>();
    let result = CommandResult { chunk, status: Status(pair as i32), piece: (pair >> 32) as u32, detail };
    let wire = Wire::new()
        .then("chunk", result.chunk)
        .then("status", result.status)
        .then("piece", result.piece)
        .then("detail", result.detail)
        .then("reserved_words", [0u64; 5]);
    wire.of("CommandResult", &result.to_entry().map(u64::to_le_bytes).concat())
}
