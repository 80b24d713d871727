// The list of CPU kernels: which topics there are, and which kernels replace which.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string_view>

#include "tutti/tensor/cpu/registration.h"

namespace tutti {
namespace {

using namespace internal;

KernelTable make_reference_kernels() {
  KernelTable table;
  register_elementwise_kernels(table);
  register_reduction_kernels(table);
  register_shape_kernels(table);
  register_matmul_reference_kernels(table);
  register_convolution_reference_kernels(table);
  register_pooling_reference_kernels(table);
  register_normalization_reference_kernels(table);
  register_softmax_reference_kernels(table);
  register_group_normalization_kernels(table);
  register_resizing_kernels(table);
  register_scanning_kernels(table);
  register_random_reference_kernels(table);
  return table;
}

/// Later registrations replace earlier ones.
KernelTable make_fast_kernels() {
  KernelTable table = reference_kernels();
  register_fast_elementwise_kernels(table);
  register_fast_cast_kernels(table);
  register_fast_reduction_kernels(table);
  register_fast_bias_kernels(table);
  register_fast_pooling_kernels(table);
  register_fast_normalization_kernels(table);
  register_fast_lrn_kernels(table);
  register_fast_group_normalization_kernels(table);
  register_fast_dropout_kernels(table);
  register_fast_resizing_kernels(table);
#if TUTTI_WITH_ONEDNN
  register_onednn_kernels(table);
#endif
  return table;
}

bool reference_wanted() {
  const char* choice = std::getenv("TUTTI_KERNELS");
  if (!choice || std::string_view(choice).empty()) return false;
  if (std::string_view(choice) == "reference") return true;
  fail(ErrorCode::kInvalidArgument, "TUTTI_KERNELS: expected 'reference' or nothing, got '", choice,
       "'");
}

KernelTable make_cpu_kernels() {
  return reference_wanted() ? reference_kernels() : make_fast_kernels();
}

}  // namespace

std::string internal::cpu_math_description() {
  if (reference_wanted()) return "reference";
#if TUTTI_WITH_ONEDNN
  return onednn_description();
#else
  return "own loops";
#endif
}

const KernelTable& reference_kernels() {
  static const KernelTable table = make_reference_kernels();
  return table;
}

const KernelTable& cpu_kernels() {
  static const KernelTable table = make_cpu_kernels();
  return table;
}

}  // namespace tutti
