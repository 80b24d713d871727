// The ring of pinned memory: places are not given out while a copy from them is under way.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu/pinned_memory.h"

#include <gtest/gtest.h>

#include <deque>

#include "tests/support/fake_gpu.h"
#include "tutti/core/random.h"

namespace tutti {
namespace {

/// A copy that is done when somebody waits for it or when its owner says so.
class SlowCopy final : public DeviceEvent {
 public:
  bool is_done() const override { return done; }
  void synchronize() const override { done = true; }
  double milliseconds_since(const DeviceEvent&) const override { return 0.0; }
  mutable bool done = false;
};

TEST(PinnedRing, NeverGivesOutAPlaceThatIsBeingCopied) {
  testing::FakeGpuBackend backend(1);
  const PeerWatch peers;
  PinnedRing ring(backend, 4096, peers);
  struct Copy {
    std::byte *begin, *end;
    std::shared_ptr<SlowCopy> event;
  };
  std::deque<Copy> under_way;
  const RandomStream stream(RandomKey{3, kUserPurpose});
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const auto bytes = static_cast<std::size_t>(1 + stream.uniform64(i) * 1023.0);
    std::byte* const begin = ring.place(bytes);
    ASSERT_NE(begin, nullptr);
    while (!under_way.empty() && under_way.front().event->done) under_way.pop_front();
    for (const Copy& copy : under_way) {
      if (copy.event->done) continue;
      ASSERT_TRUE(begin + bytes <= copy.begin || copy.end <= begin) << "piece " << i;
    }
    under_way.push_back({begin, begin + bytes, std::make_shared<SlowCopy>()});
    ring.set_copied(under_way.back().event);
    if (i % 7 == 0) under_way.front().event->done = true;  // some end early
  }
}

TEST(PinnedRing, TellsThatThereIsNoPinnedMemory) {
  testing::FakeGpuBackend backend(1);
  backend.pinned_limit = 0;
  const PeerWatch peers;
  PinnedRing ring(backend, 4096, peers);
  EXPECT_EQ(ring.place(10), nullptr);
}

}  // namespace
}  // namespace tutti
