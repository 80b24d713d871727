// Arguments and results of steps: tensors and strings in nested lists and maps.
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

/// Reference to a per-worker value (PerWorkerValues); a step receives the value of the worker that
/// runs it.
struct PerWorkerHandle {
  std::uint64_t id = 0;        // id of the definition
  std::uint64_t instance = 0;  // number of the value, unique within the job
  std::string type = {};
  /// Owner that keeps the values alive; not sent to other processes.
  std::shared_ptr<const void> owner = {};
};

/// A nested value: empty, a tensor, a string, a handle, a list or a map. Numbers are scalar
/// tensors. nest_conversion.h converts nests to and from C++ values. Value type.
class Nest {
 public:
  using List = std::vector<Nest>;
  using Member = std::pair<std::string, Nest>;
  using Map = std::vector<Member>;  // names are unique
  /// Maximum nesting depth of lists and maps.
  static constexpr int kDeepest = 32;

  Nest() = default;
  explicit Nest(Tensor tensor);
  explicit Nest(std::string text) : value_(std::move(text)) {}
  explicit Nest(PerWorkerHandle handle) : value_(std::move(handle)) {}
  explicit Nest(List list) : value_(std::move(list)) {}
  /// Throws kInvalidArgument for a repeated name.
  explicit Nest(Map map);

  bool is_nothing() const { return std::holds_alternative<std::monostate>(value_); }
  /// The accessors return nullptr if the value is of another kind.
  const Tensor* tensor() const { return std::get_if<Tensor>(&value_); }
  const std::string* text() const { return std::get_if<std::string>(&value_); }
  const PerWorkerHandle* handle() const { return std::get_if<PerWorkerHandle>(&value_); }
  const List* list() const { return std::get_if<List>(&value_); }
  const Map* map() const { return std::get_if<Map>(&value_); }

  /// Returns types and shapes without values: "(float32 [], [int64 [3]], {v: int64 []})".
  std::string structure() const;

 private:
  std::variant<std::monostate, Tensor, std::string, PerWorkerHandle, List, Map> value_;
};

namespace internal {

/// Encodes a nest. The head is a Nest message (cluster/proto/nest.proto). The payload shares the
/// memory of the tensors, except that GPU tensors are copied to the host. Throws kResourceExhausted
/// for a head longer than kLongestHead, and kInvalidArgument for nesting deeper than
/// Nest::kDeepest.
Packet encode_nest(const Nest& nest);
/// Decodes a nest. Throws kDataLoss for a packet that encode_nest() could not have written.
Nest decode_nest(const Packet& packet);

}  // namespace internal
}  // namespace tutti
