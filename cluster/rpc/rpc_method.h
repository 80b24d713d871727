// What a server of a job can be called for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tutti {

/// The methods of the services in cluster/proto that are streams of calls (calls.proto): Apply and
/// Order of ParameterServer, Run of Worker, Operate of Session.
enum class RpcMethod { kApply, kOrder, kRun, kOperate };

}  // namespace tutti
