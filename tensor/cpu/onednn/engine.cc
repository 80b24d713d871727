// State that oneDNN kernels share: engine, threads, scratchpad, primitive cache.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cpu/onednn/engine.h"

#include <dlfcn.h>

#include <string_view>
#include <utility>

#include "tensor/cpu/registration.h"
#include "tensor/cpu/vectorized.h"
#include "tutti/core/logging.h"
#include "tutti/core/text.h"

namespace tutti::internal {
namespace {

/// oneDNN's instruction sets in MaxIsa order; oneDNN has no set below SSE4.1.
constexpr dnnl::cpu_isa kCaps[] = {dnnl::cpu_isa::sse41,       dnnl::cpu_isa::sse41,
                                   dnnl::cpu_isa::avx,         dnnl::cpu_isa::avx2,
                                   dnnl::cpu_isa::avx512_core, dnnl::cpu_isa::all};

dnnl::engine make_engine() {
  if (dnnl::set_max_cpu_isa(kCaps[static_cast<std::size_t>(max_isa())]) != dnnl::status::success) {
    log_warning(concat(
        "oneDNN ran before tutti in this process: its instruction set can no longer be capped at ",
        to_string(max_isa()), "; results may differ between processors"));
  }
  return dnnl::engine(dnnl::engine::kind::cpu, 0);
}

// The oneDNN packages of Linux distributions use OpenMP, whose number of threads is set per calling
// thread. The OpenMP functions are looked up at run time, so that tutti itself needs no OpenMP;
// they are null if oneDNN uses another runtime.
struct OpenMp {
  using GetMaxThreads = int (*)();
  using SetNumThreads = void (*)(int);
  GetMaxThreads get_max_threads =
      reinterpret_cast<GetMaxThreads>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  SetNumThreads set_num_threads =
      reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  bool exists() const { return get_max_threads && set_num_threads; }
};

const OpenMp& open_mp() {
  static const OpenMp functions;
  return functions;
}

struct ThreadState {
  dnnl::stream stream{onednn_engine()};
  BufferRef scratchpad;

  void* scratch(std::size_t bytes) {
    if (!scratchpad || scratchpad->size() < bytes) scratchpad = BufferRef::allocate(bytes);
    return scratchpad->data();
  }
};

ThreadState& thread_state() {
  thread_local ThreadState state;
  return state;
}

// Returns the instruction set that oneDNN uses: the processor's, limited by TUTTI_MAX_ISA and
// ONEDNN_MAX_CPU_ISA.
std::string_view effective_isa() {
  constexpr std::pair<dnnl::cpu_isa, std::string_view> kNames[] = {
      {dnnl::cpu_isa::sse41, "sse41"},
      {dnnl::cpu_isa::avx, "avx"},
      {dnnl::cpu_isa::avx2, "avx2"},
      {dnnl::cpu_isa::avx2_vnni, "avx2_vnni"},
      {dnnl::cpu_isa::avx512_core, "avx512_core"},
      {dnnl::cpu_isa::avx512_core_vnni, "avx512_core_vnni"},
      {dnnl::cpu_isa::avx512_core_bf16, "avx512_core_bf16"},
      {dnnl::cpu_isa::avx512_core_amx, "avx512_core_amx"}};
  const dnnl::cpu_isa used = dnnl::get_effective_cpu_isa();
  for (const auto& [isa, name] : kNames) {
    if (isa == used) return name;
  }
  return "baseline";
}

}  // namespace

const dnnl::engine& onednn_engine() {
  static const dnnl::engine engine = make_engine();
  return engine;
}

SingleThreadScope::SingleThreadScope()
    : previous_(open_mp().exists() ? open_mp().get_max_threads() : 0) {
  if (open_mp().exists()) open_mp().set_num_threads(1);
}

SingleThreadScope::~SingleThreadScope() {
  if (open_mp().exists()) open_mp().set_num_threads(previous_);
}

SignalsHeld::SignalsHeld() {
  static const sigset_t held = [] {
    sigset_t set;
    sigfillset(&set);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
      sigdelset(&set, fault);
    }
    return set;
  }();
  pthread_sigmask(SIG_BLOCK, &held, &previous_);
}

SignalsHeld::~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }

dnnl::memory onednn_memory(const dnnl::memory::desc& description, const void* data) {
  return dnnl::memory(description, onednn_engine(), const_cast<void*>(data));
}

void onednn_run(const dnnl::primitive& primitive, std::unordered_map<int, dnnl::memory> arguments,
                const dnnl::memory::desc& scratchpad) {
  ThreadState& state = thread_state();
  arguments.emplace(DNNL_ARG_SCRATCHPAD,
                    onednn_memory(scratchpad, state.scratch(scratchpad.get_size())));
  primitive.execute(state.stream, arguments);
}

dnnl::primitive_attr onednn_attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

std::string onednn_description() {
  (void)onednn_engine();  // sets the cap
  const dnnl_version_t* version = dnnl_version();
  return concat("oneDNN ", version->major, ".", version->minor, ".", version->patch, ", ",
                effective_isa());
}

}  // namespace tutti::internal
