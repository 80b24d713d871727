// Tests communicators whose cross-device operation spans processes: headers are sent as messages,
// and the operation moves the data.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>

#include "cross_device_ops/in_process/in_process_transport.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::ops_engine_test {
using testing::expect_error;
using Floats = std::vector<float>;

std::string plugin(const std::string& kind) {
  return load_cross_device_ops_plugin(TUTTI_TEST_PLUGINS "/" + kind + ".so");
}

Floats iota(std::size_t count, int first) {
  Floats values(count);
  std::iota(values.begin(), values.end(), static_cast<float>(first));
  return values;
}

/// Runs body(communicator) on a thread per rank; the ranks share a key-value store and a transport.
void run_ranks(int size, const CommunicatorOptions& options,
               const std::function<void(Communicator&)>& body) {
  const auto store = std::make_shared<InProcessStore>();
  store->set("call/1/0", "stale value of an earlier run");
  const auto transports = in_process_transports(size);
  std::vector<std::unique_ptr<Thread>> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.push_back(Executor::system().start("rank", [&, rank] {
      const Group group{size, rank, {Device{}}, store, transports[static_cast<std::size_t>(rank)]};
      try {
        const auto communicator = make_communicator(group, options);
        body(*communicator);
      } catch (const Error& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    }));
  }
}

void expect_all_collectives(Communicator& ranks) {
  const int me = ranks.rank(), size = ranks.size();
  const auto n = static_cast<std::size_t>(size);
  const float sum_of_ranks = static_cast<float>(size * (size - 1) / 2);
  Floats values(5, static_cast<float>(me));
  ranks.all_reduce(ReduceOp::kSum, std::span(values));
  EXPECT_EQ(values, Floats(5, sum_of_ranks));
  ranks.all_reduce(ReduceOp::kMean, std::span(values));
  EXPECT_EQ(values, Floats(5, sum_of_ranks));
  Floats small(1, 1), empty, large(1000, 2);
  const Elements list[] = {std::span(small), std::span(empty), std::span(large)};
  ranks.all_reduce(ReduceOp::kSum, list);
  EXPECT_EQ(small[0], static_cast<float>(size));
  EXPECT_EQ(large, Floats(1000, static_cast<float>(2 * size)));
  // The operation under test supports neither float64 nor MAX.
  std::vector<double> doubles(3, me);
  ranks.all_reduce(ReduceOp::kMax, std::span(doubles));
  EXPECT_EQ(doubles, std::vector<double>(3, size - 1));

  const Floats input(4, 1);
  Floats output(4);
  ranks.reduce(ReduceOp::kSum, std::span(input), std::span(output), size - 1);
  EXPECT_EQ(output, Floats(4, me == size - 1 ? static_cast<float>(size) : 0));
  Floats copies = iota(3, 10 * me);
  ranks.broadcast(std::span(copies), size - 1);
  EXPECT_EQ(copies, iota(3, 10 * (size - 1)));

  std::vector<std::size_t> counts(n, 1);
  counts[0] = 3;
  const Floats part(counts[static_cast<std::size_t>(me)], static_cast<float>(me));
  Floats all(n + 2);
  ranks.all_gather(std::span(part), std::span(all), counts);
  Floats expected(3, 0);
  for (int r = 1; r < size; ++r) expected.push_back(static_cast<float>(r));
  EXPECT_EQ(all, expected);
  // Rank 0 contributes nothing, and the output is unaligned.
  std::vector<std::size_t> few(n, 1);
  few[0] = 0;
  std::vector<std::byte> raw(4 * n + 1);
  const float mine = static_cast<float>(me);
  ranks.all_gather({reinterpret_cast<const std::byte*>(&mine), few[static_cast<std::size_t>(me)],
                    DType::kFloat32},
                   {raw.data() + 1, n - 1, DType::kFloat32}, few);
  for (std::size_t r = 1; r < n; ++r) {
    float value = 0;
    std::memcpy(&value, raw.data() + 1 + 4 * (r - 1), 4);
    EXPECT_EQ(value, static_cast<float>(r));
  }
  Floats own(counts[static_cast<std::size_t>(me)]);
  const Floats whole = iota(n + 2, 0);
  ranks.reduce_scatter(ReduceOp::kSum, std::span(whole), std::span(own), counts);
  EXPECT_EQ(own[0], me == 0 ? 0 : static_cast<float>(size * (me + 2)));
  Floats exchanged(n);
  const Floats to_each(n, static_cast<float>(me));
  ranks.all_to_all(std::span(to_each), std::span(exchanged));
  EXPECT_EQ(exchanged, iota(n, 0));
  ranks.barrier();
}

TEST(OpsEngine, AllCollectivesWorkWithFullAndMinimalOperations) {
  for (const char* kind : {"store", "store_all_reduce"}) {
    const std::string name = plugin(kind);
    for (const int size : {1, 2, 3}) {
      SCOPED_TRACE(concat(kind, " ", size));
      run_ranks(size, {.algorithm = name}, [&](Communicator& ranks) {
        EXPECT_EQ(ranks.name(), name);
        EXPECT_EQ(ranks.determinism(), Determinism::kRunToRun);
        expect_all_collectives(ranks);
      });
    }
  }
}

TEST(OpsEngine, MismatchIsDetectedBeforeOperationIsCalled) {
  run_ranks(3, {.algorithm = plugin("store")}, [](Communicator& ranks) {
    Floats values(ranks.rank() == 1 ? 4 : 5);
    EXPECT_INVALID(ranks.all_reduce(ReduceOp::kSum, std::span(values)),
                   "collective mismatch (count)", "rank 1");
  });
}

TEST(OpsEngine, AbortOnOneRankEndsOperationOnAllRanks) {
  run_ranks(3, {.algorithm = plugin("store")}, [](Communicator& ranks) {
    Floats values(5, 1);
    ranks.all_reduce(ReduceOp::kSum, std::span(values));
    // Rank 0 aborts after all ranks have their first sum; the other ranks may already be in the
    // second call.
    expect_error(ErrorCode::kAborted, {"the disk is full"}, [&] {
      ranks.barrier();
      if (ranks.rank() == 0) ranks.abort(Error(ErrorCode::kInternal, "the disk is full"));
      ranks.all_reduce(ReduceOp::kSum, std::span(values));
    });
  });
}

TEST(OpsEngine, EachSubgroupHasItsOwnOperation) {
  run_ranks(4, {.algorithm = plugin("store")}, [](Communicator& ranks) {
    const int first = ranks.rank() / 2 * 2;
    const std::vector<int> members{first, first + 1};
    const auto pair = ranks.group(members);
    ASSERT_TRUE(pair);
    Floats values(2, static_cast<float>(ranks.rank()));
    pair->all_reduce(ReduceOp::kSum, std::span(values));
    EXPECT_EQ(values, Floats(2, static_cast<float>(2 * first + 1)));
    ranks.all_reduce(ReduceOp::kSum, std::span(values));
    EXPECT_EQ(values, Floats(2, 12));
  });
}

TEST(OpsEngine, RefusesSingleProcessOperationsAndMissingTransport) {
  run_ranks(2, {}, [](Communicator&) {});
  const std::string good = plugin("good");
  const auto transports = in_process_transports(2);
  const auto store = std::make_shared<InProcessStore>();
  const auto peer = Executor::system().start("rank-1", [&] {
    EXPECT_ERROR(
        make_communicator(Group{2, 1, {Device{}}, store, transports[1]}, {.algorithm = good}),
        kUnimplemented, good, "within one process");
  });
  EXPECT_ERROR(
      make_communicator(Group{2, 0, {Device{}}, store, transports[0]}, {.algorithm = good}),
      kUnimplemented, good, "within one process");
  EXPECT_INVALID(make_communicator(Group{2, 0, {Device{}}, store}, {.algorithm = good}),
                 "Group::transport");
  EXPECT_INVALID(
      make_communicator(Group{2, 1, {Device{}}, store, transports[0]}, {.algorithm = good}),
      "one local device", "rank 1 of 2");
  EXPECT_ERROR(
      make_communicator(Group{2, 0, {Device{}}, store, transports[0]}, {.algorithm = "nonsense"}),
      kNotFound, "'nonsense'");
}

/// Operation that sums in rank order by sending messages over the group's transport, and records
/// its calls.
class MessageSum final : public CrossDeviceOps {
 public:
  struct Seen {
    Mutex mutex;
    std::vector<std::pair<std::uint64_t, std::string>> buffers;  // recorded on rank 0
  };

  MessageSum(const Group& group, Seen& seen) : transport_(group.transport), seen_(seen) {
    EXPECT_EQ(transport_->size(), group.world_size);
    EXPECT_EQ(transport_->rank(), group.first_rank);
  }
  std::string_view name() const override { return "message_sum"; }
  bool supports(ReduceOp op, DType dtype, DeviceType) const override {
    return op == ReduceOp::kSum && dtype == DType::kFloat32;
  }
  Determinism determinism() const override { return Determinism::kRunToRun; }
  bool spans_processes() const override { return true; }
  double max_relative_error() const override { return 0.125; }

 protected:
  void all_reduce_buffers(ReduceOp, std::span<const ReplicaBuffer> buffers) override {
    const ReplicaBuffer& own = buffers[0];
    if (transport_->rank() == 0) {
      MutexLock lock(seen_.mutex);
      seen_.buffers.emplace_back(own.id, own.name);
    }
    // The headers' messages use the same tags, but must not be confused with the operation's
    // messages.
    constexpr std::uint64_t kTag = 0;
    const auto ranks = static_cast<std::size_t>(transport_->size());
    std::vector<Floats> values(ranks, Floats(own.count));
    std::ranges::copy(own.as<float>(),
                      values[static_cast<std::size_t>(transport_->rank())].begin());
    std::vector<std::unique_ptr<Work>> works;
    for (int peer = 0; peer < transport_->size(); ++peer) {
      if (peer == transport_->rank()) continue;
      works.push_back(transport_->send(peer, kTag, {}, {own.data, own.num_bytes()}));
      works.push_back(transport_->recv(
          peer, kTag, {},
          std::as_writable_bytes(std::span(values[static_cast<std::size_t>(peer)]))));
    }
    const TimePoint deadline = deadline_after(Clock::system().now(), std::chrono::seconds(20));
    for (const auto& work : works) work->wait(deadline);
    for (std::size_t i = 0; i < own.count; ++i) {
      float sum = 0;
      for (const Floats& of_rank : values) sum += of_rank[i];
      own.as<float>()[i] = sum;
    }
  }

 private:
  const std::shared_ptr<Transport> transport_;
  Seen& seen_;
};

MessageSum::Seen& message_sum() {
  static MessageSum::Seen seen;
  static const bool once = [] {
    register_cross_device_ops("message_sum", [](const Group& group, const CommunicationOptions&) {
      return std::make_unique<MessageSum>(group, seen);
    });
    return true;
  }();
  EXPECT_TRUE(once);
  MutexLock lock(seen.mutex);
  seen.buffers.clear();
  return seen;
}

TEST(OpsEngine, CppOperationUsesGroupTransport) {
  message_sum();
  for (const int size : {1, 2, 3}) {
    run_ranks(size, {.algorithm = "message_sum"}, [&](Communicator& ranks) {
      EXPECT_EQ(ranks.max_relative_error(), 0.125);
      expect_all_collectives(ranks);
    });
  }
}

TEST(OpsEngine, SubgroupOperationSeesOnlyItsOwnRanks) {
  message_sum();
  run_ranks(4, {.algorithm = "message_sum"}, [](Communicator& ranks) {
    const int first = ranks.rank() % 2;
    const auto pair = ranks.group({first, first + 2});
    Floats values(2, static_cast<float>(ranks.rank()));
    pair->all_reduce(ReduceOp::kSum, std::span(values));
    EXPECT_EQ(values, Floats(2, static_cast<float>(2 * first + 2)));
    ranks.all_reduce(ReduceOp::kSum, std::span(values));
    EXPECT_EQ(values, Floats(2, 12));
  });
}

TEST(OpsEngine, AbortEndsOperationThatWaitsForMessage) {
  message_sum();
  run_ranks(2, {.algorithm = "message_sum"}, [](Communicator& ranks) {
    Floats values(5, 1);
    expect_error(ErrorCode::kAborted, {"the disk is full"}, [&] {
      if (ranks.rank() == 0) ranks.abort(Error(ErrorCode::kInternal, "the disk is full"));
      ranks.all_reduce(ReduceOp::kSum, std::span(values));
    });
  });
}

TEST(OpsEngine, BuffersHaveIdAndNameOfCall) {
  MessageSum::Seen& seen = message_sum();
  run_ranks(2, {.algorithm = "message_sum"}, [](Communicator& ranks) {
    Floats values(5, 1);
    for (const char* const name : {"a", "b", "a", ""}) {
      ranks.all_reduce(ReduceOp::kSum, std::span(values), {.name = name});
    }
    ranks.all_reduce(ReduceOp::kSum, std::span(values), {.name = "a", .id = 7});
  });
  MutexLock lock(seen.mutex);
  ASSERT_EQ(seen.buffers.size(), 5u);
  EXPECT_EQ(seen.buffers[0].second, "a");
  EXPECT_EQ(seen.buffers[2], seen.buffers[0]);
  EXPECT_NE(seen.buffers[1].first, seen.buffers[0].first);
  EXPECT_NE(seen.buffers[0].first, 0u);
  EXPECT_EQ(seen.buffers[3], (std::pair<std::uint64_t, std::string>(0, "")));
  EXPECT_EQ(seen.buffers[4], (std::pair<std::uint64_t, std::string>(7, "a")));
}

TEST(OpsEngine, OutOfRangeTagsAndPeersAreRefused) {
  static std::shared_ptr<Transport> of_rank_0;
  register_cross_device_ops("keeps_transport", [](const Group& group, const CommunicationOptions&) {
    if (group.first_rank == 0) of_rank_0 = group.transport;
    return std::make_unique<MessageSum>(group, message_sum());
  });
  run_ranks(2, {.algorithm = "keeps_transport"}, [](Communicator& ranks) {
    if (ranks.rank() == 0) {
      EXPECT_INVALID(of_rank_0->send(1, kLargestOperationTag + 1, {}, {}), "a tag from 0 to 32767");
      EXPECT_INVALID(of_rank_0->send(2, 0, {}, {}), "a peer other than this rank, from 0 to 1",
                     "got rank 2");
      EXPECT_INVALID(of_rank_0->recv(0, 0, {}, {}), "a peer other than this rank");
    }
    ranks.barrier();
  });
  of_rank_0.reset();
}

}  // namespace tutti::ops_engine_test
