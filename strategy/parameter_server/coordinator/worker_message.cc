// Requests, outcomes, nests, events of the journal and ledgers as messages.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/worker_message.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "coordinator.pb.h"
#include "strategy/parameter_server/coordinator/closure_event.h"
#include "strategy/parameter_server/coordinator/closure_ledger.h"
#include "strategy/parameter_server/coordinator/nest_message.h"
#include "strategy/parameter_server/protocol/message.h"
#include "tutti/core/error.h"
#include "worker.pb.h"

namespace tutti::internal {

/// Origin, code and text of anything that has them.
template <class Value, class Message>
void put_cause(const Value& value, Message& out) {
  out.set_origin(static_cast<std::uint32_t>(value.origin));
  out.set_code(static_cast<std::uint32_t>(value.code));
  out.set_text(value.text);
}
/// Throws kDataLoss for a number that names nothing, as all that read.
template <class Value, class Message>
void get_cause(const Message& in, Value& value) {
  value.origin = checked_enum(in.origin(), ErrorOrigin::kUser, ErrorOrigin::kServer);
  value.code = checked_enum(in.code(), ErrorCode::kOk, ErrorCode::kDataLoss);
  value.text = in.text();
}

inline void put_report(const AttemptReport& report, v1::AttemptReport& out) {
  out.set_kind(static_cast<std::uint32_t>(report.kind));
  out.set_worker(report.worker);
  put_cause(report, out);
}
inline AttemptReport get_report(const v1::AttemptReport& in) {
  using Kind = AttemptReport::Kind;
  AttemptReport report;
  report.kind = checked_enum(in.kind(), Kind::kNotStarted, Kind::kWorkerLost);
  report.worker = in.worker();
  get_cause(in, report);
  return report;
}

inline void put_failure(const ClosureFailure& failure, v1::ClosureFailure& out) {
  out.set_closure(failure.closure);
  out.set_attempt(failure.attempt);
  out.set_worker(failure.worker);
  put_cause(failure, out);
}
inline ClosureFailure get_failure(const v1::ClosureFailure& in) {
  ClosureFailure failure{in.closure(), in.attempt(), in.worker()};
  get_cause(in, failure);
  return failure;
}

namespace {

/// Tensors up to here travel in the head: a place in the payload costs more.
constexpr std::size_t kLargestInHead = 256;
// Protobuf reads messages within each other up to 100: two for each list, and what is around.
static_assert(2 * Nest::kDeepest + 16 < 100);

template <class... Parts>
[[noreturn]] void refuse_nest(const Parts&... parts) {
  fail(ErrorCode::kDataLoss, "nest: ", parts..., "; expected what encode_nest() writes");
}

void put_tensor_of_nest(const Tensor& anywhere, PayloadWriter& payload, v1::Nest& out) {
  const Tensor tensor = anywhere.to(Device{});
  if (tensor.num_bytes() > kLargestInHead)
    return put_tensor(tensor, payload, *out.mutable_tensor());
  v1::Nest::SmallTensor& small = *out.mutable_small_tensor();
  small.mutable_head()->set_dtype(static_cast<std::uint32_t>(tensor.dtype()));
  for (const std::int64_t dim : tensor.shape()) small.mutable_head()->add_dims(dim);
  small.set_elements(tensor.bytes().data(), tensor.num_bytes());
}

void put(const Nest& nest, int depth, PayloadWriter& payload, v1::Nest& out) {
  if (depth > Nest::kDeepest) {
    fail(ErrorCode::kInvalidArgument, "nest: deeper than ", Nest::kDeepest, " lists and maps");
  }
  if (const Tensor* tensor = nest.tensor()) return put_tensor_of_nest(*tensor, payload, out);
  if (const std::string* text = nest.text()) return out.set_text(*text);
  if (const PerWorkerHandle* handle = nest.handle()) {
    put_handle(*handle, *out.mutable_handle());
  } else if (const Nest::List* list = nest.list()) {
    auto& elements = *out.mutable_list()->mutable_elements();
    elements.Reserve(static_cast<int>(list->size()));
    for (const Nest& each : *list) put(each, depth + 1, payload, *elements.Add());
  } else if (const Nest::Map* map = nest.map()) {
    v1::Nest::Map& members = *out.mutable_map();
    for (const auto& [name, each] : *map) {
      members.add_names(name);
      put(each, depth + 1, payload, *members.add_values());
    }
  } else {
    out.mutable_nothing();
  }
}

Nest get(const v1::Nest& in, int depth, PayloadReader& payload);

Nest get_map(const v1::Nest::Map& in, int depth, PayloadReader& payload) {
  if (in.names_size() != in.values_size()) {
    refuse_nest("a map with ", in.names_size(), " names and ", in.values_size(), " values");
  }
  Nest::Map map;
  map.reserve(static_cast<std::size_t>(in.names_size()));
  for (int i = 0; i < in.names_size(); ++i) {
    map.emplace_back(in.names(i), get(in.values(i), depth, payload));
  }
  try {
    return Nest(std::move(map));
  } catch (const Error& error) {
    refuse_nest(error.message());
  }
}

Nest get(const v1::Nest& in, int depth, PayloadReader& payload) {
  if (depth > Nest::kDeepest) refuse_nest("too deep");
  switch (in.value_case()) {
    case v1::Nest::kNothing:
      return Nest();
    case v1::Nest::kSmallTensor: {
      const v1::Nest::SmallTensor& small = in.small_tensor();
      const auto& dims = small.head().dims();
      if (small.elements().size() > kLargestInHead) refuse_nest("a tensor in the wrong place");
      return Nest(tensor_of_bytes(small.head().dtype(),
                                  {dims.data(), static_cast<std::size_t>(dims.size())},
                                  std::as_bytes(std::span(small.elements()))));
    }
    case v1::Nest::kTensor: {
      Tensor tensor = get_tensor(in.tensor(), payload);
      if (tensor.num_bytes() <= kLargestInHead) refuse_nest("a tensor in the wrong place");
      return Nest(std::move(tensor));
    }
    case v1::Nest::kText:
      return Nest(in.text());
    case v1::Nest::kHandle:
      return Nest(get_handle(in.handle()));
    case v1::Nest::kList: {
      Nest::List list;
      list.reserve(static_cast<std::size_t>(in.list().elements_size()));
      for (const v1::Nest& each : in.list().elements()) {
        list.push_back(get(each, depth + 1, payload));
      }
      return Nest(std::move(list));
    }
    case v1::Nest::kMap:
      return get_map(in.map(), depth + 1, payload);
    case v1::Nest::VALUE_NOT_SET:
      break;
  }
  refuse_nest("a value of no kind");
}

}  // namespace

void put_nest(const Nest& nest, PayloadWriter& payload, v1::Nest& out) {
  put(nest, 0, payload, out);
}

Nest get_nest(const v1::Nest& in, PayloadReader& payload) { return get(in, 0, payload); }

void put_handle(const PerWorkerHandle& handle, v1::Nest::PerWorkerHandle& out) {
  out.set_id(handle.id), out.set_instance(handle.instance), out.set_type(handle.type);
}

PerWorkerHandle get_handle(const v1::Nest::PerWorkerHandle& in) {
  return {in.id(), in.instance(), in.type(), {}};
}

Packet encode_nest(const Nest& nest) {
  return packet_of<v1::Nest>(
      [&](auto& message, auto& payload) { put_nest(nest, payload, message); });
}
Nest decode_nest(const Packet& packet) { return read_packet<v1::Nest>(packet, get_nest); }

namespace {

[[noreturn]] void fail_message(const char* what) {
  fail(ErrorCode::kDataLoss, "message between coordinator and worker: ", what);
}

void put(const WorkerHello& hello, PayloadWriter&, v1::WorkerRequest& out) {
  out.mutable_hello()->set_steps(hello.steps);
}
void put(const RunTask& run, PayloadWriter& payload, v1::WorkerRequest& out) {
  const WorkerTask& task = run.task;
  v1::WorkerRequest::RunTask& message = *out.mutable_run();
  message.set_task(run.call), message.set_finished_below(run.finished_below);
  message.set_number(task.number), message.set_attempt(task.attempt);
  message.set_term(task.term), message.set_step(task.step);
  put_nest(task.arguments, payload, *message.mutable_arguments());
}
void put(const CancelTask& cancel, PayloadWriter&, v1::WorkerRequest& out) {
  out.mutable_cancel()->set_task(cancel.call);
}
void put(const RecallTask& recall, PayloadWriter&, v1::WorkerRequest& out) {
  out.mutable_recall()->set_number(recall.number);
  out.mutable_recall()->set_attempt(recall.attempt);
}
void put(const ReleaseValue& release, PayloadWriter&, v1::WorkerRequest& out) {
  put_handle(release.handle, *out.mutable_release()->mutable_handle());
}

void put(const Nest& value, PayloadWriter& payload, v1::TaskOutcome& out) {
  put_nest(value, payload, *out.mutable_value());
}
void put(const TaskFailure& failure, PayloadWriter&, v1::TaskOutcome& out) {
  put_cause(failure, *out.mutable_failure());
}
void put(const TaskStopped&, PayloadWriter&, v1::TaskOutcome& out) { out.mutable_stopped(); }
void put(const AttemptReport& report, PayloadWriter&, v1::TaskOutcome& out) {
  put_report(report, *out.mutable_report());
}

WorkerRequest get_request(const v1::WorkerRequest& in, PayloadReader& payload) {
  switch (in.what_case()) {
    case v1::WorkerRequest::kHello:
      return WorkerHello{in.hello().steps()};
    case v1::WorkerRequest::kRun: {
      const v1::WorkerRequest::RunTask& task = in.run();
      if (!task.has_arguments()) fail_message("a task without arguments");
      return RunTask{task.task(), task.finished_below(),
                     WorkerTask{task.number(), task.attempt(), task.term(), task.step(),
                                get_nest(task.arguments(), payload)}};
    }
    case v1::WorkerRequest::kCancel:
      return CancelTask{in.cancel().task()};
    case v1::WorkerRequest::kRecall:
      return RecallTask{in.recall().number(), in.recall().attempt()};
    case v1::WorkerRequest::kRelease:
      return ReleaseValue{get_handle(in.release().handle())};
    case v1::WorkerRequest::WHAT_NOT_SET:
      break;
  }
  fail_message("a request of no kind");
}

TaskOutcome get_outcome(const v1::TaskOutcome& in, PayloadReader& payload) {
  switch (in.what_case()) {
    case v1::TaskOutcome::kValue:
      return get_nest(in.value(), payload);
    case v1::TaskOutcome::kFailure: {
      TaskFailure failure;
      get_cause(in.failure(), failure);
      return failure;
    }
    case v1::TaskOutcome::kStopped:
      return TaskStopped();
    case v1::TaskOutcome::kReport:
      return get_report(in.report());
    case v1::TaskOutcome::WHAT_NOT_SET:
      break;
  }
  fail_message("an outcome of no kind");
}

template <class Message, class Variant>
Packet packet_with(const Variant& any) {
  return packet_of<Message>([&](auto& message, auto& payload) {
    std::visit([&](const auto& each) { put(each, payload, message); }, any);
  });
}

}  // namespace

Packet encode(const WorkerRequest& request) { return packet_with<v1::WorkerRequest>(request); }
WorkerRequest decode_worker_request(const Packet& packet) {
  return read_packet<v1::WorkerRequest>(packet, get_request);
}

Packet encode(const TaskOutcome& outcome) { return packet_with<v1::TaskOutcome>(outcome); }
TaskOutcome decode_outcome(const Packet& packet) {
  return read_packet<v1::TaskOutcome>(packet, get_outcome);
}

std::string scheduled_content(const std::string& step, const Nest& arguments) {
  InArena<v1::ScheduledStep> message;
  PayloadWriter payload;
  message->set_step(step);
  put_nest(arguments, payload, *message->mutable_arguments());
  const std::vector<SharedBytes> pieces = payload.take();
  std::string& tensors = *message->mutable_tensors();
  tensors.reserve(Packet{{}, pieces}.payload_bytes());
  for (const SharedBytes& piece : pieces) {
    tensors.append(reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size());
  }
  std::string content;
  if (message->SerializeToString(&content)) return content;
  fail(ErrorCode::kResourceExhausted, "coordinator's journal: '", step, "' has ", tensors.size(),
       " bytes of tensors as arguments; expected less than 2 GiB; try variables for them");
}

std::pair<std::string, Nest> decode_scheduled(const std::string& content) {
  InArena<v1::ScheduledStep> message;
  parse(std::as_bytes(std::span(content)), *message);
  if (!message->has_arguments()) fail_message("a scheduled step without arguments");
  const Packet tensors{{}, {{std::as_bytes(std::span(message->tensors())), nullptr}}};
  PayloadReader payload(tensors);
  Nest arguments = get_nest(message->arguments(), payload);
  payload.finish();
  return {message->step(), std::move(arguments)};
}

namespace {

void put(const events::Scheduled& event, v1::ClosureEvent& out) {
  out.mutable_scheduled()->set_number(event.number);
  out.mutable_scheduled()->set_content(event.content);
}
void put(const events::Started& event, v1::ClosureEvent& out) {
  v1::ClosureEvent::Started& started = *out.mutable_started();
  started.set_number(event.number), started.set_attempt(event.attempt);
  started.set_worker(event.worker);
}
void put(const events::Finished& event, v1::ClosureEvent& out) {
  out.mutable_finished()->set_number(event.number);
  out.mutable_finished()->set_attempt(event.attempt);
}
void put(const events::PutBack& event, v1::ClosureEvent& out) {
  v1::ClosureEvent::PutBack& put_back = *out.mutable_put_back();
  put_back.set_number(event.number), put_back.set_attempt(event.attempt);
  put_report(event.report, *put_back.mutable_report());
}
void put(const events::Failed& event, v1::ClosureEvent& out) {
  put_failure(event.failure, *out.mutable_failed());
}
void put(const events::Stopped& event, v1::ClosureEvent& out) {
  out.mutable_stopped()->set_number(event.number);
  out.mutable_stopped()->set_attempt(event.attempt);
}
void put(const events::ErrorRaised&, v1::ClosureEvent& out) { out.mutable_error_raised(); }
void put(const events::TookOver& event, v1::ClosureEvent& out) {
  out.mutable_took_over()->set_term(event.term);
}
void put(const events::CutBegan& event, v1::ClosureEvent& out) {
  out.mutable_cut_began()->set_id(event.id);
}
void put(const events::CutTaken& event, v1::ClosureEvent& out) {
  out.mutable_cut_taken()->set_id(event.id);
}
void put(const events::BeganAfter& event, v1::ClosureEvent& out) {
  out.mutable_began_after()->set_term(event.term);
  out.mutable_began_after()->set_number(event.number);
}

ClosureEvent get(const v1::ClosureEvent& in) {
  switch (in.what_case()) {
    case v1::ClosureEvent::kScheduled:
      return events::Scheduled{in.scheduled().number(), in.scheduled().content()};
    case v1::ClosureEvent::kStarted:
      return events::Started{in.started().number(), in.started().attempt(), in.started().worker()};
    case v1::ClosureEvent::kFinished:
      return events::Finished{in.finished().number(), in.finished().attempt()};
    case v1::ClosureEvent::kPutBack:
      return events::PutBack{in.put_back().number(), in.put_back().attempt(),
                             get_report(in.put_back().report())};
    case v1::ClosureEvent::kFailed:
      return events::Failed{get_failure(in.failed())};
    case v1::ClosureEvent::kStopped:
      return events::Stopped{in.stopped().number(), in.stopped().attempt()};
    case v1::ClosureEvent::kErrorRaised:
      return events::ErrorRaised{};
    case v1::ClosureEvent::kTookOver:
      return events::TookOver{in.took_over().term()};
    case v1::ClosureEvent::kCutBegan:
      return events::CutBegan{in.cut_began().id()};
    case v1::ClosureEvent::kCutTaken:
      return events::CutTaken{in.cut_taken().id()};
    case v1::ClosureEvent::kBeganAfter:
      return events::BeganAfter{in.began_after().term(), in.began_after().number()};
    case v1::ClosureEvent::WHAT_NOT_SET:
      break;
  }
  fail(ErrorCode::kDataLoss, "coordinator's journal: an event of no kind");
}

void put(const ClosureLedger::Closure& closure, v1::ClosureLedger::Closure& out) {
  out.set_state(static_cast<std::uint32_t>(closure.state));
  out.set_attempts(closure.attempts), out.set_worker(closure.worker);
  out.set_content(closure.content);
  for (const AttemptReport& report : closure.reports) put_report(report, *out.add_reports());
}

ClosureLedger::Closure get(const v1::ClosureLedger::Closure& in) {
  using State = ClosureLedger::State;
  ClosureLedger::Closure closure;
  closure.state = checked_enum(in.state(), State::kQueued, State::kCancelled);
  closure.attempts = in.attempts(), closure.worker = in.worker();
  closure.content = in.content();
  for (const v1::AttemptReport& report : in.reports()) {
    closure.reports.push_back(get_report(report));
  }
  return closure;
}

}  // namespace

Packet encode(const ClosureEvent& event) {
  InArena<v1::ClosureEvent> message;
  std::visit([&](const auto& each) { put(each, *message); }, event);
  return {serialized(*message, std::numeric_limits<std::uint32_t>::max()), {}};
}

ClosureEvent decode_event(const Packet& packet) {
  InArena<v1::ClosureEvent> message;
  parse(packet.head, *message);
  return get(*message);
}

std::vector<std::byte> ClosureLedger::bytes() const {
  InArena<v1::ClosureLedger> message;
  v1::ClosureLedger& out = *message;
  out.set_most_attempts(rules_.most_attempts);
  out.set_most_workers_lost(rules_.most_workers_lost);
  out.set_term(term_), out.set_next_number(next_number_), out.set_finished_below(finished_below_);
  out.set_last_cut(last_cut_), out.set_last_cut_begun(last_cut_begun_);
  out.set_is_taking_cut(is_taking_cut_);
  for (const auto& [number, closure] : closures_) put(closure, *out.add_closures());
  for (const ClosureFailure& failure : failures_) put_failure(failure, *out.add_failures());
  out.set_is_whole(true);
  return serialized(out, std::numeric_limits<std::uint32_t>::max());
}

/// Closures below the watermark have ended, and that at it has not.
bool ClosureLedger::is_watermark_sound() const {
  const auto first_not_ended =
      std::ranges::find_if_not(closures_, [](const auto& each) { return each.second.has_ended(); });
  return finished_below_ ==
         (first_not_ended == closures_.end() ? next_number_ : first_not_ended->first);
}

ClosureLedger ClosureLedger::restore(std::span<const std::byte> bytes, LedgerRules rules) {
  const auto refuse = [&](const std::string& why) {
    fail(ErrorCode::kDataLoss, "coordinator's journal: ", bytes.size(),
         " bytes that are no state of closures (", why, ")");
  };
  InArena<v1::ClosureLedger> message;
  const v1::ClosureLedger& in = *message;
  ClosureLedger ledger(rules);
  try {
    parse(bytes, *message);
    ledger.term_ = in.term(), ledger.next_number_ = in.next_number();
    ledger.finished_below_ = in.finished_below();
    ledger.last_cut_ = in.last_cut(), ledger.last_cut_begun_ = in.last_cut_begun();
    ledger.is_taking_cut_ = in.is_taking_cut();
    // Closures are forgotten from the first one on.
    std::uint64_t number = in.next_number() - static_cast<std::uint64_t>(in.closures_size());
    for (const v1::ClosureLedger::Closure& each : in.closures()) {
      const Closure& closure = ledger.closures_.emplace(number, get(each)).first->second;
      if (closure.state == State::kQueued) ledger.queued_.insert(number);
      if (closure.state == State::kRunning) ++ledger.num_running_;
      ++number;
    }
    for (const v1::ClosureFailure& each : in.failures()) {
      ledger.failures_.push_back(get_failure(each));
    }
  } catch (const Error& error) {
    refuse(error.message());
  }
  if (!in.is_whole()) refuse("it was cut off");
  const bool are_numbers = static_cast<std::uint64_t>(in.closures_size()) <= in.next_number();
  if (!are_numbers || !ledger.is_watermark_sound()) refuse("its numbers contradict each other");
  return ledger;
}

}  // namespace tutti::internal
