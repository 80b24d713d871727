// Encodes and decodes requests, outcomes and nests.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/worker_message.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "strategy/parameter_server/protocol/message.h"
#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/coordinator/nest.h"

namespace tutti::internal {

void put_handle(const PerWorkerHandle& handle, v1::Nest::PerWorkerHandle& out) {
  out.set_id(handle.id), out.set_instance(handle.instance), out.set_type(handle.type);
}

PerWorkerHandle handle_of(const v1::Nest::PerWorkerHandle& in) {
  return {in.id(), in.instance(), in.type(), {}};
}

namespace {

// Protobuf parses at most 100 levels of nested messages: a list takes two levels, and few messages
// enclose a nest.
static_assert(2 * Nest::kDeepest + 16 < 100);

template <class... Parts>
[[noreturn]] void refuse_nest(const Parts&... parts) {
  fail(ErrorCode::kDataLoss, "nest: ", parts..., "; expected the output of encode_nest()");
}

void put(const Nest& nest, int depth, PayloadWriter& payload, v1::Nest& out) {
  if (depth > Nest::kDeepest) {
    fail(ErrorCode::kInvalidArgument, "nest: expected at most ", Nest::kDeepest,
         " levels of lists and maps, got more");
  }
  if (const Tensor* tensor = nest.tensor()) {
    return put_tensor(*tensor, payload, *out.mutable_tensor());
  }
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
  if (depth > Nest::kDeepest)
    refuse_nest("more than ", Nest::kDeepest, " levels of lists and maps");
  switch (in.value_case()) {
    case v1::Nest::kNothing:
      return Nest();
    case v1::Nest::kTensor:
      return Nest(get_tensor(in.tensor(), payload));
    case v1::Nest::kText:
      return Nest(in.text());
    case v1::Nest::kHandle:
      return Nest(handle_of(in.handle()));
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
  refuse_nest("a value of unknown kind");
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

Packet encode(WorkerRequest request) {
  PayloadWriter payload;
  if (request.message.has_run()) {
    put_nest(request.arguments, payload, *request.message.mutable_run()->mutable_arguments());
  }
  return {serialized(request.message), payload.take()};
}

WorkerRequest decode_worker_request(const Packet& packet) {
  WorkerRequest request;
  parse(packet.head, request.message);
  PayloadReader payload(packet);
  if (request.message.what_case() == v1::WorkerRequest::WHAT_NOT_SET ||
      (request.message.has_run() && !request.message.run().has_arguments())) {
    fail(ErrorCode::kDataLoss, "WorkerRequest: expected a hello, a task with arguments, a ",
         "cancellation or a release");
  }
  if (request.message.has_run()) {
    request.arguments = get_nest(request.message.run().arguments(), payload);
    request.message.mutable_run()->clear_arguments();
  }
  payload.finish();
  return request;
}

namespace {

void put_outcome(const TaskOutcome& outcome, PayloadWriter& payload, v1::TaskOutcome& out) {
  if (const Nest* const value = std::get_if<Nest>(&outcome)) {
    return put_nest(*value, payload, *out.mutable_value());
  }
  const auto& report = std::get<AttemptReport>(outcome);
  v1::AttemptReport& message = *out.mutable_report();
  message.set_kind(static_cast<std::uint32_t>(report.kind));
  message.set_worker(report.worker);
  message.set_origin(static_cast<std::uint32_t>(report.origin));
  message.set_code(static_cast<std::uint32_t>(report.code));
  message.set_text(report.text);
}

TaskOutcome get_outcome(const v1::TaskOutcome& in, PayloadReader& payload) {
  if (in.has_value()) return get_nest(in.value(), payload);
  if (!in.has_report()) fail(ErrorCode::kDataLoss, "TaskOutcome: expected a value or a report");
  using Kind = AttemptReport::Kind;
  const v1::AttemptReport& report = in.report();
  return AttemptReport{
      checked_enum(report.kind(), Kind::kNotStarted, Kind::kStopped), report.worker(),
      checked_enum(report.origin(), ErrorOrigin::kUser, ErrorOrigin::kServer),
      checked_enum(report.code(), ErrorCode::kOk, ErrorCode::kDataLoss), report.text()};
}

}  // namespace

Packet encode(const TaskOutcome& outcome) {
  return packet_of<v1::TaskOutcome>(
      [&](auto& message, auto& payload) { put_outcome(outcome, payload, message); });
}
TaskOutcome decode_outcome(const Packet& packet) {
  return read_packet<v1::TaskOutcome>(packet, get_outcome);
}

}  // namespace tutti::internal
