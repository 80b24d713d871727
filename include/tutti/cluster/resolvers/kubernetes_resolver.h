// Clusters of pods: by the names that a headless service gives them, or from a list of pods.
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
  /// Jobs and their numbers of tasks. Empty: as TUTTI_KUBERNETES_JOBS says ("chief=1,worker=3").
  std::vector<std::pair<std::string, int>> jobs = {};
  /// Port of every task; 0: as TUTTI_KUBERNETES_PORT says, else 2222.
  int port = 0;
  /// The headless service. Empty: as TUTTI_KUBERNETES_SERVICE says, else the pods' common name.
  std::string service = {};
  std::string rpc_layer = "grpc";
};

/// Pods that know each other by name. HOSTNAME "train-worker-1" is worker 1 of the set "train",
/// whose tasks are at train-worker-0.train:2222 and so on; "train-1", as a StatefulSet or an
/// indexed Job names its pods, is worker 1 at train-1.train:2222. (A TFJob sets TF_CONFIG:
/// TfConfigResolver.) Throws kFailedPrecondition for what is missing, kInvalidArgument for what
/// does not fit, each naming the variable.
class KubernetesResolver : public ClusterResolver {
 public:
  explicit KubernetesResolver(const KubernetesResolverOptions& options = {},
                              const Environment& environment = Environment::of_process());

  std::string name() const override { return "Kubernetes"; }
  ClusterSpec cluster_spec() const override { return cluster_; }

 private:
  ClusterSpec cluster_;
};

/// What is to be known of a pod.
struct Pod {
  std::string name = {};
  std::string phase = {};  // "Running"
  std::string ip = {};
  std::map<std::string, std::string> labels = {};
  int num_gpus = 0;  // limits of "nvidia.com/gpu", of all its containers
};

/// Reads what `kubectl get pods -o json` prints. Throws kInvalidArgument with the JSON path.
std::vector<Pod> pods_from_json(const Json& list, std::string_view path = "pods");

struct KubernetesPodsOptions {
  /// Which pods are which job's tasks: label selectors "key=value,key2=value2". Pods of one
  /// selector are sorted by name, selectors come in the order given.
  std::vector<std::pair<std::string, std::vector<std::string>>> job_to_label_mapping = {
      {"worker", {"job-name=tensorflow"}}};
  int port = 8470;
  ResolverOverrides overrides = {};  // a list of pods says nothing of this process's own task
  std::string rpc_layer = "grpc";
};

/// tf's KubernetesClusterResolver on a list of pods that somebody else got. Throws
/// kFailedPrecondition naming a chosen pod that is not running, or has no address yet.
class KubernetesPodsResolver : public ClusterResolver {
 public:
  explicit KubernetesPodsResolver(const std::vector<Pod>& pods,
                                  const KubernetesPodsOptions& options = {});

  std::string name() const override { return "Kubernetes"; }
  ClusterSpec cluster_spec() const override { return cluster_; }

 protected:
  /// Of other tasks what their pods are limited to.
  std::map<std::string, int> find_accelerators(const std::optional<Task>& other) const override;

 private:
  ClusterSpec cluster_;
  std::map<Task, int> num_gpus_;
};

}  // namespace tutti
