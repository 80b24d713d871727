// Implements device meshes, layouts and layout keys.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/mesh/device_mesh.h"

#include <algorithm>
#include <charconv>
#include <regex>

#include "core/names.h"
#include "tutti/core/error.h"

namespace tutti {

DeviceMesh::DeviceMesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  constexpr std::size_t kMostAxes = 8;
  internal::require(!axes_.empty() && axes_.size() <= kMostAxes, "DeviceMesh: expected 1 to ",
                    kMostAxes, " axes, got ", axes_.size());
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const auto& [name, size] = axes_[i];
    internal::require(!name.empty(), "DeviceMesh: axis ", i,
                      ": expected a name, got an empty string");
    internal::require(size >= 1, "DeviceMesh: axis '", name, "': expected a size >= 1, got ", size);
    const auto first = std::ranges::find(axes_, name, &MeshAxis::name);
    internal::require(first == axes_.begin() + static_cast<std::ptrdiff_t>(i),
                      "DeviceMesh: two axes are named '", name, "'; expected different names");
  }
}

DeviceMesh DeviceMesh::parse(std::string_view text) {
  const auto refuse = [&] {
    fail(ErrorCode::kInvalidArgument, "DeviceMesh: expected axes such as 'data=2,model=4', got '",
         text, "'");
  };
  std::vector<MeshAxis> axes;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view axis = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const std::size_t equals = axis.find('=');
    if (equals == std::string_view::npos) refuse();
    int size = 0;
    const char* const end = axis.data() + axis.size();
    const auto [stop, error] = std::from_chars(axis.data() + equals + 1, end, size);
    if (error != std::errc() || stop != end) refuse();
    axes.push_back({std::string(axis.substr(0, equals)), size});
  }
  if (axes.empty()) refuse();
  return DeviceMesh(std::move(axes));
}

int DeviceMesh::index_of(std::string_view axis) const {
  const auto found = std::ranges::find(axes_, axis, &MeshAxis::name);
  if (found != axes_.end()) return static_cast<int>(found - axes_.begin());
  fail(ErrorCode::kNotFound, "DeviceMesh: no axis '", axis, "'; expected one of ",
       join(internal::names_of(axes_, &MeshAxis::name)));
}

int DeviceMesh::num_positions() const {
  int count = 1;
  for (const MeshAxis& axis : axes_) count *= axis.size;
  return count;
}

std::string DeviceMesh::to_string() const {
  std::string text;
  for (const MeshAxis& axis : axes_) {
    text += concat(text.empty() ? "" : ",", axis.name, "=", axis.size);
  }
  return text;
}

std::string Layout::to_string() const {
  std::string text;
  for (const std::string& axis : axes) {
    text += concat(text.empty() ? "" : ", ", axis.empty() ? "-" : axis);
  }
  return concat("[", text, "]");
}

LayoutMap::LayoutMap(std::initializer_list<std::pair<std::string, Layout>> entries) {
  for (const auto& [key, layout] : entries) set(key, layout);
}

void LayoutMap::set(std::string key, Layout layout) {
  for (const auto& entry : entries_) {
    if (entry.first != key) continue;
    fail(ErrorCode::kAlreadyExists, "LayoutMap: key '", key, "' already has the layout ",
         entry.second.to_string(), "; expected a new key, got this one again with the layout ",
         layout.to_string());
  }
  try {
    const std::regex compiled(key);
  } catch (const std::regex_error& error) {
    fail(ErrorCode::kInvalidArgument, "LayoutMap: key '", key,
         "': expected a valid regular expression; parsing failed: ", error.what());
  }
  entries_.emplace_back(std::move(key), std::move(layout));
}

std::optional<Layout> LayoutMap::find(std::string_view variable) const {
  const std::pair<std::string, Layout>* found = nullptr;
  for (const auto& entry : entries_) {
    if (entry.first == variable) return entry.second;
  }
  for (const auto& entry : entries_) {
    if (!std::regex_search(std::string(variable), std::regex(entry.first))) continue;
    internal::require(found == nullptr, "LayoutMap: keys '", found ? found->first : "", "' and '",
                      entry.first, "' match the variable '", variable,
                      "'; expected only one match; try more specific expressions");
    found = &entry;
  }
  return found ? std::optional(found->second) : std::nullopt;
}

}  // namespace tutti
