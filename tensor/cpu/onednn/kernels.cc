// oneDNN kernels: matrix products, convolution and its gradients, all float32.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string_view>

#include "tensor/cpu/onednn/engine.h"
#include "tensor/cpu/registration.h"
#include "tensor/matmul_extent.h"
#include "tutti/core/error.h"

namespace tutti::internal {

// Matrix products with sgemm (row-major), with bias and activation.

namespace {

// Fills every row of C with the bias, to which sgemm adds the product.
void fill_bias(std::span<const float> bias, std::span<float> c) {
  for (std::size_t first = 0; first < c.size(); first += bias.size()) {
    std::ranges::copy(bias, c.begin() + static_cast<std::ptrdiff_t>(first));
  }
}

void onednn_matmul(const KernelArgs& args) {
  const auto& attributes = args.attributes_as<MatMulAttributes>();
  const Shape& sa = args.inputs[0].shape();
  const Shape& sb = args.inputs[1].shape();
  const MatMulExtent extent(attributes, sa, sb, args.outputs[0].shape());
  const std::int64_t m = extent.m, n = extent.n;
  const auto c = args.out<float>(0);
  const bool with_bias = args.inputs.size() > 2;
  if (with_bias) fill_bias(args.in<float>(2), c);
  if (extent.k == 0) {
    if (!with_bias) std::ranges::fill(c, 0.0f);
    return activate(attributes.activation, c);
  }
  for (std::int64_t i = 0; i < extent.batch; ++i) {
    const float* a = args.in<float>(0).data() + extent.offset_in_a(i);
    const float* b = args.in<float>(1).data() + extent.offset_in_b(i);
    const auto status = dnnl_sgemm(
        attributes.transpose_a ? 'T' : 'N', attributes.transpose_b ? 'T' : 'N', m, n, extent.k,
        1.0f, a, sa.dim(-1), b, sb.dim(-1), with_bias ? 1.0f : 0.0f, c.data() + i * m * n, n);
    TUTTI_CHECK(status == dnnl_success, "matmul: oneDNN's sgemm failed with status ",
                static_cast<int>(status));
  }
  activate(attributes.activation, c);
}

// Convolution and its gradients.
//
// Images stay NHWC; the filter is reordered from HWIO into the layout that the primitive prefers.

using dnnl::memory;
using dims = memory::dims;
using tag = memory::format_tag;
constexpr auto kFloat = memory::data_type::f32;
constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

/// oneDNN's description of one convolution: logical dimensions NCHW and OIHW (GOIHW with groups),
/// whatever the layout.
struct Problem {
  Problem(const Shape& x, const Shape& f, const Shape& y, const Conv2dAttributes& a)
      : source{x[0], x[3], x[1], x[2]},
        filter{a.groups, f[3] / a.groups, f[2], f[0], f[1]},
        destination{y[0], y[3], y[1], y[2]},
        strides{a.stride_h, a.stride_w},
        pad_before{a.pad_top, a.pad_left},
        pad_after{a.pad_bottom, a.pad_right},
        gaps{a.dilation_h - 1, a.dilation_w - 1} {
    if (a.groups == 1) filter.erase(filter.begin());
  }

  memory::desc source_desc() const { return {source, kFloat, tag::nhwc}; }
  memory::desc destination_desc() const { return {destination, kFloat, tag::nhwc}; }
  memory::desc plain_filter() const {
    return {filter, kFloat, is_grouped() ? tag::hwigo : tag::hwio};
  }
  memory::desc any_filter() const { return {filter, kFloat, tag::any}; }
  bool is_grouped() const { return filter.size() == 5; }

  dims source, filter, destination, strides, pad_before, pad_after, gaps;
};

PrimitiveCache<int>::Key key_of(const Shape& x, const Shape& f, const Conv2dAttributes& a,
                                bool with_bias) {
  PrimitiveCache<int>::Key key(x.begin(), x.end());
  key.insert(key.end(), f.begin(), f.end());
  key.insert(key.end(), {a.stride_h, a.stride_w, a.pad_top, a.pad_bottom, a.pad_left, a.pad_right,
                         static_cast<std::int64_t>(a.activation), with_bias, a.dilation_h,
                         a.dilation_w, a.groups});
  return key;
}

/// A reorder between the layouts of the plain filter and of the primitive; empty if the layouts are
/// equal.
struct FilterReorder {
  FilterReorder(const memory::desc& from, const memory::desc& to) {
    if (from == to) return;
    const dnnl::reorder::primitive_desc description(onednn_engine(), from, onednn_engine(), to,
                                                    onednn_attributes());
    scratchpad = description.scratchpad_desc();
    primitive = dnnl::reorder(description);
  }
  void run(const memory& from, const memory& to) const {
    onednn_run(*primitive, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}, scratchpad);
  }
  std::optional<dnnl::reorder> primitive;
  memory::desc scratchpad;
};

/// Returns the filter in the primitive's layout; `storage` keeps a reordered copy alive.
memory reordered_filter(const FilterReorder& reorder, const memory::desc& plain,
                        const memory::desc& wanted, const Tensor& filter, BufferRef& storage) {
  const memory source = onednn_memory(plain, filter.bytes().data());
  if (!reorder.primitive) return source;
  storage = BufferRef::allocate(wanted.get_size());
  const memory copy = onednn_memory(wanted, storage->data());
  reorder.run(source, copy);
  return copy;
}

dnnl::primitive_attr fused(FusedActivation activation) {
  dnnl::primitive_attr attributes = onednn_attributes();
  dnnl::post_ops operations;
  switch (activation) {
    case FusedActivation::kNone:
    case FusedActivation::kRelu:  // oneDNN's ReLU turns NaN into 0
      return attributes;
    case FusedActivation::kSigmoid:
      operations.append_eltwise(1.0f, dnnl::algorithm::eltwise_logistic, 0.0f, 0.0f);
      break;
    case FusedActivation::kTanh:
      operations.append_eltwise(1.0f, dnnl::algorithm::eltwise_tanh, 0.0f, 0.0f);
      break;
  }
  attributes.set_post_ops(operations);
  return attributes;
}

// With few input channels, oneDNN's first choice on AVX-512 (products of small matrices) takes up
// to twice as long as its second choice, direct loops.
constexpr std::int64_t kFewChannels = 16;

void prefer_direct_loops(const Problem& p, dnnl::convolution_forward::primitive_desc& description) {
  const auto is = [&](std::string_view name) {
    return std::string_view(description.impl_info_str()).starts_with(name);
  };
  if (p.is_grouped() || p.source[1] > kFewChannels || !is("brgconv")) return;
  const auto first = description;
  if (!description.next_impl() || !is("jit:")) description = first;
}

dnnl::convolution_forward::primitive_desc forward_description(const Problem& p, bool with_bias,
                                                              FusedActivation activation) {
  const auto training = dnnl::prop_kind::forward_training;
  const memory::desc bias({p.destination[1]}, kFloat, tag::x);
  const auto description =
      with_bias ? dnnl::convolution_forward::desc(training, kAlgorithm, p.source_desc(),
                                                  p.any_filter(), bias, p.destination_desc(),
                                                  p.strides, p.gaps, p.pad_before, p.pad_after)
                : dnnl::convolution_forward::desc(training, kAlgorithm, p.source_desc(),
                                                  p.any_filter(), p.destination_desc(), p.strides,
                                                  p.gaps, p.pad_before, p.pad_after);
  dnnl::convolution_forward::primitive_desc chosen(description, fused(activation), onednn_engine());
  prefer_direct_loops(p, chosen);
  return chosen;
}

struct Forward {
  Forward(const Problem& p, bool with_bias, FusedActivation activation)
      : description(forward_description(p, with_bias, activation)),
        primitive(description),
        reorder(p.plain_filter(), description.weights_desc()) {}
  dnnl::convolution_forward::primitive_desc description;
  dnnl::convolution_forward primitive;
  FilterReorder reorder;
};

struct BackwardInput {
  explicit BackwardInput(const Problem& p)
      : description({kAlgorithm, p.source_desc(), p.any_filter(), p.destination_desc(), p.strides,
                     p.gaps, p.pad_before, p.pad_after},
                    onednn_attributes(), onednn_engine(),
                    forward_description(p, false, FusedActivation::kNone)),
        primitive(description),
        reorder(p.plain_filter(), description.weights_desc()) {}
  dnnl::convolution_backward_data::primitive_desc description;
  dnnl::convolution_backward_data primitive;
  FilterReorder reorder;
};

struct BackwardFilter {
  explicit BackwardFilter(const Problem& p)
      : description({kAlgorithm, p.source_desc(), p.any_filter(), p.destination_desc(), p.strides,
                     p.gaps, p.pad_before, p.pad_after},
                    onednn_attributes(), onednn_engine(),
                    forward_description(p, false, FusedActivation::kNone)),
        primitive(description),
        reorder(description.diff_weights_desc(), p.plain_filter()) {}
  dnnl::convolution_backward_weights::primitive_desc description;
  dnnl::convolution_backward_weights primitive;
  FilterReorder reorder;
};

/// If an input is empty, runs the reference kernel and returns true; otherwise returns false.
bool left_to_reference(OpId op, const KernelArgs& args) {
  if (args.inputs[0].num_elements() > 0 && args.inputs[1].num_elements() > 0) return false;
  reference_kernels().find(op, DType::kFloat32)(args);
  return true;
}

void onednn_conv2d(const KernelArgs& args) {
  if (left_to_reference(OpId::kConv2d, args)) return;
  const auto& attributes = args.attributes_as<Conv2dAttributes>();
  const Shape& x = args.inputs[0].shape();
  const Shape& f = args.inputs[1].shape();
  const bool with_bias = args.inputs.size() > 2;
  thread_local PrimitiveCache<Forward> cache;
  const Problem problem(x, f, args.outputs[0].shape(), attributes);
  const Forward& made = cache.get(key_of(x, f, attributes, with_bias), [&] {
    return Forward(problem, with_bias, attributes.activation);
  });
  BufferRef storage;
  std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, onednn_memory(problem.source_desc(), args.inputs[0].bytes().data())},
      {DNNL_ARG_WEIGHTS,
       reordered_filter(made.reorder, problem.plain_filter(), made.description.weights_desc(),
                        args.inputs[1], storage)},
      {DNNL_ARG_DST, onednn_memory(problem.destination_desc(), args.outputs[0].data())}};
  if (with_bias) {
    arguments.emplace(DNNL_ARG_BIAS,
                      onednn_memory(made.description.bias_desc(), args.inputs[2].bytes().data()));
  }
  onednn_run(made.primitive, std::move(arguments), made.description.scratchpad_desc());
  if (attributes.activation == FusedActivation::kRelu) {
    activate(FusedActivation::kRelu, args.out<float>(0));
  }
}

void onednn_conv2d_backward_input(const KernelArgs& args) {
  if (left_to_reference(OpId::kConv2dBackwardInput, args)) return;
  const auto& attributes = args.attributes_as<Conv2dAttributes>();
  const Shape& x = args.outputs[0].shape();
  const Shape& f = args.inputs[1].shape();
  thread_local PrimitiveCache<BackwardInput> cache;
  const Problem problem(x, f, args.inputs[0].shape(), attributes);
  const BackwardInput& made =
      cache.get(key_of(x, f, attributes, false), [&] { return BackwardInput(problem); });
  BufferRef storage;
  onednn_run(made.primitive,
             {{DNNL_ARG_DIFF_DST,
               onednn_memory(problem.destination_desc(), args.inputs[0].bytes().data())},
              {DNNL_ARG_WEIGHTS,
               reordered_filter(made.reorder, problem.plain_filter(),
                                made.description.weights_desc(), args.inputs[1], storage)},
              {DNNL_ARG_DIFF_SRC, onednn_memory(problem.source_desc(), args.outputs[0].data())}},
             made.description.scratchpad_desc());
}

void onednn_conv2d_backward_filter(const KernelArgs& args) {
  if (left_to_reference(OpId::kConv2dBackwardFilter, args)) return;
  const auto& attributes = args.attributes_as<Conv2dAttributes>();
  const Shape& x = args.inputs[0].shape();
  const Shape& f = args.outputs[0].shape();
  thread_local PrimitiveCache<BackwardFilter> cache;
  const Problem problem(x, f, args.inputs[1].shape(), attributes);
  const BackwardFilter& made =
      cache.get(key_of(x, f, attributes, false), [&] { return BackwardFilter(problem); });
  const memory::desc wanted = made.description.diff_weights_desc();
  BufferRef storage;
  const memory plain = onednn_memory(problem.plain_filter(), args.outputs[0].data());
  memory gradient = plain;
  if (made.reorder.primitive) {
    storage = BufferRef::allocate(wanted.get_size());
    gradient = onednn_memory(wanted, storage->data());
  }
  onednn_run(made.primitive,
             {{DNNL_ARG_SRC, onednn_memory(problem.source_desc(), args.inputs[0].bytes().data())},
              {DNNL_ARG_DIFF_DST,
               onednn_memory(problem.destination_desc(), args.inputs[1].bytes().data())},
              {DNNL_ARG_DIFF_WEIGHTS, gradient}},
             made.description.scratchpad_desc());
  if (made.reorder.primitive) made.reorder.run(gradient, plain);
}

/// Runs `kernel` on one thread, with all signals except faults blocked, and converts oneDNN's
/// exceptions to tutti's.
template <Kernel kernel>
void guarded(const KernelArgs& args) {
  const SingleThreadScope one_thread;
  const SignalsHeld signals_held;
  try {
    kernel(args);
  } catch (const dnnl::error& error) {
    const bool memory = error.status == dnnl_out_of_memory;
    fail(memory ? ErrorCode::kResourceExhausted : ErrorCode::kInternal, "oneDNN: ", error.what(),
         " (status ", static_cast<int>(error.status), ")");
  }
}

}  // namespace

void register_onednn_kernels(KernelTable& table) {
  (void)onednn_engine();  // caps the instruction set before anything else uses oneDNN
  table.set(OpId::kConv2d, DType::kFloat32, guarded<onednn_conv2d>);
  table.set(OpId::kConv2dBackwardInput, DType::kFloat32, guarded<onednn_conv2d_backward_input>);
  table.set(OpId::kConv2dBackwardFilter, DType::kFloat32, guarded<onednn_conv2d_backward_filter>);
  table.set(OpId::kMatMul, DType::kFloat32, guarded<onednn_matmul>);
}

}  // namespace tutti::internal
