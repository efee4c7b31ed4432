//! What every link does, whatever carries it: tests in one body, for sockets, simulated devices and real ones.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

pub mod geometry;
pub mod operations;
pub mod play;
pub mod tasks;

use crate::linked::Side;
use scatter_ring::link::Transport;

/// How two links come to be.
pub trait Connect: Clone + Send + 'static {
    type Link: Transport;

    /// Two links that are connected.
    fn pair(&self, lanes: usize, width: Width) -> (Side<Self::Link>, Side<Self::Link>);

    /// Of the longest operation that is tried.
    fn longest_bytes(&self) -> u64 {
        if cfg!(debug_assertions) { 2 << 20 } else { 64 << 20 }
    }

    /// Two whose pollers sleep, and whose threads do so at once.
    fn sleepers(&self, lanes: usize) -> (Side<Self::Link>, Side<Self::Link>);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// As links are.
    Wide,
    /// Few of everything, so that every limit is met: [`OPERATIONS`] of a lane, [`TASKS`].
    Narrow,
}

pub const OPERATIONS: u32 = 4;
pub const TASKS: u32 = 2;

/// More in release, where the same takes less, unless `SCATTER_RING_FEW` is set, as it is on an emulated machine.
pub fn scaled(few: u64, many: u64) -> u64 {
    if cfg!(debug_assertions) || std::env::var_os("SCATTER_RING_FEW").is_some() { few } else { many }
}

/// A module of tests: each case between links that an expression connects.
#[macro_export]
macro_rules! link_cases {
    ($(#[$meta:meta])* $module:ident, $connect:expr) => {
        link_cases! { @cases [$(#[$meta])*] $module, $connect,
            play::random_operations_of_both_sides_leave_the_memory_that_a_model_has,
            geometry::bytes_of_every_shape_go_where_they_belong,
            geometry::long_operations_go_where_they_belong,
            geometry::one_to_thirty_three_operations_of_one_post_are_carried_out,
            operations::operations_of_as_many_pieces_as_there_can_be_are_carried_out,
            operations::both_sides_sending_more_than_the_link_holds_is_no_deadlock,
            operations::a_post_is_refused_in_whole_and_says_why,
            operations::more_reads_than_are_answered_at_a_time_wait_and_are_carried_out,
            operations::every_queue_runs_round_many_times,
            operations::messages_of_every_length_come_whole_and_in_order,
            operations::writes_are_in_place_when_the_message_behind_them_has_come,
            operations::what_is_said_to_be_done_is_in_place,
            operations::a_link_that_is_shut_down_under_way_completes_everything_and_touches_nothing,
            operations::a_link_that_is_dropped_under_way_touches_nothing_any_more,
            operations::a_sleeping_poller_is_woken_by_the_lanes,
            operations::a_lane_says_when_it_heard_and_when_it_sent,
            tasks::a_chunk_is_packed_here_and_unpacked_there_on_its_lane,
            tasks::lanes_with_a_thread_run_tasks_there_and_lane_0_at_once,
            tasks::tasks_of_a_lane_run_in_their_order_and_no_more_of_them_than_the_limit,
            tasks::tasks_that_had_not_begun_when_the_link_went_down_come_back_as_they_were,
            tasks::a_link_that_is_dropped_lets_go_of_its_tasks,
        }
    };
    (@cases $attributes:tt $module:ident, $connect:expr, $($group:ident::$case:ident,)*) => {
        mod $module {
            #[allow(unused_imports)]
            use super::*;
            $($crate::link_cases! { @case $attributes $connect, $group::$case })*
        }
    };
    (@case [$(#[$meta:meta])*] $connect:expr, $group:ident::$case:ident) => {
        #[test]
        $(#[$meta])*
        fn $case() {
            $crate::link_cases::$group::$case(&$connect);
        }
    };
}
