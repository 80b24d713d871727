// Tests the table of operations: CPU kernels agree with the reference kernels, and calls that other
// processes send are validated.
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <tuple>

#include "tensor/kernel_table.h"
#include "tensor/op_call_check.h"
#include "tests/support/op_table.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"
#include "tutti/tensor/numerics.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing::op_table_test {

Tensor values(const Shape& shape, std::uint64_t seed) {
  return random_values(shape, DType::kFloat32, -1, 1, seed);
}

/// Returns matrix products with long sums, for every combination of transposed operands.
std::vector<OpCall> long_products() {
  std::vector<OpCall> products;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const Tensor a = values(ta ? Shape{20000, 16} : Shape{16, 20000}, 1);
      const Tensor b = values(tb ? Shape{16, 20000} : Shape{20000, 16}, 2);
      products.push_back(
          {OpId::kMatMul, {a, b}, {{{16, 16}, DType::kFloat32}}, MatMulAttributes{ta, tb}});
    }
  }
  return products;
}

/// Returns calls that oneDNN computes: long products, and the table's float32 products and
/// convolutions.
const std::vector<OpCall>& calls() {
  static const std::vector<OpCall> all = [] {
    std::vector<OpCall> list = long_products();
    for (const char* family : {"products", "convolutions"}) {
      for (const OpCase& c : op_family(family).cases()) {
        const Tensor& first = c.call.inputs[0];
        const bool is_plain = first.dtype() == DType::kFloat32 && !c.has_special_numbers;
        if (is_plain && first.num_elements() > 0) list.push_back(c.call);
      }
    }
    return list;
  }();
  return all;
}

std::string name(const OpCall& call) { return OpCase{call}.name(); }

Tensor run_fast(const OpCall& call) { return run_kernel(cpu_kernels(), call)[0]; }

TEST(OneDnn, LongSumsAgreeWithTheReferenceKernels) {
  for (const OpCall& call : long_products()) {
    const Tensor expected = run_kernel(reference_kernels(), call)[0];
    expect_tensor(run_fast(call), expected.shape(), expected.to_doubles(), 1e-3);
  }
}

/// Returns a copy of `x` that is aligned to only 4 bytes.
Tensor misaligned(const Tensor& x) {
  const std::int64_t size = x.num_elements();
  const Tensor padded = concat({Tensor::zeros({1}), x.detached_reshape({size})}, 0);
  return padded.detached_rows(1, size).detached_reshape(x.shape());
}

TEST(OneDnn, BitsDoNotDependOnAlignment) {
  for (OpCall call : calls()) {
    SCOPED_TRACE(name(call));
    const Tensor expected = run_fast(call);
    for (Tensor& input : call.inputs) input = misaligned(input);
    ASSERT_NE(reinterpret_cast<std::uintptr_t>(call.inputs[0].bytes().data()) % 64, 0u);
    expect_same_bits(run_fast(call), expected);
  }
}

TEST(OneDnn, RepeatedRunsOnAnyThreadAreBitIdentical) {
  std::vector<Tensor> expected;
  for (const OpCall& call : calls()) expected.push_back(run_fast(call));
  const auto compare = [&] {
    std::size_t i = 0;
    for (const OpCall& call : calls()) {
      SCOPED_TRACE(name(call));
      expect_same_bits(run_fast(call), expected[i++]);
    }
  };
  compare();
  const auto first = Executor::system().start("first", compare);
  const auto second = Executor::system().start("second", compare);
  first->join();
  second->join();
}

// If oneDNN used OpenMP threads, the order of additions would depend on their number: a product of
// 16 x 20000 x 16 would have different bits with two threads.
TEST(OneDnn, BitsDoNotDependOnCallerOpenMpThreads) {
  const auto set_threads =
      reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  const auto max_threads = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  if (!set_threads || !max_threads) {  // a build without OpenMP must not contain oneDNN
    EXPECT_EQ(numerics_fingerprint().find("oneDNN"), std::string::npos) << numerics_fingerprint();
    return;
  }
  const int before = max_threads();
  for (int threads : {1, 2, 3}) {
    for (const OpCall& call : calls()) {
      SCOPED_TRACE(concat(name(call), " with ", threads, " threads"));
      set_threads(1);
      const Tensor expected = run_fast(call);
      set_threads(threads);
      expect_same_bits(run_fast(call), expected);
      EXPECT_EQ(max_threads(), threads);
    }
  }
  set_threads(before);
}

// The test uses 150 shapes, which is more than the number of primitives that a thread caches.
TEST(OneDnn, EvictedPrimitivesAreRecreated) {
  const Tensor filter = values({3, 3, 2, 4}, 2);
  std::vector<Tensor> first;
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t width = 3; width < 153; ++width) {
      const Tensor y = conv2d(values({1, 3, width, 2}, 1), filter);
      if (round == 0)
        first.push_back(y);
      else
        expect_same_bits(y, first[static_cast<std::size_t>(width - 3)]);
    }
  }
}

TEST(Numerics, FingerprintNamesKernelsAndInstructionSet) {
  const std::string text = numerics_fingerprint();
  EXPECT_EQ(text.find(concat("kernels ", kKernelVersion, ", ")), 0u) << text;
  EXPECT_GT(text.size(), 12u) << text;
}

// The fingerprint names the instruction set that is used on this processor. Naming only a permitted
// maximum, such as "all", would not determine the bits of results.
TEST(Numerics, FingerprintInstructionSetIsSupportedByProcessor) {
  const std::string text = numerics_fingerprint();
  // tutti's own loops give bit-identical results on every processor
  if (text.find("oneDNN") == std::string::npos) {
    EXPECT_TRUE(text.ends_with(", own loops") || text.ends_with(", reference")) << text;
    return;
  }
  const std::string isa = text.substr(text.rfind(' ') + 1);
  const bool wide = isa.starts_with("avx512");
#if defined(__x86_64__)
  EXPECT_LE(wide, static_cast<bool>(__builtin_cpu_supports("avx512f"))) << text;
  EXPECT_LE(isa.starts_with("avx2"), static_cast<bool>(__builtin_cpu_supports("avx2"))) << text;
#endif
  EXPECT_NE(isa, "all");
  const char* cap = std::getenv("TUTTI_MAX_ISA");
  const bool capped = cap && std::string_view(cap) == "avx2";
  EXPECT_FALSE(capped && wide) << text;
}

#if defined(__x86_64__)
struct SeenBySignals {
  std::uintptr_t stack_begin = 0, stack_end = 0;
  volatile std::sig_atomic_t num = 0, num_off_the_stack = 0;
};
SeenBySignals seen;

/// Runs on an alternate stack, because the test examines the stack pointer of the interrupted code.
void look_at_stack_pointer(int, siginfo_t*, void* context) {
  const auto pointer = static_cast<std::uintptr_t>(
      static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RSP]);
  seen.num = seen.num + 1;
  if (pointer < seen.stack_begin || pointer >= seen.stack_end) {
    seen.num_off_the_stack = seen.num_off_the_stack + 1;
  }
}

/// oneDNN's sgemm keeps a heap pointer in the stack pointer register, so the frame of a signal
/// handler would overwrite heap memory. Therefore signals are blocked during sgemm.
TEST(OneDnn, SignalHandlersSeeValidStackPointer) {
  pthread_attr_t attributes;
  void* begin = nullptr;
  std::size_t size = 0;
  ASSERT_EQ(pthread_getattr_np(pthread_self(), &attributes), 0);
  ASSERT_EQ(pthread_attr_getstack(&attributes, &begin, &size), 0);
  pthread_attr_destroy(&attributes);
  seen.stack_begin = reinterpret_cast<std::uintptr_t>(begin);
  seen.stack_end = seen.stack_begin + size;
  std::vector<char> stack(std::size_t{1} << 20);
  const stack_t own{stack.data(), 0, stack.size()};
  stack_t before{};
  ASSERT_EQ(sigaltstack(&own, &before), 0);
  struct sigaction action {};
  action.sa_sigaction = look_at_stack_pointer;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  struct sigaction action_before {};
  ASSERT_EQ(sigaction(SIGALRM, &action, &action_before), 0);
  const itimerval often{{0, 300}, {0, 300}}, never{};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  const Tensor a = values({130, 1152}, 1), b = values({130, 128}, 2);
  for (const auto& [x, y, options] : {std::tuple{a, b, MatMulOptions{.transpose_a = true}},
                                      std::tuple{b, values({128, 1152}, 3), MatMulOptions{}}}) {
    for (const int end = seen.num + 100; seen.num < end;) (void)matmul(x, y, options);
  }
  const Tensor images = values({16, 28, 28, 8}, 1), filter = values({3, 3, 8, 16}, 2);
  const Tensor dy = conv2d(images, filter);
  for (const int end = seen.num + 60; seen.num < end;) {
    (void)conv2d(images, filter);
    (void)conv2d_backward_input(dy, filter, images.shape(), {});
    (void)conv2d_backward_filter(images, dy, filter.shape(), {});
  }
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &action_before, nullptr);
  sigaltstack(&before, nullptr);
  EXPECT_EQ(seen.num_off_the_stack, 0) << "of " << seen.num;
}
#endif

bool cpu_has(OpId op, DType dtype) {
  return cpu_kernels().find(op, dtype) != nullptr ||
         (is_half(dtype) && cpu_kernels().find(op, DType::kFloat32) != nullptr);
}

std::vector<std::vector<Tensor>> run_on_cpu(std::span<const OpCall> calls) {
  std::vector<std::vector<Tensor>> results;
  for (const OpCall& call : calls) results.push_back(run_kernel(cpu_kernels(), call));
  return results;
}

/// Returns the tolerance in units in the last place. For operations that add in the same order as
/// the reference kernels, it is 0, or at most 1 for cases with special numbers.
double cpu_ulps(const OpCase& c) {
  const auto is_between = [&](OpId first, OpId last) {
    return c.call.op >= first && c.call.op <= last;
  };
  if (is_between(OpId::kMatMul, OpId::kBiasGrad) ||
      is_between(OpId::kBatchNormTraining, OpId::kGroupNormGrad) ||
      is_between(OpId::kAttention, OpId::kAttentionGrad))
    return c.ulps;
  return c.has_special_numbers ? std::min(c.ulps, 1.0) : 0.0;
}

const OpBackend kCpu{"cpu", cpu_has, run_on_cpu, cpu_ulps};

class CpuKernels : public OpTableTest {};

TEST_P(CpuKernels, AgreeWithTheReference) { expect_agreement(kCpu, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Operations, CpuKernels, ValuesIn(op_families()), family_name);

/// The float64 kernels of these families are the reference kernels, so the table would compare them
/// with themselves.
TEST(ReferenceKernels, AgreeInFloat32AndFloat64) {
  for (const char* family : {"products", "convolutions", "pooling", "normalization", "attention"}) {
    for (const OpCase& c : op_family(family).cases()) {
      if (c.call.inputs[0].dtype() != DType::kFloat32) continue;
      SCOPED_TRACE(c.name());
      OpCall wide = c.call;
      for (Tensor& input : wide.inputs) input = cast(input, DType::kFloat64);
      for (TensorSpec& output : wide.outputs) output.dtype = DType::kFloat64;
      const std::vector<Tensor> expected = run_kernel(reference_kernels(), wide);
      const std::vector<Tensor> actual = run_kernel(reference_kernels(), c.call);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t k = 0; k < expected.size(); ++k) {
        expect_close(actual[k], cast(expected[k], DType::kFloat32), c.ulps);
      }
    }
  }
}

TEST(OpTable, CoversEveryOperationAndType) {
  expect_cases_of_all_kernels(kCpu);
  for (int number = 0; number < static_cast<int>(OpId::kCount); ++number) {
    const OpId op = static_cast<OpId>(number);
    EXPECT_TRUE(std::ranges::any_of(kAllDTypes, [&](DType dtype) {
      return reference_has(op, dtype) && cpu_has(op, dtype);
    })) << to_string(op);
  }
}

class OpCallCheck : public OpTableTest {};

TEST_P(OpCallCheck, AcceptsValidCallsAndRejectsWrongOutputs) {
  for (const OpCase& c : GetParam().cases()) {
    SCOPED_TRACE(c.name());
    EXPECT_NO_THROW(internal::check_call(c.call));
    for (std::size_t i = 0; i < c.call.outputs.size(); ++i) {
      OpCall call = c.call;
      call.outputs[i].dtype =
          call.outputs[i].dtype == DType::kUInt8 ? DType::kInt64 : DType::kUInt8;
      if (call.op == OpId::kOneHot) continue;  // one_hot() may return any type
      EXPECT_THROW(internal::check_call(call), Error);
    }
    OpCall call = c.call;
    call.outputs[0].shape = Shape{7, 5, 3, 2, 1, 1, 13};
    if (call.op == OpId::kBroadcastTo) call.inputs[0] = Tensor::zeros({17}, call.outputs[0].dtype);
    EXPECT_THROW(internal::check_call(call), Error);
    call = c.call;
    call.outputs.push_back(call.outputs[0]);
    EXPECT_THROW(internal::check_call(call), Error);
  }
}

/// Replaces each input in turn by one whose shape fits no operation, and then removes all inputs.
TEST_P(OpCallCheck, RejectsInvalidInputs) {
  for (const OpCase& c : GetParam().cases()) {
    SCOPED_TRACE(c.name());
    for (std::size_t i = 0; i < c.call.inputs.size(); ++i) {
      OpCall call = c.call;
      call.inputs[i] = Tensor::zeros({3, 1, 5, 7, 1, 23}, call.inputs[i].dtype());
      EXPECT_THROW(internal::check_call(call), Error) << "input " << i;
    }
    OpCall call = c.call;
    call.inputs.clear();
    EXPECT_THROW(internal::check_call(call), Error);
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, OpCallCheck, ValuesIn(op_families()), family_name);

OpCall call_of(OpId op, std::vector<Tensor> inputs, std::vector<TensorSpec> outputs,
               Attributes attributes) {
  return {op, std::move(inputs), std::move(outputs), std::move(attributes), SourceLocation()};
}

TEST(OpCallCheck, RejectsInvalidAttributes) {
  const Tensor x = Tensor::zeros({4, 6}), image = Tensor::zeros({1, 5, 5, 2});
  const auto refused = [](const OpCall& call, const std::string& part) {
    EXPECT_ERROR(internal::check_call(call), kInvalidArgument, part);
  };
  SliceAttributes slice;
  slice.begin = {3, 0};
  refused(call_of(OpId::kSlice, {x}, {{{2, 6}, DType::kFloat32}}, slice), "parts within");
  slice.begin = {-1, 0};
  refused(call_of(OpId::kSlice, {x}, {{{2, 6}, DType::kFloat32}}, slice), "parts within");
  slice.begin = {0, 0, 9};
  refused(call_of(OpId::kSlice, {x}, {{{2, 6}, DType::kFloat32}}, slice),
          "axes that the shape lacks");
  PadAttributes pad;
  pad.before = {5, 0};
  refused(call_of(OpId::kPad, {x}, {{{8, 6}, DType::kFloat32}}, pad), "parts within");
  TransposeAttributes transpose;
  transpose.permutation = {1, 1};
  refused(call_of(OpId::kTranspose, {x}, {{{6, 6}, DType::kFloat32}}, transpose), "permutation");
  refused(call_of(OpId::kArgMax, {x}, {{{4}, DType::kInt64}}, AxisAttributes{2}), "an axis");
  refused(call_of(OpId::kConcat, {x}, {{{4, 6}, DType::kFloat32}}, AxisAttributes{-1}), "an axis");
  refused(call_of(OpId::kReduceSum, {x}, {{{4}, DType::kFloat32}}, AxesAttributes{6}), "axes");
  refused(call_of(OpId::kReduceSum, {x}, {{{4}, DType::kFloat32}}, {}),
          "the attributes of this operation");
  const Tensor filter = Tensor::zeros({3, 3, 2, 4});
  Conv2dAttributes conv;
  conv.stride_h = 0;
  refused(call_of(OpId::kConv2d, {image, filter}, {{{1, 3, 3, 4}, DType::kFloat32}}, conv),
          "sizes from 1");
  conv = {};
  conv.pad_top = std::int64_t{1} << 40;
  refused(call_of(OpId::kConv2d, {image, filter}, {{{1, 3, 3, 4}, DType::kFloat32}}, conv),
          "sizes from 0");
  conv = {};
  conv.dilation_h = 4;
  refused(call_of(OpId::kConv2d, {image, filter}, {{{1, 1, 3, 4}, DType::kFloat32}}, conv),
          "window within");
  Pool2dAttributes pool;
  pool.window_h = 9;
  refused(call_of(OpId::kMaxPool, {image}, {{{1, 1, 2, 2}, DType::kFloat32}}, pool),
          "window within");
}

}  // namespace tutti::testing::op_table_test
