// One case of the conformance kit, as a value with a name, and lists of cases.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cross_device_ops/collective.h"

namespace tutti::conformance {

/// The callers. kLocal: one CrossDeviceOps has the buffers of all replicas. kSpread: each rank is a
/// thread with a Communicator over messages. kThreads: the same over in_process_communicators().
enum class GroupShape { kLocal, kSpread, kThreads };

/// The subject of a case.
enum class Check {
  kValues,         // one call: right results everywhere, nothing else written
  kSpecialValues,  // NaN, infinities, signed zeros, denormals among the values
  kRepeated,       // three calls in a row, the third equal to the first
  kConcurrent,     // several groups at the same time
  kSlices,         // several threads on disjoint ranges (sliceable operations)
  kHandles,        // several started calls, waited for in another order
  kMismatch,       // the last rank makes another call; `variant` is a MismatchKind
  kDeadline,       // the last rank makes no call
  kAbort,          // another thread aborts the call
  kPeerGone,       // the last rank's communicator is destroyed
};

/// The difference between the calls of two ranks in Check::kMismatch.
enum class MismatchKind { kOperation, kReduceOp, kDType, kCount, kShape, kRoot, kName };

/// Names as in Case::id().
std::string_view to_string(GroupShape shape);
std::string_view to_string(Check check);

/// Values are random numbers keyed by seed, world and count.
struct Case {
  GroupShape shape = GroupShape::kLocal;
  Check check = Check::kValues;
  Collective collective = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;  // of the collectives that combine
  DType dtype = DType::kFloat32;
  int world = 2;
  std::size_t count = 0;   // elements of the whole: CollectiveHeader::count
  bool in_place = false;   // outputs are (parts of) inputs
  std::size_t offset = 0;  // bytes from a multiple of 64 to the first element
  bool uneven = false;     // parts of differing lengths, some empty
  int variant = 0;         // root of reduce and broadcast; kind of kMismatch
  std::uint64_t seed = 1;

  /// "local/values/all_reduce/SUM/float32/3x17/in_place+4/even/0/1".
  std::string id() const;
  /// Returns the case of that id. Throws kInvalidArgument if no plan has it.
  static Case parse(std::string_view id);
  bool operator==(const Case&) const = default;
};

/// The cases to run.
struct Plan {
  std::vector<GroupShape> shapes = {GroupShape::kLocal, GroupShape::kSpread, GroupShape::kThreads};
  std::uint64_t seed = 1;
  /// 0: every case. Otherwise about this many, with at least one of each shape, check, collective,
  /// reduction and type. The seed chooses them; it also makes the values.
  std::size_t sample = 0;
  /// Cases with more elements are left out; the largest has 2^20 + 1.
  std::size_t max_count = std::size_t{1} << 21;
};

/// Returns the cases of a plan, by shape and number of ranks.
std::vector<Case> cases(const Plan& plan);

}  // namespace tutti::conformance
