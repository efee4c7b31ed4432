// Many batches of single rows, every completion accounted for: with the header-only producer, by batches and tickets.
// Arguments: socket, name of the table, descriptors (0: for ever).
#include "scatter_ring.hpp"

#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr std::uint64_t table_rows = 4096;
constexpr std::uint64_t row_bytes = 64;
constexpr std::uint64_t row_words = row_bytes / 8;
constexpr std::uint64_t rows_max = 64;
constexpr std::uint64_t window = 32;

std::uint64_t rows_of(std::uint64_t batch) { return 1 + batch * 37 % rows_max; }
std::uint64_t row_of(std::uint64_t batch, std::uint64_t i) { return (batch * 131 + i * 17) % table_rows; }
std::uint64_t place_of(std::uint64_t batch, std::uint64_t i) { return batch % window * rows_max + i; }

void claim(bool holds, const char *what, std::uint64_t batch) {
  if (!holds) {
    std::fprintf(stderr, "storm: batch %" PRIu64 ": %s\n", batch, what);
    std::exit(1);
  }
}

struct UnderWay {
  scatter_ring::Ticket ticket;
  std::uint64_t batch;
  std::uint64_t rows;
};

void verify(const UnderWay &under_way, const scatter_ring::Outcome &outcome, const std::uint64_t *out) {
  const auto [batch, rows] = std::pair(under_way.batch, under_way.rows);
  claim(outcome.bytes == rows * row_bytes, "another number of bytes", batch);
  claim(outcome.user_data == batch && outcome.reusable, "another batch's outcome", batch);
  for (std::uint64_t i = 0; i < rows; i++) {
    const std::uint64_t *row = out + place_of(batch, i) * row_words;
    for (std::uint64_t word = 0; word < row_words; word++)
      claim(row[word] == row_of(batch, i) * row_words + word, "a wrong row", batch);
  }
}

void storm(const char *socket, const char *name, std::uint64_t total) {
  auto client = scatter_ring::Client::attach(socket);
  const auto table = client.open(name, scatter_ring::Rights::read);
  const auto region = client.allocate(window * rows_max * row_bytes);
  const auto *out = reinterpret_cast<const std::uint64_t *>(region.data());
  std::puts("begun");
  std::fflush(stdout);

  std::array<std::optional<UnderWay>, window> all;
  auto builder = client.batch();
  std::uint64_t submitted = 0, completed = 0, bytes = 0, batches = 0;
  const auto collect = [&](std::optional<UnderWay> &place) {
    if (!place)
      return;
    const auto outcome = client.wait(place->ticket);
    verify(*place, outcome, out);
    completed += place->rows;
    bytes += outcome.bytes;
    place.reset();
  };
  while (total == 0 || submitted < total) {
    auto &place = all[batches % window];
    collect(place);
    auto rows = rows_of(batches);
    if (total != 0)
      rows = std::min(rows, total - submitted);
    builder.user_data(batches);
    for (std::uint64_t i = 0; i < rows; i++)
      builder.read(table, row_of(batches, i) * row_bytes, region, place_of(batches, i) * row_bytes, row_bytes);
    place = UnderWay{builder.submit(), batches, rows};
    batches++;
    submitted += rows;
  }
  for (auto &place : all)
    collect(place);
  std::printf("done %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", batches, completed, bytes);
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 4)
    return 2;
  try {
    storm(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10));
  } catch (const std::exception &error) {
    std::fprintf(stderr, "storm: %s\n", error.what());
    return 1;
  }
}
