//! The structures, constants and functions of the binding are those of the distribution's headers: a C program that is
//! made of the headers says what they are.

use scatter_ring::verbs::abi::*;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

/// A number that both sides have, under the C expression for it.
struct Number {
    expression: String,
    ours: i128,
}

fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// Size of a structure; place and size of its fields. `a as "b"` is a field with another name in C.
macro_rules! layouts {
    ($($structure:ident { $($field:ident $(as $other:literal)?),* })*) => {{
        let mut numbers = Vec::new();
        let mut number = |expression: String, ours: usize| numbers.push(Number { expression, ours: ours as i128 });
        $(
            let structure = stringify!($structure);
            number(format!("sizeof(struct {structure})"), size_of::<$structure>());
            $(
                let field = [stringify!($field), $($other)?].last().copied().unwrap();
                number(format!("offsetof(struct {structure}, {field})"), offset_of!($structure, $field));
                let size = size_of_field(|structure: &$structure| &structure.$field);
                number(format!("sizeof(((struct {structure} *)0)->{field})"), size);
            )*
        )*
        numbers
    }};
}

macro_rules! constants {
    ($($name:ident),* $(,)?) => {
        vec![$(Number { expression: stringify!($name).to_owned(), ours: $name as i128 }),*]
    };
}

fn layouts() -> Vec<Number> {
    layouts! {
        ibv_device { ops as "_ops", node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context_ops { poll_cq, req_notify_cq, post_send, post_recv }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_device_attr { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
            vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe,
            max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
            max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
            max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr,
            max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt }
        ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply,
            active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2 }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_async_event { element, event_type }
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index,
            slid, sl, dlid_path_bits }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify,
            sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
            rnr_retry, alt_port_num, alt_timeout, rate_limit }
        ibv_sge { addr, length, lkey }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, rdma as "wr", xrc_remote_srqn
            as "qp_type.xrc.remote_srqn", bind_mw }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        rdma_event_channel { fd }
        rdma_addr { src as "src_storage", dst as "dst_storage", ibaddr as "addr" }
        rdma_route { addr, path_rec, num_paths }
        rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
            recv_cq_channel, recv_cq, srq, pd, qp_type }
        rdma_conn_param { private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num }
        rdma_cm_event { id, listen_id, event, status, conn as "param.conn" }
    }
}

fn constants() -> Vec<Number> {
    constants![
        IBV_SYSFS_NAME_MAX,
        IBV_SYSFS_PATH_MAX,
        IBV_TRANSPORT_UNKNOWN,
        IBV_TRANSPORT_IB,
        IBV_TRANSPORT_IWARP,
        IBV_PORT_DOWN,
        IBV_PORT_INIT,
        IBV_PORT_ARMED,
        IBV_PORT_ACTIVE,
        IBV_PORT_ACTIVE_DEFER,
        IBV_MTU_256,
        IBV_MTU_512,
        IBV_MTU_1024,
        IBV_MTU_2048,
        IBV_MTU_4096,
        IBV_LINK_LAYER_UNSPECIFIED,
        IBV_LINK_LAYER_INFINIBAND,
        IBV_LINK_LAYER_ETHERNET,
        IBV_GID_TYPE_IB,
        IBV_GID_TYPE_ROCE_V1,
        IBV_GID_TYPE_ROCE_V2,
        IBV_ACCESS_LOCAL_WRITE,
        IBV_ACCESS_REMOTE_WRITE,
        IBV_ACCESS_REMOTE_READ,
        IBV_QPT_RC,
        IBV_QPS_RESET,
        IBV_QPS_INIT,
        IBV_QPS_RTR,
        IBV_QPS_RTS,
        IBV_QPS_ERR,
        IBV_QP_STATE,
        IBV_QP_ACCESS_FLAGS,
        IBV_QP_PKEY_INDEX,
        IBV_QP_PORT,
        IBV_QP_AV,
        IBV_QP_PATH_MTU,
        IBV_QP_TIMEOUT,
        IBV_QP_RETRY_CNT,
        IBV_QP_RNR_RETRY,
        IBV_QP_RQ_PSN,
        IBV_QP_MAX_QP_RD_ATOMIC,
        IBV_QP_MIN_RNR_TIMER,
        IBV_QP_SQ_PSN,
        IBV_QP_MAX_DEST_RD_ATOMIC,
        IBV_QP_DEST_QPN,
        IBV_WR_RDMA_WRITE,
        IBV_WR_SEND,
        IBV_WR_RDMA_READ,
        IBV_SEND_FENCE,
        IBV_SEND_SIGNALED,
        IBV_SEND_SOLICITED,
        IBV_SEND_INLINE,
        IBV_WC_SUCCESS,
        IBV_WC_LOC_LEN_ERR,
        IBV_WC_LOC_QP_OP_ERR,
        IBV_WC_LOC_EEC_OP_ERR,
        IBV_WC_LOC_PROT_ERR,
        IBV_WC_WR_FLUSH_ERR,
        IBV_WC_MW_BIND_ERR,
        IBV_WC_BAD_RESP_ERR,
        IBV_WC_LOC_ACCESS_ERR,
        IBV_WC_REM_INV_REQ_ERR,
        IBV_WC_REM_ACCESS_ERR,
        IBV_WC_REM_OP_ERR,
        IBV_WC_RETRY_EXC_ERR,
        IBV_WC_RNR_RETRY_EXC_ERR,
        IBV_WC_LOC_RDD_VIOL_ERR,
        IBV_WC_REM_INV_RD_REQ_ERR,
        IBV_WC_REM_ABORT_ERR,
        IBV_WC_INV_EECN_ERR,
        IBV_WC_INV_EEC_STATE_ERR,
        IBV_WC_FATAL_ERR,
        IBV_WC_RESP_TIMEOUT_ERR,
        IBV_WC_GENERAL_ERR,
        IBV_WC_TM_ERR,
        IBV_WC_TM_RNDV_INCOMPLETE,
        IBV_WC_SEND,
        IBV_WC_RDMA_WRITE,
        IBV_WC_RDMA_READ,
        IBV_WC_RECV,
        IBV_WC_RECV_RDMA_WITH_IMM,
        IBV_EVENT_CQ_ERR,
        IBV_EVENT_QP_FATAL,
        IBV_EVENT_QP_REQ_ERR,
        IBV_EVENT_QP_ACCESS_ERR,
        IBV_EVENT_COMM_EST,
        IBV_EVENT_SQ_DRAINED,
        IBV_EVENT_PATH_MIG,
        IBV_EVENT_PATH_MIG_ERR,
        IBV_EVENT_DEVICE_FATAL,
        IBV_EVENT_PORT_ACTIVE,
        IBV_EVENT_PORT_ERR,
        IBV_EVENT_LID_CHANGE,
        IBV_EVENT_PKEY_CHANGE,
        IBV_EVENT_SM_CHANGE,
        IBV_EVENT_SRQ_ERR,
        IBV_EVENT_SRQ_LIMIT_REACHED,
        IBV_EVENT_QP_LAST_WQE_REACHED,
        IBV_EVENT_CLIENT_REREGISTER,
        IBV_EVENT_GID_CHANGE,
        IBV_EVENT_WQ_FATAL,
        RDMA_PS_TCP,
        RDMA_OPTION_ID,
        RDMA_OPTION_ID_REUSEADDR,
        RDMA_OPTION_ID_ACK_TIMEOUT,
        RDMA_CM_EVENT_ADDR_RESOLVED,
        RDMA_CM_EVENT_ADDR_ERROR,
        RDMA_CM_EVENT_ROUTE_RESOLVED,
        RDMA_CM_EVENT_ROUTE_ERROR,
        RDMA_CM_EVENT_CONNECT_REQUEST,
        RDMA_CM_EVENT_CONNECT_RESPONSE,
        RDMA_CM_EVENT_CONNECT_ERROR,
        RDMA_CM_EVENT_UNREACHABLE,
        RDMA_CM_EVENT_REJECTED,
        RDMA_CM_EVENT_ESTABLISHED,
        RDMA_CM_EVENT_DISCONNECTED,
        RDMA_CM_EVENT_DEVICE_REMOVAL,
        RDMA_CM_EVENT_MULTICAST_JOIN,
        RDMA_CM_EVENT_MULTICAST_ERROR,
        RDMA_CM_EVENT_ADDR_CHANGE,
        RDMA_CM_EVENT_TIMEWAIT_EXIT
    ]
}

/// The nested part of a request, and the operations that have no symbol.
fn places() -> Vec<Number> {
    let place = |expression: &str, ours: usize| Number { expression: expression.to_owned(), ours: ours as i128 };
    let request = offset_of!(ibv_send_wr, rdma);
    vec![
        place("offsetof(struct ibv_send_wr, wr.rdma.remote_addr)", request + offset_of!(ibv_send_wr_rdma, remote_addr)),
        place("offsetof(struct ibv_send_wr, wr.rdma.rkey)", request + offset_of!(ibv_send_wr_rdma, rkey)),
        place("sizeof(union ibv_gid)", size_of::<ibv_gid>()),
        place("_Alignof(union ibv_gid)", align_of::<ibv_gid_aligned>()),
        place("offsetof(struct ibv_async_event, element.port_num)", offset_of!(ibv_async_event, element)),
    ]
}

fn numbers() -> Vec<Number> {
    [layouts(), constants(), places()].into_iter().flatten().collect()
}

/// What a type of `functions.rs` is in C.
fn c_type(ours: &str) -> String {
    let ours = ours.trim();
    if let Some(target) = ours.strip_prefix("*mut ") {
        return format!("{} *", c_type(target));
    }
    if let Some(target) = ours.strip_prefix("*const ") {
        return format!("const {} *", c_type(target));
    }
    match ours {
        "" | "c_void" => "void".to_owned(),
        "c_int" => "int".to_owned(),
        "u8" => "uint8_t".to_owned(),
        "u16" => "uint16_t".to_owned(),
        "u32" => "uint32_t".to_owned(),
        "size_t" => "size_t".to_owned(),
        "ibv_gid" => "union ibv_gid".to_owned(),
        structure => format!("struct {structure}"),
    }
}

/// The functions of the table: their names, and their types in C.
fn functions() -> Vec<(String, String)> {
    let text = source("functions.rs");
    let declarations = text.lines().filter_map(|line| line.trim().strip_suffix(';')?.split_once(": fn("));
    let functions = declarations.map(|(name, rest)| {
        let (arguments, result) = rest.split_once(')').unwrap();
        let mut arguments: Vec<String> = arguments.split(',').map(c_type).collect();
        let last = arguments.last_mut().unwrap();
        match name {
            // An enum is none of the integers to C.
            "rdma_create_id" => *last = "enum rdma_port_space".to_owned(),
            // The symbol is declared with a shorter structure, which is why the whole one is zeroed first.
            "ibv_query_port" => *last = "struct _compat_ibv_port_attr *".to_owned(),
            _ => {}
        }
        let result = c_type(result.trim().trim_start_matches("->"));
        (name.to_owned(), format!("{result}({})", arguments.join(", ")))
    });
    functions.collect()
}

fn source(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/verbs").join(file)).unwrap()
}

/// A program that prints every number, one in a line, and does not compile if a function has another type.
fn program(numbers: &[Number]) -> String {
    let prints: Vec<String> =
        numbers.iter().map(|n| format!("    printf(\"%lld\\n\", (long long)({}));", n.expression)).collect();
    let asserts: Vec<String> = functions()
        .iter()
        .map(|(name, of)| {
            format!("_Static_assert(__builtin_types_compatible_p(__typeof__({name}), {of}), \"{name}\");")
        })
        .collect();
    let includes = ["stddef.h", "stdint.h", "stdio.h", "infiniband/verbs.h", "rdma/rdma_cma.h"];
    let includes: Vec<String> = includes.iter().map(|header| format!("#include <{header}>")).collect();
    format!("{}\n{}\nint main(void) {{\n{}\n}}\n", includes.join("\n"), asserts.join("\n"), prints.join("\n"))
}

fn has_headers() -> bool {
    let probe = "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("probe.c");
    std::fs::write(&file, probe).unwrap();
    Command::new("cc").arg("-fsyntax-only").arg(file).output().is_ok_and(|output| output.status.success())
}

#[test]
fn every_size_place_constant_and_function_is_that_of_the_headers() {
    if !has_headers() {
        let text = "NOT RUN: no C compiler with infiniband/verbs.h and rdma/rdma_cma.h (libibverbs-dev, librdmacm-dev)";
        assert!(std::env::var_os("SCATTER_RING_NEEDS_RDMA_HEADERS").is_none_or(|value| value != "1"), "{text}");
        eprintln!("{text}");
        return;
    }
    let numbers = numbers();
    let folder = tempfile::tempdir().unwrap();
    let (file, binary) = (folder.path().join("abi.c"), folder.path().join("abi"));
    std::fs::write(&file, program(&numbers)).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&binary).arg(&file).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap();
    let theirs: Vec<i128> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), numbers.len());
    let wrong: Vec<String> = numbers
        .iter()
        .zip(theirs)
        .filter(|(number, theirs)| number.ours != *theirs)
        .map(|(number, theirs)| format!("{} is {theirs}, here {}", number.expression, number.ours))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_of_the_binding_is_left_out_of_the_comparison() {
    let compared: Vec<String> = numbers().into_iter().map(|number| number.expression).collect();
    let text = source("abi.rs");
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("pub const ").and_then(|rest| rest.split(':').next()) {
            assert!(compared.iter().any(|expression| expression == name), "{name} is not compared");
        }
        if let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.split(' ').next()) {
            // Parts of other structures, which have no name in C.
            let part = ["ibv_gid_aligned", "ibv_send_wr_rdma"].contains(&name);
            let size = format!("sizeof(struct {name})");
            assert!(part || compared.contains(&size), "{name} is not compared");
        }
    }
    assert!(functions().len() > 40, "{}", functions().len());
}
