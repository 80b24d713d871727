// Tests the MPI transport between processes. Each process runs all of these tests, as one rank. The
// transport suite, in contrast, runs with all ranks in one process.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/conformance/transport_suite.h"
#include "tests/mpi/mpi_world.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/transports.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/mpi/mpi_transport.h"

namespace tutti::mpi_processes_test {

using mpi_tests::transport_of_first;
using mpi_tests::world;
using testing::late;
using Bytes = std::vector<std::byte>;

unsigned seed_of(int from, int to, int number) {
  return static_cast<unsigned>(from * 100 + to * 10 + number);
}

class MpiProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_GE(world().size(), 2) << "run test_mpi with mpirun -n 2 or more";
    group_ = transport_of_first(world().size());
  }
  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  std::vector<int> others() const {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) ranks.push_back(r);
    }
    return ranks;
  }
  /// Waits for all other ranks by exchanging messages with tag `tag`.
  void meet(std::uint64_t tag) {
    std::vector<std::unique_ptr<Work>> works;
    for (const int peer : others()) {
      works.push_back(group_->recv(peer, tag, {}, {}));
      works.push_back(group_->send(peer, tag, {}, {}));
    }
    for (const auto& work : works) work->wait(late());
  }

  testing::HangWatchdog watchdog_{"MPI processes", std::chrono::seconds(60)};
  std::shared_ptr<Transport> group_;
};

TEST_F(MpiProcesses, AllPairsExchangeMessagesConcurrently) {
  // Some lengths are below the eager limit, others above it, and the longest need several chunks.
  const std::vector<std::size_t> lengths{0,         1,         4096,      16 << 10, (16 << 10) + 1,
                                         256 << 10, 1'500'001, 5'000'000, 17};
  const Bytes head = pattern_of(8, 1);
  std::vector<Bytes> kept;
  kept.reserve(2 * lengths.size() * others().size());
  std::vector<std::unique_ptr<Work>> works;
  std::vector<std::pair<const Bytes*, unsigned>> received;
  for (const int peer : others()) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const int number = static_cast<int>(i);
      const Bytes& out = kept.emplace_back(pattern_of(lengths[i], seed_of(rank(), peer, number)));
      works.push_back(group_->send(peer, 5, head, out));
    }
  }
  std::vector<Bytes> heads(lengths.size() * others().size(), Bytes(8));
  std::size_t next_head = 0;
  for (const int peer : others()) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      Bytes& in = kept.emplace_back(lengths[i]);
      received.emplace_back(&in, seed_of(peer, rank(), static_cast<int>(i)));
      works.push_back(group_->recv(peer, 5, heads[next_head++], in));
    }
  }
  for (const auto& work : works) work->wait(late());
  for (const auto& [bytes, seed] : received) EXPECT_TRUE(*bytes == pattern_of(bytes->size(), seed));
  for (const Bytes& got : heads) EXPECT_EQ(got, head);
}

TEST_F(MpiProcesses, CancellationPreservesOrderOfOtherMessages) {
  const int next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
  for (int round = 0; round < 20; ++round) {
    Bytes never(2'000'000), got(2'000'000);
    group_->recv(previous, 3, {}, never);  // this receive is cancelled immediately
    const auto recv = group_->recv(previous, 3, {}, got);
    meet(9);  // prevents the abandoned send from matching the cancelled receive
    {
      const Bytes given_up = pattern_of(2'000'000, 77);
      const auto send = group_->send(next, 3, {}, given_up);
      for (int i = 0; i < round; ++i) send->test();  // each round abandons the send slightly later
    }
    const Bytes body = pattern_of(2'000'000, seed_of(rank(), next, round));
    const auto send = group_->send(next, 3, {}, body);
    recv->wait(late());
    if (got == pattern_of(2'000'000, 77)) {  // the message was sent before the send was abandoned
      group_->recv(previous, 3, {}, got)->wait(late());
    }
    EXPECT_TRUE(got == pattern_of(2'000'000, seed_of(previous, rank(), round)));
    EXPECT_TRUE(never == Bytes(2'000'000));
    send->wait(late());
    meet(4);
  }
}

TEST_F(MpiProcesses, DisconnectedRankIsReportedAfterItsLastMessage) {
  Bytes bytes(1000);
  if (rank() == size() - 1) {
    const Bytes body = pattern_of(1000, 5);
    for (const int peer : others()) group_->send(peer, 4, {}, body)->wait(late());
    group_.reset();
    return;
  }
  const int last = size() - 1;
  group_->recv(last, 4, {}, bytes)->wait(late());
  EXPECT_EQ(bytes, pattern_of(1000, 5));
  EXPECT_ERROR(group_->recv(last, 4, {}, bytes)->wait(late()), kUnavailable, concat("rank ", last));
}

TEST_F(MpiProcesses, RanksMayBeReordered) {
  std::vector<int> reversed = mpi_tests::first_processes(size());
  std::ranges::reverse(reversed);
  const auto other = mpi_transport({.processes = reversed, .timeout = std::chrono::seconds(60)});
  EXPECT_EQ(other->rank(), size() - 1 - rank());
  std::vector<int> values{other->rank()};
  std::vector<int> sums(1);
  make_communicator(other, {})->all_reduce(ReduceOp::kSum, std::span<const int>(values),
                                           std::span<int>(sums));
  EXPECT_EQ(sums[0], size() * (size() - 1) / 2);
}

TEST_F(MpiProcesses, ConnectTimeoutNamesMissingRank) {
  if (rank() == size() - 1) return;
  EXPECT_ERROR(mpi_transport({.name = "incomplete", .timeout = std::chrono::milliseconds(100)}),
               kDeadlineExceeded, concat("rank ", size() - 1), "MPI process");
}

TEST_F(MpiProcesses, InvalidArgumentsAreRefused) {
  EXPECT_INVALID(mpi_transport({.processes = {99}}), "rank 0", "99");
  EXPECT_INVALID(mpi_transport({.processes = {rank(), rank()}}), "MpiOptions::rank");
  EXPECT_INVALID(mpi_transport({.processes = {rank(), rank()}, .rank = 5}), "got 5");
  EXPECT_TRUE(is_started_by_mpi());
  EXPECT_NE(mpi_library(), "");
}

}  // namespace tutti::mpi_processes_test

namespace tutti::transport_suite {

// Messages go through MPI even if sender and receiver are the same process; each process of the job
// runs the suite separately.
struct MpiGroups {
  static Group make(int size) {
    const int process = mpi_tests::world().rank();
    Group group(static_cast<std::size_t>(size));
    require_on_ranks(size, [&](int rank) {
      group[static_cast<std::size_t>(rank)] =
          mpi_transport({.processes = std::vector<int>(group.size(), process), .rank = rank});
    });
    return group;
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, TransportSuite, MpiGroups);

}  // namespace tutti::transport_suite
