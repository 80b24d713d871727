// Algorithms by name: the schedule of each call, and the choice of "auto".
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cross_device_ops/algorithms/schedule.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti::internal {

using MakeSchedule = Schedule (*)(const CallShape&);

/// An algorithm: one schedule per operation in which the algorithms differ; broadcast, all_to_all
/// and barrier are common to all. A schedule depends on its CallShape only.
struct Algorithm {
  std::string_view name;
  Determinism determinism;
  /// True if each element is combined once, from all its contributions: 16-bit numbers are then
  /// rounded once.
  bool combines_once;
  MakeSchedule all_reduce;
  MakeSchedule reduce;
  MakeSchedule all_gather;
  MakeSchedule reduce_scatter;
};

/// Returns canonical, ring, halving_doubling, tree, hierarchical_copy, reduction_to_one_device.
std::span<const Algorithm> algorithms();
/// Returns nullptr for an unknown name.
const Algorithm* find_algorithm(std::string_view name);

/// Returns the schedule of rank shape.rank. In a group of one: a copy from input to output.
Schedule make_schedule(const Algorithm& algorithm, const CallShape& shape);

// all_reduce
Schedule direct_exchange_all_reduce(const CallShape& shape);
Schedule ring_all_reduce(const CallShape& shape);
Schedule halving_doubling_all_reduce(const CallShape& shape);
Schedule tree_all_reduce(const CallShape& shape);
Schedule hierarchical_all_reduce(const CallShape& shape);
Schedule one_device_all_reduce(const CallShape& shape);
// reduce
Schedule direct_exchange_reduce(const CallShape& shape);
Schedule tree_reduce(const CallShape& shape);
Schedule one_device_reduce(const CallShape& shape);
// all_gather, reduce_scatter
Schedule direct_exchange_all_gather(const CallShape& shape);
Schedule ring_all_gather(const CallShape& shape);
Schedule direct_exchange_reduce_scatter(const CallShape& shape);
Schedule ring_reduce_scatter(const CallShape& shape);
// other collectives
Schedule binomial_broadcast(const CallShape& shape);
Schedule direct_exchange_all_to_all(const CallShape& shape);
Schedule dissemination_barrier(const CallShape& shape);

/// Knowledge about the other ranks that a rank needs before it may leave a call.
enum class Closing {
  kHeaders,   // all headers are equal
  kReceived,  // and every rank has received all its messages
};
/// Appends rounds of empty messages after which a rank knows this, to schedules that some rank
/// could leave earlier. Begins with a kVerify step.
void append_closing(Schedule& schedule, const CallShape& shape,
                    Closing closing = Closing::kHeaders);

/// A schedule that works on a buffer segment by segment. A rank verifies before its first message,
/// so a rank that has received from all knows that all have verified.
class SegmentedSchedule {
 public:
  explicit SegmentedSchedule(const CallShape& shape) : shape_(shape) {}

  Schedule schedule;
  std::size_t num_segments() const {
    return internal::num_segments(shape_.count, shape_.segment());
  }
  Range segment(Space space, std::size_t k) const {
    return segment_of({space, 0, shape_.count}, k, shape_.segment());
  }
  void send(int peer, Range range) {
    if (!verified_ && shape_.size > 2) schedule.verify();
    verified_ = true;
    schedule.send(peer, range);
  }

 protected:
  /// Number of segments in scratch memory at a time; slot() is the room for one.
  static constexpr std::size_t kGenerations = 2;
  std::size_t slot() const { return std::min(shape_.count, shape_.segment()); }

  const CallShape& shape_;

 private:
  bool verified_ = false;
};

}  // namespace tutti::internal

namespace tutti {

/// Connection of the ranks: one thread has all buffers, or messages. (Threads, and processes of one
/// host, have an engine of their own for the cases of "auto".)
enum class Medium { kLocal, kNetwork };

/// Returns ring, halving_doubling, tree, hierarchical_copy or reduction_to_one_device for the
/// replicas of a process. One thread runs the schedules that are also used between processes, so
/// that a program gets the same bits in both. "auto" chooses per call among canonical algorithms,
/// so the bits do not depend on the choice. Throws kNotFound for another name.
std::unique_ptr<CrossDeviceOps> scheduled_ops(std::string_view algorithm);

namespace internal {
/// Algorithm of an engine or operation, by name. "auto" chooses a canonical algorithm for each
/// call, so that the bits are the same. It uses only the arguments, so that all ranks choose alike.
/// Thread-safe.
class NamedAlgorithm {
 public:
  /// Throws kNotFound listing the names.
  explicit NamedAlgorithm(std::string_view name);
  std::string_view name() const { return fixed_ ? fixed_->name : "auto"; }
  bool is_auto() const { return fixed_ == nullptr; }
  Determinism determinism() const { return fixed_ ? fixed_->determinism : Determinism::kCanonical; }
  /// Excludes 16-bit types if values are combined in several steps, each of which rounds.
  bool supports(ReduceOp op, DType dtype) const {
    return can_combine(op, dtype) && (!is_half(dtype) || is_auto() || fixed_->combines_once);
  }
  /// Returns the call's algorithm. Logs (debug) the choice of "auto", and why, when it changes.
  const Algorithm& choose(const CallShape& call, DType dtype, Medium medium);

 private:
  const Algorithm* const fixed_;  // nullptr: auto
  std::atomic<const Algorithm*> last_{nullptr};
};
}  // namespace internal

}  // namespace tutti
