/**
 * @file
 *
 * @brief The bytes that a scatter-ring client and a scatter-ring engine share. For C11 and C++17. Made from the Rust
 * crate ring-abi by its test `c_header`, which fails when the two differ. Not to be edited.
 *
 * This header alone is enough to write a producer: examples/c/producer.c is one. For C++ scatter_ring.hpp has one that
 * does more. Constants are macros; the type that they have in structures stands next to the name of their group.
 *
 * All integers are little-endian and naturally aligned. Reserved bytes are 0 when written and must be 0 when read.
 *
 * @par Descriptor, 64 bytes
 *
 * @verbatim
 *        0        1        2        3        4        5        6        7
 *  0 | opcode | index  |      flags      |               len                |
 *  8 |            src_region             |            dst_region            |
 * 16 |                               src_offset                             |
 * 24 |                               dst_offset                             |
 * 32 |               count               |           index_region           |
 * 40 |                              index_offset                            |
 * 48 |            src_stride             |            dst_stride            |
 * 56 |                               user_data                              |
 * @endverbatim
 *
 * @par Extension, 64 bytes: the slot behind a descriptor that carries SCATTER_RING_FLAGS_EXTENDED
 *
 * @verbatim
 *  0 | opcode |         0 (3 bytes)      |           inner_count            |
 *  8 |         inner_src_stride          |         inner_dst_stride         |
 * 16 |                              0 (48 bytes)                            |
 * @endverbatim
 *
 * @par Span, 64 bytes
 *
 * @verbatim
 *  0 |                                 first                                |
 *  8 |               count               |              status              |
 * 16 |                                 bytes                                |
 * 24 |                               user_data                              |
 * 32 |      flags      |  route |  stage |       queue_ns / fragment        |
 * 40 |       plan_ns / detail, low       |     command_ns / detail, high    |
 * 48 |              pack_ns              |             window_ns            |
 * 56 |             total_ns              |           field / 0              |
 * @endverbatim
 *
 * @par The two areas of a ring pair
 *
 * One memory file per writer, so that page protection alone says who may write what.
 *
 * @verbatim
 * submit area, written by the client      complete area, written by the engine
 *    0  SQ tail   u64                         0  Header
 *  128  CQ head   u64                       256  SQ head       u64
 *  256  sleep word u64                      384  CQ tail       u64
 * 4160  descriptors                         512  sleep word    u64
 *                                           640  stop word     u64
 *                                          4160  spans
 * @endverbatim
 *
 * Each word that is written while others read it has 128 bytes of its own: two cache lines, since neighbouring lines
 * are fetched in pairs on current x86 processors.
 *
 * @par The notification buffer
 *
 * For who asks for it (SCATTER_RING_KIND_NOTIFICATIONS): a third memory file, written by the engine, with a slot of
 * SCATTER_RING_NOTIFY_BYTES_MAX bytes for each place of the completion ring. The payload of the event at position `p`
 * is in slot `p & (capacity - 1)`. Whoever consumes the span consumes the slot: there are no further positions.
 *
 * @par Positions
 *
 * A position is a free-running `u64`. Entry `p` lives in slot `p & (capacity - 1)`. `head` is the position of the
 * oldest entry and is written by the consumer; `tail` is the position of the next free one and is written by the
 * producer. `tail - head` in wrapping arithmetic is the number of entries, and never exceeds the capacity.
 *
 * @par Messages
 *
 * Messages on the attach socket (`SOCK_SEQPACKET`, so that a message is a packet).
 *
 * The client asks and the engine answers, one answer per question, in any order. File descriptors travel with the
 * message that names them.
 *
 * @verbatim
 *   0 | kind u16 | 0 u16 | status i32 |
 *   8 | request u64                   |  the answer carries its question's
 *  16 | args, eight u64               |
 *  80 | name_bytes u32 | 0 u32        |
 *  88 | name, 168 bytes               |  UTF-8; in a refusal a text for people
 * @endverbatim
 *
 * What stands in args, in this order, with 0 behind it; what the words mean stands at each SCATTER_RING_KIND_*. `*`:
 * with a name.
 *
 * @verbatim
 * kind               question                       answer                        descriptors
 *  1 HELLO           MAGIC, ABI word, features,     ABI word, features,           submit area, complete area,
 *                    capacities, start position     capacities, epoch             doorbell, wake socket
 *  2 REGISTER        bytes, rights, offset; file    handle
 *  3 EXPORT        * handle, rights
 *  4 OPEN          * rights, peer or 0              handle, bytes, rights
 *  5 CLOSE           handle
 *  6 CANCEL          position
 *  7 STAGE           slots, bytes of each           slots, bytes of each          slots, lists
 *  8 LEND            bytes, rights                  handle
 *  9 CONNECT       *                                peer
 * 10 NOTIFICATIONS                                  slots, bytes of each          buffer
 * 11 FETCH           token (two words), region      offset, bytes, rights         file
 * @endverbatim
 *
 * @par Owner sessions
 *
 * Owner sessions: memory that the engine cannot map is packed and unpacked by the process that owns it.
 *
 * A session that has asked SCATTER_RING_KIND_STAGE gets two more memory files. *Slots* are staging memory that both
 * sides write: slot `s` starts at `s * slot_bytes`. *Lists* are written by the engine and can only be mapped read-only
 * by the owner: list `s` starts at `s` times SCATTER_RING_STAGED_LIST_BYTES and says what belongs into slot `s`.
 *
 * From then on the session's completion ring carries `scatter_ring_command`s and its submission ring
 * `scatter_ring_command_result`s. A command says which pieces of a lent region lie in a slot, one behind the other
 * without gaps:
 *
 * @verbatim
 * command                                      result
 *  0 | op | 0 (3 bytes) |      slot       |     0 |               chunk               |
 *  8 |               chunk                |     8 |     status      |      piece      |
 * 16 |     region      |   piece_bytes    |    16 |               detail              |
 * 24 |      count      |        0         |    24 |            0 (40 bytes)           |
 * 32 |             0 (32 bytes)           |
 * @endverbatim
 *
 * With `piece_bytes` the slot's list holds `count` offsets into the region, u64, of pieces of so many bytes. Without
 * (0) it holds `count` `scatter_ring_piece_record`s. Commands may be answered in any order, each once. A slot and its
 * list stay as they are from the command to its result. Zero-filled fragments need no encoding: the engine puts the
 * zeros into the slot.
 */
#ifndef SCATTER_RING_ABI_H
#define SCATTER_RING_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && defined(__ORDER_LITTLE_ENDIAN__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "scatter-ring runs on little-endian machines"
#endif

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#endif

#ifdef __cplusplus
#define SCATTER_RING_ASSERT(condition) static_assert(condition, #condition)
#define SCATTER_RING_ALIGNOF alignof
#else
#define SCATTER_RING_ASSERT(condition) _Static_assert(condition, #condition)
#define SCATTER_RING_ALIGNOF _Alignof
#endif

/* ---- The version, and limits ---- */

/** The first eight bytes of a complete area: `SCATRING` read as a little-endian integer. */
#define SCATTER_RING_MAGIC UINT64_C(0x474E495254414353)

/** Grows when a producer or a consumer of an older version would misread the bytes. Must match exactly. */
#define SCATTER_RING_ABI_MAJOR 1u

/** Grows when something was added that an older side can ignore. */
#define SCATTER_RING_ABI_MINOR 0u

/** Bytes of every ring entry: descriptor, extension, span. */
#define SCATTER_RING_ENTRY_BYTES 64u

/** Least and most entries of either ring; a capacity is a power of two in this range. */
#define SCATTER_RING_CAPACITY_MIN 4u

/** See SCATTER_RING_CAPACITY_MIN. */
#define SCATTER_RING_CAPACITY_MAX 1048576u

/**
 * Spans that one batch can need: done, failing, not done, released. So many places in the completion ring are reserved
 * before a batch is taken, which is why that ring cannot overflow.
 */
#define SCATTER_RING_SPANS_PER_BATCH 4u

/** Slots that the spans of one batch can count. A session whose batch comes near it is ended. */
#define SCATTER_RING_BATCH_SLOTS_MAX 0xFFFFFFFFu

/**
 * A row number of all ones, which SCATTER_RING_FLAGS_MISSING_ZERO and SCATTER_RING_FLAGS_MISSING_SKIP give a meaning.
 */
#define SCATTER_RING_MISSING_U32 0xFFFFFFFFu

/** The same for 64-bit row numbers. */
#define SCATTER_RING_MISSING_U64 UINT64_C(0xFFFFFFFFFFFFFFFF)

/**
 * @name SCATTER_RING_FEATURES_*: uint64_t
 * What an engine offers and a client asks for. A client refuses an engine that lacks a feature it needs; an engine
 * refuses a client that asks for a bit it does not know.
 * @{
 */
/** READ and WRITE between regions mapped on this host. */
#define SCATTER_RING_FEATURES_LOCAL UINT64_C(0x1)
/** Index arrays (SCATTER_RING_INDEX_KIND_* other than NONE). */
#define SCATTER_RING_FEATURES_INDEX UINT64_C(0x2)
/** Inner repeats by an EXTENSION slot. */
#define SCATTER_RING_FEATURES_EXTENSION UINT64_C(0x4)
/** The NOTIFY opcode, and SCATTER_RING_KIND_NOTIFICATIONS. */
#define SCATTER_RING_FEATURES_NOTIFY UINT64_C(0x8)
/** Regions of other engines: SCATTER_RING_KIND_CONNECT, and SCATTER_RING_KIND_OPEN with the number of a peer. */
#define SCATTER_RING_FEATURES_PEERS UINT64_C(0x10)
/** Memory that is packed and unpacked by the process that owns it: SCATTER_RING_KIND_STAGE, SCATTER_RING_KIND_LEND. */
#define SCATTER_RING_FEATURES_STAGED UINT64_C(0x20)
/** Every bit with a meaning in this version. */
#define SCATTER_RING_FEATURES_KNOWN UINT64_C(0x3F)
/** @} */

/* ---- The two shared areas of a ring pair ---- */

/**
 * @name SCATTER_RING_SUBMIT_*: size_t
 * The submit area: written by the client, read by the engine.
 * @{
 */
/** SQ tail, u64. The client publishes descriptors by storing it. */
#define SCATTER_RING_SUBMIT_TAIL 0u
/** CQ head, u64. The client frees spans by storing it. */
#define SCATTER_RING_SUBMIT_HEAD 128u
/**
 * The client's sleep word, u64: 0 while it is awake, otherwise a number that is new for each sleep. An engine that has
 * published spans and finds a number that it has not answered yet wakes the client.
 */
#define SCATTER_RING_SUBMIT_SLEEP_WORD 256u
/** The descriptors. */
#define SCATTER_RING_SUBMIT_SLOTS 4160u
/** @} */

/**
 * @name SCATTER_RING_COMPLETE_*: size_t
 * The complete area: written by the engine; the client can only map it read-only.
 * @{
 */
/** SQ head, u64. The engine frees descriptors by storing it. */
#define SCATTER_RING_COMPLETE_HEAD 256u
/** CQ tail, u64. The engine publishes spans by storing it. */
#define SCATTER_RING_COMPLETE_TAIL 384u
/**
 * The engine's sleep word, u64: 0 while it is awake, otherwise a number that is new for each sleep. A client that has
 * published descriptors and finds a number that it has not answered yet rings the doorbell.
 */
#define SCATTER_RING_COMPLETE_SLEEP_WORD 512u
/** u64: 0 while the session lives, then scatter_ring_stop_word(). After that nothing is taken or completed. */
#define SCATTER_RING_COMPLETE_STOP_WORD 640u
/** The spans. */
#define SCATTER_RING_COMPLETE_SLOTS 4160u
/** @} */

/** The first bytes of a complete area. Written once, before the client can see it. */
typedef struct scatter_ring_header {
    /** SCATTER_RING_MAGIC */
    uint64_t magic;
    /** SCATTER_RING_ABI_MAJOR */
    uint16_t abi_major;
    /** SCATTER_RING_ABI_MINOR */
    uint16_t abi_minor;
    /** Bytes of this structure. */
    uint32_t header_bytes;
    /** What the engine offers: bits of SCATTER_RING_FEATURES_*. */
    uint64_t features;
    /** Tells the sessions of an engine, and of engines that ran before it, apart. Never 0. */
    uint64_t epoch;
    /** Both rings start at this position. */
    uint64_t start_position;
    /** SCATTER_RING_ENTRY_BYTES */
    uint32_t descriptor_bytes;
    /** SCATTER_RING_ENTRY_BYTES */
    uint32_t span_bytes;
    /** Descriptors that the submission ring holds, a power of two. */
    uint32_t sq_capacity;
    /** Spans that the completion ring holds, a power of two. */
    uint32_t cq_capacity;
    /** Offset of the SQ tail in the submit area. */
    uint32_t sq_tail_offset;
    /** Offset of the CQ head in the submit area. */
    uint32_t cq_head_offset;
    /** Offset of the client's sleep word in the submit area. */
    uint32_t client_sleep_offset;
    /** Offset of the descriptors in the submit area. */
    uint32_t descriptors_offset;
    /** Offset of the SQ head in this area. */
    uint32_t sq_head_offset;
    /** Offset of the CQ tail in this area. */
    uint32_t cq_tail_offset;
    /** Offset of the engine's sleep word in this area. */
    uint32_t engine_sleep_offset;
    /** Offset of the stop word in this area. */
    uint32_t stop_offset;
    /** Offset of the spans in this area. */
    uint32_t spans_offset;
    /** 0. */
    uint32_t reserved;
} scatter_ring_header;
SCATTER_RING_ASSERT(sizeof(scatter_ring_header) == 96);
SCATTER_RING_ASSERT(SCATTER_RING_ALIGNOF(scatter_ring_header) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, magic) == 0);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, abi_major) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, abi_minor) == 10);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, header_bytes) == 12);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, features) == 16);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, epoch) == 24);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, start_position) == 32);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, descriptor_bytes) == 40);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, span_bytes) == 44);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, sq_capacity) == 48);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, cq_capacity) == 52);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, sq_tail_offset) == 56);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, cq_head_offset) == 60);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, client_sleep_offset) == 64);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, descriptors_offset) == 68);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, sq_head_offset) == 72);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, cq_tail_offset) == 76);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, engine_sleep_offset) == 80);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, stop_offset) == 84);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, spans_offset) == 88);
SCATTER_RING_ASSERT(offsetof(scatter_ring_header, reserved) == 92);

/** Words of a scatter_ring_header. */
#define SCATTER_RING_HEADER_WORDS 12u

/** Bytes of a header. */
#define SCATTER_RING_HEADER_BYTES 96u

/* ---- Submission entries ---- */

/**
 * One submission entry: `count` fragments of `len` bytes.
 *
 * Fragment `i` reads at `src_offset + (src index ? src_index[i] : i) * src_stride` and lands at `dst_offset + (dst
 * index ? dst_index[i] : i) * dst_stride`. With an index on both sides the destination's array follows the source's in
 * memory, without padding: a `u64` array behind an odd number of `u32` wants an `index_offset` of 4 modulo 8.
 */
typedef struct scatter_ring_descriptor {
    /** One of SCATTER_RING_OPCODE_*. */
    uint8_t opcode;
    /** Low nibble: the source's SCATTER_RING_INDEX_KIND_*; high nibble: the destination's. */
    uint8_t index_kind;
    /** Bits of SCATTER_RING_FLAGS_*. */
    uint16_t flags;
    /** Bytes per fragment. 0 with FRAGMENTS. NOTIFY: bytes of the payload, at most SCATTER_RING_NOTIFY_BYTES_MAX. */
    uint32_t len;
    /** Region handle of the source. NOTIFY: of the payload, 0 without one. */
    uint32_t src_region;
    /** Region handle of the destination. NOTIFY: who exported this region is told. */
    uint32_t dst_region;
    /**
     * Bytes from the start of the source region. BEGIN: expected bytes of the batch. CANCEL: position of the first
     * descriptor of the batch to cancel. NOTIFY: of the payload in its region.
     */
    uint64_t src_offset;
    /**
     * Bytes from the start of the destination region. BEGIN: deadline in ns after the batch's first descriptor was
     * taken, 0 for none. NOTIFY: anything, handed over as scatter_ring_span.first.
     */
    uint64_t dst_offset;
    /** Fragments, 1 for a plain range. BEGIN: expected fragments of the batch. */
    uint32_t count;
    /** Region handle of the index array, 0 without one. */
    uint32_t index_region;
    /** Bytes from the start of the index region. */
    uint64_t index_offset;
    /** Bytes from one source fragment (or index step) to the next. */
    uint32_t src_stride;
    /** Bytes from one destination fragment (or index step) to the next. */
    uint32_t dst_stride;
    /** Handed back in the span. NOTIFY: also handed over. */
    uint64_t user_data;
} scatter_ring_descriptor;
SCATTER_RING_ASSERT(sizeof(scatter_ring_descriptor) == 64);
SCATTER_RING_ASSERT(SCATTER_RING_ALIGNOF(scatter_ring_descriptor) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_descriptor, opcode) == 0);
SCATTER_RING_ASSERT(offsetof(scatter_ring_descriptor, index_kind) == 1);
SCATTER_RING_ASSERT(offsetof(scatter_ring_descriptor, flags) == 2);
SCATTER_RING_ASSERT(offsetof(scatter_ring_descriptor, len) == 4);
SCATTER_RING_ASSERT(offsetof(scatter_ring_descriptor, src_region) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_descriptor, dst_region) == 12);
SCATTER_RING_ASSERT(offsetof(scatter_ring_descriptor, src_offset) == 16);
SCATTER_RING_ASSERT(offsetof(scatter_ring_descriptor, dst_offset) == 24);
SCATTER_RING_ASSERT(offsetof(scatter_ring_descriptor, count) == 32);
SCATTER_RING_ASSERT(offsetof(scatter_ring_descriptor, index_region) == 36);
SCATTER_RING_ASSERT(offsetof(scatter_ring_descriptor, index_offset) == 40);
SCATTER_RING_ASSERT(offsetof(scatter_ring_descriptor, src_stride) == 48);
SCATTER_RING_ASSERT(offsetof(scatter_ring_descriptor, dst_stride) == 52);
SCATTER_RING_ASSERT(offsetof(scatter_ring_descriptor, user_data) == 56);

/**
 * The slot behind a descriptor with SCATTER_RING_FLAGS_EXTENDED: every fragment becomes `inner_count` pieces of `len`
 * bytes.
 *
 * Piece `k` of a fragment lies `k * inner_src_stride` behind the fragment's start at the source and `k *
 * inner_dst_stride` behind it at the destination.
 */
typedef struct scatter_ring_extension {
    /** SCATTER_RING_OPCODE_EXTENSION. */
    uint8_t opcode;
    /** 0. */
    uint8_t reserved[3];
    /** Pieces per fragment, at least 1. */
    uint32_t inner_count;
    /** Bytes between the starts of two pieces at the source. */
    uint32_t inner_src_stride;
    /** Bytes between the starts of two pieces at the destination; at least `len` if there are two. */
    uint32_t inner_dst_stride;
    /** 0. */
    uint64_t reserved_words[6];
} scatter_ring_extension;
SCATTER_RING_ASSERT(sizeof(scatter_ring_extension) == 64);
SCATTER_RING_ASSERT(SCATTER_RING_ALIGNOF(scatter_ring_extension) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_extension, opcode) == 0);
SCATTER_RING_ASSERT(offsetof(scatter_ring_extension, reserved) == 1);
SCATTER_RING_ASSERT(offsetof(scatter_ring_extension, inner_count) == 4);
SCATTER_RING_ASSERT(offsetof(scatter_ring_extension, inner_src_stride) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_extension, inner_dst_stride) == 12);
SCATTER_RING_ASSERT(offsetof(scatter_ring_extension, reserved_words) == 16);

/** One irregular fragment of a SCATTER_RING_INDEX_KIND_FRAGMENTS array, relative to the descriptor's two offsets. */
typedef struct scatter_ring_fragment_record {
    /** Bytes behind `src_offset`. */
    uint64_t src;
    /** Bytes behind `dst_offset`. */
    uint64_t dst;
    /** Bytes. */
    uint32_t len;
    /** 0. */
    uint32_t reserved;
} scatter_ring_fragment_record;
SCATTER_RING_ASSERT(sizeof(scatter_ring_fragment_record) == 24);
SCATTER_RING_ASSERT(SCATTER_RING_ALIGNOF(scatter_ring_fragment_record) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_fragment_record, src) == 0);
SCATTER_RING_ASSERT(offsetof(scatter_ring_fragment_record, dst) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_fragment_record, len) == 16);
SCATTER_RING_ASSERT(offsetof(scatter_ring_fragment_record, reserved) == 20);

/** Most bytes of the payload of a SCATTER_RING_OPCODE_NOTIFY, and bytes of each slot of a notification buffer. */
#define SCATTER_RING_NOTIFY_BYTES_MAX 4096u

/**
 * @name SCATTER_RING_OPCODE_*: uint8_t
 * What a descriptor asks for.
 * @{
 */
/** Nothing. Succeeds with 0 bytes; useful to end a batch or to measure a round trip. */
#define SCATTER_RING_OPCODE_NOP 1u
/** Hints and a deadline for the batch that it starts. */
#define SCATTER_RING_OPCODE_BEGIN 2u
/** From a remote region, or another one, into mine. */
#define SCATTER_RING_OPCODE_READ 3u
/** From mine into the other. */
#define SCATTER_RING_OPCODE_WRITE 4u
/**
 * A message to the client that exported the other region: `len` bytes of a region of mine, `dst_offset` and
 * `user_data`. Only as the last descriptor of a batch, with SCATTER_RING_FLAGS_LAST. It is sent when all others of its
 * batch are done, never if one is not; and it is done when it is in place: see SCATTER_RING_SPAN_FLAGS_EVENT and
 * SCATTER_RING_KIND_NOTIFICATIONS. While the one who is to be told has no free place for it, it waits, until a deadline
 * or a cancel ends its batch. The region of an export may be told of with any rights.
 */
#define SCATTER_RING_OPCODE_NOTIFY 5u
/** Ends another batch of this ring. */
#define SCATTER_RING_OPCODE_CANCEL 6u
/** The second slot of an extended descriptor. */
#define SCATTER_RING_OPCODE_EXTENSION 7u
/** @} */

/**
 * @name SCATTER_RING_FLAGS_*: uint16_t
 * Bits of scatter_ring_descriptor.flags.
 * @{
 */
/** The batch ends with this descriptor (and its extension). */
#define SCATTER_RING_FLAGS_LAST 0x1u
/**
 * On a batch's first descriptor: starts when all earlier batches of this ring have their outcome and are released,
 * whatever it was; later batches do not overtake it.
 */
#define SCATTER_RING_FLAGS_FENCE 0x2u
/** The next slot is a scatter_ring_extension of this descriptor. */
#define SCATTER_RING_FLAGS_EXTENDED 0x4u
/** A source row number of all ones fills the destination of that fragment with 0. */
#define SCATTER_RING_FLAGS_MISSING_ZERO 0x8u
/** A source row number of all ones leaves the destination of that fragment as it is. */
#define SCATTER_RING_FLAGS_MISSING_SKIP 0x10u
/** Force the direct route. */
#define SCATTER_RING_FLAGS_DIRECT 0x20u
/** Force the gather route. */
#define SCATTER_RING_FLAGS_GATHER 0x40u
/** Every bit with a meaning. */
#define SCATTER_RING_FLAGS_KNOWN 0x7Fu
/** @} */

/**
 * @name SCATTER_RING_INDEX_KIND_*: uint8_t
 * How one side's fragment numbers are given: a nibble of scatter_ring_descriptor.index_kind.
 * @{
 */
/** Fragment `i` has number `i`. */
#define SCATTER_RING_INDEX_KIND_NONE 0u
/** An array of `u32`. */
#define SCATTER_RING_INDEX_KIND_U32 1u
/** An array of `u64`. */
#define SCATTER_RING_INDEX_KIND_U64 2u
/** For both sides at once: an array of scatter_ring_fragment_record. */
#define SCATTER_RING_INDEX_KIND_FRAGMENTS 3u
/** @} */

/**
 * @name SCATTER_RING_HANDLE_*: uint32_t
 * A region handle of one session: 12 bits of index, 20 bits of generation. 0 is no region.
 * @{
 */
/** No region. */
#define SCATTER_RING_HANDLE_NONE 0u
/** Regions that one session can have open at a time. */
#define SCATTER_RING_HANDLE_INDEX_MAX 0xFFFu
/** The last generation of a slot; a slot whose generations are used up is retired. */
#define SCATTER_RING_HANDLE_GENERATION_MAX 0xFFFFFu
/** @} */

/**
 * @name SCATTER_RING_FIELD_*: uint32_t
 * Which field of a descriptor an error is about: its offset in the descriptor's 64 bytes, plus 64 for a field of the
 * extension slot behind it.
 * @{
 */
/** No single field. */
#define SCATTER_RING_FIELD_NONE 0xFFFFFFFFu
/** scatter_ring_descriptor.opcode */
#define SCATTER_RING_FIELD_OPCODE 0u
/** scatter_ring_descriptor.index_kind */
#define SCATTER_RING_FIELD_INDEX_KIND 1u
/** scatter_ring_descriptor.flags */
#define SCATTER_RING_FIELD_FLAGS 2u
/** scatter_ring_descriptor.len */
#define SCATTER_RING_FIELD_LEN 4u
/** scatter_ring_descriptor.src_region */
#define SCATTER_RING_FIELD_SRC_REGION 8u
/** scatter_ring_descriptor.dst_region */
#define SCATTER_RING_FIELD_DST_REGION 12u
/** scatter_ring_descriptor.src_offset: the source side of a fragment. */
#define SCATTER_RING_FIELD_SRC_OFFSET 16u
/** scatter_ring_descriptor.dst_offset: the destination side of a fragment. */
#define SCATTER_RING_FIELD_DST_OFFSET 24u
/** scatter_ring_descriptor.count */
#define SCATTER_RING_FIELD_COUNT 32u
/** scatter_ring_descriptor.index_region */
#define SCATTER_RING_FIELD_INDEX_REGION 36u
/** scatter_ring_descriptor.index_offset */
#define SCATTER_RING_FIELD_INDEX_OFFSET 40u
/** scatter_ring_descriptor.src_stride */
#define SCATTER_RING_FIELD_SRC_STRIDE 48u
/** scatter_ring_descriptor.dst_stride */
#define SCATTER_RING_FIELD_DST_STRIDE 52u
/** scatter_ring_extension.opcode */
#define SCATTER_RING_FIELD_EXTENSION_OPCODE 64u
/** scatter_ring_extension.reserved and scatter_ring_extension.reserved_words */
#define SCATTER_RING_FIELD_EXTENSION_RESERVED 65u
/** scatter_ring_extension.inner_count */
#define SCATTER_RING_FIELD_INNER_COUNT 68u
/** scatter_ring_extension.inner_src_stride */
#define SCATTER_RING_FIELD_INNER_SRC_STRIDE 72u
/** scatter_ring_extension.inner_dst_stride */
#define SCATTER_RING_FIELD_INNER_DST_STRIDE 76u
/** @} */

/* ---- Messages on the attach socket (`SOCK_SEQPACKET`, so that a message is a packet) ---- */

/** Bytes of every message. */
#define SCATTER_RING_MESSAGE_BYTES 256u

/** Longest name of an export, in bytes. */
#define SCATTER_RING_NAME_BYTES_MAX 168u

/** A request number that asks for no answer. */
#define SCATTER_RING_NO_ANSWER UINT64_C(0xFFFFFFFFFFFFFFFF)

/** File descriptors that can come with one message. */
#define SCATTER_RING_MESSAGE_FDS_MAX 4u

/**
 * @name SCATTER_RING_KIND_*: uint16_t
 * What a message is about; answers have SCATTER_RING_KIND_ANSWER set.
 * @{
 */
/**
 * First message of a connection. args: crate::MAGIC (SCATTER_RING_MAGIC); ABI major | minor << 16 | descriptor bytes <<
 * 32 | span bytes << 48; features needed; SQ capacity | CQ capacity << 32; start position. Answer: ABI as above;
 * features offered; capacities; epoch. Descriptors: submit area, complete area, doorbell (eventfd), wake socket.
 */
#define SCATTER_RING_KIND_HELLO 1u
/**
 * Makes memory a region of this session. args: bytes; rights; offset, bytes into the file, any number. Descriptor: the
 * memory file. Answer: handle.
 */
#define SCATTER_RING_KIND_REGISTER 2u
/** Gives a region a name by which others can open it. args: handle; rights. name. */
#define SCATTER_RING_KIND_EXPORT 3u
/**
 * Opens an export. args: rights wanted; whose export it is: the number of a peer, as CONNECT gave it, or 0 for this
 * engine. name. Answer: handle; bytes; rights.
 */
#define SCATTER_RING_KIND_OPEN 4u
/** Ends a registration or an opening. args: handle. Answered when nobody touches the memory any more. */
#define SCATTER_RING_KIND_CLOSE 5u
/** Cancels a batch. args: position of its first descriptor. */
#define SCATTER_RING_KIND_CANCEL 6u
/**
 * Makes this an owner session: see SCATTER_RING_STAGED_*. Must come before any descriptor; comes once. args: slots;
 * bytes per slot. Answer: slots and bytes per slot, as granted: not more. Descriptors: slots, lists.
 */
#define SCATTER_RING_KIND_STAGE 7u
/** Makes memory that the engine cannot map a region of this owner session. args: bytes; rights. Answer: handle. */
#define SCATTER_RING_KIND_LEND 8u
/**
 * Asks for a notification buffer: without one a client is sent no events (SCATTER_RING_SPAN_FLAGS_EVENT). Comes once,
 * and not from an owner session. No args. Answer: slots, as many as the completion ring has; bytes of each,
 * SCATTER_RING_NOTIFY_BYTES_MAX. Descriptor: the buffer, which can only be mapped for reading.
 */
#define SCATTER_RING_KIND_NOTIFICATIONS 10u
/**
 * Asks for a connection to another engine, a peer. name: its endpoint as text. Answered when there is a connection, or
 * when it has been tried for some seconds in vain. Answer: the peer's number, not 0; the same for every session of this
 * engine, as long as the engine runs.
 */
#define SCATTER_RING_KIND_CONNECT 9u
/**
 * From another engine on this host, as the first and only message of a connection: asks for the memory file of a region
 * that a peer has opened here. args: the token that its connection was told, two words; the region's number there.
 * Answer: offset, bytes into the file; bytes; rights. Descriptor: the file. The connection stays open for as long as
 * the memory is mapped: its end says that nobody over there touches it any more.
 */
#define SCATTER_RING_KIND_FETCH 11u
/** Set in the answer to a message of that kind. */
#define SCATTER_RING_KIND_ANSWER 0x8000u
/** @} */

/** One message, either way. */
typedef struct scatter_ring_message {
    /** What it is about. */
    uint16_t kind;
    /** 0. */
    uint16_t reserved;
    /** Of an answer: OK or why not. */
    int32_t status;
    /** The client's number for the question. */
    uint64_t request;
    /** Meaning by kind; 0 where there is none. */
    uint64_t args[8];
    /** Bytes of the name. */
    uint32_t name_bytes;
    /** 0. */
    uint32_t reserved2;
    /** UTF-8, then 0. In a refusal a text for people. */
    char name[168];
} scatter_ring_message;
SCATTER_RING_ASSERT(sizeof(scatter_ring_message) == 256);
SCATTER_RING_ASSERT(SCATTER_RING_ALIGNOF(scatter_ring_message) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_message, kind) == 0);
SCATTER_RING_ASSERT(offsetof(scatter_ring_message, reserved) == 2);
SCATTER_RING_ASSERT(offsetof(scatter_ring_message, status) == 4);
SCATTER_RING_ASSERT(offsetof(scatter_ring_message, request) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_message, args) == 16);
SCATTER_RING_ASSERT(offsetof(scatter_ring_message, name_bytes) == 80);
SCATTER_RING_ASSERT(offsetof(scatter_ring_message, reserved2) == 84);
SCATTER_RING_ASSERT(offsetof(scatter_ring_message, name) == 88);

/**
 * @name SCATTER_RING_RIGHTS_*: uint64_t
 * What a region grants: bits of the rights in SCATTER_RING_KIND_REGISTER, SCATTER_RING_KIND_EXPORT,
 * SCATTER_RING_KIND_OPEN and SCATTER_RING_KIND_LEND.
 * @{
 */
/** May be a source, or hold an index array. */
#define SCATTER_RING_RIGHTS_READ UINT64_C(0x1)
/** May be a destination. */
#define SCATTER_RING_RIGHTS_WRITE UINT64_C(0x2)
/** Every bit with a meaning. */
#define SCATTER_RING_RIGHTS_KNOWN UINT64_C(0x3)
/** @} */

/* ---- Completion entries ---- */

/**
 * One completion entry: `count` consecutive slots of the submission ring with one outcome.
 *
 * One entry for many requests is what virtio's `IN_ORDER` feature and RDMA's selective signalling do too.
 *
 * A failed span ends with the descriptor at fault. It covers more than that one only if a deadline passed while
 * descriptors before it were still in flight.
 *
 * In a failed span `queue_ns`, `plan_ns` and `command_ns` hold the failing fragment and the detail instead of times;
 * read them through scatter_ring_span_fragment() and scatter_ring_span_detail().
 */
typedef struct scatter_ring_span {
    /** Position of the first slot that this span is about. */
    uint64_t first;
    /** Slots, extensions counted. 0 with SCATTER_RING_SPAN_FLAGS_RELEASED, which covers nothing. */
    uint32_t count;
    /** The outcome. */
    int32_t status;
    /** Bytes written to destinations by the covered descriptors. */
    uint64_t bytes;
    /** `user_data` of the span's last descriptor. */
    uint64_t user_data;
    /** Bits of SCATTER_RING_SPAN_FLAGS_*. */
    uint16_t flags;
    /** One of SCATTER_RING_ROUTE_*. */
    uint8_t route;
    /** One of SCATTER_RING_STAGE_*: where a failed span failed. */
    uint8_t stage;
    /** From the batch's first descriptor taken to its first work started. */
    uint32_t queue_ns;
    /** Planning. */
    uint32_t plan_ns;
    /** Commands to a peer. */
    uint32_t command_ns;
    /** Packing. */
    uint32_t pack_ns;
    /** From the first bulk operation to the last data in place. */
    uint32_t window_ns;
    /** From the batch's first descriptor taken to this span. */
    uint32_t total_ns;
    /** In a failed span the SCATTER_RING_FIELD_* that is wrong, else 0. */
    uint32_t field;
} scatter_ring_span;
SCATTER_RING_ASSERT(sizeof(scatter_ring_span) == 64);
SCATTER_RING_ASSERT(SCATTER_RING_ALIGNOF(scatter_ring_span) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, first) == 0);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, count) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, status) == 12);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, bytes) == 16);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, user_data) == 24);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, flags) == 32);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, route) == 34);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, stage) == 35);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, queue_ns) == 36);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, plan_ns) == 40);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, command_ns) == 44);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, pack_ns) == 48);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, window_ns) == 52);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, total_ns) == 56);
SCATTER_RING_ASSERT(offsetof(scatter_ring_span, field) == 60);

/**
 * @name SCATTER_RING_SPAN_FLAGS_*: uint16_t
 * Bits of scatter_ring_span.flags.
 * @{
 */
/** The batch's last outcome span. Only a RELEASED span can follow, and only if one of its spans was HELD. */
#define SCATTER_RING_SPAN_FLAGS_BATCH_DONE 0x1u
/**
 * The batch's buffers may still be written. Later outcome spans of the batch need not repeat it; its RELEASED span ends
 * it.
 */
#define SCATTER_RING_SPAN_FLAGS_HELD 0x2u
/** The buffers of the batch that starts at `first` are reusable. Covers no slot. */
#define SCATTER_RING_SPAN_FLAGS_RELEASED 0x4u
/**
 * Not about a batch of this ring: a notification that somebody sent by SCATTER_RING_OPCODE_NOTIFY. `user_data` is that
 * of the NOTIFY, `first` its `dst_offset`, `bytes` the length of its payload, `count` 0, the status OK and everything
 * else 0.
 *
 * The payload is at the start of a slot of the notification buffer: the one whose number is the position of this span
 * in the completion ring, modulo the ring's capacity. The slot is this span's until its place is freed: copy the
 * payload out before you store the head.
 */
#define SCATTER_RING_SPAN_FLAGS_EVENT 0x8u
/** Every bit with a meaning. */
#define SCATTER_RING_SPAN_FLAGS_KNOWN 0xFu
/** @} */

/**
 * @name SCATTER_RING_ROUTE_*: uint8_t
 * How a batch's bytes travelled: scatter_ring_span.route.
 * @{
 */
/** Nothing had to be moved. */
#define SCATTER_RING_ROUTE_NONE 0u
/** One operation per segment. */
#define SCATTER_RING_ROUTE_DIRECT 1u
/** Packed at the source, moved in bulk. */
#define SCATTER_RING_ROUTE_GATHER 2u
/** Some of both. */
#define SCATTER_RING_ROUTE_HYBRID 3u
/** @} */

/**
 * @name SCATTER_RING_STAGE_*: uint8_t
 * Where a descriptor failed: scatter_ring_span.stage.
 * @{
 */
/** Nowhere: success. */
#define SCATTER_RING_STAGE_NONE 0u
/** Taking it from the ring: opcode, flags, sequence, fields. */
#define SCATTER_RING_STAGE_TAKE 1u
/** Planning: regions, rights, ranges. */
#define SCATTER_RING_STAGE_PLAN 2u
/** Commands to a peer. */
#define SCATTER_RING_STAGE_COMMAND 3u
/** Copying at the packing side, which reads the index. */
#define SCATTER_RING_STAGE_PACK 4u
/** On the wire. */
#define SCATTER_RING_STAGE_WINDOW 5u
/** Waiting: a deadline or a cancel. */
#define SCATTER_RING_STAGE_WAIT 6u
/** @} */

/* ---- Owner sessions: memory that the engine cannot map is packed and unpacked by the process that owns it ---- */

/** Least and most slots of an owner session; transfers between two lent regions need two. */
#define SCATTER_RING_STAGED_SLOTS_MIN 2u

/** See SCATTER_RING_STAGED_SLOTS_MIN. */
#define SCATTER_RING_STAGED_SLOTS_MAX 64u

/** Least and most bytes of a slot; a multiple of 4096. */
#define SCATTER_RING_STAGED_SLOT_BYTES_MIN 65536u

/** See SCATTER_RING_STAGED_SLOT_BYTES_MIN. */
#define SCATTER_RING_STAGED_SLOT_BYTES_MAX 1048576u

/** Pieces that one list can hold. */
#define SCATTER_RING_STAGED_PIECES_MAX 4096u

/** Bytes of the list of one slot. */
#define SCATTER_RING_STAGED_LIST_BYTES 65536u

/**
 * @name SCATTER_RING_COMMAND_OP_*: uint8_t
 * Which way a scatter_ring_command goes.
 * @{
 */
/** Pieces of the region into the slot. */
#define SCATTER_RING_COMMAND_OP_PACK 1u
/** The slot into pieces of the region. */
#define SCATTER_RING_COMMAND_OP_UNPACK 2u
/** @} */

/** From the engine to an owner: one entry of the completion ring. */
typedef struct scatter_ring_command {
    /** Which way. */
    uint8_t op;
    /** 0. */
    uint8_t reserved[3];
    /** The slot, and its list. */
    uint32_t slot;
    /** The engine's number for it, handed back in the result; no number is used twice. */
    uint64_t chunk;
    /** Handle of the lent region, as the answer to SCATTER_RING_KIND_LEND gave it. */
    uint32_t region;
    /** Bytes of every piece; 0: the list holds records. */
    uint32_t piece_bytes;
    /** Pieces. */
    uint32_t count;
    /** 0. */
    uint32_t reserved2;
    /** 0. */
    uint64_t reserved_words[4];
} scatter_ring_command;
SCATTER_RING_ASSERT(sizeof(scatter_ring_command) == 64);
SCATTER_RING_ASSERT(SCATTER_RING_ALIGNOF(scatter_ring_command) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_command, op) == 0);
SCATTER_RING_ASSERT(offsetof(scatter_ring_command, reserved) == 1);
SCATTER_RING_ASSERT(offsetof(scatter_ring_command, slot) == 4);
SCATTER_RING_ASSERT(offsetof(scatter_ring_command, chunk) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_command, region) == 16);
SCATTER_RING_ASSERT(offsetof(scatter_ring_command, piece_bytes) == 20);
SCATTER_RING_ASSERT(offsetof(scatter_ring_command, count) == 24);
SCATTER_RING_ASSERT(offsetof(scatter_ring_command, reserved2) == 28);
SCATTER_RING_ASSERT(offsetof(scatter_ring_command, reserved_words) == 32);

/** From an owner to the engine: one entry of the submission ring. */
typedef struct scatter_ring_command_result {
    /** Of the command. */
    uint64_t chunk;
    /** OK, or why it could not be done: UNKNOWN_REGION if the memory was taken back. */
    int32_t status;
    /** The first piece that could not be copied, 0 on success. */
    uint32_t piece;
    /** The offending value: an offset, a handle; 0 on success. */
    uint64_t detail;
    /** 0. */
    uint64_t reserved_words[5];
} scatter_ring_command_result;
SCATTER_RING_ASSERT(sizeof(scatter_ring_command_result) == 64);
SCATTER_RING_ASSERT(SCATTER_RING_ALIGNOF(scatter_ring_command_result) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_command_result, chunk) == 0);
SCATTER_RING_ASSERT(offsetof(scatter_ring_command_result, status) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_command_result, piece) == 12);
SCATTER_RING_ASSERT(offsetof(scatter_ring_command_result, detail) == 16);
SCATTER_RING_ASSERT(offsetof(scatter_ring_command_result, reserved_words) == 24);

/** One piece of a list of pieces of different lengths. */
typedef struct scatter_ring_piece_record {
    /** Bytes from the start of the region. */
    uint64_t offset;
    /** Bytes. */
    uint32_t len;
    /** 0. */
    uint32_t reserved;
} scatter_ring_piece_record;
SCATTER_RING_ASSERT(sizeof(scatter_ring_piece_record) == 16);
SCATTER_RING_ASSERT(SCATTER_RING_ALIGNOF(scatter_ring_piece_record) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_piece_record, offset) == 0);
SCATTER_RING_ASSERT(offsetof(scatter_ring_piece_record, len) == 8);
SCATTER_RING_ASSERT(offsetof(scatter_ring_piece_record, reserved) == 12);

/* ---- Outcome codes, their names and their texts ---- */

/**
 * @name SCATTER_RING_STATUS_*: int32_t
 * The outcome of descriptors, or the reason of a refusal: 0 or a negative code.
 *
 * Codes keep their meaning for ever; a code that this version does not know prints as a number.
 * @{
 */
/** Done: every byte is in place. */
#define SCATTER_RING_STATUS_OK 0
/** The opcode has no meaning. */
#define SCATTER_RING_STATUS_INVALID_OPCODE (-1)
/** A flag has no meaning, or none here, or two flags contradict each other. */
#define SCATTER_RING_STATUS_INVALID_FLAGS (-2)
/** A field that this opcode does not use, or a reserved one, is not 0. */
#define SCATTER_RING_STATUS_INVALID_FIELD (-3)
/** The index kinds have no meaning. */
#define SCATTER_RING_STATUS_INVALID_INDEX_KIND (-4)
/** `count` or `inner_count` is 0. */
#define SCATTER_RING_STATUS_INVALID_COUNT (-5)
/** Fragments would overlap at the destination: its step is smaller than the length. */
#define SCATTER_RING_STATUS_INVALID_STRIDE (-6)
/** An index array is not naturally aligned. */
#define SCATTER_RING_STATUS_MISALIGNED_INDEX (-7)
/** BEGIN, FENCE, CANCEL, NOTIFY or EXTENSION where it cannot stand. */
#define SCATTER_RING_STATUS_BAD_SEQUENCE (-8)
/** The handle names no region of this session: never registered, closed, or of another session. */
#define SCATTER_RING_STATUS_UNKNOWN_REGION (-9)
/**
 * The owner of an opened region has unregistered it or is gone, or the memory of a region is lost: its file was cut
 * short, or a page of it could not be had.
 */
#define SCATTER_RING_STATUS_REGION_GONE (-10)
/** The region does not grant reading or writing. */
#define SCATTER_RING_STATUS_NO_RIGHT (-11)
/** An offset, a row number or a fragment lies outside its region. */
#define SCATTER_RING_STATUS_OUT_OF_RANGE (-12)
/** Known, but this engine cannot do it. */
#define SCATTER_RING_STATUS_UNSUPPORTED (-13)
/** More slots in one batch than its spans can count: the session has ended. */
#define SCATTER_RING_STATUS_BATCH_TOO_LONG (-14)
/** CANCEL named no batch that is under way. */
#define SCATTER_RING_STATUS_NOT_FOUND (-15)
/** Ended by a CANCEL. */
#define SCATTER_RING_STATUS_CANCELLED (-16)
/** Ended by its deadline. */
#define SCATTER_RING_STATUS_TIMED_OUT (-17)
/** Not done, because an earlier descriptor of the batch ended it. */
#define SCATTER_RING_STATUS_NOT_DONE (-18)
/** Memory could not be read or written (a page could not be had). */
#define SCATTER_RING_STATUS_FAULT (-19)
/** The engine failed inside; the session is not affected. */
#define SCATTER_RING_STATUS_INTERNAL (-20)
/** A ring position that is impossible; the session has ended. */
#define SCATTER_RING_STATUS_BAD_RING (-32)
/** A message on the attach socket that is not understood; the session has ended. */
#define SCATTER_RING_STATUS_BAD_MESSAGE (-33)
/** The other side's ABI version or entry sizes differ. */
#define SCATTER_RING_STATUS_VERSION_MISMATCH (-34)
/** A feature was asked for that the engine does not have. */
#define SCATTER_RING_STATUS_MISSING_FEATURE (-35)
/** A configured limit would be exceeded. */
#define SCATTER_RING_STATUS_LIMIT_EXCEEDED (-36)
/** The kernel gave no memory. */
#define SCATTER_RING_STATUS_NO_MEMORY (-37)
/** A capacity, a size or a start position is not allowed. */
#define SCATTER_RING_STATUS_INVALID_SETTING (-38)
/** A file descriptor is not what a region needs. */
#define SCATTER_RING_STATUS_BAD_FD (-39)
/** An exported name is already taken. */
#define SCATTER_RING_STATUS_NAME_TAKEN (-40)
/** Nothing is exported under this name. */
#define SCATTER_RING_STATUS_NAME_UNKNOWN (-41)
/** The engine is stopping. */
#define SCATTER_RING_STATUS_STOPPING (-42)
/** The other side is not allowed to attach, or the one who is to be notified takes no notifications. */
#define SCATTER_RING_STATUS_NOT_ALLOWED (-43)
/** There is no connection to the engine that was asked for, and none could be made. */
#define SCATTER_RING_STATUS_PEER_UNREACHABLE (-44)
/** Client side only: the engine is gone. */
#define SCATTER_RING_STATUS_ENGINE_LOST (-64)
/** Client side only: a forked child used its parent's session. */
#define SCATTER_RING_STATUS_FORKED (-65)
/** @} */

/* ---- Functions ---- */

/** Bytes of a submit area for so many descriptors. */
static inline size_t scatter_ring_submit_bytes(uint32_t sq_capacity) {
    return SCATTER_RING_SUBMIT_SLOTS + (size_t)sq_capacity * SCATTER_RING_ENTRY_BYTES;
}

/** Bytes of a complete area for so many spans. */
static inline size_t scatter_ring_complete_bytes(uint32_t cq_capacity) {
    return SCATTER_RING_COMPLETE_SLOTS + (size_t)cq_capacity * SCATTER_RING_ENTRY_BYTES;
}

/** The word at SCATTER_RING_COMPLETE_STOP_WORD of a session that has ended for this reason. */
static inline uint64_t scatter_ring_stop_word(int32_t reason) {
    return UINT64_C(1) << 32 | (uint32_t)reason;
}

/**
 * Why the session has ended, if it has.
 *
 * True if it has; then its status is in `reason`.
 */
static inline bool scatter_ring_stop_reason(uint64_t word, int32_t *reason) {
    if (word >> 32 == 0) {
        return false;
    }
    *reason = (int32_t)(uint32_t)(word & UINT32_MAX);
    return true;
}

/** True for a capacity that a ring may have. */
static inline bool scatter_ring_header_is_capacity(uint32_t n) {
    return (n & (n - 1)) == 0 && n >= SCATTER_RING_CAPACITY_MIN && n <= SCATTER_RING_CAPACITY_MAX;
}

/**
 * What is wrong with a header that the other side wrote: the first field that this version cannot work with.
 *
 * SCATTER_RING_STATUS_OK, or a status with the field's name in `field`.
 */
static inline int32_t scatter_ring_header_check(const scatter_ring_header *h, const char **field) {
    *field = NULL;
    if (h->magic != SCATTER_RING_MAGIC) *field = "magic";
    else if (h->abi_major != SCATTER_RING_ABI_MAJOR) *field = "abi_major";
    else if (h->header_bytes != SCATTER_RING_HEADER_BYTES) *field = "header_bytes";
    else if (h->descriptor_bytes != SCATTER_RING_ENTRY_BYTES) *field = "descriptor_bytes";
    else if (h->span_bytes != SCATTER_RING_ENTRY_BYTES) *field = "span_bytes";
    else if (h->sq_tail_offset != SCATTER_RING_SUBMIT_TAIL) *field = "sq_tail_offset";
    else if (h->cq_head_offset != SCATTER_RING_SUBMIT_HEAD) *field = "cq_head_offset";
    else if (h->client_sleep_offset != SCATTER_RING_SUBMIT_SLEEP_WORD) *field = "client_sleep_offset";
    else if (h->descriptors_offset != SCATTER_RING_SUBMIT_SLOTS) *field = "descriptors_offset";
    else if (h->sq_head_offset != SCATTER_RING_COMPLETE_HEAD) *field = "sq_head_offset";
    else if (h->cq_tail_offset != SCATTER_RING_COMPLETE_TAIL) *field = "cq_tail_offset";
    else if (h->engine_sleep_offset != SCATTER_RING_COMPLETE_SLEEP_WORD) *field = "engine_sleep_offset";
    else if (h->stop_offset != SCATTER_RING_COMPLETE_STOP_WORD) *field = "stop_offset";
    else if (h->spans_offset != SCATTER_RING_COMPLETE_SLOTS) *field = "spans_offset";
    else if (h->reserved != 0) *field = "reserved";
    if (*field != NULL) return SCATTER_RING_STATUS_VERSION_MISMATCH;
    if (!scatter_ring_header_is_capacity(h->sq_capacity)) *field = "sq_capacity";
    else if (!scatter_ring_header_is_capacity(h->cq_capacity)) *field = "cq_capacity";
    else if (h->epoch == 0) *field = "epoch";
    return *field != NULL ? SCATTER_RING_STATUS_INVALID_SETTING : SCATTER_RING_STATUS_OK;
}

/** ABI version and entry sizes in one word, as HELLO and its answer carry it. */
static inline uint64_t scatter_ring_abi_word(void) {
    return SCATTER_RING_ABI_MAJOR | (uint64_t)SCATTER_RING_ABI_MINOR << 16 |
           (uint64_t)SCATTER_RING_ENTRY_BYTES << 32 | (uint64_t)SCATTER_RING_ENTRY_BYTES << 48;
}

/** True if a side with this word can work with this version: all but the minor version equal. */
static inline bool scatter_ring_abi_matches(uint64_t word) {
    return ((word ^ scatter_ring_abi_word()) & ~(UINT64_C(0xFFFF) << 16)) == 0;
}

/**
 * The first message of a connection.
 *
 * `features` are those that are needed: SCATTER_RING_FEATURES_*.
 */
static inline scatter_ring_message scatter_ring_message_hello(uint64_t features, uint32_t sq_capacity,
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
}

/** The slot. */
static inline uint32_t scatter_ring_handle_index(uint32_t handle) {
    return handle & SCATTER_RING_HANDLE_INDEX_MAX;
}

/** How often the slot had been given out. */
static inline uint32_t scatter_ring_handle_generation(uint32_t handle) {
    return handle >> 12;
}

/** The byte of a descriptor for these two sides. */
static inline uint8_t scatter_ring_index_kind_pack(uint8_t src, uint8_t dst) {
    return (uint8_t)(src | dst << 4);
}

/** Bytes of one array entry, 0 without an array. */
static inline uint64_t scatter_ring_index_kind_entry_bytes(uint8_t kind) {
    switch (kind) {
    case SCATTER_RING_INDEX_KIND_U32: return sizeof(uint32_t);
    case SCATTER_RING_INDEX_KIND_U64: return sizeof(uint64_t);
    case SCATTER_RING_INDEX_KIND_FRAGMENTS: return sizeof(scatter_ring_fragment_record);
    default: return 0;
    }
}

/** The failing fragment's number, of a failed span. */
static inline uint32_t scatter_ring_span_fragment(const scatter_ring_span *span) {
    return span->queue_ns;
}

/** The offending value (an offset, a row number, a handle, flag bits), of a failed span. */
static inline uint64_t scatter_ring_span_detail(const scatter_ring_span *span) {
    return span->plan_ns | (uint64_t)span->command_ns << 32;
}

/** True when no other outcome span of this batch will follow. */
static inline bool scatter_ring_span_is_batch_done(const scatter_ring_span *span) {
    return (span->flags & SCATTER_RING_SPAN_FLAGS_BATCH_DONE) != 0;
}

/** True when somebody may still write to the batch's buffers: wait for the RELEASED span of the same batch. */
static inline bool scatter_ring_span_is_held(const scatter_ring_span *span) {
    return (span->flags & SCATTER_RING_SPAN_FLAGS_HELD) != 0;
}

/** True for the span that says that a HELD batch's buffers are reusable. */
static inline bool scatter_ring_span_is_released(const scatter_ring_span *span) {
    return (span->flags & SCATTER_RING_SPAN_FLAGS_RELEASED) != 0;
}

/**
 * The name of the code, as in the constants.
 *
 * NULL for a number that this version does not know.
 */
static inline const char *scatter_ring_status_name(int32_t status) {
    switch (status) {
    case SCATTER_RING_STATUS_OK: return "OK";
    case SCATTER_RING_STATUS_INVALID_OPCODE: return "INVALID_OPCODE";
    case SCATTER_RING_STATUS_INVALID_FLAGS: return "INVALID_FLAGS";
    case SCATTER_RING_STATUS_INVALID_FIELD: return "INVALID_FIELD";
    case SCATTER_RING_STATUS_INVALID_INDEX_KIND: return "INVALID_INDEX_KIND";
    case SCATTER_RING_STATUS_INVALID_COUNT: return "INVALID_COUNT";
    case SCATTER_RING_STATUS_INVALID_STRIDE: return "INVALID_STRIDE";
    case SCATTER_RING_STATUS_MISALIGNED_INDEX: return "MISALIGNED_INDEX";
    case SCATTER_RING_STATUS_BAD_SEQUENCE: return "BAD_SEQUENCE";
    case SCATTER_RING_STATUS_UNKNOWN_REGION: return "UNKNOWN_REGION";
    case SCATTER_RING_STATUS_REGION_GONE: return "REGION_GONE";
    case SCATTER_RING_STATUS_NO_RIGHT: return "NO_RIGHT";
    case SCATTER_RING_STATUS_OUT_OF_RANGE: return "OUT_OF_RANGE";
    case SCATTER_RING_STATUS_UNSUPPORTED: return "UNSUPPORTED";
    case SCATTER_RING_STATUS_BATCH_TOO_LONG: return "BATCH_TOO_LONG";
    case SCATTER_RING_STATUS_NOT_FOUND: return "NOT_FOUND";
    case SCATTER_RING_STATUS_CANCELLED: return "CANCELLED";
    case SCATTER_RING_STATUS_TIMED_OUT: return "TIMED_OUT";
    case SCATTER_RING_STATUS_NOT_DONE: return "NOT_DONE";
    case SCATTER_RING_STATUS_FAULT: return "FAULT";
    case SCATTER_RING_STATUS_INTERNAL: return "INTERNAL";
    case SCATTER_RING_STATUS_BAD_RING: return "BAD_RING";
    case SCATTER_RING_STATUS_BAD_MESSAGE: return "BAD_MESSAGE";
    case SCATTER_RING_STATUS_VERSION_MISMATCH: return "VERSION_MISMATCH";
    case SCATTER_RING_STATUS_MISSING_FEATURE: return "MISSING_FEATURE";
    case SCATTER_RING_STATUS_LIMIT_EXCEEDED: return "LIMIT_EXCEEDED";
    case SCATTER_RING_STATUS_NO_MEMORY: return "NO_MEMORY";
    case SCATTER_RING_STATUS_INVALID_SETTING: return "INVALID_SETTING";
    case SCATTER_RING_STATUS_BAD_FD: return "BAD_FD";
    case SCATTER_RING_STATUS_NAME_TAKEN: return "NAME_TAKEN";
    case SCATTER_RING_STATUS_NAME_UNKNOWN: return "NAME_UNKNOWN";
    case SCATTER_RING_STATUS_STOPPING: return "STOPPING";
    case SCATTER_RING_STATUS_NOT_ALLOWED: return "NOT_ALLOWED";
    case SCATTER_RING_STATUS_PEER_UNREACHABLE: return "PEER_UNREACHABLE";
    case SCATTER_RING_STATUS_ENGINE_LOST: return "ENGINE_LOST";
    case SCATTER_RING_STATUS_FORKED: return "FORKED";
    default: return NULL;
    }
}

/**
 * A few words for people.
 *
 * "unknown status" for a number that this version does not know.
 */
static inline const char *scatter_ring_status_text(int32_t status) {
    switch (status) {
    case SCATTER_RING_STATUS_OK: return "done";
    case SCATTER_RING_STATUS_INVALID_OPCODE: return "unknown opcode";
    case SCATTER_RING_STATUS_INVALID_FLAGS: return "unknown flag, or a flag that does not belong here";
    case SCATTER_RING_STATUS_INVALID_FIELD: return "a field that must be 0 is not";
    case SCATTER_RING_STATUS_INVALID_INDEX_KIND: return "unknown index kind";
    case SCATTER_RING_STATUS_INVALID_COUNT: return "a count of 0";
    case SCATTER_RING_STATUS_INVALID_STRIDE: return "the destination's step is smaller than the length";
    case SCATTER_RING_STATUS_MISALIGNED_INDEX: return "the index array is not aligned";
    case SCATTER_RING_STATUS_BAD_SEQUENCE: return "cannot stand at this place of a batch";
    case SCATTER_RING_STATUS_UNKNOWN_REGION: return "no such region in this session";
    case SCATTER_RING_STATUS_REGION_GONE: return "the region is gone: withdrawn by its owner, or its file was cut short";
    case SCATTER_RING_STATUS_NO_RIGHT: return "the region does not grant this access";
    case SCATTER_RING_STATUS_OUT_OF_RANGE: return "outside the region";
    case SCATTER_RING_STATUS_UNSUPPORTED: return "not supported by this engine";
    case SCATTER_RING_STATUS_BATCH_TOO_LONG: return "too many descriptors in one batch";
    case SCATTER_RING_STATUS_NOT_FOUND: return "no such batch under way";
    case SCATTER_RING_STATUS_CANCELLED: return "cancelled";
    case SCATTER_RING_STATUS_TIMED_OUT: return "timed out";
    case SCATTER_RING_STATUS_NOT_DONE: return "not done: the batch ended before it";
    case SCATTER_RING_STATUS_FAULT: return "memory fault";
    case SCATTER_RING_STATUS_INTERNAL: return "internal error of the engine";
    case SCATTER_RING_STATUS_BAD_RING: return "impossible ring position";
    case SCATTER_RING_STATUS_BAD_MESSAGE: return "message not understood";
    case SCATTER_RING_STATUS_VERSION_MISMATCH: return "ABI version does not match";
    case SCATTER_RING_STATUS_MISSING_FEATURE: return "feature not available";
    case SCATTER_RING_STATUS_LIMIT_EXCEEDED: return "limit exceeded";
    case SCATTER_RING_STATUS_NO_MEMORY: return "no memory";
    case SCATTER_RING_STATUS_INVALID_SETTING: return "setting not allowed";
    case SCATTER_RING_STATUS_BAD_FD: return "file descriptor not usable as a region";
    case SCATTER_RING_STATUS_NAME_TAKEN: return "name already exported";
    case SCATTER_RING_STATUS_NAME_UNKNOWN: return "no such export";
    case SCATTER_RING_STATUS_STOPPING: return "engine is stopping";
    case SCATTER_RING_STATUS_NOT_ALLOWED: return "not allowed";
    case SCATTER_RING_STATUS_PEER_UNREACHABLE: return "no connection to the peer";
    case SCATTER_RING_STATUS_ENGINE_LOST: return "engine lost";
    case SCATTER_RING_STATUS_FORKED: return "session belongs to the parent process";
    default: return "unknown status";
    }
}

/**
 * The name of a known opcode. 0 is none, so that a forgotten slot is an error.
 *
 * NULL for a number that this version does not know.
 */
static inline const char *scatter_ring_opcode_name(uint8_t opcode) {
    switch (opcode) {
    case SCATTER_RING_OPCODE_NOP: return "NOP";
    case SCATTER_RING_OPCODE_BEGIN: return "BEGIN";
    case SCATTER_RING_OPCODE_READ: return "READ";
    case SCATTER_RING_OPCODE_WRITE: return "WRITE";
    case SCATTER_RING_OPCODE_NOTIFY: return "NOTIFY";
    case SCATTER_RING_OPCODE_CANCEL: return "CANCEL";
    case SCATTER_RING_OPCODE_EXTENSION: return "EXTENSION";
    default: return NULL;
    }
}

/**
 * The field's name, for messages.
 *
 * NULL for a number that this version does not know.
 */
static inline const char *scatter_ring_field_name(uint32_t field) {
    switch (field) {
    case SCATTER_RING_FIELD_OPCODE: return "opcode";
    case SCATTER_RING_FIELD_INDEX_KIND: return "index_kind";
    case SCATTER_RING_FIELD_FLAGS: return "flags";
    case SCATTER_RING_FIELD_LEN: return "len";
    case SCATTER_RING_FIELD_SRC_REGION: return "src_region";
    case SCATTER_RING_FIELD_DST_REGION: return "dst_region";
    case SCATTER_RING_FIELD_SRC_OFFSET: return "src_offset";
    case SCATTER_RING_FIELD_DST_OFFSET: return "dst_offset";
    case SCATTER_RING_FIELD_COUNT: return "count";
    case SCATTER_RING_FIELD_INDEX_REGION: return "index_region";
    case SCATTER_RING_FIELD_INDEX_OFFSET: return "index_offset";
    case SCATTER_RING_FIELD_SRC_STRIDE: return "src_stride";
    case SCATTER_RING_FIELD_DST_STRIDE: return "dst_stride";
    case SCATTER_RING_FIELD_EXTENSION_OPCODE: return "extension.opcode";
    case SCATTER_RING_FIELD_EXTENSION_RESERVED: return "extension.reserved";
    case SCATTER_RING_FIELD_INNER_COUNT: return "extension.inner_count";
    case SCATTER_RING_FIELD_INNER_SRC_STRIDE: return "extension.inner_src_stride";
    case SCATTER_RING_FIELD_INNER_DST_STRIDE: return "extension.inner_dst_stride";
    default: return NULL;
    }
}

/**
 * The word for it.
 *
 * NULL for a number that this version does not know.
 */
static inline const char *scatter_ring_route_name(uint8_t route) {
    switch (route) {
    case SCATTER_RING_ROUTE_NONE: return "none";
    case SCATTER_RING_ROUTE_DIRECT: return "direct";
    case SCATTER_RING_ROUTE_GATHER: return "gather";
    case SCATTER_RING_ROUTE_HYBRID: return "hybrid";
    default: return NULL;
    }
}

/**
 * The word for it.
 *
 * NULL for a number that this version does not know.
 */
static inline const char *scatter_ring_stage_name(uint8_t stage) {
    switch (stage) {
    case SCATTER_RING_STAGE_NONE: return "none";
    case SCATTER_RING_STAGE_TAKE: return "take";
    case SCATTER_RING_STAGE_PLAN: return "plan";
    case SCATTER_RING_STAGE_COMMAND: return "command";
    case SCATTER_RING_STAGE_PACK: return "pack";
    case SCATTER_RING_STAGE_WINDOW: return "window";
    case SCATTER_RING_STAGE_WAIT: return "wait";
    default: return NULL;
    }
}

#undef SCATTER_RING_ASSERT
#undef SCATTER_RING_ALIGNOF

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif
