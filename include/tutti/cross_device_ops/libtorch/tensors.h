// libtorch tensors as arguments to collectives, and as views of memory that ranks share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/tensor/tensor.h"

namespace tutti::torch {

/// Returns the tutti type with the same elements. Throws kUnimplemented for types that tutti lacks
/// (complex and quantized numbers, signed integers of 8 and 16 bits).
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

/// The inverse of to_dtype().
inline ::torch::ScalarType to_scalar_type(DType dtype) {
  for (const ::torch::ScalarType type :
       {::torch::kFloat32, ::torch::kFloat64, ::torch::kInt32, ::torch::kInt64, ::torch::kUInt8,
        ::torch::kBool, ::torch::kBFloat16}) {
    if (to_dtype(type) == dtype) return type;
  }
  return ::torch::kFloat16;
}

/// Returns a tensor's elements in memory order, for calls to a Communicator; the tensor owns them.
/// Throws kInvalidArgument for a tensor that is not on the CPU, is sparse, or is a view with gaps.
inline Elements elements(const ::torch::Tensor& tensor) {
  if (!tensor.device().is_cpu() || tensor.layout() != ::torch::kStrided ||
      !tensor.is_non_overlapping_and_dense()) {
    fail(ErrorCode::kInvalidArgument, "tutti::torch: expected a dense tensor on the CPU, got ",
         tensor.toString(), " on ", tensor.device().str(),
         "; call contiguous() or to(torch::kCPU)");
  }
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel()),
          to_dtype(tensor.scalar_type())};
}

/// Returns a libtorch view of a tutti tensor; only a tensor on a GPU is copied. The result keeps
/// the elements alive. Read-only: do not write to it.
inline ::torch::Tensor to_torch(const Tensor& tensor) {
  const Tensor host = tensor.to(Device{});
  const std::vector<std::int64_t> sizes(host.shape().begin(), host.shape().end());
  // libtorch has no read-only tensors.
  return ::torch::from_blob(
      const_cast<void*>(host.address()), sizes, [host](void*) {}, to_scalar_type(host.dtype()));
}

/// Returns a row-major copy of the elements, because tutti's tensors are immutable and libtorch's
/// are not. Accepts any device and layout; throws kUnimplemented as to_dtype() does.
inline Tensor to_tutti(const ::torch::Tensor& tensor) {
  const ::torch::Tensor dense = tensor.detach().to(::torch::kCPU).contiguous();
  return Tensor::from_bytes(Shape(std::span(dense.sizes().data(), dense.sizes().size())),
                            to_dtype(dense.scalar_type()),
                            {static_cast<const std::byte*>(dense.data_ptr()), dense.nbytes()});
}

namespace internal {

/// Returns the names, types and shapes of the module's parameters and buffers, one per line.
inline std::string description_of(const ::torch::nn::Module& module) {
  std::string text;
  const auto describe = [&](const auto& named) {
    for (const auto& item : named) {
      text += concat(item.key(), " ", item.value().toString(), item.value().requires_grad());
      for (const std::int64_t length : item.value().sizes()) text += concat(" ", length);
      text += "\n";
    }
  };
  describe(module.named_parameters());
  describe(module.named_buffers());
  return text;
}
/// Returns a hash of description_of(module).
inline std::int64_t structure_of(const ::torch::nn::Module& module) {
  return static_cast<std::int64_t>(std::hash<std::string>()(description_of(module)));
}
/// Throws kInvalidArgument unless all elements of `all` are equal. `of` is the word for an index
/// into `all` in error messages, such as "rank".
inline void require_same(std::string_view who, std::string_view of,
                         std::span<const std::int64_t> all, const ::torch::nn::Module& own) {
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](std::int64_t structure) { return structure != all[0]; });
  if (other == all.end()) return;
  fail(ErrorCode::kInvalidArgument, who, ": the module of ", of, " ", other - all.begin(),
       " differs from ", of,
       " 0's; expected parameters and buffers with the same names, shapes and ",
       "types everywhere; this module has\n", description_of(own));
}

/// Returns the parameters that need gradients, each once. Throws kInvalidArgument, naming `who`, if
/// there are none.
inline std::vector<::torch::Tensor> trained_parameters(const ::torch::nn::Module& module,
                                                       std::string_view who) {
  std::vector<::torch::Tensor> found;
  for (const ::torch::Tensor& parameter : module.parameters()) {
    const auto is_it = [&](const ::torch::Tensor& other) { return other.is_same(parameter); };
    if (parameter.requires_grad() && std::none_of(found.begin(), found.end(), is_it)) {
      found.push_back(parameter);
    }
  }
  if (found.empty()) {
    fail(ErrorCode::kInvalidArgument, who, ": expected a module with parameters ",
         "that need gradients, got ", module.name(), " without any");
  }
  return found;
}

/// Consecutive tensors of one type, in memory that collectives access without a copy. Each tensor
/// begins at a multiple of 64 bytes; padding is 0. Views keep the memory alive.
class FlatMemory {
 public:
  /// Reserves space for `tensor`; returns the index of its first element.
  std::size_t add(const ::torch::Tensor& tensor) { return add(elements(tensor)); }
  std::size_t add(const Elements& like) {
    const std::size_t begin = count_, bytes = size_of(dtype_ = like.dtype);
    const std::size_t step = 64 / bytes;
    count_ += (like.count + step - 1) / step * step;
    return begin;
  }
  std::size_t num_bytes() const { return count_ * size_of(dtype_); }
  /// Uses `memory`, which has num_bytes() bytes and is aligned to 64 bytes, and fills it with
  /// zeros.
  void use(std::shared_ptr<std::byte> memory) {
    memory_ = std::move(memory);
    std::fill_n(memory_.get(), num_bytes(), std::byte{});
  }

  std::size_t count() const { return count_; }
  Elements part(std::size_t begin, std::size_t end) const {
    return {memory_.get() + begin * size_of(dtype_), end - begin, dtype_};
  }
  Elements all() const { return part(0, count_); }
  /// Returns a tensor at `begin` with the shape, strides and type of `like`. It is not a view in
  /// autograd's sense, so that optimizers may detach it.
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

/// Tensors that rank 0 broadcasts to all ranks, in one call per type.
class BroadcastPack {
 public:
  BroadcastPack(const std::vector<::torch::Tensor>& tensors, Communicator& ranks) {
    for (const ::torch::Tensor& tensor : tensors) {
      Group& group = groups_[to_dtype(tensor.scalar_type())];
      group.tensors.push_back(tensor);
      group.begins.push_back(group.memory.add(tensor));
    }
    for (auto& [dtype, group] : groups_) {
      group.memory.use(ranks.allocate(group.memory.num_bytes()));
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
