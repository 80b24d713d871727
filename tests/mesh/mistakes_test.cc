// Tests the errors for layouts, reads and options that MeshStrategy refuses.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/mesh/mesh_position.h"
#include "tests/mesh/mesh_helpers.h"

namespace tutti::mesh_tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MeshOptions, MeshParsingValidatesAxes) {
  EXPECT_EQ(DeviceMesh::parse("data=2,model=4"), (DeviceMesh{{"data", 2}, {"model", 4}}));
  for (const char* text : {"", "data", "data=", "data=2,,", "=2", "data=x"}) {
    EXPECT_NE(message_of([&] { DeviceMesh::parse(text); }), "") << text;
  }
  EXPECT_THAT(message_of([] { DeviceMesh{{"a", 2}, {"a", 2}}; }), HasSubstr("two axes are named"));
  EXPECT_THAT(message_of([] { DeviceMesh{{"a", 0}}; }), HasSubstr("size >= 1"));
}

TEST(MeshOptions, LayoutLookupRejectsAmbiguousPatterns) {
  LayoutMap map = {{"dense/kernel", {"", "model"}}, {"bias$", {"model"}}};
  EXPECT_EQ(map.find("dense/kernel"), (Layout{"", "model"}));
  EXPECT_EQ(map.find("dense_3/bias"), (Layout{"model"}));
  EXPECT_EQ(map.find("dense_3/kernel"), std::nullopt);
  map.set("dense_3", {"model"});
  EXPECT_THAT(message_of([&] { map.find("dense_3/bias"); }),
              AllOf(HasSubstr("'bias$'"), HasSubstr("'dense_3'")));
  EXPECT_THAT(message_of([&] { map.set("bias$", {"model"}); }), HasSubstr("has the layout"));
  EXPECT_THAT(message_of([&] { map.set("(", {"model"}); }), HasSubstr("regular expression"));
}

TEST(MeshOptions, InvalidLayoutErrorNamesVariable) {
  const auto message = [](const Layout& layout) {
    MeshStrategy strategy(on_mesh({{"data", 2}, {"model", 4}}, {{"w", layout}}));
    const auto scope = strategy.scope();
    return message_of([&] { Variable w(Tensor::zeros({6, 8}), {.name = "w"}); });
  };
  EXPECT_THAT(message({"model", ""}), AllOf(HasSubstr("variable 'w'"), HasSubstr("4 positions")));
  EXPECT_THAT(message({"", "modle"}), HasSubstr("data, model"));
  EXPECT_THAT(message({"model"}), HasSubstr("1 dimensions"));
  EXPECT_THAT(message({"data", "data"}), HasSubstr("twice"));
  EXPECT_EQ(message({"data", "model"}), "");
}

TEST(MeshOptions, UnsupportedOptionsAreRejected) {
  const auto message = [](const auto& change) {
    MeshOptions options = on_mesh({{"data", 4}});
    change(options);
    return message_of([&] { MeshStrategy strategy(options); });
  };
  EXPECT_THAT(message([](MeshOptions& o) { o.local.replicas = 2; }), HasSubstr("one replica"));
  EXPECT_THAT(message([](MeshOptions& o) { o.local.devices = "cpu:0-1"; }),
              HasSubstr("expected 4"));
  EXPECT_THAT(message([](MeshOptions& o) { o.local.cross_device_ops.name = "ring"; }),
              HasSubstr("expected cross_device_ops canonical"));
  EXPECT_THAT(message([](MeshOptions& o) {
                o.local.cross_device_ops.options.compression = WireCompression::kBFloat16;
              }),
              HasSubstr("compression bfloat16"));
  EXPECT_THAT(message([](MeshOptions& o) {
                o.local.cross_device_ops.options.non_finite = NonFinitePolicy::kSkip;
              }),
              HasSubstr("non_finite skip"));
  EXPECT_THAT(message([](MeshOptions& o) { o.batch_axes = {"rows"}; }), HasSubstr("one of data"));
  EXPECT_THAT(message([](MeshOptions& o) { o.blocks = {{"data", 6}}; }), HasSubstr("multiple"));
}

TEST(MeshSteps, DivergenceErrorNamesBothLines) {
  MeshOptions options = on_mesh({{"data", 2}});
  options.local.timeout = std::chrono::seconds(5);
  MeshStrategy strategy(options);
  std::string lines[2];
  const std::string message = message_of([&] {
    strategy.run([&] {
      const Tensor x = relayout(Tensor::ones({4}), {"data"});
      const auto next_line = [](const SourceLocation& here = SourceLocation::current()) {
        return concat("mistakes_test.cc:", here.line() + 1);
      };
      if (internal::MeshPosition::current()->number() == 0) {
        lines[0] = next_line();
        return x.to_doubles()[0];
      }
      lines[1] = next_line();
      return reduce_sum(x).item_double();
    });
  });
  EXPECT_THAT(message, AllOf(HasSubstr(lines[0]), HasSubstr(lines[1])));
}

TEST(MeshSteps, RepeatedReadNeedsNoExchange) {
  MeshOptions options = on_mesh({{"data", 2}});
  options.local.timeout = std::chrono::seconds(5);
  MeshStrategy strategy(options);
  const auto sums = strategy.run([] {
    const Tensor x = relayout(Tensor::from<float>({4}, {1, 2, 3, 4}), {"data"});
    const double sum = x.to_doubles()[0] + x.to_doubles()[3];
    return internal::MeshPosition::current()->number() == 0 ? sum + x.to_doubles()[1] : sum;
  });
  EXPECT_EQ(sums[0], 7.0);
}

TEST(MeshSteps, ErrorNamesMeshPosition) {
  MeshStrategy strategy(on_mesh({{"data", 2}}));
  const std::string message = message_of([&] {
    strategy.run([] {
      if (internal::MeshPosition::current()->number() == 1) fail(ErrorCode::kOutOfRange, "mine");
    });
  });
  EXPECT_THAT(message, HasSubstr("position 1, step 0: mine"));
}

TEST(MeshSteps, MergeCallIsRejected) {
  MeshStrategy strategy(on_mesh({{"data", 2}}));
  EXPECT_THAT(message_of([&] {
                strategy.run([] {
                  ReplicaContext::current().merge_call([](Strategy&, const PerReplica<int>&) {}, 1);
                });
              }),
              HasSubstr("one replica"));
}

TEST(MeshSteps, ReturnedValuesAreUnsharded) {
  MeshStrategy strategy(on_mesh({{"data", 2}, {"model", 2}}));
  const auto result = strategy.run([] {
    return relayout(Tensor::from<float>({2, 2}, {1, 2, 3, 4}), {"data", "model"}) * 2.0f;
  });
  ASSERT_EQ(result.size(), 1u);
  EXPECT_EQ(result[0].to_doubles(), (std::vector<double>{2, 4, 6, 8}));
}

}  // namespace
}  // namespace tutti::mesh_tests
