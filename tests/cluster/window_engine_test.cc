// Tests shared-memory collectives between processes, and large pages of shared memory.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <sys/mman.h>
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/net/socket.h"
#include "cross_device_ops/shared/host_memory.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/transports.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti::window_engine_test {
using namespace std::chrono_literals;

/// Memory in which ranks allocate their buffers; kMixed is shared memory on rank 0 only.
enum class Memory { kPrivate, kShared, kMixed };

std::vector<std::shared_ptr<Transport>> transports(int size, ConnectOptions options = {}) {
  options.way = ConnectOptions::Way::kSharedMemory;
  return connected_ranks(size, options);
}

BufferRef buffer(Transport* transport, std::size_t bytes, Memory memory, int rank) {
  const bool shared = memory == Memory::kShared || (memory == Memory::kMixed && rank == 0);
  if (transport == nullptr || !shared) return BufferRef::allocate(std::max<std::size_t>(bytes, 1));
  return allocator_in(transport->host_memory())->allocate(std::max<std::size_t>(bytes, 1));
}

void fill(std::byte* data, std::size_t count, int rank, int step) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value =
        0.1f * static_cast<float>((i * 7 + static_cast<std::size_t>(rank * 13 + step)) % 1009);
    std::memcpy(data + 4 * i, &value, 4);
  }
}

/// Runs all collectives on one rank, including those on lists of buffers; returns the bytes of all
/// results.
std::vector<std::byte> results_of(Communicator& mine, Transport* transport, Memory memory) {
  const int rank = mine.rank(), size = mine.size();
  const auto n = static_cast<std::size_t>(size), r = static_cast<std::size_t>(rank);
  std::vector<std::byte> all;
  int step = 0;
  const auto keep = [&](const BufferRef& data, std::size_t count) {
    all.insert(all.end(), data->data(), data->data() + 4 * count);
  };
  const auto floats = [&](const BufferRef& data, std::size_t count) {
    return Elements(data->data(), count, DType::kFloat32);
  };
  for (const std::size_t count : {0u, 1u, 1000u, 30'011u}) {
    const BufferRef data = buffer(transport, 4 * count, memory, rank);
    fill(data->data(), count, rank, ++step);
    mine.all_reduce(ReduceOp::kSum, floats(data, count));
    keep(data, count);
    const BufferRef second = buffer(transport, 4 * (count / 3), memory, rank);
    fill(data->data(), count, rank, ++step);
    fill(second->data(), count / 3, rank, ++step);
    const Elements list[] = {floats(data, count), floats(second, count / 3)};
    mine.all_reduce(ReduceOp::kMax, list);
    keep(data, count);
    keep(second, count / 3);
    const BufferRef output = buffer(transport, 4 * count * n, memory, rank);
    fill(data->data(), count, rank, ++step);
    std::fill_n(output->data(), 4 * count * n, std::byte{0});
    mine.all_reduce(ReduceOp::kMean, ConstElements(floats(data, count)), floats(output, count));
    keep(output, count);
    mine.reduce(ReduceOp::kSum, floats(data, count), floats(output, count), size - 1);
    if (rank == size - 1) keep(output, count);
    mine.all_gather(floats(data, count), floats(output, count * n));
    keep(output, count * n);
    const BufferRef wide = buffer(transport, 4 * count * n, memory, rank);
    fill(wide->data(), count * n, rank, ++step);
    mine.reduce_scatter(ReduceOp::kSum, floats(wide, count * n), floats(data, count));
    keep(data, count);
    mine.all_to_all(floats(wide, count * n), floats(output, count * n));
    keep(output, count * n);
    fill(data->data(), count, rank, ++step);
    mine.broadcast(floats(data, count), 1 % size);
    keep(data, count);
    // Ranks contribute different lengths, one of which is 0.
    std::vector<std::size_t> counts(n, count);
    counts[0] = 0;
    mine.all_gather(floats(data, counts[r]), floats(output, count * (n - 1)), counts);
    keep(output, count * (n - 1));
    mine.barrier();
  }
  return all;
}

using Sums = std::vector<std::vector<std::byte>>;

Sums expected(int size) {
  auto communicators = in_process_communicators(size);
  Sums sums(communicators.size());
  expect_on_ranks(size, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    sums[r] = results_of(*communicators[r], nullptr, Memory::kPrivate);
  });
  return sums;
}

TEST(WindowEngine, ResultsAreBitIdenticalToOneProcess) {
  for (const int size : {2, 3, 5}) {
    const Sums sums = expected(size);
    for (const Memory memory : {Memory::kPrivate, Memory::kShared, Memory::kMixed}) {
      const auto group = transports(size);
      EXPECT_EQ(error_of_ranks(size,
                               [&](int rank) {
                                 const auto r = static_cast<std::size_t>(rank);
                                 const auto mine = make_communicator(group[r], {});
                                 const auto got = results_of(*mine, group[r].get(), memory);
                                 if (got != sums[r])
                                   fail(ErrorCode::kInternal,
                                        "the results differ from those of one process");
                               }),
                "")
          << size << " ranks, memory " << static_cast<int>(memory);
    }
  }
}

TEST(WindowEngine, SubgroupsHaveSeparateWindows) {
  const auto group = transports(4);
  expect_on_ranks(4, [&](int rank) {
    const auto all = make_communicator(group[static_cast<std::size_t>(rank)]);
    for (int i = 0; i < 20; ++i) {
      const auto half = all->group(rank % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3});
      std::vector<float> values(50'000, static_cast<float>(rank));
      half->all_reduce(ReduceOp::kSum, Elements(std::span(values)));
      const float sum = rank % 2 == 0 ? 2.0f : 4.0f;
      if (values.front() != sum || values.back() != sum) {
        fail(ErrorCode::kInternal, "expected the sum ", sum, ", got ", values.back());
      }
    }
  });
}

TEST(WindowEngine, AllRanksReportAbortsMismatchesAndMissingRanks) {
  const auto expect_all = [](const std::vector<std::string>& errors, const std::string& words) {
    EXPECT_THAT(errors, ::testing::Each(::testing::HasSubstr(words)));
  };
  const auto calls = [](const std::function<void(Communicator&)>& odd, Duration timeout) {
    const auto group = transports(3);
    std::vector<std::unique_ptr<Communicator>> all;
    for (const auto& each : group) all.push_back(make_communicator(each, {.timeout = timeout}));
    return errors_of_ranks(3, [&](int rank) {
      Communicator& mine = *all[static_cast<std::size_t>(rank)];
      std::vector<float> values(200'000);
      mine.all_reduce(ReduceOp::kSum, Elements(std::span(values)));
      if (rank == 2) return odd(mine);
      mine.all_reduce(ReduceOp::kSum, Elements(std::span(values)));
    });
  };
  auto late = calls([](Communicator&) {}, 3s);
  EXPECT_EQ(late.back(), "");
  late.pop_back();
  expect_all(late, "rank 2 did not join");
  expect_all(calls(
                 [](Communicator& mine) {
                   std::vector<float> values(100'000);
                   mine.all_reduce(ReduceOp::kSum, Elements(std::span(values)));
                 },
                 20s),
             "collective mismatch (count): rank 0 calls");
  auto aborted = calls(
      [](Communicator& mine) { mine.abort(Error(ErrorCode::kInternal, "the loss is no number")); },
      20s);
  aborted.pop_back();
  expect_all(aborted, "the loss is no number");
}

// A peer may notice the disconnection before the abort reaches it.
TEST(WindowEngine, DisconnectAfterAbortReportsAbortReason) {
  const auto group = transports(2);
  Event has_left;
  const auto errors = errors_of_ranks(2, [&](int rank) {
    auto mine = make_communicator(group[static_cast<std::size_t>(rank)]);
    mine->barrier();
    if (rank == 0) {
      group[0]->abort(Error(ErrorCode::kUnavailable, "worker 2 died"));
      mine.reset();
      has_left.set();
      return;
    }
    EXPECT_TRUE(has_left.wait_until(deadline_after(Clock::system().now(), 50s)));
    mine->barrier();
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_NE(errors[1].find("worker 2 died"), std::string::npos) << errors[1];
  EXPECT_EQ(errors[1].find("has left the group"), std::string::npos) << errors[1];
}

TEST(WindowEngine, CommunicatorAllocatesInSharedMemory) {
  const auto group = transports(2);
  expect_on_ranks(2, [&](int rank) {
    const auto& own = group[static_cast<std::size_t>(rank)];
    const auto mine = make_communicator(own);
    const BufferRef data = mine->allocator()->allocate(10'000);
    EXPECT_TRUE(own->host_memory()->offset_of(data->data(), 10'000));
    EXPECT_EQ(mine->group({0, 1})->allocator() == nullptr, false);
    const std::shared_ptr<std::byte> bytes = mine->allocate(100);
    EXPECT_TRUE(own->host_memory()->offset_of(bytes.get(), 100));
  });
  EXPECT_EQ(in_process_communicators(2)[0]->allocator(), nullptr);
  const auto bytes = in_process_communicators(2)[0]->allocate(100);
  bytes.get()[99] = std::byte{1};  // the memory outlives its communicator
}

TEST(WindowEngine, DestroyedGroupsReleaseTheirMemory) {
  const auto group = transports(2, {.place_bytes = 8 << 20});
  expect_on_ranks(2, [&](int rank) {
    const auto mine = make_communicator(group[static_cast<std::size_t>(rank)]);
    // This memory is private, so values are copied through slots in the group's shared memory.
    std::vector<float> values(30'011, 1.0f);
    for (int i = 0; i < 20; ++i) {
      mine->group({0, 1})->all_reduce(ReduceOp::kSum, std::span(values));
      EXPECT_EQ(values.back(), 2.0f);
      values.assign(values.size(), 1.0f);
    }
  });
}

TEST(WindowEngine, PeersCannotWriteToBuffersOfDetachedRank) {
  const auto group = transports(2);
  const auto memory = group[0]->host_memory();
  const BufferRef data = allocator_in(memory)->allocate(10'000);
  const auto offset = memory->offset_of(data->data(), 10'000);
  ASSERT_TRUE(offset);
  std::byte* const seen_by_peer = group[1]->host_memory()->place(0) + *offset;
  data->data()[5] = std::byte{7};
  EXPECT_EQ(seen_by_peer[5], std::byte{7});
  memory->detach();
  EXPECT_EQ(data->data()[5], std::byte{7});
  seen_by_peer[5] = std::byte{9};
  EXPECT_EQ(data->data()[5], std::byte{7});
  EXPECT_FALSE(memory->offset_of(data->data(), 10'000));
}

TEST(ShmTransport, InsufficientMemoryErrorSuggestsRemedy) {
  InProcessStore store;
  // This size exceeds the available address space.
  EXPECT_ERROR(
      connect_by_memory(0, 2, store, {.timeout = 50ms, .place_bytes = std::size_t{1} << 60}),
      kResourceExhausted, "mapping", "try");
  const auto group = transports(2, {.place_bytes = 1 << 20});
  EXPECT_ERROR(group[0]->host_memory()->allocate(2 << 20, HostMemory::Use::kBuffers),
               kResourceExhausted, "rank 0", "ConnectOptions::place_bytes");
  const std::size_t first = group[0]->host_memory()->allocate(700'000, HostMemory::Use::kBuffers);
  group[0]->host_memory()->release(first);
  EXPECT_EQ(group[0]->host_memory()->allocate(900'000, HostMemory::Use::kBuffers), first);
  EXPECT_INVALID(parse_way("pigeon"), "auto, shm or tcp", "'pigeon'");
}

constexpr std::size_t kPage = 4096, kLarge = std::size_t{2} << 20;
constexpr std::size_t kBytes = 2 * kLarge + 5 * kPage;  // the last five pages are small

/// Returns the number of bytes of the mapping at `address` that the system backs with large pages.
std::size_t bytes_in_large_pages(const std::byte* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream lines("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(lines, line);) {
    std::uintptr_t begin = 0, end = 0;
    std::size_t kibibytes = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
      is_here = begin <= at && at < end;
    } else if (is_here && std::sscanf(line.c_str(), "ShmemPmdMapped: %zu", &kibibytes) == 1) {
      return 1024 * kibibytes;
    }
  }
  return 0;
}

/// Returns true if this system backs shared memory with large pages on request (Linux 6.1).
bool makes_large_pages() {
  const internal::FileDescriptor file(::memfd_create("probe", MFD_CLOEXEC));
  if (!file.is_open() || ::ftruncate(file.get(), kLarge) != 0) return false;
  void* const reserved = ::mmap(nullptr, 2 * kLarge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return false;
  auto* const start = static_cast<std::byte*>(reserved);
  std::byte* const at = start + (kLarge - reinterpret_cast<std::uintptr_t>(start) % kLarge);
  const bool is_mapped = ::mmap(at, kLarge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                                file.get(), 0) != MAP_FAILED;
  if (is_mapped) *at = std::byte{1};
  const bool done = is_mapped && ::madvise(at, kLarge, 25 /* MADV_COLLAPSE */) == 0;
  ::munmap(reserved, 2 * kLarge);
  return done;
}

/// Buffer of rank 0 and its mapping in rank 1.
struct ShmLargePages : ::testing::Test {
  const std::vector<std::shared_ptr<Transport>> ranks = transports(2);
  const std::shared_ptr<HostMemory> memory = ranks[0]->host_memory();
  const std::size_t offset = memory->allocate(kBytes, HostMemory::Use::kBuffers);
  std::byte* const own = memory->place(0) + offset;
  std::byte* const seen_by_peer = ranks[1]->host_memory()->place(0) + offset;
};

TEST_F(ShmLargePages, PeersReadZerosBeforeFirstWrite) {
  EXPECT_EQ(std::count(seen_by_peer, seen_by_peer + kBytes, std::byte{0}), kBytes);
  std::fill_n(own, kBytes, std::byte{3});
  EXPECT_EQ(std::count(seen_by_peer, seen_by_peer + kBytes, std::byte{3}), kBytes);
}

TEST_F(ShmLargePages, AreUsedForEveryMapping) {
  if (!makes_large_pages())
    GTEST_SKIP() << "this system does not back shared memory with large pages";
  std::fill_n(own, kBytes, std::byte{3});
  EXPECT_EQ(std::count(seen_by_peer, seen_by_peer + kBytes, std::byte{3}), kBytes);
  EXPECT_GE(bytes_in_large_pages(own), 2 * kLarge);
  EXPECT_GE(bytes_in_large_pages(seen_by_peer), 2 * kLarge);
}

TEST_F(ShmLargePages, ReleasedMemoryIsZeroedOnReuse) {
  std::fill_n(own, kBytes, std::byte{3});
  memory->release(offset);
  // The new buffer is smaller, so one of the previous large pages is only partly used.
  const std::size_t fewer = kBytes - kLarge;
  EXPECT_EQ(memory->allocate(fewer, HostMemory::Use::kBuffers), offset);
  EXPECT_EQ(std::count(own, own + fewer, std::byte{0}), fewer);
  memory->release(offset);
  EXPECT_EQ(memory->allocate(kBytes, HostMemory::Use::kBuffers), offset);
  EXPECT_EQ(std::count(own, own + kBytes, std::byte{0}), kBytes);
}

TEST_F(ShmLargePages, DetachedRankKeepsItsBuffers) {
  std::fill_n(own, kBytes, std::byte{3});
  memory->detach();
  std::fill_n(seen_by_peer, kBytes, std::byte{9});
  EXPECT_EQ(std::count(own, own + kBytes, std::byte{3}), kBytes);
}

// The buffers exceed the assumed cache size, so the summation prefetches memory.
TEST(ShmAllReduce, SumsBuffersLargerThanCache) {
  const auto ranks = transports(2);
  const std::size_t count = (std::size_t{9} << 20) / sizeof(float) + 5;
  expect_on_ranks(2, [&](int rank) {
    const auto& own = ranks[static_cast<std::size_t>(rank)];
    const auto mine = make_communicator(own);
    const BufferRef data = mine->allocator()->allocate(count * sizeof(float));
    auto* const values = reinterpret_cast<float*>(data->data());
    for (std::size_t i = 0; i < count; ++i) values[i] = float(i % 1000) + float(rank);
    mine->all_reduce(ReduceOp::kSum, Elements(std::span(values, count)));
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
      wrong += values[i] == 2.0f * float(i % 1000) + 1.0f ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0u) << "rank " << rank;
    mine->barrier();
  });
}

}  // namespace tutti::window_engine_test
