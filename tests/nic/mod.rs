//! A network of simulated RDMA devices, for the binding and for links: C functions of this process instead of a library's.
//!
//! Queue pairs are connected by their numbers, and really move bytes between memory that was registered. Software devices
//! forgive much that hardware does not, so that they find no defect of that kind; these forgive nothing. What nobody may
//! do is refused as a device would, and recorded besides: see [`Network::violations`].
//!
//! Nothing happens within a post. Work is done in steps, each of a queue pair that is chosen at random, in order within one
//! queue pair: by a test ([`Drive::Hand`]), a few by every poll, or by a thread.
//!
//! ```text
//! post_send ─▶ waiting ─ transmit ─▶ under way ──────────────────────── complete ─▶ completion queue ─▶ poll_cq
//!                            │                                             ▲
//!                            ▼ packets                                     │ answers
//!                        arriving ─ deliver ─▶ memory, receives ─ serve ───┘
//! ```

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

mod completions;
mod device;
mod events;
mod faults;
mod memory;
mod modify;
mod post;
mod profile;
mod queue_pair;
mod wire;

pub use faults::{Refusal, Twist};
pub use profile::Profile;

use crate::seeded::Random;
use completions::CompletionQueue;
use events::Events;
use faults::Faults;
use memory::Memory;
use queue_pair::QueuePair;
use scatter_ring::verbs::abi::ibv_wc;
use scatter_ring::verbs::{EventKind, Library};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Two devices and what is between them. It stays as long as anything that was made on it.
pub struct Network {
    shared: Arc<Shared>,
}

/// Who has the devices do their work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// Whoever calls [`Network::step`].
    Hand,
    /// Every poll of a completion queue, some steps at a time.
    Polls,
    /// A thread, until the network is dropped.
    Thread,
}

/// What a device has been asked for and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls of post_send.
    pub doorbells: u64,
    pub writes: u64,
    pub reads: u64,
    pub sends: u64,
    /// Of these, those that ask for a completion.
    pub signalled: u64,
    /// Of these, those with their bytes inside.
    pub inline: u64,
    /// Pieces of local memory of all of them.
    pub pieces: u64,
    /// Receives that were posted.
    pub receives: u64,
    /// Calls of poll_cq, and completions that they gave: of requests, and of receives.
    pub polls: u64,
    pub polled_requests: u64,
    pub polled_receives: u64,
    /// Completions of failed requests among them.
    pub polled_errors: u64,
    /// Completions that were made up of requests that had not asked for one.
    pub unasked: u64,
    /// Times that a message found no receive.
    pub not_ready: u64,
    /// Registrations, and how many of them there are now and were at most.
    pub registered: u64,
    pub registrations: u64,
    pub registrations_peak: u64,
    /// The most places of one send queue that were taken at a time, and the most entries of a completion queue.
    pub send_queue_peak: u64,
    pub completion_queue_peak: u64,
}

impl Counts {
    pub fn requests(&self) -> u64 {
        self.writes + self.reads + self.sends
    }
}

struct Shared {
    world: Mutex<World>,
    names: [String; 2],
}

/// Everything that the devices have and do.
struct World {
    profile: Profile,
    drive: Drive,
    random: Random,
    faults: Faults,
    violations: Vec<String>,
    counts: [Counts; 2],
    memory: Memory,
    pairs: BTreeMap<u32, QueuePair>,
    queues: BTreeMap<u32, CompletionQueue>,
    events: [Events; 2],
    /// Completions of queues that are gone.
    ghosts: [Vec<ibv_wc>; 2],
    next_handle: u32,
    next_incarnation: u64,
    /// Nobody finds its devices any more.
    is_over: bool,
    is_spoiled: bool,
    /// Of a step, kept for its storage.
    choices: Vec<wire::Choice>,
}

/// A pointer that the library gave out. It is handed back, and used only with the world locked.
struct Raw<T>(*mut T);

// SAFETY: see above.
unsafe impl<T> Send for Raw<T> {}

impl<T> Clone for Raw<T> {
    fn clone(&self) -> Raw<T> {
        *self
    }
}

impl<T> Copy for Raw<T> {}

impl Network {
    pub fn new(profile: Profile, drive: Drive, seed: u64) -> Network {
        let world = World {
            profile,
            drive,
            random: Random::from_seed(seed),
            faults: Faults::default(),
            violations: Vec::new(),
            counts: [Counts::default(); 2],
            memory: Memory::default(),
            pairs: BTreeMap::new(),
            queues: BTreeMap::new(),
            events: [Events::new(), Events::new()],
            ghosts: [Vec::new(), Vec::new()],
            next_handle: 1,
            next_incarnation: 1,
            is_over: false,
            is_spoiled: false,
            choices: Vec::new(),
        };
        let shared = Arc::new(Shared { world: Mutex::new(world), names: device::new_names() });
        device::announce(&shared);
        if drive == Drive::Thread {
            keep_stepping(&shared);
        }
        Network { shared }
    }

    /// The library with these devices, and those of other networks in this process.
    pub fn library(&self) -> Arc<Library> {
        // SAFETY: the functions do what their manual pages say.
        unsafe { Library::from_functions(device::functions()) }
    }

    /// The name of a device, 0 or 1.
    pub fn device(&self, device: usize) -> &str {
        &self.shared.names[device]
    }

    /// From here on somebody else has the devices do their work; not a thread.
    pub fn set_drive(&self, drive: Drive) {
        self.world().drive = drive;
    }

    /// One step of a queue pair. False: there is nothing to do.
    pub fn step(&self) -> bool {
        self.world().step()
    }

    /// Steps until there is nothing to do.
    pub fn settle(&self) {
        while self.step() {}
    }

    pub fn profile(&self) -> Profile {
        self.world().profile
    }

    /// True if something is still open on it.
    pub fn is_used(&self) -> bool {
        let world = self.world();
        !world.pairs.is_empty() || !world.queues.is_empty()
    }

    pub fn counts(&self, device: usize) -> Counts {
        self.world().counts[device]
    }

    /// What was done that hardware would not have forgiven.
    pub fn violations(&self) -> Vec<String> {
        self.world().violations.clone()
    }

    /// As [`violations`](Self::violations), which are forgotten.
    pub fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut self.world().violations)
    }

    #[track_caller]
    pub fn assert_clean(&self) {
        let violations = self.violations();
        assert!(violations.is_empty(), "{violations:#?}");
    }

    /// Queue pairs of a device, by their age.
    pub fn queue_pairs(&self, device: usize) -> Vec<u32> {
        let world = self.world();
        let mut pairs: Vec<_> = world.pairs.values().filter(|pair| pair.device == device).collect();
        pairs.sort_by_key(|pair| pair.incarnation);
        pairs.iter().map(|pair| pair.number).collect()
    }

    /// Requests and receives of a device that are posted and not known to have ended.
    pub fn outstanding(&self, device: usize) -> u64 {
        self.world().pairs.values().filter(|pair| pair.device == device).map(QueuePair::outstanding).sum()
    }

    /// What becomes of the `nth` completion of a device from now on; 0 is the next one.
    pub fn twist(&self, device: usize, nth: u64, twist: Twist) {
        self.world().faults.twist(device, nth, twist);
    }

    /// True if a twist has not been met.
    pub fn has_twists(&self) -> bool {
        self.world().faults.has_twists()
    }

    /// A post of a device is refused.
    pub fn refuse_post(&self, device: usize, refusal: Refusal) {
        self.world().faults.refuse_post(device, refusal);
    }

    /// True if a post is still to be refused.
    pub fn refuses(&self, device: usize) -> bool {
        self.world().faults.refuses(device)
    }

    /// Every change of a device's queue pairs to this state fails from now on; `None`: no more.
    pub fn refuse_modify(&self, device: usize, to: Option<u32>) {
        self.world().faults.refused_states[device] = to;
    }

    /// The `nth` registration of a device from now on fails, and all later ones until it is set again.
    pub fn refuse_registrations(&self, device: usize, from_nth: Option<u64>) {
        self.world().faults.registrations_left[device] = from_nth;
    }

    /// A device that reports nothing any more: neither what has ended nor what is flushed.
    pub fn be_mute(&self, device: usize, is_mute: bool) {
        self.world().faults.mute[device] = is_mute;
    }

    /// Nothing gets from one device to the other any more, nor back.
    pub fn cut(&self) {
        self.world().faults.is_cut = true;
    }

    /// Nothing goes wrong any more.
    pub fn calm(&self) {
        self.world().faults.end();
    }

    /// The devices are not what they were for those who come later: nothing is tried on them any more.
    pub fn never_again(&self) {
        self.world().is_spoiled = true;
    }

    pub fn is_spoiled(&self) -> bool {
        self.world().is_spoiled
    }

    /// A queue pair is gone, as if its process were. What it has sent still arrives.
    pub fn vanish(&self, number: u32) {
        self.world().vanish(number);
    }

    /// The device brings a queue pair to the error state by itself.
    pub fn break_pair(&self, number: u32) {
        self.world().break_off(number);
    }

    /// An event of a device, about a queue pair or a port.
    pub fn happens(&self, device: usize, kind: EventKind, about: u32) {
        self.world().happens(device, kind.0, about);
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.shared.world()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.world().is_over = true;
    }
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    fn violation(&mut self, what: String) {
        // The first ones say what is wrong.
        if self.violations.len() < 100 {
            self.violations.push(what);
        }
    }

    fn new_handle(&mut self) -> u32 {
        self.next_handle += 1;
        self.next_handle
    }
}

fn keep_stepping(shared: &Arc<Shared>) {
    let shared = Arc::downgrade(shared);
    std::thread::spawn(move || {
        while let Some(shared) = shared.upgrade() {
            let mut world = shared.world();
            if world.is_over {
                return;
            }
            let moved = world.step();
            drop(world);
            drop(shared);
            if moved { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(50)) }
        }
    });
}
