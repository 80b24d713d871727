// Implements the Slurm resolver.
// SPDX-License-Identifier: Apache-2.0
//
// A task has a rank (SLURM_PROCID), a node, and a slot: its index among the node's tasks, which
// determines its port and its share of the node's GPUs.
#include "tutti/cluster/resolvers/slurm_resolver.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "cluster/json_place.h"
#include "cluster/resolvers/found_tasks.h"
#include "cluster/resolvers/slurm_grammar.h"
#include "core/names.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr const char* kSlurm = "Slurm";
constexpr const char* kRemedy =
    "expected the variables of srun; start the program with srun, or set TF_CONFIG";

int require_int(const Environment& environment, std::string_view name, int smallest) {
  static_cast<void>(environment.at(kSlurm, name, kRemedy));
  return *environment.find_int(name, smallest, internal::kMostTasks);
}

/// Returns the GPUs of this node, named as in CUDA_VISIBLE_DEVICES.
std::vector<std::string> gpus_of_node(const SlurmResolverOptions& options,
                                      const Environment& environment) {
  const std::optional<std::string> visible = environment.find("CUDA_VISIBLE_DEVICES");
  std::vector<std::string> names;
  if (visible && *visible != "-1" && *visible != "NoDevFiles") names = split_text(*visible);
  const int listed = static_cast<int>(names.size());
  const int wanted = options.gpus_per_node.value_or(
      visible ? listed
              : environment.find_int("SLURM_GPUS_ON_NODE", 0, internal::kMostTasks).value_or(0));
  if (wanted < 0 || (visible && wanted > listed)) {
    internal::fail_place("gpus_per_node", concat("0 to ", listed, " as CUDA_VISIBLE_DEVICES lists"),
                         concat(wanted));
  }
  for (int gpu = listed; gpu < wanted; ++gpu) names.push_back(concat(gpu));
  names.resize(static_cast<std::size_t>(wanted));
  return names;
}

}  // namespace

/// Placement of the tasks on nodes.
struct SlurmResolver::Layout {
  struct Place {
    int node = 0;
    int slot = 0;
  };

  std::vector<std::string> nodes;
  std::vector<int> tasks_per_node;
  std::vector<Place> places;  // indexed by rank
  int rank = 0;

  Layout(const SlurmResolverOptions& options, const Environment& environment);

  int own_node_tasks() const {
    return tasks_per_node[static_cast<std::size_t>(places[static_cast<std::size_t>(rank)].node)];
  }
  int own_slot() const { return places[static_cast<std::size_t>(rank)].slot; }
  std::vector<std::string> addresses(int port_base) const;

 private:
  void read_tasks_per_node(const SlurmResolverOptions& options, const Environment& environment);
  void place_in_blocks();
  void place_cyclically();
  void check_own_node(const Environment& environment) const;
};

SlurmResolver::Layout::Layout(const SlurmResolverOptions& options, const Environment& environment)
    : rank(require_int(environment, "SLURM_PROCID", 0)) {
  const int num_tasks = require_int(environment, "SLURM_STEP_NUM_TASKS", 1);
  nodes = expand_node_list(environment.at(kSlurm, "SLURM_STEP_NODELIST", kRemedy));
  read_tasks_per_node(options, environment);
  // The sum may overflow an int although no single number does.
  const auto placed =
      std::accumulate(tasks_per_node.begin(), tasks_per_node.end(), std::int64_t{0});
  if (placed > internal::kMostTasks) {
    internal::fail_place(options.tasks_per_node ? "tasks_per_node" : "SLURM_STEP_TASKS_PER_NODE",
                         concat("at most ", internal::kMostTasks, " tasks in all"),
                         concat(placed, " on ", nodes.size(), " nodes"));
  }
  if (!options.tasks_per_node && placed != num_tasks) {
    internal::fail_place("SLURM_STEP_TASKS_PER_NODE", concat(num_tasks, " tasks in all"),
                         concat(placed, " in ", internal::brief_list(tasks_per_node)));
  }
  if (rank >= placed) {
    internal::fail_place("SLURM_PROCID", concat("a rank from 0 to ", placed - 1), concat(rank));
  }
  const std::string distribution = environment.find("SLURM_DISTRIBUTION").value_or("block");
  if (distribution.starts_with("plane") || distribution.starts_with("arbitrary")) {
    internal::fail_place("SLURM_DISTRIBUTION", "block or cyclic",
                         internal::shown(Json(distribution)), "use srun --distribution=block");
  }
  distribution.starts_with("cyclic") ? place_cyclically() : place_in_blocks();
  check_own_node(environment);
}

void SlurmResolver::Layout::read_tasks_per_node(const SlurmResolverOptions& options,
                                                const Environment& environment) {
  if (options.tasks_per_node) {
    if (*options.tasks_per_node < 1 || *options.tasks_per_node > internal::kMostTasks) {
      internal::fail_place("tasks_per_node", "at least 1", concat(*options.tasks_per_node));
    }
    tasks_per_node.assign(nodes.size(), *options.tasks_per_node);
    return;
  }
  tasks_per_node =
      expand_tasks_per_node(environment.at(kSlurm, "SLURM_STEP_TASKS_PER_NODE", kRemedy));
  if (tasks_per_node.size() == nodes.size()) return;
  internal::fail_place("SLURM_STEP_TASKS_PER_NODE",
                       concat("a number for each of ", nodes.size(), " nodes (",
                              one_line(nodes.front()), nodes.size() > 1 ? ", ...)" : ")"),
                       concat(tasks_per_node.size(), " numbers"));
}

void SlurmResolver::Layout::place_in_blocks() {
  for (int node = 0; node < static_cast<int>(nodes.size()); ++node) {
    const int count = tasks_per_node[static_cast<std::size_t>(node)];
    for (int slot = 0; slot < count; ++slot) places.push_back({node, slot});
  }
}

// Places tasks in rounds, one on each node that still has room.
void SlurmResolver::Layout::place_cyclically() {
  const int rounds = *std::ranges::max_element(tasks_per_node);
  for (int slot = 0; slot < rounds; ++slot) {
    for (int node = 0; node < static_cast<int>(nodes.size()); ++node) {
      if (slot < tasks_per_node[static_cast<std::size_t>(node)]) places.push_back({node, slot});
    }
  }
}

void SlurmResolver::Layout::check_own_node(const Environment& environment) const {
  const int last = static_cast<int>(nodes.size()) - 1;
  const std::optional<int> node = environment.find_int("SLURM_NODEID", 0, last);
  const int expected = places[static_cast<std::size_t>(rank)].node;
  if (!node || *node == expected) return;
  internal::fail_place("SLURM_NODEID",
                       concat(expected, ", the node of task ", rank, " with tasks per node ",
                              internal::brief_list(tasks_per_node)),
                       concat(*node), "use srun --distribution=block");
}

std::vector<std::string> SlurmResolver::Layout::addresses(int port_base) const {
  const int most = *std::ranges::max_element(tasks_per_node);
  if (port_base < 1 || port_base + most - 1 > 65535) {
    internal::fail_place("port_base", concat("1 to ", 65536 - most, " for ", most, " tasks a node"),
                         concat(port_base));
  }
  std::vector<std::string> list;
  for (const Place& place : places) {
    list.push_back(
        concat(nodes[static_cast<std::size_t>(place.node)], ":", port_base + place.slot));
  }
  return list;
}

SlurmResolver::SlurmResolver(const SlurmResolverOptions& options, const Environment& environment) {
  const Layout layout(options, environment);
  internal::FilledJobs filled =
      internal::fill_jobs(options.jobs, layout.addresses(options.port_base), layout.rank, kSlurm);
  cluster_ = internal::checked_addresses(filled.cluster, "Slurm.cluster");
  if (filled.own) apply({.task_type = filled.own->type, .task_id = filled.own->index});
  apply({.rpc_layer = options.rpc_layer});
  const std::optional<std::string> job = environment.first_of({"TUTTI_JOB_ID", "SLURM_JOB_ID"});
  job_id_ = job.value_or("");
  if (const auto step = environment.find("SLURM_STEP_ID"); job && step) job_id_ += "." + *step;
  share_gpus(options, environment, layout);
}

void SlurmResolver::share_gpus(const SlurmResolverOptions& options, const Environment& environment,
                               const Layout& layout) {
  const std::vector<std::string> gpus = gpus_of_node(options, environment);
  const int num_gpus = static_cast<int>(gpus.size()), tasks = layout.own_node_tasks();
  const bool is_bound = environment.has("SLURM_GPUS_PER_TASK") && !options.gpus_per_task;
  const auto per_task_of = [&](int tasks_of_node) {
    if (num_gpus == 0 || is_bound) return num_gpus;
    return options.gpus_per_task.value_or(std::max(1, num_gpus / tasks_of_node));
  };
  const std::vector<std::string> addresses = layout.addresses(options.port_base);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const auto node = static_cast<std::size_t>(layout.places[i].node);
    gpus_at_[addresses[i]] = per_task_of(layout.tasks_per_node[node]);
  }
  gpus_per_task_ = per_task_of(tasks);
  if (num_gpus == 0 || is_bound) return;
  const int per_task = gpus_per_task_;
  if (options.gpus_per_task && (per_task < 1 || per_task * tasks > num_gpus)) {
    internal::fail_place("gpus_per_task",
                         concat("1 to ", num_gpus / tasks, " for ", tasks, " tasks and ", num_gpus,
                                " GPUs on a node"),
                         concat(per_task));
  }
  std::vector<std::string> own;
  for (int gpu = 0; gpu < per_task; ++gpu) {
    // If there are fewer GPUs than tasks, several tasks share a GPU.
    const int number = (layout.own_slot() * per_task + gpu) % num_gpus;
    own.push_back(gpus[static_cast<std::size_t>(number)]);
  }
  visible_devices_ = join(own, ",");
}

std::map<std::string, int> SlurmResolver::find_accelerators(
    const std::optional<Task>& other) const {
  const int count =
      other ? gpus_at_.at(cluster_.task_address(other->type, other->index)) : gpus_per_task_;
  if (count == 0) return {};
  return {{"GPU", count}};
}

// Parsing of Slurm's lists, whose entries are separated by commas. An entry of a node list
// alternates between literal text and bracket groups. A group contains ranges of numbers such as
// "08-10", whose first number determines the width.

namespace {

constexpr std::size_t kMaxNodes = 65536;
constexpr std::size_t kMaxDigits = 9;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_name_character(char c) {
  return internal::has_only_alphanumerics_and("-_.", std::string_view(&c, 1));
}

/// Reader that consumes a string from left to right.
class Reader {
 public:
  Reader(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  bool at_end() const { return place_ == text_.size(); }
  bool take(char c) {
    if (at_end() || text_[place_] != c) return false;
    ++place_;
    return true;
  }
  void expect(char c, const char* what) {
    if (!take(c)) fail(what);
  }
  template <class Test>
  std::string_view take_while(Test test) {
    const std::size_t begin = place_;
    while (!at_end() && test(text_[place_])) ++place_;
    return text_.substr(begin, place_ - begin);
  }
  std::string_view digits() {
    const std::string_view found = take_while(is_digit);
    if (found.empty()) fail("a number");
    if (found.size() > kMaxDigits) fail("a number with at most 9 digits");
    return found;
  }
  [[noreturn]] void fail(const std::string& expected) const {
    const std::string got = at_end() ? "the end of the text" : concat("'", shown_character(), "'");
    tutti::fail(ErrorCode::kInvalidArgument, source_, ": cannot read ",
                internal::shown(Json(text_)), " at character ", place_ + 1, ": expected ", expected,
                ", got ", got);
  }
  [[noreturn]] void fail_size() const {
    tutti::fail(ErrorCode::kResourceExhausted, source_, ": expected at most ", kMaxNodes,
                " entries, got ", internal::shown(Json(text_)));
  }

 private:
  std::string shown_character() const {
    const char c = text_[place_];
    return c >= ' ' && c <= '~' ? std::string(1, c) : "?";
  }

  std::string_view text_, source_;
  std::size_t place_ = 0;
};

int to_number(std::string_view digits) {
  int number = 0;
  for (const char c : digits) number = 10 * number + (c - '0');
  return number;
}

/// Reads "[13,41-43]" after its opening bracket.
std::vector<std::string> read_group(Reader& reader) {
  std::vector<std::string> numbers;
  do {
    const std::string_view first = reader.digits();
    const std::string_view last = reader.take('-') ? reader.digits() : first;
    if (to_number(last) < to_number(first)) reader.fail("a range whose end is not below its start");
    const auto count = static_cast<std::size_t>(to_number(last) - to_number(first)) + 1;
    if (numbers.size() + count > kMaxNodes) reader.fail_size();
    for (int number = to_number(first); number <= to_number(last); ++number) {
      std::string text = std::to_string(number);
      if (text.size() < first.size()) text.insert(0, first.size() - text.size(), '0');
      numbers.push_back(std::move(text));
    }
  } while (reader.take(','));
  reader.expect(']', "',', '-' or ']'");
  return numbers;
}

/// Combines every name with every suffix; the suffixes, which come from the last bracket, vary
/// fastest.
std::vector<std::string> multiply(const std::vector<std::string>& names,
                                  const std::vector<std::string>& suffixes, const Reader& reader) {
  if (names.size() * suffixes.size() > kMaxNodes) reader.fail_size();
  std::vector<std::string> products;
  for (const std::string& name : names) {
    for (const std::string& suffix : suffixes) products.push_back(name + suffix);
  }
  return products;
}

std::vector<std::string> read_entry(Reader& reader) {
  std::vector<std::string> names{std::string(reader.take_while(is_name_character))};
  if (names.front().empty()) reader.fail("a node name");
  while (reader.take('[')) {
    names = multiply(names, read_group(reader), reader);
    names = multiply(names, {std::string(reader.take_while(is_name_character))}, reader);
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view list, std::string_view source) {
  Reader reader(list, source);
  std::vector<std::string> nodes;
  do {
    const std::vector<std::string> names = read_entry(reader);
    if (nodes.size() + names.size() > kMaxNodes) reader.fail_size();
    nodes.insert(nodes.end(), names.begin(), names.end());
  } while (reader.take(','));
  if (!reader.at_end()) reader.fail("',' or '['");
  return nodes;
}

std::vector<int> expand_tasks_per_node(std::string_view list, std::string_view source) {
  Reader reader(list, source);
  std::vector<int> counts;
  do {
    const int tasks = to_number(reader.digits());
    int repeats = 1;
    if (reader.take('(')) {
      reader.expect('x', "'x'");
      repeats = to_number(reader.digits());
      if (repeats == 0) reader.fail("at least one node");
      reader.expect(')', "')'");
    }
    if (counts.size() + static_cast<std::size_t>(repeats) > kMaxNodes) reader.fail_size();
    counts.insert(counts.end(), static_cast<std::size_t>(repeats), tasks);
  } while (reader.take(','));
  if (!reader.at_end()) reader.fail("',' or '('");
  return counts;
}

}  // namespace tutti
