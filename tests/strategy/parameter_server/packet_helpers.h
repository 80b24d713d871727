// Helpers for tests of packets: a batch with every operation, and packets in chunks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strategy/parameter_server/protocol/operation.h"
#include "tests/strategy/parameter_server/store_helpers.h"

namespace tutti::store_tests {

/// Returns a batch with every kind of operation. Every field has a non-default value in some
/// operation.
inline OperationBatch batch_of_everything() {
  OperationBatch batch;
  batch.stream = {UpdateStream::Kind::kClosure, 0xF123456789ABCDEF, 7};
  batch.run = 3;
  batch.first_ordinal = 11;
  batch.finished_below = 9;
  const ShardSpec spec{"layer/'w'\n", DType::kFloat64, {10, 3}, 1, 4, 3, 3};
  const ValueGenerator generator{
      ValueGenerator::Kind::kUniform, -0.1, 0.2, {1, 2, 3, 4, 5}, DType::kFloat64, {10, 3}};
  batch.operations = {
      CreateShard{spec, generator},
      CreateShard{whole("b", {}, DType::kBool), Tensor::full({}, 1.0, DType::kBool)},
      ReadShard{1, 2, 3},
      ReadRows{2, rows_of({5, 0}), 4},
      AssignShard{3, AssignOp::kSubtract, Tensor::from<std::int32_t>({3}, {1, -2, 3})},
      ScatterShard{4, ScatterOp::kMax, rows_of({1}), Tensor::ones({1, 5}, DType::kBFloat16)},
      AssignShard{5, AssignOp::kAssign, Tensor::zeros({0, 4})},
      AssignShard{6, AssignOp::kAssign, Tensor::full({1500}, 0.5)},
  };
  UpdateShard update{7, {8, 9}, R"({"rule":"adam"})"};
  update.scalars = {
      .learning_rate = 0.1, .iteration = 12, .gradient_scale = 0.3, .weight_decay = 0.4};
  update.rows = rows_of({2, 2, 1});
  update.gradient = Tensor::full({3, 2}, -1.5);
  update.sync = SyncSpec{21, 2, 5, 4, 2.5};
  batch.operations.push_back(update);
  UpdateShard dense{10, {}, "rule"};
  dense.gradient = Tensor::full({2, 1000}, 7.0);
  batch.operations.push_back(dense);
  batch.operations.push_back(internal::ReadAwaited{});
  batch.operations.push_back(internal::ReportWorker{3, true});
  batch.operations.push_back(
      internal::StoreOrder{internal::StoreOrder::Kind::kReadFrozen, 0xF00000000000000D, 5, 6});
  return batch;
}

/// Text form of all fields of a batch, or of a list of replies. Slow, but simple and independent of
/// the code under test.
class Shown {
 public:
  explicit Shown(const OperationBatch& batch) {
    put(batch.run, static_cast<int>(batch.stream.kind), batch.stream.id, batch.stream.replica,
        batch.first_ordinal, batch.finished_below);
    for (const Operation& each : batch.operations) {
      text += concat("\n", each.index(), ": ");
      std::visit([this](const auto& operation) { show(operation); }, each);
    }
  }
  explicit Shown(const std::vector<OperationAnswer>& answers) {
    for (const OperationAnswer& each : answers) {
      text += "\n";
      show(each.value), put(each.version, each.num_steps, each.was_applied_before);
    }
  }
  bool operator==(const Shown& other) const { return text == other.text; }
  friend std::ostream& operator<<(std::ostream& out, const Shown& shown) {
    return out << shown.text;
  }
  std::string text;

 private:
  template <class... Values>
  void put(const Values&... values) {
    ((text += concat(values, " ")), ...);
  }
  void put_bits(double value) { put(std::bit_cast<std::uint64_t>(value)); }
  void show(const Tensor& tensor) {
    put(tensor.dtype(), tensor.shape());
    for (const std::byte each : tensor.bytes()) put(std::to_integer<int>(each));
  }
  void show(const std::optional<Tensor>& tensor) {
    put(tensor.has_value());
    if (tensor) show(*tensor);
  }
  void show(const ValueGenerator& generator) {
    const RandomKey& key = generator.key;
    put(static_cast<int>(generator.kind), key.seed, key.purpose, key.a, key.b, key.c);
    put_bits(generator.a), put_bits(generator.b), put(generator.dtype, generator.shape);
  }
  void show(const CreateShard& o) {
    const ShardSpec& spec = o.spec;
    put(spec.variable, spec.dtype, spec.whole_shape, spec.shard, spec.num_shards, spec.first_row,
        spec.num_rows, o.initial_value.index());
    std::visit([this](const auto& value) { show(value); }, o.initial_value);
  }
  void show(const ReadShard& o) { put(o.shard, o.have_version, o.at_least_steps); }
  void show(const ReadRows& o) { put(o.shard, o.at_least_steps), show(o.rows); }
  void show(const AssignShard& o) { put(o.shard, static_cast<int>(o.op)), show(o.value); }
  void show(const ScatterShard& o) {
    put(o.shard, static_cast<int>(o.op)), show(o.rows), show(o.values);
  }
  void show(const UpdateShard& o) {
    put(o.shard, join(o.slots), o.rule.text(), o.scalars.iteration);
    put_bits(o.scalars.learning_rate), put_bits(o.scalars.gradient_scale);
    put_bits(o.scalars.weight_decay), show(o.rows), show(o.gradient), put(o.sync.has_value());
    if (!o.sync) return;
    put(o.sync->step, o.sync->rank, o.sync->num_ranks, o.sync->num_to_aggregate);
    put_bits(o.sync->divisor);
  }
  void show(const internal::ReadAwaited&) {}
  void show(const internal::ReportWorker& o) { put(o.worker, o.has_ended); }
  void show(const internal::StoreOrder& o) {
    put(static_cast<int>(o.kind), o.run, o.generation, o.number);
  }
};

// Helpers that encode messages of cluster/proto by hand: varint fields, and length-delimited fields
// (strings and nested messages).
inline std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
  return out + static_cast<char>(value);
}
inline std::string number(int field, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(field) << 3) + varint(value);
}
inline std::string bytes(int field, std::string_view text) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(text.size()) +
         std::string(text);
}
inline Packet packet_of(const std::string& message, std::size_t payload = 0) {
  Packet packet;
  for (const char each : message) packet.head.push_back(static_cast<std::byte>(each));
  const auto zeros = std::make_shared<const std::vector<std::byte>>(payload);
  if (payload > 0) packet.payload = {{*zeros, zeros}};
  return packet;
}
/// Returns a client's encoded batch; `operations` are the client's operations, already encoded.
inline Packet batch_packet(const std::string& operations, std::size_t payload = 128) {
  return packet_of(number(2, 1) + operations, payload);
}
inline std::string operation(int kind, const std::string& message) {
  return bytes(7, bytes(kind, message));
}

inline std::vector<std::byte> payload_of(const Packet& packet) {
  std::vector<std::byte> bytes;
  for (const SharedBytes& piece : packet.payload) {
    bytes.insert(bytes.end(), piece.bytes.begin(), piece.bytes.end());
  }
  return bytes;
}

/// Returns the packet with its payload divided into chunks of `size` bytes.
inline Packet cut(const Packet& packet, std::size_t size) {
  const auto whole = std::make_shared<const std::vector<std::byte>>(payload_of(packet));
  Packet result{packet.head, {}};
  for (std::size_t first = 0; first < whole->size(); first += size) {
    const std::size_t count = std::min(size, whole->size() - first);
    result.payload.push_back({std::span(*whole).subspan(first, count), whole});
  }
  return result;
}

}  // namespace tutti::store_tests
