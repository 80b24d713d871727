// Helpers for tests of message engines: ranks as threads, calls, and the traffic of a schedule.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "cross_device_ops/algorithms/schedule.h"
#include "cross_device_ops/collective_engine.h"
#include "cross_device_ops/in_process/in_process_transport.h"
#include "tests/support/waiting.h"
#include "tutti/core/executor.h"

namespace tutti::engine_tests {
using internal::CollectiveEngine;
using internal::CollectiveHeader;

using Transports = std::vector<std::shared_ptr<Transport>>;

using testing::in;
using testing::late;

/// Runs body(rank) on a thread per rank; returns the errors by rank.
inline std::vector<std::optional<Error>> on_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::optional<Error>> errors(static_cast<std::size_t>(size));
  std::vector<std::unique_ptr<Thread>> threads;
  for (int r = 0; r < size; ++r) {
    threads.push_back(Executor::system().start(concat("rank-", r), [&errors, &body, r] {
      try {
        body(r);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(r)] = error;
      }
    }));
  }
  threads.clear();
  return errors;
}

inline void expect_no_errors(const std::vector<std::optional<Error>>& errors) {
  for (std::size_t r = 0; r < errors.size(); ++r) {
    EXPECT_FALSE(errors[r]) << "rank " << r << ": " << errors[r]->what();
  }
}

/// Elements of any dtype at any alignment, read and written as doubles.
class TypedBytes {
 public:
  TypedBytes(DType dtype, std::size_t count, std::size_t offset = 0)
      : dtype_(dtype),
        count_(count),
        offset_(offset),
        bytes_(count * size_of(dtype) + offset + 1) {}

  std::byte* data() { return bytes_.data() + offset_; }
  const std::byte* data() const { return bytes_.data() + offset_; }
  std::size_t count() const { return count_; }
  DType dtype() const { return dtype_; }
  Elements elements() { return {data(), count_, dtype_}; }
  ConstElements input() const { return {data(), count_, dtype_}; }

  void set(std::size_t i, double value) {
    visit_dtype(dtype_, [&]<class T>() {
      T element;
      if constexpr (Half<T>) {
        element = T(static_cast<float>(value));
      } else if constexpr (std::is_same_v<T, std::uint8_t>) {
        element = static_cast<T>(static_cast<int>(value));  // negative values wrap
      } else {
        element = static_cast<T>(value);
      }
      std::memcpy(data() + i * sizeof(T), &element, sizeof(T));
    });
  }
  double get(std::size_t i) const {
    return visit_dtype(dtype_, [&]<class T>() -> double {
      T element;
      std::memcpy(&element, data() + i * sizeof(T), sizeof(T));
      return static_cast<double>(static_cast<std::conditional_t<Half<T>, float, T>>(element));
    });
  }
  bool same_bytes(const TypedBytes& other) const {
    return std::memcmp(data(), other.data(), count_ * size_of(dtype_)) == 0;
  }

 private:
  DType dtype_;
  std::size_t count_;
  std::size_t offset_;
  std::vector<std::byte> bytes_;
};

/// Arguments and header of a call, built as the communicator builds them.
struct TestCall {
  Collective collective = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  int root = 0;
  std::size_t count = 0;
  std::vector<ConstElements> inputs = {};
  std::vector<Elements> outputs = {};
  std::vector<std::size_t> counts = {};
  std::vector<std::size_t> receive_counts = {};

  CollectiveHeader header(int rank, std::uint64_t sequence) const {
    CollectiveHeader header;
    header.sequence = sequence;
    header.collective = collective;
    header.op = op;
    header.dtype = dtype;
    header.root = root;
    header.count = count;
    header.rank = rank;
    return header;
  }
  CollectiveCall call() const {
    return {.collective = collective,
            .op = op,
            .dtype = dtype,
            .root = root,
            .count = count,
            .inputs = inputs,
            .outputs = outputs,
            .counts = counts,
            .receive_counts = receive_counts};
  }
  void run(CollectiveEngine& engine, std::uint64_t sequence, TimePoint deadline = late()) const {
    engine.run(call(), header(engine.rank(), sequence), deadline);
  }
};

inline TestCall all_reduce_call(TypedBytes& data, ReduceOp op = ReduceOp::kSum) {
  return {.op = op,
          .dtype = data.dtype(),
          .count = data.count(),
          .inputs = {data.input()},
          .outputs = {data.elements()}};
}

/// Messages and elements that a schedule sends. MessageRun adds one header of kEncodedHeaderBytes
/// per call. The header is a separate message unless begins_with_send().
struct Traffic {
  std::size_t messages = 0;
  std::size_t elements = 0;
};

inline Traffic traffic_of(const internal::Schedule& schedule) {
  Traffic traffic;
  for (const internal::Step& step : schedule.steps) {
    if (step.kind != internal::StepKind::kSend) continue;
    ++traffic.messages;
    traffic.elements += step.range.count;
  }
  return traffic;
}

}  // namespace tutti::engine_tests
