//! Numbers that a device, the kernel or the library gave, with names for people. Any value is possible.

use super::abi::*;
use std::fmt;

macro_rules! values {
    ($(#[$doc:meta])* $value:ident($number:ty) { $($(#[$constant_doc:meta])* $constant:ident = $from:expr, $name:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $value(pub $number);

        impl $value {
            $(
                #[doc = $name]
                $(#[$constant_doc])*
                pub const $constant: $value = $value($from);
            )*

            /// Its name, if this crate knows it.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $($value::$constant => Some($name),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $value {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "unknown ({})", self.0),
                }
            }
        }
    };
}

values! {
    /// How a request ended.
    WcStatus(u32) {
        SUCCESS = IBV_WC_SUCCESS, "success";
        LOCAL_LENGTH = IBV_WC_LOC_LEN_ERR, "local length error";
        LOCAL_QUEUE_PAIR = IBV_WC_LOC_QP_OP_ERR, "local queue pair operation error";
        LOCAL_EE_CONTEXT = IBV_WC_LOC_EEC_OP_ERR, "local end-to-end context operation error";
        LOCAL_PROTECTION = IBV_WC_LOC_PROT_ERR, "local protection error";
        FLUSHED = IBV_WC_WR_FLUSH_ERR, "flushed: the queue pair is in the error state";
        WINDOW_BIND = IBV_WC_MW_BIND_ERR, "memory window bind error";
        BAD_RESPONSE = IBV_WC_BAD_RESP_ERR, "bad response";
        LOCAL_ACCESS = IBV_WC_LOC_ACCESS_ERR, "local access error";
        REMOTE_INVALID_REQUEST = IBV_WC_REM_INV_REQ_ERR, "remote invalid request";
        REMOTE_ACCESS = IBV_WC_REM_ACCESS_ERR, "remote access error";
        REMOTE_OPERATION = IBV_WC_REM_OP_ERR, "remote operation error";
        RETRY_EXCEEDED = IBV_WC_RETRY_EXC_ERR, "the peer does not answer (retries exceeded)";
        RNR_RETRY_EXCEEDED = IBV_WC_RNR_RETRY_EXC_ERR, "the peer has no receive posted (retries exceeded)";
        LOCAL_RDD = IBV_WC_LOC_RDD_VIOL_ERR, "local reliable datagram domain violation";
        REMOTE_INVALID_READ = IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid read request";
        REMOTE_ABORT = IBV_WC_REM_ABORT_ERR, "aborted by the peer";
        INVALID_EE_CONTEXT_NUMBER = IBV_WC_INV_EECN_ERR, "invalid end-to-end context number";
        INVALID_EE_CONTEXT_STATE = IBV_WC_INV_EEC_STATE_ERR, "invalid end-to-end context state";
        FATAL = IBV_WC_FATAL_ERR, "fatal error";
        RESPONSE_TIMEOUT = IBV_WC_RESP_TIMEOUT_ERR, "response timeout";
        GENERAL = IBV_WC_GENERAL_ERR, "general error";
        TAG_MATCHING = IBV_WC_TM_ERR, "tag matching error";
        TAG_MATCHING_INCOMPLETE = IBV_WC_TM_RNDV_INCOMPLETE, "tag matching rendezvous incomplete";
    }
}

values! {
    /// What a completed request was.
    WcOpcode(u32) {
        SEND = IBV_WC_SEND, "send";
        WRITE = IBV_WC_RDMA_WRITE, "write";
        READ = IBV_WC_RDMA_READ, "read";
        RECEIVE = IBV_WC_RECV, "receive";
        RECEIVE_WRITE = IBV_WC_RECV_RDMA_WITH_IMM, "receive of a write with immediate data";
    }
}

values! {
    /// What an asynchronous event is about.
    EventKind(u32) {
        COMPLETION_QUEUE_ERROR = IBV_EVENT_CQ_ERR, "completion queue error";
        QUEUE_PAIR_FATAL = IBV_EVENT_QP_FATAL, "queue pair fatal error";
        QUEUE_PAIR_REQUEST_ERROR = IBV_EVENT_QP_REQ_ERR, "invalid request of the peer";
        QUEUE_PAIR_ACCESS_ERROR = IBV_EVENT_QP_ACCESS_ERR, "access violation by the peer";
        ESTABLISHED = IBV_EVENT_COMM_EST, "communication established";
        SEND_QUEUE_DRAINED = IBV_EVENT_SQ_DRAINED, "send queue drained";
        PATH_MIGRATED = IBV_EVENT_PATH_MIG, "path migrated";
        PATH_MIGRATION_ERROR = IBV_EVENT_PATH_MIG_ERR, "path migration failed";
        DEVICE_FATAL = IBV_EVENT_DEVICE_FATAL, "device fatal error";
        PORT_ACTIVE = IBV_EVENT_PORT_ACTIVE, "port active";
        PORT_ERROR = IBV_EVENT_PORT_ERR, "port down";
        LID_CHANGE = IBV_EVENT_LID_CHANGE, "LID changed";
        PKEY_CHANGE = IBV_EVENT_PKEY_CHANGE, "partition keys changed";
        SUBNET_MANAGER_CHANGE = IBV_EVENT_SM_CHANGE, "subnet manager changed";
        SHARED_QUEUE_ERROR = IBV_EVENT_SRQ_ERR, "shared receive queue error";
        SHARED_QUEUE_LIMIT = IBV_EVENT_SRQ_LIMIT_REACHED, "shared receive queue limit reached";
        LAST_REQUEST_REACHED = IBV_EVENT_QP_LAST_WQE_REACHED, "last request of a queue pair reached";
        CLIENT_REREGISTER = IBV_EVENT_CLIENT_REREGISTER, "clients must register with the subnet again";
        GID_CHANGE = IBV_EVENT_GID_CHANGE, "GIDs changed";
        WORK_QUEUE_FATAL = IBV_EVENT_WQ_FATAL, "work queue fatal error";
    }
}

impl EventKind {
    /// True if the event names a queue pair.
    pub(super) fn is_of_queue_pair(self) -> bool {
        let (first, last) = (IBV_EVENT_QP_FATAL, IBV_EVENT_PATH_MIG_ERR);
        (first..=last).contains(&self.0) || self == EventKind::LAST_REQUEST_REACHED
    }

    /// True if the event names a port.
    pub(super) fn is_of_port(self) -> bool {
        let (first, last) = (IBV_EVENT_PORT_ACTIVE, IBV_EVENT_SM_CHANGE);
        let others = [EventKind::CLIENT_REREGISTER, EventKind::GID_CHANGE];
        (first..=last).contains(&self.0) || others.contains(&self)
    }
}

values! {
    /// What carries the operations of a device.
    Transport(i32) {
        INFINIBAND = IBV_TRANSPORT_IB, "InfiniBand";
        /// Its queue pairs are connected through rdma_cm only.
        IWARP = IBV_TRANSPORT_IWARP, "iWARP";
    }
}

values! {
    /// The state of a port. Only an active one carries anything.
    PortState(u32) {
        DOWN = IBV_PORT_DOWN, "down";
        INIT = IBV_PORT_INIT, "init";
        ARMED = IBV_PORT_ARMED, "armed";
        ACTIVE = IBV_PORT_ACTIVE, "active";
        ACTIVE_DEFER = IBV_PORT_ACTIVE_DEFER, "active, deferred";
    }
}

values! {
    /// What lies under a port.
    LinkLayer(u8) {
        UNSPECIFIED = IBV_LINK_LAYER_UNSPECIFIED, "unspecified";
        INFINIBAND = IBV_LINK_LAYER_INFINIBAND, "InfiniBand";
        ETHERNET = IBV_LINK_LAYER_ETHERNET, "Ethernet";
    }
}

values! {
    /// What a GID is good for.
    GidType(u32) {
        INFINIBAND = IBV_GID_TYPE_IB, "InfiniBand";
        ROCE_V1 = IBV_GID_TYPE_ROCE_V1, "RoCE v1";
        ROCE_V2 = IBV_GID_TYPE_ROCE_V2, "RoCE v2";
    }
}

values! {
    /// The most bytes of payload in a packet, by the number that the verbs give it.
    Mtu(u32) {
        BYTES_256 = IBV_MTU_256, "256";
        BYTES_512 = IBV_MTU_512, "512";
        BYTES_1024 = IBV_MTU_1024, "1024";
        BYTES_2048 = IBV_MTU_2048, "2048";
        BYTES_4096 = IBV_MTU_4096, "4096";
    }
}

impl Mtu {
    /// In bytes, if this crate knows the number.
    #[must_use]
    pub fn bytes(self) -> Option<u32> {
        (IBV_MTU_256..=IBV_MTU_4096).contains(&self.0).then(|| 128 << self.0)
    }
}

values! {
    /// What happened to a connection of rdma_cm.
    CmEventKind(u32) {
        ADDRESS_RESOLVED = RDMA_CM_EVENT_ADDR_RESOLVED, "address resolved";
        ADDRESS_ERROR = RDMA_CM_EVENT_ADDR_ERROR, "address not resolved";
        ROUTE_RESOLVED = RDMA_CM_EVENT_ROUTE_RESOLVED, "route resolved";
        ROUTE_ERROR = RDMA_CM_EVENT_ROUTE_ERROR, "route not resolved";
        CONNECT_REQUEST = RDMA_CM_EVENT_CONNECT_REQUEST, "connect request";
        CONNECT_RESPONSE = RDMA_CM_EVENT_CONNECT_RESPONSE, "connect response";
        CONNECT_ERROR = RDMA_CM_EVENT_CONNECT_ERROR, "connect error";
        UNREACHABLE = RDMA_CM_EVENT_UNREACHABLE, "peer unreachable";
        REJECTED = RDMA_CM_EVENT_REJECTED, "rejected by the peer";
        ESTABLISHED = RDMA_CM_EVENT_ESTABLISHED, "established";
        DISCONNECTED = RDMA_CM_EVENT_DISCONNECTED, "disconnected";
        DEVICE_REMOVAL = RDMA_CM_EVENT_DEVICE_REMOVAL, "device removed";
        MULTICAST_JOIN = RDMA_CM_EVENT_MULTICAST_JOIN, "multicast joined";
        MULTICAST_ERROR = RDMA_CM_EVENT_MULTICAST_ERROR, "multicast error";
        ADDRESS_CHANGE = RDMA_CM_EVENT_ADDR_CHANGE, "address changed";
        TIMEWAIT_EXIT = RDMA_CM_EVENT_TIMEWAIT_EXIT, "queue pair number free again";
    }
}

/// A global identifier. For RoCE v2 it is the IPv6 address, or the IPv4 address mapped into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// True for an entry of the table that is not in use.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// The IPv4 address that it stands for, if it stands for one.
    #[must_use]
    pub fn ipv4(self) -> Option<std::net::Ipv4Addr> {
        std::net::Ipv6Addr::from(self.0).to_ipv4_mapped()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::Ipv6Addr::from(self.0).fmt(f)
    }
}
