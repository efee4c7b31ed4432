//! The functions of both libraries, as a table.

use super::abi::*;
use libc::{c_int, c_void, size_t, sockaddr};

/// What is used of both libraries.
#[derive(Clone, Copy)]
pub struct Functions {
    /// Of libibverbs.
    pub verbs: VerbsFunctions,
    /// Of librdmacm, if it is there. Without it there are no iWARP devices.
    pub cm: Option<CmFunctions>,
}

/// A table of C functions, and how it is filled from a library: every name is looked up without a version, which gives
/// the default one.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($(#[$field_doc:meta])* $name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)* }
     optional { $($(#[$optional_doc:meta])* $optional:ident: fn($($oa:ty),*) $(-> $or:ty)?;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        #[allow(missing_docs)] // The manual pages are the documentation.
        pub struct $table {
            $($(#[$field_doc])* pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $($(#[$optional_doc])* pub $optional: Option<unsafe extern "C" fn($($oa),*) $(-> $or)?>,)*
        }

        impl $table {
            /// # Safety
            /// `library` is the library whose functions these are, and is never unloaded.
            ///
            /// # Errors
            /// The name of a function that it lacks.
            pub(super) unsafe fn of(library: &libloading::Library) -> Result<$table, &'static str> {
                Ok($table {
                    // SAFETY: the type is that of the function of this name, by the ABI test.
                    $($name: unsafe { *library.get(stringify!($name)).map_err(|_| stringify!($name))? },)*
                    // SAFETY: likewise.
                    $($optional: unsafe { library.get(stringify!($optional)).ok().map(|symbol| *symbol) },)*
                })
            }
        }
    };
}

functions! {
    /// What is used of libibverbs. The manual page of each function describes it.
    VerbsFunctions {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list: fn(*mut *mut ibv_device);
        ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
        ibv_close_device: fn(*mut ibv_context) -> c_int;
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        /// Through its symbol it fills all but the last four bytes.
        ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        ibv_query_gid: fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, size_t, c_int) -> *mut ibv_mr;
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
        ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut ibv_cq, u32);
        ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
        ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event: fn(*mut ibv_async_event);
        ibv_fork_init: fn() -> c_int;
    }
    optional {
        /// Of rdma-core 33 and later. It tells the type of a GID too.
        _ibv_query_gid_ex: fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, size_t) -> c_int;
    }
}

functions! {
    /// What is used of librdmacm; likewise.
    CmFunctions {
        rdma_get_devices: fn(*mut c_int) -> *mut *mut ibv_context;
        rdma_free_devices: fn(*mut *mut ibv_context);
        rdma_create_event_channel: fn() -> *mut rdma_event_channel;
        rdma_destroy_event_channel: fn(*mut rdma_event_channel);
        rdma_create_id: fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, u32) -> c_int;
        rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int;
        rdma_resolve_addr: fn(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
        rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_bind_addr: fn(*mut rdma_cm_id, *mut sockaddr) -> c_int;
        rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_get_src_port: fn(*mut rdma_cm_id) -> u16;
        rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_reject: fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_disconnect: fn(*mut rdma_cm_id) -> c_int;
        rdma_create_qp: fn(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        rdma_destroy_qp: fn(*mut rdma_cm_id);
        rdma_set_option: fn(*mut rdma_cm_id, c_int, c_int, *mut c_void, size_t) -> c_int;
        rdma_migrate_id: fn(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int;
    }
    optional {}
}
