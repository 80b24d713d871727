// Stub of XlaSteps for builds without XLA.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/xla/xla_steps.h"
#include "tutti/core/error.h"

namespace tutti::internal {

struct XlaSteps::Impl {
  std::string nothing;
};

XlaSteps::XlaSteps(const std::vector<Device>& devices) {
  fail(ErrorCode::kUnimplemented, devices.front(),
       ": this build does not include XLA; expected CPUs or GPUs; configure with -DTUTTI_XLA=ON");
}

XlaSteps::~XlaSteps() = default;

void XlaSteps::run(const std::function<void(const NoteReplica&)>&) {}
int XlaSteps::num_compiled() const { return 0; }
const std::string& XlaSteps::last_program() const { return impl_->nothing; }

}  // namespace tutti::internal
