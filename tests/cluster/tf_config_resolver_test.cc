// TF_CONFIG: what tf's tests expect of it, and which unusual texts are accepted.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/resolvers/tf_config_resolver.h"

#include <gtest/gtest.h>

#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/multi_worker_util.h"

namespace tutti {
namespace tf_config_resolver_test {

using testing::expect_error;

constexpr const char* kCluster =
    R"("cluster": {"ps": ["ps0:2222", "ps1:2222"],
                   "worker": ["worker0:2222", "worker1:2222", "worker2:2222"]})";

TfConfigResolver read(const std::string& members, const ResolverOverrides& overrides = {}) {
  return TfConfigResolver(overrides, Environment({{"TF_CONFIG", "{" + members + "}"}}));
}

std::string with_cluster(const std::string& members) { return concat(kCluster, ", ", members); }

TEST(TfConfigResolver, GivesClusterTaskAndMaster) {
  const TfConfigResolver resolver = read(with_cluster(R"("task": {"type": "ps", "index": 0})"));
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"ps", {"ps0:2222", "ps1:2222"}},
                         {"worker", {"worker0:2222", "worker1:2222", "worker2:2222"}}}));
  EXPECT_EQ(resolver.task(), (Task{"ps", 0}));
  EXPECT_EQ(resolver.master(), "ps0:2222");
  EXPECT_EQ(resolver.master("worker", 1), "worker1:2222");
  EXPECT_EQ(resolver.master("ps", 1, "test"), "test://ps1:2222");
  expect_error(ErrorCode::kNotFound, {"'worker' has no task 3", "0, 1, 2"},
               [&] { resolver.master("worker", 3); });
}

TEST(TfConfigResolver, PrefixesMasterWithRpcLayer) {
  const TfConfigResolver resolver =
      read(with_cluster(R"("task": {"type": "ps", "index": 0}, "rpc_layer": "grpc")"));
  EXPECT_EQ(resolver.rpc_layer(), "grpc");
  EXPECT_EQ(resolver.master(), "grpc://ps0:2222");
}

TEST(TfConfigResolver, SessionMasterOverridesTheTask) {
  const TfConfigResolver resolver = read(with_cluster(
      R"("task": {"type": "ps", "index": 0}, "session_master": "sessionmaster:2222")"));
  EXPECT_EQ(resolver.master(), "sessionmaster:2222");
  EXPECT_EQ(resolver.master("worker", 1), "sessionmaster:2222");
}

TEST(TfConfigResolver, ReadsNumbersAsTextAndTextAsNumbers) {
  const TfConfigResolver resolver =
      read(R"("cluster": {"123456": ["a:1", "b:1"]}, "task": {"type": 123456, "index": "1"})");
  EXPECT_EQ(resolver.task_type(), "123456");
  EXPECT_EQ(resolver.task_id(), 1);
  EXPECT_EQ(resolver.master(), "b:1");
}

TEST(TfConfigResolver, ArgumentsAndLaterSetsOverride) {
  TfConfigResolver resolver =
      read(with_cluster(R"("task": {"type": "ps", "index": 1}, "rpc_layer": "grpc")"),
           {.task_type = "ps", .task_id = 0, .rpc_layer = "test", .environment = "lab"});
  EXPECT_EQ(resolver.master(), "test://ps0:2222");
  EXPECT_EQ(resolver.environment(), "lab");
  resolver.set_task_type("worker");
  resolver.set_task_id(1);
  resolver.set_rpc_layer("test");
  EXPECT_EQ(resolver.master(), "test://worker1:2222");
  EXPECT_EQ(resolver.task(), (Task{"worker", 1}));
}

TEST(TfConfigResolver, HasNoMasterWithoutPeers) {
  EXPECT_EQ(read("").master(), "");
  EXPECT_EQ(read(R"("cluster": {"worker": ["worker0:2222"]})").master(), "");
  EXPECT_EQ(TfConfigResolver({}, Environment()).master(), "");
  EXPECT_EQ(read("").task(), std::nullopt);
}

TEST(TfConfigResolver, AcceptsWhatIsUnusualButClear) {
  for (const char* text : {"", "  \n", "{}", R"({"cluster": {}})", R"({"cluster": {"ps": []}})",
                           R"({"task": {"type": "worker", "index": 0}})",
                           R"({"model_dir": "/models", "job": {"args": []}})"}) {
    const TfConfigResolver resolver({}, Environment({{"TF_CONFIG", text}}));
    EXPECT_EQ(resolver.cluster_spec().total_tasks(), 0) << text;
    EXPECT_NO_THROW(validate_cluster(resolver)) << text;
  }
  for (const char* addresses :
       {R"(["[::1]:2222"])", R"(["[fe80::1%eth0]:1"])", R"(["a-b.example.com:65535"])",
        R"(["127.0.0.1:1", "127.0.0.1:2"])", R"({"0": "a:1", "1": "b:1"})", R"(["my_host:80"])"}) {
    const std::string text = concat(R"("cluster": {"worker": )", addresses,
                                    R"(}, "task": {"type": "worker", "index": 0})");
    EXPECT_NO_THROW(validate_cluster(read(text))) << text;
  }
}

TEST(TfConfigResolver, AnEvaluatorMayStandOutsideTheCluster) {
  const TfConfigResolver resolver =
      read(R"("cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0})");
  EXPECT_NO_THROW(validate_cluster(resolver));
  EXPECT_TRUE(is_chief(resolver.cluster_spec(), *resolver.task()));
}

TEST(TfConfigResolver, TFJobsEnvironmentIsKept) {
  const TfConfigResolver resolver = read(
      R"("cluster": {"worker": ["mnist-worker-0.default.svc:2222", "mnist-worker-1.default.svc:2222"]},
         "task": {"type": "worker", "index": 1}, "environment": "cloud")");
  EXPECT_EQ(resolver.environment(), "cloud");
  EXPECT_EQ(resolver.master(), "mnist-worker-1.default.svc:2222");
}

TEST(TfConfigResolver, OverridesAreCheckedUnderTheirOwnNames) {
  expect_error(
      ErrorCode::kInvalidArgument, {"task_id: expected an index from 0 to 2", "got 3"},
      [] { read(with_cluster(R"("task": {"type": "worker", "index": 0})"), {.task_id = 3}); });
  expect_error(ErrorCode::kInvalidArgument,
               {"task_type: expected a job", "ps, worker", "\"chief\""},
               [] { read(kCluster, {.task_type = "chief", .task_id = 0}); });
}

TEST(TfConfigResolver, KeepsItsAnswerWhenTheEnvironmentChanges) {
  const std::string name = "TF_CONFIG";
  Environment environment({{name, R"({"cluster": {"worker": ["a:1", "b:1"]}})"}});
  const TfConfigResolver resolver({}, environment);
  environment = Environment();
  EXPECT_EQ(resolver.cluster_spec().num_tasks("worker"), 2);
  EXPECT_EQ(resolver.name(), name);
}

TEST(TfConfigResolver, ReadsTextsUnderAnotherName) {
  const TfConfigResolver good = TfConfigResolver::from_text(R"({"cluster": {"worker": ["a:1"]}})");
  EXPECT_EQ(good.cluster_spec().num_tasks("worker"), 1);
  expect_error(ErrorCode::kInvalidArgument, {"cluster.json.cluster.worker[0]: expected"}, [] {
    TfConfigResolver::from_text(R"({"cluster": {"worker": ["a"]}})", {}, "cluster.json");
  });
}

TEST(TfConfigResolver, SaysOneShortLineWhateverTheLength) {
  const std::vector<std::string> texts{
      R"({"cluster": {"worker": [")" + std::string(1 << 20, 'a') + R"("]}})",
      R"({"cluster": )" + std::string(1 << 20, '"') + "}",
      R"({"cluster": {"worker": {"0)" + std::string(1 << 20, '1') + R"(": ""}}})",
      R"({"cluster": {")" + std::string(1 << 20, '\x01') + R"(": []}})",
      R"({"cluster": {"a\nb": 1, "a\nb": 2}})",
      R"({"cluster": {"worker": ["\u2028\u0085\u007f"]}})",
      "{\"cluster\": \"" + std::string(100, '\xc3') + "\"}",
      std::string(17 << 20, ' ') + "{"};
  for (const std::string& text : texts) {
    try {
      TfConfigResolver::from_text(text);
      ADD_FAILURE() << "accepted " << text.substr(0, 80);
    } catch (const Error& error) {
      EXPECT_LT(error.message().size(), 500U) << error.message().substr(0, 500);
      EXPECT_EQ(error.message().find_first_of("\n\r"), std::string::npos) << text.substr(0, 80);
      EXPECT_EQ(error.message().find("\xe2\x80\xa8"), std::string::npos) << text.substr(0, 80);
    }
  }
}

}  // namespace tf_config_resolver_test
}  // namespace tutti
