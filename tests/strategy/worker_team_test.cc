// Tests where the sums of gradients of several workers are stored.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/multi_worker/worker_team.h"

#include <gtest/gtest.h>

#include "cross_device_ops/shared/host_memory.h"
#include "tests/support/ranks.h"
#include "tests/support/transports.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {
namespace worker_team_test {

using internal::WorkerTeam;

constexpr std::size_t kCount = 1'000'000;

Elements elements_of(MutableTensor& tensor) {
  return {tensor.data(), static_cast<std::size_t>(tensor.num_elements()), tensor.dtype()};
}

/// Workers of two replicas and of one add ones in the team's partial sums. Returns whether each
/// worker's buffers were in shared memory.
std::vector<bool> sum_of_two_workers(std::size_t place_bytes) {
  InProcessStore store;
  std::vector<char> lay_there(2);
  const std::string error = error_of_ranks(2, [&](int rank) {
    const auto transport = connect_by_memory(rank, 2, store, {.place_bytes = place_bytes});
    WorkerTeam team(make_communicator(transport),
                    {.devices = std::vector<Device>(rank == 0 ? 2 : 1)});
    std::vector<MutableTensor> buffers;
    std::vector<Elements> partials;
    for (const CanonicalNode& node : team.sums().nodes()) {
      MutableTensor& sum = buffers.emplace_back(team.sums().make_buffer(kCount, DType::kFloat32));
      std::ranges::fill(sum.span<float>(), static_cast<float>(node.count));
    }
    for (MutableTensor& sum : buffers) partials.push_back(elements_of(sum));
    team.sums().start_all_reduce(partials, {.name = "ones"}).wait();
    const std::vector<float> expected(kCount, 3.0f);
    const auto sum = buffers[0].span<float>();
    EXPECT_TRUE(std::ranges::equal(sum, expected)) << "worker " << rank;
    lay_there[static_cast<std::size_t>(rank)] =
        transport->host_memory()->offset_of(buffers[0].data(), buffers[0].num_bytes()).has_value();
  });
  EXPECT_EQ(error, "");
  return {lay_there.begin(), lay_there.end()};
}

TEST(WorkerTeam, PartialSumsLieInMemoryThatTheWorkersShare) {
  EXPECT_EQ(sum_of_two_workers(std::size_t{1} << 30), (std::vector<bool>{true, true}));
}

TEST(WorkerTeam, WithoutRoomThereTheyLieElsewhereAndTheSumIsTheSame) {
  EXPECT_EQ(sum_of_two_workers(std::size_t{4} << 20), (std::vector<bool>{false, false}));
}

}  // namespace worker_team_test
}  // namespace tutti
