// Collectives over messages.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/message_engine.h"

#include <optional>

#include "cross_device_ops/algorithms/algorithm.h"
#include "cross_device_ops/algorithms/choose_algorithm.h"
#include "cross_device_ops/algorithms/message_run.h"
#include "cross_device_ops/algorithms/rank_link.h"
#include "cross_device_ops/algorithms/rank_states.h"
#include "cross_device_ops/packed_call.h"
#include "cross_device_ops/told_reason.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {
namespace {

constexpr std::string_view kAuto = "auto";

class MessageEngine final : public CollectiveEngine {
 public:
  /// `algorithm`: nullptr for auto.
  MessageEngine(RankLink link, const Algorithm* algorithm)
      : link_(std::move(link)), algorithm_(algorithm), states_(link_) {}

  int rank() const override { return link_.rank; }
  int size() const override { return link_.size(); }
  std::string_view name() const override { return algorithm_ ? algorithm_->name : kAuto; }
  bool supports(Collective collective, ReduceOp op, DType dtype) const override;
  Determinism determinism() const override {
    return algorithm_ ? algorithm_->determinism : Determinism::kCanonical;
  }
  void run(const CollectiveCall& call, const CollectiveHeader& header, TimePoint deadline) override;
  void abort(const Error& reason) noexcept override {
    close(Error(ErrorCode::kAborted, reason.message()));
  }
  std::optional<Error> failure_of_peer() override;
  std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                             std::uint32_t number) override {
    return std::make_unique<MessageEngine>(link_.subgroup(ranks, number), algorithm_);
  }
  void tend(const std::function<std::string()>& own_state) override { states_.tend(own_state); }
  std::vector<std::string> whereabouts(TimePoint deadline) override {
    return states_.whereabouts(deadline);
  }

 private:
  bool spans_processes() const { return link_.transport->spans_processes(); }
  const Algorithm& algorithm_for(const CollectiveCall& call);
  void run_flat(const CollectiveCall& call, const CollectiveHeader& header, TimePoint deadline);
  CallPlan plan_of(const CollectiveCall& call);
  std::byte* scratch_of(std::size_t bytes);
  Error reason_of(const Error& error, const CollectiveHeader& header,
                  const std::vector<int>& awaited);
  std::optional<Error> told_by_others() const;
  void close(const Error& reason) noexcept;
  void throw_if_closed();

  const RankLink link_;
  const Algorithm* const algorithm_;
  RankStates states_;
  ChoiceLog choices_;
  BufferRef scratch_;
  Mutex mutex_;
  std::optional<Error> closed_ TUTTI_GUARDED_BY(mutex_);
};

bool MessageEngine::supports(Collective collective, ReduceOp op, DType dtype) const {
  if (!combines(collective)) return true;
  if (op == ReduceOp::kMean) return false;
  if (dtype == DType::kBool) return op == ReduceOp::kMin || op == ReduceOp::kMax;
  return !is_half(dtype) || algorithm_ == nullptr || algorithm_->combines_once;
}

const Algorithm& MessageEngine::algorithm_for(const CollectiveCall& call) {
  if (algorithm_ != nullptr) return *algorithm_;
  const AlgorithmQuery query{.collective = call.collective,
                             .size = size(),
                             .bytes = call.count * size_of(call.dtype),
                             .dtype = call.dtype,
                             .medium = spans_processes() ? Medium::kNetwork : Medium::kInProcess};
  const std::string_view chosen = chosen_name(query);
  choices_.note(query, chosen);
  return *find_algorithm(chosen);
}

void MessageEngine::run(const CollectiveCall& call, const CollectiveHeader& header,
                        TimePoint deadline) {
  throw_if_closed();
  states_.begin_call(header.sequence);
  if (call.outputs.size() <= 1) return run_flat(call, header, deadline);
  // Each message would else be cut where buffers are.
  run_packed(call, [&](const CollectiveCall& flat) { run_flat(flat, header, deadline); });
}

void MessageEngine::run_flat(const CollectiveCall& call, const CollectiveHeader& header,
                             TimePoint deadline) {
  const CallPlan plan = plan_of(call);
  RankMemory memory{.scratch = scratch_of(plan.schedule.scratch_elements * size_of(call.dtype)),
                    .op = call.op,
                    .dtype = call.dtype};
  if (!call.inputs.empty()) memory.input = call.inputs[0].data;
  if (!call.outputs.empty()) memory.output = call.outputs[0].data;
  MessageRun run(link_, plan, memory, header, deadline);
  try {
    run.run();
  } catch (const Error& error) {
    const Error reason = reason_of(error, header, run.awaited());
    close(reason);
    throw reason;
  }
}

/// Made anew for each call: some tenths of a microsecond where that is short.
CallPlan MessageEngine::plan_of(const CollectiveCall& call) {
  const Algorithm& algorithm = algorithm_for(call);
  CallShape shape{.collective = call.collective,
                  .size = size(),
                  .rank = rank(),
                  .root = call.root,
                  .count = call.count,
                  .element_bytes = size_of(call.dtype),
                  .counts = call.counts,
                  .receive_counts = call.receive_counts};
  if (spans_processes()) shape.segment_bytes = kNetworkSegmentBytes;
  CallPlan plan{.schedule = make_schedule(algorithm, shape)};
  shape.rank = link_.left();
  plan.left_greets_with_data =
      size() > 1 && greets_with_data(make_schedule(algorithm, shape), rank());
  return plan;
}

std::byte* MessageEngine::scratch_of(std::size_t bytes) {
  if (!scratch_ || scratch_->size() < bytes) scratch_ = BufferRef::allocate(bytes);
  return scratch_->data();
}

Error MessageEngine::reason_of(const Error& error, const CollectiveHeader& header,
                               const std::vector<int>& awaited) {
  if (is_mismatch(error) || error.code() != ErrorCode::kDeadlineExceeded) return as_it_was(error);
  const std::string who = states_.missing(header.sequence, awaited);
  // Another rank was faster to find out, and has ended the questions of this one.
  if (const std::optional<Error> told = told_by_others()) return reason_of(*told, header, awaited);
  return Error(ErrorCode::kDeadlineExceeded,
               concat("rank ", rank(), ": ", header.describe(), ": expected all ", size(), " ranks",
                      kMissing, who));
}

std::optional<Error> MessageEngine::told_by_others() const {
  try {
    link_.recv(link_.left(), Purpose::kNothing, {}, {})->test();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kAborted) return error;
  }
  return std::nullopt;
}

/// An abort, if there is one: a peer that is gone may be a consequence of it.
std::optional<Error> MessageEngine::failure_of_peer() {
  std::optional<Error> failure;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      link_.recv(peer, Purpose::kNothing, {}, {})->test();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kAborted) return error;
      if (!failure) failure = error;
    }
  }
  return failure;
}

void MessageEngine::close(const Error& reason) noexcept {
  {
    MutexLock lock(mutex_);
    if (!closed_) closed_ = reason;
  }
  link_.transport->abort(reason);
}

void MessageEngine::throw_if_closed() {
  MutexLock lock(mutex_);
  if (closed_) throw *closed_;
}

}  // namespace

std::vector<std::string> message_algorithms() {
  std::vector<std::string> names;
  for (const Algorithm& algorithm : algorithms()) names.emplace_back(algorithm.name);
  names.emplace_back(kAuto);
  return names;
}

std::unique_ptr<CollectiveEngine> message_engine(std::shared_ptr<Transport> transport,
                                                 std::string_view algorithm) {
  const Algorithm* const found = find_algorithm(algorithm);
  if (found == nullptr && algorithm != kAuto) {
    fail(ErrorCode::kNotFound, "message_engine: no algorithm '", algorithm,
         "' that works with messages; expected one of ", join(message_algorithms()));
  }
  return std::make_unique<MessageEngine>(link_all(std::move(transport)), found);
}

}  // namespace tutti::internal
