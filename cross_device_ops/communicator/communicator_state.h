// One rank's communicator behind its public functions: order, records, started calls, stalls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cross_device_ops/collective_engine.h"
#include "cross_device_ops/communicator/call_recorder.h"
#include "cross_device_ops/communicator/call_request.h"
#include "cross_device_ops/communicator/gpu_calls.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti::internal {

/// Says who is missing when a collective has waited for long, and answers ranks that ask: a thread
/// that looks at one rank's calls about ten times a second, for as long as it lives.
class StallWatch {
 public:
  /// `tend`: what else is to be looked after as often.
  StallWatch(CollectiveEngine& engine, const CallRecorder& recorder, Duration stall_after,
             std::function<void()> tend);
  ~StallWatch();

  /// "waits in all_reduce(...) #3 at a.cc:7 since 10.2 s" or "is in no collective; its last one
  /// was ...".
  static std::string state_of(const CallRecorder& recorder);
  /// "rank 1 waits in ...; rank 2 does not answer": of all ranks but `own`.
  static std::string states_of_others(CollectiveEngine& engine);

 private:
  void watch();
  void look();

  CollectiveEngine& engine_;
  const CallRecorder& recorder_;
  const Duration stall_after_;
  const std::function<void()> tend_;
  std::optional<std::uint64_t> reported_;  // sequence number of a call that stalled
  Event stop_;
  std::unique_ptr<Thread> thread_;
};

/// A started call, shared by its handle and the thread that runs it.
struct PendingCall {
  explicit PendingCall(const CallRequest& other) : owned(other) {}
  OwnedRequest owned;
  Event ended;
  std::exception_ptr error;            // written before `ended`
  std::shared_ptr<DeviceEvent> begin;  // on GPUs
};

class CommunicatorState {
 public:
  CommunicatorState(std::unique_ptr<CollectiveEngine> engine, const CommunicatorOptions& options);
  ~CommunicatorState();

  CollectiveEngine& engine() { return *engine_; }
  const CommunicatorOptions& options() const { return options_; }
  const CallRecorder& recorder() const { return recorder_; }

  /// Checks, runs and records a call; after the started ones.
  void run(const CallRequest& request);
  CollectiveHandle start(const CallRequest& request);
  /// Tells the others, who may wait in theirs, that this rank cannot make its next call; after the
  /// started ones. Throws `reason`.
  [[noreturn]] void refuse(const CallRequest& request, const Error& reason);
  /// A number for the next group, equal on all ranks.
  std::uint32_t next_group() { return ++num_groups_; }
  /// counts, or even parts of `total` when there are none. The memory is this object's, until the
  /// next call of this function with the same `slot` (0 or 1).
  std::span<const std::size_t> counts_or_even(std::span<const std::size_t> counts,
                                              std::size_t total, int slot);
  /// The same memory as inputs; this object's until the next call.
  std::span<const ConstElements> as_inputs(std::span<const Elements> list);

 private:
  void check(const CallRequest& request);
  GpuCalls::Begun begin_on_gpu(const CallRequest& request);
  /// `begin`: of a call on GPUs.
  void execute(const CallRequest& request, const DeviceEvent* begin);
  void execute_on_host(const CallRequest& request);
  void execute_on_gpu(const CallRequest& request, const DeviceEvent& begin);
  void connect_gpus(const CallRequest& request);
  void meet_before_refusing(const CallRequest& request);
  /// The ranks compare `request`, and do nothing else.
  void meet(const CallRequest& request);
  /// The engine runs `call`; the other ranks compare `request` with theirs.
  void run_recorded(const CallRequest& request, const CollectiveCall& call);
  /// The same with header_ as it is.
  void run_filled(const CallRequest& request, const CollectiveCall& call);
  void run_with_header(const CallRequest& request, const CollectiveCall& call, Duration timeout);
  void run_alone(const CallRequest& request);
  void fill_header(const CallRequest& request, const CollectiveCall& call);
  void fill_text(const CallRequest& request);
  void run_started_calls();

  const CommunicatorOptions options_;
  CallRecorder recorder_;  // other ranks may ask for it as long as the engine lives
  const std::unique_ptr<CollectiveEngine> engine_;
  const int size_;
  GpuCalls gpu_;
  CollectiveHeader header_;  // of the call that runs; parts that stay are not written anew
  const char* header_file_ = nullptr;  // whose end stands in header_.file
  std::size_t name_size_ = 0;          // of header_.name
  std::uint32_t num_groups_ = 0;
  std::vector<std::size_t> even_counts_[2];
  std::vector<ConstElements> list_inputs_;
  std::unique_ptr<StallWatch> watch_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<PendingCall>> started_ TUTTI_GUARDED_BY(mutex_);
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  std::shared_ptr<PendingCall> last_started_;  // the caller's
  std::unique_ptr<Thread> thread_;             // runs started calls; made for the first one
};

}  // namespace tutti::internal
