// Requests of sessions as nests behind one byte.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/session/task_request.h"

#include <tuple>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"
#include "tutti/tensor/device_scope.h"

namespace tutti::internal {
namespace {

/// Unlike the first byte of a batch of operations (encoding.h).
constexpr std::byte kFirstByte{0x31};
constexpr const char* kWho = "request of a session";

using AddressTuple = std::tuple<std::string, int, std::uint64_t, std::vector<int>>;
using ArgumentTuple = std::tuple<AddressTuple, Nest>;
using RequestTuple = std::tuple<int, std::uint64_t, std::uint64_t, std::string, std::string,
                                std::vector<ArgumentTuple>, Nest>;
using WelcomeTuple =
    std::tuple<std::string, int, std::string, std::vector<std::string>, std::string>;
using UpdateTuple = std::tuple<std::string, std::vector<std::string>, double, std::int64_t>;

bool needs_argument(TaskRequestKind kind) {
  return kind == TaskRequestKind::kPut || kind == TaskRequestKind::kAssignVariable ||
         kind == TaskRequestKind::kUpdateVariable || kind == TaskRequestKind::kFetch;
}

}  // namespace

bool is_task_request(const Packet& packet) {
  return !packet.head.empty() && packet.head.front() == kFirstByte;
}

// Numbers travel as tensors, which cannot be made in the scope of another process's device.

Packet encode(const TaskRequest& request) {
  const NoDeviceScope here;
  std::vector<ArgumentTuple> arguments;
  for (const auto& [from, value] : request.arguments) {
    arguments.emplace_back(AddressTuple(from.task.type, from.task.index, from.op, from.path),
                           value);
  }
  Packet packet{{kFirstByte}, {}};
  encode_nest(
      to_nest(RequestTuple(static_cast<int>(request.kind), request.session, request.op,
                           request.name, request.device, std::move(arguments), request.details)),
      packet);
  return packet;
}

TaskRequest decode_task_request(const Packet& packet) {
  const NoDeviceScope here;
  std::size_t place = 1, payload_place = 0;
  const Nest nest = decode_nest(packet, place, payload_place);
  if (place != packet.head.size() || payload_place != packet.payload_bytes()) {
    fail(ErrorCode::kDataLoss, kWho, ": goes on behind its end");
  }
  auto [kind, session, op, name, device, arguments, details] = from_nest<RequestTuple>(nest, kWho);
  if (kind < 0 || kind > static_cast<int>(TaskRequestKind::kStay)) {
    fail(ErrorCode::kDataLoss, kWho, ": there is no kind ", kind);
  }
  TaskRequest request{static_cast<TaskRequestKind>(kind),
                      session,
                      op,
                      std::move(name),
                      std::move(device),
                      {},
                      std::move(details)};
  for (auto& [from, value] : arguments) {
    auto& [job, index, from_op, path] = from;
    request.arguments.push_back(
        {{{std::move(job), index}, from_op, std::move(path)}, std::move(value)});
  }
  if (request.arguments.empty() && needs_argument(request.kind)) {
    fail(ErrorCode::kDataLoss, kWho, ": kind ", kind, " without arguments; expected one at least");
  }
  return request;
}

Packet encode_answer(const Nest& nest) {
  Packet packet;
  encode_nest(nest, packet);
  return packet;
}

Nest decode_answer(const Packet& packet) {
  const NoDeviceScope here;
  std::size_t place = 0, payload_place = 0;
  return decode_nest(packet, place, payload_place);
}

Nest to_answer(const TaskWelcome& welcome) {
  return to_nest(WelcomeTuple(welcome.task.type, welcome.task.index, welcome.cluster,
                              welcome.devices, welcome.steps));
}

TaskWelcome to_welcome(const Nest& answer) {
  auto [job, index, cluster, devices, steps] = from_nest<WelcomeTuple>(answer, "welcome of a task");
  return {{std::move(job), index}, std::move(cluster), std::move(devices), std::move(steps)};
}

Nest to_details(const UpdateDetails& details) {
  const NoDeviceScope here;
  return to_nest(
      UpdateTuple(details.rule, details.slots, details.learning_rate, details.iteration));
}

UpdateDetails to_update_details(const Nest& details) {
  auto [rule, slots, rate, iteration] = from_nest<UpdateTuple>(details, "update of a variable");
  return {std::move(rule), std::move(slots), rate, iteration};
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

}  // namespace tutti::internal
