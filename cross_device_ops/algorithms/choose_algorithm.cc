// The measured table of "auto".
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/choose_algorithm.h"

#include <limits>

#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/core/text.h"

namespace tutti {
namespace {

constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();
constexpr int kAnySize = std::numeric_limits<int>::max();

struct Row {
  Medium medium;
  int up_to_ranks;
  std::size_t up_to_bytes;
  const char* name;
};

constexpr std::size_t kKiB = 1024;

// The first row that fits counts. Measured with benchmarks/all_reduce_algorithms (local 2 3 4 8;
// in_process 2 4; tcp with 2, 3 and 4 processes over loopback) on two cores of a virtual machine
// (AMD EPYC), float32, other programs running: more than two ranks share cores. A
// difference below about a tenth is noise and does not make a row. Microseconds of the chosen one
// against canonical: local 2 ranks 16 MiB 1528 / 2782; in process 2 ranks 1 MiB 94 / 133; tcp 4
// ranks 32 KiB 117 / 258, 256 KiB 257 / 435. Two ranks over tcp: canonical, 6.3 for 4 bytes
// (tree 9.9, ring 11.4); beyond 1 MiB all are within a fifth.
constexpr Row kTable[] = {
    {Medium::kLocal, 4, 32 * kKiB, "canonical"},
    {Medium::kLocal, kAnySize, 128 * kKiB, "canonical"},
    {Medium::kLocal, kAnySize, kAny, "halving_doubling"},
    {Medium::kInProcess, 2, 64 * kKiB, "canonical"},
    {Medium::kInProcess, 2, 4096 * kKiB, "tree"},
    {Medium::kInProcess, kAnySize, 256 * kKiB, "tree"},
    {Medium::kInProcess, kAnySize, kAny, "canonical"},
    {Medium::kNetwork, 2, kAny, "canonical"},
    {Medium::kNetwork, kAnySize, 256 * kKiB, "tree"},
    {Medium::kNetwork, kAnySize, kAny, "canonical"},
};

const Row& row_for(const AlgorithmQuery& query) {
  for (const Row& row : kTable) {
    if (row.medium == query.medium && query.size <= row.up_to_ranks &&
        query.bytes <= row.up_to_bytes) {
      return row;
    }
  }
  fail(ErrorCode::kInternal, "choose_algorithm: the table has no row for ", query.size, " ranks");
}

std::string_view to_string(Medium medium) {
  if (medium == Medium::kLocal) return "one thread";
  return medium == Medium::kInProcess ? "in process" : "network";
}

// 16-bit numbers are rounded once only where all values are at hand; other operations than
// all_reduce differ little between the algorithms.
std::string_view forced(const AlgorithmQuery& query) {
  if (query.collective != Collective::kAllReduce) return "it has no alternative worth a choice";
  return is_half(query.dtype) ? "16-bit numbers are combined in one go" : std::string_view();
}

}  // namespace

namespace internal {

std::string_view chosen_name(const AlgorithmQuery& query) {
  return forced(query).empty() ? row_for(query).name : "canonical";
}

void ChoiceLog::note(const AlgorithmQuery& query, std::string_view name) {
  if (last_.exchange(name.data()) == name.data()) return;
  log_debug(concat("auto: ", name, " for ", choose_algorithm(query).why));
}

}  // namespace internal

AlgorithmChoice choose_algorithm(const AlgorithmQuery& query) {
  const std::string what = concat(to_string(query.collective), " of ", query.bytes, " bytes among ",
                                  query.size, " ranks (", to_string(query.medium), "): ");
  if (const std::string_view reason = forced(query); !reason.empty()) {
    return {"canonical", concat(what, reason)};
  }
  const Row& row = row_for(query);
  const std::string ranks = row.up_to_ranks == kAnySize
                                ? "any number of ranks"
                                : concat("up to ", row.up_to_ranks, " ranks");
  const std::string bytes =
      row.up_to_bytes == kAny ? "any size" : concat("up to ", row.up_to_bytes, " bytes");
  return {row.name, concat(what, "measured fastest for ", ranks, " and ", bytes)};
}

}  // namespace tutti
