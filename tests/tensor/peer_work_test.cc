// Waits for a device while work is pending that others must take part in.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu_device.h"

#include <gtest/gtest.h>

#include "tensor/gpu/pinned_memory.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/tensor_matchers.h"

namespace tutti {
namespace peer_work_test {

using testing::expect_error;

/// An event that happens at the `asks`-th question, or never.
class LateEvent final : public DeviceEvent {
 public:
  explicit LateEvent(int asks) : asks_(asks) {}
  bool is_done() const override { return asks_ > 0 && ++num_asked >= asks_; }
  void synchronize() const override { ++num_waits; }
  double milliseconds_since(const DeviceEvent&) const override { return 0.0; }
  mutable int num_asked = 0, num_waits = 0;

 private:
  const int asks_;
};

/// Fails at the `checks`-th check, or never.
class FailingWork final : public PeerWork {
 public:
  explicit FailingWork(int checks, bool pending = true) : checks_(checks), pending_(pending) {}
  bool is_pending() override { return pending_; }
  void check() override {
    if (++num_checks >= checks_ && checks_ > 0) fail(ErrorCode::kUnavailable, "the peer has ended");
  }
  void check_graph() override {}
  void note_graph(std::shared_ptr<DeviceEvent>, std::shared_ptr<DeviceEvent>) override {}
  int num_checks = 0;

 private:
  const int checks_;
  const bool pending_;
};

TEST(PeerWatch, WaitsInTheDriverWhereNothingIsPending) {
  PeerWatch peers;
  const LateEvent event(0);
  peers.wait(event);
  const auto work = std::make_shared<FailingWork>(1, false);
  peers.add(work);
  peers.wait(event);
  EXPECT_EQ(event.num_waits, 2);
  EXPECT_EQ(work->num_checks, 0);
}

TEST(PeerWatch, AFailureEndsAWaitThatWouldNeverEnd) {
  PeerWatch peers;
  const auto fine = std::make_shared<FailingWork>(0), failing = std::make_shared<FailingWork>(100);
  peers.add(fine);
  peers.add(failing);
  expect_error(ErrorCode::kUnavailable, {"the peer has ended"}, [&] { peers.wait(LateEvent(0)); });
  EXPECT_EQ(fine->num_checks, 100);
}

TEST(PeerWatch, WorkThatWasGivenUpLetsEventsPassButNotTheirWaits) {
  PeerWatch peers;
  const auto work = std::make_shared<FailingWork>(1);
  peers.add(work);
  expect_error(ErrorCode::kUnavailable, {"the peer has ended"}, [&] { peers.wait(LateEvent(1)); });
}

TEST(PeerWatch, ForgetsWorkThatIsGone) {
  PeerWatch peers;
  auto work = std::make_shared<FailingWork>(0);
  peers.add(work);
  const LateEvent event(2000);  // longer than the questions without a pause
  peers.wait(event);
  EXPECT_EQ(event.num_asked, 2000);
  EXPECT_GT(work->num_checks, 1000);
  work.reset();
  EXPECT_TRUE(peers.list().empty());
}

TEST(PeerWatch, ARingThatIsFullAsksToo) {
  testing::FakeGpuBackend backend(1);
  PeerWatch peers;
  PinnedRing ring(backend, 4096, peers);
  for (int i = 0; i < 4; ++i) {
    ring.place(1024);
    ring.set_copied(std::make_shared<LateEvent>(0));
  }
  const auto work = std::make_shared<FailingWork>(3);
  peers.add(work);
  expect_error(ErrorCode::kUnavailable, {"the peer has ended"}, [&] { ring.place(1024); });
}

}  // namespace peer_work_test
}  // namespace tutti
