// What the C++ test programs share: claims with names, checks that say where, a seeded generator.
#ifndef CHECK_HPP
#define CHECK_HPP

#include "scatter_ring.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fail(__FILE__, __LINE__, #condition, "");                                                                  \
        }                                                                                                              \
    } while (false)

/// Nothing has failed; if something has, its message is shown.
#define CHECK_FINE(error)                                                                                              \
    do {                                                                                                               \
        if (error) {                                                                                                   \
            fail(__FILE__, __LINE__, "no error", (error).message());                                                   \
        }                                                                                                              \
    } while (false)

/// The message has this in it.
#define CHECK_SAYS(message, part)                                                                                      \
    do {                                                                                                               \
        const std::string said = (message);                                                                            \
        if (said.find(part) == std::string::npos) {                                                                    \
            fail(__FILE__, __LINE__, part, said.c_str());                                                              \
        }                                                                                                              \
    } while (false)

[[noreturn]] inline void fail(const char *file, int line, const char *what, const char *seen) {
    std::fprintf(stderr, "%s:%d: not so: %s %s\n", file, line, what, seen);
    std::_Exit(1);
}

/// A claim: its name is a sentence, its body fails if it is not so.
struct Claim {
    const char *name;
    void (*body)();

    static std::vector<Claim> &all() {
        static std::vector<Claim> claims;
        return claims;
    }
    Claim(const char *claim, void (*check)()) : name(claim), body(check) { all().push_back(*this); }
};

#define CLAIM(name)                                                                                                    \
    static void name();                                                                                                \
    static const Claim claim_##name(#name, name);                                                                      \
    static void name()

/// Where the daemon listens: the program's first argument.
inline std::string &socket_path() {
    static std::string path;
    return path;
}

/// Checks every claim, or the one that is named, and prints each that holds.
inline int check_claims(int argc, char **argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s SOCKET [CLAIM]\n", argv[0]);
        return 2;
    }
    socket_path() = argv[1];
    int held = 0;
    for (const Claim &claim : Claim::all()) {
        if (argc > 2 && std::string(argv[2]) != claim.name) {
            continue;
        }
        std::fprintf(stderr, "checking %s\n", claim.name);
        claim.body();
        std::printf("holds: %s\n", claim.name);
        std::fflush(stdout);
        held += 1;
    }
    std::printf("%d claims hold\n", held);
    return held > 0 ? 0 : 1;
}

/// A small generator (splitmix64): tests are repeatable from their seed.
struct Random {
    std::uint64_t state;

    std::uint64_t next() {
        state += 0x9E3779B97F4A7C15;
        std::uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
        return z ^ (z >> 31);
    }
    std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(next() % n); }
    bool one_in(std::uint32_t n) { return below(n) == 0; }
};

#endif
