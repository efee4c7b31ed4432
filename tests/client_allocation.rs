//! Once warm, a client allocates nothing per batch.

mod counting;
mod fake;

use fake::{Fake, meet, setup};
use scatter_ring::client::{Client, Region};

/// Eight batches under way at a time, of 40 descriptors each, their outcomes waited for or not.
fn round(client: &mut Client, fake: &mut Fake, memory: &Region) {
    let tickets: [_; 8] = std::array::from_fn(|_| {
        let mut batch = client.batch().hint(40, 320);
        for i in 0..40 {
            batch.read(memory, 0, memory, 8 * i, 8).unwrap();
        }
        batch.submit().unwrap()
    });
    let taken = fake.areas.sq.available().unwrap();
    for _ in 0..taken {
        fake.areas.sq.pop().unwrap();
    }
    fake.areas.sq.release();
    tickets.iter().rev().for_each(|ticket| fake.done(ticket.position(), 41));
    for ticket in tickets.iter().step_by(2) {
        client.wait(ticket).unwrap();
    }
}

#[test]
fn a_warm_client_allocates_nothing_per_batch() {
    let (mut client, mut fake) = meet(&setup(512, 64));
    let memory = client.allocate(4096).unwrap();
    (0..4).for_each(|_| round(&mut client, &mut fake, &memory));
    let before = counting::own_allocations();
    (0..50).for_each(|_| round(&mut client, &mut fake, &memory));
    assert_eq!(counting::own_allocations() - before, 0);
}
