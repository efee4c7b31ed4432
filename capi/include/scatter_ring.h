/**
 * @file
 *
 * @brief The C library of scatter-ring: embeds an engine in this process, or attaches to one. For C11 and C++17. Made
 * from the Rust crate scatter-ring-c by its test `header`, which fails when the two differ. Not to be edited.
 *
 * Link with -lscatter_ring, or by CMake: find_package(scatter_ring), scatter_ring::scatter_ring. A C++ program that
 * only attaches to an engine of another process needs no library: scatter_ring.hpp.
 *
 * @par Outcomes
 *
 * Functions that can fail return an int32_t: 0 or more is success, what is below 0 is a SCATTER_RING_STATUS_... code
 * of scatter_ring_abi.h. They take a pointer to a scatter_ring_error, which may be NULL, and fill it when they fail.
 * Nothing ever throws, unwinds or ends the process; a bug inside becomes SCATTER_RING_STATUS_INTERNAL, and the handles
 * that were used can only be freed then.
 *
 * @par Who owns what
 *
 * A handle is the caller's who got it, and is freed once, by the function that its comment names, in any order with
 * other handles: what others still need of it stays until they are freed too. Using a handle after that is as wrong as
 * using memory after free(). Arguments are only read during the call, except where it is said. NULL in the place of
 * anything that is needed is a status with a message that names the argument.
 *
 * @par Threads
 *
 * "Any": any thread, several at a time. "One at a time": any thread, but only one; a second one that comes meanwhile
 * gets SCATTER_RING_STATUS_NOT_ALLOWED, and nothing else happens. Nothing is bound to the thread that has made it.
 *
 * @par fork()
 *
 * Sessions and engines stay the parent's. In a child every call with them returns SCATTER_RING_STATUS_FORKED, and
 * freeing them frees what the child has of them and leaves the parent's alone.
 *
 * @par Units
 *
 * Bytes and nanoseconds, as the names say. Texts are UTF-8 with a NUL at their end.
 */

#ifndef SCATTER_RING_H
#define SCATTER_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "scatter_ring_abi.h"

/** Returned by a wait whose time is up, and by a look at something that has not come: not an error. */
#define SCATTER_RING_PENDING 1

/** Bytes of scatter_ring_error.message, its NUL counted. */
#define SCATTER_RING_ERROR_MESSAGE_BYTES 256

/** How peers are reached: RDMA verbs where both sides have a device, else TCP. */
#define SCATTER_RING_TRANSPORT_AUTO 0

/** How peers are reached: RDMA verbs only. */
#define SCATTER_RING_TRANSPORT_VERBS 1

/** How peers are reached: TCP only. */
#define SCATTER_RING_TRANSPORT_TCP 2

/** A row number of all ones is a number like any other: outside the table. */
#define SCATTER_RING_MISSING_REFUSE 0

/** A row number of all ones fills its row's place in the destination with 0. */
#define SCATTER_RING_MISSING_ZERO 1

/** A row number of all ones leaves its row's place in the destination as it is. */
#define SCATTER_RING_MISSING_SKIP 2

/** Something is lost: a thread has died. */
#define SCATTER_RING_LOG_ERROR 1

/** Something is not as it was asked for, and goes on in another way. */
#define SCATTER_RING_LOG_WARN 2

/** Who came and went, and which way was taken. */
#define SCATTER_RING_LOG_INFO 3

/**
 * Memory of this process that clients of an engine in this process can open by its name. Any thread may use it, one
 * at a time.
 */
typedef struct scatter_ring_adopted scatter_ring_adopted;

/**
 * What to move, as a list of descriptors: one logical operation with one outcome. It is recorded first, and nothing
 * happens; then submitted, as often as is wanted, also while it is under way; it is cheap to clear and to use again.
 * One thread at a time may use it. It is bound to the client that it was made for, and keeps the regions that it
 * names.
 */
typedef struct scatter_ring_batch scatter_ring_batch;

/**
 * One session with an engine: a ring pair, and the memory registered with it. One thread at a time may use it, any: a
 * second one that comes while the first is in a call gets SCATTER_RING_STATUS_NOT_ALLOWED. A program with several
 * threads attaches several times. In a forked child every call returns SCATTER_RING_STATUS_FORKED.
 */
typedef struct scatter_ring_client scatter_ring_client;

/**
 * An engine in this process: it moves memory, on threads of its own, which block all signals, for clients of this
 * process, of others on this host, and of other engines. Any thread may use it, several at a time. In a forked child
 * every call returns SCATTER_RING_STATUS_FORKED.
 */
typedef struct scatter_ring_engine scatter_ring_engine;

/** Memory that is lent. Any thread may use it, one at a time. */
typedef struct scatter_ring_lent scatter_ring_lent;

/**
 * A session that lends memory of this process to an engine that cannot map it (malloc'ed memory and a daemon), and
 * the thread that packs and unpacks what clients ask for. Any thread may use it, several at a time. In a forked child
 * every call returns SCATTER_RING_STATUS_FORKED.
 */
typedef struct scatter_ring_owner scatter_ring_owner;

/**
 * Memory that the batches of one client can name. While a batch that uses it is under way the memory stays, whatever
 * handle is freed. Any thread may use the functions that take only a region, several at a time.
 */
typedef struct scatter_ring_region scatter_ring_region;

/**
 * Names one submitted batch. Freeing it gives up the outcome, not the batch. Any thread may use the functions that
 * take only a ticket, several at a time.
 */
typedef struct scatter_ring_ticket scatter_ring_ticket;

/**
 * How an engine runs. Set `size`, and whatever else is not to be as it is by itself: 0 and NULL are the default of
 * every field.
 *
 * scatter_ring_engine_config config = { .size = sizeof(scatter_ring_engine_config) };
 */
typedef struct scatter_ring_engine_config {
    /** sizeof(scatter_ring_engine_config). */
    size_t size;
    /** Copy workers besides the poller. 0: one less than there are processors, at most 4. -1: none. */
    int32_t workers;
    /**
     * 1: also unsealed memory files of this user are accepted as regions. Takes SIGBUS over: see
     * scatter_ring_guard_process().
     */
    uint32_t trust_same_user;
    /** How long the engine's threads spin before they sleep, in ns. 0: 200,000 ns. */
    uint64_t spin_ns;
    /** Users besides this one and root whose processes may attach, by their numbers. */
    const uint32_t *users;
    /** How many. */
    size_t user_count;
    /** 1: this engine meets others. It does too if `peer_listen_count` is not 0. */
    uint32_t peers;
    /** SCATTER_RING_TRANSPORT_... */
    uint32_t peer_transport;
    /**
     * Where to listen for other engines, each as "127.0.0.1:0" or "[::1]:4000"; port 0: the kernel chooses. Without a
     * key file only loopback addresses.
     */
    const char *const *peer_listen;
    /** How many. */
    size_t peer_listen_count;
    /** What others are told to connect to. None: what is listened on. */
    const char *const *peer_advertise;
    /** How many. */
    size_t peer_advertise_count;
    /**
     * The file with the key that engines share, as `scatter-ring key` makes it. NULL: none, loopback addresses only.
     */
    const char *peer_key_file;
    /** The RDMA device by its name. NULL: the first with a port that is up. */
    const char *peer_device;
    /** Sockets of a connection to another engine, 1 to 16. 0: 3. */
    uint32_t peer_lanes;
    /** Slots of a connection for each direction, 1 to 1024. 0: 16. */
    uint32_t peer_slots;
    /** Bytes of a slot: a multiple of 4096, 16 KiB to 16 MiB. 0: 256 KiB. */
    uint32_t peer_slot_bytes;
    /** 1: memory of engines on the same host is not mapped: everything goes over the connection. */
    uint32_t peer_no_mapping;
} scatter_ring_engine_config;

/**
 * Why a call failed. The caller allocates it, or passes NULL; a call that fails fills all of it, one that succeeds
 * leaves it as it was. Plain data: copy it, keep it, pass it to another thread.
 */
typedef struct scatter_ring_error {
    /** What the call has returned: SCATTER_RING_STATUS_..., below 0. */
    int32_t status;
    /** Which field of the descriptor is wrong: SCATTER_RING_FIELD_..., see scatter_ring_field_name(). 0: none. */
    uint32_t field;
    /**
     * Which descriptor of the batch failed, counted from 0 in the order in which they were added. All before it are
     * done, none behind it is. -1: the error is about no descriptor.
     */
    int64_t descriptor;
    /** Which fragment of that descriptor, counted from 0. */
    uint32_t fragment;
    /** Where it failed: SCATTER_RING_STAGE_..., see scatter_ring_stage_name(). */
    uint8_t stage;
    /**
     * 0: the batch's buffers may still be written: scatter_ring_client_wait_released() says when that ends. 1: they
     * may be used again, or the error is about no batch.
     */
    uint8_t reusable;
    /** 0. */
    uint8_t reserved[2];
    /** The value at fault: an offset in bytes, a row number, a handle, flag bits. */
    uint64_t detail;
    /** Bytes in place by the descriptors before it. */
    uint64_t bytes_done;
    /** Ring position of that descriptor. */
    uint64_t position;
    /** The peer whose memory the batch used, as scatter_ring_client_connect_peer() gave it. 0: none, or several. */
    uint64_t peer;
    /** What failed and what to do about it: UTF-8, ends with a NUL; cut behind a whole character if it is too long. */
    char message[SCATTER_RING_ERROR_MESSAGE_BYTES];
} scatter_ring_error;

/** What an engine has done since it started. */
typedef struct scatter_ring_counters {
    /** Sessions that began. */
    uint64_t sessions;
    /** Sessions that have ended, for whatever reason. */
    uint64_t sessions_ended;
    /** Regions that were registered. */
    uint64_t regions;
    /** Ring slots whose outcome was shown to their client. */
    uint64_t descriptors;
    /** Bytes that clients were told are in place. */
    uint64_t bytes;
    /** Batches that are done. */
    uint64_t batches_done;
    /** Batches that have failed, by a deadline or a cancel too. */
    uint64_t batches_failed;
    /** Batches that had no outcome when their session ended. */
    uint64_t batches_cut;
    /** Notifications that were put before clients. */
    uint64_t notifications;
    /** Connections to other engines that began. */
    uint64_t peers_connected;
    /** Connections to other engines that have ended. */
    uint64_t peers_ended;
    /** 0; later versions count more here. */
    uint64_t reserved[5];
} scatter_ring_counters;

/**
 * What a client asks for when it attaches. Set `size`, and whatever else is not to be as it is by itself: 0 is the
 * default of every field.
 *
 * scatter_ring_client_setup setup = { .size = sizeof(scatter_ring_client_setup) };
 */
typedef struct scatter_ring_client_setup {
    /** sizeof(scatter_ring_client_setup). */
    size_t size;
    /**
     * Descriptors that the submission ring holds, a power of two from 4 to 1,048,576. Batches may be longer. 0: 4096.
     */
    uint32_t sq_capacity;
    /**
     * Spans that the completion ring holds, a power of two; a quarter of it is how many batches can be under way. 0:
     * 1024.
     */
    uint32_t cq_capacity;
    /** How long a wait spins before it sleeps, in ns; a wake-up costs some 20,000 ns. 0: 200,000 ns. */
    uint64_t spin_ns;
    /** 1: other clients can tell this one that data is there: scatter_ring_client_next_notification(). */
    uint32_t notifications;
    /** 0. */
    uint32_t reserved;
    /** Both rings start at this position. Anything but 0 is for tests that cross the end of the numbers. */
    uint64_t start_position;
} scatter_ring_client_setup;

/** What a client has, in numbers. */
typedef struct scatter_ring_client_info {
    /** What the engine offers: SCATTER_RING_FEATURES_... bits. */
    uint64_t features;
    /** How often the engine slept and this client had to wake it by a system call. */
    uint64_t doorbells;
    /** Descriptors that the submission ring holds. */
    uint32_t sq_capacity;
    /** Spans that the completion ring holds. */
    uint32_t cq_capacity;
    /** 0; later versions tell more here. */
    uint64_t reserved[5];
} scatter_ring_client_info;

/**
 * Rows of a table, named by an array of row numbers, and a buffer where they lie in the order of that array. Set what
 * is not 0; table, row_bytes, index, count and buffer are needed. Everything is in bytes.
 */
typedef struct scatter_ring_rows {
    /** The table. */
    scatter_ring_region *table;
    /** Where its row 0 starts. */
    uint64_t table_offset;
    /** From one row of the table to the next. 0: row_bytes. */
    uint32_t table_stride;
    /** Of a row. */
    uint32_t row_bytes;
    /** Where the row numbers are. They must stay as they are until the batch is done. */
    scatter_ring_region *index;
    /** Where the first row number is, a multiple of its size. */
    uint64_t index_offset;
    /**
     * How row numbers are written: SCATTER_RING_INDEX_KIND_U32 or SCATTER_RING_INDEX_KIND_U64, little-endian. 0: U32.
     */
    uint32_t numbers;
    /** How many rows, at least 1. */
    uint32_t count;
    /** The buffer. */
    scatter_ring_region *buffer;
    /** Where the first row lies in it. */
    uint64_t buffer_offset;
    /** From one row of the buffer to the next. 0: row_bytes. */
    uint32_t buffer_stride;
    /** What a row number of all ones means when rows are read: SCATTER_RING_MISSING_... */
    uint32_t missing;
} scatter_ring_rows;

/**
 * Blocks of one region to blocks of another, both by number: the pages of two paged KV caches, for example.
 * Everything is in bytes.
 */
typedef struct scatter_ring_blocks {
    /** Where from. */
    scatter_ring_region *src;
    /** Where its block 0 starts. */
    uint64_t src_offset;
    /** Where to. */
    scatter_ring_region *dst;
    /** Where its block 0 starts. */
    uint64_t dst_offset;
    /** From one block to the next at the source. 0: block_bytes. */
    uint32_t src_stride;
    /** From one block to the next at the destination, at least block_bytes. 0: block_bytes. */
    uint32_t dst_stride;
    /** Of a block. */
    uint32_t block_bytes;
    /** How many blocks, at least 1. */
    uint32_t count;
    /**
     * Where the block numbers are: `count` of the source, and behind them `count` of the destination. They must stay
     * as they are until the batch is done.
     */
    scatter_ring_region *index;
    /** Where the first block number is, a multiple of its size. */
    uint64_t index_offset;
    /** How block numbers are written: SCATTER_RING_INDEX_KIND_U32 or SCATTER_RING_INDEX_KIND_U64. 0: U32. */
    uint32_t numbers;
    /** What a source number of all ones means: SCATTER_RING_MISSING_... */
    uint32_t missing;
} scatter_ring_blocks;

/** Ranges of any lengths, each described by a scatter_ring_fragment_record in memory. Everything is in bytes. */
typedef struct scatter_ring_ranges {
    /** Where from. */
    scatter_ring_region *src;
    /** Added to every record's `src`. */
    uint64_t src_offset;
    /** Where to. */
    scatter_ring_region *dst;
    /** Added to every record's `dst`. */
    uint64_t dst_offset;
    /** Where the records are. They must stay as they are until the batch is done. */
    scatter_ring_region *records;
    /** Where the first record is, a multiple of 8. */
    uint64_t records_offset;
    /** How many records, at least 1. */
    uint32_t count;
    /** 0. */
    uint32_t reserved;
} scatter_ring_ranges;

/**
 * Pieces at even distances on both sides: a tile of a matrix. Everything is in bytes, and a stride of 0 is a stride
 * of 0.
 */
typedef struct scatter_ring_tile {
    /** Where from. */
    scatter_ring_region *src;
    /** Where the first piece starts there. */
    uint64_t src_offset;
    /** Where to. */
    scatter_ring_region *dst;
    /** Where the first piece lands there. */
    uint64_t dst_offset;
    /** From one piece to the next at the source. */
    uint32_t src_stride;
    /** From one piece to the next at the destination, at least `len` if there are two. */
    uint32_t dst_stride;
    /** Of a piece. */
    uint32_t len;
    /** How many pieces, at least 1. */
    uint32_t count;
} scatter_ring_tile;

/** What a batch that is done says. Times are in ns; one longer than four seconds reads as that. */
typedef struct scatter_ring_outcome {
    /** Ring position of the batch's first descriptor. */
    uint64_t position;
    /** Bytes written to destinations. */
    uint64_t bytes;
    /** Of the batch's last descriptor. */
    uint64_t user_data;
    /** From the first descriptor taken to the first work started. */
    uint64_t queue_ns;
    /** Planning. */
    uint64_t plan_ns;
    /** Commands to a peer. */
    uint64_t command_ns;
    /** Packing. */
    uint64_t pack_ns;
    /** From the first bulk operation to the last data in place. */
    uint64_t window_ns;
    /** From the first descriptor taken to the completion. */
    uint64_t total_ns;
    /** How the bytes travelled: SCATTER_RING_ROUTE_..., see scatter_ring_route_name(). */
    uint8_t route;
    /** 1: nobody writes to the batch's buffers any more. 0: scatter_ring_client_wait_released(). */
    uint8_t reusable;
    /** 0. */
    uint8_t reserved[6];
} scatter_ring_outcome;

/** What another client has sent with scatter_ring_batch_notify(): the data of its batch is in place. */
typedef struct scatter_ring_notification {
    /** The other's user data. */
    uint64_t user_data;
    /** What the other has given as such: in most cases where in the region the data is. */
    uint64_t offset;
    /** A copy of what was sent, the client's: valid until the next call with this client. NULL if it is empty. */
    const void *payload;
    /** Bytes of it, at most 4096. */
    size_t payload_bytes;
} scatter_ring_notification;

/**
 * Gets one line of the log: what has happened, and its values as name=value. The message is UTF-8 and is the
 * library's: valid during the call.
 */
typedef void (*scatter_ring_log_callback)(void *context, int32_t level, const char *message);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/** The version of this library, for example "0.1.0". Never NULL, never freed. Any thread, also in a forked child. */
const char *scatter_ring_version(void);

/**
 * Starts an engine in this process.
 *
 * @param config NULL: all defaults, no peers. Only read during the call, with all that it names.
 * @param engine Set to the engine, which the caller owns and ends with scatter_ring_engine_free(); to NULL if the
 * call fails.
 * @return 0; SCATTER_RING_STATUS_INVALID_SETTING for a setting that cannot be, SCATTER_RING_STATUS_NO_MEMORY if the
 * kernel refuses a thread or a file descriptor, SCATTER_RING_STATUS_UNSUPPORTED if RDMA verbs must be used and
 * cannot.
 *
 * Threads: any. Fork: the engine stays in the parent; a child may create one of its own.
 */
int32_t scatter_ring_engine_create(const scatter_ring_engine_config *config,
                                   scatter_ring_engine **engine,
                                   scatter_ring_error *error);

/**
 * Accepts clients of other processes on a Unix socket.
 *
 * @param path The socket. Its directory is made with mode 0700 if it is not there; it must be this user's, and closed
 * to others.
 * @return 0; SCATTER_RING_STATUS_NOT_ALLOWED if the directory or the socket is not ours, or another engine serves
 * there.
 *
 * Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_engine_listen(scatter_ring_engine *engine,
                                   const char *path,
                                   scatter_ring_error *error);

/**
 * Writes down how other engines reach this one, for scatter_ring_client_connect_peer() of their clients: letters,
 * digits, "-" and "_", as long as the engine runs. Nothing in it is secret.
 *
 * @param endpoint `capacity` bytes of the caller's, for the text and a NUL. 2048 are always enough.
 * @return Bytes of the text without its NUL; SCATTER_RING_STATUS_UNSUPPORTED if this engine does not listen for
 * others, SCATTER_RING_STATUS_INVALID_SETTING if `capacity` is too small.
 *
 * Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_engine_endpoint(scatter_ring_engine *engine,
                                     char *endpoint,
                                     size_t capacity,
                                     scatter_ring_error *error);

/**
 * Wants a connection to another engine from now on, also after a loss. Returns at once; clients that ask for it with
 * scatter_ring_client_connect_peer() need not wait then.
 *
 * @param endpoint What scatter_ring_engine_endpoint() or `scatter-ring serve` of the other has given.
 * @return 0; SCATTER_RING_STATUS_INVALID_SETTING for a text that is no endpoint, SCATTER_RING_STATUS_UNSUPPORTED if
 * this engine has no peers.
 *
 * Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_engine_connect_peer(scatter_ring_engine *engine,
                                         const char *endpoint,
                                         scatter_ring_error *error);

/**
 * A connected attach socket of this engine, for a client that attaches by itself: the header-only C++ producer's
 * Client::over, or scatter_ring_client_over().
 *
 * @return A file descriptor, which is the caller's to close or to hand over; or a status below 0.
 *
 * Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_engine_connect(scatter_ring_engine *engine, scatter_ring_error *error);

/**
 * Exports memory of this process by name: clients of this engine, and of its peers, can open it. Nothing is copied;
 * the memory may be malloc'ed, static, or mapped.
 *
 * @param memory Stays the caller's. It must stay where it is until scatter_ring_adopted_release() or
 * scatter_ring_engine_stop() has returned; until then clients may read it at any time and, with that right, write it.
 * @param bytes At least 1.
 * @param rights SCATTER_RING_RIGHTS_READ, SCATTER_RING_RIGHTS_WRITE, or both: what clients may do.
 * @param adopted Set to a handle that the caller owns and ends with scatter_ring_adopted_release(); to NULL if the
 * call fails.
 * @return 0; SCATTER_RING_STATUS_NAME_TAKEN; SCATTER_RING_STATUS_INVALID_SETTING for 0 bytes or rights that are none.
 *
 * Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_engine_adopt(scatter_ring_engine *engine,
                                  const char *name,
                                  void *memory,
                                  uint64_t bytes,
                                  uint64_t rights,
                                  scatter_ring_adopted **adopted,
                                  scatter_ring_error *error);

/**
 * True if the memory is mapped from a file that other processes could map too, and not private to this process.
 *
 * Threads: any. Fork: as in the parent. NULL: false.
 */
bool scatter_ring_adopted_is_shareable(scatter_ring_adopted *adopted);

/**
 * Takes adopted memory back: refuses new use, returns when nobody touches the memory any more, and frees the handle.
 * Batches that still name it fail with SCATTER_RING_STATUS_REGION_GONE.
 *
 * @param adopted The handle, which is gone afterwards. NULL: nothing happens.
 *
 * Threads: any, once. Fork: in a child only the child's handle is freed.
 */
void scatter_ring_adopted_release(scatter_ring_adopted *adopted);

/**
 * Takes SIGBUS over, for good, for scatter_ring_engine_serve_file(): a page that cannot be had makes a transfer fail,
 * and not the process. A fault in other memory does what it would have done before. Calling it again does nothing.
 *
 * @return 0, or SCATTER_RING_STATUS_NO_MEMORY if the kernel refuses.
 *
 * Threads: any. Fork: a child inherits it.
 */
int32_t scatter_ring_guard_process(scatter_ring_error *error);

/**
 * Exports a file by name, for reading, until the engine stops. Needs scatter_ring_guard_process().
 *
 * @param populate Not 0: all of the file is read before this returns; else each page when it is first touched.
 * @return 0; SCATTER_RING_STATUS_BAD_FD for something that is no regular file with bytes in it, or if SIGBUS was not
 * taken over; SCATTER_RING_STATUS_NAME_TAKEN; SCATTER_RING_STATUS_NO_MEMORY if it cannot be opened or mapped.
 *
 * Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_engine_serve_file(scatter_ring_engine *engine,
                                       const char *name,
                                       const char *path,
                                       int32_t populate,
                                       scatter_ring_error *error);

/**
 * What the engine has done so far. Counters of one batch may be seen one after the other.
 *
 * @param counters The caller's, filled.
 * @return 0; SCATTER_RING_STATUS_STOPPING after scatter_ring_engine_stop(), which gives the last ones.
 *
 * Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_engine_counters(scatter_ring_engine *engine,
                                     scatter_ring_counters *counters,
                                     scatter_ring_error *error);

/**
 * Stops the engine in good order: nobody can attach any more and no batch is begun; those under way are finished, for
 * so long at most; then clients see the end of their session. Returns when nobody touches any memory any more. The
 * handle stays: scatter_ring_engine_free().
 *
 * @param limit_ns How long to wait for batches that are under way, in ns.
 * @param counters NULL, or the caller's, filled with the last counters.
 * @return 0; SCATTER_RING_STATUS_STOPPING if it was stopped before.
 *
 * Threads: any; other calls with this engine end first. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_engine_stop(scatter_ring_engine *engine,
                                 uint64_t limit_ns,
                                 scatter_ring_counters *counters,
                                 scatter_ring_error *error);

/**
 * Frees an engine; one that was not stopped is stopped at once, and clients see the end of their session. Adopted
 * memory may be released before or after it, and nobody touches it after it.
 *
 * @param engine The handle, which is gone afterwards. NULL: nothing happens.
 *
 * Threads: any, once, when no other call with it is under way. Fork: in a child only the child's handle is freed.
 */
void scatter_ring_engine_free(scatter_ring_engine *engine);

/**
 * Attaches to the engine that listens at `path`, to lend memory.
 *
 * @param owner Set to a handle that the caller owns and ends with scatter_ring_owner_free(); to NULL if the call
 * fails.
 * @return 0; SCATTER_RING_STATUS_ENGINE_LOST if nobody listens there, SCATTER_RING_STATUS_NOT_ALLOWED,
 * SCATTER_RING_STATUS_VERSION_MISMATCH, SCATTER_RING_STATUS_MISSING_FEATURE if the engine cannot serve lent memory.
 *
 * Threads: any. Fork: the session stays the parent's; a child attaches by itself.
 */
int32_t scatter_ring_owner_attach(const char *path,
                                  scatter_ring_owner **owner,
                                  scatter_ring_error *error);

/**
 * The same for an engine in this process. (Its own memory it adopts without this: scatter_ring_engine_adopt().)
 *
 * @return As scatter_ring_owner_attach().
 *
 * Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child of the engine's process.
 */
int32_t scatter_ring_owner_attach_engine(scatter_ring_engine *engine,
                                         scatter_ring_owner **owner,
                                         scatter_ring_error *error);

/**
 * Lends memory under a name, by which clients of the engine can open it. Nothing is copied before somebody asks.
 *
 * @param memory Stays the caller's. It must stay where it is until scatter_ring_lent_release() or
 * scatter_ring_owner_free() has returned; until then clients may read it at any time and, with that right, write it.
 * @param bytes At least 1.
 * @param rights SCATTER_RING_RIGHTS_READ, SCATTER_RING_RIGHTS_WRITE, or both.
 * @param lent Set to a handle that the caller owns and ends with scatter_ring_lent_release(); to NULL if the call
 * fails.
 * @return 0; SCATTER_RING_STATUS_NAME_TAKEN, SCATTER_RING_STATUS_INVALID_SETTING, SCATTER_RING_STATUS_ENGINE_LOST.
 *
 * Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_owner_lend(scatter_ring_owner *owner,
                                const char *name,
                                void *memory,
                                uint64_t bytes,
                                uint64_t rights,
                                scatter_ring_lent **lent,
                                scatter_ring_error *error);

/**
 * True once the engine is gone or has ended the session: nothing is served any more, and the memory is left alone.
 *
 * Threads: any. Fork: true in a child. NULL: true.
 */
bool scatter_ring_owner_is_lost(scatter_ring_owner *owner);

/**
 * Takes lent memory back: refuses new use, returns when nobody touches the memory any more, and frees the handle.
 *
 * @param lent The handle, which is gone afterwards. NULL: nothing happens.
 *
 * Threads: any, once. Fork: in a child only the child's handle is freed.
 */
void scatter_ring_lent_release(scatter_ring_lent *lent);

/**
 * Ends a session that lends memory, and takes all of it back. Its handles of lent memory may be released before or
 * after.
 *
 * @param owner The handle, which is gone afterwards. NULL: nothing happens.
 *
 * Threads: any, once, when no other call with it is under way. Fork: in a child only the child's handle is freed.
 */
void scatter_ring_owner_free(scatter_ring_owner *owner);

/**
 * Attaches to the engine that listens at `path`.
 *
 * @param setup NULL: all defaults. Only read during the call.
 * @param client Set to the client, which the caller owns and ends with scatter_ring_client_free(); to NULL if the
 * call fails.
 * @return 0; SCATTER_RING_STATUS_ENGINE_LOST if nobody listens there, SCATTER_RING_STATUS_NOT_ALLOWED,
 * SCATTER_RING_STATUS_VERSION_MISMATCH, SCATTER_RING_STATUS_INVALID_SETTING, SCATTER_RING_STATUS_LIMIT_EXCEEDED: the
 * message says what to do.
 *
 * Threads: any. Fork: the session stays the parent's; a child attaches by itself.
 */
int32_t scatter_ring_client_attach(const char *path,
                                   const scatter_ring_client_setup *setup,
                                   scatter_ring_client **client,
                                   scatter_ring_error *error);

/**
 * Attaches to an engine in this process.
 *
 * @param setup NULL: all defaults. Only read during the call.
 * @param client As of scatter_ring_client_attach(). It may outlive the engine: its session then ends.
 * @return As scatter_ring_client_attach().
 *
 * Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child of the engine's process.
 */
int32_t scatter_ring_client_attach_engine(scatter_ring_engine *engine,
                                          const scatter_ring_client_setup *setup,
                                          scatter_ring_client **client,
                                          scatter_ring_error *error);

/**
 * Attaches over a connected socket: what scatter_ring_engine_connect() of this or another process has given.
 *
 * @param fd Is the client's from now on, and closed if the call fails; except for a number that is no open file
 * descriptor.
 * @param setup NULL: all defaults. Only read during the call.
 * @param client As of scatter_ring_client_attach().
 * @return As scatter_ring_client_attach(); SCATTER_RING_STATUS_BAD_FD for a number that is no open file descriptor.
 *
 * Threads: any. Fork: the session is that of the process that has attached.
 */
int32_t scatter_ring_client_over(int fd,
                                 const scatter_ring_client_setup *setup,
                                 scatter_ring_client **client,
                                 scatter_ring_error *error);

/**
 * Ends a session, whatever is under way, and frees the client. Its regions and tickets are freed by themselves,
 * before or after. Memory of a batch that had no outcome is kept until its region's handle is freed too.
 *
 * @param client The handle, which is gone afterwards. NULL: nothing happens.
 *
 * Threads: any, once, when no other call with it is under way. Fork: in a child only the child's handle is freed.
 */
void scatter_ring_client_free(scatter_ring_client *client);

/**
 * What this client has, in numbers.
 *
 * @param info The caller's, filled.
 * @return 0, or a status below 0.
 *
 * Threads: one at a time. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_get_info(scatter_ring_client *client,
                                     scatter_ring_client_info *info,
                                     scatter_ring_error *error);

/**
 * Another engine, by its endpoint's text. Returns when this client's engine has a connection to it; the engine keeps
 * it, for all its clients, and dials again when it is lost.
 *
 * @param endpoint What scatter_ring_engine_endpoint() or `scatter-ring serve` of the other has given.
 * @param peer Set to a number for scatter_ring_region_open_at(), never 0.
 * @return 0; SCATTER_RING_STATUS_PEER_UNREACHABLE if there is no connection after some attempts or 5 s,
 * SCATTER_RING_STATUS_UNSUPPORTED if the engine has no peers, SCATTER_RING_STATUS_INVALID_SETTING for a text that is
 * no endpoint.
 *
 * Threads: one at a time; it waits. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_connect_peer(scatter_ring_client *client,
                                         const char *endpoint,
                                         uint64_t *peer,
                                         scatter_ring_error *error);

/**
 * New memory of this process, all 0, that batches may read and write; scatter_ring_region_data() says where it is.
 *
 * @param bytes At least 1.
 * @param region Set to a handle that the caller owns and ends with scatter_ring_region_free(); to NULL if the call
 * fails.
 * @return 0; SCATTER_RING_STATUS_NO_MEMORY, SCATTER_RING_STATUS_LIMIT_EXCEEDED, SCATTER_RING_STATUS_INVALID_SETTING
 * for 0 bytes.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_region_allocate(scatter_ring_client *client,
                                     uint64_t bytes,
                                     scatter_ring_region **region,
                                     scatter_ring_error *error);

/**
 * Memory for row numbers or records, of at least so many bytes, that nobody else has in hand. The client keeps it, to
 * give it again once this handle is freed and the batches that use it are released: cheaper than new memory.
 *
 * @param bytes, region As of scatter_ring_region_allocate(). The memory is not 0, and may be longer.
 * @return As scatter_ring_region_allocate().
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_region_for_index(scatter_ring_client *client,
                                      uint64_t bytes,
                                      scatter_ring_region **region,
                                      scatter_ring_error *error);

/**
 * Bytes of a memory file (memfd_create, or a file of a tmpfs), which is mapped and registered.
 *
 * @param fd Stays the caller's, who may close it after the call. Open for writing if `rights` say so, and sealed
 * against shrinking (F_SEAL_SHRINK) unless the engine trusts this user.
 * @param offset The first byte, any.
 * @param bytes At least 1.
 * @param rights SCATTER_RING_RIGHTS_READ, SCATTER_RING_RIGHTS_WRITE, or both: what descriptors may do.
 * @param region As of scatter_ring_region_allocate().
 * @return 0; SCATTER_RING_STATUS_BAD_FD for a file that is not usable, SCATTER_RING_STATUS_INVALID_SETTING for more
 * bytes than it has, SCATTER_RING_STATUS_LIMIT_EXCEEDED.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_region_register(scatter_ring_client *client,
                                     int fd,
                                     uint64_t offset,
                                     uint64_t bytes,
                                     uint64_t rights,
                                     scatter_ring_region **region,
                                     scatter_ring_error *error);

/**
 * Memory that this process has mapped from a memory file, shared: the file is found by the mapping, and registered.
 * Nothing is copied.
 *
 * @param memory Stays the caller's. It must stay mapped until the region's handle was freed and no batch uses it.
 * @param bytes At least 1.
 * @param rights SCATTER_RING_RIGHTS_READ, SCATTER_RING_RIGHTS_WRITE, or both: what descriptors may do.
 * @param region As of scatter_ring_region_allocate().
 * @return 0; SCATTER_RING_STATUS_BAD_FD for private memory (malloc'ed, for example): adopt it in an engine of this
 * process, or lend it: scatter_ring_engine_adopt(), scatter_ring_owner_lend().
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_region_adopt(scatter_ring_client *client,
                                  void *memory,
                                  uint64_t bytes,
                                  uint64_t rights,
                                  scatter_ring_region **region,
                                  scatter_ring_error *error);

/**
 * Memory that somebody has exported under this name at the client's engine, for batches only.
 *
 * @param rights SCATTER_RING_RIGHTS_READ, SCATTER_RING_RIGHTS_WRITE, or both: what is wanted of it.
 * @param region As of scatter_ring_region_allocate().
 * @return 0; SCATTER_RING_STATUS_NAME_UNKNOWN, SCATTER_RING_STATUS_NO_RIGHT, SCATTER_RING_STATUS_LIMIT_EXCEEDED.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_region_open(scatter_ring_client *client,
                                 const char *name,
                                 uint64_t rights,
                                 scatter_ring_region **region,
                                 scatter_ring_error *error);

/**
 * Memory that a client of another engine, or that engine's process itself, has exported under this name, for batches
 * only: as if it were exported here. When the peer is lost batches with it fail with SCATTER_RING_STATUS_REGION_GONE;
 * it is opened anew after the next scatter_ring_client_connect_peer().
 *
 * @param peer What scatter_ring_client_connect_peer() of this client has given.
 * @param rights, region As of scatter_ring_region_open().
 * @return As scatter_ring_region_open(); SCATTER_RING_STATUS_PEER_UNREACHABLE.
 *
 * Threads: one at a time with this client; it waits for the other engine. Fork: SCATTER_RING_STATUS_FORKED in a
 * child.
 */
int32_t scatter_ring_region_open_at(scatter_ring_client *client,
                                    uint64_t peer,
                                    const char *name,
                                    uint64_t rights,
                                    scatter_ring_region **region,
                                    scatter_ring_error *error);

/**
 * Gives a region a name by which other clients of the engine, and its peers, can open it, until it is closed or the
 * session ends.
 *
 * @param name 1 to 168 bytes of UTF-8.
 * @param rights What they may do: no more than the region may itself.
 * @return 0; SCATTER_RING_STATUS_NAME_TAKEN, SCATTER_RING_STATUS_NO_RIGHT, SCATTER_RING_STATUS_UNKNOWN_REGION for a
 * region of another client or a closed one.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_region_export(scatter_ring_client *client,
                                   scatter_ring_region *region,
                                   const char *name,
                                   uint64_t rights,
                                   scatter_ring_error *error);

/**
 * Ends a registration or an opening, and returns when nobody touches the memory any more. The handle stays, useless
 * for batches: scatter_ring_region_free().
 *
 * @return 0; SCATTER_RING_STATUS_NOT_ALLOWED while a batch of this client uses it, SCATTER_RING_STATUS_UNKNOWN_REGION
 * for a region of another client or a closed one.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_region_close(scatter_ring_client *client,
                                  scatter_ring_region *region,
                                  scatter_ring_error *error);

/**
 * Frees a region's handle. When no batch uses the memory any more and no recorded one names it, the engine is told to
 * forget it, and memory that the library has mapped is unmapped: scatter_ring_region_data() dangles.
 *
 * @param region The handle, which is gone afterwards. NULL: nothing happens.
 *
 * Threads: any, once. Fork: in a child only the child's handle is freed.
 */
void scatter_ring_region_free(scatter_ring_region *region);

/**
 * The first byte of a region in this process; NULL for an opened one, whose bytes are elsewhere.
 *
 * The memory is the region's: valid until its handle is freed. A batch that is under way may write it at any time:
 * read what a batch has written only after its outcome, and do not write what a batch reads or writes before that.
 *
 * Threads: any. Fork: in a child the memory is still shared with the parent: leave it alone. NULL: NULL.
 */
void *scatter_ring_region_data(scatter_ring_region *region);

/** Bytes of a region. NULL: 0. Threads: any, also in a forked child. */
uint64_t scatter_ring_region_bytes(scatter_ring_region *region);

/**
 * What descriptors may do with a region: SCATTER_RING_RIGHTS_... bits. NULL: 0. Threads: any, also in a forked child.
 */
uint64_t scatter_ring_region_rights(scatter_ring_region *region);

/** The number by which descriptors name a region, never 0. NULL: 0. Threads: any, also in a forked child. */
uint32_t scatter_ring_region_handle(scatter_ring_region *region);

/**
 * True while a batch that is under way uses a region. (Raw descriptors are not counted.) NULL: false. Threads: any,
 * also in a forked child.
 */
bool scatter_ring_region_is_busy(scatter_ring_region *region);

/**
 * Copies bytes out of a region, checked.
 *
 * @param offset, bytes Which, in bytes.
 * @param out `bytes` bytes of the caller's, outside of every region.
 * @return 0; SCATTER_RING_STATUS_NOT_ALLOWED while a batch that writes the region is under way,
 * SCATTER_RING_STATUS_NO_RIGHT for an opened region, SCATTER_RING_STATUS_OUT_OF_RANGE.
 *
 * Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_region_read(scatter_ring_region *region,
                                 uint64_t offset,
                                 void *out,
                                 size_t bytes,
                                 scatter_ring_error *error);

/**
 * Copies bytes into a region, checked.
 *
 * @param offset, bytes Where to, in bytes.
 * @param data `bytes` bytes of the caller's, outside of every region.
 * @return 0; SCATTER_RING_STATUS_NOT_ALLOWED while a batch that uses the region is under way,
 * SCATTER_RING_STATUS_NO_RIGHT for an opened region or memory that is mapped for reading only,
 * SCATTER_RING_STATUS_OUT_OF_RANGE.
 *
 * Threads: any. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_region_write(scatter_ring_region *region,
                                  uint64_t offset,
                                  const void *data,
                                  size_t bytes,
                                  scatter_ring_error *error);

/**
 * A new, empty batch of a client.
 *
 * @param batch Set to a handle that the caller owns and ends with scatter_ring_batch_free(); to NULL if the call
 * fails.
 * @return 0, or a status below 0.
 *
 * Threads: any. Fork: a child may use it, and cannot submit it.
 */
int32_t scatter_ring_batch_new(scatter_ring_client *client,
                               scatter_ring_batch **batch,
                               scatter_ring_error *error);

/**
 * Discards a batch. What was submitted goes on.
 *
 * @param batch The handle, which is gone afterwards. NULL: nothing happens.
 *
 * Threads: any, once, when no other call with it is under way. Fork: in a child only the child's handle is freed.
 */
void scatter_ring_batch_free(scatter_ring_batch *batch);

/**
 * Makes a batch empty, as a new one; its memory is kept, its regions are not.
 *
 * @return 0, or a status below 0.
 *
 * Threads: one at a time with this batch. Fork: a child has a copy of its own, which it cannot submit.
 */
int32_t scatter_ring_batch_clear(scatter_ring_batch *batch, scatter_ring_error *error);

/**
 * Sets what is handed back with the descriptors that are added from now on. At first it is 0.
 *
 * @return 0, or a status below 0.
 *
 * Threads: one at a time with this batch. Fork: a child has a copy of its own, which it cannot submit.
 */
int32_t scatter_ring_batch_set_user_data(scatter_ring_batch *batch,
                                         uint64_t user_data,
                                         scatter_ring_error *error);

/**
 * The batch times out if it has no outcome so long after the engine took its first descriptor.
 *
 * @param deadline_ns In ns; 0: none.
 * @return 0, or a status below 0.
 *
 * Threads: one at a time with this batch. Fork: a child has a copy of its own, which it cannot submit.
 */
int32_t scatter_ring_batch_set_deadline(scatter_ring_batch *batch,
                                        uint64_t deadline_ns,
                                        scatter_ring_error *error);

/**
 * How much the batch will be, for the engine's planning; it need not be exact.
 *
 * @param fragments, bytes Of all descriptors together. 0 and 0: no hint.
 * @return 0, or a status below 0.
 *
 * Threads: one at a time with this batch. Fork: a child has a copy of its own, which it cannot submit.
 */
int32_t scatter_ring_batch_set_hint(scatter_ring_batch *batch,
                                    uint32_t fragments,
                                    uint64_t bytes,
                                    scatter_ring_error *error);

/**
 * The batch starts after all earlier ones of its client have their outcome and are released, whatever it is; later
 * ones do not overtake it.
 *
 * @param fence Not 0: so. 0: not, as at first.
 * @return 0, or a status below 0.
 *
 * Threads: one at a time with this batch. Fork: a child has a copy of its own, which it cannot submit.
 */
int32_t scatter_ring_batch_set_fence(scatter_ring_batch *batch,
                                     int32_t fence,
                                     scatter_ring_error *error);

/**
 * Adds: `len` bytes from `src` (usually opened) to `dst`. More than 1 GiB takes two descriptors.
 *
 * @param src_offset, dst_offset, len In bytes.
 * @return 0; SCATTER_RING_STATUS_UNKNOWN_REGION for a region of another client or a closed one. Everything else is
 * for the engine to check, and is part of the outcome.
 *
 * Threads: one at a time with this batch. Fork: a child has a copy of its own, which it cannot submit. The regions
 * stay the caller's, who may free their handles: the batch keeps the memory.
 */
int32_t scatter_ring_batch_read(scatter_ring_batch *batch,
                                scatter_ring_region *src,
                                uint64_t src_offset,
                                scatter_ring_region *dst,
                                uint64_t dst_offset,
                                uint64_t len,
                                scatter_ring_error *error);

/**
 * Adds: `len` bytes from `src` (mine) to `dst` (the other).
 *
 * @param src_offset, dst_offset, len In bytes.
 * @return As scatter_ring_batch_read().
 *
 * Threads, fork, regions: as scatter_ring_batch_read().
 */
int32_t scatter_ring_batch_write(scatter_ring_batch *batch,
                                 scatter_ring_region *src,
                                 uint64_t src_offset,
                                 scatter_ring_region *dst,
                                 uint64_t dst_offset,
                                 uint64_t len,
                                 scatter_ring_error *error);

/**
 * Adds: rows out of a table, by number, into a buffer.
 *
 * @param rows Only read during the call.
 * @return As scatter_ring_batch_read(); SCATTER_RING_STATUS_INVALID_SETTING for NULL or a value that is none.
 *
 * Threads, fork, regions: as scatter_ring_batch_read().
 */
int32_t scatter_ring_batch_read_rows(scatter_ring_batch *batch,
                                     const scatter_ring_rows *rows,
                                     scatter_ring_error *error);

/**
 * Adds: rows out of a buffer into a table, by number.
 *
 * @param rows Only read during the call.
 * @return As scatter_ring_batch_read_rows().
 *
 * Threads, fork, regions: as scatter_ring_batch_read().
 */
int32_t scatter_ring_batch_write_rows(scatter_ring_batch *batch,
                                      const scatter_ring_rows *rows,
                                      scatter_ring_error *error);

/**
 * Adds: blocks to blocks by number, into mine.
 *
 * @param blocks Only read during the call.
 * @return As scatter_ring_batch_read_rows().
 *
 * Threads, fork, regions: as scatter_ring_batch_read().
 */
int32_t scatter_ring_batch_read_blocks(scatter_ring_batch *batch,
                                       const scatter_ring_blocks *blocks,
                                       scatter_ring_error *error);

/**
 * Adds: blocks to blocks by number, out of mine.
 *
 * @param blocks Only read during the call.
 * @return As scatter_ring_batch_read_rows().
 *
 * Threads, fork, regions: as scatter_ring_batch_read().
 */
int32_t scatter_ring_batch_write_blocks(scatter_ring_batch *batch,
                                        const scatter_ring_blocks *blocks,
                                        scatter_ring_error *error);

/**
 * Adds: ranges of any lengths, into mine.
 *
 * @param ranges Only read during the call.
 * @return As scatter_ring_batch_read_rows().
 *
 * Threads, fork, regions: as scatter_ring_batch_read().
 */
int32_t scatter_ring_batch_read_ranges(scatter_ring_batch *batch,
                                       const scatter_ring_ranges *ranges,
                                       scatter_ring_error *error);

/**
 * Adds: ranges of any lengths, out of mine.
 *
 * @param ranges Only read during the call.
 * @return As scatter_ring_batch_read_rows().
 *
 * Threads, fork, regions: as scatter_ring_batch_read().
 */
int32_t scatter_ring_batch_write_ranges(scatter_ring_batch *batch,
                                        const scatter_ring_ranges *ranges,
                                        scatter_ring_error *error);

/**
 * Adds: pieces at even distances, into mine.
 *
 * @param tile Only read during the call.
 * @return As scatter_ring_batch_read_rows().
 *
 * Threads, fork, regions: as scatter_ring_batch_read().
 */
int32_t scatter_ring_batch_read_tile(scatter_ring_batch *batch,
                                     const scatter_ring_tile *tile,
                                     scatter_ring_error *error);

/**
 * Adds: pieces at even distances, out of mine.
 *
 * @param tile Only read during the call.
 * @return As scatter_ring_batch_read_rows().
 *
 * Threads, fork, regions: as scatter_ring_batch_read().
 */
int32_t scatter_ring_batch_write_tile(scatter_ring_batch *batch,
                                      const scatter_ring_tile *tile,
                                      scatter_ring_error *error);

/**
 * Adds any descriptors, many in one call. If one is refused, those before it were added: the message says which.
 *
 * @param descriptors `count` of them, copied. LAST and EXTENDED are set by the library. Their user_data is used as it
 * is.
 * @param regions `region_count` regions, among which those must be whose handles the descriptors carry.
 * @return 0; SCATTER_RING_STATUS_UNKNOWN_REGION for a handle that none of the regions has,
 * SCATTER_RING_STATUS_INVALID_FLAGS for LAST or EXTENDED.
 *
 * Threads, fork, regions: as scatter_ring_batch_read().
 */
int32_t scatter_ring_batch_push(scatter_ring_batch *batch,
                                const scatter_ring_descriptor *descriptors,
                                size_t count,
                                scatter_ring_region *const *regions,
                                size_t region_count,
                                scatter_ring_error *error);

/**
 * Adds a descriptor with an inner repeat: every fragment becomes `inner_count` pieces.
 *
 * @param descriptor, extension Copied. EXTENDED is set by the library.
 * @param regions As of scatter_ring_batch_push().
 * @return As scatter_ring_batch_push().
 *
 * Threads, fork, regions: as scatter_ring_batch_read().
 */
int32_t scatter_ring_batch_push_extended(scatter_ring_batch *batch,
                                         const scatter_ring_descriptor *descriptor,
                                         const scatter_ring_extension *extension,
                                         scatter_ring_region *const *regions,
                                         size_t region_count,
                                         scatter_ring_error *error);

/**
 * Ends the batch with a notification: when all of it is done, the client that exported `other` is told; it gets the
 * user data that is set, `offset` (of any meaning) and the bytes of the payload, as they are then. If the batch fails
 * or ends before, nobody is told. While the other client has no room for it the batch waits, as long as its deadline
 * allows. Nothing can be added behind it.
 *
 * @param payload The region of the payload, or NULL: none.
 * @param payload_offset, payload_bytes Where it is; at most 4096 bytes.
 * @return As scatter_ring_batch_read(); SCATTER_RING_STATUS_BAD_SEQUENCE if there is one already.
 *
 * Threads, fork, regions: as scatter_ring_batch_read().
 */
int32_t scatter_ring_batch_notify(scatter_ring_batch *batch,
                                  scatter_ring_region *other,
                                  uint64_t offset,
                                  scatter_ring_region *payload,
                                  uint64_t payload_offset,
                                  uint32_t payload_bytes,
                                  scatter_ring_error *error);

/**
 * Submits a batch: all that was added, once. It stays as it is, to be submitted again or cleared. An empty one is one
 * NOP. No system call while the engine is awake and the ring has room; a batch that is longer than the ring waits for
 * the engine.
 *
 * @param client The one that the batch was made for.
 * @param ticket Set to a handle for the outcome, which the caller owns and ends with scatter_ring_ticket_free(); to
 * NULL if the call fails.
 * @return 0; SCATTER_RING_STATUS_UNKNOWN_REGION for a batch of another client, or a region that was closed meanwhile
 * (nothing was submitted then); or why the session has ended.
 *
 * Threads: one at a time with this client, and with this batch. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_batch_submit(scatter_ring_client *client,
                                  scatter_ring_batch *batch,
                                  scatter_ring_ticket **ticket,
                                  scatter_ring_error *error);

/**
 * Waits for the outcome of a batch. It may be asked for again, as long as the ticket lives.
 *
 * @param timeout_ns How long at most, in ns. 0: only looks. Below 0: as long as it takes.
 * @param outcome NULL, or the caller's, filled when the batch is done.
 * @return 0: done. SCATTER_RING_PENDING (1): still under way. Below 0: what the batch failed with, or why the session
 * ended before it did; SCATTER_RING_STATUS_NOT_FOUND for a ticket of another client;
 * SCATTER_RING_STATUS_LIMIT_EXCEEDED with descriptor -1 while notifications that nobody takes are in the way. If
 * error->reusable is 0 then, the buffers may still be written.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_wait(scatter_ring_client *client,
                                 scatter_ring_ticket *ticket,
                                 int64_t timeout_ns,
                                 scatter_ring_outcome *outcome,
                                 scatter_ring_error *error);

/**
 * Waits until the buffers of a batch may be used again, whatever its outcome.
 *
 * @param timeout_ns How long at most, in ns. 0: only looks. Below 0: as long as it takes.
 * @return 0: they may. SCATTER_RING_PENDING (1): not yet. Below 0: the session ended before; nobody can say when the
 * memory is left alone.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_wait_released(scatter_ring_client *client,
                                          scatter_ring_ticket *ticket,
                                          int64_t timeout_ns,
                                          scatter_ring_error *error);

/**
 * Cancels a batch. Its outcome then says what came of it: SCATTER_RING_STATUS_CANCELLED, or done.
 *
 * @return 0; SCATTER_RING_STATUS_NOT_FOUND if it has ended, is ending already, or was not taken by the engine yet
 * (then ask again); SCATTER_RING_STATUS_UNKNOWN_REGION for a ticket of another client.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_cancel(scatter_ring_client *client,
                                   scatter_ring_ticket *ticket,
                                   scatter_ring_error *error);

/**
 * Ring position of a batch's first descriptor, as in scatter_ring_span.first. NULL: 0. Threads: any, also in a
 * forked child.
 */
uint64_t scatter_ring_ticket_position(scatter_ring_ticket *ticket);

/**
 * Frees a ticket, before or after its batch has ended, before or after its client.
 *
 * @param ticket The handle, which is gone afterwards. NULL: nothing happens.
 *
 * Threads: any, once, when no other call with it is under way. Fork: in a child only the child's handle is freed.
 */
void scatter_ring_ticket_free(scatter_ring_ticket *ticket);

/**
 * Reads one range, and waits: `len` bytes from `src` to `dst`.
 *
 * @param src_offset, dst_offset, len In bytes.
 * @param outcome NULL, or the caller's, filled when it is done.
 * @return 0, or what it failed with.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_read(scatter_ring_client *client,
                                 scatter_ring_region *src,
                                 uint64_t src_offset,
                                 scatter_ring_region *dst,
                                 uint64_t dst_offset,
                                 uint64_t len,
                                 scatter_ring_outcome *outcome,
                                 scatter_ring_error *error);

/**
 * Writes one range, and waits: `len` bytes from `src` to `dst`.
 *
 * @param src_offset, dst_offset, len, outcome As of scatter_ring_client_read().
 * @return 0, or what it failed with.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_write(scatter_ring_client *client,
                                  scatter_ring_region *src,
                                  uint64_t src_offset,
                                  scatter_ring_region *dst,
                                  uint64_t dst_offset,
                                  uint64_t len,
                                  scatter_ring_outcome *outcome,
                                  scatter_ring_error *error);

/**
 * Reads rows of a packed table, by number, and waits: row rows[i] lands at out_offset + i * row_bytes of `out`.
 *
 * @param row_bytes Of a row, in bytes.
 * @param rows `count` row numbers, only read during the call. (They are copied into memory that the client keeps for
 * that; to leave them where they are, for strides or a deadline: scatter_ring_batch_read_rows().)
 * @param out_offset In bytes.
 * @param outcome NULL, or the caller's, filled when it is done.
 * @return 0, or what it failed with. A row number outside the table is found while rows are copied: those before it
 * are in place.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_read_rows(scatter_ring_client *client,
                                      scatter_ring_region *table,
                                      uint32_t row_bytes,
                                      const uint32_t *rows,
                                      size_t count,
                                      scatter_ring_region *out,
                                      uint64_t out_offset,
                                      scatter_ring_outcome *outcome,
                                      scatter_ring_error *error);

/**
 * Writes rows that lie packed in a region into a packed table, by number, and waits: what is at from_offset + i *
 * row_bytes of `from` becomes row rows[i].
 *
 * @param row_bytes, rows, count, outcome As of scatter_ring_client_read_rows().
 * @param from_offset In bytes.
 * @return 0, or what it failed with.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_write_rows(scatter_ring_client *client,
                                       scatter_ring_region *table,
                                       uint32_t row_bytes,
                                       const uint32_t *rows,
                                       size_t count,
                                       scatter_ring_region *from,
                                       uint64_t from_offset,
                                       scatter_ring_outcome *outcome,
                                       scatter_ring_error *error);

/**
 * Writes descriptors to the ring as they are, many in one call: no allocation, no system call, no account of what
 * they use. The last one of each batch carries SCATTER_RING_FLAGS_LAST. Nothing is seen by the engine before
 * scatter_ring_client_submit().
 *
 * The caller answers for the memory: the regions that are named must stay open, and their memory must not be used for
 * anything else, until the spans of the batch say that it is done and released.
 *
 * @param descriptors `count` of them, copied.
 * @return How many were written: fewer than `count` if the ring is full (then submit, reap, and push the rest). Below
 * 0: why the session has ended; SCATTER_RING_STATUS_INVALID_FLAGS for EXTENDED, which
 * scatter_ring_client_push_extended() writes. With an error, none was written.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_push(scatter_ring_client *client,
                                 const scatter_ring_descriptor *descriptors,
                                 size_t count,
                                 scatter_ring_error *error);

/**
 * Writes one descriptor with its extension to the ring: both or neither. Otherwise as scatter_ring_client_push().
 *
 * @param descriptor, extension Copied. EXTENDED is set here.
 * @return 1; 0 if the ring has no room for two; below 0: why the session has ended.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_push_extended(scatter_ring_client *client,
                                          const scatter_ring_descriptor *descriptor,
                                          const scatter_ring_extension *extension,
                                          scatter_ring_error *error);

/**
 * Shows the engine what was pushed, and wakes it if it sleeps: no system call while it is awake.
 *
 * @return 0, or why the session has ended.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_submit(scatter_ring_client *client, scatter_ring_error *error);

/**
 * Takes completion spans, many in one call. Makes no system call, except that it looks twice a second whether the
 * engine is still there while nothing comes. Batches that have a ticket are kept account of as well.
 *
 * @param spans Room for `capacity` spans, the caller's, filled from the start.
 * @return How many, 0 if there is none now. Below 0: the session has ended, and every span that was published before
 * has been taken.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_reap(scatter_ring_client *client,
                                 scatter_ring_span *spans,
                                 size_t capacity,
                                 scatter_ring_error *error);

/**
 * Waits until scatter_ring_client_reap() has something to say. Submits what was pushed.
 *
 * @param timeout_ns How long at most, in ns. 0: only looks. Below 0: as long as it takes.
 * @return 0: it has. SCATTER_RING_PENDING (1): not yet. Below 0: why the session has ended.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_wait_any(scatter_ring_client *client,
                                     int64_t timeout_ns,
                                     scatter_ring_error *error);

/**
 * One file descriptor for poll, epoll or any other event loop: readable when the engine has woken this client, or is
 * gone. scatter_ring_client_arm(), wait for it to be readable, scatter_ring_client_disarm(), then look at what is
 * awaited until there is nothing more: scatter_ring_client_wait() with 0 ns, scatter_ring_client_reap(),
 * scatter_ring_client_next_notification().
 *
 * @return The file descriptor, which stays the client's: it must be neither read nor closed.
 * SCATTER_RING_STATUS_INVALID_SETTING for NULL.
 *
 * Threads: any. Fork: of no use in a child.
 */
int scatter_ring_client_fd(scatter_ring_client *client);

/**
 * Announces a sleep: the engine then makes the file descriptor readable at its next span or notification.
 *
 * @return 1: sleep now. 0: do not, there is something to take already. Below 0: why the session has ended.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_arm(scatter_ring_client *client, scatter_ring_error *error);

/**
 * Awake again: takes the wake-ups from the file descriptor, and notices the end of the engine, which the next call
 * reports.
 *
 * @return 0, or a status below 0.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_disarm(scatter_ring_client *client, scatter_ring_error *error);

/**
 * The next notification, if one has come. Makes no system call. Needs scatter_ring_client_setup.notifications.
 *
 * A client that does not take them keeps as many as its completion ring has places, and so does the engine for it;
 * then who sends more waits, and so do this client's own batches.
 *
 * @param notification The caller's, filled if there is one; its payload stays the client's.
 * @return 0: one has come. SCATTER_RING_PENDING (1): none. SCATTER_RING_STATUS_NOT_ALLOWED if they are off; or why
 * the session has ended, when every one that came before has been taken.
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_next_notification(scatter_ring_client *client,
                                              scatter_ring_notification *notification,
                                              scatter_ring_error *error);

/**
 * The same, and waits for it.
 *
 * @param timeout_ns How long at most, in ns. 0: only looks. Below 0: as long as it takes.
 * @param notification As of scatter_ring_client_next_notification().
 * @return As scatter_ring_client_next_notification().
 *
 * Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
 */
int32_t scatter_ring_client_wait_notification(scatter_ring_client *client,
                                              int64_t timeout_ns,
                                              scatter_ring_notification *notification,
                                              scatter_ring_error *error);

/**
 * Has the library's log written by a function of the program, until the process ends. Without it nothing is written.
 *
 * @param callback Called by any thread of the library, by several at a time. It must return soon, and must not call
 * functions of this library.
 * @param context Handed to the callback as it is; stays the caller's.
 * @param level What is written: SCATTER_RING_LOG_ERROR, or up to SCATTER_RING_LOG_WARN or SCATTER_RING_LOG_INFO.
 * @return 0; SCATTER_RING_STATUS_NOT_ALLOWED if there is one already, SCATTER_RING_STATUS_INVALID_SETTING for NULL or
 * another level.
 *
 * Threads: any. Fork: a child inherits it.
 */
int32_t scatter_ring_set_log(scatter_ring_log_callback callback,
                             void *context,
                             int32_t level,
                             scatter_ring_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SCATTER_RING_H */
