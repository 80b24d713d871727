// State of one rank's communicator: order of calls, records, started calls, stalls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cross_device_ops/collective_engine.h"
#include "cross_device_ops/collective_header.h"
#include "cross_device_ops/communicator/gpu_calls.h"
#include "tutti/core/clock.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti::internal {

/// A call as its caller describes it, possibly with MEAN, with buffers of any type and alignment.
/// The spans, the options and the source location refer to the caller's memory, because copying
/// them would cost more than all the checks.
struct CallRequest : CollectiveCall {
  const CallOptions& options;
  const SourceLocation& where;

  /// Returns true if `rank` has outputs.
  bool has_result(int rank) const { return collective != Collective::kReduce || root == rank; }
  /// Returns "rank 1: broadcast 'kernel'", the context in a rank's own errors.
  std::string context(int rank) const {
    return concat("rank ", rank, ": ", to_string(collective),
                  options.name.empty() ? "" : concat(" '", options.name, "'"));
  }
};

enum class CallState { kWaiting, kDone, kFailed };

/// One recorded call, with times accurate to a few milliseconds.
struct RecordedCall {
  CollectiveHeader header;
  CallState state = CallState::kWaiting;
  TimePoint begin;
  /// Returns the call, such as "all_reduce(SUM, float32 x 12, 'a') #3 at a.cc:7", with its state
  /// and age.
  std::string to_string(TimePoint now) const;
};

/// Recorder of a rank's latest call. One thread at a time writes; any thread may read.
class CallRecorder {
 public:
  void begin(const CollectiveHeader& header, const char* file, TimePoint now);
  void end(CallState state);

  std::optional<RecordedCall> last() const;

 private:
  // Number of header words before the strings `file` and `shape`. Instead of `file`, an entry
  // stores a pointer to the file's name.
  static constexpr std::size_t kWords = offsetof(CollectiveHeader, file) / sizeof(std::uint64_t);
  // Entry that consists of atomic words. Its version changes before and after each write, so that a
  // reader gets a complete entry or none.
  struct Entry {
    std::atomic<std::uint64_t> version{0};  // odd: being written
    std::array<std::atomic<std::uint64_t>, kWords> words{};
    std::atomic<const char*> file{nullptr};
    std::atomic<std::int64_t> begin{0};
    std::atomic<int> state{0};
  };
  std::optional<RecordedCall> read(std::uint64_t number) const;

  // Consecutive calls use different entries, so a call's entry stays readable after the next call
  // has started.
  std::array<Entry, 4> entries_;
  std::atomic<std::uint64_t> num_calls_{0};
};

/// Thread that monitors one rank's calls about ten times a second. When a collective has waited too
/// long, it logs which ranks are missing. It also answers state queries from other ranks.
class StallWatch {
 public:
  /// Starts the thread, which also calls `poll` about ten times a second.
  StallWatch(CollectiveEngine& engine, const CallRecorder& recorder, Duration stall_after,
             std::function<void()> poll);
  ~StallWatch();

  /// Returns "has waited 10.2 s in all_reduce(...) #3 at a.cc:7" or "is in no collective; its last
  /// one was ...".
  static std::string state_of(const CallRecorder& recorder);
  /// Returns the states of all other ranks: "rank 1 has waited ...; rank 2 does not answer".
  static std::string states_of_others(CollectiveEngine& engine);

 private:
  void watch();
  void check_stall();

  CollectiveEngine& engine_;
  const CallRecorder& recorder_;
  const Duration stall_after_;
  const std::function<void()> poll_;
  std::optional<std::uint64_t> reported_;  // sequence number of the last logged stalled call
  Event stop_;
  std::unique_ptr<Thread> thread_;
};

/// A started call, shared by its handle and the thread that runs it. Copies the whole request
/// except the elements.
struct PendingCall {
  explicit PendingCall(const CallRequest& other)
      : inputs(other.inputs.begin(), other.inputs.end()),
        outputs(other.outputs.begin(), other.outputs.end()),
        counts(other.counts.begin(), other.counts.end()),
        receive_counts(other.receive_counts.begin(), other.receive_counts.end()),
        name(other.options.name),
        options(other.options),
        where(other.where),
        request{other, options, where} {
    request.inputs = inputs;
    request.outputs = outputs;
    request.counts = counts;
    request.receive_counts = receive_counts;
    options.name = name;
    if (options.shape != nullptr) {
      shape = *options.shape;
      options.shape = &shape;
    }
  }
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  std::vector<ConstElements> inputs;
  std::vector<Elements> outputs;
  std::vector<std::size_t> counts;
  std::vector<std::size_t> receive_counts;
  std::string name;
  Shape shape;
  CallOptions options;
  SourceLocation where;
  CallRequest request;  // refers to the members above
  Event ended;
  std::exception_ptr error;            // written before `ended` is set
  std::shared_ptr<DeviceEvent> begin;  // null for host memory
};

class CommunicatorState {
 public:
  CommunicatorState(std::unique_ptr<CollectiveEngine> engine, const CommunicatorOptions& options);
  ~CommunicatorState();

  CollectiveEngine& engine() { return *engine_; }
  const CommunicatorOptions& options() const { return options_; }
  const CallRecorder& recorder() const { return recorder_; }

  /// Waits for started calls, then checks, runs and records this call. Empty counts mean parts of
  /// equal size.
  void run(const CollectiveCall& call, const CallOptions& options, const SourceLocation& where);
  CollectiveHandle start(const CollectiveCall& call, const CallOptions& options,
                         const SourceLocation& where);
  /// Reports to the other ranks, which may already be waiting, that this rank cannot make its next
  /// call. Waits for started calls first. Throws `reason`.
  [[noreturn]] void refuse(const CallRequest& request, const Error& reason);
  /// Returns the number of the next group, which is the same on all ranks.
  std::uint32_t next_group() { return ++num_groups_; }
  /// Returns the buffers of `list` as inputs; the result is valid until the next call.
  std::span<const ConstElements> as_inputs(std::span<const Elements> list);

  // Steps of a checked call, for GpuCalls.
  /// Compares `request` between the ranks, without moving data.
  void compare_requests(const CallRequest& request);
  /// Carries out `request` on host memory.
  void execute_on_host(const CallRequest& request);

 private:
  CallRequest completed(const CollectiveCall& call, const CallOptions& options,
                        const SourceLocation& where);
  /// Calls check(); if it throws, calls refuse() with the error.
  template <class Check>
  auto checked(const CallRequest& request, const Check& check);
  /// Calls check_call(); if it throws, calls refuse() with the error.
  void check(const CallRequest& request);
  CollectiveHandle start(const CallRequest& request);
  /// Carries out a call. `begin`: GPU event after which the call starts; null for host memory.
  void execute(const CallRequest& request, const DeviceEvent* begin);
  /// Runs `call` with `request`'s header. If it throws kDeadlineExceeded, adds the states of the
  /// other ranks to the error; if it throws kUnavailable, adds this rank's call.
  void located(const CallRequest& request, const CollectiveCall& call);
  /// Runs `call` with header_, and records the call.
  void recorded(const CallRequest& request, const CollectiveCall& call, Duration timeout);
  void fill_header(const CallRequest& request);
  void fill_text(const CallRequest& request);
  void run_started_calls();

  const CommunicatorOptions options_;
  CallRecorder recorder_;  // outlives the engine, whose state queries read it
  const std::unique_ptr<CollectiveEngine> engine_;
  const int size_;
  GpuCalls gpu_;
  CollectiveHeader header_;            // header of the current call; unchanged fields are kept
  const char* header_file_ = nullptr;  // full path, whose end is stored in header_.file
  std::size_t name_size_ = 0;          // length of header_.name
  std::uint32_t num_groups_ = 0;
  std::vector<std::size_t> even_counts_[2];
  std::vector<ConstElements> list_inputs_;
  std::unique_ptr<StallWatch> watch_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<PendingCall>> started_ TUTTI_GUARDED_BY(mutex_);
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  std::shared_ptr<PendingCall> last_started_;  // used by the caller's thread only
  std::unique_ptr<Thread> thread_;             // runs started calls; null before the first
};

}  // namespace tutti::internal
