// The algorithms by name: which schedule a call has under each, and which of them "auto" gets.
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

/// One schedule per operation that names differ in; all make broadcast, all_to_all and barrier
/// alike. A schedule depends on its CallShape alone.
struct Algorithm {
  std::string_view name;
  Determinism determinism;
  /// Each element is combined once, with all its contributions at hand: then 16-bit numbers are
  /// rounded once.
  bool combines_once;
  MakeSchedule all_reduce;
  MakeSchedule reduce;
  MakeSchedule all_gather;
  MakeSchedule reduce_scatter;
};

/// canonical, ring, halving_doubling, tree, hierarchical_copy, reduction_to_one_device.
std::span<const Algorithm> algorithms();
/// nullptr: there is none of that name.
const Algorithm* find_algorithm(std::string_view name);

/// What rank shape.rank does. In a group of one: a copy from input to output.
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
// the others
Schedule binomial_broadcast(const CallShape& shape);
Schedule direct_exchange_all_to_all(const CallShape& shape);
Schedule dissemination_barrier(const CallShape& shape);

/// What a rank has to know of the others before it may leave a call.
enum class Closing {
  kHeaders,   // all headers are equal
  kReceived,  // and every rank has received all that it expected
};
/// Rounds of empty messages after which a rank knows this; ends schedules that some rank could
/// leave earlier. Begins with a kVerify step.
void append_closing(Schedule& schedule, const CallShape& shape,
                    Closing closing = Closing::kHeaders);

/// A schedule that works on a buffer segment by segment. Before its first message a rank verifies:
/// who has heard of all ranks knows that all have.
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
  /// Segments that are in scratch memory at once, and room for one.
  static constexpr std::size_t kGenerations = 2;
  std::size_t slot() const { return std::min(shape_.count, shape_.segment()); }

  const CallShape& shape_;

 private:
  bool verified_ = false;
};

}  // namespace tutti::internal

namespace tutti {

/// How ranks reach each other: one thread has all buffers; or with messages. (Threads, and
/// processes of one host, have an engine of their own for what "auto" would choose.)
enum class Medium { kLocal, kNetwork };

/// ring, halving_doubling, tree, hierarchical_copy or reduction_to_one_device among the replicas of
/// a process: the same schedules as between processes, run by one thread, so that a program has the
/// same bits in both. "auto" chooses for each call among algorithms that add along the canonical
/// tree: the bits are the same whatever is chosen. Throws kNotFound for another name.
std::unique_ptr<CrossDeviceOps> scheduled_ops(std::string_view algorithm);

namespace internal {
/// The algorithm of an engine or operation, by name. "auto" chooses one of canonical grade for each
/// call, so that it has one set of bits, by the arguments alone, so that all ranks choose alike.
/// Thread-safe.
class NamedAlgorithm {
 public:
  /// Throws kNotFound listing the names.
  explicit NamedAlgorithm(std::string_view name);
  std::string_view name() const { return fixed_ ? fixed_->name : "auto"; }
  bool is_auto() const { return fixed_ == nullptr; }
  Determinism determinism() const { return fixed_ ? fixed_->determinism : Determinism::kCanonical; }
  /// Not 16-bit types where values are combined in several steps: each would round.
  bool supports(ReduceOp op, DType dtype) const {
    return can_combine(op, dtype) && (!is_half(dtype) || is_auto() || fixed_->combines_once);
  }
  /// Logs (debug) what "auto" chooses, and why, when that changes.
  const Algorithm& choose(const CallShape& call, DType dtype, Medium medium);

 private:
  const Algorithm* const fixed_;  // nullptr: auto
  std::atomic<const Algorithm*> last_{nullptr};
};
}  // namespace internal

}  // namespace tutti
