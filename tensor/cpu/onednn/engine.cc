// What all oneDNN kernels share: engine, the state of a thread, the cache of primitives.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cpu/onednn/engine.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

struct Isa {
  const char* name;
  dnnl::cpu_isa value;
};
constexpr Isa kIsas[] = {{"sse41", dnnl::cpu_isa::sse41},
                         {"avx", dnnl::cpu_isa::avx},
                         {"avx2", dnnl::cpu_isa::avx2},
                         {"avx512_core", dnnl::cpu_isa::avx512_core},
                         {"all", dnnl::cpu_isa::all}};

Isa wanted_isa() {
  const char* text = std::getenv("TUTTI_MAX_ISA");
  const std::string name = text && *text ? text : "avx2";
  for (const Isa& isa : kIsas) {
    if (name == isa.name) return isa;
  }
  fail(ErrorCode::kInvalidArgument,
       "TUTTI_MAX_ISA: expected one of sse41, avx, avx2, avx512_core, all, got '", name, "'");
}

dnnl::engine make_engine() {
  dnnl::set_max_cpu_isa(wanted_isa().value);
  return dnnl::engine(dnnl::engine::kind::cpu, 0);
}

// oneDNN of the distributions runs on OpenMP, whose number of threads belongs to the calling
// thread. The function is looked up so that tutti itself needs no OpenMP.
void use_one_thread() {
  using SetNumThreads = void (*)(int);
  if (void* const symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads")) {
    reinterpret_cast<SetNumThreads>(symbol)(1);
  }
}

struct ThreadState {
  ThreadState() : stream(onednn_engine()) { use_one_thread(); }
  dnnl::stream stream;
  BufferRef scratchpad;
};

ThreadState& thread_state() {
  thread_local ThreadState state;
  return state;
}

}  // namespace

const dnnl::engine& onednn_engine() {
  static const dnnl::engine engine = make_engine();
  return engine;
}

std::string onednn_isa_name() { return wanted_isa().name; }

dnnl::stream& onednn_stream() { return thread_state().stream; }

void* onednn_scratchpad(std::size_t bytes) {
  BufferRef& buffer = thread_state().scratchpad;
  if (!buffer || buffer->size() < bytes) buffer = BufferRef::allocate(bytes);
  return buffer->data();
}

dnnl::memory onednn_memory(const dnnl::memory::desc& description, const void* data) {
  return dnnl::memory(description, onednn_engine(), const_cast<void*>(data));
}

void onednn_run(const dnnl::primitive& primitive, std::unordered_map<int, dnnl::memory> arguments,
                const dnnl::memory::desc& scratchpad) {
  arguments.emplace(DNNL_ARG_SCRATCHPAD,
                    onednn_memory(scratchpad, onednn_scratchpad(scratchpad.get_size())));
  primitive.execute(onednn_stream(), arguments);
}

dnnl::primitive_attr onednn_attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

}  // namespace tutti::internal
