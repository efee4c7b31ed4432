//! How much longer the planner's choice takes than the best one, over the whole matrix and all profiles.
//!
//! The best is the best of a grid that knows nothing of the planner: routes, chunk sizes and numbers of slots, each
//! simulated. So a wrong formula shows, and so does a formula that is right about what the simulator does not do.

use super::matrix::{Cell, Mix};
use super::random::Random;
use super::{Effects, Job, Profile, Run, run};
use crate::cost::{
    CHUNK_ELEMENTS, Choice, Chooser, Class, CopyProfile, Direction, Geometry, LinkProfile, Situation, Wire, Work,
};
use std::sync::Mutex;

/// How the planner is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Every figure that the planner believes is wrong by up to so many percent, up or down, evenly spread: times and rates
    /// of the link, of the copies and of planning. Limits are known exactly: depths, pieces, workers, the budget.
    pub noise_percent: u32,
    /// So many times the planner decides for the same work, and learns how long that took by a simulation with all that
    /// happens by chance, before its choice is compared. 0: its first choice is.
    pub batches: u32,
}

/// One cell on one profile.
#[derive(Clone, Debug)]
pub struct Regret {
    /// Which cell.
    pub cell: Cell,
    /// Name of the profile.
    pub profile: &'static str,
    /// What the planner chose.
    pub chosen: Choice,
    /// Simulated time of that.
    pub chosen_ns: u64,
    /// The same of its first choice, before anything was measured.
    pub first_ns: u64,
    /// The best of the grid and of what the planner chose.
    pub best: Choice,
    /// Its simulated time.
    pub best_ns: u64,
    /// Simulated time of the direct route.
    pub direct_ns: u64,
}

/// The cells of one profile.
#[derive(Clone, Debug)]
pub struct Summary<'a> {
    /// Name of the profile.
    pub profile: &'static str,
    /// How many.
    pub cells: usize,
    /// Part by which the median choice is slower than the best: 0.03 is 3 %.
    pub median: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The cell that lost the most.
    pub worst: &'a Regret,
    /// Of the cells of few large pieces, the most by which the choice is slower than the direct route.
    pub few_large: f64,
}

impl Regret {
    /// Part by which the choice is slower than the best: 0.1 is 10 %.
    #[must_use]
    pub fn regret(&self) -> f64 {
        self.chosen_ns as f64 / self.best_ns.max(1) as f64 - 1.0
    }

    /// [`regret`](Self::regret) of the first choice.
    #[must_use]
    pub fn first_regret(&self) -> f64 {
        self.first_ns as f64 / self.best_ns.max(1) as f64 - 1.0
    }

    /// Part by which the choice is slower than the direct route; negative if it is faster.
    #[must_use]
    pub fn over_direct(&self) -> f64 {
        self.chosen_ns as f64 / self.direct_ns.max(1) as f64 - 1.0
    }
}

impl<'a> Summary<'a> {
    /// `None` of nothing.
    fn of(regrets: &'a [Regret]) -> Option<Summary<'a>> {
        let worst = regrets.iter().max_by(|a, b| a.regret().total_cmp(&b.regret()))?;
        let mut parts: Vec<f64> = regrets.iter().map(Regret::regret).collect();
        parts.sort_unstable_by(f64::total_cmp);
        let at = |percent: usize| parts[(parts.len() * percent / 100).min(parts.len() - 1)];
        let few_large = regrets.iter().filter(|regret| regret.cell.mix == Mix::FewLarge).map(Regret::over_direct);
        Some(Summary {
            profile: worst.profile,
            cells: regrets.len(),
            median: at(50),
            p95: at(95),
            worst,
            few_large: few_large.fold(0.0, f64::max),
        })
    }
}

/// Tries every cell on every profile, on so many threads, in several ways. `done` is called after each cell. What it gives is
/// in the order of the trials, then of the profiles, then of the cells.
///
/// `seed` is of the lists, of what happens by chance, and of the noise.
pub fn compare(
    cells: &[Cell],
    profiles: &[Profile],
    trials: &[Trial],
    seed: u64,
    threads: usize,
    done: &(dyn Fn() + Sync),
) -> Vec<Vec<Regret>> {
    let next = Mutex::new(0..cells.len());
    let found = Mutex::new(Vec::with_capacity(cells.len() * profiles.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(at) = lock(&next).next() {
                    let job = cells[at].job(seed.wrapping_add(at as u64));
                    for (number, profile) in profiles.iter().enumerate() {
                        let seed = seed ^ ((at as u64) << 32) ^ ((number as u64) << 56);
                        let bench = Bench { cell: &cells[at], job: &job, work: job.work(), profile, seed };
                        lock(&found).push((number, at, bench.compare(trials)));
                    }
                    done();
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    found.sort_unstable_by_key(|(profile, at, _)| (*profile, *at));
    let of_trial = |trial: usize| found.iter().map(|(_, _, regrets)| regrets[trial].clone()).collect();
    (0..trials.len()).map(of_trial).collect()
}

/// A summary for each profile, in the order of the regrets.
#[must_use]
pub fn summarize(regrets: &[Regret]) -> Vec<Summary<'_>> {
    regrets.chunk_by(|a, b| a.profile == b.profile).filter_map(Summary::of).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// One cell on one profile.
struct Bench<'a> {
    cell: &'a Cell,
    job: &'a Job,
    work: Work,
    profile: &'a Profile,
    seed: u64,
}

impl Bench<'_> {
    fn compare(&self, trials: &[Trial]) -> Vec<Regret> {
        let calm = without_chance(self.profile);
        let mut known: Vec<(Choice, u64)> = Vec::new();
        let mut time_of = |choice: Choice| {
            let ns = known.iter().find(|(other, _)| *other == choice).map(|(_, ns)| *ns);
            ns.unwrap_or_else(|| {
                known.push((choice, self.run(&calm, choice, self.seed)));
                known[known.len() - 1].1
            })
        };
        let direct_ns = time_of(Choice::DIRECT);
        let chosen: Vec<[Choice; 2]> = trials.iter().map(|trial| self.choices(trial)).collect();
        let (mut best, mut best_ns) = (Choice::DIRECT, direct_ns);
        let candidates = chosen.iter().flatten().map(|choice| (*choice, 0.0));
        for (choice, least_ns) in candidates.chain(grid(self.job, self.profile)) {
            // Most of the time would go into choices that cannot be the best.
            if least_ns < best_ns as f64 {
                let ns = time_of(choice);
                if ns < best_ns {
                    (best, best_ns) = (choice, ns);
                }
            }
        }
        let of_trial = |[first, chosen]: &[Choice; 2]| Regret {
            cell: self.cell.clone(),
            profile: self.profile.name,
            chosen: *chosen,
            chosen_ns: time_of(*chosen),
            first_ns: time_of(*first),
            best,
            best_ns,
            direct_ns,
        };
        chosen.iter().map(of_trial).collect()
    }

    /// The planner's first choice, and its choice after the trial's batches.
    fn choices(&self, trial: &Trial) -> [Choice; 2] {
        let mut noise = Noise { random: Random::new(self.seed), percent: trial.noise_percent };
        let told = noise.situation(&self.profile.situation(self.cell.direction));
        let geometry = Geometry::of(&self.work, self.cell.direction);
        let mut chooser = Chooser::new();
        let mut decision = chooser.choose(&self.work, &told);
        let first = decision.choice;
        for batch in 1..=trial.batches {
            let measured_ns = self.run(self.profile, decision.choice, self.seed.wrapping_add(batch.into()));
            chooser.measured(geometry, &decision, measured_ns as f64);
            decision = chooser.choose(&self.work, &told);
        }
        [first, decision.choice]
    }

    fn run(&self, profile: &Profile, choice: Choice, seed: u64) -> u64 {
        run(&Run { forced: Some(choice), seed, ..Run::new(profile, self.job) }).total_ns
    }
}

/// Without what comes by chance: the best of many would be the luckiest.
fn without_chance(profile: &Profile) -> Profile {
    Profile { effects: Effects { jitter_ns: 0, hiccup_every_ns: 0, ..profile.effects }, ..*profile }
}

/// All choices but the direct route: every threshold between two classes of lengths that occur, 8, 4, 2 and 1 slots, every
/// power of two as the size of a chunk, as far as the budget allows. With each the time below which it cannot be.
fn grid(job: &Job, profile: &Profile) -> Vec<(Choice, f64)> {
    let budget = profile.budget;
    let work = job.work();
    let thresholds: Vec<u32> = work.classes().skip(1).map(|(class, _)| 1 << class).chain([u32::MAX]).collect();
    let mut choices = Vec::new();
    for &direct_from_bytes in &thresholds {
        let gathered = work.split(direct_from_bytes).0;
        for slots in [8, 4, 2, 1] {
            let mut chunk_bytes = CHUNK_BYTES_MIN;
            // A larger chunk than that is not filled, and so the same choice.
            while chunk_bytes == CHUNK_BYTES_MIN || u64::from(chunk_bytes) < 2 * filled(&gathered) {
                let staging = u64::from(slots) * u64::from(chunk_bytes);
                if slots <= budget.slots_max && chunk_bytes <= budget.chunk_bytes_max && staging <= budget.staging_bytes
                {
                    let choice = Choice { direct_from_bytes, chunk_bytes, slots };
                    choices.push((choice, least_ns(&gathered, choice, job.direction, profile)));
                }
                chunk_bytes *= 2;
            }
        }
    }
    choices
}

/// Bytes that a chunk can have at the most: all, or as many as its list holds.
fn filled(gathered: &Class) -> u64 {
    let pieces = gathered.src_pieces.max(gathered.dst_pieces).max(1);
    gathered.bytes.min(gathered.bytes / pieces * u64::from(CHUNK_ELEMENTS))
}

/// What no run is faster than, whatever overlaps: the sender's poller rings a doorbell for each chunk, and a chunk that
/// needs a slot keeps it for a round trip and its time on the wire.
fn least_ns(gathered: &Class, choice: Choice, direction: Direction, profile: &Profile) -> f64 {
    let chunks = gathered.bytes.div_ceil(u64::from(choice.chunk_bytes)) as f64;
    let poller_ns = chunks * (profile.link.chunk_fixed_ns + profile.link.doorbell_ns);
    // WRITE of what is contiguous needs none.
    let pieces = gathered.src_pieces.max(gathered.dst_pieces) as f64;
    let need_slots = direction == Direction::Read || pieces > 4.0 * chunks;
    let slots_ns = chunks * profile.link.round_trip_ns + gathered.bytes as f64 / profile.link.bytes_per_ns;
    if need_slots { poller_ns.max(slots_ns / f64::from(choice.slots)) } else { poller_ns }
}

/// What the planner believes, made wrong.
struct Noise {
    random: Random,
    percent: u32,
}

impl Noise {
    fn situation(&mut self, told: &Situation) -> Situation {
        let link = told.link;
        let wire = match link.wire {
            Wire::Nic => Wire::Nic,
            Wire::Cpu { ns_per_byte, cores } => Wire::Cpu { ns_per_byte: self.value(ns_per_byte), cores },
        };
        let link = LinkProfile {
            bytes_per_ns: self.value(link.bytes_per_ns),
            round_trip_ns: self.value(link.round_trip_ns),
            operation_ns: self.value(link.operation_ns),
            doorbell_ns: self.value(link.doorbell_ns),
            completion_ns: self.value(link.completion_ns),
            control_ns: self.value(link.control_ns),
            chunk_fixed_ns: self.value(link.chunk_fixed_ns),
            wire,
            ..link
        };
        Situation { link, requester: self.copies(&told.requester), owner: self.copies(&told.owner), ..*told }
    }

    fn copies(&mut self, told: &CopyProfile) -> CopyProfile {
        CopyProfile {
            bytes_per_ns: self.value(told.bytes_per_ns),
            piece_ns: self.value(told.piece_ns),
            decode_ns: self.value(told.decode_ns),
            plan_ns: self.value(told.plan_ns),
            workers: told.workers,
        }
    }

    fn value(&mut self, value: f64) -> f64 {
        let part = (self.random.word() >> 11) as f64 / (1u64 << 53) as f64;
        value * (1.0 + (2.0 * part - 1.0) * f64::from(self.percent) / 100.0)
    }
}

/// Smaller chunks are all fixed cost.
const CHUNK_BYTES_MIN: u32 = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::profiles;

    #[test]
    fn noise_changes_every_time_and_rate_by_no_more_than_it_says() {
        for profile in profiles::all() {
            let truth = profile.situation(Direction::Read);
            let mut noise = Noise { random: Random::new(7), percent: 20 };
            let told = noise.situation(&truth);
            for (told, truth) in [
                (told.link.bytes_per_ns, truth.link.bytes_per_ns),
                (told.link.operation_ns, truth.link.operation_ns),
                (told.requester.plan_ns, truth.requester.plan_ns),
                (told.owner.piece_ns, truth.owner.piece_ns),
            ] {
                assert!(told != truth && (told / truth - 1.0).abs() <= 0.2, "{}: {told} for {truth}", profile.name);
            }
            assert_eq!(told.link.queue_depth, truth.link.queue_depth);
            assert_eq!(Noise { random: Random::new(7), percent: 0 }.situation(&truth), truth);
        }
    }
}
