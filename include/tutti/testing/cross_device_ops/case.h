// One thing that an operation must do, as a plain value with a name that says all of it.
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

/// What is checked.
enum class Check {
  kValues,         // one call: right results everywhere, nothing else touched
  kSpecialValues,  // NaN, infinities, signed zeros, denormals among the values
  kRepeated,       // three calls in a row, the third as the first
  kConcurrent,     // several groups at once
  kSlices,         // several threads on disjoint ranges (sliceable operations)
  kHandles,        // several started calls, waited in another order
  kRefused,        // MEAN of integers, SUM of bool, ...
  kMismatch,       // one rank calls something else; `variant` is what: a MismatchKind
  kDeadline,       // a rank stays away
  kAbort,          // somebody else ends the call
  kPeerGone,       // a rank's communicator is destroyed
};

/// How the calls of two ranks differ in Check::kMismatch.
enum class MismatchKind {
  kOperation,
  kReduceOp,
  kDType,
  kCount,
  kShape,
  kRoot,
  kName,
  kOrder,
  kGroup
};
/// How many values MismatchKind has.
inline constexpr int kNumMismatchKinds = 9;

/// Names as they stand in Case::id().
std::string_view to_string(GroupShape shape);
std::string_view to_string(Check check);
std::string_view to_string(MismatchKind kind);

/// Values are random numbers keyed by all fields: equal cases have equal values.
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

  /// "local/values/all_reduce/SUM/float32/3x17/in_place+4/even/0/1". parse() reads it again; it
  /// throws kInvalidArgument naming the part that is wrong.
  std::string id() const;
  static Case parse(std::string_view id);
  bool operator==(const Case&) const = default;
};

/// Whether it cuts buffers into parts, even or not.
bool has_parts(Collective collective);

// Which cases: all of them, or a seeded sample.

/// Which cases are run.
struct Plan {
  std::vector<GroupShape> shapes = {GroupShape::kLocal, GroupShape::kSpread, GroupShape::kThreads};
  std::uint64_t seed = 1;
  /// 0: every case. Else a sample of about so many, at least one of each shape, check, collective,
  /// reduction and type: chosen by the seed, which also makes the values.
  std::size_t sample = 0;
  /// The largest number of elements: 2^20 + 1 is the largest there is.
  std::size_t max_count = std::size_t{1} << 21;
};

/// In an order in which groups can be kept from case to case: by shape and number of ranks.
std::vector<Case> cases(const Plan& plan);

}  // namespace tutti::conformance
