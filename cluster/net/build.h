// What must be equal, or fit, for two processes to work together.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "job.pb.h"
#include "tutti/cluster/net/job_secret.h"

namespace tutti::internal {

/// Versions of what processes of a job say to each other that this build speaks.
inline constexpr std::uint32_t kOldestProtocol = 3, kNewestProtocol = 3;

/// Of this process.
v1::Build make_build(const std::string& job_id, const JobSecret& secret);

/// Why the two cannot work together, naming what both have ("chief 0", "rank 2") and the remedy;
/// "": they can. Either end comes to the same answer.
std::string incompatibility(const v1::Build& mine, std::string_view who, const v1::Build& theirs,
                            std::string_view whose);
/// The same, and whether the other one knows this job's secret.
std::string refusal_of(const v1::Build& mine, std::string_view who, const v1::Build& theirs,
                       std::string_view whose);

}  // namespace tutti::internal
