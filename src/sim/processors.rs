//! Who has time for a task: the copy workers of each host, and the cores behind them where they are few.

use std::collections::VecDeque;

/// Tasks that wait for a processor. Where the processors move the bytes of the wire too, a transfer is a task like packing.
#[derive(Debug)]
pub struct Processors<T> {
    /// Of each host.
    workers: Vec<Workers>,
    /// Cores that all of them share, and how many are busy. `None`: each worker has its own.
    cores: Option<Workers>,
    waiting: VecDeque<Task<T>>,
}

/// How many there are and how many of them are busy.
#[derive(Clone, Copy, Debug)]
struct Workers {
    all: u32,
    busy: u32,
}

/// A task, and the host whose worker it needs. `None`: any core, no worker.
#[derive(Debug)]
struct Task<T> {
    host: Option<usize>,
    what: T,
}

impl Workers {
    fn new(all: u32) -> Workers {
        Workers { all: all.max(1), busy: 0 }
    }

    fn has_one(&self) -> bool {
        self.busy < self.all
    }
}

impl<T> Processors<T> {
    /// Each host with so many workers.
    pub fn new(workers: impl Iterator<Item = u32>, cores: Option<u32>) -> Processors<T> {
        let workers = workers.map(Workers::new).collect();
        Processors { workers, cores: cores.map(Workers::new), waiting: VecDeque::new() }
    }

    pub fn add(&mut self, host: Option<usize>, what: T) {
        self.waiting.push_back(Task { host, what });
    }

    /// The first task that has a processor now, and how many workers of its host are busy with it. Those of the wire go before
    /// those of workers: kernels move bytes before they let threads run.
    pub fn start(&mut self) -> Option<(T, u32)> {
        if self.cores.is_some_and(|cores| !cores.has_one()) {
            return None;
        }
        let can = |task: &Task<T>| task.host.is_none_or(|host| self.workers[host].has_one());
        let of_wire = self.waiting.iter().position(|task| task.host.is_none());
        let at = of_wire.or_else(|| self.waiting.iter().position(can))?;
        let task = self.waiting.remove(at)?;
        if let Some(cores) = &mut self.cores {
            cores.busy += 1;
        }
        let busy = task.host.map_or(0, |host| {
            self.workers[host].busy += 1;
            self.workers[host].busy
        });
        Some((task.what, busy))
    }

    /// A task that was started is over.
    pub fn ended(&mut self, host: Option<usize>) {
        if let Some(cores) = &mut self.cores {
            cores.busy -= 1;
        }
        if let Some(host) = host {
            self.workers[host].busy -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_runs_as_many_tasks_as_it_has_workers_and_does_not_hold_up_another() {
        let mut all = Processors::new([1, 2].into_iter(), None);
        for (host, what) in [(0, 'a'), (0, 'b'), (1, 'c'), (1, 'd'), (1, 'e')] {
            all.add(Some(host), what);
        }
        let started: Vec<(char, u32)> = std::iter::from_fn(|| all.start()).collect();
        assert_eq!(started, [('a', 1), ('c', 1), ('d', 2)]);
        all.ended(Some(1));
        assert_eq!(all.start(), Some(('e', 2)));
        assert_eq!(all.start(), None);
        all.ended(Some(0));
        assert_eq!(all.start(), Some(('b', 1)));
    }

    #[test]
    fn packing_and_the_wire_share_the_cores_and_the_wire_goes_first() {
        let mut all = Processors::new([4].into_iter(), Some(2));
        for what in ['a', 'b'] {
            all.add(Some(0), what);
        }
        all.add(None, 'c');
        assert_eq!([all.start(), all.start(), all.start()], [Some(('c', 0)), Some(('a', 1)), None]);
        all.ended(None);
        assert_eq!(all.start(), Some(('b', 2)));
    }
}
