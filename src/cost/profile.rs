//! What the model knows of a link and of a machine's copies. Times in ns, rates in bytes per ns (that is, GB/s).

/// A link, by its live properties and by configuration. Never a device's name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkProfile {
    /// `B_net`: payload that the wire carries.
    pub bytes_per_ns: f64,
    /// `L`: from posting an operation to its completion, beyond its bytes.
    pub round_trip_ns: f64,
    /// `1 / R_post`: from one posted operation to the next.
    pub operation_ns: f64,
    /// What ringing the doorbell once costs the poller.
    pub doorbell_ns: f64,
    /// What taking one completion or message costs the poller.
    pub completion_ns: f64,
    /// `Q`: operations that may be outstanding.
    pub queue_depth: u32,
    /// Local pieces that one operation may have.
    pub max_sge: u32,
    /// `T_control`: from sending a command until its owner starts on it, beyond half a round trip.
    pub control_ns: f64,
    /// `T_chunk_fixed`: what a chunk costs the sender beyond its bytes and pieces.
    pub chunk_fixed_ns: f64,
    /// Who moves the bytes.
    pub wire: Wire,
}

/// Who moves the bytes of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wire {
    /// A device, while the processors do something else.
    Nic,
    /// The processors of both sides.
    Cpu {
        /// Processor time per byte, of the sender and of the receiver, added.
        ns_per_byte: f64,
        /// Processors that both sides have together: one machine's if they share it.
        cores: u32,
    },
}

/// A machine's copies, and its planning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyProfile {
    /// `B_mem`: what one worker copies in long pieces.
    pub bytes_per_ns: f64,
    /// `1 / R_copy`: what a small piece costs one worker beyond its bytes.
    pub piece_ns: f64,
    /// What decoding and checking a piece of a command costs besides.
    pub decode_ns: f64,
    /// What planning a fragment costs the poller.
    pub plan_ns: f64,
    /// Copy workers.
    pub workers: u32,
}

/// What may be used for one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Staging memory of the packing side.
    pub staging_bytes: u64,
    /// Most slots, P.
    pub slots_max: u32,
    /// Largest slot, C.
    pub chunk_bytes_max: u32,
}
