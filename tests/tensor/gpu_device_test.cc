// Tests GPU devices: requests to the backend, memory, waits for peers, the list of GPUs, and log
// lines.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu_device.h"

#include <algorithm>
#include <deque>
#include <regex>

#include "tensor/gpu/inventory.h"
#include "tensor/gpu/pinned_memory.h"
#include "tensor/gpu/step_capture.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/random.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing::gpu_device_test {

constexpr Device kFakeGpu{DeviceType::kGpu, 0};
constexpr Device kOtherFakeGpu{DeviceType::kGpu, 1};

/// Returns the notes that are not about allocations or recorded events.
std::vector<std::string> work_of(std::vector<std::string> notes) {
  std::erase_if(notes, [](const std::string& note) {
    return note.find("allocate") != std::string::npos || note.find("record") != std::string::npos;
  });
  return notes;
}

TEST(GpuTensor, RoundTripsThroughDevice) {
  FakeGpus gpus;
  const Tensor host = Tensor::from<float>({2, 2}, {1, 2, 3, 4});
  const Tensor there = host.to(kFakeGpu);
  EXPECT_EQ(there.device(), kFakeGpu);
  expect_tensor(there.to(Device{}), {2, 2}, {1, 2, 3, 4});
  expect_tensor(there.to(kOtherFakeGpu), {2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(there.to(kFakeGpu).id(), there.id());
  EXPECT_EQ(there.detached_rows(1, 1).to_doubles(), (std::vector<double>{3, 4}));
  EXPECT_EQ(there.detached_rows(1, 1).detached_reshape({2}).detached_rows(1, 1).item(), 4.0f);
  EXPECT_THAT(there.to_string(), HasSubstr("device=gpu:0, [[1, 2], [3, 4]]"));
}

TEST(GpuTensor, IsCreatedOnDevice) {
  FakeGpus gpus;
  expect_tensor(Tensor::zeros({3}, DType::kFloat32, kFakeGpu), {3}, {0, 0, 0});
  expect_tensor(Tensor::ones({3}, DType::kInt64, kFakeGpu), {3}, {1, 1, 1});
  expect_tensor(Tensor::full({2}, 2.5, DType::kBFloat16, kFakeGpu), {2}, {2.5, 2.5});
  expect_tensor(Tensor::from<std::int32_t>({2}, {7, 8}, kFakeGpu), {2}, {7, 8});
  expect_tensor(Tensor::zeros({0, 4}, DType::kFloat32, kFakeGpu), {0, 4}, {});
  EXPECT_EQ(Tensor::scalar(3.0, DType::kFloat64, kFakeGpu).item_double(), 3.0);
  EXPECT_INVALID(Tensor::full({1}, 300.0, DType::kUInt8, kFakeGpu), "uint8 can hold");
}

TEST(GpuTensor, HostAccessErrorNamesDevice) {
  FakeGpus gpus;
  const Tensor there = Tensor::zeros({3}, DType::kFloat32, kFakeGpu);
  const std::vector<std::string> parts = {"float32", "[3]", "gpu:0", "to(Device{})"};
  expect_error(ErrorCode::kFailedPrecondition, parts, [&] { (void)there.host_span<float>(); });
  expect_error(ErrorCode::kFailedPrecondition, parts, [&] { (void)there.bytes(); });
  const MutableTensor writable({3}, DType::kFloat32, kFakeGpu);
  EXPECT_ERROR((void)writable.span<float>(), kFailedPrecondition, "float32", "[3]", "gpu:0",
               "to()");
}

TEST(GpuTensor, OperationsRunOnDeviceAndRejectMixedDevices) {
  FakeGpus gpus;
  const Tensor x = Tensor::from<float>({3}, {1, 2, 3}, kFakeGpu);
  gpus.take_notes();
  const Tensor y = x * 2.0f + x;
  EXPECT_EQ(y.device(), kFakeGpu);
  EXPECT_THAT(work_of(gpus.take_notes()),
              ElementsAre("gpu0 fill", "gpu0 run multiply", "gpu0 run add"));
  expect_tensor(y, {3}, {3, 6, 9});
  EXPECT_INVALID((void)(x + Tensor::ones({3})), "gpu:0", "cpu:0", "to()");
  EXPECT_INVALID((void)(x + x.to(kOtherFakeGpu)), "gpu:0", "gpu:1");
}

TEST(GpuTensor, ViewsDoNotEnqueueWork) {
  FakeGpus gpus;
  const Tensor x = Tensor::zeros({4, 2}, DType::kFloat32, kFakeGpu);
  gpus.take_notes();
  (void)reshape(x, {8});
  (void)slice(x, {1, 0}, {2, 2});
  (void)stop_gradient(x);
  (void)x.alias();
  EXPECT_THAT(gpus.take_notes(), IsEmpty());
}

TEST(GpuTensor, MissingKernelErrorNamesOperationAndDevice) {
  FakeGpus gpus;
  const Tensor x = Tensor::zeros({3}, DType::kFloat32, kFakeGpu);
  EXPECT_ERROR((void)erf(x), kUnimplemented, "erf at ", "gpu:0", "float32");
}

TEST(GpuTensor, WritersCopySharedMemory) {
  FakeGpus gpus;
  MutableTensor value({2}, DType::kFloat32, kFakeGpu);
  value.assign(Tensor::from<float>({2}, {1, 2}, kFakeGpu));
  const Tensor read = value.freeze();
  value.make_unique();
  GpuDevice::of(kFakeGpu).fill(value, 9.0);
  expect_tensor(read, {2}, {1, 2});
  expect_tensor(value.freeze(), {2}, {9, 9});
}

TEST(GpuTensor, AssignWritesInPlaceUnlessReaderExists) {
  FakeGpus gpus;
  MutableTensor value({2}, DType::kFloat32, kFakeGpu);
  const void* const place = value.address();
  value.assign(Tensor::from<float>({2}, {1, 2}, kFakeGpu));
  EXPECT_EQ(value.address(), place);
  const Tensor reader = value.freeze();
  value.assign(Tensor::from<float>({2}, {3, 4}, kFakeGpu));
  expect_tensor(reader, {2}, {1, 2});
  expect_tensor(value.freeze(), {2}, {3, 4});
}

TEST(GpuDevice, LargeCopiesUsePinnedMemoryInChunks) {
  FakeGpus gpus;
  std::vector<float> values(5'000'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  const Tensor there = Tensor::from(Shape{5'000'000}, values, kFakeGpu);
  const auto notes = work_of(gpus.take_notes());
  EXPECT_THAT(notes, ElementsAre("gpu0 copy_to_device 8388608", "gpu0 copy_to_device 8388608",
                                 "gpu0 copy_to_device 3222784"));
  EXPECT_EQ(gpus.backend.state.num_pinned, 1);
  const Tensor back = there.to(Device{});
  EXPECT_TRUE(std::ranges::equal(back.host_span<float>(), values));
}

TEST(GpuDevice, BatchCopiesOverlapQueuedWork) {
  FakeGpus gpus;
  const Tensor batch = Tensor::ones({40'000});
  Tensor first = batch.to(kFakeGpu);
  EXPECT_THAT(gpus.take_notes(),  // the copy waits for earlier work that may use the destination
              ElementsAre("gpu0 allocate 163840", "gpu0 record", "gpu0 wait copy stream",
                          "gpu0 copy_to_device 160000 copy stream", "gpu0 record copy stream",
                          "gpu0 wait"));
  const void* const place = first.address();
  Tensor second = batch.to(kFakeGpu);
  (void)floor(first);
  first = Tensor();
  gpus.take_notes();
  (void)floor(second);  // enqueues work for which the next copy need not wait
  EXPECT_THAT(gpus.take_notes().front(), "gpu0 record");
  const Tensor third = batch.to(kFakeGpu);
  EXPECT_EQ(third.address(), place);
  EXPECT_THAT(gpus.take_notes(),
              ElementsAre("gpu0 wait copy stream", "gpu0 copy_to_device 160000 copy stream",
                          "gpu0 record copy stream", "gpu0 wait"));
  expect_tensor(third.detached_rows(39'999, 1), {1}, {1});
}

TEST(GpuDevice, CopiesWithoutPinnedMemory) {
  FakeGpus gpus;
  gpus.backend.pinned_limit = 0;
  expect_tensor(Tensor::from<float>({2}, {1, 2}, kFakeGpu), {2}, {1, 2});
  gpus.backend.state.num_pinned = 0;  // the fake backend also counts failed allocations
}

TEST(GpuDevice, CopiesBetweenGpusAreOrderedByEvents) {
  FakeGpus gpus;
  const Tensor x = Tensor::ones({2}, DType::kFloat32, kFakeGpu);
  // opens the second device, and leaves a buffer in its cache
  (void)Tensor::ones({2}, DType::kFloat32, kOtherFakeGpu);
  gpus.take_notes();
  const Tensor y = x.to(kOtherFakeGpu);
  EXPECT_THAT(gpus.take_notes(), ElementsAre("gpu0 record", "gpu1 wait", "gpu1 copy_from_gpu0 8",
                                             "gpu1 record", "gpu0 wait"));
  gpus.backend.peers = false;
  const Tensor z = x.to(kOtherFakeGpu);
  EXPECT_THAT(work_of(gpus.take_notes()),
              ElementsAre("gpu0 copy_to_host 8", "gpu1 copy_to_device 8"));
  expect_tensor(z, {2}, {1, 1});
}

TEST(GpuDevice, MemoryIsReusedAndCounted) {
  FakeGpus gpus;
  const void* first = nullptr;
  {
    const Tensor x = Tensor::zeros({1000}, DType::kFloat32, kFakeGpu);
    first = x.address();
    EXPECT_EQ(allocator_statistics(kFakeGpu).in_use, 4096u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % GpuDevice::kAlignment, 0u);
  }
  EXPECT_EQ(allocator_statistics(kFakeGpu).in_use, 0u);
  EXPECT_EQ(allocator_statistics(kFakeGpu).cached, 4096u);
  EXPECT_EQ(Tensor::zeros({1020}, DType::kFloat32, kFakeGpu).address(), first);
  EXPECT_EQ(allocator_statistics(kOtherFakeGpu).cached, 0u);
  trim_allocator_cache(kFakeGpu);
  EXPECT_EQ(allocator_statistics(kFakeGpu).cached, 0u);
}

TEST(GpuDevice, WorkspaceReturnsToCacheAfterCall) {
  FakeGpus gpus;
  const Tensor x = Tensor::zeros({3}, DType::kFloat32, kFakeGpu);
  const Tensor y = floor(x);  // the fake kernel requests a workspace of 1000 bytes
  EXPECT_EQ(allocator_statistics(kFakeGpu).in_use, 512u);
  EXPECT_EQ(allocator_statistics(kFakeGpu).cached, 1024u);
}

TEST(GpuDevice, ReleasesCachedMemoryToStayWithinLimit) {
  FakeGpus gpus(1, 10'000);
  // leaves 4096 bytes in the cache
  { const Tensor x = Tensor::zeros({1024}, DType::kFloat32, kFakeGpu); }
  const Tensor y = Tensor::zeros({2048}, DType::kFloat32, kFakeGpu);
  EXPECT_EQ(allocator_statistics(kFakeGpu).cached, 0u);
  EXPECT_ERROR(Tensor::zeros({1024}, DType::kFloat32, kFakeGpu), kResourceExhausted, "gpu:0",
               "4096 bytes", "8192 in use", "0 cached", "limit 10000", "smaller batch");
  EXPECT_EQ(allocator_statistics(kFakeGpu).in_use, 8192u);  // the failed call did not allocate
  const Tensor small = Tensor::zeros({4}, DType::kFloat32, kFakeGpu);
  expect_tensor(small, {4}, {0, 0, 0, 0});
}

TEST(GpuDevice, ReclaimsFinishedBatchesWhenMemoryIsShort) {
  FakeGpus gpus(1, 400'000);
  { const Tensor batch = Tensor::ones({40'000}).to(kFakeGpu); }
  // The memory of the batch is kept for the next batch.
  EXPECT_GT(allocator_statistics(kFakeGpu).in_use, 160'000u);
  const Tensor large = Tensor::zeros({80'000}, DType::kFloat32, kFakeGpu);
  EXPECT_EQ(allocator_statistics(kFakeGpu).in_use, 327'680u);
  expect_tensor(large.detached_rows(0, 2), {2}, {0, 0});
}

TEST(GpuDevice, ReclaimsCachedMemoryWhenGpuIsFull) {
  FakeGpus gpus(1);
  { const Tensor x = Tensor::zeros({1 << 20}, DType::kFloat32, kFakeGpu); }
  gpus.backend.state.memory_left = 0;
  const Tensor y = Tensor::zeros({1 << 19}, DType::kFloat32, kFakeGpu);
  EXPECT_EQ(allocator_statistics(kFakeGpu).cached, 0u);
  EXPECT_ERROR(Tensor::zeros({1 << 20}, DType::kFloat32, kFakeGpu), kResourceExhausted,
               "gpu:0: no memory for 4194304 bytes");
}

/// Launches an update of `weights`. The fake rule computes w -= constants[0] * gradient.
void update_fake(const MutableTensor& weights, const Tensor& gradient, DeviceRuleId id,
                 double rate) {
  DeviceRule rule;
  rule.id = id;
  rule.constants[0] = rate;
  DeviceUpdateItem item;
  item.weights = weights.address();
  item.gradient = gradient.address();
  item.count = static_cast<std::size_t>(weights.num_elements());
  GpuDevice::of(kFakeGpu).update_later(DType::kFloat32, rule, item,
                                       {weights.buffer(), gradient.buffer()});
}

TEST(GpuDevice, UpdatesAreBatchedIntoOneLaunchPerRule) {
  FakeGpus gpus;
  std::vector<MutableTensor> weights;
  std::vector<Tensor> gradients;
  for (int i = 0; i < 5; ++i) {
    weights.emplace_back(Shape{2}, DType::kFloat32, kFakeGpu);
    GpuDevice::of(kFakeGpu).fill(weights.back(), 1.0);
    gradients.push_back(Tensor::ones({2}, DType::kFloat32, kFakeGpu));
  }
  gpus.take_notes();
  for (std::size_t i = 0; i < 5; ++i) {
    update_fake(weights[i], gradients[i], i == 3 ? DeviceRuleId::kAdam : DeviceRuleId::kSgd, 0.5);
  }
  gradients.clear();  // the device keeps the gradients until the launch
  EXPECT_THAT(gpus.take_notes(), IsEmpty());
  expect_tensor(weights.back().freeze(), {2}, {0.5, 0.5});
  EXPECT_THAT(work_of(gpus.take_notes()),
              ElementsAre(concat("gpu0 update ", static_cast<int>(DeviceRuleId::kSgd), " x4"),
                          concat("gpu0 update ", static_cast<int>(DeviceRuleId::kAdam), " x1"),
                          "gpu0 copy_to_host 8"));
}

TEST(GpuDevice, UpdatesOfOneVariableKeepTheirOrder) {
  FakeGpus gpus;
  const MutableTensor w({2}, DType::kFloat32, kFakeGpu), v({2}, DType::kFloat32, kFakeGpu);
  GpuDevice::of(kFakeGpu).fill(w, 1.0);
  GpuDevice::of(kFakeGpu).fill(v, 1.0);
  const Tensor g = Tensor::ones({2}, DType::kFloat32, kFakeGpu);
  gpus.take_notes();
  for (const MutableTensor* each : {&w, &v}) {  // as by an optimizer with moving averages
    update_fake(*each, g, DeviceRuleId::kSgd, 0.25);
    update_fake(*each, g, DeviceRuleId::kMovingAverage, 0.125);
  }
  EXPECT_THAT(gpus.take_notes(), IsEmpty());
  update_fake(w, g, DeviceRuleId::kSgd, 0.25);  // an update of the next step
  const std::string sgd = concat("gpu0 update ", static_cast<int>(DeviceRuleId::kSgd));
  const std::string average =
      concat("gpu0 update ", static_cast<int>(DeviceRuleId::kMovingAverage));
  EXPECT_THAT(gpus.take_notes(), ElementsAre(sgd + " x2", average + " x2"));
  expect_tensor(w.freeze(), {2}, {0.375, 0.375});
  EXPECT_THAT(work_of(gpus.take_notes()), ElementsAre(sgd + " x1", "gpu0 copy_to_host 8"));
  GpuDevice::of(kFakeGpu).synchronize();
}

TEST(GraphMemory, KeepsMemoryThatIsFreedDuringCapture) {
  FakeGpus gpus;
  Tensor before = Tensor::ones({1000}, DType::kFloat32, kFakeGpu);
  const void* const place_before = before.address();
  const void* place_within = nullptr;
  Tensor result;
  {
    GraphMemoryScope::Memories memories;
    GraphMemory& memory = *memories.emplace_back(std::make_unique<GraphMemory>(kFakeGpu));
    {
      const GraphMemoryScope scope(memories);
      EXPECT_EQ(GraphMemory::current(kFakeGpu), &memory);
      EXPECT_EQ(GraphMemory::current(kOtherFakeGpu), nullptr);
      place_within = (before + 1.0f).address();            // the sum is freed immediately
      EXPECT_EQ((before * 2.0f).address(), place_within);  // reuses that memory within the capture
      result = before * 3.0f;
      before = Tensor();
    }
    EXPECT_EQ(GraphMemory::current(kFakeGpu), nullptr);
    const Tensor outside = Tensor::ones({1000}, DType::kFloat32, kFakeGpu);
    EXPECT_NE(outside.address(), place_before);
    EXPECT_NE(outside.address(), place_within);
    EXPECT_GT(memory.statistics().cached, 0u);
  }
  expect_tensor(result.detached_rows(0, 1), {1}, {3});  // the result outlives the graph
  result = Tensor();
  EXPECT_EQ(allocator_statistics(kFakeGpu).in_use, 0u);
}

TEST(GraphMemory, HostValuesRemainInPinnedMemory) {
  FakeGpus gpus;
  GraphMemoryScope::Memories memories;
  memories.push_back(std::make_unique<GraphMemory>(kFakeGpu));
  Tensor x;
  {
    const GraphMemoryScope scope(memories);
    x = Tensor::from<float>({2}, {5, 6}, kFakeGpu);
    EXPECT_EQ(gpus.backend.state.num_pinned, 1);
    EXPECT_ERROR((void)x.to_doubles(), kFailedPrecondition, "captured", "gpu:0");
  }
  expect_tensor(x, {2}, {5, 6});
  EXPECT_EQ(gpus.backend.state.num_pinned, 2);  // reading allocates a second block
}

/// Event that reports completion starting with query number `queries`, or never if `queries` is 0.
class LateEvent final : public DeviceEvent {
 public:
  explicit LateEvent(int queries) : queries_(queries) {}
  bool is_done() const override { return queries_ > 0 && ++num_queries >= queries_; }
  void synchronize() const override { ++num_waits; }
  double milliseconds_since(const DeviceEvent&) const override { return 0.0; }
  mutable int num_queries = 0, num_waits = 0;

 private:
  const int queries_;
};

/// Work whose check() throws starting with call number `checks`, or never if `checks` is 0.
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

TEST(PeerWatch, WaitBlocksInDriverIfNoWorkIsPending) {
  PeerWatch peers;
  const LateEvent event(0);
  peers.wait(event);
  const auto work = std::make_shared<FailingWork>(1, false);
  peers.add(work);
  peers.wait(event);
  EXPECT_EQ(event.num_waits, 2);
  EXPECT_EQ(work->num_checks, 0);
}

TEST(PeerWatch, FailedWorkEndsWaitForEventThatNeverCompletes) {
  PeerWatch peers;
  const auto fine = std::make_shared<FailingWork>(0), failing = std::make_shared<FailingWork>(100);
  peers.add(fine);
  peers.add(failing);
  EXPECT_ERROR(peers.wait(LateEvent(0)), kUnavailable, "the peer has ended");
  EXPECT_EQ(fine->num_checks, 100);
}

TEST(PeerWatch, WaitForPendingEventFailsAfterWorkFails) {
  PeerWatch peers;
  const auto work = std::make_shared<FailingWork>(1);
  peers.add(work);
  EXPECT_ERROR(peers.wait(LateEvent(1)), kUnavailable, "the peer has ended");
}

TEST(PeerWatch, DropsDestroyedWork) {
  PeerWatch peers;
  auto work = std::make_shared<FailingWork>(0);
  peers.add(work);
  const LateEvent event(2000);  // more queries than wait() makes before its first pause
  peers.wait(event);
  EXPECT_EQ(event.num_queries, 2000);
  EXPECT_GT(work->num_checks, 1000);
  work.reset();
  EXPECT_TRUE(peers.list().empty());
}

TEST(PeerWatch, WaitForSpaceInPinnedRingChecksForFailures) {
  FakeGpuBackend backend(1);
  PeerWatch peers;
  PinnedRing ring(backend, 4096, peers);
  for (int i = 0; i < 4; ++i) {
    ring.place(1024);
    ring.set_copied(std::make_shared<LateEvent>(0));
  }
  const auto work = std::make_shared<FailingWork>(3);
  peers.add(work);
  EXPECT_ERROR(ring.place(1024), kUnavailable, "the peer has ended");
}

/// Event of a copy that completes when the test sets `done` or a thread calls synchronize().
class SlowCopy final : public DeviceEvent {
 public:
  bool is_done() const override { return done; }
  void synchronize() const override { done = true; }
  double milliseconds_since(const DeviceEvent&) const override { return 0.0; }
  mutable bool done = false;
};

TEST(PinnedRing, DoesNotReuseMemoryBeingCopied) {
  FakeGpuBackend backend(1);
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
      ASSERT_TRUE(begin + bytes <= copy.begin || copy.end <= begin) << "copy " << i;
    }
    under_way.push_back({begin, begin + bytes, std::make_shared<SlowCopy>()});
    ring.set_copied(under_way.back().event);
    if (i % 7 == 0) under_way.front().event->done = true;  // the oldest copy completes early
  }
}

TEST(PinnedRing, ReportsMissingPinnedMemory) {
  FakeGpuBackend backend(1);
  backend.pinned_limit = 0;
  const PeerWatch peers;
  PinnedRing ring(backend, 4096, peers);
  EXPECT_EQ(ring.place(10), nullptr);
}

constexpr std::int64_t kInventoryGib = std::int64_t{1} << 30;

/// Returns the properties of the two GPUs in TensorFlow's published examples.
std::vector<PhysicalDevice> two_cards() {
  PhysicalDevice titan, gtx;
  titan.name = "GeForce GTX TITAN X";
  titan.major = 5;
  titan.minor = 2;
  titan.memory_clock_ghz = 1.076;
  titan.pci_bus_id = "0000:02:00.0";
  titan.total_bytes = 12'799'180'800;
  titan.free_bytes = 12'681'019'392;
  gtx = titan;
  gtx.name = "GeForce GTX 970";
  gtx.memory_clock_ghz = 1.2155;
  gtx.pci_bus_id = "0000:01:00.0";
  gtx.total_bytes = gtx.free_bytes = 4 * kInventoryGib;
  return {titan, gtx};
}

/// Backend that can list its GPUs but not use them. `mask` is a value of CUDA_VISIBLE_DEVICES.
class ListedGpus final : public DeviceBackend {
 public:
  explicit ListedGpus(std::optional<std::string> mask = std::nullopt) : mask_(std::move(mask)) {
    const auto cards = two_cards();
    for (const int index : visible_devices(mask_, 2).value_or(std::vector<int>())) {
      devices_.push_back(cards[static_cast<std::size_t>(index)]);
    }
  }
  std::vector<LogicalGpu> split(const VirtualGpus& parts = {}) const {
    return split_gpus(*this, mask_, parts);
  }

  std::string description() const override { return "a list"; }
  int num_devices() const override { return static_cast<int>(devices_.size()); }
  PhysicalDevice inspect(int ordinal) const override {
    return devices_[static_cast<std::size_t>(ordinal)];
  }
  bool can_access_peer(int from, int to) const override { return from == to || from == 1; }
  int gpu_of(const void*) const override { return -1; }
  std::shared_ptr<void> keep_selection() const override { return nullptr; }
  std::unique_ptr<DeviceContext> open(int) override {
    fail(ErrorCode::kUnimplemented, "ListedGpus: only a list");
  }
  void* allocate_pinned(std::size_t) override {
    fail(ErrorCode::kUnimplemented, "ListedGpus: only a list");
  }
  void release_pinned(void*) noexcept override {}

 private:
  std::optional<std::string> mask_;
  std::vector<PhysicalDevice> devices_;
};

/// Returns, for each logical device, the GPU's name and the GPU's index in the machine.
std::vector<std::pair<std::string, int>> gpus_behind(const std::optional<std::string>& mask) {
  std::vector<std::pair<std::string, int>> found;
  for (const LogicalGpu& gpu : ListedGpus(mask).split()) {
    EXPECT_EQ(gpu.index, static_cast<int>(found.size()));
    EXPECT_EQ(gpu.ordinal, gpu.index);
    found.emplace_back(gpu.properties.name, gpu.physical.value_or(-1));
  }
  return found;
}

TEST(Devices, CudaVisibleDevicesHidesAndRenumbersGpus) {
  using Behind = std::vector<std::pair<std::string, int>>;
  const std::pair<std::string, int> titan{"GeForce GTX TITAN X", 0}, gtx{"GeForce GTX 970", 1};
  EXPECT_EQ(gpus_behind(std::nullopt), (Behind{titan, gtx}));
  EXPECT_EQ(gpus_behind("0"), (Behind{titan}));
  EXPECT_EQ(gpus_behind("1"), (Behind{gtx}));  // gpu:0 is now GPU 1 of the machine
  EXPECT_EQ(gpus_behind("0,1"), (Behind{titan, gtx}));
  EXPECT_EQ(gpus_behind("1,0"), (Behind{gtx, titan}));
  EXPECT_EQ(gpus_behind(""), Behind{});
  EXPECT_EQ(gpus_behind("-1"), Behind{});
  EXPECT_EQ(gpus_behind("1,7,0"), (Behind{gtx}));  // the mask ends at its first invalid entry
  EXPECT_EQ(gpus_behind("0,-1,1"), (Behind{titan}));
}

TEST(Devices, VisibleDevicesFollowCudaSyntax) {
  using Indices = std::vector<int>;
  EXPECT_EQ(visible_devices(" 1, 0", 2), (Indices{1, 0}));
  EXPECT_EQ(visible_devices("1gpu,0", 2), (Indices{1, 0}));
  EXPECT_EQ(visible_devices("x,0", 2), Indices{});
  EXPECT_EQ(visible_devices("0,,1", 2), (Indices{0}));
  EXPECT_EQ(visible_devices("0,0", 2), Indices{});
  EXPECT_EQ(visible_devices("99999999999999999999,0", 2), Indices{});
  EXPECT_EQ(visible_devices("GPU-8932f937,GPU-1", 2), std::nullopt);
  EXPECT_EQ(visible_devices("MIG-8932f937", 2), std::nullopt);
}

TEST(Devices, LogListsGpuPropertiesAndPeerAccess) {
  EXPECT_EQ(describe(two_cards()[0], 0),
            "Found device 0 with properties: name: GeForce GTX TITAN X, compute capability: 5.2, "
            "memory clock: 1.076 GHz, PCI bus id: 0000:02:00.0, total memory: 11.92 GiB, free "
            "memory: 11.81 GiB");
  EXPECT_EQ(describe_peers(ListedGpus()),
            (std::vector<std::string>{"DMA: 0 1", "0:   Y N", "1:   Y Y"}));
  EXPECT_EQ(describe_peers(ListedGpus("0")), (std::vector<std::string>{"DMA: 0", "0:   Y"}));
}

TEST(Devices, LogMapsLogicalToPhysicalGpus) {
  const std::regex line(
      R"(Created gpu:(\d+) -> \(device: (\d+), (GPU \d+ of this machine, )?name: [^,]+, )"
      R"(PCI bus id: [0-9A-F:.]+, (part \d of \d, )?memory limit: \d+\.\d\d GiB\))");
  for (const char* mask : {"0,1", "1,0"}) {
    for (const int parts : {1, 2}) {
      for (const LogicalGpu& gpu : ListedGpus(mask).split({parts, 0})) {
        EXPECT_TRUE(std::regex_match(describe(gpu), line)) << describe(gpu);
      }
    }
  }
  EXPECT_EQ(describe(ListedGpus("1").split()[0]),
            "Created gpu:0 -> (device: 0, GPU 1 of this machine, name: GeForce GTX 970, PCI bus "
            "id: 0000:01:00.0, memory limit: 4.00 GiB)");
  const ListedGpus both;
  EXPECT_EQ(describe(both, both.split()).size(), 2U + 3U + 2U);
}

TEST(Devices, EachMissingLibraryIsReported) {
  const std::vector<std::string> names{"libtutti_absent.so.1", "libc.so.6", "libtutti_gone.so.2"};
  const std::vector<FoundLibrary> found = find_libraries(names);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].path, "");
  EXPECT_NE(found[1].path, "");
  const LoadedBackend failure = explain_failure("libtutti_cuda.so", "the first one", found);
  EXPECT_EQ(failure.backend, nullptr);
  EXPECT_EQ(failure.missing,
            (std::vector<std::string>{"libtutti_absent.so.1", "libtutti_gone.so.2"}));
  EXPECT_EQ(failure.reason,
            "CUDA libraries missing: libtutti_absent.so.1, libtutti_gone.so.2; install CUDA, cuDNN "
            "and NCCL, or add their folder to LD_LIBRARY_PATH");
  const LoadedBackend other = explain_failure("m.so", "invalid ELF header", {});
  EXPECT_EQ(other.reason, "the CUDA module cannot be opened: invalid ELF header");
}

TEST(Devices, VirtualGpusHaveSeparateMemoryLimits) {
  const auto gpus = ListedGpus().split({2, kInventoryGib});
  ASSERT_EQ(gpus.size(), 4U);
  for (int i = 0; i < 4; ++i) {
    const LogicalGpu& gpu = gpus[static_cast<std::size_t>(i)];
    EXPECT_EQ(gpu.index, i);
    EXPECT_EQ(gpu.ordinal, i / 2);
    EXPECT_EQ(gpu.part, i % 2);
    EXPECT_EQ(gpu.num_parts, 2);
    EXPECT_EQ(gpu.memory_limit, kInventoryGib);
  }
  const auto shares = ListedGpus("1").split({4, 0});  // 0: equal shares of the free memory
  ASSERT_EQ(shares.size(), 4U);
  EXPECT_EQ(shares[3].memory_limit, kInventoryGib);
  EXPECT_INVALID(ListedGpus().split({3, 2 * kInventoryGib}), "GPU 1 (GeForce GTX 970)", "4096 MiB");
}

TEST(Devices, VirtualGpuSettingIsParsedAndValidated) {
  EXPECT_EQ(parse_virtual_gpus("flag", "4").per_gpu, 4);
  EXPECT_EQ(parse_virtual_gpus("flag", "4").memory_limit, 0);
  EXPECT_EQ(parse_virtual_gpus("flag", "2:512").memory_limit, kInventoryGib / 2);
  for (const char* text : {"", "0", "-1", "65", "x", "2:", "2:0", "2:-5", "2:512x", ":512",
                           "99999999999", "2:9999999999999999"}) {
    EXPECT_INVALID(parse_virtual_gpus("flag", text), "flag: expected");
  }
  EXPECT_INVALID(set_virtual_gpus({0, 0}), "set_virtual_gpus");
}

}  // namespace tutti::testing::gpu_device_test
