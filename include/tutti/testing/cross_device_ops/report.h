// The conformance kit of operations: cases, the operation under test, what became of them.
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

/// Makes one rank's communicator; called by each rank's own thread, all at the same time.
using RankFactory = std::function<std::unique_ptr<Communicator>(int rank)>;

/// An operation under test. Cases of a shape without a function are skipped, and so are those for
/// which its function throws kUnimplemented.
struct Subject {
  Subject() = default;
  /// An operation of the registry: local groups, and messages or shared memory between threads as
  /// far as it can. `plugin_options`: as in CrossDeviceOpsSpec. Throws for an unknown name.
  explicit Subject(const std::string& registered_name, const std::string& plugin_options = "");

  /// Sets the devices of local groups; several consecutive replicas share one where there are too
  /// few. With GPUs there are local groups alone: communicators work on host memory.
  void use_devices(std::vector<Device> of_groups);

  std::string name;
  /// One object for all replicas, of which there is one per device.
  std::function<std::unique_ptr<CrossDeviceOps>(const std::vector<Device>& devices)> local;
  std::function<RankFactory(int world, Duration timeout)> spread;
  std::function<RankFactory(int world, Duration timeout)> threads;
  std::vector<Device> devices;  // none: CPUs
};

/// The end of a case. kNotRun: the budget or the number of failures was reached before.
enum class Verdict { kPassed, kFailed, kSkipped, kNotRun };
/// "passed" and so on.
std::string_view to_string(Verdict verdict);

/// A case and its end.
struct Result {
  Case of;
  Verdict verdict = Verdict::kPassed;
  std::string message = {};  // what went wrong, or why it was skipped
  /// Largest error of a sum of an operation that declares some, in the units of
  /// CrossDeviceOps::max_relative_error().
  double error = 0.0;
};

/// The results of a list of cases.
struct Report {
  std::string name;
  std::uint64_t seed = 0;  // of the first case
  double seconds = 0;
  std::vector<Result> results;

  std::size_t count(Verdict verdict) const;
  /// Returns true if something ran and nothing failed.
  bool passed() const;
  /// A table with a line per operation and type, the reasons for skipping, the first failure of
  /// each line with the command that repeats it (`repeat`: "tutti conform NAME"), and a verdict.
  std::string table(const std::string& repeat) const;
  Json json() const;
};

struct RunOptions {
  /// No case begins after this time.
  Duration budget = Duration::max();
  /// No case begins after this number of failures: what fails everywhere need not run long.
  std::size_t max_failures = 100;
  /// Called before each case runs, by the thread that called run(): a program can note the case for
  /// the handler of a crash.
  std::function<void(const Case&)> before_case = nullptr;
};

/// Runs cases on groups that earlier cases have used; a case that fails there is tried again in a
/// new group, and the message says if it passed in that one. Does not throw what the subject
/// throws. A rank that does not return 40 s after its communicator was aborted ends the process
/// with exit code 1 and a line that names the case.
Report run_cases(const std::vector<Case>& cases, const Subject& subject,
                 const RunOptions& options = {});
/// Runs the cases of a plan.
Report run(const Plan& plan, const Subject& subject, const RunOptions& options = {});

}  // namespace tutti::conformance
