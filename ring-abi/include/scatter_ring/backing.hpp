// Finding the file behind memory that is mapped already, and mapping memory files. Part of scatter_ring.hpp.
#ifndef SCATTER_RING_BACKING_HPP
#define SCATTER_RING_BACKING_HPP

#include "system.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <string>

#include <dirent.h>
#include <sys/sysinfo.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

namespace scatter_ring {
namespace detail {

/// Where memory of this process comes from.
struct Backing {
    /// Open for what the mapping allows. None: nobody else can map this memory.
    Fd file;
    /// Byte of the file that the memory begins with.
    std::uint64_t offset = 0;
};

/// One line of /proc/self/maps.
struct MapsLine {
    std::uint64_t start = 0, end = 0, offset = 0, inode = 0;
    dev_t device = 0;
    bool writable = false, is_shared_file = false;
    std::string name;

    bool parse(const std::string &line) {
        char access[5] = "";
        unsigned major = 0, minor = 0;
        int path_at = 0;
        const int fields = std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64 " %n",
                                       &start, &end, access, &offset, &major, &minor, &inode, &path_at);
        if (fields != 7) {
            return false;
        }
        device = makedev(major, minor);
        writable = access[1] == 'w';
        // Memory that was shared without a file has the file name of /dev/zero.
        const bool anonymous = line.compare(static_cast<std::size_t>(path_at), 9, "/dev/zero") == 0;
        is_shared_file = access[3] == 's' && inode != 0 && !anonymous;
        name = line.substr(0, line.find(' '));
        return true;
    }
};

/// What one shared mapping, or several adjacent ones of one file that go on where the one before ends, says of a range.
/// False: the range is private, of several files, or not mapped at all.
inline bool find_covering(const std::string &maps, std::uint64_t base, std::uint64_t bytes, MapsLine &found) {
    const std::uint64_t end = base + bytes;
    std::uint64_t covered = base;
    bool any = false;
    for (std::size_t at = 0; end > base && at < maps.size();) {
        const std::size_t newline = maps.find('\n', at);
        MapsLine line;
        const bool parsed = line.parse(maps.substr(at, newline - at));
        at = newline == std::string::npos ? maps.size() : newline + 1;
        if (!parsed || line.end <= base || line.start >= end) {
            continue;
        }
        if (covered < line.start || !line.is_shared_file) {
            return false;
        }
        const std::uint64_t offset = line.offset + (covered - line.start);
        const std::uint64_t next = line.end;
        if (!any) {
            found = std::move(line);
            found.offset = offset;
            any = true;
        } else if (line.start != covered || line.inode != found.inode || line.device != found.device ||
                   offset != found.offset + (covered - base) || line.writable != found.writable) {
            return false;
        }
        covered = next;
    }
    return any && covered >= end;
}

inline bool is_file_of(int fd, const MapsLine &found) noexcept {
    struct ::stat about{};
    return ::fstat(fd, &about) == 0 && about.st_dev == found.device && about.st_ino == found.inode;
}

inline bool allows(int fd, bool writable) noexcept {
    const int mode = ::fcntl(fd, F_GETFL);
    if (mode < 0 || (mode & O_PATH) != 0) {
        return false;
    }
    return (mode & O_ACCMODE) == O_RDWR || (!writable && (mode & O_ACCMODE) == O_RDONLY);
}

/// A duplicate of a descriptor that this process has of the file.
inline Fd opened_already(const MapsLine &found) noexcept {
    ::DIR *folder = ::opendir("/proc/self/fd");
    Fd match;
    while (folder != nullptr && !match) {
        const ::dirent *entry = ::readdir(folder);
        if (entry == nullptr) {
            break;
        }
        char *rest = nullptr;
        const long number = std::strtol(entry->d_name, &rest, 10);
        if (rest == entry->d_name || *rest != '\0' || number == ::dirfd(folder)) {
            continue;
        }
        // What another thread has closed by now, or opened anew under this number, the duplicate shows.
        Fd fd(::fcntl(static_cast<int>(number), F_DUPFD_CLOEXEC, 0));
        if (fd && is_file_of(fd.get(), found) && allows(fd.get(), found.writable)) {
            match = std::move(fd);
        }
    }
    if (folder != nullptr) {
        ::closedir(folder);
    }
    return match;
}

/// The file behind `base .. base + bytes`: one that this process has open, else the kernel is asked for it, which it
/// grants to few processes. False: `errno` says why nothing can be said.
inline bool find_backing(const void *base, std::uint64_t bytes, Backing &backing) noexcept {
    Fd file(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
    if (!file) {
        return false;
    }
    std::string maps;
    char part[4096];
    ssize_t got;
    while ((got = ::read(file.get(), part, sizeof part)) != 0) {
        if (got > 0) {
            maps.append(part, static_cast<std::size_t>(got));
        } else if (errno != EINTR) {
            return false;
        }
    }
    MapsLine found;
    if (!find_covering(maps, reinterpret_cast<std::uintptr_t>(base), bytes, found)) {
        return true;
    }
    backing.offset = found.offset;
    backing.file = opened_already(found);
    if (!backing.file) {
        const std::string path = "/proc/self/map_files/" + found.name;
        Fd opened(::open(path.c_str(), (found.writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK));
        // Another thread may have mapped something else there meanwhile.
        if (opened && is_file_of(opened.get(), found)) {
            backing.file = std::move(opened);
        }
    }
    return true;
}

inline void set_bad_fd(Error &error, const char *what) noexcept {
    error.set(ErrorKind::memory, SCATTER_RING_STATUS_BAD_FD, "not usable as a region: %s", what);
}

inline void set_empty(Error &error) noexcept {
    error.set(ErrorKind::memory, SCATTER_RING_STATUS_INVALID_SETTING, "a region of 0 bytes");
}

/// True for memory of a GPU, or of another device that hands out its memory as a dma-buf. What is written there may be
/// seen by the device later than a transfer is called done.
inline bool is_device_memory(int fd) noexcept {
    char path[64], name[16] = "";
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    constexpr char prefix[] = "/dmabuf:";
    return ::readlink(path, name, sizeof name) >= static_cast<ssize_t>(sizeof prefix - 1) &&
           std::memcmp(name, prefix, sizeof prefix - 1) == 0;
}

/// The seals of a memory file that may be mapped so; negative, and an error, for anything else.
inline int seals_of(int fd, bool writable, Error &error) noexcept {
    const int mode = ::fcntl(fd, F_GETFL);
    if (mode < 0 || (mode & O_PATH) != 0) {
        set_bad_fd(error, mode < 0 ? "its mode cannot be read" : "opened as a path only");
        return -1;
    }
    // First, because only memory files have seals: a file of another kind could make other calls wait.
    const int seals = ::fcntl(fd, F_GET_SEALS);
    if (seals < 0) {
        set_bad_fd(error, is_device_memory(fd)
                              ? "memory of a GPU or of another device (a dma-buf): what is written there cannot "
                                "be flushed before a transfer is called done; use memory of the host"
                              : "not a memory file (no seals)");
        return -1;
    }
    if (writable && (mode & O_ACCMODE) != O_RDWR) {
        set_bad_fd(error, "not open for writing");
        return -1;
    }
    constexpr int future_write = 0x0010; // F_SEAL_FUTURE_WRITE, which older headers lack.
    if (writable && (seals & (F_SEAL_WRITE | future_write)) != 0) {
        set_bad_fd(error, "sealed against writing");
        return -1;
    }
    return seals;
}

/// A mapping of part of a memory file: whole pages, and where in them the part begins.
struct MappedPart {
    Mapping mapping;
    std::uint64_t skipped = 0;
};

/// Maps `bytes` bytes of a file from any byte on.
///
/// `populate`: page tables are filled now, so that copying takes no faults. Only for a file that has its pages: else
/// this would allocate them.
inline bool map_part(MappedPart &part, int fd, std::uint64_t offset, std::uint64_t bytes, std::uint64_t page_bytes,
                     bool writable, bool populate, Error &error) noexcept {
    // The kernel does not map or unmap part of a huge page.
    part.skipped = offset % page_bytes;
    const std::uint64_t whole = next_multiple(part.skipped + bytes, page_bytes);
    const int flags = populate ? MAP_SHARED | MAP_POPULATE : MAP_SHARED;
    if (!part.mapping.map(fd, offset - part.skipped, whole, writable ? PROT_READ | PROT_WRITE : PROT_READ, flags)) {
        error.set_system("mmap", errno);
        return false;
    }
    return true;
}

/// Maps a memory file of this process's own.
inline bool map_own_file(MappedPart &part, int fd, std::uint64_t offset, std::uint64_t bytes, bool writable,
                         Error &error) noexcept {
    if (seals_of(fd, writable, error) < 0) {
        return false;
    }
    struct ::stat about{};
    struct ::statfs filesystem{};
    if (::fstat(fd, &about) != 0 || ::fstatfs(fd, &filesystem) != 0) {
        error.set_system("fstat", errno);
        return false;
    }
    if (!S_ISREG(about.st_mode)) {
        set_bad_fd(error, "not a regular file");
        return false;
    }
    if (bytes == 0) {
        set_empty(error);
        return false;
    }
    const auto file_bytes = static_cast<std::uint64_t>(about.st_size);
    if (offset > file_bytes || bytes > file_bytes - offset) {
        error.set(ErrorKind::memory, SCATTER_RING_STATUS_INVALID_SETTING,
                  "a region of %" PRIu64 " bytes at %" PRIu64 " of a file of %" PRIu64, bytes, offset, file_bytes);
        return false;
    }
    constexpr std::uint64_t block_bytes = 512;
    const bool all_there = static_cast<std::uint64_t>(about.st_blocks) * block_bytes >= file_bytes;
    return map_part(part, fd, offset, bytes, static_cast<std::uint64_t>(filesystem.f_bsize), writable, all_there,
                    error);
}

/// Bytes of a reserved huge page on x86-64 and on aarch64 with 4 KiB base pages.
inline constexpr std::uint64_t huge_bytes = 2u << 20;

/// Allocates a file's pages. False: `errno` says why.
///
/// Part by part: a kernel may end a call at any signal, and what that call had allocated is then given back.
inline bool take_pages(int fd, std::uint64_t bytes) noexcept {
    for (std::uint64_t at = 0; at < bytes; at += std::min(bytes - at, huge_bytes)) {
        while (::fallocate(fd, 0, static_cast<off_t>(at), static_cast<off_t>(std::min(bytes - at, huge_bytes))) != 0) {
            if (errno != EINTR) {
                return false;
            }
        }
    }
    return true;
}

inline bool make_file(Fd &file, MappedPart &part, std::uint64_t bytes, bool huge, Error &error) noexcept {
    constexpr unsigned huge_2mb = 21u << 26; // MFD_HUGE_2MB, which is in a header that not everybody has.
    const std::uint64_t page_bytes = huge ? huge_bytes : static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t file_bytes = huge ? next_multiple(bytes, huge_bytes) : bytes;
    file = Fd(
        ::memfd_create("scatter-ring-region", MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | huge_2mb : 0u)));
    if (!file) {
        error.set_system("memfd_create", errno);
        return false;
    }
    if (::ftruncate(file.get(), static_cast<off_t>(file_bytes)) != 0) {
        error.set_system("ftruncate", errno);
        return false;
    }
    // Pages that cannot be had are an error now, and not a SIGBUS at the first touch.
    if (!take_pages(file.get(), file_bytes)) {
        error.set_system("fallocate", errno);
        return false;
    }
    if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        error.set_system("sealing", errno);
        return false;
    }
    return map_part(part, file.get(), 0, bytes, page_bytes, true, true, error);
}

/// New memory, all 0 and all present, in a file sealed against shrinking, of reserved 2 MiB pages where there are
/// enough.
inline bool make_memory(Fd &file, MappedPart &part, std::uint64_t bytes, Error &error) noexcept {
    if (bytes == 0) {
        set_empty(error);
        return false;
    }
    // The kernel would take all that there is before it says no.
    struct ::sysinfo machine{};
    ::sysinfo(&machine);
    const std::uint64_t unit = machine.mem_unit;
    if (unit == 0 || bytes / unit > machine.totalram + machine.totalswap) {
        error.set_system("more than this machine has", ENOMEM);
        return false;
    }
    if (bytes >= huge_bytes && make_file(file, part, bytes, true, error)) {
        return true;
    }
    error.clear();
    return make_file(file, part, bytes, false, error);
}

} // namespace detail
} // namespace scatter_ring

#endif
