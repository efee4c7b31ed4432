// How a client meets an engine: a Unix socket, four file descriptors, two mapped areas. Part of scatter_ring.hpp.
//
// After HELLO was answered the socket carries only rare requests (registering, exporting, opening, closing,
// cancelling). Work goes through the rings.
#ifndef SCATTER_RING_ATTACH_HPP
#define SCATTER_RING_ATTACH_HPP

#include "ring.hpp"
#include "system.hpp"

#include <cinttypes>

#include <sys/socket.h>
#include <sys/un.h>

namespace scatter_ring {

/// What a client asks for when it attaches.
struct Setup {
    /// Descriptors that the submission ring holds, a power of two. Batches may be longer.
    std::uint32_t sq_capacity = 4096;
    /// Spans that the completion ring holds, a power of two. A quarter of it is how many batches can be under way.
    std::uint32_t cq_capacity = 1024;
    /// How long a wait spins before it sleeps. A wake costs some 20 us.
    std::chrono::nanoseconds spin = std::chrono::microseconds(200);
    /// Other clients can tell this one that data is there: Batch::notify() and Client::next_notification().
    bool notifications = false;
    /// Both rings start at this position. Anything but 0 is for tests that cross a wrap.
    std::uint64_t start_position = 0;
};

namespace detail {

using Message = ::scatter_ring_message;
static_assert(sizeof(Message) == SCATTER_RING_MESSAGE_BYTES, "a message is one packet");

/// How long the engine may take for an answer.
inline constexpr nanoseconds answer_limit = std::chrono::seconds(10);

/// A question. The name, if any, was checked for its length.
inline Message question(unsigned kind, std::uint64_t request) noexcept {
    Message message{};
    message.kind = static_cast<std::uint16_t>(kind);
    message.request = request;
    return message;
}

inline void set_name(Message &message, const char *name) noexcept {
    message.name_bytes = static_cast<std::uint32_t>(std::strlen(name));
    std::memcpy(message.name, name, message.name_bytes);
}

/// A message and the file descriptors that came with it.
struct Received {
    Message message{};
    Fd fds[SCATTER_RING_MESSAGE_FDS_MAX];
    unsigned fd_count = 0;
};

enum class Sent : std::uint8_t { done, closed, no_room, failed };

/// Sends one message without waiting, with at most one file descriptor.
inline Sent send_message(int socket, const Message &message, int fd) noexcept {
    ::iovec part{const_cast<Message *>(&message), sizeof message};
    alignas(::cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    ::msghdr packet{};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    if (fd >= 0) {
        packet.msg_control = control;
        packet.msg_controllen = sizeof control;
        ::cmsghdr *header = CMSG_FIRSTHDR(&packet);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    for (;;) {
        if (::sendmsg(socket, &packet, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
            return Sent::done;
        }
        switch (errno) {
        case EINTR: continue;
        case EPIPE:
        case ECONNRESET: return Sent::closed;
        case EAGAIN: return Sent::no_room;
        default: return Sent::failed;
        }
    }
}

inline void set_closed(Error &error) noexcept {
    error.set(ErrorKind::ended, SCATTER_RING_STATUS_ENGINE_LOST, "the engine has closed the connection: %s",
              StatusText(SCATTER_RING_STATUS_ENGINE_LOST).text);
}

inline void set_bad_message(Error &error, const char *what) noexcept {
    error.set(ErrorKind::bad_message, SCATTER_RING_STATUS_BAD_MESSAGE, "not understood: %s", what);
}

/// As Rust's `str::from_utf8`: who sends anything else loses his session.
inline bool is_utf8(const char *text, std::size_t bytes) noexcept {
    const auto *byte = reinterpret_cast<const unsigned char *>(text), *end = byte + bytes;
    while (byte != end) {
        const unsigned char first = *byte++;
        if (first < 0x80) {
            continue;
        }
        const int more = first < 0xC2 || first > 0xF4 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
        if (more == 0 || end - byte < more) {
            return false;
        }
        // The second byte: no longer than need be, no half of a pair, no further than the last character.
        unsigned least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        unsigned most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
        for (int i = 0; i < more; i++) {
            if (*byte < least || *byte > most) {
                return false;
            }
            byte += 1;
            least = 0x80;
            most = 0xBF;
        }
    }
    return true;
}

/// What is wrong with a message that the other side sent; nullptr if nothing is.
inline const char *fault_of(const Message &message) noexcept {
    if (message.reserved != 0 || message.reserved2 != 0) {
        return "a reserved byte is not 0";
    }
    if (message.name_bytes > SCATTER_RING_NAME_BYTES_MAX) {
        return "a name is too long";
    }
    for (std::uint32_t i = message.name_bytes; i < SCATTER_RING_NAME_BYTES_MAX; i++) {
        if (message.name[i] != 0) {
            return "a reserved byte is not 0";
        }
    }
    return is_utf8(message.name, message.name_bytes) ? nullptr : "a name is not UTF-8";
}

/// Takes the descriptors out of a packet: the first ones are kept, all others closed. False: there were too many.
inline bool take_fds(::msghdr &packet, Received &out) noexcept {
    bool all = (packet.msg_flags & MSG_CTRUNC) == 0;
    for (::cmsghdr *header = CMSG_FIRSTHDR(&packet); header != nullptr; header = CMSG_NXTHDR(&packet, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; i++) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            Fd owned(fd);
            if (out.fd_count < SCATTER_RING_MESSAGE_FDS_MAX) {
                out.fds[out.fd_count] = std::move(owned);
                out.fd_count += 1;
            } else {
                all = false;
            }
        }
    }
    return all;
}

enum class Got : std::uint8_t { message, nothing, failed };

/// Receives one message if there is one.
inline Got receive_message(int socket, Received &out, Error &error) noexcept {
    // The most that the kernel lets travel with one packet.
    constexpr std::size_t packet_fds_max = 253;
    // One byte more than a message, so that a longer packet shows.
    unsigned char bytes[sizeof(Message) + 1];
    alignas(::cmsghdr) char control[CMSG_SPACE(packet_fds_max * sizeof(int))];
    ::iovec part{bytes, sizeof bytes};
    ::msghdr packet{};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    packet.msg_control = control;
    packet.msg_controllen = sizeof control;
    ssize_t got;
    do {
        got = ::recvmsg(socket, &packet, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN) {
        return Got::nothing;
    }
    if (got == 0 || (got < 0 && errno == ECONNRESET)) {
        set_closed(error);
        return Got::failed;
    }
    if (got < 0) {
        error.set_system("recvmsg", errno);
        return Got::failed;
    }
    const char *fault = nullptr;
    if (!take_fds(packet, out)) {
        fault = "too many file descriptors";
    } else if (got != static_cast<ssize_t>(sizeof(Message))) {
        fault = "a message has 256 bytes";
    } else {
        std::memcpy(&out.message, bytes, sizeof out.message);
        fault = fault_of(out.message);
    }
    if (fault != nullptr) {
        set_bad_message(error, fault);
        return Got::failed;
    }
    return Got::message;
}

inline bool wait_ready(int socket, short events, Clock::time_point until, Error &error) noexcept {
    const nanoseconds left = until - Clock::now();
    if (left <= nanoseconds::zero()) {
        error.set(ErrorKind::no_answer, SCATTER_RING_STATUS_ENGINE_LOST, "the engine did not answer within %d s",
                  static_cast<int>(std::chrono::duration_cast<std::chrono::seconds>(answer_limit).count()));
        return false;
    }
    if (!poll_for(socket, events, left)) {
        error.set_system("poll", errno);
        return false;
    }
    return true;
}

/// Sends a message, waiting for room in the socket's queue.
inline bool send_until(int socket, const Message &message, int fd, Clock::time_point until, Error &error) noexcept {
    for (;;) {
        switch (send_message(socket, message, fd)) {
        case Sent::done: return true;
        case Sent::closed: set_closed(error); return false;
        case Sent::failed: error.set_system("sendmsg", errno); return false;
        case Sent::no_room:
            if (!wait_ready(socket, POLLOUT, until, error)) {
                return false;
            }
        }
    }
}

/// Waits for the next message.
inline bool receive_until(int socket, Received &out, Clock::time_point until, Error &error) noexcept {
    for (;;) {
        const Got got = receive_message(socket, out, error);
        if (got != Got::nothing) {
            return got == Got::message;
        }
        if (!wait_ready(socket, POLLIN, until, error)) {
            return false;
        }
    }
}

/// False, and an error, if the answer is a refusal.
inline bool is_granted(const Message &answer, Error &error) noexcept {
    if (answer.status == SCATTER_RING_STATUS_OK) {
        return true;
    }
    error.set(ErrorKind::refused, answer.status, "%s%s%.*s", StatusText(answer.status).text,
              answer.name_bytes > 0 ? ": " : "", static_cast<int>(answer.name_bytes), answer.name);
    return false;
}

/// Connects to the engine's socket.
inline Fd connect_to(const char *path, std::size_t length, Error &error) noexcept {
    ::sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (length == 0 || length >= sizeof address.sun_path || std::memchr(path, '\0', length) != nullptr) {
        const int refusal = length == 0 ? ENOENT : length >= sizeof address.sun_path ? ENAMETOOLONG : EINVAL;
        error.set_system("the socket's path", refusal);
        return Fd();
    }
    std::memcpy(address.sun_path, path, length);
    Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!socket) {
        error.set_system("socket", errno);
        return Fd();
    }
    // A listener that accepts nobody must not hold this process up.
    ::timeval limit{};
    limit.tv_sec = static_cast<time_t>(std::chrono::duration_cast<std::chrono::seconds>(answer_limit).count());
    if (::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0) {
        error.set_system("setsockopt", errno);
        return Fd();
    }
    int connected;
    do {
        connected = ::connect(socket.get(), reinterpret_cast<const ::sockaddr *>(&address), sizeof address);
    } while (connected != 0 && errno == EINTR);
    if (connected == 0) {
        return socket;
    }
    switch (errno) {
    case ENOENT:
    case ENOTDIR:
        error.set(ErrorKind::no_socket, SCATTER_RING_STATUS_ENGINE_LOST,
                  "no socket at %s: is `scatter-ring serve` running, and is this its path?", path);
        break;
    case ECONNREFUSED:
    case EPROTOTYPE:
        error.set(ErrorKind::nobody_listens, SCATTER_RING_STATUS_ENGINE_LOST,
                  "nobody listens at %s (connection refused): is `scatter-ring serve` running?", path);
        break;
    case EAGAIN:
        error.set(ErrorKind::no_answer, SCATTER_RING_STATUS_ENGINE_LOST, "the engine at %s did not answer within %d s",
                  path, static_cast<int>(limit.tv_sec));
        break;
    case EACCES:
    case EPERM:
        error.set(
            ErrorKind::not_permitted, SCATTER_RING_STATUS_NOT_ALLOWED,
            "not permitted to use %s: run as the user of the engine, or get access to the socket and its directory",
            path);
        break;
    default: error.set_system("connect", errno);
    }
    return Fd();
}

/// Maps memory that the engine made, after checking that nobody can cut it short.
inline bool map_area(Mapping &to, int fd, std::size_t bytes, bool writable, const char *what, Error &error) noexcept {
    const int seals = ::fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
        error.set(ErrorKind::bad_message, SCATTER_RING_STATUS_BAD_MESSAGE,
                  "mapping %s: it is not sealed against shrinking", what);
        return false;
    }
    struct ::stat about{};
    if (::fstat(fd, &about) != 0 || about.st_size < 0 || static_cast<std::uint64_t>(about.st_size) < bytes) {
        error.set(ErrorKind::bad_message, SCATTER_RING_STATUS_BAD_MESSAGE,
                  "mapping %s: it is smaller than its header says", what);
        return false;
    }
    if (!to.map(fd, 0, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_POPULATE)) {
        char operation[64];
        std::snprintf(operation, sizeof operation, "mapping %s", what);
        error.set_system(operation, errno);
        return false;
    }
    return true;
}

/// The client's side of a ring pair.
struct Areas {
    ::scatter_ring_header header{};
    Mapping submit;
    Mapping complete;
    /// Writes descriptors.
    Producer sq;
    /// Takes spans.
    Consumer cq;
    /// Written by the client before it sleeps.
    Word *client_sleep = nullptr;
    /// Read by the client after it has published descriptors.
    const Word *engine_sleep = nullptr;
    /// Set when the session has ended.
    const Word *stop = nullptr;
};

/// Maps the areas that the engine sent: submit area for writing, complete area for reading.
inline bool map_areas(Areas &areas, int submit, int complete, std::uint32_t sq_capacity, std::uint32_t cq_capacity,
                      Error &error) noexcept {
    if (!scatter_ring_header_is_capacity(sq_capacity) || !scatter_ring_header_is_capacity(cq_capacity)) {
        set_bad_message(error, "a ring capacity is not allowed");
        return false;
    }
    if (!map_area(areas.complete, complete, scatter_ring_complete_bytes(cq_capacity), false, "the complete area",
                  error)) {
        return false;
    }
    Word words[sizeof areas.header / sizeof(Word)];
    for (std::size_t i = 0; i < sizeof words / sizeof(Word); i++) {
        words[i] = __atomic_load_n(reinterpret_cast<const Word *>(areas.complete.at(8 * i)), __ATOMIC_RELAXED);
    }
    std::memcpy(&areas.header, words, sizeof words);
    const char *field = nullptr;
    const std::int32_t status = scatter_ring_header_check(&areas.header, &field);
    if (status != SCATTER_RING_STATUS_OK) {
        error.set(ErrorKind::refused, status, "%s: header: %s", StatusText(status).text, field);
        return false;
    }
    if (areas.header.sq_capacity != sq_capacity || areas.header.cq_capacity != cq_capacity) {
        set_bad_message(error, "header and answer disagree on a capacity");
        return false;
    }
    if (!map_area(areas.submit, submit, scatter_ring_submit_bytes(sq_capacity), true, "the submit area", error)) {
        return false;
    }
    const auto word_of = [](const Mapping &area, std::size_t at) { return reinterpret_cast<Word *>(area.at(at)); };
    RingWords sq, cq;
    sq.slots = word_of(areas.submit, SCATTER_RING_SUBMIT_SLOTS);
    sq.head = word_of(areas.complete, SCATTER_RING_COMPLETE_HEAD);
    sq.tail = word_of(areas.submit, SCATTER_RING_SUBMIT_TAIL);
    sq.capacity = sq_capacity;
    cq.slots = word_of(areas.complete, SCATTER_RING_COMPLETE_SLOTS);
    cq.head = word_of(areas.submit, SCATTER_RING_SUBMIT_HEAD);
    cq.tail = word_of(areas.complete, SCATTER_RING_COMPLETE_TAIL);
    cq.capacity = cq_capacity;
    areas.sq = Producer(sq, areas.header.start_position);
    areas.cq = Consumer(cq, areas.header.start_position);
    areas.client_sleep = word_of(areas.submit, SCATTER_RING_SUBMIT_SLEEP_WORD);
    areas.engine_sleep = word_of(areas.complete, SCATTER_RING_COMPLETE_SLEEP_WORD);
    areas.stop = word_of(areas.complete, SCATTER_RING_COMPLETE_STOP_WORD);
    return true;
}

/// What the engine handed out.
struct Greeted {
    Areas areas;
    Fd doorbell;
    Fd wake;
};

/// An engine of another version, in a sentence.
inline void set_version(Error &error, std::uint64_t engine_abi) noexcept {
    char engine[64] = "of another version";
    const auto describe = [](char (&to)[64], std::uint64_t abi) {
        std::snprintf(to, sizeof to, "%u.%u with entries of %u bytes", static_cast<unsigned>(abi & 0xFFFF),
                      static_cast<unsigned>(abi >> 16 & 0xFFFF), static_cast<unsigned>(abi >> 32 & 0xFFFF));
    };
    if (engine_abi != 0) {
        describe(engine, engine_abi);
    }
    char client[64];
    describe(client, scatter_ring_abi_word());
    error.set(ErrorKind::version, SCATTER_RING_STATUS_VERSION_MISMATCH,
              "the engine speaks ABI %s, this process %s: use the same scatter-ring version on both sides", engine,
              client);
}

/// True if a descriptor can be rung: to write to a pipe or to a socket can end this process by a signal.
inline bool is_doorbell(int fd) noexcept {
    struct ::stat about{};
    return ::fstat(fd, &about) == 0 && !S_ISFIFO(about.st_mode) && !S_ISSOCK(about.st_mode);
}

inline bool is_socket(int fd) noexcept {
    struct ::stat about{};
    return ::fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode);
}

/// Agrees on a session and maps its areas.
inline bool say_hello(int socket, const Setup &setup, Greeted &greeted, Error &error) noexcept {
    const std::uint64_t needed = SCATTER_RING_FEATURES_LOCAL |
                                 (setup.notifications ? static_cast<std::uint64_t>(SCATTER_RING_FEATURES_NOTIFY) : 0);
    const Message hello =
        scatter_ring_message_hello(needed, setup.sq_capacity, setup.cq_capacity, setup.start_position);
    // An engine that refuses whoever connects says why, and closes before it is asked.
    const Sent sent = send_message(socket, hello, -1);
    if (sent != Sent::done && sent != Sent::closed) {
        error.set_system("sendmsg", errno);
        return false;
    }
    Received received;
    if (!receive_until(socket, received, Clock::now() + answer_limit, error)) {
        return false;
    }
    const Message &answer = received.message;
    if (answer.kind != (SCATTER_RING_KIND_HELLO | SCATTER_RING_KIND_ANSWER) || answer.request != hello.request) {
        set_bad_message(error, "the first answer is not about HELLO");
        return false;
    }
    const std::uint64_t engine_abi = answer.args[0], offered = answer.args[1], capacities = answer.args[2];
    const bool matches = scatter_ring_abi_matches(engine_abi);
    if (answer.status == SCATTER_RING_STATUS_VERSION_MISMATCH ||
        (answer.status == SCATTER_RING_STATUS_OK && !matches)) {
        set_version(error, engine_abi);
        return false;
    }
    if (!is_granted(answer, error)) {
        return false;
    }
    if ((needed & ~offered) != 0) {
        error.set(ErrorKind::refused, SCATTER_RING_STATUS_MISSING_FEATURE,
                  "%s: the engine lacks the feature bits 0x%" PRIx64,
                  StatusText(SCATTER_RING_STATUS_MISSING_FEATURE).text, needed & ~offered);
        return false;
    }
    if (received.fd_count != 4) {
        set_bad_message(error, "the answer to HELLO comes with four file descriptors");
        return false;
    }
    if (!is_doorbell(received.fds[2].get()) || !is_socket(received.fds[3].get())) {
        set_bad_message(error, "a doorbell or a wake socket that is something else");
        return false;
    }
    if (!map_areas(greeted.areas, received.fds[0].get(), received.fds[1].get(), static_cast<std::uint32_t>(capacities),
                   static_cast<std::uint32_t>(capacities >> 32), error)) {
        return false;
    }
    if (greeted.areas.header.epoch != answer.args[3]) {
        set_bad_message(error, "header and answer disagree on the epoch");
        return false;
    }
    if (greeted.areas.header.start_position != setup.start_position) {
        set_bad_message(error, "the rings do not start where they were asked to");
        return false;
    }
    greeted.doorbell = std::move(received.fds[2]);
    greeted.wake = std::move(received.fds[3]);
    return true;
}

} // namespace detail
} // namespace scatter_ring

#endif
