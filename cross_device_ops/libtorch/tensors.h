// libtorch's tensors as the elements of collectives, and as views of memory that ranks share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti::torch {

/// The type of the same elements. Throws kUnimplemented for those that tutti has not (complex and
/// quantized numbers, integers of 8 and 16 bits with a sign).
inline DType to_dtype(::torch::ScalarType type) {
  switch (type) {
    case ::torch::kFloat32:
      return DType::kFloat32;
    case ::torch::kFloat64:
      return DType::kFloat64;
    case ::torch::kBFloat16:
      return DType::kBFloat16;
    case ::torch::kFloat16:
      return DType::kFloat16;
    case ::torch::kInt32:
      return DType::kInt32;
    case ::torch::kInt64:
      return DType::kInt64;
    case ::torch::kUInt8:
      return DType::kUInt8;
    case ::torch::kBool:
      return DType::kBool;
    default:
      fail(ErrorCode::kUnimplemented,
           "tutti::torch: expected float32, float64, bfloat16, float16, ",
           "int32, int64, uint8 or bool, got a tensor of ", ::torch::toString(type));
  }
}

/// A tensor's elements in the order of its memory, for the calls of a Communicator; the tensor owns
/// them. Throws kInvalidArgument for a tensor that is not on the CPU, sparse, or a view with gaps.
inline Elements elements(const ::torch::Tensor& tensor) {
  if (!tensor.device().is_cpu() || tensor.layout() != ::torch::kStrided ||
      !tensor.is_non_overlapping_and_dense()) {
    fail(ErrorCode::kInvalidArgument, "tutti::torch: expected a dense tensor on the CPU, got ",
         tensor.toString(), " on ", tensor.device().str(), "; try contiguous() or to(torch::kCPU)");
  }
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel()),
          to_dtype(tensor.scalar_type())};
}

namespace internal {

/// Tensors of one type, one after the other in memory that calls reach without a copy. Each begins
/// at a multiple of 64 bytes; what lies between is 0. Views of it keep the memory alive.
class FlatMemory {
 public:
  /// Where `tensor` is to lie: the number of its first element.
  std::size_t add(const ::torch::Tensor& tensor) { return add(elements(tensor)); }
  std::size_t add(const Elements& like) {
    const std::size_t begin = count_, bytes = size_of(dtype_ = like.dtype);
    const std::size_t step = 64 / bytes;
    count_ += (like.count + step - 1) / step * step;
    return begin;
  }
  void allocate(Communicator& ranks) {
    memory_ = ranks.allocate(count_ * size_of(dtype_));
    std::fill_n(memory_.get(), count_ * size_of(dtype_), std::byte{});
  }

  std::size_t count() const { return count_; }
  Elements part(std::size_t begin, std::size_t end) const {
    return {memory_.get() + begin * size_of(dtype_), end - begin, dtype_};
  }
  Elements all() const { return part(0, count_); }
  /// A tensor of the shape, strides and type of `like` at `begin`: no view in autograd's sense, so
  /// that optimizers may detach it.
  ::torch::Tensor view(std::size_t begin, const ::torch::Tensor& like) const {
    return ::torch::from_blob(
        part(begin, begin).data, like.sizes(), like.strides(), [memory = memory_](void*) {},
        like.options());
  }

 private:
  std::shared_ptr<std::byte> memory_;
  std::size_t count_ = 0;
  DType dtype_ = DType::kFloat32;
};

/// Tensors that all ranks take over from rank 0, in one call per type.
class BroadcastPack {
 public:
  BroadcastPack(const std::vector<::torch::Tensor>& tensors, Communicator& ranks) {
    for (const ::torch::Tensor& tensor : tensors) {
      Group& group = groups_[to_dtype(tensor.scalar_type())];
      group.tensors.push_back(tensor);
      group.begins.push_back(group.memory.add(tensor));
    }
    for (auto& [dtype, group] : groups_) {
      group.memory.allocate(ranks);
      for (std::size_t i = 0; i < group.tensors.size(); ++i) {
        group.views.push_back(group.memory.view(group.begins[i], group.tensors[i]));
      }
    }
  }
  bool empty() const { return groups_.empty(); }

  void broadcast(Communicator& ranks, std::string_view name) {
    if (ranks.size() == 1) return;
    const ::torch::NoGradGuard no_grad;
    const bool is_root = ranks.rank() == 0;
    for (auto& [dtype, group] : groups_) {
      for (std::size_t i = 0; is_root && i < group.views.size(); ++i) {
        group.views[i].copy_(group.tensors[i]);
      }
      ranks.broadcast(group.memory.all(), 0, {.name = name});
      for (std::size_t i = 0; !is_root && i < group.views.size(); ++i) {
        group.tensors[i].copy_(group.views[i]);
      }
    }
  }

 private:
  struct Group {
    FlatMemory memory;
    std::vector<::torch::Tensor> tensors, views;
    std::vector<std::size_t> begins;
  };
  std::map<DType, Group> groups_;
};

}  // namespace internal
}  // namespace tutti::torch
