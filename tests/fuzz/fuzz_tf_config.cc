// Fuzzes cluster descriptions: TF_CONFIG, ClusterDef, Slurm's lists, and lists of pods or devices.
// SPDX-License-Identifier: Apache-2.0
//
// A cluster parsed from an accepted text must be valid, and must be unchanged after it is written
// and read again. A refused text must cause an error that is one line of valid UTF-8.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cluster/resolvers/slurm_grammar.h"
#include "core/names.h"
#include "tutti/cluster/multi_worker_util.h"
#include "tutti/cluster/resolvers/kubernetes_resolver.h"
#include "tutti/cluster/resolvers/tf_config_resolver.h"
#include "tutti/core/error.h"
#include "tutti/tensor/device.h"

namespace {

template <class Body>
void expect_one_line_at_most(const Body& body) {
  try {
    body();
  } catch (const tutti::Error& error) {
    if (error.code() == tutti::ErrorCode::kInternal) std::abort();
    if (error.message() != tutti::one_line(error.message(), 1000)) std::abort();
  }
}

void read_tf_config(std::string_view text) {
  const tutti::TfConfigResolver resolver = tutti::TfConfigResolver::from_text(text);
  const tutti::ClusterSpec cluster = resolver.cluster_spec();
  if (tutti::ClusterSpec::from_json(cluster.to_json()) != cluster) std::abort();
  if (tutti::ClusterSpec::from_cluster_def(cluster.as_cluster_def()) != cluster) std::abort();
  static_cast<void>(resolver.to_string());
  validate_cluster(resolver);
  const std::vector<tutti::Task> tasks = tutti::training_tasks(cluster);
  for (std::size_t id = 0; id < tasks.size(); ++id) {
    if (id_in_cluster(cluster, tasks[id]) != static_cast<int>(id)) std::abort();
  }
  if (!cluster.empty() && resolver.task()) static_cast<void>(resolver.master());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  expect_one_line_at_most([&] { read_tf_config(text); });
  expect_one_line_at_most([&] { static_cast<void>(tutti::DeviceSpec::parse(text).to_string()); });
  expect_one_line_at_most([&] { tutti::parse_devices(text); });
  expect_one_line_at_most([&] { tutti::expand_node_list(text); });
  expect_one_line_at_most([&] { tutti::expand_tasks_per_node(text); });
  expect_one_line_at_most([&] {
    const tutti::KubernetesPodsResolver pods(tutti::pods_from_json(tutti::Json::parse(text)));
    static_cast<void>(pods.to_string());
  });
  return 0;
}
