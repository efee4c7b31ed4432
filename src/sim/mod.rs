//! Transfers in virtual time: what a choice of the planner would cost on a link that is not here.
//!
//! Drives the machines of a link, [`pipeline::Requester`](crate::pipeline::Requester) and
//! [`pipeline::Owner`](crate::pipeline::Owner), with [`plan::Planner`](crate::plan::Planner) and [`cost::choose`]. These are
//! the real ones; workers, wires and clocks are simulated, with
//! [effects](Effects) that the planner's formulas do not have and with [faults](Faults). Everything follows from the
//! [run](Run) and its seed. No figure of a simulation is a measurement: whoever shows one says so.
//!
//! Each host has a poller, which does one thing after the other (plans a chunk, rings a doorbell, takes a completion), some
//! workers, and a device that begins operations at its rate. All callers share the owner's wire, one line each way, on
//! which queues take turns of 64 KiB. Where processors are the wire, moving its bytes is a task beside packing. What is
//! posted on a link lands in order, half a round trip after the wire has carried it.
//!
//! There are events for doorbells, chunks and turns of the wire, none for single operations, so that a hundred thousand rows
//! take about a millisecond. With [`Run::data`] bytes are moved as well, at the latest moment at which hardware could: a slot
//! or a buffer that is used again too early is seen in the [audit](Audit).

mod account;
mod audit;
mod bulk;
mod caller;
mod events;
mod faults;
mod flow;
mod job;
pub mod matrix;
mod memory;
mod owner;
mod poller;
mod processors;
mod profile;
pub mod profiles;
mod random;
pub mod reference;
pub mod regret;
mod report;
mod tally;
mod task;
mod wire;
mod world;

pub use faults::{Faults, Unreliable};
pub use job::{Job, Part, Submit};
pub use profile::{Effects, Profile};
pub use report::{Audit, Bar, BarStage, Host, Outcome, Report, Stages};

use crate::cost::{self, Choice, Situation};
use world::World;

/// One simulated batch, or one of each of several callers at once.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// Link, hosts and their effects.
    pub profile: &'a Profile,
    /// What the planner believes. [`Profile::situation`] if it knows the truth.
    pub told: Situation,
    /// What is moved.
    pub job: &'a Job,
    /// In place of what the planner would choose.
    pub forced: Option<Choice>,
    /// How the job is written into the ring.
    pub submit: Submit,
    /// Requesters, each with its own host and machine, that ask one owner for the same at the same time. At least 1.
    pub callers: u32,
    /// Batches of each caller, each the same job, submitted at once. At least 1; the report's stages are of the first.
    pub batches: u32,
    /// Of jitter, hiccups and faults.
    pub seed: u64,
    /// What goes wrong.
    pub faults: Faults,
    /// Packing slots of the owner, for all callers. `None`: P for each of them.
    pub owner_slots: Option<u32>,
    /// Whether the report has a timeline.
    pub record: bool,
    /// Whether bytes are really moved, at the times at which the hardware would. For small jobs; [`Audit::bytes_right`].
    pub data: bool,
}

impl<'a> Run<'a> {
    /// One caller, one indexed descriptor for each part, a planner that knows the truth, no faults.
    #[must_use]
    pub fn new(profile: &'a Profile, job: &'a Job) -> Run<'a> {
        Run {
            profile,
            told: profile.situation(job.direction),
            job,
            forced: None,
            submit: Submit::Index,
            callers: 1,
            batches: 1,
            seed: 1,
            faults: Faults::default(),
            owner_slots: None,
            record: false,
            data: false,
        }
    }
}

/// Simulates it. The same run gives the same report on every machine.
#[must_use]
pub fn run(run: &Run) -> Report {
    let predicted = cost::choose(&run.job.work(), &run.told);
    let choice = run.forced.unwrap_or(predicted.choice);
    let mut world = World::new(run, choice);
    world.play();
    let audit = world.audit();
    world.tally.report(choice, predicted, &world.callers, audit)
}
