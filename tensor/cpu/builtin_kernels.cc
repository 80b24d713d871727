// Builds the tables of CPU kernels: the reference kernels, and the fastest kernel for each
// operation.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string_view>

#include "tensor/cpu/registration.h"
#include "tutti/tensor/numerics.h"

namespace tutti {
namespace {

using namespace internal;

KernelTable make_reference_kernels() {
  KernelTable table;
  register_elementwise_kernels(table);
  register_reduction_kernels(table);
  register_shape_kernels(table);
  register_product_reference_kernels(table);
  register_image_reference_kernels(table);
  register_normalization_reference_kernels(table);
  register_softmax_reference_kernels(table);
  register_attention_reference_kernels(table);
  return table;
}

/// Returns the fastest kernel for each operation: later registrations replace earlier ones.
KernelTable make_fast_kernels() {
  KernelTable table = reference_kernels();
  register_fast_elementwise_kernels(table);
  register_fast_reduction_kernels(table);
  register_fast_image_kernels(table);
  register_fast_normalization_kernels(table);
#if TUTTI_WITH_ONEDNN
  register_onednn_kernels(table);
  register_onednn_attention_kernels(table);
#endif
  return table;
}

bool reference_wanted() {
  const char* choice = std::getenv("TUTTI_KERNELS");
  if (!choice || std::string_view(choice).empty()) return false;
  if (std::string_view(choice) == "reference") return true;
  fail(ErrorCode::kInvalidArgument, "TUTTI_KERNELS: expected 'reference' or no value, got '",
       choice, "'");
}

KernelTable make_cpu_kernels() {
  return reference_wanted() ? reference_kernels() : make_fast_kernels();
}

/// Describes the implementation of matrix products and convolutions in cpu_kernels().
std::string cpu_math_description() {
  if (reference_wanted()) return "reference";
#if TUTTI_WITH_ONEDNN
  return onednn_description();
#else
  return "own loops";
#endif
}

}  // namespace

std::string numerics_fingerprint() {
  return concat("kernels ", kKernelVersion, ", ", cpu_math_description());
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
