// Problem: the memory and calls of all ranks in one case, and the check of the results. Also runs
// ranks on threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/tensor/tensor.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::conformance {

/// Arguments of one rank's collective call. The call is in place if output.data == input.data.
struct Call {
  Collective collective = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  ReplicaBuffer input;
  ReplicaBuffer output;
  int root = 0;
  std::vector<std::size_t> counts;          // empty: parts of equal size
  std::vector<std::size_t> receive_counts;  // used by all_to_all
  std::string_view name = {};
  std::optional<Shape> shape = std::nullopt;
};

/// Makes the collective call on behalf of all replicas.
void call(CrossDeviceOps& ops, const std::vector<Call>& calls);
/// Makes one rank's collective call.
void call(Communicator& communicator, const Call& call);
/// Starts the call of one rank; an all_reduce works in place.
CollectiveHandle start(Communicator& communicator, const Call& call);

/// Declared and measured error of sums, for an operation that declares a max_relative_error().
struct SumError {
  double declared = 0.0;
  /// Unit of errors: the sum over ranks of each rank's largest magnitude; for MEAN, the mean over
  /// ranks. If a value is not finite, the unit is not finite either. In that case, any result
  /// passes, except a finite result for a non-finite sum.
  long double unit = 0;
  long double largest = 0;  // largest error so far, as a multiple of `unit`
};

/// Inputs of all ranks and memory for their outputs, surrounded by guards. Threads may use the
/// calls of different ranks concurrently. check() requires that all calls have ended.
class Problem {
 public:
  /// `devices`: one per rank; if empty, CPU device r for rank r.
  explicit Problem(const Case& c, const std::vector<Device>& devices = {});

  const Case& of() const { return case_; }
  Call call(int rank) const;
  std::vector<Call> calls() const;

  /// Returns "" if the outputs are correct for this grade and no other memory was written, else the
  /// first error. Sums may deviate by `max_relative_error`; `largest_error` receives their largest
  /// error.
  std::string check(Determinism grade, double max_relative_error = 0.0,
                    double* largest_error = nullptr) const;
  /// Returns the bytes of all outputs.
  std::vector<std::byte> outputs() const;

 private:
  static constexpr int kAllRanks = -1;
  /// A range of a rank's output: elements of the input of `source`, or the reduction of all inputs.
  struct Part {
    int source;
    std::size_t first;
    std::size_t count;
  };
  struct Rank {
    std::vector<Part> parts;  // parts of the output, in order
    std::vector<std::size_t> counts, receive_counts;
    std::size_t input_count = 0, output_count = 0;
    std::size_t input_at = 0, output_at = 0;  // offsets in the memory, in bytes
    bool in_place = false;
    Device device;
    std::vector<std::byte> before;  // initial content of the memory
    MutableTensor memory;
  };

  const Rank& rank(int r) const { return ranks_[static_cast<std::size_t>(r)]; }
  void plan_parts(int r, const std::vector<std::vector<std::size_t>>& lengths);
  void allocate(int r, std::size_t input_place, std::size_t output_place);
  Tensor download(int r) const { return rank(r).memory.freeze().to(Device{}); }
  std::span<const std::byte> output_in(const Tensor& memory, int r) const;
  bool has_other_changes(int r, std::span<const std::byte> memory) const;
  long double unit_of_error() const;
  template <class T>
  std::string wrong_output(Determinism grade, SumError* error, int r,
                           std::span<const std::byte> output,
                           std::span<const std::byte> output_of_first) const;

  Case case_;
  std::vector<Rank> ranks_;
};

/// Calls `visitor.template operator()<T>()` with the type that stores an element (bool: uint8_t).
template <class Visitor>
decltype(auto) visit_stored(DType dtype, Visitor&& visitor) {
  return visit_dtype(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, bool>) {
      return visitor.template operator()<std::uint8_t>();
    } else {
      return visitor.template operator()<T>();
    }
  });
}

/// Returns "" if `got` is a correct reduction of `values` (one per rank, at most 64), else the
/// expected value. Integers are exact modulo 2^bits. For kCanonical, floating-point results must be
/// bit-identical to the canonical tree's. Otherwise they must be within the rounding error of any
/// order of float additions (16-bit types: added as float32, rounded once), plus `error`, if given.
/// The result must be NaN if a value is NaN, and for inf - inf or 0 * inf.
template <class T>
std::string wrong_combination(ReduceOp op, Determinism grade, std::span<const T> values, T got,
                              SumError* error = nullptr);

/// Result of one thread's function.
struct Outcome {
  std::optional<Error> error = std::nullopt;  // exception that the function threw
  TimePoint begin = {};
  TimePoint end = {};
};

/// Time limit for threads. After `limit`, calls `rescue`, which should wake waiting threads. If
/// `rescue` is empty, or if threads are still running after another 2 * `limit`, the process prints
/// `message` and exits with code 1, because threads cannot be killed.
struct TimeLimit {
  Duration limit;
  std::string message;
  std::function<void()> rescue = nullptr;
};

/// Calls body(0), body(1), ... concurrently, each on its own thread, and waits for all.
std::vector<Outcome> run_threads(int size, const TimeLimit& limit,
                                 const std::function<void(int)>& body);

/// Checks the outcomes of calls in which the group's last rank did not take part. Returns "" if all
/// failed as they must (without `on_all`, some may succeed), else an error. The deadline of the
/// first call ends all calls, so on a busy machine a rank that begins its call just before this
/// deadline counts as missing.
std::string wrong_deadline(std::span<const Outcome> callers, Duration timeout, bool on_all = true);

}  // namespace tutti::conformance
