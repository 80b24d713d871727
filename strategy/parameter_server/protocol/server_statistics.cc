// Counters of servers: sums, and encoding as a row of integers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/protocol/server_statistics.h"

#include <limits>
#include <utility>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti {
namespace {

/// Visits every counter, in the order of the encoding.
template <class Statistics, class Each>
void for_each_counter(Statistics& statistics, const Each& each) {
  each(statistics.num_shards), each(statistics.num_batches), each(statistics.num_refused);
  each(statistics.num_changes), each(statistics.num_applied_before), each(statistics.num_reads);
  each(statistics.num_reads_unchanged), each(statistics.num_sync_steps);
  each(statistics.num_stale_dropped), each(statistics.num_rank_duplicates);
}

template <class Map>
void write(const Map& map, std::vector<std::int64_t>& out) {
  out.push_back(static_cast<std::int64_t>(map.size()));
  for (const auto& [key, value] : map) {
    out.push_back(static_cast<std::int64_t>(key));
    out.push_back(static_cast<std::int64_t>(value));
  }
}

class Reader {
 public:
  explicit Reader(std::span<const std::int64_t> numbers) : numbers_(numbers) {}

  std::uint64_t next() {
    if (numbers_.empty() || numbers_.front() < 0) refuse();
    const auto number = static_cast<std::uint64_t>(numbers_.front());
    numbers_ = numbers_.subspan(1);
    return number;
  }
  template <class Map>
  void read(Map& map) {
    const std::uint64_t count = next();
    if (count > numbers_.size() / 2) refuse();
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t key = next();
      if (key > std::numeric_limits<typename Map::key_type>::max()) refuse();
      if (!map.emplace(static_cast<typename Map::key_type>(key), next()).second) refuse();
    }
  }
  void finish() const {
    if (!numbers_.empty()) refuse();
  }
  [[noreturn]] static void refuse() {
    fail(ErrorCode::kDataLoss, "ServerStatistics: not what a server tells of itself");
  }

 private:
  std::span<const std::int64_t> numbers_;
};

}  // namespace

ServerStatistics& ServerStatistics::operator+=(const ServerStatistics& other) {
  std::vector<std::uint64_t> others;
  for_each_counter(other, [&](std::uint64_t value) { others.push_back(value); });
  auto next = others.begin();
  for_each_counter(*this, [&](std::uint64_t& value) { value += *next++; });
  for (const auto& [difference, count] : other.staleness) staleness[difference] += count;
  for (const auto& [worker, count] : other.awaited) awaited[worker] += count;
  return *this;
}

Tensor ServerStatistics::to_tensor() const {
  std::vector<std::int64_t> numbers;
  for_each_counter(
      *this, [&](std::uint64_t value) { numbers.push_back(static_cast<std::int64_t>(value)); });
  write(staleness, numbers), write(awaited, numbers);
  return Tensor::from(Shape{static_cast<std::int64_t>(numbers.size())}, numbers);
}

ServerStatistics ServerStatistics::from_tensor(const Tensor& tensor) {
  if (!tensor.defined() || tensor.rank() != 1 || tensor.dtype() != DType::kInt64) Reader::refuse();
  Reader in(tensor.host_span<std::int64_t>());
  ServerStatistics result;
  for_each_counter(result, [&](std::uint64_t& value) { value = in.next(); });
  in.read(result.staleness), in.read(result.awaited);
  in.finish();
  return result;
}

std::string to_string(const ServerStatistics::Histogram& histogram) {
  if (histogram.empty()) return "none";
  std::vector<std::string> parts;
  for (const auto& [difference, count] : histogram) {
    const bool is_last = difference == ServerStatistics::kGreatestDifference;
    parts.push_back(concat(difference, is_last ? "+: " : ": ", count));
  }
  return join(parts);
}

}  // namespace tutti
