// The memory of one case: what the ranks bring, guarded, and whether it became what it must.
// SPDX-License-Identifier: Apache-2.0
#include "testing/cross_device_ops/problem.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tensor/gpu/gpu_device.h"
#include "testing/cross_device_ops/expected.h"
#include "tutti/core/random.h"

namespace tutti::conformance {
namespace {

constexpr std::byte kGuard{0xa5};
constexpr int kStale = 0x5b;  // what outputs hold before

/// `count` in `world` parts; uneven ones are random, and some are empty.
std::vector<std::size_t> parts_of(const Case& c, std::uint64_t row) {
  const auto world = static_cast<std::size_t>(c.world);
  if (!c.uneven) return std::vector<std::size_t>(world, (c.count + world - 1) / world);
  const RandomStream random(RandomKey{c.seed, kUserPurpose, 3, row, c.count});
  std::vector<std::size_t> weights(world);
  std::size_t sum = 0;
  for (std::size_t r = 0; r < world; ++r) sum += weights[r] = random.below(r, 4);
  std::vector<std::size_t> parts(world);
  std::size_t rest = c.count;
  for (std::size_t r = 0; r < world && sum > 0; ++r) rest -= parts[r] = c.count * weights[r] / sum;
  parts[random.below(world, world)] += rest;
  return parts;
}

std::vector<std::size_t> starts_of(const std::vector<std::size_t>& counts) {
  std::vector<std::size_t> starts{0};
  for (const std::size_t count : counts) starts.push_back(starts.back() + count);
  return starts;
}

Layout of_whole_buffers(const Case& c) {
  Layout layout;
  for (int r = 0; r < c.world; ++r) {
    RankLayout rank{c.count, c.count, 0, 0, c.in_place, {}};
    const bool reads = c.collective != Collective::kBroadcast;
    const bool writes = c.collective != Collective::kReduce || r == c.variant;
    if (!writes) rank.output_count = 0;
    rank.shares_memory = !reads || (c.in_place && writes);
    if (writes) {
      rank.segments.push_back({0, c.count, reads ? Segment::kCombination : c.variant, 0});
    }
    layout.ranks.push_back(rank);
  }
  return layout;
}

Layout of_all_gather(const Case& c) {
  Layout layout;
  layout.counts = parts_of(c, 0);
  const std::vector<std::size_t> starts = starts_of(layout.counts);
  for (std::size_t r = 0; r < layout.counts.size(); ++r) {
    RankLayout rank{layout.counts[r], starts.back(), c.in_place ? starts[r] : 0, 0, c.in_place, {}};
    for (std::size_t s = 0; s < layout.counts.size(); ++s) {
      rank.segments.push_back({starts[s], layout.counts[s], static_cast<int>(s), 0});
    }
    layout.ranks.push_back(rank);
  }
  return layout;
}

Layout of_reduce_scatter(const Case& c) {
  Layout layout;
  layout.counts = parts_of(c, 0);
  const std::vector<std::size_t> starts = starts_of(layout.counts);
  for (std::size_t r = 0; r < layout.counts.size(); ++r) {
    RankLayout rank{starts.back(), layout.counts[r], 0, c.in_place ? starts[r] : 0, c.in_place, {}};
    rank.segments.push_back({0, layout.counts[r], Segment::kCombination, starts[r]});
    layout.ranks.push_back(rank);
  }
  return layout;
}

Layout of_all_to_all(const Case& c) {
  Layout layout;
  const auto world = static_cast<std::size_t>(c.world);
  layout.ranks.resize(world);
  for (std::size_t r = 0; r < world; ++r) {
    const std::vector<std::size_t> sent = parts_of(c, r);
    const std::vector<std::size_t> starts = starts_of(sent);
    layout.counts.insert(layout.counts.end(), sent.begin(), sent.end());
    layout.ranks[r].input_count = starts.back();
    for (std::size_t s = 0; s < world; ++s) {
      RankLayout& receiver = layout.ranks[s];
      receiver.segments.push_back({receiver.output_count, sent[s], static_cast<int>(r), starts[s]});
      receiver.output_count += sent[s];
    }
  }
  return layout;
}

/// Where the elements lie, and what each must become.
Layout layout_of(const Case& c) {
  switch (c.collective) {
    case Collective::kAllGather:
      return of_all_gather(c);
    case Collective::kReduceScatter:
      return of_reduce_scatter(c);
    case Collective::kAllToAll:
      return of_all_to_all(c);
    case Collective::kBarrier:
      return {std::vector<RankLayout>(static_cast<std::size_t>(c.world)), {}};
    default:
      return of_whole_buffers(c);
  }
}

// Memory at any address.
template <class T>
T load(const std::byte* data, std::size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void store(std::byte* data, std::size_t index, T value) {
  std::memcpy(data + index * sizeof(T), &value, sizeof(T));
}

}  // namespace

GuardedBytes::GuardedBytes(std::size_t size, std::size_t offset, Device device)
    : memory_(BufferRef::allocate(size + offset + 2 * kZone)),
      size_(size),
      offset_(offset),
      is_on_gpu_(device.type == DeviceType::kGpu) {
  if (is_on_gpu_) {
    const Shape shape{static_cast<std::int64_t>(memory_->size())};
    on_gpu_ = MutableTensor(shape, DType::kUInt8, device);
  }
  std::memset(memory_->data(), static_cast<int>(kGuard), kZone + offset);
  std::memset(data(), kStale, size);
  std::memset(data() + size, static_cast<int>(kGuard), kZone);
}

std::byte* GuardedBytes::address() const {
  if (!is_on_gpu_) return data();
  return static_cast<std::byte*>(on_gpu_.address()) + kZone + offset_;
}

void GuardedBytes::upload() const {
  if (!is_on_gpu_) return;
  GpuDevice::of(on_gpu_.device())
      .copy_from_host(on_gpu_.address(), memory_->data(), memory_->size());
}

void GuardedBytes::download() const {
  if (!is_on_gpu_) return;
  GpuDevice::of(on_gpu_.device()).copy_to_host(memory_->data(), on_gpu_.address(), memory_->size());
}

bool GuardedBytes::guards_are_intact() const {
  const auto intact = [](std::byte b) { return b == kGuard; };
  const std::byte* const begin = memory_->data();
  return std::all_of(begin, begin + kZone + offset_, intact) &&
         std::all_of(data() + size_, data() + size_ + kZone, intact);
}

Problem::Problem(const Case& c, std::vector<Device> devices)
    : case_(c), devices_(std::move(devices)), layout_(layout_of(c)), values_(c) {
  const std::size_t element = size_of(c.dtype);
  for (int r = 0; r < c.world; ++r) {
    const RankLayout& own = rank(r);
    const std::size_t inputs =
        own.shares_memory ? std::max(own.input_count, own.output_count) : own.input_count;
    const std::size_t outputs = own.shares_memory ? 0 : own.output_count;
    memory_.push_back({GuardedBytes(inputs * element, c.offset, device(r)),
                       GuardedBytes(outputs * element, c.offset, device(r))});
    visit_stored(c.dtype, [&]<class T>() {
      for (std::size_t i = 0; i < own.input_count; ++i) {
        store(host_input(r), i, values_.at<T>(r, i));
      }
    });
    memory_.back().input.upload();
    memory_.back().output.upload();
  }
}

Device Problem::device(int r) const {
  return devices_.empty() ? Device{DeviceType::kCpu, r} : devices_[static_cast<std::size_t>(r)];
}

void Problem::download() const {
  for (const Memory& memory : memory_) {
    memory.input.download();
    memory.output.download();
  }
}

std::byte* Problem::host_input(int r) const {
  return memory_[static_cast<std::size_t>(r)].input.data() +
         rank(r).input_place * size_of(case_.dtype);
}

std::byte* Problem::host_output(int r) const {
  const Memory& memory = memory_[static_cast<std::size_t>(r)];
  std::byte* const begin = rank(r).shares_memory ? memory.input.data() : memory.output.data();
  return begin + rank(r).output_place * size_of(case_.dtype);
}

bool Problem::has_output(int r, const std::byte* bytes) const {
  const std::size_t size = rank(r).output_count * size_of(case_.dtype);
  return size == 0 || std::memcmp(host_output(r), bytes, size) == 0;
}

ReplicaBuffer Problem::input(int r) const {
  const RankLayout& own = rank(r);
  std::byte* const begin = memory_[static_cast<std::size_t>(r)].input.address();
  return {begin + own.input_place * size_of(case_.dtype), own.input_count, case_.dtype, device(r)};
}

ReplicaBuffer Problem::output(int r) const {
  const RankLayout& own = rank(r);
  const Memory& memory = memory_[static_cast<std::size_t>(r)];
  std::byte* const begin = own.shares_memory ? memory.input.address() : memory.output.address();
  return {begin + own.output_place * size_of(case_.dtype), own.output_count, case_.dtype,
          device(r)};
}

std::vector<ReplicaBuffer> Problem::inputs() const {
  std::vector<ReplicaBuffer> buffers;
  for (int r = 0; r < case_.world; ++r) buffers.push_back(input(r));
  return buffers;
}

std::vector<ReplicaBuffer> Problem::outputs() const {
  std::vector<ReplicaBuffer> buffers;
  for (int r = 0; r < case_.world; ++r) buffers.push_back(output(r));
  return buffers;
}

std::string Problem::check(Determinism grade) const {
  download();
  std::string wrong = check_guards();
  if (!wrong.empty()) return wrong;
  return visit_stored(case_.dtype, [&]<class T>() { return check_as<T>(grade); });
}

std::string Problem::check_guards() const {
  for (std::size_t r = 0; r < memory_.size(); ++r) {
    if (!memory_[r].input.guards_are_intact() || !memory_[r].output.guards_are_intact()) {
      return concat("rank ", r, ": bytes before or behind a buffer were written");
    }
  }
  return {};
}

template <class T>
std::string Problem::check_as(Determinism grade) const {
  for (int r = 0; r < case_.world; ++r) {
    std::string wrong = rank(r).shares_memory ? std::string() : check_input<T>(r);
    // Ranks that have the bits of rank 0 are as right as that.
    const bool as_first =
        case_.collective == Collective::kAllReduce && r > 0 && has_output(r, host_output(0));
    for (const Segment& segment : rank(r).segments) {
      if (wrong.empty() && !as_first) wrong = check_segment<T>(grade, r, segment);
    }
    if (!wrong.empty()) return concat("rank ", r, ": ", wrong);
  }
  return {};
}

template <class T>
std::string Problem::check_input(int r) const {
  for (std::size_t i = 0; i < rank(r).input_count; ++i) {
    const T now = load<T>(host_input(r), i), before = values_.at<T>(r, i);
    if (std::memcmp(&now, &before, sizeof(T)) != 0) {
      return concat("element ", i, " of the input was changed");
    }
  }
  return {};
}

template <class T>
std::string Problem::check_segment(Determinism grade, int r, const Segment& segment) const {
  std::array<T, 64> values;
  const auto world = static_cast<std::size_t>(case_.world);
  const std::byte* const data = host_output(r);
  for (std::size_t i = 0; i < segment.count; ++i) {
    const std::size_t place = segment.output_first + i;
    const T got = load<T>(data, place);
    if (segment.source != Segment::kCombination) {
      const T expected = values_.at<T>(segment.source, segment.input_first + i);
      if (std::memcmp(&expected, &got, sizeof(T)) == 0) continue;
      return concat("element ", place, " is not element ", segment.input_first + i, " of rank ",
                    segment.source);
    }
    for (std::size_t k = 0; k < world; ++k) {
      values[k] = values_.at<T>(static_cast<int>(k), segment.input_first + i);
    }
    const std::string wrong = wrong_combination<T>(case_.op, grade, {values.data(), world}, got);
    if (!wrong.empty()) return concat("element ", place, ": ", wrong);
    // All ranks have one result, whatever the order of additions was.
    if (case_.collective == Collective::kAllReduce && r > 0) {
      const T first = load<T>(host_output(0), place);
      if (std::memcmp(&first, &got, sizeof(T)) != 0 && (first == first || got == got)) {
        return concat("element ", place, " differs from that of rank 0");
      }
    }
  }
  return {};
}

std::string Problem::check_untouched() const {
  download();
  std::string wrong = check_guards();
  for (int r = 0; r < case_.world && wrong.empty(); ++r) {
    wrong = visit_stored(case_.dtype, [&]<class T>() { return check_input<T>(r); });
  }
  return wrong;
}

bool Problem::has_outputs_of(const Problem& other) const {
  for (int r = 0; r < case_.world; ++r) {
    if (!has_output(r, other.host_output(r))) return false;
  }
  return true;
}

}  // namespace tutti::conformance
