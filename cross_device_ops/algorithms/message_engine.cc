// Collectives over messages: execution of a schedule, state queries between ranks, and the engine.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cross_device_ops/algorithms/algorithm.h"
#include "cross_device_ops/algorithms/rank_link.h"
#include "cross_device_ops/algorithms/schedule.h"
#include "cross_device_ops/collective_engine.h"
#include "cross_device_ops/collective_header.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/rank_durations.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {

/// A schedule, and a flag that is true if the left neighbour sends its header together with its
/// first data.
struct CallPlan {
  Schedule schedule;
  bool left_greets_with_data = false;
};

namespace {

constexpr std::size_t kAhead = 8;           // maximum number of posted receives
constexpr std::size_t kLookAhead = 64;      // number of upcoming steps whose receives may be posted
constexpr std::size_t kSendsToForget = 16;  // number of sends before finished ones are removed

}  // namespace

/// One call of one rank. Every rank sends its header to its right neighbour: as the head of its
/// first message if that message goes to the right neighbour, otherwise in a separate, earlier
/// message. The left neighbour's header is compared in the first kVerify step or the first wait for
/// another message.
class MessageRun {
 public:
  MessageRun(const RankLink& link, const CallPlan& plan, const RankMemory& memory,
             const CollectiveHeader& header, TimePoint deadline)
      : link_(link),
        plan_(plan),
        steps_(plan.schedule.steps),
        memory_(memory),
        header_(header),
        deadline_(deadline),
        own_header_(encode(header)),
        header_is_due_(link.size() > 1),
        left_is_due_(link.size() > 1 && plan.left_greets_with_data),
        verified_(link.size() == 1) {}
  /// Runs the schedule. Throws kInvalidArgument ("collective mismatch (..."), kDeadlineExceeded,
  /// kAborted or kUnavailable, after cancelling messages in flight; at that point, the other ranks
  /// have not been notified yet.
  void run() {
    send_hello();
    for (; current_ < steps_.size(); ++current_) {
      post_ahead();
      execute(steps_[current_]);
    }
    verify();
    for (const Sent& sent : sent_) wait(*sent.work);
  }
  /// Returns, in increasing order, the ranks whose messages have not arrived, or, if all have
  /// arrived, the ranks to which this rank sent messages. Called after run() failed.
  std::vector<int> awaited() const {
    std::set<int> ranks;
    for (const Received& received : received_) {
      bool came = false;
      try {
        came = received.work->test();
      } catch (const Error&) {
      }
      if (!came) ranks.insert(steps_[received.step].peer);
    }
    if (!verified_) ranks.insert(link_.left());
    if (ranks.empty()) {
      for (const Sent& sent : sent_) ranks.insert(sent.peer);
    }
    return {ranks.begin(), ranks.end()};
  }

 private:
  struct Received {
    std::size_t step = 0;
    BufferRef staging;  // memory for received values that are to be combined
    bool brings_header = false;
    std::unique_ptr<Work> work;
  };
  struct Sent {
    int peer = 0;
    ByteRange bytes;
    std::unique_ptr<Work> work;
  };

  void send_hello() {
    if (link_.size() == 1) return;
    if (!begins_with_send(plan_.schedule, link_.right())) {
      sent_.push_back(
          {link_.right(), {}, link_.send(link_.right(), Purpose::kData, own_header_, {})});
      header_is_due_ = false;
    }
    if (!plan_.left_greets_with_data) {
      header_work_ = link_.recv(link_.left(), Purpose::kData, left_header_, {});
    }
  }
  void execute(const Step& step) {
    if (step.kind == StepKind::kSend) return send(step);
    if (step.kind == StepKind::kVerify) return verify();
    if (receives(step)) return receive(step);
    // An in-place copy writes nothing, so it need not wait for readers; waiting could cause a
    // deadlock.
    if (step.kind == StepKind::kCopy && memory_.read(step.own) == memory_.write(step.range)) return;
    wait_for_readers(memory_.bytes_of(step.range));
    memory_.apply(plan_.schedule, step);
  }
  /// Returns the purpose of a message. For messages without headers, it depends on the collective:
  /// a rank may send data before it has compared headers, and the receiver must not use this data
  /// for another collective. All messages with headers have the same purpose.
  Purpose purpose(bool with_header) const {
    if (with_header) return Purpose::kData;
    return static_cast<Purpose>(static_cast<std::uint16_t>(Purpose::kDataOf) +
                                static_cast<std::uint16_t>(header_.collective));
  }
  void send(const Step& step) {
    forget_ended_sends();
    const bool with_header = header_is_due_ && step.peer == link_.right();
    if (with_header) header_is_due_ = false;
    const std::span<const std::byte> head =
        with_header ? std::span<const std::byte>(own_header_) : std::span<const std::byte>();
    const ByteRange bytes = memory_.bytes_of(step.range);
    sent_.push_back({step.peer, bytes,
                     link_.send(step.peer, purpose(with_header), head, {bytes.begin, bytes.end})});
  }
  void receive(const Step& step) {
    if (step.kind != StepKind::kReceive || received_.empty()) {
      wait_for_readers(memory_.bytes_of(step.range));
    }
    if (received_.empty()) {
      post(current_);
      next_to_post_ = current_ + 1;
    }
    Received& received = received_.front();
    TUTTI_CHECK(received.step == current_, "expected receives in step order");
    wait_for_message(received);
    if (received.staging) memory_.take(step, received.staging->data());
    received_.pop_front();
  }
  void wait_for_message(Received& received) {
    try {
      wait(*received.work);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInvalidArgument && !is_mismatch(error)) fail_length(error);
      throw;
    }
    if (received.brings_header && !verified_) compare_headers();
  }
  void post_ahead() {
    next_to_post_ = std::max(next_to_post_, current_);
    const std::size_t end = std::min(steps_.size(), current_ + kLookAhead);
    for (; next_to_post_ < end && received_.size() < kAhead; ++next_to_post_) {
      if (!receives(steps_[next_to_post_])) continue;
      if (is_in_the_way(next_to_post_)) return;
      post(next_to_post_);
    }
  }
  // Returns true if posting a receive now would overwrite data that is still needed.
  bool is_in_the_way(std::size_t step) const {
    if (steps_[step].kind != StepKind::kReceive) return false;  // other receives use staging memory
    const ByteRange into = memory_.bytes_of(steps_[step].range);
    const auto touches = [&](const Range& range) { return memory_.bytes_of(range).overlaps(into); };
    for (std::size_t i = current_; i < step; ++i) {
      if (touches(steps_[i].range) || touches(steps_[i].own)) return true;
      if (std::ranges::any_of(plan_.schedule.operands_of(steps_[i]), touches)) return true;
    }
    return std::ranges::any_of(
        sent_, [&](const Sent& s) { return s.bytes.overlaps(into) && !s.work->test(); });
  }
  void post(std::size_t index) {
    const Step& step = steps_[index];
    Received received;
    received.step = index;
    const std::size_t num_bytes = memory_.num_bytes(step.range);
    std::byte* into = nullptr;
    if (num_bytes > 0 && step.kind == StepKind::kReceive) into = memory_.write(step.range);
    if (num_bytes > 0 && step.kind != StepKind::kReceive) {
      received.staging = BufferRef::allocate(num_bytes);
      into = received.staging->data();
    }
    const bool with_header = left_is_due_ && step.peer == link_.left();
    if (with_header) left_is_due_ = false;
    const std::span<std::byte> head =
        with_header ? std::span<std::byte>(left_header_) : std::span<std::byte>();
    received.work = link_.recv(step.peer, purpose(with_header), head, {into, num_bytes});
    received.brings_header = with_header;
    received_.push_back(std::move(received));
  }
  void wait_for_readers(const ByteRange& range) {
    for (Sent& sent : sent_) {
      if (!sent.bytes.overlaps(range)) continue;
      wait(*sent.work);
      sent.bytes = {};
    }
  }
  void forget_ended_sends() {
    if (sent_.size() < kSendsToForget) return;
    std::erase_if(sent_, [](const Sent& sent) { return sent.work->test(); });
  }
  // Waits for the left neighbour's header first, because that rank sends it before it waits for
  // anything, and a mismatch may be the reason why another message is missing.
  void wait(Work& work) {
    Work* const header = verified_ ? nullptr : header_work();
    if (header != nullptr && header != &work) verify();
    work.wait(deadline_);
  }
  void verify() {
    if (verified_) return;
    Work* const work = header_work();
    TUTTI_CHECK(work != nullptr, "expected a receive from the left neighbour before kVerify");
    try {
      work->wait(deadline_);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInvalidArgument) fail_length(error);
      throw;
    }
    compare_headers();
  }
  Work* header_work() {
    if (header_work_) return header_work_.get();
    for (Received& received : received_) {
      if (received.brings_header) return received.work.get();
    }
    return nullptr;
  }
  void compare_headers() {
    const CollectiveHeader left = decode_header(left_header_);
    if (header_.difference(left))
      fail(ErrorCode::kInvalidArgument, mismatch_message(left, header_));
    verified_ = true;
  }
  // Throws the error that explains a message of unexpected length. Either this rank finds that
  // error by comparing headers, or another rank finds it and aborts.
  [[noreturn]] void fail_length(const Error& error) {
    if (!verified_) {
      if (Work* const work = header_work(); work != nullptr) {
        try {
          work->wait(deadline_);
        } catch (const Error& reason) {
          if (reason.code() != ErrorCode::kInvalidArgument) throw;
        }
      }
      compare_headers();
    }
    const bool lengths_are_own = header_.collective == Collective::kAllToAll;
    // Waits for another rank's abort, which may name the mismatch; this rank sees only a wrong
    // length.
    const TimePoint verdict =
        lengths_are_own ? deadline_after(Clock::system().now(), durations::kLastWords) : deadline_;
    try {
      link_.recv(link_.left(), Purpose::kNothing, {}, {})->wait(std::min(verdict, deadline_));
    } catch (const Error& reason) {
      if (reason.code() != ErrorCode::kDeadlineExceeded) throw;
    }
    fail(ErrorCode::kInvalidArgument, "collective mismatch (count): rank ", link_.rank, " calls ",
         header_.describe(), "; ", error.message());
  }

  const RankLink& link_;
  const CallPlan& plan_;
  const std::vector<Step>& steps_;
  const RankMemory& memory_;
  const CollectiveHeader& header_;
  const TimePoint deadline_;
  const EncodedHeader own_header_;
  EncodedHeader left_header_{};
  bool header_is_due_;  // true until this rank's header is sent
  bool left_is_due_;    // true until the receive for the left neighbour's first message is posted
  bool verified_ = false;
  std::unique_ptr<Work> header_work_;  // receives the left neighbour's header, without data
  std::size_t current_ = 0;            // index of the current step
  std::size_t next_to_post_ = 0;
  std::deque<Received> received_;  // posted receives, in order
  std::vector<Sent> sent_;
};

namespace {

constexpr auto kTimeToAsk = std::chrono::milliseconds(300);

std::span<std::byte> bytes_of(std::span<std::uint64_t> numbers) {
  return std::as_writable_bytes(numbers);
}

// Returns true if the work has ended, even with an error. If the peer has exited or the transport
// was aborted, the error ends only the query.
bool ended(Work& work) {
  try {
    return work.test();
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

/// Endpoint of one rank for state queries between ranks. A query is an 8-byte message that contains
/// its number. The reply consists of this number, the number of calls that the rank has begun, and
/// up to 512 bytes of text. Thread-safe.
class RankStates {
 public:
  explicit RankStates(RankLink link)
      : link_(std::move(link)), questions_(static_cast<std::size_t>(link_.size())) {}

  struct State {
    bool answered = false;
    std::uint64_t calls_begun = 0;
    std::string text;
  };

  void begin_call(std::uint64_t sequence) { calls_begun_.store(sequence + 1); }
  /// Answers pending queries. Never blocks.
  void answer_state_queries(const std::function<std::string()>& own_state) {
    MutexLock lock(query_mutex_);
    if (closed_) return;
    try {
      std::erase_if(answers_, [](const auto& answer) { return ended(*answer->work); });
      std::optional<std::string> text;
      for (int peer = 0; peer < link_.size(); ++peer) {
        if (peer == link_.rank) continue;
        std::optional<Question>& question = questions_[static_cast<std::size_t>(peer)];
        if (!question) expect_question(peer);
        if (!question->work->test()) continue;
        if (!text) text = own_state ? own_state() : last_text_;
        answer(peer, question->number, *text);
        expect_question(peer);
      }
      if (text) last_text_ = *text;
    } catch (const Error&) {
      closed_ = true;  // the group has ended
    }
  }
  /// Queries all other ranks and returns their states by rank; `answered` is set for ranks that
  /// reply before the deadline.
  std::vector<State> ask(TimePoint deadline) {
    MutexLock lock(ask_mutex_);
    std::uint64_t number = ++last_number_;
    const auto size = static_cast<std::size_t>(link_.size());
    std::vector<State> states(size);
    std::vector<std::unique_ptr<Work>> sent(size);
    std::vector<std::unique_ptr<Answer>> answers(size);
    std::size_t waiting = size - 1;
    try {
      for (int peer = 0; peer < link_.size(); ++peer) {
        if (peer == link_.rank) continue;
        const auto p = static_cast<std::size_t>(peer);
        sent[p] = link_.send(peer, Purpose::kQuery, bytes_of({&number, 1}), {});
        answers[p] = std::make_unique<Answer>();
        answers[p]->work = start_receive(peer, *answers[p]);
      }
      while (waiting > 0 && Clock::system().now() < deadline) {
        for (std::size_t p = 0; p < size; ++p) {
          if (!answers[p] || states[p].answered) continue;
          if (take_answer(static_cast<int>(p), *answers[p], number, states[p])) --waiting;
        }
        answer_state_queries({});  // the other ranks may be querying, too
        if (waiting > 0) Clock::system().sleep_for(std::chrono::milliseconds(1));
      }
    } catch (const Error&) {
      // The group has ended: returns the states received so far.
    }
    return states;
  }
  /// Returns "rank 2 did not join" for the ranks that have not begun the call with this number, or
  /// do not reply although another rank does. If no rank replies, names the `awaited` ranks (in
  /// increasing order), from which this rank awaits messages.
  std::string missing(std::uint64_t sequence, const std::vector<int>& awaited) {
    const auto states = ask(deadline_after(Clock::system().now(), kTimeToAsk));
    const bool anybody = std::ranges::any_of(states, &State::answered);
    std::string text;
    for (int r = 0; r < link_.size(); ++r) {
      const State& state = states[static_cast<std::size_t>(r)];
      const bool came = state.answered ? state.calls_begun > sequence
                                       : !anybody && !std::ranges::binary_search(awaited, r);
      if (r != link_.rank && !came) text += concat(text.empty() ? "" : ", ", "rank ", r);
    }
    if (!text.empty()) return text + " did not join";
    return concat("all joined, but a message has not arrived from rank ", join(awaited, " or "));
  }
  /// Implements CollectiveEngine::states_of_ranks().
  std::vector<std::string> states_of_ranks(TimePoint deadline) {
    std::vector<std::string> texts;
    for (const State& state : ask(deadline)) {
      texts.push_back(state.answered ? state.text : "does not answer");
    }
    texts[static_cast<std::size_t>(link_.rank)].clear();
    return texts;
  }

 private:
  static constexpr std::size_t kTextBytes = 512;
  struct Question {
    std::uint64_t number = 0;
    std::unique_ptr<Work> work;
  };
  struct Answer {
    std::array<std::uint64_t, 2> head{};  // query number; count of calls begun
    std::array<std::byte, kTextBytes> text{};
    std::unique_ptr<Work> work;
  };

  void answer(int peer, std::uint64_t number, const std::string& text)
      TUTTI_REQUIRES(query_mutex_) {
    auto sent = std::make_unique<Answer>();
    sent->head = {number, calls_begun_.load()};
    std::memcpy(sent->text.data(), text.data(), std::min(text.size(), kTextBytes));
    sent->work = link_.send(peer, Purpose::kAnswer, bytes_of(sent->head), sent->text);
    answers_.push_back(std::move(sent));
  }
  std::unique_ptr<Work> start_receive(int peer, Answer& answer) {
    return link_.recv(peer, Purpose::kAnswer, bytes_of(answer.head), answer.text);
  }
  void expect_question(int peer) TUTTI_REQUIRES(query_mutex_) {
    std::optional<Question>& question = questions_[static_cast<std::size_t>(peer)];
    question.emplace();
    question->work = link_.recv(peer, Purpose::kQuery, bytes_of({&question->number, 1}), {});
  }
  bool take_answer(int peer, Answer& answer, std::uint64_t number, State& state) {
    if (!answer.work->test()) return false;
    if (answer.head[0] != number) {  // reply to an earlier query that had timed out
      answer.work = start_receive(peer, answer);
      return false;
    }
    state.answered = true;
    state.calls_begun = answer.head[1];
    const auto* const text = reinterpret_cast<const char*>(answer.text.data());
    state.text.assign(text, ::strnlen(text, kTextBytes));
    return true;
  }

  const RankLink link_;
  std::atomic<std::uint64_t> calls_begun_{0};
  Mutex query_mutex_;
  std::vector<std::optional<Question>> questions_ TUTTI_GUARDED_BY(query_mutex_);  // by rank
  std::vector<std::unique_ptr<Answer>> answers_ TUTTI_GUARDED_BY(query_mutex_);    // being sent
  std::string last_text_ TUTTI_GUARDED_BY(query_mutex_);
  bool closed_ TUTTI_GUARDED_BY(query_mutex_) = false;
  Mutex ask_mutex_;
  std::uint64_t last_number_ TUTTI_GUARDED_BY(ask_mutex_) = 0;
};

namespace {

class MessageEngine final : public CollectiveEngine {
 public:
  MessageEngine(RankLink link, const Algorithm& algorithm)
      : link_(std::move(link)), algorithm_(algorithm), states_(link_) {}

  int rank() const override { return link_.rank; }
  int size() const override { return link_.size(); }
  std::string_view name() const override { return algorithm_.name; }
  bool supports(Collective collective, ReduceOp op, DType dtype) const override {
    return !combines(collective) || algorithm_.supports(op, dtype);
  }
  Determinism determinism() const override { return algorithm_.determinism; }
  void run(const CollectiveCall& call, const CollectiveHeader& header,
           TimePoint deadline) override {
    throw_if_closed();
    states_.begin_call(header.sequence);
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
  void abort(const Error& reason) noexcept override {
    close(Error(ErrorCode::kAborted, reason.message()));
  }
  /// Prefers the reason for an abort, because a peer may have exited only as a consequence of it.
  std::optional<Error> failure_of_peer() override {
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
  std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                             std::uint32_t number) override {
    return std::make_unique<MessageEngine>(link_.subgroup(ranks, number), algorithm_);
  }
  void answer_state_queries(const std::function<std::string()>& own_state) override {
    states_.answer_state_queries(own_state);
  }
  std::vector<std::string> states_of_ranks(TimePoint deadline) override {
    return states_.states_of_ranks(deadline);
  }

 private:
  /// Creates a new plan for each call. For short calls, this takes only a few tenths of a
  /// microsecond.
  CallPlan plan_of(const CollectiveCall& call) {
    CallShape shape{.collective = call.collective,
                    .size = size(),
                    .rank = rank(),
                    .root = call.root,
                    .count = call.count,
                    .element_bytes = size_of(call.dtype),
                    .counts = call.counts,
                    .receive_counts = call.receive_counts};
    if (link_.transport->spans_processes()) shape.segment_bytes = kNetworkSegmentBytes;
    CallPlan plan{.schedule = make_schedule(algorithm_, shape)};
    shape.rank = link_.left();
    plan.left_greets_with_data =
        size() > 1 && begins_with_send(make_schedule(algorithm_, shape), rank());
    return plan;
  }
  std::byte* scratch_of(std::size_t bytes) {
    if (!scratch_ || scratch_->size() < bytes) scratch_ = BufferRef::allocate(bytes);
    return scratch_->data();
  }
  Error reason_of(const Error& error, const CollectiveHeader& header,
                  const std::vector<int>& awaited) {
    if (is_mismatch(error) || error.code() != ErrorCode::kDeadlineExceeded) return as_it_was(error);
    const std::string who = states_.missing(header.sequence, awaited);
    // Another rank may have detected the timeout first; its abort then ended this rank's queries.
    const std::optional<Error> failure = failure_of_peer();
    if (failure && failure->code() == ErrorCode::kAborted) return as_it_was(*failure);
    return Error(ErrorCode::kDeadlineExceeded,
                 concat("rank ", rank(), ": ", header.describe(), ": expected all ", size(),
                        " ranks to take part", kMissing, who));
  }
  void close(const Error& reason) noexcept {
    {
      MutexLock lock(mutex_);
      if (!closed_) closed_ = reason;
    }
    link_.transport->abort(reason);
  }
  void throw_if_closed() {
    MutexLock lock(mutex_);
    if (closed_) throw *closed_;
  }

  const RankLink link_;
  const Algorithm& algorithm_;
  RankStates states_;
  BufferRef scratch_;
  Mutex mutex_;
  std::optional<Error> closed_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<CollectiveEngine> message_engine(std::shared_ptr<Transport> transport,
                                                 std::string_view algorithm) {
  return std::make_unique<MessageEngine>(link_all(std::move(transport)), find_algorithm(algorithm));
}

}  // namespace tutti::internal
