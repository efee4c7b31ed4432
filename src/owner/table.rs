//! What an owner has lent, between the thread that serves it and those who lend and take back.

use crate::region::Region;
use ring_abi::Handle;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// The lock is held for moments only: never while memory is copied.
#[derive(Debug, Default)]
pub(super) struct Table {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lent: HashMap<u32, Arc<Region>>,
    /// What the thread works on.
    busy: Option<u32>,
    /// Threads that wait for a change: without any the serving thread makes no system call to tell them.
    waiting: u32,
    /// The thread is to end.
    stopped: bool,
    lost: bool,
}

/// A piece of work under way on a region.
pub(super) struct Work<'a> {
    table: &'a Table,
    pub region: Arc<Region>,
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.table.change(|state| state.busy = None);
    }
}

impl Table {
    pub fn insert(&self, handle: Handle, region: Region) {
        self.lock().lent.insert(handle.0, Arc::new(region));
    }

    /// Takes a region out, and returns when no work is under way on it.
    pub fn remove(&self, handle: Handle) {
        self.lock().lent.remove(&handle.0);
        self.wait(None, |state| state.busy != Some(handle.0));
    }

    /// Begins work on a region; `None` if it was taken back.
    pub fn begin(&self, handle: u32) -> Option<Work<'_>> {
        let mut state = self.lock();
        let region = state.lent.get(&handle)?.clone();
        state.busy = Some(handle);
        Some(Work { table: self, region })
    }

    pub fn stop(&self) {
        self.lock().stopped = true;
    }

    pub fn is_stopped(&self) -> bool {
        let state = self.lock();
        state.stopped || state.lost
    }

    pub fn lose(&self) {
        self.change(|state| state.lost = true);
    }

    pub fn is_lost(&self) -> bool {
        self.lock().lost
    }

    pub fn wait_lost(&self, timeout: Duration) -> bool {
        self.wait(Some(timeout), |state| state.lost)
    }

    fn wait(&self, timeout: Option<Duration>, holds: impl Fn(&State) -> bool) -> bool {
        let mut state = self.lock();
        state.waiting += 1;
        state = match timeout {
            None => self.changed.wait_while(state, |state| !holds(state)).unwrap_or_else(|e| e.into_inner()),
            Some(timeout) => {
                let waited = self.changed.wait_timeout_while(state, timeout, |state| !holds(state));
                waited.unwrap_or_else(|e| e.into_inner()).0
            }
        };
        state.waiting -= 1;
        holds(&state)
    }

    fn change(&self, how: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        how(&mut state);
        let waiting = state.waiting > 0;
        drop(state);
        if waiting {
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Rights;
    use std::sync::mpsc;

    #[test]
    fn a_region_is_out_when_the_work_on_it_is_over() {
        let (table, mut memory) = (Table::default(), [0; 8]);
        let handle = Handle::new(1, 1).unwrap();
        // SAFETY: the array outlives the table's region, and nobody touches it.
        table.insert(handle, unsafe { Region::adopt(memory.as_mut_ptr(), 8, Rights::READ) }.unwrap());
        let work = table.begin(handle.0).unwrap();
        let (removed, removal) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                table.remove(handle);
                removed.send(()).unwrap();
            });
            assert!(removal.recv_timeout(Duration::from_millis(50)).is_err(), "out while it is worked on");
            assert!(table.begin(handle.0).is_none(), "new work on what is taken back");
            drop(work);
            removal.recv_timeout(Duration::from_secs(10)).expect("nobody was told");
        });
    }
}
