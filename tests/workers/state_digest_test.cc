// A bit that flips in the memory of one worker is noticed by all.
// SPDX-License-Identifier: Apache-2.0
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/multi_process_runner.h"
#include "tutti/tutti.h"

namespace tutti::state_digest_tests {
namespace {

using ::testing::HasSubstr;
using testing::MultiProcessRunner;
using testing::this_process;

constexpr int kDigestSteps = 3;

/// In place, as a defect of memory does it: whoever shares the buffer sees it.
void flip_a_bit_of(const Variable& variable) {
  const Tensor value = variable.storage().local_components().back();
  const std::span<const std::byte> bytes = value.bytes();
  const_cast<std::byte&>(bytes[bytes.size() / 2]) ^= std::byte{4};
}

/// Trains `steps` steps; after step `flip_after` worker `flip_on` loses a bit. What ended it.
Json train(const std::string& devices, int steps, int flip_after, int flip_on) {
  MultiWorkerMirroredStrategy strategy(
      *resolver_from_environment(),
      MultiWorkerOptions{.local = {.devices = devices}, .digest_steps = kDigestSteps});
  const auto scope = strategy.scope();
  Variable weight(Tensor::zeros({64}), {.name = "weight"});
  Variable bias(Tensor::zeros({8}), {.name = "bias"});
  Adam optimizer(std::vector<Variable>{weight, bias}, {.learning_rate = 0.1});
  Json result = Json::object();
  int step = 0;
  try {
    while (step < steps) {
      strategy.run([&] {
        GradientTape tape;
        optimizer.minimize(tape, reduce_sum(square(weight.value() - 1.0f)) +
                                     reduce_sum(square(bias.value() + 1.0f)));
      });
      ++step;
      if (step == flip_after && this_process().index == flip_on) flip_a_bit_of(bias);
    }
    result.set("code", "OK");
  } catch (const Error& error) {
    result.set("code", to_string(error.code()));
    result.set("message", error.message());
  }
  result.set("steps", step);
  return result;
}

TUTTI_PROCESS_FUNCTION(digest_flip_of_three) {
  return train("cpu:0", 12, static_cast<int>(arguments.at("after").as_int()), 1);
}
TUTTI_PROCESS_FUNCTION(digest_flip_of_two) { return train("cpu:0-1", 12, 4, 0); }
TUTTI_PROCESS_FUNCTION(digest_calm) { return train("cpu:0-1", 12, 0, -1); }

TEST(StateDigest, FlippedBitIsReportedWithWorkerAndVariable) {
  for (const int after : {3, 4, 5}) {
    MultiProcessRunner runner("digest_flip_of_three", {.num_workers = 3},
                              Json::parse(concat("{\"after\": ", after, "}")));
    runner.start();
    const auto& values = runner.join().return_values;
    ASSERT_EQ(values.size(), 3u);
    for (const Json& value : values) {
      EXPECT_EQ(value.at("code").as_string(), "DATA_LOSS") << value.dump();
      EXPECT_EQ(value.at("steps").as_int(), 5);  // found in the sixth, at most kDigestSteps later
      const std::string message = value.at("message").as_string();
      EXPECT_THAT(message, HasSubstr("after step 6: the workers' values of 'bias"));
      EXPECT_THAT(message, HasSubstr("differ: worker 1 has "));
      EXPECT_THAT(message, HasSubstr(", worker 0, 2 has "));
    }
  }
}

TEST(StateDigest, FlippedBitOfOneComponentIsReported) {
  MultiProcessRunner runner("digest_flip_of_two", {.num_workers = 2});
  runner.start();
  for (const Json& value : runner.join().return_values) {
    EXPECT_EQ(value.at("code").as_string(), "DATA_LOSS") << value.dump();
    const std::string message = value.at("message").as_string();
    EXPECT_THAT(message, HasSubstr("'bias"));
    EXPECT_THAT(message, ::testing::ContainsRegex("worker 0 has [0-9a-f]+/[0-9a-f]+"));
  }
}

TEST(StateDigest, EqualWorkersContinue) {
  MultiProcessRunner runner("digest_calm", {.num_workers = 2});
  runner.start();
  for (const Json& value : runner.join().return_values) {
    EXPECT_EQ(value.at("code").as_string(), "OK") << value.dump();
    EXPECT_EQ(value.at("steps").as_int(), 12);
  }
}

}  // namespace
}  // namespace tutti::state_digest_tests
