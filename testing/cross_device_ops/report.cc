// Implements reports (a table and JSON), the plan of all cases, and groups of registered
// operations.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/cross_device_ops/report.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "core/names.h"
#include "cross_device_ops/in_process/in_process_transport.h"
#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::conformance {
namespace {

constexpr std::string_view kVerdicts[] = {"passed", "failed", "skipped", "not_run"};

/// Number of results for each verdict.
using Counts = std::array<std::uint64_t, std::size(kVerdicts)>;
/// Key of a row in the table of results.
using Row = std::tuple<Collective, ReduceOp, DType>;

Row row_of(const Case& c) { return {c.collective, c.op, c.dtype}; }

std::string operation_of(const Row& row) {
  const auto& [collective, op, dtype] = row;
  return combines(collective) ? concat(to_string(collective), " ", op)
                              : concat(to_string(collective));
}

/// Counts of the results in a report.
struct Summary {
  explicit Summary(const Report& report) {
    for (const Result& result : report.results) {
      const auto verdict = static_cast<std::size_t>(result.verdict);
      ++total[verdict];
      ++rows[row_of(result.of)][verdict];
      if (result.verdict == Verdict::kFailed) failures.push_back(result);
      if (result.verdict != Verdict::kSkipped) continue;
      ++skips[concat(to_string(result.of.shape), ": ", result.message)];
    }
  }

  Counts total{};
  std::map<Row, Counts> rows;
  std::map<std::string, std::uint64_t> skips;  // keyed by reason
  std::vector<Result> failures;
};

void write_line(std::ostream& out, std::string_view operation, std::string_view type,
                const Counts& counts) {
  out << std::left << std::setw(24) << operation << std::setw(10) << type << std::right;
  for (const auto n : counts) out << std::setw(9) << (n == 0 ? "-" : concat(n));
  out << '\n';
}

/// Returns the result with the largest error; nullptr if all are exact.
const Result* worst_of(const std::vector<Result>& results) {
  const auto worst = std::ranges::max_element(results, {}, &Result::error);
  return worst == results.end() || worst->error == 0.0 ? nullptr : &*worst;
}

Json json_of(const Counts& counts) {
  Json json = Json::object();
  for (std::size_t v = 0; v < counts.size(); ++v) json.set(std::string(kVerdicts[v]), counts[v]);
  return json;
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  return internal::name_in(kVerdicts, verdict, "Verdict");
}

std::size_t Report::count(Verdict verdict) const {
  return static_cast<std::size_t>(std::ranges::count(results, verdict, &Result::verdict));
}

bool Report::passed() const { return count(Verdict::kFailed) == 0 && count(Verdict::kPassed) > 0; }

std::string Report::table(const std::string& repeat) const {
  const Summary summary(*this);
  std::ostringstream out;
  out << "operation               type         passed   failed  skipped  not run\n";
  for (const auto& [row, counts] : summary.rows) {
    write_line(out, operation_of(row), tutti::to_string(std::get<DType>(row)), counts);
  }
  write_line(out, "all", "", summary.total);
  for (const auto& [reason, n] : summary.skips) out << "skipped " << n << ": " << reason << '\n';
  if (count(Verdict::kNotRun) > 0) {
    out << "not run " << count(Verdict::kNotRun)
        << ": the time limit or the failure limit was reached\n";
  }
  std::set<Row> reported;
  for (const Result& failure : summary.failures) {
    if (!reported.insert(row_of(failure.of)).second) continue;
    out << "FAILED " << failure.message << "\n  " << repeat << " --case " << failure.of.id()
        << '\n';
  }
  const Result* const worst = worst_of(results);
  if (worst) {
    out << "largest error of a sum: " << worst->error
        << " of the sum of the ranks' largest magnitudes, in " << worst->of.id() << '\n';
  }
  out << name << ": "
      << (passed()                   ? "conforms"
          : summary.failures.empty() ? "NOTHING RAN"
                                     : "FAILS");
  for (const Verdict verdict : {Verdict::kPassed, Verdict::kFailed, Verdict::kSkipped}) {
    out << ", " << count(verdict) << " " << to_string(verdict);
  }
  out << ", seed " << seed << ", " << std::fixed << std::setprecision(1) << seconds << " s\n";
  return out.str();
}

Json Report::json() const {
  const Summary summary(*this);
  const Result* const worst = worst_of(results);
  const auto row = [](const auto& entry) {
    return Json::Object{{"operation", operation_of(entry.first)},
                        {"dtype", tutti::to_string(std::get<DType>(entry.first))},
                        {"counts", json_of(entry.second)}};
  };
  const auto failure = [](const Result& result) {
    return Json::Object{{"case", result.of.id()}, {"message", result.message}};
  };
  const auto skip = [](const auto& entry) {
    return Json::Object{{"reason", entry.first}, {"count", entry.second}};
  };
  return Json::Object{{"name", name},
                      {"passed", passed()},
                      {"seed", concat(seed)},
                      {"seconds", seconds},
                      {"largest_error", worst ? worst->error : 0.0},
                      {"total", json_of(summary.total)},
                      {"rows", Json::array_of(summary.rows, row)},
                      {"failures", Json::array_of(summary.failures, failure)},
                      {"skipped", Json::array_of(summary.skips, skip)}};
}

std::string_view to_string(GroupShape shape) {
  static constexpr std::string_view kNames[] = {"local", "spread", "threads"};
  return internal::name_in(kNames, shape, "GroupShape");
}

std::string_view to_string(Check check) {
  static constexpr std::string_view kNames[] = {
      "values",  "special_values", "repeated", "concurrent", "slices",
      "handles", "mismatch",       "deadline", "abort",      "peer_gone"};
  return internal::name_in(kNames, check, "Check");
}

std::string Case::id() const {
  return concat(to_string(shape), "/", to_string(check), "/", to_string(collective), "/", op, "/",
                dtype, "/", world, "x", count, "/", in_place ? "in_place" : "apart", "+", offset,
                "/", uneven ? "uneven" : "even", "/", variant, "/", seed);
}

Case Case::parse(std::string_view id) {
  Plan plan;
  std::erase_if(plan.shapes, [&](GroupShape shape) { return !id.starts_with(to_string(shape)); });
  const std::string_view seed = id.substr(id.rfind('/') + 1);
  std::from_chars(seed.data(), seed.data() + seed.size(), plan.seed);
  for (const Case& c : cases(plan)) {
    if (c.id() == id) return c;
  }
  fail(ErrorCode::kInvalidArgument, "conformance: there is no case '", id,
       "'; try an id that `tutti conform` prints");
}

namespace {

constexpr Collective kCollectives[] = {Collective::kAllReduce,     Collective::kReduce,
                                       Collective::kBroadcast,     Collective::kAllGather,
                                       Collective::kReduceScatter, Collective::kAllToAll,
                                       Collective::kBarrier};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};
constexpr int kNumMismatchKinds = static_cast<int>(MismatchKind::kName) + 1;

bool has_parts(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kReduceScatter ||
         collective == Collective::kAllToAll;
}

/// Layouts of a check's cases. kPlain: out of place, aligned and even. kOne: one random layout.
/// kAll: all layouts.
enum class Layouts { kPlain, kOne, kAll };

/// Sizes of a check's cases.
struct Sizes {
  Check check;
  Layouts layouts;
  std::vector<int> worlds;
  std::vector<std::size_t> counts;
};

const std::vector<Sizes>& table() {
  static const std::vector<Sizes> sizes = {
      {Check::kValues, Layouts::kAll, {1, 2, 3, 5, 7, 8, 16}, {0, 1, 17, 1000}},
      {Check::kValues, Layouts::kOne, {1, 2, 3, 5, 7, 8, 16}, {2, 3, 127, 4099}},
      // At these counts, operations use several blocks or a pipeline, for any number of ranks.
      {Check::kValues, Layouts::kOne, {2, 3, 8}, {65537, (1 << 20) + 1}},
      {Check::kSpecialValues, Layouts::kOne, {2, 3, 8}, {64, 257}},
      {Check::kRepeated, Layouts::kOne, {2, 3, 5, 8}, {1000}},
      {Check::kConcurrent, Layouts::kOne, {2, 3}, {1000}},
      {Check::kSlices, Layouts::kPlain, {2, 3}, {50021}},
      {Check::kHandles, Layouts::kOne, {2, 3, 5, 8}, {1000}},
      {Check::kMismatch, Layouts::kPlain, {2, 3, 5}, {16, 4096}},
      {Check::kDeadline, Layouts::kPlain, {2, 3, 5}, {1000, 65537}},
      {Check::kAbort, Layouts::kPlain, {2, 3, 5}, {1000, 65537}},
      {Check::kPeerGone, Layouts::kPlain, {2, 3, 5}, {1000, 65537}},
  };
  return sizes;
}

/// Returns true if the case's check applies to its shape, collective, reduction and type.
bool is_tried(const Case& c) {
  const bool is_local = c.shape == GroupShape::kLocal;
  const bool is_barrier = c.collective == Collective::kBarrier;
  const bool is_sum = c.op == ReduceOp::kSum, is_float = c.dtype == DType::kFloat32;
  const bool is_of_bool = c.dtype == DType::kBool;
  if (!combines(c.collective) && !is_sum) return false;
  if (combines(c.collective) && c.op == ReduceOp::kMean && !is_floating(c.dtype)) return false;
  if (combines(c.collective) && is_of_bool && c.op != ReduceOp::kMin && c.op != ReduceOp::kMax) {
    return false;
  }
  if (is_barrier && (is_local || !is_float)) return false;
  switch (c.check) {
    case Check::kValues:
      return true;
    case Check::kSpecialValues:
      return combines(c.collective) && is_floating(c.dtype);
    case Check::kRepeated:
      return !is_barrier;
    case Check::kConcurrent:  // groups share no state, so SUM and float suffice
      return !is_barrier && (is_sum || is_float);
    case Check::kSlices:
      return is_local && c.collective == Collective::kAllReduce;
    case Check::kHandles:
      return !is_local && !is_barrier && is_sum && is_float;
    case Check::kMismatch: {
      const bool is_root = static_cast<MismatchKind>(c.variant) == MismatchKind::kRoot;
      const auto collective = is_root ? Collective::kReduce : Collective::kAllReduce;
      return !is_local && is_sum && is_float && c.collective == collective;
    }
    case Check::kDeadline:
    case Check::kAbort:
    case Check::kPeerGone:
      return !is_local && is_sum && is_float;
  }
  return false;
}

/// Adds a case in some layouts. `random` chooses the root, and the layout for kOne.
void add_layouts(std::vector<Case>& list, Case c, Layouts layouts, const RandomStream& random) {
  if (has_root(c.collective) && c.check != Check::kMismatch) {
    c.variant = static_cast<int>(random.below(0, static_cast<std::uint64_t>(c.world)));
  }
  const bool can_be_in_place = combines(c.collective) || c.collective == Collective::kAllGather;
  const bool must_be_in_place = c.collective == Collective::kAllReduce &&
                                (c.check == Check::kSlices || c.check == Check::kHandles);
  const std::size_t offsets[] = {0, 1, size_of(c.dtype)};
  std::vector<Case> all;
  for (std::size_t layout = 0; layout < 4 * std::size(offsets); ++layout) {
    c.in_place = layout % 2 == 1;
    c.uneven = layout / 2 % 2 == 1;
    c.offset = offsets[layout / 4];
    if (c.in_place ? !can_be_in_place : must_be_in_place) continue;
    if (c.uneven && !has_parts(c.collective)) continue;
    if (layout < 8 || c.offset > 1) all.push_back(c);  // 1-byte types would repeat offset 1
  }
  if (layouts == Layouts::kAll) {
    list.insert(list.end(), all.begin(), all.end());
  } else {
    list.push_back(all[layouts == Layouts::kOne ? random.below(1, all.size()) : 0]);
  }
}

/// Adds the cases for one shape, check, collective, reduction and type. `key` is the index of this
/// group in the full plan, so that a case is the same in every plan with the same seed.
void add_sizes(std::vector<Case>& list, Case c, const Sizes& sizes, const Plan& plan,
               std::uint64_t key) {
  const bool is_barrier = c.collective == Collective::kBarrier;
  for (const int world : sizes.worlds) {
    for (const std::size_t count : sizes.counts) {
      if (count > plan.max_count || (is_barrier && count != sizes.counts.front())) continue;
      c.world = world;
      c.count = count;
      const RandomStream random(
          RandomKey{c.seed, kUserPurpose, key, static_cast<std::uint64_t>(world), count});
      add_layouts(list, c, is_barrier ? Layouts::kPlain : sizes.layouts, random);
    }
  }
}

/// Reduces the list to a sample: the first cases in an order that alternates between groups of
/// cases and is random within each group.
void take_sample(std::vector<Case>& list, const Plan& plan) {
  internal::shuffle(list, RandomStream(RandomKey{plan.seed, kUserPurpose, 17}));
  using GroupKey = std::tuple<GroupShape, Check, Collective, ReduceOp, DType, int>;
  std::map<GroupKey, std::size_t> turns;
  std::vector<std::pair<std::size_t, Case>> order;
  for (const Case& c : list) {
    const int kind = c.check == Check::kMismatch ? c.variant : 0;
    order.emplace_back(turns[{c.shape, c.check, c.collective, c.op, c.dtype, kind}]++, c);
  }
  std::ranges::stable_sort(order, {}, [](const auto& entry) { return entry.first; });
  order.resize(std::min(order.size(), std::max(plan.sample, turns.size())));
  list.clear();
  for (const auto& [turn, c] : order) list.push_back(c);
}

}  // namespace

std::vector<Case> cases(const Plan& plan) {
  std::vector<Case> list;
  std::uint64_t key = 0;
  for (const Sizes& sizes : table()) {
    const int num_variants = sizes.check == Check::kMismatch ? kNumMismatchKinds : 1;
    for (const GroupShape shape : Plan{}.shapes) {
      const bool is_planned = std::ranges::find(plan.shapes, shape) != plan.shapes.end();
      for (const Collective collective : kCollectives) {
        for (const ReduceOp op : kOps) {
          for (const DType dtype : kAllDTypes) {
            for (int variant = 0; variant < num_variants; ++variant, ++key) {
              const Case c{.shape = shape,
                           .check = sizes.check,
                           .collective = collective,
                           .op = op,
                           .dtype = dtype,
                           .variant = variant,
                           .seed = plan.seed};
              if (is_planned && is_tried(c)) add_sizes(list, c, sizes, plan, key);
            }
          }
        }
      }
    }
  }
  if (plan.sample > 0) take_sample(list, plan);
  std::ranges::stable_sort(list, {}, [](const Case& c) { return std::tuple(c.shape, c.world); });
  return list;
}

namespace {

std::unique_ptr<CrossDeviceOps> make_local(const CrossDeviceOpsSpec& spec,
                                           const std::vector<Device>& devices) {
  try {
    return build_cross_device_ops(spec, {static_cast<int>(devices.size()), 0, devices});
  } catch (const Error& error) {
    // NCCL requires a separate GPU for each replica; its cases are skipped if there are too few
    // GPUs.
    if (spec.name != "nccl" || error.code() != ErrorCode::kInvalidArgument) throw;
    throw Error(ErrorCode::kUnimplemented, error.message());
  }
}

}  // namespace

Subject::Subject(const std::string& registered_name, const std::string& plugin_options)
    : name(registered_name) {
  const CrossDeviceOpsSpec spec = make_cross_device_ops(name, {}, plugin_options);
  local = [spec](const std::vector<Device>& replicas) { return make_local(spec, replicas); };
  spread = [spec](int world, Duration timeout) -> RankFactory {
    const auto transports = in_process_transports(world, false);
    const auto store = std::make_shared<InProcessStore>();
    const CommunicatorOptions options{
        .algorithm = spec.name, .plugin_options = spec.plugin_options, .timeout = timeout};
    return [=](int rank) {
      const Group group{world, rank, {Device{}}, store, transports[static_cast<std::size_t>(rank)]};
      return make_communicator(group, options);
    };
  };
  if (name != "canonical")
    return;  // in `threads`, other operations would send messages, as they do in `spread`
  threads = [](int world, Duration timeout) -> RankFactory {
    const auto ranks = std::make_shared<std::vector<std::unique_ptr<Communicator>>>(
        in_process_communicators(world, {.timeout = timeout}));
    return [ranks](int rank) { return std::move((*ranks)[static_cast<std::size_t>(rank)]); };
  };
}

void Subject::use_devices(std::vector<Device> of_groups) {
  devices = std::move(of_groups);
  if (devices.empty() || devices.front().type == DeviceType::kCpu) return;
  spread = nullptr;
  threads = nullptr;
}

}  // namespace tutti::conformance
