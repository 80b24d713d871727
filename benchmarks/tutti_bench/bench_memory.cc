// Implements lists of gradients and generates their values.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tutti_bench/bench_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/hash.h"

namespace tutti::bench {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t rounded_up(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Returns the element counts of the gradients of TensorFlow's CIFAR-10 tutorial: two 5x5
/// convolutions with 64 filters, dense layers of 384, 192 and 10 units.
std::vector<std::size_t> cifar10_cnn() {
  return {5 * 5 * 3 * 64, 64, 5 * 5 * 64 * 64, 64, 2304 * 384, 384, 384 * 192, 192, 192 * 10, 10};
}

/// Returns the element counts of ResNet-50's 161 gradients for 1000 classes: 25.6 million in total.
std::vector<std::size_t> resnet50() {
  std::vector<std::size_t> counts;
  const auto convolution = [&](std::size_t side, std::size_t inputs, std::size_t filters) {
    counts.push_back(side * side * inputs * filters);
    counts.insert(counts.end(), 2, filters);  // scale and offset of the normalization
  };
  convolution(7, 3, 64);
  std::size_t inputs = 64;
  for (const auto& [blocks, filters] :
       {std::pair{3UL, 64UL}, {4UL, 128UL}, {6UL, 256UL}, {3UL, 512UL}}) {
    for (std::size_t block = 0; block < blocks; ++block) {
      if (block == 0) convolution(1, inputs, 4 * filters);
      convolution(1, inputs, filters);
      convolution(3, filters, filters);
      convolution(1, filters, 4 * filters);
      inputs = 4 * filters;
    }
  }
  counts.push_back(2048 * 1000);
  counts.push_back(1000);
  return counts;
}

/// Returns the value of element i on rank r.
double input_value(std::size_t i, int rank, ReduceOp op) {
  const std::size_t mixed = i * 7 + static_cast<std::size_t>(rank) * 3;
  return static_cast<double>(op == ReduceOp::kProduct ? 1 + mixed % 2 : mixed % 11);
}

double combined_value(std::size_t i, int num_ranks, ReduceOp op) {
  double result = input_value(i, 0, op);
  for (int r = 1; r < num_ranks; ++r) {
    const double next = input_value(i, r, op);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kMean:
        result += next;
        break;
      case ReduceOp::kMin:
        result = std::min(result, next);
        break;
      case ReduceOp::kMax:
        result = std::max(result, next);
        break;
      case ReduceOp::kProduct:
        result *= next;
        break;
    }
  }
  return op == ReduceOp::kMean ? result / num_ranks : result;
}

template <class T>
double as_double(T value) {
  if constexpr (Half<T>) return static_cast<double>(static_cast<float>(value));
  return static_cast<double>(value);
}

/// Returns the allowed error: sums are exact, and a mean is rounded once.
double tolerance(DType dtype, ReduceOp op, double expected) {
  if (op != ReduceOp::kMean) return 0.0;
  return std::abs(expected) * (is_half(dtype) ? 0.01 : 1e-6);
}

/// Calls visitor(values, first) for each buffer; `first` is the index of values[0] in the full
/// list.
template <class Visitor>
void for_buffers(std::span<const Elements> list, const Visitor& visitor) {
  std::size_t first = 0;
  for (const Elements& each : list) {
    visit_dtype(each.dtype, [&]<class T>() {
      visitor(std::span(reinterpret_cast<T*>(each.data), each.count), first);
    });
    first += each.count;
  }
}

template <class T>
T converted(double value) {
  if constexpr (std::is_same_v<T, bool>) return value > 5;
  if constexpr (Half<T>) return T(static_cast<float>(value));
  return static_cast<T>(value);
}

}  // namespace

BenchMemory::BenchMemory(std::size_t num_bytes) : num_bytes_(std::max<std::size_t>(num_bytes, 1)) {
  void* const memory =
      mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    fail(ErrorCode::kResourceExhausted, "tutti bench: not enough memory for ", num_bytes,
         " bytes; try a smaller -e");
  }
  madvise(memory, num_bytes_, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(memory);
}

BenchMemory::~BenchMemory() {
  if (data_ != nullptr) munmap(data_, num_bytes_);
}

BenchMemory::BenchMemory(BenchMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(other.num_bytes_) {}

std::vector<std::string> known_gradients() { return {"cifar10_cnn", "resnet50", "one"}; }

std::vector<std::size_t> scaled_gradients(std::string_view network, std::size_t total) {
  std::vector<std::size_t> counts = network == "resnet50"      ? resnet50()
                                    : network == "cifar10_cnn" ? cifar10_cnn()
                                                               : std::vector<std::size_t>{1};
  const double scale = static_cast<double>(total) /
                       static_cast<double>(std::accumulate(counts.begin(), counts.end(), 0UL));
  std::size_t left = total;
  for (std::size_t& count : counts) {
    count = std::min(left, static_cast<std::size_t>(static_cast<double>(count) * scale));
    left -= count;
  }
  *std::ranges::max_element(counts) += left;
  std::erase(counts, 0UL);
  return counts;
}

std::size_t bytes_of_list(std::span<const std::size_t> counts, DType dtype) {
  std::size_t bytes = 0;
  for (const std::size_t count : counts) bytes += rounded_up(count * size_of(dtype));
  return bytes;
}

std::vector<Elements> list_in(const BenchMemory& memory, std::span<const std::size_t> counts,
                              DType dtype) {
  return list_at(memory.data(), counts, dtype);
}

std::vector<Elements> list_at(std::byte* memory, std::span<const std::size_t> counts, DType dtype) {
  std::vector<Elements> list;
  std::size_t offset = 0;
  for (const std::size_t count : counts) {
    list.emplace_back(memory + offset, count, dtype);
    offset += rounded_up(count * size_of(dtype));
  }
  return list;
}

void fill(std::span<const Elements> list, int rank, ReduceOp op) {
  for_buffers(list, [&]<class T>(std::span<T> values, std::size_t first) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = converted<T>(input_value(first + i, rank, op));
    }
  });
}

ListErrors errors_of(std::span<const Elements> list, int num_ranks, ReduceOp op,
                     double max_relative_error) {
  constexpr double kLargestInput = 10.0;
  const bool may_differ = op == ReduceOp::kSum || op == ReduceOp::kMean;
  const double unit = op == ReduceOp::kMean ? kLargestInput : kLargestInput * num_ranks;
  ListErrors errors;
  for_buffers(list, [&]<class T>(std::span<T> values, std::size_t first) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      // A bool is true for values above 5, so the minimum and maximum of bools follow from those
      // of the values.
      const double expected = combined_value(first + i, num_ranks, op);
      const double wanted = std::is_same_v<T, bool> ? as_double(converted<T>(expected)) : expected;
      const double difference = std::abs(as_double(values[i]) - wanted);
      if (difference <= tolerance(dtype_of<T>(), op, wanted)) continue;
      if (may_differ && std::isfinite(difference)) {
        errors.largest = std::max(errors.largest, difference / unit);
        // The 1e-6 allows for the rounding of sums.
        if (difference <= (max_relative_error + 1e-6) * unit && max_relative_error > 0) continue;
      }
      ++errors.num_wrong;
    }
  });
  for (const Elements& each : list) {
    errors.checksum = internal::crc32c_of({each.data, each.num_bytes()}, errors.checksum);
  }
  return errors;
}

}  // namespace tutti::bench
