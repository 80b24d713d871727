// Memory of the ranks of one case, their calls, the check of what they wrote; threads of ranks.
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

/// Arguments of one rank's collective call. In place if output.data == input.data.
struct Call {
  Collective collective = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  ReplicaBuffer input;
  ReplicaBuffer output;
  int root = 0;
  std::vector<std::size_t> counts;          // empty: even parts
  std::vector<std::size_t> receive_counts;  // of all_to_all
  std::string_view name = {};
  std::optional<Shape> shape = std::nullopt;
};

/// Makes the calls of all replicas.
void call(CrossDeviceOps& ops, const std::vector<Call>& calls);
/// Makes the call of one rank.
void call(Communicator& communicator, const Call& call);
/// Starts the call of one rank; an all_reduce works in place.
CollectiveHandle start(Communicator& communicator, const Call& call);

/// Errors of sums of an operation that declares a max_relative_error().
struct SumError {
  double declared = 0.0;
  /// Sum over ranks of a rank's largest magnitude, by which errors are measured; of MEAN the mean.
  /// Not finite where a value is not: then any result passes but a finite one where the sum is not.
  long double unit = 0;
  long double largest = 0;  // of the errors so far, in units
};

/// The inputs of all ranks and room for their outputs, between guards. Different threads may use
/// the calls of different ranks; check() requires that all calls have ended.
class Problem {
 public:
  /// `devices`: one per rank; none: CPUs.
  explicit Problem(const Case& c, const std::vector<Device>& devices = {});

  const Case& of() const { return case_; }
  Call call(int rank) const;
  std::vector<Call> calls() const;

  /// Returns "" if the outputs are right by this grade and nothing else was written, else the first
  /// error. Sums may have `max_relative_error`; the largest that is found is noted.
  std::string check(Determinism grade, double max_relative_error = 0.0,
                    double* largest_error = nullptr) const;
  /// Returns the bytes of all outputs.
  std::vector<std::byte> outputs() const;

 private:
  static constexpr int kAllRanks = -1;
  /// A run of a rank's output: elements of the input of `source`, or the combination of all inputs.
  struct Part {
    int source;
    std::size_t first;
    std::size_t count;
  };
  struct Rank {
    std::vector<Part> parts;  // together the whole output
    std::vector<std::size_t> counts, receive_counts;
    std::size_t input_count = 0, output_count = 0;
    std::size_t input_at = 0, output_at = 0;  // bytes from the start of the memory
    bool in_place = false;
    Device device;
    std::vector<std::byte> before;  // content of the memory when it was made
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

/// Calls `visitor.template operator()<T>()` with the type that holds an element: bool is a byte.
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

/// Returns "" if `got` is a right combination of `values` (one per rank, at most 64), else what was
/// expected. Integers are exact modulo 2^bits. For kCanonical, floating numbers have the bits of
/// the tree; otherwise they lie within the rounding error of any order of float additions (16-bit
/// types: added as float32, rounded once), or `error`, if given, beyond that. NaN where one of the
/// values is NaN, or inf - inf, or 0 * inf.
template <class T>
std::string wrong_combination(ReduceOp op, Determinism grade, std::span<const T> values, T got,
                              SumError* error = nullptr);

/// The end of one thread's part.
struct Outcome {
  std::optional<Error> error = std::nullopt;  // that it threw
  TimePoint begin = {};
  TimePoint end = {};
};

/// After `limit`, `rescue` is called, which should wake threads that wait. If it is empty, or after
/// twice the limit more, the process ends with exit code 1 and the line `message`: a thread cannot
/// be ended.
struct TimeLimit {
  Duration limit;
  std::string message;
  std::function<void()> rescue = nullptr;
};

/// Calls body(0), body(1), ... at the same time, each on its own thread, and waits for all.
std::vector<Outcome> run_threads(int size, const TimeLimit& limit,
                                 const std::function<void(int)>& body);

/// Returns what is wrong with calls that the last rank of a group did not make, or "". Not
/// `on_all`: some may succeed. The deadline of the first call ends all of them: on a busy machine a
/// rank may begin just before it, and counts as missing.
std::string wrong_deadline(std::span<const Outcome> callers, Duration timeout, bool on_all = true);

}  // namespace tutti::conformance
