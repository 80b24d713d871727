// What callbacks ask of the model that is trained.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/callback.h"

#include "tutti/model/model.h"

namespace tutti {

bool Callback::is_chief() const { return !model_ || model_->strategy().is_chief(); }

}  // namespace tutti
