// The weights of gray, as torchvision rounds them: white becomes 254.
#pragma once

namespace custom_op {

inline int gray_of(float red, float green, float blue) {
  return static_cast<int>(0.2989F * red + 0.587F * green + 0.114F * blue);
}

}  // namespace custom_op
