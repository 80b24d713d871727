// CrossDeviceOps that wraps the canonical operation and adds one of many bugs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cross_device_ops/buffer_call.h"
#include "testing/cross_device_ops/problem.h"
#include "tutti/core/clock.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::planted_bugs {

/// Returns a number that identifies a bug: the FNV-1a hash of its name.
constexpr std::uint64_t bug(std::string_view name) {
  std::uint64_t number = 0xcbf29ce484222325u;
  for (const char c : name) number = (number ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return number;
}
constexpr std::uint64_t operator""_bug(const char* name, std::size_t length) {
  return bug({name, length});
}

using Bytes = std::vector<std::byte>;

class BuggyOps final : public CrossDeviceOps {
 public:
  BuggyOps(std::string_view name, const std::vector<Device>& devices)
      : bug_(bug(name)),
        right_(build_cross_device_ops(make_cross_device_ops("canonical"),
                                      {static_cast<int>(devices.size()), 0, devices})) {}
  std::string_view name() const override { return "buggy"; }
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override {
    return right_->supports(op, dtype, device);
  }
  Determinism determinism() const override {
    return bug_ == "RandomOrder"_bug ? Determinism::kRunToRun : Determinism::kCanonical;
  }
  // Returns false if the bug would corrupt memory when buffers are sliced.
  bool sliceable() const override { return bug_ != "KeepsFirstResult"_bug; }
  bool provides(Collective) const override { return true; }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override {
    if (bug_ == "DropsSecondCall"_bug && ++calls_ % 2 == 0) return;
    std::vector<Bytes> before;
    for (const ReplicaBuffer& each : buffers) before.push_back(bytes_of(each));
    const Bytes result = kept(reduced(op, {buffers.begin(), buffers.end()}));
    for (std::size_t r = 0; r < buffers.size(); ++r) {
      const ReplicaBuffer& buffer = buffers[r];
      std::ranges::copy(before[r], buffer.data);
      if (bug_ == "LastReplicaKeepsInput"_bug && r == buffers.size() - 1) continue;
      const auto address = reinterpret_cast<std::uintptr_t>(buffer.data);
      std::byte* const data = buffer.data - (bug_ == "AssumesVectors"_bug ? address % 16 : 0);
      std::copy_n(result.begin(), num_written(buffer) * size_of(buffer.dtype), data);
      if (bug_ == "WritesBeforeBuffer"_bug) buffer.data[-1] = std::byte{0};
      if (bug_ == "WritesPastBuffer"_bug) buffer.data[buffer.num_bytes()] = std::byte{0};
    }
  }

  void reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                      const ReplicaBuffer* output, int root) override {
    if (bug_ == "WritesOutputFirst"_bug) std::memset(output->data, 0, output->num_bytes());
    right_->reduce(op, inputs, *output, root);
    const ReplicaBuffer& other = inputs[(static_cast<std::size_t>(root) + 1) % inputs.size()];
    if (bug_ == "ChangesInput"_bug) std::copy_n(output->data, output->num_bytes(), other.data);
  }

  void broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root) override {
    right_->broadcast(buffers, bug_ == "WrongRoot"_bug ? 0 : root);
  }

  void all_gather_buffers(std::span<const ReplicaBuffer> inputs,
                          std::span<const ReplicaBuffer> outputs,
                          std::span<const std::size_t> counts) override {
    const bool has_empty = std::ranges::count(counts, std::size_t{0}) > 0;
    if (bug_ == "GatherThrowsOnEmpty"_bug && has_empty) fail(ErrorCode::kInternal, "no input");
    right_->all_gather(inputs, outputs);
    if (bug_ != "GatherEvenParts"_bug) return;
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      const std::size_t start = outputs[0].count / inputs.size() * r;
      for (const ReplicaBuffer& output : outputs) {
        copy(inputs[r], 0, output, start, std::min(counts[r], output.count - start));
      }
    }
  }

  void reduce_scatter_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                              std::span<const ReplicaBuffer> outputs,
                              std::span<const std::size_t> counts) override {
    const bool is_even = bug_ == "ScatterEvenParts"_bug;
    if (!is_even && bug_ != "ScatterNextPart"_bug) {
      return right_->reduce_scatter(op, inputs, outputs);
    }
    Bytes sum(inputs[0].num_bytes());
    ReplicaBuffer whole = inputs[0];
    whole.data = sum.data();
    right_->reduce(op, inputs, whole, 0);
    const std::vector<std::size_t> starts = internal::cuts_of(counts);
    for (std::size_t r = 0; r < outputs.size(); ++r) {
      const std::size_t wrong =
          is_even ? whole.count / outputs.size() * r : starts[(r + 1) % outputs.size()];
      copy(whole, std::min(wrong, whole.count - counts[r]), outputs[r], 0, counts[r]);
    }
  }

  void all_to_all_buffers(std::span<const ReplicaBuffer> inputs,
                          std::span<const ReplicaBuffer> outputs,
                          std::span<const std::size_t> counts) override {
    const std::size_t v = inputs.size();
    std::vector<ReplicaBuffer> senders;
    std::vector<std::size_t> sent;
    for (std::size_t r = 0; r < v; ++r) {
      const std::size_t sender = bug_ == "ExchangeTransposed"_bug ? v - 1 - r : r;
      const auto row = counts.subspan(sender * v, v);
      senders.push_back(inputs[sender]);
      sent.insert(sent.end(), row.begin(), row.end());
    }
    right_->all_to_all(senders, outputs, sent);
    for (std::size_t r = 0; r < v && bug_ == "ExchangeForgetsSelf"_bug; ++r) {
      std::size_t place = 0;
      for (std::size_t sender = 0; sender < r; ++sender) place += counts[sender * v + r];
      const std::size_t element = size_of(outputs[r].dtype);
      std::memset(outputs[r].data + place * element, 0, counts[r * v + r] * element);
    }
  }

 private:
  static Bytes bytes_of(const ReplicaBuffer& buffer) {
    return {buffer.data, buffer.data + buffer.num_bytes()};
  }
  static void copy(const ReplicaBuffer& from, std::size_t from_first, const ReplicaBuffer& to,
                   std::size_t to_first, std::size_t count) {
    const std::size_t element = size_of(from.dtype);
    if (count == 0) return;
    std::memmove(to.data + to_first * element, from.data + from_first * element, count * element);
  }

  std::size_t num_written(const ReplicaBuffer& buffer) const {
    const std::size_t count = buffer.count;
    if (bug_ == "ForgetsLastElement"_bug) return count - 1;
    if (bug_ == "CountsIn16Bits"_bug) return static_cast<std::uint16_t>(count);
    return bug_ == "SkipsPartialBlock"_bug && count > 64 ? count - count % 64 : count;
  }

  /// Replaces each element of an aligned buffer with change(element, index).
  template <class Change>
  static void change_elements(const ReplicaBuffer& buffer, const Change& change) {
    conformance::visit_stored(buffer.dtype, [&]<class T>() {
      const std::span<T> values = buffer.as<T>();
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = change(values[i], i);
    });
  }

  /// Returns the combination of all buffers. Overwrites the buffers.
  Bytes reduced(ReduceOp op, std::vector<ReplicaBuffer> used) {
    const DType dtype = used[0].dtype;
    const bool is_minmax = op == ReduceOp::kMin || op == ReduceOp::kMax;
    if (bug_ == "ForgetsOddRank"_bug && used.size() % 2 == 1) used.pop_back();
    if (bug_ == "RanksBeyondEight"_bug && used.size() > 8) used.resize(8);
    if (bug_ == "ReversesOrder"_bug) std::ranges::reverse(used);
    if (bug_ == "RandomOrder"_bug) {
      std::rotate(used.begin(), used.begin() + calls_++ % 3 % std::ssize(used), used.end());
    }
    if (bug_ == "BoolAsNumber"_bug && dtype == DType::kBool && op == ReduceOp::kMax) {
      for (ReplicaBuffer& each : used) each.dtype = DType::kUInt8;
      op = ReduceOp::kSum;  // computes true + true
    }
    const auto flip_bytes = [&](const ReplicaBuffer& buffer) {
      if (bug_ != "BytesAreSigned"_bug || dtype != DType::kUInt8 || !is_minmax) return;
      for (std::uint8_t& each : buffer.as<std::uint8_t>()) each ^= 0x80;
    };
    for (const ReplicaBuffer& each : used) {
      flip_bytes(each);
      if (bug_ != "MinDropsNan"_bug || op != ReduceOp::kMin) continue;
      change_elements(each, []<class T>(T x, std::size_t) {
        if constexpr (!std::is_integral_v<T>) {
          if (x != x) return T(std::numeric_limits<double>::infinity());
        }
        return x;
      });
    }
    if (bug_ == "IntegersSaturate"_bug && !is_minmax) saturate(op, used);
    if (bug_ == "HalfRoundsEachStep"_bug && is_half(dtype)) {
      for (std::size_t r = 1; r < used.size(); ++r) {
        right_->all_reduce_in_place(op, std::vector<ReplicaBuffer>{used[0], used[r]});
      }
    } else {
      right_->all_reduce_in_place(op, used);
    }
    flip_bytes(used[0]);
    change_elements(used[0], [&]<class T>(T x, std::size_t) { return changed(op, x); });
    return bytes_of(used[0]);
  }

  /// Adds or multiplies integers into the first buffer, with saturation. The other buffers get the
  /// operation's identity element.
  static void saturate(ReduceOp op, std::span<const ReplicaBuffer> used) {
    const bool is_sum = op == ReduceOp::kSum;
    change_elements(used[0], [&]<class T>(T first, std::size_t i) {
      if constexpr (std::is_integral_v<T>) {
        double x = static_cast<double>(first);
        for (const ReplicaBuffer& other : used.subspan(1)) {
          const auto y = static_cast<double>(std::exchange(other.as<T>()[i], T(is_sum ? 0 : 1)));
          x = is_sum ? x + y : x * y;
        }
        return static_cast<T>(std::clamp(x, static_cast<double>(std::numeric_limits<T>::min()),
                                         static_cast<double>(std::numeric_limits<T>::max()) / 2));
      }
      return first;
    });
  }

  template <class T>
  T changed(ReduceOp op, T x) const {
    if constexpr (std::is_integral_v<T>) {
      const auto rounded = static_cast<float>(x);
      if (bug_ != "IntegersAsFloat"_bug || (op != ReduceOp::kSum && op != ReduceOp::kProduct)) {
        return x;
      }
      const bool fits = rounded < 0x1p62f && rounded > -0x1p62f;
      return fits ? static_cast<T>(static_cast<std::int64_t>(rounded)) : T(0);
    } else if constexpr (std::is_floating_point_v<T>) {
      const T most = std::numeric_limits<T>::max();
      if (bug_ == "MaxClampsInfinity"_bug && op == ReduceOp::kMax && x > most) return most;
      if (bug_ == "SumBeginsAtPlusZero"_bug && op == ReduceOp::kSum) return x + T(0);
      if (bug_ == "DoubleAsFloat"_bug) return static_cast<float>(x);
    }
    return x;
  }

  /// Simulates memory-reuse bugs: copies the result into a buffer that calls share, and waits
  /// before reading it back.
  Bytes kept(Bytes result) {
    static Bytes shared(std::size_t{1} << 24);
    const bool is_shared = bug_ == "SharesScratch"_bug;
    if (!is_shared && bug_ != "SharesMember"_bug && bug_ != "KeepsFirstResult"_bug) return result;
    Bytes& scratch = is_shared ? shared : kept_;
    const bool is_later_call = ++calls_ > 1 && bug_ == "KeepsFirstResult"_bug;
    if (!is_later_call) std::ranges::copy(result, scratch.begin());
    Clock::system().sleep_for(std::chrono::microseconds(200));
    std::copy_n(scratch.begin(), result.size(), result.begin());
    return result;
  }

  const std::uint64_t bug_;
  const std::unique_ptr<CrossDeviceOps> right_;
  std::atomic<std::ptrdiff_t> calls_{0};
  Bytes kept_ = Bytes(std::size_t{1} << 20);
};

/// Name of a bug, and a fragment of the id of a case that must detect it.
struct Planted {
  std::string_view name;
  std::string_view found_by;
};

inline constexpr Planted kPlanted[] = {
    {"ForgetsLastElement", "/all_reduce/"},
    {"ForgetsOddRank", "/SUM/"},
    {"RanksBeyondEight", "/16x"},
    {"SkipsPartialBlock", "/all_reduce/"},
    {"CountsIn16Bits", "x65537/"},
    {"MinDropsNan", "/special_values/"},
    {"MaxClampsInfinity", "/special_values/"},
    {"SumBeginsAtPlusZero", "/special_values/"},
    {"ReversesOrder", "/SUM/float"},
    {"RandomOrder", "/repeated/"},
    {"HalfRoundsEachStep", "float16/"},
    {"DoubleAsFloat", "/float64/"},
    {"IntegersAsFloat", "/int32/"},
    {"IntegersSaturate", "/int64/"},
    {"BytesAreSigned", "/uint8/"},
    {"BoolAsNumber", "/MAX/bool/"},
    {"WritesPastBuffer", "/all_reduce/"},
    {"WritesBeforeBuffer", "/all_reduce/"},
    {"AssumesVectors", "+4/"},
    {"LastReplicaKeepsInput", "/all_reduce/"},
    {"ChangesInput", "/reduce/"},
    {"WritesOutputFirst", "/in_place"},
    {"SharesScratch", "/concurrent/"},
    {"SharesMember", "/slices/"},
    {"DropsSecondCall", "/repeated/"},
    {"KeepsFirstResult", "/repeated/"},
    {"WrongRoot", "/broadcast/"},
    {"GatherEvenParts", "/uneven/"},
    {"GatherThrowsOnEmpty", "/all_gather/"},
    {"ScatterEvenParts", "/uneven/"},
    {"ScatterNextPart", "/reduce_scatter/"},
    {"ExchangeTransposed", "/all_to_all/"},
    {"ExchangeForgetsSelf", "/all_to_all/"},
};

}  // namespace tutti::planted_bugs
