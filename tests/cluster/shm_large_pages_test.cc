// Memory that ranks of a host share: in large pages where the system has them, zeros in any case.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cluster/net/socket.h"
#include "cross_device_ops/shared/host_memory.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/ranks.h"
#include "tests/support/transports.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {
namespace shm_large_pages_test {

constexpr std::size_t kPage = 4096, kLarge = std::size_t{2} << 20;
constexpr std::size_t kBytes = 2 * kLarge + 5 * kPage;  // the last pages are small ones

std::vector<std::shared_ptr<Transport>> two_ranks() {
  InProcessStore store;
  std::vector<std::shared_ptr<Transport>> ranks(2);
  EXPECT_EQ(error_of_ranks(2,
                           [&](int rank) {
                             ranks[static_cast<std::size_t>(rank)] =
                                 connect_by_memory(rank, 2, store, {});
                           }),
            "");
  return ranks;
}

/// Of the mapping that holds `address`: what it has in large pages, as the system says.
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

/// Whether this system makes large pages of shared memory for a program that asks (Linux 6.1).
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

/// A buffer of rank 0, and where rank 1 sees it.
struct ShmLargePages : ::testing::Test {
  const testing::HangWatchdog watchdog{"large pages", std::chrono::seconds(100)};
  const std::vector<std::shared_ptr<Transport>> ranks = two_ranks();
  const std::shared_ptr<HostMemory> memory = ranks[0]->host_memory();
  const std::size_t offset = memory->allocate(kBytes, HostMemory::Use::kBuffers);
  std::byte* const own = memory->place(0) + offset;
  std::byte* const seen_by_peer = ranks[1]->host_memory()->place(0) + offset;
};

TEST_F(ShmLargePages, PeersSeeZerosAndThenWhatIsWritten) {
  EXPECT_EQ(std::count(seen_by_peer, seen_by_peer + kBytes, std::byte{0}), kBytes);
  std::fill_n(own, kBytes, std::byte{3});
  EXPECT_EQ(std::count(seen_by_peer, seen_by_peer + kBytes, std::byte{3}), kBytes);
}

TEST_F(ShmLargePages, AllWhoMapTheMemoryHaveThem) {
  if (!makes_large_pages()) GTEST_SKIP() << "this system makes no large pages of shared memory";
  std::fill_n(own, kBytes, std::byte{3});
  EXPECT_EQ(std::count(seen_by_peer, seen_by_peer + kBytes, std::byte{3}), kBytes);
  EXPECT_GE(bytes_in_large_pages(own), 2 * kLarge);
  EXPECT_GE(bytes_in_large_pages(seen_by_peer), 2 * kLarge);
}

TEST_F(ShmLargePages, MemoryThatWasGivenBackIsZerosAgain) {
  std::fill_n(own, kBytes, std::byte{3});
  memory->release(offset);
  // Less: a large page of before is not whole any more.
  const std::size_t fewer = kBytes - kLarge;
  EXPECT_EQ(memory->allocate(fewer, HostMemory::Use::kBuffers), offset);
  EXPECT_EQ(std::count(own, own + fewer, std::byte{0}), fewer);
  memory->release(offset);
  EXPECT_EQ(memory->allocate(kBytes, HostMemory::Use::kBuffers), offset);
  EXPECT_EQ(std::count(own, own + kBytes, std::byte{0}), kBytes);
}

TEST_F(ShmLargePages, ARankThatGivesUpKeepsItsBuffersInThem) {
  std::fill_n(own, kBytes, std::byte{3});
  memory->detach();
  std::fill_n(seen_by_peer, kBytes, std::byte{9});
  EXPECT_EQ(std::count(own, own + kBytes, std::byte{3}), kBytes);
}

// Larger than what is taken as the caches' size, so with memory asked for ahead.
TEST(ShmLargeSums, LargeBuffersInThemAreSummed) {
  const testing::HangWatchdog watchdog("large pages", std::chrono::seconds(100));
  const auto ranks = two_ranks();
  const std::size_t count = (std::size_t{9} << 20) / sizeof(float) + 5;
  EXPECT_EQ(error_of_ranks(2,
                           [&](int rank) {
                             const auto& own = ranks[static_cast<std::size_t>(rank)];
                             const auto mine = make_communicator(own);
                             const BufferRef data =
                                 mine->allocator()->allocate(count * sizeof(float));
                             auto* const values = reinterpret_cast<float*>(data->data());
                             for (std::size_t i = 0; i < count; ++i)
                               values[i] = float(i % 1000) + float(rank);
                             mine->all_reduce(ReduceOp::kSum, Elements(std::span(values, count)));
                             std::size_t wrong = 0;
                             for (std::size_t i = 0; i < count; ++i) {
                               wrong += values[i] == 2.0f * float(i % 1000) + 1.0f ? 0 : 1;
                             }
                             EXPECT_EQ(wrong, 0u) << "rank " << rank;
                             mine->barrier();
                           }),
            "");
}

}  // namespace shm_large_pages_test
}  // namespace tutti
