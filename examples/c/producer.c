/*
 * A producer within a page of code: scatter_ring_abi.h, libc and the kernel, and no library to link.
 *
 *     cc -std=c11 -O2 -I ring-abi/include examples/c/producer.c -o producer && ./producer SOCKET
 *
 * It gathers rows that lie apart into one block, and checks them. An ordering's letter is that of its other end, which
 * is in the engine: T the tails, H the heads, W sleeping, S the session's end. An edge that lacks an end is none.
 */
#define _GNU_SOURCE
#include "scatter_ring_abi.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { CAPACITY = 64, LOOKS = 10000 };
enum { ROWS = 1000, ROW_BYTES = 264, STEP_BYTES = 1024, BLOCK = 1 << 20, REGION_BYTES = 2 << 20 };

static int engine, doorbell, wake; /* To ask the engine, to wake it, to be woken by it. */
static char *submit, *complete;    /* The areas: we write the first, the engine the second. */
static uint64_t tail, head, sleeps; /* Ours alone. What stands in the areas is output only. */

#define NEED(holds, ...) ((holds) ? (void)0 : (fprintf(stderr, "producer: " __VA_ARGS__), fputc('\n', stderr), exit(1)))

static void *map(int fd, size_t bytes, int protection) {
    void *at = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
    NEED(at != MAP_FAILED, "mmap: %s", strerror(errno));
    return at;
}

static uint64_t *word(char *area, size_t offset) { return (uint64_t *)(void *)(area + offset); }

/* A question and its answer, a packet each. `fd` goes along unless it is -1; four `fds` come back unless it is NULL. */
static scatter_ring_message ask(scatter_ring_message question, int fd, int (*fds)[4]) {
    union { struct cmsghdr head; char bytes[CMSG_SPACE(sizeof *fds)]; } files = {0};
    scatter_ring_message answer = {0};
    struct iovec data = {&question, sizeof question};
    struct msghdr packet = {.msg_iov = &data, .msg_iovlen = 1};
    if (fd >= 0) {
        packet.msg_control = &files, packet.msg_controllen = CMSG_SPACE(sizeof fd);
        files.head.cmsg_len = CMSG_LEN(sizeof fd);
        files.head.cmsg_level = SOL_SOCKET, files.head.cmsg_type = SCM_RIGHTS;
        memcpy(CMSG_DATA(&files.head), &fd, sizeof fd);
    }
    NEED(sendmsg(engine, &packet, MSG_NOSIGNAL) > 0, "asking the engine: %s", strerror(errno));
    data.iov_base = &answer, packet.msg_control = &files, packet.msg_controllen = sizeof files;
    NEED(recvmsg(engine, &packet, MSG_CMSG_CLOEXEC) == sizeof answer, "no answer: the engine is gone");
    NEED(answer.status == SCATTER_RING_STATUS_OK, "%s: %.*s", scatter_ring_status_text(answer.status),
         (int)sizeof answer.name, answer.name);
    if (fds != NULL) {
        NEED(files.head.cmsg_len == CMSG_LEN(sizeof *fds), "an answer without its four descriptors");
        memcpy(fds, CMSG_DATA(&files.head), sizeof *fds);
    }
    return answer;
}

static void attach(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    NEED(strlen(path) < sizeof address.sun_path, "%s: too long for a socket's path", path);
    strcpy(address.sun_path, path);
    engine = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int error = connect(engine, (struct sockaddr *)&address, sizeof address), fds[4];
    NEED(error == 0, "no engine at %s (%s): is `scatter-ring serve` running?", path, strerror(errno));
    ask(scatter_ring_message_hello(SCATTER_RING_FEATURES_LOCAL, CAPACITY, CAPACITY, 0), -1, &fds);
    submit = map(fds[0], scatter_ring_submit_bytes(CAPACITY), PROT_READ | PROT_WRITE);
    complete = map(fds[1], scatter_ring_complete_bytes(CAPACITY), PROT_READ); /* The kernel refuses more. */
    doorbell = fds[2], wake = fds[3];
    const scatter_ring_header *header = (scatter_ring_header *)(void *)complete;
    const char *field;
    bool good = scatter_ring_header_check(header, &field) == SCATTER_RING_STATUS_OK;
    NEED(good, "an engine of another version: %s", field);
    NEED(header->sq_capacity == CAPACITY && header->cq_capacity == CAPACITY, "other capacities than were asked for");
}

/* Memory that the engine maps too, from a file that cannot shrink under its mapping. Gives the region's handle. */
static uint32_t share(char **memory) {
    int file = memfd_create("rows", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool made = file >= 0 && ftruncate(file, REGION_BYTES) == 0 && fallocate(file, 0, 0, REGION_BYTES) == 0;
    made = made && fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
    NEED(made, "a memory file: %s", strerror(errno));
    *memory = map(file, REGION_BYTES, PROT_READ | PROT_WRITE);
    scatter_ring_message question = {.kind = SCATTER_RING_KIND_REGISTER, .request = 1};
    question.args[0] = REGION_BYTES, question.args[1] = SCATTER_RING_RIGHTS_READ | SCATTER_RING_RIGHTS_WRITE;
    return (uint32_t)ask(question, file, NULL).args[0];
}

/* Into the next slot. In a full ring it must first be seen free: load the engine's SQ head with Acquire (H2). */
static void push(const scatter_ring_descriptor *descriptor) {
    size_t slot = tail++ & (CAPACITY - 1);
    uint64_t words[8], *to = word(submit, SCATTER_RING_SUBMIT_SLOTS + slot * sizeof words);
    memcpy(words, descriptor, sizeof words);
    for (int i = 0; i < 8; i++) __atomic_store_n(&to[i], words[i], __ATOMIC_RELAXED); /* T1 orders them. */
}

/* T1: who sees the tail sees the slots, and what we wrote to the memory. W1: the engine sees the tail before it sleeps,
 * or we see that it sleeps; once for each number in its sleep word is enough. */
static void publish(void) {
    __atomic_store_n(word(submit, SCATTER_RING_SUBMIT_TAIL), tail, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(word(complete, SCATTER_RING_COMPLETE_SLEEP_WORD), __ATOMIC_RELAXED) != 0)
        NEED(write(doorbell, &(uint64_t){1}, 8) == 8 || errno == EAGAIN, "the doorbell: %s", strerror(errno));
}

/* The next span. Looks for a while, then sleeps. */
static scatter_ring_span reap(void) {
    uint64_t *cq_tail = word(complete, SCATTER_RING_COMPLETE_TAIL), *cq_head = word(submit, SCATTER_RING_SUBMIT_HEAD);
    uint64_t *stop = word(complete, SCATTER_RING_COMPLETE_STOP_WORD), there, words[8];
    uint64_t *asleep = word(submit, SCATTER_RING_SUBMIT_SLEEP_WORD);
    bool gone = false;
    for (int look = 0;; look++) {
        int32_t reason = SCATTER_RING_STATUS_OK; /* S2: what was published before the session's end is seen first. */
        bool stopped = scatter_ring_stop_reason(__atomic_load_n(stop, __ATOMIC_ACQUIRE), &reason);
        there = __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE) - head; /* T2: the spans and what they are about are seen. */
        if (there != 0) break;
        NEED(!stopped, "the session has ended: %s", scatter_ring_status_text(reason));
        NEED(!gone, "the session has ended: the engine is gone");
        if (look < LOOKS) continue;
        __atomic_store_n(asleep, ++sleeps, __ATOMIC_RELAXED); /* Another number each time. */
        __atomic_thread_fence(__ATOMIC_SEQ_CST); /* W2: the engine sees that we sleep, or we see what it published. */
        if (__atomic_load_n(cq_tail, __ATOMIC_RELAXED) == head) poll(&(struct pollfd){wake, POLLIN, 0}, 1, 1000);
        __atomic_store_n(asleep, 0, __ATOMIC_RELAXED);
        gone = recv(wake, words, sizeof words, MSG_DONTWAIT) == 0; /* And then looks once more. */
    }
    NEED(there <= CAPACITY, "an impossible position of the completion ring");
    uint64_t *from = word(complete, SCATTER_RING_COMPLETE_SLOTS + (head++ & (CAPACITY - 1)) * sizeof words);
    for (int i = 0; i < 8; i++) words[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
    __atomic_store_n(cq_head, head, __ATOMIC_RELEASE); /* H1: the slot is read before it is free. */
    scatter_ring_span span;
    memcpy(&span, words, sizeof span);
    return span;
}

int main(int argc, char **argv) {
    NEED(argc == 2, "usage: producer SOCKET");
    attach(argv[1]);
    char *memory;
    uint32_t region = share(&memory);
    for (int row = 0; row < ROWS; row++) memset(memory + row * STEP_BYTES, 1 + row % 255, ROW_BYTES);
    scatter_ring_descriptor gather = {
        .opcode = SCATTER_RING_OPCODE_READ, .flags = SCATTER_RING_FLAGS_LAST, .count = ROWS, .len = ROW_BYTES,
        .src_region = region, .src_stride = STEP_BYTES,
        .dst_region = region, .dst_stride = ROW_BYTES, .dst_offset = BLOCK};
    push(&gather); /* As many as fit. A batch ends with the one that carries LAST. */
    publish();
    scatter_ring_span span = reap(); /* A success is one span. A failure has more, up to the one with BATCH_DONE. */
    bool done = span.status == SCATTER_RING_STATUS_OK && scatter_ring_span_is_batch_done(&span);
    NEED(done, "the batch: %s", scatter_ring_status_text(span.status));
    for (int row = 0; row < ROWS; row++)
        NEED(!memcmp(memory + BLOCK + row * ROW_BYTES, memory + row * STEP_BYTES, ROW_BYTES), "row %d is wrong", row);
    printf("%d rows of %d bytes are in one block, after %u ns\n", ROWS, ROW_BYTES, span.total_ns);
    return 0;
}
