// Requests and answers of sessions, as messages and as nests.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/task_request.h"

#include <tuple>
#include <utility>

#include "session.pb.h"
#include "strategy/parameter_server/coordinator/nest_message.h"
#include "strategy/parameter_server/protocol/message.h"
#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"

namespace tutti::internal {

namespace {

using WelcomeTuple =
    std::tuple<std::string, int, std::string, std::vector<std::string>, std::string>;

}  // namespace

Nest to_answer(const TaskWelcome& welcome) {
  return to_nest(WelcomeTuple(welcome.task.type, welcome.task.index, welcome.cluster,
                              welcome.devices, welcome.steps));
}

TaskWelcome to_welcome(const Nest& answer) {
  auto [job, index, cluster, devices, steps] = from_nest<WelcomeTuple>(answer, "welcome of a task");
  return {{std::move(job), index}, std::move(cluster), std::move(devices), std::move(steps)};
}

Nest part_of(const Nest& value, const std::vector<int>& path) {
  const Nest* part = &value;
  for (const int place : path) {
    const Nest::List* list = part->list();
    if (list == nullptr || place < 0 || place >= static_cast<int>(list->size())) {
      fail(ErrorCode::kInvalidArgument, "element ", join(path, "."), " of ", value.structure(),
           ": there is none; expected places in lists");
    }
    part = &(*list)[static_cast<std::size_t>(place)];
  }
  return *part;
}

std::size_t bytes_of(const Nest& nest) {
  if (const Tensor* tensor = nest.tensor()) return static_cast<std::size_t>(tensor->num_bytes());
  if (const std::string* text = nest.text()) return text->size();
  std::size_t bytes = 0;
  if (const Nest::List* list = nest.list()) {
    for (const Nest& each : *list) bytes += bytes_of(each);
  } else if (const Nest::Map* map = nest.map()) {
    for (const auto& [name, each] : *map) bytes += bytes_of(each);
  }
  return bytes;
}

namespace {

template <class... Parts>
[[noreturn]] void refuse_request(const Parts&... parts) {
  fail(ErrorCode::kDataLoss, "request of a session: ", parts...);
}

void put(const TaskArgument& argument, PayloadWriter& payload, v1::SessionRequest::Argument& out) {
  const ValueAddress& from = argument.from;
  out.set_job(from.task.type), out.set_index(from.task.index), out.set_op(from.op);
  for (const int place : from.path) out.add_path(place);
  if (from.op == 0) put_nest(argument.value, payload, *out.mutable_value());
}

TaskArgument get(const v1::SessionRequest::Argument& in, PayloadReader& payload) {
  TaskArgument argument;
  argument.from = {{in.job(), in.index()}, in.op(), {in.path().begin(), in.path().end()}};
  if (in.has_value() != (in.op() == 0)) refuse_request("expected a value or where it is");
  if (in.has_value()) argument.value = get_nest(in.value(), payload);
  return argument;
}

bool needs_argument(TaskRequestKind kind) {
  return kind == TaskRequestKind::kPut || kind == TaskRequestKind::kCreateVariable ||
         kind == TaskRequestKind::kAssignVariable || kind == TaskRequestKind::kUpdateVariable ||
         kind == TaskRequestKind::kFetch;
}

}  // namespace

Packet encode(const TaskRequest& request) {
  const auto put_request = [&](v1::SessionRequest& out, PayloadWriter& payload) {
    out.set_kind(static_cast<std::uint32_t>(request.kind));
    out.set_session(request.session), out.set_op(request.op);
    out.set_name(request.name), out.set_device(request.device);
    for (const TaskArgument& each : request.arguments) put(each, payload, *out.add_arguments());
    if (!request.details.is_nothing()) put_nest(request.details, payload, *out.mutable_details());
  };
  return packet_of<v1::SessionRequest>(put_request);
}

TaskRequest decode_task_request(const Packet& packet) {
  const auto get_request = [](const v1::SessionRequest& in, PayloadReader& payload) {
    TaskRequest request;
    request.kind = checked_enum(in.kind(), TaskRequestKind::kOpen, TaskRequestKind::kStay);
    request.session = in.session(), request.op = in.op();
    request.name = in.name(), request.device = in.device();
    for (const v1::SessionRequest::Argument& each : in.arguments()) {
      request.arguments.push_back(get(each, payload));
    }
    if (in.has_details()) request.details = get_nest(in.details(), payload);
    if (request.arguments.empty() && needs_argument(request.kind)) {
      refuse_request("kind ", in.kind(), " without arguments; expected one at least");
    }
    return request;
  };
  return read_packet<v1::SessionRequest>(packet, get_request);
}

}  // namespace tutti::internal
