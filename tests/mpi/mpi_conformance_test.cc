// Tests the cross-device operation "mpi" between processes, with some of the conformance cases.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "testing/cross_device_ops/problem.h"
#include "tests/mpi/mpi_world.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/mismatched_calls.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"

namespace tutti::mpi_conformance_test {

using conformance::Case;
using conformance::Check;
using conformance::Problem;
using mpi_tests::transport_of_first;
using mpi_tests::world;
using testing::expect_error;

std::unique_ptr<Communicator> communicator_of(std::shared_ptr<Transport> transport,
                                              const std::string& algorithm,
                                              Duration timeout = std::chrono::seconds(60)) {
  const Group group{.world_size = transport->size(),
                    .first_rank = transport->rank(),
                    .local_devices = {Device{}},
                    .transport = transport};
  return make_communicator(group, {.algorithm = algorithm, .timeout = timeout});
}

/// Communicators of the job's first processes: one under test, and one that collects the results.
struct Ranks {
  std::unique_ptr<Communicator> tested;
  std::unique_ptr<Communicator> collector;
};

Ranks& ranks_of_first(std::map<int, Ranks>& all, int size) {
  Ranks& ranks = all[size];
  if (!ranks.tested) {
    ranks.tested = communicator_of(transport_of_first(size), "mpi");
    ranks.collector = communicator_of(transport_of_first(size, "collector"), "canonical");
  }
  return ranks;
}

/// Copies the outputs of all ranks to this process.
void collect(Communicator& collector, const Problem& problem) {
  for (int r = 0; r < problem.of().world; ++r) {
    const ReplicaBuffer output = problem.call(r).output;
    collector.broadcast(Elements(output.data, output.num_bytes(), DType::kUInt8), r);
  }
}

bool has_equal_output(const Problem& a, const Problem& b, int rank) {
  const ReplicaBuffer left = a.call(rank).output, right = b.call(rank).output;
  return left.num_bytes() == 0 || std::memcmp(left.data, right.data, left.num_bytes()) == 0;
}

std::string bits_that_differ(const Problem& problem) {
  if (problem.of().collective != Collective::kAllReduce) return {};
  const ReplicaBuffer first = problem.call(0).output;
  for (int r = 1; r < problem.of().world; ++r) {
    if (first.num_bytes() > 0 &&
        std::memcmp(first.data, problem.call(r).output.data, first.num_bytes()) != 0) {
      return concat("the output of rank ", r, " differs from that of rank 0");
    }
  }
  return {};
}

/// Returns sampled conformance cases for at most `num_processes` ranks. Error cases are excluded,
/// because other tests cover them.
std::vector<Case> sample_for(int num_processes) {
  std::vector<Case> chosen;
  std::set<std::string> ids;
  for (Case c : conformance::cases(
           {.shapes = {conformance::GroupShape::kSpread}, .seed = 7, .sample = 60})) {
    const bool gives_values = c.check == Check::kValues || c.check == Check::kSpecialValues ||
                              c.check == Check::kRepeated || c.check == Check::kHandles;
    if (!gives_values || c.world == 1) continue;
    c.world = std::min(c.world, num_processes);
    if (has_root(c.collective)) c.variant %= c.world;
    if (ids.insert(c.id()).second) chosen.push_back(c);
  }
  return chosen;
}

class MpiConformance : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_GE(world().size(), 2) << "run test_mpi with mpirun -n 2 or more"; }
  /// Waits for all processes, over a group that is never aborted.
  void meet() {
    if (!meeting_) {
      meeting_ = communicator_of(transport_of_first(world().size(), "meeting"), "canonical");
    }
    meeting_->barrier();
  }
  std::unique_ptr<Communicator> meeting_;
  testing::HangWatchdog watchdog_{"conformance of mpi", std::chrono::seconds(200)};
};

TEST_F(MpiConformance, SampledCasesAreCorrectAndBitIdenticalOnAllRanks) {
  std::map<int, Ranks> all;
  std::set<std::string> seen;
  int calls = 0;
  for (const Case& c : sample_for(world().size())) {
    if (world().rank() >= c.world) continue;
    Ranks& ranks = ranks_of_first(all, c.world);
    const Problem problem(c), again(c);
    for (const Problem* each : {&problem, &again}) {
      if (c.check == Check::kHandles && c.collective != Collective::kBarrier &&
          (c.collective != Collective::kAllReduce || c.in_place)) {
        start(*ranks.tested, each->call(world().rank())).wait();
      } else {
        call(*ranks.tested, each->call(world().rank()));
      }
    }
    ASSERT_TRUE(has_equal_output(problem, again, world().rank())) << c.id();
    collect(*ranks.collector, problem);
    ASSERT_EQ(problem.check(ranks.tested->determinism()), "") << c.id();
    ASSERT_EQ(bits_that_differ(problem), "") << c.id();
    seen.insert(concat(to_string(c.collective), " ", c.dtype));
    ++calls;
  }
  if (world().rank() < 2) {
    EXPECT_GT(calls, 15);
    EXPECT_GT(seen.size(), 10u);  // pairs of a collective and a type
  }
}

TEST_F(MpiConformance, SupportsBufferListsSubgroupsAndMeans) {
  const auto all = communicator_of(transport_of_first(world().size()), "mpi");
  EXPECT_EQ(all->name(), "mpi");
  EXPECT_EQ(all->determinism(), Determinism::kRunToRun);
  const int rank = all->rank(), size = all->size();
  std::vector<float> values(100);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i) * static_cast<float>(rank + 1);
  }
  const std::vector<Elements> list{std::span(values).first(10), std::span(values).subspan(10)};
  all->all_reduce(ReduceOp::kMean, list);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i], static_cast<float>(i) * static_cast<float>(size + 1) / 2.0f);
  }
  // The group of even ranks and the group of odd ranks run concurrently.
  std::vector<int> members;
  for (int r = rank % 2; r < size; r += 2) members.push_back(r);
  const auto part = all->group(members);
  std::vector<std::int64_t> sum{rank};
  part->all_reduce(ReduceOp::kSum, std::span(sum));
  EXPECT_EQ(sum[0], std::accumulate(members.begin(), members.end(), 0));
  all->barrier();
}

// With 4 ranks and at least 64 KiB, Open MPI uses different algorithms for in-place and
// out-of-place calls, whose messages do not match. tutti makes every MPI call in place.
TEST_F(MpiConformance, InPlaceAndOutOfPlaceCallsMayBeMixed) {
  const auto all = communicator_of(transport_of_first(world().size()), "mpi");
  const int size = all->size(), rank = all->rank();
  for (const int odd_one : {0, size - 1}) {
    std::vector<float> input(300'000, static_cast<float>(rank + 1)), output(input.size());
    if (rank == odd_one) {
      all->all_reduce(ReduceOp::kSum, std::span<const float>(input), std::span<float>(output));
    } else {
      output = input;
      all->all_reduce(ReduceOp::kSum, std::span(output));
    }
    EXPECT_EQ(output, std::vector<float>(output.size(), static_cast<float>(size * (size + 1) / 2)));
  }
}

TEST_F(MpiConformance, MismatchErrorNamesBothCalls) {
  mismatched_calls::expect_errors_on_every_rank(
      [](const std::string& name) { return mpi_transport({.name = name}); });
}

TEST_F(MpiConformance, TimeoutNamesAbsentRank) {
  const auto all =
      communicator_of(transport_of_first(world().size()), "mpi", std::chrono::milliseconds(300));
  const int last = all->size() - 1;
  std::vector<float> values(1000);
  const auto call = [&] { all->all_reduce(ReduceOp::kSum, std::span(values)); };
  if (all->rank() == last) {
    meet();
    EXPECT_THROW(call(), Error);
    return;
  }
  expect_error(ErrorCode::kDeadlineExceeded, {concat("rank ", last), "did not join"}, call);
  // Every later call fails, too.
  expect_error(ErrorCode::kDeadlineExceeded, {concat("rank ", last)}, call);
  meet();
}

// After an abort, MPI must not access memory that the caller may reuse, and MPI must remain usable.
TEST_F(MpiConformance, AbortDuringTransferKeepsMpiUsable) {
  for (int round = 0; round < 3; ++round) {
    const auto all = communicator_of(transport_of_first(world().size()), "mpi");
    meet();  // no rank may abort while another rank connects
    const auto aborting = Executor::system().start("abort", [&] {
      Clock::system().sleep_for(std::chrono::milliseconds(5 * round + 1));
      if (all->rank() == 0) all->abort(Error(ErrorCode::kInternal, "enough"));
    });
    try {
      for (int i = 0; i < 50; ++i) {
        std::vector<float> values(2'000'000, 1);
        all->all_reduce(ReduceOp::kSum, std::span(values));
        ASSERT_EQ(values[1'234'567], static_cast<float>(all->size()));
      }
      ADD_FAILURE() << "expected the abort to end the calls";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
      EXPECT_NE(error.message().find("enough"), std::string::npos) << error.what();
    }
  }
}

TEST_F(MpiConformance, DuplicateProcessInGroupIsRefused) {
  const int process = world().rank();
  const auto other = Executor::system().start("other", [&] {
    const auto transport = mpi_transport({.processes = {process, process}, .rank = 1});
    EXPECT_THROW(communicator_of(transport, "mpi"), Error);
  });
  const auto transport = mpi_transport({.processes = {process, process}, .rank = 0});
  EXPECT_ERROR(communicator_of(transport, "mpi"), kUnimplemented, "ranks 0 and 1",
               concat("MPI process ", process));
}

}  // namespace tutti::mpi_conformance_test
