// Implements TfConfigResolver, which detects mistakes in TF_CONFIG before any connection is made.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/resolvers/tf_config_resolver.h"

#include <algorithm>
#include <array>

#include "cluster/json_place.h"
#include "cluster/resolvers/found_tasks.h"
#include "core/names.h"

namespace tutti {
namespace {

using internal::JsonPlace;

constexpr std::size_t kMaxText = 16 << 20;  // room for several hundred thousand addresses
constexpr int kLargestTaskIndex = 999'999;
constexpr const char* kExpectedForm = "an object {\"cluster\": ..., \"task\": ...}";

// Rejects only probable misspellings, because other programs add their own members.
template <std::size_t kCount>
void check_spelling(const JsonPlace& place, const std::array<std::string_view, kCount>& known) {
  for (const Json::Member& member : place.value().as_object()) {
    if (std::ranges::find(known, member.first) != known.end()) continue;
    for (const std::string_view name : known) {
      if (member.first.size() > name.size() + 1) continue;
      if (internal::edit_distance(internal::lower_case(member.first), name) > 1) continue;
      internal::fail_place(internal::member_path(place.path(), member.first),
                           concat("the member ", name), internal::shown(Json(member.first)),
                           "correct the spelling");
    }
  }
}

ClusterSpec read_cluster(const JsonPlace& config) {
  if (const std::optional<JsonPlace> sparse = config.find("sparseCluster")) {
    internal::fail_place(sparse->path(), "the member cluster, with all tasks", "a part of them",
                         "turn off enableDynamicWorker of the TFJob");
  }
  const std::optional<JsonPlace> place = config.find("cluster");
  if (!place) return ClusterSpec();
  return internal::checked_addresses(ClusterSpec::from_json(place->value(), place->path()),
                                     place->path());
}

// Like TensorFlow, accepts numbers as types, because job names may look like numbers.
std::string read_task_type(const JsonPlace& place) {
  constexpr const char* kExpected = "the name of a job";
  if (place.value().is_number()) return place.value().dump();
  if (place.text(kExpected).empty()) place.fail(kExpected);
  return place.value().as_string();
}

Task read_task(const JsonPlace& place) {
  constexpr std::array<std::string_view, 2> kMembers{"type", "index"};
  constexpr const char* kExpected = "a task {\"type\": ..., \"index\": ...}";
  place.object(kExpected);
  check_spelling(place, kMembers);
  const std::optional<JsonPlace> type = place.find("type"), index = place.find("index");
  if (!type || !index) place.fail(concat("the member ", type ? "index" : "type"));
  return {read_task_type(*type),
          index->index(kLargestTaskIndex, "the task's index, a whole number from 0")};
}

/// The task of this process, with the JSON paths of its type and index for error messages.
struct OwnTask {
  Task task;
  std::string type_path, index_path;
};

void check_own_task(const OwnTask& own, const ClusterSpec& cluster) {
  const auto& [type, index] = own.task;
  const bool is_alone = type == "evaluator" && !cluster.has_job("evaluator");
  if (is_alone || cluster.empty()) {
    if (index == 0) return;
    internal::fail_place(own.index_path, concat("0, because the cluster lists no other ", type),
                         concat(index));
  }
  if (!cluster.has_job(type)) {
    internal::fail_place(own.type_path,
                         concat("a job of the cluster: ", internal::brief_list(cluster.jobs())),
                         internal::shown(Json(type)));
  }
  if (cluster.has_task(own.task)) return;
  const std::vector<int> indices = cluster.task_indices(type);
  const std::string range =
      cluster.as_dict().at(type).is_dense()
          ? concat("an index from 0 to ", indices.size() - 1, " of ", type)
          : concat("one of the indices ", internal::brief_list(indices), " of ", type);
  internal::fail_place(
      own.index_path,
      indices.empty() ? concat("an index of another job, because ", type, " has no tasks") : range,
      concat(index));
}

std::optional<std::string> read_text(const JsonPlace& config, std::string_view name,
                                     std::string_view expected) {
  const std::optional<JsonPlace> place = config.find(name);
  return place ? std::optional(place->text(expected)) : std::nullopt;
}

// Reads rpc_layer; "" counts as absent.
std::string read_rpc_layer(const JsonPlace& config) {
  const std::string layer = read_text(config, "rpc_layer", "a protocol's name").value_or("");
  if (!internal::has_only_alphanumerics_and("+", layer)) {
    config.find("rpc_layer")->fail("the name of a protocol, such as \"grpc\"");
  }
  return layer;
}

Json parse_config(std::string_view text, std::string_view source) {
  internal::require(text.size() <= kMaxText, source, ": expected at most ", kMaxText,
                    " bytes, got ", text.size());
  if (text.find_first_not_of(" \t\r\n") == text.npos) return Json::object();
  return internal::parse_json(text, source, kExpectedForm);
}

}  // namespace

TfConfigResolver::TfConfigResolver(const ResolverOverrides& overrides,
                                   const Environment& environment)
    : TfConfigResolver(environment.find("TF_CONFIG").value_or(""), overrides, "TF_CONFIG") {
  job_id_ = environment.find("TUTTI_JOB_ID").value_or("");
}

TfConfigResolver TfConfigResolver::from_text(std::string_view text,
                                             const ResolverOverrides& overrides,
                                             std::string_view source) {
  return {text, overrides, source};
}

TfConfigResolver::TfConfigResolver(std::string_view text, const ResolverOverrides& overrides,
                                   std::string_view source)
    : source_(source) {
  constexpr std::array<std::string_view, 5> kMembers{"cluster", "task", "rpc_layer",
                                                     "session_master", "environment"};
  const Json json = parse_config(text, source);
  const JsonPlace config(json, source_);
  config.object(kExpectedForm);
  check_spelling(config, kMembers);
  cluster_ = read_cluster(config);
  session_master_ = read_text(config, "session_master", "an address as text");
  const std::string where = read_text(config, "environment", "a text").value_or("");
  std::optional<Task> task;
  if (const auto place = config.find("task")) task = read_task(*place);
  if (task) apply({.task_type = task->type, .task_id = task->index});
  apply({.rpc_layer = read_rpc_layer(config), .environment = where});
  apply(overrides);
  if (!this->task()) return;
  const std::string path = source_ + ".task";
  check_own_task({*this->task(), overrides.task_type ? "task_type" : path + ".type",
                  overrides.task_id ? "task_id" : path + ".index"},
                 cluster_);
}

std::string TfConfigResolver::find_master(const MasterQuery& query) const {
  if (session_master_) return *session_master_;
  if (cluster_.total_tasks() <= 1) return {};
  return ClusterResolver::find_master(query);
}

}  // namespace tutti
