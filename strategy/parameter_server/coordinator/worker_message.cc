// Requests and outcomes as messages of worker.proto.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/worker_message.h"

#include <memory>

#include "coordinator.pb.h"
#include "strategy/parameter_server/coordinator/nest_message.h"
#include "strategy/parameter_server/coordinator/report_message.h"
#include "tutti/core/error.h"
#include "worker.pb.h"

namespace tutti::internal {
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

}  // namespace tutti::internal
