// Encoding of requests, outcomes and nests as messages.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/worker_message.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "strategy/parameter_server/protocol/message.h"
#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/coordinator/nest.h"
#include "worker.pb.h"

namespace tutti::internal {
namespace {

/// Writes origin, code and text of anything that has them.
template <class Value, class Message>
void put_cause(const Value& value, Message& out) {
  out.set_origin(static_cast<std::uint32_t>(value.origin));
  out.set_code(static_cast<std::uint32_t>(value.code));
  out.set_text(value.text);
}
/// Throws kDataLoss for an unknown number, as all functions that read.
template <class Value, class Message>
void get_cause(const Message& in, Value& value) {
  value.origin = checked_enum(in.origin(), ErrorOrigin::kUser, ErrorOrigin::kServer);
  value.code = checked_enum(in.code(), ErrorCode::kOk, ErrorCode::kDataLoss);
  value.text = in.text();
}

void put_report(const AttemptReport& report, v1::AttemptReport& out) {
  out.set_kind(static_cast<std::uint32_t>(report.kind));
  out.set_worker(report.worker);
  put_cause(report, out);
}
AttemptReport get_report(const v1::AttemptReport& in) {
  using Kind = AttemptReport::Kind;
  AttemptReport report;
  report.kind = checked_enum(in.kind(), Kind::kNotStarted, Kind::kWorkerLost);
  report.worker = in.worker();
  get_cause(in, report);
  return report;
}

void put_handle(const PerWorkerHandle& handle, v1::Nest::PerWorkerHandle& out) {
  out.set_id(handle.id), out.set_instance(handle.instance), out.set_type(handle.type);
}

PerWorkerHandle get_handle(const v1::Nest::PerWorkerHandle& in) {
  return {in.id(), in.instance(), in.type(), {}};
}

/// Tensors up to this size are in the head, because a separate one in the payload costs more.
constexpr std::size_t kLargestInHead = 256;
// Protobuf reads up to 100 nested messages: a list takes two, and the enclosing ones are few.
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

void put_nest(const Nest& nest, PayloadWriter& payload, v1::Nest& out) {
  put(nest, 0, payload, out);
}

Nest get_nest(const v1::Nest& in, PayloadReader& payload) { return get(in, 0, payload); }

}  // namespace

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
  message.set_closure(task.closure), message.set_attempt(task.attempt);
  message.set_run(task.run);
  message.set_step(task.step);
  put_nest(task.arguments, payload, *message.mutable_arguments());
}
void put(const CancelTask& cancel, PayloadWriter&, v1::WorkerRequest& out) {
  out.mutable_cancel()->set_task(cancel.call);
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
                     WorkerTask{task.closure(), task.attempt(), task.run(), task.step(),
                                get_nest(task.arguments(), payload)}};
    }
    case v1::WorkerRequest::kCancel:
      return CancelTask{in.cancel().task()};
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

}  // namespace tutti::internal
