//! What engines say to each other: every message means after the wire what it meant before, and nothing else is taken.

mod seeded;

use ring_abi::{Field, NAME_BYTES_MAX, NOTIFY_BYTES_MAX, Stage, Status};
use scatter_ring::peer::{BadMessage, MESSAGE_BYTES_MAX, Message};
use scatter_ring::pipeline::{BatchId, ChunkId};
use scatter_ring::plan::{Fault, LIST_BYTES};
use seeded::Random;

const ID: ChunkId = ChunkId { batch: BatchId(0x0102_0304_0506_0708), number: 0x090A_0B0C };
const FAULT: Fault = Fault {
    status: Status::OUT_OF_RANGE,
    stage: Stage::PACK,
    field: Field::INNER_DST_STRIDE,
    fragment: 0x0D0E_0F10,
    detail: 0x1112_1314_1516_1718,
};

/// One of each kind, with the places of its reserved bytes behind those that all have.
fn each() -> Vec<(Message<'static>, Vec<usize>)> {
    let (long, word) = (0x2122_2324_2526_2728, 0x292A_2B2C);
    let list: &[u8] = b"any bytes";
    let opened = Message::Opened { request: long, status: Status::OK, number: 7, grant: 9, bytes: 1 << 56, text: "" };
    vec![
        (Message::Pack { id: ID, bytes: word, landing: long, list }, vec![]),
        (Message::Unpack { id: ID, bytes: word, slot: 77, list }, (28..32).collect()),
        (Message::Cancel { batch: ID.batch }, (4..8).collect()),
        (Message::Done { id: ID, queue_ns: word, pack_ns: 88 }, vec![]),
        (Message::Refused { id: ID }, vec![]),
        (Message::Failed { id: ID, fault: FAULT }, (21..24).collect()),
        (Message::Drained { batch: ID.batch }, (4..8).collect()),
        (Message::Open { request: long, rights: 3, name: "table ä" }, vec![]),
        (opened, vec![]),
        (Message::Close { number: word }, vec![]),
        (Message::Withdrawn { number: word }, vec![]),
        (Message::Slots { grant: long, slots: word, slot_bytes: 99 }, (20..24).collect()),
        (Message::Ping { number: long }, (4..8).collect()),
        (Message::Pong { number: long }, (4..8).collect()),
        (Message::Notify { request: long, number: word, user_data: 6, offset: 7, payload: list }, (20..24).collect()),
        (Message::Notified { request: long, status: Status::NOT_DONE }, vec![]),
        (Message::Here { host: [0xA5; 16], token: *b"0123456789abcdef", path: "/run/ä/socket" }, vec![]),
        (Message::Left { number: word }, vec![]),
    ]
}

fn written(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.write(&mut bytes);
    bytes
}

/// Over the wire and back.
fn same(message: &Message<'_>) {
    assert_eq!(Message::read(&written(message)).as_ref(), Ok(message));
}

#[test]
fn every_kind_means_after_the_wire_what_it_meant_before() {
    let mut kinds = Vec::new();
    for (message, _) in each() {
        same(&message);
        kinds.push(written(&message)[0]);
    }
    assert_eq!(kinds, (1..=18).collect::<Vec<u8>>(), "a kind has another number, or no sample");
}

#[test]
fn extreme_values_come_through() {
    for word in [0, u32::MAX] {
        let long = if word == 0 { 0 } else { u64::MAX };
        let (id, batch) = (ChunkId { batch: BatchId(long), number: word }, BatchId(long));
        for list in [&[][..], &[0xFF; LIST_BYTES]] {
            same(&Message::Pack { id, bytes: word, landing: long, list });
            same(&Message::Unpack { id, bytes: word, slot: word, list });
        }
        same(&Message::Cancel { batch });
        same(&Message::Done { id, queue_ns: word, pack_ns: word });
        same(&Message::Refused { id });
        same(&Message::Failed { id, fault: Fault { fragment: word, detail: long, field: Field::NONE, ..FAULT } });
        same(&Message::Drained { batch });
        for name in ["", &"n".repeat(NAME_BYTES_MAX)] {
            same(&Message::Open { request: long, rights: long, name });
            let (number, grant, bytes) = (word, long, long & 1 << 56);
            same(&Message::Opened { request: long, status: Status::OK, number, grant, bytes, text: name });
            let status = Status::NAME_UNKNOWN;
            same(&Message::Opened { request: long, status, number: 0, grant: 0, bytes: 0, text: name });
        }
        same(&Message::Close { number: word });
        same(&Message::Withdrawn { number: word });
        same(&Message::Left { number: word });
        same(&Message::Slots { grant: long, slots: word, slot_bytes: word });
        same(&Message::Ping { number: long });
        same(&Message::Pong { number: long });
        for payload in [&[][..], &[0xFF; NOTIFY_BYTES_MAX as usize]] {
            same(&Message::Notify { request: long, number: word, user_data: long, offset: long, payload });
        }
        same(&Message::Notified { request: long, status: Status::OK });
        for path in ["", &"n".repeat(NAME_BYTES_MAX)] {
            same(&Message::Here { host: [word as u8; 16], token: [word as u8; 16], path });
        }
    }
}

#[test]
fn a_message_stands_behind_what_was_written_before_and_the_longest_is_as_long_as_they_say() {
    let mut bytes = vec![1, 2];
    Message::Ping { number: 5 }.write(&mut bytes);
    assert_eq!(bytes, [1, 2, 13, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    let full = Message::Pack { id: ID, bytes: 1, landing: 1, list: &[0; LIST_BYTES] };
    assert_eq!(written(&full).len(), MESSAGE_BYTES_MAX);
}

#[test]
fn a_byte_less_or_a_byte_more_is_no_message() {
    for (message, _) in each() {
        let mut bytes = written(&message);
        for len in 0..bytes.len() {
            assert!(Message::read(&bytes[..len]).is_err(), "{len} bytes of {message:?}");
        }
        for more in [0, 1, 0xFF] {
            bytes.push(more);
            assert!(Message::read(&bytes).is_err(), "{more} behind {message:?}");
            bytes.pop();
        }
    }
}

#[test]
fn reserved_bytes_are_0() {
    for (message, places) in each() {
        for place in [1, 2, 3].into_iter().chain(places) {
            for bit in 0..8 {
                let mut bytes = written(&message);
                assert_eq!(bytes[place], 0, "byte {place} of {message:?}");
                bytes[place] = 1 << bit;
                let refused = Err(BadMessage("a reserved byte is not 0"));
                assert_eq!(Message::read(&bytes), refused, "byte {place} of {message:?}");
            }
        }
    }
}

#[test]
fn what_has_no_place_is_cut_between_characters() {
    // 167 bytes, and a character of two.
    let long = format!("{}ä", "n".repeat(NAME_BYTES_MAX - 1));
    let kept = &long[..NAME_BYTES_MAX - 1];
    let bytes = written(&Message::Open { request: 1, rights: 1, name: &long });
    assert_eq!(Message::read(&bytes), Ok(Message::Open { request: 1, rights: 1, name: kept }));
    let refused = |text| Message::Opened { request: 1, status: Status::STOPPING, number: 0, grant: 0, bytes: 0, text };
    assert_eq!(Message::read(&written(&refused(&long))), Ok(refused(kept)));
}

#[test]
fn lengths_beyond_the_limits_and_bad_texts_are_refused() {
    let set = |message: &Message<'_>, at: usize, value: u32, grow: usize| {
        let mut bytes = written(message);
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        bytes.resize(bytes.len() + grow, 0);
        Message::read(&bytes).err().map(|bad| bad.0)
    };
    let full = [0; LIST_BYTES];
    for message in [
        Message::Pack { id: ID, bytes: 1, landing: 1, list: &full },
        Message::Unpack { id: ID, bytes: 1, slot: 1, list: &full },
    ] {
        assert_eq!(set(&message, 20, LIST_BYTES as u32 + 1, 1), Some("a list that is too long"));
        assert_eq!(set(&message, 20, u32::MAX, 0), Some("a list that is too long"));
    }
    let name = "n".repeat(NAME_BYTES_MAX);
    let open = Message::Open { request: 1, rights: 1, name: &name };
    assert_eq!(set(&open, 4, NAME_BYTES_MAX as u32 + 1, 1), Some("a name that is too long"));
    assert_eq!(set(&open, 24, u32::MAX, 0), Some("a name that is not UTF-8"));
    assert_eq!(set(&Message::Close { number: 1 }, 0, 0, 0), Some("unknown kind"));
    assert_eq!(set(&Message::Close { number: 1 }, 0, 19, 0), Some("unknown kind"));
    let payload = &full[..NOTIFY_BYTES_MAX as usize];
    let notify = Message::Notify { request: 1, number: 1, user_data: 1, offset: 1, payload };
    assert_eq!(set(&notify, 4, NOTIFY_BYTES_MAX + 1, 1), Some("a payload that is too long"));
    assert_eq!(set(&Message::Notified { request: 1, status: Status::OK }, 4, 1, 0), Some("a status that is positive"));
}

#[test]
fn what_is_said_of_a_region_fits_together() {
    let opened = |status, number, grant, bytes| {
        let message = Message::Opened { request: 1, status, number, grant, bytes, text: "" };
        Message::read(&written(&message)).is_ok()
    };
    assert!(opened(Status::OK, 0, 0, 1 << 56));
    assert!(!opened(Status::OK, 0, 0, (1 << 56) + 1), "longer than any region");
    assert!(opened(Status::NO_RIGHT, 0, 0, 0));
    assert!(!opened(Status::NO_RIGHT, 1, 0, 0) && !opened(Status::NO_RIGHT, 0, 1, 0));
    assert!(!opened(Status::NO_RIGHT, 0, 0, 1) && !opened(Status(1), 0, 0, 0));
}

#[test]
fn codes_that_are_not_known_become_harmless_ones() {
    let read = |status, stage, field| {
        let fault = Fault { status, stage, field, ..FAULT };
        let bytes = written(&Message::Failed { id: ID, fault });
        match Message::read(&bytes) {
            Ok(Message::Failed { fault, .. }) => Some((fault.status, fault.stage, fault.field)),
            _ => None,
        }
    };
    for status in [Status::OK, Status(1), Status(i32::MAX)] {
        assert_eq!(read(status, Stage::PACK, Field::LEN), None, "{status:?} is no failure");
    }
    for status in [Status(-9999), Status(i32::MIN), Status::ENGINE_LOST, Status::FORKED] {
        assert_eq!(read(status, Stage::PACK, Field::LEN), Some((Status::INTERNAL, Stage::PACK, Field::LEN)));
    }
    for stage in [Stage::NONE, Stage(7), Stage(255)] {
        assert_eq!(read(Status::FAULT, stage, Field::LEN), Some((Status::FAULT, Stage::COMMAND, Field::LEN)));
    }
    for field in [Field(3), Field(77), Field(u32::MAX - 1), Field::NONE] {
        assert_eq!(read(Status::FAULT, Stage::PACK, field), Some((Status::FAULT, Stage::PACK, Field::NONE)));
    }
    for (status, ..) in Status::ALL.iter().filter(|(status, ..)| !status.is_ok() && status.0 > -64) {
        assert_eq!(read(*status, Stage::WAIT, Field::OPCODE), Some((*status, Stage::WAIT, Field::OPCODE)));
    }
}

#[test]
fn any_bytes_are_answered_and_each_message_has_one_spelling() {
    let samples: Vec<Vec<u8>> = each().iter().map(|(message, _)| written(message)).collect();
    let mut buffer = Vec::new();
    let mut taken = 0;
    seeded::cases(100_000, |random: &mut Random| {
        let mut bytes;
        if random.once_in(3) {
            bytes = (0..random.below(64)).map(|_| random.word() as u8).collect::<Vec<u8>>();
            // Else few get beyond the first check.
            if bytes.len() > 3 {
                bytes[..4].copy_from_slice(&random.small(18).to_le_bytes());
            }
        } else {
            bytes = samples[random.below(samples.len() as u64) as usize].clone();
            for _ in 0..=random.below(3) {
                let place = random.below(bytes.len() as u64) as usize;
                bytes[place] = random.word() as u8;
            }
        }
        let Ok(message) = Message::read(&bytes) else { return };
        taken += 1;
        buffer.clear();
        message.write(&mut buffer);
        let mapped = matches!(message, Message::Failed { .. } | Message::Opened { .. } | Message::Notified { .. });
        assert!(mapped || buffer == bytes, "{message:?} is spelled in two ways");
        assert_eq!(Message::read(&buffer), Ok(message));
    });
    assert!(taken > 10_000 || std::env::var("SCATTER_RING_SEED").is_ok(), "only {taken} messages were taken");
}
