// The cluster as the variable TF_CONFIG describes it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

/// tf's TFConfigClusterResolver. TF_CONFIG holds {"cluster": {"chief": ["a:2222"], "worker":
/// ["b:2222", "c:2222"]}, "task": {"type": "worker", "index": 1}, "rpc_layer": "grpc"}. Missing,
/// empty or {}: an empty cluster.
///
/// Everything is checked at once: kinds of values, addresses (host:port, each only once), the
/// task's place in the cluster, at most one chief and one evaluator. Throws kInvalidArgument, one
/// line "TF_CONFIG.<path>: expected <what>, got <what stands there>; try to <remedy>".
class TfConfigResolver : public ClusterResolver {
 public:
  /// Reads this process's TF_CONFIG.
  TfConfigResolver() : TfConfigResolver(ResolverOverrides{}) {}
  explicit TfConfigResolver(const ResolverOverrides& overrides,
                            const Environment& environment = Environment::of_process());
  /// Reads a text that is not from the environment; `source` stands for TF_CONFIG in messages.
  static TfConfigResolver from_text(std::string_view text, const ResolverOverrides& overrides = {},
                                    std::string_view source = "TF_CONFIG");

  std::string name() const override { return source_; }
  ClusterSpec cluster_spec() const override { return cluster_; }
  std::string job_id() const override { return job_id_; }

 protected:
  /// session_master if there is one; "" for a cluster of at most one task.
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
