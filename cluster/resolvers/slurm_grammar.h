// Parsers for Slurm's lists of nodes and of tasks per node.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// Expands "t02n[13,41-43],login1" to t02n13, t02n41, t02n42, t02n43, login1. Leading zeros are
/// kept ("n[08-10]": n08, n09, n10); with several brackets, the last one varies fastest. `source`
/// names the text in errors. Throws kInvalidArgument with the position, the text found and the text
/// expected; kResourceExhausted for more than 65536 nodes.
std::vector<std::string> expand_node_list(std::string_view list,
                                          std::string_view source = "SLURM_STEP_NODELIST");

/// Expands "3(x2),2,1" to 3, 3, 2, 1. Throws the same errors as expand_node_list().
std::vector<int> expand_tasks_per_node(std::string_view list,
                                       std::string_view source = "SLURM_STEP_TASKS_PER_NODE");

}  // namespace tutti
