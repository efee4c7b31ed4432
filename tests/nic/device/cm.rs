//! The connection manager: it says which devices it has, and makes no connections. Queue pairs are connected by their
//! numbers here, those of streams too.

use super::{DEVICES, Listed, context_of, fail, free_list, give_list};
use crate::nic::Raw;
use libc::{c_int, c_void, size_t, sockaddr};
use scatter_ring::verbs::CmFunctions;
use scatter_ring::verbs::abi::*;
use std::sync::PoisonError;

pub(super) fn functions() -> CmFunctions {
    CmFunctions {
        rdma_get_devices: get_devices,
        rdma_free_devices: free_devices,
        rdma_create_event_channel: create_event_channel,
        rdma_destroy_event_channel: destroy_event_channel,
        rdma_create_id: create_id,
        rdma_destroy_id: of_id,
        rdma_resolve_addr: resolve_addr,
        rdma_resolve_route: of_number,
        rdma_bind_addr: bind_addr,
        rdma_listen: of_number,
        rdma_get_src_port: get_src_port,
        rdma_connect: of_parameters,
        rdma_accept: of_parameters,
        rdma_reject: reject,
        rdma_disconnect: of_id,
        rdma_create_qp: create_qp,
        rdma_destroy_qp: destroy_qp,
        rdma_set_option: set_option,
        rdma_migrate_id: migrate_id,
        rdma_get_cm_event: get_cm_event,
        rdma_ack_cm_event: ack_cm_event,
    }
}

fn none() -> c_int {
    fail(libc::ENOSYS);
    -1
}

unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let there = devices.iter_mut().filter(|listed| listed.is_there());
    let list = there.filter_map(context).collect();
    // SAFETY: the caller's.
    unsafe { give_list(list, count) }
}

/// The one context of a device.
fn context(listed: &mut Listed) -> Option<*mut ibv_context> {
    if listed.of_cm.is_none() {
        let shared = listed.shared.upgrade()?;
        listed.of_cm = Some(Raw(context_of(listed.raw.0, shared, listed.device)));
    }
    listed.of_cm.map(|raw| raw.0)
}

unsafe extern "C" fn free_devices(list: *mut *mut ibv_context) {
    // SAFETY: a list of above.
    unsafe { free_list(list) };
}

unsafe extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    none();
    std::ptr::null_mut()
}

unsafe extern "C" fn destroy_event_channel(_: *mut rdma_event_channel) {}

unsafe extern "C" fn create_id(_: *mut rdma_event_channel, _: *mut *mut rdma_cm_id, _: *mut c_void, _: u32) -> c_int {
    none()
}

unsafe extern "C" fn of_id(_: *mut rdma_cm_id) -> c_int {
    none()
}

unsafe extern "C" fn of_number(_: *mut rdma_cm_id, _: c_int) -> c_int {
    none()
}

unsafe extern "C" fn of_parameters(_: *mut rdma_cm_id, _: *mut rdma_conn_param) -> c_int {
    none()
}

unsafe extern "C" fn resolve_addr(_: *mut rdma_cm_id, _: *mut sockaddr, _: *mut sockaddr, _: c_int) -> c_int {
    none()
}

unsafe extern "C" fn bind_addr(_: *mut rdma_cm_id, _: *mut sockaddr) -> c_int {
    none()
}

unsafe extern "C" fn get_src_port(_: *mut rdma_cm_id) -> u16 {
    0
}

unsafe extern "C" fn reject(_: *mut rdma_cm_id, _: *const c_void, _: u8) -> c_int {
    none()
}

unsafe extern "C" fn create_qp(_: *mut rdma_cm_id, _: *mut ibv_pd, _: *mut ibv_qp_init_attr) -> c_int {
    none()
}

unsafe extern "C" fn destroy_qp(_: *mut rdma_cm_id) {}

unsafe extern "C" fn set_option(_: *mut rdma_cm_id, _: c_int, _: c_int, _: *mut c_void, _: size_t) -> c_int {
    none()
}

unsafe extern "C" fn migrate_id(_: *mut rdma_cm_id, _: *mut rdma_event_channel) -> c_int {
    none()
}

unsafe extern "C" fn get_cm_event(_: *mut rdma_event_channel, _: *mut *mut rdma_cm_event) -> c_int {
    none()
}

unsafe extern "C" fn ack_cm_event(_: *mut rdma_cm_event) -> c_int {
    none()
}
