// Steps by name: signatures, arguments, and the comparison of two tasks.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/step_registry.h"

#include <gtest/gtest.h>

#include "tests/support/tensor_matchers.h"

namespace tutti::internal {
namespace step_registry_test {

using testing::expect_error;

struct OwnValue {
  int number = 0;
};

/// One value of a type, whatever the handle.
class OneResource final : public WorkerResources {
 public:
  std::shared_ptr<void> find(const PerWorkerHandle&) override { return value; }
  const std::shared_ptr<OwnValue> value = std::make_shared<OwnValue>();
};

float scaled(const Tensor& x, float factor) { return x.item() * factor; }

TEST(StepRegistry, SignaturesComeFromTheTypes) {
  StepRegistry registry;
  registry.define("scaled", &scaled);
  registry.define("mixed", [](const std::string&, std::vector<std::pair<int, bool>>, OwnValue&,
                              std::optional<double>) { return std::map<std::string, Tensor>{}; });
  EXPECT_EQ(registry.find("scaled").signature, "scaled(Tensor, float32) -> float32");
  EXPECT_EQ(registry.find("mixed").signature,
            "mixed(text, list of (int32, bool), per-worker "
            "tutti::internal::step_registry_test::OwnValue, float64 or nothing) -> map of Tensor");
  EXPECT_EQ(registry.find("mixed").num_parameters, 4);
}

TEST(StepRegistry, RunsWithConvertedArguments) {
  StepRegistry registry;
  OneResource resources;
  int captured = 0;
  registry.define("scaled", &scaled);
  registry.define("own", [&captured](OwnValue& value, int add) {
    value.number += add;
    captured = value.number;
  });
  const Nest result =
      registry.find("scaled").run(to_nest(std::tuple(Tensor(3.0f), 2.0f)), resources);
  EXPECT_EQ(from_nest<float>(result, "result"), 6.0f);
  const Nest handle(PerWorkerHandle{0, 0, type_name(typeid(OwnValue)), {}});
  EXPECT_TRUE(
      registry.find("own").run(Nest(Nest::List{handle, to_nest(5)}), resources).is_nothing());
  EXPECT_EQ(captured, 5);
  EXPECT_EQ(resources.value->number, 5);
  const auto input_error = [&](const Nest& arguments, const std::vector<std::string>& parts) {
    try {
      registry.find("own").run(arguments, resources);
      ADD_FAILURE() << "no error";
    } catch (const OriginError& error) {
      EXPECT_EQ(error.origin(), ErrorOrigin::kInput);
      for (const std::string& part : parts) {
        EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
      }
    }
  };
  input_error(to_nest(std::tuple(1, 1)), {"argument 0", "expected per-worker", "got int64 []"});
  input_error(to_nest(std::vector<int>{}), {"step 'own': expected 2 arguments, got ()"});
  input_error(Nest(Nest::List{Nest(PerWorkerHandle{0, 0, "int", {}}), to_nest(5)}),
              {"expected per-worker", "got per-worker int"});
}

TEST(StepRegistry, TasksThatDefineOtherStepsAreTold) {
  StepRegistry chief, worker;
  chief.define("train", [](Tensor) {});
  chief.define("evaluate", [](int) {});
  chief.define("same", [] {});
  worker.define("train", [](Tensor, int) {});
  worker.define("same", [] {});
  worker.define("test", [] { return 1.0f; });
  EXPECT_NE(chief.text(), worker.text());
  try {
    StepRegistry::require_same(chief.text(), "the chief", worker.text(), "worker 1");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
    EXPECT_EQ(error.message(),
              "steps: the chief and worker 1 do not define the same; expected one program on all "
              "tasks:\n"
              "  worker 1 lacks evaluate(int32) -> nothing\n"
              "  the chief has train(Tensor) -> nothing\n"
              "  worker 1 has train(Tensor, int32) -> nothing\n"
              "  the chief lacks test() -> float32");
  }
  StepRegistry again;
  again.define("evaluate", [](int) {});
  again.define("same", [] {});
  again.define("train", [](Tensor) {});  // another order
  EXPECT_EQ(again.text(), chief.text());
  StepRegistry::require_same(chief.text(), "a", again.text(), "b");
  again.define_resource("float", "made by a function", [](int, std::uint64_t) { return nullptr; });
  EXPECT_ERROR(StepRegistry::require_same(chief.text(), "a", again.text(), "b"),
               kFailedPrecondition, "a lacks per-worker value 0: float");
}

TEST(StepRegistry, NamesAreChecked) {
  StepRegistry registry;
  for (const char* name : {"", "a(b", "a:b", "a\nb"}) {
    EXPECT_ERROR(registry.define(name, [] {}), kInvalidArgument, "is no name of a step");
  }
  EXPECT_ERROR(registry.find("x"), kNotFound, "no step 'x'", "of 0 names");
  EXPECT_ERROR(registry.find_resource(3), kNotFound, "per-worker value 3", "below 0");
}

}  // namespace step_registry_test
}  // namespace tutti::internal
