// What answers and details of sessions are as nests.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/task_request.h"

#include <tuple>
#include <utility>

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

}  // namespace tutti::internal
