// What every registered CrossDeviceOps must do, against slow computations made here.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "gtest/gtest.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"
#include "tutti/core/random.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti {
namespace {

constexpr std::size_t kCounts[] = {0, 1, 3, 17, 4096, 100003};
constexpr int kReplicas[] = {1, 2, 3, 5, 8};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};

std::unique_ptr<CrossDeviceOps> build_named(const std::string& name, int num_replicas) {
  Group group{num_replicas, 0, {}};
  for (int r = 0; r < num_replicas; ++r) group.local_devices.push_back({DeviceType::kCpu, r});
  return build_cross_device_ops(make_cross_device_ops(name), group);
}

/// Elements of all replicas: [replica][element], with one element before and one behind what is
/// reduced: they must stay, and they put the buffers at odd addresses.
template <class T>
using Values = std::vector<std::vector<T>>;

template <class T>
T random_element(const RandomStream& stream, std::size_t i) {
  if constexpr (Half<T>) {
    return T(stream.normal(i) / 2);  // as below
  } else if constexpr (std::is_floating_point_v<T>) {
    // The product of eight stays within the range of float.
    return static_cast<T>(stream.normal(i) * std::pow(2.0, static_cast<double>(i % 9)));
  } else {
    return static_cast<T>(stream.bits64(i));  // integers wrap around
  }
}
template <>
std::uint8_t random_element<std::uint8_t>(const RandomStream& stream, std::size_t i) {
  return static_cast<std::uint8_t>(stream.bits(i));
}

template <class T>
Values<T> random_replicas(int replicas, std::size_t count, bool boolean) {
  Values<T> values;
  for (int r = 0; r < replicas; ++r) {
    const RandomStream stream(RandomKey{5, kUserPurpose, static_cast<std::uint64_t>(r)});
    std::vector<T>& own = values.emplace_back(count + 2);
    for (std::size_t i = 0; i < own.size(); ++i) {
      own[i] = boolean ? static_cast<T>(stream.bits(i) & 1) : random_element<T>(stream, i);
    }
  }
  return values;
}

template <class T>
std::vector<ReplicaBuffer> buffers_of(Values<T>& values, DType dtype, std::size_t first,
                                      std::size_t count) {
  std::vector<ReplicaBuffer> buffers;
  for (std::size_t r = 0; r < values.size(); ++r) {
    buffers.push_back({reinterpret_cast<std::byte*>(values[r].data() + 1 + first),
                       count,
                       dtype,
                       {DeviceType::kCpu, static_cast<int>(r)}});
  }
  return buffers;
}

/// Element `i` of each replica along the canonical tree, by its definition.
template <class T>
T plain_tree_of(ReduceOp op, const Values<T>& values, std::size_t i) {
  const auto combine = [op](T a, T b) -> T {
    if (op == ReduceOp::kMin) return b < a ? b : a;
    if (op == ReduceOp::kMax) return b > a ? b : a;
    if constexpr (std::is_floating_point_v<T>) {
      return op == ReduceOp::kProduct ? a * b : a + b;
    } else {
      const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
      return static_cast<T>(op == ReduceOp::kProduct ? x * y : x + y);
    }
  };
  std::vector<T> level;
  for (const auto& own : values) level.push_back(own[i]);
  const auto num_values = static_cast<T>(level.size());
  while (level.size() > 1) {
    std::vector<T> next;
    for (std::size_t k = 0; k + 1 < level.size(); k += 2) {
      next.push_back(combine(level[k], level[k + 1]));
    }
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = next;
  }
  return op == ReduceOp::kMean ? level[0] / num_values : level[0];
}

/// Element `i` of each replica, alone.
template <class T>
Values<float> widened_element(const Values<T>& values, std::size_t i) {
  Values<float> wide;
  for (const auto& own : values) wide.push_back({static_cast<float>(own[i])});
  return wide;
}

/// The same; 16-bit numbers are combined as floats and rounded once.
template <class T>
T tree_of(ReduceOp op, const Values<T>& values, std::size_t i) {
  if constexpr (Half<T>) {
    return T(plain_tree_of<float>(op, widened_element(values, i), 0));
  } else {
    return plain_tree_of(op, values, i);
  }
}

/// The element in a wider type, in no particular order, and a bound for the rounding of any order.
struct Expected {
  long double value = 0;
  long double error = 0;
};

template <class T>
Expected plain_wide_result(ReduceOp op, const Values<T>& values, std::size_t i) {
  long double sum = 0, magnitude = 0, product = 1;
  long double least = values[0][i], most = values[0][i];
  for (const auto& own : values) {
    const long double x = own[i];
    sum += x;
    magnitude += std::abs(x);
    product *= x;
    least = std::min(least, x);
    most = std::max(most, x);
  }
  const long double epsilon = std::numeric_limits<T>::epsilon();
  const auto n = static_cast<long double>(values.size());
  switch (op) {
    case ReduceOp::kMin:
      return {least, 0};
    case ReduceOp::kMax:
      return {most, 0};
    case ReduceOp::kProduct:
      return {product, std::abs(product) * n * epsilon};
    case ReduceOp::kMean:
      return {sum / n, magnitude * epsilon};
    case ReduceOp::kSum:
      break;
  }
  return {sum, magnitude * n * epsilon};
}

template <class T>
Expected wide_result(ReduceOp op, const Values<T>& values, std::size_t i) {
  if constexpr (Half<T>) {  // one rounding more, half a unit of bfloat16 at most
    Expected expected = plain_wide_result<float>(op, widened_element(values, i), 0);
    expected.error += std::abs(expected.value) * 0x1p-8L + 0x1p-25L;
    return expected;
  } else {
    return plain_wide_result(op, values, i);
  }
}

template <class T>
void expect_right(ReduceOp op, Determinism grade, const Values<T>& before, const Values<T>& after,
                  std::size_t count) {
  for (std::size_t r = 0; r < before.size(); ++r) {
    ASSERT_EQ(std::memcmp(&before[r][0], &after[r][0], sizeof(T)), 0) << "before the buffer";
    ASSERT_EQ(std::memcmp(&before[r][count + 1], &after[r][count + 1], sizeof(T)), 0) << "behind";
    ASSERT_EQ(std::memcmp(&after[r][1], &after[0][1], count * sizeof(T)), 0)
        << "replica " << r << " has another result than replica 0";
  }
  const bool floats = std::is_floating_point_v<T> || Half<T>;
  const bool exact = !floats || grade == Determinism::kCanonical;
  for (std::size_t i = 1; i <= count; ++i) {
    if (exact) {
      ASSERT_EQ(after[0][i], tree_of(op, before, i)) << "element " << i - 1;
    }
    if constexpr (std::is_floating_point_v<T> || Half<T>) {
      const Expected expected = wide_result(op, before, i);
      const auto got = static_cast<long double>(static_cast<double>(after[0][i]));
      ASSERT_LE(std::abs(got - expected.value), expected.error) << "element " << i - 1;
    }
  }
}

template <class T>
void conform(const std::string& name, DType dtype) {
  for (const int replicas : kReplicas) {
    const auto ops = build_named(name, replicas);
    for (const std::size_t count : kCounts) {
      const Values<T> before = random_replicas<T>(replicas, count, dtype == DType::kBool);
      for (const ReduceOp op : kOps) {
        const bool refused =
            (op == ReduceOp::kMean && !is_floating(dtype)) ||
            (dtype == DType::kBool && op != ReduceOp::kMin && op != ReduceOp::kMax);
        SCOPED_TRACE(
            concat(name, ": ", op, " of ", count, " x ", dtype, ", ", replicas, " replicas"));
        Values<T> values = before;
        const auto buffers = buffers_of(values, dtype, 0, count);
        if (refused) {
          testing::expect_error(ErrorCode::kInvalidArgument, {},
                                [&] { ops->all_reduce_in_place(op, buffers); });
          continue;
        }
        ops->all_reduce_in_place(op, buffers);
        ASSERT_NO_FATAL_FAILURE(expect_right(op, ops->determinism(), before, values, count));
      }
    }
  }
}

class CrossDeviceOpsConformance : public ::testing::TestWithParam<std::tuple<std::string, DType>> {
};

INSTANTIATE_TEST_SUITE_P(All, CrossDeviceOpsConformance,
                         ::testing::Combine(::testing::ValuesIn(registered_cross_device_ops()),
                                            ::testing::ValuesIn(kAllDTypes)),
                         [](const auto& info) {
                           return concat(std::get<0>(info.param), "_", std::get<1>(info.param));
                         });

TEST_P(CrossDeviceOpsConformance, ReducesLikeASlowComputation) {
  const auto& [name, dtype] = GetParam();
  visit_dtype(dtype, [&, &name = name, dtype = dtype]<class T>() {
    if constexpr (std::is_same_v<T, bool>) {
      conform<std::uint8_t>(name, dtype);
    } else {
      conform<T>(name, dtype);
    }
  });
}

class CrossDeviceOpsPromises : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, CrossDeviceOpsPromises,
                         ::testing::ValuesIn(registered_cross_device_ops()),
                         [](const auto& info) { return info.param; });

TEST_P(CrossDeviceOpsPromises, GivesTheSameBitsAgainUnlessTheGradeIsNone) {
  const auto ops = build_named(GetParam(), 5);
  const Values<float> before = random_replicas<float>(5, 10007, false);
  Values<float> first = before, second = before;
  ops->all_reduce_in_place(ReduceOp::kSum, buffers_of(first, DType::kFloat32, 0, 10007));
  ops->all_reduce_in_place(ReduceOp::kSum, buffers_of(second, DType::kFloat32, 0, 10007));
  if (ops->determinism() == Determinism::kNone) {
    expect_right(ReduceOp::kSum, ops->determinism(), before, second, 10007);
  } else {
    EXPECT_EQ(first, second);
  }
}

TEST(SliceableOps, SeveralThreadsOnDisjointRangesGiveTheSameBits) {
  testing::HangWatchdog watchdog("slices of one buffer", std::chrono::seconds(60));
  constexpr std::size_t kCount = 50021;
  constexpr std::size_t kCuts[] = {0, 1, 4099, 20000, 33333, kCount};
  int num_sliceable = 0;
  for (const std::string& name : registered_cross_device_ops()) {
    const auto ops = build_named(name, 3);
    if (!ops->sliceable()) continue;
    ++num_sliceable;
    Values<float> whole = random_replicas<float>(3, kCount, false);
    Values<float> sliced = whole;
    ops->all_reduce_in_place(ReduceOp::kSum, buffers_of(whole, DType::kFloat32, 0, kCount));
    std::vector<std::unique_ptr<Thread>> threads;
    for (std::size_t cut = 0; cut + 1 < std::size(kCuts); ++cut) {
      threads.push_back(Executor::system().start(concat("slice-", cut), [&, cut] {
        const std::size_t length = kCuts[cut + 1] - kCuts[cut];
        ops->all_reduce_in_place(ReduceOp::kSum,
                                 buffers_of(sliced, DType::kFloat32, kCuts[cut], length));
      }));
    }
    for (const auto& thread : threads) thread->join();
    EXPECT_EQ(sliced, whole) << name;
  }
  EXPECT_GE(num_sliceable, 1);
}

}  // namespace
}  // namespace tutti
