//! Kinds of devices.

/// What a device allows and how it behaves.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_inline: u32,
    pub max_qp_wr: u32,
    pub max_cqe: u32,
    pub max_qp_rd_atom: u32,
    /// Bytes of a packet, at most: a step moves so much.
    pub packet_bytes: usize,
    /// A WRITE or SEND has completed when it has left, before a READ in front of it unless it is fenced, and the connection is
    /// one stream: it ends on both sides, at the latest with what it carries. As siw does it.
    pub is_stream: bool,
    /// A READ with more pieces than the device can do fills the first one and is said to have succeeded, as by siw.
    /// Otherwise such a post is refused.
    pub fills_first_piece_only: bool,
    /// What is posted in the error state is flushed, as hardware does it. Otherwise it is taken, and never heard of again.
    pub flushes_late_posts: bool,
    /// Bytes of a WRITE are put in place only when the order of a queue pair demands it: before a later message is
    /// delivered, a later READ is answered or a completion is given. In any order then.
    pub is_lazy: bool,
    /// A new queue pair gets the number of one that is gone.
    pub reuses_numbers: bool,
}

impl Profile {
    /// What soft-RoCE allows; everything complete and in its place.
    pub fn rxe() -> Profile {
        Profile {
            max_sge: 32,
            max_sge_rd: 32,
            max_inline: 512,
            max_qp_wr: 1 << 16,
            max_cqe: 32767,
            max_qp_rd_atom: 128,
            packet_bytes: 64 << 10,
            is_stream: false,
            fills_first_piece_only: false,
            flushes_late_posts: false,
            is_lazy: false,
            reuses_numbers: false,
        }
    }

    /// As soft-iWARP.
    pub fn siw() -> Profile {
        Profile {
            max_sge: 6,
            max_sge_rd: 1,
            max_inline: 64,
            max_qp_wr: 32768,
            is_stream: true,
            fills_first_piece_only: true,
            ..Profile::rxe()
        }
    }

    /// As hardware: late posts are flushed, writes are put in place late, numbers come back.
    pub fn hardware() -> Profile {
        Profile {
            max_sge: 30,
            max_sge_rd: 30,
            max_inline: 220,
            max_qp_rd_atom: 16,
            flushes_late_posts: true,
            is_lazy: true,
            reuses_numbers: true,
            ..Profile::rxe()
        }
    }

    /// Nearly nothing of everything, so that every limit is met.
    pub fn tiny() -> Profile {
        Profile {
            max_sge: 2,
            max_sge_rd: 1,
            max_inline: 0,
            max_qp_wr: 4,
            max_qp_rd_atom: 1,
            packet_bytes: 1000,
            ..Profile::hardware()
        }
    }

    pub fn all() -> [Profile; 4] {
        [Profile::rxe(), Profile::siw(), Profile::hardware(), Profile::tiny()]
    }
}
