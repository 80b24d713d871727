// `tutti cluster`: shows the cluster's tasks and marks the task of this process.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "tools/commands.h"
#include "tutti/cluster/multi_worker_util.h"
#include "tutti/cluster/resolver_registry.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"

namespace tutti::tools {
namespace {

ChosenResolver resolve(const std::string& name) {
  ChosenResolver chosen;
  if (name == "auto") {
    chosen = choose_resolver();
  } else {
    chosen.resolver = make_cluster_resolver(name);
    chosen.reason = concat(chosen.resolver->to_string(), ", chosen by --resolver ", name);
  }
  validate_cluster(*chosen.resolver);
  return chosen;
}

Json task_to_json(const ClusterSpec& cluster, const Task& task) {
  Json json = Json::object();
  json.set("type", task.type).set("index", task.index);
  json.set("is_chief", is_chief(cluster, task));
  json.set("collective_leader", collective_leader(cluster, task));
  if (task.type != "ps") {
    json.set("id_in_cluster", id_in_cluster(cluster, task));
    json.set("worker_count", worker_count(cluster, task.type));
  }
  return json;
}

void print_json(const ChosenResolver& chosen) {
  const ClusterResolver& resolver = *chosen.resolver;
  const ClusterSpec cluster = resolver.cluster_spec();
  const std::optional<Task> task = resolver.task();
  print(Json::Object{{"resolver", resolver.name()},
                     {"reason", chosen.reason},
                     {"cluster", cluster.to_json()},
                     {"task", task ? task_to_json(cluster, *task) : Json()},
                     {"master", resolver.master()},
                     {"rpc_layer", resolver.rpc_layer()},
                     {"environment", resolver.environment()},
                     {"job_id", resolver.job_id()},
                     {"control", control_address()},
                     {"warnings", Json::array_of(doubts_about(resolver))}});
}

void print_text(const ChosenResolver& chosen) {
  const ClusterSpec cluster = chosen.resolver->cluster_spec();
  const std::optional<Task> own = chosen.resolver->task();
  std::printf("%s.\n", chosen.reason.c_str());
  for (const Task& task : cluster.tasks()) {
    const std::string& address = cluster.task_address(task.type, task.index);
    std::string notes;
    if (task.type != "evaluator" && is_chief(cluster, task)) notes += "  chief";
    if (task == own) notes += "  this process";
    std::printf("%-14s %s%s\n", task.to_string().c_str(),
                address.empty() ? "(known after the rendezvous)" : address.c_str(), notes.c_str());
  }
  if (!control_address().empty())
    std::printf("The tasks rendezvous at %s.\n", control_address().c_str());
  for (const std::string& doubt : doubts_about(*chosen.resolver)) {
    std::printf("warning: %s\n", doubt.c_str());
  }
}

}  // namespace

int cluster_command(OutputFormat format, const std::string& resolver) {
  try {
    const ChosenResolver chosen = resolve(resolver);
    format == OutputFormat::kJson ? print_json(chosen) : print_text(chosen);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "tutti: %s\n", error.what());
    return 2;
  }
}

}  // namespace tutti::tools
