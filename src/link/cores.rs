//! Lanes of one link are kept off each other's cores.
//!
//! Threads that yield while they wait look busy to the kernel, which then sees nothing to balance: it often leaves two lanes
//! on one core while others wait on the next. So each lane gets a share of the cores to itself among the lanes of its link:
//! every second one where there are two. Within its share the kernel moves it as it likes.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Restricts the calling thread, the one with this number of so many, to its share of the cores that it may use. Where there
/// are fewer cores than threads, or the kernel does not let us, it stays as it is.
pub(super) fn take_share(number: usize, threads: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    if threads < 2 || (allowed.count() as usize) < threads {
        return;
    }
    let mut share = CpuSet::new();
    cores.skip(number % threads).step_by(threads).for_each(|core| share.set(core));
    // As it was is as good as it gets.
    let _ = sched_setaffinity(None, &share);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_do_not_overlap_and_leave_out_no_core() {
        let allowed = sched_getaffinity(None).unwrap();
        let share = |number, threads| {
            let thread = std::thread::spawn(move || {
                take_share(number, threads);
                sched_getaffinity(None).unwrap()
            });
            thread.join().unwrap()
        };
        let (first, second) = (share(0, 2), share(1, 2));
        for core in 0..CpuSet::MAX_CPU {
            let cores = [&first, &second].iter().filter(|share| share.is_set(core)).count();
            let expected =
                if allowed.count() < 2 { 2 * usize::from(allowed.is_set(core)) } else { allowed.is_set(core).into() };
            assert_eq!(cores, expected, "core {core}");
        }
        assert_eq!(share(0, 1), allowed);
        assert_eq!(share(0, allowed.count() as usize + 1), allowed);
    }
}
