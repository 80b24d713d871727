// Nests: names, structure.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/nest.h"

#include <algorithm>
#include <set>

#include "tutti/core/error.h"

namespace tutti {
namespace {

void require_distinct(const Nest::Map& map) {
  std::set<std::string_view> names;
  for (const Nest::Member& member : map) {
    if (!names.insert(member.first).second) {
      fail(ErrorCode::kInvalidArgument, "nest: the name '", member.first,
           "' stands twice in a map; expected each name once");
    }
  }
}

void describe(const Nest& nest, std::string& text) {
  if (const Tensor* tensor = nest.tensor()) {
    text += concat(tensor->dtype(), " ", tensor->shape());
  } else if (nest.text() != nullptr) {
    text += "text";
  } else if (const PerWorkerHandle* handle = nest.handle()) {
    text += concat("per-worker ", handle->type);
  } else if (const Nest::List* list = nest.list()) {
    text += "(";
    for (std::size_t i = 0; i < list->size(); ++i) {
      if (i > 0) text += ", ";
      describe((*list)[i], text);
    }
    text += ")";
  } else if (const Nest::Map* map = nest.map()) {
    text += "{";
    for (std::size_t i = 0; i < map->size(); ++i) {
      text += concat(i > 0 ? ", " : "", (*map)[i].first, ": ");
      describe((*map)[i].second, text);
    }
    text += "}";
  } else {
    text += "nothing";
  }
}

}  // namespace

Nest::Nest(Tensor tensor) : value_(std::move(tensor)) {
  if (!std::get<Tensor>(value_).defined()) {
    fail(ErrorCode::kInvalidArgument, "nest: an undefined tensor; expected one with a value");
  }
}

Nest::Nest(Map map) {
  require_distinct(map);
  value_ = std::move(map);
}

const Nest* Nest::find(std::string_view name) const {
  const Map* members = map();
  if (members == nullptr) return nullptr;
  const auto found = std::ranges::find(*members, name, &Member::first);
  return found == members->end() ? nullptr : &found->second;
}

std::string Nest::structure() const {
  std::string text;
  describe(*this, text);
  return text;
}

}  // namespace tutti
