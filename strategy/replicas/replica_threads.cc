// Replica threads.
// SPDX-License-Identifier: Apache-2.0
//
// A run is a *frame* (body and rendezvous) on a stack; a thread takes up the innermost frame
// whenever it has not taken it up yet and is idle or parked in a merge call. A frame leaves the
// stack after all replicas ended its body.
#include "strategy/replicas/replica_threads.h"

#include <map>

#include "autograd/recording.h"

namespace tutti::internal {

/// What a replica does while it waits in a merge call: the bodies of nested runs.
class ReplicaThreads::NestedBodies final : public IdleWork {
 public:
  NestedBodies(ReplicaThreads& threads, int replica) : threads_(threads), replica_(replica) {}
  bool available() override {
    threads_.monitor_.assert_held();
    return threads_.has_body(replica_);
  }
  void work() override { threads_.run_body(replica_); }

 private:
  ReplicaThreads& threads_;
  const int replica_;
};

ReplicaThreads::ReplicaThreads(const std::vector<Device>& replica_devices, bool sequential,
                               Duration timeout)
    : num_replicas_(static_cast<int>(replica_devices.size())),
      timeout_(timeout),
      monitor_(num_replicas_, sequential),
      token_of_replica_(replica_devices.size(), nullptr),
      last_taken_(replica_devices.size(), 0) {
  if (num_replicas_ == 1) return;
  if (!sequential) {
    std::map<Device, std::vector<std::size_t>> replicas_of;
    for (std::size_t r = 0; r < replica_devices.size(); ++r) {
      replicas_of[replica_devices[r]].push_back(r);
    }
    for (const auto& [device, replicas] : replicas_of) {
      if (replicas.size() == 1) continue;
      tokens_.push_back(std::make_unique<RunToken>());
      for (const std::size_t r : replicas) token_of_replica_[r] = tokens_.back().get();
    }
  }
  try {
    for (int r = 1; r < num_replicas_; ++r) {
      threads_.push_back(Executor::system().start(concat("replica-", r), [this, r] { serve(r); }));
    }
  } catch (const Error&) {
    stop();  // those that wait for work
    throw;
  }
}

ReplicaThreads::~ReplicaThreads() { stop(); }

void ReplicaThreads::stop() {
  {
    MutexLock lock(monitor_.mutex());
    stopping_ = true;
    monitor_.notify_replicas();
  }
  for (auto& thread : threads_) thread->join();
}

RunOutcome ReplicaThreads::run(const Body& body) {
  const bool nested = [this] {
    MutexLock lock(monitor_.mutex());
    return !frames_.empty();
  }();
  const RunPlace place = num_replicas_ == 1 ? RunPlace::kCaller
                         : nested           ? RunPlace::kNested
                                            : RunPlace::kReplicaThreads;
  Frame frame(monitor_, num_replicas_, timeout_, place, body);
  {
    MutexLock lock(monitor_.mutex());
    frame.number = next_number_++;
    frames_.push_back(&frame);
    if (place != RunPlace::kCaller) monitor_.begin(!nested);
  }
  run_as_replica_0(frame, place);
  {
    MutexLock lock(monitor_.mutex());
    frames_.pop_back();
    if (place == RunPlace::kNested) monitor_.resume(0);
  }
  return frame.rendezvous.outcome();
}

void ReplicaThreads::run_as_replica_0(Frame& frame, RunPlace place) {
  if (place == RunPlace::kCaller) {
    run_body(0);
    return;
  }
  {
    const SeparateTapes no_tapes;  // as on the threads of the other replicas
    {
      MutexLock lock(monitor_.mutex());
      monitor_.enter(0);
    }
    run_body(0);
  }
  frame.rendezvous.wait_for_end();
}

void ReplicaThreads::serve(int replica) {
  for (;;) {
    {
      MutexLock lock(monitor_.mutex());
      monitor_.wait_idle(
          [&]() TUTTI_REQUIRES(monitor_.mutex()) { return stopping_ || has_body(replica); });
      if (stopping_) return;
      monitor_.enter(replica);
    }
    run_body(replica);
  }
}

bool ReplicaThreads::has_body(int replica) {
  return !frames_.empty() &&
         last_taken_[static_cast<std::size_t>(replica)] < frames_.back()->number;
}

void ReplicaThreads::run_body(int replica) {
  Frame* frame = nullptr;
  {
    MutexLock lock(monitor_.mutex());
    frame = frames_.back();
    last_taken_[static_cast<std::size_t>(replica)] = frame->number;
  }
  std::exception_ptr error;
  {
    const RunTokenHolder token(token_of_replica_[static_cast<std::size_t>(replica)]);
    NestedBodies nested(*this, replica);
    try {
      frame->body(replica, frame->rendezvous, nested);
    } catch (...) {
      error = std::current_exception();
    }
  }
  frame->rendezvous.ended(replica, std::move(error));
}

}  // namespace tutti::internal
