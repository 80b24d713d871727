// Implements the Kubernetes resolvers, which interpret pod names and label selectors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/resolvers/kubernetes_resolver.h"

#include <algorithm>
#include <optional>

#include "cluster/json_place.h"
#include "cluster/resolvers/found_tasks.h"
#include "core/names.h"
#include "core/network_address.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr const char* kKubernetes = "Kubernetes";

/// Parts of a pod's name. "train-worker-1" has set "train", job "worker" and index 1. "train-1" has
/// no job.
struct PodName {
  std::string set;
  std::optional<std::string> job;
  int index = 0;

  /// Returns the name of the pod that runs another task of the set.
  std::string of(const Task& task) const {
    return job ? concat(set, "-", task.type, "-", task.index) : concat(set, "-", task.index);
  }
};

PodName parse_pod_name(std::string_view hostname, const internal::JobCounts& jobs) {
  const std::string_view name = hostname.substr(0, hostname.find('.'));
  const std::size_t dash = name.rfind('-');
  const std::optional<int> index =
      dash == name.npos || dash == 0
          ? std::nullopt
          : internal::parse_index(name.substr(dash + 1), internal::kMostTasks);
  if (!index) {
    internal::fail_place("HOSTNAME", "a pod's name that ends in its number, such as train-worker-0",
                         internal::shown(Json(hostname)), "use a StatefulSet or an indexed Job");
  }
  const std::string_view front = name.substr(0, dash);
  for (const auto& [job, count] : jobs) {
    const std::string ending = "-" + job;
    if (!front.ends_with(ending) || front.size() == ending.size()) continue;
    return {std::string(front.substr(0, front.size() - ending.size())), job, *index};
  }
  return {std::string(front), std::nullopt, *index};
}

internal::JobCounts jobs_from(const KubernetesResolverOptions& options,
                              const Environment& environment) {
  if (!options.jobs.empty()) return options.jobs;
  constexpr const char* kVariable = "TUTTI_KUBERNETES_JOBS";
  return internal::parse_job_counts(
      environment.at(kKubernetes, kVariable,
                     "expected the numbers of tasks, such as chief=1,worker=3"),
      kVariable);
}

int port_from(const KubernetesResolverOptions& options, const Environment& environment) {
  if (options.port == 0) {
    return environment.find_int("TUTTI_KUBERNETES_PORT", 1, 65535).value_or(2222);
  }
  if (options.port < 1 || options.port > 65535) {
    internal::fail_place("port", "1 to 65535", concat(options.port));
  }
  return options.port;
}

// Throws if pod names do not contain a job name but there are several jobs, because a pod's task
// would be ambiguous.
void check_jobs_have_names(const PodName& own, const internal::JobCounts& jobs) {
  if (own.job || jobs.size() == 1) return;
  internal::fail_place("HOSTNAME", "a pod's name with its job, such as train-worker-0",
                       one_line(concat(own.set, "-", own.index)), "name the pods after their jobs");
}

}  // namespace

KubernetesResolver::KubernetesResolver(const KubernetesResolverOptions& options,
                                       const Environment& environment) {
  const internal::JobCounts jobs = jobs_from(options, environment);
  const PodName own =
      parse_pod_name(environment.at(kKubernetes, "HOSTNAME", "expected the pod's name"), jobs);
  check_jobs_have_names(own, jobs);
  const int port = port_from(options, environment);
  const std::string service = !options.service.empty()
                                  ? options.service
                                  : environment.find("TUTTI_KUBERNETES_SERVICE").value_or(own.set);
  ClusterSpec::Jobs tasks;
  for (const auto& [job, count] : jobs) {
    std::vector<std::string> addresses;
    for (int index = 0; index < count; ++index) {
      addresses.push_back(concat(own.of({job, index}), ".", service, ":", port));
    }
    tasks.emplace(job, addresses);
  }
  cluster_ = internal::checked_addresses(ClusterSpec(std::move(tasks)), "Kubernetes.cluster");
  const Task task{own.job.value_or(jobs.front().first), own.index};
  if (!cluster_.has_task(task)) {
    const int tasks = cluster_.num_tasks(task.type);
    const std::string job = one_line(task.type);
    internal::fail_place("HOSTNAME",
                         tasks > 0
                             ? concat("a number from 0 to ", tasks - 1, " of ", job)
                             : concat("a pod of a job other than ", job, ", which has no tasks"),
                         concat(task.index), "raise the number of tasks");
  }
  apply({task.type, task.index, options.rpc_layer, {}});
}

namespace {

using internal::JsonPlace;

std::string text_at(const JsonPlace& place, std::string_view name) {
  const std::optional<JsonPlace> found = place.find(name);
  return found ? found->text("a text") : std::string();
}

constexpr const char* kAsKubectlPrints = "an object, as kubectl prints it";

/// Returns the sum of the GPU limits of all containers in a pod's spec.
int gpus_in(const JsonPlace& spec) {
  constexpr int kMost = 1024;
  int gpus = 0;
  spec.object(kAsKubectlPrints);
  const std::optional<JsonPlace> containers = spec.find("containers");
  if (!containers) return 0;
  for (std::size_t i = 0; i < containers->array("a list of containers").size(); ++i) {
    std::optional<JsonPlace> place = containers->element(i);
    for (const char* member : {"resources", "limits", "nvidia.com/gpu"}) {
      if (place) place->object(kAsKubectlPrints);
      if (place) place = place->find(member);
    }
    if (place) gpus += place->index(kMost, "a number of GPUs");
  }
  return gpus;
}

Pod read_pod(const JsonPlace& place) {
  place.object(kAsKubectlPrints);
  const std::optional<JsonPlace> metadata = place.find("metadata"), status = place.find("status");
  if (!metadata) place.fail("a pod with the field 'metadata'");
  metadata->object(kAsKubectlPrints);
  Pod pod{.name = text_at(*metadata, "name")};
  if (pod.name.empty()) metadata->fail("the field 'name'");
  if (const std::optional<JsonPlace> labels = metadata->find("labels")) {
    for (const Json::Member& member : labels->object(kAsKubectlPrints)) {
      pod.labels[member.first] = labels->member(member).text("a text");
    }
  }
  if (status) {
    status->object(kAsKubectlPrints);
    pod.phase = text_at(*status, "phase");
    pod.ip = text_at(*status, "podIP");
  }
  if (const std::optional<JsonPlace> spec = place.find("spec")) pod.num_gpus = gpus_in(*spec);
  return pod;
}

/// Parses "key=value,key2=value2"; also accepts "key==value".
std::vector<std::pair<std::string, std::string>> parse_selector(std::string_view selector) {
  std::vector<std::pair<std::string, std::string>> wanted;
  for (std::string_view rest = selector;;) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view term = rest.substr(0, comma);
    const std::size_t equals = term.find('=');
    if (equals == term.npos || equals == 0 || term[equals - 1] == '!') {
      internal::fail_place("job_to_label_mapping", "selectors of the form key=value,key2=value2",
                           internal::shown(Json(selector)));
    }
    const std::size_t value = term.find_first_not_of('=', equals);
    wanted.emplace_back(term.substr(0, equals), value == term.npos ? "" : term.substr(value));
    if (comma == rest.size()) return wanted;
    rest.remove_prefix(comma + 1);
  }
}

std::vector<Pod> select(const std::vector<Pod>& pods, std::string_view selector) {
  const auto wanted = parse_selector(selector);
  std::vector<Pod> chosen;
  for (const Pod& pod : pods) {
    const bool fits = std::ranges::all_of(wanted, [&](const auto& term) {
      const auto label = pod.labels.find(term.first);
      return label != pod.labels.end() && label->second == term.second;
    });
    if (fits) chosen.push_back(pod);
  }
  std::ranges::sort(chosen, {}, &Pod::name);
  return chosen;
}

std::string address_of(const Pod& pod, int port) {
  if (pod.phase != "Running") {
    fail(ErrorCode::kFailedPrecondition, "Kubernetes: the pod '", one_line(pod.name),
         "' is not running; expected the phase Running, got '", one_line(pod.phase), "'");
  }
  if (pod.ip.empty()) {
    fail(ErrorCode::kFailedPrecondition, "Kubernetes: the pod '", one_line(pod.name),
         "' has no address yet; expected status.podIP, got none");
  }
  return internal::join_address(pod.ip, port);
}

}  // namespace

std::vector<Pod> pods_from_json(const Json& list, std::string_view path) {
  const JsonPlace place(list, std::string(path));
  place.object("an object with the member items, as kubectl prints it");
  const std::optional<JsonPlace> items = place.find("items");
  if (!items) place.fail("a member 'items', as printed by kubectl get pods -o json");
  std::vector<Pod> pods;
  for (std::size_t i = 0; i < items->array("a list of pods").size(); ++i) {
    pods.push_back(read_pod(items->element(i)));
  }
  return pods;
}

KubernetesPodsResolver::KubernetesPodsResolver(const std::vector<Pod>& pods,
                                               const KubernetesPodsOptions& options) {
  ClusterSpec::Jobs jobs;
  for (const auto& [job, selectors] : options.job_to_label_mapping) {
    std::vector<std::string> addresses;
    for (const std::string& selector : selectors) {
      for (const Pod& pod : select(pods, selector)) {
        num_gpus_[Task{job, static_cast<int>(addresses.size())}] = pod.num_gpus;
        addresses.push_back(address_of(pod, options.port));
      }
    }
    jobs.emplace(job, addresses);
  }
  cluster_ = internal::checked_addresses(ClusterSpec(std::move(jobs)), "Kubernetes.cluster");
  apply({{}, {}, options.rpc_layer, {}});
  apply(options.overrides);
}

std::map<std::string, int> KubernetesPodsResolver::find_accelerators(
    const std::optional<Task>& other) const {
  if (!other) return ClusterResolver::find_accelerators(other);
  const int count = num_gpus_.at(*other);
  return count > 0 ? std::map<std::string, int>{{"GPU", count}} : std::map<std::string, int>{};
}

}  // namespace tutti
