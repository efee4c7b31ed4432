/**
 * @file
 * @brief A producer for scatter-ring in C++17: header only, with no library to link.
 *
 * scatter-ring moves many small pieces of memory between processes and hosts: table rows by number, blocks of a paged
 * cache, strided tiles, or any descriptors. A Client attaches to an engine (`scatter-ring serve`, or one in this
 * process), gives it Regions, and describes in a Batch what to move between them. The descriptors go through a ring in
 * shared memory: while the engine is awake, submitting and reaping are no system calls.
 *
 * @code
 * #include "scatter_ring.hpp"
 *
 * auto client = scatter_ring::Client::attach("/run/scatter-ring/socket");
 * auto table = client.open("embeddings", scatter_ring::Rights::read);
 * auto out = client.allocate(3 * 264);
 *
 * // One call: three rows of 264 bytes.
 * const std::uint32_t numbers[] = {7, 0, 99999};
 * client.read_rows(table, 264, numbers, 3, out);
 *
 * // The same as a batch, which may mix any number of descriptors.
 * auto index = client.index_region(sizeof numbers);
 * index.write_at(0, numbers, sizeof numbers);
 * auto batch = client.batch();
 * batch.hint(3, 3 * 264).read_rows(scatter_ring::Rows::packed(table, 264, index, 3, out));
 * auto ticket = batch.submit();
 * assert(client.wait(ticket).bytes == 3 * 264);
 * @endcode
 *
 * @par Errors, as exceptions or as values
 *
 * As in std::filesystem every call that can fail exists twice. One overload takes an Error& as its last argument and is
 * noexcept: it clears it, or sets it and returns an empty value (false, a Region, Ticket or Client that is false). The
 * other one throws an Exception with the same Error in it, or a BatchException if it is about a batch. Under
 * -fno-exceptions there is only the first. What happens often and is no failure is a return value in both: a full ring,
 * nothing to reap, a wait whose time is up. Memory of the heap that cannot be had ends the process in both.
 *
 * What a batch failed with, an Error tells in full: status, descriptor, fragment, field, offending value, stage, bytes
 * done, and whether its buffers are reusable. Statuses, fields, stages, routes and features are the numbers of
 * scatter_ring_abi.h, which has names and texts for them.
 *
 * @par Who owns what
 *
 * Client, Batch and Ticket can be moved and not copied. A Region is a shared handle, because a batch under way needs
 * one too: memory that a batch may still touch stays, whatever the program drops. If the session ends before a batch
 * was released, its regions stay busy for good. Whatever is dropped is given back. Any of them may outlive its Client.
 *
 * @par Threads
 *
 * One producer per thread: a Client with its Batches and Tickets is used by one thread at a time, and a program with
 * several threads attaches several times. Regions may be used by any thread. In a forked child every call fails with
 * ErrorKind::forked; the parent is not harmed.
 *
 * @par What it needs
 *
 * Linux, a little-endian 64-bit processor, GCC or Clang, C++17. Nothing of the engine has to be installed to compile,
 * and nothing has to run before attach().
 *
 * @par Reading on
 *
 * client.hpp and batch.hpp are what a program calls; shapes.hpp, region.hpp, pending.hpp and error.hpp what it hands
 * over and gets back. Underneath: ring.hpp the two rings and every ordering, state.hpp the session, attach.hpp how it
 * is agreed on, notify.hpp what comes from other clients, backing.hpp and system.hpp what is asked of the kernel.
 */
#ifndef SCATTER_RING_HPP
#define SCATTER_RING_HPP

#if !defined(__linux__) || !defined(__GNUC__) || __SIZEOF_POINTER__ != 8
#error "scatter_ring.hpp needs Linux, GCC or Clang, and a 64-bit processor"
#endif

#include "scatter_ring/client.hpp"

#endif
