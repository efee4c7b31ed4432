//! The functions of the header. What they do is tested against Rust's, call by call, in `c_program.rs`.

use super::{c_constant, c_name};
use ring_abi::{Field, Opcode, Route, Stage, Status};
use std::fmt::Write;

/// A function of Rust in C.
pub struct Function {
    /// Whose documentation it has.
    pub path: &'static str,
    /// What is different from Rust.
    pub note: &'static str,
    /// From the type of its result to the closing brace.
    pub text: &'static str,
}

pub const FUNCTIONS: &[Function] = &[
    Function {
        path: "submit::bytes",
        note: "",
        text: "size_t scatter_ring_submit_bytes(uint32_t sq_capacity) {
    return SCATTER_RING_SUBMIT_SLOTS + (size_t)sq_capacity * SCATTER_RING_ENTRY_BYTES;
}",
    },
    Function {
        path: "complete::bytes",
        note: "",
        text: "size_t scatter_ring_complete_bytes(uint32_t cq_capacity) {
    return SCATTER_RING_COMPLETE_SLOTS + (size_t)cq_capacity * SCATTER_RING_ENTRY_BYTES;
}",
    },
    Function {
        path: "stop_word",
        note: "",
        text: "uint64_t scatter_ring_stop_word(int32_t reason) {
    return UINT64_C(1) << 32 | (uint32_t)reason;
}",
    },
    Function {
        path: "stop_reason",
        note: "True if it has; then its status is in `reason`.",
        text: "bool scatter_ring_stop_reason(uint64_t word, int32_t *reason) {
    if (word >> 32 == 0) {
        return false;
    }
    *reason = (int32_t)(uint32_t)(word & UINT32_MAX);
    return true;
}",
    },
    Function {
        path: "Header::is_capacity",
        note: "",
        text: "bool scatter_ring_header_is_capacity(uint32_t n) {
    return (n & (n - 1)) == 0 && n >= SCATTER_RING_CAPACITY_MIN && n <= SCATTER_RING_CAPACITY_MAX;
}",
    },
    Function {
        path: "Header::check",
        note: "SCATTER_RING_STATUS_OK, or a status with the field's name in `field`.",
        text: "int32_t scatter_ring_header_check(const scatter_ring_header *h, const char **field) {
    *field = NULL;
    if (h->magic != SCATTER_RING_MAGIC) *field = \"magic\";
    else if (h->abi_major != SCATTER_RING_ABI_MAJOR) *field = \"abi_major\";
    else if (h->header_bytes != SCATTER_RING_HEADER_BYTES) *field = \"header_bytes\";
    else if (h->descriptor_bytes != SCATTER_RING_ENTRY_BYTES) *field = \"descriptor_bytes\";
    else if (h->span_bytes != SCATTER_RING_ENTRY_BYTES) *field = \"span_bytes\";
    else if (h->sq_tail_offset != SCATTER_RING_SUBMIT_TAIL) *field = \"sq_tail_offset\";
    else if (h->cq_head_offset != SCATTER_RING_SUBMIT_HEAD) *field = \"cq_head_offset\";
    else if (h->client_sleep_offset != SCATTER_RING_SUBMIT_SLEEP_WORD) *field = \"client_sleep_offset\";
    else if (h->descriptors_offset != SCATTER_RING_SUBMIT_SLOTS) *field = \"descriptors_offset\";
    else if (h->sq_head_offset != SCATTER_RING_COMPLETE_HEAD) *field = \"sq_head_offset\";
    else if (h->cq_tail_offset != SCATTER_RING_COMPLETE_TAIL) *field = \"cq_tail_offset\";
    else if (h->engine_sleep_offset != SCATTER_RING_COMPLETE_SLEEP_WORD) *field = \"engine_sleep_offset\";
    else if (h->stop_offset != SCATTER_RING_COMPLETE_STOP_WORD) *field = \"stop_offset\";
    else if (h->spans_offset != SCATTER_RING_COMPLETE_SLOTS) *field = \"spans_offset\";
    else if (h->reserved != 0) *field = \"reserved\";
    if (*field != NULL) return SCATTER_RING_STATUS_VERSION_MISMATCH;
    if (!scatter_ring_header_is_capacity(h->sq_capacity)) *field = \"sq_capacity\";
    else if (!scatter_ring_header_is_capacity(h->cq_capacity)) *field = \"cq_capacity\";
    else if (h->epoch == 0) *field = \"epoch\";
    return *field != NULL ? SCATTER_RING_STATUS_INVALID_SETTING : SCATTER_RING_STATUS_OK;
}",
    },
    Function {
        path: "abi_word",
        note: "",
        text: "uint64_t scatter_ring_abi_word(void) {
    return SCATTER_RING_ABI_MAJOR | (uint64_t)SCATTER_RING_ABI_MINOR << 16 |
           (uint64_t)SCATTER_RING_ENTRY_BYTES << 32 | (uint64_t)SCATTER_RING_ENTRY_BYTES << 48;
}",
    },
    Function {
        path: "abi_matches",
        note: "",
        text: "bool scatter_ring_abi_matches(uint64_t word) {
    return ((word ^ scatter_ring_abi_word()) & ~(UINT64_C(0xFFFF) << 16)) == 0;
}",
    },
    Function {
        path: "Message::hello",
        note: "`features` are those that are needed: SCATTER_RING_FEATURES_*.",
        text: "scatter_ring_message scatter_ring_message_hello(uint64_t features, uint32_t sq_capacity,
                                                              uint32_t cq_capacity, uint64_t start_position) {
    scatter_ring_message hello;
    memset(&hello, 0, sizeof hello);
    hello.kind = SCATTER_RING_KIND_HELLO;
    hello.args[0] = SCATTER_RING_MAGIC;
    hello.args[1] = scatter_ring_abi_word();
    hello.args[2] = features;
    hello.args[3] = sq_capacity | (uint64_t)cq_capacity << 32;
    hello.args[4] = start_position;
    return hello;
}",
    },
    Function {
        path: "Handle::index",
        note: "",
        text: "uint32_t scatter_ring_handle_index(uint32_t handle) {
    return handle & SCATTER_RING_HANDLE_INDEX_MAX;
}",
    },
    Function {
        path: "Handle::generation",
        note: "",
        text: "uint32_t scatter_ring_handle_generation(uint32_t handle) {
    return handle >> 12;
}",
    },
    Function {
        path: "IndexKind::pack",
        note: "",
        text: "uint8_t scatter_ring_index_kind_pack(uint8_t src, uint8_t dst) {
    return (uint8_t)(src | dst << 4);
}",
    },
    Function {
        path: "IndexKind::entry_bytes",
        note: "",
        text: "uint64_t scatter_ring_index_kind_entry_bytes(uint8_t kind) {
    switch (kind) {
    case SCATTER_RING_INDEX_KIND_U32: return sizeof(uint32_t);
    case SCATTER_RING_INDEX_KIND_U64: return sizeof(uint64_t);
    case SCATTER_RING_INDEX_KIND_FRAGMENTS: return sizeof(scatter_ring_fragment_record);
    default: return 0;
    }
}",
    },
    Function {
        path: "Span::fragment",
        note: "",
        text: "uint32_t scatter_ring_span_fragment(const scatter_ring_span *span) {
    return span->queue_ns;
}",
    },
    Function {
        path: "Span::detail",
        note: "",
        text: "uint64_t scatter_ring_span_detail(const scatter_ring_span *span) {
    return span->plan_ns | (uint64_t)span->command_ns << 32;
}",
    },
    Function {
        path: "Span::is_batch_done",
        note: "",
        text: "bool scatter_ring_span_is_batch_done(const scatter_ring_span *span) {
    return (span->flags & SCATTER_RING_SPAN_FLAGS_BATCH_DONE) != 0;
}",
    },
    Function {
        path: "Span::is_held",
        note: "",
        text: "bool scatter_ring_span_is_held(const scatter_ring_span *span) {
    return (span->flags & SCATTER_RING_SPAN_FLAGS_HELD) != 0;
}",
    },
    Function {
        path: "Span::is_released",
        note: "",
        text: "bool scatter_ring_span_is_released(const scatter_ring_span *span) {
    return (span->flags & SCATTER_RING_SPAN_FLAGS_RELEASED) != 0;
}",
    },
];

/// A text for each number of a type.
pub struct Texts {
    /// Whose documentation it has.
    pub path: &'static str,
    pub c_type: &'static str,
    /// For a number without one, in C.
    pub otherwise: &'static str,
    pub texts: Vec<(String, &'static str)>,
}

/// The texts of the constants that have one.
pub fn texts(constants: &[super::items::Constant]) -> Vec<Texts> {
    let of = |path: &'static str, text: &dyn Fn(i128) -> Option<&'static str>| {
        let prefix = format!("{}::", path.split("::").next().unwrap());
        let of_type: Vec<_> = constants.iter().filter(|constant| constant.path.starts_with(&prefix)).collect();
        let texts = of_type.iter().filter_map(|c| text(c.value).map(|text| (c_constant(c.path), text)));
        Texts { path, c_type: of_type[0].c_type, otherwise: "NULL", texts: texts.collect() }
    };
    let status_text = of("Status::text", &|n| Some(Status(n as i32).text()));
    vec![
        of("Status::name", &|n| Status(n as i32).name()),
        Texts { otherwise: "\"unknown status\"", ..status_text },
        of("Opcode::name", &|n| Opcode(n as u8).name()),
        of("Field::name", &|n| Field(n as u32).name()),
        of("Route::name", &|n| Route(n as u8).name()),
        of("Stage::name", &|n| Stage(n as u8).name()),
    ]
}

impl Texts {
    /// From the type of its result to the closing brace.
    pub fn c(&self) -> String {
        let argument = super::snake(self.path.split("::").next().unwrap());
        let mut out =
            format!("const char *{}({} {argument}) {{\n    switch ({argument}) {{\n", c_name(self.path), self.c_type);
        for (constant, text) in &self.texts {
            writeln!(out, "    case {constant}: return {text:?};").unwrap();
        }
        write!(out, "    default: return {};\n    }}\n}}", self.otherwise).unwrap();
        out
    }
}
