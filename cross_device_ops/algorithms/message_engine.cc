// Collectives over messages.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/algorithms/message_engine.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/algorithms/algorithm.h"
#include "tutti/cross_device_ops/algorithms/message_run.h"
#include "tutti/cross_device_ops/algorithms/rank_link.h"
#include "tutti/cross_device_ops/packed_call.h"
#include "tutti/cross_device_ops/told_reason.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {
namespace {

constexpr std::string_view kAuto = "auto";
constexpr auto kTimeToAsk = std::chrono::milliseconds(300);

/// Plans of the calls of a rank, kept for the next call like it: training makes the same calls in
/// every step. Threads: one at a time.
class CallPlans {
 public:
  explicit CallPlans(std::size_t segment_bytes) : segment_bytes_(segment_bytes) {}
  /// Valid until the next call.
  const CallPlan& plan_for(const Algorithm& algorithm, int rank, int size,
                           const CollectiveCall& call);

 private:
  static constexpr std::size_t kKept = 64;

  struct Entry {
    const Algorithm* algorithm;
    Collective collective;
    std::size_t element_bytes;
    std::size_t count;
    int root;
    std::vector<std::size_t> counts;
    std::vector<std::size_t> receive_counts;
    CallPlan plan;

    bool is_for(const Algorithm& other, const CollectiveCall& call) const;
  };

  const std::size_t segment_bytes_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::size_t next_ = 0;  // to be replaced
};

bool CallPlans::Entry::is_for(const Algorithm& other, const CollectiveCall& call) const {
  return algorithm == &other && collective == call.collective && count == call.count &&
         element_bytes == size_of(call.dtype) && root == call.root &&
         std::ranges::equal(counts, call.counts) &&
         std::ranges::equal(receive_counts, call.receive_counts);
}

const CallPlan& CallPlans::plan_for(const Algorithm& algorithm, int rank, int size,
                                    const CollectiveCall& call) {
  for (const auto& entry : entries_) {
    if (entry->is_for(algorithm, call)) return entry->plan;
  }
  CallShape shape{.collective = call.collective,
                  .size = size,
                  .rank = rank,
                  .root = call.root,
                  .count = call.count,
                  .element_bytes = size_of(call.dtype),
                  .segment_bytes = segment_bytes_,
                  .counts = call.counts,
                  .receive_counts = call.receive_counts};
  CallPlan plan{.schedule = make_schedule(algorithm, shape)};
  shape.rank = (rank + size - 1) % size;
  plan.left_greets_with_data = size > 1 && greets_with_data(make_schedule(algorithm, shape), rank);
  auto entry =
      std::make_unique<Entry>(Entry{&algorithm,
                                    call.collective,
                                    size_of(call.dtype),
                                    call.count,
                                    call.root,
                                    {call.counts.begin(), call.counts.end()},
                                    {call.receive_counts.begin(), call.receive_counts.end()},
                                    std::move(plan)});
  if (entries_.size() < kKept) entries_.emplace_back();
  auto& place = entries_[next_++ % kKept];
  place = std::move(entry);
  return place->plan;
}

class MessageEngine final : public CollectiveEngine {
 public:
  /// `algorithm`: nullptr for auto.
  MessageEngine(RankLink link, const Algorithm* algorithm)
      : link_(std::move(link)),
        algorithm_(algorithm),
        states_(link_),
        plans_(spans_processes() ? kNetworkSegmentBytes : CallShape().segment_bytes) {}

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
  std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                             std::uint32_t number) override {
    return std::make_unique<MessageEngine>(link_.subgroup(ranks, number), algorithm_);
  }
  void tend(const std::function<std::string()>& own_state) override { states_.tend(own_state); }
  std::vector<std::string> whereabouts(TimePoint deadline) override;

 private:
  bool spans_processes() const { return link_.transport->spans_processes(); }
  const Algorithm& algorithm_for(const CollectiveCall& call);
  void run_flat(const CollectiveCall& call, const CollectiveHeader& header, TimePoint deadline);
  std::byte* scratch_of(std::size_t bytes);
  Error reason_of(const Error& error, const CollectiveHeader& header,
                  const std::vector<int>& awaited);
  std::optional<Error> told_by_others() const;
  std::string missing(std::uint64_t sequence, const std::vector<int>& awaited);
  void close(const Error& reason) noexcept;
  void throw_if_closed();

  const RankLink link_;
  const Algorithm* const algorithm_;
  RankStates states_;
  CallPlans plans_;
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
  const CallPlan& plan = plans_.plan_for(algorithm_for(call), link_.rank, link_.size(), call);
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

std::byte* MessageEngine::scratch_of(std::size_t bytes) {
  if (!scratch_ || scratch_->size() < bytes) scratch_ = BufferRef::allocate(bytes);
  return scratch_->data();
}

Error MessageEngine::reason_of(const Error& error, const CollectiveHeader& header,
                               const std::vector<int>& awaited) {
  if (is_mismatch(error) || error.code() != ErrorCode::kDeadlineExceeded) return as_it_was(error);
  const std::string who = missing(header.sequence, awaited);
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

std::string MessageEngine::missing(std::uint64_t sequence, const std::vector<int>& awaited) {
  const auto states = states_.ask(deadline_after(Clock::system().now(), kTimeToAsk));
  const bool anybody = std::ranges::any_of(states, &RankStates::State::answered);
  std::string text;
  for (int r = 0; r < size(); ++r) {
    const RankStates::State& state = states[static_cast<std::size_t>(r)];
    const bool came = state.answered ? state.calls_begun > sequence
                                     : !anybody && !std::ranges::binary_search(awaited, r);
    if (r != rank() && !came) text += concat(text.empty() ? "" : ", ", "rank ", r);
  }
  if (!text.empty()) return text + " did not come";
  return concat("all came, but a message is late: of rank ", join(awaited, " or "));
}

std::vector<std::string> MessageEngine::whereabouts(TimePoint deadline) {
  std::vector<std::string> texts;
  for (const RankStates::State& state : states_.ask(deadline)) {
    texts.push_back(state.answered ? state.text : "does not answer");
  }
  texts[static_cast<std::size_t>(rank())].clear();
  return texts;
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
