// Estimator functions that need gRPC, for builds without gRPC: they throw kUnimplemented.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/estimator/estimator.h"

namespace tutti {
namespace {

[[noreturn]] void refuse_workers(const char* function) {
  fail(ErrorCode::kUnimplemented, "Estimator::", function,
       ": this build has no gRPC, so it has no parameter servers; build with libgrpc++-dev and "
       "protobuf-compiler-grpc, or call train()");
}

}  // namespace

std::optional<int> Estimator::serve(const InputFn&) { refuse_workers("serve"); }

Estimator& Estimator::train_on_workers(EstimatorTrainOptions) {
  refuse_workers("train_on_workers");
}

}  // namespace tutti
