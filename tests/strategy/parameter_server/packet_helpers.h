// What tests of packets share: one batch of every operation, packets cut on the way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tests/strategy/parameter_server/store_helpers.h"
#include "tutti/strategy/parameter_server/protocol/encoding.h"

namespace tutti::store_tests {

using internal::HeadFormat;

inline std::vector<HeadFormat> head_formats() {
  if (internal::default_head_format() == HeadFormat::kBytes) return {HeadFormat::kBytes};
  return {HeadFormat::kBytes, HeadFormat::kProtobuf};
}

/// Every operation with every part, none of them at its default.
inline OperationBatch batch_of_everything() {
  OperationBatch batch;
  batch.term = 3;
  batch.stream = {UpdateStream::Kind::kClosure, 0xF123456789ABCDEF, 7};
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
      RestoreShard{5, Tensor::zeros({0, 4})},
      AssignShard{6, AssignOp::kAssign, Tensor::full({1500}, 0.5)},
  };
  UpdateShard update{7, {8, 9}, R"({"rule":"adam"})"};
  update.scalars = {
      .learning_rate = 0.1, .iteration = 12, .gradient_scale = 0.3, .weight_decay = 0.4};
  update.rows = rows_of({2, 2, 1});
  update.gradient = Tensor::full({3, 2}, -1.5);
  update.sync = SyncSpec{21, 2, 5, 4, 2.5};
  update.computed_at_version = 99;
  batch.operations.push_back(update);
  UpdateShard dense{10, {}, "rule"};
  dense.gradient = Tensor::full({2, 1000}, 7.0);
  batch.operations.push_back(dense);
  batch.operations.push_back(internal::ReadStatistics{});
  batch.operations.push_back(internal::TellClock{internal::TellClock::Event::kAdvance, 3, 1000, 2});
  return batch;
}

inline std::vector<std::byte> payload_of(const Packet& packet) {
  std::vector<std::byte> bytes;
  for (const SharedBytes& piece : packet.payload) {
    bytes.insert(bytes.end(), piece.bytes.begin(), piece.bytes.end());
  }
  return bytes;
}

/// The same packet with a payload of its own, in pieces of `size` bytes.
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
