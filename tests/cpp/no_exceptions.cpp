// The producer without exceptions, as it is used under -fno-exceptions. Needs a daemon.

#include "check.hpp"

#if SCATTER_RING_EXCEPTIONS
#error "to be compiled with -fno-exceptions"
#endif

namespace sr = scatter_ring;

CLAIM(every_call_reports_to_a_value) {
    sr::Error error;
    sr::Client client = sr::Client::attach(socket_path(), {}, error);
    CHECK_FINE(error);
    const sr::Region from = client.allocate(4096, error), to = client.allocate(4096, error);
    CHECK_FINE(error);
    CHECK(from.write_at(10, "hello", 5, error));
    sr::Batch batch = client.batch();
    CHECK(batch.read(from, 10, to, 20, 5, error));
    const sr::Ticket ticket = batch.submit(error);
    CHECK(ticket && client.wait(ticket, error).bytes == 5);
    char text[5];
    CHECK(to.read_at(20, text, 5, error) && std::memcmp(text, "hello", 5) == 0);

    sr::Descriptor nop{};
    nop.opcode = SCATTER_RING_OPCODE_NOP;
    nop.flags = SCATTER_RING_FLAGS_LAST;
    sr::Span span;
    CHECK(client.push(nop, error) && client.submit(error) && client.wait_any(sr::forever, error));
    CHECK(client.reap(span, error) && !client.reap(span, error));
    CHECK_FINE(error);

    // An error stays what it is until the next call, and copies of it are the same.
    CHECK(batch.read(from, 5000, to, 0, 5, error));
    const sr::Ticket bad = batch.submit(error);
    client.wait(bad, error);
    const sr::Error copy = error;
    CHECK(copy.kind() == sr::ErrorKind::batch && copy.batch()->status == SCATTER_RING_STATUS_OUT_OF_RANGE);
    CHECK(std::string(copy.message()) == error.message());
    CHECK(client.submit(error) && !error && error.message()[0] == '\0' && error.batch() == nullptr);
}

int main(int argc, char **argv) { return check_claims(argc, argv); }
