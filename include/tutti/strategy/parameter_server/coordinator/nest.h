// Arguments and results of steps: tensors and texts in lists and maps, however deep.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/cluster/rpc/packet.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// Names what each worker has one of (PerWorkerValues); a step gets that of its own worker.
struct PerWorkerHandle {
  std::uint64_t id = 0;        // of the definition
  std::uint64_t instance = 0;  // made of it
  std::string type = {};
  /// Keeps the values; does not travel.
  std::shared_ptr<const void> owner = {};
};

/// A value that is nothing, a tensor (numbers are tensors without dimensions), a text, a handle, a
/// list, or a map. nest_conversion.h makes one of C++ values, and these of one. A value type.
class Nest {
 public:
  using List = std::vector<Nest>;
  using Member = std::pair<std::string, Nest>;
  using Map = std::vector<Member>;  // each name once
  /// Lists and maps within each other, at most.
  static constexpr int kDeepest = 32;

  Nest() = default;
  explicit Nest(Tensor tensor);
  explicit Nest(std::string text) : value_(std::move(text)) {}
  explicit Nest(PerWorkerHandle handle) : value_(std::move(handle)) {}
  explicit Nest(List list) : value_(std::move(list)) {}
  /// Throws kInvalidArgument for a name that stands twice.
  explicit Nest(Map map);

  bool is_nothing() const { return std::holds_alternative<std::monostate>(value_); }
  /// nullptr when it is something else.
  const Tensor* tensor() const { return std::get_if<Tensor>(&value_); }
  const std::string* text() const { return std::get_if<std::string>(&value_); }
  const PerWorkerHandle* handle() const { return std::get_if<PerWorkerHandle>(&value_); }
  const List* list() const { return std::get_if<List>(&value_); }
  const Map* map() const { return std::get_if<Map>(&value_); }
  /// The member of that name, or nullptr.
  const Nest* find(std::string_view name) const;

  /// "(float32 [], [int64 [3]], {v: int64 []})": shapes, not values.
  std::string structure() const;
  /// Calls `visitor` with each handle.
  template <class Visitor>
  void visit_handles(Visitor&& visitor) const {
    if (const PerWorkerHandle* own = handle()) visitor(*own);
    if (const List* elements = list()) {
      for (const Nest& each : *elements) each.visit_handles(visitor);
    }
    if (const Map* members = map()) {
      for (const Member& each : *members) each.second.visit_handles(visitor);
    }
  }

 private:
  std::variant<std::monostate, Tensor, std::string, PerWorkerHandle, List, Map> value_;
};

namespace internal {

/// The head is a message Nest (cluster/proto/nest.proto) with texts and small tensors; larger ones
/// are in the payload, which shares their memory (those of GPUs are copied to the host). Throws
/// kResourceExhausted for a head beyond kLongestHead, kInvalidArgument for one deeper than
/// Nest::kDeepest.
Packet encode_nest(const Nest& nest);
/// Throws kDataLoss for anything that encode_nest() does not write.
Nest decode_nest(const Packet& packet);

}  // namespace internal
}  // namespace tutti
