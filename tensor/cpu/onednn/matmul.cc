// Matrix products on oneDNN's sgemm (row-major), with bias and activation.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/tensor/cpu/activation.h"
#include "tutti/tensor/cpu/onednn/engine.h"
#include "tutti/tensor/cpu/onednn/onednn_kernels.h"

namespace tutti::internal {
namespace {

// C starts as the bias in every row, to which sgemm adds the product.
void fill_bias(std::span<const float> bias, std::span<float> c) {
  for (std::size_t first = 0; first < c.size(); first += bias.size()) {
    std::ranges::copy(bias, c.begin() + static_cast<std::ptrdiff_t>(first));
  }
}

}  // namespace

void onednn_matmul(const KernelArgs& args) {
  const auto& attributes = args.attributes_as<MatMulAttributes>();
  const Shape& sa = args.inputs[0].shape();
  const Shape& sb = args.inputs[1].shape();
  const Shape& sc = args.outputs[0].shape();
  const std::int64_t m = sc.dim(-2), n = sc.dim(-1);
  const std::int64_t k = sa.dim(attributes.transpose_a ? -2 : -1);
  const auto c = args.out<float>(0);
  const bool with_bias = args.inputs.size() > 2;
  if (with_bias) fill_bias(args.in<float>(2), c);
  if (k == 0) {
    if (!with_bias) std::ranges::fill(c, 0.0f);
    return activate(attributes.activation, c);
  }
  const std::int64_t batch = sc.num_elements() / (m * n);
  for (std::int64_t i = 0; i < batch; ++i) {
    const float* a = args.in<float>(0).data() + (sa.rank() > 2 ? i * m * k : 0);
    const float* b = args.in<float>(1).data() + (sb.rank() > 2 ? i * k * n : 0);
    const auto status = dnnl_sgemm(attributes.transpose_a ? 'T' : 'N',
                                   attributes.transpose_b ? 'T' : 'N', m, n, k, 1.0f, a, sa.dim(-1),
                                   b, sb.dim(-1), with_bias ? 1.0f : 0.0f, c.data() + i * m * n, n);
    TUTTI_CHECK(status == dnnl_success, "sgemm failed with status ", static_cast<int>(status));
  }
  activate(attributes.activation, c);
}

}  // namespace tutti::internal
