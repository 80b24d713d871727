// The two little languages in Slurm's variables: lists of nodes, tasks per node.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// "t02n[13,41-43],login1" -> t02n13, t02n41, t02n42, t02n43, login1. Leading zeros are kept
/// ("n[08-10]" -> n08, n09, n10); several brackets multiply, the last one runs fastest. `source`
/// names the text in errors. Throws kInvalidArgument with the position, found and expected;
/// kResourceExhausted above 65536 nodes.
std::vector<std::string> expand_node_list(std::string_view list,
                                          std::string_view source = "SLURM_STEP_NODELIST");

/// "3(x2),2,1" -> 3, 3, 2, 1. Throws as expand_node_list().
std::vector<int> expand_tasks_per_node(std::string_view list,
                                       std::string_view source = "SLURM_STEP_TASKS_PER_NODE");

}  // namespace tutti
