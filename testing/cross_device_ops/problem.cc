// Implements Problem: sets up the ranks' memory and calls for one case, and checks the results.
// SPDX-License-Identifier: Apache-2.0
#include "testing/cross_device_ops/problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "tutti/core/random.h"
#include "tutti/core/text.h"

namespace tutti::conformance {
namespace {

constexpr std::byte kGuard{0xa5};
constexpr std::byte kStale{0x5b};  // content of outputs before the call
constexpr std::size_t kZone = 128;
constexpr std::size_t kAlignment = 64;

/// Returns a number in which every bit depends on every bit of `x` (the finalizer of SplitMix64,
/// Steele, Lea and Flood 2014).
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Returns a value small enough that sums and products remain finite.
double plain_value(ReduceOp op, std::size_t index, std::uint64_t bits) {
  const double uniform = static_cast<double>(bits >> 11) * 0x1p-53;  // [0, 1)
  if (op == ReduceOp::kProduct) return (bits & 1) != 0 ? -0.6 - uniform : 0.6 + uniform;
  return (2 * uniform - 1) * static_cast<double>(1 << index % 9);
}

/// Returns an element's value: for the first 4 of every 8 elements, one that exposes a wrong order
/// or a wrong rank; for the other 4, an arbitrary one.
double special_value(const Case& c, int rank, std::size_t index, std::uint64_t bits) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kSome[] = {kNan, kInfinity, -kInfinity, 0.0, -0.0, 0x1p-24, -0x1p-24, 1.0};
  switch (index % 8) {
    case 0:
      return -0.0;
    case 1:
      return rank == 0 ? kNan : plain_value(c.op, index, bits);
    case 2:
      return rank == c.world - 1 ? kNan : plain_value(c.op, index, bits);
    case 3:
      return (rank + static_cast<int>(index / 8)) % 2 == 0 ? 0.0 : -0.0;
    default:
      return bits % 16 < std::size(kSome) ? kSome[bits % 16]
                                          : plain_value(c.op, index, bits >> 4 | bits << 60);
  }
}

/// Returns an element of a rank's input; T is std::uint8_t for bool. Factors of integer products
/// are odd, so that the products are not 0.
template <class T>
T value_at(const Case& c, std::uint64_t key, int rank, std::size_t index) {
  const std::uint64_t bits = mixed(key ^ mixed(index) ^ static_cast<std::uint64_t>(rank) << 56);
  if constexpr (std::is_integral_v<T>) {
    if (c.dtype == DType::kBool) return static_cast<T>(bits & 1);
    return static_cast<T>(c.op == ReduceOp::kProduct ? bits | 1 : bits);
  } else {
    return T(c.check == Check::kSpecialValues ? special_value(c, rank, index, bits)
                                              : plain_value(c.op, index, bits));
  }
}

/// Splits `count` into `world` parts. Even parts are rounded up; uneven parts are random, and some
/// may be empty. In a broadcast, the root has all elements.
std::vector<std::size_t> cut(const Case& c, std::uint64_t row) {
  const auto world = static_cast<std::size_t>(c.world);
  if (c.collective == Collective::kBroadcast) {
    std::vector<std::size_t> parts(world);
    parts[static_cast<std::size_t>(c.variant)] = c.count;
    return parts;
  }
  if (!c.uneven) return std::vector<std::size_t>(world, (c.count + world - 1) / world);
  const RandomStream random(RandomKey{c.seed, kUserPurpose, 3, row, c.count});
  std::vector<std::size_t> parts(world);
  for (std::size_t r = 0; r < world; ++r) parts[r] = random.below(r, 4);
  const std::size_t sum = std::max<std::size_t>(1, std::reduce(parts.begin(), parts.end()));
  for (std::size_t& part : parts) part = c.count * part / sum;
  parts[random.below(world, world)] += c.count - std::reduce(parts.begin(), parts.end());
  return parts;
}

std::size_t sum_of_first(std::size_t n, const std::vector<std::size_t>& lengths) {
  return std::reduce(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(n));
}

/// Reads an element from `data`, which may be unaligned.
template <class T>
T load(const std::byte* data, std::size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
bool has_same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

}  // namespace

Problem::Problem(const Case& c, const std::vector<Device>& devices)
    : case_(c), ranks_(static_cast<std::size_t>(c.world)) {
  std::vector<std::vector<std::size_t>> lengths;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].device = devices.empty() ? Device{DeviceType::kCpu, static_cast<int>(r)} : devices[r];
    lengths.push_back(cut(c, c.collective == Collective::kAllToAll ? r : 0));
  }
  for (int r = 0; r < c.world; ++r) plan_parts(r, lengths);
}

/// Plans the parts of rank r's output. In all_to_all, lengths[s][t] is the length of the part that
/// rank s sends to rank t. In other collectives, all lengths[s] are equal. A broadcast is a gather
/// in which only the root contributes elements.
void Problem::plan_parts(int r, const std::vector<std::vector<std::size_t>>& lengths) {
  const auto own = static_cast<std::size_t>(r);
  Rank& rank = ranks_[own];
  const bool is_scatter = case_.collective == Collective::kReduceScatter;
  const bool is_exchange = case_.collective == Collective::kAllToAll;
  const std::size_t own_start = sum_of_first(own, lengths[own]);
  const std::size_t total = sum_of_first(lengths.size(), lengths[own]);
  if (is_scatter) {
    rank.input_count = total;
    rank.parts = {{kAllRanks, own_start, lengths[own][own]}};
  } else if (combines(case_.collective)) {
    rank.input_count = case_.count;
    const bool has_output = case_.collective == Collective::kAllReduce || r == case_.variant;
    if (has_output) rank.parts = {{kAllRanks, 0, case_.count}};
  } else if (case_.collective != Collective::kBarrier) {
    rank.input_count = is_exchange ? total : lengths[own][own];
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      rank.parts.push_back({static_cast<int>(s), is_exchange ? sum_of_first(own, lengths[s]) : 0,
                            lengths[s][is_exchange ? own : s]});
      if (case_.uneven && is_exchange) rank.receive_counts.push_back(lengths[s][own]);
    }
  }
  for (const Part& part : rank.parts) rank.output_count += part.count;
  if (case_.uneven) rank.counts = lengths[own];
  const bool is_broadcast = case_.collective == Collective::kBroadcast;
  rank.in_place = (case_.in_place || is_broadcast) && !rank.parts.empty();
  allocate(r, combines(case_.collective) ? 0 : own_start, is_scatter ? own_start : 0);
}

/// Allocates the memory: guard, input, guard, output, guard. For in-place calls, input and output
/// are the same.
void Problem::allocate(int r, std::size_t input_place, std::size_t output_place) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  const std::size_t element = size_of(case_.dtype), start = kZone + case_.offset;
  const std::size_t input_bytes = rank.input_count * element;
  const std::size_t output_bytes = rank.output_count * element;
  std::size_t end = start + std::max(input_bytes, output_bytes);
  rank.input_at = start + input_place * element * rank.in_place;
  rank.output_at = start + output_place * element;
  if (!rank.in_place) {
    const std::size_t behind_guard = start + input_bytes + kZone + kAlignment - 1;
    rank.output_at = behind_guard / kAlignment * kAlignment + case_.offset;
    end = rank.output_at + output_bytes;
  }
  rank.before.assign(end + kZone, kGuard);
  std::fill_n(rank.before.data() + rank.output_at, output_bytes, kStale);
  const std::uint64_t key =
      mixed(case_.seed ^ mixed(case_.count ^ static_cast<std::uint64_t>(case_.world) << 40));
  visit_stored(case_.dtype, [&]<class T>() {
    for (std::size_t i = 0; i < rank.input_count; ++i) {
      const T value = value_at<T>(case_, key, r, i);
      std::memcpy(rank.before.data() + rank.input_at + i * element, &value, element);
    }
  });
  const Shape shape{static_cast<std::int64_t>(rank.before.size())};
  const bool is_on_gpu = rank.device.type == DeviceType::kGpu;
  rank.memory = MutableTensor(shape, DType::kUInt8, is_on_gpu ? rank.device : Device{});
  rank.memory.write(Tensor::from_bytes(shape, DType::kUInt8, rank.before, Device{}));
}

Call Problem::call(int r) const {
  const Rank& own = rank(r);
  std::byte* const memory = static_cast<std::byte*>(own.memory.address());
  return {case_.collective,
          case_.op,
          {memory + own.input_at, own.input_count, case_.dtype, own.device},
          {memory + own.output_at, own.output_count, case_.dtype, own.device},
          case_.variant,
          own.counts,
          own.receive_counts};
}

std::vector<Call> Problem::calls() const {
  std::vector<Call> all;
  for (int r = 0; r < case_.world; ++r) all.push_back(call(r));
  return all;
}

std::span<const std::byte> Problem::output_in(const Tensor& memory, int r) const {
  return memory.bytes().subspan(rank(r).output_at, rank(r).output_count * size_of(case_.dtype));
}

std::vector<std::byte> Problem::outputs() const {
  std::vector<std::byte> all;
  for (int r = 0; r < case_.world; ++r) {
    const Tensor memory = download(r);
    const auto output = output_in(memory, r);
    all.insert(all.end(), output.begin(), output.end());
  }
  return all;
}

/// Returns true if bytes were written outside the output and, in an in-place call, the input.
bool Problem::has_other_changes(int r, std::span<const std::byte> memory) const {
  const Rank& own = rank(r);
  std::vector<std::byte> expected = own.before;
  const auto may_change = [&](std::size_t begin, std::size_t count) {
    const auto changed = memory.subspan(begin, count * size_of(case_.dtype));
    std::ranges::copy(changed, expected.data() + begin);
  };
  may_change(own.output_at, own.output_count);
  if (own.in_place) may_change(own.input_at, own.input_count);
  return !std::ranges::equal(memory, expected);
}

long double Problem::unit_of_error() const {
  long double sum = 0;
  visit_stored(case_.dtype, [&]<class T>() {
    using Step = std::conditional_t<Half<T>, float, T>;
    for (const Rank& each : ranks_) {
      long double largest = 0;
      for (std::size_t i = 0; i < each.input_count; ++i) {
        const auto value = static_cast<Step>(load<T>(each.before.data() + each.input_at, i));
        const long double magnitude = std::abs(static_cast<long double>(value));
        if (std::isfinite(largest) && !(magnitude <= largest)) largest = magnitude;
      }
      sum += largest;
    }
  });
  return case_.op == ReduceOp::kMean ? sum / static_cast<long double>(case_.world) : sum;
}

std::string Problem::check(Determinism grade, double max_relative_error,
                           double* largest_error) const {
  const bool is_inexact = max_relative_error > 0.0 && combines(case_.collective) &&
                          is_floating(case_.dtype) &&
                          (case_.op == ReduceOp::kSum || case_.op == ReduceOp::kMean);
  SumError error{max_relative_error};
  if (is_inexact) error.unit = unit_of_error();
  const Tensor memory_of_first = download(0);
  const auto first = output_in(memory_of_first, 0);
  for (int r = 0; r < case_.world; ++r) {
    const Tensor memory = download(r);
    const auto output = output_in(memory, r);
    if (has_other_changes(r, memory.bytes())) {
      return concat("rank ", r, ": an input, or bytes before or after a buffer, were written");
    }
    const bool is_like_first = case_.collective == Collective::kAllReduce && r > 0;
    if (is_like_first && std::ranges::equal(output, first))
      continue;  // equals rank 0's output, which was checked
    const std::string wrong = visit_stored(case_.dtype, [&]<class T>() {
      return wrong_output<T>(grade, is_inexact ? &error : nullptr, r, output,
                             is_like_first ? first : output);
    });
    if (!wrong.empty()) return concat("rank ", r, ": ", wrong);
  }
  if (largest_error) *largest_error = std::max(*largest_error, static_cast<double>(error.largest));
  return {};
}

template <class T>
std::string Problem::wrong_output(Determinism grade, SumError* error, int r,
                                  std::span<const std::byte> output,
                                  std::span<const std::byte> output_of_first) const {
  std::array<T, 64> values;
  const std::span<const T> of_ranks(values.data(), ranks_.size());
  std::size_t place = 0;
  for (const Part& part : rank(r).parts) {
    for (std::size_t i = part.first; i < part.first + part.count; ++i, ++place) {
      const auto input_of = [&](const Rank& from) {
        return load<T>(from.before.data() + from.input_at, i);
      };
      const T got = load<T>(output.data(), place);
      if (part.source != kAllRanks) {
        if (has_same_bits(got, input_of(rank(part.source)))) continue;
        return concat("element ", place, ": expected element ", i, " of rank ", part.source);
      }
      std::ranges::transform(ranks_, values.begin(), input_of);
      const std::string wrong = wrong_combination(case_.op, grade, of_ranks, got, error);
      if (!wrong.empty()) return concat("element ", place, ": ", wrong);
      // All ranks must have equal results, whatever the order of additions.
      const T first = load<T>(output_of_first.data(), place);
      if (!has_same_bits(got, first) && (first == first || got == got)) {
        return concat("element ", place, " differs from that of rank 0");
      }
    }
  }
  return {};
}

void call(CrossDeviceOps& ops, const std::vector<Call>& calls) {
  const Call& last = calls.back();
  std::vector<ReplicaBuffer> inputs, outputs;
  std::vector<std::size_t> counts;
  for (const Call& each : calls) {
    inputs.push_back(each.input);
    outputs.push_back(each.output);
    counts.insert(counts.end(), each.counts.begin(), each.counts.end());
  }
  switch (last.collective) {
    case Collective::kAllReduce:
      if (last.input.data == last.output.data) return ops.all_reduce_in_place(last.op, outputs);
      return ops.all_reduce(last.op, inputs, outputs);
    case Collective::kReduce:
      return ops.reduce(last.op, inputs, calls[static_cast<std::size_t>(calls[0].root)].output,
                        last.root);
    case Collective::kBroadcast:
      return ops.broadcast(outputs, last.root);
    case Collective::kAllGather:
      return ops.all_gather(inputs, outputs);
    case Collective::kReduceScatter:
      return ops.reduce_scatter(last.op, inputs, outputs);
    case Collective::kAllToAll:
      return ops.all_to_all(inputs, outputs, counts);
    case Collective::kBarrier:
      break;
  }
  fail(ErrorCode::kInvalidArgument,
       "barrier: not supported by a single CrossDeviceOps; expected another collective");
}

namespace {

ConstElements input_of(const Call& call) {
  return {call.input.data, call.input.count, call.input.dtype};
}
Elements output_of(const Call& call) {
  return {call.output.data, call.output.count, call.output.dtype};
}

}  // namespace

void call(Communicator& communicator, const Call& call) {
  const CallOptions options{.name = call.name, .shape = call.shape ? &*call.shape : nullptr};
  const ConstElements input = input_of(call);
  const Elements output = output_of(call);
  switch (call.collective) {
    case Collective::kAllReduce:
      if (input.data == output.data) return communicator.all_reduce(call.op, output, options);
      return communicator.all_reduce(call.op, input, output, options);
    case Collective::kReduce:
      return communicator.reduce(call.op, input, output, call.root, options);
    case Collective::kBroadcast:
      return communicator.broadcast(output, call.root, options);
    case Collective::kAllGather:
      return communicator.all_gather(input, output, call.counts, options);
    case Collective::kReduceScatter:
      return communicator.reduce_scatter(call.op, input, output, call.counts, options);
    case Collective::kAllToAll:
      return communicator.all_to_all(input, output, call.counts, call.receive_counts, options);
    case Collective::kBarrier:
      return communicator.barrier(options);
  }
}

CollectiveHandle start(Communicator& communicator, const Call& call) {
  const ConstElements input = input_of(call);
  const Elements output = output_of(call);
  switch (call.collective) {
    case Collective::kAllReduce:
      return communicator.start_all_reduce(call.op, output);
    case Collective::kReduce:
      return communicator.start_reduce(call.op, input, output, call.root);
    case Collective::kBroadcast:
      return communicator.start_broadcast(output, call.root);
    case Collective::kAllGather:
      return communicator.start_all_gather(input, output, call.counts);
    case Collective::kReduceScatter:
      return communicator.start_reduce_scatter(call.op, input, output, call.counts);
    case Collective::kAllToAll:
      return communicator.start_all_to_all(input, output, call.counts, call.receive_counts);
    case Collective::kBarrier:
      break;
  }
  fail(ErrorCode::kInvalidArgument,
       "barrier: has no asynchronous form; expected another collective");
}

// Reductions in canonical tree order for any type, and error bounds for other orders.

namespace {

template <class T>
std::string text_of(T value) {
  std::ostringstream out;
  out.precision(20);
  if constexpr (std::is_integral_v<T>) {
    out << static_cast<std::int64_t>(value);
  } else {
    out << static_cast<double>(value);
  }
  return out.str();
}

template <class T>
T combined(ReduceOp op, T a, T b) {
  if (op == ReduceOp::kMin) return b < a || b != b ? b : a;
  if (op == ReduceOp::kMax) return b > a || b != b ? b : a;
  if constexpr (std::is_integral_v<T>) {  // unsigned arithmetic wraps around
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    return static_cast<T>(op == ReduceOp::kProduct ? x * y : x + y);
  } else {
    return op == ReduceOp::kProduct ? a * b : a + b;
  }
}

/// Combines `values`, converted to Wide, along the tree of docs/determinism.md.
template <class Wide, class T>
Wide tree_combination(ReduceOp op, std::span<const T> values) {
  std::array<Wide, 64> level;
  std::ranges::copy(values, level.begin());
  for (std::size_t n = values.size(); n > 1; n = (n + 1) / 2) {
    for (std::size_t k = 0; k < n / 2; ++k) level[k] = combined(op, level[2 * k], level[2 * k + 1]);
    if (n % 2 == 1) level[n / 2] = level[n - 1];
  }
  return op == ReduceOp::kMean ? level[0] / static_cast<Wide>(values.size()) : level[0];
}

/// Returns a bound on the difference between `exact` and a reduction computed in T in any order.
template <class T>
long double error_bound(ReduceOp op, std::span<const T> values, long double exact) {
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) return 0;
  const auto n = static_cast<long double>(values.size());
  const long double epsilon = std::numeric_limits<T>::epsilon();
  const long double tiny = n * std::numeric_limits<T>::denorm_min();
  if (op == ReduceOp::kProduct) return std::abs(exact) * n * epsilon + tiny;
  long double magnitude = 0;
  for (const T value : values) magnitude += std::abs(static_cast<long double>(value));
  return op == ReduceOp::kMean ? magnitude * epsilon + tiny : magnitude * n * epsilon;
}

/// Returns an error unless `got` is within the rounding errors of additions in type Step. A 16-bit
/// result must be between the rounded bounds.
template <class T, class Step>
std::string out_of_bounds(ReduceOp op, std::span<const Step> values, T got, SumError* inexact) {
  const auto exact = tree_combination<long double>(op, values);
  auto error = error_bound(op, values, exact);
  const auto rounded = [](long double x) -> long double {
    if constexpr (Half<T>) return static_cast<Step>(T(static_cast<double>(x)));
    return x;
  };
  const long double number = static_cast<Step>(got);
  const bool is_finite = std::isfinite(number);
  if (inexact && !std::isfinite(inexact->unit)) {
    if (!is_finite || std::isfinite(exact)) return {};
  } else if (inexact) {
    // Error of the operation, not counting the rounding of its result to 16 bits.
    const long double lost = std::abs(number - exact) - std::abs(exact) * (Half<T> ? 0x1p-8L : 0);
    if (is_finite && lost > 0) inexact->largest = std::max(inexact->largest, lost / inexact->unit);
    if (is_finite && std::isinf(inexact->declared)) return {};
    if (std::isfinite(inexact->declared)) error += inexact->declared * inexact->unit;
  }
  if (exact != exact      ? number != number
      : std::isinf(exact) ? number == exact
                          : number >= rounded(exact - error) && number <= rounded(exact + error)) {
    return {};
  }
  return concat("expected ", text_of(static_cast<double>(exact)), " within ",
                static_cast<double>(error), ", got ", text_of(got));
}

}  // namespace

template <class T>
std::string wrong_combination(ReduceOp op, Determinism grade, std::span<const T> values, T got,
                              SumError* error) {
  using Step = std::conditional_t<Half<T>, float, T>;
  std::array<Step, 64> steps;
  std::ranges::transform(values, steps.begin(), [](T value) { return static_cast<Step>(value); });
  const std::span<const Step> added(steps.data(), values.size());
  if constexpr (!std::is_integral_v<T>) {
    if (grade != Determinism::kCanonical) return out_of_bounds(op, added, got, error);
  }
  const T expected = T(tree_combination<Step>(op, added));
  const bool is_same = std::memcmp(&expected, &got, sizeof(T)) == 0;
  if (is_same || (expected != expected && got != got)) return {};
  return concat("expected the bits of ", text_of(expected), ", got ", text_of(got));
}

template std::string wrong_combination(ReduceOp, Determinism, std::span<const float>, float,
                                       SumError*);
template std::string wrong_combination(ReduceOp, Determinism, std::span<const double>, double,
                                       SumError*);
template std::string wrong_combination(ReduceOp, Determinism, std::span<const std::int32_t>,
                                       std::int32_t, SumError*);
template std::string wrong_combination(ReduceOp, Determinism, std::span<const std::int64_t>,
                                       std::int64_t, SumError*);
template std::string wrong_combination(ReduceOp, Determinism, std::span<const std::uint8_t>,
                                       std::uint8_t, SumError*);
template std::string wrong_combination(ReduceOp, Determinism, std::span<const BFloat16>, BFloat16,
                                       SumError*);
template std::string wrong_combination(ReduceOp, Determinism, std::span<const Float16>, Float16,
                                       SumError*);

}  // namespace tutti::conformance
