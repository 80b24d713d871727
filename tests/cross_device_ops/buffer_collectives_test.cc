// Tests collectives on plain buffers and on tensors, the in-process transport and store, and tensor
// packing.
// SPDX-License-Identifier: Apache-2.0

#include <atomic>
#include <cstring>

#include "cross_device_ops/in_process/in_process_transport.h"
#include "cross_device_ops/shared/window_group.h"
#include "cross_device_ops/tensor_packer.h"
#include "tests/cross_device_ops/cdo_helpers.h"
#include "tests/support/waiting.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti::buffer_collectives_test {
using namespace cdo_tests;

using Floats = std::vector<float>;

std::vector<ReplicaBuffer> buffers_of(std::vector<Floats>& values) {
  std::vector<ReplicaBuffer> buffers;
  for (Floats& own : values) {
    buffers.push_back({reinterpret_cast<std::byte*>(own.data()), own.size(), DType::kFloat32,
                       cpu(static_cast<int>(buffers.size()))});
  }
  return buffers;
}

/// CrossDeviceOps that records its calls and supports only SUM of float32.
class Recorder final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "recorder"; }
  bool supports(ReduceOp op, DType dtype, DeviceType) const override {
    return op == ReduceOp::kSum && dtype == DType::kFloat32;
  }
  std::vector<std::string> calls;
  bool all_aligned = true;

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override {
    calls.push_back(concat(op, " ", buffers[0].dtype, " x ", buffers[0].count));
    for (const ReplicaBuffer& buffer : buffers) {
      all_aligned = all_aligned && reinterpret_cast<std::uintptr_t>(buffer.data) % 4 == 0;
    }
    for (std::size_t i = 0; i < buffers[0].count; ++i) {
      float sum = 0;
      for (const ReplicaBuffer& buffer : buffers) sum += buffer.as<float>()[i];
      for (const ReplicaBuffer& buffer : buffers) buffer.as<float>()[i] = sum;
    }
  }
};

TEST(BufferCollectives, DefaultImplementationsUseOnlyAllReduceAndCopies) {
  Recorder ops;
  std::vector<Floats> in = {{1, 2, 3}, {10, 20, 30}}, out = {{0, 0, 0}, {0, 0, 0}};
  ops.all_reduce(ReduceOp::kMean, buffers_of(in), buffers_of(out));
  EXPECT_EQ(out[1], (Floats{5.5, 11, 16.5}));
  ops.reduce(ReduceOp::kSum, buffers_of(in), buffers_of(out)[0], 1);
  EXPECT_EQ(out[0], (Floats{11, 22, 33}));
  std::vector<Floats> parts = {{0}, {0, 0}};
  ops.reduce_scatter(ReduceOp::kSum, buffers_of(in), buffers_of(parts));
  EXPECT_EQ(parts, (std::vector<Floats>{{11}, {22, 33}}));
  std::vector<Floats> whole = {Floats(3), Floats(3)};
  ops.all_gather(buffers_of(parts), buffers_of(whole));
  EXPECT_EQ(whole[0], (Floats{11, 22, 33}));
  EXPECT_EQ(whole[1], whole[0]);
  std::vector<Floats> received = {{0, 0}, {0, 0, 0, 0}};
  const std::vector<std::size_t> counts = {1, 2, 1, 2};
  ops.all_to_all(buffers_of(in), buffers_of(received), counts);
  EXPECT_EQ(received, (std::vector<Floats>{{1, 10}, {2, 3, 20, 30}}));
  ops.broadcast(buffers_of(in), 1);
  EXPECT_EQ(in[0], (Floats{10, 20, 30}));
  EXPECT_EQ(ops.calls, (std::vector<std::string>{"SUM float32 x 3", "SUM float32 x 3",
                                                 "SUM float32 x 1", "SUM float32 x 2"}));
}

TEST(BufferCollectives, MisalignedBuffersAreReducedInAlignedCopies) {
  Recorder ops;
  std::vector<std::byte> memory[2] = {std::vector<std::byte>(13), std::vector<std::byte>(13)};
  std::vector<ReplicaBuffer> buffers;
  const float values[] = {1, 2, 3};
  for (auto& own : memory) {
    std::memcpy(own.data() + 1, values, sizeof(values));
    buffers.push_back({own.data() + 1, 3, DType::kFloat32, cpu(0)});
  }
  ops.all_reduce_in_place(ReduceOp::kSum, buffers);
  EXPECT_TRUE(ops.all_aligned);
  float result[3];
  std::memcpy(result, memory[1].data() + 1, sizeof(result));
  EXPECT_EQ(Floats(result, result + 3), (Floats{2, 4, 6}));
}

TEST(BufferCollectives, UnsupportedReductionsFallBackUnlessStrict) {
  Recorder ops;
  std::vector<Floats> in = {{1, 5}, {4, 2}}, out = {{0}, {0}};
  ops.reduce_scatter(ReduceOp::kMax, buffers_of(in), buffers_of(out));
  EXPECT_EQ(out, (std::vector<Floats>{{4}, {5}}));
  EXPECT_TRUE(ops.calls.empty());
  EXPECT_ERROR(
      ops.reduce_scatter(ReduceOp::kMax, buffers_of(in), buffers_of(out), {.strict = true}),
      kUnimplemented, "recorder", "MAX of float32");
}

TEST(BufferCollectives, InvalidCountsRootsAndMemoryAreRefused) {
  const auto ops = make_op("canonical", 2);
  std::vector<Floats> in = {{1, 2, 3}, {4, 5, 6}}, out = {{0, 0, 0}, {0, 0, 0}}, two = {{0}, {0}};
  const auto inputs = buffers_of(in), outputs = buffers_of(out);
  EXPECT_INVALID(ops->reduce(ReduceOp::kSum, inputs, outputs[0], 2), "root", "0 to 1", "2");
  EXPECT_INVALID(ops->broadcast(inputs, -1), "root", "-1");
  EXPECT_INVALID(ops->all_reduce(ReduceOp::kSum, inputs, buffers_of(two)), "replica 0",
                 "output of 3 elements", "got 1");
  EXPECT_INVALID(ops->all_gather(inputs, outputs), "replica 0", "output of 6 elements", "got 3");
  EXPECT_INVALID(ops->reduce_scatter(ReduceOp::kSum, inputs, buffers_of(two)), "replica 0",
                 "input of 2 elements", "got 3");
  EXPECT_INVALID(ops->all_to_all(inputs, outputs), "multiple of 2", "got 3", "replica 0");
  const std::vector<std::size_t> three = {1, 1, 1};
  EXPECT_INVALID(ops->all_to_all(inputs, outputs, three), "4 counts", "got 3");
  EXPECT_INVALID(ops->all_gather(inputs, std::span(outputs).first(1)),
                 "an output for each of the 2", "got 1");
}

TEST(BufferCollectives, OverlappingMemoryErrorNamesReplicas) {
  const auto ops = make_op("canonical", 2);
  std::vector<Floats> in = {Floats(4), Floats(4)};
  const std::vector<ReplicaBuffer> inputs = buffers_of(in);
  std::vector<ReplicaBuffer> crossed = {inputs[1], inputs[0]};
  EXPECT_INVALID(ops->all_reduce(ReduceOp::kSum, inputs, crossed), "input and output overlap",
                 "input of replica 1", "output of replica 0");
  const std::vector<ReplicaBuffer> same = {inputs[0], inputs[0]};
  EXPECT_INVALID(ops->all_reduce_in_place(ReduceOp::kSum, same), "outputs overlap", "0 and 1");
  // Adjacent halves of a buffer do not count as overlapping.
  std::vector<ReplicaBuffer> halves = {inputs[0], inputs[0]};
  halves[0].count = halves[1].count = 2;
  halves[1].data += 8;
  in[0] = {1, 2, 10, 20};
  ops->all_reduce_in_place(ReduceOp::kSum, halves);
  EXPECT_EQ(in[0], (Floats{11, 22, 11, 22}));
}

TEST(BufferCollectives, DifferentInputAndOutputTypesAreRefused) {
  const auto ops = make_op("canonical", 2);
  std::vector<Floats> in = {{1}, {2}}, out = {{0, 0}, {0, 0}};
  auto inputs = buffers_of(in), outputs = buffers_of(out);
  outputs[1].dtype = DType::kInt32;
  EXPECT_INVALID(ops->all_gather(inputs, outputs), "float32", "int32", "replica 1");
  EXPECT_INVALID(ops->reduce(ReduceOp::kSum, inputs, outputs[1], 0), "float32", "int32");
}

// Tensors.

PerReplica<Tensor> rows(const std::vector<std::vector<float>>& values) {
  std::vector<Tensor> tensors;
  for (std::size_t r = 0; r < values.size(); ++r) {
    const auto n = static_cast<std::int64_t>(values[r].size()) / 2;
    tensors.push_back(Tensor::from<float>({n, 2}, values[r], cpu(static_cast<int>(r))));
  }
  return PerReplica<Tensor>(std::move(tensors));
}

std::vector<double> numbers(const Tensor& tensor) { return tensor.to_doubles(); }

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TensorCommunication, CollectivesAcceptTensorsAndIndexedSlices) {
  expect_on_communicators(3, [&](Communicator& mine) {
    const int rank = mine.rank();
    const auto expect = [](bool holds, const char* what) {
      if (!holds) throw Error(ErrorCode::kInternal, concat(what, ": unexpected result"));
    };
    const float r = static_cast<float>(rank);
    const Tensor sum = all_reduce(mine, ReduceOp::kSum, Tensor::full({2, 2}, r));
    expect(sum.to_doubles() == std::vector<double>(4, 3.0), "all_reduce");
    const Tensor copy = broadcast(mine, Tensor::full({3}, r), 2);
    expect(copy.to_doubles() == std::vector<double>(3, 2.0), "broadcast");
    // Rank r contributes r rows.
    const Tensor rows = all_gather(mine, Tensor::full({rank, 2}, r));
    expect(rows.to_doubles() == std::vector<double>{1, 1, 2, 2, 2, 2}, "all_gather");
    const IndexedSlices slices{Tensor::full({1, 2}, r), Tensor::from<std::int64_t>({1}, {4}),
                               Shape{9, 2}};
    const IndexedSlices mean = all_reduce(mine, ReduceOp::kMean, slices);
    expect(mean.values.to_doubles() ==
               std::vector<double>{0, 0, 1.0f / 3.0f, 1.0f / 3.0f, 2.0f / 3.0f, 2.0f / 3.0f},
           "all_reduce of slices");
    expect(mean.indices.to_doubles() == std::vector<double>{4, 4, 4},
           "indices of all_reduce of slices");
  });
}

TEST(TensorCommunication, InvalidCallByOneRankFailsOnAllRanks) {
  const auto expect_told = [](const std::string& reason, const auto& call) {
    const auto errors =
        errors_of_communicators(2, [&](Communicator& mine) { call(mine, mine.rank() == 1); });
    EXPECT_THAT(errors, Each(HasSubstr(reason)));
    EXPECT_THAT(errors[0], HasSubstr("collective mismatch (arguments)"));
    EXPECT_THAT(errors[1], Not(HasSubstr("mismatch")));
  };
  expect_told("scalars cannot be concatenated", [](Communicator& own, bool wrong) {
    all_gather(own, wrong ? Tensor::zeros(Shape{}) : Tensor::zeros({2}));
  });
  expect_told("expected SUM or MEAN of IndexedSlices, got MAX", [](Communicator& own, bool wrong) {
    const IndexedSlices slices{Tensor::zeros({1, 2}), Tensor::from<std::int64_t>({1}, {4}),
                               Shape{9, 2}};
    all_reduce(own, wrong ? ReduceOp::kMax : ReduceOp::kSum, slices);
  });
}

TEST(TensorCommunication, DifferentShapesFailOnAllRanks) {
  const Communicators all = in_process_communicators(2);
  EXPECT_THAT(errors_of_ranks(2,
                              [&](int rank) {
                                all_reduce(of(all, rank), ReduceOp::kSum,
                                           Tensor::zeros(rank == 0 ? Shape{2, 3} : Shape{3, 2}));
                              }),
              Each(AllOf(HasSubstr("mismatch (shape)"), HasSubstr("[2, 3]"), HasSubstr("[3, 2]"))));
  const Communicators others = in_process_communicators(2);
  EXPECT_THAT(errors_of_ranks(2,
                              [&](int rank) {
                                all_gather(of(others, rank), Tensor::zeros({4, 2 + rank}));
                              }),
              Each(HasSubstr("mismatch (shape)")));
}

using std::chrono::milliseconds;
using testing::in;

TEST(InProcessTransport, SendCompletesWhenMessageIsReceived) {
  const auto ranks = in_process_transports(2);
  std::vector<std::byte> sent(100, std::byte{7}), received(100);
  const auto send = ranks[0]->send(1, 3, {}, sent);
  EXPECT_FALSE(send->test());
  EXPECT_ERROR(send->wait(in(milliseconds(5))), kDeadlineExceeded, "rank 1 did not receive",
               "tag 3", "100 bytes");
  EXPECT_EQ(ranks[0]->stats().bytes_sent, 0u);
  EXPECT_TRUE(ranks[1]->recv(0, 3, {}, received)->test());
  EXPECT_TRUE(send->test());
  EXPECT_EQ(received, sent);
  EXPECT_EQ(ranks[0]->stats().bytes_sent, 100u);
}

TEST(InProcessTransport, UnreceivedSendIsCancelledWhenHandleIsDestroyed) {
  const auto ranks = in_process_transports(2);
  std::vector<std::byte> byte(1, std::byte{1}), received(1);
  ranks[0]->send(1, 0, {}, byte);
  const auto recv = ranks[1]->recv(0, 0, {}, received);
  EXPECT_FALSE(recv->test());
  EXPECT_EQ(ranks[0]->stats().messages_sent, 0u);
  EXPECT_INVALID(in_process_transports(0), "size >= 1", "got 0");
  EXPECT_EQ(in_process_transports(1)[0]->name(), "in_process");
}

TEST(InProcessStore, StoresBinaryValues) {
  InProcessStore store;
  EXPECT_EQ(store.get("a/b"), std::nullopt);
  store.set("a/b", std::string("\0x\xff", 3));
  EXPECT_EQ(store.get("a/b"), std::string("\0x\xff", 3));
  store.set("a/b", "");
  EXPECT_EQ(store.get("a/b"), "");
  EXPECT_EQ(store.wait("a/b", in(milliseconds(0))), "");
}

TEST(InProcessStore, WaitReturnsValueSetByAnotherThread) {
  InProcessStore store;
  const auto setter = Executor::system().start("setter", [&] {
    Clock::system().sleep_for(std::chrono::milliseconds(5));
    store.set("other", "1");
    store.set("address", "x");
  });
  EXPECT_EQ(store.wait("address", in(milliseconds(8000))), "x");
  EXPECT_ERROR(store.wait("missing", in(milliseconds(5))), kDeadlineExceeded, "in-process store",
               "'missing'");
}

TEST(InProcessStore, InvalidKeysAndLargeValuesAreRefused) {
  InProcessStore store;
  for (const std::string& key : {std::string(), std::string(201, 'a'), std::string("two words")}) {
    EXPECT_INVALID(store.set(key, "x"), "the key '", "1 to 200 letters");
    EXPECT_INVALID(store.get(key), "the key '");
    EXPECT_INVALID(store.wait(key, in(milliseconds(0))), "the key '");
  }
  store.set(std::string(200, 'a'), std::string(1 << 20, 'x'));
  EXPECT_INVALID(store.set("k", std::string((1 << 20) + 1, 'x')), "the value of 'k'", "1048576",
                 "1048577");
}

std::vector<std::vector<std::size_t>> packed_tensors(const std::vector<Tensor>& tensors,
                                                     std::int64_t bytes_per_pack) {
  std::vector<std::vector<std::size_t>> lists;
  for (const auto& pack : plan_packs(tensors, bytes_per_pack).packs) lists.push_back(pack.tensors);
  return lists;
}

using Lists = std::vector<std::vector<std::size_t>>;

std::vector<Tensor> floats_of_sizes(const std::vector<std::int64_t>& sizes) {
  std::vector<Tensor> tensors;
  for (const std::int64_t size : sizes) tensors.push_back(Tensor::zeros({size}));
  return tensors;
}

TEST(TensorPacker, StartsNewPackAtByteLimit) {
  const auto tensors = floats_of_sizes({1, 2, 3, 4});  // tensors of 4, 8, 12 and 16 bytes
  EXPECT_EQ(packed_tensors(tensors, 12), (Lists{{3}, {2}, {1, 0}}));
  EXPECT_EQ(packed_tensors(tensors, 13), (Lists{{3}, {2, 1}, {0}}));
  EXPECT_EQ(packed_tensors(tensors, 1000), (Lists{{3, 2, 1, 0}}));
  EXPECT_EQ(packed_tensors(floats_of_sizes({1, 2, 1}), 1), (Lists{{2}, {1}, {0}}));
  EXPECT_EQ(packed_tensors(floats_of_sizes({1, 2, 1}), 4), (Lists{{2}, {1}, {0}}));
  const std::int64_t mebi = 1 << 18;  // number of floats in 1 MiB
  EXPECT_EQ(packed_tensors(floats_of_sizes({1, 2, 3}), 0), (Lists{{2, 1, 0}}));
  EXPECT_EQ(packed_tensors(floats_of_sizes({1, 3 * mebi, 1 * mebi, 5}), 0),
            (Lists{{3, 2, 1}, {0}}));
}

TEST(TensorPacker, StartsNewPackForEachDType) {
  const std::vector<Tensor> tensors = {Tensor::zeros({2}, DType::kInt32), Tensor::zeros({1}),
                                       Tensor::zeros({3}, DType::kInt32), Tensor::zeros({4}),
                                       Tensor::zeros({1}, DType::kBool)};
  const PackPlan plan = plan_packs(tensors, 100);
  ASSERT_EQ(plan.packs.size(), 3u);
  for (const auto& pack : plan.packs) {
    for (const std::size_t t : pack.tensors) EXPECT_EQ(tensors[t].dtype(), pack.dtype);
  }
  EXPECT_EQ(packed_tensors(tensors, 100), (Lists{{3, 1}, {2, 0}, {4}}));
  EXPECT_EQ(plan.packs[1].count, 5u);
  EXPECT_TRUE(plan_packs({}, 0).packs.empty());
}

TEST(TensorPacker, PackAndUnpackRoundTrip) {
  const std::vector<Tensor> tensors = {Tensor::from<float>({2, 2}, {1, 2, 3, 4}),
                                       Tensor::zeros({0, 7}), Tensor(5.0f),
                                       Tensor::from<float>({3}, {6, 7, 8})};
  for (const std::int64_t limit : {1, 16, 1000}) {
    std::vector<Tensor> results(tensors.size());
    for (const auto& next : plan_packs(tensors, limit).packs) {
      const MutableTensor buffer = pack(next, tensors, cpu(2));
      EXPECT_EQ(buffer.device(), cpu(2));
      EXPECT_EQ(static_cast<std::size_t>(buffer.num_elements()), next.count);
      unpack(next, buffer, tensors, results);
    }
    for (std::size_t t = 0; t < tensors.size(); ++t) expect_same_bits(results[t], tensors[t]);
  }
}

using internal::PartLanes;

TEST(PartLanes, EachPartIsAssignedOncePerRound) {
  for (const int parts : {1, 2, 3, 5, 16, 37}) {
    for (const int cores : {1, 2, 3, 64}) {
      PartLanes lanes;
      const int num_lanes = PartLanes::num_lanes(parts, cores);
      for (std::uint64_t round = 1; round <= 5; ++round) {
        std::vector<int> taken(static_cast<std::size_t>(parts));
        for (int part = lanes.take(round, parts, num_lanes); part >= 0;
             part = lanes.take(round, parts, num_lanes)) {
          ASSERT_LT(part, parts);
          ++taken[static_cast<std::size_t>(part)];
        }
        EXPECT_EQ(taken, std::vector<int>(taken.size(), 1))
            << parts << " parts, " << num_lanes << " lanes, round " << round;
      }
    }
  }
}

TEST(PartLanes, ThreadsShareAllPartsOfRound) {
  constexpr int kParts = 400, kThreads = 4;
  PartLanes lanes;
  const int num_lanes = PartLanes::num_lanes(kParts, kThreads);
  std::vector<std::atomic<int>> taken(kParts);
  std::vector<std::unique_ptr<Thread>> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.push_back(Executor::system().start("taker", [&] {
      for (int part = lanes.take(1, kParts, num_lanes); part >= 0;
           part = lanes.take(1, kParts, num_lanes)) {
        ++taken[static_cast<std::size_t>(part)];
      }
    }));
  }
  for (const auto& thread : threads) thread->join();
  for (const std::atomic<int>& count : taken) EXPECT_EQ(count.load(), 1);
}

}  // namespace tutti::buffer_collectives_test
