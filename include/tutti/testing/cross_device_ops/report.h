// The conformance kit for cross-device operations: cases, the operation under test, and reports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/json.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti::conformance {

/// Shape of a group. kLocal: one CrossDeviceOps has all replicas' buffers. kSpread: each rank is a
/// thread with a Communicator that sends messages. kThreads: each rank is a thread with one of
/// in_process_communicators().
enum class GroupShape { kLocal, kSpread, kThreads };

/// Aspect that a case tests.
enum class Check {
  kValues,         // one call: correct results everywhere, nothing else written
  kSpecialValues,  // NaN, infinities, signed zeros, denormals among the values
  kRepeated,       // three calls in a row, the third equal to the first
  kConcurrent,     // several groups at the same time
  kSlices,         // several threads on disjoint ranges (sliceable operations)
  kHandles,        // several asynchronous calls, awaited in a different order
  kMismatch,       // the last rank makes a different call; `variant` is a MismatchKind
  kDeadline,       // the last rank makes no call
  kAbort,          // another thread aborts the call
  kPeerGone,       // the last rank's communicator is destroyed
};

/// Property in which the last rank's call differs from the other ranks' calls in Check::kMismatch.
enum class MismatchKind { kOperation, kReduceOp, kDType, kCount, kShape, kRoot, kName };

/// Returns the name that Case::id() uses.
std::string_view to_string(GroupShape shape);
std::string_view to_string(Check check);

/// Conformance test. Its values are random numbers keyed by seed, world size and element count.
struct Case {
  GroupShape shape = GroupShape::kLocal;
  Check check = Check::kValues;
  Collective collective = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;  // used by collectives that reduce
  DType dtype = DType::kFloat32;
  int world = 2;
  std::size_t count = 0;   // number of elements in the full tensor: CollectiveHeader::count
  bool in_place = false;   // outputs are stored in (parts of) inputs
  std::size_t offset = 0;  // distance from a 64-byte boundary to the first element, in bytes
  bool uneven = false;     // parts of differing lengths, some empty
  int variant = 0;         // for reduce and broadcast: the root; for kMismatch: its kind
  std::uint64_t seed = 1;

  /// Returns an id such as "local/values/all_reduce/SUM/float32/3x17/in_place+4/even/0/1".
  std::string id() const;
  /// Returns the case with that id. Throws kInvalidArgument if no plan contains it.
  static Case parse(std::string_view id);
  bool operator==(const Case&) const = default;
};

/// The cases to run.
struct Plan {
  std::vector<GroupShape> shapes = {GroupShape::kLocal, GroupShape::kSpread, GroupShape::kThreads};
  std::uint64_t seed = 1;
  /// Approximate number of cases; 0: all. The sample has at least one case of each shape, check,
  /// collective, reduction and type. The seed determines the sample and the values.
  std::size_t sample = 0;
  /// Cases with more elements are omitted. The largest case has 2^20 + 1 elements.
  std::size_t max_count = std::size_t{1} << 21;
};

/// Returns the cases of a plan, sorted by shape and number of ranks.
std::vector<Case> cases(const Plan& plan);

/// Creates one rank's communicator. Called concurrently by each rank's own thread.
using RankFactory = std::function<std::unique_ptr<Communicator>(int rank)>;

/// An operation under test. Cases of a shape are skipped if the function for that shape is not set
/// or throws kUnimplemented.
struct Subject {
  Subject() = default;
  /// Tests a registered operation: local groups and, if it supports them, messages or shared memory
  /// between threads. `plugin_options`: as in CrossDeviceOpsSpec. Throws for an unknown name.
  explicit Subject(const std::string& registered_name, const std::string& plugin_options = "");

  /// Sets the devices of local groups. If there are fewer devices than replicas, consecutive
  /// replicas share a device. With GPUs, only local groups are tested, because communicators use
  /// host memory.
  void use_devices(std::vector<Device> of_groups);

  std::string name;
  /// Creates one object that all replicas use; there is one replica per device.
  std::function<std::unique_ptr<CrossDeviceOps>(const std::vector<Device>& devices)> local;
  std::function<RankFactory(int world, Duration timeout)> spread;
  std::function<RankFactory(int world, Duration timeout)> threads;
  std::vector<Device> devices;  // empty: CPUs
};

/// Result of a case. kNotRun: the time limit or the failure limit was reached before the case
/// began.
enum class Verdict { kPassed, kFailed, kSkipped, kNotRun };
/// Returns "passed", "failed", "skipped" or "not_run".
std::string_view to_string(Verdict verdict);

/// A case and its result.
struct Result {
  Case of;
  Verdict verdict = Verdict::kPassed;
  std::string message = {};  // the error, or the reason for skipping
  /// Largest error of a sum, in the units of CrossDeviceOps::max_relative_error(); 0 if the
  /// operation declares no such limit.
  double error = 0.0;
};

/// The results of a list of cases.
struct Report {
  std::string name;
  std::uint64_t seed = 0;  // seed of the first case
  double seconds = 0;
  std::vector<Result> results;

  std::size_t count(Verdict verdict) const;
  /// Returns true if at least one case passed and none failed.
  bool passed() const;
  /// Returns a table with a line per operation and type, the reasons for skipping, the first
  /// failure of each line with its command (`repeat`: "tutti conform NAME"), and a verdict.
  std::string table(const std::string& repeat) const;
  Json json() const;
};

struct RunOptions {
  /// Time after which no further case begins.
  Duration budget = Duration::max();
  /// No case begins after this number of failures, so that a broken operation ends the run early.
  std::size_t max_failures = 100;
  /// Called before each case by the thread that called run(), so that a program can record the case
  /// for its crash handler.
  std::function<void(const Case&)> before_case = nullptr;
};

/// Runs the cases, reusing the groups of earlier cases. A case that fails is repeated in a new
/// group, and its message reports whether the repetition passed. Does not throw the subject's
/// errors. If a rank does not return within 40 s after its communicator was aborted, the process
/// prints a line that names the case and exits with code 1.
Report run_cases(const std::vector<Case>& cases, const Subject& subject,
                 const RunOptions& options = {});
/// Runs the cases of a plan.
Report run(const Plan& plan, const Subject& subject, const RunOptions& options = {});

}  // namespace tutti::conformance
