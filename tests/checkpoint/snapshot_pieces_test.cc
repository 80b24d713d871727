// Snapshots that go from memory to memory in pieces: equal at the other end, or an error that names
// what is damaged.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_file.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/thrown.h"

namespace tutti {
namespace snapshot_pieces_test {

using internal::ArrivingSnapshot;
using internal::pieces_of;
using internal::SafetensorsLayout;

/// Three variables and a number beside them.
struct Program {
  explicit Program(double value)
      : weights(Tensor::full({3, 5}, value), {.name = "weights"}),
        step(Tensor::scalar(7, DType::kInt64), {.name = "step"}),
        mask(Tensor::full({4}, 1.0, DType::kBool), {.name = "mask", .trainable = false}),
        checkpoint({weights, step, mask}) {
    checkpoint.add_state("lines", {.save = [this] { return Json(lines); },
                                   .restore = [this](const Json& j) { lines = j.as_int(); }});
  }
  Variable weights, step, mask;
  std::int64_t lines = 41;
  Checkpoint checkpoint;
};

void receive(const SafetensorsLayout& pieces, const ArrivingSnapshot& arriving) {
  ASSERT_EQ(arriving.tensors().size(), pieces.tensors.size());
  for (std::size_t i = 0; i < pieces.tensors.size(); ++i) {
    const auto bytes = pieces.tensors[i].value.bytes();
    ASSERT_EQ(arriving.tensors()[i].num_bytes(), bytes.size());
    std::memcpy(arriving.tensors()[i].data(), bytes.data(), bytes.size());
  }
}

TEST(SnapshotPieces, AreTheFileAndArriveAsTheSnapshot) {
  Program from(2.5), to(0.0);
  const CheckpointSnapshot snapshot = from.checkpoint.snapshot(12);
  const SafetensorsLayout pieces = pieces_of(snapshot);
  std::string joined = pieces.head;
  for (const NamedTensor& tensor : pieces.tensors) {
    const auto bytes = tensor.value.bytes();
    joined.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  EXPECT_EQ(joined, Checkpoint::to_bytes(snapshot));
  EXPECT_EQ(pieces.num_bytes, joined.size());
  // No copy: the snapshot shares the variable's memory, and the pieces share the snapshot's.
  EXPECT_EQ(pieces.tensors.back().value.bytes().data(), from.mask.value().bytes().data());

  to.lines = 0;
  ArrivingSnapshot arriving(pieces.head, pieces.num_bytes, "worker 3");
  receive(pieces, arriving);
  EXPECT_EQ(to.checkpoint.restore(arriving.finish()).step, 12);
  EXPECT_EQ(hash_variables(to.checkpoint.variables()), hash_variables(from.checkpoint.variables()));
  EXPECT_EQ(to.lines, 41);
}

TEST(SnapshotPieces, DamageIsNamed) {
  Program program(1.0);
  const SafetensorsLayout pieces = pieces_of(program.checkpoint.snapshot(3));
  const auto damaged = [&](std::size_t tensor, std::byte change) {
    ArrivingSnapshot arriving(pieces.head, pieces.num_bytes, "the state of worker 2");
    receive(pieces, arriving);
    arriving.tensors()[tensor].data()[1] ^= change;
    arriving.finish();
  };
  // Wide types first: step (int64), weights (float32), mask (bool).
  EXPECT_ERROR(damaged(0, std::byte{4}), kDataLoss, "the state of worker 2", "'step' is damaged");
  EXPECT_ERROR(damaged(1, std::byte{1}), kDataLoss, "the state of worker 2",
               "'weights' is damaged");
  EXPECT_ERROR(damaged(2, std::byte{2}), kDataLoss, "'mask'", "expected 0 or 1, got 3");
}

TEST(SnapshotPieces, AHeadThatDoesNotFitIsRefusedBeforeAnythingIsTaken) {
  Program program(1.0);
  const SafetensorsLayout pieces = pieces_of(program.checkpoint.snapshot(3));
  EXPECT_ERROR(ArrivingSnapshot(pieces.head.substr(0, 40), pieces.num_bytes, "worker 1"), kDataLoss,
               "worker 1", "the file ends within");
  EXPECT_ERROR(ArrivingSnapshot(pieces.head, pieces.num_bytes + 1, "worker 1"), kDataLoss,
               "worker 1", "the file goes on after its last tensor");
  EXPECT_ERROR(ArrivingSnapshot(pieces.head, pieces.num_bytes - 1, "worker 1"), kDataLoss,
               "worker 1", "the file ends within tensor 'mask'");
}

}  // namespace snapshot_pieces_test
}  // namespace tutti
