// A call of all workers that one of them makes alone: the error names the user's line.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/multi_process_runner.h"
#include "tutti/tutti.h"

namespace tutti::lonely_call_tests {
namespace {

using testing::MultiProcessRunner;
using testing::this_process;

struct LonelyCall {
  const char* text;
  int line;
  std::function<void(const std::string& file)> make;
};

// The line of the expansion is also that of the calls in it.
#define TUTTI_LONELY_CALL(call)                                                            \
  {                                                                                        \
#call, __LINE__,                                                                       \
        [&](const std::string& file) { static_cast<void>(file), static_cast<void>(call); } \
  }

std::vector<LonelyCall> lonely_calls(Sequential& model, const Tensor& x) {
  return {
      TUTTI_LONELY_CALL(model.predict(x)),
      TUTTI_LONELY_CALL(model.evaluate(x, x)),
      TUTTI_LONELY_CALL(model.save(file)),
      TUTTI_LONELY_CALL(model.save_weights(file)),
      TUTTI_LONELY_CALL(model.checkpoint().save(file)),
      TUTTI_LONELY_CALL(save_weights(file, model.variables())),
      TUTTI_LONELY_CALL(export_onnx(model, file)),
      TUTTI_LONELY_CALL(hash_variables(model.variables())),
  };
}

/// The chief makes one of the calls while the other worker ends.
TUTTI_PROCESS_FUNCTION(lonely_call_of_chief) {
  MultiWorkerMirroredStrategy strategy(*resolver_from_environment(),
                                       MultiWorkerOptions{.local = {.devices = "cpu:0"}});
  const auto scope = strategy.scope();
  Sequential model(Input{{2}}, Dense(2), BatchNormalization());
  model.compile({.optimizer = "sgd", .loss = "mse"});
  const Tensor x = Tensor::ones({4, 2});
  const std::vector<LonelyCall> calls = lonely_calls(model, x);
  const std::int64_t number = arguments.at("number").as_int();
  if (!strategy.is_chief()) return Json();
  const LonelyCall& own = calls[static_cast<std::size_t>(number)];
  const std::string place = concat("lonely_calls_test.cc:", own.line);
  try {
    own.make(arguments.at("file").as_string());
  } catch (const Error& error) {
    const bool is_named = error.message().find(place) != std::string::npos;
    return Json(is_named ? "named" : concat(own.text, " at ", place, ": ", error.message()));
  }
  return Json(concat(own.text, " ended without an error"));
}

TEST(LonelyCall, NamesTheLineOfTheUser) {
  const std::string file =
      (std::filesystem::path(::testing::TempDir()) / concat("lonely-", ::getpid(), ".safetensors"))
          .string();
  constexpr int kCalls = 8;
  for (int number = 0; number < kCalls; ++number) {
    MultiProcessRunner runner("lonely_call_of_chief", {.num_workers = 2},
                              Json::object().set("number", number).set("file", file));
    runner.start();
    EXPECT_EQ(runner.join().return_values.front(), Json("named"));
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace tutti::lonely_call_tests
