//! Everything there is in a run, and what happens next.

use super::caller::Caller;
use super::events::Events;
use super::flow::{Flow, Lists};
use super::memory::Memory;
use super::owner::OwnerHost;
use super::poller::Poller;
use super::processors::Processors;
use super::random::Random;
use super::tally::Tally;
use super::task::Task;
use super::wire::{Line, ns};
use super::{Host, Run};
use crate::cost::{Choice, Wire};
use crate::pipeline::{Reply, Request, WorkFault, WorkId};
use crate::plan::Fault;

/// Everything there is in a run. Host 0 is the owner's, host 1 the first caller's.
pub struct World<'a> {
    pub run: &'a Run<'a>,
    pub choice: Choice,
    pub now_ns: u64,
    pub events: Events<Event>,
    pub random: Random,
    pub processors: Processors<Task>,
    /// The wire to the callers, and the one to the owner: its device is what all of them share.
    pub lines: [Line; 2],
    pub flows: Vec<Option<Flow>>,
    pub free_flows: Vec<usize>,
    pub owner: OwnerHost,
    pub callers: Vec<Caller<'a>>,
    pub tally: Tally,
    pub memory: Option<Memory>,
}

/// What happens.
#[derive(Debug)]
pub enum Event {
    /// A poller has time for the next thing.
    Turn(usize),
    /// Something is there for a poller.
    Arrive(usize, Input),
    /// A posted flow is ready for the wire.
    Wire(usize),
    /// A direction of the wire has carried what it was busy with.
    Line(usize),
    /// The last of its bytes was read from memory.
    Read(usize),
    /// The last of its bytes is in memory.
    Landed(usize),
    /// A task is over.
    TaskEnd(Task),
    /// The link of a caller goes down.
    LinkDown(usize),
}

/// What a poller takes. `link` is the number of the caller.
#[derive(Clone, Debug)]
pub enum Input {
    Completed { link: usize, work: WorkId, result: Result<(), WorkFault> },
    PostFailed { link: usize, work: WorkId, posted: u32 },
    Request { link: usize, request: Request, lists: Lists },
    Reply(Reply),
    Task(Task, Result<(), Fault>),
    Timer,
    Down { link: usize },
    Quiesced { link: usize },
    Cancel { batch: usize },
}

impl<'a> World<'a> {
    pub fn new(run: &'a Run<'a>, choice: Choice) -> World<'a> {
        let profile = run.profile;
        let mut random = Random::new(run.seed);
        let effects = &profile.effects;
        let mut owner = OwnerHost::new(run, choice, &mut random);
        let callers: Vec<Caller> = (0..run.callers.max(1))
            .filter_map(|_| Some(Caller::new(run, choice, owner.open()?, &mut random)))
            .collect();
        let workers = std::iter::once(profile.owner.workers).chain(callers.iter().map(|_| profile.requester.workers));
        let cores = match profile.link.wire {
            Wire::Nic => None,
            Wire::Cpu { cores, .. } => Some(cores),
        };
        World {
            run,
            choice,
            now_ns: 0,
            events: Events::new(),
            random,
            processors: Processors::new(workers, cores),
            lines: [(); 2].map(|()| Line::new(&profile.link, effects.gap_ns, 2 * callers.len())),
            flows: Vec::new(),
            free_flows: Vec::new(),
            memory: run.data.then(|| Memory::new(run, choice, callers.len())),
            tally: Tally::new(run),
            owner,
            callers,
        }
    }

    /// Until nothing more happens. Nothing does after everything was reported, unless something repeats itself for ever.
    pub fn play(&mut self) {
        for caller in 0..self.callers.len() {
            self.wake(1 + caller, SUBMIT_NS);
            if let Some(at_ns) = self.run.faults.down_at_ns {
                self.events.add(at_ns, Event::LinkDown(caller));
            }
            for at_ns in [self.run.faults.cancel_at_ns, self.run.faults.deadline_ns].into_iter().flatten() {
                for batch in 0..self.run.batches.max(1) as usize {
                    self.events.add(at_ns, Event::Arrive(1 + caller, Input::Cancel { batch }));
                }
            }
        }
        self.play_on();
        // A side that never hears of what it posted keeps the slot for as long as the link is there.
        if self.run.faults.completions.lost > 0 {
            (0..self.callers.len()).for_each(|link| self.events.add(self.now_ns + 1, Event::LinkDown(link)));
            self.play_on();
        }
    }

    fn play_on(&mut self) {
        while let Some((at_ns, event)) = self.events.next() {
            if at_ns > END_NS || self.tally.cut_off {
                self.tally.cut_off = true;
                return;
            }
            self.now_ns = at_ns;
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Turn(0) => self.owner_turn(),
            Event::Turn(host) => self.caller_turn(host - 1),
            Event::Arrive(host, input) => {
                self.poller(host).inbox.push_back(input);
                self.wake(host, self.now_ns);
            }
            Event::Wire(flow) => self.on_wire(flow),
            Event::Line(line) => self.line_ended(line),
            Event::Read(flow) => self.read(flow),
            Event::Landed(flow) => self.landed(flow),
            Event::TaskEnd(task) => self.task_ended(task),
            Event::LinkDown(link) => {
                self.callers[link].dead_ns = self.callers[link].dead_ns.min(self.now_ns);
                let seen_ns = self.now_ns + self.half_trip_ns();
                self.events.add(seen_ns, Event::Arrive(0, Input::Down { link }));
                self.events.add(seen_ns, Event::Arrive(1 + link, Input::Down { link }));
            }
        }
    }

    /// Nothing that is posted on a link lands after it was broken, once it is quiet: then the one who broke it and the
    /// other side hear of that.
    pub fn break_link(&mut self, link: usize, by: Host, at_ns: u64) {
        let quiet_ns = at_ns.saturating_add(ns(self.run.profile.link.round_trip_ns));
        self.callers[link].dead_ns = self.callers[link].dead_ns.min(quiet_ns);
        let (breaker, other) = if by == Host::Owner { (0, 1 + link) } else { (1 + link, 0) };
        self.events.add(quiet_ns + 1, Event::Arrive(breaker, Input::Quiesced { link }));
        self.events.add(quiet_ns + 1, Event::Arrive(other, Input::Down { link }));
    }

    pub fn poller(&mut self, host: usize) -> &mut Poller<Input> {
        if host == 0 { &mut self.owner.poller } else { &mut self.callers[host - 1].poller }
    }

    /// Gives a poller its next turn, as soon as it has time.
    pub fn wake(&mut self, host: usize, at_ns: u64) {
        let poller = self.poller(host);
        if !poller.woken {
            poller.woken = true;
            let turn_ns = poller.free_ns.max(at_ns);
            self.events.add(turn_ns, Event::Turn(host));
        }
    }

    /// Tells a machine the time when it wants to know it.
    pub fn set_timer(&mut self, host: usize, timer_ns: Option<u64>) {
        let now_ns = self.now_ns;
        let poller = self.poller(host);
        let Some(timer_ns) = timer_ns.map(|at| at.max(now_ns + 1)) else { return };
        if poller.timer_ns.is_none_or(|set| set > timer_ns || set <= now_ns) {
            poller.timer_ns = Some(timer_ns);
            self.events.add(timer_ns, Event::Arrive(host, Input::Timer));
        }
    }

    pub fn half_trip_ns(&self) -> u64 {
        ns(self.run.profile.link.round_trip_ns / 2.0)
    }
}

/// From before the first descriptor is written until a poller that is awake has seen it: two cache lines change hands.
pub const SUBMIT_NS: u64 = 200;
/// Deciding on a plan.
pub const DECIDE_NS: u64 = 2_000;
/// A task to a worker, or its report from one: an entry of a ring.
pub const HANDOVER_NS: u64 = 50;
/// From writing the last span until a client that is awake has read it.
pub const REAP_NS: u64 = 200;
/// Taking and planning a descriptor of its own for each fragment.
pub const DESCRIPTOR_NS: f64 = 15.0;
/// What a machine may want after one event. One that never stops would stop the clock.
pub const ACTIONS: u32 = 1 << 20;
/// No run is meant to last so long.
const END_NS: u64 = 60_000_000_000;
