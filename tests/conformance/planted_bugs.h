// A plain operation that does everything right, and the same with one bug planted in it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cross_device_ops/buffer_call.h"
#include "testing/cross_device_ops/expected.h"
#include "tutti/core/clock.h"
#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti::planted_bugs {

enum class Bug {
  kNone,
  kForgetsLastElement,
  kForgetsOddRank,
  kRanksBeyondEight,
  kSkipsRestOfBlock,
  kCountsIn16Bits,
  kMinDropsNan,
  kMaxClampsInfinity,
  kSumBeginsAtPlusZero,
  kOtherOrder,
  kOrderOfChance,
  kHalfRoundsEachStep,
  kDoubleAsFloat,
  kIntegersAsFloat,
  kIntegersSaturate,
  kBytesAreSigned,
  kBoolAsNumber,
  kWritesBehind,
  kWritesBefore,
  kAssumesVectors,
  kLastReplicaKeepsItsOwn,
  kChangesInput,
  kWritesOutputFirst,
  kSharesScratch,
  kSharesMember,
  kDropsSecondCall,
  kKeepsFirstResult,
  kWrongRoot,
  kGatherEvenParts,
  kGatherThrowsOnEmpty,
  kScatterEvenParts,
  kScatterNextPart,
  kExchangeTransposed,
  kExchangeForgetsSelf,
};

/// memcpy() that knows buffers without elements or memory.
inline void copy_bytes(const std::byte* from, std::byte* to, std::size_t num_bytes) {
  if (num_bytes > 0 && from != to) std::memcpy(to, from, num_bytes);
}

/// Adds along the tree, element by element.
class Reference final : public CrossDeviceOps {
 public:
  explicit Reference(Bug bug) : bug_(bug) {}
  std::string_view name() const override { return "reference"; }
  bool supports(ReduceOp op, DType dtype, DeviceType) const override {
    return op != ReduceOp::kMean &&
           (dtype != DType::kBool || op == ReduceOp::kMin || op == ReduceOp::kMax);
  }
  Determinism determinism() const override {
    return bug_ == Bug::kOrderOfChance ? Determinism::kRunToRun : Determinism::kCanonical;
  }
  // Not where the bug would break memory.
  bool sliceable() const override { return bug_ != Bug::kKeepsFirstResult; }
  bool provides(Collective) const override { return true; }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override {
    if (bug_ == Bug::kDropsSecondCall && ++calls_ % 2 == 0) return;
    const ReplicaBuffer& first = buffers.front();
    std::vector<std::byte> result(first.num_bytes());
    std::vector<std::byte>& used = place_of(result);
    combine(op, buffers, 0, first.count, used.data());
    if (bug_ == Bug::kSharesScratch || bug_ == Bug::kSharesMember) {
      Clock::system().sleep_for(std::chrono::microseconds(200));
    }
    if (bug_ == Bug::kKeepsFirstResult) {
      kept_.resize(std::max(kept_.size(), used.size()));
      if (++calls_ == 1) std::ranges::copy(used, kept_.begin());
      std::copy_n(kept_.begin(), used.size(), used.begin());
    }
    for (const ReplicaBuffer& buffer : buffers) {
      if (bug_ == Bug::kLastReplicaKeepsItsOwn && &buffer == &buffers.back()) continue;
      copy_bytes(used.data(), aligned(buffer), written(buffer));
      if (bug_ == Bug::kWritesBefore) buffer.data[-1] = std::byte{0};
    }
  }

  void reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                      const ReplicaBuffer* output, int root) override {
    const std::size_t bytes = output->num_bytes();
    if (bug_ == Bug::kWritesOutputFirst) std::memset(output->data, 0, bytes);
    if (bug_ == Bug::kChangesInput) {
      const ReplicaBuffer& other = inputs[(static_cast<std::size_t>(root) + 1) % inputs.size()];
      std::vector<std::byte> result(bytes);
      combine(op, inputs, 0, output->count, result.data());
      std::memcpy(other.data, result.data(), bytes);  // accumulates in a neighbour
      std::memcpy(output->data, result.data(), bytes);
      return;
    }
    std::vector<std::byte> result(bytes);
    combine(op, inputs, 0, output->count, result.data());
    std::memcpy(output->data, result.data(), bytes);
  }

  void broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root) override {
    const ReplicaBuffer& source = buffers[bug_ == Bug::kWrongRoot ? 0 : std::size_t(root)];
    for (const ReplicaBuffer& buffer : buffers) {
      copy_bytes(source.data, buffer.data, source.num_bytes());
    }
  }

  void all_gather_buffers(std::span<const ReplicaBuffer> inputs,
                          std::span<const ReplicaBuffer> outputs,
                          std::span<const std::size_t> counts) override {
    const std::vector<std::size_t> starts = internal::offsets_of(counts);
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      if (bug_ == Bug::kGatherThrowsOnEmpty && counts[r] == 0) {
        fail(ErrorCode::kInternal, "reference: nothing from replica ", r);
      }
      const std::size_t even = outputs[0].count / inputs.size() * r;
      const std::size_t start = bug_ == Bug::kGatherEvenParts ? even : starts[r];
      const std::size_t n = std::min(counts[r], outputs[0].count - start);
      for (const ReplicaBuffer& output : outputs) {
        copy(inputs[r], 0, output, start, n);
      }
    }
  }

  void reduce_scatter_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                              std::span<const ReplicaBuffer> outputs,
                              std::span<const std::size_t> counts) override {
    const std::vector<std::size_t> starts = internal::offsets_of(counts);
    std::vector<std::vector<std::byte>> results;
    for (std::size_t r = 0; r < outputs.size(); ++r) {
      std::size_t start = starts[r];
      const std::size_t total = inputs[0].count;
      if (bug_ == Bug::kScatterEvenParts) start = total / outputs.size() * r;
      if (bug_ == Bug::kScatterNextPart) start = starts[(r + 1) % starts.size()];
      results.emplace_back(outputs[r].num_bytes());
      combine(op, inputs, std::min(start, total - counts[r]), counts[r], results.back().data());
    }
    for (std::size_t r = 0; r < outputs.size(); ++r) {
      copy_bytes(results[r].data(), outputs[r].data, results[r].size());
    }
  }

  void all_to_all_buffers(std::span<const ReplicaBuffer> inputs,
                          std::span<const ReplicaBuffer> outputs,
                          std::span<const std::size_t> counts) override {
    const std::size_t v = inputs.size();
    for (std::size_t s = 0; s < v; ++s) {
      std::size_t place = 0;
      for (std::size_t r = 0; r < v; ++r) {
        const std::size_t sender = bug_ == Bug::kExchangeTransposed ? (v - 1 - r) : r;
        const auto row = counts.subspan(sender * v, v);
        const std::size_t first = internal::offsets_of(row)[s];
        const std::size_t n =
            std::min(row[s], outputs[s].count - std::min(place, outputs[s].count));
        if (!(bug_ == Bug::kExchangeForgetsSelf && r == s)) {
          copy(inputs[sender], first, outputs[s], place, n);
        }
        place += row[s];
      }
    }
  }

 private:
  static void copy(const ReplicaBuffer& from, std::size_t from_first, const ReplicaBuffer& to,
                   std::size_t to_first, std::size_t count) {
    const std::size_t element = size_of(from.dtype);
    copy_bytes(from.data + from_first * element, to.data + to_first * element, count * element);
  }

  std::vector<std::byte>& place_of(std::vector<std::byte>& own) {
    static std::vector<std::byte> shared(std::size_t{1} << 24);
    if (bug_ == Bug::kSharesScratch) return shared;
    if (bug_ == Bug::kSharesMember) {
      kept_.resize(std::size_t{1} << 20);
      return kept_;
    }
    return own;
  }

  std::byte* aligned(const ReplicaBuffer& buffer) const {
    if (bug_ != Bug::kAssumesVectors) return buffer.data;
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.data);
    return buffer.data - address % 16;
  }

  std::size_t written(const ReplicaBuffer& buffer) const {
    std::size_t count = buffer.count;
    if (bug_ == Bug::kForgetsLastElement) --count;
    if (bug_ == Bug::kCountsIn16Bits) count = static_cast<std::uint16_t>(count);
    if (bug_ == Bug::kSkipsRestOfBlock && count > 64) count -= count % 64;
    const std::size_t more = bug_ == Bug::kWritesBehind ? 1 : 0;
    return count * size_of(buffer.dtype) + more;
  }

  void combine(ReduceOp op, std::span<const ReplicaBuffer> inputs, std::size_t first,
               std::size_t count, std::byte* out) {
    conformance::visit_stored(inputs[0].dtype, [&]<class T>() {
      std::vector<T> values;
      for (std::size_t i = 0; i < count; ++i) {
        values.clear();
        for (const ReplicaBuffer& input : inputs) values.push_back(input.as<T>()[first + i]);
        if (bug_ == Bug::kRanksBeyondEight && values.size() > 8) values.resize(8);
        const T result = element<T>(op, inputs[0].dtype, values);
        std::memcpy(out + i * sizeof(T), &result, sizeof(T));
      }
    });
  }

  template <class T>
  T element(ReduceOp op, DType dtype, const std::vector<T>& values) {
    const bool sums = op == ReduceOp::kSum || op == ReduceOp::kProduct;
    if constexpr (Half<T>) {
      if (bug_ == Bug::kHalfRoundsEachStep) return tree(op, values);
      return T(tree(op, std::vector<float>(widened(values))));
    } else if constexpr (std::is_same_v<T, double>) {
      if (bug_ != Bug::kDoubleAsFloat) return tree(op, values);
      return tree(op, std::vector<float>(values.begin(), values.end()));
    } else if constexpr (std::is_same_v<T, float>) {
      return tree(op, values);
    } else {
      if (bug_ == Bug::kBoolAsNumber && dtype == DType::kBool && op == ReduceOp::kMax) {
        return tree(ReduceOp::kSum, values);  // true + true
      }
      if (bug_ == Bug::kIntegersAsFloat && sums) {
        const float x = tree(op, std::vector<float>(values.begin(), values.end()));
        return x < 0x1p62f && x > -0x1p62f ? static_cast<T>(static_cast<std::int64_t>(x)) : T(0);
      }
      if (bug_ == Bug::kIntegersSaturate && sums) {
        double x = tree(op, std::vector<double>(values.begin(), values.end()));
        x = std::clamp(x, static_cast<double>(std::numeric_limits<T>::min()),
                       static_cast<double>(std::numeric_limits<T>::max()) / 2);
        return static_cast<T>(x);
      }
      if (bug_ == Bug::kBytesAreSigned && sizeof(T) == 1 && !sums) {
        return static_cast<T>(tree(op, std::vector<std::int8_t>(values.begin(), values.end())));
      }
      return tree(op, values);
    }
  }

  template <class T>
  static std::vector<float> widened(const std::vector<T>& values) {
    std::vector<float> wide;
    for (const T value : values) wide.push_back(static_cast<float>(value));
    return wide;
  }

  template <class T>
  T tree(ReduceOp op, std::vector<T> level) {
    if (bug_ == Bug::kForgetsOddRank && level.size() % 2 == 1) level.pop_back();
    if (bug_ == Bug::kOtherOrder) return in_a_row(op, level);
    if (bug_ == Bug::kOrderOfChance) {
      std::rotate(level.begin(), level.begin() + calls_++ % 3 % std::ssize(level), level.end());
      return in_a_row(op, level);
    }
    if (bug_ == Bug::kSumBeginsAtPlusZero && op == ReduceOp::kSum) level[0] = level[0] + T(0);
    for (std::size_t n = level.size(); n > 1; n = (n + 1) / 2) {
      for (std::size_t k = 0; k < n / 2; ++k) {
        level[k] = combined(op, level[2 * k], level[2 * k + 1]);
      }
      if (n % 2 == 1) level[n / 2] = level[n - 1];
    }
    return level[0];
  }

  template <class T>
  T in_a_row(ReduceOp op, const std::vector<T>& values) const {
    T result = values[0];
    for (std::size_t k = 1; k < values.size(); ++k) result = combined(op, result, values[k]);
    return result;
  }

  template <class T>
  T combined(ReduceOp op, T a, T b) const {
    if (op == ReduceOp::kMin) {
      if (bug_ == Bug::kMinDropsNan) return b < a ? b : a;
      return b < a || b != b ? b : a;
    }
    if (op == ReduceOp::kMax) {
      if constexpr (std::is_floating_point_v<T>) {
        const T most = std::numeric_limits<T>::max();
        if (bug_ == Bug::kMaxClampsInfinity && (a > most || b > most)) return most;
      }
      return b > a || b != b ? b : a;
    }
    if constexpr (std::is_integral_v<T>) {
      const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
      return static_cast<T>(op == ReduceOp::kProduct ? x * y : x + y);
    } else {
      return op == ReduceOp::kProduct ? a * b : a + b;
    }
  }

  const Bug bug_;
  std::atomic<std::ptrdiff_t> calls_{0};
  std::vector<std::byte> kept_;
};

/// A bug, and what must stand in the id of a case that finds it.
struct Planted {
  Bug bug;
  std::string_view what;
  std::string_view found_by;
};

inline constexpr Planted kPlanted[] = {
    {Bug::kForgetsLastElement, "ForgetsLastElement", "/all_reduce/"},
    {Bug::kForgetsOddRank, "ForgetsOddRank", "/SUM/"},
    {Bug::kRanksBeyondEight, "RanksBeyondEight", "/16x"},
    {Bug::kSkipsRestOfBlock, "SkipsRestOfBlock", "/all_reduce/"},
    {Bug::kCountsIn16Bits, "CountsIn16Bits", "x65537/"},
    {Bug::kMinDropsNan, "MinDropsNan", "/special_values/"},
    {Bug::kMaxClampsInfinity, "MaxClampsInfinity", "/special_values/"},
    {Bug::kSumBeginsAtPlusZero, "SumBeginsAtPlusZero", "/special_values/"},
    {Bug::kOtherOrder, "OtherOrder", "/SUM/float"},
    {Bug::kOrderOfChance, "OrderOfChance", "/repeated/"},
    {Bug::kHalfRoundsEachStep, "HalfRoundsEachStep", "float16/"},
    {Bug::kDoubleAsFloat, "DoubleAsFloat", "/float64/"},
    {Bug::kIntegersAsFloat, "IntegersAsFloat", "/int32/"},
    {Bug::kIntegersSaturate, "IntegersSaturate", "/int64/"},
    {Bug::kBytesAreSigned, "BytesAreSigned", "/uint8/"},
    {Bug::kBoolAsNumber, "BoolAsNumber", "/MAX/bool/"},
    {Bug::kWritesBehind, "WritesBehind", "/all_reduce/"},
    {Bug::kWritesBefore, "WritesBefore", "/all_reduce/"},
    {Bug::kAssumesVectors, "AssumesVectors", "+4/"},
    {Bug::kLastReplicaKeepsItsOwn, "LastReplicaKeepsItsOwn", "/all_reduce/"},
    {Bug::kChangesInput, "ChangesInput", "/reduce/"},
    {Bug::kWritesOutputFirst, "WritesOutputFirst", "/in_place"},
    {Bug::kSharesScratch, "SharesScratch", "/concurrent/"},
    {Bug::kSharesMember, "SharesMember", "/slices/"},
    {Bug::kDropsSecondCall, "DropsSecondCall", "/repeated/"},
    {Bug::kKeepsFirstResult, "KeepsFirstResult", "/repeated/"},
    {Bug::kWrongRoot, "WrongRoot", "/broadcast/"},
    {Bug::kGatherEvenParts, "GatherEvenParts", "/uneven/"},
    {Bug::kGatherThrowsOnEmpty, "GatherThrowsOnEmpty", "/all_gather/"},
    {Bug::kScatterEvenParts, "ScatterEvenParts", "/uneven/"},
    {Bug::kScatterNextPart, "ScatterNextPart", "/reduce_scatter/"},
    {Bug::kExchangeTransposed, "ExchangeTransposed", "/all_to_all/"},
    {Bug::kExchangeForgetsSelf, "ExchangeForgetsSelf", "/all_to_all/"},
};

}  // namespace tutti::planted_bugs
