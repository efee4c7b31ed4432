//! Tasks on lanes that are sockets, and what a heartbeat on them is built on; `link_cases` has what is true of all lanes.

mod link_cases;
mod linked;
mod listed;
mod seeded;

use link_cases::tasks::{BYTES, packing};
use linked::{contents, end, filled, limits, local, narrow, pair, pattern, poll_until, region, remote, until};
use ring_abi::Status;
use scatter_ring::link::tcp::{Limits, Link};
use scatter_ring::link::{Operation, Transport, Use};

use scatter_ring::region::Rights;

#[test]
fn a_task_that_the_lane_never_saw_comes_back_too() {
    let (mut a, b) = pair(2, &limits(), None);
    let (source, slots) = (filled(&pattern(BYTES as usize, 2)), region(u64::from(BYTES)));
    drop(b);
    // Its thread has come to its end, which is not told yet.
    until(|| a.link.has_news());
    a.link.run(1, packing(0, &slots, &source, BYTES)).unwrap();
    until(|| {
        a.poll();
        a.link.is_quiet()
    });
    let came = a.ran.pop().map(|task| (task.id, task.result().map_err(|refusal| refusal.status)));
    assert_eq!((came, a.ran.len()), (Some((0, Err(Status::NOT_DONE))), 0));
    assert_eq!(contents(&slots), [0; BYTES as usize]);
}

#[test]
fn a_lane_0_that_has_stopped_takes_no_task() {
    let (mut a, b) = pair(1, &Limits { operations: 1000, ..limits() }, None);
    let (source, slots) = (filled(&pattern(BYTES as usize, 2)), region(u64::from(BYTES)));
    a.link.run(0, packing(0, &slots, &source, BYTES)).unwrap();
    drop(b);
    until(|| {
        a.link.post(0, &[Operation::Send { bytes: b"anybody?", names: None }]).is_err()
            || a.link.descriptors()[0].is_none()
    });
    assert_eq!(a.link.run(0, packing(0, &slots, &source, BYTES)).unwrap_err().id, 0);
    until(|| {
        a.poll();
        a.link.is_quiet()
    });
    assert_eq!(a.ran.len(), 1, "the one before");
}

#[test]
fn a_lane_says_whether_the_kernel_has_what_was_posted() {
    let wide = Limits { operations: 64, ..narrow() };
    for lane in 0..2 {
        let (mut a, mut b) = pair(2, &wide, Some(256 << 10));
        assert!(!a.link.is_sending(lane));
        let message = [1; 60_000];
        a.link.post(lane, &[Operation::Send { bytes: &message, names: None }; 64]).unwrap();
        // Nobody reads: far more than sockets hold.
        for _ in 0..100 {
            a.poll();
            assert!(a.link.is_sending(lane) && !a.link.is_sending(1 - lane) && !a.link.is_sending(2));
        }
        poll_until(&mut a, &mut b, |_, b| b.received.len() == 64);
        until(|| !a.link.is_sending(lane));
        // An answer of this side is nothing that it has posted.
        let memory = region(10);
        let grant = a.link.grants().grant(memory.clone(), 0, 10, Rights::READ, Use::Many).unwrap();
        let (from, to) = ([remote(grant, 0, 10)], [local(&region(10), 0, 10)]);
        b.link.post(lane, &[Operation::Read { id: 1, from: &from, to: &to }]).unwrap();
        poll_until(&mut a, &mut b, |_, b| b.completed.len() == 1);
        until(|| !b.link.is_sending(lane));
        assert!(!a.link.is_sending(lane));
        if lane == 0 {
            // One operation, of which some is there.
            let long = region(8 << 20);
            let grant = b.link.grants().grant(long.clone(), 0, 8 << 20, Rights::WRITE, Use::Many).unwrap();
            let (from, to) = ([local(&long, 0, 8 << 20)], [remote(grant, 0, 8 << 20)]);
            a.link.post(lane, &[Operation::Write { id: 2, from: &from, to: &to, acknowledged: false }]).unwrap();
            assert!(a.link.is_sending(lane));
            poll_until(&mut a, &mut b, |a, _| a.completed.len() == 1);
        }
        a.link.post(lane, &[Operation::Send { bytes: &message, names: None }; 64]).unwrap();
        end(&mut a, &mut b);
        assert!(!a.link.is_sending(lane), "nothing is sent on a lane that has ended");
    }
}

#[test]
fn a_link_with_limits_that_cannot_be_is_refused() {
    let bell = linked::bell();
    let socket = || vec![linked::sockets(None).0.into()];
    assert!(Link::new(socket(), &Limits { tasks: 0, ..narrow() }, &bell).is_err());
    assert!(Link::new(socket(), &Limits { tasks: (1 << 16) + 1, ..narrow() }, &bell).is_err());
}
