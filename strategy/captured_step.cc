// Decides whether a call to a captured step runs, is captured or is replayed.
// SPDX-License-Identifier: Apache-2.0
//
// All replicas of a process decide together, in a merge call. The *signature* of a call describes
// the arguments of all replicas. An *entry* counts the calls with one signature and later holds
// their graph, with *static* inputs and outputs, whose memory is the same in every replay.
#include "tutti/strategy/captured_step.h"

#include <map>

#include "core/names.h"
#include "tensor/gpu/step_capture.h"
#include "tensor/step_hooks.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"
#include "tutti/core/trace.h"
#include "tutti/strategy/replica_context.h"
#include "tutti/strategy/strategy.h"

namespace tutti::internal {
namespace {

enum class Action { kRun, kCapture, kReplay };

/// State of all calls with one signature.
struct Entry {
  int num_calls = 0;
  UsedVariables used;
  std::shared_ptr<StepCapture> capture;
  std::vector<std::vector<MutableTensor>> inputs;  // [replica]
  std::vector<std::vector<Tensor>> outputs;        // [replica]
};

/// Joint decision of all replicas on one call. A failed capture is destroyed by the last replica
/// that releases it: by then, no thread records work in the capture's streams.
struct Decision {
  Action action = Action::kRun;
  std::shared_ptr<Entry> entry;
  std::shared_ptr<StepCapture> capture;
};

using Calls = std::vector<const CapturedCalls::Call*>;

std::string signature_of(const Calls& calls) {
  std::string signature;
  for (const CapturedCalls::Call* call : calls) {
    for (const Tensor& input : call->inputs) {
      signature += concat(input.dtype(), input.shape(), input.device(), " ");
    }
    signature += call->plain_arguments + "|";
  }
  return signature;
}

std::vector<Tensor> frozen(const std::vector<MutableTensor>& tensors) {
  std::vector<Tensor> result;
  for (const MutableTensor& tensor : tensors) result.push_back(tensor.freeze());
  return result;
}

std::vector<Tensor> copies_of(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> result;
  for (const Tensor& tensor : tensors) result.push_back(tensor.copy());
  return result;
}

std::vector<Device> local_devices(ReplicaContext& context) {
  const auto devices = context.strategy().replica_devices();
  if (devices.empty()) return {context.device()};
  return {devices.begin(), devices.end()};
}

/// Launches the graph. If the step draws random numbers, uses the random context of this run.
void launch_in_context(StepCapture& capture) {
  capture.launch(capture.draws() ? current_random_context() : RandomContext{});
}

}  // namespace

struct CapturedCalls::State {
  explicit State(const CaptureOptions& given) : options(given) {}

  Decision decide(const Calls& calls, const std::vector<Device>& devices);
  std::shared_ptr<Entry> find_or_make(const Calls& calls);
  std::shared_ptr<StepCapture> begin_capture(Entry& entry, const Calls& calls,
                                             const std::vector<Device>& devices);
  void replay(Entry& entry, const Calls& calls);
  void say_eager(std::string_view where);

  const CaptureOptions options;
  mutable Mutex mutex;
  std::map<std::string, std::shared_ptr<Entry>> entries TUTTI_GUARDED_BY(mutex);
  bool said_eager TUTTI_GUARDED_BY(mutex) = false;
};

std::shared_ptr<Entry> CapturedCalls::State::find_or_make(const Calls& calls) {
  const std::string signature = signature_of(calls);
  MutexLock lock(mutex);
  const auto found = entries.find(signature);
  if (found != entries.end()) return found->second;
  if (entries.size() == static_cast<std::size_t>(options.max_signatures)) {
    log_warning_once(concat("captured step: got arguments with more than ", options.max_signatures,
                            " signatures, so further ones are not captured; expected calls with "
                            "equal shapes; try batch(n, drop_remainder)"));
    return nullptr;
  }
  return entries.emplace(signature, std::make_shared<Entry>()).first->second;
}

Decision CapturedCalls::State::decide(const Calls& calls, const std::vector<Device>& devices) {
  const std::shared_ptr<Entry> entry = find_or_make(calls);
  if (!entry) return {};
  if (entry->capture) {
    replay(*entry, calls);
    return {Action::kReplay, entry, nullptr};
  }
  if (entry->num_calls++ < options.num_warm_up_calls) return {Action::kRun, entry, nullptr};
  return {Action::kCapture, entry, begin_capture(*entry, calls, devices)};
}

std::shared_ptr<StepCapture> CapturedCalls::State::begin_capture(
    Entry& entry, const Calls& calls, const std::vector<Device>& devices) {
  entry.inputs.assign(devices.size(), {});
  entry.outputs.assign(devices.size(), {});
  for (std::size_t r = 0; r < devices.size(); ++r) {
    for (const Tensor& input : calls[r]->inputs) {
      MutableTensor& fixed = entry.inputs[r].emplace_back(input.shape(), input.dtype(), devices[r]);
      fixed.write(input);
    }
  }
  return std::make_shared<StepCapture>(devices, entry.used.list());
}

void CapturedCalls::State::replay(Entry& entry, const Calls& calls) {
  const TraceSpan span("replay", "compute");
  for (std::size_t r = 0; r < calls.size(); ++r) {
    for (std::size_t i = 0; i < calls[r]->inputs.size(); ++i) {
      entry.inputs[r][i].write(calls[r]->inputs[i]);
    }
  }
  entry.capture->prepare();
  launch_in_context(*entry.capture);
  entry.capture->commit();
}

void CapturedCalls::State::say_eager(std::string_view where) {
  MutexLock lock(mutex);
  if (std::exchange(said_eager, true)) return;
  log_info(
      concat("captured step: capture is not supported ", where, "; each call runs the function"));
}

CapturedCalls::CapturedCalls(const CaptureOptions& options)
    : state_(std::make_unique<State>(options)) {
  internal::require(options.num_warm_up_calls >= 1 && options.max_signatures >= 1,
                    "captured: expected num_warm_up_calls >= 1 and max_signatures >= 1, got ",
                    options.num_warm_up_calls, " and ", options.max_signatures);
}

CapturedCalls::~CapturedCalls() = default;

int CapturedCalls::num_captured() const {
  MutexLock lock(state_->mutex);
  int count = 0;
  for (const auto& [signature, entry] : state_->entries) count += entry->capture ? 1 : 0;
  return count;
}

namespace {

/// Waits for the calls of all replicas, runs `action` on them once, and returns its result on every
/// replica.
template <class Action>
auto together(ReplicaContext& context, const CapturedCalls::Call& call, const Action& action) {
  if (local_devices(context).size() == 1) return action(Calls{&call});
  return context.merge_call(
      [&](Strategy&, const PerReplica<const CapturedCalls::Call*>& calls) {
        return action(Calls(calls.begin(), calls.end()));
      },
      &call);
}

/// Captures this replica's part of the call; then, one replica launches the graph.
void capture(ReplicaContext& context, const CapturedCalls::Call& call, const Decision& decision,
             std::size_t replica) {
  Entry& entry = *decision.entry;
  {
    const StepCapture::ReplicaScope scope(*decision.capture, static_cast<int>(replica));
    entry.outputs[replica] = call.body(frozen(entry.inputs[replica]));
  }
  together(context, call, [&](const Calls&) {
    decision.capture->end();
    launch_in_context(*decision.capture);
    entry.capture = decision.capture;
    return true;
  });
}

}  // namespace

std::vector<Tensor> CapturedCalls::run(const Call& call) {
  ReplicaContext& context = ReplicaContext::current();
  if (context.device().type == DeviceType::kCpu) {
    state_->say_eager(StepTracer::current() ? "under XLA, which compiles whole steps"
                                            : "on CPU devices");
    return call.body(call.inputs);
  }
  if (context.strategy().num_workers() > 1) {  // a graph cannot replay messages to other workers
    state_->say_eager("with several workers");
    return call.body(call.inputs);
  }
  const std::vector<Device> devices = local_devices(context);
  const Decision decision =
      together(context, call, [&](const Calls& calls) { return state_->decide(calls, devices); });
  const std::size_t r = static_cast<std::size_t>(context.replica_id()) % devices.size();
  if (!decision.entry) return call.body(call.inputs);
  Entry& entry = *decision.entry;
  if (decision.action == Action::kRun) {
    const StepRecorderScope noting(entry.used);
    return call.body(call.inputs);
  }
  if (decision.action == Action::kReplay) return copies_of(entry.outputs[r]);
  capture(context, call, decision, r);
  return copies_of(entry.outputs[r]);
}

}  // namespace tutti::internal
