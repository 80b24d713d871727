// Layer and group normalisation, and their gradients.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tensor/cuda/kernels.h"
#include "tensor/cuda/team.h"

namespace tutti::cuda {
namespace {

/// x viewed as [batch, positions, groups, channels of a group]; a *pair* is a batch row and a
/// group.
struct Extent {
  Extent(const KernelCall& call, std::int64_t num_statistics)
      : batch(num_statistics / call.attributes_as<GroupNormAttributes>().groups),
        positions(call.attributes_as<GroupNormAttributes>().positions),
        groups(call.attributes_as<GroupNormAttributes>().groups),
        channels(call.inputs[1].shape.num_elements() / groups) {}

  std::int64_t num_pairs() const { return batch * groups; }
  /// Returns the number of elements of a pair.
  __device__ __forceinline__ std::int64_t count() const { return positions * channels; }
  /// Returns the total number of channels in all groups.
  __device__ __forceinline__ std::int64_t width() const { return groups * channels; }

  std::int64_t batch, positions, groups, channels;
};

/// Elements of one (batch row, group) pair: their offsets in x, and their channels.
struct Pair {
  __device__ __forceinline__ Pair(const Extent& extent, std::int64_t pair)
      : channels(extent.channels),
        width(extent.width()),
        row(quotient_of_large(pair, extent.groups)),
        first_channel((pair - row * extent.groups) * channels),
        first(row * extent.positions * width + first_channel) {}

  /// Calls body(offset in x, channel) for the elements of this lane.
  template <class Body>
  __device__ __forceinline__ void for_each(const Teams& teams, std::int64_t count,
                                           const Body& body) const {
    if (count <= 0) return;
    std::int64_t position = quotient_of_large(teams.lane(), channels);
    std::int64_t channel = teams.lane() - position * channels;
    const std::int64_t positions_on = quotient_of_large(teams.lanes(), channels);
    const std::int64_t channels_on = teams.lanes() - positions_on * channels;
    for (std::int64_t i = teams.lane(); i < count; i += teams.lanes()) {
      body(first + position * width + channel, first_channel + channel);
      position += positions_on;
      channel += channels_on;
      if (channel < channels) continue;
      channel -= channels;
      ++position;
    }
  }

  std::int64_t channels, width, row, first_channel, first;
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    normalize(Extent extent, std::int64_t num_pairs, int lanes, double epsilon_, const T* x,
              const T* gamma, const T* beta, T* y, T* mean, T* variance) {
  using N = Number<T>;
  __shared__ N shared[kWarpsOfBlock];
  const Teams teams(lanes);
  const N epsilon = static_cast<N>(epsilon_);
  teams.for_each_row(num_pairs, [&](std::int64_t at) {
    const Pair pair(extent, at);
    const std::int64_t count = at < num_pairs ? extent.count() : 0;
    const N divisor = static_cast<N>(count > 0 ? count : 1);
    N sum{0}, squares{0};
    pair.for_each(teams, count, [&](std::int64_t i, std::int64_t) { sum += number(x[i]); });
    const N center = teams.combine(sum, AddNumbers{}, shared) / divisor;
    pair.for_each(teams, count, [&](std::int64_t i, std::int64_t) {
      const N deviation = number(x[i]) - center;
      squares += deviation * deviation;
    });
    const N spread = teams.combine(squares, AddNumbers{}, shared) / divisor;
    const N inverse = N{1} / std::sqrt(spread + epsilon);
    pair.for_each(teams, count, [&](std::int64_t i, std::int64_t c) {
      y[i] = element<T>((number(x[i]) - center) * inverse * number(gamma[c]) + number(beta[c]));
    });
    if (at >= num_pairs || teams.lane() != 0) return;
    mean[at] = element<T>(center);
    variance[at] = element<T>(spread);
  });
}

// Computes dx = (g - mean(g) - z * mean(g * z)) / deviation, with deviation = sqrt(variance +
// epsilon), z = (x - mean) / deviation and g = dy * gamma.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gradient_of_x(Extent extent, std::int64_t num_pairs, int lanes, double epsilon_, const T* x,
                  const T* gamma, const T* mean, const T* variance, const T* dy, T* dx) {
  using N = Number<T>;
  __shared__ N shared[kWarpsOfBlock];
  const Teams teams(lanes);
  const N epsilon = static_cast<N>(epsilon_);
  teams.for_each_row(num_pairs, [&](std::int64_t at) {
    const Pair pair(extent, at);
    const bool is_active = at < num_pairs;
    const std::int64_t count = is_active ? extent.count() : 0;
    const N divisor = static_cast<N>(count > 0 ? count : 1);
    const N center = is_active ? number(mean[at]) : N{0};
    const N inverse = N{1} / std::sqrt((is_active ? number(variance[at]) : N{1}) + epsilon);
    N sum{0}, moment{0};
    pair.for_each(teams, count, [&](std::int64_t i, std::int64_t c) {
      const N g = number(dy[i]) * number(gamma[c]);
      sum += g;
      moment += g * ((number(x[i]) - center) * inverse);
    });
    sum = teams.combine(sum, AddNumbers{}, shared) / divisor;
    moment = teams.combine(moment, AddNumbers{}, shared) / divisor;
    pair.for_each(teams, count, [&](std::int64_t i, std::int64_t c) {
      const N g = number(dy[i]) * number(gamma[c]), z = (number(x[i]) - center) * inverse;
      dx[i] = element<T>(inverse * (g - (sum + z * moment)));
    });
  });
}

constexpr int kColumns = 32, kLanesOfColumn = 8;

/// Sums dy and dy * z for each channel over rows [blockIdx.y * part_size, ...) of [rows, width].
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_channels(Extent extent, std::int64_t rows, std::int64_t part_size, double epsilon_,
                 const T* x, const T* mean, const T* variance, const T* dy, Number<T>* sums,
                 Number<T>* moments) {
  using N = Number<T>;
  __shared__ N of_lanes[2][kLanesOfColumn][kColumns];
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  const int lane = static_cast<int>(threadIdx.x) / kColumns;
  const std::int64_t c = std::int64_t{blockIdx.x} * kColumns + column, width = extent.width();
  const std::int64_t first = std::int64_t{blockIdx.y} * part_size;
  const std::int64_t end = first + part_size < rows ? first + part_size : rows;
  N sum{0}, moment{0};
  if (c < width) {
    const std::int64_t group = quotient_of_large(c, extent.channels);
    for (std::int64_t r = first + lane; r < end; r += kLanesOfColumn) {
      const std::int64_t row = extent.positions == 1 ? r : quotient_of_large(r, extent.positions);
      const std::int64_t pair = row * extent.groups + group;
      const N inverse = N{1} / std::sqrt(number(variance[pair]) + static_cast<N>(epsilon_));
      const N d = number(dy[r * width + c]);
      sum += d;
      moment += d * ((number(x[r * width + c]) - number(mean[pair])) * inverse);
    }
  }
  of_lanes[0][lane][column] = sum;
  of_lanes[1][lane][column] = moment;
  __syncthreads();
  if (lane > 0 || c >= width) return;
  for (int i = 1; i < kLanesOfColumn; ++i) {
    sum += of_lanes[0][i][column];
    moment += of_lanes[1][i][column];
  }
  sums[std::int64_t{blockIdx.y} * width + c] = sum;
  moments[std::int64_t{blockIdx.y} * width + c] = moment;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_parts(std::int64_t width, std::int64_t parts, const Number<T>* sums,
              const Number<T>* moments, T* dgamma, T* dbeta) {
  for (std::int64_t c = thread_number(); c < width; c += num_threads()) {
    Number<T> sum{0}, moment{0};
    for (std::int64_t part = 0; part < parts; ++part) {
      sum += sums[part * width + c];
      moment += moments[part * width + c];
    }
    dbeta[c] = element<T>(sum);
    dgamma[c] = element<T>(moment);
  }
}

template <class T>
void forward(const KernelCall& call) {
  const Extent extent(call, call.outputs[1].shape.num_elements());
  const int lanes = Teams::lanes_for(extent.positions * extent.channels);
  if (extent.num_pairs() == 0) return;
  launch_cooperative(normalize<T>, Teams::blocks_for_rows(extent.num_pairs(), lanes), kThreads,
                     call.stream, extent, extent.num_pairs(), lanes,
                     call.attributes_as<GroupNormAttributes>().epsilon, call.in<T>(0),
                     call.in<T>(1), call.in<T>(2), call.out<T>(0), call.out<T>(1), call.out<T>(2));
}

template <class T>
void gradient_of_parameters(const KernelCall& call, const Extent& extent) {
  const std::int64_t rows = extent.batch * extent.positions;
  const std::int64_t width = extent.groups * extent.channels;
  if (width == 0) return;
  const std::int64_t groups = (width + kColumns - 1) / kColumns;
  const std::int64_t parts =
      std::clamp<std::int64_t>(std::min((1024 + groups - 1) / groups, rows / 64), 1, 256);
  const std::int64_t part_size = (rows + parts - 1) / parts;
  const auto bytes = static_cast<std::size_t>(parts * width) * sizeof(Number<T>);
  auto* const sums = static_cast<Number<T>*>(call.workspace.allocate(bytes));
  auto* const moments = static_cast<Number<T>*>(call.workspace.allocate(bytes));
  launch_cooperative(
      sum_channels<T>, dim3(static_cast<unsigned>(groups), static_cast<unsigned>(parts)), kThreads,
      call.stream, extent, rows, part_size, call.attributes_as<GroupNormAttributes>().epsilon,
      call.in<T>(0), call.in<T>(2), call.in<T>(3), call.in<T>(4), sums, moments);
  launch(add_parts<T>, blocks_for(static_cast<std::size_t>(width)), kThreads, call.stream, width,
         parts, sums, moments, call.out<T>(1), call.out<T>(2));
}

template <class T>
void backward(const KernelCall& call) {
  const Extent extent(call, call.inputs[2].shape.num_elements());
  const int lanes = Teams::lanes_for(extent.positions * extent.channels);
  if (extent.num_pairs() > 0) {
    launch_cooperative(gradient_of_x<T>, Teams::blocks_for_rows(extent.num_pairs(), lanes),
                       kThreads, call.stream, extent, extent.num_pairs(), lanes,
                       call.attributes_as<GroupNormAttributes>().epsilon, call.in<T>(0),
                       call.in<T>(1), call.in<T>(2), call.in<T>(3), call.in<T>(4), call.out<T>(0));
  }
  gradient_of_parameters<T>(call, extent);
}

template <class... Ts>
void set_floating(KernelTable& table) {
  (table.set(OpId::kGroupNorm, dtype_of<Ts>(), forward<Ts>), ...);
  (table.set(OpId::kGroupNormGrad, dtype_of<Ts>(), backward<Ts>), ...);
}

}  // namespace

void register_group_normalization_kernels(KernelTable& table) {
  set_floating<TUTTI_FLOATING_TYPES>(table);
}

}  // namespace tutti::cuda
