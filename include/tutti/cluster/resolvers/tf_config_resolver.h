// Resolver for the environment variable TF_CONFIG.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

/// Cluster from TF_CONFIG (tf's TFConfigClusterResolver): {"cluster": {"chief": ["a:2222"],
/// "worker": ["b:2222", "c:2222"]}, "task": {"type": "worker", "index": 1}, "rpc_layer": "grpc"}.
/// If the variable is unset, empty or {}, the cluster is empty.
///
/// The constructor validates TF_CONFIG: types of values, unique host:port addresses, the task's
/// index in the cluster, and at most one chief and one evaluator. Throws kInvalidArgument with one
/// line "TF_CONFIG.<path>: expected <what>, got <found>; <remedy>".
class TfConfigResolver : public ClusterResolver {
 public:
  /// Reads this process's TF_CONFIG.
  TfConfigResolver() : TfConfigResolver(ResolverOverrides{}) {}
  explicit TfConfigResolver(const ResolverOverrides& overrides,
                            const Environment& environment = Environment::of_process());
  /// Parses `text` instead of the environment variable; messages call it `source` instead of
  /// TF_CONFIG.
  static TfConfigResolver from_text(std::string_view text, const ResolverOverrides& overrides = {},
                                    std::string_view source = "TF_CONFIG");

  std::string name() const override { return source_; }
  ClusterSpec cluster_spec() const override { return cluster_; }
  std::string job_id() const override { return job_id_; }

 protected:
  /// Returns session_master if set; "" if the cluster has at most one task.
  std::string find_master(const MasterQuery& query) const override;

 private:
  TfConfigResolver(std::string_view text, const ResolverOverrides& overrides,
                   std::string_view source);

  std::string source_;
  std::string job_id_;
  ClusterSpec cluster_;
  std::optional<std::string> session_master_;
};

}  // namespace tutti
