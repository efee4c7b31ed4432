//! The handshake between engines, without sockets: whatever a stranger sends, nothing is agreed without the key.

mod counting;
mod seeded;

use scatter_ring::peer::{
    Agreed, End, Identity, Initiator, InitiatorStep, Joiner, Key, Keys, LANES_MAX, Limits, Local, Refusal, Responder,
    ResponderStep, VERSION, Version,
};

const HELLO: usize = 0;
const HELLO_ANSWER: usize = 1;
const PROOF: usize = 2;
const PROOF_ANSWER: usize = 3;
const SECOND_NS: u64 = 1_000_000_000;

fn local(identity: u8) -> Local {
    Local {
        identity: Identity([identity; 16]),
        version: VERSION,
        layouts: [64, 64, 24, 16],
        offers: 0b110,
        requires: 0b010,
        limits: Limits { slot_bytes: 1 << 20, slots: 8, commands: 32, lanes: 4 },
    }
}

fn key(n: u8) -> Key {
    Key::new(&[n; 32])
}

fn keys(n: u8) -> Keys {
    Keys::new(key(n), None)
}

/// Two sides that can agree, both with key 1, with nonces that are used once.
fn sides(nonce: u64) -> (Initiator, Responder) {
    (initiator(&local(1), Some(&key(1)), nonce), responder(&local(2), nonce))
}

fn initiator(local: &Local, key: Option<&Key>, nonce: u64) -> Initiator {
    let mut bytes = [0x11; 32];
    bytes[..8].copy_from_slice(&nonce.to_le_bytes());
    Initiator::new(local, key, 41, bytes, 0)
}

fn responder(local: &Local, nonce: u64) -> Responder {
    let mut bytes = [0x22; 32];
    bytes[..8].copy_from_slice(&nonce.to_le_bytes());
    Responder::new(local, 42, bytes, 0)
}

fn to_responder(side: &mut Responder, mut bytes: &[u8], keys: Option<&Keys>) -> Result<ResponderStep, End> {
    loop {
        let room = side.room();
        let n = room.len().min(bytes.len());
        if n == 0 {
            return Ok(ResponderStep::Wait);
        }
        room[..n].copy_from_slice(&bytes[..n]);
        bytes = &bytes[n..];
        match side.filled(n, keys, 0)? {
            ResponderStep::Wait => {}
            step => return Ok(step),
        }
    }
}

fn to_initiator(side: &mut Initiator, mut bytes: &[u8]) -> Result<InitiatorStep, End> {
    loop {
        let room = side.room();
        let n = room.len().min(bytes.len());
        if n == 0 {
            return Ok(InitiatorStep::Wait);
        }
        room[..n].copy_from_slice(&bytes[..n]);
        bytes = &bytes[n..];
        match side.filled(n, 0)? {
            InitiatorStep::Wait => {}
            step => return Ok(step),
        }
    }
}

fn initiator_says(side: &mut Initiator) -> Vec<u8> {
    let bytes = side.output().to_vec();
    side.sent(bytes.len());
    bytes
}

fn responder_says(side: &mut Responder) -> Vec<u8> {
    let bytes = side.output().to_vec();
    side.sent(bytes.len());
    bytes
}

type Outcome = Result<Agreed, Option<End>>;

/// A whole handshake through a wire that does `change` to each message. An `Err(None)` waits for more.
fn shake(
    (initiator, responder): (&mut Initiator, &mut Responder),
    keys: Option<&Keys>,
    mut change: impl FnMut(usize, &mut Vec<u8>),
) -> (Outcome, Outcome) {
    let (mut ours, mut theirs) = (Err(None), Err(None));
    for message in 0..2 {
        let mut bytes = initiator_says(initiator);
        change(2 * message, &mut bytes);
        match to_responder(responder, &bytes, keys) {
            Err(end) => theirs = Err(Some(end)),
            Ok(ResponderStep::Proven(_)) => theirs = responder.accept().map_err(Some),
            Ok(_) => {}
        }
        let mut bytes = responder_says(responder);
        change(2 * message + 1, &mut bytes);
        match to_initiator(initiator, &bytes) {
            Err(end) => ours = Err(Some(end)),
            Ok(InitiatorStep::Greeted(_)) => initiator.prove(),
            Ok(InitiatorStep::Agreed(agreed)) => ours = Ok(agreed),
            Ok(InitiatorStep::Wait) => {}
        }
    }
    (ours, theirs)
}

/// Two sides that say this of themselves, with these keys.
fn meet(ours: &Local, key: Option<&Key>, theirs: &Local, keys: Option<&Keys>) -> (Outcome, Outcome) {
    shake((&mut initiator(ours, key, 1), &mut responder(theirs, 1)), keys, |_, _| {})
}

/// Whether two sides have the same session key: a socket of one joins the other.
fn joins(ours: &Agreed, theirs: &Agreed) -> bool {
    let joiner = Joiner::new(ours, &local(1), 1, SECOND_NS);
    let mut side = responder(&local(2), 9);
    match to_responder(&mut side, joiner.output(), None) {
        Ok(ResponderStep::Join(claim)) => {
            claim.epoch == theirs.peer_epoch && claim.identity == theirs.identity && side.admit(&theirs.session).is_ok()
        }
        _ => false,
    }
}

fn agreed(outcome: Outcome) -> Agreed {
    outcome.expect("agreed")
}

/// What the responder refused with, which the initiator must have been told.
fn refused((ours, theirs): (Outcome, Outcome)) -> Refusal {
    let Err(Some(End::Ours(refusal))) = theirs else { panic!("not refused: {theirs:?}") };
    assert_eq!(ours.unwrap_err(), Some(End::Theirs(refusal)));
    refusal
}

#[test]
fn two_engines_with_one_key_agree_on_the_smaller_of_everything() {
    let other = Limits { slot_bytes: 4096, slots: 99, commands: 1, lanes: 16 };
    let theirs = Local { limits: other, offers: 0b1010, ..local(2) };
    let (ours, theirs) = meet(&local(1), Some(&key(1)), &theirs, Some(&keys(1)));
    let (ours, theirs) = (agreed(ours), agreed(theirs));
    assert_eq!(ours.limits, Limits { slot_bytes: 4096, slots: 8, commands: 1, lanes: 4 });
    assert_eq!((ours.limits, ours.features), (theirs.limits, theirs.features));
    assert_eq!(ours.features, 0b010);
    assert_eq!((ours.epoch, ours.peer_epoch, theirs.epoch, theirs.peer_epoch), (41, 42, 42, 41));
    assert_eq!((ours.identity, theirs.identity), (Identity([2; 16]), Identity([1; 16])));
    assert!(joins(&ours, &theirs));
}

#[test]
fn two_connections_never_have_the_same_session_key() {
    let all: Vec<(Agreed, Agreed)> = (0..8)
        .map(|nonce| {
            let (mut i, mut r) = sides(nonce);
            let (ours, theirs) = shake((&mut i, &mut r), Some(&keys(1)), |_, _| {});
            (agreed(ours), agreed(theirs))
        })
        .collect();
    for (n, (ours, _)) in all.iter().enumerate() {
        for (m, (_, theirs)) in all.iter().enumerate() {
            assert_eq!(joins(ours, theirs), n == m);
        }
    }
}

#[test]
fn versions_with_one_major_agree_on_the_lower_minor_and_others_are_refused() {
    let versions: Vec<Version> = (6..=8).flat_map(|major| (2..=4).map(move |minor| Version { major, minor })).collect();
    for ours in &versions {
        for theirs in &versions {
            let (a, b) = (Local { version: *ours, ..local(1) }, Local { version: *theirs, ..local(2) });
            let outcome = meet(&a, Some(&key(1)), &b, Some(&keys(1)));
            if ours.major == theirs.major {
                let lower = Version { major: ours.major, minor: ours.minor.min(theirs.minor) };
                assert_eq!([agreed(outcome.0).version, agreed(outcome.1).version], [lower; 2]);
            } else {
                // Each side names the version that the other has.
                assert_eq!(outcome.1.unwrap_err(), Some(End::Ours(Refusal::Version(*ours))));
                assert_eq!(outcome.0.unwrap_err(), Some(End::Theirs(Refusal::Version(*theirs))));
            }
        }
    }
}

#[test]
fn a_later_major_may_have_another_size_of_hello_and_is_still_told_why() {
    let (mut i, mut r) = sides(1);
    let (ours, theirs) = shake((&mut i, &mut r), Some(&keys(1)), |n, bytes| {
        if n == HELLO {
            bytes[6] += 8;
            bytes[8] += 1;
            bytes.extend([0; 8]);
        }
    });
    let later = Version { major: VERSION.major + 1, ..VERSION };
    assert_eq!(theirs.unwrap_err(), Some(End::Ours(Refusal::Version(later))));
    assert_eq!(ours.unwrap_err(), Some(End::Theirs(Refusal::Version(VERSION))));
}

#[test]
fn what_a_side_requires_and_the_other_lacks_is_refused_and_named() {
    let all = |requires, offers| Local { requires, offers, ..local(2) };
    let outcome = |theirs: &Local| meet(&local(1), Some(&key(1)), theirs, Some(&keys(1)));
    assert_eq!(refused(outcome(&all(0b1010, 0b1110))), Refusal::Features(0b1000));
    assert_eq!(refused(outcome(&all(0, 0b100))), Refusal::Features(0b010));
    assert_eq!(refused(outcome(&all(1 << 63, u64::MAX))), Refusal::Features(1 << 63));
    assert!(outcome(&all(0b100, u64::MAX)).0.is_ok());
}

#[test]
fn sizes_limits_and_the_engine_itself_are_checked_before_any_proof() {
    let outcome = |theirs: &Local| refused(meet(&local(1), Some(&key(1)), theirs, Some(&keys(1))));
    assert_eq!(outcome(&Local { layouts: [64, 64, 24, 17], ..local(2) }), Refusal::Layout);
    assert_eq!(outcome(&local(1)), Refusal::OwnIdentity);
    let limits = local(1).limits;
    for useless in [
        Limits { slot_bytes: 0, ..limits },
        Limits { slots: 0, ..limits },
        Limits { commands: 0, ..limits },
        Limits { lanes: 0, ..limits },
        Limits { lanes: LANES_MAX + 1, ..limits },
    ] {
        let ours = Local { limits: useless, ..local(1) };
        assert_eq!(refused(meet(&ours, Some(&key(1)), &local(2), Some(&keys(1)))), Refusal::Limits);
        let outcome = meet(&local(1), Some(&key(1)), &Local { limits: useless, ..local(2) }, Some(&keys(1)));
        assert_eq!(outcome.0.unwrap_err(), Some(End::Ours(Refusal::Limits)));
    }
}

#[test]
fn a_key_that_the_other_lacks_and_a_missing_key_are_refused() {
    let outcome = |key: Option<&Key>, keys: Option<&Keys>| refused(meet(&local(1), key, &local(2), keys));
    assert_eq!(outcome(Some(&key(3)), Some(&keys(1))), Refusal::KeyUnknown);
    assert_eq!(outcome(None, Some(&keys(1))), Refusal::KeyMissing);
    assert_eq!(outcome(Some(&key(1)), None), Refusal::KeyMissing);
    assert!(meet(&local(1), None, &local(2), None).1.is_ok());
}

/// The key's name is no secret: a stranger can name the right key without having it.
#[test]
fn naming_the_right_key_without_having_it_proves_nothing() {
    let name = initiator_says(&mut initiator(&local(1), Some(&key(1)), 1))[80..96].to_vec();
    let (mut i, mut r) = (initiator(&local(1), Some(&key(3)), 1), responder(&local(2), 1));
    let (ours, theirs) = shake((&mut i, &mut r), Some(&keys(1)), |n, bytes| {
        match n {
            HELLO => bytes[80..96].copy_from_slice(&name),
            HELLO_ANSWER => bytes[80..96].copy_from_slice(&key(3).id().0),
            _ => {}
        };
    });
    assert_eq!(theirs.unwrap_err(), Some(End::Ours(Refusal::ProofWrong)));
    assert_eq!(ours.unwrap_err(), Some(End::Theirs(Refusal::ProofWrong)));
}

#[test]
fn while_keys_are_changed_either_is_taken_and_the_one_meant_is_the_one_used() {
    let both = Keys::new(key(1), Some(key(2)));
    for n in [1, 2] {
        let (ours, theirs) = meet(&local(1), Some(&key(n)), &local(2), Some(&both));
        assert!(joins(&agreed(ours), &agreed(theirs)));
    }
    assert_eq!(refused(meet(&local(1), Some(&key(3)), &local(2), Some(&both))), Refusal::KeyUnknown);
}

#[test]
fn no_flipped_bit_of_any_message_lets_a_side_agree_on_what_the_other_did_not_say() {
    for with_key in [true, false] {
        let key_one = key(1);
        let (key, keys) = if with_key { (Some(&key_one), Some(&keys(1))) } else { (None, None) };
        for message in [HELLO, HELLO_ANSWER, PROOF, PROOF_ANSWER] {
            let mut bits = 0;
            let mut bit = 0;
            while bit <= bits {
                let (mut i, mut r) = (initiator(&local(1), key, 1), responder(&local(2), 1));
                let (ours, theirs) = shake((&mut i, &mut r), keys, |n, bytes| {
                    if n == message {
                        bits = bytes.len() * 8 - 1;
                        bytes[bit / 8] ^= 1 << (bit % 8);
                    }
                });
                assert!(ours.is_err(), "message {message}, bit {bit}: the initiator agreed");
                // Its proof is the last thing that the responder waits for: what happens to the answer it cannot know.
                assert_eq!(theirs.is_ok(), message == PROOF_ANSWER, "message {message}, bit {bit}: {theirs:?}");
                bit += 1;
            }
            let bytes = if message < PROOF { 128 } else { 40 };
            assert_eq!(bit, bytes * 8);
        }
    }
}

#[test]
fn a_recorded_handshake_is_worth_nothing_to_either_side() {
    let mut recorded: Vec<Vec<u8>> = vec![Vec::new(); 4];
    let (mut i, mut r) = sides(u64::MAX);
    let (ours, theirs) = shake((&mut i, &mut r), Some(&keys(1)), |n, bytes| recorded[n] = bytes.clone());
    assert!(ours.is_ok() && theirs.is_ok());
    // The same engines and the same epochs: only the fresh nonce differs.
    let times = if cfg!(debug_assertions) { 1000 } else { 10_000 };
    for nonce in 0..times {
        let (mut i, mut r) = sides(nonce);
        assert!(matches!(to_responder(&mut r, &recorded[HELLO], Some(&keys(1))), Ok(ResponderStep::Wait)));
        let step = to_responder(&mut r, &recorded[PROOF], Some(&keys(1)));
        assert!(matches!(step, Err(End::Ours(Refusal::ProofWrong))), "{step:?}");
        assert!(matches!(to_initiator(&mut i, &recorded[HELLO_ANSWER]), Ok(InitiatorStep::Greeted(_))));
        i.prove();
        let step = to_initiator(&mut i, &recorded[PROOF_ANSWER]);
        assert!(matches!(step, Err(End::Ours(Refusal::ProofWrong))), "{step:?}");
    }
}

#[test]
fn a_side_is_not_taken_in_by_what_it_said_itself() {
    // As it is, and as a message of the other kind, and as one of another engine.
    for (kind, identity, expected) in
        [(1, 1, Refusal::BadMessage), (2, 1, Refusal::OwnIdentity), (2, 7, Refusal::ProofWrong)]
    {
        let mut i = initiator(&local(1), Some(&key(1)), 1);
        let mut hello = initiator_says(&mut i);
        hello[4] = kind;
        hello[64..80].fill(identity);
        let end = to_initiator(&mut i, &hello).and_then(|step| {
            assert!(matches!(step, InitiatorStep::Greeted(_)));
            i.prove();
            let mut proof = initiator_says(&mut i);
            proof[4] = 4;
            to_initiator(&mut i, &proof)
        });
        assert_eq!(end.unwrap_err(), End::Ours(expected));
    }
}

/// A stranger between two handshakes of one engine: it dials that engine, and lets itself be dialled by it.
#[test]
fn a_proof_made_for_one_handshake_does_not_serve_in_another() {
    let victim = local(1);
    let mut answering = responder(&victim, 1);
    let mut dialling = initiator(&victim, Some(&key(1)), 2);
    let mut hello = initiator_says(&mut dialling);
    hello[64..80].fill(7);
    assert!(to_responder(&mut answering, &hello, Some(&keys(1))).is_ok());
    let mut answer = responder_says(&mut answering);
    answer[64..80].fill(7);
    assert!(matches!(to_initiator(&mut dialling, &answer), Ok(InitiatorStep::Greeted(_))));
    dialling.prove();
    let proof = initiator_says(&mut dialling);
    let step = to_responder(&mut answering, &proof, Some(&keys(1)));
    assert_eq!(step.unwrap_err(), End::Ours(Refusal::ProofWrong));
}

#[test]
fn the_responder_shows_no_mac_before_it_has_seen_a_right_one() {
    let (mut i, mut r) = sides(1);
    let _ = to_responder(&mut r, &initiator_says(&mut i), Some(&keys(1)));
    assert_eq!(responder_says(&mut r).len(), 128);
    let mut wrong = [0; 40];
    wrong[..8].copy_from_slice(&[b'S', b'R', b'P', b'R', 3, 0, 40, 0]);
    assert_eq!(to_responder(&mut r, &wrong, Some(&keys(1))).unwrap_err(), End::Ours(Refusal::ProofWrong));
    assert_eq!(responder_says(&mut r).len(), 24, "a refusal");
    assert!(r.accept().is_err(), "nothing was proven");
}

#[test]
fn a_handshake_arrives_byte_by_byte_and_takes_no_byte_of_what_follows() {
    let (mut i, mut r) = sides(1);
    let keys = keys(1);
    let mut wire = initiator_says(&mut i);
    wire.extend([0xee; 10]);
    let mut taken = 0;
    while !r.room().is_empty() && r.output().is_empty() {
        r.room()[0] = wire[taken];
        taken += 1;
        assert!(r.filled(1, Some(&keys), 0).is_ok());
    }
    assert_eq!(taken, 128);
    assert!(matches!(to_initiator(&mut i, &responder_says(&mut r)), Ok(InitiatorStep::Greeted(_))));
    assert!(i.room().is_empty(), "nothing is due before the proof");
    i.prove();
    assert!(matches!(to_responder(&mut r, &initiator_says(&mut i), Some(&keys)), Ok(ResponderStep::Proven(_))));
    assert!(r.room().is_empty());
    r.accept().unwrap();
    let mut wire = responder_says(&mut r);
    wire.extend([0xee; 10]);
    assert!(matches!(to_initiator(&mut i, &wire), Ok(InitiatorStep::Agreed(_))));
    assert!(i.room().is_empty(), "what follows is not the handshake's");
}

#[test]
fn bytes_after_the_deadline_are_too_late_however_many_came_before() {
    let (mut i, mut r) = sides(1);
    let wire = initiator_says(&mut i);
    for (n, byte) in wire.iter().enumerate().take(6) {
        r.room()[0] = *byte;
        let now_ns = n as u64 * SECOND_NS;
        let step = r.filled(1, Some(&keys(1)), now_ns);
        match n {
            5 => assert_eq!(step.unwrap_err(), End::Ours(Refusal::TimedOut)),
            _ => assert!(matches!(step, Ok(ResponderStep::Wait))),
        }
    }
    assert_eq!(i.filled(0, 5 * SECOND_NS).unwrap_err(), End::Ours(Refusal::TimedOut));
    assert_eq!(i.deadline_ns(), 5 * SECOND_NS);
}

#[test]
fn a_socket_joins_only_with_the_proof_of_that_connection_and_that_lane() {
    let (mut i, mut r) = sides(1);
    let (ours, theirs) = shake((&mut i, &mut r), Some(&keys(1)), |_, _| {});
    let (ours, theirs) = (agreed(ours), agreed(theirs));
    let joiner = Joiner::new(&ours, &local(1), 1, SECOND_NS);
    let join = joiner.output().to_vec();
    assert_eq!(join.len(), 72);
    for bit in 0..join.len() * 8 {
        let mut flipped = join.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let mut side = responder(&local(2), 5);
        if let Ok(ResponderStep::Join(_)) = to_responder(&mut side, &flipped, None) {
            // Also if the claim still named that connection.
            assert!(side.admit(&theirs.session).is_err(), "bit {bit}");
        }
    }
    let answer_to = |lane| {
        let joiner = Joiner::new(&ours, &local(1), lane, SECOND_NS);
        let mut side = responder(&local(2), 5);
        to_responder(&mut side, joiner.output(), None).unwrap();
        side.admit(&theirs.session).unwrap();
        responder_says(&mut side)
    };
    let join = |answer: &[u8]| {
        let mut joiner = Joiner::new(&ours, &local(1), 1, SECOND_NS);
        joiner.room().copy_from_slice(&answer[..8]);
        joiner.filled(8, 0).and_then(|_| {
            joiner.room().copy_from_slice(&answer[8..]);
            joiner.filled(32, 0)
        })
    };
    let answer = answer_to(1);
    assert_eq!(join(&answer), Ok(true));
    assert_eq!(join(&answer_to(2)), Err(End::Ours(Refusal::ProofWrong)));
    for bit in 64..answer.len() * 8 {
        let mut flipped = answer.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(join(&flipped), Err(End::Ours(Refusal::ProofWrong)), "bit {bit}");
    }
}

#[test]
fn garbage_neither_panics_nor_agrees_nor_makes_a_side_allocate() {
    let cases = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    let (mut i, mut r) = sides(u64::MAX);
    let mut recorded: Vec<Vec<u8>> = vec![Vec::new(); 4];
    let _ = shake((&mut i, &mut r), Some(&keys(1)), |n, bytes| recorded[n] = bytes.clone());
    let keys = keys(1);
    let key = key(1);
    let (ours, theirs) = (local(1), local(2));
    seeded::cases(cases, |random| {
        let mut wire = [0u8; 320];
        let mut len = 0;
        // Random bytes, right headers with random bodies, and messages that are right but for a few bytes.
        while len < 160 {
            let message = &recorded[random.below(4) as usize];
            let right = random.pick(&[0, 4, 8, 12, message.len()]);
            let place = &mut wire[len..len + message.len()];
            place.fill_with(|| random.word() as u8);
            place[..right].copy_from_slice(&message[..right]);
            if random.once_in(2) {
                place[random.below(place.len() as u64) as usize] ^= 1 << random.below(8);
            }
            len += message.len();
        }
        let (mut i, mut r) = (initiator(&ours, Some(&key), random.word()), responder(&theirs, random.word()));
        let before = counting::own_allocations();
        let step = to_responder(&mut r, &wire[..len], Some(&keys));
        assert!(!matches!(step, Ok(ResponderStep::Proven(_))));
        if let Ok(InitiatorStep::Greeted(_)) = to_initiator(&mut i, &wire[..len]) {
            i.prove();
            assert!(!matches!(to_initiator(&mut i, &wire[..len]), Ok(InitiatorStep::Agreed(_))));
        }
        assert_eq!(counting::own_allocations(), before, "a peer's bytes made a side allocate");
    });
}
