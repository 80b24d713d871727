// What is tested: how groups of an operation are made, and the groups that are kept between cases.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/testing/cross_device_ops/case.h"

namespace tutti::conformance {

/// Makes one rank's communicator; called by each rank's own thread, all at once.
using RankFactory = std::function<std::unique_ptr<Communicator>(int rank)>;
using Communicators = std::vector<std::unique_ptr<Communicator>>;

/// How groups are made. A shape without a function is skipped; all functions may throw, and
/// kUnimplemented means: skipped.
struct SubjectFactories {
  std::function<std::unique_ptr<CrossDeviceOps>(int world)> local = nullptr;
  std::function<RankFactory(int world, Duration timeout)> spread = nullptr;
  std::function<RankFactory(int world, Duration timeout)> threads = nullptr;
};

// Threads that play the ranks of a group, and notice when one of them does not come back.

/// `size` threads that wait for work. Threads: one at a time calls start() and wait().
class RankThreads {
 public:
  explicit RankThreads(int size);
  /// Joins; the work must have ended.
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }
  /// Every thread calls body(rank), which must not throw. The work before must have ended.
  void start(std::function<void(int rank)> body);
  /// Returns whether all have ended within the time.
  bool wait(Duration limit);

 private:
  RankThreads() = default;
  void work(int rank);

  Mutex mutex_;
  CondVar changed_;
  std::function<void(int)> body_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t round_ TUTTI_GUARDED_BY(mutex_) = 0;
  int running_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool ending_ TUTTI_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Thread>> threads_;
};

/// An operation under test. Not for several threads at once.
class Subject {
 public:
  /// An operation of the registry: kLocal and kSpread (in-process transport) as far as it can.
  explicit Subject(const std::string& registered_name);
  Subject(std::string name, SubjectFactories factories);
  ~Subject();

  const std::string& name() const { return name_; }

  /// For local groups made from now on; with more replicas than devices consecutive ones share a
  /// device. On GPUs there are local groups alone, for communicators work on host memory.
  void use_devices(std::vector<Device> devices);
  /// The devices of a local group's replicas, one each.
  std::vector<Device> devices(int world) const;

  /// A group that is kept from call to call; `world` replicas. nullptr: why_not() says why.
  CrossDeviceOps* kept_local(int world);
  Communicators* kept_ranks(GroupShape shape, int world);
  const std::string& why_not() const { return why_not_; }
  /// New ones. Throws as the factories do.
  std::unique_ptr<CrossDeviceOps> new_local(int world) const;
  Communicators new_ranks(GroupShape shape, int world, Duration timeout);
  /// Ends the kept groups: after an error they are not to be used again.
  void forget();

  /// The threads that play `size` ranks, kept.
  RankThreads& threads(int size);

 private:
  std::string name_;
  std::vector<Device> devices_;  // none: CPUs
  SubjectFactories factories_;
  std::string why_not_;
  std::map<GroupShape, std::string> unavailable_;  // and why
  std::map<int, std::unique_ptr<RankThreads>> threads_;
  std::unique_ptr<CrossDeviceOps> local_;
  int local_world_ = 0;
  Communicators ranks_;
  GroupShape ranks_shape_ = GroupShape::kSpread;
};

}  // namespace tutti::conformance
