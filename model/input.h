// Where a model starts; the layers hold it, since graphs start from it, too.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/model/layers/input.h"
