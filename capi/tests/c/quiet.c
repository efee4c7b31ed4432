/* A client makes no system call while the engine is awake: the kernel kills it at the first one. And the threads of the
   library leave the signals of the program alone. */
#include "check.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PER_BATCH 32u
#define BATCHES 2000u
#define UNDER_WAY 64u
#define SLOTS 4096u

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#else
#define ARCH AUDIT_ARCH_AARCH64
#endif

static char socket_path[108];

/* From here on this thread may only exit. */
static void forbid_system_calls(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
}

static scatter_ring_client *client;
static scatter_ring_region *src, *dst;

/* Nothing may be printed behind the filter: what is wrong is an exit code. */
static void leave(int code) {
    syscall(SYS_exit_group, code);
}

static void push_raw(uint32_t batch) {
    scatter_ring_descriptor descriptors[PER_BATCH];
    memset(descriptors, 0, sizeof descriptors);
    for (uint32_t i = 0; i < PER_BATCH; i++) {
        uint32_t number = batch * PER_BATCH + i;
        descriptors[i].opcode = SCATTER_RING_OPCODE_READ;
        descriptors[i].flags = i + 1 == PER_BATCH ? SCATTER_RING_FLAGS_LAST : 0;
        descriptors[i].len = 64;
        descriptors[i].count = 1;
        descriptors[i].src_region = scatter_ring_region_handle(src);
        descriptors[i].dst_region = scatter_ring_region_handle(dst);
        descriptors[i].src_offset = (uint64_t)(number * 7 % SLOTS) * 64;
        descriptors[i].dst_offset = (uint64_t)(number % SLOTS) * 64;
    }
    if (scatter_ring_client_push(client, descriptors, PER_BATCH, NULL) != (int32_t)PER_BATCH)
        leave(11);
    if (scatter_ring_client_submit(client, NULL) != 0)
        leave(12);
}

static void work(uint32_t from, uint32_t batches) {
    uint32_t pushed = 0, done = 0;
    scatter_ring_span spans[8];
    while (done < batches) {
        if (pushed < batches && pushed - done < UNDER_WAY)
            push_raw(from + pushed++);
        int32_t count = scatter_ring_client_reap(client, spans, 8, NULL);
        if (count < 0)
            leave(13);
        for (int32_t i = 0; i < count; i++)
            if (spans[i].status != 0 || spans[i].count != PER_BATCH || spans[i].bytes != PER_BATCH * 64)
                leave(14);
        done += (uint32_t)count;
    }
}

static void attach_and_warm_up(void) {
    DO(scatter_ring_client_attach(socket_path, NULL, &client, &error));
    DO(scatter_ring_region_allocate(client, SLOTS * 64, &src, &error));
    DO(scatter_ring_region_allocate(client, SLOTS * 64, &dst, &error));
    uint64_t *numbers = scatter_ring_region_data(src);
    for (uint32_t i = 0; i < SLOTS; i++)
        numbers[i * 8] = i;
    work(0, 500);
    forbid_system_calls();
}

static void works_without_a_system_call(void) {
    attach_and_warm_up();
    work(500, BATCHES);
    const uint64_t *got = scatter_ring_region_data(dst);
    for (uint32_t number = (500 + BATCHES) * PER_BATCH - SLOTS; number < (500 + BATCHES) * PER_BATCH; number++)
        if (got[number % SLOTS * 8] != number * 7 % SLOTS)
            leave(15);
    leave(0);
}

/* Without this the other one would pass with a filter that filters nothing. */
static void makes_one_system_call(void) {
    attach_and_warm_up();
    syscall(SYS_getpid);
    leave(0);
}

/* A process that does its work once the other side of the pipe is written to. */
static pid_t process(void (*does)(void), int *start) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        close(ends[1]);
        if (read(ends[0], &byte, 1) != 1)
            _exit(1);
        does();
    }
    close(ends[0]);
    *start = ends[1];
    return child;
}

static int ended(pid_t child, int start) {
    int status;
    CHECK(write(start, "", 1) == 1);
    CHECK(waitpid(child, &status, 0) == child);
    close(start);
    return status;
}

static volatile sig_atomic_t signals;
static pthread_t first_thread;

static void on_signal(int number) {
    (void)number;
    signals += pthread_equal(pthread_self(), first_thread) ? 1 : 1000;
}

static void signals_come_to_the_program_and_not_to_the_library(void) {
    first_thread = pthread_self();
    signal(SIGUSR1, on_signal);
    sigset_t set, before, now;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    /* While this thread does not take it nobody does. */
    pthread_sigmask(SIG_BLOCK, &set, &before);
    for (int i = 0; i < 20; i++) {
        kill(getpid(), SIGUSR1);
        usleep(1000);
    }
    CHECK(signals == 0);
    pthread_sigmask(SIG_SETMASK, &before, &now);
    CHECK(signals == 1);
    CHECK(!sigismember(&before, SIGUSR1) && !sigismember(&before, SIGTERM));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    snprintf(socket_path, sizeof socket_path, "%s/engine/socket", argv[1]);
    /* Before there are threads. */
    int start_quiet, start_loud;
    pid_t quiet = process(works_without_a_system_call, &start_quiet);
    pid_t loud = process(makes_one_system_call, &start_loud);

    /* A spin that outlasts the test. */
    scatter_ring_engine_config config = {.size = sizeof config, .workers = -1, .spin_ns = UINT64_C(600000000000)};
    scatter_ring_engine *engine;
    DO(scatter_ring_engine_create(&config, &engine, &error));
    DO(scatter_ring_engine_listen(engine, socket_path, &error));
    signals_come_to_the_program_and_not_to_the_library();
    int status = ended(quiet, start_quiet);
    CHECK(!(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "the client has ended with %x\n", status);
        return 1;
    }
    status = ended(loud, start_loud);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    scatter_ring_engine_free(engine);
    puts("ok");
    return 0;
}
