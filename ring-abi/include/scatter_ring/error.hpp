// What can go wrong, in sentences. Part of scatter_ring.hpp.
#ifndef SCATTER_RING_ERROR_HPP
#define SCATTER_RING_ERROR_HPP

#include "../scatter_ring_abi.h"

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>

/// 1 where the overloads that throw exist: everywhere but under `-fno-exceptions`.
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
#define SCATTER_RING_EXCEPTIONS 1
#else
#define SCATTER_RING_EXCEPTIONS 0
#endif

namespace scatter_ring {

/// Another engine that this client's engine is connected to, or was. Every client of the same engine has the same
/// number for it; a client of another engine has another.
struct Peer {
    std::uint64_t number = 0;

    friend bool operator==(Peer a, Peer b) noexcept { return a.number == b.number; }
    friend bool operator!=(Peer a, Peer b) noexcept { return a.number != b.number; }
};

/// What kind of thing went wrong. What to do about it is in Error::message().
enum class ErrorKind : std::uint8_t {
    none,               ///< Nothing did.
    no_socket,          ///< Attaching: no socket at this path.
    nobody_listens,     ///< Attaching: a socket that nobody listens at.
    not_permitted,      ///< Attaching: the socket or its directory is not accessible.
    version,            ///< Attaching: the engine speaks another version of the ABI.
    no_answer,          ///< The engine has not answered in time.
    refused,            ///< The engine refuses, and says why.
    bad_message,        ///< The engine said something that this version does not understand.
    memory,             ///< Memory cannot be used as a region, or a range lies outside of it.
    busy,               ///< A batch under way uses the region.
    not_local,          ///< The region was opened: its bytes are not in this process.
    private_memory,     ///< Memory that no other process can map.
    closed,             ///< The client or the region was closed, or moved from.
    foreign,            ///< The region or ticket belongs to another client.
    forked,             ///< A forked child used its parent's session.
    sequence,           ///< A call that cannot stand here.
    notifications_full, ///< Nobody takes the notifications that have come.
    notifications_off,  ///< Notifications were not asked for.
    ended,              ///< The engine has ended the session, or is gone.
    broken,             ///< The engine broke its protocol; the session has ended.
    system,             ///< The kernel refused.
    batch,              ///< A batch failed, or a descriptor was refused: see Error::batch().
};

/// Why a batch failed, or was not submitted.
struct BatchError {
    /// The outcome of the batch: one of SCATTER_RING_STATUS_*.
    std::int32_t status = SCATTER_RING_STATUS_OK;
    /// Which descriptor failed, counted in the order in which they were pushed to the batch. All before it are done,
    /// none after it. Empty: it is about the batch as a whole.
    std::optional<std::uint32_t> descriptor;
    /// Ring position of that descriptor.
    std::uint64_t position = 0;
    /// Which of its fragments.
    std::uint32_t fragment = 0;
    /// Which of its fields: one of SCATTER_RING_FIELD_*.
    std::uint32_t field = static_cast<std::uint32_t>(SCATTER_RING_FIELD_NONE);
    /// The offending value: an offset, a row number, a handle, flag bits.
    std::uint64_t detail = 0;
    /// Where it failed: one of SCATTER_RING_STAGE_*.
    std::uint8_t stage = 0;
    /// Bytes in place by the descriptors before it.
    std::uint64_t bytes_done = 0;
    /// False while somebody may still write to the batch's buffers: Client::wait_released().
    bool reusable = true;
    /// The peer whose memory the batch used. Empty: none, or several.
    std::optional<Peer> peer;
};

/// What went wrong, as a value: a kind, a code, a sentence, and for a failed batch its particulars.
///
/// True if something did. No part of it is on the heap, and clearing it costs two stores.
class Error {
public:
    Error() noexcept { clear(); }
    Error(const Error &other) noexcept { copy(other); }
    Error &operator=(const Error &other) noexcept {
        if (this != &other) {
            copy(other);
        }
        return *this;
    }

    explicit operator bool() const noexcept { return kind_ != ErrorKind::none; }
    ErrorKind kind() const noexcept { return kind_; }
    /// The code for it, one of SCATTER_RING_STATUS_*: the same as the Rust client's.
    std::int32_t status() const noexcept { return kind_ == ErrorKind::none ? SCATTER_RING_STATUS_OK : status_; }
    /// What the kernel said (`errno`), 0 if it is not about the kernel.
    int system_error() const noexcept { return kind_ == ErrorKind::system ? system_error_ : 0; }
    /// What failed, where, and what to do about it. Lives as long as this value.
    const char *message() const noexcept { return kind_ == ErrorKind::none ? "" : text_; }
    /// Of an error of kind ErrorKind::batch its particulars, else nullptr.
    const BatchError *batch() const noexcept { return kind_ == ErrorKind::batch ? &batch_ : nullptr; }
    void clear() noexcept {
        kind_ = ErrorKind::none;
        text_[0] = '\0';
    }

    /// For the library.
    /// @private
    __attribute__((format(printf, 4, 5), cold)) void set(ErrorKind kind, std::int32_t status, const char *format,
                                                         ...) noexcept {
        kind_ = kind;
        status_ = status;
        system_error_ = 0;
        std::va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(text_, sizeof text_, format, arguments);
        va_end(arguments);
    }

    /// @private
    __attribute__((cold)) void set_system(const char *operation, int number) noexcept {
        set(ErrorKind::system, SCATTER_RING_STATUS_NO_MEMORY, "%s: %s (os error %d)", operation, std::strerror(number),
            number);
        system_error_ = number;
    }

    /// @private
    void set_batch(const BatchError &what) noexcept;

private:
    void copy(const Error &other) noexcept {
        kind_ = other.kind_;
        text_[0] = '\0';
        if (kind_ != ErrorKind::none) {
            status_ = other.status_;
            system_error_ = other.system_error_;
            batch_ = other.batch_;
            std::memcpy(text_, other.text_, sizeof text_);
            return;
        }
    }

    ErrorKind kind_;
    std::int32_t status_ = SCATTER_RING_STATUS_OK;
    int system_error_ = 0;
    BatchError batch_;
    char text_[384];
};

namespace detail {

/// A status as people read it: its text, and its name in brackets.
struct StatusText {
    explicit StatusText(std::int32_t status) noexcept {
        const char *name = scatter_ring_status_name(status);
        if (name != nullptr) {
            std::snprintf(text, sizeof text, "%s (%s)", scatter_ring_status_text(status), name);
        } else {
            std::snprintf(text, sizeof text, "unknown status %d", static_cast<int>(status));
        }
    }
    char text[128];
};

/// An error that is about no descriptor.
inline BatchError whole(std::int32_t status, std::uint64_t position, bool reusable) noexcept {
    BatchError error;
    error.status = status;
    error.position = position;
    error.reusable = reusable;
    return error;
}

} // namespace detail

__attribute__((cold)) inline void Error::set_batch(const BatchError &what) noexcept {
    char who[48] = "the batch";
    char fragment[32] = "";
    char field[48] = "";
    char value[40] = "";
    if (what.descriptor) {
        std::snprintf(who, sizeof who, "descriptor %u of the batch", *what.descriptor);
        // In the other failures no fragment was looked at, and its number is 0.
        const bool by_fragment = what.field == static_cast<std::uint32_t>(SCATTER_RING_FIELD_SRC_OFFSET) ||
                                 what.field == static_cast<std::uint32_t>(SCATTER_RING_FIELD_DST_OFFSET) ||
                                 what.fragment > 0;
        if (by_fragment) {
            std::snprintf(fragment, sizeof fragment, ", fragment %u", what.fragment);
        }
        const char *name = scatter_ring_field_name(what.field);
        if (name != nullptr && what.status != SCATTER_RING_STATUS_OK) {
            std::snprintf(field, sizeof field, ", %s", name);
            std::snprintf(value, sizeof value, ", value %llu", static_cast<unsigned long long>(what.detail));
        }
    }
    set(ErrorKind::batch, what.status, "%s%s%s: %s%s%s", who, fragment, field, detail::StatusText(what.status).text,
        value, what.reusable ? "; buffers are reusable" : "; buffers may still be written");
    batch_ = what;
}

#if SCATTER_RING_EXCEPTIONS

/// What the overloads without an Error throw.
class Exception : public std::exception {
public:
    explicit Exception(const Error &error) noexcept : error_(error) {}
    const char *what() const noexcept override { return error_.message(); }
    const Error &error() const noexcept { return error_; }

private:
    Error error_;
};

/// The same about a batch, with its particulars.
class BatchException : public Exception {
public:
    using Exception::Exception;
    const BatchError &batch() const noexcept { return *error().batch(); }
};

namespace detail {

[[noreturn]] __attribute__((cold, noinline)) inline void throw_error(const Error &error) {
    if (error.kind() == ErrorKind::batch) {
        throw BatchException(error);
    }
    throw Exception(error);
}

/// Makes of a call that reports to an Error one that throws.
template <class Call> inline auto throwing(Call call) {
    Error error;
    auto result = call(error);
    if (error) {
        throw_error(error);
    }
    return result;
}

} // namespace detail

#endif // SCATTER_RING_EXCEPTIONS

} // namespace scatter_ring

#endif
