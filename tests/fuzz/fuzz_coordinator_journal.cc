// Fuzzes what a coordinator reads back from its disk.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "strategy/parameter_server/coordinator/journal_file.h"
#include "strategy/parameter_server/protocol/record_file.h"
#include "tests/fuzz/plain_or_checked.h"
#include "tutti/core/error.h"

namespace {

using namespace tutti;
using namespace tutti::internal;

using Bytes = std::vector<std::byte>;

constexpr LedgerRules kRules{4, 2};

/// What was accepted is a ledger that another journal can begin with.
void read_damaged(std::span<const std::byte> file) {
  try {
    const FoundJournal found = read_journal_file("journal", file.size(), source_of(file), kRules);
    if (found.num_bytes > file.size()) std::abort();
    const ClosureLedger& ledger = found.ledger;
    if (ledger.num_running() + ledger.num_queued() > ledger.next_number()) std::abort();
    if (ClosureLedger::restore(ledger.bytes(), kRules) != ledger) std::abort();
  } catch (const Error& error) {
    const bool is_format = error.code() == ErrorCode::kUnimplemented;
    if (error.code() != ErrorCode::kDataLoss && !is_format) std::abort();
  }
}

std::span<const std::byte> take(std::span<const std::byte>& input, std::size_t wanted) {
  const auto piece = input.first(std::min(wanted, input.size()));
  input = input.subspan(piece.size());
  return piece;
}

std::size_t take_length(std::span<const std::byte>& input) {
  std::size_t length = 0;
  for (const std::byte each : take(input, 2))
    length = length * 256 + std::to_integer<unsigned>(each);
  return length;
}

/// The input behind the checksums, which would keep it out otherwise: the length of the state (two
/// bytes), the state, and for each record its length and its body.
Bytes checked(std::span<const std::byte> input) {
  Bytes file;
  RecordWriter out(journal_kind(), {}, [&](std::span<const std::byte> piece) {
    file.insert(file.end(), piece.begin(), piece.end());
  });
  do {
    const auto message = take(input, take_length(input));
    out.put({{message.begin(), message.end()}, {}});
  } while (!input.empty());
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz_plain_or_checked(data, size, read_damaged, checked);
}
