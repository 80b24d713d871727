// Resolvers for Kubernetes: pods named by a headless service, or a list of pods.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/core/json.h"

namespace tutti {

struct KubernetesResolverOptions {
  /// Jobs with their task counts. Default: TUTTI_KUBERNETES_JOBS ("chief=1,worker=3").
  std::vector<std::pair<std::string, int>> jobs = {};
  /// Port of every task. 0: TUTTI_KUBERNETES_PORT, or 2222 if unset.
  int port = 0;
  /// The headless service. Default: TUTTI_KUBERNETES_SERVICE, or the pods' common name if unset.
  std::string service = {};
  std::string rpc_layer = "grpc";
};

/// Cluster of pods that address each other by name. HOSTNAME "train-worker-1" is worker 1 of the
/// set "train", whose tasks are at train-worker-0.train:2222 and so on; "train-1", as in a
/// StatefulSet or an indexed Job, is task 1 of the only job, at train-1.train:2222. (A TFJob sets
/// TF_CONFIG; use TfConfigResolver there.) Throws kFailedPrecondition or kInvalidArgument naming a
/// missing or invalid variable.
class KubernetesResolver : public ClusterResolver {
 public:
  explicit KubernetesResolver(const KubernetesResolverOptions& options = {},
                              const Environment& environment = Environment::of_process());

  std::string name() const override { return "Kubernetes"; }
  ClusterSpec cluster_spec() const override { return cluster_; }

 private:
  ClusterSpec cluster_;
};

/// Description of a pod for KubernetesPodsResolver.
struct Pod {
  std::string name = {};
  std::string phase = {};  // "Running"
  std::string ip = {};
  std::map<std::string, std::string> labels = {};
  int num_gpus = 0;  // sum of the "nvidia.com/gpu" limits of its containers
};

/// Parses the output of `kubectl get pods -o json`. Throws kInvalidArgument with the JSON path.
std::vector<Pod> pods_from_json(const Json& list, std::string_view path = "pods");

struct KubernetesPodsOptions {
  /// Label selectors "key=value,key2=value2" for each job's pods. Pods that match one selector are
  /// sorted by name; selectors keep their order.
  std::vector<std::pair<std::string, std::vector<std::string>>> job_to_label_mapping = {
      {"worker", {"job-name=tensorflow"}}};
  int port = 8470;
  ResolverOverrides overrides = {};  // this process's task, which the pods do not identify
  std::string rpc_layer = "grpc";
};

/// Cluster from a list of pods that the caller obtained (tf's KubernetesClusterResolver). Throws
/// kFailedPrecondition, naming the pod, if a selected pod is not running or has no address yet.
class KubernetesPodsResolver : public ClusterResolver {
 public:
  explicit KubernetesPodsResolver(const std::vector<Pod>& pods,
                                  const KubernetesPodsOptions& options = {});

  std::string name() const override { return "Kubernetes"; }
  ClusterSpec cluster_spec() const override { return cluster_; }

 protected:
  /// Returns the GPU limits of another task's pod.
  std::map<std::string, int> find_accelerators(const std::optional<Task>& other) const override;

 private:
  ClusterSpec cluster_;
  std::map<Task, int> num_gpus_;
};

}  // namespace tutti
