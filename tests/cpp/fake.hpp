// An engine for the tests of hostile engines: simple, and wrong on request.
#ifndef FAKE_HPP
#define FAKE_HPP

#include "check.hpp"

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include <sys/eventfd.h>

using Message = ::scatter_ring_message;

/// How the fake says hello.
struct Manners {
    /// Changes the header before it is shown, and the answer before it is sent.
    void (*header)(::scatter_ring_header &) = [](::scatter_ring_header &) {};
    void (*answer)(Message &) = [](Message &) {};
    bool sealed = true;
    std::size_t missing_bytes = 0;
    unsigned fds = 4;
    /// Descriptors in the places of the doorbell and of the wake socket.
    int doorbell = -1, wake = -1;
};

/// The engine's side of one session.
class Fake {
public:
    /// The socket that a client attaches over.
    int client_socket = -1;

    explicit Fake(const Manners &how = {}) : manners_(how) {
        int ends[2];
        CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
        client_socket = ends[0];
        socket_ = ends[1];
        desk_ = std::thread([this] { serve(); });
    }

    ~Fake() {
        die();
        ::shutdown(socket_, SHUT_RDWR);
        desk_.join();
        ::close(socket_);
        for (const int fd : {doorbell_, submit_fd_, complete_fd_}) {
            ::close(fd);
        }
        ::munmap(submit_, submit_bytes_);
        ::munmap(complete_, complete_bytes_);
    }

    /// Changes answers before they are sent.
    void twist(std::function<void(Message &)> how) {
        const std::lock_guard<std::mutex> lock(mutex_);
        twist_ = std::move(how);
    }

    /// Kinds of what was asked, in this order.
    std::vector<unsigned> asked() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return asked_;
    }

    /// What was closed last.
    std::uint64_t closed() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return closed_;
    }

    /// As if the process had died.
    void die() {
        if (wake_ >= 0) {
            ::close(std::exchange(wake_, -1));
        }
    }

    void span(const ::scatter_ring_span &span) {
        std::uint64_t words[8];
        std::memcpy(words, &span, sizeof words);
        std::uint64_t *slot = word(complete_, SCATTER_RING_COMPLETE_SLOTS + (cq_tail_ & (cq_capacity_ - 1)) * 64);
        for (int i = 0; i < 8; i++) {
            __atomic_store_n(slot + i, words[i], __ATOMIC_RELAXED);
        }
        cq_tail_ += 1;
        __atomic_store_n(word(complete_, SCATTER_RING_COMPLETE_TAIL), cq_tail_, __ATOMIC_RELEASE);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (__atomic_load_n(word(submit_, SCATTER_RING_SUBMIT_SLEEP_WORD), __ATOMIC_RELAXED) != 0) {
            ::send(wake_, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        }
    }

    /// The next descriptor, if there is one.
    bool take(::scatter_ring_descriptor &descriptor) {
        if (__atomic_load_n(word(submit_, SCATTER_RING_SUBMIT_TAIL), __ATOMIC_ACQUIRE) == sq_head_) {
            return false;
        }
        std::memcpy(&descriptor, submit_ + SCATTER_RING_SUBMIT_SLOTS + (sq_head_ & (sq_capacity_ - 1)) * 64,
                    sizeof descriptor);
        sq_head_ += 1;
        __atomic_store_n(word(complete_, SCATTER_RING_COMPLETE_HEAD), sq_head_, __ATOMIC_RELEASE);
        return true;
    }

    /// Writes a word of the complete area.
    void lie(std::size_t offset, std::uint64_t value) {
        __atomic_store_n(word(complete_, offset), value, __ATOMIC_RELEASE);
    }

private:
    static std::uint64_t *word(unsigned char *area, std::size_t offset) {
        return reinterpret_cast<std::uint64_t *>(area + offset);
    }

    unsigned char *make_area(int &fd, std::size_t bytes) {
        fd = ::memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CHECK(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0);
        void *area = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(area != MAP_FAILED);
        return static_cast<unsigned char *>(area);
    }

    void welcome(const Message &hello) {
        sq_capacity_ = static_cast<std::uint32_t>(hello.args[3]);
        cq_capacity_ = static_cast<std::uint32_t>(hello.args[3] >> 32);
        submit_bytes_ = scatter_ring_submit_bytes(sq_capacity_);
        complete_bytes_ = scatter_ring_complete_bytes(cq_capacity_);
        submit_ = make_area(submit_fd_, submit_bytes_);
        complete_ = make_area(complete_fd_, complete_bytes_);
        ::scatter_ring_header header{};
        header.magic = SCATTER_RING_MAGIC;
        header.abi_major = SCATTER_RING_ABI_MAJOR;
        header.header_bytes = sizeof header;
        header.features = SCATTER_RING_FEATURES_LOCAL;
        header.epoch = 77;
        header.start_position = hello.args[4];
        header.descriptor_bytes = header.span_bytes = SCATTER_RING_ENTRY_BYTES;
        header.sq_capacity = sq_capacity_;
        header.cq_capacity = cq_capacity_;
        header.sq_tail_offset = SCATTER_RING_SUBMIT_TAIL;
        header.cq_head_offset = SCATTER_RING_SUBMIT_HEAD;
        header.client_sleep_offset = SCATTER_RING_SUBMIT_SLEEP_WORD;
        header.descriptors_offset = SCATTER_RING_SUBMIT_SLOTS;
        header.sq_head_offset = SCATTER_RING_COMPLETE_HEAD;
        header.cq_tail_offset = SCATTER_RING_COMPLETE_TAIL;
        header.engine_sleep_offset = SCATTER_RING_COMPLETE_SLEEP_WORD;
        header.stop_offset = SCATTER_RING_COMPLETE_STOP_WORD;
        header.spans_offset = SCATTER_RING_COMPLETE_SLOTS;
        sq_head_ = cq_tail_ = header.start_position;
        manners_.header(header);
        std::memcpy(complete_, &header, sizeof header);
        for (std::uint64_t *position :
             {word(submit_, SCATTER_RING_SUBMIT_TAIL), word(submit_, SCATTER_RING_SUBMIT_HEAD),
              word(complete_, SCATTER_RING_COMPLETE_HEAD), word(complete_, SCATTER_RING_COMPLETE_TAIL)}) {
            *position = sq_head_;
        }
        for (const int fd : {submit_fd_, complete_fd_}) {
            CHECK(manners_.missing_bytes == 0 ||
                  ::ftruncate(fd, static_cast<off_t>(4096 - manners_.missing_bytes)) == 0);
            CHECK(!manners_.sealed || ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
        }
        doorbell_ = ::eventfd(0, EFD_CLOEXEC);
        int ends[2];
        CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
        wake_ = ends[0];
        Message answer = answer_to(hello);
        answer.args[0] = scatter_ring_abi_word();
        answer.args[1] = header.features;
        answer.args[2] = hello.args[3];
        answer.args[3] = 77;
        manners_.answer(answer);
        const int fds[] = {submit_fd_, complete_fd_, manners_.doorbell >= 0 ? manners_.doorbell : doorbell_,
                           manners_.wake >= 0 ? manners_.wake : ends[1]};
        send(answer, fds, manners_.fds);
        ::close(ends[1]);
    }

    static Message answer_to(const Message &question) {
        Message answer{};
        answer.kind = static_cast<std::uint16_t>(question.kind | SCATTER_RING_KIND_ANSWER);
        answer.request = question.request;
        return answer;
    }

    void send(const Message &message, const int *fds, unsigned count) {
        ::iovec part{const_cast<Message *>(&message), sizeof message};
        alignas(::cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
        ::msghdr packet{};
        packet.msg_iov = &part;
        packet.msg_iovlen = 1;
        if (count > 0) {
            packet.msg_control = control;
            packet.msg_controllen = CMSG_SPACE(count * sizeof(int));
            ::cmsghdr *header = CMSG_FIRSTHDR(&packet);
            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SCM_RIGHTS;
            header->cmsg_len = CMSG_LEN(count * sizeof(int));
            std::vector<int> all(fds, fds + std::min(count, 4u));
            all.resize(count, doorbell_);
            std::memcpy(CMSG_DATA(header), all.data(), count * sizeof(int));
        }
        ::sendmsg(socket_, &packet, MSG_NOSIGNAL);
    }

    void serve() {
        std::uint64_t handles = 0;
        Message question{};
        while (::recv(socket_, &question, sizeof question, 0) == static_cast<ssize_t>(sizeof question)) {
            if (question.kind == SCATTER_RING_KIND_HELLO) {
                welcome(question);
                continue;
            }
            Message answer = answer_to(question);
            const std::lock_guard<std::mutex> lock(mutex_);
            asked_.push_back(question.kind);
            closed_ = question.kind == SCATTER_RING_KIND_CLOSE ? question.args[0] : closed_;
            if (question.kind == SCATTER_RING_KIND_REGISTER || question.kind == SCATTER_RING_KIND_OPEN) {
                handles += 1;
                answer.args[0] = handles | 1 << 12;
                answer.args[1] = question.kind == SCATTER_RING_KIND_OPEN ? std::uint64_t{1} << 40 : 0;
                answer.args[2] = question.args[0];
            }
            if (twist_) {
                twist_(answer);
            }
            if (question.request != SCATTER_RING_NO_ANSWER) {
                send(answer, nullptr, 0);
            }
        }
    }

    Manners manners_;
    int socket_ = -1, doorbell_ = -1, submit_fd_ = -1, complete_fd_ = -1, wake_ = -1;
    unsigned char *submit_ = nullptr, *complete_ = nullptr;
    std::size_t submit_bytes_ = 0, complete_bytes_ = 0;
    std::uint32_t sq_capacity_ = 0, cq_capacity_ = 0;
    std::uint64_t sq_head_ = 0, cq_tail_ = 0;
    std::thread desk_;
    std::mutex mutex_;
    std::function<void(Message &)> twist_;
    std::vector<unsigned> asked_;
    std::uint64_t closed_ = 0;
};

#endif
