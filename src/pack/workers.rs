//! Copy workers: threads that run tasks for the poller.
//!
//! Each has a ring in and a ring out, the same ring that clients use. The poller keeps a few tasks ahead in each ring,
//! and runs tasks itself in between, so that no queue needs to be shared.

use super::{Done, Task, Window};
use crate::region::{ForkGuard, forget_threads};
use crate::ring::{self, Consumer, HeapWords, Producer, Sleeper, Waker};
use crate::sync::AtomicU64;
use crossbeam_utils::CachePadded;
use ring_abi::Status;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The workers of one engine. Dropping it waits for the tasks that they have.
#[derive(Debug)]
pub struct Workers {
    lanes: Vec<Lane>,
}

/// The poller's side of one worker.
#[derive(Debug)]
struct Lane {
    tasks: Producer<HeapWords>,
    results: Consumer<HeapWords>,
    queued: u32,
    waker: Waker,
    shared: Arc<Shared>,
    fork: Arc<ForkGuard>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// The worker's; answered by unparking it.
    sleep: CachePadded<AtomicU64>,
    stop: CachePadded<AtomicU64>,
}

/// How a worker wakes the poller: its sleep word, and an eventfd that only the engine has.
#[derive(Clone, Debug)]
pub struct PollerBell {
    /// The poller's sleep word for worker results.
    pub sleep: Arc<CachePadded<AtomicU64>>,
    /// Written when the poller sleeps.
    pub bell: Arc<OwnedFd>,
    /// A forked child has no workers to wait for.
    pub fork: Arc<ForkGuard>,
}

/// Tasks ahead in a worker's ring: the one it works on and the next.
const TASKS_AHEAD: u32 = 2;
const TASK_ENTRIES: u32 = 2;

impl Workers {
    /// Starts `count` workers that spin for `spin` before they sleep.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(count: usize, spin: Duration, bell: &PollerBell) -> std::io::Result<Workers> {
        let lanes = (0..count).map(|i| Lane::start(i, spin, bell.clone())).collect::<Result<_, _>>()?;
        Ok(Workers { lanes })
    }

    /// Tasks that the workers can have at a time.
    #[must_use]
    pub fn tasks_max(&self) -> usize {
        self.lanes.len() * TASKS_AHEAD as usize
    }

    /// True if a worker can take a task now.
    #[must_use]
    pub fn have_room(&self) -> bool {
        self.lanes.iter().any(|lane| lane.queued < TASKS_AHEAD)
    }

    /// Gives a task to the worker with the fewest.
    ///
    /// # Panics
    /// If no worker [has room](Self::have_room).
    pub fn give(&mut self, task: &Task) {
        let lane = self.lanes.iter_mut().min_by_key(|lane| lane.queued).expect("the caller asked have_room");
        lane.give(task);
    }

    /// The next result that a worker has.
    pub fn take_result(&mut self) -> Option<Done> {
        self.lanes.iter_mut().filter(|lane| lane.queued > 0).find_map(Lane::take_result)
    }

    /// True if a worker has a result: the poller must not sleep.
    pub fn have_result(&mut self) -> bool {
        self.lanes.iter_mut().any(|lane| lane.results.available().is_ok_and(|n| n > 0))
    }
}

impl Lane {
    fn start(number: usize, spin: Duration, bell: PollerBell) -> std::io::Result<Lane> {
        let (tasks, tasks_in) = ring::heap(TASKS_AHEAD * TASK_ENTRIES, 0);
        let (results_out, results) = ring::heap(TASKS_AHEAD, 0);
        let shared =
            Arc::new(Shared { sleep: CachePadded::new(AtomicU64::new(0)), stop: CachePadded::new(AtomicU64::new(0)) });
        let fork = bell.fork.clone();
        let mut worker = Worker {
            tasks: tasks_in,
            results: results_out,
            sleeper: Sleeper::default(),
            waker: Waker::default(),
            shared: shared.clone(),
            bell,
            spin,
            window: Window::default(),
        };
        let thread = std::thread::Builder::new().name(format!("scatter-copy-{number}")).spawn(move || worker.run())?;
        Ok(Lane { tasks, results, queued: 0, waker: Waker::default(), shared, fork, thread: Some(thread) })
    }

    fn give(&mut self, task: &Task) {
        for entry in task.to_entries() {
            self.tasks.push(&entry).expect("the ring holds TASKS_AHEAD tasks");
        }
        self.tasks.publish();
        self.queued += 1;
        self.wake();
    }

    fn wake(&mut self) {
        if self.waker.must_wake(&self.shared.sleep)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }

    fn take_result(&mut self) -> Option<Done> {
        let entry = self.results.pop().expect("a worker is this process")?;
        self.results.release();
        self.queued -= 1;
        Some(Done::from_entry(&entry))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if self.fork.is_child() {
            return forget_threads(self.thread.take());
        }
        ring::stop(&self.shared.stop, Status::STOPPING);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A worker that panicked outside a task has nothing left to wait for.
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct Worker {
    tasks: Consumer<HeapWords>,
    results: Producer<HeapWords>,
    sleeper: Sleeper,
    waker: Waker,
    shared: Arc<Shared>,
    bell: PollerBell,
    spin: Duration,
    window: Window,
}

impl Worker {
    fn run(&mut self) {
        while let Some(task) = self.next_task() {
            // SAFETY: the poller gives tasks of a run that it keeps, with its regions, until their results are back; planning
            // has checked what `Task::run` asks for.
            let done = unsafe { task.run_caught(&mut self.window) };
            self.results.push(&done.to_entry()).expect("the ring holds TASKS_AHEAD results");
            self.results.publish();
            if self.waker.must_wake(&self.bell.sleep) {
                // Fails only if the counter is full, which wakes as well.
                let _ = rustix::io::write(&*self.bell.bell, &1u64.to_ne_bytes());
            }
        }
    }

    /// Waits for a task; `None` when the workers stop and no task is left.
    fn next_task(&mut self) -> Option<Task> {
        let mut spinning_since: Option<Instant> = None;
        for pauses in 1u32.. {
            if let Some(task) = self.pop_task() {
                return Some(task);
            }
            if ring::stop_seen(&self.shared.stop).is_some() {
                return self.pop_task();
            }
            if !pauses.is_multiple_of(16) {
                crate::sync::spin_loop();
                continue;
            }
            // The poller may be on this core.
            std::thread::yield_now();
            if spinning_since.get_or_insert_with(Instant::now).elapsed() >= self.spin {
                self.sleep();
                spinning_since = None;
            }
        }
        None
    }

    fn sleep(&mut self) {
        self.sleeper.prepare(&self.shared.sleep);
        let idle = self.tasks.available().is_ok_and(|n| n == 0) && ring::stop_seen(&self.shared.stop).is_none();
        if idle {
            std::thread::park();
        }
        self.sleeper.awake(&self.shared.sleep);
    }

    fn pop_task(&mut self) -> Option<Task> {
        if self.tasks.known() < TASK_ENTRIES && self.tasks.available().ok()? < TASK_ENTRIES {
            return None;
        }
        let entries = [self.tasks.pop().ok()??, self.tasks.pop().ok()??];
        self.tasks.release();
        Some(Task::from_entries(&entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Missing;
    use ring_abi::IndexKind;

    fn bell() -> PollerBell {
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let fork = Arc::new(ForkGuard::new().unwrap());
        PollerBell { sleep: Arc::new(CachePadded::new(AtomicU64::new(0))), bell: Arc::new(bell), fork }
    }

    fn result(workers: &mut Workers) -> Done {
        loop {
            if let Some(done) = workers.take_result() {
                return done;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_panic_in_a_task_is_that_tasks_failure_and_the_worker_goes_on() {
        let mut workers = Workers::start(1, Duration::ZERO, &bell()).unwrap();
        let (from, mut to) = ([7u8; 16], [0u8; 16]);
        let good = Task {
            src: from.as_ptr(),
            dst: to.as_mut_ptr(),
            index: [std::ptr::null(); 2],
            max: [None; 2],
            len: 16,
            strides: [16; 2],
            inner_count: 1,
            inner_strides: [0; 2],
            from: 0,
            to: 1,
            kinds: [IndexKind::None; 2],
            missing: Missing::Row,
            zero: false,
            list: false,
            id: 5,
        };
        // No plan has fragments of no pieces: dividing by them panics.
        workers.give(&Task { inner_count: 0, id: 4, ..good });
        let failed = result(&mut workers);
        assert_eq!((failed.id, failed.bytes), (4, 0));
        assert_eq!(failed.fault.map(|fault| fault.status), Some(Status::INTERNAL));
        workers.give(&good);
        assert_eq!(result(&mut workers), Done { id: 5, bytes: 16, fault: None });
        drop(workers);
        assert_eq!(to, from);
    }
}
