// GPUs as logical devices and as lines of the log, over an inventory that is made up.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu/inventory.h"

#include <gtest/gtest.h>

#include <regex>

#include "tests/support/tensor_matchers.h"

namespace tutti {
namespace {

constexpr std::int64_t kInventoryGib = std::int64_t{1} << 30;

/// The machine of the examples that tf's users printed: unequal GPUs.
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

/// GPUs that can only be listed. Obeys a mask as CUDA does.
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

/// Bus id and index in the machine of each logical device.
std::vector<std::pair<std::string, int>> gpus_behind(const std::optional<std::string>& mask) {
  std::vector<std::pair<std::string, int>> found;
  for (const LogicalGpu& gpu : ListedGpus(mask).split()) {
    EXPECT_EQ(gpu.index, static_cast<int>(found.size()));
    EXPECT_EQ(gpu.ordinal, gpu.index);
    found.emplace_back(gpu.properties.name, gpu.physical.value_or(-1));
  }
  return found;
}

TEST(Devices, VisibleDevicesMaskAndRenumber) {
  using Behind = std::vector<std::pair<std::string, int>>;
  const std::pair<std::string, int> titan{"GeForce GTX TITAN X", 0}, gtx{"GeForce GTX 970", 1};
  EXPECT_EQ(gpus_behind(std::nullopt), (Behind{titan, gtx}));
  EXPECT_EQ(gpus_behind("0"), (Behind{titan}));
  EXPECT_EQ(gpus_behind("1"), (Behind{gtx}));  // gpu:0 is GPU 1 of the machine
  EXPECT_EQ(gpus_behind("0,1"), (Behind{titan, gtx}));
  EXPECT_EQ(gpus_behind("1,0"), (Behind{gtx, titan}));
  EXPECT_EQ(gpus_behind(""), Behind{});
  EXPECT_EQ(gpus_behind("-1"), Behind{});
  EXPECT_EQ(gpus_behind("1,7,0"), (Behind{gtx}));  // cut where it is invalid
  EXPECT_EQ(gpus_behind("0,-1,1"), (Behind{titan}));
}

TEST(Devices, VisibleDevicesAreReadAsCudaDoes) {
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

TEST(Devices, LinesNameThePropertiesOfEachGpu) {
  EXPECT_EQ(describe(two_cards()[0], 0),
            "Found device 0 with properties: name: GeForce GTX TITAN X, compute capability: 5.2, "
            "memory clock: 1.076 GHz, PCI bus id: 0000:02:00.0, total memory: 11.92 GiB, free "
            "memory: 11.81 GiB");
}

TEST(Devices, MatrixShowsWhichGpusReachEachOther) {
  EXPECT_EQ(describe_peers(ListedGpus()),
            (std::vector<std::string>{"DMA: 0 1", "0:   Y N", "1:   Y Y"}));
  EXPECT_EQ(describe_peers(ListedGpus("0")), (std::vector<std::string>{"DMA: 0", "0:   Y"}));
}

TEST(Devices, LinesMapLogicalToPhysicalGpus) {
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

TEST(Devices, EachMissingLibraryIsNamed) {
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
  EXPECT_EQ(other.reason, "the CUDA module does not open: invalid ELF header");
}

TEST(Devices, GpusSplitIntoPartsWithMemoryOfTheirOwn) {
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
  const auto shares = ListedGpus("1").split({4, 0});  // equal parts of what is free
  ASSERT_EQ(shares.size(), 4U);
  EXPECT_EQ(shares[3].memory_limit, kInventoryGib);
  EXPECT_INVALID(ListedGpus().split({3, 2 * kInventoryGib}), "GPU 1 (GeForce GTX 970)", "4096 MiB");
}

TEST(Devices, VirtualGpusAreReadAndChecked) {
  EXPECT_EQ(parse_virtual_gpus("flag", "4").per_gpu, 4);
  EXPECT_EQ(parse_virtual_gpus("flag", "4").memory_limit, 0);
  EXPECT_EQ(parse_virtual_gpus("flag", "2:512").memory_limit, kInventoryGib / 2);
  for (const char* text : {"", "0", "-1", "65", "x", "2:", "2:0", "2:-5", "2:512x", ":512",
                           "99999999999", "2:9999999999999999"}) {
    EXPECT_INVALID(parse_virtual_gpus("flag", text), "flag: expected");
  }
  EXPECT_INVALID(set_virtual_gpus({0, 0}), "set_virtual_gpus");
}

}  // namespace
}  // namespace tutti
