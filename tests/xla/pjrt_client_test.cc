// Tests finding plugins, and a plugin's devices.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/pjrt_client.h"
#include "tests/support/scopes.h"
#include "tests/xla/xla_test_support.h"

namespace tutti::internal {
namespace {

std::string why_refused(const std::string& path) {
  try {
    const PjrtPlugin plugin(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    return error.message();
  }
  return "opened";
}

void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words)
    EXPECT_NE(text.find(word), std::string::npos) << word << ": " << text;
}

TEST(PjrtPlugin, SaysWhatIsWrongWithALibrary) {
  expect_words(why_refused("/nowhere/plugin.so"), {"/nowhere/plugin.so", "does not open"});
  expect_words(why_refused("libm.so.6"), {"is no PJRT plugin", "GetPjrtApi", "TUTTI_PJRT_PLUGIN"});
  expect_words(why_refused(TUTTI_TEST_OTHER_PLUGIN), {"expected version 0.x", "1.0"});
  expect_words(why_refused(TUTTI_TEST_SHORT_PLUGIN), {"table of 608 bytes", "0.5 with 280"});
}

TEST(PjrtPlugin, IsLookedForWhereTheEnvironmentSays) {
  EXPECT_EQ(pjrt_plugin_candidates(), std::vector<std::string>{kPlugin});
  const test_scopes::EnvironmentScope none("TUTTI_PJRT_PLUGIN", std::nullopt);
  const test_scopes::EnvironmentScope library("TPU_LIBRARY_PATH", "/tpu/libtpu.so");
  const test_scopes::EnvironmentScope python("PYTHONPATH", "/one:/two");
  const std::vector<std::string> candidates = pjrt_plugin_candidates();
  ASSERT_GT(candidates.size(), 5u);
  EXPECT_EQ(candidates[0], "/tpu/libtpu.so");
  EXPECT_EQ(candidates[1], "/one/libtpu/libtpu.so");
  EXPECT_EQ(candidates[5], "/two/libtpu/libtpu.so");
}

TEST(PjrtClient, ElementsOfEveryTypeComeBackAsTheyWent) {
  const PjrtClient& client = PjrtClient::get();
  for (const DType dtype : kAllDTypes) {
    const Tensor sent = cast(Tensor::from<float>({2, 3}, {0, 1, 0, 1, 1, 0}), dtype);
    const auto buffer = client.upload(sent.bytes().data(), sent.shape(), dtype, 1);
    buffer->check(sent.shape(), dtype, "test");
    std::vector<std::byte> got(sent.num_bytes());
    buffer->to_host(got.data(), got.size());
    EXPECT_TRUE(std::ranges::equal(got, sent.bytes())) << to_string(dtype);
  }
}

TEST(PjrtClient, ABufferOfAnotherShapeOrTypeIsFoundBeforeItIsUsed) {
  const PjrtClient& client = PjrtClient::get();
  const float number = 1.0f;
  const auto buffer = client.upload(&number, {1}, DType::kFloat32, 0);
  EXPECT_THROW(buffer->check({}, DType::kFloat32, "test"), Error);
  EXPECT_THROW(buffer->check({1}, DType::kInt32, "test"), Error);
}

TEST(PjrtClient, TheCompilersWordsAreInTheError) {
  try {
    (void)PjrtClient::get().compile("module @m { func.func nonsense }", {0});
    FAIL();
  } catch (const Error& error) {
    expect_words(error.message(), {"compiling a step for XLA", "error"});
  }
}

TEST(XlaDevicesOfThisProcess, AreThoseOfThePlugin) {
  const XlaDevices& devices = xla_devices();
  EXPECT_EQ(devices.platform, "cpu");
  EXPECT_EQ(devices.count, 8);
  EXPECT_EQ(devices.plugin, kPlugin);
  EXPECT_TRUE(devices.version.starts_with("0.")) << devices.version;
  EXPECT_EQ(devices.why_none, "");
}

}  // namespace
}  // namespace tutti::internal
